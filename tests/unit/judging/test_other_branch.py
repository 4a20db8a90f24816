"""Elements for which float64 takes another branch than float32 does on both sides: the two are compared with each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import bench_for
from torch import Tensor

from parity import Call, Fault, ParityFailure, assert_parity
from parity.core.results import Status
from parity.devices import resolve
from parity.judging.judge import judge
from parity.oracle.limited_range import Range
from parity.oracle.protocol import Oracle


def branching(x: Tensor) -> Tensor:
    """Three elements are 0 in float64 alone."""
    y = x.exp()
    if x.dtype is torch.float64:
        y = y * (torch.arange(x.numel(), device=x.device) >= 3)
    return y


def device(by: float, at: int, end: int | None = None) -> Any:
    """A device on which the elements from a place on, to another, are so many times too large."""

    def moved(call: Call) -> Any:
        out = call.run()
        out.view(-1)[at:end] *= 1.0 + by
        return out

    return resolve("sim", (Fault("moved", ("exp",), moved),))


def test_a_device_that_took_the_branch_of_the_cpu_agrees() -> None:
    """It rounds otherwise, in all elements."""
    torch.manual_seed(0)
    found = assert_parity(branching, torch.randn(1000), device=device(2.0**-22, 0), backward=False)
    assert "997 of 1,000 elements judged: as far from the truth as the reference, with which they agree" in str(found)


@pytest.mark.parametrize("at", [0, 2, 997])
def test_one_that_is_off_from_the_cpu_there_or_elsewhere_does_not(at: int) -> None:
    """By 0.1 %, in all elements, in one of the three and the others, and in the last three alone."""
    torch.manual_seed(0)
    with pytest.raises(ParityFailure, match=r"(wrong|drift) in out"):
        assert_parity(branching, torch.randn(1000), device=device(1e-3, at), backward=False)


@pytest.mark.parametrize("at", [2, 500])
def test_an_error_is_told_that_would_be_told_without_a_branch(at: int) -> None:
    """In one of the three, and in one that is none: the three excuse no larger error elsewhere."""
    torch.manual_seed(0)
    x = torch.randn(1000)
    for function in (torch.exp, branching):
        with pytest.raises(ParityFailure, match=r"(wrong|drift) in out"):
            assert_parity(function, x, device=device(2.0**-17, at, at + 1), backward=False)


class Zeros(Oracle):
    """A truth of zeros that no rounding moves."""

    def __init__(self, may_branch: bool) -> None:
        self._may_branch = may_branch

    @property
    def may_branch_by_dtype(self) -> bool:
        return self._may_branch

    def truth(self, name: str) -> Tensor:
        return torch.zeros(4, dtype=torch.float64)

    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        return torch.zeros(4, dtype=torch.float64)

    def changes(self, name: str, u: float, between: float) -> None:
        return None

    def largest(self, u: float, between: float) -> float:
        return 9.0

    def limited(self, name: str, inside: Range, between: Range) -> None:
        return None


@pytest.mark.parametrize(("may_branch", "status"), [(True, Status.AGREE), (False, Status.WRONG)])
def test_only_a_callers_code_may_ask_for_its_dtype(may_branch: bool, status: Status) -> None:
    """An op of torch that is far from the truth is reported, though the CPU is as far."""
    cpu = torch.full((4,), -8.99)
    bench = bench_for("softmax", Zeros(may_branch))
    assert judge(bench, {"out": cpu * (1 + 2.0**-22)}, {"out": cpu}, "forward")[0].status is status


class Ones(Zeros):
    """A truth of ones, which no single rounding moves. asked: how often it was asked what all roundings together do."""

    def __init__(self, is_dear: bool) -> None:
        super().__init__(True)
        self._is_dear, self.asked = is_dear, 0

    @property
    def is_dear(self) -> bool:
        return self._is_dear

    def truth(self, name: str) -> Tensor:
        return torch.ones(4, dtype=torch.float64)

    def amplified(self, name: str, u: float, between: float, times: float, most: int = 0) -> Tensor | None:
        self.asked += 1
        return None


@pytest.mark.parametrize(("is_dear", "whole", "by", "asked"), [
    (True, False, 2.0**-18, 0), (False, False, 2.0**-18, 1), (True, True, 2.0**-18, 1), (True, False, 2.0**-14, 1),
])  # fmt: skip
def test_a_large_function_that_agrees_is_not_asked_for_kinks(is_dear: bool, whole: bool, by: float, asked: int) -> None:
    """The CPU is two budgets off, and the device no more, or thirty, which that does not excuse."""
    oracle = Ones(is_dear)
    cpu = torch.tensor([1 + 2.0**-18, 1.0, 1.0, 1.0])
    got = torch.tensor([1 + by, 1 + 2.0**-23, 1.0, 1.0])
    verdict, _ = judge(bench_for("softmax", oracle, always_use_oracle=whole), {"out": got}, {"out": cpu}, "forward")
    assert (verdict.status is Status.AGREE) is (by < 2.0**-14), verdict
    assert (oracle.asked > 0) == asked


class Kinked(Ones):
    """Roundings together move every element by a thousandth."""

    def amplified(self, name: str, u: float, between: float, times: float, most: int = 0) -> Tensor | None:
        self.asked += 1
        return torch.full((4,), 1e-3, dtype=torch.float64)


@pytest.mark.parametrize(("is_dear", "asked"), [(True, 1), (False, 3)])
def test_one_sample_that_explains_a_result_of_a_large_function_is_enough(is_dear: bool, asked: int) -> None:
    """More would only widen what is wide enough."""
    oracle, cpu = Kinked(is_dear), torch.ones(4)
    verdict, _ = judge(
        bench_for("softmax", oracle, always_use_oracle=False), {"out": cpu * (1 + 2.0**-14)}, {"out": cpu}, "forward"
    )
    assert verdict.status is Status.AGREE
    assert oracle.asked == asked


def limited(x: Tensor) -> Tensor:
    """Takes the least number above 0 that its dtype knows next to 1, as torch.distributions does."""
    return x.clamp(min=torch.finfo(x.dtype).eps).log()


def test_limits_of_the_dtype_keep_their_meaning_in_float64() -> None:
    """Every element is judged by the truth, and one that is 8 roundoffs off is found."""
    x = torch.linspace(-1, 1, 1000)
    assert "judged" not in str(assert_parity(limited, x, device=device(2.0**-23, 0), backward=False).notes)
    off = resolve("sim", (Fault("off", ("log",), lambda call: call.run() * (1 + 2.0**-18)),))
    with pytest.raises(ParityFailure, match=r"(wrong|drift) in out"):
        assert_parity(limited, x, device=off, backward=False)
