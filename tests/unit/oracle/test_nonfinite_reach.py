"""How far an operand's NaN or Inf may reach."""

from __future__ import annotations

import pytest
from cases import oracle_for


def reached(text: str) -> list[int]:
    """The flat indices of the result's elements that a NaN may reach."""
    oracle = oracle_for(text)
    assert oracle.truth("out") is not None
    found = oracle.spread("out")
    assert found is not None
    return [int(i) for i in found.reshape(-1).nonzero()]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ('exp(float32[4].at(2, "nan"))', [2]),
        ('softmax(float32[2, 3].at(4, "nan"), -1)', [3, 4, 5]),
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
