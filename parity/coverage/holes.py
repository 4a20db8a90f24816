"""Pairs of features that a run lacks. Cases of its items are decoded without running them; a pair that occurs there often, and
never in the run, is a hole.

The decoded cases depend only on the items and on the sizes of the profile, not on the seed of the run.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import TypeAlias

from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.core.errors import CaseError
from parity.coverage.features import Coverage, features
from parity.generation.generate import nth

SEED = "decoded"
CASES = 2000  # decoded cases per family, spread evenly over its items
ITEMS = 100  # decoded items per family, evenly spaced; a limit because each OpInfo entry has to make its samples first
EXPECTED = 10.0  # cases: a pair with this expectation is hardly ever missing from a full run by chance

TwoFeatures: TypeAlias = tuple[str, str]


def expected(items: Sequence[tuple[Row, str, int]], sizes: Sizes) -> Mapping[TwoFeatures, float]:
    """(Feature, alphabetically later feature) -> expected number of cases of the run with both. items: (row, dtype, cases of
    the run), all of one family. A decoded case counts for at most one case of the run, so the expectation of a run with more
    cases than are decoded is a lower bound."""
    chosen = items[:: -(-len(items) // ITEMS) or 1]
    total: dict[TwoFeatures, float] = defaultdict(float)
    for row, dtype, cases in chosen:
        decoded: Counter[TwoFeatures] = Counter()
        count = -(-CASES // len(chosen))
        with suppress(CaseError), warnings.catch_warnings():  # OpInfo entries without samples on this machine draw nothing
            warnings.simplefilter("ignore")  # warnings of torch while it makes the samples
            for k in range(count):
                case = nth(row, dtype, sizes, SEED, k + 1).case
                decoded.update(combinations(sorted(features(case)), 2))
        weight = min(1.0, cases / count)
        for two, times in decoded.items():
            total[two] += times * weight
    return total


def missing(coverage: Coverage, items: Sequence[tuple[Row, str, int]], sizes: Sizes) -> dict[TwoFeatures, float]:
    """Pair -> expected cases, for pairs in decoded cases that no case of the run has; largest expectation first."""
    shown = expected(items, sizes)
    lacking = {(f, g): n for (f, g), n in shown.items() if g not in coverage.together.get(f, ())}
    return dict(sorted(lacking.items(), key=lambda pair: (-pair[1], pair[0])))
