"""Compares two runs. Records are paired by case, aspect and inputs; explored cases are compared by op, dtype and
aspect.

A *cell* is one op in one dtype and one aspect. A finding of the later run is a regression unless the earlier run had a finding
of the same kind (status) in the same check or, if the check has no partner, in the same cell: exploration draws other cases in
each run unless seed and profile are equal. It does not matter what the earlier run had instead: agreement, a refusal, a
fallback, nothing, or a finding of another kind (a crash that became `wrong` is new to users who worked around the crash). The
exception is a change from `wrong` to `drift`, which is an improvement. What was marginal and drifts now is a regression, whose
reason says if it is no farther from its budget; the other way round it is eased. What the later run's file of known findings
accepts fails nothing. What agreed and is marginal now is listed with errors that grew, and fails no more than they do.

Errors that grew or shrank inside their budgets, and times, are `parity.history.drift`; `parity.history.change` has the
groups, and gathers the changes by cause.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from parity.core.errors import NothingCompared
from parity.core.results import DEATHS, Record, Status
from parity.core.status import Conclusion
from parity.findings.causes import apart
from parity.history import change
from parity.history.cells import (
    Item,
    accepted_in,
    agreed,
    broken_in,
    cell_of,
    cells_of_run,
    changed_of,
    checks_of,
    clean,
    compares,
    comparing,
    few_cells,
    findings_of,
    is_new,
    is_whole,
    items_of,
    missing_of,
    narrow_runs,
    only,
    other_inputs,
    refused_in,
    state_of,
    unlike,
    unmade_in,
    warnings_of,
    with_deaths,
    without_gone,
)
from parity.history.change import Change, Group, ReportedChange
from parity.history.drift import Cell, Drift, Paces, drift, paces
from parity.store.rows import Header, Run, counted, is_own

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
    narrow = () if ops else tuple(narrow_runs(before, after, {i for run in (before, after) for i in broken_in(run)}))
    before, after = (without_gone(only(run, ops, word)) for word, run in (("first", before), ("second", after)))
    causes_before, causes_after = (apart(r.records, counted(r.deaths, r.items)) for r in (before, after))
    before, after = with_deaths(before), with_deaths(after)
    old, new = {r.key: r for r in before.records}, {r.key: r for r in after.records}
    pairs = [(r, new[key]) for key, r in old.items() if key in new]
    cells_before, cells_after = cells_of_run(before), cells_of_run(after)
    shared = cells_before.keys() & cells_after.keys()
    had, has = ({c for c, counts in cells.items() if compares(counts)} for cells in (cells_before, cells_after))
    unmade = unmade_in(after, had)
    missing = tuple(missing_of(before, after, {c.reason for c in unmade}))
    warnings = (*warnings_of(before, after, len(pairs)), *missing)
    alone_before = [r for key, r in old.items() if key not in new]
    changes = unmade + _changes(before, after, pairs, alone_before, cells_before, cells_after)
    changes += [*change.own_memory(before, after), *change.own_other_inputs(before, after)]
    compared = comparing(cells_before), comparing(cells_after)
    _refuse_nothing(*compared, changes, warnings)
    changes = _with_emptied(changes, compared[0] - compared[1], after, (had - has) & cells_after.keys())
    changes += _emptied_aspects(before, after, had - has, changes)
    changed = tuple(changed_of(before.header, after.header))
    doubts = *few_cells(before, after, had, has, changes), *unlike(before.header, after.header, changed)
    changes += _items_of_one(before, after, {c.cell[:2] for c in changes})
    # What changed its status says more than its error ratio.
    moved = drift(before, after, change.cells_of((*causes_before, *causes_after)), {c.cell for c in changes})
    moved = change.own_with_errors(moved, before, after)
    pace = change.own_with_times(paces(before, after), before, after)
    return Diff(
        before.header,
        after.header,
        paired=len(pairs),
        cells=len(shared),
        checks=(checks_of(cells_before, shared), checks_of(cells_after, shared)),
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
    regressed = [c for a, b, c in paired if is_new(b.status, (a.status,))]
    fixed = [c for a, b, c in paired if Status(a.status).is_finding and agreed(b)]
    lost = [c for a, b, c in paired if Status(a.status).is_comparison and Status(b.status).is_absence]
    gained = [c for a, b, c in paired if Status(a.status).is_absence and (agreed(b) or Status(b.status).is_absence)]
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
    accepted, refused = accepted_in(after), refused_in(after, cells_after)
    # Where the reference is bad, too, a check of a wrong op may say nothing.
    wrong = {c.cell[:2] for c in regressed if not c.aspect or c.cell not in accepted}
    silent = [c for c in silent if c.cell[:2] not in wrong] + other_inputs(before, after)
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


def _marginal(had: Mapping[Cell, Counter[str]], has: Mapping[Cell, Counter[str]], run: Run) -> list[Change]:
    """Cells that agreed in `had` and in `has`, those of this run, are marginal. Which of their cases agreed nobody stored."""
    near = {cell_of(r): r for r in reversed(run.records) if r.status == Status.MARGINAL}
    return [
        Change(*cell, near[cell].shrunk or near[cell].case, str(Status.AGREE), str(Status.MARGINAL), paired=False)
        for cell in sorted(near.keys() & has.keys())
        if clean(had.get(cell)) and not had[cell][Status.MARGINAL] and not findings_of(has[cell])
    ]


def _not_drawn(appeared: Iterable[Change], before: Mapping[Cell, Counter[str]]) -> tuple[Change, ...]:
    """Those findings that the first run may not have drawn: another profile draws other cases. The calls of own functions are
    the same in all, and what was not compared at all is new in each."""
    return tuple(c for c in appeared if not is_own(c.op) and compares(before.get(c.cell, {})))


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
        if compares(before.get(cell, {}))
    ]
    had, has = ({c[:2] for c, counts in cells.items() if compares(counts)} for cells in (before, after))
    left = had - has - {c[:2] for c in (*listed, *(c.cell for c in silent))}
    reasons = ((i.op, i.dtype, next(iter(i.void), "")) for i in run.items)
    return silent + [
        Change(op, dtype, "", "", "compared", str(Status.VOID), why, paired=False)
        for op, dtype, why in reasons
        if why and (op, dtype) in left
    ]


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


def _items_of_one(before: Run, after: Run, reported: set[tuple[str, str]]) -> list[Change]:
    """Ops and dtypes that only one run has. reported: those that are reported for another reason. What an incomplete run did
    not reach is not removed."""
    old, new = items_of(before), items_of(after)
    sides = ((Group.ADDED, new - old, before), (Group.REMOVED, old - new, after))
    return [
        Change(op, dtype, "", "", "not run", "run", group=group)
        if group is Group.ADDED
        else Change(op, dtype, "", "", "run", "not run", group=group)
        for group, items, other in sides
        if is_whole(other)
        for op, dtype in sorted(items - reported)
    ]


def _options(h: Header) -> str:
    files = ("--setup", h.faults.name), ("--setup", h.setup.name)
    given = "".join(f" {option} {shlex.quote(name)}" for option, name in files if name)
    return f" --device {shlex.quote(h.fingerprint.device)}{given}" if h.fingerprint.device else ""


def _multiplied(before: Mapping[Cell, Counter[str]], after: Mapping[Cell, Counter[str]], listed: set[Cell]) -> list[Change]:
    """Cells that had findings before and now have at least twice the fraction of them, and at least five more."""
    worse = []
    for cell in before.keys() & after.keys() - listed:
        (few, of), (many, now) = ((findings_of(c), sum(c.values())) for c in (before[cell], after[cell]))
        if few and many >= few + 5 and many * of >= 2 * few * now:
            worse.append(Change(*cell, "", f"{few} findings of {of}", f"{many} findings of {now}", paired=False))
    return worse


def _change(before: Record, after: Record) -> Change:
    """A change of the same check. What was marginal and drifts now may be no larger: the words say so."""
    reason = _reason(after, before.status == Status.MARGINAL)
    return Change(after.op, after.dtype, after.aspect, after.case, before.status, after.status, reason)


def _reason(r: Record, was_marginal: bool) -> str:
    return f"{r.reason}; {PROMOTED}" if was_marginal and r.near else r.reason


def _appeared(
    before: Mapping[Cell, Counter[str]], after: Mapping[Cell, Counter[str]], run: Run, listed: set[tuple[Cell, str]]
) -> list[Change]:
    """One change per cell and kind of finding that is new in the cell. run: the later one, which provides a case if it has
    one."""
    cases: dict[tuple[Cell, str], Record] = {}
    for r in run.records:
        known = cases.setdefault((cell_of(r), r.status), r)
        if r.shrunk and not known.shrunk:
            cases[cell_of(r), r.status] = r
    tried = {cell[:2] for cell in before}
    changes = []
    for cell, counts in after.items():
        had = before.get(cell, Counter[str]())
        for status in counts:
            if not is_new(status, had) or (cell, status) in listed:
                continue
            hit = cases.get((cell, status))
            case, reason = (hit.shrunk or hit.case, _reason(hit, bool(had[Status.MARGINAL]))) if hit else ("", "")
            changes.append(Change(*cell, case, state_of(had, cell[:2] in tried), status, reason, paired=False))
    return changes


def _cleared(alone: Iterable[Record], after: Mapping[Cell, Mapping[str, int]], listed: set[Cell]) -> list[Change]:
    """One change per cell with unpaired findings of the earlier run, if the cell agrees in the later one, or is marginal."""
    changes: dict[Cell, Change] = {}
    for r in alone:
        cell = cell_of(r)
        if Status(r.status).is_finding and cell not in listed and clean(after.get(cell)):
            now = Status.MARGINAL if after[cell].get(Status.MARGINAL) else Status.AGREE
            changes.setdefault(cell, Change(*cell, r.shrunk or r.case, r.status, str(now), r.reason, paired=False))
    return list(changes.values())


def _vanished(
    had: Mapping[Cell, Mapping[str, int]], has: Mapping[Cell, Mapping[str, int]], run: Run, listed: set[Cell], forward: bool
) -> list[Change]:
    """Cells that compare in `had` and are only refused, or moved to the CPU, in `has`.

    run: the later one; forward: whether `had` is the earlier one.
    """
    cases = {cell_of(r): r for r in reversed(run.records)}
    changes = []
    for cell, counts in has.items():
        absent = next((s for s in sorted(counts) if counts[s] and Status(s).is_absence), "")
        if cell in listed or not absent or compares(counts) or not compares(had.get(cell, {})):
            continue
        r = cases.get(cell)
        words = ("compared", absent) if forward else (absent, "compared")
        changes.append(Change(*cell, r.case if r else "", *words, r.reason if r else "", paired=False))
    return changes
