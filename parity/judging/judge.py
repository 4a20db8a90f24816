"""Measures, tolerance -> verdict: agree, drift, wrong or malformed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from parity.catalog.row import Row
from parity.dtypes import FACTS, HALF, DtypeFacts
from parity.inputs import apply
from parity.judging.budget import Budget, of_function, of_perturbation, of_sum
from parity.judging.destination import EXACT, Part, equal, form, inner, stray, written
from parity.judging.leaning import in_range, lean_of, may_lean, strides_past
from parity.judging.measures import (
    allowed_share,
    bit_equal,
    exact_measure,
    facts_of,
    is_truth,
    measure,
    parts,
    same_bytes,
    same_values,
)
from parity.judging.promises import (
    HANDED_ON,
    LEAKAGE,
    leakage,
    lost_between,
    modulus,
    odd_zero,
    on_the_branch_of,
    one_kernel,
    one_sided,
    paired,
    promised,
    roundoff,
    scans,
    terms_of_gauss,
    transforms,
    vanishing,
)
from parity.judging.relations import RELATIONS, Bound, Coarse
from parity.swift import swift
from parity.tolerance import Tables
from parity.truth.oracle import Oracle
from parity.vocabulary import Measure, OpClass, Status, Tolerance, Verdict

# Arithmetic in the next coarser format explains an error of up to this many budgets: bfloat16's roundoff in a float32 op
# (2**-8 / 2**-24, over the scale of 16), six lost bits in a half type. Beyond it no rounding explains the error.
DRIFT_LIMIT = {"float32": 4096.0, "complex64": 4096.0, "float16": 64.0, "bfloat16": 64.0}
UNFAMILIAR_ULP = 4.0
CLOSE = 4.0  # sensitivities are samples: what is outside by no more is asked for again with more of them
FLUSHED = 4.0  # a few partial results may be flushed on the way
WITHOUT_TRUTH = 16.0  # scale where the reference stands in for the truth: the errors of both sides add up
_ALONE = (OpClass.ELEMENTWISE, OpClass.SELECTION)  # no element of their results is a sum


@swift
@dataclass(frozen=True, slots=True)
class Bench:
    """What the judge knows of a case beside the results. insist: no cheap screens, everything goes to the oracle.
    told: by the truth's name and the pass, what the oracle said of which tensors: most destinations hold the same bits."""

    row: Row
    tables: Tables
    oracle: Oracle
    bound: Bound | None
    insist: bool
    told: dict[tuple[str, str], tuple[Tensor, Tensor | None, Verdict]] = field(default_factory=dict, init=False)


def judge(
    bench: Bench,
    device: Mapping[str, Tensor],
    reference: Mapping[str, Tensor] | None,
    pass_: str,
    parts: Mapping[str, Part] | None = None,
) -> tuple[Verdict, tuple[Measure, ...]]:
    """The verdict over all tensors of one aspect, and a measure of each. The worst tensor gives the verdict.

    reference: None where the reference refused the dtype; the truth alone judges then.
    """
    if not bench.insist and reference is not None and (sizes := _identical(device, reference)):
        return agreed(sizes)
    verdicts: list[Verdict] = []
    names = list(device)
    if reference is not None and set(names) != set(reference):
        odd = sorted(set(names) ^ set(reference))
        where = "is missing on the device" if odd[0] in reference else "exists on the device only"
        return Verdict(Status.MALFORMED, f"{odd[0]} {where}", Measure(odd[0], problem="missing")), ()
    covered = frozenset[str]()
    relation = RELATIONS.get(bench.row.relation) if pass_ == "forward" else None
    if relation is not None and bench.bound is not None:
        malformed = [v for n in names if (v := form(n, device[n], None if reference is None else reference[n])) is not None]
        if malformed:
            return malformed[0], ()
        results = written(device, parts)
        covered = relation.covers(bench.bound, results)
        broken = relation.problems(bench.bound, written(reference, parts)) if reference is not None else []
        if reference is not None and broken:
            if all(same_values(device[n], reference[n]) for n in names):
                return Verdict(Status.AGREE, "equals the reference, which is wrong itself", Measure(names[0])), ()
            return Verdict(Status.VOID, f"the reference is wrong itself: {broken[0][1]}", Measure(broken[0][0])), ()
        owed = not vanishing(bench.row, bench.tables, bench.bound.args)
        for name, problem in relation.problems(bench.bound, results) if owed else ():
            share = problem.share if isinstance(problem, Coarse) else None
            status = Status.WRONG if share is None else Status.DRIFT
            verdicts.append(Verdict(status, str(problem), Measure(name, share, problem="relation"), EXACT))
    for name in names:
        ref = None if reference is None else reference[name]
        if parts and name in parts and inner(name) in covered:
            bad = form(name, device[name], parts[name].before) or stray(name, device[name], parts[name])
            if bad is not None:
                verdicts.append(bad)
                continue
        if inner(name) in covered:
            told = Measure(name, screen="relation", total=device[name].numel())
            verdicts.append(Verdict(Status.AGREE, "by relation", told, EXACT))
        elif parts and name in parts:
            verdicts.append(_part(bench, name, device[name], ref, parts[name], pass_))
        else:
            verdicts.append(_tensor(bench, name, device[name], ref, name, pass_))
    if not verdicts:
        return Verdict(Status.VOID, "the op returned no tensor"), ()
    measures = tuple(v.measure for v in verdicts if v.measure is not None)
    return max(verdicts, key=_badness), measures


