"""Rounded results: one tensor against its truth, or against the reference where there is no truth.

Four steps: *screen* (cheap ways to an agreement: `screens`), *measure* (against the whole budget), *escalate* (more samples of
the sensitivity, another baseline than the CPU, unspecified elements left out), *decide*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from parity.core.dtypes import HALF
from parity.core.results import Measure, Status, Verdict, left_unjudged
from parity.judging.bench import Bench
from parity.judging.bias import in_range, systematic_bias
from parity.judging.budget import Budget
from parity.judging.exact import exactly, of_zeros
from parity.judging.excuses import Excuses, excuses
from parity.judging.limits import Limits
from parity.judging.measures import allowed_ratio, facts_of, measure, parts
from parity.judging.promises import as_promised, one_kernel, paired, residue
from parity.judging.rounded_result import RoundedResult, agreed, beyond_numbers, by_reference, is_outside, shared_error_of
from parity.judging.rule import DRIFT_LIMIT
from parity.judging.rules import rule_of
from parity.judging.sameness import same_bits, same_values
from parity.judging.screens import screened
from parity.judging.shared_error import SharedError
from parity.oracle import yardstick
from parity.oracle.oracle import SAMPLES
from parity.oracle.sensitivity import PERTURBATIONS
from parity.oracle.yardstick import CLOSE, FAR, WIDENING_LIMIT

KINK = "roundings of that size taken together"
# Measured again with more samples are errors up to `CLOSE` budgets, or where at most one in so many elements is outside, or a
# single one: roundings of two equal numbers, of which the result is the difference, undo each other in half of the samples.
FEW = 2**PERTURBATIONS
EQUALS = "equals the reference, which is {ratio:.3g} budgets from the truth itself"
FOLLOWS = "as far from the truth as the reference, with which they agree"
TAIL = "outside, but so few of so many, and so little, that roundings which turn a step explain them"
CANCELLED = "the truth is what float64 leaves of numbers that cancel"


def by_oracle(
    bench: Bench, name: str, device: Tensor, reference: Tensor | None, truth_name: str, pass_: str, exact: bool
) -> Verdict:
    """The verdict on one tensor by its truth, or by the reference where it has none."""
    truth = None if bench.row.judged.oracle == "exact" and reference is not None else bench.oracle.truth(truth_name)
    if truth is None and reference is None:
        return Verdict(Status.VOID, "neither the reference nor the oracle could run it")
    # An integer truth of a rounded result was converted before it was summed.
    whole = truth is not None and not (exact or truth.is_floating_point() or truth.is_complex())
    f, row = facts_of(device), bench.row
    tol = bench.tables.find(row.name, row.rule, f.name, pass_, row.judged.ulp)
    if truth is None or truth.shape != device.shape or truth.is_complex() != device.is_complex() or whole:
        known = device if reference is None else reference
        wide = known.to(torch.complex128 if known.is_complex() else torch.float64)
        if not bench.oracle.holds("nonfinite"):  # Inf is then what left the range
            wide = wide.nan_to_num(math.nan, 2.0 * f.max, -2.0 * f.max)
        return by_reference(RoundedResult(bench, name, device, None, wide, truth_name, pass_, f, tol))
    if exact:
        return exactly(bench, name, device, truth.to(device.dtype))
    device = as_promised(bench, truth, device, pass_)
    reference = None if reference is None else as_promised(bench, truth, reference, pass_)
    t = RoundedResult(bench, name, device, reference, truth, truth_name, pass_, f, tol)
    verdict = _by_row(t)
    zeros = verdict.status is Status.AGREE and reference is not None and not device.is_complex() and not t.truth_parts.all()
    if zeros and reference is not None and not _flushed(t):
        return of_zeros(bench, name, device, reference, truth, pass_) or verdict
    return verdict


def _by_row(t: RoundedResult) -> Verdict:
    """By the row of the one operator that gave it, if that has an ULP bound; in half types by what elements share, too. A sum
    both by its terms, of which few bound it sharply, and by its sensitivity, as many do."""
    row, limits = t.bench.oracle.row(t.truth_name), t.bench.limits
    tol = t.tol if row is None else t.bench.tables.find(row.name, row.rule, t.f.name, t.pass_, row.judged.ulp)
    if row is None or not (tol.ulp is not None or rule_of(row).sums_products):
        return _by_truth(t)
    verdict = _by_truth(replace(t, bench=replace(t.bench, row=row), tol=tol))
    if verdict.status.is_finding or (t.f.name not in HALF and tol.ulp is not None):
        return verdict
    first = None if limits is None else limits.pop(t.name, None)
    composed = _by_truth(t)
    if limits is not None and first is not None and t.name in limits:
        limits[t.name] = first.sharper(limits[t.name])
    return composed if composed.status.is_finding else verdict


def _by_truth(t: RoundedResult) -> Verdict:
    """Screen first, then measure with as many samples of the sensitivity as the decision needs."""
    if not t.bench.oracle.proven and (passed := screened(t)) is not None:
        return passed
    while True:
        assessed = _measured(t)
        if _takes_more_samples(assessed):
            continue
        if (verdict := _decided(_escalated(assessed))) is not None:
            return verdict


# -------------------------------------------------------------------------------------------------------------- measure


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit in which the errors of a result are measured, with the current samples of the sensitivity.

    others: further truths that elements may follow. one_kernel: `promises.one_kernel`. rounds_once: an argument of `measure`.
    excused: None until it is computed.
    """

    t: RoundedResult
    budget: Budget
    others: tuple[Tensor, ...]
    one_kernel: bool
    rounds_once: bool
    excused: Excuses | None = None

    def error(self, x: Tensor, baseline: Tensor | None) -> Measure:
        """The error of x in units of the budget, compared with that of a baseline."""
        t, e = self.t, self.excused
        return measure(
            t.name, x, baseline, t.truth, self.budget, others=self.others, sums=t.sums, rounds_once=self.rounds_once,
            ignore_nonfinite=None if e is None else e.ignore_nonfinite, ignore=None if e is None else e.ignore,
        )  # fmt: skip

    def with_excuses(self) -> Scale:
        """This scale with unspecified elements excused, and the budget plus what the limited range of numbers may move."""
        t = self.t
        e = excuses(t.bench, self.budget, t.truth, t.truth_name, t.f, t.pass_)
        return replace(self, excused=e, budget=e.widened(self.budget))

    def together(self, x: Tensor, baseline: Tensor | None) -> SharedError | None:
        """The errors that all elements of x share. baseline: elements that it misses too are left out."""
        return shared_error_of(self.t, self.budget, x, self.excused, True, baseline, self.others)


