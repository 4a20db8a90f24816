"""Results that stay as they are in later calls, and those that a device changes behind one's back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import checked

from parity.checks.trial import HELD, Settings
from parity.devices import Fault, resolve
from parity.devices.base import Device

HOLDS = Settings(held=HELD)
TRUTH = Settings(always_use_oracle=True, held=HELD)


def reused() -> Device:
    """Writes into the memory of its last result of a shape, too."""
    memory: dict[Any, torch.Tensor] = {}

    def again(call: Any) -> Any:
        result = call.run()
        memory.get(key := tuple(result.shape), result.detach()).copy_(result.detach())
        memory[key] = result.detach()
        return result

    return resolve("sim", (Fault("reused", ("sinh",), again, level="function"),))


def pooled() -> Device:
    """Writes into the memory of all its results of a shape."""
    memory: dict[Any, list[torch.Tensor]] = {}

    def again(call: Any) -> Any:
        result = call.run()
        for other in memory.setdefault(tuple(result.shape), []):
            other.copy_(result.detach())
        memory[tuple(result.shape)].append(result.detach())
        return result

    return resolve("sim", (Fault("pooled", ("sinh",), again, level="function"),))


def late() -> Device:
    """Writes the end of a result when the next call comes."""
    last: list[torch.Tensor] = []

    def writes(call: Any) -> Any:
        for result in last:
            result.reshape(-1)[-1:].fill_(5.0)
        result = call.run()
        last[:] = [result.detach()]
        return result

    return resolve("sim", (Fault("late", ("sinh",), writes, level="function"),))


def test_calls_that_differ_by_a_rounding_are_unstable_where_torch_was_asked_to_be_deterministic() -> None:
    calls = itertools.count()

    def rounds(call: Any) -> Any:
        result = call.run()
        return torch.nextafter(result, torch.full_like(result, torch.inf)) if next(calls) % 2 else result

    device = resolve("sim", (Fault("rounds", ("sinh",), rounds, level="function"),))
    assert "repeat" not in checked(device, "sinh(float32[9])")
    found = checked(device, 'sinh(float32[9]).under("deterministic")')["repeat"]
    assert found.verdict.status == "unstable"
    assert "two equal calls differ, though torch was asked" in found.verdict.reason


def held(device: Device, *texts: str, how: Settings = HOLDS) -> list[str]:
    """What is said of held results while these cases are checked one after the other."""
    found = [checked(device, text, how).get("repeat") for text in texts]
    return [f"{r.verdict.status}: {r.verdict.reason}" for r in found if r is not None]


def test_memory_that_is_handed_out_again_is_found_by_a_call_with_other_values() -> None:
    """Equal calls leave equal bits, and only the last result is written. In another dtype than the first of the row, a later
    case is needed."""
    for case in ("sinh(float32[3])", 'sinh(float32[()].at(0, "smallest"))'):
        assert held(reused(), case, how=TRUTH) == ["wrong: its result was changed by later calls"]
    assert not held(reused(), "sinh(float16[3])", how=TRUTH)


@pytest.mark.parametrize("device", [pooled(), late()], ids=["pooled", "late"])
def test_a_result_is_compared_once_more_at_the_next_case_that_holds_its_own(device: Device) -> None:
    texts = "sinh(float16[3])", "sinh(float16[3].normal(seed=4))", "cosh(float32[2])"
    assert held(device, *texts)[:1] == [f"wrong: the result of {texts[0]} was changed by later calls"]


def test_the_results_of_a_healthy_device_stay() -> None:
    """Also views of operands, results of calls that write, and several."""
    texts = (
        "sinh(float32[3])", "transpose(float32[2, 3], 0, 1)", "copy_(float32[3], float32[3])", "topk(float32[5], 2)",
        "dropout(float32[40], 0.5)", "sinh(float32[3].normal(seed=4))",
    )  # fmt: skip
    for how in (HOLDS, TRUTH):
        assert not held(resolve("sim"), *texts, how=how)


def test_large_results_are_not_held() -> None:
    assert not held(reused(), "sinh(float16[40000])", "sinh(float16[40000].normal(seed=4))")


def test_what_cases_before_a_case_changed_is_told_of_it() -> None:
    """And nothing else that they show."""
    text = "tanh(float32[2]).history(sinh(float16[3]), sinh(float16[3].normal(seed=4)))"
    assert held(pooled(), text) == ["wrong: the result of sinh(float16[3]) was changed by later calls"]
    assert not held(resolve("sim"), text)
    wrong = resolve("sim", (Fault("wrong", ("sinh",), lambda call: call.run() * 2, level="kernel"),))
    assert {str(r.verdict.status) for r in checked(wrong, text).values()} == {"agree"}


def test_cases_before_a_case_run_on_the_device_in_all_their_aspects() -> None:
    """So that what they leave behind is there: here, a call in place and a backward."""
    seen: list[str] = []

    def effect(call: Any) -> Any:
        if "cosh" in seen:
            return call.run() * 2
        return call.run()

    def noted(call: Any) -> Any:
        seen.append("cosh")
        return call.run()

    device = resolve("sim", (Fault("asin", ("asin",), effect), Fault("cosh", ("cosh",), noted)))
    assert str(checked(device, "asin(float32[3])")["forward"].verdict.status) == "agree"
    after = checked(device, "asin(float32[3]).history(sinh(float32[2]))")
    assert str(after["forward"].verdict.status) == "wrong"  # the backward of sinh calls cosh


def test_a_case_before_a_case_that_cannot_be_built_is_left_out() -> None:
    text = 'sinh(float32[3]).history(sinh(float32[3].at(99, "nan")), cosh(float32[2]))'
    assert {str(r.verdict.status) for r in checked(resolve("sim"), text).values()} == {"agree"}
