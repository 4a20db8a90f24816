"""Run a user's function on the CPU, on the device and in float64, and judge all results."""

from __future__ import annotations

import functools
import math
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parity import tolerance
from parity.checks.check import STATE
from parity.checks.inputs_unchanged import changed
from parity.checks.repeat import OVERWRITTEN
from parity.checks.trial import RAISED, Lent
from parity.comparing.advice import Kept, advice, drawing, growing, held_by, kept_by, no_gradients, raised_on_the_cpu
from parity.comparing.choices import ATEN_FREE, Choices
from parity.comparing.comparison import PACKAGE, Comparison, Notes, Request, differences, warn
from parity.comparing.kinks import at_kinks
from parity.comparing.leaves import parts
from parity.comparing.meter import Meter
from parity.comparing.moved_runs import Screened, comparable
from parity.comparing.places import PlacementWatch, command, other_way, read_before
from parity.comparing.screens import by_movement
from parity.comparing.subject import (
    SEED,
    SHAPED,
    ForwardRun,
    Put,
    Subject,
    Wrap,
    fixed_cotangents,
    forward,
    gradients,
    is_compiled,
    known,
    modules_in,
    parts_compiled,
    tracked_outputs,
)
from parity.comparing.truth import FunctionTruth, seeded
from parity.comparing.verdicts import (
    ROW,
    Verdicts,
    bare,
    described,
    in_one_dtype,
    is_far_outside,
    judged,
    judged_again,
    settled,
    verdicts,
)
from parity.core import compiler, state
from parity.core.errors import NothingCompared, ParityError, UsageError
from parity.core.results import Computed, Measure, Raised, Status, Verdict
from parity.devices import Device, resolve
from parity.devices.refusals import listening
from parity.execution import execute as ex
from parity.judging.bench import Bench
from parity.judging.destination import EXACT
from parity.judging.limits import Limits
from parity.judging.sameness import bit_equal, same_bits
from parity.oracle.float64 import widen
from parity.oracle.yardstick import NEAR, NEAR_OUTSIDE

# What is known to come after the function's two forward passes on the CPU, in as many seconds as these took: its gradients, the
# device's runs, and moved runs.
AFTER_THE_CPU = 5.0
COMPILED = (
    "it is compiled, and the CPU and the truth run its eager code: compile= with the original shows whether the compiler or "
    "the device is wrong where they differ"
)
OWN_KERNELS = (
    "draws random numbers, which compiled code draws by its own kernels; call .eval(), or draw them outside and pass them in"
)
INFERENCE = "no gradients were compared: the call is under torch.inference_mode(); leave that, or say backward=False"
NOT_COMPILED = "a copy is not compiled where .compile() of a module did that, so eager code was compared; compile= compiles it"
CALLS = 8  # of a module that keeps more tensors after the first one: a cache of fewer is full then
HELD_BYTES = 1 << 20  # most bytes of outputs that are held across the device's later runs
_ONE = threading.RLock()  # a comparison sets torch's global state, so those of several threads come one after the other


@dataclass(frozen=True, slots=True)
class Sides:
    """What was compared: the results of the CPU and of the device, their truth, and what a further call on the device needs."""

    subject: Subject
    device: Device
    tracked: tuple[str, ...]
    cotangents: Sequence[Tensor]
    ours: Mapping[str, Tensor]
    theirs: Mapping[str, Tensor]
    truth: FunctionTruth


Seen = Callable[[Sides], None]
MANY = 2  # elements of a result that may be outside by a little, though they are more than one of a thousand: a pair turns
ALONE = "each operator by itself agrees on the device's own operands"
TORCH = str(Path(torch.__file__).parent)


@functools.lru_cache(maxsize=16)
def _resolved(name: str) -> Device:
    device = resolve(name)
    if name == "auto" and device.simulated:
        warn(
            f"parity: torch reports no accelerator, so everything is compared on {device.name}, a SIMULATED device: that says "
            "nothing about any hardware. Name a device to be sure of it"
        )
    return device


def target(device: str | torch.device | Device) -> Device:
    """The device that the caller names. Raises UsageError if the argument names none, and what `resolve` raises."""
    if isinstance(device, Device):
        return device
    if not isinstance(device, (str, torch.device)):
        raise UsageError(f"the device is {device!r}; give its name, like 'mps' or 'cuda:1', or a torch.device")
    return _resolved(str(device).removesuffix(":0") if str(device).startswith("sim") else str(device))


