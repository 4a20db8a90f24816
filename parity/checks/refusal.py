"""Error parity: an invalid call must raise on the device as it does on the CPU.

The kinds of error (`Case.refused`): an operand's dtype or shape, a dim or an index out of range, a negative size; "inputs",
those of OpInfo that must be refused; an argument without meaning; a matrix without factors; a negative chance; operands on two
devices, which is checked without asking the CPU.
"""

from __future__ import annotations

import re

from parity.checks.trial import Result, Trial, outcome_of
from parity.core.results import Aspect, Computed, Measure, Outcome, Raised, Status, Verdict
from parity.devices.base import Device
from parity.execution import execute as ex

ASSERTED = ("index", "chance")  # where they are out of range, the kernels of some backends end by an assertion
# The CPU's message if only its own kernel has no such dtype, so that a device may compute it. ("not implemented for" comes on
# every backend for dtypes without a meaning for the op, and stays a refusal.)
NO_KERNEL = re.compile(r"\bon (the )?CPU does not support \w+ (inputs?|dtypes?|tensors?)", re.IGNORECASE)
BY_ZERO = "ZeroDivisionError"  # of integers: an asynchronous kernel cannot raise it
ONE_DEVICE = "Expected all tensors to be on the same device"


def survives(device: Device, error_input: str) -> bool:
    """Whether the device still computes after this kind of error."""
    return error_input not in ASSERTED or not device.backend.asserts


def check(t: Trial) -> None:
    """Run the call on both sides; both must raise. Skipped if the device would not survive it."""
    apart = t.case.refused == "device"
    if not survives(t.device, t.case.refused) or (apart and t.device.torch_device.type == "cpu"):
        t.due.clear()
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
    if isinstance(outcome, Computed) and apart and outcome.notes:
        text = f"torch's fallback takes operands of any device to the CPU: {', '.join(sorted(set(outcome.notes)))}"
        t.results.append(Result(Aspect.REFUSAL, Verdict(Status.VOID, text)))
        return
    if isinstance(outcome, Computed) and BY_ZERO in here.message:
        t.results.append(Result(Aspect.REFUSAL, Verdict(Status.VOID, "only the CPU can raise at a division by zero")))
        return
    if isinstance(outcome, Computed) and t.case.refused == "dtype" and NO_KERNEL.search(here.message):
        t.results.append(Result(Aspect.REFUSAL, Verdict(Status.VOID, f"the CPU alone has no kernel: {here.message[:80]}")))
        return
    t.results.append(judged(Aspect.REFUSAL, here, outcome, t.case.refused))


def judged(aspect: Aspect, here: Raised, outcome: Outcome, error_input: str) -> Result:
    """The verdict on what the device did with a call that the CPU refuses. error_input: the kind of error, in one word."""
    if isinstance(outcome, Raised):
        status = Status.OOM if outcome.kind == "oom" else Status.AGREE
        verdict = Verdict(status, f"both refuse: {here.message[:80]}" if status is Status.AGREE else outcome.message)
    else:
        assert isinstance(outcome, Computed)
        name = outcome.tensors[0][0] if outcome.tensors else "out"
        text = f"computed what the CPU refuses: {here.type}: {here.message[:120]}"
        verdict = Verdict(Status.MALFORMED, text, Measure(name, problem=f"accepted {error_input}"))
    return Result(aspect, verdict)
