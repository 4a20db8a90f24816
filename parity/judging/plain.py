"""The cheap way to an agreement of most results: finite where the truth is, inside the smallest possible budget.

`measure` answers for every result. It asks of each element whether it is finite, excused or shared with the reference, and does
so in many passes, which for a dozen elements are its cost. Here one difference answers all of that at once. What this way
cannot say, it leaves to `measure`; what it says is what `measure` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from parity.core.results import Measure
from parity.judging.budget import Array, Budget, ulp_at
from parity.judging.measures import Mask, at, show, spread_of
from parity.judging.outliers import ELEMENTS, among_sums
from parity.judging.rounded_result import RoundedResult


@dataclass(frozen=True, slots=True)
class Plain:
    """A result of which all numbers are finite, on every side and in the truth. Arrays are over real parts; own: the error of
    the reference, None without one. odd: where a real result is NaN or Inf, the same on every side: the errors there are 0."""

    t: RoundedResult
    device: Array
    truth: Array
    error: Array
    reference: Array | None
    own: Array | None
    odd: Mask | None = None

    @property
    def at_truth(self) -> bool:
        """Whether both sides equal the truth."""
        return not self.error.any() and (self.own is None or not self.own.any())

    def knows(self, b: Budget) -> bool:
        """Whether `inside` may be asked: not of sums with NaN or Inf, whose usual error is that of the other elements."""
        return self.odd is None or b.scale is None

    @np.errstate(over="ignore")
    def inside(self, b: Budget, whole: bool = False) -> Measure | None:
        """The measure of a result inside this budget, the reference's error in the same unit with it; None for any other.
        whole: of a whole budget, whose terms and the reference's number are then given."""
        ratio = np.asarray(self.error / b.total)
        worst = int(ratio.argmax())
        top = float(ratio.reshape(-1)[worst])
        if not top <= 1.0:
            return None
        spread = self._spread(self.device, b)
        if (spread or 0.0) > 1.0 or self._errs_alone(self.error, b):
            return None
        own = None
        if self.reference is not None and self.own is not None:
            if self._errs_alone(self.own, b):
                return None
            own = max(float(np.divide(self.own, b.total, out=ratio).max()), self._spread(self.reference, b) or 0.0)
        t = self.t
        # The table's bound on a function is its whole budget, too.
        measured = whole or t.tol.ulp is not None
        index = tuple([int(i) for i in np.unravel_index(worst, self.truth.shape)])
        index = index[:-1] if t.truth.is_complex() else index
        return Measure(
            t.name, max(top, spread or 0.0), own, measured, screen="" if measured else "truth",
            max_abs=float(self.error.max()), max_ulp=self._in_ulp(worst), index=index,
            device=self._shown(t.device, self.device, worst, index),
            reference=self._shown(t.reference, self.reference, worst, index) if whole else "",
            truth=self._shown(t.truth, self.truth, worst, index), total=t.device.numel(), problem="value",
            budget=b.at(worst) if whole else (), spread=spread,
        )  # fmt: skip

    def _in_ulp(self, worst: int) -> float | None:
        size = abs(float(self.truth.item(worst)))
        return float(self.error.item(worst)) / ulp_at(size, self.t.f) if math.isfinite(size) else None

    @staticmethod
    def _shown(x: Tensor | None, numbers: Array | None, worst: int, index: tuple[int, ...]) -> str:
        """The worst element as text."""
        return "" if x is None or numbers is None else at(x, index) if x.is_complex() else show(numbers.item(worst))

    def _spread(self, x: Array, b: Budget) -> float | None:
        """The root mean square of its errors in units of its limit; None without a limit."""
        spread = spread_of(x, self.truth, b, np.ones(x.shape, dtype=bool))
        return None if spread is None else spread / b.rms

    def _errs_alone(self, error: Array, b: Budget) -> bool:
        """Whether an element's error is unlike all others'."""
        return b.scale is not None and error.size >= ELEMENTS and bool((among_sums(error, None, b.scale) > 1.0).any())


def _distance(x: Array, truth: Array) -> Array:
    apart = np.asarray(x - truth)
    return np.abs(apart, out=apart)


@np.errstate(invalid="ignore", over="ignore")
def plain(t: RoundedResult) -> Plain | None:
    """The result if all its numbers are within the range of its dtype, and finite but where all sides have the same NaN or Inf;
    None for any other."""
    if not t.truth.numel():
        return None
    truth, device, reference = t.truth_parts, t.device_parts, t.reference_parts
    error = _distance(device, truth)
    own = None if reference is None else _distance(reference, truth)
    # A sum is finite only if every number in it is; one that overflows is left to `measure`, too.
    known = float(np.add.reduce(error, None)) + (0.0 if own is None else float(np.add.reduce(own, None)))
    odd = None
    if not known < np.inf:
        odd = None if t.truth.is_complex() else _alike(truth, device, reference)
        if odd is None:
            return None
        for x in (error, own):
            if x is not None:
                x[odd] = 0.0
    inside = truth if odd is None else truth[~odd]
    if max(float(inside.max()), -float(inside.min())) > t.f.max:
        return None
    return Plain(t, device, truth, error, reference, own, odd)


def _alike(truth: Array, device: Array, reference: Array | None) -> Mask | None:
    """Where the truth is NaN or Inf, if all sides have the same there, and finite numbers everywhere else; else None."""
    finite = np.isfinite(truth)
    if finite.all() or not finite.any():
        return None
    for x in (device,) if reference is None else (device, reference):
        if not (np.isfinite(x) == finite).all() or not np.array_equal(x[~finite], truth[~finite], equal_nan=True):
            return None
    return ~finite
