"""The cheap way to an agreement of most results: finite where the truth is, inside the smallest possible budget.

`measure` answers for every result. It asks of each element whether it is finite, excused or shared with the reference, and does
so in many passes, which for a dozen elements are its cost. Here one difference answers all of that at once. What this way
cannot say, it leaves to `measure`; what it says is what `measure` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from parity.core.results import Measure
from parity.judging.budget import Array, Budget, ulp_of
from parity.judging.measures import SPREAD_ELEMENTS, Mask, parts, show, spread_of
from parity.judging.outliers import ELEMENTS, among_sums
from parity.judging.rounded_result import RoundedResult


@dataclass(frozen=True, slots=True)
class Plain:
    """A result of which all numbers are finite, on every side and in the truth; complex ones as real parts. own: the error of
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

    def inside(self, b: Budget, whole: bool = False) -> Measure | None:
        """The measure of a result inside this budget, the reference's error in the same unit beside it; None for any other.
        whole: of a whole budget, whose terms and the reference's number are then told."""
        with np.errstate(over="ignore"):
            ratio = self.error / b.total
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
            with np.errstate(over="ignore"):
                own = max(float((self.own / b.total).max()), self._spread(self.reference, b) or 0.0)
        m = self._measure(worst, max(top, spread or 0.0), own, spread)
        if not whole:
            return m
        theirs = "" if self.reference is None else self._shown(self.reference, worst)
        return replace(m, reference=theirs, budget=b.at(worst))

    def _measure(self, worst: int, share: float, own: float | None, spread: float | None) -> Measure:
        q, error = (float(a.reshape(-1)[worst]) for a in (self.truth, self.error))
        index = tuple([int(i) for i in np.unravel_index(worst, self.truth.shape)])
        return Measure(
            self.t.name,
            share,
            own,
            True,
            max_abs=float(self.error.max()),
            max_ulp=float(error / ulp_of(np.array([abs(q)]), self.t.f, True)[0]) if math.isfinite(q) else None,
            index=index[:-1] if self._is_complex else index,
            device=self._shown(self.device, worst),
            truth=self._shown(self.truth, worst),
            total=self.t.truth.numel(),
            problem="value",
            spread=spread,
        )

    @property
    def _is_complex(self) -> bool:
        return self.t.truth.is_complex()

    def _shown(self, x: Array, element: int) -> str:
        """The number that a real part belongs to."""
        flat = x.reshape(-1)
        return show(complex(flat[element // 2 * 2], flat[element // 2 * 2 + 1]) if self._is_complex else flat[element])

    def _spread(self, x: Array, b: Budget) -> float | None:
        """The root mean square of its errors in units of its limit; None without a limit."""
        if b.scale is None or x.size < SPREAD_ELEMENTS:
            return None
        spread = spread_of(x, self.truth, b, np.ones(x.shape, dtype=bool))
        return None if spread is None else spread / b.rms

    def _errs_alone(self, error: Array, b: Budget) -> bool:
        """Whether an element's error is unlike all others'."""
        return b.scale is not None and error.size >= ELEMENTS and bool((among_sums(error, None, b.scale) > 1.0).any())


def plain(t: RoundedResult) -> Plain | None:
    """The result if all its numbers are within the range of its dtype, and finite but where all sides have the same NaN or Inf;
    None for any other."""
    if not t.truth.numel():
        return None
    truth, device = parts(t.truth), parts(t.device)
    own = reference = None
    with np.errstate(invalid="ignore"):
        error = np.abs(device - truth)
        if t.reference is not None:
            reference = parts(t.reference)
            own = np.abs(reference - truth)
    # A sum is finite only if every number in it is; one that overflows is left to `measure`, too.
    known = _sum(error) if own is None else _sum(error) + _sum(own)
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


def _sum(x: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.add.reduce(x, None))
