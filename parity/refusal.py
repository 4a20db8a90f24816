"""Error parity: a call that is wrong on purpose must raise on the device as it does on the CPU.

What may be wrong (`Case.refused`): an operand's dtype or shape, a dim or an index out of range, a negative size.
"""

from __future__ import annotations

from parity import execute as ex
from parity.devices.base import Device
from parity.trial import Result, Trial, outcome_of
from parity.vocabulary import Aspect, Computed, Measure, Raised, Status, Verdict

# Backends where an index out of range stops the kernel by an assertion, after which every further call fails.
ASSERTS = ("cuda", "xpu")


def survives(device: Device, flaw: str) -> bool:
    """Whether the device still computes after it met this flaw."""
    return flaw != "index" or device.torch_device.type not in ASSERTS


def check(t: Trial) -> None:
    """The call on both sides: both must raise. Nothing is said where the device would not survive it."""
    if not survives(t.device, t.case.refused):
        return
    t.mark("reference")
    here = ex.precisely(lambda: ex.forward(t.program, t.case, t.inputs, ex.place(t.inputs, t.cpu), False), "run")
    if not isinstance(here, Raised):
        text = "drawn to be refused, but the reference computes it"
        t.results.append(Result(Aspect.REFUSAL, Verdict(Status.VOID, text)))
        return
    t.mark("device")

    def run() -> ex.Named:
        placed = ex.place(t.inputs, t.device, t.case.under)
        return ex.forward(t.program, t.case, t.inputs, placed, False).outputs

    outcome = outcome_of(t, ex.attempt(run, "run"))
    if isinstance(outcome, Raised):
        status = Status.OOM if outcome.kind == "oom" else Status.AGREE
        verdict = Verdict(status, f"both refuse: {here.message[:80]}" if status is Status.AGREE else outcome.message)
    else:
        assert isinstance(outcome, Computed)
        name = outcome.tensors[0][0] if outcome.tensors else "out"
        text = f"computed what the CPU refuses: {here.type}: {here.message[:120]}"
        verdict = Verdict(Status.MALFORMED, text, Measure(name, problem=f"accepted {t.case.refused}"))
    t.results.append(Result(Aspect.REFUSAL, verdict))
