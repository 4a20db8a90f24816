"""Which drift is marginal: so little, in so few elements and cases of an op, that nobody is sent to look for its cause.

A judge sees one case and says whether its drift is near (`Verdict.near`). Whether it is marginal, the other cases decide: those
of the item, as it ends (`parity.engine.tally`), and those of all items of the op, which several workers may have examined: what
is stored as marginal is read as drift where the op has too much of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from parity.core.results import Record, Status
from parity.store.rows import ItemRow

CASES = 3  # marginal cases of one op that make all of them drift
ELEMENTS = 1000  # of so many that were judged, one may be outside


def is_rare(outside: int, judged: int) -> bool:
    """Whether so few of the elements that one kind of budget judged are outside. judged: in all cases of an item: one of the 12
    elements of a single case says as little as one of 12,000, if a thousand cases like it agree."""
    return ELEMENTS * outside <= judged


def is_seldom(cases: Collection[str]) -> bool:
    """Whether so few cases of an op are marginal. cases: their texts."""
    return len(cases) < CASES


def settled(records: Sequence[Record], items: Iterable[ItemRow]) -> tuple[Record, ...]:
    """The records of a run, those of ops with too many marginal cases or elements as drift: the first of each kind as a finding
    whose cause nobody has looked for. items: of the run, or parts of them."""
    drifting, seen, made = _often(records) | _not_rare(records, items), set[tuple[str, ...]](), list[Record]()
    for r in records:
        if r.status == Status.MARGINAL and r.op in drifting:
            r = replace(r, status=Status.DRIFT)
            r = r if r.kind in seen else replace(r, shrunk=r.case, count=1)
            seen.add(r.kind)
        made.append(r)
    return tuple(made)


def recounted(items: Iterable[ItemRow], records: Iterable[Record]) -> tuple[ItemRow, ...]:
    """The items of a run, counted as its settled records are."""
    still = {r.op for r in records if r.status == Status.MARGINAL}
    return tuple(i if i.op in still else replace(i, counts={a: _as_drift(c) for a, c in i.counts.items()}) for i in items)


def _often(records: Iterable[Record]) -> set[str]:
    """The ops that are marginal in too many cases."""
    cases: dict[str, set[str]] = defaultdict(set)
    for r in records:
        if r.status == Status.MARGINAL:
            cases[r.op].add(r.case)
    return {op for op, some in cases.items() if not is_seldom(some)}


def _not_rare(records: Iterable[Record], items: Iterable[ItemRow]) -> set[str]:
    """The ops with an item of which too many elements are outside: each of its parts saw only its own."""
    outside, judged = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for r in records:
        if r.status == Status.MARGINAL:
            outside[r.op, r.dtype] += sum(m.mismatched for m in r.measures)
    if outside:
        for i in items:
            judged[i.op, i.dtype] += i.judged
    return {op for (op, dtype), n in outside.items() if not is_rare(n, judged[op, dtype])}


def _as_drift(counts: Mapping[str, int]) -> Mapping[str, int]:
    if not (n := counts.get(Status.MARGINAL, 0)):
        return counts
    rest = {s: k for s, k in counts.items() if s != Status.MARGINAL}
    return rest | {str(Status.DRIFT): rest.get(Status.DRIFT, 0) + n}
