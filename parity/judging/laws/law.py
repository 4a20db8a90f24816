"""A law: the possible results of a random op, and their probabilities.

Probabilities are expressed as *probability integrals*: an observation y of an element with distribution function F becomes the
interval [F(y-), F(y)]. Under the law, a point drawn inside it is uniform on [0, 1], whatever the op, its parameters and their
differences between elements. So one set of tests (`parity.judging.uniformity`) serves all laws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from parity.catalog.row import Row
from parity.core.dtypes import FACTS

Results = Mapping[str, Tensor]
Problems = list[tuple[str, str]]  # (name of the result, what is wrong)


class CallLike(Protocol):
    """A call with its operands on the CPU, as they were before the call."""

    @property
    def row(self) -> Row:
        """The row of the catalog."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments."""

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""


@dataclass(frozen=True, slots=True)
class Tallies:
    """Counted coins: float64 vectors of counts, trials, and bounds [least, most] on the chance."""

    counts: Tensor
    trials: Tensor
    least: Tensor
    most: Tensor


@dataclass(frozen=True, slots=True)
class Observations:
    """Independent observations of one call, in the order of the result's elements.

    low, high: the interval of each in [0, 1], float64.
    fuzzy: the interval is an allowance for the granularity of dtype and generator, and a test fails only if no point inside
    explains it; otherwise the interval is the law's own atom.
    values: what distinguishes observations, float64.
    peak: upper bound of the chance of any single value.
    surprise: -log of an upper bound of the chance that another call gives the same result.
    spread: variance of the atoms' centres.
    row: length of the innermost dimension.
    covariate: parameter of each element, if they differ.
    matches: number of rare coincidences (fixed points of a permutation), of which one per call is expected; or -1.
    """

    low: Tensor
    high: Tensor
    values: Tensor
    fuzzy: bool = False
    peak: float = 1.0
    surprise: float = 0.0
    spread: float = 1 / 12
    row: int = 0
    covariate: Tensor | None = None
    tallies: Tallies | None = None
    matches: int = -1


@dataclass(frozen=True, slots=True)
class Law:
    """outside: problems of a result that is impossible whatever the chance. observe: the observations in a result.

    gradient: problems of (call, results, cotangent of the first result, gradient of the first operand), or None.
    generator: the op takes `generator=`. bits: equal seeds give equal bits (False if sums may be reordered).
    slope: whether such a call is smooth for a fixed seed, so that differences of the op itself give its gradient.
    stacks: `outside` and `observe` also take the results of several equal calls, stacked along a new first dimension.
    """

    outside: Callable[[CallLike, Results], Problems]
    observe: Callable[[CallLike, Results], list[Observations]]
    gradient: Callable[[CallLike, Results, Tensor, Tensor], Problems] | None = None
    generator: bool = False
    bits: bool = True
    slope: Callable[[CallLike], bool] | None = None
    stacks: bool = False


EMPTY = torch.zeros(0, dtype=torch.float64)


def first(r: Results) -> tuple[str, Tensor]:
    """The op's main result."""
    name = next(n for n in r if n.startswith("out"))
    return name, r[name]


def reals(t: Tensor) -> Tensor:
    """The numbers in float64, complex ones as a last dimension of two."""
    t = t.detach().resolve_conj()
    return (torch.view_as_real(t) if t.is_complex() else t).to(torch.float64)


def roundoff(t: Tensor) -> float:
    """Unit roundoff of a float's dtype; that of float32 for integers, whose generators are at least as fine."""
    facts = FACTS[str(t.dtype).removeprefix("torch.")]
    return facts.unit_roundoff if facts.is_inexact else 2.0**-24


def count(name: str, bad: Tensor, y: Tensor, what: str) -> Problems:
    """A problem that states how many elements are bad and shows the first, or []."""
    if not bool(bad.any()):
        return []
    value = y.expand(bad.shape)[bad].reshape(-1)[0].item()
    return [(name, f"{int(bad.sum())} of {bad.numel()} {what}, such as {value:.6g}")]


def coins(heads: Tensor, chance: float | Tensor, grain: float, row: int = 0) -> Observations:
    """Observations of heads and tails, each head with its chance. grain: how coarsely the generator may realise the chance."""
    y = heads.reshape(-1)
    if isinstance(chance, Tensor):
        p = chance.to(torch.float64).expand(heads.shape).reshape(-1)
        varied = bool((p != p[0]).any()) if p.numel() else False
    else:
        p, varied = torch.full(y.shape, float(chance), dtype=torch.float64), False
    low, high = torch.where(y, 1 - p, 0.0), torch.where(y, 1.0, 1 - p)
    likely = torch.maximum(p, 1 - p)
    tallies = None
    if not varied and p.numel():
        one = p[:1]
        tallies = Tallies(y.sum().to(torch.float64).view(1), torch.full_like(one, y.numel()), one - grain, one + grain)
    fuzzy = grain > 2.0**-20
    return Observations(
        low - grain if fuzzy else low,
        high + grain if fuzzy else high,
        y.to(torch.float64),
        fuzzy=fuzzy,
        peak=float(likely.max()) if p.numel() else 1.0,
        surprise=float(-torch.log(likely).sum()),
        spread=float((p * (1 - p)).mean()) / 4 if p.numel() else 1 / 12,
        row=row,
        covariate=p if varied else None,
        tallies=tallies,
    )
