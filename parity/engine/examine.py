"""Examine one item: check its pinned and explored cases, collect findings by kind, and shrink each kind.

`Examination.events` yields typed events, and listeners make of them what the item reports. A finding never stops the drawing;
the findings are complete only when all cases have run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from parity.checks.check import failing
from parity.core import notation
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import Json, Record
from parity.devices.refusals import listening
from parity.engine.alone import Checked, IsolatedRunner
from parity.engine.cases import (
    CaseChecked,
    CaseDied,
    CaseDrawn,
    CaseLeftOut,
    Held,
    ItemTally,
    NoMoreCases,
    alike,
    drawn,
    is_near,
    record,
)
from parity.engine.checking import ItemRun, Leaks, checked_here, end_unless_able
from parity.engine.findings import Finding, Looks, by_kind, how_far, may_report_now, record_of
from parity.engine.journal import CaseJournal
from parity.engine.known_cases import recognition, replay_known, take_out_known
from parity.engine.planning import BASE_SECONDS, RunPlan
from parity.engine.rounds import PINNED, Part
from parity.engine.suite import Item
from parity.execution.modes import Unwatched
from parity.generation.generate import Drawn
from parity.store.figures import Figures
from parity.store.rows import ItemRow, Power, Sighting

GIVE_UP_AFTER = 12  # after so many cases, all of them refused, the rest of an item is not drawn
PATIENCE_ALONE, PROCESSES_ALONE = 900.0, 6  # seconds for starting processes, and how many of them one case may need


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that examining an item gave. features: of every case, with the aspects in which it was compared; known: what
    was seen of known findings; unknown: the summary without the refusals and fallbacks that are known; explained: the cases of
    the records that known cases stand for; deaths: of other processes, as rows for the controller; held: what `explain` is to
    explain."""

    summary: ItemRow
    records: tuple[Record, ...]
    findings: tuple[Finding, ...]
    features: tuple[frozenset[str], ...] = ()
    power: tuple[Power, ...] = ()
    figures: tuple[Figures, ...] = ()
    known: tuple[Sighting, ...] = ()
    unknown: ItemRow | None = None
    explained: tuple[str, ...] = ()
    deaths: tuple[Json, ...] = ()
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Leaked:
    """A case leaves memory on the device each time. bytes: by case."""

    bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A finding that is known."""

    record: Record


Event: TypeAlias = CaseDrawn | CaseLeftOut | CaseDied | CaseChecked | NoMoreCases | Leaked | Accepted | Finding


class Listener(Protocol):
    """Hears what happens while an item is examined."""

    def hear(self, event: Event) -> None:
        """Take note of it, if it is of interest."""


class Reported:
    """A listener that keeps what the item reports besides its cases."""

    def __init__(self) -> None:
        self.leaks: dict[str, int] = {}
        self.accepted: list[Record] = []
        self.findings: list[Finding] = []

    def hear(self, event: Event) -> None:
        """Keep it."""
        match event:
            case Leaked():
                self.leaks |= event.bytes
            case Accepted():
                self.accepted.append(event.record)
            case Finding():
                self.findings.append(event)


class FirstFound:
    """A listener that reports the first finding as soon as a case shows it: the item may take long to end. What the whole run
    may call marginal is not reported."""

    def __init__(self, item: Item, say: Callable[[Record], None]) -> None:
        """say: called once."""
        self._item, self._say = item, say
        self._said = False

    def hear(self, event: Event) -> None:
        """Report it."""
        if self._said or not isinstance(event, CaseChecked):
            return
        for r in (r for r in event.checked.results if r.verdict.status.is_finding and not is_near(r)):
            self._said = True
            self._say(record(self._item, r, event.drawn.text, event.checked.digest, event.drawn.pinned))
            return


class Examination:
    """The jobs of examining one item, one after the other: `events` yields what happens in them, and goes on when the
    `listeners` have heard it."""

    def __init__(
        self,
        item: Item,
        plan: RunPlan,
        journal: CaseJournal,
        dead: frozenset[int],
        part: Part | None,
        alone: IsolatedRunner | None,
    ) -> None:
        """As in `examine`."""
        self.run = run = ItemRun(item, plan, journal)
        self.item, self.plan, self.journal, self.dead, self.part, self.alone = item, plan, journal, dead, part, alone
        self.known, self.tally, self.leaks, self.reported = recognition(run), ItemTally(item), Leaks(run), Reported()
        self.listeners: tuple[Listener, ...] = self.tally, self.leaks, self.reported
        if plan.first is not None:
            self.listeners += (FirstFound(item, plan.first),)
        self._last = 0, item.id, ""  # ordinal, item and text of the last case

    def events(self, left_out: frozenset[int]) -> Iterator[Event]:
        """Everything that happens, in order. left_out: ordinals of cases that are not run."""
        if self._is_first:  # each known case is run once
            replay_known(self.run, self.known, self.dead)
        else:
            self.known.leave_out_deadly()
        yield from self._cases(left_out)
        yield from self._after_the_cases()
        yield from map(Accepted, take_out_known(self.run, self.tally, self.known))
        yield from self._findings()

    @property
    def _is_first(self) -> bool:
        """Whether no part of the item comes before this one."""
        return self.part is None or self.part.round == PINNED

    def _cases(self, left_out: frozenset[int]) -> Iterator[Event]:
        """Check the cases, until the time is over, or the item says no more."""
        tally = self.tally
        try:
            for ordinal, pinned, one in _unwatched(drawn(self.item, self.plan, self.part)):
                if ordinal in left_out:
                    yield CaseLeftOut(notation.case_text(one.case), ordinal in self.dead)
                    continue
                if not pinned and self.plan.left <= 0:
                    return
                case = CaseDrawn(ordinal, pinned, one, notation.case_text(one.case))
                self._last = ordinal, self.item.id, case.text
                yield case
                if case.text in self.known.deadly:
                    continue
                checked = self._checked(case, left_out)
                if checked is None:
                    yield CaseDied(case)
                    continue
                yield CaseChecked(case, checked, tuple(self.journal.calls)[:-1] if failing(checked.results) else ())
                if not checked.void and (
                    (tally.cases >= GIVE_UP_AFTER and tally.all_refused) or self.plan.study.is_over(self.item, tally.counts)
                ):
                    return
        except CaseError as e:  # an OpInfo entry without samples ends the item with a reason
            yield NoMoreCases(str(e))

    def _checked(self, case: CaseDrawn, left_out: frozenset[int]) -> Checked | None:
        """Check a case, here or in another process; None if it ended that."""
        with Unwatched():
            allowed = self.plan.patience(case.one.case)
        if self.alone is None:
            self.journal.begin(case.ordinal, self.item.id, case.text, allowed)
            return checked_here(self.run, case)
        self.journal.begin(case.ordinal, self.item.id, case.text, PATIENCE_ALONE + PROCESSES_ALONE * allowed)
        checked = self.alone.checked(case.ordinal, case.text, allowed, left_out)
        self.journal.end()
        return checked

    def _after_the_cases(self) -> Iterator[Event]:
        """Whether the device still computes, and whether a case leaves memory behind."""
        if self.alone is not None:
            self.alone.close()
            return
        self.journal.begin(*self._last, self.plan.options.hang_after or BASE_SECONDS)
        said = next(iter(self.tally.void), "the last case, or one before it that said nothing")
        end_unless_able(self.item, self.plan, self.journal, said)
        self.journal.end()
        if self.plan.study.looks_everywhere and self._is_first and (found := self.leaks.found()):
            yield Leaked(found)
        self.run.notes.clear()

    def _findings(self) -> Iterator[Event]:
        """Each kind of finding, with its cause if this part looks for it: that counts for a limit of time."""
        plan, part = self.plan, self.part
        now = not plan.later if part is None or plan.limit is None else may_report_now(part, plan.limit, self.tally)
        looks, began = how_far(plan.options, self.dead), time.monotonic()
        looks = Looks(looks.kinds if now else 0, looks.locate and now, not now and not plan.options.no_shrink)
        yield from by_kind(self.run, self.tally, self.known, looks)
        if plan.limit is not None:
            plan.limit.causes += time.monotonic() - began


def _unwatched(cases: Iterator[tuple[int, bool, Drawn]]) -> Iterator[tuple[int, bool, Drawn]]:
    """The cases, drawn outside of the modes that the device's calls pass through."""
    while True:
        with Unwatched():
            if (case := next(cases, None)) is None:
                return
        yield case


