"""Laws of ops that draw every element from a distribution of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.judging.laws.law import (
    CallLike,
    Law,
    Observations,
    Problems,
    Results,
    Tallies,
    coins,
    count,
    first,
    reals,
    roundoff,
)

Cdf = Callable[[Tensor], Tensor]
FEW = 128  # at most this many atoms are counted one by one


@dataclass(frozen=True, slots=True)
class Continuous:
    """A continuous distribution: its distribution function, and the support with its ends: "[]", "[)", "(]" or "()"."""

    cdf: Cdf
    low: float = -math.inf
    high: float = math.inf
    ends: str = "()"
    covariate: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A distribution of integers.

    cdf: P(X <= k). low, high: the support. peak: the largest atom. atoms: chances from `low` up, if they are few and equal for
    all elements. grain: error of the chances due to the generator's integers.
    """

    cdf: Cdf
    low: float = 0.0
    high: float = math.inf
    peak: float = 1.0
    atoms: tuple[float, ...] = ()
    covariate: Tensor | None = None
    grain: float = 0.0


def continuous(of: Callable[[CallLike, Tensor], Continuous]) -> Law:
    """The law of a continuous distribution, rounded to the result's dtype."""

    def outside(call: CallLike, r: Results) -> Problems:
        name, t = first(r)
        y, d = reals(t), of(call, t)
        below = y >= d.low if d.ends[0] == "[" else y > d.low
        above = y <= d.high if d.ends[1] == "]" else y < d.high
        return count(name, ~(below & above), y, f"are outside of {d.ends[0]}{d.low:g}, {d.high:g}{d.ends[1]}")

    def observe(call: CallLike, r: Results) -> list[Observations]:
        t = first(r)[1]
        d, u = of(call, t), roundoff(t)
        y = reals(t)
        y = y.clamp(-torch.finfo(t.dtype).max, torch.finfo(t.dtype).max)
        step = 2 * u * y.abs() + float(torch.finfo(t.dtype).smallest_normal) * 2 * u
        low, high = d.cdf(y - step).reshape(-1), d.cdf(y + step).reshape(-1)
        peak = min(1.0, float((high - low).max()) + 8 * u) if y.numel() else 1.0
        return [
            Observations(
                (low - u).clamp(0, 1),
                (high + u).clamp(0, 1),
                y.reshape(-1),
                fuzzy=True,
                peak=peak,
                surprise=-math.log(peak) * y.numel(),
                row=y.shape[-1] if y.dim() else 0,
                covariate=None if d.covariate is None else d.covariate.expand(y.shape).reshape(-1),
            )
        ]

    return Law(outside, observe, generator=True, stacks=True)


def whole(of: Callable[[CallLike, Tensor], Whole], generator: bool = True) -> Law:
    """The law of a distribution of integers, in an integer or a floating dtype (which may round them)."""

    def outside(call: CallLike, r: Results) -> Problems:
        name, t = first(r)
        y, d = t.detach().to(torch.float64), of(call, t)
        bad = ~((y >= d.low) & (y <= d.high) & (y == y.floor()))
        return count(name, bad, y, f"are no integers in [{d.low:g}, {d.high:g}]")

    def observe(call: CallLike, r: Results) -> list[Observations]:
        t = first(r)[1]
        d, y = of(call, t), t.detach().to(torch.float64)
        u = roundoff(t) if t.is_floating_point() else 2.0**-53
        step = 2 * u * y.abs()
        coarse = step > 1
        low = d.cdf(y - torch.where(coarse, step, 1.0)).reshape(-1) - d.grain
        high = d.cdf(y + torch.where(coarse, step, 0.0)).reshape(-1) + d.grain
        fuzzy = bool(coarse.any()) or d.grain > 2.0**-20
        peak = min(1.0, d.peak + d.grain) if not bool(coarse.any()) else min(1.0, float((high - low).max()))
        covariate = None if d.covariate is None else d.covariate.to(torch.float64).expand(y.shape).reshape(-1)
        return [
            Observations(
                low.clamp(0, 1), high.clamp(0, 1), y.reshape(-1), fuzzy=fuzzy, peak=peak,
                surprise=-math.log(peak) * y.numel(), row=y.shape[-1] if y.dim() else 0, covariate=covariate,
                spread=(1 - math.fsum(p**3 for p in d.atoms)) / 12 if d.atoms else 1 / 12,
                tallies=_tallied(y, d) if d.atoms and y.numel() else None,
            )
        ]  # fmt: skip

    return Law(outside, observe, generator=generator, stacks=True)


