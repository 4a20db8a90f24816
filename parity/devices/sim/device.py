"""The simulated device as a Device.

Function-level faults: a hook on torch's public functions, active only inside `device.active()`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _pop_mode_temporarily, resolve_name
from torch.utils._pytree import tree_leaves

from parity.core import compiler
from parity.core.devices import HONEST, SIMULATED
from parity.core.errors import UsageError, near
from parity.core.observer import Functions
from parity.devices.base import Device
from parity.devices.setup import load_faults
from parity.devices.sim.call import Call
from parity.devices.sim.faults import ANY, Fault, Planted, run_through
from parity.devices.sim.install import install
from parity.devices.sim.memory import NAME, in_use, to_host, to_sim
from parity.devices.sim.profile import PERMISSIVE, Profile, mps_profile
from parity.devices.sim.seats import SEATS, Seat, leave_seat, take_seat

# Function names of Python's operators, for those that torch does not resolve to a name of its own.
DUNDERS = {
    "__and__": "bitwise_and", "__div__": "div", "__eq__": "eq", "__floordiv__": "floor_divide", "__ge__": "ge", "__gt__": "gt",
    "__invert__": "bitwise_not", "__le__": "le", "__lshift__": "bitwise_left_shift", "__lt__": "lt", "__matmul__": "matmul",
    "__mod__": "remainder", "__ne__": "ne", "__or__": "bitwise_or", "__pow__": "pow", "__rand__": "bitwise_and",
    "__rdiv__": "div", "__rfloordiv__": "floor_divide", "__rlshift__": "bitwise_left_shift", "__rmatmul__": "matmul",
    "__rmod__": "remainder", "__ror__": "bitwise_or", "__rpow__": "pow", "__rrshift__": "bitwise_right_shift",
    "__rshift__": "bitwise_right_shift", "__rsub__": "sub", "__rxor__": "bitwise_xor", "__xor__": "bitwise_xor",
    "__iand__": "bitwise_and", "__ior__": "bitwise_or", "__ixor__": "bitwise_xor", "__ipow__": "pow", "__idiv__": "div",
    "__ifloordiv__": "floor_divide", "__ilshift__": "bitwise_left_shift", "__irshift__": "bitwise_right_shift",
}  # fmt: skip

# Functions that write into the first operand although their name does not end in one underscore.
WRITING = frozenset(
    ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ifloordiv__", "__imod__", "__ipow__")
) | frozenset(("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"))
# Properties that return a view.
VIEWS = frozenset(("T", "mT", "H", "mH", "real", "imag"))

_names: dict[Any, str | None] = {}


def public_name(function: Any) -> str | None:
    """Like "torch.nn.functional.linear", "torch.Tensor.add_" or "torch.Tensor.mT"; None for functions that are not public and
    for properties that compute nothing."""
    try:
        return _names[function]
    except KeyError:
        name: str | None = resolve_name(function)
        if name is not None and name.endswith(("__get__", "__set__", "__delete__")):
            owner, _, kind = name.rpartition(".")
            name = owner if kind == "__get__" and owner.rpartition(".")[2] in VIEWS else None
        _names[function] = name
        return name


def answers_to(name: str) -> frozenset[str]:
    """Every name that a fault may use for this function: the full one, its last parts, and the one without underscore."""
    parts = name.split(".")
    names = {".".join(parts[i:]) for i in range(len(parts))}
    short = parts[-1]
    if short in DUNDERS:
        names.add(DUNDERS[short])
    elif short.endswith("_") and not short.endswith("__"):
        names.add(short[:-1])
    return frozenset(names)


def _concerns(leaf: Any, device: torch.device) -> bool:
    """Whether an argument involves the device: a tensor on it, or the device itself (a factory, an upload)."""
    if isinstance(leaf, Tensor):
        return leaf.device == device
    if isinstance(leaf, torch.device):
        return leaf.type == device.type and (leaf.index or 0) == device.index
    return isinstance(leaf, str) and leaf in (str(device), device.type if device.index == 0 else str(device))


class PublicCalls:
    """Passes the calls that a fault of one device names through that fault. Adds some microseconds to every torch call."""

    def __init__(self, device: torch.device, seat: Seat) -> None:
        self.device, self.seat = device, seat
        self._matching: dict[Any, Sequence[Planted]] = {}  # by function

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An observer of public functions."""
        faults = self._matching.get(func)
        if faults is None:
            faults = self._matching[func] = self._faults_of(func)
        if not faults:
            return func(*args, **kwargs)
        name = public_name(func)
        if name is None or not any(_concerns(leaf, self.device) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        out = kwargs.get("out")
        outs = tuple(t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, Tensor))
        if not outs and args and isinstance(args[0], Tensor) and _writes_first(name, kwargs):
            outs = (args[0],)
        history = self.seat.history
        call = Call(name, "function", list(args), dict(kwargs), outs, history, lambda c: func(*c.args, **c.kwargs))
        return _settled(run_through(faults, call), outs, out)

    def _faults_of(self, function: Any) -> Sequence[Planted]:
        name = public_name(function)
        names = frozenset() if name is None else answers_to(name) | {ANY}
        return [p for p in self.seat.function_faults if not names.isdisjoint(p.fault.ops)]


