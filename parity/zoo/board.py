"""The scoreboard: every fault under every generator and seed, gathered from the workers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from parity import suite
from parity.zoo.pool import Pool, reaches
from parity.zoo.reach import Route, choose
from parity.zoo.score import OPINFO, PATIENCE, SUITE, Score
from parity.zoo.subjects import Subject, load, select
from parity.zoo.workers import Setup, Task

GENERATORS = {"suite": (SUITE,), "opinfo": (OPINFO,), "both": (SUITE, OPINFO)}
Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class Board:
    """All scores, in the order of the faults. routes: where each fault was looked for. source: "" for the zoo. unknown: rows of
    which it could not be recorded what they call, so that faults are looked for in them by name alone. left: scores that are
    missing because the run was interrupted; the subjects are those that have some."""

    profile: str
    generators: tuple[str, ...]
    seeds: tuple[str, ...]
    source: str
    workers: int
    seconds: float
    subjects: tuple[Subject, ...]
    routes: dict[str, Route]
    scores: tuple[Score, ...]
    unknown: tuple[str, ...] = ()
    left: int = 0

    def of(self, generator: str, subjects: Iterable[Subject] | None = None) -> list[Score]:
        """The scores of one generator, of all faults or of these."""
        ids = None if subjects is None else {s.id for s in subjects}
        return [s for s in self.scores if s.generator == generator and (ids is None or s.fault in ids)]


def wilson(found: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share. Wilson, JASA 22 (1927) 209: it stays inside [0, 1] and is honest at the ends."""
    if not of:
        return 0.0, 1.0
    p, z2 = found / of, Z95 * Z95
    middle = (p + z2 / (2 * of)) / (1 + z2 / of)
    half = Z95 / (1 + z2 / of) * math.sqrt(p * (1 - p) / of + z2 / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def seeds(first: str, count: int) -> tuple[str, ...]:
    """`count` seeds from the first on: the numbers after it, or words made of it."""
    if first.lstrip("-").isdigit():
        return tuple(str(int(first) + k) for k in range(count))
    return (first, *(f"{first}.{k}" for k in range(1, count)))


def run(
    patterns: Sequence[str],
    source: str,
    beyond: bool,
    generator: str,
    profile: str,
    first_seed: str,
    repeat: int,
    workers: int,
    told: Callable[[Score, int, int], None],
    patience: float = PATIENCE,
) -> Board:
    """Score the faults that the patterns name. `told` hears of each score as it comes, with how many there are and will be.
    patience: seconds that a case may take before it counts as hung, beside those for its elements. Ctrl-C ends it early, with
    the scores that there are.

    Raises KeyboardInterrupt before the first score, UsageError for a pattern that names nothing and for an unknown profile,
    FaultError as `subjects.load` does.
    """
    started = time.monotonic()
    chosen = select(load(source, beyond), patterns)
    chart, generators, spoken = suite.profile(profile), GENERATORS[generator], seeds(first_seed, repeat)
    setup = Setup(source, beyond, profile, OPINFO in generators or chart.source == "all", patience)
    workers = max(1, min(workers, len(chosen) * len(generators) * repeat))
    with Pool(setup, workers) as pool:
        names = [r.name for r in suite.rows("native")]
        seen = reaches(pool, names, workers)
        routes = {s.id: choose(s, seen, chart) for s in chosen}
        tasks = [
            Task(s.id, g, seed, routes[s.id])
            for k, seed in enumerate(spoken)
            for g in generators
            if g == SUITE or k == 0  # OpInfo has no seed: its samples are always the same
            for s in chosen
        ]
        scores: dict[tuple[str, str, str], Score] = {}
        try:
            for task, answer in pool.map(tasks):
                score = answer or Score(task.fault, task.generator, task.seed, miss="its worker was lost")
                scores[task.fault, task.generator, task.seed] = score
                told(score, len(scores), len(tasks))
        except KeyboardInterrupt:
            if not scores:
                raise
    ordered = tuple(scores[key] for t in tasks if (key := (t.fault, t.generator, t.seed)) in scores)
    kept = {s.fault for s in ordered}
    chosen = tuple(s for s in chosen if s.id in kept)
    unknown, took = tuple(n for n in names if n not in seen), time.monotonic() - started
    left = len(tasks) - len(ordered)
    return Board(profile, generators, spoken, source, workers, took, chosen, routes, ordered, unknown, left)