def _identical(device: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> tuple[tuple[str, int], ...]:
    """(name, number of elements) of all results, if both sides gave the same bits under the same names; else nothing."""
    if len(device) != len(reference):
        return ()
    sizes = []
    for name, x in device.items():
        r = reference.get(name)
        if r is None or x.dtype is not r.dtype or x.shape != r.shape or x.layout is not torch.strided:
            return ()
        odd = not same_bytes(x, r) and (x.is_quantized or (x.element_size() > 8 and not x.is_complex()) or not bit_equal(x, r))
        if odd:
            return ()
        sizes.append((name, x.numel()))
    return tuple(sizes)


@functools.lru_cache(maxsize=4096)
def agreed(sizes: tuple[tuple[str, int], ...]) -> tuple[Verdict, tuple[Measure, ...]]:
    """What is said of identical results: made once for each set of names and sizes, because most results are."""
    measures = tuple(Measure(name, screen="bit-equal", total=total) for name, total in sizes)
    return Verdict(Status.AGREE, "", measures[0], EXACT), measures


def _badness(v: Verdict) -> tuple[int, float]:
    order = (Status.VOID, Status.AGREE, Status.DRIFT, Status.WRONG, Status.MALFORMED)
    share = v.measure.share if v.measure is not None and v.measure.share is not None else -1.0
    return order.index(v.status), share


def _part(bench: Bench, name: str, device: Tensor, reference: Tensor | None, part: Part, pass_: str) -> Verdict:
    """A whole destination: nothing beside the view may change, and the view holds the result."""
    if (bad := form(name, device, part.before)) is not None:
        return bad
    if not bench.insist and reference is not None and reference.shape == device.shape and bit_equal(device, reference):
        return Verdict(Status.AGREE, "", Measure(name, screen="bit-equal", total=device.numel()), EXACT)
    if reference is not None and stray(name, reference, part) is not None:
        if same_values(device, reference):
            same = Measure(name, screen="bit-equal")
            return Verdict(Status.AGREE, "the reference writes beside its destination too", same, EXACT)
        reference = None  # a reference that misses its destination is none; the truth judges alone
    if (beside := stray(name, device, part)) is not None:
        return beside
    if bench.row.rule in (OpClass.RANDOM, OpClass.METADATA):
        return Verdict(Status.AGREE, "only the form is promised", Measure(name, screen="form", total=device.numel()), EXACT)
    mine = apply(device, part.layout, part.shape)
    theirs = None if reference is None else apply(reference, part.layout, part.shape)
    verdict = _tensor(bench, name, mine, theirs, inner(name), pass_)
    if verdict.status is not Status.AGREE and bool(equal(mine, apply(part.before, part.layout, part.shape)).all()):
        return replace(verdict, status=Status.WRONG, reason="nothing was written")
    return verdict


def _tensor(bench: Bench, name: str, device: Tensor, reference: Tensor | None, truth_name: str, pass_: str) -> Verdict:
    """One tensor by value."""
    if (bad := form(name, device, reference)) is not None:
        return bad
    if device.layout is not torch.strided or device.is_quantized:
        return Verdict(Status.VOID, f"parity does not judge {str(device.layout).removeprefix('torch.')} results", Measure(name))
    if str(device.dtype).removeprefix("torch.") not in FACTS:
        return _unfamiliar(bench, name, device, reference)
    row, f = bench.row, facts_of(device)
    exact = not f.is_inexact or (row.rule is OpClass.EXACT and pass_ == "forward")
    if exact and reference is not None:
        found = _exact(bench, name, device, reference)
        right = found.status.is_finding and f.is_inexact and row.oracle != "exact"
        return _where_the_reference_errs(bench, name, device, reference, truth_name) or found if right else found
    if not bench.insist and reference is not None and bit_equal(device, reference):
        return Verdict(Status.AGREE, "", Measure(name, screen="bit-equal", total=device.numel()), EXACT)
    known = bench.told.get((truth_name, pass_))
    if known is not None and _same_bits(device, known[0]) and _same_bits(reference, known[1]):
        verdict = known[2]
        return verdict if verdict.measure is None else replace(verdict, measure=replace(verdict.measure, tensor=name))
    verdict = _by_oracle(bench, name, device, reference, truth_name, pass_, exact)
    bench.told[truth_name, pass_] = device, reference, verdict
    return verdict


def _same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.dtype is b.dtype and a.shape == b.shape and bit_equal(a, b))