def examine(
    item: Item,
    plan: RunPlan,
    journal: CaseJournal,
    dead: frozenset[int] = frozenset(),
    part: Part | None = None,
    alone: IsolatedRunner | None = None,
    hung: Sequence[Case] = (),
) -> Examined:
    """Check every case of an item, or of a part of it; exploration ends when the time is over. dead: ordinals of cases that
    ended a process before and are left out; alone: checks the cases in other processes; hung: cases of the item that hung:
    those that have all that they share, and are not smaller, are left out."""
    started = time.monotonic()
    plan.study.begin()
    it = Examination(item, plan, journal, dead, part, alone)
    left_out = dead | alike(item, plan, part, hung)
    with plan.device.active(), listening(it.run.notes):
        for event in it.events(left_out):
            for listener in it.listeners:
                listener.hear(event)
    tally, known, reported = it.tally, it.known, it.reported
    records = (*tally.records, *reported.accepted, *map(record_of, reported.findings))
    summary = replace(tally.summary(time.monotonic() - started), round=0 if part is None else max(0, part.round))
    summary = plan.study.noted(replace(summary, leaks=reported.leaks))
    unknown = known.without_known(summary, plan.options.fail_on_statuses)  # which adds to what was seen
    return Examined(
        summary,
        records,
        tuple(reported.findings),
        tuple(tally.features),
        tuple(tally.power()),
        (tally.packed(not plan.options.no_screens),),
        tuple(known.sightings),
        unknown,
        tuple(r.shrunk for r in reported.accepted),
        () if alone is None else tuple(alone.deaths),
        Held(dict(tally.failing), frozenset(tally.pinned)) if plan.later and tally.failing else None,
    )


def explain(
    item: Item, plan: RunPlan, journal: CaseJournal, held: Held, dead: frozenset[int] = frozenset()
) -> tuple[tuple[Finding, ...], tuple[Record, ...], tuple[Sighting, ...]]:
    """Shrink what an item found, and look for the causes: the findings, their records, and what was seen of known ones. dead:
    as in `examine`."""
    tally, run = ItemTally(item, pinned=set(held.pinned)), ItemRun(item, plan, journal)
    tally.failing.update(held.failing)
    known = recognition(run)
    with plan.device.active(), listening(run.notes):
        findings = tuple(by_kind(run, tally, known, how_far(plan.options, dead)))
    return findings, tuple(map(record_of, findings)), tuple(known.sightings)
