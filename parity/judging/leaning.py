"""Half-precision results that lean one way: what kernels that round once never do, and none that round once more by chance.

A kernel that computes in float32 and rounds once gives, of every element, the number next to some value within `inside` of the
truth (float32's own error, a small part of a half type's ULP). Where the border between two numbers is farther from the truth
than that, nothing is left to chance: the result is the number next to the truth, and any other is a *step* beside it. Such a
kernel takes no step. One that rounds once more takes some, and rounding prefers no side: given that elements of different
truths take a step, each goes up or down with equal chance, whatever the others do. What all elements of a sum share (a term
that is left out, a total that was kept in the half type) moves all of them to one side, by parts of an ULP that no bound on a
single element sees.

Steps are counted by side, over the whole tensor, over the lines along each dimension and over the slices across it; a side is
up or down, or else toward zero or away from it. Of m steps in all, u to one side have a chance of at most exp(-m KL(u/m, 1/2))
(Hoeffding, JASA 58 (1963), theorem 1). Of R groups with m_r steps each, the sum of (up - down)^2 / m_r exceeds
R + 2 sqrt(R x) + 2 x with a chance of at most exp(-x) (Hsu, Kakade and Zhang, Electronic Communications in Probability 17
(2012) 52, theorem 2.1: signs are sub-Gaussian). All looks together accuse with a probability of at most `tails.ALPHA`; a kernel
that rounds once is never accused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from parity.catalog.row import Row
from parity.dtypes import FACTS
from parity.judging.measures import parts
from parity.judging.tails import weight
from parity.truth.rounding import extremes
from parity.vocabulary import OpClass

Array: TypeAlias = npt.NDArray[np.float64]
FEWEST = 31  # steps: fewer lean by chance more often than `tails.ALPHA`, even if all go to one side


def may_lean(row: Row, pass_: str) -> bool:
    """Whether leaning would tell anything: elements share sums, and what is allowed before the last rounding is less than that.
    Elements of functions share none, and a constant of a formula that a device keeps in the half type moves them all."""
    if pass_ in row.accumulates or pass_ in row.stages:
        return False
    return row.rule is OpClass.CONTRACTION or (
        row.rule is OpClass.COMPOSITE and not row.rounds_between and row.family != "activations"
    )


def in_range(truth: Tensor) -> bool:
    """Whether no element is so small that float32 arithmetic loses digits of it, or flushes it on the way."""
    single = FACTS["float32"]
    return extremes(truth)[0] >= single.tiny / single.unit_roundoff


def strides_past(device: Tensor, truth: Tensor) -> bool:
    """Whether so many elements are not the number next to the truth that they may lean: what a cheap screen asks."""
    return device.numel() >= FEWEST and int((truth.to(device.dtype) != device).sum()) >= FEWEST


def steps(device: Tensor, truth: Tensor, inside: Array) -> Array:
    """1 where an element is above what a kernel that rounds once gives, -1 where below, 0 elsewhere and for all but one of
    elements with one truth, which are the same sum made several times over. inside: error before rounding, not negative."""
    d, n, t = parts(device), parts(truth.to(device.dtype)), parts(truth)
    with np.errstate(invalid="ignore", over="ignore"):
        beside = (d != n) & np.isfinite(d) & np.isfinite(n) & (np.abs((d + n) / 2.0 - t) > inside)
        found: Array = np.where(beside, np.sign(d - n), 0.0)
    where = np.flatnonzero(found)
    again = np.ones(where.size, dtype=bool)
    again[np.unique(t.reshape(-1)[where], return_index=True)[1]] = False
    found.reshape(-1)[where[again]] = 0.0
    return found


def lean_of(device: Tensor, truth: Tensor, inside: Array, healthy: Callable[[], Tensor | None]) -> float:
    """How far results lean to one side, in units of what chance explains; 0 where what rounds once in every kernel (healthy)
    leans a quarter as much, because the op rounds on the way, or is not known."""
    if not strides_past(device, truth) or not in_range(truth):
        return 0.0
    sizes = parts(truth)
    found = leaning(steps(device, truth, inside), sizes)
    if found <= 1.0:
        return found
    peer = healthy()
    if peer is None or peer.shape != truth.shape or peer.dtype != device.dtype:
        return 0.0
    return 0.0 if 4.0 * leaning(steps(peer, truth, inside), sizes) >= found else found


def leaning(signs: Array, truth: Array) -> float:
    """How far steps lean to one side, in units of what chance explains."""
    if np.count_nonzero(signs) < FEWEST:
        return 0.0
    level = weight(2 * (1 + 2 * signs.ndim), sides=1)
    found: float = 0.0
    for sided in (signs, signs * np.sign(np.nan_to_num(truth))):
        found = max(found, _as_one(sided, level))
        for d in range(signs.ndim if signs.ndim > 1 else 0):
            across = tuple(k for k in range(signs.ndim) if k != d)
            found = max(found, _in_groups(sided, (d,), level), _in_groups(sided, across, level))
    return found


def _as_one(sided: Array, level: float) -> float:
    """All steps together."""
    m, lead = int(np.count_nonzero(sided)), abs(float(sided.sum()))
    if m < FEWEST:  # at a truth of 0 nothing is toward zero
        return 0.0
    share = 0.5 + 0.5 * lead / m
    rest = 1.0 - share
    nats = math.log(2.0) + share * math.log(share) + (rest * math.log(rest) if rest > 0.0 else 0.0)
    return m * nats / (level + math.log(2.0))


def _in_groups(sided: Array, dims: tuple[int, ...], level: float) -> float:
    """Group by group, each added up over dims."""
    m = np.count_nonzero(sided, axis=dims).reshape(-1)
    lead = sided.sum(axis=dims).reshape(-1)[m > 0]
    m = m[m > 0]
    return float((lead**2 / m).sum()) / float(m.size + 2.0 * math.sqrt(m.size * level) + 2.0 * level)
