"""Decides whether two runs can be compared at all: enough of the same cells, and nothing that changed besides what the
comparison is about. Where they cannot, a diff is inconclusive even if nothing got worse."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields

from parity.core.health import DOCTOR, HEALTHY
from parity.core.machine import IMAGE
from parity.core.results import Fingerprint
from parity.history.cells import is_whole, item_name, items_of
from parity.history.change import Change, Group
from parity.history.drift import Cell
from parity.store.rows import Header, Run, is_own

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
