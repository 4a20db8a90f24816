"""A gradient that jumps because rounding turned an argument at a kink is said so, and is no finding; a wrong one stays one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import parity
from parity import ParityFailure, assert_parity
from parity.devices import Call, Device, Fault, resolve

X = torch.tensor([0.5, -0.25, 1.5, 0.75, -2.0, 3.0, 0.125, 1.25], requires_grad=True)


def rounded(call: Call) -> Any:
    """An addition that rounds once more."""
    result = call.run()
    return result + 2.0**-23 * result.abs().amax().clamp_min(0.5)


def device(*faults: Fault) -> Device:
    return resolve("sim", (Fault("rounds", ("sub",), rounded, level="kernel"), *faults))


def shifted(x: Tensor, point: float) -> Tensor:
    """x, less what brings its first element to a point in exact arithmetic."""
    return x * 2.0 - (1.0 - point)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "relu": (lambda x: F.relu(shifted(x, 0.0)), "the gradient of relu (at {line}) jumps at 0: the argument at [0] is 0 within"),
    "relu_": (
        lambda x: F.relu_(shifted(x, 0.0)),
        "the gradient of relu (at {line}) jumps at 0: the argument at [0] is 0 within",
    ),
    "l1": (lambda x: F.l1_loss(x * 2.0, torch.ones(8, device=x.device)), "the gradient of abs (at {line}) jumps at 0: the arg"),
    "hardtanh": (
        lambda x: F.hardtanh(shifted(x, -1.0)),
        "the gradient of hardtanh (at {line}) jumps at -1: the argument at [0]",
    ),
    "clamp": (
        lambda x: shifted(x, 2.0).clamp(max=2.0),
        "the gradient of clamp (at {line}) jumps at 2: the argument at [0] is 2",
    ),
    "mask": (lambda x: x * (shifted(x, 0.0) > 0), "the gradient of gt (at {line}) jumps at 0: the argument at [0] is 0 within"),
    "maximum": (
        lambda x: torch.maximum(shifted(x, 0.0), x * 0.0),
        "the gradient of maximum (at {line}) jumps where its arguments are equal: those at [0] are within rounding",
    ),
    "max": (
        lambda x: torch.stack((shifted(x, 0.0)[0] * 3.0, x[1] * 0.0)).amax(),
        "the gradient of amax (at {line}) goes to what it picks, [1] on the CPU alone, of elements that are equal",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_that_rounding_turned_agrees_and_says_so(name: str) -> None:
    fn, said = CASES[name]
    text = str(assert_parity(fn, X, device=device()))
    words = said.split("{line}")
    assert all(part in text for part in words), text
    assert "compared along the choice that sim made there: grad[" in text
    where = text.partition(words[0])[2].partition(")")[0]
    assert where.startswith("tests/unit/comparing/test_kinks.py:"), where


@pytest.mark.parametrize(("how", "screen"), [({}, "bit-equal"), ({"effort": "full"}, ""), ({"detail": True}, "")])
def test_a_turned_gradient_is_judged_as_closely_as_the_others(how: dict[str, Any], screen: str) -> None:
    """The screens that the caller's effort leaves out are left out along the device's choice too, and limits are given."""
    fn, _ = CASES["hardtanh"]
    made = assert_parity(fn, X, device=device(), **how)
    name, verdict = made.verdicts[-1]
    assert name.startswith("grad[")
    assert verdict.measure is not None
    assert verdict.measure.screen == screen
    assert (name in made.limits) == ("detail" in how)


def test_a_wrong_gradient_at_a_turned_argument_is_a_finding() -> None:
    """Along the device's own choice, it is a percent too large; no word of a kink excuses it."""
    off = Fault("off", ("sgn",), lambda c: c.run() * 1.01, level="kernel")
    with pytest.raises(ParityFailure, match=r"in grad\[") as failed:
        assert_parity(CASES["l1"][0], X, device=device(off))
    assert "jumps" not in str(failed.value)


def test_a_device_on_the_wrong_side_of_a_kink_is_a_finding() -> None:
    """Its argument is the CPU's, so no rounding turned it."""
    passes = Fault("passes", ("threshold_backward",), lambda c: c.args[0] * (c.args[1] >= 0), level="kernel")
    with pytest.raises(ParityFailure, match=r"in grad\[") as failed:
        assert_parity(CASES["relu"][0], X, device=resolve("sim", (passes,)))
    assert "jumps" not in str(failed.value)


def test_an_argument_that_is_off_by_more_than_rounding_excuses_nothing() -> None:
    far = Fault("far", ("sub",), lambda c: c.run() + 1e-3, level="kernel")
    with pytest.raises(ParityFailure) as failed:
        assert_parity(CASES["relu"][0], X, device=resolve("sim", (far,)))
    assert "jumps" not in str(failed.value)


def test_nothing_is_said_where_no_argument_is_turned() -> None:
    for fn, _ in CASES.values():
        assert "jumps" not in str(assert_parity(fn, X, device="sim"))


def gradient(x: Tensor) -> Tensor:
    """Of a relu whose argument is 0 in exact arithmetic."""
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad(F.relu((y + 1.0) * (1.0 / 3.0) - 1.0 / 3.0).sum(), y)[0]


def test_two_results_of_a_function_that_computes_gradients_name_its_kinks() -> None:
    """Nobody knows the arguments of the result's device, so that float64 stands for them."""
    x = torch.zeros(8)
    here = gradient(x)
    there = torch.where(torch.arange(8) == 3, 1.0 / 3.0 - here, here)
    text = str(parity.compare(gradient, there, here, x))
    assert "note: the gradient of relu (at " in text
    assert "jumps at 0: the argument at [0] is 0 within rounding" in text
    assert "jumps" not in str(parity.compare(gradient, here, here.clone(), x))
    assert "jumps" not in str(parity.compare(torch.exp, torch.exp(x) * 1.01, torch.exp(x), x))


def test_locate_says_it_of_results_that_agree() -> None:
    found = parity.locate(CASES["relu"][0], X, device=device())
    assert found.agrees, found
    assert any(line.startswith("the gradient of relu (at ") for line in found.agreement), found
