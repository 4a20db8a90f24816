"""Comparisons of a user's own function or test as rows of a run file."""

from __future__ import annotations

from collections.abc import Sequence

from parity.checks.trial import Result
from parity.comparing.comparison import Comparison
from parity.core.results import Aspect, Cause, Record, Status, Verdict
from parity.findings.cause_search import symptom_of
from parity.findings.regions import extent
from parity.store.rows import ItemRow

MEASURES = 8  # tensors of a record whose measures are stored, the worst first


def rows(name: str, comparisons: Sequence[Comparison], seconds: float = 0.0) -> tuple[ItemRow, list[Record]]:
    """The item of a test or function, and a record for each pass. comparisons: all that it made, of one or several dtypes."""
    passes: dict[Aspect, list[tuple[str, Verdict]]] = {}
    for c in comparisons:
        for tensor, v in c.verdicts:
            passes.setdefault(Aspect.BACKWARD if tensor.startswith("grad[") else Aspect.FORWARD, []).append((tensor, v))
    dtype = comparisons[0].dtype
    counts: dict[str, dict[str, int]] = {}
    worst: dict[str, float] = {}
    judged, left, void = 0, dict[str, int](), dict[str, int]()
    records = []
    for aspect, some in passes.items():
        counts[aspect] = {}
        for _, v in some:
            counts[aspect][v.status] = counts[aspect].get(v.status, 0) + 1
            if v.status is Status.VOID:
                void[v.reason] = void.get(v.reason, 0) + 1
            if m := v.measure:
                judged += m.total - m.unjudged
                left |= {m.why or "": left.get(m.why or "", 0) + m.unjudged} if m.unjudged else {}
                worst[aspect] = max(worst.get(aspect, 0.0), _share(v))
        records.append(_record(name, dtype, aspect, some))
    item = ItemRow(name, dtype, len(comparisons), counts, worst, void, round(seconds, 3), judged=judged, left=left)
    return item, records


def _record(name: str, dtype: str, aspect: Aspect, verdicts: list[tuple[str, Verdict]]) -> Record:
    """One record for all tensors of a pass: the worst verdict, and the measures of the worst tensors."""
    order = sorted(verdicts, key=lambda nv: (not nv[1].status.is_finding, -_share(nv[1])))
    tensor, v = order[0]
    bad = v.status.is_finding
    many = sum(x.status.is_finding for _, x in verdicts)
    more = f" (in {tensor}, and in {many - 1} more)" if many > 1 else f" (in {tensor})" if bad and tensor else ""
    cause = Cause(name, symptom_of(Result(aspect, v))) if bad else None
    measures = tuple(x.measure for _, x in order[:MEASURES] if x.measure is not None)
    return Record(
        name, name, dtype, aspect, v.status, "", not bad, v.reason + more, v.tolerance.origin if v.tolerance else "", measures,
        name if bad else "", cause=cause, count=int(bad), extent=extent((None, m) for m in measures if bad),
    )  # fmt: skip


def _share(v: Verdict) -> float:
    return (v.measure.share or 0.0) if v.measure is not None else 0.0
