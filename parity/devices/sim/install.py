"""Registers the simulated device with torch, once per process and only on request."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.core.errors import DeviceError
from parity.devices.sim import autocast, host, sparse, storage
from parity.devices.sim.kernels import fallback, run_as, run_at_once, run_composed
from parity.devices.sim.memory import NAME, to_sim
from parity.devices.sim.plans import HostOp
from parity.devices.sim.profile import COMPOSED_WITH_FLOAT64

# Views and set_, which change only metadata.
VIEWS = (
    "_conj", "_neg_view", "_reshape_alias", "as_strided", "is_set_to", "set_.source_Storage",
    "set_.source_Storage_storage_offset", "set_.source_Tensor", "unfold", "view", "view.dtype", "view_as_complex",
    "view_as_real",
)  # fmt: skip
# Composite in torch, but with a kernel of their own on MPS (2.13; `permute`, a view, needs none here). Without this list
# they would reach the device in pieces and round differently from the CPU. torch has derivatives for all of them.
ONE_CALL_AS_ON_MPS = (
    "_fused_rms_norm", "addr", "addr.out",
    "conj_physical_",  # composite over memory: it calls the CPU's loop itself
    "constant_pad_nd", "linear", "max_pool2d", "mish_backward", "native_layer_norm", "pixel_shuffle", "pixel_unshuffle",
    "repeat", "silu_backward",
)  # fmt: skip
HOST_KERNELS: dict[str, Callable[..., Any]] = {
    "_convert_weight_to_int4pack": host.convert_weight_to_int4pack, "_lstm_mps": host.lstm_mps,
    "_scaled_dot_product_attention_math_for_mps": host.attention, "_thnn_fused_gru_cell": host.gru_cell,
    "_thnn_fused_gru_cell_backward": host.gru_cell_backward, "_thnn_fused_lstm_cell": host.lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": host.lstm_cell_backward, "_weight_int4pack_mm": host.weight_int4pack_mm,
    "convolution_backward_overrideable": host.convolution_backward_overrideable,
    "convolution_overrideable": torch.ops.aten.convolution.default, "linalg_lu.out": host.linalg_lu_out,
    "linear_backward": host.linear_backward, "lstm_mps_backward": host.lstm_mps_backward, "lu_unpack.out": host.lu_unpack_out,
    "max_pool2d_backward": host.max_pool2d_backward, "native_group_norm": host.native_group_norm,
    "native_group_norm_backward": host.native_group_norm_backward, "tril.out": host.tril_out, "triu.out": host.triu_out,
}  # fmt: skip

_library: Any = torch.library.Library  # untyped in torch
_kept: list[Any] = []  # a Library unregisters when it is collected


def install() -> None:
    """Register the device "sim" with torch. A second call does nothing.

    Raises DeviceError if torch is too old (below 2.10) or its only slot for such a device is taken.
    """
    if _kept:
        return
    _claim_slot()
    everything = _library("_", "IMPL")
    everything.fallback(fallback, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    casts = _library("aten", "IMPL", "AutocastPrivateUse1")
    autocast.register(casts)
    _kept.extend((everything, casts))
    _register_kernels(_library("aten", "IMPL", "PrivateUse1"), _library("aten", "IMPL", "AutogradPrivateUse1"))
    _kept.extend(sparse.register(_library))
    for key in ("Conjugate", "Negative"):
        # Without these kernels, resolving a bit calls copy_ -> _copy_from -> resolve ... until the stack overflows.
        bits = _library("aten", "IMPL", key)
        bits.impl("_copy_from", torch.library.fallthrough_kernel)
        _kept.append(bits)
    torch.Generator = Generator  # type: ignore[misc]  # a type is replaced
    _patch_repr()
    _patch_storage_clone()
    torch.serialization.register_package(5, lambda storage: None, _load)


def _claim_slot() -> None:
    module = torch.utils.backend_registration
    setup = getattr(module, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        raise DeviceError(
            f"the simulated device needs torch 2.10 or newer (_setup_privateuseone_for_python_backend); this is torch "
            f"{torch.__version__}: upgrade torch, or name another device"
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise DeviceError(
            f"the simulated device needs torch's PrivateUse1 slot, which '{taken}' has taken in this process; "
            f"run without the package that registers '{taken}', or name another device"
        )
    setup(NAME, backend_module=_backend_module(), device_guard=device_guard())
    torch.autograd.Variable._execution_engine = _Engine()


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _structured() -> set[str]:
    """The functional operators that torch implements on such a device as an allocation and their out= overload."""
    c: Any = torch._C
    registered = c._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutogradNonFunctional")
    on_cpu = set(c._dispatch_get_registrations_for_dispatch_key("CPU"))
    names = {n.removeprefix("aten::") for n in registered if n.startswith("aten::") and n in on_cpu}
    return {n for n in names if not any(a.alias_info for a in _overload(n)._schema.arguments)}


def _register_kernels(aten: Any, above: Any) -> None:
    for name, kernel in {
        "_copy_from": storage.copy_from,
        "_copy_from_and_resize": storage.copy_from_and_resize,
        "_efficientzerotensor": storage.efficient_zero_tensor,
        # Module.to keeps the Parameter objects (as for MPS) only if the device says that p.data may be swapped.
        "_has_compatible_shallow_copy_type": lambda a, b: a.layout == b.layout,
        "empty.memory_format": storage.empty,
        "empty_strided": storage.empty_strided,
        "resize_": storage.resize_,
        "set_": storage.let_go,
    }.items():
        aten.impl(name, kernel)
    for name in ONE_CALL_AS_ON_MPS:
        aten.impl(name, run_as(_overload(name)))
    # torch's composite asks for the type of the device: "mode only supports CPU, CUDA and XPU device type".
    aten.impl("mode.values", run_as(_overload("mode.values"), ours=False))
    for name, function in HOST_KERNELS.items():
        aten.impl(name, run_as(HostOp(_overload(name)._schema, function)))
    keys: Any = torch._C.DispatchKey
    implicit = keys.CompositeImplicitAutograd
    for name in sorted(COMPOSED_WITH_FLOAT64 | {"linalg_svd", "linalg_svd.U"}):
        op = _overload(name)
        composites = (implicit, keys.CompositeExplicitAutograd, keys.CompositeExplicitAutogradNonFunctional)
        key = next(k for k in composites if op.has_kernel_for_dispatch_key(k))
        aten.impl(name, run_composed(op, key))
        if key is implicit:  # otherwise torch has a derivative, and the composition runs below autograd
            above.impl(name, run_composed(op, key))
    allocating: Any = keys.CompositeExplicitAutogradNonFunctional
    taken = {*ONE_CALL_AS_ON_MPS, *HOST_KERNELS, *COMPOSED_WITH_FLOAT64, "linalg_svd", "linalg_svd.U"}
    for name in _structured() - taken:
        aten.impl(name, run_at_once(_overload(name), allocating))
    aten.impl("clone", run_at_once(_overload("clone"), keys.CompositeExplicitAutograd))
    for name in VIEWS:
        aten.impl(name, storage.on_metadata(_overload(name)))
    for name, whole in {
        "lstm.input": host.lstm_input,
        "dropout": host.dropout,
        "scaled_dot_product_attention": host.whole_unless_differentiated(host.attention_composed, host.attention_whole),
        "rms_norm": host.whole_unless_differentiated(host.rms_norm_composed, host.rms_norm_whole),
    }.items():
        above.impl(name, whole)
        aten.impl(name, whole)  # in inference mode there is no autograd key
    _kept.extend((aten, above))


class _DeviceContext:
    """torch.sim.device(...): does nothing, since there is no current device to change."""

    def __init__(self, *args: Any) -> None: ...

    def __enter__(self) -> _DeviceContext:
        return self

    def __exit__(self, *args: object) -> None: ...


def _backend_module() -> types.ModuleType:
    """torch.sim. Its random numbers are those of the CPU's default generator."""
    m: Any = types.ModuleType(f"torch.{NAME}")
    m.is_available = m.is_initialized = lambda: True
    m._is_in_bad_fork = lambda: False
    m.current_device = lambda: 0
    m.device_count = lambda: 1  # torch's hooks report one too; other indices work nevertheless
    m.synchronize = m.set_device = lambda *args: None
    m.empty_cache = lambda: None
    m.device = _DeviceContext
    m.get_amp_supported_dtype = lambda: list(autocast.DTYPES)
    m.manual_seed = m.manual_seed_all = lambda seed: None
    m.get_rng_state = lambda device=NAME: torch.get_rng_state()
    m.set_rng_state = lambda state, device=NAME: torch.set_rng_state(state)
    module: types.ModuleType = m
    return module


