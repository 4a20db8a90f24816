"""Measures how far the truth moves if operands, cotangents and intermediate results move by a rounding."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from parity.catalog.row import Quirk
from parity.core.case import Case
from parity.core.dtypes import FACTS, HALF, DtypeFacts
from parity.core.observer import Work
from parity.execution.execute import Named, Placed, Program
from parity.execution.inputs import Inputs, apply
from parity.oracle.float64 import Float64Results, run
from parity.oracle.rounding import Rounding
from parity.oracle.roundoffs import DOUBLE, perturbed, rounded_at_least, shifted
from parity.oracle.yardstick import LEAST_HALF, LEAST_SINGLE

PERTURBATIONS = 4  # samples of a sensitivity
NEIGHBOURS = 16  # elements whose movements in one sample stand for those of one element in all, and whose sizes for its size
KEPT = 1 << 15  # elements of a result whose changes are kept sample by sample
# torch.nn.functional checks some operands by assertions; its decompositions divide by the number of elements.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class Changes:
    """How a result moved in each sample of its sensitivity.

    moved: float64 [samples, elements], over the flattened real parts, 0 where a change is not finite. every: large results are
    sampled, one in so many elements is kept.
    """

    moved: Tensor
    every: int = 1


@dataclass(frozen=True, slots=True)
class RoundingEffect:
    """What rounding does to the results, by name.

    moved: the largest change of each element, 0 where it is not finite. unsettled: where rounding on the way decides whether
    the result is NaN (0 / 0 of a variance that is 0 only without rounding), or whether a kink passes an infinite cotangent.
    turned: where it decides which of NaN, Inf and -Inf the result is (Inf times a difference). changes: how each result moved,
    sample by sample. largest: the largest intermediate magnitude.
    """

    moved: dict[str, Tensor]
    unsettled: dict[str, Tensor]
    turned: dict[str, Tensor]
    changes: dict[str, Changes]
    largest: float


@dataclass(slots=True)
class Movements:
    """How the results moved in the samples taken so far, of rows and of functions, by name. moved: the largest change of each
    element, 0 where it is not finite; changes: a row for each sample, as in `Changes`; turned: as in `RoundingEffect`; largest:
    the largest magnitude on the way."""

    moved: dict[str, Tensor] = field(default_factory=dict)
    changes: dict[str, list[Tensor]] = field(default_factory=dict)
    turned: dict[str, Tensor] = field(default_factory=dict)
    largest: float = 0.0

    def add(self, name: str, signed: Tensor) -> None:
        """Add the change of a result in one sample."""
        change = signed.abs().to(torch.float64).nan_to_num_(0.0, 0.0, 0.0)
        self.moved[name] = torch.maximum(self.moved[name], change) if name in self.moved else change
        self.changes.setdefault(name, []).append(kept_of(signed))

    def turn(self, name: str, t: Tensor, at: Tensor) -> None:
        """Note where the result of one sample is an Inf, and that of the truth NaN or the other Inf. NaN in place of Inf says
        nothing: an operand that lies at the end of its domain was moved out of it, as 1 is of erfinv's."""
        if not at.is_complex() and bool((odd := torch.isinf(t) & ~at.isfinite() & (at != t)).any()):
            self.turned[name] = self.turned[name] | odd if name in self.turned else odd

    def of(self, name: str, elements: int, samples: int = 0) -> Changes | None:
        """The samples of a result with so many real parts, 0 in those that are not taken; None if it has none."""
        if not (rows := self.changes.get(name)):
            return None
        return Changes(torch.stack([*rows, *[torch.zeros_like(rows[0])] * (samples - len(rows))]), stride_of(elements))


@dataclass(slots=True)
class _Moves(Movements):
    """Those of a row. unsettled: as in `RoundingEffect`; halfway: `largest` of the forward alone; shy: whether a kernel
    of `MODE_DEPENDENT` was met."""

    unsettled: dict[str, Tensor] = field(default_factory=dict)
    halfway: float = 0.0
    shy: bool = False

    def copy(self) -> _Moves:
        """The same, to which further samples can be added."""
        changes = {n: list(rows) for n, rows in self.changes.items()}
        return replace(self, moved=dict(self.moved), unsettled=dict(self.unsettled), turned=dict(self.turned), changes=changes)


def kept_of(change: Tensor) -> Tensor:
    """The flattened real parts of one signed change, every `stride_of` of them."""
    real = torch.view_as_real(change.resolve_conj()) if change.is_complex() else change
    row = real.reshape(-1)
    return torch.nan_to_num(row[:: stride_of(row.numel())].to(torch.float64), 0.0, 0.0, 0.0)