@dataclass(frozen=True, slots=True)
class Assessment:
    """A measured result. measure: of the device next to the baseline; own: the error ratio of the reference, None without one.

    baseline: excuses an error of the device if it has the same one: the reference, or kernels that round once. branched: how
    many elements `_on_another_branch` compares with the reference.
    """

    scale: Scale
    baseline: Tensor | None
    measure: Measure
    own: float | None
    branched: int = 0

    @property
    def t(self) -> RoundedResult:
        return self.scale.t


def _measured(t: RoundedResult) -> Assessment:
    """Measure the error of a result in units of its whole budget, compared with the reference's."""
    scale = _scale(t)
    scale = scale if t.bench.limits is None else scale.with_excuses()
    m = scale.error(t.device, t.reference)
    return Assessment(scale, t.reference, m, m.reference_share)


def _scale(t: RoundedResult) -> Scale:
    b, others = t.budget(t.truth_name), _flushed(t)
    if others:  # some subnormals may be flushed and others not
        with np.errstate(invalid="ignore"):
            b = b.wider("subnormal operands flushed", np.abs(t.truth_parts - parts(others[0])))
    once = one_kernel(t.bench.row, t.f, t.pass_, b)
    return Scale(t, b, others, once, t.tests_bias and t.rule.sums_products and once and in_range(t.truth))


def _flushed(t: RoundedResult) -> tuple[Tensor, ...]:
    """A second truth, if the device may flush subnormal operands."""
    row, tables = t.bench.row, t.bench.tables
    other = t.bench.oracle.flushed(t.truth_name, lambda dtype: tables.flushes(dtype, row.name, row.rule), t.f.name)
    return () if other is None or other.shape != t.truth.shape else (other,)


# ------------------------------------------------------------------------------------------------------------- escalate


