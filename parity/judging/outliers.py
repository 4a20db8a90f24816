"""Outlier tests: a single wrong element among errors that no order of addition explains.

Rounding errors of sums with similar terms are close to normal: if the root mean square of the others is r, one of n elements
exceeds r * sqrt(2 log(2 n / ALPHA)) with a probability of at most ALPHA (union bound over the normal tail). Terms are never
quite similar, so the limit is SLACK times higher: honest orders of addition reach 0.8 of it.

Probability bounds for honest generators: every test here raises a false alarm with a probability of at most ALPHA.

All bounds hold for finite samples (no central limit theorem), so the stated probability is exact as an upper bound. Sources:
Chernoff's bound on binomial tails in its relative-entropy form (Hoeffding, JASA 58, 1963, theorem 1; it covers draws without
replacement too, section 6); Bernstein's inequality; the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant (Annals
of Probability 18, 1990).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parity.judging.budget import one_of_each

ALPHA = 1e-9  # false-alarm probability of one named test, over everything it looks at, both sides together


def weight(tests: int = 1, sides: int = 2) -> float:
    """-log of the false-alarm probability available to each of `tests` tests."""
    return math.log(sides * max(1, tests) / ALPHA)


def entropy(q: Tensor, p: Tensor) -> Tensor:
    """Relative entropy of two coins in nats: q log(q/p) + (1-q) log((1-q)/(1-p)); inf where p excludes q."""
    return torch.xlogy(q, q) - torch.xlogy(q, p) + torch.xlogy(1 - q, 1 - q) - torch.xlogy(1 - q, 1 - p)


def improbable(counts: Tensor, trials: Tensor, least: Tensor, most: Tensor, tests: int) -> Tensor:
    """Where `counts` of `trials` coins, each with a chance in [least, most], are outside what chance explains.

    float64 tensors of one shape. tests: how many such tests share ALPHA.
    """
    n = trials.clamp(min=1)
    q = counts / n
    least, most = least.clamp(0, 1), most.clamp(0, 1)
    nearest = torch.minimum(torch.maximum(q, least), most)
    return (trials > 0) & (q != nearest) & ~(n * entropy(q, nearest) <= weight(tests))


def bernstein(variance: float, largest: float, tests: int = 1) -> float:
    """Bound on the sum of independent centred variables. variance: the sum of their variances; largest: the largest value of
    any."""
    level = weight(tests)
    third = largest * level / 3
    return third + math.sqrt(third * third + 2 * variance * level)


def massart(n: int, tests: int = 1) -> float:
    """Largest deviation of an empirical distribution function of n samples from the true one."""
    return math.sqrt(weight(tests) / (2 * max(1, n)))


def poisson_excess(count: int, mean: float) -> bool:
    """Whether `count` is more than chance explains for a Poisson variable of this mean (Chernoff)."""
    return count > mean and count * math.log(count / mean) - count + mean > weight(sides=1)


Array: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
ELEMENTS = 128  # with fewer errors the spread is too uncertain
ALIKE = 4.0  # elements are comparable if their units differ by at most this factor
SLACK = 1.25
# In units: smaller errors are sums of too few roundings to be near normal. Times SLACK and the tail of ELEMENTS errors it is
# above 3 units, more than a cheap screen lets pass.
LEAST = 0.35
ROUNDED = 12.0**-0.5  # ULP: root mean square of the errors of one rounding
MARGIN = 2.0
CANCELLED = 256.0  # ULP
SUSPECTS = 8  # more elements than these are not single outliers


def tail(n: int) -> float:
    """Bound on n draws from a standard normal distribution, exceeded with a probability of at most ALPHA."""
    return math.sqrt(2.0 * weight(n))


def beyond(errors: Array, theirs: Array | None, alike: Mask, least: float, truth: Array | None = None) -> Array:
    """Each error relative to the largest that the spread of the others explains; 0 where too few are alike.

    errors: of the device, not negative, in units that make elements comparable; theirs: the reference's. An element at which
    the reference has a quarter of the error is hard to compute and no outlier. least: lower bound of the spread. truth: of the
    elements, of which equal ones count once; None where all differ.
    """
    others = errors[alike]
    n = others.size
    if n < ELEMENTS:
        return np.zeros_like(errors)
    others = np.sort(others)[: n - max(1, n // 100)]
    spread = max(least, float(np.sqrt(np.mean(others**2))))
    ratios = np.where(alike, errors / (SLACK * tail(n) * spread), 0.0)
    ratios = ratios if theirs is None else np.where(4.0 * theirs >= errors, 0.0, ratios)
    if truth is None or not (ratios > 1.0).any():
        return ratios
    once = np.zeros_like(alike)
    once.reshape(-1)[np.flatnonzero(alike)[one_of_each(truth[alike])]] = True
    return np.where(ratios > 1.0, beyond(errors, theirs, once | (ratios > 1.0), least), 0.0)


def among_sums(errors: Array, theirs: Array | None, unit: Array, truth: Array | None = None) -> Array:
    """`beyond` for sums of products. errors: absolute; unit: one rounding of each element.

    Only the elements with the largest units are tested: the errors of the others may come from terms of another kind.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        z = errors / unit
        counted = np.isfinite(z)
        if not counted.any():
            return np.zeros_like(errors)
        alike = counted & (unit * ALIKE >= unit[counted].max())
        return beyond(np.where(counted, z, 0.0), None if theirs is None else theirs / unit, alike, LEAST, truth)


def among_alike(errors: Array, theirs: Array | None, inside: Array, truth: Array | None = None) -> Array:
    """`beyond` for half types that are rounded at the end, all in ULP of the element. inside: allowed error before that
    rounding.

    How large a device's error before the rounding really is, is unknown (some pass rounded numbers from kernel to kernel, some
    do not), but it is the same for all elements: those with the same or a larger allowance show it. Allowances are samples, so
    the limit is MARGIN times higher.
    """
    ratios = np.zeros_like(errors)
    # If terms cancel (to 0, say), the ULP of the result is no measure of the loss before.
    measured = np.isfinite(errors) & (inside < CANCELLED)
    suspects = np.flatnonzero(measured & (errors > MARGIN * tail(ELEMENTS) * ROUNDED))
    for at in suspects[np.argsort(errors.reshape(-1)[suspects])][-SUSPECTS:]:
        alike = np.isfinite(errors) & (inside >= inside.reshape(-1)[at])
        here = beyond(np.where(alike, errors, 0.0), theirs, alike, ROUNDED, truth) * (SLACK / MARGIN)
        ratios.reshape(-1)[at] = here.reshape(-1)[at]
    return ratios


def among_error_ratios(ratio: Array, own: Array, truth: Array | None = None) -> Array:
    """Outlier test on error ratios when the reference (own) exceeds its budget.

    The error of the reference widens the budget of a tensor or of the same element, but not that of a single outlier.
    """
    counted = np.isfinite(ratio)
    return np.where(ratio > 1.0, beyond(np.where(counted, ratio, 0.0), own, counted, 0.0, truth), 0.0)
