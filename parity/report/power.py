"""What a run's agreements are worth: the share of errors, put into some of them, that the judge saw."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import sqrt

from parity.checking.power import BLIND, ERRORS, SEEN
from parity.dtypes import DEFAULT
from parity.report.words import table
from parity.store import Item, Power

LEAST_SEEN = 0.97  # of errors of one half: where the upper limit is below, an agreement says less than it seems
ONE_SIDED = 1.645  # standard deviations that a normal variable exceeds with a probability of 5 %


def upper_limit(seen: int, asked: int) -> float:
    """The largest chance of being seen that these counts leave likely (95 %, one-sided; Wilson, JASA 22 (1927) 209)."""
    if not asked:
        return 1.0
    p, z2 = seen / asked, ONE_SIDED**2
    centre = p + z2 / (2 * asked)
    return min(1.0, (centre + ONE_SIDED * sqrt(p * (1 - p) / asked + z2 / (4 * asked**2))) / (1 + z2 / asked))


def counts(rows: Sequence[Power]) -> dict[tuple[str, str], Counter[str]]:
    """Outcomes by (dtype, error)."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for r in rows:
        found[r.dtype, r.error].update(r.counts)
    return found


def weak(rows: Sequence[Power]) -> list[str]:
    """The dtypes in which the judge misses so many errors that every agreement in them is worth little, in words."""
    found = []
    for (dtype, error), c in counts(rows).items():
        asked = c[SEEN] + c[BLIND]
        if error == ERRORS[0] and (limit := upper_limit(c[SEEN], asked)) < LEAST_SEEN:
            found.append(f"{dtype}: {c[SEEN]} of {asked} errors of one half were seen (at most {100 * limit:.0f} %)")
    return found


def lines(rows: Sequence[Power]) -> list[str]:
    """A table by dtype: of each error, how many were seen of those that could be."""
    found = counts(rows)
    kinds = {d for d, _ in found}
    dtypes = [d for d in DEFAULT if d in kinds] + sorted(kinds - set(DEFAULT))
    if not dtypes:
        return []
    total: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (_, error), c in found.items():
        total["all", error].update(c)
    cells = [[d, *(_cell((total if d == "all" else found).get((d, e), Counter())) for e in ERRORS)] for d in (*dtypes, "all")]
    return table([["dtype", *ERRORS], *cells])


def _cell(c: Counter[str]) -> str:
    asked = c[SEEN] + c[BLIND]
    return f"{c[SEEN]:,} of {asked:,}" if asked else "."


def left(items: Sequence[Item], share: float) -> list[str]:
    """The ops of whose elements less than this share was judged, the worst first, with the reason."""
    poor = sorted((i for i in items if i.judged_share < share), key=lambda i: i.judged_share)
    return [
        f"  {i.op} {i.dtype}: {i.judged:,} of {i.judged + i.unjudged:,} elements judged ({max(i.left, key=i.left.__getitem__)})"
        for i in poor
    ]