@functools.lru_cache(maxsize=16)
def tables_of(name: str) -> tolerance.Tables:
    """The tolerance tables that judge a device."""
    return tolerance.load(name)


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of a request: the comparison, the device's exception if it raised one, and the notes."""

    comparison: Comparison
    cause: BaseException | None
    notes: Notes


def compared(q: Request, seen: Seen | None = None) -> Compared:
    """What `assert_parity` judges, without failing for what it finds; raises as that does. seen: gets what was compared."""
    __tracebackhide__ = True
    q.check()
    s, place, notes = q.subject(), target(q.device), Notes()
    if place.name == "cpu" and q.alone:
        notes.say("the device is the CPU itself, so this says nothing about any other; name one with device=", loud=True)
    with _ONE, compiler.kept_out(), state.Kept():
        comparison, cause = _judged(q, s, place, notes, seen)
    return Compared(replace(comparison, dtype=s.dtype, device=place.name), cause, notes)


@dataclass(frozen=True, slots=True)
class Here:
    """What the CPU gave. tracked: the outputs with gradients; ours: all results; left: what the runs left behind."""

    subject: Subject
    run: ForwardRun
    tracked: tuple[str, ...]
    cotangents: Sequence[Tensor]
    ours: Mapping[str, Tensor]
    left: Sequence[str]


def _judged(q: Request, s: Subject, device: Device, notes: Notes, seen: Seen | None) -> tuple[Comparison, BaseException | None]:
    """The comparison, and the device's exception if it raised one."""
    __tracebackhide__ = True
    _refuse(s, device)
    title, meter = f"{s.name} {s.dtype} on {device.name}", Meter(s.name)
    here = _on_the_cpu(q, s, meter, notes)
    s, fallbacks = here.subject, list[str]()
    with listening(fallbacks), state.Kept() as there:
        theirs, cause = _on_device(s, device, q.backward, here.tracked, here.cotangents, here.run, q.wrap)
    extra = (*_fell_back(q, fallbacks, notes), *_left_behind(s, here.left, there.left, notes))
    watch = _watched(s, device, q.backward) if device.name != "cpu" and getattr(theirs, "kind", "") != "oom" else None
    if isinstance(theirs, Raised):
        verdict, next_, way = _refused_there(s, device, q.backward, theirs, cause, watch, notes)
        return Comparison(title, (*extra, ("", verdict)), tuple(notes.lines), next_, where=way), cause
    if watch is not None and watch.seeded and not s.draws:
        return _judged(q, _drawing(q, s), device, notes.anew(), seen)
    extra += tuple(_overwritten(device, theirs.held))
    if watch is not None and q.wrap is None:
        here, theirs = _along_its_choices(here, device, q.backward, theirs, watch, notes)
        s = here.subject
    cast = watch.cast if watch is not None else None
    truth = FunctionTruth(s, q.backward, here.cotangents, here.ours, cast, meter, q.closely)
    if watch is not None:
        _placed_there(title, device, watch, theirs.outside, here.run, notes)
    idle = _untouched(s, theirs.results, here.ours)
    results, ours = ({n: t for n, t in side.items() if n not in idle} for side in (theirs.results, here.ours))
    sides = Sides(s, device, here.tracked, here.cotangents, ours, results, truth)
    if seen is not None:
        seen(sides)
    if cast:
        results, ours = in_one_dtype(results, ours, device.name, notes)
        sides = replace(sides, ours=ours, theirs=results)
    limits: dict[str, Limits] | None = {} if q.detail else None
    bench = Bench(ROW, tables_of(device.name), truth, None, q.closely, limits, q.closely)
    judgements = _by_tensor(q, sides, bench, meter, notes)
    if not judged(judgements, ours):
        raise NothingCompared(f"{title}: {_nothing(here.run)}; return what is to be compared")
    if truth.refused:
        notes.say(f"judged against the reference: it does not run in float64 ({truth.refused})")
    if (cotangents := here.cotangents) and not any(is_far_outside(v) for n, v in judgements if not n.startswith("grad[")):
        jumped = at_kinks(judgements, bench, s, device, cotangents, (results, ours))
        judgements = tuple((n, jumped.verdicts.get(n, v)) for n, v in judgements)
        ours |= jumped.ours
        for line in jumped.notes:
            notes.say(line)
    judgements = judged_again(judgements, bench, results, ours, notes, q.atol)
    judgements = _by_operators(q, sides, (*extra, *settled(judgements, q.fail_on, notes)), notes)
    way, following = _explained(replace(here, subject=s), device, q.backward, watch, judgements)
    apart = differences(judgements, results, ours)
    return Comparison(title, judgements, tuple(notes.lines), following, limits or {}, where=way, differences=apart), cause


