"""The same call again: whether a device computes it alike each time, and whether its results stay as they are in later calls.

The results of some cases are held on the device, and compared once more at the end of the next case whose results are. A device
that hands out the same memory again, or that writes late, changes them. Cases that are judged by the truth compare their own as
well; in one dtype of each op they call with other values at once, because equal ones leave equal bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from parity.checks import history
from parity.checks.inputs_unchanged import changed
from parity.checks.trial import Again, Lent, Result, Sides, Trial, compare, raised
from parity.core import notation
from parity.core.case import Case
from parity.core.results import Aspect, Computed, Measure, Outcome, Raised, Status, Verdict
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.judging.destination import EXACT, Part
from parity.judging.sameness import same_values

OVERWRITTEN = "overwritten"
LARGEST = 1 << 16  # most bytes of results that are held


class Held(NamedTuple):
    """The results of a case: as they were, and the tensors of the device."""

    case: Case
    results: tuple[Lent, ...]


_held: WeakKeyDictionary[Device, deque[Held]] = WeakKeyDictionary()


def check(t: Trial, s: Sides, again_here: Again, parts: dict[str, Part] | None) -> None:
    """Compare a second call with the same operands in the same grad mode.

    UNSTABLE if the bits differ and one of the results is a finding, or if torch was asked to be deterministic.
    """
    t.mark("device")
    raw = ex.attempt(lambda: ex.forward(t.program, t.case, t.inputs, s.there, s.grad), "run")
    again: Outcome = raw if isinstance(raw, Raised) else ex.computed(raw.outputs, t.device)
    t.notes.clear()
    t.mark("compare")
    t.due.discard(Aspect.REPEAT)  # reported only where the two differ
    if isinstance(s.outcome, Computed) and isinstance(again, Computed):
        if all(same_values(a, b) for (_, a), (_, b) in zip(s.outcome.tensors, again.tensors)):
            return
        second = compare(t, s.bench, Aspect.REPEAT, s.reference, again, again_here, parts)
        if t.case.under == "deterministic":
            text = "two equal calls differ, though torch was asked to use deterministic algorithms"
            verdict = Verdict(Status.UNSTABLE, text, second.verdict.measure, second.verdict.tolerance)
            t.results.append(Result(Aspect.REPEAT, verdict, second.measures))
        elif second.verdict.status.is_finding or t.results[0].verdict.status.is_finding:
            worst = second.verdict if second.verdict.status.is_finding else t.results[0].verdict
            verdict = Verdict(Status.UNSTABLE, f"two equal calls differ; {worst.reason}", worst.measure, worst.tolerance)
            t.results.append(Result(Aspect.REPEAT, verdict, second.measures))
    elif isinstance(again, Raised):
        t.results.append(raised(Aspect.REPEAT, s.reference, again))


def hold(t: Trial, s: Sides) -> None:
    """Hold the results of the forward, if they are not large, and call with other values where that is due."""
    if t.device.name == "cpu" or not isinstance(s.outcome, Computed):
        return
    pairs = list(zip(s.outcome.tensors, s.theirs.outputs))
    if sum(x.nbytes for (_, x), _ in pairs) <= LARGEST:
        results = tuple([Lent(name, x, live.detach()) for (name, x), (_, live) in pairs])
        t.results += _lying_in_held(_held.get(t.device, ()), results)
        _held.setdefault(t.device, deque()).append(Held(t.case, results))
        if t.settings.always_use_oracle and t.case.dtype == t.program.row.dtypes[0]:
            t.mark("device")
            history.call_with_other_values(t, s.here)


def _lying_in_held(kept: Iterable[Held], results: Sequence[Lent]) -> list[Result]:
    """A finding for the first of these results that is memory of a result that is still held."""
    of = {p: held for held in kept for lent in held.results if lent.base.numel() and (p := _memory(lent.base))}
    for lent in results:
        if lent.base.numel() and (held := of.get(_memory(lent.base))) is not None:
            text = f"its result lies in the memory of the result of {notation.case_text(held.case)}"
            verdict = Verdict(Status.WRONG, text, Measure(lent.name, problem=OVERWRITTEN), EXACT)
            return [Result(Aspect.REPEAT, verdict)]
    return []


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr() if x.layout is torch.strided else 0


def compare_held(t: Trial) -> None:
    """Compare the results that are held with what they were; one that has changed is WRONG, and let go."""
    kept = _held.get(t.device, deque())
    t.mark("device")
    for held in [h for h in kept if t.settings.always_use_oracle or h.case is not t.case]:
        found = ex.attempt(partial(changed, held.results, t.device), "download")
        if isinstance(found, Raised) or not found:
            continue
        kept.remove(held)
        whose = "its result" if held.case == t.case else f"the result of {notation.case_text(held.case)}"
        measure = replace(found[0][1], problem=OVERWRITTEN)
        verdict = Verdict(Status.WRONG, f"{whose} was changed by later calls", measure, EXACT)
        t.results.append(Result(Aspect.REPEAT, verdict))
    while len(kept) > t.settings.held:
        kept.popleft()
