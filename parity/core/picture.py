"""Packs the errors of a tensor's elements for a finding, in a few hundred characters whatever its size.

Each element's error, in units of its budget, is one letter: `a` is no error, `b` to `w` are powers of two (`m` is from 1 to 2,
and with it begin the errors above the budget), `x` is what has no size (NaN, Inf, an exact result that differs). `-` stands for
elements that were not judged. The letters are laid out on a grid, a row for each row of the last dimension; where a tensor has
more rows or columns than the grid, a place shows the worst of its block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LETTERS = "abcdefghijklmnopqrstuvwx"
NOT_JUDGED = "-"
LOWEST, HIGHEST = -11, 10  # powers of two of the letters `b` and `w`
MOST = 2.0**HIGHEST  # least error of `w`, the last letter of those that have a size
ONE = LETTERS.index("m")  # the first letter above the budget
SIDE = 24  # most rows and most columns
RANK = 64  # most dimensions; torch has no more


@dataclass(frozen=True, slots=True)
class Grid:
    """rows, columns: of the picture; tall, wide: how many rows and columns of the tensor one place stands for."""

    rows: int
    columns: int
    tall: int
    wide: int


def grid(shape: Sequence[int]) -> Grid:
    """The grid of a tensor of this shape."""
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
    tall, wide = max(1, -(-rows // SIDE)), max(1, -(-columns // SIDE))
    return Grid(-(-rows // tall), -(-columns // wide), tall, wide)


def place(shape: Sequence[int], index: Sequence[int]) -> tuple[int, int] | None:
    """Where an element stands on the grid: (row, column); None for an index that the shape does not have."""
    if len(index) != len(shape) or any(not 0 <= i < n for i, n in zip(index, shape)):
        return None
    row = 0
    for i, n in zip(index[:-1], shape):
        row = row * n + i
    g = grid(shape)
    return row // g.tall, (index[-1] if index else 0) // g.wide


def check(shape: Sequence[int], errors: str, bins: Sequence[int]) -> None:
    """Raise ValueError unless the letters fit the shape and the counts are those of its elements."""
    if len(shape) > RANK or len(bins) > len(LETTERS):
        raise ValueError(f"a picture of errors has {len(shape)} dimensions and {len(bins)} counts")
    if any(n < 0 for n in (*shape, *bins)):
        raise ValueError("a size or a count in a picture of errors is negative")
    g = grid(shape)
    if len(errors) != g.rows * g.columns or set(errors) - {*LETTERS, NOT_JUDGED}:
        raise ValueError(f"a picture of errors has {len(errors)} letters that do not fit the shape {list(shape)}")
    if len(bins) != len(LETTERS) or sum(bins) > math.prod(shape):
        raise ValueError(f"the counts of a picture of errors do not fit the shape {list(shape)}")


def least(letter: str) -> float:
    """The least error that a letter stands for, in budgets; NaN where no error was judged."""
    k = LETTERS.find(letter)
    return math.nan if k < 0 else 0.0 if k < 2 else math.inf if k == len(LETTERS) - 1 else 2.0 ** (k - 1 + LOWEST)


def between(k: int) -> str:
    """What the letter number k says, in words."""
    if k == 0:
        return "no error"
    if k == len(LETTERS) - 1:
        return "differs where no size says how far"
    low, high = 2.0 ** (k - 1 + LOWEST), 2.0 ** (k + LOWEST)
    if k == 1:
        return f"below {high:.3g} of the budget"
    if k == len(LETTERS) - 2:
        return f"{low:g} times the budget or more"
    return f"{low:.3g} to {high:.3g} times the budget"
