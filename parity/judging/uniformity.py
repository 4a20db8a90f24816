"""Tests that observations are uniform and independent, for every law, over the probability integrals of its draws."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parity.execution.values import unit
from parity.judging.laws.law import Observations, Tallies
from parity.judging.outliers import bernstein, improbable, massart, poisson_excess

Numbers: TypeAlias = npt.NDArray[np.float64]
GRID = 1024  # points at which the distribution function is tested
PAIRS, FEWEST = 1 << 14, 16  # at most about, and at least so many pairs of elements a distance apart are compared


def judged(samples: list[Observations], calls: int = 0) -> str:
    """The first significant problem of one kind of observation over several calls, or "". calls: how many; each shows as many
    elements, which are fewer than it has where some show nothing, such as zeros that may have been dropped or not."""
    s = _pooled(samples)
    if (text := _tallied(s)) or (text := _fixed(s, len(samples))):
        return text
    if not s.low.numel():
        return ""
    # A random point inside the law's own atom makes it exactly uniform; an allowance stays an interval.
    n = s.low.numel()
    low, high = s.low, s.high
    if not s.fuzzy:
        low = high = low + (high - low) * torch.from_numpy(unit(97, n))
    centre = (s.low + s.high) / 2
    for part, what in _groups(s):
        mine = slice(None) if part is None else part
        tests = 1 if part is None else 2
        text = (
            _location(s, s.low[mine] if s.fuzzy else centre[mine], s.high[mine] if s.fuzzy else centre[mine], tests)
            or _scale(low[mine], high[mine], tests)
            or _grid(low[mine], high[mine], tests)
        )
        if text:
            return text + what
    return _repeats(s) or _lags(s, centre, n // calls if calls else 0)


def _pooled(samples: list[Observations]) -> Observations:
    """The observations of all calls as one."""
    one = samples[0]
    covariate = None if one.covariate is None else torch.cat([s.covariate for s in samples if s.covariate is not None])
    tallies = None
    if one.tallies is not None:
        seen = [s.tallies for s in samples if s.tallies is not None]
        sums = [torch.stack([t.counts for t in seen]).sum(0), torch.stack([t.trials for t in seen]).sum(0)]
        tallies = Tallies(sums[0], sums[1], one.tallies.least, one.tallies.most)
    return replace(
        one,
        low=torch.cat([s.low for s in samples]),
        high=torch.cat([s.high for s in samples]),
        values=torch.cat([s.values for s in samples]),
        fuzzy=any(s.fuzzy for s in samples),
        peak=max(s.peak for s in samples),
        covariate=covariate,
        tallies=tallies,
        matches=sum(s.matches for s in samples),
    )


def _tallied(s: Observations) -> str:
    """Test that each atom occurs as often as its chance says."""
    if s.tallies is None:
        return ""
    t = s.tallies
    bad = improbable(t.counts, t.trials, t.least, t.most, t.counts.numel())
    if not bool(bad.any()):
        return ""
    k = int(bad.to(torch.int8).argmax())
    expected = float((t.least[k] + t.most[k]) / 2 * t.trials[k])
    return f"outcome {k} came {int(t.counts[k])} times in {int(t.trials[k])}, where {expected:.6g} are expected"


def _fixed(s: Observations, calls: int) -> str:
    """Test the number of fixed points over all calls."""
    if s.matches >= 0 and poisson_excess(s.matches, float(calls)):
        return f"{s.matches} elements stay in their place in {calls} calls, where one a call is expected"
    return ""


def _groups(s: Observations) -> list[tuple[Tensor | None, str]]:
    """All elements; and, if elements have parameters of their own, those with small and those with large ones."""
    parts: list[tuple[Tensor | None, str]] = [(None, "")]
    if s.covariate is not None and s.covariate.numel() == s.low.numel():
        small = s.covariate <= s.covariate.median()
        parts += [(small, " (elements with a small parameter)"), (~small, " (elements with a large parameter)")]
    return [(p, w) for p, w in parts if p is None or bool(p.any())]


def _edges() -> tuple[Tensor, Tensor]:
    """(points at which the distribution function is tested, which of them lie in the tails or are every 32nd)."""
    tails = [2.0**-k for k in range(6, 17)]
    fine = [k / GRID for k in range(1, GRID)]
    points = torch.tensor(sorted({*fine, *tails, *(1 - t for t in tails)}), dtype=torch.float64)
    keen = (points <= 2.0**-6) | (points >= 1 - 2.0**-6) | (points * 32 == (points * 32).floor())
    return points, keen


POINTS, KEEN = _edges()
EVEN = (POINTS * GRID).frac() == 0
TAILS = POINTS[~EVEN].view(-1, 1)


def _below(x: Tensor) -> Tensor:
    """How many numbers lie at or below each point (NaN above all).

    Cells of the even grid are found by multiplication, which is exact; the few points in the tails are compared one by one with
    the numbers of the first and the last cell.
    """
    x = torch.nan_to_num(x, 1.0).clamp_(0.0, 1.0)
    cells = (x * GRID).ceil_()
    even = torch.bincount(cells.to(torch.int64), minlength=GRID + 1)[: GRID + 1].cumsum(0).to(torch.float64)
    counts = torch.empty_like(POINTS)
    counts[EVEN] = even[1:GRID]
    ends = x[(cells <= 1) | (cells >= GRID)]
    inner = x.numel() - ends.numel()  # in the other cells, below every point near 1
    counts[~EVEN] = (ends <= TAILS).sum(1).to(torch.float64) + inner * (TAILS[:, 0] > 0.5)
    return counts


def _grid(low: Tensor, high: Tensor, tests: int) -> str:
    """Test the distribution function: everywhere by Dvoretzky, Kiefer, Wolfowitz and Massart, in the tails as coins."""
    n = low.numel()

    least, most = _below(high), _below(low)  # how many lie at or below each point, at least and at most
    off = torch.maximum(least / n - POINTS, POINTS - most / n)
    worst = int(off.argmax())
    if float(off[worst]) > massart(n, tests):
        fraction = float((least if float(least[worst]) / n > float(POINTS[worst]) else most)[worst]) / n
        return f"a share of {fraction:.6g} of {n} draws lies below the quantile {float(POINTS[worst]):.6g}"
    points, trials = POINTS[KEEN], torch.full_like(POINTS[KEEN], n)
    nearest = torch.minimum(torch.maximum(points * n, least[KEEN]), most[KEEN])
    bad = improbable(nearest, trials, points, points, tests * points.numel())
    if bool(bad.any()):
        k = int(bad.to(torch.int8).argmax())
        return f"{int(nearest[k])} of {n} draws lie below the quantile {float(points[k]):.6g}"
    return ""


def _location(s: Observations, low: Tensor, high: Tensor, tests: int) -> str:
    """Test that the mean of the probability integrals is one half."""
    n = low.numel()
    limit = bernstein(n * (1 / 12 if s.fuzzy else s.spread if s.covariate is None else 1 / 12), 0.5, tests)
    least, most = float(low.sum()) - n / 2, float(high.sum()) - n / 2
    if least > limit or most < -limit:
        return f"the draws are too {'large' if least > limit else 'small'} on average, over {n}"
    return ""


def _moments(cut: float) -> tuple[float, float]:
    """Mean and variance of min(z*z, cut*cut) for a normal z."""
    tail = math.erfc(cut / math.sqrt(2))
    density = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
    second = (1 - tail) - 2 * cut * density + cut**2 * tail
    fourth = 3 * (1 - tail) - 2 * cut * (cut**2 + 3) * density + cut**4 * tail
    return second, fourth - second * second


CUT = 3.0
MEAN, VARIANCE = _moments(CUT)
# Largest derivative of a squared normal score below CUT by its probability. In intervals no wider than NARROW the change is
# negligible compared with the limits of `_scale`.
STEEPEST = 2 * CUT * math.sqrt(2 * math.pi) * math.exp(CUT * CUT / 2)
NARROW = 2.0**-20


def _scale(low: Tensor, high: Tensor, tests: int) -> str:
    """Test the spread: the squares of the normal scores of the probability integrals, capped at CUT**2."""
    n = low.numel()
    a = torch.special.ndtri(low.clamp(1e-6, 1 - 1e-6)).clamp_(-CUT, CUT).square_()
    width = 0.0 if low is high else float((high - low).max())
    if width <= NARROW:
        least, most = float(a.sum()) - n * STEEPEST * width, float(a.sum()) + n * STEEPEST * width
    else:
        b = torch.special.ndtri(high.clamp(1e-6, 1 - 1e-6)).clamp_(-CUT, CUT).square_()
        across = (low < 0.5) & (high > 0.5)
        least, most = float(torch.minimum(a, b).masked_fill_(across, 0.0).sum()), float(torch.maximum(a, b).sum())
    limit = bernstein(n * VARIANCE, CUT * CUT, tests)
    if least - n * MEAN > limit:
        return f"the draws are spread too widely, over {n}"
    if n * MEAN - most > limit:
        return f"the draws are spread too narrowly, over {n}"
    return ""


# --------------------------------------------------------------------------------------------------- serial structure


def _repeats(s: Observations) -> str:
    """Test for repeated numbers: each new one equals an old one with a chance of at most (number of old ones) * peak."""
    n = min(s.values.numel(), 1 << 14, int(1 / (8 * s.peak)))
    if n < 16:
        return ""
    ordered = np.sort(s.values[:n].numpy())
    repeated = int(np.count_nonzero(ordered[1:] == ordered[:-1]))
    chance = torch.tensor([n * s.peak], dtype=torch.float64)
    if bool(improbable(torch.tensor([float(repeated)]).double(), torch.tensor([float(n)]).double(), chance * 0, chance, 1)):
        return f"{repeated} of {n} numbers came before"
    return ""


def _lags(s: Observations, centre: Tensor, period: int) -> str:
    """Test that elements a fixed distance apart are neither equal too often nor correlated.

    Distances are powers of two, rows, half a call, a call, and slightly less than a call: a generator that advances too little
    between two calls begins the next with what each thread ended on. Every element is in one pair of each set, so the pairs are
    independent.
    """
    n = centre.numel()
    some = {1 << k for k in range(17)} | {3, s.row, 2 * s.row, period // 2, period, period // 4}
    some |= {period - (1 << k) for k in range(1, 4)}
    distances = tuple(sorted(d for d in some if 0 < d <= n // 2))
    numbers = np.stack([s.values.numpy(), centre.numpy() - 0.5, (s.high - s.low).numpy()])
    apart, count, same, product, slack = [], [], [], [], []
    for d in distances:
        for start in (0, d):  # elements in even blocks of d, and those in odd ones
            pairs = _pairs(numbers[:, start:], d)
            size = sum(left[0].size for left, _ in pairs)
            if size < FEWEST:
                continue
            apart.append(d)
            count.append(float(size))
            same.append(float(sum(np.count_nonzero(left[0] == right[0]) for left, right in pairs)))
            product.append(sum(float(np.einsum("ij,ij->", left[1], right[1])) for left, right in pairs))
            slack.append(sum(float(left[2].sum() + right[2].sum()) / 2 for left, right in pairs) if s.fuzzy else 0.0)
    if not apart:
        return ""
    trials, tests = torch.tensor(count, dtype=torch.float64), 2 * len(distances)
    repeated = torch.tensor(same, dtype=torch.float64)
    often = improbable(repeated, trials, trials * 0, torch.full_like(trials, s.peak), tests).numpy()
    limit = np.array([bernstein(k / 144, 0.25, tests) for k in count])
    related = (np.abs(product) > np.array(slack) + limit) & (s.covariate is None)
    if not (often | related).any():
        return ""
    k = int(np.argmax(often | related))
    if often[k]:
        return f"{int(same[k])} of {int(count[k])} elements equal the one {apart[k]} places on"
    return f"elements {apart[k]} places apart are correlated ({12 * product[k] / count[k]:.3g} over {int(count[k])} pairs)"


def _pairs(x: Numbers, d: int) -> list[tuple[Numbers, Numbers]]:
    """Pairs of elements d places apart, of [kind, element], as [kind, block, place]: all whole blocks, then the rest.

    The first of each pair lies in an even block of d. If there are many, only every so many-th block or place is used.
    """
    every = max(1, x.shape[1] // (2 * PAIRS))
    blocks = x.shape[1] // (2 * d)
    end = blocks * 2 * d
    whole = x[:, :end].reshape(x.shape[0], blocks, 2, d)
    whole = whole[:, ::every] if blocks >= every else whole[..., ::every]
    pairs = [(whole[:, :, 0], whole[:, :, 1])] if blocks else []
    if x.shape[1] - end > d:
        pairs.append((x[:, None, end : x.shape[1] - d : every], x[:, None, end + d :: every]))
    return pairs
