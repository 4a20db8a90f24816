"""The sentence itself: a case is executed on the reference and on the device, compared, judged, and told as findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parity import execute as ex
from parity import randomness
from parity.catalog.row import Row
from parity.devices.base import Device
from parity.dtypes import FACTS
from parity.execute import Destination, Live, Named, Placed, Program
from parity.inputs import Inputs, build, realise, torch_word
from parity.inputs import apply as apply_layout
from parity.judge import Bench, Part, judge
from parity.layout import overlaps
from parity.measures import bit_equal, same_values
from parity.oracle import Oracle
from parity.relations import GAUGE_DEPENDENT, RELATIONS, Bound
from parity.tolerance import Tables
from parity.values import pool, window
from parity.vocabulary import Aspect, Case, Computed, Measure, OpClass, Outcome, Raised, Status, TensorSpec, Verdict

Mark = Callable[[str], None]
Again = Callable[[], Named]
RERUNS = 2  # memory that nobody wrote often holds the same twice, so the second rerun finds it stirred
RAISED = {"refused": Status.UNSUPPORTED, "oom": Status.OOM, "error": Status.ERROR}


@dataclass(frozen=True, slots=True)
class Result:
    """One aspect of a case, judged."""

    aspect: Aspect
    verdict: Verdict
    measures: tuple[Measure, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells one finding of an op from another: aspect, tensor, and the kind of difference (not how large it is)."""
        m, status = self.verdict.measure, self.verdict.status
        by_value = m is not None and status in (Status.DRIFT, Status.WRONG, Status.MALFORMED)
        kind = m.problem if m is not None and by_value else f"{status}: {self.verdict.reason[:60]}"
        return self.aspect, self.verdict.tensor, kind


@dataclass(frozen=True, slots=True)
class Settings:
    """How a case is checked. insist: everything to the oracle. repeat: run the forward twice and compare the bits.
    only: the aspect that is asked for (the forward always runs), or None for all."""

    insist: bool = False
    repeat: bool = False
    only: str | None = None

    def wants(self, aspect: Aspect) -> bool:
        """Whether this aspect is asked for."""
        return self.only is None or self.only == aspect


@dataclass(slots=True)
class _Trial:
    """One case under way; lives inside `check`."""

    program: Program
    case: Case
    inputs: Inputs
    device: Device
    tables: Tables
    settings: Settings
    cpu: Device
    notes: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


def check(
    row: Row, case: Case, device: Device, cpu: Device, tables: Tables, settings: Settings, mark: Mark, notes: list[str]
) -> tuple[tuple[Result, ...], str]:
    """All aspects of one case: (results, digest of the inputs). `notes` is where the caller's `listening` puts fallbacks;
    `mark` is told each stage (reference, device, compare) before it begins. Raises CaseError where a case cannot be built.
    """
    inputs = build(case)
    trial = _Trial(ex.program(row), case, inputs, device, tables, settings, cpu, notes)
    with torch.enable_grad():
        _forward_and_backward(trial, mark)
    return tuple(trial.results), inputs.digest() if settings.insist else ""


# ---------------------------------------------------------------------------------------------------- forward, backward


def _wants_grad(t: _Trial) -> bool:
    row = t.program.row
    return (
        t.case.dtype in row.grad
        and row.relation not in GAUGE_DEPENDENT
        and any(o.spec.grad and (o.view.is_floating_point() or o.view.is_complex()) for o in t.inputs.operands)
    )


