"""Run one case on the reference and on the device, and judge the differences."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from parity.catalog import entries
from parity.catalog.row import Row
from parity.checks import derivatives, further, history, inputs_unchanged, metadata, poison, refusal, repeat, writes
from parity.checks.further import due, has_leaves, not_derived
from parity.checks.power import ProbeResults
from parity.checks.trial import (
    EVERYTHING,
    RAISED,
    SELDOM,
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
from parity.core import processes, state
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import (
    DERIVATIVES,
    MISSING,
    OTHER_SIGNATURE,
    Aspect,
    Computed,
    Measure,
    Outcome,
    Raised,
    Status,
    Verdict,
)
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.execution.execute import Live, Named, Placed
from parity.execution.inputs import build, realise, torch_word
from parity.execution.modes import MODES, Unwatched, Withheld
from parity.judging import randomness
from parity.judging.bench import Bench
from parity.judging.destination import EXACT, Part
from parity.judging.relations import RELATIONS, Bound
from parity.judging.rules import rule_of
from parity.oracle.oracle import CaseOracle
from parity.tolerance import Tables

__all__ = ["EVERYTHING", "RAISED", "Mark", "Result", "Settings", "check", "failing", "quiet", "unwatched"]

Watching: TypeAlias = Callable[[Case, Device, list[Result]], AbstractContextManager[None]]

FORKED = "the call forked its process; the copy was ended"
STATE, UNCOMPARED = "state", "uncompared"  # problems, and symptoms of causes
EARLIER = Settings(repeat=True, more=SELDOM, law=False, operands=True, held=64)  # of the cases before a case


def unwatched(case: Case, device: Device, results: list[Result]) -> AbstractContextManager[None]:
    """Watch nothing of a case."""
    return nullcontext()


def check(
    row: Row,
    case: Case,
    device: Device,
    cpu: Device,
    tables: Tables,
    settings: Settings,
    mark: Mark,
    notes: list[str],
    watching: Watching = unwatched,
    probes: list[ProbeResults] | None = None,
    seconds: dict[str, float] | None = None,
) -> tuple[tuple[Result, ...], str]:
    """All aspects of one case: (results, digest of the inputs).

    mark: called with each stage (reference, device, compare) before it begins. notes: list to which the caller's `fallbacks`
    recorder appends. watching: entered around the case, with the results that grow inside. probes: gets the outcomes of errors
    put into results. seconds: gets the device's time for the forward and the backward. Raises CaseError if
    the case cannot be built.
    """
    overwritten = [r for earlier in case.history for r in _overwritten_by(earlier, device, cpu, tables, mark)]
    if case.history:
        notes.clear()
    with Unwatched():
        inputs = build(case)
    program = ex.program(row) if settings.there is None else replace(ex.program(row), there=settings.there)
    trial = Trial(program, case, inputs, device, tables, settings, cpu, mark, notes)
    trial.seconds = {} if seconds is None else seconds
    trial.due = due(trial)
    asked, forked = refusal.check if case.refused else _aspects, processes.forks()
    ex.left_by_the_device()  # by calls outside of any case
    closely = settings.operands or settings.always_use_oracle  # it takes longer than all the rest
    with state.Kept(closely) as kept, MODES["grad"](), watching(case, device, trial.results):
        with Withheld():
            _asked(asked, trial)
        unmet = _unmet(trial)
    if left := dict.fromkeys((*ex.left_by_the_device(), *kept.left)):
        text = f"the call left behind in its process, and parity put back: {'; '.join(left)}"
        _accuse(trial, Verdict(Status.WRONG, text, Measure("", problem=STATE), EXACT))
    if processes.forks() != forked and trial.results:
        _accuse(trial, Verdict(Status.ERROR, FORKED))
    trial.results += [*unmet, *overwritten]
    if probes is not None:
        probes += trial.power
    with Unwatched():
        digest = inputs.digest()
    return tuple(trial.results), digest


def _asked(run: Callable[[Trial], None], t: Trial) -> None:
    """Check a case. Raises CaseError if this torch cannot import or find a part of itself that the call needs."""
    try:
        run(t)
    except (ImportError, AttributeError) as e:
        if not _of_torch(e):
            raise
        raise CaseError(f"{MISSING} what it needs itself: {type(e).__name__}: {str(e).partition(' (')[0]}") from e


def _of_torch(e: ImportError | AttributeError) -> bool:
    """Whether code of torch looked in torch for what is not there, and not code that parity or a row brings."""
    sought = e.name if isinstance(e, ImportError) else e.obj.__name__ if isinstance(e.obj, ModuleType) else ""
    frames = [
        f for f, _ in traceback.walk_tb(e.__traceback__) if f.f_code.co_name != "__getattr__"
    ]  # who asked, not who answers
    asks = str(frames[-1].f_globals.get("__name__", "")) if frames else ""
    return {name.partition(".")[0] for name in (sought or "", asks)} == {"torch"}


def _accuse(t: Trial, verdict: Verdict) -> None:
    """Say this of the first result of a case: whatever came of it, the calls did what no call may do."""
    first = t.results[0] if t.results else Result(Aspect.REFUSAL if t.case.refused else Aspect.FORWARD, Verdict(Status.VOID))
    if first.verdict.status.is_finding:
        verdict = replace(first.verdict, reason=f"{first.verdict.reason}; {verdict.reason}", excess=None, near=False)
    t.results[:1] = [replace(first, verdict=verdict)]


def _unmet(t: Trial) -> list[Result]:
    """The aspects of a case that were due and silently fell out. Nothing falls out silently where something else was
    reported."""
    if any(r.verdict.status is not Status.AGREE for r in t.results):
        return []
    if not (missing := t.due - {r.aspect for r in t.results}):
        return []
    odd = state.unusual(state.RECORDING)
    text = f"it was to be compared, and was not{': ' * bool(odd)}{', '.join(odd)}"
    verdict = Verdict(Status.ERROR, text, Measure("", problem=UNCOMPARED))
    return [Result(a, verdict) for a in sorted(missing, key=[*Aspect, *sorted(missing)].index)]


def _overwritten_by(case: Case, device: Device, cpu: Device, tables: Tables, mark: Mark) -> list[Result]:
    """Check a case before another one; what it gives is not judged, unless it changed the result of one before it."""
    with suppress(CaseError):
        results, _ = check(entries.row(case.op), case, device, cpu, tables, EARLIER, mark, [])
        return [r for r in results if r.verdict.measure is not None and r.verdict.measure.problem == repeat.OVERWRITTEN]
    return []


@dataclass(frozen=True, slots=True)
class Forward:
    """The forward on the reference. placed: its operands; live: its results with their graph; reference: the same, detached;
    grad: whether the operands are leaves."""

    placed: Placed
    live: Live | Raised
    reference: Outcome
    grad: bool


def _aspects(t: Trial) -> None:
    """Check the forward on both sides, and every other requested aspect."""
    first = _on_reference(t)
    reference = first.reference
    oracle = CaseOracle(t.program, t.case, t.inputs, _result_dtype(reference))
    if isinstance(reference, Raised) and (reference.type == "AttributeError" or not oracle.runs()):
        t.results.append(Result(Aspect.FORWARD, Verdict(Status.VOID, _refused(reference))))
        return
    t.mark("device")
    there = ex.attempt(lambda: ex.place(t.inputs, t.device, t.case.under), "upload")
    if isinstance(there, Raised):
        t.results.append(raised(Aspect.FORWARD, reference, there))
        return
    if t.case.after:
        history.play(t, first.placed, reference, first.grad)
    if t.settings.poison:
        poison.fill_freed_memory(t, reference, t.settings.poison)
    began = time.perf_counter()
    theirs = ex.attempt(lambda: ex.forward(t.program, t.case, t.inputs, there, first.grad), "run")
    outcome = outcome_of(t, theirs if isinstance(theirs, Raised) else theirs.outputs, (Aspect.FORWARD, began))
    t.mark("compare")
    bench = Bench(t.program.row, t.tables, oracle, _bound(t), t.settings.always_use_oracle, whole=t.settings.whole)
    _expect_backward(t, first, oracle)
    _judge_forward(t, bench, first, there, theirs, outcome)
    live = first.live
    if isinstance(live, Raised) or isinstance(theirs, Raised) or not isinstance(reference, Computed):
        t.due &= {Aspect.INPLACE if t.program.row.forms.mutates else Aspect.FORWARD}
        return
    sides = Sides(bench, first.placed, there, live, theirs, reference, outcome, first.grad)
    known = all(is_known(x) for _, x in reference.tensors)
    if t.settings.held and known:
        repeat.hold(t, sides)
    if known and t.case.under == "grad":
        _derivatives(t, sides)
    elif not known:  # parity compares no derivatives of such results, nor destinations
        t.due -= {*DERIVATIVES, Aspect.OUT}
    _further_calls(t, sides, first)
    if t.settings.operands or t.settings.always_use_oracle or failing(t.results):
        inputs_unchanged.check(t, sides)
    if t.settings.guards:
        poison.check_guards(t, sides)
    further.play(t, sides)
    if t.settings.held:
        repeat.compare_held(t)


def _refused(reference: Raised) -> str:
    """Why neither the reference nor the oracle ran: another torch may not have what the call needs, or take other arguments."""
    words = {"AttributeError": MISSING, "TypeError": OTHER_SIGNATURE}.get(reference.type, "the reference refuses")
    return f"{words}: {reference.message}"


def _on_reference(t: Trial) -> Forward:
    """The forward on the reference; without a graph if it raises with one."""
    grad = has_leaves(t)
    t.mark("reference")
    here = ex.place(t.inputs, t.cpu)
    live = ex.precisely(lambda: ex.forward(t.program, t.case, t.inputs, here, grad), "run")
    if isinstance(live, Raised) and grad:
        live = ex.precisely(lambda: ex.forward(t.program, t.case, t.inputs, here, False), "run")
        grad = False
        not_derived(t, *DERIVATIVES)
    reference: Outcome = live if isinstance(live, Raised) else Computed(tuple((n, x.detach()) for n, x in live.outputs))
    return Forward(here, live, reference, grad)


def _expect_backward(t: Trial, first: Forward, oracle: CaseOracle) -> None:
    """Announce the cotangents to the oracle: where a forward needs its truth, its gradients will too."""
    asked = first.grad and t.case.under == "grad" and t.settings.wants(Aspect.BACKWARD)
    if asked and isinstance(first.live, Live):
        oracle.expect(derivatives.cotangents(t, first.live)[1])


def _forward_again(t: Trial, first: Forward) -> Named:
    return ex.forward(t.program, t.case, t.inputs, first.placed, first.grad).outputs


def _written_parts(t: Trial) -> dict[str, Part] | None:
    """The destination of an op that writes into its first operand, else None."""
    return writes.parts_of_first(t.inputs) if t.program.row.forms.mutates else None


def _judge_forward(t: Trial, bench: Bench, first: Forward, there: Placed, theirs: Live | Raised, outcome: Outcome) -> None:
    """Judge the forward's results; if their numbers agree, also their strides, aliasing and law."""
    row, wants = t.program.row, t.settings.wants
    aspect = Aspect.INPLACE if row.forms.mutates else Aspect.FORWARD
    if not (wants(aspect) or wants(Aspect.REPEAT) or isinstance(outcome, Raised)):
        return
    result = compare(t, bench, aspect, first.reference, outcome, lambda: _forward_again(t, first), _written_parts(t))
    live = first.live
    if isinstance(live, Live) and isinstance(theirs, Live):
        result = metadata.judged(t, result, live.outputs, theirs.outputs, first.placed.bases, there.bases)
    random = rule_of(row).is_random and t.settings.law
    if random and result.verdict.status is Status.AGREE and bench.bound is not None:
        result = _by_law(t, bench.bound, result)
    t.results.append(result)


