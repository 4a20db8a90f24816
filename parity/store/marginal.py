"""Which drift of a run is marginal: so little, in so few elements and cases, that nobody is sent to look for its cause.

The judge sees one case, and says whether its drift is near its budget (`Verdict.near`). An item sees its cases, says drift, and
notes in the record of a kind of difference the cases that showed it if all of them are near (`Record.near`). Only the end of a
run knows all of its cases. So nothing is stored as marginal: the end of a run and the reader of its file ask `settled`, and
whoever has a part of a run, which is all that a shard, a cut run or a single test has, reads drift.

A fault of a device must stay drift. What is near is marginal only where nothing else was found of the operator, where it shows
in fewer than `CASES` cases, all of one draw of values, of it and of all that have the same cause, where at most one of
`ELEMENTS` elements is outside, and where no more operators are near than an honest device has in a run of that size.

Updates a run's records and items by what was reproduced in fresh processes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from parity.core.results import EARLIER_CALLS, FINDINGS, Cause, Record, Status
from parity.store.rows import Again, Death, Header, ItemRow, Run, counted

FAR = 2.0  # times the budget above which what is never reproduced fails


def marked(records: Sequence[Record], done: Sequence[Again]) -> tuple[Record, ...]:
    """The records, with what became of those that were tried once more: the history without which they do not come, the flag
    that explains them, or that they were not reproduced, which goes for the drawn cases of the same kind, too."""
    by = {(a.case, a.aspect, a.op): a for a in done}
    findings = [r for r in records if r.shrunk and r.status in FINDINGS and not r.known]  # known ones are not tried
    tried = {_kind(r): by.get(key_of(r)) for r in findings}
    came = {_kind(r) for r in findings if (a := by.get(key_of(r))) is None or a.came}
    far = {_kind(r) for r in records if r.status in FINDINGS and not r.known and is_far(r)}
    gone = {kind: a for kind, a in tried.items() if kind not in came}
    return tuple(_marked(r, by.get(key_of(r)) if r.shrunk else gone.get(_kind(r)), _kind(r) in far) for r in records)


def _marked(r: Record, a: Again | None, far: bool) -> Record:
    """a: what became of it, or of its kind. far: whether a case of its kind was far outside."""
    if r.status not in FINDINGS or r.status == Status.NOT_REPRODUCED or r.known or a is None:
        return r
    if a.came:
        cause = Cause(a.flag, "flag") if a.flag else r.cause
        if a.history and cause is not None:
            cause = replace(cause, properties=(EARLIER_CALLS,))
        return replace(r, cause=cause, shrunk=a.history or r.shrunk)
    if not far:
        return replace(r, gone=True)
    more = f", nor after {a.calls} of the cases before it" if a.calls else ""
    reason = f"once {r.status}, and not again in {a.tried} tries{more}: {r.reason}"
    cause = r.cause and Cause(r.cause.subject, Status.NOT_REPRODUCED)
    return replace(r, status=Status.NOT_REPRODUCED, cause=cause, reason=reason, known=a.known)


def is_far(r: Record) -> bool:
    """Whether a finding is of another class than drift, or more than FAR times its budget outside."""
    share = r.measures[0].share if r.measures else None
    return r.status != Status.DRIFT or share is None or share > FAR


def recounted(items: Iterable[ItemRow], records: Iterable[Record]) -> tuple[ItemRow, ...]:
    """The items, with what was found counted as not reproduced where nothing of a kind was reproduced."""
    statuses: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for r in records:
        if r.counts:
            statuses[_kind(r)].add(r.status)
    once = {kind for kind, some in statuses.items() if some == {Status.NOT_REPRODUCED}}
    return tuple(
        replace(i, counts={a: _once(c) if (i.op, i.dtype, a) in once else c for a, c in i.counts.items()}) for i in items
    )


def _once(counts: Mapping[str, int]) -> dict[str, int]:
    found = sum(n for s, n in counts.items() if s in FINDINGS)
    return {s: n for s, n in counts.items() if s not in FINDINGS} | {str(Status.NOT_REPRODUCED): found}


def _kind(r: Record) -> tuple[str, str, str]:
    return r.op, r.dtype, r.aspect


def key_of(r: Record) -> tuple[str, str, str]:
    """What a finding that is tried again is known by: its least case, aspect and op."""
    return r.shrunk, r.aspect, r.op


WITNESSES = 32  # elements of a tensor: fewer say nothing of what all of them share, so that one outside may be all
CASES = 3  # near cases of an operator, whatever their dtypes and passes, that make all of them drift
SEEDS = 2  # and so do near cases of so many draws of values: one by another seed is a second witness
ELEMENTS = 1000  # of so many elements that were judged of an operator in a dtype, and of a tensor, one may be outside
# A fault may be spread over many operators. An honest device is near its budget in 3 of 300,000 checks at most, mostly in one
# or none, so a run may have one operator, another for each so many checks, and never more than so many.
CHECKS, MOST = 50_000, 4
SEED = re.compile(r"\bseed=(\d+)|\.cotangent\([^()]*, (\d+)\)")


def decides(h: Header) -> bool:
    """Whether a run is no shard, or the only one: a shard of a run does not know what is near in the others."""
    return not h.shard or h.shard.endswith("/1")


def of_run(run: Run) -> Run:
    """A stored run with its marginal findings; as it is if it is a part of a run."""
    if run.end is None or run.end.stopped or not decides(run.header):
        return run
    records, items = settled(run.records, run.items, run.deaths)
    return replace(run, records=records, items=items)


def settled(
    records: Sequence[Record], items: Sequence[ItemRow], deaths: Sequence[Death] = ()
) -> tuple[tuple[Record, ...], tuple[ItemRow, ...]]:
    """All records and items of a whole run, in which what is near its budget is marginal, or stays drift."""
    ops = _marginal(records, items) - {d.op for d in counted(deaths, items)}

    def changed(counts: dict[str, int]) -> dict[str, int]:
        return {str(Status.MARGINAL) if s == Status.DRIFT else s: n for s, n in counts.items()}

    return (
        tuple(replace(r, status=str(Status.MARGINAL)) if r.op in ops and r.near and r.counts else r for r in records),
        tuple(replace(i, counts={a: changed(dict(c)) for a, c in i.counts.items()}) if i.op in ops else i for i in items),
    )


def is_seldom(cases: Iterable[str]) -> bool:
    """Whether these near cases of an operator are so few. cases: their texts."""
    some = {*cases}
    return len(some) < CASES and len({tuple(SEED.findall(c)) for c in some}) < SEEDS


def _marginal(records: Iterable[Record], items: Sequence[ItemRow]) -> frozenset[str]:
    """The operators whose drift is marginal."""
    near, others, ops = defaultdict[str, list[Record]](list), set[str](), set[str]()
    for r in records:
        little = _is_little(r) and not r.known
        if little:
            ops.add(r.op)  # what was not reproduced, too
        if little and r.counts:
            near[r.op].append(r)
        elif r.counts:
            others.add(r.op)
    checks = sum(sum(c.values()) for i in items for c in i.counts.values()) if near else 0
    if len(ops) > min(MOST, 1 + checks // CHECKS):
        return frozenset()
    alike = defaultdict[str, set[str]](set)  # cause -> the near cases of all operators that have it
    for r in (r for some in near.values() for r in some):
        alike[_subject(r)].update(r.near)
    return frozenset(
        op
        for op, some in near.items()
        if op not in others
        and is_seldom(c for r in some for c in alike[_subject(r)].union(r.near))
        and _accounts(some, [i for i in items if i.op == op])
    )


def _is_little(r: Record) -> bool:
    """Whether a record is marked as near, and its error and its cases do not contradict that."""
    showed = len(r.near) == r.count if r.shrunk else r.near == (r.case,)
    if not r.near or not showed or is_far(r):
        return False
    m = r.measures[0]
    return m.problem == "value" and not m.certain and m.mismatched <= max(1, (m.total - m.unjudged) // ELEMENTS)


def _subject(r: Record) -> str:
    """What a near record has in common with those of other operators, which may call the same kernel."""
    return r.cause.subject if r.cause is not None else r.op


def _accounts(near: Sequence[Record], items: Sequence[ItemRow]) -> bool:
    """Whether enough elements were judged in each dtype, and no check drifted but those of these records: what was stored once
    for several parts of an item might stand for more. items: of the operator."""
    judged, counted, drifted = Counter[str](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for i in items:
        judged[i.dtype] += i.judged
        drifted.update({(i.dtype, aspect): c.get(Status.DRIFT, 0) for aspect, c in i.counts.items()})
    for r in near:
        counted[r.dtype, r.aspect] += r.count if r.shrunk else 0
    cases = {(r.dtype, c) for r in near for c in r.near}
    outside = Counter(dtype for dtype, _ in cases)
    return counted == +drifted and all(ELEMENTS * n <= judged[dtype] for dtype, n in outside.items())
