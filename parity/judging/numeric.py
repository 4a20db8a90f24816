"""Results that are rounded: one tensor against its truth, or against the reference where it has none.

Four steps: *screen* (inside the least that the budget can be), *measure* (against the whole budget), *escalate* (more samples
of the sensitivity, another peer than the CPU, what nobody promises), *decide*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from parity.dtypes import HALF, DtypeFacts
from parity.judging.allowance import allowance, roundings
from parity.judging.bench import Bench
from parity.judging.budget import Budget, of_perturbation
from parity.judging.exact import exactly, of_zeros
from parity.judging.excuses import Excuses, excuses
from parity.judging.leaning import in_range, lean_of, may_lean, strides_past
from parity.judging.limits import Limits, left_unjudged
from parity.judging.measures import (
    WIDENING_LIMIT,
    allowed_share,
    facts_of,
    is_truth,
    measure,
    parts,
    same_bits,
    same_values,
)
from parity.judging.promises import modulus, on_the_branch_of, one_kernel, paired, residue, roundoff
from parity.judging.shared_error import SharedError, shared_error
from parity.truth.oracle import SAMPLES
from parity.truth.shaken import PERTURBATIONS
from parity.vocabulary import Measure, OpClass, Status, Tolerance, Verdict

# Arithmetic in the next coarser format explains an error of up to this many budgets: bfloat16's roundoff in a float32 op
# (2**-8 / 2**-24, over the scale of 16), six lost bits in a half type. Beyond it no rounding explains the error.
DRIFT_LIMIT = {"float32": 4096.0, "complex64": 4096.0, "float16": 64.0, "bfloat16": 64.0}
KINK = "roundings of that size taken together"
CLOSE = 4.0  # sensitivities are samples: what is outside by no more is asked for again with more of them
WITHOUT_TRUTH = 16.0  # scale where the reference stands in for the truth: the errors of both sides add up
_ALONE = (OpClass.ELEMENTWISE, OpClass.SELECTION)  # no element of their results is a sum
EQUALS = "equals the reference, which is {share:.3g} budgets from the truth itself"
ALONE = "judged against the reference, without a truth in float64"
CANCELLED = "the truth is what float64 leaves of numbers that cancel"


@dataclass(frozen=True, slots=True)
class Task:
    """One result to be judged. truth: never None but where the reference stands in for it (`by_reference`)."""

    bench: Bench
    name: str
    device: Tensor
    reference: Tensor | None
    truth: Tensor
    truth_name: str
    pass_: str
    f: DtypeFacts
    tol: Tolerance

    @property
    def sums(self) -> bool:
        """Whether elements are sums, so that which of NaN, Inf and -Inf comes of overflow is nobody's promise."""
        return self.pass_ == "backward" or self.f.kind == "complex" or self.bench.row.rule not in _ALONE

    @property
    def flushes(self) -> bool:
        """Whether the device may flush subnormals of this dtype."""
        return self.bench.tables.flushes(self.f.name, self.bench.row.name, self.bench.row.rule)

    @property
    def leans(self) -> bool:
        """Whether a lean to one side would tell anything."""
        return self.f.name in HALF and self.tol.ulp is None and may_lean(self.bench.row, self.pass_)

    @property
    def halves(self) -> bool:
        """Whether every step inside is rounded to a half type, so that only errors of the whole tensor tell a small factor."""
        return self.f.name in HALF and roundoff(self.bench.row, self.f, self.pass_)[0] == self.f.unit_roundoff

    def budget(self, name: str | None) -> Budget:
        """What every element may be off by; name: of the truth, or None for the least that this can be."""
        return allowance(self.bench, self.truth, name, self.f, self.pass_, self.tol, self.flushes)


