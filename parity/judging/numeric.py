"""Results that are rounded: one tensor against its truth, or against the reference where it has none."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from parity.dtypes import HALF
from parity.judging.allowance import allowance
from parity.judging.bench import Bench
from parity.judging.budget import of_perturbation
from parity.judging.exact import exactly, of_zeros
from parity.judging.leaning import in_range, lean_of, may_lean, strides_past
from parity.judging.measures import WIDENING_LIMIT, allowed_share, facts_of, is_truth, measure, parts, same_bits, same_values
from parity.judging.promises import modulus, on_the_branch_of, one_kernel, paired, promised, residue, roundoff
from parity.truth.oracle import SAMPLES
from parity.truth.shaken import PERTURBATIONS
from parity.vocabulary import Measure, OpClass, Status, Tolerance, Verdict

# Arithmetic in the next coarser format explains an error of up to this many budgets: bfloat16's roundoff in a float32 op
# (2**-8 / 2**-24, over the scale of 16), six lost bits in a half type. Beyond it no rounding explains the error.
DRIFT_LIMIT = {"float32": 4096.0, "complex64": 4096.0, "float16": 64.0, "bfloat16": 64.0}
CLOSE = 4.0  # sensitivities are samples: what is outside by no more is asked for again with more of them
WITHOUT_TRUTH = 16.0  # scale where the reference stands in for the truth: the errors of both sides add up
_ALONE = (OpClass.ELEMENTWISE, OpClass.SELECTION)  # no element of their results is a sum


def by_oracle(
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
        return exactly(bench, name, device, truth.to(device.dtype))
    verdict = _numeric(bench, name, device, reference, truth, truth_name, pass_)
    if verdict.status is Status.AGREE and reference is not None and pass_ == "forward":
        return of_zeros(bench, name, device, reference, truth) or verdict
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
        least = measure(name, device, None, truth, allowance(bench, truth, None, f, pass_, tol, flushes), sums=sums)
        near = least.problem != "class" and (least.share or 0.0) <= 1.0 and (least.spread or 0.0) <= 1.0
        if near and not (leans and strides_past(device, truth)):
            passed = replace(least, measured=tol.ulp is not None, screen="" if tol.ulp is not None else "truth", budget=())
            return Verdict(Status.AGREE, "", passed, tol)
    b = allowance(bench, truth, truth_name, f, pass_, tol, flushes)
    other = bench.oracle.flushed(truth_name, lambda dtype: bench.tables.flushes(dtype, row.name, row.rule), f.name)
    others = () if other is None or other.shape != truth.shape else (other,)
    if others:  # some subnormals may be flushed and others not
        with np.errstate(invalid="ignore"):
            b = b.wider("subnormal operands flushed", np.abs(parts(truth) - parts(others[0])))
    single = leans and tol.rule == OpClass.CONTRACTION and one_kernel(row, f, pass_, b) and in_range(truth)
    held = functools.partial(measure, truth=truth, b=b, others=others, sums=sums, single=single)
    m = held(name, device, reference)
    sampled, share = b.scale is None and tol.ulp is None, m.share or 0.0
    if sampled and (share > 1.0 or m.problem == "class"):
        most = SAMPLES[-1] if 1.0 < share < CLOSE or m.problem == "alone" else PERTURBATIONS
        if bench.oracle.look_closer(most):
            return _numeric(bench, name, device, reference, truth, truth_name, pass_)
    # Only the error of the reference excuses the device. It does where the op has it, not where kernels of the CPU add up in
    # the half type: there what rounds once takes its place.
    peer, own = reference, m.reference_share
    if (own or 0.0) > 1.0 and one_kernel(row, f, pass_, b) and not same_bits(device, reference):
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
    both_off = pass_ == "backward" and min(m.share or 0.0, (own or 0.0) / WIDENING_LIMIT) > 1.0
    left = residue(bench.oracle, b, truth, f, *roundoff(bench.row, f, pass_)) if both_off else None
    if left is not None:
        rest = measure(name, device, peer, truth, left, others=others, sums=sums, single=single)
        if rest.problem != "class" and (rest.share or 0.0) <= 1.0:
            return Verdict(Status.AGREE, "the truth is what float64 leaves of numbers that cancel", rest, tol)
    if reference is not None and (m.share or 0.0) > 1.0 and same_values(device, reference):
        return Verdict(Status.AGREE, f"equals the reference, which is {m.share:.3g} budgets from the truth itself", m, tol)
    verdict = _verdict(m, tol, f.name)
    m = replace(m, reference_share=own)
    if verdict.status is not Status.AGREE:
        return replace(verdict, measure=m)
    leans = leans and (reference is None or not same_values(device, reference))  # what the CPU loses too is no difference
    lean = lean_of(device, truth, b.inside, lambda: bench.oracle.rounded_once(truth_name)) if leans else 0.0
    if lean > 1.0:
        if bench.oracle.look_closer(PERTURBATIONS):
            return _numeric(bench, name, device, reference, truth, truth_name, pass_)
        text = f"results lean to one side, {lean:.3g} times as much as chance explains: precision is lost in what they share"
        return Verdict(Status.DRIFT, text, replace(m, share=lean, problem="lean"), tol)
    return _verdict(m, tol, f.name)


def _against_reference(bench: Bench, name: str, device: Tensor, reference: Tensor, truth_name: str, pass_: str) -> Verdict:
    """No truth (the op does not run in float64, or means something else there): the reference stands in for it."""
    f = facts_of(device)
    tol = bench.tables.find(bench.row.name, bench.row.rule, f.name, pass_, bench.row.ulp)
    wide = reference.to(torch.complex128 if reference.is_complex() else torch.float64)
    flushes = bench.tables.flushes(f.name, bench.row.name, bench.row.rule)
    b = allowance(bench, wide, None, f, pass_, tol, flushes)
    if tol.ulp is None:  # nothing tells how the terms add up; what the op does in float64 still tells its conditioning
        size, moved = modulus(wide), None
        if (meant := bench.oracle.truth(truth_name)) is not None and meant.shape == wide.shape:
            moved = paired(bench.oracle.sensitivity(truth_name, f.unit_roundoff, f.unit_roundoff), wide)
        wider = replace(tol, scale=max(tol.scale, WITHOUT_TRUTH))
        b = of_perturbation(size, np.zeros_like(size) if moved is None else moved, f, f.unit_roundoff, wider, f.smallest)
    sums = pass_ == "backward" or f.kind == "complex" or bench.row.rule not in (OpClass.EXACT, *_ALONE)
    m = measure(name, device, None, wide, b, sums=sums)
    if m.problem == "class" or (m.share or 0.0) > 1.0:
        if tol.ulp is None and bench.oracle.look_closer(PERTURBATIONS):
            return _against_reference(bench, name, device, reference, truth_name, pass_)
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
