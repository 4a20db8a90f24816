"""Elements for which float64 takes another branch than float32 does on both sides: the two are compared with each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from parity import Call, Fault, ParityFailure, assert_parity
from parity.devices import resolve


def branching(x: Tensor) -> Tensor:
    """Three elements are 0 in float64 alone."""
    y = x.exp()
    if x.dtype is torch.float64:
        y = y * (torch.arange(x.numel(), device=x.device) >= 3)
    return y


def device(by: float, at: int) -> Any:
    """A device on which the elements from a place on are so many times too large."""

    def moved(call: Call) -> Any:
        out = call.run()
        out.view(-1)[at:] *= 1.0 + by
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
