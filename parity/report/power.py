"""Says how much a run's agreements are worth: the fraction of artificial errors that the judge detected."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import sqrt

from parity.core.dtypes import DEFAULT
from parity.core.status import BLIND, ERRORS, SEEN
from parity.report.words import table
from parity.store.rows import ItemRow, Power

LEAST_SEEN = 0.97  # for errors of one half: if the upper limit is below this, agreement means less than it seems
ONE_SIDED = 1.645  # standard deviations that a normal variable exceeds with a probability of 5 %


def upper_limit(seen: int, asked: int) -> float:
    """The upper 95 % confidence limit (one-sided) of the detection rate. Wilson, JASA 22 (1927) 209."""
    if not asked:
        return 1.0
    p, z2 = seen / asked, ONE_SIDED**2
    centre = p + z2 / (2 * asked)
    return min(1.0, (centre + ONE_SIDED * sqrt(p * (1 - p) / asked + z2 / (4 * asked**2))) / (1 + z2 / asked))


def counts(rows: Sequence[Power]) -> dict[tuple[str, str], Counter[str]]:
    """Outcomes by (dtype, error)."""
    outcomes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for r in rows:
        outcomes[r.dtype, r.error].update(r.counts)
    return outcomes


def weak(rows: Sequence[Power]) -> list[str]:
    """The dtypes in which the judge misses so many errors that agreement means little, in words."""
    sentences = []
    for (dtype, error), c in counts(rows).items():
        asked = c[SEEN] + c[BLIND]
        if error == ERRORS[0] and (limit := upper_limit(c[SEEN], asked)) < LEAST_SEEN:
            sentences.append(f"{dtype}: {c[SEEN]} of {asked} errors of one half were seen (at most {100 * limit:.0f} %)")
    return sentences


def lines(rows: Sequence[Power]) -> list[str]:
    """A table by dtype: for each error, how many of the detectable ones were detected."""
    outcomes = counts(rows)
    kinds = {d for d, _ in outcomes}
    dtypes = [d for d in DEFAULT if d in kinds] + sorted(kinds - set(DEFAULT))
    if not dtypes:
        return []
    total: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (_, error), c in outcomes.items():
        total["all", error].update(c)
    cells = [
        [d, *(_cell((total if d == "all" else outcomes).get((d, e), Counter())) for e in ERRORS)] for d in (*dtypes, "all")
    ]
    return table([["dtype", *ERRORS], *cells])


def _cell(c: Counter[str]) -> str:
    asked = c[SEEN] + c[BLIND]
    return f"{c[SEEN]:,} of {asked:,}" if asked else "."


def left(poor: Sequence[ItemRow]) -> list[str]:
    """How much of some ops was judged, of whose elements some were not, with the reason."""
    return [
        f"  {i.op} {i.dtype}: {i.judged:,} of {i.judged + i.unjudged:,} elements judged ({max(i.left, key=i.left.__getitem__)})"
        for i in poor
    ]
