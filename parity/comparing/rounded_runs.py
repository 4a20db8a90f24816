"""Measures what rounding explains: a program in float64, and the same with every step rounded by chance, as often as is asked.

The spread of the rounded runs around the exact one is the yardstick of a device's error: `Spread` says how many times as far
off as a typical rounded run a result is, and how far it leans to one side.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.core.dtypes import FACTS
from parity.oracle.rounding import Rounding
from parity.oracle.roundoffs import unit_roundoff
from parity.oracle.sensitivity import least_of
from parity.oracle.step_dtypes import Steps, in_double
from parity.oracle.yardstick import HALF_STEP


@contextlib.contextmanager
def by_chance(dtypes: Mapping[str, list[str]], coarsest: torch.dtype, key: int, times: float = 1.0) -> Iterator[None]:
    """Everything inside is computed in float64, with each step rounded by chance in the dtype that it has in `dtypes` (as
    `Recorded` has it). key: another one for every run; times: by so many roundings."""
    u = times * min(unit_roundoff(coarsest), FACTS["float32"].unit_roundoff)  # kernels add no coarser
    step = functools.partial(Steps(dtypes).rounding, u, times, HALF_STEP)
    with Rounding(u, key, u, inside_least=least_of(FACTS["float32"]), steps=step), in_double(coarsest):
        yield


def student(p: float, freedom: int) -> float:
    """The number that Student's t with `freedom` degrees of freedom exceeds, to either side, with probability p."""
    z, n = -statistics.NormalDist().inv_cdf(p / 2.0), float(freedom)
    first = (z**3 + z) / 4.0
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96.0
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384.0
    return z + first / n + second / n**2 + third / n**3


@dataclass(frozen=True, slots=True)
class RoundingDistance:
    """How far a result is off. ratio: its error's norm in units of a typical rounded run's; lean: the factor that all its
    elements have in common, in the same units, with its sign; cpu_lean: that of its difference to the CPU's result; lost: it
    has NaN or Inf where the CPU has none. error: norm of the error over the truth's; explained: that of a typical rounded
    run."""

    ratio: float
    lean: float = 0.0
    cpu_lean: float = 0.0
    lost: bool = False
    error: float = 0.0
    explained: float = 0.0


def _flat(t: Tensor) -> Tensor:
    return (torch.view_as_real(t) if t.is_complex() else t).detach().to(torch.float64).flatten()


def off(
    got: Tensor, cpu: Tensor, truth: Tensor, runs: Sequence[Tensor], least: float, past: ErrorHistory | None = None
) -> RoundingDistance:
    """How far `got` is off, compared with the rounded runs and the CPU's own result. All are of the same shape and on the CPU.

    least: the smallest norm of an error that rounding explains. past: the errors that were typical in steps before. Elements
    that are not finite on the CPU are left out.
    """
    d, c, t = _flat(got), _flat(cpu), _flat(truth)
    usable = c.isfinite() & t.isfinite()
    if bool((usable & ~d.isfinite()).any()):
        return RoundingDistance(math.inf, lost=True)
    others = [_flat(r) for r in runs if r.shape == truth.shape]
    for r in others:
        usable = usable & r.isfinite()
    d, c, t = d[usable], c[usable], t[usable]
    if not d.numel():
        return RoundingDistance(0.0)
    errors = torch.stack([c - t, *(r[usable] - t for r in others)])
    size = float(t.norm())
    typical = float(errors.square().sum(1).mean().sqrt())
    error = float((d - t).norm())
    scale = size or 1.0
    common = (errors @ t) / scale**2
    common_typical = float(common.square().mean().sqrt())
    if past is not None:
        typical, common_typical = past.widened(typical / scale, common_typical, scale)
    typical = max(typical, least)
    common_typical = max(common_typical, least / scale / d.numel() ** 0.5)
    ratio = error / typical if typical else (math.inf if error else 0.0)
    by = scale**2 * common_typical
    lean, cpu_lean = (float((d - x) @ t) / by if by else 0.0 for x in (t, c))
    return RoundingDistance(ratio, lean, cpu_lean, False, error / scale, typical / scale)


class ErrorHistory:
    """The typical errors of one tensor in the steps before, relative to its size: a step whose few rounded runs happen to lie
    close together borrows their width."""

    KEPT = 8  # steps whose typical errors are borrowed
    FEWEST = 12  # steps that a steady lean needs
    LONGEST = 192  # steps that are looked at for it

    def __init__(self) -> None:
        self._norms: list[float] = []
        self._commons: list[float] = []
        self._leans: list[float] = []

    def widened(self, norm: float, common: float, size: float) -> tuple[float, float]:
        """(norm, common factor) of a typical error, absolute and relative; they are noted."""
        found = tuple(
            max(now, statistics.median(kept)) if kept else now for now, kept in ((norm, self._norms), (common, self._commons))
        )
        for kept, now in ((self._norms, norm), (self._commons, common)):
            kept.append(now)
            del kept[: -self.KEPT]
        return found[0] * size, found[1]

    def steady(self, cpu_lean: float, p: float) -> tuple[float, float]:
        """(mean of `RoundingDistance.cpu_lean` over the last steps with this one, what its size exceeds with probability p by
        chance alone). Of the last `FEWEST` steps, twice as many, and so on, those in which it stands out most."""
        self._leans.append(cpu_lean)
        found = statistics.fmean(self._leans), math.inf
        n = self.FEWEST
        while n <= len(self._leans):
            last = self._leans[-n:]
            mean, chance = statistics.fmean(last), student(p, n - 1) * statistics.stdev(last) / n**0.5
            found = max(found, (mean, chance), key=lambda mc: abs(mc[0]) - mc[1])
            n = len(self._leans) if n < len(self._leans) < 2 * n else 2 * n
        del self._leans[: -self.LONGEST]
        return found