def by_oracle(
    bench: Bench, name: str, device: Tensor, reference: Tensor | None, truth_name: str, pass_: str, exact: bool
) -> Verdict:
    """One tensor by its truth, or by the reference where it has none."""
    row = bench.row
    truth = None if row.oracle == "exact" and reference is not None else bench.oracle.truth(truth_name)
    if truth is None and reference is None:
        return Verdict(Status.VOID, "neither the reference nor the oracle could run it")
    # Whole numbers as truth of rounded results were converted before they were summed.
    whole = truth is not None and not (exact or truth.is_floating_point() or truth.is_complex())
    f = facts_of(device)
    tol = bench.tables.find(row.name, row.rule, f.name, pass_, row.ulp)
    if truth is None or truth.shape != device.shape or truth.is_complex() != device.is_complex() or whole:
        known = device if reference is None else reference
        wide = known.to(torch.complex128 if known.is_complex() else torch.float64)
        return _by_reference(Task(bench, name, device, None, wide, truth_name, pass_, f, tol))
    if exact:
        return exactly(bench, name, device, truth.to(device.dtype))
    if f.kind == "complex" and pass_ == "forward" and bench.tables.special(row.name, row.rule, "branch") == "any":
        device = on_the_branch_of(truth, device)
        reference = None if reference is None else on_the_branch_of(truth, reference)
    task = Task(bench, name, device, reference, truth, truth_name, pass_, f, tol)
    verdict = _by_truth(task)
    if verdict.status is Status.AGREE and reference is not None and pass_ == "forward" and not _flushed(task):
        return of_zeros(bench, name, device, reference, truth) or verdict
    return verdict


# ------------------------------------------------------------------------------------------------------------- by truth


def _by_truth(t: Task) -> Verdict:
    """Cheaply first, then with as many samples of the sensitivity as a doubt needs."""
    if t.bench.limits is None:
        if (passed := _at_truth(t)) is not None:
            return passed
        if not t.bench.insist and (passed := _screened(t)) is not None:
            return passed
    while (verdict := _Look(t).verdict()) is None:
        pass
    return verdict


def _at_truth(t: Task) -> Verdict | None:
    """No error is a share of 0 of any budget: it needs not to be known."""
    if not is_truth(t.device, t.truth) or not (t.reference is None or is_truth(t.reference, t.truth)):
        return None
    own = None if t.reference is None else 0.0
    m = Measure(t.name, 0.0, own, True, max_abs=0.0, max_ulp=0.0, total=t.device.numel())
    return Verdict(Status.AGREE, "", m, t.tol)


def _screened(t: Task) -> Verdict | None:
    """Agreement where the error is inside the least that the budget can be; None where it is not."""
    b = t.budget(None)
    least = measure(t.name, t.device, None, t.truth, b, sums=t.sums)
    if _outside(least) or (least.spread or 0.0) > 1.0 or (t.leans and strides_past(t.device, t.truth)):
        return None
    if t.halves and (shared := _shared_error(t, b, t.device, None, False)) is not None and shared.ratio > 1.0:
        return None
    function = t.tol.ulp is not None
    return Verdict(Status.AGREE, "", replace(least, measured=function, screen="" if function else "truth", budget=()), t.tol)


