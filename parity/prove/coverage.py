"""The coverage of a run's draws: how often each feature occurred in each family, and which pairs of features never occurred
together.

Cases of the run's items are decoded without running them; a pair that occurs there often, and never in the run, is a hole. The
decoded cases depend only on the items and on the sizes of the profile, not on the seed of the run.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import TypeAlias

from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.core.errors import CaseError, RunFileError, UsageError, near
from parity.engine import suite
from parity.generation.generate import nth
from parity.prove import counts
from parity.report.words import plural, table
from parity.store.features import Coverage, features
from parity.store.rows import Run

SHOWN = 8  # most missing pairs to list per family
SEED = "decoded"
CASES = 2000  # decoded cases per family, spread evenly over its items
ITEMS = 100  # decoded items per family, evenly spaced; a limit because each OpInfo entry has to make its samples first
EXPECTED = 10.0  # cases: a pair with this expectation is hardly ever missing from a full run by chance

TwoFeatures: TypeAlias = tuple[str, str]
Missing: TypeAlias = Mapping[TwoFeatures, float]


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
    missing = {(f, g): n for (f, g), n in shown.items() if g not in coverage.together.get(f, ())}
    return dict(sorted(missing.items(), key=lambda pair: (-pair[1], pair[0])))


# ------------------------------------------------------------------------------------------------------------- the tables


def render(run: Run, families: Collection[str] = (), verbose: bool = False) -> str:
    """The tables of a run: a line per family; for `families`, their features and pairs too; and the run's effective pairs.

    Raises RunFileError if the file holds no coverage, UsageError for a family that it does not have and for an unknown profile.
    """
    if not run.coverage:
        raise RunFileError("the run file holds no coverage: it was broken off, or an older parity wrote it; run it again")
    known = [c.family for c in run.coverage]
    for family in families:
        if family not in known:
            raise UsageError(f"the run has no family '{family}'; {near(family, known) or 'it has: ' + ', '.join(known)}")
    chosen = [c for c in run.coverage if not families or c.family in families]
    gaps = _missing(run, chosen)
    lines = _families(chosen, gaps)
    for c in chosen:
        missing = gaps[c.family]
        if families:
            lines += ["", f"{c.family}: {plural(c.cases, 'case')}", *_features(c, missing)]
        if missing:
            lines += ["", f"{c.family}: {len(missing):,} applicable pairs were not drawn", *_named(missing, verbose)]
    if not families:
        lines += ["", counts.render(counts.of_run(run.items, run.header.complete), run.header.complete, verbose)]
    return "\n".join(lines)


def _missing(run: Run, chosen: Sequence[Coverage]) -> dict[str, Missing]:
    """The missing pairs of each family; items whose op or dtype this parity does not have are left out."""
    known, sizes = {r.name: r for r in suite.rows("all")}, suite.profile(run.header.profile).sizes
    # The first case of an item is the simplest possible one, without random choices.
    items = [(known[i.op], i.dtype, max(0, i.cases - 1)) for i in run.items if i.op in known and i.dtype in known[i.op].dtypes]
    return {c.family: missing(c, [i for i in items if i[0].family == c.family], sizes) for c in chosen}


def _holes(missing: Missing) -> int:
    return sum(n >= EXPECTED for n in missing.values())


def _families(chosen: Sequence[Coverage], missing: Mapping[str, Missing]) -> list[str]:
    rows = [["family", "cases", "features", "applicable pairs", "drawn", "not drawn", "of them holes", "median cases"]]
    sizes = []
    for c in chosen:
        times = sorted(n for others in c.together.values() for n in others.values()) or [0]
        drawn, left = sum(1 for _ in c.drawn()), len(missing[c.family])
        sizes.append((c.cases, len(c.counts), drawn + left, drawn, left, _holes(missing[c.family])))
        rows.append([c.family, *(f"{n:,}" for n in (*sizes[-1], times[len(times) // 2]))])
    cases, _, *sums = (sum(column) for column in zip(*sizes))
    rows.append(["all", f"{cases:,}", "", *(f"{n:,}" for n in sums), ""])
    return table(rows)


def _features(c: Coverage, missing: Missing) -> list[str]:
    """For each feature: how often it occurred, with how many others it can occur, and with how many it did."""
    did = Counter(f for two in c.drawn() for f in two)
    can = did + Counter(f for two in missing for f in two)
    rows = [["feature", "cases", "share", "with other features"]]
    rows += [[f, f"{n:,}", f"{n / c.cases:.1%}", f"{did[f]} of {can[f]}"] for f, n in c.counts.items()]
    return table(rows)


def _named(missing: Missing, verbose: bool) -> list[str]:
    """The pairs that were not drawn; by default the holes and a few of the likeliest others."""
    order = list(missing.items())
    shown = order if verbose else order[: max(SHOWN, _holes(missing))]
    lines = [f"  {f} + {g}  (expected in {n:.1f} cases)" for (f, g), n in shown]
    return lines + ([f"  and {len(order) - len(shown):,} more: -v names all"] if len(order) > len(shown) else [])
