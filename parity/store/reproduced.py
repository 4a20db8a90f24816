"""Updates a run's records and items by what was reproduced in fresh processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from parity.core.results import EARLIER_CALLS, FINDINGS, Cause, Record, Status
from parity.store.rows import Again, ItemRow

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
