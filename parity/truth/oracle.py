"""The truth: the same call in float64 on the CPU from the same rounded inputs, and how much it moves when they do.

Sensitivity of an element is the largest change of the truth under random relative perturbations of all operands and
cotangents by one unit roundoff; in backward also of every tensor that forward saved, because a device saves it rounded (so
that gradients which cancel get the scale of their summands). It stands for the condition of the problem at that element:
an error is measured against what rounding alone could do there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity.dtypes import FACTS
from parity.execute import Placed, Program, attribute
from parity.inputs import Inputs, apply, torch_word
from parity.truth.limited import Limited, Range
from parity.truth.protocol import Oracle
from parity.truth.rounding import extremes
from parity.truth.shaken import PERTURBATIONS, REFUSALS, Changes, Shaken, in_double, replaced, sensitivity
from parity.truth.single import Single
from parity.truth.spread import spreads
from parity.truth.wide import Truth, run, truth, widened
from parity.vocabulary import Case

# Samples of a sensitivity: fewer can only make an error look larger than it is, so that two are enough for what they pass.
SAMPLES = (2, PERTURBATIONS, 20)
FACTORS = ("alpha", "beta")  # of a sum, that are no tensors
WIDE = {"float16", "bfloat16", "float32"}


def _dense(placed: Placed) -> Placed:
    """The operands without layouts."""
    views = tuple(v.resolve_conj().resolve_neg().contiguous() for v in placed.views)
    return Placed(views, views)


def _floating(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _unsigned(p: Program) -> Program:
    """The program with the scalar factors of its sum as magnitudes."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return p.function(*args, **{k: abs(v) if k in FACTORS else v for k, v in kwargs.items()})

    return replace(p, function=function)


def _of_truth(p: Program) -> Program:
    """The program with the function that its row names for the truth, if it does; derivatives are functions of their own."""
    if p.row.oracle in ("wide", "exact") or p.function is not attribute(p.row.call):
        return p
    return replace(p, function=attribute(p.row.oracle))


