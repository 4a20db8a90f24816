"""Rounding as healthy devices do it: within a bound in ULP, to nearest or toward zero, the same for equal truths; and what the
device's tables allow: the bounds of functions, and the dtypes that are flushed."""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity import tolerance
from parity.core.case import OpClass
from parity.core.dtypes import FACTS, DtypeFacts
from parity.devices import Call
from parity.devices.sim.memory import NAME
from parity.devices.sim.seats import SEATS

WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their size in bytes


def bits(t: Tensor) -> Tensor:
    """The elements as integers of the same width, row-major (complex: parts next to each other)."""
    t = torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()
    return t.resolve_neg().contiguous().view(WHOLE_NUMBERS[t.element_size()])


def noisy(truth: Tensor, dtype: torch.dtype, bound: float, limits: tuple[float, float] = (-math.inf, math.inf)) -> Tensor:
    """Real float64 results in a narrower dtype, each off by at most `bound` ULP of the truth.

    The error before rounding is uniform in [-bound, bound] and derived from a hash of the truth, so that equal truths give
    equal results; below the normal numbers it is relative to the truth, as no function's own error grows there. A truth that
    the dtype can represent is kept, including NaN and infinities; no result leaves the limits or changes its sign.
    """
    nearest = truth.to(torch.float32).to(dtype)
    if not bound:
        return nearest
    f = FACTS[str(dtype).removeprefix("torch.")]
    numbers = _numbers(truth)
    with np.errstate(all="ignore"):
        ulp = _ulp(numbers, f)
        moved = numbers + bound * _uniform(numbers) * np.minimum(ulp, 2.0 * f.unit_roundoff * np.abs(numbers))
        moved = np.where((moved < 0) == (numbers < 0), moved, 0.0).clip(*limits)
        y = torch.from_numpy(moved).to(torch.float32).to(dtype)
        wide = _numbers(y.to(torch.float64))
        # `<=` is false for NaN. Infinity counts as the next number after the largest finite one.
        edge = f.max * (1.0 + 2.0 * f.unit_roundoff)
        inside = np.abs(wide.clip(-edge, edge) - numbers) <= bound * ulp
    inside &= (wide >= limits[0]) & (wide <= limits[1]) & (_numbers(nearest.to(torch.float64)) != numbers)
    return torch.where(torch.from_numpy(inside).view(truth.shape), y.view(truth.shape), nearest)


def largest_error(y: Tensor, truth: Tensor) -> float:
    """The largest error of results, in ULP of the truth; 0 if none is finite."""
    results, numbers = _numbers(y.to(torch.float64)), _numbers(truth)
    with np.errstate(all="ignore"):
        off = np.abs(results - numbers) / _ulp(numbers, FACTS[str(y.dtype).removeprefix("torch.")])
    off = off[np.isfinite(off) & np.isfinite(results)]
    return float(off.max()) if off.size else 0.0


