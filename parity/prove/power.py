"""Measures how often the judge agrees with a wrong result, of all comparisons of a run that has `--power` of all.

Each comparison that agreed was judged once more with each of `parity.checks.power.ERRORS`. Shares are of the comparisons that
were not proved: an experiment (numbers that leave the range, NaN that spreads), or an honest budget of more than half of what
is changed, proves that nobody can see the error. Proved ones are counted next to them, and as elements.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from parity.core.errors import NothingCompared
from parity.core.status import BLIND, PROVED, SEEN
from parity.engine import suite
from parity.store.rows import Power, Run

OUTCOMES = (SEEN, PROVED, BLIND)
FEWEST = 20  # comparisons of an op before its share is reported
SHOWN, WORDS = 60, 25  # most lines of a table, and most of what the judge said


def render(runs: Sequence[Run]) -> str:
    """All tables of these runs together. Raises NothingCompared where no error was put into them."""
    rows = [r for run in runs for r in run.power]
    if not rows:
        raise NothingCompared("no error was put into a comparison of these runs; parity prove power OP puts in all")
    lines = [f"{'':<62}" + "".join(f"{o:>10}" for o in OUTCOMES) + "    blind", *_table("by error", rows, lambda r: r.error)]
    for error in dict.fromkeys(r.error for r in rows):
        these = [r for r in rows if r.error == error]
        lines += _table(f"{error}, by dtype and pass", these, lambda r: f"{r.dtype} {r.aspect}")
        lines += _table(f"{error}, by rule and dtype", these, lambda r: f"{suite.row(r.op).rule} {r.dtype}", 0.005, 10)
        lines += _table(f"{error}, ops of {FEWEST} and more above 5 %", these, lambda r: r.op, 0.05, FEWEST)
    blind = Counter(w for r in rows for w in r.why)
    lines += [*_elements(runs), "", "what the judge said of those that it did not see"]
    return "\n".join([*lines, *(f"  {n:>7,}  {why}" for why, n in blind.most_common(WORDS))])


def _table(
    title: str, rows: Iterable[Power], key: Callable[[Power], str], least: float = -1.0, fewest: int = 1
) -> Iterator[str]:
    """Outcomes by a key of a row; only shares of at least `least`, the worst first where there is one."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for r in rows:
        groups[key(r)].update(r.counts)
    shares = {k: c[BLIND] / max(1, c[SEEN] + c[BLIND]) for k, c in groups.items()}
    shown = [k for k in sorted(groups) if shares[k] >= least and sum(groups[k].values()) >= fewest]
    if least >= 0.0:
        shown.sort(key=lambda k: -shares[k])
    yield from ("", title)
    for k in shown[:SHOWN]:
        yield f"  {k:<60}{''.join(f'{groups[k][o]:>10,}' for o in OUTCOMES)}{shares[k]:>9.2%}"


def _elements(runs: Sequence[Run]) -> Iterator[str]:
    elements: dict[str, Counter[str]] = defaultdict(Counter)
    for item in (i for run in runs for i in run.items):
        elements[item.dtype].update(item.elements)
    yield from ("", "elements, by dtype of the op: excused by experiment, excused without, loose; reported if off by 5 %")
    for dtype, c in elements.items():
        n, some = max(1, c["total"]), max(1, c["nonzero"])
        parts = "".join(f"{c[k] / n:>10.2%}" for k in ("shown", "unshown", "loose"))
        yield f"  {dtype:<12}{c['total']:>12,}{parts}{c['sharp'] / some:>10.2%}"
