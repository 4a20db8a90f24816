"""Error parity: a call that is wrong on purpose must raise on the device as it does on the CPU.

What may be wrong (`Case.refused`): an operand's dtype or shape, a dim or an index out of range, a negative size;
"inputs" are those of OpInfo that must be refused, for a reason of their own; an argument that makes no sense; a matrix
without factors; a chance that is negative; operands on two devices, which no CPU can tell, so that it is not asked.
"""

from __future__ import annotations

import re

from parity import execute as ex
from parity.checking.trial import Result, Trial, outcome_of
from parity.devices.base import Device
from parity.vocabulary import Aspect, Computed, Measure, Outcome, Raised, Status, Verdict

# Backends where an index out of range, or a chance, stops the kernel by an assertion, after which every further call fails.
ASSERTS = ("cuda", "xpu")
ASSERTED = ("index", "chance")
# What the CPU says of a dtype that its own kernel alone lacks: no misuse, so that a device may compute it. ("not implemented
# for" is said on every backend of dtypes that the op has no meaning for, and stays a refusal.)
LACKS = re.compile(r"\bon (the )?CPU does not support \w+ (inputs?|dtypes?|tensors?)", re.IGNORECASE)
BY_ZERO = "ZeroDivisionError"  # of whole numbers: a kernel that runs behind the program's back cannot raise it
ONE_DEVICE = "Expected all tensors to be on the same device"


def survives(device: Device, flaw: str) -> bool:
    """Whether the device still computes after it met this flaw."""
    return flaw not in ASSERTED or device.torch_device.type not in ASSERTS


def check(t: Trial) -> None:
    """The call on both sides: both must raise. Nothing is said where the device would not survive it."""
    apart = t.case.refused == "device"
    if not survives(t.device, t.case.refused) or (apart and t.device.torch_device.type == "cpu"):
        return
    t.mark("reference")
    here: object = Raised("error", "RuntimeError", ONE_DEVICE, "run")
    if not apart:
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
    if isinstance(outcome, Computed) and BY_ZERO in here.message:
        t.results.append(Result(Aspect.REFUSAL, Verdict(Status.VOID, "only the CPU can raise at a division by zero")))
        return
    if isinstance(outcome, Computed) and t.case.refused == "dtype" and LACKS.search(here.message):
        t.results.append(Result(Aspect.REFUSAL, Verdict(Status.VOID, f"the CPU alone lacks a kernel: {here.message[:80]}")))
        return
    t.results.append(judged(Aspect.REFUSAL, here, outcome, t.case.refused))


def judged(aspect: Aspect, here: Raised, outcome: Outcome, flaw: str) -> Result:
    """What it means that the device did this where the CPU refuses. flaw: what is wrong, in one word."""
    if isinstance(outcome, Raised):
        status = Status.OOM if outcome.kind == "oom" else Status.AGREE
        verdict = Verdict(status, f"both refuse: {here.message[:80]}" if status is Status.AGREE else outcome.message)
    else:
        assert isinstance(outcome, Computed)
        name = outcome.tensors[0][0] if outcome.tensors else "out"
        text = f"computed what the CPU refuses: {here.type}: {here.message[:120]}"
        verdict = Verdict(Status.MALFORMED, text, Measure(name, problem=f"accepted {flaw}"))
    return Result(aspect, verdict)
