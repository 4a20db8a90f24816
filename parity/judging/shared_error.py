"""Errors that a whole tensor shares: a common factor, and a root mean square above what roundings explain.

The budget of one element must allow for the worst rounding many times over. Roundings of different elements are independent, an
error of scale is not: over n different elements chance averages out, and a factor of 1.01 remains. Both tests use the elements'
budgets b as units, so that badly known elements count little. With errors e = device - truth, z = e / b, r = truth / b:

    common factor   a = (z . r) / (r . r), the least-squares estimate of a in e = a truth
    spread          s = sqrt(mean(z^2))

The limits come from the same two numbers in the samples of the sensitivity, whose changes z_k are simulated roundings
(including what elements share in them), and from the rounding of the result itself (variance ULP^2 / 12). Beyond chance,
functions may be biased to one side: up to the sum of all changes, if they were aligned. Elements that move together in all of
many samples share the rounding that moves them (a mean that is subtracted from each): their changes add up with their signs.
Elements that are functions of one number share its rounding, too. The samples do not show it, as they move each element of an
operand by itself: of n different numbers, chance averages out n roundings, however many elements there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from parity.core.dtypes import DtypeFacts
from parity.judging.budget import Array, Budget, one_of_each, ulp_of
from parity.oracle.sensitivity import Changes
from parity.oracle.yardstick import ALIGNED_HALF, ALIGNED_SINGLE, CHANCE, ONE_SIDED, SPREAD_FEW, SPREAD_HALF, SPREAD_SINGLE

Mask: TypeAlias = npt.NDArray[np.bool_]

FEWEST = 16  # different elements: with fewer, the mean averages nothing out, and only the spread of half types is asked for
SQUARED = 1e150  # the largest number whose square is none too large
TOGETHER = 8  # samples in which elements that move alike do so by one rounding: others do in one of 128 pairs, of 20 in none
MEANT = 0.5  # no limit if rounding alone may change the factor by this much


@dataclass(frozen=True, slots=True)
class SharedError:
    """factor: the estimated common factor, less 1; factor_limit: its limit; spread, spread_limit: the root mean square error
    and its limit, in units of the budget. few: whether only these are asked for, as there are few elements."""

    factor: float
    factor_limit: float
    spread: float
    spread_limit: float
    few: bool = False

    @property
    def ratio(self) -> float:
        """The larger of the two in units of its limit."""
        return max(_over(abs(self.factor), self.factor_limit), _over(self.spread, self.spread_limit))

    @property
    def leans(self) -> bool:
        """Whether the common factor is farther outside."""
        return _over(abs(self.factor), self.factor_limit) >= _over(self.spread, self.spread_limit)

    def row(self, halves: bool) -> str:
        """The name of the row of the yardstick that decides on it. halves: as for `shared_error`."""
        what = "aligned in " if self.leans else "spread of few in " if self.few else "spread in "
        return what + ("half types" if halves else "float32")

    def text(self, ratio: float) -> str:
        """The finding in words, with this ratio."""
        if self.leans:
            off = f"all elements are off by a common factor of {1.0 + self.factor:.4g}"
            return f"{off}, {ratio:.3g} times what rounding explains"
        where = "" if self.few else ": precision is lost everywhere"
        return f"the root mean square error is {ratio:.3g} times what rounding explains{where}"


def _over(value: float, limit: float) -> float:
    return value / limit if limit > 0.0 else np.inf if value > 0.0 else 0.0


def _rounded(truth: npt.NDArray[Any], f: DtypeFacts) -> npt.NDArray[Any]:
    """Truths as the dtype holds them: those that round to one number share that rounding."""
    ulp = ulp_of(np.abs(truth), f)
    return np.asarray(np.round(truth / ulp) * ulp)


def _aligned(moved: Array, r: Array) -> float:
    """What the changes of a sample add to the factor, in the mean, if all that do not move together went to one side. moved:
    sample by sample; r: what a change of 1 adds."""
    taken = moved[np.any(moved != 0.0, axis=1)]
    changes = taken * r
    if len(taken) >= TOGETHER:
        signs = np.sign(taken)
        signs *= np.where(signs[0] < 0.0, -1.0, 1.0)  # up and down are one way to move
        _, group = np.unique(3 ** np.arange(len(taken)) @ (signs + 1.0).astype(np.int64), return_inverse=True)
        changes = np.stack([np.bincount(group, one) for one in changes])
    return float(np.abs(changes).sum()) / len(moved)


def shared_error(
    device: Array,
    truth: Array,
    b: Budget,
    counted: Mask,
    changes: Changes | None,
    f: DtypeFacts,
    u: float,
    halves: bool,
    lost: Array | None = None,
    numbers: float = np.inf,
) -> SharedError | None:
    """The shared error of the counted elements (over real parts); None with few different ones but in half types (`halves`).

    changes: the samples of the sensitivity, None for the smallest possible limits. u: roundoff of the arithmetic inside.
    halves: whether every step inside is rounded to a half type. lost: how far numbers that fall below the range on the way move
    each element, all to one side. numbers: how many the operand with the fewest different ones holds.
    """
    every = 1 if changes is None else changes.every
    d, t, total, some = (x.reshape(-1)[::every] for x in (device, truth, b.total, counted))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        z, r = (d - t) / total, t / total
        places = np.flatnonzero(some & np.isfinite(z) & np.isfinite(r))
        places = places[one_of_each(_rounded(t[places], f))]
        z, r, total, t = z[places], r[places], total[places], t[places]
        weight = float(r @ r)
        few = z.size < FEWEST
        if (few and not halves) or not 0.0 < weight < SQUARED:
            return None
        final = ulp_of(np.abs(t), f) / total  # rounding of the result
        moved = np.zeros((1, z.size)) if changes is None else changes.moved.numpy()[:, places] / total
    one_sided = 2.0 * u if halves else ONE_SIDED * u
    chance = max(float(np.mean((moved @ r) ** 2)), float(np.sum(np.mean(moved**2, 0) * r**2))) / weight**2
    chance += float(np.sum((final * r) ** 2)) / weight**2 / 12.0
    spread = SPREAD_FEW if few else SPREAD_HALF if halves else SPREAD_SINGLE
    sided = spread if numbers == 1.0 else ALIGNED_HALF if halves else ALIGNED_SINGLE
    factor_limit: float = CHANCE * chance**0.5 + sided * _aligned(moved, r) / weight + one_sided
    mean = float(np.mean(moved**2))
    spread_limit = spread * mean**0.5 + 2.0 * float(np.mean(final**2) / 12.0) ** 0.5
    absolute = np.broadcast_to(b.absolute, b.total.shape).reshape(-1)[::every][places] / total
    spread_limit += one_sided * (weight / z.size) ** 0.5 + float(np.mean(absolute**2)) ** 0.5
    if lost is not None:
        off = 2.0 * lost.reshape(-1)[::every][places] / total
        factor_limit += float(off @ np.abs(r)) / weight
        spread_limit += float(np.mean(off**2)) ** 0.5
    # Functions of one number are one sample: all of them may be off as one of them may.
    factor_limit = max(factor_limit, spread_limit * (z.size / weight / numbers) ** 0.5)
    if few or factor_limit > MEANT:
        factor_limit = np.inf
    return SharedError(float(z @ r) / weight, factor_limit, float(np.mean(z**2)) ** 0.5, spread_limit, few)
