"""What the tables say about the device of a call: the ULP bounds of its functions, and the dtypes it flushes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity import tolerance
from parity.core.case import OpClass
from parity.devices import Call
from parity.devices.sim.memory import NAME
from parity.devices.sim.seats import SEATS


class Bounds:
    """The ULP bounds of a device's tables, by function and dtype."""

    def __init__(self, tables: tolerance.Tables) -> None:
        self._known: dict[tuple[str, str], float] = {}
        self._tables = tables

    def of(self, function: str, dtype: torch.dtype) -> float:
        """The largest error in ULP; a function without a row is correctly rounded (0)."""
        key = function, str(dtype).removeprefix("torch.")
        if key not in self._known:
            ulp = self._tables.find(function, OpClass.ELEMENTWISE, key[1], "forward", function).ulp
            self._known[key] = ulp or 0.0
        return self._known[key]


def device_of(call: Call) -> str:
    """The name of the device that the call runs on: "sim" or "sim:mps"."""
    args, kwargs = call.origin
    for a in (*args, *kwargs.values()):
        for x in (a,) if isinstance(a, Tensor) else tree_leaves(a):
            if isinstance(x, Tensor) and not x.is_cpu and x.device.type == NAME:
                return SEATS[x.device.index].profile.name
    return "sim"


@functools.cache
def bounds(device: str) -> Bounds:
    """The bounds of a device."""
    return Bounds(tolerance.load(device))


@functools.cache
def flushed(device: str) -> frozenset[torch.dtype]:
    """The dtypes whose subnormal numbers a device flushes."""
    tables = tolerance.load(device)
    names = ("float32", "bfloat16", "float16", "complex64")
    return frozenset(getattr(torch, name) for name in names if tables.flushes(name))