def _forward_and_backward(t: _Trial, mark: Mark) -> None:
    row, grad = t.program.row, _wants_grad(t)
    mark("reference")
    here = ex.place(t.inputs, t.cpu)
    live = ex.precisely(lambda: ex.forward(t.program, t.case, t.inputs, here, grad), "run")
    if isinstance(live, Raised) and grad:
        live = ex.precisely(lambda: ex.forward(t.program, t.case, t.inputs, here, False), "run")
        grad = False
    reference: Outcome = live if isinstance(live, Raised) else Computed(tuple((n, x.detach()) for n, x in live.outputs))
    oracle = Oracle(t.program, t.case, t.inputs, _result_dtype(reference))
    if isinstance(reference, Raised) and oracle.truth("out") is None and oracle.truth("out[0]") is None:
        t.results.append(Result(Aspect.FORWARD, Verdict(Status.VOID, f"the reference refuses: {reference.message}")))
        return
    mark("device")
    there = ex.attempt(lambda: ex.place(t.inputs, t.device), "upload")
    if isinstance(there, Raised):
        t.results.append(_raised(Aspect.FORWARD, reference, there))
        return
    theirs = ex.attempt(lambda: ex.forward(t.program, t.case, t.inputs, there, grad), "run")
    outcome: Outcome = theirs if isinstance(theirs, Raised) else ex.computed(theirs.outputs, t.device, t.notes)
    t.notes.clear()
    mark("compare")
    aspect = Aspect.INPLACE if row.mutates else Aspect.FORWARD
    bench = Bench(row, t.tables, oracle, _bound(t), t.settings.insist)
    parts = _parts_of_first(t) if row.mutates else None

    def again() -> Named:
        return ex.forward(t.program, t.case, t.inputs, here, grad).outputs

    wants = t.settings.wants
    if wants(aspect) or wants(Aspect.REPEAT) or isinstance(outcome, Raised):
        verdict = _compare(t, bench, aspect, reference, outcome, "forward", again, parts)
        if isinstance(live, Live) and isinstance(theirs, Live) and verdict.verdict.status is Status.AGREE:
            verdict = _metadata(row, aspect, live, theirs, here, there, verdict)
        if row.rule is OpClass.RANDOM and verdict.verdict.status is Status.AGREE and bench.bound is not None:
            verdict = _by_law(t, bench.bound, verdict)
        t.results.append(verdict)
    known = isinstance(reference, Computed) and all(_is_known(x) for _, x in reference.tensors)
    grad = grad and wants(Aspect.BACKWARD)
    if grad and known and isinstance(live, Live) and isinstance(theirs, Live) and _same_choice(bench, reference, outcome):
        _backward(t, bench, live, theirs, here, mark)
    if isinstance(theirs, Raised) or isinstance(reference, Raised):
        return
    if t.settings.repeat and row.relation not in ("random", "uninitialised"):
        _repeat(t, bench, there, outcome, reference, again, parts, grad)
    if t.program.out and known and not row.mutates and wants(Aspect.OUT):
        _out(t, bench, reference, here, there, mark)
    if t.program.inplace is not None and not row.mutates and wants(Aspect.INPLACE):
        _inplace(t, bench, reference, here, there, mark)


def _result_dtype(reference: Outcome) -> torch.dtype | None:
    if not isinstance(reference, Computed) or not reference.tensors:
        return None
    return reference.tensors[0][1].dtype


def _is_known(x: Tensor) -> bool:
    """Whether parity can make and judge tensors of this kind (float8, complex32, sparse and quantised ones it cannot)."""
    return x.layout is torch.strided and str(x.dtype).removeprefix("torch.") in FACTS


def _same_choice(bench: Bench, reference: Outcome, outcome: Outcome) -> bool:
    """Whether both sides chose alike among several right answers (ties): gradients flow to the chosen elements."""
    if not isinstance(reference, Computed) or not isinstance(outcome, Computed):
        return False
    relation = RELATIONS.get(bench.row.relation)
    if relation is None or bench.bound is None or not relation.chooses:
        return True
    if bench.row.relation == "order":
        return not _has_ties(bench.bound.args[0])
    ours, theirs = dict(reference.tensors), dict(outcome.tensors)
    if set(ours) != set(theirs):
        return False
    return all(torch.equal(ours[n], theirs[n]) for n in relation.covers(bench.bound, ours))


def _has_ties(x: Tensor) -> bool:
    """Whether some elements are equal, or NaN: which of them an order statistic took is nobody's promise."""
    return int(torch.unique(x).numel()) < x.numel() or bool(torch.isnan(x).any())


def _bound(t: _Trial) -> Bound | None:
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


def _parts_of_first(t: _Trial) -> dict[str, Part]:
    o = t.inputs.operands[0]
    return {"base[out]": Part(o.base, o.spec.layout, o.spec.shape)}


