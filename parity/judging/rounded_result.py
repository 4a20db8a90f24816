"""One rounded result to be judged, and what follows from it alone.

Rounded results without a truth (the op does not run in float64 or differs there): the reference takes its place.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from parity.core.dtypes import HALF, DtypeFacts
from parity.core.results import Measure, Status, Tolerance, Verdict, left_unjudged
from parity.judging.bench import Bench
from parity.judging.bias import bias_test_applies
from parity.judging.budget import Array, Budget, of_perturbation
from parity.judging.excuses import Excuses, excuses
from parity.judging.limits import Limits
from parity.judging.measures import measure, parts
from parity.judging.promises import modulus, paired
from parity.judging.rules import Rule, rule_of_pass
from parity.judging.shared_error import SharedError, shared_error
from parity.oracle import yardstick
from parity.oracle.sensitivity import PERTURBATIONS
from parity.oracle.yardstick import AGAINST_REFERENCE, place

# Of the limit of shared errors by one sample: that by three, of which it is one, is at least a third as large.
ONE_OF_MANY = 0.25


@dataclass(frozen=True, slots=True)
class RoundedResult:
    """One result to be judged; all its tensors have one shape.

    truth: in float64 or complex128. If there is none, the widened reference takes its place (`by_reference`) and `reference` is
    None. truth_name: the oracle's name of the result. f: facts of the result's dtype.

    truth_parts, device_parts, reference_parts: `parts` of each; magnitudes: `modulus` of the truth.
    """

    bench: Bench
    name: str
    device: Tensor
    reference: Tensor | None
    truth: Tensor
    truth_name: str
    pass_: str
    f: DtypeFacts
    tol: Tolerance
    truth_parts: Array = field(init=False)
    device_parts: Array = field(init=False)
    reference_parts: Array | None = field(init=False)
    magnitudes: Array = field(init=False)

    def __post_init__(self) -> None:
        """Make the arrays, once for all steps of the judgement."""
        truth = parts(self.truth)
        object.__setattr__(self, "truth_parts", truth)
        object.__setattr__(self, "device_parts", parts(self.device))
        object.__setattr__(self, "reference_parts", None if self.reference is None else parts(self.reference))
        object.__setattr__(self, "magnitudes", modulus(self.truth) if self.truth.is_complex() else truth)

    @property
    def rule(self) -> Rule:
        """The rule that judges it."""
        return rule_of_pass(self.bench.row, self.pass_)

    @property
    def sums(self) -> bool:
        """Whether elements are sums, so that overflow may give NaN, Inf or -Inf."""
        return self.f.kind == "complex" or self.rule.adds_terms

    @property
    def flushes(self) -> bool:
        """Whether the device may flush subnormals of this dtype."""
        return self.bench.tables.flushes(self.f.name, self.bench.row.name, self.bench.row.rule)

    @property
    def tests_bias(self) -> bool:
        """Whether the systematic-bias test applies."""
        return self.f.name in HALF and self.tol.ulp is None and bias_test_applies(self.bench.row, self.pass_)

    @property
    def halves(self) -> bool:
        """Whether every step inside is rounded to a half type: then only errors of the whole tensor reveal a small factor."""
        return self.f.name in HALF and self.roundoff()[0] == self.f.unit_roundoff

    def parts_of(self, x: Tensor) -> Array:
        """`parts` of x, kept if it is the device's or the reference's result."""
        theirs = self.reference_parts if x is self.reference else None
        return self.device_parts if x is self.device else parts(x) if theirs is None else theirs

    def roundoff(self) -> tuple[float, float]:
        """`Rule.roundoff` of this result."""
        return self.rule.roundoff(self.bench.row, self.f, self.pass_)

    def roundings(self) -> tuple[float, float]:
        """`Rule.roundings` of this result."""
        return self.rule.roundings(self.bench, self.f, self.pass_)

    def budget(self, name: str | None) -> Budget:
        """Allowed error of every element. name: of the truth; None for the smallest possible budget."""
        return self.rule.budget(self.bench, self.truth, name, self.f, self.pass_, self.tol, self.flushes, self.magnitudes)

    def verdict(self, m: Measure) -> Verdict:
        """The verdict on a measure of this result."""
        return self.rule.verdict(m, self.tol, self.f.name)

    def is_mostly(self, far: float, total: Array) -> bool:
        """Whether half of the elements are off by more than so many times what is allowed; those that are 0 on both sides do
        not count (an embedding's gradient has few others)."""
        with np.errstate(invalid="ignore"):
            outside = int(np.count_nonzero(np.abs(self.device_parts - self.truth_parts) > far * total))
        if not outside or 2 * outside > total.size:
            return outside > 0
        return 2 * outside > int(np.count_nonzero((self.truth_parts != 0.0) | (self.device_parts != 0.0)))

    def may_be_at_kinks(self, m: Measure) -> bool:
        """Whether to ask for kinks: not of a large function whose result agrees, as the reference's error widens its budget."""
        return is_outside(m) and not self.is_explained(m)

    def is_explained(self, m: Measure) -> bool:
        """Whether a result agrees, of a function so large that no run is made which changes no verdict."""
        return self.bench.oracle.is_dear and not self.bench.whole and self.verdict(m).status is Status.AGREE

    def is_near(self, v: Verdict, b: Budget) -> bool:
        """Whether a verdict is a drift of so little, in one element or one of a thousand, that the end of a run may call it
        marginal if elements share no error: by a budget that is an estimate, which neither a published bound of a function is
        nor the bound on the terms of an op that is one sum, and while the other elements are well inside."""
        m = v.measure
        if v.status is not Status.DRIFT or m is None or m.problem != "value" or m.certain:
            return False
        few = 0 < m.mismatched <= max(1, int((m.total - m.unjudged) / yardstick.NEAR_OUTSIDE))
        estimated = self.tol.ulp is None and self.rule.rounds and (b.scale is None or self.pass_ != "forward")
        if not (few and estimated and (m.share or math.inf) <= yardstick.NEAR and (m.spread or 0.0) <= 1.0):
            return False
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.nan_to_num(np.abs(self.device_parts - self.truth_parts) / b.total, nan=1.0, posinf=yardstick.NEAR)
        others = np.minimum(np.sort(ratio, axis=None)[: -m.mismatched], 1.0)
        return not others.size or math.sqrt(float(np.mean(others**2))) <= yardstick.NEAR_OTHERS


def is_outside(m: Measure) -> bool:
    """Whether some element exceeds its budget or has another class than its truth."""
    return m.problem == "class" or (m.share or 0.0) > 1.0


def agreed(verdict: Verdict, excused: Excuses | None) -> Verdict:
    """An agreement with its unjudged elements in the reason; VOID if no element was judged."""
    m = verdict.measure
    if verdict.status is not Status.AGREE or m is None or excused is None or not m.unjudged:
        return verdict
    m = replace(m, why=excused.why)
    if m.unjudged == m.total:
        return replace(verdict, status=Status.VOID, reason=left_unjudged(m), measure=m)
    return replace(verdict, reason="; ".join(filter(None, (left_unjudged(m), verdict.reason))), measure=m)


def shared_error_of(
    t: RoundedResult,
    b: Budget,
    x: Tensor,
    e: Excuses | None,
    full: bool,
    baseline: Tensor | None = None,
    others: Sequence[Tensor] = (),
) -> SharedError | None:
    """The errors that all elements of a result share; None for other rules, or with too few elements.

    full: use the samples of the sensitivity, not the smallest possible limits. baseline: elements that it misses too are left
    out; they were compared with it one by one. others: further truths that elements may follow.
    """
    if t.tol.ulp is not None or b.scale is not None:
        return None
    truth, (u, between) = t.truth_parts, t.roundings()
    changes = t.bench.oracle.changes(t.truth_name, u, between) if full else None
    if full and changes is None:
        return None  # the effect of roundings is unknown
    counted = np.abs(np.nan_to_num(truth, nan=np.inf)) <= t.f.max
    if e is not None:
        counted &= ~(e.ignore | e.ignore_nonfinite)
    if t.halves:  # below the normal numbers a rounding is not a small relative error
        counted &= np.abs(truth) >= t.f.tiny
    if baseline is not None and baseline.shape == t.truth.shape:
        with np.errstate(invalid="ignore"):
            counted &= np.abs(t.parts_of(baseline) - truth) <= b.total
    actual = t.parts_of(x)
    with np.errstate(invalid="ignore"):
        for other in map(parts, others):
            actual = np.where(np.abs(actual - other) < np.abs(actual - truth), truth + (actual - other), actual)
    moved = None if e is None else e.moved
    asked = functools.partial(shared_error, actual, truth, b, counted, changes, t.f, u, t.halves, moved)
    found = asked()
    # How many numbers the operands hold only widens the limit, and counting them costs more than all the rest here.
    doubtful = found is not None and (t.bench.limits is not None or abs(found.factor) > ONE_OF_MANY * found.factor_limit)
    if full and doubtful and (numbers := t.bench.oracle.different_numbers()) < math.inf:
        found = asked(numbers)
    stored = found is not None and found.few and t.pass_ in t.bench.row.judged.accumulates  # a long chain leans to one side
    return None if stored else found


def beyond_numbers(t: RoundedResult, b: Budget, here: SharedError, ratio: float) -> float:
    """How far outside a shared error is, where results may lean as those do whose steps are all rounded as coarsely as a device
    may: what rounding leaves of a variance has one sign, and grows with its square. Of their mean lean counts what chance does
    not explain. ratio: without that."""
    changes = t.bench.oracle.amplified_changes(t.truth_name, t.tol.scale) if ratio > 1.0 and here.leans else None
    if changes is None or changes.every > 1 or t.truth.is_complex() or len(changes.moved) < 2:
        return ratio
    moved = [shared_error_of(t, b, t.truth + row.view(t.truth.shape), None, True) for row in changes.moved]
    leans = [0.0 if e is None else math.copysign(1.0, here.factor) * e.factor for e in moved]
    lean = statistics.fmean(leans) - yardstick.STANDARD * statistics.stdev(leans) / math.sqrt(len(leans))
    return min(ratio, abs(here.factor) / (here.factor_limit + max(0.0, lean)))


ALONE = "judged against the reference, without a truth in float64"


def by_reference(t: RoundedResult) -> Verdict:
    """The verdict, with as many samples of the sensitivity as the decision needs."""
    if t.tol.ulp is None and t.tol.scale < AGAINST_REFERENCE:
        t = replace(t, tol=replace(t.tol, scale=AGAINST_REFERENCE, origin=place("against the reference")))
    while (verdict := _judged_once(t)) is None:
        pass
    return verdict


def _judged_once(t: RoundedResult) -> Verdict | None:
    """The verdict; None if the oracle now takes more samples and the result must be judged again."""
    bench, b, excused = t.bench, _budget(t), None
    m = measure(t.name, t.device, None, t.truth, b, sums=t.sums)
    if is_outside(m) or bench.limits is not None:
        if is_outside(m) and t.tol.ulp is None and bench.oracle.take_more_samples(PERTURBATIONS):
            return None
        excused = excuses(bench, b, t.truth, t.truth_name, t.f, t.pass_)
        b = excused.widened(b)
        m = measure(
            t.name, t.device, None, t.truth, b, sums=t.sums, ignore_nonfinite=excused.ignore_nonfinite, ignore=excused.ignore
        )
    verdict = replace(t.verdict(m), reason=ALONE, excess=None)
    if verdict.status is Status.AGREE and excused is not None:
        _note_limits(t, b, excused)
    return agreed(verdict, excused)


def _budget(t: RoundedResult) -> Budget:
    """The bound of a function where a table has one, else a perturbation budget.

    Nothing is known of how the terms add up, but running the op in float64 still gives its conditioning.
    """
    if t.tol.ulp is not None:
        return t.budget(None)
    size, moved, u = modulus(t.truth), None, t.f.unit_roundoff
    if (meant := t.bench.oracle.truth(t.truth_name)) is not None and meant.shape == t.truth.shape:
        moved = paired(t.bench.oracle.sensitivity(t.truth_name, u, u), t.truth)
    return of_perturbation(size, moved, t.f, u, t.tol, t.f.smallest)


def _note_limits(t: RoundedResult, b: Budget, excused: Excuses) -> None:
    """Record which errors this agreement rules out, if limits were asked for."""
    if t.bench.limits is None:
        return
    truth = parts(t.truth)
    away = excused.ignore
    loose = ~away & (b.total > 0.5 * np.abs(truth)) & ((truth != 0.0) | (parts(t.device) != 0.0))
    reported_above = np.where(away, np.inf, np.where(np.isfinite(truth), b.total, 0.0))
    t.bench.limits[t.name] = Limits(np.abs(truth), reported_above, away, away & excused.shown, loose, np.inf)
