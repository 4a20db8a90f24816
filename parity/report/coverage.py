"""What a run drew: how often each feature occurred in each family, and which pairs of features never occurred together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from parity.core.errors import RunFileError, UsageError, near
from parity.coverage import holes
from parity.coverage.features import Coverage
from parity.coverage.holes import EXPECTED, TwoFeatures
from parity.report import pairs
from parity.report.words import plural, table
from parity.runs import suite
from parity.runs.rows import Run

SHOWN = 8  # most missing pairs to list per family
Missing: TypeAlias = Mapping[TwoFeatures, float]


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
    missing = _missing(run, chosen)
    lines = _families(chosen, missing)
    for c in chosen:
        lacking = missing[c.family]
        if families:
            lines += ["", f"{c.family}: {plural(c.cases, 'case')}", *_features(c, lacking)]
        if lacking:
            lines += ["", f"{c.family}: {len(lacking):,} applicable pairs were not drawn", *_named(lacking, verbose)]
    if not families:
        lines += ["", pairs.render(pairs.of_run(run.items, run.header.complete), run.header.complete, verbose)]
    return "\n".join(lines)


def _missing(run: Run, chosen: Sequence[Coverage]) -> dict[str, Missing]:
    """The missing pairs of each family; items whose op this parity does not have are left out."""
    known, sizes = {r.name: r for r in suite.rows("all")}, suite.profile(run.header.profile).sizes
    # The first case of an item is the simplest possible one, without random choices.
    items = [(known[i.op], i.dtype, max(0, i.cases - 1)) for i in run.items if i.op in known]
    return {c.family: holes.missing(c, [i for i in items if i[0].family == c.family], sizes) for c in chosen}


def _holes(missing: Missing) -> int:
    return sum(n >= EXPECTED for n in missing.values())


def _families(chosen: Sequence[Coverage], missing: Mapping[str, Missing]) -> list[str]:
    rows = [["family", "cases", "features", "applicable pairs", "drawn", "not drawn", "of them holes", "median cases"]]
    counts = []
    for c in chosen:
        times = sorted(n for others in c.together.values() for n in others.values()) or [0]
        drawn, left = sum(1 for _ in c.drawn()), len(missing[c.family])
        counts.append((c.cases, len(c.counts), drawn + left, drawn, left, _holes(missing[c.family])))
        rows.append([c.family, *(f"{n:,}" for n in (*counts[-1], times[len(times) // 2]))])
    cases, _, *sums = (sum(column) for column in zip(*counts))
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