class _Look:
    """One look at a result, with the samples of the sensitivity that there are."""

    def __init__(self, t: Task) -> None:
        self.t, self.b, self.others = t, t.budget(t.truth_name), _flushed(t)
        if self.others:  # some subnormals may be flushed and others not
            with np.errstate(invalid="ignore"):
                self.b = self.b.wider("subnormal operands flushed", np.abs(parts(t.truth) - parts(self.others[0])))
        self.one_kernel = one_kernel(t.bench.row, t.f, t.pass_, self.b)
        self.single = t.leans and t.tol.rule == OpClass.CONTRACTION and self.one_kernel and in_range(t.truth)
        self.excused: Excuses | None = None
        self.peer = t.reference

    def verdict(self) -> Verdict | None:
        """The verdict; None where the oracle takes more samples from now on, and all is to be looked at again."""
        t = self.t
        if t.bench.limits is not None:
            self._excuse()
        m = self._held(t.device, t.reference)
        if self._doubtful(m):
            return None
        own = m.reference_share
        m = self._by_better_peer(m)
        if _outside(m) and self.excused is None:
            self._excuse()
            m = self._held(t.device, self.peer)
            own = m.reference_share if self.peer is t.reference else own
        if _outside(m) and self._kinked():
            m = self._held(t.device, self.peer)
        if (rest := self._residue(m, own)) is not None:
            return Verdict(Status.AGREE, CANCELLED, rest, t.tol)
        if t.reference is not None and (m.share or 0.0) > 1.0 and same_values(t.device, t.reference):
            return Verdict(Status.AGREE, EQUALS.format(share=m.share), m, t.tol)
        found = decide(m, t.tol, t.f.name)
        m = replace(m, reference_share=own)
        if found.status is not Status.AGREE:
            return replace(found, measure=m)
        for question, samples in ((self._lean, PERTURBATIONS), (self._shared, SAMPLES[-1])):
            if (together := question(m)) is not None:
                return None if t.bench.oracle.look_closer(samples) else together
        self._note_limits(own)
        return agreed(decide(m, t.tol, t.f.name), self.excused)

    def _doubtful(self, m: Measure) -> bool:
        """Whether the budget is a sample that says 'outside', and more samples are to be had."""
        sampled, share = self.b.scale is None and self.t.tol.ulp is None, m.share or 0.0
        most = SAMPLES[-1] if 1.0 < share < CLOSE or m.problem == "alone" else PERTURBATIONS
        return sampled and _outside(m) and self.t.bench.oracle.look_closer(most)

    def _held(self, x: Tensor, peer: Tensor | None) -> Measure:
        """The error of x in units of the budget."""
        return self._in(self.b, x, peer, self.excused)

    def _in(self, b: Budget, x: Tensor, peer: Tensor | None, e: Excuses | None) -> Measure:
        free, unspoken = (None, None) if e is None else (e.free, e.unspoken)
        how = {"others": self.others, "free": free, "unspoken": unspoken, "sums": self.t.sums, "single": self.single}
        return measure(self.t.name, x, peer, self.t.truth, b, **how)  # type: ignore[arg-type]  # each as it is declared

    def _excuse(self) -> None:
        t = self.t
        self.excused = excuses(t.bench, self.b, t.truth, t.truth_name, t.f, t.pass_)
        self.b = self.excused.widened(self.b)

    def _kinked(self) -> bool:
        """Widen the budget to what roundings of the size that it allows do all at once, where that is more than in proportion:
        at a kink, or where a number that cancels divides. Whether it did."""
        t = self.t
        if t.tol.ulp is not None or self.b.certain is not None:
            return False
        moved = t.bench.oracle.amplified(t.truth_name, *roundings(t.bench, t.f, t.pass_), t.tol.scale)
        if moved is None or moved.shape != t.truth.shape:
            return False
        more = np.maximum(0.0, paired(moved, t.truth) - self.b.total)
        self.b = self.b.wider(KINK, more)
        return bool(more.any())

    def _by_better_peer(self, m: Measure) -> Measure:
        """Only the error of the reference excuses the device. It does where the op has it, not where kernels of the CPU add up
        in the half type: there what rounds once takes its place."""
        t = self.t
        if (m.reference_share or 0.0) <= 1.0 or not self.one_kernel or same_bits(t.device, t.reference):
            return m
        healthy = t.bench.oracle.rounded_once(t.truth_name)
        if healthy is None or healthy.shape != t.truth.shape or healthy.dtype != t.device.dtype:
            return m
        if _outside(self._held(healthy, None)):
            return m
        self.peer = healthy
        return self._held(t.device, healthy)

    def _residue(self, m: Measure, own: float | None) -> Measure | None:
        """The measure of a gradient whose truth is what float64 leaves of numbers that cancel, where it agrees then; both sides
        are off by more than the truth is."""
        t = self.t
        if t.pass_ != "backward" or min(m.share or 0.0, (own or 0.0) / WIDENING_LIMIT) <= 1.0:
            return None
        b = residue(t.bench.oracle, self.b, t.truth, t.f, *roundoff(t.bench.row, t.f, t.pass_))
        rest = None if b is None else self._in(b, t.device, self.peer, None)
        return None if rest is None or _outside(rest) else rest

    def _lean(self, m: Measure) -> Verdict | None:
        """A finding where results lean to one side."""
        t = self.t
        if not t.leans or (t.reference is not None and same_values(t.device, t.reference)):
            return None  # what the CPU loses too is no difference
        lean = lean_of(t.device, t.truth, self.b.inside, lambda: t.bench.oracle.rounded_once(t.truth_name))
        if lean <= 1.0:
            return None
        text = f"results lean to one side, {lean:.3g} times as much as chance explains: precision is lost in what they share"
        return Verdict(Status.DRIFT, text, replace(m, share=lean, problem="lean"), t.tol)

    def _shared(self, m: Measure) -> Verdict | None:
        """A finding where all elements are off together."""
        t = self.t
        if t.reference is not None and same_values(t.device, t.reference):
            return None
        here = self._together(t.device)
        if here is not None and here.ratio > 1.0 and self.excused is None:  # rather than asked of each result
            self._excuse()
            here = self._together(t.device)
        if here is None or here.ratio <= 1.0:
            return None
        own = None if self.peer is None else self._together(self.peer)
        ratio = here.ratio / allowed_share(None if own is None else own.ratio)
        if ratio <= 1.0:
            return None
        status = Status.DRIFT if ratio <= DRIFT_LIMIT.get(t.f.name, 4096.0) else Status.WRONG
        return Verdict(status, here.told(ratio), replace(m, share=ratio, problem="shared"), t.tol)

    def _together(self, x: Tensor) -> SharedError | None:
        return _shared_error(self.t, self.b, x, self.excused, True, self.peer, self.others)

    def _note_limits(self, own: float | None) -> None:
        """What this agreement excludes, where somebody asked."""
        t, b, e = self.t, self.b, self.excused
        if t.bench.limits is None or e is None:
            return
        truth = parts(t.truth)
        odd = ~np.isfinite(truth)
        told_above = b.total * allowed_share(own)
        if (own or 0.0) > WIDENING_LIMIT and t.reference is not None:
            told_above = np.maximum(b.total, np.abs(parts(t.reference) - truth) + b.total)
        excused = e.unspoken | (e.free & odd)
        shared = self._together(t.device)
        factor = np.inf if shared is None else shared.factor_limit
        loose = ~excused & ~odd & (b.total > 0.5 * np.abs(truth)) & ((truth != 0.0) | (parts(t.device) != 0.0))
        told_above = np.where(excused, np.inf, np.where(odd, 0.0, told_above))
        t.bench.limits[t.name] = Limits(np.abs(truth), told_above, excused, excused & e.shown, loose, factor)


