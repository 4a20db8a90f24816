"""Checks whether the content of a run file is possible: fields of the right types, known words, rows that agree with one
another."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from parity.core.case import source_of
from parity.core.results import DEATHS, Aspect, Record, Status
from parity.store.features import Coverage
from parity.store.figures import Figures, size, unpacked
from parity.store.rows import BLAMES, SIGHTED, Death, End, ItemRow, Row, Run, Sighting, totals

STATUSES, ASPECTS = tuple(map(str, Status)), tuple(map(str, Aspect))


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _all(values: object, of: Callable[[Any], bool]) -> bool:
    return isinstance(values, Mapping) and all(isinstance(k, str) and of(v) for k, v in values.items())


def _is_count(x: object) -> bool:
    return type(x) is int and x >= 0


# Whether a value fits the annotation of a field.
HOLDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda x: isinstance(x, str),
    "bool": lambda x: isinstance(x, bool),
    "int": _is_count,
    "float": _is_number,
    "float | None": lambda x: x is None or _is_number(x),
    "Counts": lambda x: _all(x, lambda inner: _all(inner, _is_count)),
    "Mapping[str, int]": lambda x: _all(x, _is_count),
    "Mapping[str, float]": lambda x: _all(x, _is_number),
    "Mapping[str, str]": lambda x: _all(x, lambda v: isinstance(v, str)),
    "Mapping[str, Mapping[str, int]]": lambda x: _all(x, lambda inner: _all(inner, _is_count)),
    "tuple[str, ...]": lambda x: isinstance(x, tuple) and all(isinstance(v, str) for v in x),
    "tuple[int, ...]": lambda x: isinstance(x, tuple) and all(type(v) is int for v in x),
    "tuple[Measure, ...]": lambda x: True,  # each one is checked by itself
    "tuple[MetadataNote, ...]": lambda x: True,  # likewise
    "tuple[Workaround, ...]": lambda x: True,  # likewise
    "tuple[tuple[str, float], ...]": lambda x: True,  # likewise
    "tuple[tuple[str, str], ...]": lambda x: True,  # likewise
    "Fingerprint": lambda x: True,  # likewise
    "Cause | None": lambda x: True,  # likewise
    "Code": lambda x: True,  # likewise
}


def check_types(row: Any) -> None:
    """Raise ValueError if a field's value does not have the annotated type."""
    for f in dataclasses.fields(row):
        value = getattr(row, f.name)
        if not HOLDS[str(f.type)](value):
            raise ValueError(f"'{f.name}' holds {str(value)[:60]!r}")


def check_words(row: Row) -> None:
    """Raise ValueError if a row holds an unknown status, aspect or other word."""
    statuses: Iterable[str] = ()
    aspects: Iterable[str] = ()
    if isinstance(row, Record):
        statuses, aspects = (row.status,), (row.aspect,)
    elif isinstance(row, ItemRow):
        statuses, aspects = (s for counts in row.counts.values() for s in counts), row.counts
    elif isinstance(row, Coverage):
        if max(row.counts.values(), default=0) > row.cases:
            raise ValueError("a feature counts more cases than there are")
    elif isinstance(row, Death):
        statuses, aspects = (row.how,), filter(None, [row.aspect])
        if row.how in STATUSES and row.how not in DEATHS:
            raise ValueError(f"no process ends by '{row.how}'; allowed: {', '.join(DEATHS)}")
        if row.blame not in BLAMES:
            raise ValueError(f"unknown blame '{row.blame}'; allowed: {', '.join(BLAMES[1:])}")
    elif isinstance(row, Figures):
        aspects = (*unpacked(row).ratios, *row.compared, *row.seconds)
    elif isinstance(row, Sighting):
        aspects = filter(None, [row.aspect])
        if row.state not in SIGHTED:
            raise ValueError(f"unknown state '{row.state}' of a known finding; allowed: {', '.join(SIGHTED)}")
    elif isinstance(row, End):
        statuses = row.totals
    for what, words, allowed in (("status", statuses, STATUSES), ("aspect", aspects, ASPECTS)):
        if wrong := [w for w in words if w not in allowed and not (allowed is ASPECTS and Aspect.holds(w))]:
            raise ValueError(f"unknown {what} '{wrong[0]}'; allowed: {', '.join(allowed)}")


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
