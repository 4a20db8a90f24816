"""The cases of an item: which are drawn, which of them are left out because others hung, and the events that happen to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from parity.core.case import Case
from parity.core.errors import CaseError
from parity.engine.alone import Checked
from parity.engine.planning import RunPlan
from parity.engine.rounds import Part
from parity.engine.suite import Item
from parity.findings.recognition import outline, shared
from parity.generation import generate, sweep
from parity.generation.generate import Drawn

# So many explored cases in a row have the same shapes, scalars and flags on a device that compiles and keeps a graph for each.
# Two cost 3 of 164 bugs of the zoo and save 29 % of the graphs, three cost 6 and save 42 % (parity prove cost counts them).
ALIKE = 2
TRIED = 12  # structures of which one is taken, where all explored cases share it
SWEPT = 1 << 28  # the ordinal of the first case of the sweep over border sizes
SWEPT_ROUND = 1  # the part of a run with a limit of time that sweeps
PLAIN_NUMEL = 1000  # a case of more elements may hang for its size


@dataclass(frozen=True, slots=True)
class CaseDrawn:
    """A case that is about to be checked. text: its id."""

    ordinal: int
    pinned: bool
    one: Drawn
    text: str


@dataclass(frozen=True, slots=True)
class CaseLeftOut:
    """A case that is not run. tried: whether it was, and ended a process."""

    text: str
    tried: bool


@dataclass(frozen=True, slots=True)
class CaseDied:
    """A case that ended its process, or came after too many that did."""

    drawn: CaseDrawn


@dataclass(frozen=True, slots=True)
class CaseChecked:
    """A case that was checked. before: those before it in its process, the last one last, if it shows a finding."""

    drawn: CaseDrawn
    checked: Checked
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoMoreCases:
    """The item ends because no further case can be drawn."""

    why: str


def drawn(item: Item, plan: RunPlan, part: Part | None = None, first: int = 0) -> Iterator[tuple[int, bool, Drawn]]:
    """(ordinal, pinned, case) of every case of an item, or of a part of it; depends on item, profile, seed, study, and
    whether the device keeps graphs. first: the least ordinal that is asked for; a study may give others before it."""
    p, o = plan.profile, plan.options
    alike = max(p.alike, ALIKE if plan.device.keeps_graphs else 1)
    alike = 1 if item.row.is_sampled else alike  # an entry's samples are its structures
    if (others := plan.study.cases(item, p.sizes, o.seed)) is not None:
        yield from others
        return
    for k in range(first, p.pinned if part is None or part.pinned else 0):
        yield k, True, generate.nth(item.row, item.dtype, p.sizes, "pinned", k, mixes=False)
    n = p.examples(item.row, item.dtype) if o.examples is None else o.examples
    ample = 1 + (_ample(item, plan, alike) * alike if p.alike > 1 and alike > 1 else 0)
    for k in range(max(first - p.pinned, 0 if part is None else part.start), n if part is None else part.stop):
        yield p.pinned + k, False, generate.nth(item.row, item.dtype, p.sizes, o.seed, ample + k, alike)
    sweeps = o.examples is None and (part is None or part.round == SWEPT_ROUND)
    for k in range(max(0, first - SWEPT), p.sweeps(item.row, item.dtype) if sweeps else 0):
        one = sweep.swept(item.row, item.dtype, p.sweep, o.seed, k)
        if one is not None:
            yield SWEPT + k, False, one


def _ample(item: Item, plan: RunPlan, alike: int) -> int:
    """Which of the first structures of an item all its explored cases are to share: the first one with elements in every
    operand, and two dimensions of more than one element in one of them, or what comes nearest to that."""

    def room(k: int) -> tuple[bool, int]:
        case = generate.nth(item.row, item.dtype, plan.profile.sizes, plan.options.seed, 1 + k * alike, alike).case
        shapes = [s.shape for s in case.operands()]
        return all(0 not in s for s in shapes), min(2, max((sum(n > 1 for n in s) for s in shapes), default=0))

    best, most = 0, (False, -1)
    for k in range(TRIED):
        if (found := room(k)) > most:
            best, most = k, found
        if most == (True, 2):
            break
    return best


def alike(item: Item, plan: RunPlan, part: Part | None, hung: Sequence[Case]) -> frozenset[int]:
    """The ordinals of the cases that are like those that hung: each would take as long again. One plain small call that hung
    says nothing about others."""
    if not hung:
        return frozenset()
    common = shared(hung)
    if len(hung) == 1 and not common.words and common.numel <= PLAIN_NUMEL:
        return frozenset()
    found = set[int]()
    with suppress(CaseError):  # no further case can be drawn
        found.update(k for k, _, one in drawn(item, plan, part) if common.stands_for(outline(one.case)))
    return frozenset(found)
