"""The truth: the same call in float64 on the CPU from the same rounded inputs, and how far it moves when they do.

The sensitivity of an element is the largest change of the truth under random relative perturbations of all operands and
cotangents by one unit roundoff. In a backward, every tensor saved by the forward moves too, because a device saves it rounded
(so gradients that cancel get the scale of their summands). The sensitivity represents the condition of the problem at that
element: an error is measured against what rounding alone could do there.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.catalog.row import Quirk
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.observer import Work
from parity.execution.execute import Placed, Program, attribute
from parity.execution.inputs import Inputs, apply, torch_word
from parity.oracle.float64 import Float64Results, in_float32, run, truth, widened
from parity.oracle.limited_range import Limited, Range
from parity.oracle.nonfinite_reach import Reach, spreads
from parity.oracle.protocol import Oracle
from parity.oracle.rounding import Rounding
from parity.oracle.roundoffs import extremes
from parity.oracle.sensitivity import PERTURBATIONS, REFUSALS, Changes, RoundingEffect, Sensitivity, in_double, replaced
from parity.oracle.summation import LONG, straying
from parity.oracle.yardstick import SCALE

# Samples of a sensitivity: fewer can only make an error ratio larger, so two are enough for results that pass with them.
SAMPLES = (2, PERTURBATIONS, 8, 20)
FACTORS = ("alpha", "beta")  # scalar factors of a sum
# Operators of all moved and limited runs of a case together, which take some 8 s. Under a mode torch differentiates running
# products by a loop over their factors, and does so twice for a second derivative.
OPERATORS = 1 << 17
HUGE = 1e150  # above all products of a few numbers of a dtype, or of their inverses


def _dense(placed: Placed) -> Placed:
    """The operands without layouts."""
    views = tuple(v.resolve_conj().resolve_neg().contiguous() for v in placed.views)
    return Placed(views, views)


def _floating(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _unsigned(p: Program, power: int) -> Program:
    """The program with the scalar factors of its sum as magnitudes, or as their squares."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return p.function(*args, **{k: abs(v) ** power if k in FACTORS else v for k, v in kwargs.items()})

    return replace(p, function=function)


def _of_truth(p: Program) -> Program:
    """The program with the function that its row names for the truth, if any; a derivative's program has its own function."""
    if p.row.judged.oracle in ("wide", "exact") or p.function is not attribute(p.row.call):
        return p
    return replace(p, function=attribute(p.row.judged.oracle))


