"""Systematic bias of half-precision results: it never occurs in a kernel that rounds once, and not by chance in others.

A kernel that computes in float32 and rounds once returns, for every element, the half-type number nearest to a value within
`inside` of the truth (`inside` is float32's own error, a small part of a half type's ULP). If the border between two numbers is
farther from the truth than that, the result is determined: it is the number nearest to the truth. Any other result is a *step*.
A kernel that rounds once takes no step. One that rounds more often takes some, and rounding prefers no side: among elements
with different truths, each step goes up or down with equal probability, independently of the others. An error that all elements
of a sum share (a missing term, a total kept in the half type) moves all of them to one side, by parts of an ULP that no bound
on a single element detects.

Steps are counted by side: over the whole tensor, over the lines along each dimension and over the slices across it. A side is
up or down, or else toward or away from zero. That u of m steps go to one side has a probability of at most exp(-m KL(u/m, 1/2))
(Hoeffding, JASA 58 (1963), theorem 1). Over R groups with m_r steps each, the sum of (up - down)^2 / m_r exceeds R + 2 sqrt(R
x) + 2 x with a probability of at most exp(-x) (Hsu, Kakade and Zhang, Electronic Communications in Probability 17 (2012) 52,
theorem 2.1: signs are sub-Gaussian). All tests together raise a false alarm with a probability of at most
`concentration_bounds.ALPHA`, and never for a kernel that rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from parity.catalog.row import Row
from parity.core.dtypes import FACTS
from parity.judging.budget import one_of_each
from parity.judging.measures import parts
from parity.judging.outliers import weight
from parity.judging.rules import rule_of
from parity.oracle.roundoffs import extremes

Array: TypeAlias = npt.NDArray[np.float64]
FEWEST = 31  # fewer steps all go to one side by chance more often than `concentration_bounds.ALPHA`


def bias_test_applies(row: Row, pass_: str) -> bool:
    """Whether a systematic-bias test applies: elements share sums, and less than that is allowed before the last rounding."""
    return pass_ not in row.judged.accumulates and pass_ not in row.judged.stages and rule_of(row).bias_test_applies(row)


def in_range(truth: Tensor) -> bool:
    """Whether all elements are large enough that float32 arithmetic neither loses digits of them nor flushes them."""
    float32 = FACTS["float32"]
    return extremes(truth)[0] >= float32.tiny / float32.unit_roundoff


def has_enough_steps(device: Tensor, truth: Tensor) -> bool:
    """Whether enough elements differ from the rounded truth for a bias test; a cheap screen."""
    return device.numel() >= FEWEST and int((truth.to(device.dtype) != device).sum()) >= FEWEST


def steps(device: Tensor, truth: Tensor, inside: Array) -> Array:
    """1 where an element is above what a kernel that rounds once returns, -1 where it is below, 0 elsewhere.

    Of several elements with one truth only the first counts: they are the same sum, computed repeatedly. inside: error before
    rounding, not negative.
    """
    d, n, t = parts(device), parts(truth.to(device.dtype)), parts(truth)
    with np.errstate(invalid="ignore", over="ignore"):
        is_step = (d != n) & np.isfinite(d) & np.isfinite(n) & (np.abs((d + n) / 2.0 - t) > inside)
        signs: Array = np.where(is_step, np.sign(d - n), 0.0)
    where = np.flatnonzero(signs)
    signs.reshape(-1)[np.delete(where, one_of_each(t.reshape(-1)[where]))] = 0.0
    return signs


def systematic_bias(device: Tensor, truth: Tensor, inside: Array, healthy: Callable[[], Tensor | None]) -> float:
    """Bias of the results to one side, in units of what chance explains.

    0 where the result of kernels that round once (`healthy`) is unknown or has a quarter of the bias, because the op itself
    rounds on the way.
    """
    if not has_enough_steps(device, truth) or not in_range(truth):
        return 0.0
    sizes = parts(truth)
    ratio = bias_ratio(steps(device, truth, inside), sizes)
    if ratio <= 1.0:
        return ratio
    baseline = healthy()
    if baseline is None or baseline.shape != truth.shape or baseline.dtype != device.dtype:
        return 0.0
    return 0.0 if 4.0 * bias_ratio(steps(baseline, truth, inside), sizes) >= ratio else ratio


def bias_ratio(signs: Array, truth: Array) -> float:
    """Bias of the steps to one side, in units of what chance explains."""
    if np.count_nonzero(signs) < FEWEST:
        return 0.0
    level = weight(2 * (1 + 2 * signs.ndim), sides=1)
    ratio: float = 0.0
    for sided in (signs, signs * np.sign(np.nan_to_num(truth))):
        ratio = max(ratio, _as_one(sided, level))
        for d in range(signs.ndim if signs.ndim > 1 else 0):
            across = tuple(k for k in range(signs.ndim) if k != d)
            ratio = max(ratio, _in_groups(sided, (d,), level), _in_groups(sided, across, level))
    return ratio


def _as_one(sided: Array, level: float) -> float:
    """The bias of all steps together."""
    m, lead = int(np.count_nonzero(sided)), abs(float(sided.sum()))
    if m < FEWEST:  # an element with a truth of 0 has no side toward zero
        return 0.0
    fraction = 0.5 + 0.5 * lead / m
    rest = 1.0 - fraction
    nats = math.log(2.0) + fraction * math.log(fraction) + (rest * math.log(rest) if rest > 0.0 else 0.0)
    return m * nats / (level + math.log(2.0))


def _in_groups(sided: Array, dims: tuple[int, ...], level: float) -> float:
    """The bias group by group; each group is summed over `dims`."""
    m = np.count_nonzero(sided, axis=dims).reshape(-1)
    lead = sided.sum(axis=dims).reshape(-1)[m > 0]
    m = m[m > 0]
    return float((lead**2 / m).sum()) / float(m.size + 2.0 * math.sqrt(m.size * level) + 2.0 * level)