def _tallied(y: Tensor, d: Whole) -> Tallies:
    chances = torch.tensor(d.atoms, dtype=torch.float64)
    where = (y.reshape(-1) - d.low).clamp(-1, len(d.atoms)).to(torch.int64)
    counts = torch.bincount(where[(where >= 0) & (where < len(d.atoms))], minlength=len(d.atoms)).to(torch.float64)
    return Tallies(counts, torch.full_like(chances, y.numel()), chances - d.grain, chances + d.grain)


# ------------------------------------------------------------------------------------------------------ distributions


def _wide(x: object) -> Tensor:
    """A parameter in float64, from a tensor or a number."""
    return x.detach().to(torch.float64) if isinstance(x, Tensor) else torch.tensor(float(x), dtype=torch.float64)  # type: ignore[arg-type]  # a number


def uniform(low: float, high: float, ends: str) -> Continuous:
    """The uniform distribution between two ends."""
    width = high - low
    return Continuous(lambda y: ((y - low) / width).clamp(0, 1) if width else (y >= low).to(y.dtype), low, high, ends)


def _spread(*parameters: object) -> Tensor | None:
    """The first parameter that differs from element to element."""
    for p in parameters:
        if isinstance(p, Tensor) and p.numel() > 1 and bool((p != p.reshape(-1)[0]).any()):
            return _wide(p)
    return None


def normal(mean: object, std: object, like: Tensor) -> Continuous:
    """The normal distribution; each part of a complex result has this mean and half the variance. std 0 gives the mean."""
    m, s = _wide(mean), _wide(std)
    if like.is_complex():
        s = s * math.sqrt(0.5)

    def cdf(y: Tensor) -> Tensor:
        z = torch.where(s == 0, torch.where(y >= m, math.inf, -math.inf), (y - m) / torch.where(s == 0, 1.0, s))
        below: Tensor = torch.special.ndtr(z)
        return below

    return Continuous(cdf, covariate=_spread(std, mean))


def _uniform_into(call: CallLike, y: Tensor) -> Continuous:
    """uniform_(from, to). Rounding may return the upper end if the lower one is not 0."""
    low, high = float(call.get(1, "from", 0.0)), float(call.get(2, "to", 1.0))
    return uniform(low, high, "[)" if (low, high) == (0.0, 1.0) else "[]")


def _exponential(call: CallLike, y: Tensor) -> Continuous:
    """torch promises never to draw 0; a half type may round a number to it."""
    rate = float(call.get(1, "lambd", 1.0))
    return Continuous(lambda x: -torch.expm1(-rate * x.clamp(min=0)), 0.0, math.inf, "()" if roundoff(y) <= 2**-24 else "[)")


def _cauchy(call: CallLike, y: Tensor) -> Continuous:
    median, sigma = float(call.get(1, "median", 0.0)), float(call.get(2, "sigma", 1.0))
    return Continuous(lambda x: 0.5 + torch.atan((x - median) / sigma) / math.pi, ends="[]")


def _log_normal(call: CallLike, y: Tensor) -> Continuous:
    mean, std = float(call.get(1, "mean", 1.0)), float(call.get(2, "std", 2.0))
    return Continuous(lambda x: torch.special.ndtr((x.clamp(min=0).log() - mean) / std), 0.0, math.inf, "[]")


def _gamma(call: CallLike, y: Tensor) -> Continuous:
    shape = _wide(call.args[0])
    cdf: Cdf = lambda x: torch.special.gammainc(shape.expand(x.shape), x.clamp(min=0))  # noqa: E731 -- typed as a Cdf
    return Continuous(cdf, 0.0, math.inf, "[)", _spread(call.args[0]))


def _truncated(call: CallLike, y: Tensor) -> Continuous:
    """trunc_normal_(mean, std, a, b)."""
    mean, std = float(call.get(1, "mean", 0.0)), float(call.get(2, "std", 1.0))
    a, b = float(call.get(3, "a", -2.0)), float(call.get(4, "b", 2.0))
    bottom, top = (float(torch.special.ndtr(torch.tensor((x - mean) / std, dtype=torch.float64))) for x in (a, b))
    return Continuous(lambda x: ((torch.special.ndtr((x - mean) / std) - bottom) / (top - bottom)).clamp(0, 1), a, b, "[]")