def _derivatives(t: Trial, s: Sides) -> None:
    """Check the derivatives.

    If the device returned another of several right answers than the reference (ties, the sign of an eigenvector), or the
    results themselves are not differentiated, check instead the derivatives of functions of the results that are the same
    for every right answer.
    """
    if s.grad and _same_choice(s.bench, s.reference, s.outcome):
        derivatives.check(t, s)
    else:
        derivatives.check_through_gauge(t, s)


def _further_calls(t: Trial, s: Sides, first: Forward) -> None:
    """Check the same call again, and its forms that write."""
    row = t.program.row
    if Aspect.REPEAT in t.due:
        repeat.check(t, s, lambda: _forward_again(t, first), _written_parts(t))
    if row.forms.mutates:
        return
    if Aspect.OUT in t.due:
        writes.out(t, s)
    if Aspect.INPLACE in t.due:
        writes.inplace(t, s)


def _result_dtype(reference: Outcome) -> torch.dtype | None:
    if not isinstance(reference, Computed) or not reference.tensors:
        return None
    return reference.tensors[0][1].dtype


def _same_choice(bench: Bench, reference: Outcome, outcome: Outcome) -> bool:
    """Whether both sides chose alike among several right answers (ties): gradients flow to the chosen elements."""
    if not isinstance(reference, Computed) or not isinstance(outcome, Computed):
        return False
    relation = RELATIONS.get(bench.row.judged.relation)
    if relation is None or bench.bound is None or not relation.chooses:
        return True
    ours, theirs = dict(reference.tensors), dict(outcome.tensors)
    if set(ours) != set(theirs):
        return False
    covered = relation.covers(bench.bound, ours)
    if not covered:  # no result shows the choice
        return not _has_ties(bench.bound.args[0])
    return all(torch.equal(ours[n], theirs[n]) for n in covered)


