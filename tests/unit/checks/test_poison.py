"""A kernel that does not write all of its result, or that writes outside a tensor, shows it; a healthy one is silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from cases import CPU, tables

from parity import catalog, tolerance
from parity.checks.check import Settings, check, failing, quiet
from parity.checks.poison import EDGE
from parity.checks.trial import LARGE, NAN, Result
from parity.core.notation import parse
from parity.core.results import Status
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.suite import Item

GUARDED = Settings(guards=True)


def checked(text: str, fault: Fault | None, how: Settings) -> tuple[Result, ...]:
    device = resolve("sim", (fault,) if fault else ())
    case = parse(text)
    with device.active():
        return check(catalog.row(case.op), case, device, CPU, tables("sim"), how, quiet, [])[0]


# ---------------------------------------------------------------------------------------------- elements that are not written


def unwritten(call: Call) -> Any:
    """The kernel leaves the last element of its result as it was."""
    out = call.outs[0]
    left = out.reshape(-1)[-1].clone()
    result = call.run()
    result.reshape(-1)[-1] = left
    return result


@pytest.mark.parametrize("byte", [NAN, LARGE, 0])
def test_most_results_lie_in_poisoned_memory(byte: int) -> None:
    """The host's allocator, which is the simulated device's, hands out freed blocks in an order of its own."""
    poisoned = []

    def looks(call: Call) -> Any:
        there = call.outs[0].reshape(-1).clone().view(torch.uint8)
        poisoned.append(float((there == (byte or NAN)).float().mean()) > 0.9)
        return call.run()

    fault = Fault("looks", ("exp.out",), looks)
    for n in range(40, 80):
        checked(f"exp(float32[{n}, {n}])", fault, Settings(poison=byte, only="forward"))
    assert len(poisoned) == 40
    assert sum(poisoned) > 16 if byte else sum(poisoned) == 0


@pytest.mark.parametrize("byte", [NAN, LARGE])
def test_an_element_that_is_not_written_hands_the_poison_on(byte: int) -> None:
    fault, seen = Fault("unwritten", ("exp.out",), unwritten), []
    for n in range(40, 60):
        found = failing(checked(f"exp(float32[{n}, {n}])", fault, Settings(poison=byte, only="forward")))
        seen += [m.device for r in found if (m := r.verdict.measure) is not None]
    assert sum(x == "nan" if byte == NAN else x.startswith("1.3") and "e+36" in x for x in seen) > 5, seen


# ------------------------------------------------------------------------------------------------------- writes beside tensors


def beside(which: str, at: int) -> Any:
    """The kernel writes one element outside an operand or its destination, where there is memory."""

    def effect(call: Call) -> Any:
        result = call.run()
        target = call.outs[0] if which == "destination" else call.args[0]
        place = target.storage_offset() + (target.numel() + at if at >= 0 else at)
        if isinstance(target, torch.Tensor) and 0 <= place < target.untyped_storage().nbytes() // target.element_size():
            target.as_strided((1,), (1,), place).fill_(1)
        return result

    return effect


@pytest.mark.parametrize("at", [0, -1, 20, -20])
@pytest.mark.parametrize(("which", "text"), [
    ("operand", "exp(float32[3, 4])"),
    ("destination", 'exp(float32[3, 4]).into("contiguous")'),
    ("operand", "exp(int64[3, 4])"),
])  # fmt: skip
def test_a_write_beside_a_tensor_is_found(which: str, text: str, at: int) -> None:
    found = failing(checked(text, Fault("beside", ("exp.out",), beside(which, at)), GUARDED))
    assert {r.verdict.status for r in found} == {Status.WRONG}
    where = "before" if at < 0 else "behind"
    assert found[0].verdict.reason.startswith(f"the call wrote outside of what it was given: {where} a tensor of 12 elements")
    assert ("out=" in {r.aspect for r in found}) or which == "operand"
    assert not failing(checked(text, Fault("beside", ("exp.out",), beside(which, at)), Settings(only="forward")))
    assert not failing(checked(text, Fault("beside", ("exp.out",), beside(which, at)), Settings(guards=True, only="view")))


CASES = (
    "exp(float32[3, 4])", "mm(float32[3, 5], float32[5, 2])", "softmax(float16[3, 4], dim=-1)", "sort(int64[7])",
    "exp(complex64[3])", "logical_not(bool[5])", 'exp(float32[3, 4]).into("columns")',
)  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_a_healthy_device_writes_beside_nothing(text: str) -> None:
    assert not failing(checked(text, None, Settings(True, poison=NAN, guards=True)))
    assert not failing(checked(text, None, Settings(poison=LARGE, guards=True)))


def between_guards(call: Call) -> bool:
    """Whether the operand lies where memory around it can be written without harm; a layout alone leaves no such room."""
    x = call.args[0]
    return bool(x.untyped_storage().nbytes() // x.element_size() == x.numel() + 2 * EDGE and x.storage_offset() == EDGE)


def examined(profile: str, faults: Sequence[Fault], op: str) -> set[str]:
    """The statuses of an item in a profile."""
    device = resolve("sim", faults)
    o = RunOptions(device="sim", examples=8, skip=("shrink",), profile=profile)
    plan = RunPlan(device, resolve("cpu"), tolerance.load("sim"), suite.profile(profile), o)
    done = examine(Item(catalog.row(op), "float32"), plan, NoJournal())
    return {s for c in done.summary.counts.values() for s in c}


def test_the_full_and_deep_profiles_look_and_the_quick_one_does_not() -> None:
    fault = (Fault("beside", ("cumsum.out",), beside("operand", 30), when=between_guards),)
    assert "wrong" in examined("full", fault, "cumsum")
    assert "wrong" in examined("deep", fault, "cumsum")
    assert "wrong" not in examined("quick", fault, "cumsum")
    assert "wrong" not in examined("full", (), "cumsum")