def _fans(x: Tensor) -> tuple[int, int]:
    """(inputs, outputs) of a weight."""
    field = math.prod(x.shape[2:])
    return x.shape[1] * field, x.shape[0] * field


def _xavier(call: CallLike, y: Tensor) -> Continuous:
    """xavier_uniform_: all numbers up to gain * sqrt(6 / (fan_in + fan_out)), as the dtype rounds it."""
    limit = float(call.get(1, "gain", 1.0)) * math.sqrt(6 / sum(_fans(call.args[0])))
    limit = max(limit, float(torch.tensor(limit, dtype=y.dtype)))
    return uniform(-limit, limit, "[]")


def _kaiming(call: CallLike, y: Tensor) -> Continuous:
    """kaiming_normal_ as by default: standard deviation sqrt(2 / fan_in)."""
    return normal(0.0, math.sqrt(2 / _fans(call.args[0])[0]), y)


def integers(low: int, high: int) -> Whole:
    """Integers in [low, high), equally likely. The remainder of 32 random bits favours some by up to (high - low) / 2**32."""
    n = max(1, high - low)
    atoms = tuple([1 / n] * n) if n <= FEW else ()
    grain = n / 2**32 if n <= 2**28 else 2.0**-30
    return Whole(lambda y: ((y - low + 1) / n).clamp(0, 1), low, high - 1, 1 / n, atoms, grain=grain)


def _randint_like(call: CallLike, y: Tensor) -> Whole:
    """randint_like(x, high) and (x, low, high)."""
    low, high = call.get(1, "low"), call.get(2, "high")
    if high is None:
        low, high = 0, low
    return integers(int(0 if low is None else low), int(high))


def _randint(call: CallLike, y: Tensor) -> Whole:
    """randint(like, low, high, shape)."""
    return integers(int(call.args[1]), int(call.args[2]))


def _random_into(call: CallLike, y: Tensor) -> Whole:
    """random_(): [0, 2**digits] of floats, [0, max] of integers; random_(to); random_(from, to)."""
    bounds = [int(a) for a in call.args[1:]]
    if not bounds:
        facts = None if y.is_floating_point() or y.dtype is torch.bool else torch.iinfo(y.dtype)
        top = 1 if y.dtype is torch.bool else round(1 / roundoff(y)) if facts is None else facts.max
        return integers(0, top + 1)
    return integers(bounds[0] if len(bounds) > 1 else 0, bounds[-1])


def _geometric(call: CallLike, y: Tensor) -> Whole:
    p = float(call.get(1, "p"))
    atoms = tuple(p * (1 - p) ** k for k in range(64)) if p < 1 else (1.0,)
    grain = roundoff(y) if roundoff(y) > 2**-20 else 0.0
    return Whole(lambda k: 1 - (1 - p) ** k.clamp(min=0).floor(), 1, math.inf, p, atoms, grain=grain)


def _poisson(call: CallLike, y: Tensor) -> Whole:
    rate = _wide(call.args[0])
    # Ramanujan's bound: the mode has at most 1 / sqrt(2 pi rate) of the mass, and never more than exp(-rate) below 1.
    peaks = torch.where(rate < 1, torch.exp(-rate), (0.4 / rate.clamp(min=1).sqrt()).clamp(max=0.37))
    peak = float(peaks.max()) if peaks.numel() else 1.0

    def cdf(k: Tensor) -> Tensor:
        k = k.floor()
        full = torch.special.gammaincc((k + 1).clamp(min=1), rate.expand(k.shape))
        return torch.where(k < 0, 0.0, torch.where(rate == 0, 1.0, full))

    return Whole(cdf, 0, math.inf, peak, covariate=_spread(call.args[0]))


def _dirichlet(call: CallLike, y: Tensor) -> Continuous:
    """The first component of a Dirichlet draw whose k concentrations are all one whole number a.

    It has the distribution Beta(a, (k - 1) a), that of the a-th smallest of k a - 1 uniform numbers (DLMF 8.17.5).
    """
    x = call.args[0]
    a = round(float(x.reshape(-1)[0])) if x.numel() else 1
    n = a * x.shape[-1] - 1

    def cdf(v: Tensor) -> Tensor:
        v = v.clamp(0, 1)
        below = [math.comb(n, j) * v**j * (1 - v) ** (n - j) for j in range(a)]
        return 1 - torch.stack(below).sum(0)

    return Continuous(cdf, 0.0, 1.0, "[]")


