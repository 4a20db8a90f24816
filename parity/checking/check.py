"""The sentence itself: a case is executed on the reference and on the device, compared, judged, and told as findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity import execute as ex
from parity.catalog.row import Row
from parity.checking import derivatives, operands, prelude, refusal, transfer, writes
from parity.checking.power import Asked
from parity.checking.trial import (
    EVERYTHING,
    RAISED,
    Mark,
    Result,
    Settings,
    Sides,
    Trial,
    compare,
    is_known,
    outcome_of,
    raised,
)
from parity.devices.base import Device
from parity.execute import Live, Named, Placed
from parity.inputs import build, realise, torch_word
from parity.judging import randomness
from parity.judging.bench import Bench
from parity.judging.relations import GAUGE_DEPENDENT, RELATIONS, Bound
from parity.reached import Reached
from parity.tolerance import Tables
from parity.truth.oracle import CaseOracle
from parity.vocabulary import Aspect, Case, Computed, Measure, OpClass, Outcome, Raised, Status, Verdict

__all__ = ["EVERYTHING", "RAISED", "Mark", "Result", "Settings", "check", "failing", "quiet"]


def check(
    row: Row,
    case: Case,
    device: Device,
    cpu: Device,
    tables: Tables,
    settings: Settings,
    mark: Mark,
    notes: list[str],
    reached: Reached | None = None,
    asked_of: list[Asked] | None = None,
) -> tuple[tuple[Result, ...], str]:
    """All aspects of one case: (results, digest of the inputs). `notes` is where the caller's `listening` puts fallbacks;
    `mark` is told each stage (reference, device, compare) before it begins; `reached` notes the operators that the device was
    asked for, save where calls that nobody judges come first;
    `asked_of` gets what became of errors that were put in. Raises CaseError where a case cannot be built.
    """
    inputs = build(case)
    trial = Trial(ex.program(row), case, inputs, device, tables, settings, cpu, mark, notes)
    asked = refusal.check if case.refused else _aspects
    if reached is None or case.after:
        with ex.MODES["grad"]():
            asked(trial)
    else:
        with ex.MODES["grad"](), reached.watching(device, trial.results):
            asked(trial)
    if asked_of is not None:
        asked_of += trial.power
    return tuple(trial.results), inputs.digest() if settings.insist else ""


def _aspects(t: Trial) -> None:
    """The forward on both sides, and every other aspect that is asked for."""
    row, wants = t.program.row, t.settings.wants
    grad = _wants_grad(t)
    t.mark("reference")
    here = ex.place(t.inputs, t.cpu)
    live = ex.precisely(lambda: ex.forward(t.program, t.case, t.inputs, here, grad), "run")
    if isinstance(live, Raised) and grad:
        live = ex.precisely(lambda: ex.forward(t.program, t.case, t.inputs, here, False), "run")
        grad = False
    reference: Outcome = live if isinstance(live, Raised) else Computed(tuple((n, x.detach()) for n, x in live.outputs))
    oracle = CaseOracle(t.program, t.case, t.inputs, _result_dtype(reference))
    if isinstance(reference, Raised) and oracle.truth("out") is None and oracle.truth("out[0]") is None:
        t.results.append(Result(Aspect.FORWARD, Verdict(Status.VOID, f"the reference refuses: {reference.message}")))
        return
    t.mark("device")
    there = ex.attempt(lambda: ex.place(t.inputs, t.device, t.case.under), "upload")
    if isinstance(there, Raised):
        t.results.append(raised(Aspect.FORWARD, reference, there))
        return
    if t.case.after:
        prelude.play(t, here, reference, grad)
    theirs = ex.attempt(lambda: ex.forward(t.program, t.case, t.inputs, there, grad), "run")
    outcome = outcome_of(t, theirs if isinstance(theirs, Raised) else theirs.outputs)
    t.mark("compare")
    bench = Bench(row, t.tables, oracle, _bound(t), t.settings.insist)
    if t.settings.insist and grad and t.case.under == "grad" and isinstance(live, Live) and wants(Aspect.BACKWARD):
        oracle.expect(derivatives.cotangents(t, live)[1])
    aspect = Aspect.INPLACE if row.mutates else Aspect.FORWARD
    parts = writes.parts_of_first(t.inputs) if row.mutates else None

    def again() -> Named:
        return ex.forward(t.program, t.case, t.inputs, here, grad).outputs

    if wants(aspect) or wants(Aspect.REPEAT) or isinstance(outcome, Raised):
        verdict = compare(t, bench, aspect, reference, outcome, "forward", again, parts)
        if isinstance(live, Live) and isinstance(theirs, Live) and verdict.verdict.status is Status.AGREE:
            verdict = _metadata(row, aspect, live, theirs, here, there, verdict)
        random = row.rule is OpClass.RANDOM and t.settings.law
        if random and verdict.verdict.status is Status.AGREE and bench.bound is not None:
            verdict = _by_law(t, bench.bound, verdict)
        t.results.append(verdict)
    if isinstance(live, Raised) or isinstance(theirs, Raised) or not isinstance(reference, Computed):
        return
    sides = Sides(bench, here, there, live, theirs, reference, outcome, grad)
    known = all(is_known(x) for _, x in reference.tensors)
    if grad and known and t.case.under == "grad" and _same_choice(bench, reference, outcome):
        derivatives.check(t, sides)
    elif known and t.case.under == "grad":
        derivatives.check_through_gauge(t, sides)
    if (t.settings.repeat or t.case.under == "deterministic") and row.relation not in ("random", "uninitialised"):
        writes.repeat(t, sides, again, parts)
    if not row.mutates:
        if t.program.out and known and wants(Aspect.OUT):
            writes.out(t, sides)
        if t.program.inplace is not None and wants(Aspect.INPLACE):
            writes.inplace(t, sides)
    if t.settings.operands or t.settings.insist or failing(t.results):
        operands.check(t, sides)
    if t.settings.wants_more(Aspect.TRANSFER):
        transfer.check(t, there)


def _wants_grad(t: Trial) -> bool:
    """Whether operands are leaves. Under no_grad too, as the parameters of a model are; inference tensors cannot be."""
    row = t.program.row
    return (
        t.case.under != "inference"
        and t.case.dtype in row.grad
        and row.relation not in GAUGE_DEPENDENT
        and any(o.spec.grad and (o.view.is_floating_point() or o.view.is_complex()) for o in t.inputs.operands)
    )


def _result_dtype(reference: Outcome) -> torch.dtype | None:
    if not isinstance(reference, Computed) or not reference.tensors:
        return None
    return reference.tensors[0][1].dtype


def _same_choice(bench: Bench, reference: Outcome, outcome: Outcome) -> bool:
    """Whether both sides chose alike among several right answers (ties): gradients flow to the chosen elements."""
    if not isinstance(reference, Computed) or not isinstance(outcome, Computed):
        return False
    relation = RELATIONS.get(bench.row.relation)
    if relation is None or bench.bound is None or not relation.chooses:
        return True
    ours, theirs = dict(reference.tensors), dict(outcome.tensors)
    if set(ours) != set(theirs):
        return False
    told = relation.covers(bench.bound, ours)
    if not told:  # the choice is hidden
        return not _has_ties(bench.bound.args[0])
    return all(torch.equal(ours[n], theirs[n]) for n in told)


def _has_ties(x: Tensor) -> bool:
    """Whether some elements are equal, or NaN: which of them an order statistic took is nobody's promise."""
    return int(torch.unique(x).numel()) < x.numel() or bool(torch.isnan(x).any())


