"""How often the judge agrees with a wrong result, of every comparison of a run:

    parity run --device sim --profile quick --no-shrink --power 100000000 --output blind.jsonl
    python tests/bench/blindness.py blind.jsonl

Each comparison that agreed was judged once more with each of `parity.checks.power.ERRORS`. Shares are of the comparisons that
were not proved: an experiment (numbers that leave the range, NaN that spreads), or an honest budget of more than half of what
is changed, proves that nobody can see the error. Proved ones are counted beside them, and as elements.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from parity.runs import run_file, suite
from parity.runs.rows import Power

OUTCOMES = ("seen", "proved", "blind")
FEWEST = 20  # comparisons of an op before its share is told


def table(title: str, rows: Iterable[Power], key: Callable[[Power], str], least: float = -1.0, fewest: int = 1) -> None:
    """Print outcomes by a key of a row; only shares of at least `least`, the worst first where there is one."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for r in rows:
        groups[key(r)].update(r.counts)
    shares = {k: c["blind"] / max(1, c["seen"] + c["blind"]) for k, c in groups.items()}
    shown = [k for k in sorted(groups) if shares[k] >= least and sum(groups[k].values()) >= fewest]
    if least >= 0.0:
        shown.sort(key=lambda k: -shares[k])
    print(f"\n{title}")
    for k in shown[:60]:
        numbers = "".join(f"{groups[k][o]:>10,}" for o in OUTCOMES)
        print(f"  {k:<60}{numbers}{shares[k]:>9.2%}")


def main(paths: Sequence[str]) -> None:
    """Print all tables of these run files together."""
    runs = [run_file.read(Path(p), partial=True) for p in paths]
    rows = [r for run in runs for r in run.power]
    print(f"{'':<62}" + "".join(f"{o:>10}" for o in OUTCOMES) + "    blind")
    table("by error", rows, lambda r: r.error)
    for error in dict.fromkeys(r.error for r in rows):
        these = [r for r in rows if r.error == error]
        table(f"{error}, by dtype and pass", these, lambda r: f"{r.dtype} {r.aspect}")
        table(f"{error}, by rule and dtype", these, lambda r: f"{suite.row(r.op).rule} {r.dtype}", 0.005, 10)
        table(f"{error}, ops of {FEWEST} and more above 5 %", these, lambda r: r.op, 0.05, FEWEST)
    elements: dict[str, Counter[str]] = defaultdict(Counter)
    for item in (i for run in runs for i in run.items):
        elements[item.dtype].update(item.elements)
    print("\nelements, by dtype of the op: excused by experiment, excused without, loose; told if off by 5 %")
    for dtype, c in elements.items():
        n, some = max(1, c["total"]), max(1, c["nonzero"])
        parts = "".join(f"{c[k] / n:>10.2%}" for k in ("shown", "unshown", "loose"))
        print(f"  {dtype:<12}{c['total']:>12,}{parts}{c['sharp'] / some:>10.2%}")
    blind = Counter(w for r in rows for w in r.why)
    print("\nwhat the judge said of those that it did not see")
    for why, n in blind.most_common(25):
        print(f"  {n:>7,}  {why}")


if __name__ == "__main__":
    main(sys.argv[1:])
