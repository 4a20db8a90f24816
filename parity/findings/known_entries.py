"""Entries of the file of known findings, made from a run: one for each cause, or for each group of refused ops."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import date
from typing import TypeVar

from parity.core import notation
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import Aspect, Cause, Record, Status
from parity.findings import causes
from parity.findings.causes import Gathered
from parity.findings.extents import Extent, Measured, joined
from parity.findings.known import DIES, Entry, Environment, aspect_and_case, covers, parsed_case, step, tensor_of, worst
from parity.findings.recognition import shown_of, uncovered
from parity.store.rows import Run, counted

T = TypeVar("T")


def causes_of(run: Run, marginal: bool = False) -> tuple[Gathered, ...]:
    """The causes of a run that no entry stands for as it is: new ones, and what has grown. marginal: what is marginal in their
    place, as the drift that it is to the item that finds it."""
    accepted = {s.id for s in run.known} - {s.id for s in run.known if s.state == "grown"}
    records = [r for r in run.records if r.known not in accepted]
    if marginal:
        return causes.gather(replace(r, status=str(Status.DRIFT)) for r in records if r.status == Status.MARGINAL)
    return causes.gather(records, [d for d in counted(run.deaths, run.items) if d.known not in accepted])


def named(c: Gathered, ids: Collection[str]) -> tuple[Gathered, ...]:
    """What these ids name of a cause: all of it, or only the deaths among its findings that have the ids."""
    deaths = {d.cause.id: d for d in causes.gather((), c.deaths)}
    if any(i in ids and i not in deaths for i in (c.cause.id, *(m.id for m in c.members))):
        return (c,)
    return tuple(d for i, d in deaths.items() if i in ids)


def of_cause(c: Gathered, run: Run, reason: str, link: str = "", until: date | None = None) -> tuple[Entry, ...]:
    """The entries of a cause: one, or several where its findings are of several kinds (drift and errors in words). Those that
    come and go are entries of their ops: what the experiments said of their causes is chance."""
    if len(faults := _faults(c)) > 1:
        return tuple(e for one in faults for e in of_cause(one, run, reason, link, until))
    since = Environment.of(run.header.fingerprint)
    if c.deaths:
        texts = _unique(t for d in c.deaths for t in (d.least, d.case) if _parses(t))
        cases, also = texts[:1], texts[1:]  # each case that is run again takes a process, and a hang takes its time
        cause = replace(c.cause, symptom=DIES)
        how = worst([d.how for d in c.deaths])
        return (Entry(cause.id, reason, c.ops, how, cause, (), c.dtypes, (), (), cases, also, link, until, since),)
    if c.cause.symptom == Status.NOT_REPRODUCED:  # nothing says what it needs, so it has no case to run again
        aspects = _unique(r.aspect for r in c.records)
        return (Entry(c.cause.id, reason, c.ops, c.cause.symptom, None, (), c.dtypes, aspects, (), (), (), link, until, since),)
    lines: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for r in c.records:
        lines[r.op if r.by_chance else "", step(r.status)[0]].append(r)
    made = []
    for k, ((op, _), records) in enumerate(sorted(lines.items())):
        suffix = f"-{records[0].status}" if k and not op else ""
        e = _of_records(c.cause.id + suffix, c, records, since, reason, link, until)
        if op:
            name = f"{op.rpartition(':')[2]}-comes-and-goes" + (f"-{e.status}" if step(e.status)[0] else "")
            e = replace(e, id=name, cause=None, members=(), aspects=(), shows=(), also=(), by_chance=True)
            e = replace(e, extent=_by_place(m._replace(tensor="") for m in e.extent or ()))
        made.append(e)
    return tuple(made)


def _faults(c: Gathered) -> list[Gathered]:
    """The errors and symptoms that are one cause because one kernel has them: each is known in its own dtypes and passes. So
    are deaths, by their words."""
    if c.records and c.deaths:
        return [replace(c, deaths=()), *causes.gather((), c.deaths)]
    by_symptom: dict[str, list[Record]] = defaultdict(list)
    for r in c.records if c.cause.symptom in (*causes.RESULTS, "raises") and c.cause.subject != causes.OPERATORS else ():
        by_symptom[causes.said_of(r).symptom].append(r)
    made = []
    for symptom, records in by_symptom.items():
        members = _unique(map(causes.said_of, records))
        own = replace(members[0], properties=()) if members[0].says_all else members[0]
        one = replace(c, cause=c.cause if symptom == c.cause.symptom else own, records=tuple(records), members=members)
        made.append(one)
    return made


def _of_records(
    name: str, c: Gathered, records: list[Record], since: Environment, reason: str, link: str, until: date | None
) -> Entry:
    least: dict[str, str] = {}
    drawn: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for r in records:
        if _parses(r.shrunk or r.case):
            least.setdefault(r.op, f"{r.aspect}: {r.shrunk or r.case}")
        drawn[r.op, r.dtype] += [notation.parse(text) for text in (r.case, r.shrunk, *r.also) if text and _parses(text)]
    held = [parsed_case(text) for text in least.values()]
    also = [case for key, some in drawn.items() for case in uncovered([c for c in held if (c.op, c.dtype) == key], some)]
    ops, dtypes = _unique(r.op for r in records), _unique(r.dtype for r in records)
    aspects, shows = _unique(r.aspect for r in records), _unique(map(shown_of, records))
    members = tuple(m for m in c.members if any(causes.said_of(r) == m for r in records))
    members = members if members != (c.cause,) else ()
    status, texts = worst([r.status for r in records]), _unique(map(notation.case_text, also))
    cases, extent = tuple(least.values()), _by_place(Measured(r.dtype, r.op, tensor_of(r), r.extent) for r in records)
    made = Entry(name, reason, ops, status, c.cause, members, dtypes, aspects, shows, cases, texts, link, until, since)
    return replace(made, extent=extent)


def of_status(status: str, run: Run, reason: str, link: str = "", until: date | None = None) -> tuple[Entry, ...]:
    """Entries of what the device refuses, or leaves to the CPU: one for all ops that do so in the same dtypes and aspects."""
    seen: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for i in run.items:
        for aspect, counts in i.counts.items():
            if counts.get(status):
                seen[i.op][0].add(i.dtype)
                seen[i.op][1].add(aspect)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for op, (some, passes) in seen.items():
        groups[tuple(sorted(some)), tuple(sorted(passes, key=[*Aspect, *sorted(passes)].index))].append(op)
    least: dict[str, str] = {}
    for r in run.records:
        if r.status == status and _parses(r.case):
            least.setdefault(r.op, f"{r.aspect}: {r.case}")
    made = []
    for (dtypes, aspects), ops in groups.items():
        facts = "|".join((status, *dtypes, *aspects))
        name = f"{status}-{hashlib.blake2b(facts.encode(), digest_size=3).hexdigest()}"
        cases = tuple(least[op] for op in ops if op in least)
        since = Environment.of(run.header.fingerprint)
        made.append(Entry(name, reason, tuple(ops), status, None, (), dtypes, aspects, (), cases, (), link, until, since))
    return tuple(made)


def merged(old: Entry, new: Entry) -> Entry:
    """An entry with what a run adds to it. Its reason, link and last day stay, unless new ones were given."""
    status = new.status if covers(new.status, old.status) else old.status
    added = [text for text in new.cases if parsed_case(text).op not in {parsed_case(t).op for t in old.cases}]
    held = [aspect_and_case(text)[1] for text in (*old.cases, *added)]
    rest = [aspect_and_case(text)[1] for text in (*new.cases, *new.also)]
    members = _members(old.cause, old.members, new.members or ((new.cause,) if new.cause else ()))
    return replace(
        old,
        reason=new.reason or old.reason,
        link=new.link or old.link,
        until=new.until or old.until,
        status=status,
        members=members,
        by_chance=old.by_chance or new.by_chance,
        ops=_unique((*old.ops, *new.ops)),
        dtypes=_joined(old.dtypes, new.dtypes),
        aspects=_joined(old.aspects, new.aspects),
        shows=_joined(old.shows, new.shows),
        cases=(*old.cases, *added),
        also=() if old.by_chance else _unique((*old.also, *(text for text in rest if text not in held))),
        extent=None if new.extent is None else _by_place((*(old.extent or ()), *new.extent)),
    )


def added(held: Mapping[str, Entry], new: Iterable[Entry]) -> dict[str, Entry]:
    """The entries that are added or changed, by id. What has the cause of an entry that is there already belongs to it."""
    changed: dict[str, Entry] = {}
    for e in new:
        there = {**held, **changed}
        like = (t for t in there.values() if e.cause is not None and _alike(t, e, e.cause))
        old = there.get(e.id) or next(like, None)
        made = e if old is None else merged(old, e)
        changed[made.id] = made
    return changed


def _alike(one: Entry, e: Entry, cause: Cause) -> bool:
    """Whether an entry of a cause belongs to another one. A death by a call that an entry has is that entry's, whatever words
    name its cause there."""
    of_one_call = one.dies and e.dies and not {*one.cases, *one.also}.isdisjoint((*e.cases, *e.also))
    return of_one_call or (
        one.same_cause(cause, whatever_values=False)
        and one.by_chance == e.by_chance
        and step(one.status)[0] == step(e.status)[0]
    )


def of_other(e: Entry, old: Entry | None) -> Entry:
    """An entry of another file, joined to the one with its id of this file: the words of this one stay, and of two last days
    the earlier. One of the same cause with another id is none of this one: it may accept less, and for another time."""
    if old is None:
        return e
    days = [day for day in (old.until, e.until) if day is not None]
    return merged(old, replace(e, reason=old.reason, link=old.link or e.link, until=min(days, default=None)))


def _by_place(extents: Iterable[Measured]) -> tuple[Measured, ...]:
    """One for each op, tensor and dtype."""
    by_place: dict[Measured, list[Extent]] = defaultdict(list)
    for m in extents:
        if m.extent:
            by_place[m._replace(extent=())].append(m.extent)
    return tuple(m._replace(extent=joined(some)) for m, some in by_place.items())


def _members(cause: Cause | None, old: tuple[Cause, ...], new: tuple[Cause, ...]) -> tuple[Cause, ...]:
    made = _unique((*old, *(m for m in new if m != cause or old)))
    return () if made == (cause,) else made


def _joined(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """Both lists; an empty one stands for everything."""
    return _unique((*old, *new)) if old and new else ()


def _unique(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _parses(text: str) -> bool:
    try:
        parsed_case(text)
    except CaseError:
        return False
    return True


def refusals(statuses: Collection[str]) -> tuple[str, ...]:
    """Those of some statuses that are no findings, and that an entry can stand for."""
    return tuple(s for s in statuses if Status(s).is_absence)