def _refuse(s: Subject, device: Device) -> None:
    """Raise NothingCompared or UsageError for what cannot be compared on the device."""
    if not s.moves:
        raise NothingCompared(f"{s.name}: no input is a tensor, so nothing would reach {device.name}; give it tensors")
    if device.simulated and s.unplaced:
        raise UsageError(f"{s.unplaced}, or name a real device: {device.name}, a simulated one, cannot hold it")


def _on_the_cpu(q: Request, s: Subject, meter: Meter, notes: Notes) -> Here:
    """The runs on the CPU, with what they leave to say. Raises UsageError as `_reference` does."""
    __tracebackhide__ = True
    ex.left_by_the_device()  # by calls of others
    with meter.run("the runs on the CPU", AFTER_THE_CPU), state.Kept() as here:
        s, run, reference = _reference(s, q.backward, notes)
    if s.draws and q.wrap is not None:
        raise UsageError(f"{s.name} {OWN_KERNELS}")
    if s.draws:
        notes.say("random numbers (dropout) were drawn on the CPU and handed to both sides, so the device drew none")
    if s.shaped:
        notes.say(SHAPED)
    _compiled(s, notes)
    bare(run.bare, notes)
    cotangents = fixed_cotangents(run) if q.backward and run.leaves else []
    tracked = tracked_outputs(run) if cotangents else ()
    if q.backward and not cotangents:
        off = torch.is_inference_mode_enabled() and any(t.requires_grad for _, t in s.tensors)
        notes.say(INFERENCE if off else "no gradients: no output depends on an input or parameter that requires one", loud=off)
    ours, problem = _with_gradients(run, reference, tracked, cotangents)
    if problem is not None:
        notes.say(f"no gradients: {no_gradients(problem.message)}", loud=True)
        tracked, cotangents = (), []
    return Here(s, run, tracked, cotangents, ours, here.left)


def _drawing(q: Request, s: Subject) -> Subject:
    """A subject that draws its random numbers on the CPU. Raises UsageError for compiled code."""
    if q.wrap is not None or is_compiled(s.function):
        raise UsageError(f"{s.name} {OWN_KERNELS}")
    return replace(s, draws=True)


def _fell_back(q: Request, fallbacks: Sequence[str], notes: Notes) -> Verdicts:
    """The verdict on operators that ran on the CPU, if that is to fail; else a note."""
    if not fallbacks:
        return ()
    ran = f"ran on the CPU: {', '.join(sorted(set(fallbacks)))}"
    if Status.FALLBACK in q.fail_on:
        return (("", Verdict(Status.FALLBACK, ran)),)
    notes.say(ran, loud=True)
    return ()


def _by_tensor(q: Request, sides: Sides, bench: Bench, meter: Meter, notes: Notes) -> Verdicts:
    """A verdict for each result. Where one is far outside and an operator is wrong by itself, runs in float64 add nothing."""
    screened = Screened({})
    if not q.closely:
        screened = by_movement(sides.subject, q.backward, sides.cotangents, sides.theirs, sides.ours, meter)
        if screened.runs and q.proof is not None and (v := q.proof()) is not None and v.status.differs:
            sides.truth.sample_by_moved_runs(screened.runs)
    made = verdicts(bench, sides.theirs, sides.ours, notes, q.atol, screened.passed)
    return judged_again(made, bench, sides.theirs, sides.ours, notes, q.atol)


def _by_operators(q: Request, sides: Sides, judgements: Verdicts, notes: Notes) -> Verdicts:
    """The verdicts, where the operators decide: what many roundings to a half type add up to is as large as a fault of some
    percent in one of them, and it is an estimate, which an honest device may exceed by a little."""
    odd = [v for _, v in judgements if v.status is not Status.AGREE]
    compiled = q.wrap is not None or is_compiled(sides.subject.function)
    apart = q.atol is None and any(comparable(sides.theirs.get(n, t), t) for n, t in sides.ours.items())
    if q.proof is None or compiled or not (odd or apart):
        return judgements
    half = sides.truth.rounds_to_half
    if not (odd or half):
        return judgements
    if not all(_by_a_little(v, half) for v in odd) or (proof := q.proof()) is None:
        return judgements
    if not odd and proof.status.differs:
        why = f"the results are inside, but one of its operators is not: {proof.reason}"
        return (*judgements, ("", Verdict(proof.status, why, None, proof.tolerance)))
    for name, v in judgements if odd and proof.status is Status.AGREE else ():
        if (m := v.measure) is not None and v in odd:
            notes.say(f"{name} is {m.share:.3g} times its budget off, an estimate, and {ALONE}", loud=True)
            rest = replace(m, share=1.0, unjudged=m.unjudged + m.mismatched, why=ALONE)
            judgements = tuple((n, Verdict(Status.AGREE, "", rest, x.tolerance) if n == name else x) for n, x in judgements)
    return judgements


