"""Comparisons of a user's own function or test as rows of a run file, with the figures that two runs compare besides
verdicts: how exact its results are, how long the device takes."""

from __future__ import annotations

import functools
import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parity.checks.trial import Result
from parity.comparing.comparison import Comparison
from parity.comparing.function import Sides
from parity.comparing.subject import Subject, forward, gradients, known, word
from parity.core.dtypes import FACTS
from parity.core.results import Aspect, Cause, Raised, Record, Status, Verdict
from parity.execution import execute as ex
from parity.findings.cause_search import symptom_of
from parity.findings.regions import extent
from parity.store.rows import ItemRow

REPEATS, SECONDS = 20, 3.0  # most calls whose times are measured, and how long all of them may take
PAUSE = 0.01  # seconds between them: calls without a pause share whatever the machine does just then
LARGEST = 1 << 28  # elements of operands and results of a function that is run in float64 for its errors alone
ENOUGH = 16  # elements of a result whose error says something by itself


def with_figures(item: ItemRow, sides: Sides) -> ItemRow:
    """The item with the errors, times and memory of its function."""
    seconds, spread, memory = _measured(sides)
    return replace(
        item, ids=_digest(sides.subject), errors=_errors(sides), device_seconds=seconds, device_spread=spread, memory=memory
    )


def _errors(sides: Sides) -> dict[str, float]:
    """Root mean squares of the device's errors against the truth, as `ItemRow.errors`. Tensors of few elements are left out
    where a pass has others, and all are for a function so large that a run in float64 may not fit into memory."""
    if sum(t.numel() for _, t in sides.subject.tensors) + sum(t.numel() for t in sides.ours.values()) > LARGEST:
        return {}
    found: dict[tuple[str, bool], dict[str, float]] = {}
    for name, t in sides.theirs.items():
        truth = sides.truth.truth(name) if known(t) and (t.is_floating_point() or t.is_complex()) else None
        if truth is None or truth.shape != t.shape or not (size := _mean_square(truth)):
            continue
        error = (_mean_square(t.to(truth.dtype) - truth) / size) ** 0.5 / FACTS[word(t.dtype)].unit_roundoff
        aspect = str(Aspect.BACKWARD if name.startswith("grad[") else Aspect.FORWARD)
        found.setdefault((aspect, t.numel() >= ENOUGH), {})[f"{aspect} {name}"] = float(f"{error:.3g}")
    return {n: e for (aspect, many), errors in found.items() if many or (aspect, True) not in found for n, e in errors.items()}


def _mean_square(x: Tensor) -> float:
    """Of the finite elements."""
    squares = x.abs().square()
    return float(squares[squares.isfinite()].mean().nan_to_num(0.0))


def _measured(sides: Sides) -> tuple[dict[str, float], dict[str, float], int]:
    """(aspect -> the least of the device's seconds in some calls, with copies of the operands; aspect -> their median distance
    from it; bytes that the device holds between forward and backward)."""
    times: dict[str, list[float]] = {str(Aspect.FORWARD): [], str(Aspect.BACKWARD): []}
    held: list[int] = []
    began = time.monotonic()
    for kept in ({}, *[times] * REPEATS):
        time.sleep(PAUSE)
        done = ex.attempt(functools.partial(_once, sides, kept, held), "run")
        if isinstance(done, Raised) or time.monotonic() - began > SECONDS:
            break
    least = {a: min(t) for a, t in times.items() if t}
    spread = {a: statistics.median(x - least[a] for x in t) for a, t in times.items() if t}
    seconds, around = ({a: float(f"{x:.3g}") for a, x in s.items()} for s in (least, spread))
    return seconds, around, max(0, min(held, default=0))


def _once(sides: Sides, times: Mapping[str, list[float]], held: list[int]) -> None:
    """One call on the device. The first one, whose times are not kept, compiles and fills caches."""
    device = sides.device
    with torch.random.fork_rng(devices=[]), device.active():
        device.synchronize()
        before, began = device.used(), time.perf_counter()
        run = forward(sides.subject, device.upload, bool(sides.cotangents), None, torch.clone)
        device.synchronize()
        middle = time.perf_counter()
        if before is not None:
            held.append((device.used() or 0) - before)
        if sides.cotangents:
            gradients(run, sides.tracked, [device.upload(c) for c in sides.cotangents])
            device.synchronize()
            times.get(Aspect.BACKWARD, []).append(time.perf_counter() - middle)
        times.get(Aspect.FORWARD, []).append(middle - began)


def _digest(s: Subject) -> str:
    """Of all inputs and weights."""
    digest = hashlib.blake2b(digest_size=8)
    for name, t in (*s.tensors, *(s.module.state_dict().items() if s.module is not None else ())):
        digest.update(name.encode())
        if isinstance(t, Tensor) and known(t):
            dense = t.detach().cpu().resolve_conj().resolve_neg().contiguous()
            digest.update(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
