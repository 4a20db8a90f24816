"""Compares two runs. Records are paired by case, aspect and inputs; explored cases are compared by op, dtype and
aspect.

A *cell* is one op in one dtype and one aspect. A finding of the later run is a regression unless the earlier run had a finding
of the same kind (status) in the same check or, if the check has no partner, in the same cell: exploration draws other cases in
each run unless seed and profile are equal. It does not matter what the earlier run had instead: agreement, a refusal, a
fallback, nothing, or a finding of another kind (a crash that became `wrong` is new to users who worked around the crash). The
exception is a change from `wrong` to `drift`, which is an improvement. What was marginal and drifts now is a regression, whose
reason says if it is no farther from its budget; the other way round it is eased. What the later run's file of known findings
accepts fails nothing. What agreed and is marginal now is listed with errors that grew, and fails no more than they do.

Errors that grew or shrank inside their budgets are `parity.history.drift`, times `parity.history.pace`; `parity.history.change`
has the groups, and gathers the changes by cause.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from parity.core.errors import NothingCompared, UsageError, near
from parity.core.results import DEATHS, Aspect, Fingerprint, Record, Status
from parity.core.status import Conclusion
from parity.findings.causes import gather
from parity.findings.standing import new_of
from parity.history import change, own_change
from parity.history.change import Change, Group, ReportedChange
from parity.history.comparability import UNSET, few_cells, two_devices, unlike
from parity.history.drift import Cell, Drift, drift
from parity.history.pace import Paces, paces
from parity.store.rows import SEEN, Header, Run, counted, is_own

Item: TypeAlias = tuple[str, str]  # op and dtype
CODES = frozenset(f.name for f in fields(Header) if str(f.type) == "Code")  # what a run was given: faults, setup
VOIDS = 8  # checks of an aspect that say nothing, from which the aspect counts as not comparable


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed.

    before, after: the headers. paired: records of the same case in both; cells: op x dtype x aspect in both; checks: in these,
    before and after. groups: what changed, by cause, the worst group first. only_before, only_after: number of records without
    a partner. changed: (field, before, after) of the fingerprints and of the code that the runs were given. options: how to
    replay a case of the later run; incomplete: what a run is missing of what it was asked for; doubts: why the two say
    nothing about an upgrade even if nothing got worse.
    """

    before: Header
    after: Header
    paired: int
    cells: int
    checks: tuple[int, int] = (0, 0)
    groups: Mapping[Group, tuple[ReportedChange, ...]] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)
    paces: Paces = field(default_factory=Paces)
    only_before: int = 0
    only_after: int = 0
    changed: tuple[tuple[str, str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    options: str = ""
    incomplete: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def fails(self, fail_on: Collection[Group] = ()) -> tuple[Group, ...]:
        """The groups that make the diff fail. fail_on: groups that fail whatever is in them, besides those that always do."""
        return tuple(g for g, entries in self.groups.items() if g in fail_on or any(t.fails for t in entries))

    def exit_code(self, fail_on: Collection[Group] = ()) -> int:
        """1 if a group fails, if a run is incomplete, or if there are doubts, else 0."""
        return 1 if self.fails(fail_on) or self.incomplete or self.doubts else 0

    def conclusion(self, fail_on: Collection[Group] = ()) -> Conclusion:
        """INCONCLUSIVE where nothing got worse in runs that do not compare well."""
        return Conclusion.of_run(bool(self.fails(fail_on)), not (self.incomplete or self.doubts))


# ------------------------------------------------------------------------------------------------------------- comparing


def compare(before: Run, after: Run, partial: bool = False, ops: Sequence[str] = ()) -> Diff:
    """What changed from one run to another. partial: accept incomplete runs; ops: patterns of the ops that are compared.

    Raises NothingCompared if the runs have no comparison in common and nothing fails, and UsageError for a pattern that
    matches no op of a run.
    """
    narrow = () if ops else tuple(_narrow(before, after, {i for run in (before, after) for i in _broken(run)}))
    before, after = (without_gone(_only(run, ops, word)) for word, run in (("first", before), ("second", after)))
    causes_before, causes_after = (gather(r.records, counted(r.deaths, r.items)) for r in (before, after))
    before, after = with_deaths(before), with_deaths(after)
    old, new = {r.key: r for r in before.records}, {r.key: r for r in after.records}
    pairs = [(r, new[key]) for key, r in old.items() if key in new]
    cells_before, cells_after = _cells(before), _cells(after)
    shared = cells_before.keys() & cells_after.keys()
    had, has = ({c for c, counts in cells.items() if _compares(counts)} for cells in (cells_before, cells_after))
    unmade = _unmade(after, had)
    missing = tuple(_missing(before, after, {c.reason for c in unmade}))
    warnings = (*_warnings(before, after, len(pairs)), *missing)
    alone_before = [r for key, r in old.items() if key not in new]
    changes = unmade + _changes(before, after, pairs, alone_before, cells_before, cells_after)
    changes += [*own_change.memory(before, after), *own_change.other_inputs(before, after)]
    compared = _comparing(cells_before), _comparing(cells_after)
    _refuse_nothing(*compared, changes, warnings)
    changes = _with_emptied(changes, compared[0] - compared[1], after, (had - has) & cells_after.keys())
    changes += _emptied_aspects(before, after, had - has, changes)
    changed = tuple(_changed(before.header, after.header))
    doubts = *few_cells(before, after, had, has, changes), *unlike(before.header, after.header, changed)
    changes += _items_of_one(before, after, {c.cell[:2] for c in changes})
    # What changed its status says more than its error ratio.
    moved = drift(before, after, change.cells_of((*causes_before, *causes_after)), {c.cell for c in changes})
    moved = own_change.with_errors(moved, before, after)
    pace = own_change.with_times(paces(before, after), before, after)
    return Diff(
        before.header,
        after.header,
        paired=len(pairs),
        cells=len(shared),
        checks=(_checks(cells_before, shared), _checks(cells_after, shared)),
        groups=change.grouped(changes, moved, pace, causes_before, causes_after),
        drift=moved,
        paces=pace,
        only_before=len(alone_before),
        only_after=sum(key not in old for key in new),
        changed=changed,
        warnings=warnings,
        options=_options(after.header),
        incomplete=(*(() if partial else missing), *narrow),
        doubts=(*doubts, *_undrawn(before, changes)),
    )


PROMOTED = "as near its budget as before, where it was marginal; now it shows in too many cases or ops for that"
OTHER_PROFILE = "the {} run has another profile and did not draw this case"


def _changes(
    before: Run,
    after: Run,
    pairs: Iterable[tuple[Record, Record]],
    alone_before: Iterable[Record],
    cells_before: Mapping[Cell, Counter[str]],
    cells_after: Mapping[Cell, Counter[str]],
) -> list[Change]:
    """Every check and every cell whose status changed."""
    paired = [(a, b, _change(a, b)) for a, b in pairs if a.status != b.status]
    regressed = [c for a, b, c in paired if _new(b.status, (a.status,))]
    fixed = [c for a, b, c in paired if Status(a.status).is_finding and _agreed(b)]
    lost = [c for a, b, c in paired if Status(a.status).is_comparison and Status(b.status).is_absence]
    gained = [c for a, b, c in paired if Status(a.status).is_absence and (_agreed(b) or Status(b.status).is_absence)]
    silent = [c for a, b, c in paired if Status(a.status).is_comparison and b.status == Status.VOID]
    listed = {*regressed, *fixed, *lost}
    eased = [c for a, _, c in paired if Status(a.status).is_finding and c not in listed]
    appeared = _appeared(cells_before, cells_after, after, {(c.cell, c.after) for c in regressed})
    appeared += _multiplied(cells_before, cells_after, {c.cell for c in (*regressed, *appeared)})
    cleared = _cleared(alone_before, cells_after, {c.cell for c in fixed})
    undrawn = _not_drawn(appeared, cells_before)
    if before.header.profile == after.header.profile:
        less = [c for c in cleared if c.after == Status.MARGINAL]
        eased += [c for c in less if c.cell not in {e.cell for e in eased}]
        fixed, cleared, undrawn = [*fixed, *(c for c in cleared if c not in less)], [], ()
    regressed += [c for c in appeared if c not in undrawn]
    lost += _vanished(cells_before, cells_after, after, {c.cell for c in lost}, forward=True)
    gained += _vanished(cells_after, cells_before, after, {c.cell for c in (*gained, *regressed)}, forward=False)
    silent += _silenced(cells_before, cells_after, after, {c.cell for c in (*silent, *eased, *lost)})
    accepted, refused = _accepted(after), _refused(after, cells_after)
    # Where the reference is bad, too, a check of a wrong op may say nothing.
    wrong = {c.cell[:2] for c in regressed if not c.aspect or c.cell not in accepted}
    silent = [c for c in silent if c.cell[:2] not in wrong] + _other_inputs(before, after)
    named = [(Group.REGRESSED, c) for c in regressed] + [(Group.LOST, c) for c in lost] + [(Group.EASED, c) for c in eased]
    named += [(Group.SUPPORTED, c) for c in gained] + [(Group.FIXED, c) for c in fixed]
    named += [(Group.INCOMPARABLE, c) for c in silent if c not in set(eased)]
    if before.header.profile == after.header.profile:  # another one draws other cases
        named += [(Group.WORSE, c) for c in _marginal(cells_before, cells_after, after)]
        back = _marginal(cells_after, cells_before, before)
        named += [(Group.BETTER, replace(c, before=c.after, after=c.before)) for c in back]
    for word, some in (("first", undrawn), ("second", cleared)):
        named += [(Group.INCOMPARABLE, replace(c, reason=OTHER_PROFILE.format(word))) for c in some]
    known: dict[Group, set[Cell]] = {Group.REGRESSED: accepted, Group.LOST: refused}
    return [replace(c, group=_group(g, c), known=c.cell in known.get(g, ())) for g, c in named]


def _accepted(run: Run) -> set[Cell]:
    """The cells of whose findings all are known."""
    found, (new, _) = [r for r in run.records if Status(r.status).is_finding], new_of(run)
    return {_cell(r) for r in found} - {_cell(r) for r in new if Status(r.status).is_finding}


def _refused(run: Run, cells: Mapping[Cell, Mapping[str, int]]) -> set[Cell]:
    """The cells of which an entry accepts that the device refuses them, or leaves them to the CPU, if they show but one of
    both. Such an entry is seen without a case."""
    seen = {(s.op, s.dtype, s.aspect) for s in run.known if s.state == SEEN and not s.case}
    return {c for c in seen & cells.keys() if sum(Status(s).is_absence and n > 0 for s, n in cells[c].items()) == 1}


def _marginal(had: Mapping[Cell, Counter[str]], has: Mapping[Cell, Counter[str]], run: Run) -> list[Change]:
    """Cells that agreed in `had` and in `has`, those of this run, are marginal. Which of their cases agreed nobody stored."""
    near = {_cell(r): r for r in reversed(run.records) if r.status == Status.MARGINAL}
    return [
        Change(*cell, near[cell].shrunk or near[cell].case, str(Status.AGREE), str(Status.MARGINAL), paired=False)
        for cell in sorted(near.keys() & has.keys())
        if _clean(had.get(cell)) and not had[cell][Status.MARGINAL] and not _findings(has[cell])
    ]


def _not_drawn(appeared: Iterable[Change], before: Mapping[Cell, Counter[str]]) -> tuple[Change, ...]:
    """Those findings that the first run may not have drawn: another profile draws other cases. The calls of own functions are
    the same in all, and what was not compared at all is new in each."""
    return tuple(c for c in appeared if not is_own(c.op) and _compares(before.get(c.cell, {})))


def _undrawn(before: Run, changes: Iterable[Change]) -> Iterator[str]:
    """Whether findings could be new, or be ones that the first run did not draw."""
    if some := [c for c in changes if c.reason == OTHER_PROFILE.format("first")]:
        ops = list(dict.fromkeys(f"{c.op} {c.dtype}" for c in some))
        yield (
            f"{len(some)} finding{'s' if len(some) > 1 else ''} may be new, or only not drawn by the profile "
            f"'{before.header.profile}' of the first run ({', '.join(ops[:3])}{' ...' if len(ops) > 3 else ''}): "
            "run both with one profile"
        )


def _group(group: Group, c: Change) -> Group:
    """The group of a change, of which some are split by what is new."""
    if group is Group.REGRESSED:
        return Group.DYING if c.after in DEATHS else group
    if group is Group.INCOMPARABLE:
        return next((g for words, g in change.OF_TORCH.items() if c.reason.startswith(words)), group)
    moved = Status.FALLBACK in (c.before, c.after)
    return Group.FALLBACK if moved and group in (Group.LOST, Group.SUPPORTED) else group


def _silenced(
    before: Mapping[Cell, Counter[str]], after: Mapping[Cell, Counter[str]], run: Run, listed: set[Cell]
) -> list[Change]:
    """Cells that compared something before and of which every check says nothing now; and ops and dtypes that compare nothing
    now, with the reason. run: the later one."""
    silent = [
        Change(*cell, "", "compared", str(Status.VOID), paired=False)
        for cell, counts in after.items()
        if cell not in listed and set(counts) == {Status.VOID} and counts[Status.VOID] >= VOIDS
        if _compares(before.get(cell, {}))
    ]
    had, has = ({c[:2] for c, counts in cells.items() if _compares(counts)} for cells in (before, after))
    left = had - has - {c[:2] for c in (*listed, *(c.cell for c in silent))}
    reasons = ((i.op, i.dtype, next(iter(i.void), "")) for i in run.items)
    return silent + [
        Change(op, dtype, "", "", "compared", str(Status.VOID), why, paired=False)
        for op, dtype, why in reasons
        if why and (op, dtype) in left
    ]


def _unmade(after: Run, had: Collection[Cell]) -> list[Change]:
    """Ops and own functions that failed in parity itself in the later run. had: the cells that the earlier one compared."""
    broken = _broken(after)
    return [
        Change(op, dtype, "", "", "compared", "not made", broken[_name(op, dtype)], group=Group.UNMADE)
        for op, dtype in sorted({c[:2] for c in had})
        if _name(op, dtype) in broken
    ]


def _broken(run: Run) -> dict[str, str]:
    """What failed in parity itself, by the names of the items."""
    return {b.partition(" ")[0].rstrip(":"): b for b in (run.end.broken if run.end is not None else ())}


def _name(op: str, dtype: str) -> str:
    return op if is_own(op) else f"{op}-{dtype}"


def _refuse_nothing(before: set[Item], after: set[Item], changes: Iterable[Change], warnings: Iterable[str]) -> None:
    """Raise NothingCompared unless something was compared in both runs, or fails. before, after: what each compared; what came
    to be compared is a change as well."""
    if before & after or any(c.fails or after for c in changes):
        return
    void = next((f"the {word} run compared nothing" for word, items in (("first", before), ("second", after)) if not items), "")
    raise NothingCompared(
        f"{void or 'the two runs have no comparison in common'}, so nothing was compared"
        + "".join(f"; {w}" for w in warnings)
        + "; run both with the same selection, profile and seed, on a device that runs them"
    )


def _with_emptied(changes: Sequence[Change], items: set[Item], after: Run, lost: Collection[Cell]) -> list[Change]:
    """The changes, with those items as regressions of which the later run compares nothing any more, if nothing else fails.
    lost: cells that it has, and does not compare any more, of which a known finding explains its own."""
    known = {c.cell for c in changes if c.known}
    explained = {c[:2] for c in known} - {c[:2] for c in lost if c not in known}
    items = items - {c.cell[:2] for c in changes if c.fails} - explained
    empty = [
        Change(i.op, i.dtype, "", "", "compared", "nothing compared", next(iter(i.void), ""), False, Group.REGRESSED)
        for i in after.items
        if (i.op, i.dtype) in items
    ]
    said = {c.cell[:2] for c in empty}
    return [*(c for c in changes if c.group is not Group.INCOMPARABLE or c.cell[:2] not in said), *empty]


def _emptied_aspects(before: Run, after: Run, lost: Collection[Cell], changes: Iterable[Change]) -> list[Change]:
    """Aspects of which nothing is compared any more though pinned cases that had them ran again, as regressions, unless a
    change reports it, or makes the op fail. lost: cells that only the earlier run compared. Other settings may ask for fewer
    aspects."""
    if (before.header.profile, before.header.options) != (after.header.profile, after.header.options):
        return []
    reported = {key for c in changes for key in ((c.cell, c.cell[:2]) if c.fails or not c.aspect else (c.cell,))}
    ran = {(r.case, r.digest) for r in after.records}
    ran -= {(r.case, r.digest) for r in after.records if r.known and not Status(r.status).is_comparison}
    had = {(r.op, r.dtype, r.aspect) for r in before.records if r.pinned and (r.case, r.digest) in ran}
    left = [c for c in sorted(had.intersection(lost)) if c not in reported and c[:2] not in reported]
    return [Change(*c, "", "compared", "nothing compared", paired=False) for c in left]


def _comparing(cells: Mapping[Cell, Mapping[str, int]]) -> set[Item]:
    """The ops and dtypes of which something was compared; what both sides refuse says nothing of the device."""
    return {cell[:2] for cell, counts in cells.items() if cell[2] != Aspect.REFUSAL and _compares(counts)}


def _items(run: Run) -> set[Item]:
    """The ops and dtypes of a run."""
    rows: tuple[Any, ...] = (*run.items, *run.records, *run.deaths)
    return {(r.op, r.dtype) for r in rows}


def _only(run: Run, ops: Sequence[str], word: str) -> Run:
    """What a run holds of the ops that match a pattern; all of it without patterns. word: which run it is. Raises UsageError
    for a pattern that matches none."""
    names = {op for op, _ in _items(run)}
    for pattern in ops:
        if not any(fnmatchcase(op, pattern) for op in names):
            raise UsageError(f"the {word} run has no op '{pattern}'; {near(pattern, names)}".rstrip("; "))
    if not ops:
        return run

    def asked(rows: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(r for r in rows if any(fnmatchcase(r.op, p) for p in ops))

    parts: dict[str, Any] = {
        name: asked(getattr(run, name)) for name in ("records", "items", "deaths", "power", "again", "figures", "known")
    }
    left = len(run.items) - len(parts["items"])
    end = None if run.end is None else replace(run.end, expected=run.end.expected - left)
    return replace(run, **parts, end=end)


def _narrow(before: Run, after: Run, broken: Collection[str]) -> Iterator[str]:
    """Which run was asked for less than the other, or had less to run. broken: names of items that failed in parity itself."""
    question = [(r.header.selection, r.header.shard) for r in (before, after)]
    for word, smaller, other in (("first", before, after), ("second", after, before)):
        missing = {i for i in _items(other) - _items(smaller) if _name(*i) not in broken}
        if missing and (question[0] != question[1] or (smaller is after and _is_whole(smaller))):
            some = ", ".join(" ".join(x) for x in sorted(missing)[:3]) + (" ..." if len(missing) > 3 else "")
            what = f"{len(missing):,} of the {len(_items(other)):,} op x dtype pairs of the other one ({some})"
            yield f"the {word} run is missing {what}: name the ops to compare: parity diff BEFORE AFTER PATTERN"


def _other_inputs(before: Run, after: Run) -> list[Change]:
    """Pinned cases that have other inputs than before."""
    old = {(r.case, r.aspect): r for r in before.records if r.pinned and r.digest}
    pairs = [(old[r.case, r.aspect], r) for r in after.records if r.pinned and r.digest and (r.case, r.aspect) in old]
    return [
        Change(r.op, r.dtype, r.aspect, r.case, f"inputs {a.digest}", f"inputs {r.digest}", "other inputs for the same case")
        for a, r in pairs
        if a.digest != r.digest
    ]


def _items_of_one(before: Run, after: Run, reported: set[tuple[str, str]]) -> list[Change]:
    """Ops and dtypes that only one run has. reported: those that are reported for another reason. What an incomplete run did
    not reach is not removed."""
    old, new = _items(before), _items(after)
    sides = ((Group.ADDED, new - old, before), (Group.REMOVED, old - new, after))
    return [
        Change(op, dtype, "", "", "not run", "run", group=group)
        if group is Group.ADDED
        else Change(op, dtype, "", "", "run", "not run", group=group)
        for group, items, other in sides
        if _is_whole(other)
        for op, dtype in sorted(items - reported)
    ]


def _is_whole(run: Run) -> bool:
    """Whether the run has all that it was asked for."""
    return run.end is not None and not run.end.stopped and len(run.items) + len(run.end.broken) >= run.end.expected


def _options(h: Header) -> str:
    files = ("--setup", h.faults.name), ("--setup", h.setup.name)
    given = "".join(f" {option} {shlex.quote(name)}" for option, name in files if name)
    return f" --device {shlex.quote(h.fingerprint.device)}{given}" if h.fingerprint.device else ""


def without_gone(run: Run) -> Run:
    """The run without findings that were not reproduced in a fresh process: a difference in what does not count is none."""
    gone = {(r.op, r.dtype, r.aspect) for r in run.records if r.gone}
    gone -= {(r.op, r.dtype, r.aspect) for r in run.records if r.counts}
    if not gone:
        return run
    items = tuple(
        replace(i, counts={a: c if (i.op, i.dtype, a) not in gone else _agreeing(c) for a, c in i.counts.items()})
        for i in run.items
    )
    return replace(run, items=items, records=tuple(r for r in run.records if not r.gone))


def _agreeing(counts: Mapping[str, int]) -> dict[str, int]:
    return {s: n for s, n in counts.items() if not Status(s).is_finding}


def with_deaths(run: Run) -> Run:
    """The run with a record for every death that counts."""
    dead = (
        Record(d.case, d.op, d.dtype, d.aspect or "forward", d.how, reason=f"{d.signal} at stage {d.stage}", known=d.known)
        for d in counted(run.deaths, run.items)
    )
    return replace(run, records=(*run.records, *dead))


def _multiplied(before: Mapping[Cell, Counter[str]], after: Mapping[Cell, Counter[str]], listed: set[Cell]) -> list[Change]:
    """Cells that had findings before and now have at least twice the fraction of them, and at least five more."""
    worse = []
    for cell in before.keys() & after.keys() - listed:
        (few, of), (many, now) = ((_findings(c), sum(c.values())) for c in (before[cell], after[cell]))
        if few and many >= few + 5 and many * of >= 2 * few * now:
            worse.append(Change(*cell, "", f"{few} findings of {of}", f"{many} findings of {now}", paired=False))
    return worse


def _new(status: str, before: Collection[str]) -> bool:
    """Whether a status is a finding that `before` does not contain, as itself or as something worse."""
    worse = status == Status.DRIFT and Status.WRONG in before
    return Status(status).is_finding and status not in before and not worse


def _findings(counts: Mapping[str, int]) -> int:
    return sum(n for s, n in counts.items() if Status(s).is_finding)


def _agreed(r: Record) -> bool:
    return r.status == Status.AGREE


def _change(before: Record, after: Record) -> Change:
    """A change of the same check. What was marginal and drifts now may be no larger: the words say so."""
    reason = _reason(after, before.status == Status.MARGINAL)
    return Change(after.op, after.dtype, after.aspect, after.case, before.status, after.status, reason)


def _reason(r: Record, was_marginal: bool) -> str:
    return f"{r.reason}; {PROMOTED}" if was_marginal and r.near else r.reason


def _cell(r: Record) -> Cell:
    return r.op, r.dtype, r.aspect


def _cells(run: Run) -> dict[Cell, Counter[str]]:
    """Statuses per cell: of finished items, which count all their checks, and of deaths. An item that never finished has only
    its records."""
    cells: dict[Cell, Counter[str]] = {}
    for item in run.items:
        for aspect, counts in item.counts.items():
            cells.setdefault((item.op, item.dtype, aspect), Counter()).update({s: n for s, n in counts.items() if n})
    ended = {(item.op, item.dtype) for item in run.items}
    for cell, status, _ in dict.fromkeys((_cell(r), r.status, r.key) for r in run.records):
        if cell[:2] not in ended or status in DEATHS:
            cells.setdefault(cell, Counter())[status] += 1
    return cells


def _checks(cells: Mapping[Cell, Counter[str]], which: Iterable[Cell]) -> int:
    return sum(sum(cells[c].values()) for c in which)


def _clean(counts: Mapping[str, int] | None) -> bool:
    """Whether a cell compared something without a finding."""
    if counts is None or not counts.get(Status.AGREE):
        return False
    return not any(n and Status(s).is_finding for s, n in counts.items())


def _appeared(
    before: Mapping[Cell, Counter[str]], after: Mapping[Cell, Counter[str]], run: Run, listed: set[tuple[Cell, str]]
) -> list[Change]:
    """One change per cell and kind of finding that is new in the cell. run: the later one, which provides a case if it has
    one."""
    cases: dict[tuple[Cell, str], Record] = {}
    for r in run.records:
        known = cases.setdefault((_cell(r), r.status), r)
        if r.shrunk and not known.shrunk:
            cases[_cell(r), r.status] = r
    tried = {cell[:2] for cell in before}
    changes = []
    for cell, counts in after.items():
        had = before.get(cell, Counter[str]())
        for status in counts:
            if not _new(status, had) or (cell, status) in listed:
                continue
            hit = cases.get((cell, status))
            case, reason = (hit.shrunk or hit.case, _reason(hit, bool(had[Status.MARGINAL]))) if hit else ("", "")
            changes.append(Change(*cell, case, _state(had, cell[:2] in tried), status, reason, paired=False))
    return changes


def _state(counts: Mapping[str, int], tried: bool) -> str:
    """The worst status of a cell, in words. tried: whether its op was run in its dtype."""
    order = sorted(counts, key=lambda s: (not Status(s).is_finding, s != Status.MARGINAL, s != Status.AGREE, -counts[s]))
    return order[0] if order else "not compared" if tried else "not run"


def _cleared(alone: Iterable[Record], after: Mapping[Cell, Mapping[str, int]], listed: set[Cell]) -> list[Change]:
    """One change per cell with unpaired findings of the earlier run, if the cell agrees in the later one, or is marginal."""
    changes: dict[Cell, Change] = {}
    for r in alone:
        cell = _cell(r)
        if Status(r.status).is_finding and cell not in listed and _clean(after.get(cell)):
            now = Status.MARGINAL if after[cell].get(Status.MARGINAL) else Status.AGREE
            changes.setdefault(cell, Change(*cell, r.shrunk or r.case, r.status, str(now), r.reason, paired=False))
    return list(changes.values())


def _compares(counts: Mapping[str, int]) -> bool:
    return any(n and Status(s).is_comparison for s, n in counts.items())


def _vanished(
    had: Mapping[Cell, Mapping[str, int]], has: Mapping[Cell, Mapping[str, int]], run: Run, listed: set[Cell], forward: bool
) -> list[Change]:
    """Cells that compare in `had` and are only refused, or moved to the CPU, in `has`.

    run: the later one; forward: whether `had` is the earlier one.
    """
    cases = {_cell(r): r for r in reversed(run.records)}
    changes = []
    for cell, counts in has.items():
        absent = next((s for s in sorted(counts) if counts[s] and Status(s).is_absence), "")
        if cell in listed or not absent or _compares(counts) or not _compares(had.get(cell, {})):
            continue
        r = cases.get(cell)
        words = ("compared", absent) if forward else (absent, "compared")
        changes.append(Change(*cell, r.case if r else "", *words, r.reason if r else "", paired=False))
    return changes


def _warnings(before: Run, after: Run, paired: int) -> Iterator[str]:
    a, b = before.header, after.header
    if two_devices(a, b):
        yield f"these are two devices: {device_words(a)} and {device_words(b)}"
    for what in ("seed", "profile", "selection"):
        x, y = getattr(a, what), getattr(b, what)
        if x != y:
            yield f"the {what}s differ: '{x}' and '{y}'"
    if not paired:
        yield "no case is in both runs"
    if odd := _other_sets(before, after):
        items = f"{len(odd)} item{'s' if len(odd) > 1 else ''}"
        yield f"the pinned cases differ in {items}: {', '.join(odd[:3])}{' ...' if len(odd) > 3 else ''}"


def _other_sets(before: Run, after: Run) -> list[str]:
    """Items that were run with the same profile and have other pinned cases."""
    if before.header.profile != after.header.profile:
        return []
    old, new = (_pinned(r) for r in (before, after))
    return [f"{op} {dtype}" for op, dtype in sorted(old.keys() & new.keys()) if old[op, dtype] != new[op, dtype]]


def _pinned(run: Run) -> dict[tuple[str, str], set[str]]:
    """The pinned cases of the items that nothing kept from running them all."""
    died = {(d.op, d.dtype) for d in run.deaths}
    cases: dict[tuple[str, str], set[str]] = {}
    for r in run.records:
        if r.pinned and (r.op, r.dtype) not in died:
            cases.setdefault((r.op, r.dtype), set()).add(r.case)
    return cases


def _missing(before: Run, after: Run, reported: Collection[str]) -> Iterator[str]:
    """What the runs are missing of what they were asked for. reported: failures in the later one that are changes."""
    for word, run in (("first", before), ("second", after)):
        if run.end is None:
            yield f"the {word} run is truncated"
            continue
        if run.end.stopped:
            yield f"the {word} run did not end ({run.end.stopped}): what it did not reach is missing here"
            continue
        broken = [b for b in run.end.broken if run is before or b not in reported]
        if (missing := run.end.expected - len(run.items) - len(run.end.broken) + len(broken)) > 0:
            named = f" ({', '.join(run.end.lost[:3])})" if run.end.lost else ""
            yield f"the {word} run is missing {missing} of its {run.end.expected:,} items{named}"
        if broken:
            first = broken[0]
            what = "an own function compared nothing" if is_own(first.partition(" ")[0]) else "parity itself failed"
            yield f"{what} in the {word} run: {first}"


def device_words(h: Header) -> str:
    """A device with its chip and its machine."""
    return f"{h.fingerprint.device} ({h.fingerprint.device_name}, {h.fingerprint.machine})"


def _changed(before: Header, after: Header) -> Iterator[tuple[str, str, str]]:
    """What differs in the fingerprint (environment variables and facts one by one), and in the code that the runs were
    given."""
    a, b = before.fingerprint, after.fingerprint
    for f in fields(Fingerprint):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if not isinstance(x, tuple):
            if x != y:
                yield f.name, str(x), str(y)
            continue
        old, new = dict(x), dict(y)
        for key in sorted((old.keys() | new.keys()) - CODES):
            if old.get(key) != new.get(key):
                yield key, old.get(key, UNSET), new.get(key, UNSET)
    for name in sorted(CODES):
        given, other = getattr(before, name), getattr(after, name)
        if not given.same(other):
            yield name, str(given), str(other)