def _patch_repr() -> None:
    """repr would compute in float64 on the device. MPS tensors are copied to the CPU first, and so are these."""
    text: Any = torch._tensor_str
    original = text._str

    def _str(self: Any, *, tensor_contents: Any = None) -> str:
        if not (isinstance(self, Tensor) and self.device.type == NAME):
            return str(original(self, tensor_contents=tensor_contents))
        written = str(original(self.detach().cpu(), tensor_contents=tensor_contents))
        return written[:-1] + f", device='{self.device}'" + (", requires_grad=True)" if self.requires_grad else ")")

    text._str = _str


def _new_storage(nbytes: int, index: int) -> torch.UntypedStorage:
    return to_sim(torch.empty(nbytes, dtype=torch.uint8), index).untyped_storage()


def _patch_storage_clone() -> None:
    """torch.UntypedStorage(n, device="sim") has no allocator and ends the process; copy.deepcopy uses it."""
    untyped: Any = torch.UntypedStorage
    original = untyped.clone

    def clone(self: Any) -> Any:
        if self.device.type != NAME:
            return original(self)
        new = _new_storage(self.nbytes(), self.device.index or 0)
        ctypes.memmove(new.data_ptr(), self.data_ptr(), self.nbytes())
        return new

    untyped.clone = clone


