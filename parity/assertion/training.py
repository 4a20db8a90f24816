"""`parity.compare_training`: from which step on, and in which layer, a training on the device is more than rounding away from
the CPU's.

Two trainings part by themselves: each step makes the roundings of those before it larger. So every step is judged alone. The
device takes it; then the CPU takes it from the device's own state (weights, buffers, gradients, optimizer, scheduler, scaler),
and so do float64 and a few runs in float64 in which every operator's result is rounded by chance, in the dtype that it had.
How far those lie from float64 is what rounding explains of loss, gradients and new weights. A step that seems to leave it is
run `MORE` times more before it is told, also with larger roundings, which shows whether a rounding decides it (a ReLU at zero).
The step that is told is then searched as by `parity.locate`.

Beside that, the trainings run freely, on the device, on the CPU, and on the CPU from start weights and batches moved by a
rounding: their curves show what the differences grow to, and whether roundings alone grow to as much.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parity.assertion.advice import SIDES
from parity.assertion.comparing import attempted, raised_at, target
from parity.assertion.comparison import ParityWarning
from parity.assertion.draws import ATEN_INTO, ATEN_MADE
from parity.assertion.located import Located, plural
from parity.assertion.noted import Noted
from parity.assertion.parting import locate_run
from parity.assertion.places import Places
from parity.assertion.rounded_runs import Off, Past, by_chance, in_double, off, student, unit_roundoff
from parity.assertion.training_side import Side, State, Took, widened
from parity.core.dtypes import HALF
from parity.core.errors import NothingCompared, ParityError, UsageError
from parity.core.results import Raised
from parity.devices import Device
from parity.execution import execute as ex
from parity.oracle.rounding import perturbed
from parity.oracle.step_dtypes import Recorded

SAMPLES = 4  # rounded runs of every step
FEW = 4  # with larger roundings, which show at once where a rounding decides it
MORE = 32  # of a step that seems to leave what rounding explains
FALSE_ALARMS = 1e-4  # of a whole training on a device whose roundings are at most `MARGIN` times the CPU's
MARGIN = 4.0
LEANING = 8.0  # typical common factors by which an honest device's roundings may lean to one side at every step
HALF_LEANING = 0.25  # the same in half types, where the rounding of results, which is without bias, outweighs all else
GATE = 10.0  # typical errors from which on a result is looked at again
HIGHER = 1.5  # times as far off as what was looked at for nothing, the next has to be
FREE = 2  # trainings on the CPU from a start moved by a rounding
KINDS = ("loss", "gradient", "weights")
SHOWN = 5
PATIENCE = 120.0  # seconds for locating in the step that is told
LEGEND = (
    "distance: of the weights from the CPU's, beside how far these have moved; rounding: the same of trainings on the CPU",
    "whose start and batches are moved by a rounding; this step: its own largest error, in units of what rounding explains",
)
TOO_OFTEN = 2  # steps in a row that only the device skips


@dataclass(frozen=True, slots=True)
class Departure:
    """A result of a step that rounding does not explain. step: from 1; kind: one of `KINDS`; name: of the parameter or buffer,
    "" for the loss; ratio: its error in units of what rounding explains; how: in words."""

    step: int
    kind: str
    name: str
    ratio: float
    how: str

    @property
    def title(self) -> str:
        """What it is: "gradient of layers.1.weight"."""
        return f"{self.kind} of {self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class Point:
    """A step of the curves. loss, device_loss: of the free trainings; distance: of the device's weights from the CPU's, in
    units of how far the CPU's have moved since the start; explained: the largest distance of a training whose start was moved
    by a rounding; ratio: the largest error of this step alone, in units of what rounding explains."""

    step: int
    loss: float
    device_loss: float
    distance: float
    explained: float
    ratio: float


@dataclass(frozen=True, slots=True, repr=False)
class Training:
    """What `compare_training` found. subject: "Net float32 on mps"; steps: how many were asked for; departures: the first of
    each kind, in the order of steps, each the one nearest to its cause; curve: one point for each step; located: the operators
    that part in the first step that is told; broken: what the device raised, and when. seconds: of the whole comparison;
    plain: of the plain steps in it, on the CPU and on the device."""

    subject: str
    steps: int
    departures: tuple[Departure, ...] = ()
    curve: tuple[Point, ...] = ()
    located: Located | None = None
    broken: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    plain: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the device took all steps, and rounding explains each."""
        return not (self.departures or self.broken)

    @property
    def first(self) -> Departure | None:
        """The first of them; None if there is none."""
        return self.departures[0] if self.departures else None

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if self.first is None:
            if self.broken:
                return f"{self.subject} {self.broken}"
            return f"{self.subject}: rounding explains every one of {plural(self.steps, 'step')}"
        f = self.first
        return (
            f"{self.subject}: training parts from the CPU's at step {f.step} of {self.steps}, first in the {f.title}: {f.how}"
        )

    def __repr__(self) -> str:
        return f"<{self.headline}>"

    def __bool__(self) -> bool:
        return self.agrees

    def __str__(self) -> str:
        lines = [self.headline]
        lines += [f"  {line}" for line in self._culprit()]
        lines += [f"then: {d.title} at step {d.step}: {d.how}" for d in self.departures[1:]]
        lines += self._table()
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])

    def _culprit(self) -> list[str]:
        if self.located is None:
            return []
        if self.located.first is None:
            what = (
                self.located.broken or f"{plural(self.located.compared, 'call')} of operators agree, each on its own operands"
            )
            return [f"taken again from the same state, no operator of that step parts by itself ({what})"]
        text = str(self.located).splitlines()
        return [text[0].removeprefix(self.located.subject).strip(), *text[1:]]

    def _table(self) -> list[str]:
        if not self.curve:
            return []
        wanted = {1, 2, 5, *range(10, self.steps, max(10, self.steps // 5)), len(self.curve)}
        wanted |= {d.step for d in self.departures}
        lines = [f"{'step':>6}  {'loss CPU':>12}  {'device':>12}  {'distance':>9}  {'rounding':>9}  {'this step':>9}"]
        for p in self.curve:
            if p.step in wanted:
                losses = f"{p.step:>6}  {p.loss:>12.6g}  {p.device_loss:>12.6g}"
                lines.append(f"{losses}  {p.distance:>9.2g}  {p.explained:>9.2g}  {p.ratio:>9.2g}")
        return [*lines, *LEGEND]


def compare_training(
    make: Callable[..., Any],
    data: Any,
    *,
    steps: int = 20,
    device: str | torch.device | Device = "auto",
    samples: int = SAMPLES,
    locate: bool = True,
) -> Training:
    """Train on the CPU and on the device from the same weights with the same batches, and find the first step of the device
    that rounding does not explain, in loss, gradients or weights, and the operator that makes it.

    make(device) or make() builds everything anew each time and returns the model, its optimizer, any scheduler, GradScaler,
    EMA or other object with a state_dict, and last step(batch), the user's own training step, which returns the loss. Without
    it, model(*batch) must return the loss. A make without parameters runs with the device as torch's default. data: batches,
    an iterable or a function that returns one; it starts over where it ends early. samples: rounded runs of each step.
    locate: search the first step that is told for its operator.

    Random numbers (dropout) are drawn on the CPU and handed to both sides, so that masks agree. The result is true in a test
    (`assert parity.compare_training(...)`) where rounding explains all steps. Raises UsageError if a step does not run on the
    CPU or make does not return what it must, DeviceError for a device that is not available.
    """
    if not callable(make):
        raise UsageError(f"make is {type(make).__name__}; give the function that builds model and optimizer")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UsageError(f"steps is {steps!r}; give a whole number from 1 on")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
        raise UsageError(f"samples is {samples!r}; give a whole number from 2 on")
    place = target(device)
    if place.name == "cpu":
        raise UsageError("the device is the CPU itself, which cannot part from itself; name another with device=")
    batches = _batches(data, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ParityWarning)
        return _Trainings(make, batches, place, samples, locate).run()


def _batches(data: Any, steps: int) -> list[Any]:
    """As many batches as there are steps. Raises UsageError where data gives none."""
    makes = callable(data) and not hasattr(data, "__iter__")
    kept: list[Any] = []
    while len(kept) < steps:
        before = len(kept)
        got = ex.attempt(functools.partial(_some, data, makes, steps - before), "run")
        if isinstance(got, Raised):
            raise UsageError(got.message if got.type == "UsageError" else f"data raises {got.type}: {got.message}")
        kept += got
        if len(kept) == before:
            had = "gives no batch"
            if before:
                had = f"gives {'one batch' if before == 1 else f'{before} batches'} and cannot start over"
            raise UsageError(f"data {had}; {steps} steps need as many: give a list, or fewer steps")
    return kept


def _some(data: Any, makes: bool, most: int) -> list[Any]:
    source = data() if makes else data
    if isinstance(source, (Tensor, str)) or not isinstance(source, Iterable):
        raise UsageError(
            f"data is {type(source).__name__}; give the batches as a list, a DataLoader, or a function that returns one"
        )
    return list(itertools.islice(source, most))


# ------------------------------------------------------------------------------------------------------------- the trainings


class _Trainings:
    """All sides of a comparison, step by step."""

    def __init__(self, make: Callable[..., Any], batches: list[Any], device: Device, samples: int, locates: bool) -> None:
        self.make, self.batches, self.device, self.samples, self.locates = make, batches, device, samples, locates
        self.plain = self.total = 0.0
        self.noted = Noted()
        began = time.perf_counter()
        self.near, self.free = Side(make), Side(make)
        if self.near.shares(self.free):
            raise UsageError(
                "make returns the same model again; let it build another each time, or return a copy.deepcopy of it"
            )
        self.wide = Side(make, wide=True)
        self.start = self.free.state()
        self.there = Side(make, device)
        self._same_parts(self.there)
        self.there.load(self.start)
        self.u = unit_roundoff(self.near.dtype)
        self.moved = [Side(make) for _ in range(FREE)]
        for k, side in enumerate(self.moved):
            tensors = {n: _moved(t, self.u, 7 * i + 1000 * k) for i, (n, t) in enumerate(self.start.tensors.items())}
            side.load(replace(self.start, tensors=tensors))
        self.judge = _Judge(len(batches), 2 * len(self.start.tensors) + 1)
        self.departures: dict[str, Departure] = {}
        self.curve: list[Point] = []
        self.notes: list[str] = []
        self.draws, self.skipped = 0, 0
        self.trained = self.stepped = self.narrow = False
        self.told: tuple[int, State] | None = None
        self.began = began

    def _same_parts(self, there: Side) -> None:
        ours = {n: t.shape for n, t in self.start.tensors.items()}
        theirs = {n: t.shape for n, t in there.state().tensors.items()}
        if ours != theirs:
            odd = next(n for n in (*ours, *theirs) if ours.get(n) != theirs.get(n))
            raise UsageError(
                f"make builds another model on {self.device.name} than on the CPU ('{odd}' differs); build the same on both"
            )

    def run(self) -> Training:
        """Take all steps."""
        title = f"{self.near.name} {str(self.near.dtype).removeprefix('torch.')} on {self.device.name}"
        broken = ""
        for number, batch in enumerate(self.batches):
            broken = self._step(number, batch)
            if broken:
                break
            if self.departures and not math.isfinite(self.curve[-1].device_loss):
                more = len(self.batches) - number - 1
                self.notes += (
                    [f"the last {plural(more, 'step')} were left out: the device's loss is not finite"] if more else []
                )
                break
        found = sorted(self.departures.values(), key=lambda d: d.step)
        located = self._located(title) if self.told is not None and self.locates else None
        if not self.curve and not broken:
            raise NothingCompared(f"{title}: no step was compared")
        if not (self.trained or broken):
            raise UsageError(
                "step trains nothing: it computes no gradient and changes no weight; let it call loss.backward() and "
                "optimizer.step(), and return the loss"
            )
        if not (self.stepped or broken):
            self.notes.append("no optimizer stepped, so that new weights were not compared")
        if self.draws:
            self.notes.append("random numbers (dropout) were drawn on the CPU and handed to both sides")
        whole = time.perf_counter() - self.began
        return Training(
            title, len(self.batches), tuple(found), tuple(self.curve), located, broken, tuple(self.notes), whole, self.plain
        )

    def _step(self, number: int, batch: Any) -> str:
        """Take a step everywhere; what the device raised, if it did."""
        before = self.there.state()
        ours = self._on_the_cpu(self.free, number, batch, timed=True)
        moved = [
            self._on_the_cpu(s, number, batch, change=functools.partial(_moved, u=self.u, key=31 * number + k))
            for k, s in enumerate(self.moved)
        ]
        self.near.load(before)
        recorded = Recorded()
        cpu = self._on_the_cpu(self.near, number, batch, around=recorded)
        given = self.there.batch(batch)
        began = time.perf_counter()
        with self.noted.following(self.device.torch_device.type):
            theirs = ex.attempt(lambda: self.there.take(given, number), "run")
            if not isinstance(theirs, Raised):
                self.device.synchronize()
        self.plain += time.perf_counter() - began
        if isinstance(theirs, Raised):
            if theirs.type == "UsageError":
                raise UsageError(theirs.message)
            self.told = self.told or (number, before)
            if SIDES.search(theirs.message) and (name := self.there.stays()):
                self.notes.append(f"'{name}' of the step lies on the CPU: let make put it on the device that it gets")
            return f"raises at step {number + 1} of {len(self.batches)} ({theirs.type}: {theirs.message})"
        self._random(cpu, theirs, number)
        self._alive(number, before, cpu)
        ratio = self._compared(number, batch, before, cpu, theirs, recorded.dtypes)
        self.curve.append(self._point(number, ours, theirs, moved, ratio))
        return ""

    def _on_the_cpu(
        self, side: Side, number: int, batch: Any, timed: bool = False, change: Any = None, around: Any = None
    ) -> Took:
        given = side.batch(batch, change)
        began = time.perf_counter()
        got, cause = attempted(lambda: side.take(given, number, around), "run")
        if isinstance(got, Raised):
            raise UsageError(f"step {number + 1} raises on the CPU: {got.type}: {got.message}{raised_at(cause)}") from cause
        self.plain += (time.perf_counter() - began) if timed else 0.0
        took: Took = got
        return took

    def _random(self, cpu: Took, theirs: Took, number: int) -> None:
        self.draws += cpu.draws
        if own := sorted(n for n in cpu.left | theirs.left if n in (*ATEN_INTO, *ATEN_MADE)):
            raise UsageError(
                f"step {number + 1} draws random numbers in {', '.join(own)} with a generator of its own (or out=), which "
                "parity cannot hand over; leave generator= out"
            )
        if left := cpu.left | theirs.left:
            raise UsageError(
                f"step {number + 1} draws random numbers in {', '.join(sorted(left))}, which no two devices share and parity "
                "cannot hand over; set that dropout to 0 or call it by torch.nn.functional.dropout"
            )
        if cpu.draws != theirs.draws:
            raise UsageError(
                f"step {number + 1} draws random numbers {cpu.draws} times on the CPU and {theirs.draws} times on the device, "
                "so that they cannot be handed over; set dropout to 0"
            )

    def _alive(self, number: int, before: State, cpu: Took) -> None:
        """Whether there is something to judge in a step."""
        changed = any(
            not torch.equal(t, before.tensors[n]) for n, t in cpu.tensors.items() if before.tensors[n].shape == t.shape
        )
        self.stepped |= cpu.stepped or changed
        self.trained |= cpu.stepped or changed or bool(cpu.gradients)
        note = "is NaN or Inf on the CPU, too, from the same state: what is not finite there was not judged"
        if not math.isfinite(float(cpu.loss)) and not any(n.endswith(note) for n in self.notes):
            self.notes.append(f"from step {number + 1} on the loss {note}")

    def _wide(self, before: State, number: int, batch: Any, around: Any, change: Any = None) -> Took | Raised:
        self.wide.load(before)
        given = self.wide.batch(batch, change)
        got: Took | Raised = ex.attempt(lambda: self.wide.take(given, number, around), "run")
        return got

    def _rounded(
        self, before: State, number: int, batch: Any, dtypes: Any, keys: Iterable[int], times: float = 1.0
    ) -> list[Took]:
        """The step in float64, rounded by chance; where it does not run in float64, on the CPU from a state and with a batch
        that are moved by a rounding."""
        got = []
        for key in keys:
            if self.narrow:
                got.append(self._shaken(before, number, batch, key, times))
                continue
            around = by_chance(dtypes, self.near.dtype, key, times)
            change = functools.partial(perturbed, u=times * self.u, key=key)
            one = self._wide(before, number, batch, around, change)
            got += [one] if isinstance(one, Took) else []
        return got

    def _shaken(self, before: State, number: int, batch: Any, key: int, times: float) -> Took:
        u = times * self.u
        tensors = {n: _moved(t, u, 1000 * key + i) for i, (n, t) in enumerate(before.tensors.items())}
        self.near.load(replace(before, tensors=tensors))
        return self._on_the_cpu(self.near, number, batch, change=functools.partial(_moved, u=u, key=key))

    def _compared(
        self, number: int, batch: Any, before: State, cpu: Took, theirs: Took, dtypes: Mapping[str, list[str]]
    ) -> float:
        """Judge a step; the largest error in units of what rounding explains."""
        if cpu.stepped != theirs.stepped:
            self.skipped += 0 if theirs.stepped else 1
            if self.skipped == TOO_OFTEN:
                self._tell(
                    [Departure(number + 1, "gradient", "", math.inf, "GradScaler finds NaN or Inf that the CPU has not")],
                    before,
                )
            return 0.0
        self.skipped = 0
        if not cpu.stepped and any(not bool(g.isfinite().all()) for g in cpu.gradients.values()):
            return 0.0  # a GradScaler that is looking for its scale
        truth = self._wide(before, number, batch, in_double(self.near.dtype))
        if isinstance(truth, Raised):
            note = f"judged against the CPU: a step does not run in float64 ({truth.type}: {truth.message})"
            self.notes += [] if note in self.notes else [note]
            truth = cpu
        self.narrow = truth is cpu
        runs = self._rounded(before, number, batch, dtypes, [997 * number + k for k in range(self.samples)])
        scaled = any(isinstance(o, torch.amp.GradScaler) for o in self.near.others)  # which skips no step in float64
        alike = [r for r in runs if scaled or r.stepped == cpu.stepped]
        if (truth.stepped != cpu.stepped and not scaled) or (runs and 2 * len(alike) <= len(runs)):
            does = "does not step" if cpu.stepped else "steps"
            raise UsageError(
                f"step {number + 1} taken again from the same state {does} the optimizer; let step keep its counts in "
                "variables of make, or in its own object's attributes"
            )
        runs = alike
        half = any(d in HALF for some in dtypes.values() for d in some)
        suspects = self.judge.step(before, cpu, theirs, truth, runs, self.u, half)
        worst = max((s.off.ratio for s in suspects.values()), default=0.0)
        wanted = {k: s for k, s in suspects.items() if s.suspicious and k[0] not in self.departures}
        if wanted:
            keys = [997 * number + 500 + k for k in range(MORE)]
            larger = self._rounded(before, number, batch, dtypes, [k + MORE for k in keys[:FEW]], MARGIN)
            wanted = self.judge.left(wanted, self.judge.bounds(wanted, before, cpu, theirs, truth, runs, larger, self.u))
        if wanted:
            runs += self._rounded(before, number, batch, dtypes, keys)
            larger += self._rounded(before, number, batch, dtypes, [k + MORE for k in keys[FEW:]], MARGIN)
            sure = self.judge.again(wanted, before, cpu, theirs, truth, runs, larger, self.u)
            self._tell([self._departure(number, k, o, how) for k, (o, how) in sure.items()], before)
        return worst

    def _departure(self, number: int, key: tuple[str, str], o: Off, how: str) -> Departure:
        kind, name = key
        if o.lost:
            how = "NaN or Inf where the CPU, from the same state, has none"
        return Departure(number + 1, kind, name, o.ratio, how)

    def _tell(self, found: list[Departure], before: State) -> None:
        order = {n: k for k, n in enumerate(self.near.order)}
        for kind in KINDS:
            some = [d for d in found if d.kind == kind]
            if some and kind not in self.departures:
                # The backward pass goes through the layers from the last: the first parameter outside is nearest to the cause.
                one = min(some, key=lambda d: order.get(d.name, len(order)))
                more = f" ({plural(len(some) - 1, 'other')} at this step)" if len(some) > 1 else ""
                self.departures[kind] = replace(one, how=one.how + more)
        if self.departures and self.told is None:
            self.told = self.departures[next(iter(self.departures))].step - 1, before

    def _point(self, number: int, ours: Took, theirs: Took, moved: list[Took], ratio: float) -> Point:
        walked = _distance(ours.tensors, self.start.tensors)
        away = _distance(theirs.tensors, ours.tensors)
        explained = max(_distance(m.tensors, ours.tensors) for m in moved)
        by = walked or 1.0
        return Point(number + 1, float(ours.loss), float(theirs.loss), away / by, explained / by, ratio)

    def _located(self, title: str) -> Located | None:
        """The operators that part in the step that is told, from the device's own state before it."""
        assert self.told is not None
        number, before = self.told

        def prepared(places: Places) -> Callable[[], Any]:
            side = Side(self.make, self.device)
            side.load(before)
            for m, name in zip(side.modules, side.titles):
                places.know(m, name)
            given = side.batch(self.batches[number])
            return lambda: side.take(given, number)

        try:
            return locate_run(title, prepared, self.device, PATIENCE)
        except ParityError:
            return None


def _moved(t: Tensor, u: float, key: int) -> Tensor:
    """A tensor moved by about a rounding, in its own dtype: by two roundoffs, since one would be rounded back half the time."""
    return perturbed(t.to(torch.float64), 2.0 * u, key).to(t.dtype) if t.is_floating_point() else t


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    total = 0.0
    for n, x in a.items():
        if (x.is_floating_point() or x.is_complex()) and n in b and b[n].shape == x.shape:
            total += float((widened(x) - widened(b[n])).abs().square().sum())
    return total**0.5 if math.isfinite(total) else math.nan


# ----------------------------------------------------------------------------------------------------------------- the judge


@dataclass(frozen=True, slots=True)
class _Suspect:
    off: Off
    mean: float = 0.0  # common factor beside the CPU, over all steps so far
    steady: bool = False  # whether that is more than chance and an honest device's lean
    suspicious: bool = False


class _Judge:
    """Judges the results of one step after another. steps, tensors: how many comparisons there will be, for the limit that
    honest devices pass once in 1 / `FALSE_ALARMS` trainings."""

    def __init__(self, steps: int, tensors: int) -> None:
        self._p = FALSE_ALARMS / (2 * steps * tensors)
        self._past: dict[tuple[str, str], Past] = {}
        self._gates: dict[tuple[str, str], float] = {}  # higher where a closer look has found nothing

    def step(
        self, before: State, cpu: Took, theirs: Took, truth: Took, runs: list[Took], u: float, half: bool
    ) -> dict[tuple[str, str], _Suspect]:
        """How far off each result is, and whether it deserves a closer look. half: whether some of it ran in a half type."""
        found: dict[tuple[str, str], _Suspect] = {}
        for key, got, own, exact, others, least in _results(before, cpu, theirs, truth, runs, u):
            past = self._past.setdefault(key, Past())
            o = off(got, own, exact, others, least, past)
            mean, chance = past.steady(max(-GATE, min(GATE, o.beside)), self._p)
            steady = key[0] == "gradient" and abs(mean) > (HALF_LEANING if half else LEANING) + chance
            gate = self._gates.get(key, GATE)
            loud = o.lost or o.ratio > gate or abs(o.lean) > gate
            found[key] = _Suspect(o, mean, steady, loud or steady)
        return found

    def bounds(
        self, wanted: Mapping[tuple[str, str], _Suspect], before: State, cpu: Took, theirs: Took, truth: Took, runs: list[Took],
        larger: list[Took], u: float,
    ) -> dict[tuple[str, str], tuple[float, float]]:  # fmt: skip
        """(largest ratio, largest lean) of the runs with larger roundings, for each result."""
        found: dict[tuple[str, str], tuple[float, float]] = {}
        pairs = zip(_results(before, cpu, theirs, truth, runs, u), _results(before, cpu, theirs, truth, larger, u))
        for (key, _, own, exact, others, least), (_, _, _, _, big, _) in pairs:
            if key in wanted:
                each = [off(r, own, exact, others, least) for r in big]
                found[key] = max((o.ratio for o in each), default=0.0), max((abs(o.lean) for o in each), default=0.0)
        return found

    def left(
        self, wanted: Mapping[tuple[str, str], _Suspect], bounds: Mapping[tuple[str, str], tuple[float, float]]
    ) -> dict[tuple[str, str], _Suspect]:
        """Those that are farther off than runs with larger roundings."""
        kept: dict[tuple[str, str], _Suspect] = {}
        for key, s in wanted.items():
            if s.steady or s.off.lost or s.off.ratio > bounds[key][0] or abs(s.off.lean) > bounds[key][1]:
                kept[key] = s
            else:
                self._dismiss(key, s)
        return kept

    def _dismiss(self, key: tuple[str, str], s: _Suspect) -> None:
        self._gates[key] = HIGHER * max(s.off.ratio, abs(s.off.lean))

    def again(
        self, wanted: Mapping[Any, _Suspect], before: State, cpu: Took, theirs: Took, truth: Took, runs: list[Took],
        larger: list[Took], u: float,
    ) -> dict[tuple[str, str], tuple[Off, str]]:  # fmt: skip
        """Those that rounding does not explain, with many runs at hand, in words. larger: runs with larger roundings, of which
        none may be as far off as the device."""
        limit = student(self._p, max(1, len(runs)))
        sure: dict[tuple[str, str], tuple[Off, str]] = {}
        bounds = self.bounds(wanted, before, cpu, theirs, truth, runs, larger, u)
        for key, got, own, exact, others, least in _results(before, cpu, theirs, truth, runs, u):
            if key not in wanted:
                continue
            o, was = off(got, own, exact, others, least), wanted[key]
            most, widest = bounds[key]
            by = f"{o.error:.2g} off, {o.ratio:.3g}"
            leaning = f"all of it too {_side(o.lean)} by a common factor, {abs(o.lean):.3g}"
            steady = f"too {_side(was.mean)} by a common factor, step after step, {abs(was.mean):.3g}"
            if o.lost or o.ratio > max(MARGIN * limit, most):
                sure[key] = o, f"{by} times what rounding explains"
            elif key[0] != "loss" and abs(o.lean) > max(MARGIN * limit, widest):
                sure[key] = o, f"{leaning} times what rounding explains"
            elif was.steady:
                sure[key] = o, f"{steady} times what rounding explains"
            else:
                self._dismiss(key, was)
        return sure


def _side(lean: float) -> str:
    return "large" if lean > 0 else "small"


def _results(before: State, cpu: Took, theirs: Took, truth: Took, runs: list[Took], u: float) -> Any:
    """(key, device, CPU, truth, rounded runs, least error) of every result of a step that all sides have."""
    sides = (theirs, cpu, truth, *runs)
    least = 2.0 * u * max(1e-30, abs(float(truth.loss)))
    yield ("loss", ""), *(_picked([s.loss for s in sides])), least
    whole = _norm(truth.gradients.values())
    total = sum(g.numel() for g in truth.gradients.values()) or 1
    for n, g in truth.gradients.items():
        if all(n in s.gradients and s.gradients[n].shape == g.shape for s in sides):
            least = u * (float(g.norm()) + 0.1 * whole * math.sqrt(g.numel() / total)) + torch.finfo(torch.float32).tiny
            yield ("gradient", n), *(_picked([s.gradients[n] for s in sides])), least
    for n, t in truth.tensors.items():
        if (t.is_floating_point() or t.is_complex()) and all(s.tensors[n].shape == t.shape for s in sides):
            was = widened(before.tensors[n])
            own = unit_roundoff(before.tensors[n].dtype)
            least = own * float(was.norm()) + torch.finfo(torch.float32).tiny
            yield ("weights", n), *(_picked([widened(s.tensors[n]) - was for s in sides])), least


def _picked(sides: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    return sides[0], sides[1], sides[2], sides[3:]


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(widened(t).abs().square().sum()) for t in tensors))
