"""Probability bounds for honest generators: every test here raises a false alarm with a probability of at most ALPHA.

All bounds hold for finite samples (no central limit theorem), so the stated probability is exact as an upper bound. Sources:
Chernoff's bound on binomial tails in its relative-entropy form (Hoeffding, JASA 58, 1963, theorem 1; it covers draws without
replacement too, section 6); Bernstein's inequality; the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant (Annals
of Probability 18, 1990).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
