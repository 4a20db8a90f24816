"""The same call again: whether a device computes it alike each time."""

from __future__ import annotations

from parity.checks.trial import Again, Result, Sides, Trial, compare, raised
from parity.core.results import Aspect, Computed, Outcome, Raised, Status, Verdict
from parity.execution import execute as ex
from parity.judging.destination import Part
from parity.judging.measures import same_values


def check(t: Trial, s: Sides, again_here: Again, parts: dict[str, Part] | None) -> None:
    """Compare a second call with the same operands in the same grad mode.

    UNSTABLE if the bits differ and one of the results is a finding, or if torch was told to be deterministic.
    """
    t.mark("device")
    raw = ex.attempt(lambda: ex.forward(t.program, t.case, t.inputs, s.there, s.grad), "run")
    again: Outcome = raw if isinstance(raw, Raised) else ex.computed(raw.outputs, t.device)
    t.notes.clear()
    t.mark("compare")
    t.due.discard(Aspect.REPEAT)  # told only where the two differ
    if isinstance(s.outcome, Computed) and isinstance(again, Computed):
        if all(same_values(a, b) for (_, a), (_, b) in zip(s.outcome.tensors, again.tensors)):
            return
        second = compare(t, s.bench, Aspect.REPEAT, s.reference, again, "forward", again_here, parts)
        if t.case.under == "deterministic":
            text = "two equal calls differ, though torch was told to use deterministic algorithms"
            verdict = Verdict(Status.UNSTABLE, text, second.verdict.measure, second.verdict.tolerance)
            t.results.append(Result(Aspect.REPEAT, verdict, second.measures))
        elif second.verdict.status.is_finding or t.results[0].verdict.status.is_finding:
            worst = second.verdict if second.verdict.status.is_finding else t.results[0].verdict
            verdict = Verdict(Status.UNSTABLE, f"two equal calls differ; {worst.reason}", worst.measure, worst.tolerance)
            t.results.append(Result(Aspect.REPEAT, verdict, second.measures))
    elif isinstance(again, Raised):
        t.results.append(raised(Aspect.REPEAT, s.reference, again))
