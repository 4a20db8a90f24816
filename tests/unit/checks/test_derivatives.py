"""Autograd modes, backward of backward, forward-mode: each finds what the other aspects cannot see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import checked, faulty_aspects

from parity.checks import derivatives
from parity.checks.check import Settings, failing
from parity.checks.gauge import GAUGES
from parity.checks.trial import EVERYTHING, SELDOM, values
from parity.core.results import Aspect, Raised
from parity.devices import Call, Fault, resolve

MORE = Settings(more=SELDOM)


def test_a_factorization_that_raised_has_no_derivatives() -> None:
    """A kernel may fail as late as where its results are fetched."""
    sides: Any = SimpleNamespace(outcome=Raised("error", "RuntimeError", "device-side assert", "download"))
    assert derivatives._apart(GAUGES["svd"], sides) is False


def test_a_factor_without_a_gradient_is_found_once_and_asked_for_no_second_derivative() -> None:
    def detached(call: Call) -> Any:
        q, r = call.run()
        return q, r.detach()

    device = resolve("sim", (Fault("detached", ("qr",), detached, level="function"),))
    found = checked(device, "qr(float32[5, 3].full_rank(seed=2))", MORE)
    assert found["backward"].verdict.status == "malformed"
    assert "double backward" not in found


def larger(call: Call) -> Any:
    return call.run() * 1.05


# ------------------------------------------------------------------------------------------------------------ autograd modes

WITHOUT_GRAD = Fault("no-grad", ("gelu",), larger, lambda c: not c.grad_mode)
INFERENCE = Fault("inference", ("gelu",), larger, lambda c: torch.is_inference_mode_enabled(), level="function")


@pytest.mark.parametrize(
    "fault, mode, seen",
    [
        (WITHOUT_GRAD, "grad", False),
        (WITHOUT_GRAD, "no_grad", True),
        (WITHOUT_GRAD, "inference", True),
        (INFERENCE, "no_grad", False),
        (INFERENCE, "inference", True),
    ],
)
def test_a_kernel_of_one_autograd_mode_is_seen_in_that_mode(fault: Fault, mode: str, seen: bool) -> None:
    text = f'gelu(float32[5].normal(seed=1)).under("{mode}")'
    assert ("forward" in faulty_aspects(resolve("sim", (fault,)), text, MORE)) is seen
    assert not faulty_aspects(resolve("sim"), text, MORE)


def test_without_gradients_there_is_no_backward() -> None:
    modes = ("grad", "no_grad", "inference")
    aspects = {m: set(checked(resolve("sim"), f'gelu(float32[5]).under("{m}")', MORE)) for m in modes}
    assert {"backward", "double backward", "forward-mode"} <= aspects["grad"]
    assert "backward" not in aspects["no_grad"] | aspects["inference"]


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
@pytest.mark.parametrize(
    "text",
    [
        'exp(float32[3, 4].transpose(0, 1).normal(seed=1)).into("stepped")',
        "copy_(float32[4].step(-1, 2, 0), float32[4].normal(seed=2))",
        "batch_norm(float32[4, 3].normal(seed=3), None, None, training=True)",
        "dropout(float32[64], p=0.5)",
    ],
)
def test_every_aspect_works_in_every_mode(text: str, mode: str) -> None:
    found = checked(resolve("sim"), f'{text}.under("{mode}")', EVERYTHING)
    assert {str(r.verdict.status) for r in found.values()} == {"agree"}


# --------------------------------------------------------------------------------------------------- backward of backward

SECOND = Fault("second", ("sigmoid",), larger)  # silu's backward calls it only where a graph is made of the backward itself


def test_a_wrong_second_derivative_is_found_where_the_first_is_right() -> None:
    text = 'silu(float32[4].normal(seed=2)).cotangent("normal", "contiguous", 3)'
    found = checked(resolve("sim", (SECOND,)), text, Settings(more=frozenset({Aspect.DOUBLE})))
    assert {str(r.aspect) for r in failing(list(found.values()))} == {"double backward"}
    assert found["backward"].verdict.status == "agree"
    assert found["double backward"].verdict.tensor.startswith("gradgrad[")
    assert not faulty_aspects(resolve("sim"), text, MORE)


def test_the_second_derivative_is_taken_of_operands_and_cotangents() -> None:
    results = checked(resolve("sim"), "mul(float32[3].normal(seed=1), float32[3].normal(seed=2))", MORE)
    assert [m.tensor for m in results["double backward"].measures] == ["gradgrad[0]", "gradgrad[1]", "gradgrad[2]"]


def test_higher_derivatives_are_asked_for_by_name_only() -> None:
    plain = checked(resolve("sim"), "silu(float32[4])", Settings())
    assert not {"double backward", "forward-mode", "transfer"} & set(plain)
    assert set(checked(resolve("sim"), "silu(float32[4])", Settings(only=Aspect.DOUBLE))) == {"double backward"}
    assert "double backward" in checked(resolve("sim"), "silu(float16[4])", MORE)
    assert "forward-mode" not in checked(resolve("sim"), "silu(float16[4])", MORE)


def test_what_torch_has_no_second_derivative_of_says_nothing() -> None:
    found = checked(resolve("sim"), "cdist(float32[2, 3].normal(seed=1), float32[2, 3].normal(seed=2))", MORE)
    assert "backward" in found
    assert "double backward" not in found


# --------------------------------------------------------------------------------------------------------- forward-mode

PUSHED = Fault("pushed", ("div",), larger)  # softmax divides only where its tangent is pushed forward


def test_a_tangent_with_the_bits_of_the_cpus_needs_no_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derivatives, "CaseOracle", None)
    found = checked(resolve("sim"), "exp(float32[3].normal(seed=1))", Settings(more=frozenset({Aspect.TANGENT})))
    assert found["forward-mode"].verdict.status == "agree"


def test_a_wrong_tangent_is_found_where_the_gradient_is_right() -> None:
    text = "softmax(float32[3, 4].normal(seed=2), dim=1)"
    found = checked(resolve("sim", (PUSHED,)), text, Settings(more=frozenset({Aspect.TANGENT})))
    assert {str(r.aspect) for r in failing(list(found.values()))} == {"forward-mode"}
    assert found["forward-mode"].verdict.tensor == "tangent[0]"
    assert not faulty_aspects(resolve("sim"), text, MORE)


@pytest.mark.parametrize(
    "text",
    [
        "exp(complex64[3].normal(seed=1))",
        "mul(complex64[3].normal(seed=1), complex64[3].conj().normal(seed=2))",
        "view_as_real(complex64[3].normal(seed=1))",
    ],
)
def test_complex_derivatives_have_a_truth(text: str) -> None:
    found = checked(resolve("sim"), text, Settings(whole=True, more=SELDOM))
    assert {str(r.verdict.status) for r in found.values()} == {"agree"}
    assert all(m.screen != "bit-equal" for m in found["forward-mode"].measures)


def test_what_torchs_two_ways_disagree_about_has_no_truth() -> None:
    """The derivative of batch_norm's gradient fails where it has a bias and no weight; with a weight it is right."""
    running = "float32[2].normal(seed=2).frozen(), float32[2].inside(1, 2, seed=3).frozen()"
    one = f"batch_norm(float32[3, 2, 5].normal(seed=1), {running}, "
    asked = Settings(whole=True, more=SELDOM)
    assert "forward-mode" not in checked(resolve("sim"), one + "bias=float32[2].normal(seed=4))", asked)
    whole = one + "weight=float32[2].normal(seed=5), bias=float32[2].normal(seed=4))"
    assert checked(resolve("sim"), whole, asked)["forward-mode"].verdict.status == "agree"


