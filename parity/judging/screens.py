"""Cheap ways to an agreement: at the truth, inside the smallest budget, inside what the first samples of the sensitivity give.

None is looser than the whole budget, so what passes here would pass there; what does not says nothing yet.

The cheap way to an agreement of most results: finite where the truth is, inside the smallest possible budget.

`measure` answers for every result. It asks of each element whether it is finite, excused or shared with the reference, and does
so in many passes, which for a dozen elements are its cost. Here one difference answers all of that at once. What this way
cannot say, it leaves to `measure`; what it says is what `measure` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from parity.core.results import Measure, Status, Verdict
from parity.judging.bias import has_enough_steps
from parity.judging.budget import Array, Budget, ulp_at
from parity.judging.measures import Mask, at, measure, show, spread_of
from parity.judging.outliers import ELEMENTS, among_sums
from parity.judging.rounded_result import ONE_OF_MANY, RoundedResult, is_outside, shared_error_of
from parity.judging.sameness import is_truth, same_values


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


FIRST = (1, 2)  # so many samples are tried, before the one in which operands do not move


def screened(t: RoundedResult) -> Verdict | None:
    """An agreement that needs no budget or only the smallest possible one; else None. None too if limits are asked for."""
    if t.bench.limits is not None:
        return None
    p = plain(t)
    if p.at_truth if p is not None else _is_truth(t):
        own = None if t.reference is None else 0.0
        m = Measure(t.name, 0.0, own, True, max_abs=0.0, max_ulp=0.0, total=t.device.numel())
        return Verdict(Status.AGREE, "", m, t.tol)
    if t.bench.whole:
        return None
    # Inside the least budget an error is known to be small, not how small; the errors of some cases are compared between runs.
    least = None if t.bench.always_use_oracle and t.tol.ulp is None else _inside_the_least(t, p)
    return least or _inside_first_samples(t, p)


def _is_truth(t: RoundedResult) -> bool:
    """Whether both sides equal the truth: an error of 0 is within any budget."""
    return is_truth(t.device, t.truth) and (t.reference is None or is_truth(t.reference, t.truth))


def _inside_the_least(t: RoundedResult, p: Plain | None) -> Verdict | None:
    """An agreement where the error is within the smallest possible budget, else None."""
    b = t.budget(None)
    least = p.inside(b) if p is not None and p.knows(b) else _measured_by(t, b, False)
    if least is None or (t.tests_bias and has_enough_steps(t.device, t.truth)):
        return None
    if t.halves and (shared := shared_error_of(t, b, t.device, None, False)) is not None and shared.ratio > 1.0:
        return None
    return Verdict(Status.AGREE, "", least, t.tol)


def _inside_first_samples(t: RoundedResult, p: Plain | None) -> Verdict | None:
    """An agreement where the errors of both sides are within the budget that the first samples of the sensitivity give, and
    what they share far within its limit; else None. More samples could only widen the budget."""
    if t.tol.ulp is not None or t.rule.sums_products or (t.tests_bias and has_enough_steps(t.device, t.truth)):
        return None
    for samples in FIRST:
        with t.bench.oracle.sampled(samples) as saves:
            if not saves:
                return None
            m = _inside_sampled(t, p)
        if m is not None:
            return Verdict(Status.AGREE, "", m, t.tol)
    return None


def _inside_sampled(t: RoundedResult, p: Plain | None) -> Measure | None:
    """The measure of a result inside the budget by the current samples; None for any other."""
    b = t.budget(t.truth_name)
    m = p.inside(b, True) if p is not None and p.knows(b) else _measured_by(t, b, True)
    if m is None or (m.reference_share or 0.0) > 1.0:
        return None
    alike = t.reference is not None and same_values(t.device, t.reference)
    shared = None if alike else shared_error_of(t, b, t.device, None, True)
    return None if shared is not None and shared.ratio > ONE_OF_MANY else m


def _measured_by(t: RoundedResult, b: Budget, whole: bool) -> Measure | None:
    """`Plain.inside` for any result."""
    m = measure(t.name, t.device, None, t.truth, b, sums=t.sums, draws=False)
    if is_outside(m) or (m.spread or 0.0) > 1.0:
        return None
    # The reference's error in the same unit: what a later run is compared with where its bits are the reference's.
    theirs = None if t.reference is None else measure(t.name, t.reference, None, t.truth, b, sums=t.sums, draws=False)
    if whole and theirs is not None and is_outside(theirs):
        return None
    measured = whole or t.tol.ulp is not None
    share = None if theirs is None else theirs.share
    terms = m.budget if whole else ()
    return replace(m, reference_share=share, budget=terms, measured=measured, screen="" if measured else "truth")
