"""Device memory is host memory: the same bytes, strides and version seen as a tensor of the one device or the other.

A tensor is exported as a DLPack capsule, the capsule's device word is overwritten, and the capsule is imported again. No
copy is made. An alias keeps the exported *tensor* alive, not only its storage. So an alias must never be kept on the
tensor it comes from (an uncollectable cycle), and a tensor must never be pointed at the storage of its own alias (that
frees the memory under it).
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from parity.errors import DeviceError

NAME = "sim"
SEAT_COUNT = 128  # a device index is one signed byte in torch
_DEVICE_OFFSET = 8  # DLTensor: void* data; {int32 type; int32 id} device; ...
_CPU_WORD = 1  # kDLCPU, id 0, as one little-endian 64-bit word
_SIM_TYPE = 12  # kDLExtDev, which torch reads as its PrivateUse1 device


def _private(name: str) -> Any:
    """A private name of torch, or a clear refusal."""
    found = getattr(torch._C, name, None)
    if found is None:
        raise DeviceError(
            f"the simulated device needs torch._C.{name}, which torch {torch.__version__} does not have; "
            "it is known to work with torch 2.10 to 2.13: install one of these, or name another device"
        )
    return found


_to_dlpack = _private("_to_dlpack")
_from_dlpack = _private("_from_dlpack")
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_word_at = ctypes.c_int64.from_address
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def to_host(t: Tensor) -> Tensor:
    """The CPU alias of a sim tensor: same memory and strides, storage offset 0, no conj or neg bit, no autograd."""
    capsule = _to_dlpack(t)
    _word_at(_pointer(capsule, b"dltensor") + _DEVICE_OFFSET).value = _CPU_WORD
    alias: Tensor = _from_dlpack(capsule)
    return alias


def to_sim(t: Tensor, index: int) -> Tensor:
    """The sim alias of a CPU tensor, on device `index`."""
    capsule = _to_dlpack(t)
    _word_at(_pointer(capsule, b"dltensor") + _DEVICE_OFFSET).value = _SIM_TYPE | index << 32
    alias: Tensor = _from_dlpack(capsule)
    return alias


def to_host_in_place(t: Tensor) -> Tensor:
    """Like `to_host`, but a view of the whole storage: `storage_offset()` is the true one, and the memory beside the view
    can be reached with `as_strided`. Dearer than `to_host`: for faults."""
    elements = t.untyped_storage().nbytes() // t.element_size()
    if not elements:
        return to_host(t)
    flat = torch.ops.aten.as_strided.default.redispatch(CPU_KEYS, t, (elements,), (1,), 0)
    return to_host(flat).as_strided(t.shape, t.stride(), t.storage_offset())


def to_host_with_bits(t: Tensor) -> Tensor:
    """The CPU alias with the lazy conj and neg bits, which DLPack drops; a CPU tensor as it is."""
    if t.is_cpu:
        return t
    alias = to_host(t)
    if t.is_neg():
        alias = torch._neg_view(alias)
    return alias.conj() if t.is_conj() else alias


def adopt(destination: Tensor, result: Tensor) -> None:
    """Give `destination` (sim) the memory of `result` (host): a kernel has resized its out= argument."""
    if result.data_ptr() == destination.data_ptr():
        if result.shape != destination.shape:
            storage = destination.untyped_storage()
            destination.set_(storage, destination.storage_offset(), result.shape, result.stride())
        return
    fresh = to_sim(result.detach(), destination.get_device())
    destination.set_(fresh.untyped_storage(), 0, fresh.shape, fresh.stride())
