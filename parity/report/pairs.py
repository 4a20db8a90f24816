"""The effective pairs of a run (`parity run --count`) as a table, next to what torch's own suite compares on MPS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from parity.catalog import opinfo
from parity.coverage import op_dtype
from parity.coverage.op_dtype import ASPECTS, TEST_MPS, ItemRecords, Pair
from parity.report.words import listed, plural, table
from parity.runs import suite
from parity.runs.rows import ItemRow

REASONS = 12  # most reasons to list per aspect


def of_run(items: Iterable[ItemRow], whole: bool) -> tuple[Pair, ...]:
    """The pairs of a run's items. whole: include the OpInfo pairs of which nothing was run."""
    known = {r.name: r for r in suite.rows("all")}
    asked = [(name, d) for name, e in opinfo.ENTRIES.items() for d in e.dtypes] if whole else []
    return op_dtype.tally([ItemRecords(known[i.op], i.dtype, i.counts, i.void) for i in items if i.op in known], asked)


def render(pairs: Sequence[Pair], whole: bool, verbose: bool = False) -> str:
    """A line per aspect, then the pairs that were not compared, by reason; with all their names if `verbose`.

    whole: whether all ops were asked for; only then are the numbers of test_mps shown.
    """
    head = ["op x dtype", "compared", "of torch's own", "by native", "by torch's samples", "void", "not reached"]
    rows = [head + ["test_mps"] * whole]
    for aspect in ASPECTS:
        own = [p for p in pairs if p.aspect is aspect]
        done = [p for p in own if p.state == "compared"]
        entries = [p for p in own if p.entry]
        rows.append(
            [
                aspect,
                f"{len(done):,}",
                f"{sum(p.entry for p in done):,} of {len(entries):,}",
                *(f"{sum(source in p.by for p in done):,}" for source in ("native", "sample")),
                *(f"{sum(p.state == state for p in own):,}" for state in ("void", "not reached")),
                *([f"{TEST_MPS[aspect]:,}"] if whole else []),
            ]
        )
    lines = table(rows)
    for aspect in ASPECTS:
        left = [p for p in pairs if p.aspect is aspect and p.state != "compared"]
        lines += ["", f"{aspect}: {plural(len(left), 'pair')} without a comparison", *_reasons(left, verbose)] if left else []
    return "\n".join(lines)


def _reasons(left: Sequence[Pair], verbose: bool) -> list[str]:
    by: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for p in left:
        by[f"{p.state}: {p.reason}"][p.unit].append(p.dtype)
    order = sorted(by, key=lambda why: -sum(map(len, by[why].values())))
    shown = order if verbose else order[:REASONS]
    lines = []
    for why in shown:
        ops = by[why]
        names = [f"{op} ({', '.join(dtypes)})" for op, dtypes in ops.items()] if verbose else list(ops)
        lines.append(f"  {sum(map(len, ops.values())):>5,} {why}")
        lines += [f"          {n}" for n in names] if verbose else [f"        {listed(names, 100)}"]
    rest = sum(len(d) for why in order[len(shown) :] for d in by[why].values())
    return lines + ([f"  {rest:>5,} for {len(order) - len(shown)} other reasons: -v tells all"] if rest else [])