def _compare(
    t: _Trial,
    bench: Bench,
    aspect: Aspect,
    reference: Outcome,
    outcome: Outcome,
    pass_: str,
    again: Again,
    parts: dict[str, Part] | None = None,
) -> Result:
    """One aspect's outcomes, judged. again: the reference's run, which a finding asks for once more."""
    if isinstance(outcome, Raised):
        return _raised(aspect, reference, outcome)
    assert isinstance(outcome, Computed)
    theirs = dict(outcome.tensors)
    ours = dict(reference.tensors) if isinstance(reference, Computed) else None
    if parts:
        theirs = {n: x for n, x in theirs.items() if n in parts}
        ours = None if ours is None else {n: x for n, x in ours.items() if n in parts}
    verdict, measures = judge(bench, theirs, ours, pass_, parts)
    if verdict.status.is_finding and ours is not None and _unsteady(t, bench, ours, pass_, again, parts):
        text = f"the reference is unstable: two equal runs of it differ ({verdict.reason})"
        verdict = Verdict(Status.VOID, text, verdict.measure)
    if outcome.notes and verdict.status is Status.AGREE:
        text = "ran on the CPU: " + ", ".join(sorted(set(outcome.notes)))
        verdict = Verdict(Status.FALLBACK, text, verdict.measure, verdict.tolerance)
    return Result(aspect, verdict, measures)


def _unsteady(
    t: _Trial, bench: Bench, ours: dict[str, Tensor], pass_: str, again: Again, parts: dict[str, Part] | None
) -> bool:
    """Whether another run of the reference differs from the first so much that it would be a finding itself: kernels of the
    CPU that read memory which nobody wrote accuse every device."""
    for _ in range(RERUNS):
        _stir(t, ours)
        raw = ex.precisely(again, "run")
        if isinstance(raw, Raised):
            return True
        second = {n: x.detach() for n, x in raw if n in ours}
        if set(second) == set(ours) and all(_same_bits(second[n], x) for n, x in ours.items()):
            continue
        if judge(bench, second, ours, pass_, parts)[0].status.is_finding:
            return True
    return False


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bit_equal(a, b)


def _stir(t: _Trial, ours: dict[str, Tensor]) -> None:
    """Leave other bytes in the memory that the allocator hands out next, in the sizes that a kernel may ask for."""
    sizes = {x.numel() * x.element_size() for x in (*ours.values(), *(o.base for o in t.inputs.operands))}
    held = [torch.full((n * k,), 77, dtype=torch.uint8) for n in sorted(sizes) for k in (1, 2, 4) if 0 < n * k <= 1 << 24]
    del held


def _raised(aspect: Aspect, reference: Outcome, outcome: Raised) -> Result:
    if isinstance(reference, Raised):
        return Result(aspect, Verdict(Status.VOID, f"reference and device both refuse: {outcome.message}"))
    return Result(aspect, Verdict(RAISED[outcome.kind], f"{outcome.type} in {outcome.stage}: {outcome.message}"))


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


def _by_law(t: _Trial, bound: Bound, so_far: Result) -> Result:
    """A random op's distribution, seeding and gradients on the device; where the reference fails too, they say nothing."""

    def ask(device: Device) -> Any:
        return ex.attempt(lambda: randomness.problems(t.program, t.case, t.inputs, bound, device), "run")

    found = ask(t.device)
    t.notes.clear()
    if isinstance(found, Raised):
        return _raised(so_far.aspect, Computed(()), found)
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


def _make(family: str, dtype: torch.dtype, n: int, seed: int, position: int) -> Tensor:
    if family == "normal":
        return window(pool("normal", str(dtype).removeprefix("torch.")), n, seed, 50 + position).clone()
    return torch.full((n,), 1.0 if family == "ones" else 0.0, dtype=dtype)


def _backward(t: _Trial, bench: Bench, live: Live, theirs: Live, here: Placed, mark: Mark) -> None:
    tracked = ex.differentiable(live)
    if not tracked:
        return
    fed = [ex.cotangent(t.case.cotangent, x, i, _make) for i, (_, x) in enumerate(tracked)]
    ours = [apply_layout(c.base, c.layout, c.shape) for c in fed]
    mark("reference")
    got = ex.precisely(lambda: ex.backward(live, ours), "backward")
    reference: Outcome = got if isinstance(got, Raised) else Computed(tuple((n, x.detach()) for n, x in got))
    bench.oracle.differentiate(ours)
    if isinstance(reference, Raised):
        return  # the row says which dtypes have a gradient; a case without one says nothing about the device
    if not got:
        return  # no output depends on a leaf (norm with p=0)
    if [n for n, _ in tracked] != [n for n, _ in ex.differentiable(theirs)]:
        text = "other results require a gradient than on the reference"
        t.results.append(Result(Aspect.BACKWARD, Verdict(Status.MALFORMED, text, Measure("grad", problem="graph"))))
        return
    mark("device")

    def run() -> Named:
        cotangents = [_placed(c, t.device) for c in fed]
        return ex.backward(theirs, cotangents)

    raw = ex.attempt(run, "backward")
    outcome: Outcome = raw if isinstance(raw, Raised) else ex.computed(raw, t.device, t.notes)
    t.notes.clear()
    mark("compare")

    def again() -> Named:
        return ex.backward(ex.forward(t.program, t.case, t.inputs, here, True), ours)

    t.results.append(_compare(t, bench, Aspect.BACKWARD, reference, outcome, "backward", again))


