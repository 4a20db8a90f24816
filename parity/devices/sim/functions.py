"""Function-level faults: a hook on torch's public functions, active only inside `device.active()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name
from torch.utils._pytree import tree_leaves

from parity.devices.sim.call import Call
from parity.devices.sim.faults import ANY, Planted, run_through
from parity.devices.sim.seats import Seat

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
