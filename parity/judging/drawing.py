"""The picture of a finding's errors (`parity.core.picture`), made from arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from parity.core import picture
from parity.core.results import Measure
from parity.judging.budget import Array

BYTES = np.frombuffer((picture.NOT_JUDGED + picture.LETTERS).encode(), dtype=np.uint8)


def drawn(m: Measure, ratio: Array, differs: npt.NDArray[np.bool_], unjudged: npt.NDArray[np.bool_] | None = None) -> Measure:
    """The measure with its picture. ratio: the error in units of the budget, of each element; differs: where it has no size.
    All arrays have the shape of the tensor."""
    power: npt.NDArray[np.int32] = np.frexp(ratio)[1]
    level = np.asarray(np.clip(power, picture.LOWEST + 1, picture.HIGHEST + 1) - picture.LOWEST, dtype=np.int8)
    level = np.where(ratio > 0.0, level, np.int8(0))
    level = np.where(differs | ~np.isfinite(ratio), np.int8(len(picture.LETTERS) - 1), level)
    level = level if unjudged is None else np.where(unjudged, np.int8(-1), level)
    counts = np.bincount(level.reshape(-1) + np.int8(1), minlength=len(picture.LETTERS) + 1)[1:]
    return replace(m, shape=tuple(ratio.shape), errors=_letters(level), bins=tuple(map(int, counts)))


def drawn_exact(m: Measure, differs: Tensor) -> Measure:
    """The measure with the picture of where an exact result differs."""
    where = differs.numpy()
    return drawn(m, np.zeros(where.shape), where)


def _letters(level: npt.NDArray[np.int8]) -> str:
    """One letter for each place of the grid: the largest level of its block."""
    g = picture.grid(level.shape)
    if not level.size:
        return ""
    flat = level.reshape(-1, level.shape[-1] if level.ndim else 1)
    whole = np.full((g.rows * g.tall, g.columns * g.wide), -1, dtype=np.int8)
    whole[: flat.shape[0], : flat.shape[1]] = flat
    worst = whole.reshape(g.rows, g.tall, g.columns, g.wide).max((1, 3))
    return str(BYTES[worst + 1].tobytes(), "ascii")
