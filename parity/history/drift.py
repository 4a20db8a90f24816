"""Tests whether errors grew or shrank from one run to another: paired statistics over all cases with equal inputs in both.

The error of each tensor of a case is compared with that of the same tensor in the other run, in steps of an eighth of a factor
of two; where one run had the bits of the reference, with the reference's error. What lies below 2**-7 of a budget is noise.
A *cell* is one op in one dtype and one aspect. A *series* is the differences of a cell, of an op, or of all cells in which a
cause shows.

The test is a sign test: where a case's error differs, it is worse or better with equal chance if the device did not change. It
asks nothing of the sizes of errors, which are skewed, and ties (most cases, where the bits are equal) say nothing. The series
are many, so the chance that *any* is reported without reason is held to `ALARM` by Holm's steps: one false line costs a
reader as much as ten. A series with few differences cannot reach significance at all; such ones do not count as tests (Tarone
1990), or they would hide the others. What is significant is reported only if its typical difference is `LEAST` or more.

Tests whether the device became slower or faster from one run to another, by the times of equal cases.

A case's time is that of one call, with whatever the machine did meanwhile, so sizes are compared robustly: a series (one op in
one dtype, forward or backward) is reported if three quarters of its cases moved by `FACTOR` or more beyond what all series
moved in the middle (a busy machine slows everything), and beyond `NOISE` times the spread of the series among each other. A
sign test with Holm's correction holds the chance that luck among the cases does this to `ALARM`; no test can know of a
machine that is busy just while one op runs.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from parity.core.results import Aspect, Record
from parity.store.figures import LEAST as LEAST_BUDGET
from parity.store.figures import STEPS, TICK, TIME_STEPS, Unpacked, by_item, ratio_code
from parity.store.rows import Run

Cell: TypeAlias = tuple[str, str, str]  # op, dtype, aspect
Key: TypeAlias = bytes | tuple[str, ...]  # of a case

ALARM = 0.01  # chance that a diff of two runs of an unchanged device reports any drift
LEAST = 0.25  # least typical difference, as a power of two: a fifth
NO_SHIFT = 0.5 / STEPS  # a smaller mean difference of a case's tensors or aspects is none


@dataclass(frozen=True, slots=True)
class Shift:
    """How the errors of one series moved.

    cells: those of the series; cause: the id of a cause, if it is the series of one. pairs: cases in both runs; worse, better:
    those whose error grew or shrank; median, high: of the differences of these, as powers of two, the middle one and the 99th
    percentile in the direction of the middle one; p: after the correction for the number of series.
    """

    cells: tuple[Cell, ...]
    cause: str
    pairs: int
    worse: int
    better: int
    median: float
    high: float
    p: float

    @property
    def is_worse(self) -> bool:
        """Whether the errors grew."""
        return self.median > 0.0


@dataclass(frozen=True, slots=True)
class Drift:
    """The shifts that are reported. pairs: of one case and aspect in both runs; series: how many have any difference; tests:
    how many of these can be significant."""

    shifts: tuple[Shift, ...] = ()
    pairs: int = 0
    series: int = 0
    tests: int = 0


def drift(before: Run, after: Run, causes: Mapping[str, Iterable[Cell]], left_out: Iterable[Cell] = ()) -> Drift:
    """The series of two runs whose errors shifted: of each cell, of each op, and of each cause. An op is reported where none of
    its cells is, and a cell where no cause is that it belongs to. causes: id -> cells; left_out: cells that are reported for
    another reason."""
    away = set(left_out)
    differences = {c: d for c, d in _differences(before, after).items() if c not in away}
    by_op: dict[str, list[Cell]] = defaultdict(list)
    for c in differences:
        by_op[c[0]].append(c)
    pools: list[tuple[tuple[Cell, ...], str]] = [((c,), "") for c in differences]
    pools += [(tuple(cells), "") for cells in by_op.values() if len(cells) > 1]
    pools += [(tuple(c for c in dict.fromkeys(cells) if c in differences), cause) for cause, cells in causes.items()]
    series = [(cells, cause, _together(differences, cells)) for cells, cause in pools]
    moving = [(cells, cause, d, _signs(d)) for cells, cause, d in series if any(d)]
    adjusted, tests = holm([sign_test(*m[3]) for m in moving], [sign_test(sum(m[3]), 0) for m in moving])
    shifts = [_shift(*m, p) for m, p in zip(moving, adjusted) if p <= ALARM]
    reported = [s for s in shifts if abs(s.median) >= LEAST]
    of_causes = {c for s in reported if s.cause for c in s.cells}
    reported = [s for s in reported if s.cause or not of_causes.issuperset(s.cells)]
    alone = {s.cells[0] for s in reported if len(s.cells) == 1}
    reported = [s for s in reported if s.cause or len(s.cells) == 1 or alone.isdisjoint(s.cells)]
    reported.sort(key=lambda s: (-abs(s.median), s.cells))
    return Drift(tuple(reported), sum(map(len, differences.values())), len(moving), tests)


def _together(differences: Mapping[Cell, Mapping[Key, float]], cells: Sequence[Cell]) -> list[float]:
    """The differences of several cells, of each case the mean of its aspects: these are no independent trials."""
    if len(cells) == 1:
        return list(differences[cells[0]].values())
    by_case: dict[tuple[str, str, Key], list[float]] = defaultdict(list)
    for c in cells:
        for key, d in differences[c].items():
            by_case[c[0], c[1], key].append(d)
    return [_rounded(sum(ds) / len(ds)) for ds in by_case.values()]


def _rounded(mean: float) -> float:
    return mean if abs(mean) >= NO_SHIFT else 0.0


def _signs(differences: Sequence[float]) -> tuple[int, int]:
    """How many are worse, and how many better."""
    return sum(d > 0 for d in differences), sum(d < 0 for d in differences)


def _shift(cells: tuple[Cell, ...], cause: str, differences: Sequence[float], signs: tuple[int, int], p: float) -> Shift:
    moved = sorted(d for d in differences if d)
    median = statistics.median(moved)
    rank = math.ceil(0.99 * len(moved)) - 1
    high = moved[rank] if median > 0 else moved[len(moved) - 1 - rank]
    return Shift(cells, cause, len(differences), *signs, median, high, p)


# ------------------------------------------------------------------------------------------------------------ statistics


def sign_test(worse: int, better: int) -> float:
    """The chance of so uneven a split, or of a more uneven one, if both sides are equally likely."""
    n, few = worse + better, min(worse, better)
    all_ways = n * math.log(2.0)
    ways = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(few + 1))
    return min(1.0, 2.0 * sum(math.exp(w - all_ways) for w in ways))


def holm(ps: Sequence[float], least: Sequence[float]) -> tuple[list[float], int]:
    """p-values corrected by Holm's steps among the tests that can reach significance, and how many these are. least: the
    smallest p-value that each test could have. What cannot be significant gets 1."""
    order = sorted(least)
    count = next((k for k in range(1, len(order) + 1) if sum(x <= ALARM / k for x in order) <= k), max(1, len(order)))
    able = sorted((i for i in range(len(ps)) if least[i] <= ALARM / count), key=lambda i: ps[i])
    adjusted, largest = [1.0] * len(ps), 0.0
    for step, i in enumerate(able):
        largest = max(largest, min(1.0, ps[i] * (count - step)))
        adjusted[i] = largest
    return adjusted, len(able)


# ----------------------------------------------------------------------------------------------------------------- pairs


def _differences(before: Run, after: Run) -> dict[Cell, dict[Key, float]]:
    """The differences of all paired cases, by cell; 0 for equal errors."""
    old, new = by_item(before.figures), by_item(after.figures)
    both = old.keys() & new.keys()
    found = _by_records(before, after, both)
    for item in sorted(both):
        a, b = old[item], new[item]
        # With screens and without, ratios are of other budgets.
        for aspect in sorted(a.compared.keys() & b.compared.keys()) if a.screens == b.screens else ():
            ours, theirs = a.ranks(aspect), b.ranks(aspect)
            if pairs := {key: (k, theirs[key]) for key, k in ours.items() if key in theirs}:
                found[*item, aspect] = _of_aspect(a, b, aspect, pairs)
    return found


def _of_aspect(a: Unpacked, b: Unpacked, aspect: str, pairs: Mapping[bytes, tuple[int, int]]) -> dict[Key, float]:
    ours, theirs = a.ratios.get(aspect, {}), b.ratios.get(aspect, {})
    if ours == theirs and all(i == j for i, j in pairs.values()):
        return dict.fromkeys(pairs, 0.0)
    columns = [(ours.get(t, b""), theirs.get(t, b"")) for t in dict.fromkeys((*ours, *theirs))]
    found: dict[Key, float] = {}
    for key, (i, j) in pairs.items():
        by_tensor = [_difference(x[2 * i : 2 * i + 2], y[2 * j : 2 * j + 2]) for x, y in columns]
        known = [d for d in by_tensor if d is not None]
        found[key] = _rounded(sum(known) / len(known)) if known else 0.0
    return found


def _difference(a: bytes, b: bytes) -> float | None:
    """How much larger the later error is, as a power of two; None if unknown or if there is no error. a, b: two codes, or
    nothing."""
    old, new = a[0] if a else 0, b[0] if b else 0
    if not (old or new):
        return None
    if not old:  # the reference's own bits: its error is in the other run
        return (new % LEAST_BUDGET - b[1]) / STEPS if b[1] else None
    if not new:
        return (a[1] - old % LEAST_BUDGET) / STEPS if a[1] else None
    if (old >= LEAST_BUDGET) == (new >= LEAST_BUDGET):
        return (new - old) / STEPS
    # One is inside the least budget and the other is not: so much further, or more.
    size = max(1, ratio_code(1.0) - max(old, new) % LEAST_BUDGET) / STEPS
    return min(1.0, size) if old >= LEAST_BUDGET else -min(1.0, size)


def _by_records(before: Run, after: Run, known: Set[tuple[str, str]]) -> dict[Cell, dict[Key, float]]:
    """The same from the records of pinned cases, for files that hold no figures. known: items that have them."""
    old = {r.key: r for r in before.records}
    found: dict[Cell, dict[Key, float]] = {}
    for r in after.records:
        a = old.get(r.key)
        if a is None or (r.op, r.dtype) in known or r.status != a.status:
            continue
        one, other = _ratio(a), _ratio(r)
        if one is not None and other is not None:
            difference = (ratio_code(other) - ratio_code(one)) / STEPS
            found.setdefault((r.op, r.dtype, r.aspect), {})[r.case, r.digest] = difference
    return found


def _ratio(r: Record) -> float | None:
    """The largest measured error ratio of a record; None if screens decided or it is NaN."""
    shares = [m.share for m in r.measures if m.measured and m.share is not None and not math.isnan(m.share)]
    return max(shares, default=None)


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