def _by_oracle(
    bench: Bench, name: str, device: Tensor, reference: Tensor | None, truth_name: str, pass_: str, exact: bool
) -> Verdict:
    """One tensor by its truth, or by the reference where it has none."""
    row = bench.row
    if row.oracle == "exact" and reference is not None:
        return _against_reference(
            bench, name, device, reference, truth_name, pass_
        )  # its gradients too mean something else in float64
    truth = bench.oracle.truth(truth_name)
    if truth is None and reference is None:
        return Verdict(Status.VOID, "neither the reference nor the oracle could run it")
    whole = not (truth is None or exact or truth.is_floating_point() or truth.is_complex())  # converted before it is summed
    if truth is None or truth.shape != device.shape or truth.is_complex() != device.is_complex() or whole:
        return _against_reference(bench, name, device, device if reference is None else reference, truth_name, pass_)
    if exact:
        return _exact(bench, name, device, truth.to(device.dtype))
    verdict = _numeric(bench, name, device, reference, truth, truth_name, pass_)
    if verdict.status is Status.AGREE and reference is not None and pass_ == "forward":
        return _of_zeros(bench, name, device, reference, truth) or verdict
    return verdict


def _numeric(
    bench: Bench, name: str, device: Tensor, reference: Tensor | None, truth: Tensor, truth_name: str, pass_: str
) -> Verdict:
    """One tensor of rounded numbers against its truth, cheaply first."""
    row, f = bench.row, facts_of(device)
    tol = bench.tables.find(row.name, row.rule, f.name, pass_, row.ulp)
    flushes = bench.tables.flushes(f.name, row.name, row.rule)
    if f.kind == "complex" and pass_ == "forward" and bench.tables.special(row.name, row.rule, "branch") == "any":
        device = on_the_branch_of(truth, device)
        reference = None if reference is None else on_the_branch_of(truth, reference)
    sums = pass_ == "backward" or f.kind == "complex" or row.rule not in _ALONE
    if is_truth(device, truth) and (reference is None or is_truth(reference, truth)):
        # No error is a share of 0 of any budget: it needs not to be known.
        total = truth.numel() * (2 if truth.is_complex() else 1)
        at_truth = Measure(name, 0.0, None if reference is None else 0.0, True, max_abs=0.0, max_ulp=0.0, total=total)
        return Verdict(Status.AGREE, "", at_truth, tol)
    leans = f.name in HALF and tol.ulp is None and may_lean(row, pass_)
    if not bench.insist:
        least = measure(name, device, None, truth, _budget(bench, truth, None, f, pass_, tol, flushes), sums=sums)
        near = least.problem != "class" and (least.share or 0.0) <= 1.0 and (least.spread or 0.0) <= 1.0
        if near and not (leans and strides_past(device, truth)):
            passed = replace(least, measured=tol.ulp is not None, screen="" if tol.ulp is not None else "truth", budget=())
            return Verdict(Status.AGREE, "", passed, tol)
    b = _budget(bench, truth, truth_name, f, pass_, tol, flushes)
    other = bench.oracle.flushed(truth_name, f.tiny) if flushes else None
    others = () if other is None or other.shape != truth.shape else (other,)
    if others:  # some subnormals may be flushed and others not
        with np.errstate(invalid="ignore"):
            b = b.wider("subnormal operands flushed", np.abs(parts(truth) - parts(others[0])))
    single = leans and tol.rule == OpClass.CONTRACTION and one_kernel(row, f, pass_, b) and in_range(truth)
    held = functools.partial(measure, truth=truth, b=b, others=others, sums=sums, single=single)
    m = held(name, device, reference)
    sampled, share = b.scale is None and tol.ulp is None, m.share or 0.0
    if sampled and share > 1.0 and (share < CLOSE or m.problem == "alone") and bench.oracle.look_closer():
        return _numeric(bench, name, device, reference, truth, truth_name, pass_)
    # Only the error of the reference excuses the device. It does where the op has it, not where kernels of the CPU add up in
    # the half type: there what rounds once takes its place.
    peer, own = reference, m.reference_share
    if (own or 0.0) > 1.0 and one_kernel(row, f, pass_, b) and not _same_bits(device, reference):
        healthy = bench.oracle.rounded_once(truth_name)
        if healthy is not None and healthy.shape == truth.shape and healthy.dtype == device.dtype:
            best = held(name, healthy, None)
            if best.problem != "class" and (best.share or 0.0) <= 1.0:
                peer, m = healthy, held(name, device, healthy)
    if m.problem == "class" or (m.share or 0.0) > 1.0:
        free, unspoken, why = promised(bench.row, bench.tables, bench.oracle, b, truth, truth_name, f, pass_)
        if why:
            m = held(name, device, peer, free=free, unspoken=unspoken)
            if m.problem != "class" and (m.share or 0.0) <= 1.0:
                return Verdict(Status.AGREE, why, m, tol)
    if reference is not None and (m.share or 0.0) > 1.0 and same_values(device, reference):
        return Verdict(Status.AGREE, f"equals the reference, which is {m.share:.3g} budgets from the truth itself", m, tol)
    verdict = _verdict(m, tol, f.name)
    m = replace(m, reference_share=own)
    if verdict.status is not Status.AGREE:
        return replace(verdict, measure=m)
    lean = lean_of(device, truth, b.inside, lambda: bench.oracle.rounded_once(truth_name)) if leans else 0.0
    if lean > 1.0:
        text = f"results lean to one side, {lean:.3g} times as much as chance explains: precision is lost in what they share"
        return Verdict(Status.DRIFT, text, replace(m, share=lean, problem="lean"), tol)
    return _verdict(m, tol, f.name)


