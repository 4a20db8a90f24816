"""The changes of a user's own functions from one run to another: errors, times and memory.

A function is one case, so no test of many cases can separate chance from change, as for ops. It is reported from factors on
that honest devices hardly reach: of 274 small networks whose kernels summed in another order, the median error of a pass moved
by 2.8 times or more in two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace

from parity.core import machine
from parity.core.results import Aspect
from parity.history.change import Change, Group
from parity.history.drift import Drift, Shift
from parity.history.pace import LEAST_SIMULATED, NOISE, OTHER_MACHINES, Pace, Paces
from parity.store.rows import ItemRow, Run, is_own

ERRORS = 1.5  # least change of the median error, as a power of two: 2.8 times
FLOOR = 0.25  # roundoffs below which an error is noise
TIMES = 2.0  # least factor of a time
MEMORY, LEAST_MEMORY = 1.25, 1 << 20  # least factor of the memory, and least bytes


def pairs(before: Run, after: Run) -> list[tuple[ItemRow, ItemRow]]:
    """The functions with equal inputs and weights in both."""
    old = {(i.op, i.dtype, i.ids): i for i in before.items if is_own(i.op) and i.ids}
    return [(old[key], i) for i in after.items if (key := (i.op, i.dtype, i.ids)) in old]


def with_errors(drift: Drift, before: Run, after: Run) -> Drift:
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


def with_times(paces: Paces, before: Run, after: Run) -> Paces:
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


def memory(before: Run, after: Run) -> Iterator[Change]:
    """The functions for which the device holds more memory, or less."""
    for a, b in pairs(before, after):
        few, many = sorted((a.memory, b.memory))
        if few and many >= max(MEMORY * few, few + LEAST_MEMORY):
            group = Group.LARGER if b.memory == many else Group.SMALLER
            sizes = machine.size(a.memory), machine.size(b.memory)
            yield Change(
                b.op, b.dtype, str(Aspect.FORWARD), "", *sizes, "that the device holds after the forward pass", group=group
            )


def other_inputs(before: Run, after: Run) -> Iterator[Change]:
    """The functions with other inputs or weights than before, although their seed is the same."""
    old = {(i.op, i.dtype): i for i in before.items if is_own(i.op) and i.ids}
    for i in after.items:
        a = old.get((i.op, i.dtype))
        if a is not None and i.ids and a.ids != i.ids:
            yield Change(
                i.op, i.dtype, "", "", f"inputs {a.ids}", f"inputs {i.ids}", "other inputs or weights", group=Group.INCOMPARABLE
            )
