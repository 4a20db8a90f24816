"""Checks whether the content of a run file is possible: what is in a row goes together, and rows agree with one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from parity.core import picture
from parity.core.case import source_of
from parity.core.results import AspectWord, Record, StatusWord
from parity.store.features import Coverage
from parity.store.figures import Figures, size, unpacked
from parity.store.rows import End, ItemRow, Row, Run, totals


def check(row: Row) -> None:
    """Raise ValueError if what is in a row does not go together, or if a name in a mapping is no word of ours: all else is said
    by the annotations of its fields."""
    if isinstance(row, Record):
        for m in row.measures:
            picture.check(m.shape, m.errors, m.bins)
        for w in row.ways:
            if w.agreed > w.cases:
                raise ValueError(f"{w.agreed} of {w.cases} cases agree with '{w.way[:60]}'")
    elif isinstance(row, ItemRow):
        _check_names(row.counts, AspectWord)
        for by_status in row.counts.values():
            _check_names(by_status, StatusWord)
        for n in row.metadata:
            if not len(n.shape) == len(n.device) == len(n.reference):
                of = f"{n.aspect} {n.tensor}, shape {n.shape}, strides {n.device} and {n.reference}"
                raise ValueError(f"no strides of a result: {of[:400]}")
    elif isinstance(row, Coverage):
        if max(row.counts.values(), default=0) > row.cases:
            raise ValueError("a feature counts more cases than there are")
    elif isinstance(row, Figures):
        _check_names((*unpacked(row).ratios, *row.compared, *row.seconds), AspectWord)
    elif isinstance(row, End):
        _check_names(row.totals, StatusWord)


def _check_names(names: Iterable[str], of: Any) -> None:
    for name in names:
        of.read(name)


def contradiction(run: Run, rows: Sequence[Row]) -> str:
    """What in a run is impossible, such as duplicate rows, rows after the end row, or counts that differ from the end row;
    empty if nothing."""
    twice = Counter(f"item {i.op} {i.dtype}" + (f" round {i.round}" if i.round else "") for i in rows if isinstance(i, ItemRow))
    twice.update(f"coverage of {c.family}" for c in run.coverage)
    twice.update(f"row of figures of {f.op} {f.dtype} with keys {f.keys}" for f in run.figures)
    # Pinned cases of an OpInfo entry with one sample are equal, and older versions stored each of them.
    twice.update(f"record {r}" for r in run.records if not (r.pinned and source_of(r.op) != "native"))
    twice.update(f"finding tried again {a.op} {a.aspect} {a.case}" for a in run.again)
    twice.update(f"row of features of {f.op} {f.dtype} round {f.round}" for f in run.features)
    twice.update("end row" for r in rows if isinstance(r, End))
    if what := next((k for k, n in twice.items() if n > 1), ""):
        return f"the {what[:100]} stands in it twice"
    counts = {(i.op, i.dtype): i.counts for i in run.items}
    kinds = Counter((r.op, r.dtype, r.aspect, r.status) for r in run.records if not r.shrunk)
    for (op, dtype, aspect, status), n in kinds.items():
        if (op, dtype) in counts and n > counts[op, dtype].get(aspect, {}).get(status, 0):
            return f"{n} records of {op} {dtype} {aspect} are {status}, its item counts fewer"
    return _other_end(run, run.end, rows) if run.end is not None else ""


def _other_end(run: Run, end: End, rows: Sequence[Row]) -> str:
    """What contradicts the end row, or cannot be in a run that has one."""
    if not isinstance(rows[-1], End):
        return "rows stand behind its end row"
    stated, counted = end.totals, totals(run.items)
    for status in sorted(stated.keys() | counted.keys()):
        if stated.get(status, 0) != counted[status]:
            return f"its items hold {counted[status]} checks {status}, its end row says {stated.get(status, 0)}"
    missing = end.expected - len(run.items) if end.expected else 0
    if missing < 0:
        return f"it holds {len(run.items)} items, its end row says {end.expected}"
    if missing > len({*end.lost, *end.lacking}) and not (end.stopped or end.broken):
        named = f"names {len(set(end.lost))} as lost" if end.lost else "names none as lost"
        return f"it holds {len(run.items)} items, its end row says {end.expected} and {named}"
    cases = Counter[tuple[str, str]]()
    for f in run.figures:
        cases[f.op, f.dtype] += size(f)
    of_items = Counter[tuple[str, str]]()
    for i in run.items:
        of_items[i.op, i.dtype] += i.cases
    for (op, dtype), n in cases.items():
        if n != of_items[op, dtype]:
            return f"it holds figures of {n} cases of {op} {dtype}, its item says {of_items[op, dtype]}"
    return ""