def _takes_more_samples(assessed: Assessment) -> bool:
    """Whether the result is outside a sampled budget, and the oracle now takes more samples."""
    t, m = assessed.t, assessed.measure
    sampled, ratio = assessed.scale.budget.scale is None and t.tol.ulp is None, m.share or 0.0
    # Of many elements a few have small movements in all of some samples, however much they can move.
    few = 0 < FEW * m.mismatched <= max(m.total, FEW)
    more = 1.0 < ratio < CLOSE or few or ratio > yardstick.UNMOVED or m.problem == "alone"
    return sampled and is_outside(m) and t.bench.oracle.take_more_samples(SAMPLES[-1] if more else PERTURBATIONS)


def _escalated(assessed: Assessment) -> Assessment:
    """The result compared with a better baseline than the reference, then with unspecified elements left out, then with kinks
    allowed for, then on the reference's branch.

    Each step applies while the result is outside its budget; where the device is known to be wrong, the last alone."""
    if assessed.t.bench.oracle.proven:
        return _on_another_branch(assessed) if is_outside(assessed.measure) else assessed
    assessed = _by_better_baseline(assessed)
    if is_outside(assessed.measure) and assessed.scale.excused is None:
        scale = assessed.scale.with_excuses()
        m = scale.error(assessed.t.device, assessed.baseline)
        own = m.reference_share if assessed.baseline is assessed.t.reference else assessed.own
        assessed = _by_better_baseline(Assessment(scale, assessed.baseline, m, own))
    assessed = _by_the_reference_again(assessed)
    if assessed.t.may_be_at_kinks(assessed.measure) and (scale_at_kinks := _at_kinks(assessed)) is not None:
        assessed = replace(assessed, scale=scale_at_kinks, measure=scale_at_kinks.error(assessed.t.device, assessed.baseline))
    return _on_another_branch(assessed) if is_outside(assessed.measure) else assessed


def _by_better_baseline(assessed: Assessment) -> Assessment:
    """Use kernels that round once as the baseline if the CPU's own error comes from its kernels.

    The error of the reference excuses the device if it belongs to the op, but not if CPU kernels add up in the half type.
    """
    t, scale = assessed.t, assessed.scale
    if (assessed.measure.reference_share or 0.0) <= 1.0 or not scale.one_kernel or same_bits(t.device, t.reference):
        return assessed
    healthy = t.bench.oracle.rounded_once(t.truth_name)
    if healthy is None or healthy.shape != t.truth.shape or healthy.dtype != t.device.dtype:
        return assessed
    if is_outside(scale.error(healthy, None)):
        return assessed
    return replace(assessed, baseline=healthy, measure=scale.error(t.device, healthy))


def _by_the_reference_again(assessed: Assessment) -> Assessment:
    """The reference as the baseline again, if only elements are outside that have its very numbers: what excuses a device with
    all bits of the CPU's excuses one that differs where either result is right. (A quotient is truncated after it was rounded
    to the half type, on the CPU and on GPUs. Weights of both signs make NaN of a sum that has left its range.)"""
    t, baseline = assessed.t, assessed.baseline
    if not is_outside(assessed.measure) or baseline is None or t.reference is None or baseline is t.reference:
        return assessed
    rest = torch.where((t.device == t.reference) | (t.device.isnan() & t.reference.isnan()), baseline, t.device)
    if is_outside(assessed.scale.error(rest, baseline)):
        return assessed
    return replace(assessed, baseline=t.reference, measure=assessed.scale.error(t.device, t.reference))


def _at_kinks(assessed: Assessment) -> Scale | None:
    """The budget widened where allowed roundings, taken together, move the truth more than in proportion; None if nowhere.

    So at a kink, or where a number that cancels divides. One sample is enough where most elements stay far outside."""
    t, b = assessed.t, assessed.scale.budget
    if t.tol.ulp is not None or b.certain is not None:
        return None
    for most, far in ((1, FAR), (PERTURBATIONS, CLOSE), (0, math.inf)):
        moved = t.bench.oracle.amplified(t.truth_name, *t.roundings(), t.tol.scale, most)
        if moved is None or moved.shape != t.truth.shape:
            return None
        more = np.maximum(0.0, paired(moved, t.truth) - b.total)
        scale = replace(assessed.scale, budget=b.wider(KINK, more))
        if t.is_mostly(far, b.total + more) or t.is_explained(scale.error(t.device, assessed.baseline)):
            break
    return scale if more.any() else None