def _by_a_little(v: Verdict, half: bool) -> bool:
    """Whether a result is so little outside of an estimate that its operators may decide."""
    m = v.measure
    if v.near or m is None or not half:
        return v.near
    few = 0 < m.mismatched <= max(MANY, int(m.total / NEAR_OUTSIDE)) and (m.spread or 0.0) <= 1.0
    return v.status is Status.DRIFT and m.problem == "value" and few and (m.share or math.inf) <= NEAR


def _left_behind(s: Subject, here: Sequence[str], there: Sequence[str], notes: Notes) -> Verdicts:
    """The verdict on what the device alone left in torch's state. here, there: what the runs on the CPU and on the device
    did. State that the function itself changes on the CPU may have another value after each call (threads in turn)."""
    own = [*ex.left[False], *here]
    if own:
        notes.say(f"{s.name} leaves behind in its process: {'; '.join(dict.fromkeys(own))}; it was put back", loud=True)
    pieces = {w.partition(" (")[0] for w in own}
    left = [w for w in dict.fromkeys((*ex.left_by_the_device(), *there)) if w.partition(" (")[0] not in pieces]
    if not left:
        return ()
    text = f"the device's run left behind in its process, and it was put back: {'; '.join(left)}"
    return (("", Verdict(Status.WRONG, text, Measure("", problem=STATE))),)


def _overwritten(device: Device, held: Sequence[Lent]) -> Iterator[tuple[str, Verdict]]:
    """A verdict for each result of the device that its later calls changed."""
    found = ex.attempt(lambda: changed(held, device), "download")
    for name, m in [] if isinstance(found, Raised) else found:
        yield name, Verdict(Status.WRONG, f"{name} was changed by later calls", replace(m, problem=OVERWRITTEN), EXACT)


def _compiled(s: Subject, notes: Notes) -> None:
    """Note which code of a compiled function was compared."""
    made, lost = parts_compiled(s.module)
    if made or is_compiled(s.function):
        notes.say(COMPILED)
    if lost:
        notes.say(NOT_COMPILED)


def _along_its_choices(
    here: Here, device: Device, backward: bool, theirs: There, watch: PlacementWatch, notes: Notes
) -> tuple[Here, There]:
    """What both sides gave, with the CPU following the device's choices where these are as right as its own; unchanged where
    nothing was left to choose, or all was chosen alike."""
    if ATEN_FREE.isdisjoint((*watch.there, *watch.here)) or is_compiled(here.subject.function):
        return here, theirs
    if all(same_bits(t, here.ours.get(n)) for n, t in theirs.results.items()):
        return here, theirs
    made, tracked, cotangents = Choices(), here.tracked, here.cotangents
    again, _ = _on_device(replace(here.subject, choices=made), device, backward, tracked, cotangents, here.run)
    if isinstance(again, Raised) or not made.made:
        return here, theirs
    if not all(same_bits(t, again.results.get(n)) for n, t in theirs.results.items()):
        return here, theirs  # its choices are those of another run than the one that is judged
    follow = Choices(made.made)
    with seeded():
        run = forward(replace(here.subject, choices=follow), torch.clone, backward)
    if not follow.differs:
        return here, theirs
    ours, problem = _with_gradients(run, {n: t.detach() for n, t in (*run.outputs, *run.written)}, tracked, cotangents)
    if problem is not None:
        return here, theirs
    for line in follow.words():
        notes.say(line)
    s = replace(here.subject, choices=Choices(follow.made, sure=True))
    return replace(here, subject=s, run=run, ours=ours), again


