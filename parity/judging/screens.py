"""Cheap ways to an agreement: at the truth, inside the smallest budget, inside what the first samples of the sensitivity give.

None is looser than the whole budget, so what passes here would pass there; what does not says nothing yet.
"""

from __future__ import annotations

from dataclasses import replace

from parity.core.results import Measure, Status, Verdict
from parity.judging.bias import has_enough_steps
from parity.judging.budget import Budget
from parity.judging.measures import measure
from parity.judging.plain import Plain, plain
from parity.judging.rounded_result import RoundedResult, is_outside, shared_error_of
from parity.judging.sameness import is_truth, same_values

FIRST = (1, 2)  # so many samples are tried, before the one in which operands do not move
# Of the limit of shared errors by one sample: that by three, of which it is one, is at least a third as large.
ONE_OF_MANY = 0.25


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
