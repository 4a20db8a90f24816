"""Examine one item: check its pinned and explored cases, collect findings by kind, and shrink each kind.

A finding never stops the drawing; the findings are complete only when all cases have run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from parity.checks.check import failing
from parity.core import notation
from parity.core.case import Case
from parity.core.results import Json, Record
from parity.devices.fallbacks import listening
from parity.engine.alone import IsolatedRunner
from parity.engine.cases import alike, drawn, valid
from parity.engine.checking import checked_here, end_unless_able, leaks_of
from parity.engine.findings import Finding, Looks, by_kind, how_far, may_report_now, record_of
from parity.engine.journal import CaseJournal
from parity.engine.known_cases import recognition, replay_known, take_out_known
from parity.engine.planning import BASE_SECONDS, RunPlan
from parity.engine.rounds import PINNED, Part
from parity.engine.suite import Item
from parity.engine.tally import Held, ItemTally
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
    o, tally, started, notes = plan.options, ItemTally(item), time.monotonic(), list[str]()
    plan.study.begin()
    known = recognition(item, plan)
    left_out = dead | alike(item, plan, part, hung)
    with plan.device.active(), listening(notes):
        if part is None or part.round == PINNED:  # each known case is run once
            replay_known(item, plan, known, notes, journal, dead)
        else:
            known.leave_out_deadly()
        ordinal, text = 0, ""
        for ordinal, pinned, one in valid(drawn(item, plan, part), tally):
            if ordinal in left_out:
                tally.leave_out(notation.case_text(one.case), tried=ordinal in dead)
                continue
            if not pinned and plan.left <= 0:
                break
            text = notation.case_text(one.case)
            tally.texts.append(text)
            if text in known.deadly:
                continue
            allowed = plan.patience(one.case)
            if alone is not None:
                journal.begin(ordinal, item.id, text, PATIENCE_ALONE + PROCESSES_ALONE * allowed)
                checked = alone.checked(ordinal, text, allowed, left_out)
                journal.end()
            else:
                journal.begin(ordinal, item.id, text, allowed)
                checked = checked_here(item, plan, ordinal, pinned, one, journal, notes)
            if checked is None:
                tally.not_run.append(text)
                continue
            if checked.void:
                tally.void[checked.void[:120]] += 1
                continue
            tally.asked += checked.power
            tally.add(one, checked.results, text, checked.digest, pinned, checked.seconds)
            tally.keep(ordinal, one.case, checked.results)
            if failing(checked.results):
                tally.before.setdefault(one, tuple(journal.calls)[:-1])
            if tally.cases >= GIVE_UP_AFTER and tally.all_refused:
                break
            if plan.study.is_over(item, tally.counts):
                break
        leaks: dict[str, int] = {}
        if alone is None:
            journal.begin(ordinal, item.id, text, o.hang_after or BASE_SECONDS)
            end_unless_able(item, plan, journal, next(iter(tally.void), "the last case, or one before it that said nothing"))
            journal.end()
            if plan.study.looks_everywhere and not (part is not None and part.round != PINNED):
                leaks = leaks_of(item, plan, tally, journal)
            notes.clear()
        else:
            alone.close()
        looks = how_far(o, dead)
        accepted = take_out_known(item, plan, tally, known, notes, journal)
        now = not plan.later if part is None or plan.limit is None else may_report_now(part, plan.limit, tally)
        began = time.monotonic()
        looks = Looks(looks.kinds if now else 0, looks.locate and now, not now and not o.no_shrink)
        findings = tuple(by_kind(item, plan, tally, known, notes, journal, looks))
        if plan.limit is not None:
            plan.limit.causes += time.monotonic() - began
    records = (*tally.records, *accepted, *map(record_of, findings))
    summary = replace(tally.summary(time.monotonic() - started), round=0 if part is None else max(0, part.round))
    summary = plan.study.noted(replace(summary, leaks=leaks))
    more = tuple(tally.features), tuple(tally.power()), (tally.packed(not o.no_screens),)
    unknown = known.without_known(summary, o.fail_on_statuses)
    deaths = () if alone is None else tuple(alone.deaths)
    explained = tuple(r.shrunk for r in accepted)
    held = Held(dict(tally.failing), frozenset(tally.pinned)) if plan.later and tally.failing else None
    return Examined(summary, records, findings, *more, tuple(known.sightings), unknown, explained, deaths, held)


def explain(
    item: Item, plan: RunPlan, journal: CaseJournal, held: Held, dead: frozenset[int] = frozenset()
) -> tuple[tuple[Finding, ...], tuple[Record, ...], tuple[Sighting, ...]]:
    """Shrink what an item found, and look for the causes: the findings, their records, and what was seen of known ones. dead:
    as in `examine`."""
    tally, notes = ItemTally(item, pinned=set(held.pinned)), list[str]()
    tally.failing.update(held.failing)
    known = recognition(item, plan)
    with plan.device.active(), listening(notes):
        findings = tuple(by_kind(item, plan, tally, known, notes, journal, how_far(plan.options, dead)))
    return findings, tuple(map(record_of, findings)), tuple(known.sightings)
