"""The result of `parity.compare_training`, and its text.

The judge of `parity.compare_training`: which results of a step lie farther off than rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.comparing.comparison import Line
from parity.comparing.moved_runs import ErrorHistory, RoundingDistance, off, student
from parity.core.results import Status
from parity.locating.located import Located, plural
from parity.oracle.roundoffs import unit_roundoff
from parity.oracle.yardstick import GATE, HALF_LEANING, HIGHER, LEANING, MARGIN, place
from parity.training.making import widened
from parity.training.side import State, StepResult

KINDS = ("loss", "gradient", "weights")
LEGEND = (
    "distance: of the weights from the CPU's, next to how far these have moved; rounding: the same of trainings on the CPU",
    "whose start and batches are moved by a rounding; this step: its own largest error, in units of what rounding explains",
)


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
    that diverge in the first step that is reported; broken: what the device raised, and when. seconds: of the whole comparison;
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
    def table(self) -> tuple[Line, ...]:
        """A line for each step that was taken, and for one that the device raised in. Only the first departure of each kind is
        judged to the end, so that a later step says by its error alone whether that goes on."""
        lines = []
        for p in self.curve:
            how = "; ".join(f"{d.title}: {d.how}" for d in self.departures if d.step == p.step)
            lines.append(Line(f"step {p.step}", Status.WRONG if how else Status.AGREE, p.ratio, how))
        lines += [Line(f"step {len(self.curve) + 1}", Status.ERROR, reason=self.broken)] if self.broken else []
        return tuple(lines)

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if self.first is None:
            if self.broken:
                return f"{self.subject} {self.broken}"
            return f"{self.subject}: rounding explains every one of {plural(self.steps, 'step')}{self._apart()}"
        f = self.first
        where = f"at step {f.step} of {self.steps}, first in the {f.title}"
        return f"{self.subject}: training diverges from the CPU's {where}: {f.how}"

    def _apart(self) -> str:
        """How far the weights come from the CPU's, and what rounding explains of that."""
        if not self.curve or not self.curve[-1].distance < math.inf:
            return ""
        p = self.curve[-1]
        if not p.distance:
            return "; the weights are equal to the CPU's"
        how = f"; in the end the weights differ from the CPU's by {p.distance:.2g} of the way that they went"
        return f"{how}, and those of trainings that start a rounding away by {p.explained:.2g}"

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
            return [f"taken again from the same state, no operator of that step diverges by itself ({what})"]
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


FALSE_ALARMS = 1e-4  # of a whole training on a device whose roundings are at most `MARGIN` times the CPU's


@dataclass(frozen=True, slots=True)
class Suspect:
    """How far off a result of a step is. mean: common factor of the difference to the CPU, over all steps so far; steady:
    whether that is more than chance and an honest device's lean, which is smaller in half types; suspicious: whether the result
    deserves a closer look."""

    off: RoundingDistance
    mean: float = 0.0
    steady: bool = False
    suspicious: bool = False
    half: bool = False


@dataclass(frozen=True, slots=True)
class StepRuns:
    """A step on all sides, from one state. runs: rounded ones; larger: those with larger roundings; u: the unit roundoff."""

    before: State
    cpu: StepResult
    theirs: StepResult
    truth: StepResult
    runs: Sequence[StepResult]
    u: float
    larger: Sequence[StepResult] = ()


