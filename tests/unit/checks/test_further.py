"""What a case was to compare is compared, or somebody says why not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import checked

from parity.checks import derivatives, repeat, transfer, writes
from parity.checks.check import EVERYTHING, STATE, UNCOMPARED, Settings
from parity.checks.further import MANY
from parity.checks.trial import SELDOM
from parity.core.results import Aspect, Status
from parity.devices import Call, Fault, resolve

ALL = Settings(repeat=True, more=SELDOM)
EXP = 'exp(float32[3, 2]).cotangent("normal", "contiguous", 1)'
held: list[Any] = []


@pytest.mark.parametrize(("size", "how", "asked"), [(MANY, ALL, True), (MANY + 1, ALL, False), (MANY + 1, EVERYTHING, True)])
def test_derivatives_beyond_the_first_are_asked_of_no_large_case(size: int, how: Settings, asked: bool) -> None:
    """Unless somebody asks for this case."""
    found = checked(resolve("sim"), f"exp(float32[{size}])", how)
    assert {r.verdict.status for r in found.values()} == {Status.AGREE}
    assert ({Aspect.DOUBLE, Aspect.TANGENT} <= found.keys(), Aspect.BACKWARD in found) == (asked, True)


# ------------------------------------------------------------------------------------------------------- what falls out


@pytest.mark.parametrize(
    ("module", "name", "aspect"),
    [
        (derivatives, "_backward", Aspect.BACKWARD),
        (derivatives, "_double_backward", Aspect.DOUBLE),
        (derivatives, "_tangents", Aspect.TANGENT),
        (writes, "out", Aspect.OUT),
        (writes, "inplace", Aspect.INPLACE),
        (transfer, "check", Aspect.TRANSFER),
        (repeat, "check", Aspect.REPEAT),
    ],
)
def test_an_aspect_that_falls_out_without_a_word_is_an_error(
    module: Any, name: str, aspect: Aspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, lambda *_: None)
    lost = {a: r for a, r in checked(resolve("sim"), EXP, ALL).items() if r.verdict.status is not Status.AGREE}
    assert list(lost) == [aspect]
    assert lost[aspect].verdict.status is Status.ERROR
    measure = lost[aspect].verdict.measure
    assert measure is not None
    assert measure.problem == UNCOMPARED


@pytest.mark.parametrize(
    "case",
    [
        EXP,
        "to(float32[2], int64)",  # no result can have a gradient
        "norm(float32[3], 0)",  # it does not depend on its operand
        "where(bool[2], complex64[2], float32[2])",  # torch fails to differentiate some of these
        "argmax(float32[3])",
        'exp(float32[3]).under("inference")',
        'exp(float32[3]).under("no_grad")',
        "exp(float32[3].expand(0))",  # torch refuses to write into it
        "exp(int64[3])",
        "svd(float32[2, 3, 3].full_rank())",
        "svd(float32[3, 3].constant())",  # its vectors are any
        "sort(float32[4].constant())",
        "randn_like(float32[3])",
        "copy_(float32[3], float32[3])",
        "cat((float32[2], float32[2]))",
        "exp(float32[0])",
    ],
)
def test_what_has_a_reason_is_none(case: str) -> None:
    assert all(r.verdict.status is not Status.ERROR for r in checked(resolve("sim"), case, ALL).values())


def test_inference_mode_around_a_check_is_named() -> None:
    """Whoever has left it in force: the gradients are gone, and nothing else shows it."""
    with torch.inference_mode():
        lost = checked(resolve("sim"), EXP)[Aspect.BACKWARD].verdict
    assert lost.status is Status.ERROR
    assert "inference mode (on)" in lost.reason


# ------------------------------------------------------------------------------------------------------- what calls leave


def inference(_: Call) -> None:
    held.append(torch.inference_mode())
    held[-1].__enter__()


def failing_thread(_: Call) -> None:
    thread = threading.Thread(target=lambda: held.index("lost"))
    thread.start()
    thread.join()


LEAVES: dict[str, Callable[[Call], object]] = {
    "inference mode": inference,
    "the number of threads": lambda _: torch.set_num_threads(torch.get_num_threads() + 1),
    "the default dtype": lambda _: torch.set_default_dtype(torch.float64),
    "the default device": lambda _: torch.set_default_device("meta"),
    "the seed of random numbers": lambda _: torch.manual_seed(torch.initial_seed() // 2 + 1),
    "a thread that raised ValueError": failing_thread,
}


def leaving(what: str, op: str, level: str = "kernel") -> Fault:
    def effect(call: Call) -> Any:
        result = call.run()
        LEAVES[what](call)
        return result

    return Fault("leaves", (op,), effect, level=level)


@pytest.mark.parametrize("op", ["sinh", "sigmoid_backward"])
@pytest.mark.parametrize("what", LEAVES)
def test_what_a_kernel_leaves_is_a_finding_and_put_back(what: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel of the forward and of one of the backward."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    name = "sigmoid" if "backward" in op else op
    text = f'{name}(float32[3]).cotangent("normal", "contiguous", 1)'
    device = resolve("sim", (leaving(what, op),))
    first = checked(device, text)[Aspect.FORWARD].verdict
    if what == "inference mode" and "backward" in op:  # torch's engine puts the modes of its calls back itself
        assert first.status is Status.AGREE
    else:
        assert (first.status, first.measure and first.measure.problem) == (Status.WRONG, STATE)
        assert what in first.reason
    healthy = checked(resolve("sim"), text)
    assert {a for a, r in healthy.items() if r.verdict.status is Status.AGREE} >= {Aspect.FORWARD, Aspect.BACKWARD}


def test_a_kernel_that_leaves_inference_mode_on_hides_no_wrong_gradient() -> None:
    """That of its own call, nor that of the next."""
    leaves, wrong = leaving("inference mode", "sinh"), Fault("wrong", ("sigmoid_backward",), lambda call: call.run() * 1.5)
    device = resolve("sim", (leaves, wrong))
    checked(device, "sinh(float32[3])")
    assert checked(device, 'sigmoid(float32[3]).cotangent("normal", "contiguous", 1)')[Aspect.BACKWARD].verdict.status is (
        Status.WRONG
    )


def test_a_wrong_result_stays_told_beside_what_the_call_left() -> None:
    def effect(call: Call) -> Any:
        torch.set_num_threads(torch.get_num_threads() + 1)
        return call.run() * 1.5

    verdict = checked(resolve("sim", (Fault("both", ("sinh",), effect),)), "sinh(float32[3])")[Aspect.FORWARD].verdict
    assert verdict.status is Status.WRONG
    assert verdict.measure is not None
    assert verdict.measure.problem == "value"
    assert "the number of threads" in verdict.reason