def stride_of(elements: int) -> int:
    """One in how many elements of a result is kept of its changes."""
    return max(1, -(-elements // KEPT))


def least_of(f: DtypeFacts) -> float:
    """The smallest movement of a kernel's result, for numbers below the dtype's normal ones, divided by the rules' scale."""
    return f.smallest / (LEAST_HALF if f.name in HALF else LEAST_SINGLE)


def in_double(t: Tensor) -> Tensor:
    """A tensor in the oracle's arithmetic."""
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


@dataclass(slots=True, eq=False)
class Sensitivity:
    """How far results move if operands and cotangents move by u and intermediate results by `between`: samples taken one by
    one, and kept.

    Where the op refuses the moved operands, only rounding on the way remains as budget.
    """

    _p: Program
    _case: Case
    _inputs: Inputs
    _placed: Placed
    _cotangents: Sequence[Tensor] | None
    _center: Float64Results
    _u: float
    _between: float
    _work: Work | None = None
    _count: int = 0
    _saved: dict[str, Tensor] | None = None
    _least: float = field(init=False)
    _own_least: float = field(init=False)
    _fed: float = field(init=False)
    _infinite: bool = field(init=False)
    _taken: _Moves = field(init=False)

    def __post_init__(self) -> None:
        """Take the facts of the dtypes, and no sample yet."""
        facts = FACTS.get(self._case.dtype)
        self._least = least_of(facts) if facts is not None and facts.is_inexact else 0.0
        self._own_least = least_of(FACTS["float32"]) if facts is None or facts.name in HALF else self._least
        # Into a coarser operand, cotangents are rounded to its dtype before they are added, or their sum is.
        mixed = len({o.spec.dtype for o in self._inputs.operands if FACTS[o.spec.dtype].is_inexact}) > 1
        self._fed = self._between if mixed else self._u
        self._infinite = any(bool(torch.isinf(c.abs()).any()) for c in self._cotangents or ())
        self._taken = _Moves({n: torch.zeros(t.shape, dtype=torch.float64) for n, t in self._center.tensors.items()})

    def first(self, samples: int) -> RoundingEffect:
        """The first samples alone: no more than part of the effect, for less than its cost."""
        self._take(samples)
        return self._effect(self._taken, self._taken.largest)

    def taken(self, samples: int) -> tuple[RoundingEffect, RoundingEffect]:
        """(forward, forward + backward) by so many samples, and one more in which operands do not move: some encode a choice (a
        target of 1 or -1) that a movement destroys."""
        self._take(samples)
        whole = self._taken.copy()
        self._sample(whole, samples, samples + 1, still=True)
        moved = whole.moved
        if self._cotangents and (whole.shy or any(not bool(m.any()) for n, m in moved.items() if n.startswith("grad["))):
            for n, change in self._by_saving().items():
                moved[n] = torch.maximum(moved[n], change)
        return self._effect(whole, whole.halfway), self._effect(whole, whole.largest)

    def _effect(self, m: _Moves, largest: float) -> RoundingEffect:
        parts = {n: t.numel() * (2 if t.is_complex() else 1) for n, t in self._center.tensors.items()}
        kept = {n: c for n, elements in parts.items() if (c := m.of(n, elements)) is not None}
        return RoundingEffect(m.moved, m.unsettled, m.turned, kept, largest)

    def _take(self, samples: int) -> None:
        for k in range(self._count, samples):
            self._sample(self._taken, k, k, still=False)
        self._count = max(self._count, samples)

    def _sample(self, m: _Moves, k: int, key: int, still: bool) -> None:
        """Add one sample to these movements. key: of the roundings; still: operands do not move."""
        p, u, cotangents = self._p, self._u, self._cotangents
        # Singular values, eigenvalues and vectors are those of a matrix whose elements are all off by p(n) u of its norm, the
        # small ones too (LAPACK Users' Guide, 3rd ed., 1999, sections 4.7 and 4.9).
        by_norm, own = p.row.judged.by_norm, len(self._placed.views) - self._inputs.fed

        def move(t: Tensor, i: int) -> Tensor:
            if still or i in p.row.draws.choices:
                return t
            return (shifted if by_norm and i < own else perturbed)(t, u, 7 * k + i)

        turned = None if cotangents is None else [perturbed(in_double(c), self._fed, 7 * k + 5) for c in cotangents]
        # Strides can select a kernel without a derivative, and moved operands may leave the op's domain: then try again.
        ended: list[tuple[Named, float]] = []  # the forward's results, and the largest intermediate magnitude
        for keep_layout in (False, True):
            operands = replaced(p, self._inputs, self._placed, move, keep_layout)
            with Rounding(self._between, key, u, self._least, self._own_least) as mode:

                def end(outputs: Named, mode: Rounding = mode) -> None:
                    ended.append((outputs, mode.largest))

                mode.work = self._work

                try:
                    results = run(p, self._case, self._inputs, operands, turned, halfway=end)
                except REFUSALS:
                    results = ()
            if results:
                break
        if ended:
            results, m.halfway = results or ended[-1][0], max(m.halfway, ended[-1][1])
        m.largest, m.shy = max(m.largest, mode.largest), m.shy or mode.met_mode_dependent
        for n, t in results:
            at = self._center.tensors.get(n)
            if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                m.add(n, mode.unrounded(t) - at)
                m.turn(n, t, at)
                if self._infinite and n.startswith("grad["):
                    passed = (torch.isinf(t.abs()) ^ torch.isinf(at.abs())) & ~torch.isnan((t - at).abs())
                    m.unsettled[n] = m.unsettled[n] | passed if n in m.unsettled else passed
                if still:
                    lost = torch.isnan(t.abs()) != torch.isnan(at.abs())
                    m.unsettled[n] = m.unsettled[n] | lost if n in m.unsettled else lost

    def _by_saving(self) -> dict[str, Tensor]:
        """How far gradients move if the tensors that the forward saves for the backward pass are rounded.

        This is asked in two cases only: where no other rounding moves the gradients, and for kernels (`MODE_DEPENDENT`) whose
        gradients torch computes by another formula on a device than under the mode that rounds. For other kernels it would be
        wrong: amax, for example, compares the saved result with its operands to find the largest element.
        """
        if self._saved is None:
            between, least, center = self._between, self._least, self._center.tensors
            change = {n: t - center[n] for n, t in self._resaved(lambda t: rounded_at_least(t, between, 0, least)).items()}
            self._saved = {n: torch.nan_to_num(c.abs().to(torch.float64), 0.0, 0.0, 0.0) for n, c in change.items()}
        return self._saved

    def unsettled_by_saving(self) -> dict[str, Tensor]:
        """Where an infinite cotangent gives NaN, or does not, if what the forward saves is one of the dtype's numbers next to
        it: Inf times 1 - y^2 is NaN where tanh was rounded to 1."""
        dtype = getattr(torch, self._case.dtype)
        if not self._infinite or dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return {}
        found: dict[str, Tensor] = {}
        for way in (-1.0, 0.0, 1.0):
            by = 1.0 + way * FACTS[self._case.dtype].unit_roundoff
            for n, t in self._resaved(functools.partial(_next_number, by=by, dtype=dtype)).items():
                lost = torch.isnan(t.abs()) != torch.isnan(self._center.tensors[n].abs())
                found[n] = found[n] | lost if n in found else lost
        return found

    def _resaved(self, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The gradients, if the forward's own results are changed as it saves them for the backward pass."""
        given, center = {v.untyped_storage().data_ptr() for v in self._placed.views}, self._center.tensors

        def save(t: Tensor) -> Tensor:
            return t if t.dtype not in DOUBLE or t.untyped_storage().data_ptr() in given else change(t)

        results: Named = ()
        with contextlib.suppress(*REFUSALS), torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
            results = run(self._p, self._case, self._inputs, self._placed, self._cotangents)
        return {n: t for n, t in results if n.startswith("grad[") and center[n].shape == t.shape}


def _next_number(t: Tensor, by: float, dtype: torch.dtype) -> Tensor:
    return (t * by).to(dtype).to(t.dtype)


def replaced(
    p: Program, inputs: Inputs, placed: Placed, change: Callable[[Tensor, int], Tensor], keep_layout: bool = False
) -> Placed:
    """The operands with every one changed; one that is written into keeps its base.

    keep_layout: operands that share memory keep sharing it, and all copies of a number change alike, so that the same kernels
    run.
    """
    if p.row.forms.mutates:
        bases = tuple(change(b, i) for i, b in enumerate(placed.bases))
        first = inputs.operands[0].spec
        return Placed(bases, (apply(bases[0], first.layout, first.shape), *bases[1:]))
    moved, views = [], []
    for i, (base, view, o) in enumerate(zip(placed.bases, placed.views, inputs.operands)):
        if base is not view and (keep_layout or Quirk.MEMORY in p.row.quirks):
            moved.append(change(base, i))
            views.append(apply(moved[-1], o.spec.layout, o.spec.shape))
        else:
            moved.append(change(view, i))
            views.append(moved[-1])
    return Placed(tuple(moved), tuple(views))


def among_neighbours(squares: Tensor, samples: int) -> Tensor:
    """The usual variance of each element's neighbours, which are those of its row, of several rows if they are short: by their
    median, so that large ones do not stand for small ones. squares: the mean of each element's squared movements in so many
    samples. The median of the mean square of k normal numbers is (1 - 2 / 9 k)^3 of their variance (Wilson and Hilferty, Proc.
    Natl. Acad. Sci. 17 (1931))."""
    last = [math.prod(squares.shape[k:]) for k in range(squares.dim(), -1, -1)]
    rows = squares.reshape(-1, next((n for n in last if n >= NEIGHBOURS), last[-1]))
    usual = rows.median(-1, keepdim=True).values.div((1.0 - 2.0 / (9.0 * samples)) ** 3)
    return usual.expand_as(rows).reshape(squares.shape)
