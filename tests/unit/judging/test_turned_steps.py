"""Elements of a half-type function that are 0 in every sample, because a ReLU is off in all of them: a rounding may turn it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from parity import Call, Fault, ParityFailure, assert_parity
from parity.devices import resolve

COUNT = 150_000


def masked(x: Tensor, on: Tensor) -> Tensor:
    """Half of the elements are off. The others come of a kernel that rounds: what both sides are given has no roundings."""
    return torch.sinh(x) * on


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    on = torch.ones(COUNT, dtype=dtype)
    on[::2] = 0
    return torch.randn(COUNT).to(dtype), on


def device(count: int, by: float) -> Any:
    """A device on which so many of those that are off are as large as that."""

    def turned(call: Call) -> Any:
        out = call.run()
        out.view(-1)[: 2 * count : 2] = by
        return out

    return resolve("sim", (Fault("turned", ("mul",), turned),))


def test_few_that_are_no_larger_than_the_roundings_of_others_agree() -> None:
    found = assert_parity(masked, *inputs(torch.bfloat16), device=device(3, 0.02), backward=False)
    assert "149,997 of 150,000 elements judged: outside, but so few of so many" in str(found)


@pytest.mark.parametrize(("dtype", "count", "by"), [("bfloat16", 4, 0.02), ("bfloat16", 1, 1.0), ("float32", 1, 0.02)])
def test_more_or_larger_ones_and_those_of_float32_do_not(dtype: str, count: int, by: float) -> None:
    """One in 50,000, by the budget that nine in ten are below."""
    with pytest.raises(ParityFailure, match=f"{count} of 150000 elements are outside" if count > 1 else "wrong in out"):
        assert_parity(masked, *inputs(getattr(torch, dtype)), device=device(count, by), backward=False)


def test_a_product_of_exact_numbers_is_held_to_its_own_roundings() -> None:
    """Nothing before it was rounded, so that as large a number where the product is 0 is no rounding of others."""
    with pytest.raises(ParityFailure, match="3 of 150000 elements are outside"):
        assert_parity(torch.mul, *inputs(torch.bfloat16), device=device(3, 0.02), backward=False)