def _binomial(call: CallLike, y: Tensor) -> Whole:
    """binomial(count, prob) for counts up to about a hundred, which the call rounds first; the masses are summed."""
    counts, chances = call.args[0].round(), call.args[1]
    n, p = _wide(counts + 0 * chances), _wide(chances + 0 * counts)
    k = torch.arange(int(n.max()) + 1 if n.numel() else 1, dtype=torch.float64)
    choose = torch.lgamma(n + 1).unsqueeze(-1) - torch.lgamma(k + 1) - torch.lgamma((n.unsqueeze(-1) - k).clamp(min=0) + 1)
    logs = choose + torch.xlogy(k, p.unsqueeze(-1)) + torch.xlogy((n.unsqueeze(-1) - k).clamp(min=0), 1 - p.unsqueeze(-1))
    mass = torch.where(k <= n.unsqueeze(-1), torch.exp(logs), 0.0)
    summed = mass.cumsum(-1)
    last = k.numel() - 1

    def cdf(x: Tensor) -> Tensor:
        table = summed.expand(*x.shape, summed.shape[-1])
        at = table.gather(-1, x.clamp(0, last).to(torch.int64).unsqueeze(-1)).squeeze(-1)
        return torch.where(x < 0, 0.0, torch.where(x >= n, 1.0, at)).clamp(0, 1)

    peak = float(mass.max()) if mass.numel() else 1.0
    return Whole(cdf, 0, float(last), peak, covariate=_spread(call.args[1], call.args[0]))


# --------------------------------------------------------------------------------------------------------------- coins


def bernoulli(chance: Callable[[CallLike], float | Tensor]) -> Law:
    """The law of 1 with the given chance, else 0. Impossible values are problems."""

    def outside(call: CallLike, r: Results) -> Problems:
        name, t = first(r)
        y, p = t.detach().to(torch.float64), _wide(chance(call)).expand(t.shape)
        return (
            count(name, (y != 0) & (y != 1), y, "are neither 0 nor 1")
            or count(name, (y == 1) & (p == 0), y, "have a chance of 0, and were drawn")
            or count(name, (y == 0) & (p == 1), y, "have a chance of 1, and were not drawn")
        )

    def observe(call: CallLike, r: Results) -> list[Observations]:
        t, p = first(r)[1], chance(call)
        grain = max(roundoff(t), roundoff(p) if isinstance(p, Tensor) else 0.0)
        return [coins(t.detach() != 0, p, grain, t.shape[-1] if t.dim() else 0)]

    return Law(outside, observe, generator=True, stacks=True)


def _chance(call: CallLike) -> float | Tensor:
    """bernoulli(x) takes the chances from x; bernoulli(x, p) takes p."""
    p = call.get(1, "p", call.args[0])
    return p if isinstance(p, Tensor) else float(p)


def _chance_into(call: CallLike) -> float | Tensor:
    """x.bernoulli_(p) takes p; without it, coins are fair."""
    p = call.get(1, "p", 0.5)
    return p if isinstance(p, Tensor) else float(p)


NUMBERS: dict[str, Law] = {
    "rand": continuous(lambda call, y: uniform(0.0, 1.0, "[)")),
    "randn": continuous(lambda call, y: normal(0.0, 1.0, y)),
    "uniform_": continuous(_uniform_into),
    "normal_": continuous(lambda call, y: normal(call.get(1, "mean", 0.0), call.get(2, "std", 1.0), y)),
    "normal": continuous(lambda call, y: normal(call.get(0, "mean", 0.0), call.get(1, "std", 1.0), y)),
    "exponential_": continuous(_exponential),
    "cauchy_": continuous(_cauchy),
    "log_normal_": continuous(_log_normal),
    "standard_gamma": continuous(_gamma),
    "trunc_normal_": continuous(_truncated),
    "xavier_uniform_": continuous(_xavier),
    "kaiming_normal_": continuous(_kaiming),
    "randint": whole(_randint),
    "randint_like": whole(_randint_like),
    "random_": whole(_random_into),
    "geometric_": whole(_geometric),
    "poisson": whole(_poisson),
    "binomial": whole(_binomial),
    "dirichlet": continuous(_dirichlet),
    "bernoulli": bernoulli(_chance),
    "bernoulli_": bernoulli(_chance_into),
}
