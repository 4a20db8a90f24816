"""The state of each entry of the file of known findings, from what its items saw of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parity.core.results import Record
from parity.findings.causes import Gathered
from parity.findings.known import Entry
from parity.store.rows import AGREES, EXPIRED, GROWN, SEEN, Death, Run, Sighting, counted, is_own

KNOWN, FIXED, NOT_SEEN = "known", "fixed", "not seen"
STATES = (KNOWN, GROWN, FIXED, EXPIRED, NOT_SEEN)


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """An entry after a run. state: one of `STATES`; why: what grew, or what else is to be said; fails: whether it fails the
    run."""

    entry: Entry
    state: str
    why: tuple[str, ...] = ()
    fails: bool = False


def standings(entries: Iterable[Entry], sightings: Iterable[Sighting]) -> tuple[EntryStatus, ...]:
    """The standing of each entry, in the order of the file. An entry is fixed if all of its cases were replayed and agree, and
    nothing else showed it."""
    by_id: dict[str, list[Sighting]] = defaultdict(list)
    for s in sightings:
        by_id[s.id].append(s)
    return tuple(_standing(e, by_id[e.id]) for e in entries)


def _standing(e: Entry, seen: Sequence[Sighting]) -> EntryStatus:
    states = {s.state for s in seen}
    if EXPIRED in states:
        why = tuple(dict.fromkeys(s.why for s in seen if s.state == EXPIRED))
        return EntryStatus(e, EXPIRED, why, any(s.fails for s in seen))
    if GROWN in states:
        grown = sorted((s for s in seen if s.state == GROWN), key=lambda s: not s.fails)
        return EntryStatus(e, GROWN, tuple(dict.fromkeys(_grown(s) for s in grown)), any(s.fails for s in grown))
    if SEEN in states:
        return EntryStatus(e, KNOWN)
    agree = {s.case for s in seen if s.state == AGREES}
    due = set(e.cases) or {op for op in e.ops if is_own(op)}
    if due and agree >= due:
        # That it did not come this time says little.
        return EntryStatus(e, NOT_SEEN, ("its cases agree, and it comes and goes",)) if e.by_chance else EntryStatus(e, FIXED)
    some = f"{len(agree)} of its {len(e.cases)} cases agree, the others were not run" if agree else ""
    return EntryStatus(e, NOT_SEEN, tuple(dict.fromkeys(w for w in (some, *(s.why for s in seen)) if w)))


def _grown(s: Sighting) -> str:
    return f"{s.op} {s.dtype}{f' {s.aspect}' if s.aspect else ''}: {s.why}"


def known_of(run: Run) -> set[tuple[str, str, str]]:
    """(entry, op, dtype) of all findings and deaths of a run that belong to an entry."""
    found: list[Record | Death] = [*run.records, *run.deaths]
    return {(x.known, x.op, x.dtype) for x in found if x.known}


def new_of(run: Run) -> tuple[tuple[Record, ...], tuple[Death, ...]]:
    """The records and deaths of a run that no entry accepts: they are new, or have grown, or their entry has expired."""
    fails = {(s.id, s.op, s.dtype) for s in run.known if s.fails}
    deaths = counted(run.deaths, run.items)

    def accepted(x: Record | Death) -> bool:
        return bool(x.known) and (x.known, x.op, x.dtype) not in fails

    return tuple(r for r in run.records if not accepted(r)), tuple(d for d in deaths if not accepted(d))


@dataclass(frozen=True, slots=True)
class Mark:
    """A cause that is known. why: the reasons of its entries; whole: whether all of it is accepted."""

    why: str
    whole: bool


def marks(run: Run, causes: Iterable[Gathered]) -> dict[str, Mark]:
    """The causes of a run that are known, by their ids."""
    states = SEEN, GROWN, EXPIRED  # the worst last
    why = {s.id: s.why for state in states for s in run.known if s.state == state}
    records, deaths = new_of(run)
    new = {id(x) for x in (*records, *deaths)}
    made = {}
    for c in causes:
        found: list[Record | Death] = [*c.records, *c.deaths]
        reasons = "; ".join(dict.fromkeys(why.get(x.known) or x.known for x in found if x.known))
        if reasons:
            made[c.cause.id] = Mark(reasons, not any(id(x) in new for x in found))
    return made