class CaseOracle(Oracle):
    """The truth of one case and its conditioning, each computed when first asked for; None where the op cannot run in
    float64."""

    def __init__(self, p: Program, case: Case, inputs: Inputs, computes: torch.dtype | None) -> None:
        self._p, self._case, self._inputs, self._computes = _of_truth(p), case, inputs, computes
        self._made: Placed | None = None
        self._cotangents: Sequence[Tensor] | None = None
        self._expected: Sequence[Tensor] | None = None
        self._truth: Truth | None = None
        self._asked = False
        self._samples = SAMPLES[0]
        self._sensitivity: dict[tuple[float, float], tuple[Shaken, Shaken]] = {}
        self._variants: dict[str, dict[str, Tensor]] = {}
        self._healthy: dict[str, Tensor] | None = None
        self._limits: dict[tuple[Range, Range], dict[str, Tensor]] = {}
        self._spreads: dict[str, Tensor] | None = None

    @property
    def _placed(self) -> Placed:
        if self._made is None:
            self._made = widened(self._p, self._case, self._inputs, self._computes)
        return self._made

    @property
    def fed(self) -> int:
        """How many of the operands are cotangents or tangents of the function's own: 0 but for derivatives beyond the first."""
        return self._inputs.fed

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """All operands in the oracle's arithmetic, without the cotangents or tangents among them."""
        return self._placed.views[: len(self._placed.views) - self._inputs.fed]

    def expect(self, cotangents: Sequence[Tensor]) -> None:
        """Say before anything is asked that `differentiate` will follow with these cotangents: each run of the forward goes on
        to the backward then, which spares the backward a forward of its own."""
        self._expected = cotangents

    def differentiate(self, cotangents: Sequence[Tensor]) -> None:
        """Ask for gradients too, with these cotangents (CPU tensors of the outputs' shapes)."""
        if self._expected is not cotangents:
            self._asked = False
            self._sensitivity, self._variants, self._healthy, self._limits, self._spreads = {}, {}, None, {}, None
        self._cotangents = self._expected = cotangents

    @property
    def _whole(self) -> Sequence[Tensor] | None:
        """The cotangents that runs are made with."""
        return self._expected if self._cotangents is None else self._cotangents

    def truth(self, name: str) -> Tensor | None:
        """The truth of one result, or None."""
        if not self._asked:
            self._asked, self._truth = True, self._true()
            if self._truth is None and self._cotangents is None and self._expected is not None:
                self._expected = None  # it has a forward at most
                self._truth = self._true()
        return None if self._truth is None else self._truth.tensors.get(name)

    def _true(self) -> Truth | None:
        asked = self._p, self._case, self._inputs
        with contextlib.suppress(*REFUSALS):
            return truth(*asked, self._placed, self._whole)
        if not self._p.row.mutates and not self._p.row.memory:
            # Some kernels of the CPU take dense operands only in float64 (weights of transposed convolutions).
            with contextlib.suppress(*REFUSALS):
                dense = _dense(self._placed)
                found = truth(*asked, dense, self._whole)
                self._made = dense
                return found
        return None

    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """How much that result moves when operands move by u and intermediate results by `between`. Only for results that
        have a truth."""
        assert self._truth is not None
        found = self._shaken(u, between).moved.get(name)
        return torch.zeros(self._truth.tensors[name].shape, dtype=torch.float64) if found is None else found

    def changes(self, name: str, u: float, between: float) -> Changes | None:
        """How the result moved in each sample of a sensitivity."""
        return self._shaken(u, between).changes.get(name)

    def largest(self, u: float, between: float) -> float:
        """The largest magnitude that an operand or a cotangent holds, or that a kernel gave on the way."""
        fed = [extremes(v)[1] for v in (*self._placed.views, *(self._cotangents or ())) if _floating(v)]
        return max(self._shaken(u, between).largest, *fed, 0.0)

    def limited(self, name: str, inside: Range, between: Range) -> Tensor | None:
        """The result where every number on the way keeps within these ranges; None where nothing leaves them, or it does not
        run so."""
        if (inside, between) not in self._limits:
            found: list[tuple[str, Tensor]] = []
            with contextlib.suppress(*REFUSALS), Limited(inside, between) as mode:
                found += run(self._p, self._case, self._inputs, self._placed, self._whole, halfway=found.extend)
            self._limits[inside, between] = dict(found) if mode.met else {}
        return self._limits[inside, between].get(name)

    def spread(self, name: str) -> Tensor | None:
        """Which elements an operand's NaN or Inf may reach (`truth.spread`)."""
        if self._spreads is None:
            odd = [v for v in self._placed.views if _floating(v)]
            self._spreads = spreads(self._replaced, sum(int(_nonfinite(v.abs()).sum()) for v in odd))
        return self._spreads.get(name)

    def _replaced(self, which: int | None, number: float) -> dict[str, Tensor]:
        """All results with `number` in place of the NaN or Inf of this rank (None: of all), and 1 in place of all others."""
        before = 0

        def change(t: Tensor, i: int) -> Tensor:
            nonlocal before
            if not _floating(t):
                return t
            odd = _nonfinite(t.abs())
            if which is None:
                return torch.where(odd, number, t).to(t.dtype)
            rank = torch.cumsum(odd.reshape(-1), 0).view(odd.shape) - 1 + before
            before += int(odd.sum())
            return torch.where(odd, torch.where(rank == which, number, 1.0), t).to(t.dtype)

        return self._variant(f"stand-in {which} {number}", change)

    def holds(self, what: str) -> bool:
        """Whether an operand or a cotangent holds NaN ("nan"), or NaN or Inf ("nonfinite")."""
        test = torch.isnan if what == "nan" else _nonfinite
        return any(_floating(v) and bool(test(v.abs()).any()) for v in (*self._placed.views, *(self._cotangents or ())))

    def undefined(self, truth: Tensor) -> Tensor:
        """Where the truth is NaN though no operand that it comes from holds NaN: those at the same place, if operands broadcast
        to the result, else all of them."""
        fed = [v for v in (*self._placed.views, *(self._cotangents or ())) if _floating(v)]
        lost = torch.isnan(truth.abs())
        for v in fed:
            odd = torch.isnan(v)
            lost = lost & ~(odd.expand(truth.shape) if _broadcasts(odd.shape, truth.shape) else odd.any())
        return lost

    def repeats(self) -> bool:
        """Whether an operand or a cotangent is one number throughout, so that roundings are no chance."""
        fed = [v for v in (*self._placed.views, *(self._cotangents or ())) if _floating(v) and v.numel() > 1]
        return any(bool((v == v.reshape(-1)[0]).all()) for v in fed)

    def alike(self) -> bool:
        """Whether every operand and cotangent of more than one element is one number throughout: then all terms of a sum of
        their products are alike."""
        fed = [v for v in (*self._placed.views, *(self._cotangents or ())) if _floating(v) and v.numel() > 1]
        return all(bool((v == v.reshape(-1)[0]).all()) for v in fed)

    def grown(self, name: str) -> Tensor | None:
        """The magnitude of the result where no factor is smaller than 1: what a product comes to on the way, in whatever
        order."""
        found = self._variant("factors", lambda t, i: _factor(t)).get(name)
        return None if found is None else _size(found)

    def beside(self, truth: Tensor) -> tuple[Tensor, ...]:
        """The floating operands but the first that have the result's shape."""
        return tuple(v for v in self._placed.views[1:] if _floating(v) and v.shape == truth.shape)

    def ignores_a_product(self) -> bool:
        """Whether a factor of 0 lets a device leave a product out, with the NaN in it. That of alpha; for a beta of 0 torch's
        documentation of addmm and its like promises that no NaN or Inf of the input is seen."""
        return any(k == "alpha" and v == 0 for k, v in self._case.kwargs)

    def bias(self) -> float | None:
        """The largest magnitude that a sum of products adds at its end; 0 without one, None if the row has no place for it, or
        hands on more than that (addbmm adds up its batches)."""
        name = self._p.row.name.removeprefix("opinfo:").rpartition(".")[2].partition(":")[0]
        places = {"add": 0, "baddbmm": 0, "conv": 2, "linear": 2}
        place = None if name.startswith("addbmm") else next((at for word, at in places.items() if name.startswith(word)), None)
        if place is None:
            return None
        floats = [v for v in self._placed.views if _floating(v)]
        if len(floats) < max(3, place + 1):
            return 0.0
        added = floats[place]
        return float(torch.nan_to_num(added.abs(), 0.0, 0.0, 0.0).max()) if added.numel() else 0.0

    def coarsest(self) -> float:
        """The largest unit roundoff among the floating operands, 0 where all operands have the result's dtype."""
        own = {o.spec.dtype for o in self._inputs.operands if FACTS[o.spec.dtype].is_inexact}
        return max((FACTS[d].unit_roundoff for d in own), default=0.0) if len(own) > 1 else 0.0

    def of_one(self) -> bool:
        """Whether a single operand moves: the perturbations of two may cancel at an element, all of them, by chance."""
        return sum(_floating(v) for v in self._placed.views) == 1

    def beneath(self, index: int) -> tuple[Tensor, ...]:
        """The operands whose elements a derivative belongs to: the operand itself; for a cotangent, everything that it is the
        cotangent of."""
        views, fed = self._placed.views, self._inputs.fed
        return views[: len(views) - fed] if index >= len(views) - fed else (views[index],)

    def unsettled(self, name: str, u: float, between: float) -> Tensor | None:
        """Where rounding on the way decides whether a result is NaN; None where it nowhere does."""
        found = self._shaken(u, between).unsettled.get(name)
        return None if found is None or not bool(found.any()) else found

    def rounded_once(self, name: str) -> Tensor | None:
        """That result from the case's own operands, each kernel of the CPU computing in float32 and rounding once; None where
        it does not run so."""
        if self._healthy is None:
            bases = tuple(o.base.clone() for o in self._inputs.operands)
            views = tuple(apply(b, o.spec.layout, o.spec.shape) for b, o in zip(bases, self._inputs.operands))
            found: list[tuple[str, Tensor]] = []
            with contextlib.suppress(*REFUSALS), Single():
                asked = self._p, self._case, self._inputs, Placed(bases, views), self._whole
                found += run(*asked, torch_word, halfway=found.extend)
            self._healthy = dict(found)
        return self._healthy.get(name)

    def look_closer(self, most: int = SAMPLES[-1]) -> bool:
        """Take more samples of every sensitivity from now on, `most` at most; False where that is done already."""
        more = [n for n in SAMPLES if self._samples < n <= most]
        if not more:
            return False
        self._samples = more[0]
        self._sensitivity.clear()
        return True

    def _shaken(self, u: float, between: float) -> Shaken:
        assert self._truth is not None
        if (u, between) not in self._sensitivity:
            asked = self._p, self._case, self._inputs, self._placed, self._whole, self._truth
            self._sensitivity[u, between] = sensitivity(*asked, u, between, self._samples)
        forward, whole = self._sensitivity[u, between]
        return forward if self._cotangents is None else whole

    def magnitudes(self, name: str) -> tuple[Tensor, Tensor] | None:
        """(S, n) of a sum of products: the same sum over the magnitudes of its operands, and how many terms it has. None
        where the op does not run on them."""
        sums, counts = self._variant("magnitudes", _magnitude), self._variant("ones", _one)
        if name not in sums or name not in counts:
            return None
        s, n = _size(sums[name]), _size(counts[name])
        if not name.startswith("grad["):
            # Means divide their count away; their operand's size over the result's still tells it.
            sizes = [v.numel() for v in self._placed.views if _floating(v)]
            n = torch.clamp(n, min=max(sizes, default=1) / max(1, n.numel())) if len(sizes) == 1 else n
        return s, n

    def with_each_as(self, name: str, size: float) -> list[Tensor]:
        """What a sum over magnitudes gains where one floating operand after the other is `size` throughout instead of 0. The
        others count as 1 at least: of three factors, the product of two may be what is lost."""

        def change(t: Tensor, i: int, k: int, size: float) -> Tensor:
            return torch.full_like(t, size) if i == k and _floating(t) else _factor(t)

        gained = []
        for k in (k for k, v in enumerate(self._placed.views) if _floating(v)):
            ways = (self._variant(f"operand {k} as {x}", functools.partial(change, k=k, size=x)) for x in (size, 0.0))
            some, none = (found.get(name) for found in ways)
            if some is not None and none is not None:
                gained.append((some.abs() - none.abs()).to(torch.float64).clamp(min=0.0))
        return gained

    def flushed(self, name: str, flushes: Callable[[str], bool], result: str) -> Tensor | None:
        """The truth when subnormal operands count as zero, each where the device flushes its own dtype (cotangents have the
        result's); None where no operand holds one."""
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

    def amplified(self, name: str, u: float, between: float, times: float) -> Tensor | None:
        """How much that result moves where every rounding is so many times as large."""
        return self._shaken(times * u, times * between).moved.get(name)

    def small(self, name: str, flushes: Callable[[str], bool], result: str) -> Tensor | None:
        """Which elements an operand's subnormal number reaches, where the device flushes its dtype: as zero it may divide."""
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

        found = self._variant("small", spoil).get(name)
        return None if found is None else torch.isnan(found.abs())

    def _variant(self, word: str, change: Callable[[Tensor, int], Tensor]) -> dict[str, Tensor]:
        """All results of the same call on changed operands and cotangents."""
        if word not in self._variants:
            program = _unsigned(self._p) if word in ("magnitudes", "ones") else self._p
            fed = None if self._whole is None else [change(in_double(c), -1) for c in self._whole]
            found: list[tuple[str, Tensor]] = []
            with contextlib.suppress(*REFUSALS):
                placed = replaced(self._p, self._inputs, self._placed, change)
                found += run(program, self._case, self._inputs, placed, fed, halfway=found.extend)
            self._variants[word] = dict(found)
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
    return t.abs().to(t.dtype) if _floating(t) else t


def _factor(t: Tensor) -> Tensor:
    return t.abs().clamp(min=1.0).to(t.dtype) if _floating(t) else t


def _one(t: Tensor, i: int) -> Tensor:
    return torch.ones_like(t) if _floating(t) else t