class Judge:
    """Judges the results of one step after another. steps, tensors: how many comparisons there will be, for the limit that
    honest devices pass once in 1 / `FALSE_ALARMS` trainings."""

    def __init__(self, steps: int, tensors: int) -> None:
        self._p = FALSE_ALARMS / (2 * steps * tensors)
        self._past: dict[tuple[str, str], ErrorHistory] = {}
        self._gates: dict[tuple[str, str], float] = {}  # higher where a closer look has found nothing

    def step(self, t: StepRuns, half: bool) -> dict[tuple[str, str], Suspect]:
        """How far off each result is, and whether it deserves a closer look. half: whether some of it ran in a half type."""
        found: dict[tuple[str, str], Suspect] = {}
        for key, got, own, exact, others, least in _results(t, t.runs):
            past = self._past.setdefault(key, ErrorHistory())
            o = off(got, own, exact, others, least, past)
            mean, chance = past.steady(max(-GATE, min(GATE, o.cpu_lean)), self._p)
            steady = key[0] == "gradient" and abs(mean) > (HALF_LEANING if half else LEANING) + chance
            gate = self._gates.get(key, GATE)
            loud = o.lost or o.ratio > gate or abs(o.lean) > gate
            found[key] = Suspect(o, mean, steady, loud or steady, half)
        return found

    def bounds(self, wanted: Mapping[tuple[str, str], Suspect], t: StepRuns) -> dict[tuple[str, str], tuple[float, float]]:
        """(largest ratio, largest lean) of the runs with larger roundings, for each result."""
        found: dict[tuple[str, str], tuple[float, float]] = {}
        pairs = zip(_results(t, t.runs), _results(t, t.larger))
        for (key, _, own, exact, others, least), (_, _, _, _, big, _) in pairs:
            if key in wanted:
                each = [off(r, own, exact, others, least) for r in big]
                found[key] = max((o.ratio for o in each), default=0.0), max((abs(o.lean) for o in each), default=0.0)
        return found

    def left(
        self, wanted: Mapping[tuple[str, str], Suspect], bounds: Mapping[tuple[str, str], tuple[float, float]]
    ) -> dict[tuple[str, str], Suspect]:
        """Those that are farther off than runs with larger roundings."""
        kept: dict[tuple[str, str], Suspect] = {}
        for key, s in wanted.items():
            if s.steady or s.off.lost or s.off.ratio > bounds[key][0] or abs(s.off.lean) > bounds[key][1]:
                kept[key] = s
            else:
                self._dismiss(key, s)
        return kept

    def _dismiss(self, key: tuple[str, str], s: Suspect) -> None:
        self._gates[key] = HIGHER * max(s.off.ratio, abs(s.off.lean))

    def again(self, wanted: Mapping[Any, Suspect], t: StepRuns) -> dict[tuple[str, str], tuple[RoundingDistance, str]]:
        """Those that rounding does not explain, with many runs at hand, in words. None of the runs with larger roundings may be
        as far off as the device."""
        limit = student(self._p, max(1, len(t.runs)))
        sure: dict[tuple[str, str], tuple[RoundingDistance, str]] = {}
        bounds = self.bounds(wanted, t)
        for key, got, own, exact, others, least in _results(t, t.runs):
            if key not in wanted:
                continue
            o, was = off(got, own, exact, others, least), wanted[key]
            most, widest = bounds[key]
            by = f"{o.error:.2g} off, {o.ratio:.3g}"
            leaning = f"all of it too {_side(o.lean)} by a common factor, {abs(o.lean):.3g}"
            steady = f"too {_side(was.mean)} by a common factor, step after step, {abs(was.mean):.3g}"
            if o.lost or o.ratio > max(MARGIN * limit, most):
                sure[key] = o, f"{by} times what rounding explains ({place('margin')})"
            elif key[0] != "loss" and abs(o.lean) > max(MARGIN * limit, widest):
                sure[key] = o, f"{leaning} times what rounding explains ({place('margin')})"
            elif was.steady:
                row = "leaning of half types" if was.half else "leaning"
                sure[key] = o, f"{steady} times what rounding explains ({place(row)})"
            else:
                self._dismiss(key, was)
        return sure


def _side(lean: float) -> str:
    return "large" if lean > 0 else "small"


def _results(step: StepRuns, runs: Sequence[StepResult]) -> Any:
    """(key, device, CPU, truth, rounded runs, least error) of every result of a step that all sides have."""
    before, truth, u = step.before, step.truth, step.u
    sides = (step.theirs, step.cpu, truth, *runs)
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