class CaseOracle(Oracle):
    """The truth of one case and its conditioning, computed on first use; None if the op does not run in float64."""

    def __init__(self, p: Program, case: Case, inputs: Inputs, computes: torch.dtype | None) -> None:
        self._p, self._case, self._inputs, self._computes = _of_truth(p), case, inputs, computes
        self._widened: Placed | None = None
        self._cotangents: Sequence[Tensor] | None = None
        self._expected: Sequence[Tensor] | None = None
        self._truth: Float64Results | None = None
        self._computed = False
        self._work = Work(OPERATORS)
        self._samples, self._first = SAMPLES[0], 0
        self._sensitivity: dict[tuple[float, float], Sensitivity] = {}
        self._effects: dict[tuple[float, float], tuple[RoundingEffect, RoundingEffect]] = {}
        self._variants: dict[str, dict[str, Tensor]] = {}
        self._healthy: dict[str, Tensor] | None = None
        self._limits: dict[tuple[Range, Range], dict[str, Tensor]] = {}
        self._spreads: dict[str, Reach] | None = None

    @property
    def _placed(self) -> Placed:
        if self._widened is None:
            self._widened = widened(self._p, self._case, self._inputs, self._computes)
        return self._widened

    @property
    def fed(self) -> int:
        """Number of operands that are cotangents or tangents: 0 except for derivatives beyond the first."""
        return self._inputs.fed

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """All operands in the oracle's arithmetic, without the cotangents or tangents among them."""
        return self._placed.views[: len(self._placed.views) - self._inputs.fed]

    def expect(self, cotangents: Sequence[Tensor]) -> None:
        """Announce that `differentiate` will follow with these cotangents: each forward then continues with its backward."""
        self._expected = cotangents

    def differentiate(self, cotangents: Sequence[Tensor]) -> None:
        """Compute gradients too, with these cotangents (CPU tensors of the shapes of the outputs)."""
        if self._expected is not cotangents:
            self._computed = False
            self._sensitivity, self._effects, self._variants, self._limits = {}, {}, {}, {}
            self._healthy = self._spreads = None
        self._cotangents = self._expected = cotangents

    @property
    def _all_cotangents(self) -> Sequence[Tensor] | None:
        """The cotangents for runs: the current ones, else the announced ones."""
        return self._expected if self._cotangents is None else self._cotangents

    def runs(self) -> bool:
        """Whether the function runs in float64."""
        return self._results() is not None

    def truth(self, name: str) -> Tensor | None:
        """The truth of one result, or None."""
        results = self._results()
        return None if results is None else results.tensors.get(name)

    def _results(self) -> Float64Results | None:
        if not self._computed:
            self._computed, self._truth = True, self._compute_truth()
            if self._truth is None and self._cotangents is None and self._expected is not None:
                self._expected = None  # the backward may be what fails
                self._truth = self._compute_truth()
        return self._truth

    def _compute_truth(self) -> Float64Results | None:
        asked = self._p, self._case, self._inputs
        with contextlib.suppress(*REFUSALS):
            return truth(*asked, self._placed, self._all_cotangents)
        if not self._p.row.forms.mutates and Quirk.MEMORY not in self._p.row.quirks:
            # In float64 some CPU kernels accept only dense operands (weights of transposed convolutions).
            with contextlib.suppress(*REFUSALS):
                dense = _dense(self._placed)
                results = truth(*asked, dense, self._all_cotangents)
                self._widened = dense
                return results
        return None

    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """How far each element moves if operands move by u and intermediate results by `between`. Only for results with a
        truth."""
        assert self._truth is not None
        moved = self._effect(u, between).moved.get(name)
        return torch.zeros(self._truth.tensors[name].shape, dtype=torch.float64) if moved is None else moved

    def changes(self, name: str, u: float, between: float) -> Changes | None:
        """How the result moved in each sample of the sensitivity."""
        return self._effect(u, between).changes.get(name)

    def largest(self, u: float, between: float) -> float:
        """The largest finite magnitude of an operand, a cotangent or an intermediate result."""
        fed = [extremes(v)[1] for v in (*self._placed.views, *(self._cotangents or ())) if _floating(v)]
        return max(self._effect(u, between).largest, *fed, 0.0)

    def limited(self, name: str, inside: Range, between: Range) -> Tensor | None:
        """The result with every intermediate number limited to these ranges; None if nothing leaves them or the call fails."""
        if (inside, between) not in self._limits:
            results: list[tuple[str, Tensor]] = []
            with contextlib.suppress(*REFUSALS), Limited(inside, between) as mode:
                mode.work = self._work
                results += run(self._p, self._case, self._inputs, self._placed, self._all_cotangents, halfway=results.extend)
            self._limits[inside, between] = dict(results) if mode.left_range else {}
        return self._limits[inside, between].get(name)

    def lost_by_rounding(self, name: str, ends: tuple[Range, Range], u: float, between: float) -> Tensor | None:
        """As `Oracle` has it; the roundings are as large as `SCALE` allows."""
        word = f"rounded {ends} {u} {between}"
        if word not in self._variants:
            lost: dict[str, Tensor] = {}
            for key in range(PERTURBATIONS):
                results: list[tuple[str, Tensor]] = []
                with contextlib.suppress(*REFUSALS), Rounding(SCALE * between, key, SCALE * u), Limited(*ends) as mode:
                    mode.work = self._work
                    results += run(self._p, self._case, self._inputs, self._placed, self._all_cotangents)
                for n, t in results:
                    lost[n] = _nonfinite(t.abs()) | lost.get(n, torch.zeros(t.shape, dtype=torch.bool))
            self._variants[word] = lost
        return self._variants[word].get(name)

    def spread(self, name: str) -> Reach | None:
        """Which elements the NaN and Inf of operands and cotangents reach (`nonfinite_reach.spreads`)."""
        if self._spreads is None:
            odd = [v for v in (*(self._all_cotangents or ()), *self._placed.views) if _floating(v)]
            largest = max((extremes(v)[1] for v in odd), default=0.0)
            self._spreads = spreads(self._replaced, sum(int(_nonfinite(v.abs()).sum()) for v in odd), largest)
        return self._spreads.get(name)

    def _replaced(self, which: int | None, number: float) -> dict[str, Tensor]:
        """All results with `number` in place of the NaN or Inf of this rank (None: of all), and 1 in place of the others. The
        cotangents' come first, as `_variant` changes them."""
        before = 0

        def change(t: Tensor, i: int) -> Tensor:
            nonlocal before
            if not _floating(t):
                return t
            odd = _nonfinite(t.abs())
            held = min(number, torch.finfo(t.dtype).max)  # the magnitude of a complex number may exceed what its parts can hold
            if which is None:
                return t.masked_fill(odd, held)
            rank = torch.cumsum(odd.reshape(-1), 0).view(odd.shape) - 1 + before
            before += int(odd.sum())
            return t.masked_fill(odd, 1.0).masked_fill(odd & (rank == which), held)

        return self._variant(f"stand-in {which} {number}", change)

    def holds(self, what: str) -> bool:
        """Whether an operand or a cotangent holds NaN ("nan"), Inf ("inf"), or either ("nonfinite")."""
        test = {"nan": torch.isnan, "inf": torch.isinf, "nonfinite": _nonfinite}[what]
        return any(_floating(v) and bool(test(v.abs()).any()) for v in (*self._placed.views, *(self._cotangents or ())))

    def undefined(self, truth: Tensor) -> Tensor:
        """Where the truth is NaN though the operands it depends on hold none.

        Those are the elements at the same place if operands broadcast to the result, else all elements.
        """
        fed = [v for v in (*self._placed.views, *(self._cotangents or ())) if _floating(v)]
        lost = torch.isnan(truth.abs())
        for v in fed:
            odd = torch.isnan(v)
            lost = lost & ~(odd.expand(truth.shape) if _broadcasts(odd.shape, truth.shape) else odd.any())
        return lost

    def different_numbers(self) -> float:
        """How many different numbers the operand or cotangent with the fewest holds, in effect: 1 if most of its elements are
        one number, else as many equally frequent ones would be equal in as many of all pairs of elements."""
        fed = [v for v in (*self._placed.views, *(self._cotangents or ())) if _floating(v) and v.numel() > 1]
        sizes = [v[v.isfinite() & (v != 0)].abs() for v in fed]  # zeros have no roundings
        shares = [np.unique(x.double().numpy(), return_counts=True)[1] / x.numel() for x in sizes if x.numel() > 1]
        return min((1.0 if s.max() > 0.5 else 1.0 / float(s @ s) for s in shares), default=math.inf)

    def runs_of_equals(self) -> int:
        """How many runs of equal numbers the operands and cotangents with more than one element hold at most, 1 if all are
        constant: the terms of a sum of products are then equal for long. 0 if a run is short."""
        fed = [v.reshape(-1) for v in (*self._placed.views, *(self._cotangents or ())) if _floating(v) and v.numel() > 1]
        runs = [(1 + int((v[1:] != v[:-1]).sum()), v.numel()) for v in fed]
        return 0 if any(n > 1 and n > elements / LONG for n, elements in runs) else max((n for n, _ in runs), default=1)

    def grown(self, name: str) -> Tensor | None:
        """The result from finite magnitudes of at least 1: a bound on the partial results of a product, in any order."""
        result = self._variant("factors", lambda t, i: _factor(t)).get(name)
        return None if result is None else _size(result)

    def shrunk(self, name: str) -> Tensor | None:
        """The result from finite magnitudes of at most 1, and for a gradient times its own operand, by which it may be divided:
        a lower bound on the partial results of a product, in any order."""
        result = self._variant("fractions", lambda t, i: _fraction(t)).get(name)
        if result is None:
            return None
        own = self.operands_of_derivative(int(name[5:-1])) if name.startswith("grad[") else ()
        return math.prod((_size(_fraction(x)) for x in own if x.shape == result.shape), start=_size(result))

    def shrunk_with_inf(self, name: str) -> Tensor | None:
        """In each element of a sum of products, a lower bound on the products of the finite factors below 1 of every term that
        holds one Inf; at least 1 where none does, or where a term holds two. None without an Inf."""

        def inverse(t: Tensor, i: int) -> Tensor:
            return torch.where(torch.isinf(t.abs()), HUGE, 1.0 / _fraction(t)).to(t.dtype) if _floating(t) else t

        result = self._variant("inverses", inverse).get(name) if self.holds("inf") else None
        if result is None:
            return None
        least = HUGE / _size(result)
        return torch.where(least > 1.0 / HUGE, least, 1.0)

    def operands_of_shape(self, truth: Tensor) -> tuple[Tensor, ...]:
        """The floating operands, except the first, that have the result's shape."""
        return tuple(v for v in self._placed.views[1:] if _floating(v) and v.shape == truth.shape)

    def ignores_a_product(self) -> bool:
        """Whether a factor of 0 lets a device skip a product, with the NaN in it.

        That holds for alpha; for a beta of 0, torch documents (addmm and others) that NaN and Inf of the input are ignored.
        """
        return any(k == "alpha" and v == 0 for k, v in self._case.kwargs)

    def bias(self) -> float | None:
        """Max of the absolute bias; 0 if absent, None if unknown: the row names none, or kernels pass on more (addbmm)."""
        place = self._p.row.judged.bias
        if place is None:
            return None
        floats = [v for v in self._placed.views if _floating(v)]
        if len(floats) < max(3, place + 1):
            return 0.0
        added = floats[place]
        return float(torch.nan_to_num(added.abs(), 0.0, 0.0, 0.0).max()) if added.numel() else 0.0

    def coarsest(self) -> float:
        """The largest unit roundoff among the floating operands; 0 if all have one dtype."""
        own = {o.spec.dtype for o in self._inputs.operands if FACTS[o.spec.dtype].is_inexact}
        return max((FACTS[d].unit_roundoff for d in own), default=0.0) if len(own) > 1 else 0.0

    def has_one_operand(self) -> bool:
        """Whether there is a single floating operand. The perturbations of two may cancel at an element in all samples."""
        return sum(_floating(v) for v in self._placed.views) == 1

    def operands_of_derivative(self, index: int) -> tuple[Tensor, ...]:
        """The operands that a derivative belongs to: operand `index`, or, for a cotangent, all operands of the function."""
        views, fed = self._placed.views, self._inputs.fed
        return views[: len(views) - fed] if index >= len(views) - fed else (views[index],)

    def unsettled(self, name: str, u: float, between: float) -> Tensor | None:
        """Where rounding on the way decides whether a result is NaN or Inf; None if nowhere."""
        doubtful = self._effect(u, between).unsettled.get(name)
        saved = self._sensitivity[u, between].unsettled_by_saving().get(name)
        doubtful = saved if doubtful is None else doubtful if saved is None else doubtful | saved
        return None if doubtful is None or not bool(doubtful.any()) else doubtful

    def turned(self, name: str, u: float, between: float) -> Tensor | None:
        """Where rounding on the way decides which of NaN, Inf and -Inf a result is; None if nowhere."""
        return self._effect(u, between).turned.get(name) if self.holds("inf") else None

    def rounded_once(self, name: str) -> Tensor | None:
        """The result if each CPU kernel computes in float32 and rounds once; None if the call fails."""
        if self._healthy is None:
            bases = tuple(o.base.clone() for o in self._inputs.operands)
            views = tuple(apply(b, o.spec.layout, o.spec.shape) for b, o in zip(bases, self._inputs.operands))
            results: list[tuple[str, Tensor]] = []
            with contextlib.suppress(*REFUSALS), in_float32() as mode:
                mode.work = self._work
                asked = self._p, self._case, self._inputs, Placed(bases, views), self._all_cotangents
                results += run(*asked, torch_word, halfway=results.extend)
            self._healthy = dict(results)
        return self._healthy.get(name)

    def take_more_samples(self, most: int = SAMPLES[-1]) -> bool:
        """Use more samples of every sensitivity from now on, at most `most`; False if there are no more."""
        more = [n for n in SAMPLES if self._samples < n <= most]
        if not more:
            return False
        self._samples = more[0]
        self._effects.clear()
        return True

    @contextlib.contextmanager
    def sampled(self, first: int) -> Iterator[bool]:
        """Inside, so many first samples of every sensitivity stand for all. Yields whether that saves runs."""
        saves = self._samples == SAMPLES[0] and not self._effects
        self._first = first if saves else 0
        try:
            yield saves
        finally:
            self._first = 0

    def _effect(self, u: float, between: float) -> RoundingEffect:
        assert self._truth is not None
        if (u, between) not in self._sensitivity:
            asked = self._p, self._case, self._inputs, self._placed, self._all_cotangents, self._truth
            self._sensitivity[u, between] = Sensitivity(*asked, u, between, self._work)
        if self._first:
            return self._sensitivity[u, between].first(self._first)
        if (u, between) not in self._effects:
            self._effects[u, between] = self._sensitivity[u, between].taken(self._samples)
        forward, whole = self._effects[u, between]
        return forward if self._cotangents is None else whole

    def magnitudes(self, name: str) -> tuple[Tensor, Tensor] | None:
        """(S, n) of a sum of products: the same sum over finite magnitudes, and its number of terms; None if the op fails on
        them."""
        sums, counts = self._variant("magnitudes", _magnitude), self._variant("ones", _one)
        if name not in sums or name not in counts:
            return None
        s, n = _size(sums[name]), _size(counts[name])
        if not name.startswith("grad["):
            # A mean divides by its count; the ratio of the sizes of operand and result gives it.
            sizes = [v.numel() for v in self._placed.views if _floating(v)]
            n = torch.clamp(n, min=max(sizes, default=1) / max(1, n.numel())) if len(sizes) == 1 else n
        return s, n

    def wander(self, name: str) -> Tensor | None:
        """As `Oracle` has it: as a random walk does, and farther where an operand is sorted."""
        squares = self._variant("squares", lambda t, i: _magnitude(t, i) ** 2 if _floating(t) else t).get(name)
        if squares is None:
            return None
        fed = [v for v in (*self._placed.views, *(self._all_cotangents or ())) if v.is_floating_point()]
        return straying(fed) * _size(squares).sqrt()

    def gain_per_operand(self, name: str) -> list[Tensor]:
        """For each floating operand, the change of a sum of products over magnitudes if it is 1 throughout instead of 0.

        The other operands count as at least 1: of three factors, the product of two may be lost.
        """

        def change(t: Tensor, i: int, k: int, size: float) -> Tensor:
            return torch.full_like(t, size) if i == k and _floating(t) else _factor(t)

        gained = []
        for k in (k for k, v in enumerate(self._placed.views) if _floating(v)):
            ways = (self._variant(f"operand {k} as {x}", functools.partial(change, k=k, size=x)) for x in (1.0, 0.0))
            some, none = (results.get(name) for results in ways)
            if some is not None and none is not None:
                gained.append(_size(some - none))
        return gained

    def flushed(self, name: str, flushes: Callable[[str], bool], result: str) -> Tensor | None:
        """The truth with subnormal operands as zero, each if the device flushes its dtype (cotangents: `result`); else None."""
        dtypes = [o.spec.dtype for o in self._inputs.operands]
        tiny = [FACTS[d].tiny if FACTS[d].is_inexact and flushes(d) else 0.0 for d in (*dtypes, result)]
        if not any(
            bool(((part.abs() > 0) & (part.abs() < least)).any())
            for v, least in zip(self._placed.views, tiny)
            if _floating(v) and least
            for part in _parts(v)
        ):
            return None

        def flush(t: Tensor, i: int) -> Tensor:
            if not _floating(t):
                return t
            kept = [torch.where(part.abs() < tiny[i], 0.0 * part, part) for part in _parts(t)]
            return torch.complex(*kept) if t.is_complex() else kept[0]

        return self._variant("flushed", flush).get(name)

    def amplified(self, name: str, u: float, between: float, times: float, most: int = 0) -> Tensor | None:
        """How far the result moves if every rounding is `times` as large, by all samples."""
        return self._effect(times * u, times * between).moved.get(name)

    def small(self, name: str, flushes: Callable[[str], bool], result: str) -> Tensor | None:
        """Which elements an operand's subnormal number reaches, if the device flushes it: as zero it may be a divisor."""
        dtypes = [o.spec.dtype for o in self._inputs.operands]
        tiny = [FACTS[d].tiny if FACTS[d].is_inexact and flushes(d) else 0.0 for d in (*dtypes, result)]
        if self.flushed(name, flushes, result) is None:
            return None

        def spoil(t: Tensor, i: int) -> Tensor:
            if not _floating(t):
                return t
            parts = _parts(t)
            small = sum((((p.abs() > 0) & (p.abs() < tiny[i])).to(torch.float64) for p in parts), torch.zeros_like(parts[0]))
            return torch.where(small > 0, float("nan"), t).to(t.dtype)

        spoiled = self._variant("small", spoil).get(name)
        return None if spoiled is None else torch.isnan(spoiled.abs())

    def _variant(self, word: str, change: Callable[[Tensor, int], Tensor]) -> dict[str, Tensor]:
        """All results of the same call on changed operands and cotangents, cached by `word`."""
        if word not in self._variants:
            power = {"magnitudes": 1, "ones": 1, "squares": 2}.get(word)
            program = self._p if power is None else _unsigned(self._p, power)
            fed = None if self._all_cotangents is None else [change(in_double(c), -1) for c in self._all_cotangents]
            results: list[tuple[str, Tensor]] = []
            with contextlib.suppress(*REFUSALS):
                placed = replaced(self._p, self._inputs, self._placed, change)
                results += run(program, self._case, self._inputs, placed, fed, halfway=results.extend)
            self._variants[word] = dict(results)
        return self._variants[word]


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(to)))


def _parts(t: Tensor) -> tuple[Tensor, ...]:
    return (t.real, t.imag) if t.is_complex() else (t,)


def _size(t: Tensor) -> Tensor:
    """Magnitudes in float64."""
    return (t if t.is_complex() else t.to(torch.float64)).abs().to(torch.float64)


def _nonfinite(t: Tensor) -> Tensor:
    return ~torch.isfinite(t)


def _magnitude(t: Tensor, i: int) -> Tensor:
    return t.abs().nan_to_num(0.0, 0.0, 0.0).to(t.dtype) if _floating(t) else t


def _factor(t: Tensor) -> Tensor:
    return t.abs().nan_to_num(1.0, 1.0, 1.0).clamp(min=1.0).to(t.dtype) if _floating(t) else t


def _fraction(t: Tensor) -> Tensor:
    if not _floating(t):
        return t
    size = t.abs()
    return torch.where((size > 0.0) & (size < 1.0), size, 1.0).to(t.dtype)


def _one(t: Tensor, i: int) -> Tensor:
    return torch.ones_like(t) if _floating(t) else t
