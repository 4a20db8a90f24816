"""A run by cells: one op in one dtype and one aspect each, with how often each status stands there.

Decides whether two runs can be compared at all: enough of the same cells, and nothing that changed besides what the
comparison is about. Where they cannot, a diff is inconclusive even if nothing got worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from parity.core.devices import DOCTOR, HEALTHY
from parity.core.errors import UsageError, near
from parity.core.machine import IMAGE
from parity.core.results import DEATHS, Aspect, Fingerprint, Record, Status
from parity.findings.verdict import new_of
from parity.history.change import Change, Group
from parity.history.drift import Cell
from parity.store.rows import SEEN, Header, Run, counted, is_own

Item: TypeAlias = tuple[str, str]  # op and dtype


def broken_in(run: Run) -> dict[str, str]:
    """What failed in parity itself, by the names of the items."""
    return {b.partition(" ")[0].rstrip(":"): b for b in (run.end.broken if run.end is not None else ())}


def item_name(op: str, dtype: str) -> str:
    """The name of an item, as a run says it."""
    return op if is_own(op) else f"{op}-{dtype}"


def comparing(cells: Mapping[Cell, Mapping[str, int]]) -> set[Item]:
    """The ops and dtypes of which something was compared; what both sides refuse says nothing of the device."""
    return {cell[:2] for cell, counts in cells.items() if cell[2] != Aspect.REFUSAL and compares(counts)}


def items_of(run: Run) -> set[Item]:
    """The ops and dtypes of a run."""
    rows: tuple[Any, ...] = (*run.items, *run.records, *run.deaths)
    return {(r.op, r.dtype) for r in rows}


def only(run: Run, ops: Sequence[str], word: str) -> Run:
    """What a run holds of the ops that match a pattern; all of it without patterns. word: which run it is. Raises UsageError
    for a pattern that matches none."""
    names = {op for op, _ in items_of(run)}
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


def is_whole(run: Run) -> bool:
    """Whether the run has all that it was asked for."""
    return run.end is not None and not run.end.stopped and len(run.items) + len(run.end.broken) >= run.end.expected


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


def findings_of(counts: Mapping[str, int]) -> int:
    """How many findings a cell has."""
    return sum(n for s, n in counts.items() if Status(s).is_finding)


def agreed(r: Record) -> bool:
    """Whether a check agreed."""
    return r.status == Status.AGREE


def cell_of(r: Record) -> Cell:
    return r.op, r.dtype, r.aspect


def cells_of_run(run: Run) -> dict[Cell, Counter[str]]:
    """Statuses per cell: of finished items, which count all their checks, and of deaths. An item that never finished has only
    its records."""
    cells: dict[Cell, Counter[str]] = {}
    for item in run.items:
        for aspect, counts in item.counts.items():
            cells.setdefault((item.op, item.dtype, aspect), Counter()).update({s: n for s, n in counts.items() if n})
    ended = {(item.op, item.dtype) for item in run.items}
    for cell, status, _ in dict.fromkeys((cell_of(r), r.status, r.key) for r in run.records):
        if cell[:2] not in ended or status in DEATHS:
            cells.setdefault(cell, Counter())[status] += 1
    return cells


def checks_of(cells: Mapping[Cell, Counter[str]], which: Iterable[Cell]) -> int:
    """How many checks these cells have."""
    return sum(sum(cells[c].values()) for c in which)


def clean(counts: Mapping[str, int] | None) -> bool:
    """Whether a cell compared something without a finding."""
    if counts is None or not counts.get(Status.AGREE):
        return False
    return not any(n and Status(s).is_finding for s, n in counts.items())


def compares(counts: Mapping[str, int]) -> bool:
    """Whether a cell compared something."""
    return any(n and Status(s).is_comparison for s, n in counts.items())


def accepted_in(run: Run) -> set[Cell]:
    """The cells of whose findings all are known."""
    found, (new, _) = [r for r in run.records if Status(r.status).is_finding], new_of(run)
    return {cell_of(r) for r in found} - {cell_of(r) for r in new if Status(r.status).is_finding}


def refused_in(run: Run, cells: Mapping[Cell, Mapping[str, int]]) -> set[Cell]:
    """The cells of which an entry accepts that the device refuses them, or leaves them to the CPU, if they show but one of
    both. Such an entry is seen without a case."""
    seen = {(s.op, s.dtype, s.aspect) for s in run.known if s.state == SEEN and not s.case}
    return {c for c in seen & cells.keys() if sum(Status(s).is_absence and n > 0 for s, n in cells[c].items()) == 1}


def unmade_in(after: Run, had: Collection[Cell]) -> list[Change]:
    """Ops and own functions that failed in parity itself in the later run. had: the cells that the earlier one compared."""
    broken = broken_in(after)
    return [
        Change(op, dtype, "", "", "compared", "not made", broken[item_name(op, dtype)], group=Group.UNMADE)
        for op, dtype in sorted({c[:2] for c in had})
        if item_name(op, dtype) in broken
    ]


def is_new(status: str, before: Collection[str]) -> bool:
    """Whether a status is a finding that `before` does not contain, as itself or as something worse."""
    worse = status == Status.DRIFT and Status.WRONG in before
    return Status(status).is_finding and status not in before and not worse


def state_of(counts: Mapping[str, int], tried: bool) -> str:
    """The worst status of a cell, in words. tried: whether its op was run in its dtype."""
    order = sorted(counts, key=lambda s: (not Status(s).is_finding, s != Status.MARGINAL, s != Status.AGREE, -counts[s]))
    return order[0] if order else "not compared" if tried else "not run"


UNSET = "unset"  # a fact or a variable that one run does not have
ENOUGH = 0.9  # of the cells that both runs could have
# What a comparison is about. A change of any other part of the fingerprint is no part of an upgrade.
SUBJECTS = frozenset(
    {"parity", "torch", "torch_git", "python", "os", "machine", "device", "device_name", "chip", "driver", "simulated", *IMAGE}
    | {"faults", "setup", "known"}
)


def few_cells(
    before: Run, after: Run, had: Collection[Cell], has: Collection[Cell], changes: Iterable[Change]
) -> Iterator[str]:
    """Whether too few of the cells that both runs could have were compared in both. had, has: those that each compared. An op
    that one of them cannot run is reported as that, and does not count here."""
    some = [*changes]
    unmade = {c.cell[:2] for c in some if c.group is Group.UNMADE}
    reported = {c.cell[:2] for c in some if c.group not in (Group.UNMADE, Group.INCOMPARABLE)}
    old, new = ({(i.op, i.dtype) for i in run.items} for run in (before, after))
    asked = (old & (new | unmade)) - reported
    could = {c for c in {*had, *has} if c[:2] in asked}
    done = could.intersection(had, has)
    if len(done) < ENOUGH * len(could):
        yield f"only {len(done):,} of {len(could):,} cells of op x dtype x aspect that both could have were compared in both"


def unlike(a: Header, b: Header, changed: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """The health of the device, if it changed, and, of one device, whatever else that changes numbers. changed: (field, before,
    after) of the fingerprints."""
    for name, old, new in changed:
        if name == DOCTOR:
            yield f"the health of the device changed: {' -> '.join(HEALTHY if x == UNSET else x for x in (old, new))}"
        elif name not in SUBJECTS and not two_devices(a, b):
            yield f"{name} changed: {old} -> {new}"


def two_devices(a: Header, b: Header) -> bool:
    """Whether two runs are of two devices, and not of one that changed."""
    f, g = a.fingerprint, b.fingerprint
    return (f.device, f.device_name, f.machine) != (g.device, g.device_name, g.machine)


CODES = frozenset(f.name for f in fields(Header) if str(f.type) == "Code")  # what a run was given: faults, setup


def narrow_runs(before: Run, after: Run, broken: Collection[str]) -> Iterator[str]:
    """Which run was asked for less than the other, or had less to run. broken: names of items that failed in parity itself."""
    question = [(r.header.selection, r.header.shard) for r in (before, after)]
    for word, smaller, other in (("first", before, after), ("second", after, before)):
        missing = {i for i in items_of(other) - items_of(smaller) if item_name(*i) not in broken}
        if missing and (question[0] != question[1] or (smaller is after and is_whole(smaller))):
            some = ", ".join(" ".join(x) for x in sorted(missing)[:3]) + (" ..." if len(missing) > 3 else "")
            what = f"{len(missing):,} of the {len(items_of(other)):,} op x dtype pairs of the other one ({some})"
            yield f"the {word} run is missing {what}: name the ops to compare: parity diff BEFORE AFTER PATTERN"


def warnings_of(before: Run, after: Run, paired: int) -> Iterator[str]:
    """What makes the two runs less comparable, a sentence each. paired: how many checks both have."""
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


def missing_of(before: Run, after: Run, reported: Collection[str]) -> Iterator[str]:
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


def changed_of(before: Header, after: Header) -> Iterator[tuple[str, str, str]]:
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


def other_inputs(before: Run, after: Run) -> list[Change]:
    """Pinned cases that have other inputs than before."""
    old = {(r.case, r.aspect): r for r in before.records if r.pinned and r.digest}
    pairs = [(old[r.case, r.aspect], r) for r in after.records if r.pinned and r.digest and (r.case, r.aspect) in old]
    return [
        Change(r.op, r.dtype, r.aspect, r.case, f"inputs {a.digest}", f"inputs {r.digest}", "other inputs for the same case")
        for a, r in pairs
        if a.digest != r.digest
    ]
