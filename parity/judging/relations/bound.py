"""The call that a relation sees, and what relations are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.catalog.row import Row
from parity.core.dtypes import FACTS

INVARIANT_LIMIT = 30.0  # LAPACK's test ratio: residual / (norm * size * u)
# Its threshold for symmetric eigenproblems is 60 in units of 2 u (Reference-LAPACK, TESTING/sep.in, dsyt21.f).
SYMMETRIC_LIMIT = 120.0
# The next coarser arithmetic (float32's TF32) explains residuals up to here: n times its roundoff.
COARSER = 2.0**13
UNSOUND = "a matrix with NaN or Inf, or lost below the normal numbers"


@dataclass(frozen=True, slots=True)
class Bound:
    """A call with its operands on the CPU, as the reference got them.

    vanishes: a matrix whose largest number is smaller may lose more than roundings because the device flushes; 0 if it does not
    flush.
    """

    row: Row
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
    """A problem of a result. ratio: the residual in units of its limit, if a coarser arithmetic explains it."""

    name: str
    what: str
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Unjudged:
    """The matrices of a result that are not judged, and why. where: bool, of the shape of the batch."""

    name: str
    where: Tensor
    why: str


Problems = list[Problem | Unjudged]


@dataclass(frozen=True, slots=True)
class Relation:
    """covers: names of the results that this relation judges instead of a comparison by value.

    chooses: the covered results are a choice among right answers, so gradients can be compared only if both sides chose alike.
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
    """x at the indices along dim, in the shape of the indices; None if an index is out of range."""
    if not x.dim():
        return x.clone() if in_range(index, 1) else None
    full = index if keepdim else index.unsqueeze(dim)
    if not in_range(full, x.shape[dim]):
        return None
    got = x.gather(dim, full.to(torch.int64))
    return got if keepdim else got.squeeze(dim)


def outs(results: Results) -> list[str]:
    """Names of the call's results in order."""
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
    """The tensor in float64 or complex128."""
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64)


def roundoff(t: Tensor) -> float:
    """Unit roundoff of the tensor's dtype."""
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
    excluded: Tensor | None = None,
) -> Problems:
    """No problem if |got - want| <= limit n u scale in the Frobenius norm, matrix by matrix (LAPACK's test ratio).

    lost: matrices that may be NaN or Inf, because numbers on the way leave the range. excluded: `unsound` matrices, not judged.
    """
    n = max(1, *got.shape[-2:]) if got.dim() >= 2 else 1
    error = torch.linalg.matrix_norm(got - want) if got.numel() else torch.zeros(())
    unit = n * u * torch.clamp(scale, min=torch.finfo(torch.float64).tiny)
    bad = ~(error <= limit * unit)
    if lost is not None:
        bad = bad & ~(lost & ~torch.isfinite(error))
    if excluded is not None:
        bad = bad & ~excluded
    left: Problems = [] if excluded is None or not bool(excluded.any()) else [Unjudged(name, excluded, UNSOUND)]
    if not bool(bad.any()):
        return left
    ratio = float((error / unit)[bad].nan_to_num(float("inf"), float("inf")).max())
    text = f"{what}: residual {ratio:.3g} in units of n u norm, at most {limit:g}"
    return [Problem(name, text, ratio / limit if ratio <= COARSER else None), *left]


def unsound(call: Bound, *matrices: Tensor) -> Tensor:
    """Which matrices of the common batch hold NaN or Inf, or are so small that flushing loses more than rounding."""
    excluded = torch.zeros((), dtype=torch.bool)
    for a in matrices:
        if not a.numel():
            continue
        size = a.abs().amax((-2, -1))
        excluded = excluded | ~torch.isfinite(a.abs()).all(-1).all(-1) | ((size > 0.0) & (size < call.vanishes))
    return excluded


def sound(a: Tensor, excluded: Tensor) -> Tensor:
    """The matrices with zeros in place of the excluded ones, which some decompositions refuse."""
    return torch.where(excluded[..., None, None], torch.zeros_like(a), a)


def norm(a: Tensor) -> Tensor:
    """Frobenius norms of the matrices."""
    return torch.linalg.matrix_norm(a).to(torch.float64) if a.numel() else torch.zeros(a.shape[:-2], dtype=torch.float64)
