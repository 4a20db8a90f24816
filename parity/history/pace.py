"""Tests whether the device became slower or faster from one run to another, by the times of equal cases.

A case's time is that of one call, with whatever the machine did meanwhile, so sizes are compared robustly: a series (one op in
one dtype, forward or backward) is reported if three quarters of its cases moved by `FACTOR` or more beyond what all series
moved in the middle (a busy machine slows everything), and beyond `NOISE` times the spread of the series among each other. A
sign test with Holm's correction holds the chance that luck among the cases does this to `ALARM`; no test can know of a
machine that is busy just while one op runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from parity.core.results import Aspect
from parity.history.drift import ALARM, Cell, holm, sign_test
from parity.store.figures import TICK, TIME_STEPS, Unpacked, by_item
from parity.store.rows import Run

FACTOR = 1.5  # least change that is reported
NOISE = 4.0  # standard deviations of the series' medians among each other
LEAST_SIMULATED = 1e-3  # seconds that a simulated device must gain or lose: a fault's own Python takes some 0.1 ms
OTHER_MACHINES = "the machines differ"
ENOUGH = 5  # series from which their spread is known
NORMAL = 1.4826  # standard deviation of a normal distribution with a median absolute deviation of 1
GENERAL = 1.25  # from this factor on, what all series moved is said


@dataclass(frozen=True, slots=True)
class Pace:
    """How the time of one series changed. pairs: cases; factor: the middle of their changes, without what all series moved;
    before, after: median seconds of these cases; noise: the median distance from the factor, as a factor."""

    cell: Cell
    pairs: int
    factor: float
    before: float
    after: float
    noise: float


@dataclass(frozen=True, slots=True)
class Paces:
    """The series that became slower or faster. general: the factor by which all moved in the middle; series: how many were
    compared; why: why none were, or ""."""

    slower: tuple[Pace, ...] = ()
    faster: tuple[Pace, ...] = ()
    general: float = 1.0
    series: int = 0
    why: str = ""


def paces(before: Run, after: Run) -> Paces:
    """What became slower or faster; nothing where the runs are of different machines."""
    one, other = before.header.fingerprint, after.header.fingerprint
    if (one.machine, one.device, one.device_name) != (other.machine, other.device, other.device_name):
        return Paces(why=OTHER_MACHINES)
    old, new = by_item(before.figures), by_item(after.figures)
    series = {(*item, a): d for item in sorted(old.keys() & new.keys()) for a, d in _of_item(old[item], new[item]).items()}
    if not series:
        return Paces(why="no case with a time is in both runs")
    middles = {c: statistics.median(d for d, _, _ in pairs) for c, pairs in series.items()}
    general = statistics.median(middles.values())
    # Of few series, what they have in common cannot be separated from what each of them did.
    general, around = (general, _deviation(list(middles.values()))) if len(series) >= ENOUGH else (0.0, 0.0)
    limit = max(math.log2(FACTOR), NOISE * around)
    signs = {c: (sum(d > general for d, _, _ in p), sum(d < general for d, _, _ in p)) for c, p in series.items()}
    least = LEAST_SIMULATED if after.header.fingerprint.simulated else 0.0
    adjusted, _ = holm([sign_test(*s) for s in signs.values()], [sign_test(sum(s), 0) for s in signs.values()])
    reported = [
        _pace(c, pairs, general)
        for (c, pairs), p in zip(series.items(), adjusted)
        if p <= ALARM and _quarter([d - general for d, _, _ in pairs]) >= limit
    ]
    reported = [p for p in reported if abs(p.after - p.before) >= least]
    slower = sorted((p for p in reported if p.factor > 1.0), key=lambda p: -p.factor)
    faster = sorted((p for p in reported if p.factor < 1.0), key=lambda p: p.factor)
    return Paces(tuple(slower), tuple(faster), 2.0**general, len(series))


def _deviation(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return NORMAL * statistics.median(abs(x - middle) for x in values)


def _quarter(differences: Sequence[float]) -> float:
    """What three quarters of the differences reach in the direction of most."""
    ordered = sorted(differences)
    k = len(ordered) // 4
    return max(ordered[k], -ordered[len(ordered) - 1 - k])


def _pace(cell: Cell, pairs: Sequence[tuple[float, int, int]], general: float) -> Pace:
    differences = [d - general for d, _, _ in pairs]
    middle = statistics.median(differences)
    noise = statistics.median(abs(d - middle) for d in differences)
    old, new = (statistics.median(p[k] for p in pairs) for k in (1, 2))
    return Pace(cell, len(pairs), 2.0**middle, _seconds(old), _seconds(new), 2.0**noise)


def _seconds(code: float) -> float:
    return float(TICK * 2.0 ** ((code - 1) / TIME_STEPS))


def _of_item(a: Unpacked, b: Unpacked) -> dict[str, list[tuple[float, int, int]]]:
    """Of each aspect with times: (change as a power of two, code before, code after) of each case in both."""
    common = [(k, b.places[key]) for key, k in a.places.items() if key in b.places]
    found = {}
    for aspect in (Aspect.FORWARD, Aspect.BACKWARD):
        old, new = a.seconds.get(aspect, b""), b.seconds.get(aspect, b"")
        if old and new:
            pairs = [((new[j] - old[i]) / TIME_STEPS, old[i], new[j]) for i, j in common if old[i] and new[j]]
            if pairs:
                found[str(aspect)] = pairs
    return found
