"""`parity.compare_training`: from which step on, and in which layer, a training on the device is more than rounding away from
the CPU's.

Two trainings diverge by themselves: each step makes the roundings of those before it larger. So every step is judged alone. The
device takes it; then the CPU takes it from the device's own state (weights, buffers, gradients, optimizer, scheduler, scaler),
and so do float64 and a few runs in float64 in which every operator's result is rounded by chance, in the dtype that it had.
How far those lie from float64 is what rounding explains of loss, gradients and new weights. A step that seems to leave it is
run `MORE` times more before it is reported, also with larger roundings, which shows whether a rounding decides it (a ReLU at
zero). The step that is reported is then searched as by `parity.locate`. The trainings also run freely, on both, and on the CPU
from a start moved by a rounding: this shows what differences grow to.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity.comparing import meter
from parity.comparing.advice import SIDES
from parity.comparing.comparison import ParityWarning
from parity.comparing.draws import ATEN_INTO, ATEN_MADE
from parity.comparing.function import attempted, raised_at, target
from parity.comparing.moved_runs import RoundingDistance, by_chance, moved
from parity.comparing.places import Places
from parity.core.dtypes import HALF
from parity.core.errors import NothingCompared, ParityError, UsageError
from parity.core.results import Raised
from parity.devices import Device
from parity.execution import execute as ex
from parity.locating.located import Located, plural
from parity.locating.noted import Noted
from parity.locating.search import locate_run
from parity.oracle.roundoffs import perturbed, unit_roundoff
from parity.oracle.step_dtypes import Recorded, in_double
from parity.oracle.yardstick import MARGIN
from parity.training.making import widened
from parity.training.side import Side, State, StepResult, other_way_of, taken
from parity.training.trained import KINDS, Departure, Judge, Point, StepRuns, Training

SAMPLES = 4  # rounded runs of the first steps
SETTLED = 4  # steps after which those before lend their widths, so that one rounded run of each is plenty
FEW = 4  # with larger roundings, which show at once where a rounding decides it
MORE = 32  # of a step that seems to leave what rounding explains
FREE = 2  # trainings on the CPU from a start moved by a rounding
PATIENCE = 120.0  # seconds for locating in the step that is reported
TOO_OFTEN = 2  # steps in a row that only the device skips
EAGER = "torch.compile made some of it, and what was compared here is its eager code: parity.assert_parity takes compile="


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

    make(device) or make() builds everything anew each time and returns the model, its optimizer, any scheduler, GradScaler, EMA
    or other object with a state_dict, and last step(batch), the user's own training step, which returns the loss. Without it,
    model(*batch) must return the loss. A make without parameters runs with the device as torch's default. data: batches, an
    iterable or a function that returns one; it starts over where it ends early. samples: rounded runs of each of the first
    steps; later ones borrow these widths, and a step with the CPU's very bits takes none. locate: search the first step that is
    reported for its operator.

    Random numbers (dropout) are drawn on the CPU and handed to both sides, so that masks agree. The result is true in a test
    (`assert parity.compare_training(...)`) where rounding explains all steps. Raises UsageError if a step does not run on the
    CPU or make does not return what it must, DeviceError for a device that is not available.

    >>> class Net(torch.nn.Linear):
    ...     forward = lambda self, x: torch.nn.functional.linear(x, self.weight, self.bias).square().mean()
    >>> make = lambda: (model := Net(4, 2), torch.optim.SGD(model.parameters(), lr=0.1))
    >>> parity.compare_training(make, [torch.randn(3, 4)], steps=1, device="sim").agrees
    True
    """
    if not callable(make):
        raise UsageError(f"make is {type(make).__name__}; give the function that builds model and optimizer")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UsageError(f"steps is {steps!r}; give a whole number from 1 on")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
        raise UsageError(f"samples is {samples!r}; give a whole number from 2 on")
    place = target(device)
    if place.name == "cpu":
        raise UsageError("the device is the CPU itself, which cannot diverge from itself; name another with device=")
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
            tensors = {n: moved(t, 7 * i + 1000 * k, self.u) for i, (n, t) in enumerate(self.start.tensors.items())}
            side.load(replace(self.start, tensors=tensors))
        self.judge = Judge(len(batches), 2 * len(self.start.tensors) + 1)
        self.departures: dict[str, Departure] = {}
        self.curve: list[Point] = []
        self.notes: list[str] = [EAGER] if self.there.compiled else []
        self.draws, self.skipped = 0, 0
        self.trained = self.stepped = self.narrow = False
        self.reported: tuple[int, State] | None = None
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
        broken, progress = "", meter.Meter("" if meter.watched() else self.near.name)
        for number, batch in enumerate(self.batches):
            where, left = f"step {number + 1} of {len(self.batches)}", len(self.batches) - number - 1
            meter.at(number, len(self.batches), where)
            with progress.run(where, left, alike=True):
                broken = self._step(number, batch)
            if broken:
                break
            if self.departures and not math.isfinite(self.curve[-1].device_loss):
                more = len(self.batches) - number - 1
                self.notes += [f"the last {plural(more, 'step')} were left out: the device's loss is not finite"] * bool(more)
                break
        found = sorted(self.departures.values(), key=lambda d: d.step)
        located = self._located(title) if self.reported is not None and self.locates else None
        if self.reported is not None and self.locates and (located is None or located.first is None):
            self.notes += other_way_of(self.make, self.device, self.reported, self.batches)
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
        shaken = [  # which go on from their own states
            taken(s.extra(None, number, batch, functools.partial(moved, u=self.u, key=31 * number + k)), number)
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
            self.reported = self.reported or (number, before)
            if SIDES.search(theirs.message) and (name := self.there.stays()):
                self.notes.append(f"'{name}' of the step lies on the CPU: let make put it on the device that it gets")
            return f"raises at step {number + 1} of {len(self.batches)} ({theirs.type}: {theirs.message})"
        self._random(cpu, theirs, number)
        self._alive(number, before, cpu)
        ratio = self._compared(number, batch, before, cpu, theirs, recorded.dtypes)
        self.curve.append(self._point(number, ours, theirs, shaken, ratio))
        return ""

    def _on_the_cpu(self, side: Side, number: int, batch: Any, timed: bool = False, around: Any = None) -> StepResult:
        given = side.batch(batch)
        began = time.perf_counter()
        got, cause = attempted(lambda: side.take(given, number, around), "run")
        if isinstance(got, Raised):
            raise UsageError(f"step {number + 1} raises on the CPU: {got.type}: {got.message}{raised_at(cause)}") from cause
        self.plain += (time.perf_counter() - began) if timed else 0.0
        took: StepResult = got
        return took

    def _random(self, cpu: StepResult, theirs: StepResult, number: int) -> None:
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
                f"step {number + 1} makes {plural(cpu.draws, 'random draw')} on the CPU and {theirs.draws} on the device, "
                "so that they cannot be handed over; set dropout to 0"
            )

    def _alive(self, number: int, before: State, cpu: StepResult) -> None:
        """Whether there is something to judge in a step."""
        changed = any(
            not torch.equal(t, before.tensors[n]) for n, t in cpu.tensors.items() if before.tensors[n].shape == t.shape
        )
        self.stepped |= cpu.stepped or changed
        self.trained |= cpu.stepped or changed or bool(cpu.gradients)
        note = "is NaN or Inf on the CPU, too, from the same state: what is not finite there was not judged"
        if not math.isfinite(float(cpu.loss)) and not any(n.endswith(note) for n in self.notes):
            self.notes.append(f"from step {number + 1} on the loss {note}")

    def _rounded(
        self, before: State, number: int, batch: Any, dtypes: Any, keys: Sequence[int], times: float = 1.0
    ) -> list[StepResult]:
        """The step in float64, rounded by chance, with more keys if it runs with none of these; where it has no float64,
        on the CPU from a state and with a batch moved by a rounding. Raises UsageError if it raises there, or each time."""
        if self.narrow:
            return [taken(self._shaken(before, number, batch, key, times), number) for key in keys]
        every = list[StepResult | Raised]()
        for key in (*keys, *range(keys[-1] + 1, keys[-1] + self.samples)):
            if len(every) >= len(keys) and any(isinstance(r, StepResult) for r in every):
                break
            around = functools.partial(by_chance, dtypes, self.near.dtype, key, times)
            change = functools.partial(perturbed, u=times * self.u, key=key)
            every.append(self.wide.extra(before, number, batch, change, around))
        return [r for r in every if isinstance(r, StepResult)] or [taken(every[0], number)]

    def _shaken(self, before: State, number: int, batch: Any, key: int, times: float) -> StepResult | Raised:
        u = times * self.u
        tensors = {n: moved(t, 1000 * key + i, u) for i, (n, t) in enumerate(before.tensors.items())}
        start = replace(before, tensors=tensors)
        return self.near.extra(start, number, batch, functools.partial(moved, u=u, key=key))

    def _compared(
        self, number: int, batch: Any, before: State, cpu: StepResult, theirs: StepResult, dtypes: Mapping[str, list[str]]
    ) -> float:
        """Judge a step; the largest error in units of what rounding explains."""
        if cpu.stepped != theirs.stepped:
            self.skipped += 0 if theirs.stepped else 1
            if self.skipped == TOO_OFTEN:
                self._report(
                    [Departure(number + 1, "gradient", "", math.inf, "GradScaler finds NaN or Inf that the CPU has not")],
                    before,
                )
            return 0.0
        self.skipped = 0
        blown = not cpu.stepped and any(not bool(g.isfinite().all()) for g in cpu.gradients.values())
        if blown or (number and cpu.equals(theirs)):
            return 0.0  # a GradScaler that is looking for its scale, or the CPU's very step
        truth = self.wide.extra(before, number, batch, None, lambda: in_double(self.near.dtype))
        if isinstance(truth, Raised):
            note = f"judged against the CPU: a step does not run in float64 ({truth.type}: {truth.message})"
            self.notes += [] if note in self.notes else [note]
            truth = cpu
        self.narrow = truth is cpu
        few = self.samples if number < SETTLED else 1
        runs = self._rounded(before, number, batch, dtypes, range(997 * number, 997 * number + few))
        scaled = any(isinstance(o, torch.amp.GradScaler) for o in self.near.others)  # which skips no step in float64
        if few < self.samples and not scaled and any(r.stepped != cpu.stepped for r in runs):
            runs += self._rounded(before, number, batch, dtypes, range(997 * number + few, 997 * number + self.samples))
        alike = [r for r in runs if scaled or r.stepped == cpu.stepped]
        if (truth.stepped != cpu.stepped and not scaled) or 2 * len(alike) <= len(runs):
            does = "does not step" if cpu.stepped else "steps"
            raise UsageError(
                f"step {number + 1} taken again from the same state {does} the optimizer; let step keep its counts in "
                "variables of make, or in its own object's attributes"
            )
        runs = alike
        step = StepRuns(before, cpu, theirs, truth, runs, self.u)
        suspects = self.judge.step(step, half=any(d in HALF for some in dtypes.values() for d in some))
        worst = max((s.off.ratio for s in suspects.values()), default=0.0)
        wanted = {k: s for k, s in suspects.items() if s.suspicious and k[0] not in self.departures}
        if wanted:
            keys = [997 * number + 500 + k for k in range(MORE)]
            larger = self._rounded(before, number, batch, dtypes, [k + MORE for k in keys[:FEW]], MARGIN)
            wanted = self.judge.left(wanted, self.judge.bounds(wanted, replace(step, larger=larger)))
        if wanted:
            runs += self._rounded(before, number, batch, dtypes, keys)
            larger += self._rounded(before, number, batch, dtypes, [k + MORE for k in keys[FEW:]], MARGIN)
            sure = self.judge.again(wanted, replace(step, runs=runs, larger=larger))
            self._report([self._departure(number, k, o, how) for k, (o, how) in sure.items()], before)
        return worst

    def _departure(self, number: int, key: tuple[str, str], o: RoundingDistance, how: str) -> Departure:
        kind, name = key
        if o.lost:
            how = "NaN or Inf where the CPU, from the same state, has none"
        return Departure(number + 1, kind, name, o.ratio, how)

    def _report(self, found: list[Departure], before: State) -> None:
        order = {n: k for k, n in enumerate(self.near.order)}
        for kind in KINDS:
            some = [d for d in found if d.kind == kind]
            if some and kind not in self.departures:
                # The backward pass goes through the layers from the last: the first parameter outside is nearest to the cause.
                one = min(some, key=lambda d: order.get(d.name, len(order)))
                more = f" ({plural(len(some) - 1, 'other')} at this step)" if len(some) > 1 else ""
                self.departures[kind] = replace(one, how=one.how + more)
        if self.departures and self.reported is None:
            self.reported = self.departures[next(iter(self.departures))].step - 1, before

    def _point(self, number: int, ours: StepResult, theirs: StepResult, shaken: Sequence[StepResult], ratio: float) -> Point:
        walked = _distance(ours.tensors, self.start.tensors)
        away = _distance(theirs.tensors, ours.tensors)
        explained = max(_distance(m.tensors, ours.tensors) for m in shaken)
        by = walked or 1.0
        return Point(number + 1, float(ours.loss), float(theirs.loss), away / by, explained / by, ratio)

    def _located(self, title: str) -> Located | None:
        """The operators that diverge in the step that is reported, from the device's own state before it."""
        assert self.reported is not None
        number, before = self.reported

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


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    total = 0.0
    for n, x in a.items():
        if (x.is_floating_point() or x.is_complex()) and n in b and b[n].shape == x.shape:
            total += float((widened(x) - widened(b[n]))[x != b[n]].abs().square().sum())  # a limit of Inf stays Inf
    return total**0.5 if math.isfinite(total) else math.nan