def _flushed(t: Task) -> tuple[Tensor, ...]:
    """A second truth, where the device may flush subnormal operands."""
    row, tables = t.bench.row, t.bench.tables
    other = t.bench.oracle.flushed(t.truth_name, lambda dtype: tables.flushes(dtype, row.name, row.rule), t.f.name)
    return () if other is None or other.shape != t.truth.shape else (other,)


def _shared_error(
    t: Task,
    b: Budget,
    x: Tensor,
    e: Excuses | None,
    full: bool,
    peer: Tensor | None = None,
    others: Sequence[Tensor] = (),
) -> SharedError | None:
    """What all elements of a result are off by together; None for rules that ask otherwise, or with too few elements. full:
    in units of what the samples of the sensitivity come to, not of the least that this can be. peer: what excuses the elements
    that it misses itself; they were held to it one by one. others: further truths, which elements may follow."""
    if t.tol.ulp is not None or b.scale is not None:
        return None
    truth, (u, between) = parts(t.truth), roundings(t.bench, t.f, t.pass_)
    changes = t.bench.oracle.changes(t.truth_name, u, between) if full else None
    if full and changes is None:
        return None  # nothing tells what roundings come to
    counted = np.abs(np.nan_to_num(truth, nan=np.inf)) <= t.f.max
    if e is not None:
        counted &= ~(e.unspoken | e.free)
    if t.halves:  # below the normal numbers each step may lose a good part of a number: no rounding by a factor
        counted &= np.abs(truth) >= t.f.tiny
    if peer is not None and peer.shape == t.truth.shape:
        with np.errstate(invalid="ignore"):
            counted &= np.abs(parts(peer) - truth) <= b.total
    actual = parts(x)
    with np.errstate(invalid="ignore"):
        for other in map(parts, others):
            actual = np.where(np.abs(actual - other) < np.abs(actual - truth), truth + (actual - other), actual)
    moved = None if e is None else e.moved
    return shared_error(actual, truth, b, counted, changes, t.f, u, t.halves, moved)


# --------------------------------------------------------------------------------------------------------- by reference


def _by_reference(t: Task) -> Verdict:
    """No truth (the op does not run in float64, or means something else there): the reference stands in for it."""
    while (verdict := _look_at_reference(t)) is None:
        pass
    return verdict


