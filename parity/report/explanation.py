"""Why a result agrees or not: the rule, the budget of the worst element term by term, and what decided."""

from __future__ import annotations

from collections.abc import Iterator

from parity.catalog.row import Row
from parity.core.dtypes import HALF
from parity.core.results import FINDINGS, Measure, Record, left_unjudged

SCREENS = {
    "bit-equal": "equal to the reference bit for bit: the oracle was not asked, the share is the reference's own",
    "truth": "close to the truth without allowing for its conditioning: the share is an upper limit",
    "relation": "judged by what must hold of it (ties, phases, residuals), not by its values",
    "exact": "exact: equal to what it must be",
    "reference": "equal to the reference, which misses its destination as well",
    "form": "only shape and dtype are promised",
}


def lines(record: Record, row: Row | None) -> Iterator[str]:
    """The explanation of one record. row: of its op, if this parity knows it."""
    yield f"{record.op} {record.dtype} {record.aspect}: {record.status}" + (f", {record.reason}" if record.reason else "")
    if row is not None:
        rule = f"  class      {row.rule}"
        rule += f", relation '{row.judged.relation}'" if row.judged.relation else ""
        halves = [
            w
            for w in (
                "rounds between kernels" if row.judged.rounds_between else "",
                *(f"adds in the dtype ({p})" for p in row.judged.accumulates),
            )
            if w
        ]
        yield rule + (f"; in half types it {' and '.join(halves)}" if halves and record.dtype in HALF else "")
    if record.origin:
        yield f"  tolerance  {record.origin}"
    for m in record.measures:
        yield from _measure(m, record.status in FINDINGS)
    if not record.measures:
        yield "  nothing was measured"


def _measure(m: Measure, failed: bool) -> Iterator[str]:
    """The lines for one tensor."""
    yield f"  {m.tensor}"
    if m.screen:
        yield f"    {SCREENS.get(m.screen, m.screen)}"
    if m.index or m.device:
        values = ", ".join(
            f"{who} {v}" for who, v in (("device", m.device), ("reference", m.reference), ("truth", m.truth)) if v
        )
        yield f"    worst at {list(m.index)}: {values}" + (f" ({m.mismatched} of {m.total} outside)" if m.mismatched else "")
    total = sum(v for _, v in m.budget)
    if m.share is not None and total and m.problem not in ("class", "zero"):
        yield f"    budget     {total:.3g}, of which"
        for name, value in m.budget:
            if value:
                yield f"      {value:>10.3g}  {100 * value / total:3.0f} %  {name}"
    if m.share is not None:
        limit = "" if m.measured else " at most"
        own = "" if m.reference_share is None else f"; the reference's own {m.reference_share:.3g}"
        yield f"    share     {limit} {m.share:.3g}{own}"
    if m.unjudged:
        yield f"    judged     {left_unjudged(m)}"
    if m.spread is not None:
        yield f"    spread     {m.spread:.3g} times what the root mean square of all errors may be"
    if (why := decided(m, failed)) is not None:
        yield f"    {why}"


def decided(m: Measure, failed: bool) -> str | None:
    """The budget term that made the difference between passing and failing, in words."""
    if m.problem == "class":
        return "NaN or Inf stands where the other does not: no budget covers that"
    if m.problem == "zero":
        return "the sign of a zero differs, and the tables promise it for this op"
    if m.problem == "lean":
        return "no element is outside by itself; together they lean to one side, which rounding does not"
    if m.problem == "shared":
        return "no element is outside by itself; together they are off by more than independent roundings are"
    if m.share is None or not m.budget:
        return None
    if m.spread is not None and m.spread == m.share and m.spread > 1.0:
        return "no element is outside by itself; together they are less precise than rounding explains"
    name, value = max(m.budget, key=lambda term: term[1])
    total = sum(v for _, v in m.budget)
    if failed or m.share > 1.0:
        need = value + (m.share - 1.0) * total
        return f"it would take {need / value:.3g} times '{name}', the largest term, to cover the error" if value else None
    if value >= total:
        return f"'{name}' is the whole budget: the other terms allow nothing"
    without = m.share * total / (total - value)
    if without > 1.0:
        return f"'{name}' saved it: without that term the share would be {without:.3g}"
    return "no single term decides: without the largest the share would be " + f"{without:.3g}"