def test_numbers_that_are_not_finite_have_no_tangent() -> None:
    """torch's zero tangents swallow them on one path and not on another."""
    asked = Settings(more=frozenset({Aspect.TANGENT}))
    assert "forward-mode" in checked(resolve("sim"), "square(float32[3])", asked)
    assert "forward-mode" not in checked(resolve("sim"), 'square(float32[3].at(0, "inf"))', asked)


def test_a_device_without_the_derivative_lacks_it() -> None:
    def without(call: Call) -> Any:
        raise NotImplementedError("Trying to use forward AD with foo that does not support it")

    fault = Fault("without", ("div",), without)
    found = checked(resolve("sim", (fault,)), "softmax(float32[3, 4], dim=1)", MORE)
    assert found["forward-mode"].verdict.status == "unsupported"


def test_a_cotangent_that_is_not_finite_has_as_many_such_numbers_as_its_seed_says() -> None:
    counts = [int((~values("nonfinite", torch.float32, 4096, seed, 0).isfinite()).sum()) for seed in range(3)]
    assert counts == [1, 2, 3]
    assert not values("nonfinite", torch.float32, 0, 1, 0).numel()


def test_a_cotangent_of_ones_or_zeros_holds_nothing_else() -> None:
    assert [values(family, torch.float16, 3, 1, 0).tolist() for family in ("ones", "zero")] == [[1.0] * 3, [0.0] * 3]


def test_a_cotangent_of_a_dtype_that_is_not_judged_holds_rounded_numbers() -> None:
    narrow, wide = (values("normal", dtype, 5, 3, 0) for dtype in (torch.complex32, torch.complex64))
    assert torch.equal(narrow.to(wide.dtype), wide.to(narrow.dtype).to(wide.dtype))


def test_a_tangent_of_mixed_dtypes_has_the_dtype_of_the_result() -> None:
    """torch's formula gives float32 on one side and, where a layout makes it copy the tangent, float16 on the other."""
    statistics = "float32[1].flat(1, 0).uniform(seed=589).frozen(), float32[1].inside(0.5, 4, seed=435).frozen()"
    affine = "weight=float32[1].uniform(seed=399).frozen(), bias=float32[1].uniform(seed=993).frozen()"
    text = f'instance_norm_running(float16[2, 1, 1, 6].normal(seed=6), {statistics}, {affine}).as_dtype("float32")'
    results = checked(resolve("sim"), text, MORE)
    assert "forward-mode" in results
    assert not failing(list(results.values()))
    wrong = Fault("tangent", ("mul", "add"), larger)
    assert "forward-mode" in faulty_aspects(resolve("sim", (wrong,)), text, MORE)