def _placed(c: Destination, device: Device) -> Tensor:
    base = device.upload(c.base) if device.name != "cpu" else c.base
    return apply_layout(base, c.layout, c.shape)


# ------------------------------------------------------------------------------------------- repeat, out=, in-place


def _repeat(
    t: _Trial,
    bench: Bench,
    there: Placed,
    first: Outcome,
    reference: Outcome,
    again_here: Again,
    parts: dict[str, Part] | None,
    grad: bool,
) -> None:
    """A second call with the same operands in the same grad mode: unstable where the bits differ and one is outside."""
    raw = ex.attempt(lambda: ex.forward(t.program, t.case, t.inputs, there, grad), "run")
    again: Outcome = raw if isinstance(raw, Raised) else ex.computed(raw.outputs, t.device)
    t.notes.clear()
    if isinstance(first, Computed) and isinstance(again, Computed):
        if all(same_values(a, b) for (_, a), (_, b) in zip(first.tensors, again.tensors)):
            return
        second = _compare(t, bench, Aspect.REPEAT, reference, again, "forward", again_here, parts)
        if second.verdict.status.is_finding or t.results[0].verdict.status.is_finding:
            worst = second.verdict if second.verdict.status.is_finding else t.results[0].verdict
            verdict = Verdict(Status.UNSTABLE, f"two equal calls differ; {worst.reason}", worst.measure, worst.tolerance)
            t.results.append(Result(Aspect.REPEAT, verdict, second.measures))
    elif isinstance(again, Raised):
        t.results.append(_raised(Aspect.REPEAT, reference, again))


def _out(t: _Trial, bench: Bench, reference: Outcome, here: Placed, there: Placed, mark: Mark) -> None:
    assert isinstance(reference, Computed)
    targets = [ex.destination(x, t.case.into) for _, x in reference.tensors]
    mark("reference")

    def again() -> Named:
        return ex.write_out(t.program, t.case, t.inputs, here, targets, t.cpu)

    ours = ex.precisely(again, "run")
    if isinstance(ours, Raised):
        return  # torch refuses this destination; error parity is a check of its own
    mark("device")
    raw = ex.attempt(lambda: ex.write_out(t.program, t.case, t.inputs, there, targets, t.device), "run")
    outcome: Outcome = raw if isinstance(raw, Raised) else ex.computed(raw, t.device, t.notes)
    t.notes.clear()
    mark("compare")
    parts = {n: Part(x.base, x.layout, x.shape) for (n, _), x in zip(ours, targets)}
    t.results.append(_compare(t, bench, Aspect.OUT, Computed(ours), outcome, "forward", again, parts))


def _inplace(t: _Trial, bench: Bench, reference: Outcome, here: Placed, there: Placed, mark: Mark) -> None:
    assert isinstance(reference, Computed)
    if not t.inputs.operands or not isinstance(t.case.args[0], (TensorSpec, int)):
        return
    first = t.inputs.operands[0]
    shape = reference.tensors[0][1].shape if reference.tensors else None
    if len(reference.tensors) != 1 or first.view.shape != shape or overlaps(first.spec.layout) or first.spec.on_cpu:
        return
    mark("reference")

    def again() -> Named:
        return ex.write_inplace(t.program, t.case, t.inputs, here, t.cpu)

    ours = ex.precisely(again, "run")
    if isinstance(ours, Raised):
        return
    mark("device")
    raw = ex.attempt(lambda: ex.write_inplace(t.program, t.case, t.inputs, there, t.device), "run")
    outcome: Outcome = raw if isinstance(raw, Raised) else ex.computed(raw, t.device, t.notes)
    t.notes.clear()
    mark("compare")
    t.results.append(_compare(t, bench, Aspect.INPLACE, Computed(ours), outcome, "forward", again, _parts_of_first(t)))


def failing(results: Sequence[Result]) -> list[Result]:
    """The results that are findings."""
    return [r for r in results if r.verdict.status.is_finding]


def quiet(stage: str) -> None:
    """A mark that goes nowhere."""