def _budget(bench: Bench, truth: Tensor, name: str | None, f: DtypeFacts, pass_: str, tol: Tolerance, flushes: bool) -> Budget:
    """The budget of every element. name: of the truth; None asks for the least that the full one can be, which needs no
    further run of the op: a screen that it passes is never looser than the rule."""
    floor = FLUSHED * f.tiny if flushes else f.smallest
    size = modulus(truth)
    if tol.ulp is not None:
        return of_function(size, f, tol, floor)
    u, between = roundoff(bench.row, f, pass_)
    between = max(between, bench.oracle.coarsest() / HANDED_ON)  # of mixed dtypes, what is handed on may be the coarser
    if tol.rule == OpClass.CONTRACTION:
        found = None if name is None else bench.oracle.magnitudes(name)
        if name is None or (found is not None and found[0].shape == truth.shape):
            s, n = (size, np.ones_like(size)) if found is None else (paired(t, truth) for t in found)
            s = s * terms_of_gauss(bench.row, f)
            handed = np.zeros_like(size)
            if bench.row.rounds_between and u != f.unit_roundoff and name is not None:
                bias = bench.oracle.bias()
                result = np.nan_to_num(np.abs(size), nan=0.0, posinf=0.0)
                handed = f.unit_roundoff * (2.0 * s if bias is None else result + 2.0 * bias)
                if bias == 0.0 or pass_ == "backward":
                    handed = np.zeros_like(size)
            kept = (1.0 if pass_ in bench.row.stages else 0.0) + (2.0 if bench.oracle.fed else 0.0)  # gradients are added up
            if u != f.unit_roundoff and kept:
                handed = handed + kept * f.unit_roundoff * np.nan_to_num(s, nan=0.0, posinf=0.0)
            coarse = bench.oracle.coarsest()
            if coarse > f.unit_roundoff and (pass_ == "backward" or bench.oracle.fed):  # through a coarser operand's gradient
                handed = handed + 2.0 * coarse * np.nan_to_num(s, nan=0.0, posinf=0.0)
            handed = handed + lost_between(bench.row, f, bench.oracle, name or "", flushes, size)
            if scans(bench.row) and bench.oracle.repeats():
                handed = handed + one_sided(s, n, u)
            sum_ = of_sum(size, s, n, f, u, handed, tol, floor * np.maximum(1.0, n / FLUSHED) if flushes else floor)
            return replace(sum_, rms=np.inf) if scans(bench.row) else sum_
    moved = np.zeros_like(size) if name is None else paired(bench.oracle.sensitivity(name, u, between), truth)
    if bench.row.rule is not OpClass.ELEMENTWISE or pass_ == "backward" or not bench.oracle.of_one():
        b = of_perturbation(size, moved, f, u, tol, floor)
        return b if name is None or not transforms(bench.row) else b.wider(LEAKAGE, leakage(size, u))
    # No element borrows from its neighbours. What float32 cannot invert (1 / exp(100)) may vanish, below its normal numbers.
    return of_perturbation(size, moved, f, u, tol, max(floor, FACTS["float32"].tiny), 0.0)