def _has_ties(x: Tensor) -> bool:
    """Whether some elements are equal or NaN, so that an order statistic may take any of them."""
    return int(torch.unique(x).numel()) < x.numel() or bool(torch.isnan(x).any())


def _bound(t: Trial) -> Bound | None:
    """The call with the operands of the reference, for relations; None if the row has no relation."""
    if not t.program.row.judged.relation:
        return None
    views = [o.view for o in t.inputs.operands]
    if t.program.row.is_sampled:
        args, kwargs = ex.arguments(t.case, t.inputs, views, torch_word)
        return Bound(t.program.row, tuple(args), kwargs)
    return Bound(
        t.program.row,
        tuple(realise(a, views, torch_word) for a in t.inputs.args),
        {k: realise(v, views, torch_word) for k, v in t.inputs.kwargs.items()},
    )


def _by_law(t: Trial, bound: Bound, so_far: Result) -> Result:
    """Judge a random op's distribution, seeding and gradients on the device; VOID if the reference fails the same test."""

    case = replace(t.case, under="grad")  # gradients are tested too

    def drawn(device: Device) -> Any:
        with state.many_calls():
            return randomness.problems(t.program, case, t.inputs, bound, device)

    def ask(device: Device) -> Any:
        t.mark("reference" if device is t.cpu else "device")
        return ex.attempt(lambda: drawn(device), "run")

    problems = ask(t.device)
    t.notes.clear()
    if isinstance(problems, Raised):
        return raised(so_far.aspect, Computed(()), problems)
    if not problems:
        return so_far
    name, problem = problems[0]
    if isinstance(own := ask(t.cpu), Raised) or own:
        return Result(so_far.aspect, Verdict(Status.VOID, f"the reference fails the same test: {problem}", Measure(name)))
    return Result(so_far.aspect, Verdict(Status.WRONG, problem, Measure(name, problem="law"), randomness.LAW))


def failing(results: Sequence[Result]) -> list[Result]:
    """The results that are findings."""
    return [r for r in results if r.verdict.status.is_finding]


def quiet(stage: str) -> None:
    """A mark that does nothing."""
