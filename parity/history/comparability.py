"""Decides whether two runs can be compared at all: enough of the same cells, and nothing that changed besides what the
comparison is about. Where they cannot, a diff is inconclusive even if nothing got worse."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from parity.core.health import DOCTOR, HEALTHY
from parity.core.machine import IMAGE
from parity.history.change import Change, Group
from parity.history.drift import Cell
from parity.store.rows import Header, Run

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