def _uniform(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A number in [-1, 1) for each float64, derived from its bits without the last 8, in which the CPU's own float64 kernels
    differ between vectorized part and remainder."""
    uniform: npt.NDArray[np.float64] = (_mixed(numbers) >> 11) * np.float64(2.0**-52)
    return uniform


def _mixed(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """A hash of each number; its sign is that of `_uniform`."""
    raw = numbers.view(np.int64) >> 8
    half = (raw ^ (raw >> 23)) * _MIX
    whole: npt.NDArray[np.int64] = (half ^ (half >> 32)) * _MIX
    return whole


_MIX = np.int64(0x2545F4914F6CDD1D)


def _numbers(x: Tensor) -> npt.NDArray[np.float64]:
    """float64 numbers as a vector in numpy: for a dozen of them its calls cost a third of torch's."""
    numbers: npt.NDArray[np.float64] = x.detach().resolve_neg().contiguous().numpy().reshape(-1)
    return numbers


def cut(truth: Tensor, dtype: torch.dtype, always: bool = False) -> Tensor:
    """float64 results rounded to float32, to nearest or toward zero by a hash of the truth (always: toward zero), complex ones
    part by part; half types to nearest, as Metal's half arithmetic rounds. Overflow is that of rounding to nearest."""
    if truth.is_complex():
        parts = cut(torch.view_as_real(truth.resolve_conj().contiguous()), torch.float32, always)
        return torch.view_as_complex(parts)
    nearest = truth.to(torch.float32).to(dtype)
    if dtype is not torch.float32 or truth.dtype is not torch.float64:
        return nearest
    numbers, rounded = _numbers(truth), nearest.detach().numpy().reshape(-1)
    away = np.isfinite(rounded) & (np.abs(rounded) > np.abs(numbers))  # elsewhere both ways give the same
    if not always:
        away &= _mixed(numbers) < 0
    # In sign and magnitude the number before is the next one toward zero.
    return torch.from_numpy((rounded.view(np.int32) - away).view(np.float32)).view(truth.shape)


def _ulp(numbers: npt.NDArray[np.float64], f: DtypeFacts) -> npt.NDArray[np.float64]:
    """The spacing of the dtype's numbers at these float64 numbers."""
    exponent = np.maximum(np.frexp(numbers)[1], math.frexp(f.tiny)[1])
    spacing: npt.NDArray[np.float64] = np.ldexp(2.0 * f.unit_roundoff, exponent - 1)
    return spacing


def noisy_complex(truth: Tensor, bound: float) -> Tensor:
    """complex128 results in complex64, each part off by at most `bound` ULP of the modulus; exact parts are kept, and none
    changes its sign."""
    parts = torch.view_as_real(truth.resolve_conj().contiguous())
    nearest = parts.to(torch.float32)
    ulp = torch.from_numpy(_ulp(_numbers(truth.abs()), FACTS["float32"])).view(truth.shape).unsqueeze(-1)
    uniform = torch.from_numpy(_uniform(_numbers(parts))).view(parts.shape)
    moved = (parts + bound * uniform * ulp).to(torch.float32)
    keep = (nearest.to(torch.float64) == parts) | ~torch.isfinite(parts).all(-1, keepdim=True) | ~torch.isfinite(moved)
    keep |= torch.signbit(moved) != torch.signbit(nearest)
    return torch.view_as_complex(torch.where(keep, nearest, moved))


# ------------------------------------------------------------------------------------------------- what the tables say


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
def flushed_dtypes(device: str) -> frozenset[torch.dtype]:
    """The dtypes whose subnormal numbers a device flushes."""
    tables = tolerance.load(device)
    names = ("float32", "bfloat16", "float16", "complex64")
    return frozenset(getattr(torch, name) for name in names if tables.flushes(name))


# kind -> calls. A result counts as changed if any bit differs from that of the CPU's own kernel on the same operands.
ANSWERED: Counter[str] = Counter()
CHANGED: Counter[str] = Counter()
# function and dtype -> the largest error so far, as a fraction of the bound in the device's table.
REACHED: dict[str, float] = {}


def reset() -> None:
    """Forget all counts."""
    ANSWERED.clear()
    CHANGED.clear()
    REACHED.clear()


def reach(function: str, fraction: float) -> None:
    """Record the fraction of a function's bound that was used."""
    REACHED[function] = max(fraction, REACHED.get(function, 0.0))


def note(kind: str, answer: Any, plain: Any) -> None:
    """Count a result of this kind, given the CPU's."""
    ANSWERED[kind] += 1
    if differs(answer, plain):
        CHANGED[kind] += 1


def differs(a: Any, b: Any) -> bool:
    """Whether any bit differs between two results of the same structure."""
    one = isinstance(a, Tensor) and isinstance(b, Tensor)
    pairs = ((a, b),) if one else zip(tree_leaves(a), tree_leaves(b), strict=True)
    return any(
        x.shape != y.shape or x.dtype != y.dtype or not torch.equal(bits(x), bits(y))
        for x, y in pairs
        if isinstance(x, Tensor) and isinstance(y, Tensor)
    )