def _writes_first(name: str, kwargs: dict[str, Any]) -> bool:
    short = name.rpartition(".")[2]
    return short in WRITING or (short.endswith("_") and not short.endswith("__")) or kwargs.get("inplace") is True


def _settled(answer: Any, outs: tuple[Tensor, ...], out: Any) -> Any:
    """What the caller gets: its own destinations, written or untouched; otherwise the answer itself."""
    if not outs:
        return answer
    answers = answer if isinstance(answer, (tuple, list)) else (answer,)
    for destination, a in zip(outs, answers):
        if isinstance(a, Tensor) and a is not destination:
            destination.data.copy_(a.detach())
    return outs[0] if not isinstance(out, (tuple, list)) else out


PROFILE_NAMES = ("sim", "sim:mps")
HONEST_FAULTS = "parity.devices.sim.honest"  # loaded by its name, and only by who asks for that device


class SimDevice(Device):
    """A torch device whose memory is the host's, with a profile of limits and planted faults.

    Each profile without faults has one index for the whole process; one with faults has its own index until the Device is
    collected. Creating one makes this thread's autograd engine run on the calling thread: torch's engine supports only one
    index of such a device, and its own threads would not see function-level hooks.
    """

    simulated = True

    def __init__(self, profile: Profile, faults: Sequence[Fault] = (), honest: Sequence[Fault] = ()) -> None:
        """faults: planted by the caller; honest: what makes it the honest device."""
        install()
        torch.autograd.set_multithreading_enabled(False)
        self.name, self.keeps_graphs = profile.name + (HONEST if honest else ""), not profile.is_permissive
        self.planted, self.faults = tuple(faults), (*honest, *faults)
        standing = profile.name in PROFILE_NAMES and not self.faults
        index = PROFILE_NAMES.index(profile.name) if standing else take_seat()
        if not standing:
            weakref.finalize(self, leave_seat, index)
        self.torch_device = torch.device(NAME, index)
        if SEATS[index].profile is not profile or self.faults:
            SEATS[index].sit(profile, self.faults)

    @property
    def seat(self) -> Seat:
        """The current state of its index; set `seat.log` to a list and call `seat.touch()` to record the operators."""
        return SEATS[self.torch_device.index]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Enable function-level faults, take MPS's branches under its profile, keep backward on the calling thread, and keep
        torch from compiling the kernels, which are Python."""
        if compiler.is_imported():
            _leave_kernels_alone()
        with contextlib.ExitStack() as inside:
            inside.enter_context(torch.autograd.set_multithreading_enabled(False))
            if not self.seat.profile.is_permissive:
                inside.enter_context(as_on_mps())
            if self.seat.function_faults:
                inside.enter_context(Functions(PublicCalls(self.torch_device, self.seat).observe))
            yield

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Keep torch from compiling this device: its hook on public functions, which compiled code does not call, and its
        kernels, which it would come to behind a graph break."""
        _leave_kernels_alone()
        with _pop_mode_temporarily() if self.seat.function_faults else contextlib.nullcontext():
            yield

    def upload(self, t: Tensor) -> Tensor:
        """A copy on the device, dispatched through torch if faults or limits must see it."""
        if self.seat.busy:
            return super().upload(t)
        return to_sim(t.detach().clone() if t.requires_grad else t.clone(), self.torch_device.index)

    def download(self, t: Tensor) -> Tensor:
        """A detached copy on the CPU, dispatched through torch if faults or limits must see it."""
        if self.seat.busy or t.is_cpu:
            return super().download(t)
        return to_host(t).clone().resolve_conj().resolve_neg()

    def computes(self) -> bool:
        """Whether a sum can still be computed; a planted fault that raises does not count."""
        try:
            self.download(self.upload(torch.ones(2)) + 1.0)
        except Exception:  # a planted fault may raise anything
            return False
        return True

    def synchronize(self) -> None:
        """Does nothing: every call is complete when it returns."""

    def seed(self, n: int) -> None:
        """Seed the CPU's default generator, which is the device's random stream."""
        torch.default_generator.manual_seed(n)

    def used(self) -> int | None:
        """The bytes that this process has allocated: the device's memory is the host's."""
        return in_use()

    def facts(self) -> dict[str, str]:
        """The chip is 'simulated'; the planted faults are named."""
        return {"chip": "simulated", "faults": ", ".join(f.id for f in self.planted) or "none"}