def _refused_there(
    s: Subject, device: Device, backward: bool, theirs: Raised, cause: Any, watch: PlacementWatch | None, notes: Notes
) -> tuple[Verdict, str, str]:
    """The verdict of what the device raised, the next command, and where the device took another way before."""
    left = advice(s, theirs.message, watch.made if watch is not None else "", raised_at(cause))
    if left:
        notes.say(left)
    culprit = [watch.last] if watch is not None and theirs.stage == "run" and watch.last else []
    next_ = "" if left or (theirs.stage == "run" and not culprit) else _next(s, device, watch, culprit)
    way, _ = _other_way(s, device, backward, watch, (), ())
    return Verdict(RAISED[theirs.kind], _raised_text(theirs, cause)), next_, way


def device_results(s: Subject, device: Device, backward: bool) -> Mapping[str, Tensor] | Raised:
    """All results of the device with the fixed cotangents, by name, on the CPU; or what it raised. Raises UsageError as
    `compared` does."""
    s, run, reference = _reference(s, backward)
    cotangents = fixed_cotangents(run) if backward and run.leaves else []
    tracked = tracked_outputs(run) if cotangents else ()
    if _with_gradients(run, reference, tracked, cotangents)[1] is not None:
        tracked, cotangents = (), []
    theirs, _ = _on_device(s, device, backward, tracked, cotangents, run)
    return theirs if isinstance(theirs, Raised) else theirs[0]


def judged_results(
    s: Subject, tables: str, backward: bool, given: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
) -> Verdicts:
    """The verdicts of results that a device gave elsewhere. tables: its name; given: makes them of the CPU's own results.
    Raises UsageError as `compared` does."""
    s, run, reference = _reference(s, backward)
    cotangents = fixed_cotangents(run) if backward and run.leaves else []
    ours, problem = _with_gradients(run, reference, tracked_outputs(run) if cotangents else (), cotangents)
    theirs, truth = given(ours), FunctionTruth(s, backward, () if problem is not None else cotangents, ours)
    idle = _untouched(s, theirs, ours)
    theirs, ours = ({n: t for n, t in side.items() if n not in idle} for side in (theirs, ours))
    return verdicts(Bench(ROW, tables_of(tables), truth, None, False, None), theirs, ours, Notes())


def _nothing(run: ForwardRun) -> str:
    came = [f"{n} is {described(t)}" for n, t in run.outputs if not known(t)] + [f"{n} is a {t}" for n, t in run.bare]
    return "no tensor with elements came out that parity compares" + (f" ({', '.join(came[:3])})" if came else "")


# -------------------------------------------------------------------------------------------------------- the reference


def _reference(s: Subject, backward: bool, notes: Notes | None = None) -> tuple[Subject, ForwardRun, dict[str, Tensor]]:
    """The subject, its run on the CPU and the results. The subject draws its random numbers on the CPU from here on, if any.
    Raises UsageError if it fails there, if two runs differ, or if it draws where parity cannot hand the numbers out."""
    __tracebackhide__ = True
    kept, before = Kept(s.function), held_by(s.function)
    with seeded():
        run, cause = attempted(lambda: forward(s, torch.clone, backward), "run", False)
    if name := kept.changed():
        raise UsageError(
            f"{s.name} changes '{name}', which it uses without being given it (what the first run changed was put back): pass "
            "model and optimizer as arguments, so that each side works on a copy of its own"
        )
    if isinstance(run, Raised):
        raise UsageError(
            f"{s.name} raises on the CPU, so there is nothing to compare with: {run.type}: {run.message}{raised_at(cause)}; "
            f"{raised_on_the_cpu(run.message)}"
        ) from cause
    results: dict[str, Tensor] = {n: t.detach() for n, t in (*run.outputs, *run.written)}
    first = held_by(s.function)
    again = _again(s, backward, SEED + 1)
    names = growing(before, first, held_by(s.function)) or _growing_inside(s, run.modules)
    if notes is not None and names:
        notes.say(
            f"memory grows from call to call: {s.name} keeps more tensors in '{names[0]}' after each; keep numbers (.item()) "
            "there, or the last ones alone",
            loud=True,
        )
    if _alike(results, again):
        return s, run, results
    with seeded():
        drawn = forward(replace(s, draws=True), torch.clone, backward)
    if drawn.handed is not None and drawn.handed.drew:
        if is_compiled(s.function):
            raise UsageError(f"{s.name} is compiled and draws random numbers, which no two devices share; call .eval()")
        _handed_out(s, drawn, "the CPU")
        s, run = replace(s, draws=True), drawn
        results = {n: t.detach() for n, t in (*run.outputs, *run.written)}
        again = _again(s, backward, SEED + 1)
    if not _alike(results, again, 1e-3):
        how = "call .eval(), fix the random numbers that it draws, or write to all memory that it reads"
        if own := drawing(s.function, s.module):
            how = f"it draws from {own[0]}, which is not torch's: seed it in each call, or pass the numbers in"
        raise UsageError(f"two equal runs of {s.name} on the CPU differ by more than rounding; {how}")
    return replace(s, spread=_spread(results, again)), run, results


