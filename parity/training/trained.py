"""The result of `parity.compare_training`, and its text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parity.comparing.comparison import Line
from parity.core.results import Status
from parity.locating.located import Located, plural

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
