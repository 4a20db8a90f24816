"""Device memory is host memory: the same bytes, strides and version, seen as a tensor of either device.

A tensor is exported as a DLPack capsule, the capsule's device word is overwritten, and the capsule is imported again. Nothing
is copied. DLPack drops the lazy conj and neg bits and the strides of dimensions of size 1 (by which kernels choose a memory
format), so both are restored. An alias keeps the exported *tensor* alive, not only its storage. So an alias must never be
stored on the tensor it comes from (a cycle that cannot be collected), and a tensor must never be made to use the storage of its
own alias (that frees its memory).

Zeros by definition: what forward-mode derivatives use where an operand has no tangent.

On other devices torch gives them no memory, and a product with one is zero whatever the other factor holds, even NaN
(ZeroTensor kernels of aten/src/ATen/native/BinaryOps.cpp). A relabelled tensor cannot carry torch's mark for that, so here they
are real zeros whose memory addresses are recorded. Sums with them are computed: -0.0 + 0 gives 0.0 where torch would return
-0.0.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.core.errors import DeviceError

NAME = "sim"
SEAT_COUNT = 128  # a device index is one signed byte in torch
# DLTensor: void* data; {int32 type; int32 id} device; int32 ndim; 4 bytes of dtype; int64* shape; int64* strides; ...
_DEVICE_OFFSET, _STRIDES_OFFSET = 8, 32
_CPU_WORD = 1  # kDLCPU, id 0, as one little-endian 64-bit word
_SIM_TYPE = 12  # kDLExtDev, which torch reads as its PrivateUse1 device


def _private(name: str) -> Any:
    """A private attribute of torch. Raises DeviceError if this torch does not have it."""
    value = getattr(torch._C, name, None)
    if value is None:
        raise DeviceError(
            f"the simulated device needs torch._C.{name}, which torch {torch.__version__} does not have; "
            "it is known to work with torch 2.10 to 2.13: install one of these, or name another device"
        )
    return value


_to_dlpack = _private("_to_dlpack")
_from_dlpack = _private("_from_dlpack")
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_word_at = ctypes.c_int64.from_address
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


set_conj = _private("_set_conj")
_set_neg = _private("_set_neg")


def _relabelled(t: Tensor, word: int) -> Tensor:
    try:
        capsule = _to_dlpack(t)
    except BufferError as e:
        if not t.is_quantized:
            raise
        raise NotImplementedError(f"Could not run '{t.dtype}' with arguments from the '{NAME}' backend: {e}") from e
    at: int = _pointer(capsule, b"dltensor")
    _word_at(at + _DEVICE_OFFSET).value = word
    shape = t.shape
    if 1 in shape:
        strides = _word_at(at + _STRIDES_OFFSET).value
        for i, stride in enumerate(t.stride()):
            if stride != 1 == shape[i]:
                _word_at(strides + 8 * i).value = stride
    alias: Tensor = _from_dlpack(capsule)
    if t.is_neg():
        _set_neg(alias, True)
    if t.is_conj():
        set_conj(alias, True)
    return alias


def to_host(t: Tensor) -> Tensor:
    """The CPU alias of a sim tensor: same memory, strides, lazy conj and neg bits; storage offset 0, no autograd."""
    return _relabelled(t, _CPU_WORD)


def to_sim(t: Tensor, index: int) -> Tensor:
    """The sim alias of a CPU tensor, on device `index`, with the same properties."""
    return _relabelled(t, _SIM_TYPE | index << 32)


def to_host_in_place(t: Tensor) -> Tensor:
    """Like `to_host`, but a view of the whole storage: `storage_offset()` is the true one, and memory outside of the view can
    be reached with `as_strided`. Slower than `to_host`; used for faults."""
    elements = t.untyped_storage().nbytes() // t.element_size()
    if not elements:
        return to_host(t)
    flat = torch.ops.aten.as_strided.default.redispatch(CPU_KEYS, t, (elements,), (1,), 0)
    return to_host(flat).as_strided(t.shape, t.stride(), t.storage_offset())


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


@functools.cache
def _mallinfo() -> Callable[[], _Heap] | None:
    """The C library's count of its heap; None where it has none (it is glibc's, from 2.33 on)."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = _Heap
    count: Callable[[], _Heap] = function
    return count


def in_use() -> int | None:
    """Bytes of the host's heap that are allocated, by whomever; None where the C library does not say."""
    count = _mallinfo()
    if count is None:
        return None
    heap = count()
    return int(heap.uordblks) + int(heap.hblkhd)


def adopt(destination: Tensor, result: Tensor) -> None:
    """Give `destination` (sim) the shape and strides of `result` (host), after a kernel resized or restrided its out= argument.
    As on the CPU it keeps its memory if that is large enough (fft.fftfreq grows an empty slice), else it takes the result's."""
    shape, stride, offset = result.shape, result.stride(), destination.storage_offset()
    storage = destination.untyped_storage()
    if result.data_ptr() == destination.data_ptr():
        destination.set_(storage, offset, shape, stride)
        return
    span = sum((n - 1) * s for n, s in zip(shape, stride)) + 1 if result.numel() else 0
    if storage.nbytes() >= (offset + span) * destination.element_size():
        destination.set_(storage, offset, shape, stride)
        if span:
            to_host(destination).copy_(result)
        return
    fresh = to_sim(result.detach(), destination.get_device())
    destination.set_(fresh.untyped_storage(), 0, shape, stride)


live_zeros: set[int] = set()  # addresses of the memory of such zeros

_WRITTEN = ("mul.out", "div.out", "linalg_cross.out")
_SINGLE = ("dot", "vdot")


def declare_zeros(t: Tensor) -> Tensor:
    """Record a sim tensor of zeros as zeros by definition, until its memory is written or freed."""
    storage = t.untyped_storage()
    if (at := storage.data_ptr()) and at not in live_zeros:
        live_zeros.add(at)
        weakref.finalize(storage, live_zeros.discard, at).atexit = False
    return t


def forget_zeros(t: Tensor) -> None:
    """The memory of this tensor is written: from now on its values count."""
    live_zeros.discard(t.untyped_storage().data_ptr())


def product_with_zeros(overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The product or quotient with zeros by definition, computed by no kernel; None if there are none."""
    if overload not in _WRITTEN and overload not in _SINGLE:
        return None
    zero = [isinstance(a, Tensor) and a.untyped_storage().data_ptr() in live_zeros for a in args[:2]]
    if not any(zero) or (overload == "div.out" and zero != [True, False]):
        return None
    first: Tensor = args[0]
    if overload in _SINGLE:
        return declare_zeros(to_sim(torch.zeros((), dtype=first.dtype), first.get_device()))
    out: Tensor = kwargs["out"]
    shape = torch.broadcast_shapes(*(getattr(a, "shape", ()) for a in args[:2]))  # type: ignore[no-untyped-call]  # untyped
    if out.shape != shape:
        return None
    to_host(out).zero_()
    return declare_zeros(out)
