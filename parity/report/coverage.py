"""What a run drew: by family how often each feature came, and which pairs of features never came together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from parity.errors import RunFileError, UsageError, near
from parity.features import Coverage
from parity.report import pairs
from parity.report.words import table
from parity.store import Run

SHOWN = 8  # empty pairs of a family that are named


def render(run: Run, families: Collection[str] = (), verbose: bool = False) -> str:
    """The tables of a run: a line per family; with families named, their features and pairs too; and its effective pairs.

    Raises RunFileError where the file holds no coverage, UsageError for a family that it has not.
    """
    if not run.coverage:
        raise RunFileError("the run file holds no coverage: it was broken off, or an older parity wrote it; run it again")
    known = [c.family for c in run.coverage]
    for family in families:
        if family not in known:
            raise UsageError(f"the run has no family '{family}'; {near(family, known) or 'it has: ' + ', '.join(known)}")
    chosen = [c for c in run.coverage if not families or c.family in families]
    lines = _families(chosen)
    for c in chosen:
        if families:
            lines += ["", f"{c.family}: {c.cases:,} cases", *_features(c)]
        if c.empty:
            lines += ["", f"{c.family}: {len(c.empty):,} applicable pairs were not drawn", *_empty(c, verbose)]
    if not families:
        lines += ["", pairs.render(pairs.of_run(run.items, run.header.complete), run.header.complete, verbose)]
    return "\n".join(lines)


def _families(chosen: Sequence[Coverage]) -> list[str]:
    rows = [["family", "cases", "features", "applicable pairs", "drawn", "not drawn", "of them holes", "median cases"]]
    for c in chosen:
        times = sorted(n for others in c.together.values() for n in others.values()) or [0]
        left = c.applicable - c.drawn
        told = c.cases, len(c.counts), c.applicable, c.drawn, left, c.holes, times[len(times) // 2]
        rows.append([c.family, *(f"{n:,}" for n in told)])
    counts = [(c.cases, c.applicable, c.drawn, c.applicable - c.drawn, c.holes) for c in chosen]
    sums = [sum(column) for column in zip(*counts)]
    rows.append(["all", f"{sums[0]:,}", "", *(f"{n:,}" for n in sums[1:]), ""])
    return table(rows)


def _features(c: Coverage) -> list[str]:
    """Each feature: how often, with how many others it can come, and with how many it came."""
    can: Counter[str] = Counter()
    did: Counter[str] = Counter()
    for pairs_of, drawn in ((c.together, True), (c.missing, False)):
        for f, others in pairs_of.items():
            for g in others:
                can.update((f, g))
                did.update((f, g) if drawn else ())
    rows = [["feature", "cases", "share", "with other features"]]
    rows += [[f, f"{n:,}", f"{n / c.cases:.1%}", f"{did[f]} of {can[f]}"] for f, n in c.counts.items()]
    return table(rows)


def _empty(c: Coverage, verbose: bool) -> list[str]:
    """The pairs that were not drawn; by default the holes, and the few that are likeliest beside them."""
    order = c.empty
    shown = order if verbose else order[: max(SHOWN, c.holes)]
    lines = [f"  {f} + {g}  (expected in {n:.1f} cases)" for n, f, g in shown]
    return lines + ([f"  and {len(order) - len(shown):,} more: -v names all"] if len(order) > len(shown) else [])
