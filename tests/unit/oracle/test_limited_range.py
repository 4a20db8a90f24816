"""The truth within a dtype's range: what an overflow or an underflow on the way touches, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import oracle_for
from torch import Tensor

from parity.core.dtypes import FACTS
from parity.core.observer import Operators
from parity.oracle.limited_range import Limited, Range, range_of

SINGLE, HALF = range_of(FACTS["float32"], True), range_of(FACTS["float16"], False)


def limited(text: str, range_: Range = SINGLE, grad: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """(truth, truth within the range) of a case's result, or with a cotangent of its first gradient."""
    oracle, name = (oracle_for(text), "out") if grad is None else (oracle_for(text, cotangents=[grad]), "grad[0]")
    truth = oracle.truth(name)
    assert truth is not None
    return truth, oracle.limited(name, range_, range_)


def moved(text: str, range_: Range = SINGLE) -> list[bool]:
    truth, other = limited(text, range_)
    assert other is not None
    return [not m for m in torch.isclose(truth, other, 1e-9, 0.0, equal_nan=True).reshape(-1).tolist()]


def test_numbers_inside_the_range_change_nothing() -> None:
    assert limited("layer_norm(float32[2, 4].normal(seed=1), (4,))")[1] is None


def test_the_squares_inside_a_norm_are_seen_and_touch_their_row_alone() -> None:
    assert moved('layer_norm(float32[2, 4].normal(seed=1).at(1, "max"), (4,))') == [True] * 4 + [False] * 4
    assert moved("norm(float32[3].of(1e30, 1.0, 2.0))") == [True]


def test_a_small_number_touches_itself() -> None:
    assert moved("gelu(float32[3].of(1e-40, 1.0, -2.0))") == [True, False, False]


def test_some_small_numbers_are_kept_and_others_are_not() -> None:
    """By an odd seed number by number, by an even one call by call; the same each time."""
    text = "neg(float32[64].of(" + ", ".join(["1e-40"] * 64) + "))"
    alone = [sum(moved(text, SINGLE.some(seed))) for seed in (1, 3)]
    assert all(8 < n < 56 for n in alone)
    assert alone == [sum(moved(text, SINGLE.some(seed))) for seed in (1, 3)]
    whole = [limited(text, SINGLE.some(seed))[1] for seed in range(2, 34, 2)]
    flushed = [0 if x is None else int((x == 0.0).sum()) for x in whole]
    assert set(flushed) == {0, 64}


def test_small_numbers_of_a_grid_are_rounded_to_either_side() -> None:
    text = "exp(float16[64].of(" + ", ".join(["-15.5"] * 64) + "))"
    truth, other = limited(text, HALF.some(1))
    assert other is not None
    assert sorted(set((other / HALF.grid).flatten().tolist())) == [3.0, 4.0]
    assert 3.0 < float(truth[0]) / HALF.grid < 4.0


def test_half_types_have_a_range_of_their_own() -> None:
    assert moved("exp(float16[3].of(12.0, 1.0, -20.0))", HALF) == [True, False, True]


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_rounding_at_the_upper_end_is_no_overflow(value: float) -> None:
    """The largest number and a little: what rounds to it stays."""
    most = FACTS["float32"].max
    with Limited(SINGLE, SINGLE) as mode:
        kept = torch.tensor([most], dtype=torch.float64) + 5.0
        lost = torch.tensor([value], dtype=torch.float64) * 2.0
    assert mode.left_range
    assert float(kept) == most + 5.0
    assert float(lost.abs()) == float("inf")


def test_partial_sums_that_cancel_overflow_in_some_order() -> None:
    assert moved("sum(float32[3].of(3e38, 3e38, -3e38))") == [True]
    assert limited("sum(float32[3].of(3e37, 3e37, -3e37))")[1] is None


def test_partial_products_overflow_in_some_order() -> None:
    assert moved("prod(float32[3].of(1e30, 1e30, 1e-30))") == [True]
    assert limited("prod(float32[3].of(1e30, 1.0, 1e-30))")[1] is None


def test_distances_are_made_of_squares() -> None:
    assert moved("cdist(float32[2, 2].of(1e30, 1.0, 1.0, 1.0), float32[1, 2].of(2.0, 2.0))") == [True, False]


def test_all_orders_of_a_product_are_tried() -> None:
    text = "addcdiv(float32[1].of(1.0), float32[1].of(3e38), float32[1].of({}), value=0.5)"
    assert moved(text.format("0.5")) == [True]
    assert limited(text.format("1.0"))[1] is None


def test_gradients_are_limited_too() -> None:
    """The derivative of a cube squares its operand; those of the other elements stay."""
    truth, other = limited("pow(float32[2].of(1e30, 2.0), 3)", SINGLE, torch.ones(2))
    assert other is not None
    assert other.tolist() == [float("inf"), 12.0]
    assert truth.tolist() == [pytest.approx(3e60), 12.0]


FRESH: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda x: torch.empty(2, 3, dtype=x.dtype),
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(2, 3),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 3), (3, 1)),
}


def left_over(func: Any, args: Any, kwargs: Any) -> Any:
    """Fresh memory with what other programs left there."""
    result = func(*args, **kwargs)
    return result.fill_(1e-310) if "empty" in str(func) else result


@pytest.mark.parametrize("fresh", FRESH)
def test_what_fresh_memory_holds_is_no_number_on_the_way(fresh: str) -> None:
    """As `solution = torch.empty(...)` and `solution[i] = y`: a copy without the tiny numbers would be written instead."""
    x = torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad(), Operators(left_over), Limited(SINGLE, SINGLE) as limits:
        made = FRESH[fresh](x)
        for i in range(2):
            made[i] = x[i]
    assert torch.equal(made, x)
    assert not limits.left_range