def _on_another_branch(assessed: Assessment) -> Assessment:
    """Elements compared with the reference in place of the truth, as with that of a step which loses nothing, where a caller's
    function took another branch in float64: where the reference is farther from the truth than rounding may widen a budget, and
    the device is so near to the reference."""
    t, total = assessed.t, assessed.scale.budget.total
    far = (assessed.measure.reference_share or 0.0) > WIDENING_LIMIT and t.bench.oracle.may_branch_by_dtype
    if not far or t.reference is None or t.reference.is_complex():
        return assessed
    d, c = t.device_parts, parts(t.reference)
    with np.errstate(invalid="ignore"):
        near = t.tol.scale * yardstick.OWN_ROUNDING * t.f.unit_roundoff * np.abs(c)
        there = (np.abs(c - t.truth_parts) > WIDENING_LIMIT * total) & (np.abs(d - c) <= near)
    if not there.any():
        return assessed
    branch = torch.where(torch.from_numpy(there), t.reference.to(t.truth.dtype), t.truth)
    b = assessed.scale.budget.wider("another branch", np.where(there, near, 0.0))
    scale = replace(assessed.scale, budget=b, others=(*assessed.scale.others, branch))
    m = scale.error(t.device, t.reference)
    return Assessment(scale, t.reference, m, m.reference_share, int(there.sum()))


# --------------------------------------------------------------------------------------------------------------- decide


def _decided(assessed: Assessment) -> Verdict | None:
    """The verdict on the measure and on shared errors; None if the oracle now takes more samples and the result must be
    measured again."""
    t, m = assessed.t, assessed.measure
    if (rest := _residue(assessed)) is not None:
        return Verdict(Status.AGREE, CANCELLED, rest, t.tol)
    if t.reference is not None and (m.share or 0.0) > 1.0 and same_values(t.device, t.reference):
        return Verdict(Status.AGREE, EQUALS.format(ratio=m.share), m, t.tol)
    verdict = t.verdict(m)
    assessed = replace(assessed, measure=replace(m, reference_share=assessed.own))
    if verdict.status.differs and _by_chance(assessed):
        rest = replace(assessed.measure, share=1.0, unjudged=m.unjudged + m.mismatched, why=m.why or TAIL)
        return Verdict(Status.AGREE, left_unjudged(rest), rest, replace(t.tol, origin=yardstick.place("turned steps")))
    if verdict.status is not Status.AGREE:
        near = t.is_near(verdict, assessed.scale.budget) and _biased(assessed) is None and _shared(assessed) is None
        return replace(verdict, measure=assessed.measure, near=near)
    for question, samples in ((_biased, PERTURBATIONS), (_shared, SAMPLES[-1])):
        if (together := question(assessed)) is not None:
            return None if t.bench.oracle.take_more_samples(samples) else together
    _note_limits(assessed)
    verdict = agreed(t.verdict(assessed.measure), assessed.scale.excused)
    if not assessed.branched or verdict.status is not Status.AGREE:
        return verdict
    rest = replace(assessed.measure, unjudged=assessed.measure.unjudged + assessed.branched, why=FOLLOWS)
    return Verdict(Status.AGREE, "; ".join(filter(None, (left_unjudged(rest), verdict.reason))), rest, t.tol)


def _by_chance(assessed: Assessment) -> bool:
    """Whether as few elements of a function's result are outside, and by no more than the budgets of others, as roundings put
    there that no sample had: in half types a rounding may turn a ReLU of any layer, and with it all that hangs on it."""
    t, m = assessed.t, assessed.measure
    few = 0 < m.mismatched * yardstick.CHANCE_OUTSIDE <= m.total and m.problem in ("value", "alone")
    if not few or not t.bench.oracle.rounds_to_half:
        return False
    total = assessed.scale.budget.total
    error = np.abs(np.nan_to_num(t.device_parts - t.truth_parts, nan=np.inf))
    usual = np.quantile(total[np.isfinite(total)], yardstick.CHANCE_BUDGETS)
    return bool((error <= yardstick.CHANCE_SHARE * np.maximum(total, usual)).all())


