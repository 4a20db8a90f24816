"""The changes between two runs, in groups and by cause: many ops that changed for one reason are one entry.

The changes of a user's own functions from one run to another: errors, times and memory.

A function is one case, so no test of many cases can separate chance from change, as for ops. It is reported from factors on
that honest devices hardly reach: of 274 small networks whose kernels summed in another order, the median error of a pass moved
by 2.8 times or more in two.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from parity.core import machine
from parity.core.errors import UsageError, near
from parity.core.results import BOTH_REFUSE, DEATHS, MISSING, OTHER_SIGNATURE, Aspect, Cause, Status
from parity.findings.causes import Gathered
from parity.findings.weights import WEIGHTS
from parity.findings.wording import skeleton
from parity.history.drift import LEAST_SIMULATED, NOISE, OTHER_MACHINES, Cell, Drift, Pace, Paces, Shift
from parity.store.rows import ItemRow, Run, is_own


class Group(StrEnum):
    """A kind of change, the worst first. Every report and --fail-on use these words."""

    DYING = "newly-dying"
    REGRESSED = "regressed"
    LOST = "lost-support"
    SIGNATURE = "other-signature"
    REFUSED = "refused-by-both"
    WORSE = "drifted-worse"
    FALLBACK = "fallback-changed"
    UNMADE = "not-made"
    INCOMPARABLE = "not-comparable"
    REMOVED = "removed"
    SLOWER = "slower"
    LARGER = "more-memory"
    EASED = "eased"
    ADDED = "added"
    SUPPORTED = "newly-supported"
    BETTER = "drifted-better"
    FASTER = "faster"
    SMALLER = "less-memory"
    FIXED = "fixed"

    @property
    def words(self) -> str:
        """As it is written in a sentence."""
        return self.value.replace("-", " ")


def groups(words: Sequence[str], option: str) -> tuple[Group, ...]:
    """The groups with these names. Raises UsageError, naming the option."""
    known = [g.value for g in Group]
    for w in words:
        if w not in known:
            raise UsageError(f"unknown group '{w}' for {option}; {near(w, known) or 'allowed: ' + ', '.join(known)}")
    return tuple(Group(w) for w in words)


MEANING: dict[Group, str] = {
    Group.DYING: "the process dies, hangs or is killed where it did not",
    Group.REGRESSED: "findings of a kind that the first run did not have there, or an op is compared no longer",
    Group.LOST: "compared before, refused now, or gone from torch",
    Group.SIGNATURE: "the call compared before, and torch takes other arguments now",
    Group.REFUSED: "compared before, refused by the CPU and by the device now",
    Group.WORSE: "errors grew, inside the tolerance, or agree became marginal",
    Group.FALLBACK: "runs on the CPU now, or no longer",
    Group.UNMADE: "compared before, and its cases could not be made now; an own function fails the diff",
    Group.INCOMPARABLE: "says nothing now; a pinned case with other inputs; or not drawn by the other profile",
    Group.REMOVED: "in the first run only",
    Group.SLOWER: "the device takes longer for equal cases",
    Group.LARGER: "the device holds more memory for an own function",
    Group.EASED: "findings that became less severe",
    Group.ADDED: "in the second run only",
    Group.SUPPORTED: "refused before, compared now",
    Group.BETTER: "errors shrank, inside the tolerance, or marginal became agree",
    Group.FASTER: "the device takes less time for equal cases",
    Group.SMALLER: "the device holds less memory for an own function",
    Group.FIXED: "findings that agree now",
}
ALWAYS_FAIL = frozenset({Group.DYING, Group.REGRESSED, Group.LOST, Group.SIGNATURE, Group.REFUSED})
# How the reason of a check begins that says nothing now -> the group, if it is not INCOMPARABLE.
OF_TORCH = {MISSING: Group.LOST, "this torch lacks": Group.LOST, OTHER_SIGNATURE: Group.SIGNATURE, BOTH_REFUSE: Group.REFUSED}


@dataclass(frozen=True, slots=True)
class Change:
    """A check whose status changed. paired: whether both runs have the very same case; otherwise only op, dtype and aspect are
    the same; known: whether the later run had an entry that accepts what it found there."""

    op: str
    dtype: str
    aspect: str
    case: str
    before: str
    after: str
    reason: str = ""
    paired: bool = True
    group: Group = Group.REGRESSED
    known: bool = False

    @property
    def cell(self) -> Cell:
        """Its op, dtype and aspect."""
        return self.op, self.dtype, self.aspect

    @property
    def fails(self) -> bool:
        """Whether it makes a diff fail that asks for nothing more."""
        to_the_cpu = self.group is Group.FALLBACK and self.after == Status.FALLBACK
        fails = self.group in ALWAYS_FAIL or to_the_cpu or (self.group is Group.UNMADE and is_own(self.op))
        return fails and not self.known


@dataclass(frozen=True, slots=True)
class ReportedChange:
    """What is reported as one: the changes, shifts or paces of one cause, or else of one op. cause, weight: of the findings, if
    they have a cause; shifts: of findings, what their ops did inside the tolerance; reason: a message that all changes
    share; workaround: a way around the cause that was tried and agreed (`Gathered.workaround`)."""

    group: Group
    cells: tuple[Cell, ...]
    cause: Cause | None = None
    weight: str = ""
    changes: tuple[Change, ...] = ()
    shifts: tuple[Shift, ...] = ()
    paces: tuple[Pace, ...] = ()
    case: str = ""
    reason: str = ""
    workaround: str = ""

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops, each once."""
        return tuple(dict.fromkeys(c[0] for c in self.cells))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes, each once."""
        return tuple(dict.fromkeys(c[1] for c in self.cells))

    @property
    def aspects(self) -> tuple[str, ...]:
        """The aspects, each once."""
        return tuple(dict.fromkeys(c[2] for c in self.cells if c[2]))

    @property
    def fails(self) -> bool:
        """Whether it makes a diff fail that asks for nothing more."""
        return any(c.fails for c in self.changes)

    @property
    def known(self) -> bool:
        """Whether all of it is accepted."""
        return bool(self.changes) and all(c.known for c in self.changes)


def cells_of(causes: Iterable[Gathered]) -> dict[str, list[Cell]]:
    """The cells in which each cause shows, by its id."""
    cells: dict[str, list[Cell]] = defaultdict(list)
    for c in causes:
        cells[c.cause.id] += [(r.op, r.dtype, r.aspect) for r in c.records]
    return cells


def grouped(
    changes: Sequence[Change], drift: Drift, paces: Paces, before: Sequence[Gathered], after: Sequence[Gathered]
) -> dict[Group, tuple[ReportedChange, ...]]:
    """Everything that changed, by group and cause. before, after: the causes of the two runs."""
    old, new = _by_check(before), _by_check(after)
    of_group: dict[Group, list[ReportedChange]] = defaultdict(list)
    for group in Group:
        own = [c for c in changes if c.group is group]
        if group in (Group.DYING, Group.REGRESSED):
            of_group[group] += _by_cause(group, own, new, lambda c: c.after)
        elif group in (Group.FIXED, Group.EASED):
            of_group[group] += _by_cause(group, own, old, lambda c: c.before)
        elif group in (Group.ADDED, Group.REMOVED):
            of_group[group] += _by_dtypes(group, own)
        else:
            of_group[group] += _by_reason(group, own)
    causes = {c.cause.id: c for c in (*before, *after)}
    for group, findings, worse in ((Group.WORSE, Group.REGRESSED, True), (Group.BETTER, Group.FIXED, False)):
        shifts = [s for s in drift.shifts if s.is_worse is worse]
        of_group[findings] = [_with_shifts(t, shifts) for t in of_group[findings]]
        reported = {s for t in of_group[findings] for s in t.shifts}
        of_group[group] += _shifts(group, [s for s in shifts if s not in reported], causes)
    for group, some in ((Group.SLOWER, paces.slower), (Group.FASTER, paces.faster)):
        by_op: dict[str, list[Pace]] = defaultdict(list)
        for p in some:
            by_op[p.cell[0]].append(p)
        of_group[group] += [ReportedChange(group, tuple(p.cell for p in ps), paces=tuple(ps)) for ps in by_op.values()]
    return {g: tuple(of_group[g]) for g in Group if of_group[g]}


def _by_check(causes: Iterable[Gathered]) -> dict[tuple[str, ...], Gathered]:
    """Op, dtype, aspect and status of each finding, and op, dtype and kind of each death, with the first cause that has it.
    Cases of one kind may differ in their status, so a finding stands there without it, too."""
    found: dict[tuple[str, ...], Gathered] = {}
    for c in causes:
        for r in c.records:
            found.setdefault((r.op, r.dtype, r.aspect, r.status), c)
            found.setdefault((r.op, r.dtype, r.aspect, ""), c)
        for d in c.deaths:
            found.setdefault((d.op, d.dtype, d.how), c)
    return found


def _by_cause(
    group: Group, changes: Iterable[Change], causes: Mapping[tuple[str, ...], Gathered], status: Callable[[Change], str]
) -> list[ReportedChange]:
    """Findings by cause, and those without one by op and status; the worst status first. status: of the finding."""
    together: dict[tuple[str, ...], list[Change]] = defaultdict(list)
    cause_of: dict[tuple[str, ...], Gathered] = {}
    for c in changes:
        keys = ((*c.cell, status(c)), (c.op, c.dtype, status(c)), (*c.cell, "" if status(c) not in DEATHS else "death"))
        cause = next((causes[k] for k in keys if k in causes), None)
        key: tuple[str, ...] = ("op", c.op, status(c)) if cause is None else ("cause", cause.cause.id)
        together[key].append(c)
        if cause is not None:
            cause_of[key] = cause
    entries = []
    for key, cs in together.items():
        cs.sort(key=lambda c: (_rank(status(c)), not c.case, len(c.case)))
        cause = cause_of.get(key)
        cells = tuple(dict.fromkeys(c.cell for c in cs))
        case = _least_case(cs, cause)
        made = ReportedChange(group, cells, changes=tuple(cs), case=case, reason=cs[0].reason)
        if cause is not None:
            made = replace(made, cause=cause.cause, weight=cause.weight, workaround=cause.workaround)
        entries.append(made)
    weights = (*WEIGHTS, "")
    entries.sort(
        key=lambda t: (t.known, _rank(status(t.changes[0])), weights.index(t.weight), -len(t.ops), -len(t.cells), t.cells)
    )
    return entries


def _least_case(changes: Sequence[Change], cause: Gathered | None) -> str:
    """The least case of the cause if it is one of those that changed, else the shortest of these."""
    cells = {c.cell for c in changes}
    records = cause.records if cause is not None else ()
    least = next((r.shrunk or r.case for r in records if (r.op, r.dtype, r.aspect) in cells), "")
    return least or next((c.case for c in changes if c.case), "")


def _rank(status: str) -> int:
    """The worst of the statuses that a change leads to, or led from, decides its place; other words come last."""
    return next((-s.severity for s in Status if s == status), 0)


def _by_reason(group: Group, changes: Iterable[Change]) -> list[ReportedChange]:
    """Changes with the same words, and those without by op."""
    together: dict[tuple[str, ...], list[Change]] = defaultdict(list)
    for c in changes:
        words = c.reason if group is Group.FALLBACK else skeleton(c.reason)
        together[("words", words) if words else ("op", c.op)].append(c)
    entries = [
        ReportedChange(group, tuple(dict.fromkeys(c.cell for c in cs)), changes=tuple(cs), case=cs[0].case, reason=cs[0].reason)
        for cs in together.values()
    ]
    return sorted(entries, key=lambda t: (not t.fails, -len(t.ops), -len(t.cells), t.cells))


def _by_dtypes(group: Group, changes: Iterable[Change]) -> list[ReportedChange]:
    """Ops that came or went in the same dtypes."""
    dtypes: dict[str, list[str]] = defaultdict(list)
    for c in changes:
        dtypes[c.op].append(c.dtype)
    ops: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for op, some in dtypes.items():
        ops[tuple(some)].append(op)
    entries = [ReportedChange(group, tuple((op, d, "") for op in names for d in some)) for some, names in ops.items()]
    return sorted(entries, key=lambda t: (-len(t.ops), t.cells))


def _with_shifts(t: ReportedChange, shifts: Iterable[Shift]) -> ReportedChange:
    """Findings with what happened to the same ops inside the tolerance: most often that has the same reason."""
    return replace(t, shifts=tuple(s for s in shifts if {c[0] for c in s.cells} <= set(t.ops)))


def _shifts(group: Group, shifts: Iterable[Shift], causes: Mapping[str, Gathered]) -> list[ReportedChange]:
    """Shifts by cause, and those without one by op."""
    together: dict[tuple[str, str], list[Shift]] = defaultdict(list)
    for s in shifts:
        together[("cause", s.cause) if s.cause else ("op", s.cells[0][0])].append(s)
    entries = []
    for (_, name), ss in together.items():
        cells = tuple(dict.fromkeys(c for s in ss for c in s.cells))
        cause = causes.get(name) if ss[0].cause else None
        made = ReportedChange(group, cells, shifts=tuple(ss))
        entries.append(made if cause is None else replace(made, cause=cause.cause, weight=cause.weight, case=cause.case))
    return entries


ERRORS = 1.5  # least change of the median error, as a power of two: 2.8 times
FLOOR = 0.25  # roundoffs below which an error is noise
TIMES = 2.0  # least factor of a time
MEMORY, LEAST_MEMORY = 1.25, 1 << 20  # least factor of the memory, and least bytes


def pairs(before: Run, after: Run) -> list[tuple[ItemRow, ItemRow]]:
    """The functions with equal inputs and weights in both."""
    old = {(i.op, i.dtype, i.ids): i for i in before.items if is_own(i.op) and i.ids}
    return [(old[key], i) for i in after.items if (key := (i.op, i.dtype, i.ids)) in old]


def own_with_errors(drift: Drift, before: Run, after: Run) -> Drift:
    """The drift of all else, and the passes whose errors grew or shrank, each with its number of tensors; the worst first."""
    found, compared = [*drift.shifts], drift.pairs
    for a, b in pairs(before, after):
        for aspect in (Aspect.FORWARD, Aspect.BACKWARD):
            both = [(a.errors[n], e) for n, e in b.errors.items() if n in a.errors and n.startswith(f"{aspect} ")]
            moved = sorted(math.log2(max(new, FLOOR) / max(old, FLOOR)) for old, new in both)
            compared += len(both)
            if moved and abs(median := statistics.median(moved)) >= ERRORS:
                worse, better = sum(m > 0 for m in moved), sum(m < 0 for m in moved)
                high = moved[-1] if median > 0 else moved[0]
                found.append(Shift(((b.op, b.dtype, str(aspect)),), "", len(moved), worse, better, median, high, 0.0))
    return replace(drift, shifts=tuple(sorted(found, key=lambda s: -abs(s.median))), pairs=compared)


def own_with_times(paces: Paces, before: Run, after: Run) -> Paces:
    """The paces of all else, and the passes that became slower or faster; the worst first."""
    if paces.why == OTHER_MACHINES:
        return paces
    found, compared = [*paces.slower, *paces.faster], paces.series
    least = LEAST_SIMULATED if after.header.fingerprint.simulated else 0.0
    for a, b in pairs(before, after):
        for aspect in a.device_seconds.keys() & b.device_seconds.keys():
            compared += 1
            old, new = a.device_seconds[aspect] * paces.general, b.device_seconds[aspect]
            around = a.device_spread.get(aspect, 0.0) + b.device_spread.get(aspect, 0.0)
            if max(old, new) >= TIMES * min(old, new) and abs(new - old) >= max(NOISE * around, least):
                cell, noise = (b.op, b.dtype, aspect), 1.0 + around / min(old, new)
                found.append(Pace(cell, 1, new / old, a.device_seconds[aspect], new, noise))
    slower = sorted((p for p in found if p.factor > 1.0), key=lambda p: -p.factor)
    faster = sorted((p for p in found if p.factor < 1.0), key=lambda p: p.factor)
    return Paces(tuple(slower), tuple(faster), paces.general, compared, "" if compared else paces.why)


def own_memory(before: Run, after: Run) -> Iterator[Change]:
    """The functions for which the device holds more memory, or less."""
    for a, b in pairs(before, after):
        few, many = sorted((a.memory, b.memory))
        if few and many >= max(MEMORY * few, few + LEAST_MEMORY):
            group = Group.LARGER if b.memory == many else Group.SMALLER
            sizes = machine.size(a.memory), machine.size(b.memory)
            yield Change(
                b.op, b.dtype, str(Aspect.FORWARD), "", *sizes, "that the device holds after the forward pass", group=group
            )


def own_other_inputs(before: Run, after: Run) -> Iterator[Change]:
    """The functions with other inputs or weights than before, although their seed is the same."""
    old = {(i.op, i.dtype): i for i in before.items if is_own(i.op) and i.ids}
    for i in after.items:
        a = old.get((i.op, i.dtype))
        if a is not None and i.ids and a.ids != i.ids:
            yield Change(
                i.op, i.dtype, "", "", f"inputs {a.ids}", f"inputs {i.ids}", "other inputs or weights", group=Group.INCOMPARABLE
            )