def _look_at_reference(t: Task) -> Verdict | None:
    bench, f, tol = t.bench, t.f, t.tol
    b = t.budget(None)
    if tol.ulp is None:  # nothing tells how the terms add up; what the op does in float64 still tells its conditioning
        size, moved = modulus(t.truth), None
        if (meant := bench.oracle.truth(t.truth_name)) is not None and meant.shape == t.truth.shape:
            moved = paired(bench.oracle.sensitivity(t.truth_name, f.unit_roundoff, f.unit_roundoff), t.truth)
        wider = replace(tol, scale=max(tol.scale, WITHOUT_TRUTH))
        b = of_perturbation(size, np.zeros_like(size) if moved is None else moved, f, f.unit_roundoff, wider, f.smallest)
    sums = t.pass_ == "backward" or f.kind == "complex" or bench.row.rule not in (OpClass.EXACT, *_ALONE)
    m = measure(t.name, t.device, None, t.truth, b, sums=sums)
    excused = None
    if _outside(m) or bench.limits is not None:
        if _outside(m) and tol.ulp is None and bench.oracle.look_closer(PERTURBATIONS):
            return None
        excused = excuses(bench, b, t.truth, t.truth_name, f, t.pass_)
        b = excused.widened(b)
        m = measure(t.name, t.device, None, t.truth, b, sums=sums, free=excused.free, unspoken=excused.unspoken)
    found = replace(decide(m, tol, f.name), reason=ALONE)
    if found.status is Status.AGREE and bench.limits is not None and excused is not None:
        truth = parts(t.truth)
        away = excused.unspoken | (excused.free & ~np.isfinite(truth))
        loose = ~away & (b.total > 0.5 * np.abs(truth)) & ((truth != 0.0) | (parts(t.device) != 0.0))
        told = np.where(away, np.inf, np.where(np.isfinite(truth), b.total, 0.0))
        bench.limits[t.name] = Limits(np.abs(truth), told, away, away & excused.shown, loose, np.inf)
    return agreed(found, excused)


# --------------------------------------------------------------------------------------------------------------- decide


def _outside(m: Measure) -> bool:
    """Whether some element is outside its budget, or of another class than its truth."""
    return m.problem == "class" or (m.share or 0.0) > 1.0


def agreed(verdict: Verdict, excused: Excuses | None) -> Verdict:
    """An agreement, with what it leaves unjudged and why; void where that is all."""
    m = verdict.measure
    if verdict.status is not Status.AGREE or m is None or excused is None or not m.unjudged:
        return verdict
    m = replace(m, why=excused.why)
    if m.unjudged == m.total:
        return replace(verdict, status=Status.VOID, reason=left_unjudged(m), measure=m)
    return replace(verdict, reason="; ".join(filter(None, (left_unjudged(m), verdict.reason))), measure=m)


def decide(m: Measure, tol: Tolerance, dtype: str) -> Verdict:
    """What a measure means."""
    share = m.share or 0.0
    allowed = allowed_share(m.reference_share) if m.problem != "alone" else 1.0
    if share <= allowed:
        words = []
        if share > 1.0:
            words.append(f"inside the budget only as widened {allowed:.2g} times by the reference's own error")
        if m.reference_share is not None and m.reference_share > max(1.0, 2.0 * share):
            words.append("the CPU is the worse side here")
        return Verdict(Status.AGREE, "; ".join(words), m, tol)
    if m.problem == "alone":
        text = f"{share:.3g} times what the errors of all other elements explain: it errs alone"
        return Verdict(Status.WRONG if m.certain else Status.DRIFT, text, m, tol)
    if m.problem == "class":
        return Verdict(Status.WRONG, f"{m.device} where the truth is {m.truth}", m, tol)
    if m.spread is not None and m.spread == share and not m.certain:
        text = f"{share:.3g} times the budget of the root mean square error: precision is lost everywhere"
        return Verdict(Status.DRIFT, text, m, tol)
    if tol.rule == OpClass.CONTRACTION:
        if not m.certain:
            return Verdict(Status.DRIFT, f"{share:.3g} times the budget", m, tol)
        return Verdict(Status.WRONG, f"{share:.3g} times the budget: more than any order of adding explains", m, tol)
    if share <= DRIFT_LIMIT.get(dtype, 4096.0) * allowed:
        return Verdict(Status.DRIFT, f"{share:.3g} times the budget", m, tol)
    return Verdict(Status.WRONG, f"{share:.3g} times the budget: more than a coarser rounding explains", m, tol)
