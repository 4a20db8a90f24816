"""Errors unlike all others of one result: what a lone wrong element is, and what no order of adding makes.

Rounding errors of sums with alike terms are close to normal: where the others' root mean square is r, one of n elements is
beyond r * sqrt(2 log(2 n / ALPHA)) with a probability of at most ALPHA (union bound over the normal tail). Terms are never
quite alike, so the border lies SLACK times higher: honest orders of adding come to 0.8 of it (tests/bench/detection.py).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from parity.judging.tails import weight

Array: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
ELEMENTS = 128  # fewer errors say too little about their spread
ALIKE = 4.0  # units of elements that are compared differ by no more than this
SLACK = 1.25
# Of a unit: errors that are all smaller are too few roundings each to be near normal. Times SLACK and the tail of ELEMENTS
# errors it is above 3 units, more than a cheap screen lets pass.
LEAST = 0.35
ROUNDED = 12.0**-0.5  # ULP: root mean square of the errors of one rounding
MARGIN = 2.0
CANCELLED = 256.0  # ULP
SUSPECTS = 8  # more elements than these do not err alone


def tail(n: int) -> float:
    """What n draws from a standard normal distribution stay within, but for a probability of ALPHA."""
    return math.sqrt(2.0 * weight(n))


def beyond(errors: Array, theirs: Array | None, alike: Mask, least: float) -> Array:
    """Each error over the farthest that the spread of the others explains; 0 where too few are alike to tell.

    errors: of the device, not negative, in units of which equal ones mean equally much; theirs: the reference's. An element at
    which the reference errs a quarter as much, too, is a hard one and no outlier. least: the smallest spread to reckon with.
    """
    n = int(alike.sum())
    if n < ELEMENTS:
        return np.zeros_like(errors)
    others = np.sort(errors[alike])[: n - max(1, n // 100)]
    spread = max(least, float(np.sqrt(np.mean(others**2))))
    found = np.where(alike, errors / (SLACK * tail(n) * spread), 0.0)
    return found if theirs is None else np.where(4.0 * theirs >= errors, 0.0, found)


def among_sums(errors: Array, theirs: Array | None, unit: Array) -> Array:
    """`beyond` for sums of products: errors in absolute size, unit: one rounding of each element. Only the elements with the
    largest units are asked about: the others' errors may come of terms of another kind."""
    with np.errstate(invalid="ignore", over="ignore"):
        z = errors / unit
        counted = np.isfinite(z)
        if not counted.any():
            return np.zeros_like(errors)
        alike = counted & (unit * ALIKE >= unit[counted].max())
        return beyond(np.where(counted, z, 0.0), None if theirs is None else theirs / unit, alike, LEAST)


def among_alike(errors: Array, theirs: Array | None, inside: Array) -> Array:
    """`beyond` for half types that are rounded at the end, all in ULP of the element: inside: what it may be off by before.

    How far a device really goes before it rounds is not known (some hand rounded numbers from kernel to kernel, some do not),
    but it is the same for all: those of which as much or more is allowed show it. Allowances are samples; the border lies
    MARGIN times higher for that.
    """
    found = np.zeros_like(errors)
    # Of what cancels, to 0 for one, no ULP of the result measures what was lost before.
    measured = np.isfinite(errors) & (inside < CANCELLED)
    suspects = np.flatnonzero(measured & (errors > MARGIN * tail(ELEMENTS) * ROUNDED))
    for at in suspects[np.argsort(errors.reshape(-1)[suspects])][-SUSPECTS:]:
        alike = np.isfinite(errors) & (inside >= inside.reshape(-1)[at])
        here = beyond(np.where(alike, errors, 0.0), theirs, alike, ROUNDED) * (SLACK / MARGIN)
        found.reshape(-1)[at] = here.reshape(-1)[at]
    return found


def among_shares(share: Array, own: Array) -> Array:
    """`beyond` for shares of a budget that the reference (own) leaves: its error widens the budget of a whole tensor, or of an
    element, but not that of an element which errs alone."""
    counted = np.isfinite(share)
    return np.where(share > 1.0, beyond(np.where(counted, share, 0.0), own, counted, 0.0), 0.0)