def _of_zeros(bench: Bench, name: str, device: Tensor, reference: Tensor, truth: Tensor) -> Verdict | None:
    """Zeros of the other sign, where the tables ask for the sign."""
    if bench.tables.special(bench.row.name, bench.row.rule, "signed_zero") == "any":
        return None
    m = odd_zero(name, device, reference, truth)
    if m is None:
        return None
    return Verdict(Status.WRONG, f"a zero of the other sign: {m.device} where the truth is {m.truth}", m, EXACT)


def _unfamiliar(bench: Bench, name: str, device: Tensor, reference: Tensor | None) -> Verdict:
    """A dtype that parity has no facts about (float8, complex32): equal to the reference or not, but for a few roundings."""
    if reference is None:
        return Verdict(Status.VOID, f"no reference, and parity has no facts about {device.dtype}", Measure(name))
    wide = torch.complex64 if device.is_complex() else torch.float32
    if not (device.is_floating_point() or device.is_complex()):
        return Verdict(Status.VOID, f"parity has no facts about {device.dtype}", Measure(name))
    mine, theirs = device.to(wide), reference.to(wide)
    if bench.row.rule is not OpClass.EXACT:  # it may round, and no truth tells how far
        near = (mine - theirs).abs() <= UNFAMILIAR_ULP * torch.finfo(device.dtype).eps * theirs.abs()
        mine = torch.where(near, theirs, mine)
    return _exact(bench, name, mine, theirs)


def _exact(bench: Bench, name: str, device: Tensor, expected: Tensor) -> Verdict:
    if same_values(device, expected):
        if device.is_floating_point() and not bit_equal(device, expected):
            odd = _of_zeros(bench, name, device, expected, expected)
            if odd is not None:
                return odd
        same = Measure(name, 0.0, 0.0, True, screen="exact", max_abs=0.0, total=device.numel())
        return Verdict(Status.AGREE, "", same, EXACT)
    m = exact_measure(name, device, expected)
    what = "an exact result differs" if m.mismatched == 1 else f"{m.mismatched} of {m.total} exact results differ"
    return Verdict(Status.WRONG, what, m, EXACT)


