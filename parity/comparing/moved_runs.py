"""Runs of a function on the CPU in which the result of every kernel is moved by a roundoff or two: what roundings explain, for
the price of a plain run each.

Measures what rounding explains: a program in float64, and the same with every step rounded by chance, as often as is asked.

The spread of the rounded runs around the exact one is the yardstick of a device's error: `Spread` says how many times as far
off as a typical rounded run a result is, and how far it leans to one side.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.comparing.subject import Subject, forward, gradients, known, tracked_outputs, word
from parity.comparing.truth import seeded
from parity.core.dtypes import FACTS, HALF
from parity.core.observer import Operators
from parity.core.results import Measure, Status, Verdict
from parity.oracle.kernels import EXACT_KERNELS
from parity.oracle.rounding import Rounding
from parity.oracle.roundoffs import perturb, unit_roundoff
from parity.oracle.sensitivity import least_of
from parity.oracle.step_dtypes import Steps, in_double
from parity.oracle.yardstick import FAR, HALF_STEP, MOVED_SUM, OWN_MOVEMENT, STEP, tolerance_by

# Operators whose results are sums of products of two operands, or of the elements of one.
ATEN_SUMS = (
    *("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "linear", "linear_backward", "matmul", "sum"),
    *("convolution", "_convolution", "convolution_overrideable", "convolution_backward", "convolution_backward_overrideable"),
    *("conv1d", "conv2d", "conv3d", "cudnn_convolution", "cudnn_convolution_transpose", "embedding_dense_backward"),
    *("_mps_convolution", "mps_convolution_backward", "_mps_convolution_transpose", "mps_convolution_transpose_backward"),
)  # fmt: skip
# And those that sum besides.
ATEN_CHAINS = frozenset((*ATEN_SUMS, "mean", *(f"native_{n}_norm_backward" for n in ("batch", "group", "layer"))))


class Moved(Operators):
    """Moves the results of all kernels that round by `STEP` roundoffs of their dtype, to either side by chance. key: another
    one for each run. Those of long sums move by as much as one chain of additions loses. halves: whether one was in a half
    type."""

    def __init__(self, key: int) -> None:
        super().__init__()
        self._key = 7919 * key
        self.halves = False

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        results = tree_leaves(out)
        self.halves |= any(isinstance(t, Tensor) and word(t.dtype) in HALF for t in results)
        if func.is_view or name.rstrip("_") in EXACT_KERNELS:
            return out
        for t in results:
            f = FACTS.get(word(t.dtype)) if isinstance(t, Tensor) and t.layout is torch.strided else None
            if f is not None and t.numel() and (t.is_floating_point() or t.is_complex()):
                self._key += 1
                u = STEP * f.unit_roundoff
                if name in ATEN_CHAINS:
                    u = max(u, MOVED_SUM * math.sqrt(_terms((args, kwargs), t)) * FACTS["float32"].unit_roundoff)
                numbers = t.values() if t.is_nested else t
                perturb(numbers, u, self._key, numbers)
        return out

    def operand(self, t: Tensor) -> Tensor:
        """A copy of an operand, moved as a result would be."""
        self._key += 1
        return moved(t, self._key)


def moved(t: Tensor, key: int, u: float | None = None) -> Tensor:
    """A copy of a tensor moved by `STEP` roundoffs of its dtype, or by as many times u, to either side by chance: one would be
    rounded back half the time. What does not round is only copied."""
    f, t = FACTS.get(word(t.dtype)), t.detach()
    with torch.utils._python_dispatch._disable_current_modes():
        if f is None or t.layout is not torch.strided or not (t.is_floating_point() or t.is_complex()):
            return t.clone()
        copy = torch.empty_like(t)
        perturb(t, STEP * (f.unit_roundoff if u is None else u), key, copy)
    return copy


def moved_run(run: Callable[..., Sequence[Tensor]], operands: Sequence[Tensor], key: int) -> Sequence[Tensor]:
    """The results of a function on the CPU, with its operands and the results of all its kernels moved. key: another one for
    every run."""
    given = [moved(t, 101 * key + k) for k, t in enumerate(operands)]
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes(), Moved(key + 1):
        return run(*given)


def _terms(given: Any, t: Tensor) -> float:
    """About how many products each element of a result adds: of two matrices exactly as many, 1 without a sum."""
    sizes = sorted(x.numel() for x in tree_leaves(given) if isinstance(x, Tensor))[-2:]
    return max(1.0, math.sqrt(math.prod(sizes) / t.numel()) if len(sizes) == 2 else sum(sizes) / t.numel())


def moved_results(
    s: Subject, backward: bool, fed: Sequence[Tensor], mode: Moved, moves_operands: bool = False
) -> dict[str, Tensor]:
    """All results of one moved run. moves_operands: whether inputs, parameters and cotangents are moved as well."""
    put = mode.operand if moves_operands else torch.clone
    with seeded(), mode:
        run = forward(s, put, backward)
        grads = gradients(run, tracked_outputs(run), [put(c) for c in fed]) if fed else ()
    return {n: t.detach() for n, t in (*run.outputs, *run.written, *grads)}


class Screened(NamedTuple):
    """What moved runs say of results. passed: the verdicts of those that they explain; far: whether another as a whole is far
    outside; runs: of the whole function, where it is, and in half types where a result differs as no honest device's does."""

    passed: Mapping[str, Verdict]
    far: bool = False
    runs: Sequence[Mapping[str, Tensor]] = ()


def screened(
    pairs: Mapping[str, tuple[Tensor, Tensor]],
    most: int,
    run: Callable[[int], Mapping[str, Tensor] | None],
    off: Callable[[Tensor, Tensor, Sequence[Tensor]], float],
    by: tuple[str, str, str],
) -> Screened:
    """Of pairs of the device's and the CPU's result those that moved runs explain, with how far off each is. most: of the runs;
    run: makes the one with a number, from 1, or None if it cannot; off: of a pair and its moved results, at most 1 if these
    explain it; by: the screen's name, the row of the yardstick, and the reason of the verdicts. No more are made where a result
    as a whole is far outside: it is for the judge, and so may the others be."""
    runs, far = list[Mapping[str, Tensor]](), False
    done: dict[str, Verdict] = {}
    while len(done) < len(pairs) and len(runs) < most and not far and (made := run(len(runs) + 1)) is not None:
        runs.append(made)
        for key in [k for k in pairs if k not in done]:
            share = off(*pairs[key], [r[key] for r in runs if key in r])
            if share <= 1.0:
                m = Measure(key, share=share, screen=by[0], total=pairs[key][1].numel())
                done[key] = Verdict(Status.AGREE, by[2], m, tolerance_by(by[1]))
        far = any(far_off(*pairs[key], runs[0].get(key)) for key in pairs if key not in done)
    return Screened(done, far, runs if far else ())


def far_off(got: Tensor, cpu: Tensor, moved: Tensor | None) -> bool:
    """Whether a result as a whole is so far off that no other moved run explains it."""
    if moved is None or moved.shape != cpu.shape:
        return False
    error, movement = (float((x - cpu).abs().nan_to_num(0.0, 0.0, 0.0).norm()) for x in (got, moved))
    return 0.0 < FAR * OWN_MOVEMENT * movement < error


def comparable(a: Tensor, b: Tensor) -> bool:
    """Whether two results are of numbers that round, and are not equal already."""
    if not (known(a) and known(b)) or a.dtype != b.dtype or a.shape != b.shape or not a.numel():
        return False
    return (a.is_floating_point() or a.is_complex()) and not torch.equal(a, b)


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
