"""How far the NaN and Inf of operands and cotangents reach."""

from __future__ import annotations

import pytest
import torch
from cases import oracle_for


def reached(text: str, certainly: bool = False) -> list[int]:
    """The flat indices of the result's elements that a NaN may reach, or certainly reaches."""
    oracle = oracle_for(text)
    assert oracle.truth("out") is not None
    found = oracle.spread("out")
    assert found is not None
    return [int(i) for i in (found.certain if certainly else found.possible).reshape(-1).nonzero()]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ('exp(float32[4].at(2, "nan"))', [2]),
        ('softmax(float32[2, 3].at(4, "nan"), -1)', [3, 4, 5]),
        # A magnitude beyond what either of its parts can hold.
        ("clone(complex64[3].of(3e38+3e38j, 1, nan))", [2]),
        # Its row; the columns of the second operand's NaN.
        ('mm(float32[2, 2].at(0, "inf"), float32[2, 2])', [0, 1]),
        ('mm(float32[2, 2], float32[2, 2].at(1, "nan"))', [1, 3]),
        # The whole plane: transforms and tiles multiply by zeros of their own. Never another image.
        ('conv1d(float32[2, 1, 4].at(0, "nan"), float32[1, 1, 2])', [0, 1, 2]),
    ],
)
def test_a_nan_reaches_what_depends_on_it(text: str, elements: list[int]) -> None:
    assert reached(text) == elements


def test_many_nans_are_asked_about_together() -> None:
    more = ", ".join(["nan"] * 6 + ["1.0"] * 2)
    assert reached(f"exp(float32[8].of({more}))") == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ('conv1d(float32[2, 1, 4].at(0, "nan"), float32[1, 1, 2])', [0]),
        ('conv1d(float32[1, 1, 4].at(0, "inf"), float32[1, 1, 2].of(0, 1))', []),  # a product by 0, which may be skipped
        (f"conv1d(float32[1, 1, 6].of({', '.join(['nan'] * 5)}, 1), float32[1, 1, 1])", [0, 1, 2, 3, 4]),
    ],
)
def test_a_nan_certainly_reaches_what_changes_with_it(text: str, elements: list[int]) -> None:
    assert reached(text, certainly=True) == elements


def test_a_cotangents_nan_reaches_gradients_and_no_result() -> None:
    text = "conv1d(float32[1, 1, 4], float32[1, 1, 1])"
    oracle = oracle_for(text, cotangents=[torch.tensor([[[1.0, torch.nan, 1.0, 1.0]]])])
    assert oracle.truth("grad[0]") is not None
    result, gradient = oracle.spread("out"), oracle.spread("grad[0]")
    assert result is not None
    assert not bool(result.possible.any())
    assert gradient is not None
    assert gradient.certain.flatten().tolist() == [False, True, False, False]