def _where_the_reference_errs(bench: Bench, name: str, device: Tensor, reference: Tensor, truth_name: str) -> Verdict | None:
    """Exact results that differ from the reference's only where they are the truth: kernels of the CPU compute some of these
    (fmod with a tiny divisor) and err themselves. None where a result is neither."""
    truth = bench.oracle.truth(truth_name)
    if truth is None or truth.shape != device.shape or truth.is_complex() != device.is_complex():
        return None
    meant = truth.to(device.dtype)
    found = _exact(bench, name, device, torch.where(equal(device, meant), meant, reference))
    errs = int((~equal(reference, meant)).sum())
    return replace(found, reason=f"the CPU is the worse side here: wrong in {errs}") if found.status is Status.AGREE else None


def _against_reference(bench: Bench, name: str, device: Tensor, reference: Tensor, truth_name: str, pass_: str) -> Verdict:
    """No truth (the op does not run in float64, or means something else there): the reference stands in for it."""
    f = facts_of(device)
    tol = bench.tables.find(bench.row.name, bench.row.rule, f.name, pass_, bench.row.ulp)
    wide = reference.to(torch.complex128 if reference.is_complex() else torch.float64)
    flushes = bench.tables.flushes(f.name, bench.row.name, bench.row.rule)
    b = _budget(bench, wide, None, f, pass_, tol, flushes)
    if tol.ulp is None:  # nothing tells how the terms add up; what the op does in float64 still tells its conditioning
        size, moved = modulus(wide), None
        if (meant := bench.oracle.truth(truth_name)) is not None and meant.shape == wide.shape:
            moved = paired(bench.oracle.sensitivity(truth_name, f.unit_roundoff, f.unit_roundoff), wide)
        wider = replace(tol, scale=max(tol.scale, WITHOUT_TRUTH))
        b = of_perturbation(size, np.zeros_like(size) if moved is None else moved, f, f.unit_roundoff, wider, f.smallest)
    sums = pass_ == "backward" or f.kind == "complex" or bench.row.rule not in (OpClass.EXACT, *_ALONE)
    m = measure(name, device, None, wide, b, sums=sums)
    if m.problem == "class" or (m.share or 0.0) > 1.0:
        free, unspoken, why = promised(bench.row, bench.tables, bench.oracle, b, wide, truth_name, f, pass_)
        if why:
            m = measure(name, device, None, wide, b, sums=sums, free=free, unspoken=unspoken)
            if m.problem != "class" and (m.share or 0.0) <= 1.0:
                return Verdict(Status.AGREE, why, m, tol)
    return replace(_verdict(m, tol, f.name), reason="judged against the reference, without a truth in float64")


def _verdict(m: Measure, tol: Tolerance, dtype: str) -> Verdict:
    share = m.share or 0.0
    allowed = allowed_share(m.reference_share) if m.problem != "alone" else 1.0
    if m.problem == "alone" and share > 1.0:
        text = f"{share:.3g} times what the errors of all other elements explain: it errs alone"
        return Verdict(Status.WRONG if m.certain else Status.DRIFT, text, m, tol)
    if m.problem == "class" and share > allowed:
        return Verdict(Status.WRONG, f"{m.device} where the truth is {m.truth}", m, tol)
    if share <= allowed:
        words = []
        if share > 1.0:
            words.append(f"inside the budget only as widened {allowed:.2g} times by the reference's own error")
        if m.reference_share is not None and m.reference_share > max(1.0, 2.0 * share):
            words.append("the CPU is the worse side here")
        return Verdict(Status.AGREE, "; ".join(words), m, tol)
    if m.spread is not None and m.spread == share and not m.certain:
        return Verdict(
            Status.DRIFT, f"{share:.3g} times the budget of the root mean square error: precision is lost everywhere", m, tol
        )
    if tol.rule == OpClass.CONTRACTION:
        if not m.certain:
            return Verdict(Status.DRIFT, f"{share:.3g} times the budget", m, tol)
        return Verdict(Status.WRONG, f"{share:.3g} times the budget: more than any order of adding explains", m, tol)
    if share <= DRIFT_LIMIT.get(dtype, 4096.0) * allowed:
        return Verdict(Status.DRIFT, f"{share:.3g} times the budget", m, tol)
    return Verdict(Status.WRONG, f"{share:.3g} times the budget: more than a coarser rounding explains", m, tol)
