"""What ran on the CPU is reported in each pass, with agreement and with findings."""

from __future__ import annotations

import pytest
from cases import CPU, tables

from parity import catalog
from parity.checks.check import Settings, check, quiet
from parity.checks.trial import Result
from parity.core.notation import parse
from parity.core.results import Aspect, Status
from parity.devices import Call, Fault, resolve
from parity.devices.refusals import listening
from parity.devices.sim.faults import fall_back, refuse


def checked(text: str, *faults: Fault) -> dict[Aspect, Result]:
    device, notes, case = resolve("sim:mps", faults), list[str](), parse(text)
    with device.active(), listening(notes):
        results, _ = check(catalog.row(case.op), case, device, CPU, tables("sim:mps"), Settings(), quiet, notes)
    return {r.aspect: r for r in results}


def test_every_pass_that_fell_back_is_told_with_its_operator() -> None:
    found = checked("tanh(float32[3])", Fault("f", ("tanh.out",), fall_back))
    assert found[Aspect.FORWARD].verdict.status is found[Aspect.OUT].verdict.status is Status.FALLBACK
    assert found[Aspect.FORWARD].verdict.reason == "ran on the CPU: aten::tanh.out"
    assert found[Aspect.BACKWARD].verdict.status is Status.AGREE
    found = checked("tanh(float32[3])", Fault("b", ("tanh_backward",), fall_back))
    assert found[Aspect.FORWARD].verdict.status is Status.AGREE
    assert found[Aspect.BACKWARD].verdict.status is Status.FALLBACK


def test_a_finding_says_that_it_ran_on_the_cpu() -> None:
    """What copies operands and results may be at fault."""

    def doubled(call: Call) -> object:
        return fall_back(call) * 2

    verdict = checked("exp(float32[3])", Fault("f", ("exp.out",), doubled))[Aspect.FORWARD].verdict
    assert verdict.status is Status.WRONG
    assert verdict.reason.endswith("(ran on the CPU: aten::exp.out)")


@pytest.mark.parametrize(("effect", "status"), [(fall_back, Status.VOID), (refuse, Status.AGREE)])
def test_operands_that_the_fallback_moves_are_no_finding(effect: object, status: Status) -> None:
    """Operands on two devices must be refused; torch's fallback takes both to the CPU."""
    found = checked('add(float32[3], float32[3]).refused("device")', Fault("f", ("add.out",), effect))  # type: ignore[arg-type]
    assert found[Aspect.REFUSAL].verdict.status is status
