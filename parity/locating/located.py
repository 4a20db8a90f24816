"""The result of `parity.locate`, and its text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from parity.checks.operators import OperatorCall
from parity.comparing.comparison import Line
from parity.comparing.compiled import CompiledSide
from parity.comparing.places import Place
from parity.core.results import Status, Verdict
from parity.locating.modules import ModuleError, shown

SHOWN = 5  # diverging operators in the text
PASSES = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Divergence:
    """An operator (or function) whose own result is outside. operator: "aten::gelu" or "torch.nn.functional.gelu"; pass_: one
    of `PASSES`; verdict: of its worst result; call: the operator with its operands, None for a function; of: what it
    judges, where that is no result; off: how far the nearest of its doubtful results is off, in units of what the roundings
    of one operator explain."""

    operator: str
    pass_: str
    place: Place
    verdict: Verdict
    call: OperatorCall | None = None
    of: str = ""
    off: float = math.inf

    @property
    def is_wrong(self) -> bool:
        """Whether an operator gave other numbers."""
        return self.call is not None and self.verdict.status.differs and self.verdict.status is not Status.MALFORMED

    @property
    def title(self) -> str:
        """The module, and in which pass."""
        return f"{self.place}, {self.pass_}"

    @property
    def what(self) -> str:
        """The operator, its status, and how far it is off."""
        return f"{self.operator} {self.verdict.status}" + (f", {self.how}" if self.how else "")

    @property
    def how(self) -> str:
        """How far the operator is off; the reason if there is no such number."""
        m = self.verdict.measure
        share = m is not None and m.share is not None and 0.0 < m.share < float("inf")
        return f"{m.share:.3g} times the budget" if share and m is not None else self.verdict.reason


@dataclass(frozen=True, slots=True, repr=False)
class Located:
    """What `locate` found. subject: "Net float32 on mps"; divergences: the operators whose own results are outside, in the
    order in which they ran; compared: number of calls of operators that were; left: reason -> number of those that were not.
    broken: what the function raised on the device; whole: what differs in its results although no operator diverges alone;
    modules: how far each is off as errors add up, in the order in which they ran, where that was asked for. here: of a
    comparison with a capture, what was located on the device of this machine (None for the CPU); compiled: what became of the
    function that torch.compile compiled, where that was asked for. next: the command that tests the first operator by
    itself; workaround: what was tried around that operator and agreed, "" for nothing; agreement: where nothing diverges, how
    far the results are from the CPU's and what rounding allows, a line each; times: how long both sides take, where that was
    asked for, a line each."""

    subject: str
    dtype: str
    device: str
    divergences: tuple[Divergence, ...] = ()
    compared: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    broken: str = ""
    whole: str = ""
    notes: tuple[str, ...] = ()
    modules: tuple[ModuleError, ...] = ()
    here: Located | None = None
    compiled: CompiledSide | None = None
    next: str = ""
    workaround: str = ""
    agreement: tuple[str, ...] = ()
    times: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the run came to its end, and nothing differs."""
        others = (self.here is None or self.here.agrees) and (self.compiled is None or not self.compiled.wrong)
        return others and not (self.divergences or self.broken or self.whole)

    @property
    def first(self) -> Divergence | None:
        """The first operator that diverges by itself; None if none does, even where the run or its results differ."""
        return self.divergences[0] if self.divergences else None

    @property
    def table(self) -> tuple[Line, ...]:
        """A line for each operator that differs, and for all else that does: the run, its results, compiled code, and what
        was located here."""
        lines = [Line.of(f"{p.title}: {p.operator}", p.verdict) for p in self.divergences]
        lines += [Line("the call", Status.ERROR, reason=self.broken)] if self.broken else []
        lines += [Line("the results", Status.WRONG, reason=self.whole)] if self.whole else []
        compiled = self.compiled.verdicts if self.compiled is not None else ()
        lines += [Line.of(f"compiled: {n or 'the call'}", v) for n, v in compiled if v.status is not Status.AGREE]
        lines += [replace(line, where=f"here: {line.where}") for line in (self.here.table if self.here is not None else ())]
        return tuple(lines)

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if self.first is None:
            if self.compiled is not None and not self.broken and not self.whole:
                return f"{self.subject} {self.compiled.text}"
            many = plural(self.compared, "call") + " of operators"
            agree = "agrees" if self.compared == 1 else "agree"
            if self.broken:
                return f"{self.subject} raises on the device ({self.broken}); {many} before {agree} with the CPU"
            if self.whole:
                return f"{self.subject}: no operator diverges alone ({many} {agree}), but the results differ: {self.whole}"
            return f"{self.subject}: no operator diverges; {many} {agree} with the CPU, each on the operands that it got"
        return f"{self.subject} diverges from the CPU first in {self.first.title}: {self.first.what}"

    def __repr__(self) -> str:
        return f"<{self.headline}>"

    def __str__(self) -> str:
        lines = [self.headline, *(f"  {line}" for line in self.agreement)]
        for k, p in enumerate(self.divergences[:SHOWN]):
            lines += ["then, each judged by itself:"] if k == 1 else []
            lines += [f"  {p.title}: {p.what}"] if k else []
            lines += [f"  {line}" for line in (*worst(p), *called(p))]
            lines += [f"  workaround: {self.workaround}"] if self.workaround and not k else []
        more = len(self.divergences) - SHOWN
        lines += [f"  ... and {plural(more, 'more call')} of operators"] if more > 0 else []
        if self.first is not None:
            lines.append(f"{plural(self.compared, 'call')} of operators compared")
        lines += [f"note: {plural(n, 'call')} of operators not compared: {why}" for why, n in self.left.items()]
        if self.compiled is not None:
            lines += [f"compiled: {line}" for line in self.compiled.lines if line not in self.headline]
        if self.modules:
            lines += ["each module, as errors add up, in units of what rounding explains there:"]
            lines += [f"  {line}" for line in shown(self.modules)]
        lines += self.times
        lines += [f"note: {n}" for n in self.notes]
        lines += [f"next: {self.next}"] if self.next else []
        lines += [f"and here: {self.here}"] if self.here is not None else []
        return "\n".join(lines)


def plural(n: int, noun: str) -> str:
    """A number with its noun."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


def worst(p: Divergence) -> Iterator[str]:
    """Its worst element, on both sides, and the row that judged it."""
    m, row = p.verdict.measure, p.verdict.tolerance
    if m is not None and m.device:
        truth = f", truth {m.truth}" if m.truth else ""
        of = f" of {p.of}" if p.of else ""
        yield f"worst at {list(m.index)}{of}: device {m.device}, CPU {m.reference or m.truth}{truth}" + (
            f" ({row.origin})" if row is not None else ""
        )


def called(p: Divergence) -> Iterator[str]:
    """The public function that the operator belongs to, and its line."""
    of = "of" if p.pass_ == "backward" else "by"
    if p.place.function or p.place.line:
        yield f"{of} {p.place.function or 'a call'}" + (f" at {p.place.line}" if p.place.line else "")
