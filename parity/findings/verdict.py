"""The verdict on a run: which of its results fail it, and how it ends. `parity.report` puts it into words.

The state of each entry of the file of known findings, from what its items saw of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from parity.core.errors import NothingCompared
from parity.core.results import COMPARED, FINDINGS, Aspect, Record, Status
from parity.core.status import Conclusion
from parity.findings.causes import Gathered
from parity.findings.known import Entry, Known, unaccepted
from parity.store.rows import AGREES, EXPIRED, GROWN, SEEN, Death, ItemRow, Run, Sighting, counted, is_own, totals

KNOWN, FIXED, NOT_SEEN = "known", "fixed", "not seen"


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """An entry after a run. state: known, grown, fixed, expired or not seen; why: what grew, or what else is to be said; fails:
    whether it fails the run."""

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


FAILED = 1  # the exit code of a run that fails


def compared(item: ItemRow) -> bool:
    """Whether any result of the item was compared. A call that both sides refuse does not count: a device without the op
    refuses every call."""
    results = [counts for aspect, counts in item.counts.items() if aspect != Aspect.REFUSAL]
    return any(n for counts in results for status, n in counts.items() if status in COMPARED)


def of_cases(statuses: Collection[Status]) -> int:
    """The exit code for the results of some cases: 1 for a finding, 3 if nothing was compared, else 0."""
    if FINDINGS.intersection(statuses):
        return FAILED
    return 0 if COMPARED.intersection(statuses) else NothingCompared.exit_code


class Shortfall(StrEnum):
    """What keeps a stored run without findings from being a success."""

    NOTHING = "nothing was compared"
    CUT = "the run file is cut"
    STOPPED = "the run did not end"
    MISSING = "items are missing"
    OWN = "an own function compared nothing"
    BROKEN = "parity itself failed"
    FAILED = "the run was asked to fail"


def shortfalls(run: Run) -> tuple[Shortfall, ...]:
    """All of them that a run has; none for a whole run that compared something."""
    end, some = run.end, [] if any(map(compared, run.items)) else [Shortfall.NOTHING]
    if end is None:
        return (*some, Shortfall.CUT)
    some += [Shortfall.STOPPED] if end.stopped else [Shortfall.MISSING] if end.expected > len(run.items) else []
    if end.broken:
        some.append(Shortfall.OWN if is_own(end.broken[0].partition(" ")[0]) else Shortfall.BROKEN)
    return (*some, Shortfall.FAILED) if end.failed else tuple(some)


def of_causes(run: Run, causes: Sequence[Gathered], known: Mapping[str, Mark]) -> Conclusion:
    """What some causes of a stored run say of the device: FAIL where one is not known as a whole, or for what the run was asked
    to fail on."""
    accepted, short = [c for c in causes if c.cause.id in known and known[c.cause.id].whole], shortfalls(run)
    return Conclusion.of_run(len(accepted) < len(causes) or Shortfall.FAILED in short, not short)


def exit_code(said: Conclusion, run: Run) -> int:
    """With which a report of a run ends that says this of it."""
    if said is Conclusion.INCONCLUSIVE and Shortfall.NOTHING in shortfalls(run):
        return NothingCompared.exit_code
    return 0 if said is Conclusion.PASS else FAILED


def kinds(records: Sequence[Record]) -> list[Record]:
    """The findings: one record for each kind of difference of an op in a dtype, with its least case. The other records hold
    cases of the same kinds as they were drawn."""
    return [r for r in records if r.shrunk and r.counts]


def poorly_judged(items: Sequence[ItemRow], share: float) -> list[ItemRow]:
    """The items of whose elements less than this fraction was judged, the worst first."""
    return sorted((i for i in items if i.judged_share < share), key=lambda i: i.judged_share)


@dataclass(frozen=True, slots=True)
class Unwanted:
    """A status that fails the run on demand and occurred. checks: in how many; one: a case or a reason."""

    status: Status
    checks: int
    one: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run, and what it was asked to fail on.

    failing: the findings that may fail it if they are others than `kinds(records)`: those that stay as they were drawn, or
    whose cause is still to be looked for. fail_on: statuses that fail in addition to the findings; min_judged: an item fails if
    a smaller fraction of its elements was judged; known: the file of known findings; sightings: what was seen of them; strict:
    whether those that are fixed fail. broken: what failed because of parity and not of the device; failures: tests that failed
    without a finding; unchecked: the items whose pinned cases a limit of time left unchecked; stopped: how the run was cut, in
    words.
    """

    items: Sequence[ItemRow] = ()
    records: Sequence[Record] = ()
    deaths: Sequence[Death] = ()
    failing: Sequence[Record] | None = None
    fail_on: Sequence[Status] = ()
    min_judged: float = 0.0
    known: Known | None = None
    sightings: Sequence[Sighting] = ()
    strict: bool = False
    broken: Sequence[str] = ()
    failures: int = 0
    unchecked: Sequence[str] = ()
    stopped: str = ""

    @property
    def entries(self) -> Sequence[Entry]:
        """The known findings."""
        return self.known.entries if self.known is not None else ()

    @property
    def counted_deaths(self) -> list[Death]:
        """The deaths that count against the run, known ones too."""
        return counted(self.deaths, self.items)

    @property
    def found(self) -> bool:
        """Whether a finding or a death is new, or a known one has grown, expired or, in a strict run, is fixed."""
        findings = kinds(self.records) if self.failing is None else self.failing
        return (
            any(r.counts and not r.known for r in findings)
            or any(not d.known for d in self.counted_deaths)
            or any(s.fails for s in self.sightings)
            or bool(self.fixed)
        )

    @property
    def fixed(self) -> int:
        """How many known findings fail a strict run because they are fixed."""
        return sum(s.state == FIXED for s in standings(self.entries, self.sightings)) if self.strict else 0

    @property
    def unwanted(self) -> list[Unwanted]:
        """The statuses of `fail_on` that are not findings and that occurred, except where they are known."""
        items = [unaccepted(i, self.entries, self.fail_on, date.today()) for i in self.items]
        count, some = totals(items), []
        for status in self.fail_on:
            void = status == Status.VOID
            n = sum(sum(i.void.values()) for i in items) if void else count[status]
            if n and status not in FINDINGS:
                one = next((r.case for r in self.records if r.status == status), "")
                reason = next((f"{i.op} {i.dtype}: {why}" for i in items for why in i.void), "") if void else ""
                some.append(Unwanted(status, n, one or reason))
        return some

    @property
    def unjudged(self) -> list[ItemRow]:
        """The items that fail because too little of them was judged, the worst first."""
        return poorly_judged(self.items, self.min_judged)

    @property
    def failed(self) -> tuple[str, ...]:
        """What it was asked to fail on besides findings, and met, in words."""
        some = [f"{u.checks:,} check{'s' * (u.checks > 1)} {u.status}" for u in self.unwanted]
        some += [f"{n} known finding{'s that are' if n > 1 else ' that is'} fixed"] if (n := self.fixed) else []
        said = [f"--fail-on fails the run for {' and '.join(some)}"] if some else []
        few = len(self.unjudged)
        return tuple([*said, f"--min-judged fails {few} op x dtype pair{'s' * (few > 1)}"] if few else said)

    @property
    def compared(self) -> list[ItemRow]:
        """The items of which anything was compared."""
        return [i for i in self.items if compared(i)]

    @property
    def exit_code(self) -> int:
        """0 for no findings but known ones, 1 for findings and for what else fails the run, 3 if nothing was compared. An own
        function that says nothing fails a run that compared others."""
        broken = [b for b in self.broken if self.compared or not is_own(b.partition(" ")[0])]
        if self.found or broken or self.failures or self.unchecked or self.unwanted or self.unjudged:
            return FAILED
        return 0 if self.compared else NothingCompared.exit_code

    def conclusion(self, code: int) -> Conclusion:
        """What the run says of the device. code: its exit code, which is another than `exit_code` where pytest broke off."""
        if self.found:
            return Conclusion.FAIL
        if code == NothingCompared.exit_code or not self.compared:
            return Conclusion.of(code) if code else Conclusion.INCONCLUSIVE
        return Conclusion.INCONCLUSIVE if self.stopped else Conclusion.of(code)

    @property
    def acquitted(self) -> tuple[str, ...]:
        """The ids of the items of whose findings all were dropped."""
        return tuple(sorted(_ids(r for r in self.records if r.gone) - _ids(r for r in self.records if r.counts)))

    @property
    def marginal(self) -> tuple[str, ...]:
        """The ids of the items that have nothing but marginal findings."""
        return tuple(
            sorted(_ids(r for r in self.records if r.status == Status.MARGINAL) - _ids(r for r in self.records if r.counts))
        )

    @property
    def not_reproduced(self) -> tuple[str, ...]:
        """The ids of the items that fail only for what was never reproduced."""
        once = _ids(r for r in self.records if r.status == Status.NOT_REPRODUCED)
        others = _ids(r for r in self.records if r.counts and r.status != Status.NOT_REPRODUCED)
        return tuple(sorted(once - others))


def _ids(records: Iterable[Record]) -> set[str]:
    return {f"{r.op}-{r.dtype}" for r in records}