@functools.cache
def _leave_kernels_alone() -> None:
    from torch._dynamo import trace_rules  # a second, for those who compile

    trace_rules.add(__package__.rpartition(".")[0])


def simulated(name: str, faults: Sequence[Fault] = ()) -> SimDevice:
    """The simulated device of this name. Raises UsageError for another one, DeviceError where torch cannot carry it."""
    if name not in SIMULATED:
        raise UsageError(f"no simulated device '{name}'; allowed: {', '.join(SIMULATED)}; {near(name, SIMULATED)}".rstrip("; "))
    profile = PERMISSIVE if name.removesuffix(HONEST) == "sim" else mps_profile()
    return SimDevice(profile, faults, load_faults(HONEST_FAULTS) if name.endswith(HONEST) else ())


# Branches of torch's Python code by the type of the device, taken for `sim:mps` as for MPS. torch takes the simulated device
# for one like CUDA, whose optimizers use the `_foreach` kernels by default; on MPS they do not (torch 2.13:
# `torch/utils/_foreach_utils.py`), and the layers of transformers have a fused way without gradients, which MPS does not take.
# `torch.norm` has a branch for MPS, too, which refuses `dtype=`: a bug of torch that would be reported of a healthy device, so
# `sim:mps` does not take it; audits of models do.


@contextlib.contextmanager
def without_other_backends() -> Iterator[None]:
    """Let torch's Python code not know the simulated device for a backend that takes CUDA's ways: `torch.norm` has another
    one for MPS."""
    registration: Any = importlib.import_module("torch.utils.backend_registration")
    name = registration._privateuse1_backend_name
    registration._privateuse1_backend_name = "privateuseone"
    try:
        yield
    finally:
        registration._privateuse1_backend_name = name


@contextlib.contextmanager
def as_on_mps() -> Iterator[None]:
    """Let torch's Python code see a device without such kernels, and without fused layers of transformers."""
    optimizer: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the name
    c: Any = torch._C
    supported, name = optimizer._get_foreach_kernels_supported_devices, c._get_privateuse1_backend_name()
    optimizer._get_foreach_kernels_supported_devices = lambda: [d for d in supported() if d != name]
    mha = torch.backends.mha
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(fast)
        optimizer._get_foreach_kernels_supported_devices = supported