def _bound(t: Trial) -> Bound | None:
    """The call as the reference gets it, for relations; OpInfo samples too."""
    if not t.program.row.relation:
        return None
    views = [o.view for o in t.inputs.operands]
    if t.program.row.family == "opinfo":
        args, kwargs = ex.arguments(t.case, t.inputs, views, torch_word)
        return Bound(t.case.op, tuple(args), kwargs)
    return Bound(
        t.case.op,
        tuple(realise(a, views, torch_word) for a in t.inputs.args),
        {k: realise(v, views, torch_word) for k, v in t.inputs.kwargs.items()},
    )


def _metadata(row: Row, aspect: Aspect, live: Live, theirs: Live, here: Placed, there: Placed, so_far: Result) -> Result:
    """Strides and aliasing where torch promises them."""
    if not (row.view or row.strides):
        return so_far
    for (name, a), (_, b) in zip(live.outputs, theirs.outputs):
        if name.startswith("base["):
            continue
        if (row.view or len(here.views) == 1) and a.numel() > 1 and _strides(a) != _strides(b):
            text = f"{name}.stride()={b.stride()}, but should be {a.stride()}"
            return Result(aspect, Verdict(Status.MALFORMED, text, Measure(name, problem="strides")))
        if row.view and a.numel() and _shares(a, here) != _shares(b, there):
            text = f"{name} {'aliases' if _shares(b, there) else 'does not alias'} the input, unlike the reference's"
            return Result(aspect, Verdict(Status.MALFORMED, text, Measure(name, problem="aliasing")))
    return so_far


def _by_law(t: Trial, bound: Bound, so_far: Result) -> Result:
    """A random op's distribution, seeding and gradients on the device; where the reference fails too, they say nothing."""

    case = replace(t.case, under="grad")  # gradients are asked for too

    def ask(device: Device) -> Any:
        t.mark("reference" if device is t.cpu else "device")
        return ex.attempt(lambda: randomness.problems(t.program, case, t.inputs, bound, device), "run")

    found = ask(t.device)
    t.notes.clear()
    if isinstance(found, Raised):
        return raised(so_far.aspect, Computed(()), found)
    if not found:
        return so_far
    name, problem = found[0]
    if isinstance(own := ask(t.cpu), Raised) or own:
        return Result(so_far.aspect, Verdict(Status.VOID, f"the reference fails the same test: {problem}", Measure(name)))
    return Result(so_far.aspect, Verdict(Status.WRONG, problem, Measure(name, problem="law"), randomness.LAW))


def _strides(x: Tensor) -> tuple[int, ...]:
    """Strides of the dimensions that have more than one element; the others are nobody's promise."""
    return tuple(s for s, n in zip(x.stride(), x.shape) if n > 1)


def _shares(x: Tensor, placed: Placed) -> bool:
    pointer = x.untyped_storage().data_ptr()
    return any(b.untyped_storage().data_ptr() == pointer for b in placed.bases)


def failing(results: Sequence[Result]) -> list[Result]:
    """The results that are findings."""
    return [r for r in results if r.verdict.status.is_finding]


def quiet(stage: str) -> None:
    """A mark that goes nowhere."""
