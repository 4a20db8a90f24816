"""A call as relations see it, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.dtypes import FACTS
from parity.swift import swift

INVARIANT_LIMIT = 30.0  # LAPACK's test ratio: residual / (norm * size * u)
# Its threshold for symmetric eigenproblems is 60 in units of 2 u (Reference-LAPACK, TESTING/sep.in, dsyt21.f).
SYMMETRIC_LIMIT = 120.0
# Residuals up to here are what the next coarser arithmetic (float32's TF32) leaves over: n times its roundoff.
COARSER = 2.0**13
UNSOUND = "a matrix with NaN or Inf, or lost below the normal numbers"


@swift
@dataclass(frozen=True, slots=True)
class Bound:
    """A call with its operands on the CPU, as the reference got them. vanishes: a matrix whose largest number is smaller may
    lose more than its roundings, because the device flushes on the way; 0 where it does not flush."""

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    vanishes: float = 0.0

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else default


Results = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a result. ratio: the residual in units of its limit, where a coarser arithmetic explains it."""

    name: str
    what: str
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Of which matrices of a result nothing is said, and why. where: bool, of the shape of the batch."""

    name: str
    where: Tensor
    why: str


Problems = list[Problem | Unjudged]


@dataclass(frozen=True, slots=True)
class Relation:
    """covers: names of the results that are judged here instead of by value.

    chooses: what is covered is a choice among right answers, so that gradients can be compared only where both sides chose
    alike.
    """

    covers: Callable[[Bound, Results], frozenset[str]]
    problems: Callable[[Bound, Results], Problems]
    chooses: bool = True


def same(a: Tensor, b: Tensor) -> bool:
    """Equal values, NaN equal to NaN."""
    if a.shape != b.shape:
        return False
    equal = a == b
    if a.is_floating_point() or a.is_complex():
        equal |= torch.isnan(a) & torch.isnan(b)
    return bool(equal.all())


def in_range(index: Tensor, size: int) -> bool:
    """Whether all indices lie in [0, size)."""
    return bool(((index >= 0) & (index < max(size, 1))).all()) if index.numel() else True


def picked(x: Tensor, index: Tensor, dim: int, keepdim: bool) -> Tensor | None:
    """x at the indices along dim, in the shape of the indices; None where an index is out of range."""
    if not x.dim():
        return x.clone() if in_range(index, 1) else None
    full = index if keepdim else index.unsqueeze(dim)
    if not in_range(full, x.shape[dim]):
        return None
    got = x.gather(dim, full.to(torch.int64))
    return got if keepdim else got.squeeze(dim)


def outs(results: Results) -> list[str]:
    """Names of the call's results in their order."""
    return [n for n in results if n.startswith("out")]


def indices(call: Bound, results: Results) -> frozenset[str]:
    """Covers all integer results but the first."""
    return frozenset(n for n in outs(results)[1:] if not results[n].is_floating_point())


def only(call: Bound, results: Results) -> frozenset[str]:
    """Covers the first result."""
    return frozenset(outs(results)[:1])


def everything(call: Bound, results: Results) -> frozenset[str]:
    """Covers every result."""
    return frozenset(outs(results))


# ----------------------------------------------------------------------------------------------------------- residuals


def wide(t: Tensor) -> Tensor:
    """The matrix in float64 or complex128."""
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64)


def roundoff(t: Tensor) -> float:
    """Unit roundoff of its dtype."""
    return FACTS[str(t.dtype).removeprefix("torch.")].unit_roundoff


def residual(
    name: str,
    what: str,
    got: Tensor,
    want: Tensor,
    scale: Tensor,
    u: float,
    limit: float = INVARIANT_LIMIT,
    lost: Tensor | None = None,
    apart: Tensor | None = None,
) -> Problems:
    """Nothing where |got - want| <= limit n u scale in the Frobenius norm, matrix by matrix (LAPACK's test ratio). lost: which
    matrices may be NaN or Inf, because numbers on the way leave the range. apart: which are `unsound`."""
    n = max(1, *got.shape[-2:]) if got.dim() >= 2 else 1
    error = torch.linalg.matrix_norm(got - want) if got.numel() else torch.zeros(())
    unit = n * u * torch.clamp(scale, min=torch.finfo(torch.float64).tiny)
    bad = ~(error <= limit * unit)
    if lost is not None:
        bad = bad & ~(lost & ~torch.isfinite(error))
    if apart is not None:
        bad = bad & ~apart
    left: Problems = [] if apart is None or not bool(apart.any()) else [Unjudged(name, apart, UNSOUND)]
    if not bool(bad.any()):
        return left
    ratio = float((error / unit)[bad].nan_to_num(float("inf"), float("inf")).max())
    text = f"{what}: residual {ratio:.3g} in units of n u norm, at most {limit:g}"
    return [Problem(name, text, ratio / limit if ratio <= COARSER else None), *left]


def unsound(call: Bound, *matrices: Tensor) -> Tensor:
    """Which matrices of the common batch hold NaN or Inf, or are so small that what a device flushes is more than rounding."""
    found = torch.zeros((), dtype=torch.bool)
    for a in matrices:
        if not a.numel():
            continue
        size = a.abs().amax((-2, -1))
        found = found | ~torch.isfinite(a.abs()).all(-1).all(-1) | ((size > 0.0) & (size < call.vanishes))
    return found


def sound(a: Tensor, apart: Tensor) -> Tensor:
    """The matrices with zeros in place of the unsound ones, which some decompositions refuse."""
    return torch.where(apart[..., None, None], torch.zeros_like(a), a)


def norm(a: Tensor) -> Tensor:
    """Frobenius norms of the matrices."""
    return torch.linalg.matrix_norm(a).to(torch.float64) if a.numel() else torch.zeros(a.shape[:-2], dtype=torch.float64)
