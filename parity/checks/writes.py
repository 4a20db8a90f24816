"""Calls that write: the out= form and the in-place form; whole destinations are compared."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from parity.checks import refusal
from parity.checks.trial import Sides, Trial, agrees, compare, outcome_of
from parity.core.dtypes import FACTS
from parity.core.results import Aspect, Computed, Measure, Raised, Status, Verdict
from parity.execution import execute as ex
from parity.execution.execute import Destination, Named
from parity.execution.inputs import Inputs, cut
from parity.judging.destination import EXACT, Part
from parity.judging.measures import at, facts_of
from parity.judging.rules import rule_of

# torch's messages if type promotion forbids casting a result to the operand into which it is written.
UNCAST = ("can't be cast to the desired output type", "operation's result requires dtype")


def parts_of_first(inputs: Inputs) -> dict[str, Part]:
    """The first operand as a destination."""
    o = inputs.operands[0]
    return {"base[out]": Part(o.base, o.spec.layout, o.spec.shape)}


def out(t: Trial, s: Sides) -> None:
    """Check the out= form with the case's destination."""
    targets = [ex.destination(x, t.case.into) for _, x in s.reference.tensors]
    t.mark("device")
    raw = ex.attempt(lambda: ex.write_out(t.program, t.case, t.inputs, s.there, targets, t.device), "run")
    outcome = outcome_of(t, raw)
    if isinstance(outcome, Computed) and _is_fixed(t) and t.case.into not in ("empty", *FACTS):
        expected = tuple([(f"base[{n}]", _written(d, x)) for (n, x), d in zip(s.reference.tensors, targets)])
        if agreed := agrees(t, Aspect.OUT, expected, outcome):
            t.results.append(agreed)
            return
    t.mark("reference")

    def write() -> Named:
        return ex.write_out(t.program, t.case, t.inputs, s.here, targets, t.cpu)

    def again() -> Named:
        return _as_computed(write(), s.reference)

    raw_ours = ex.precisely(write, "run")
    if isinstance(raw_ours, Raised):  # torch refuses this destination
        t.due.discard(Aspect.OUT)
        return
    t.mark("compare")
    ours, foreign = _as_computed(raw_ours, s.reference), None
    if isinstance(outcome, Computed):
        if rule_of(t.program.row).casts_destination(t.program.row) and _uncast(raw_ours, s.reference) is None:
            foreign = _uncast(outcome.tensors, s.reference)
        outcome = Computed(_as_computed(outcome.tensors, s.reference), outcome.notes)
    parts = {n: Part(x.base, x.layout, x.shape) for (n, _), x in zip(ours, targets) if n.startswith("base[")}
    result = compare(t, s.bench, Aspect.OUT, Computed(ours), outcome, again, parts)
    if foreign is not None and result.verdict.status is Status.AGREE:
        text = f"{foreign.tensor} holds numbers that are none of the dtype in which torch computes and from which it casts"
        result = replace(result, verdict=Verdict(Status.WRONG, text, foreign, EXACT))
    t.results.append(result)


def _is_fixed(t: Trial) -> bool:
    """Whether equal calls have equal results, so that a destination must hold the result of the reference's forward."""
    return not t.settings.always_use_oracle and rule_of(t.program.row).has_values


def _written(d: Destination, result: Tensor) -> Tensor:
    """The whole base of a destination after a result is written into it."""
    if not d.layout:
        return result.resolve_conj().resolve_neg()
    base = d.base.clone()
    cut(base, d.layout, d.shape).copy_(result)
    return base


def _uncast(written: Named, reference: Computed) -> Measure | None:
    """The first number in a destination of a wider dtype that the dtype of the forward's result cannot hold."""
    computed = dict(reference.tensors)
    for name, x in written:
        if name not in computed or (narrow := _narrowed(x, computed[name].dtype)) is x:
            continue
        cast = narrow.to(x.dtype)
        odd = (cast != x) & ~torch.isnan(x)
        if count := int(odd.sum()):
            index = tuple(int(i) for i in odd.nonzero()[0])
            return Measure(
                name, math.inf, measured=True, index=index, device=at(x, index), reference=at(cast, index),
                mismatched=count, total=x.numel(), problem="cast",
            )  # fmt: skip
    return None


def _as_computed(written: Named, reference: Computed) -> Named:
    """Results in a wider dtype than they are computed in, cast to the latter.

    If a kernel does not cast (`Rule.casts_destination`), the precision that it uses for a wider destination is unspecified.
    """
    computed = dict(reference.tensors)
    return tuple((n, _narrowed(x, computed[n].dtype) if n in computed else x) for n, x in written)


def _narrowed(x: Tensor, computed: torch.dtype) -> Tensor:
    if x.dtype == computed or str(computed).removeprefix("torch.") not in FACTS:
        return x
    wide, narrow = facts_of(x), FACTS[str(computed).removeprefix("torch.")]
    return x.to(computed) if wide.kind == narrow.kind == "float" and wide.bits > narrow.bits else x


def inplace(t: Trial, s: Sides) -> None:
    """Check the in-place form on a fresh copy of the first operand, if the result has its shape.

    If torch cannot cast the result to the operand's dtype (the sine of an integer), the device must refuse it, too.
    """
    first = t.inputs.operands[0]
    if len(s.reference.tensors) != 1 or first.view.shape != s.reference.tensors[0][1].shape:
        t.due.discard(Aspect.INPLACE)
        return
    t.mark("device")
    outcome = outcome_of(t, ex.attempt(lambda: ex.write_inplace(t.program, t.case, t.inputs, s.there, t.device), "run"))
    result = s.reference.tensors[0][1]
    if isinstance(outcome, Computed) and _is_fixed(t) and result.dtype == first.base.dtype:
        whole = _written(Destination(first.base, first.spec.layout, first.spec.shape), result)
        if agreed := agrees(t, Aspect.INPLACE, (("base[out]", whole),), outcome):
            t.results.append(agreed)
            return
    t.mark("reference")

    def again() -> Named:
        return ex.write_inplace(t.program, t.case, t.inputs, s.here, t.cpu)

    ours = ex.precisely(again, "run")
    if isinstance(ours, Raised) and not any(text in ours.message for text in UNCAST):
        t.due.discard(Aspect.INPLACE)
        return
    t.mark("compare")
    if isinstance(ours, Raised):
        t.results.append(refusal.judged(Aspect.INPLACE, ours, outcome, "cast"))
        return
    parts = parts_of_first(t.inputs)
    t.results.append(compare(t, s.bench, Aspect.INPLACE, Computed(ours), outcome, again, parts))