def _residue(assessed: Assessment) -> Measure | None:
    """The measure of a gradient whose truth is float64's rounding error of numbers that cancel, if it agrees; else None.

    Only asked where the errors of both sides exceed their budgets.
    """
    t = assessed.t
    if t.pass_ != "backward" or min(assessed.measure.share or 0.0, (assessed.own or 0.0) / WIDENING_LIMIT) <= 1.0:
        return None
    b = residue(t.bench.oracle, assessed.scale.budget, t.truth, t.f, *t.roundoff())
    rest = None if b is None else replace(assessed.scale, budget=b, excused=None).error(t.device, assessed.baseline)
    return None if rest is None or is_outside(rest) else rest


def _biased(assessed: Assessment) -> Verdict | None:
    """A DRIFT verdict if results are biased to one side, else None."""
    t = assessed.t
    if not t.tests_bias or (t.reference is not None and same_values(t.device, t.reference)):
        return None  # the CPU has the same bias
    bias_size = systematic_bias(
        t.device, t.truth, assessed.scale.budget.inside, lambda: t.bench.oracle.rounded_once(t.truth_name)
    )
    if bias_size <= 1.0:
        return None
    text = f"results lean to one side, {bias_size:.3g} times as much as chance explains: precision is lost in what they share"
    return Verdict(Status.DRIFT, text, replace(assessed.measure, share=bias_size, problem="lean"), t.tol)


def _shared(assessed: Assessment) -> Verdict | None:
    """A finding if all elements share an error, else None."""
    t, scale = assessed.t, assessed.scale
    if t.reference is not None and same_values(t.device, t.reference):
        return None
    here = scale.together(t.device, assessed.baseline)
    if here is not None and here.ratio > 1.0 and not (scale.excused or t.bench.oracle.proven):  # only here: it is expensive
        scale = scale.with_excuses()
        here = scale.together(t.device, assessed.baseline)
    if here is None or here.ratio <= 1.0:
        return None
    own = None if assessed.baseline is None else scale.together(assessed.baseline, assessed.baseline)
    if own is not None and own.ratio > WIDENING_LIMIT and t.reference is not None and assessed.baseline is t.reference:
        # No rounding explains what the reference's elements share, so the device may share it: as `measure` has it, whose
        # elements may equal those of a reference that is so far from the truth.
        scale = replace(scale, others=(*scale.others, t.reference.to(t.truth.dtype)))
        here = scale.together(t.device, assessed.baseline) or here
    ratio = beyond_numbers(t, scale.budget, here, here.ratio / allowed_ratio(None if own is None else own.ratio))
    if ratio <= 1.0:
        return None
    status = Status.DRIFT if ratio <= DRIFT_LIMIT.get(t.f.name, yardstick.COARSER_SINGLE) else Status.WRONG
    tol = replace(t.tol, origin=yardstick.place(here.row(t.halves)))
    return Verdict(status, here.text(ratio), replace(assessed.measure, share=ratio, problem="shared"), tol)


def _note_limits(assessed: Assessment) -> None:
    """Record which errors this agreement rules out, if limits were asked for."""
    t, b, e, own = assessed.t, assessed.scale.budget, assessed.scale.excused, assessed.own
    if t.bench.limits is None or e is None:
        return
    truth = t.truth_parts
    odd = ~np.isfinite(truth)
    reported_above = b.total * allowed_ratio(own)
    if (own or 0.0) > WIDENING_LIMIT and t.reference is not None:
        reported_above = np.maximum(b.total, np.abs(parts(t.reference) - truth) + b.total)
    excused = e.ignore
    shared = assessed.scale.together(t.device, assessed.baseline)
    factor = np.inf if shared is None else shared.factor_limit
    loose = ~excused & ~odd & (b.total > 0.5 * np.abs(truth)) & ((truth != 0.0) | (t.device_parts != 0.0))
    reported_above = np.where(excused, np.inf, np.where(odd, 0.0, reported_above))
    t.bench.limits[t.name] = Limits(np.abs(truth), reported_above, excused, excused & e.shown, loose, factor)
