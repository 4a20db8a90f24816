"""The picture of a finding's errors: letters on a grid, and how many elements have each."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from parity.core import picture
from parity.core.results import Measure
from parity.judging.budget import Budget
from parity.judging.drawing import drawn
from parity.judging.measures import exact_measure, measure


def letters(shape: tuple[int, ...], ratio: list[float], differs: list[bool] | None = None) -> Measure:
    r = np.asarray(ratio, dtype=np.float64).reshape(shape)
    return drawn(Measure("out"), r, np.asarray(differs or [False] * r.size, dtype=bool).reshape(shape))


def test_each_power_of_two_has_a_letter() -> None:
    """The first letter above the budget is that of the ratio 1."""
    m = letters((6,), [0.0, 0.99, 1.0, 2.0, 1e-9, 1e9])
    assert m.errors == "alm" + "nbw"
    assert picture.LETTERS[picture.ONE] == "m"
    assert sum(m.bins) == 6
    assert letters((3,), [0.5, math.inf, math.nan]).errors == "lxx"
    assert letters((2,), [0.5, 0.0], [False, True]).errors == "lx"
    assert picture.between(picture.ONE) == "1 to 2 times the budget"


def test_a_large_tensor_shows_the_worst_of_each_block() -> None:
    """One bad element of a million is seen, in its place, and counted."""
    ratio = np.zeros((10, 100, 1000))
    ratio[3, 50, 999] = 100.0
    m = drawn(Measure("out"), ratio, np.zeros(ratio.shape, dtype=bool))
    g = picture.grid(ratio.shape)
    assert (g.rows, g.columns) == (24, 24)
    assert len(m.errors) == 24 * 24
    row, column = divmod(m.errors.index("s"), 24)
    assert picture.place(ratio.shape, (3, 50, 999)) == (row, column)
    assert m.errors.count("a") == 24 * 24 - 1
    assert m.bins[picture.LETTERS.index("s")] == 1
    picture.check(m.shape, m.errors, m.bins)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (25,), (577,), (2, 3, 25), (1000, 1)])
def test_every_shape_has_a_picture_that_fits_it(shape: tuple[int, ...]) -> None:
    m = letters(shape, [0.0] * math.prod(shape))
    picture.check(m.shape, m.errors, m.bins)
    assert "-" not in m.errors


@pytest.mark.parametrize(
    ("shape", "errors", "bins"),
    [
        ((2,), "a", (2, *[0] * 23)),
        ((2,), "aA", (2, *[0] * 23)),
        ((2,), "ab", (3, *[0] * 23)),
        ((2,), "ab", (1, 1)),
        ((-2,), "", ()),
        ((1,) * 65, "a", (1, *[0] * 23)),
        ((2,), "", ()),
    ],
)
def test_a_picture_that_does_not_fit_is_refused(shape: tuple[int, ...], errors: str, bins: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="picture of errors"):
        picture.check(shape, errors, bins)


def test_measures_of_findings_have_one_and_those_that_agree_have_none() -> None:
    """By budget, a complex element by its worse part, and exact."""
    truth = torch.tensor([1 + 1j, 2 + 2j, 4 + 4j], dtype=torch.complex128)
    budget = Budget(np.full((3, 2), 0.5), (("rounding", np.full((3, 2), 0.5)),))
    device = truth.to(torch.complex64)
    assert measure("out", device, device, truth, budget).errors == ""
    off = device + torch.tensor([0, 3j, 0.25 + 0.125j])
    m = measure("out", off, device, truth, budget)
    assert (m.shape, m.errors) == ((3,), "aol")
    assert sum(m.bins) == 3
    assert exact_measure("out", torch.tensor([1, 2, 3]), torch.tensor([1, 5, 3])).errors == "axa"
    assert exact_measure("out", torch.tensor([1, 2]), torch.tensor([1, 2])).errors == ""