def _growing_inside(s: Subject, called: Mapping[str, nn.Module]) -> list[str]:
    """The attributes of modules that hold more tensors after each of several calls. called: the copies that ran once."""
    if not kept_by(called) - kept_by(modules_in(s, s.module, s.leaves)):
        return []
    counts = list[Mapping[str, int]]()

    def several(f: Any) -> Callable[..., Any]:
        def once(*args: Any, **kwargs: Any) -> Any:
            counts.append(kept_by(modules_in(s, getattr(f, "__self__", f), tree_leaves((args, kwargs)))))
            return f(*args, **kwargs)

        return lambda *args, **kwargs: [once(*args, **kwargs) for _ in range(CALLS)][-1]

    with state.Kept(False), seeded():
        ex.attempt(lambda: forward(s, torch.clone, False, wrap=several), "run")
    return growing(kept_by(modules_in(s, s.module, s.leaves)), *counts[-2:]) if len(counts) == CALLS else []


def _spread(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How far two equal runs on the CPU are apart in each element, by the results that are not equal."""
    apart = [(n, x, b[n]) for n, x in a.items() if known(x) and not bit_equal(x, b[n])]
    return {n: (widen(x, None) - widen(y, None)).abs().to(torch.float64).nan_to_num(0.0, 0.0, 0.0) for n, x, y in apart}


def _handed_out(s: Subject, run: ForwardRun, place: str, reference: ForwardRun | None = None) -> None:
    """Raise UsageError if random numbers were drawn that the reference's run does not have."""
    if run.handed is None:
        return
    if run.handed.left:
        raise UsageError(
            f"{s.name} draws random numbers in {', '.join(sorted(run.handed.left))} on {place}, which no two devices share; "
            "call .eval(), or draw them outside and pass them in"
        )
    own = reference.handed if reference is not None else None
    if own is not None and run.handed.draws != (wanted := own.draws):
        raise UsageError(
            f"{s.name} makes {wanted} random draw{'' if wanted == 1 else 's'} on the CPU and {run.handed.draws} on {place}, so "
            "that the two differ; call .eval(), or draw them outside and pass them in"
        )
    if own is not None and run.handed.states != own.states:
        raise UsageError(
            f"{s.name} draws random numbers from a generator in another state on {place} than on the CPU, so that the two "
            "differ; seed it in each call, or draw them outside and pass them in"
        )


def _again(s: Subject, backward: bool, seed: int) -> dict[str, Tensor]:
    with state.Kept(False) as kept, seeded(seed):
        run = forward(s, torch.clone, backward)
    ex.left[False] += kept.left  # by itself, because two runs may take back what each of them changes
    return {n: t.detach() for n, t in (*run.outputs, *run.written)}


def _alike(a: Mapping[str, Tensor], b: Mapping[str, Tensor], relative: float | None = None) -> bool:
    """Whether two runs gave the same bits or, with `relative`, differ by at most that fraction of each tensor's largest
    magnitude."""
    if list(a) != list(b):
        return False
    for x, y in zip(a.values(), b.values()):
        if not known(x) or not known(y):
            continue
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if bit_equal(x, y):
            continue
        if relative is None:
            return False
        p, q = (torch.nan_to_num(t.abs().to(torch.float64)) for t in (x, y))
        if p.numel() and float((p - q).abs().max()) > relative * float(p.max()):
            return False
    return True


def _with_gradients(
    run: ForwardRun, results: Mapping[str, Tensor], tracked: Sequence[str], cotangents: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Raised | None]:
    if not cotangents:
        return dict(results), None
    with seeded():
        grads = ex.attempt(lambda: gradients(run, tracked, cotangents), "backward", False)
    return (dict(results), grads) if isinstance(grads, Raised) else ({**results, **dict(grads)}, None)


# ----------------------------------------------------------------------------------------------------------- the device


class There(NamedTuple):
    """What the device returned. results: copied to the CPU; outside: names of the outputs that were not on the device; held:
    the outputs, to be compared once more after later calls."""

    results: dict[str, Tensor]
    outside: frozenset[str]
    held: tuple[Lent, ...]


def _on_device(
    s: Subject,
    device: Device,
    backward: bool,
    tracked: Sequence[str],
    cotangents: Sequence[Tensor],
    reference: ForwardRun,
    wrap: Wrap | None = None,
) -> tuple[There | Raised, BaseException | None]:
    """All results of the device, or what it raised. Raises UsageError if it draws other random numbers than the reference's run
    did."""
    with torch.random.fork_rng(devices=[]), device.active():
        device.seed(SEED)
        around = device.compiling() if is_compiled(s.function) else None
        run, cause = attempted(lambda: forward(s, device.upload, backward, around, torch.clone, wrap, True), "run")
        if isinstance(run, Raised):
            return run, cause
        _stays(s, run, device)
        _handed_out(s, run, device.name, reference)
        outside = frozenset(n for n, t in run.outputs if t.device.type != device.torch_device.type)
        results = ex.computed((*((n, t.detach()) for n, t in run.outputs), *run.written), device)
        if isinstance(results, Raised):
            return results, None
        assert isinstance(results, Computed)
        named = dict(results.tensors)
        held = tuple(Lent(n, named[n], t.detach()) for n, t in run.outputs if known(t))
        if wrap is not None or is_compiled(s.function) or sum(h.before.nbytes for h in held) > HELD_BYTES:
            held = ()  # compiled code may hand out its memory again
        if not cotangents or tracked_outputs(run) != tuple(tracked):
            return There(named, outside, held), None
        fed = [device.upload(c) for c in cotangents]
        grads, cause = attempted(lambda: gradients(run, tracked, fed), "backward")
        more = grads if isinstance(grads, Raised) else ex.computed(grads, device)
        if isinstance(more, Raised):
            return more, cause
        assert isinstance(more, Computed)
        return There({**named, **dict(more.tensors)}, outside, held), None


def _stays(s: Subject, run: ForwardRun, device: Device) -> None:
    """Raise UsageError if the call moved a parameter of its module away from the device."""
    own = {n for n, _ in s.module.named_parameters()} if s.module is not None else set()
    for name, p in run.leaves:
        if name in own and p.device.type != device.torch_device.type:
            raise UsageError(
                f"{s.name} moves its parameter '{name}' to {p.device} while it runs, so that nothing is compared on "
                f"{device.name}: take the .to() or .cpu() out of it"
            )


def _watched(s: Subject, device: Device, backward: bool) -> PlacementWatch:
    """Where the operators ran in one more run of the subject; up to the error if it raises."""
    watch = PlacementWatch(device.torch_device.type)
    with torch.random.fork_rng(devices=[]), device.active(), listening([]):
        device.seed(SEED)
        got = ex.attempt(lambda: forward(s, device.upload, backward, watch.over(), torch.clone), "run")
    watch.whole = not isinstance(got, Raised)
    return watch


def _other_way(
    s: Subject,
    device: Device,
    backward: bool,
    watch: PlacementWatch | None,
    tracked: Sequence[str],
    cotangents: Sequence[Tensor],
) -> tuple[str, bool]:
    """Where the function calls other functions on the device than on the CPU, as `other_way` says it, also in what it runs in
    Python in the backward pass of the cotangents; seen in more runs. And whether a value may have decided on it."""
    if watch is None:
        return "", False
    here = PlacementWatch("cpu")
    with state.Kept(), seeded():
        ex.attempt(lambda: forward(s, torch.clone, backward, here.over()), "run", False)
    way = other_way(here.steps, watch.steps, device.name, watch.whole)
    if not way and cotangents:
        with state.Kept(), seeded():
            _watch_backward(s, torch.clone, here, tracked, cotangents)
        with torch.random.fork_rng(devices=[]), device.active(), listening([]):
            device.seed(SEED)
            _watch_backward(s, device.upload, watch, tracked, cotangents)
        way = other_way(here.steps, watch.steps, device.name, watch.whole)
    return way, bool(way) and read_before(here.steps, watch.steps)


def _watch_backward(s: Subject, put: Put, watch: PlacementWatch, tracked: Sequence[str], cotangents: Sequence[Tensor]) -> None:
    """Watch a backward pass as well; on this thread, because modes see no other."""

    def run() -> None:
        made, fed = forward(s, put, True, stay=torch.clone), [put(c) for c in cotangents]
        with watch.over():
            gradients(made, tracked, fed)

    with torch.autograd.set_multithreading_enabled(False):
        watch.whole &= not isinstance(ex.attempt(run, "backward", False), Raised)


def _explained(
    here: Here, device: Device, backward: bool, watch: PlacementWatch | None, judgements: Verdicts
) -> tuple[str, str]:
    """Where the device took another way, and the command that tests the operators: where a value decided on the way, it may
    have been wrong before. Nothing where all results agree."""
    if all(v.status is Status.AGREE for _, v in judgements):
        return "", ""
    way, decided = _other_way(here.subject, device, backward, watch, here.tracked, here.cotangents)
    return way, _next(here.subject, device, watch) if decided or not way else ""


def _placed_there(
    title: str, device: Device, watch: PlacementWatch, outside: frozenset[str], run: ForwardRun, notes: Notes
) -> None:
    """Note what lies or ran elsewhere. Raises NothingCompared if nothing ran on the device."""
    away = sorted(outside - run.computed)
    nowhere = 0 < len(run.outputs) == len(outside)
    if watch.whole and (watch.idle or (nowhere and not watch.there)):
        ran = f"; on the CPU ran {', '.join(list(watch.here)[:6])}" if watch.here else ""
        raise NothingCompared(f"{title}: no operator ran on {device.name}{ran}; let the function compute where its inputs lie")
    if away:
        ran = f"; what ran there: {', '.join(list(watch.there)[:12])}" if watch.there else ""
        what = f"no output lies on {device.name}" if nowhere else f"{', '.join(away)} does not lie on {device.name}"
        notes.say(f"{what}: make sure that the function computes there{ran}", loud=True)
    if watch.after:
        notes.say(f"ran on the CPU, after a copy from {device.name}: {', '.join(list(watch.after)[:12])}", loud=True)


def gives_numbers(s: Subject, run: ForwardRun) -> bool:
    """Whether a run returned an element, or wrote one into an input or a buffer."""
    results = {n: t.detach() for n, t in (*run.outputs, *run.written)}
    idle = _untouched(s, results, results)
    return any(t.is_nested or t.numel() > 0 for n, t in results.items() if n not in idle)


def _untouched(s: Subject, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> set[str]:
    """Names of the inputs and buffers that neither side wrote. Their bits decide: batch_norm writes without a new version."""
    before = {f"after[{n}]": x for n, x in s.given}
    buffers = s.module.named_buffers() if s.module is not None else ()
    before |= {f"buffer[{part}]": x for n, b in buffers for part, x in parts(n, b)}
    return {n for n, x in before.items() if n in ours and n in theirs and _kept(x, theirs[n]) and _kept(x, ours[n])}


def _kept(before: Tensor, after: Tensor) -> bool:
    if not known(before):
        return True
    before = before.detach().cpu()
    return before.shape == after.shape and before.dtype == after.dtype and bit_equal(before, after)


# ------------------------------------------------------------------------------------------------------- what was raised


class Attempt(NamedTuple):
    """What a call gave, or `Raised`, and the exception itself."""

    got: Any
    cause: BaseException | None


def attempted(run: Callable[[], Any], stage: str, classified: bool = True) -> Attempt:
    """`execute.attempt`, which also returns the exception itself. A ParityError is raised again."""
    caught: list[BaseException] = []

    def kept() -> Any:
        try:
            return run()
        except BaseException as e:
            caught.append(e)
            raise

    got = ex.attempt(kept, stage, classified)
    if caught and isinstance(caught[0], ParityError):
        raise caught[0]
    return Attempt(got, caught[0] if caught else None)


def _raised_text(raised: Raised, cause: BaseException | None) -> str:
    return f"{raised.type} in {raised.stage}: {raised.message}{raised_at(cause)}"


def raised_at(e: BaseException | None) -> str:
    """The last line of the caller's code that led to an exception; empty if the caller called torch directly."""
    line = ""
    for frame in traceback.extract_tb(e.__traceback__) if e is not None else ():
        if frame.filename.startswith(os.path.join(PACKAGE, "devices", "")):
            break
        if not frame.filename.startswith((PACKAGE, TORCH, "<")):
            near = os.path.relpath(frame.filename)
            line = f" ({frame.filename if near.startswith('..') else near}:{frame.lineno}, in {frame.name})"
    return line


def _next(s: Subject, device: Device, watch: PlacementWatch | None, culprit: Sequence[str] = ()) -> str:
    names = list(culprit) or (list(watch.calls) if watch is not None else [])
    return command(names, s.dtype, device)