def _load(stored: Any, location: str) -> torch.UntypedStorage | None:
    name, _, index = location.partition(":")
    if name != NAME:
        return None
    untyped = stored.untyped() if hasattr(stored, "untyped") else stored
    if not untyped.nbytes():
        return _new_storage(0, int(index or 0))
    vector = torch.empty(0, dtype=torch.uint8).set_(untyped)
    return to_sim(vector, int(index or 0)).untyped_storage()


# ------------------------------------------------------------------------------ what torch asks of C++, replaced in Python

_Native: Any = torch._C.Generator  # torch asks C++ hooks for a generator, which Python cannot provide


class _Kind(type(_Native)):  # type: ignore[misc]  # the type of a C type
    """Makes every torch generator an instance of the class that replaced torch.Generator."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Native)


class Generator(_Native, metaclass=_Kind):  # type: ignore[misc]  # torch.Generator is declared final
    """A CPU generator that reports the simulated device; for every other device, torch's own.

    Its stream is the CPU's: the same seed gives the same numbers.
    """

    _place: torch.device

    def __new__(cls, device: Any = "cpu") -> Any:
        """Raises what torch raises for an unknown device."""
        place = torch.device(device)
        if place.type != NAME:
            return _Native(device)
        new = _Native.__new__(cls, device="cpu")
        new._place = torch.device(NAME, place.index or 0)
        return new

    @property
    def device(self) -> torch.device:
        """The device that the generator reports."""
        return self._place

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_state, (str(self._place), self.get_state())


def _with_state(device: str, state: torch.Tensor) -> Generator:
    new: Generator = Generator(device)
    new.set_state(state)
    return new


# Where a hook of the program raises in the backward pass, torch's engine unwinds with Python's error still set, and puts the
# stream back on the way. For a device written in Python it asks the guard for the type of the device there, in a destructor; no
# call of Python returns well while an error is set, and the process ends. So the guard takes the error away, and the engine's
# `run_backward`, which then fails without a reason, raises it.
_c: Any = torch._C
_TYPE = _c._autograd.DeviceType.PrivateUse1
_set = tuple(ctypes.c_void_p() for _ in range(3))  # type, value and traceback of an error
_kind, _value, _trace = map(ctypes.byref, _set)
_fetch = ctypes.pythonapi.PyErr_Fetch
_fetch.restype = None
_raised: list[BaseException] = []


def device_guard() -> Any:
    """What torch asks for the type of the device, a dozen times in every backward pass."""
    return type("DeviceGuard", (_c._acc.DeviceGuard,), {"type_": _type})()


def _type(guard: Any) -> Any:
    _fetch(_kind, _value, _trace)  # first and alone: Python does little else right while an error is set
    if _set[0].value:
        _keep()
    return _TYPE


def _keep() -> None:
    ctypes.pythonapi.PyErr_NormalizeException(_kind, _value, _trace)
    taken = [ctypes.cast(p, ctypes.py_object).value if p.value else None for p in _set]
    for owned in taken:  # the fetch handed out references of its own
        if owned is not None:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(owned))
    error: Any = taken[1]
    _raised.append(error.with_traceback(taken[2]))


class _Engine(_c._ImperativeEngine):  # type: ignore[misc]  # untyped in torch
    """torch's engine, which raises what the guard took away."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's."""
        _raised.clear()
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:
            if not _raised:
                raise
        raise _raised.pop() from None
