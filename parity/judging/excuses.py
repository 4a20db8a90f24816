"""Finds the elements of a result that are unspecified, or known less well than rounding alone suggests.

Each excuse follows from an experiment or from the operands of the element. Excuses are computed for results that are outside
their budget, and where somebody asks what an agreement rules out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parity.core.dtypes import FACTS, HALF, DtypeFacts
from parity.judging.bench import Bench
from parity.judging.budget import Array, Budget
from parity.judging.measures import Mask, parts
from parity.judging.promises import PARTIAL, paired
from parity.judging.rules import rule_of, rule_of_pass
from parity.oracle.limited_range import Range, range_of

MOVED = "moved by numbers that leave the range on the way"
SPREAD = "how NaN and Inf spread is nobody's promise here"
DRAWS = 16  # runs that lose only some of the numbers below the range, or round them to either side
OFF = 0.25  # of the budget: a smaller change needs no excuse
VANISHED = 0.5  # of an element: one that changes by more when numbers are flushed consists of them
ORDERS = 2.0  # times the movement in one order of the arithmetic: the largest movement in another order


@dataclass(frozen=True, slots=True)
class Excuses:
    """What is excused of one result; arrays have the shape of the truth's real parts.

    ignore_nonfinite: the result may be NaN or Inf, whatever the truth is.
    ignore: the value is unspecified.
    shown: elements where an experiment with this very case shows either.
    moved: how far an element moves if numbers on the way are limited to the range of their dtype; None if none does.
    why: the reasons, in words.
    """

    ignore_nonfinite: Mask
    ignore: Mask
    shown: Mask
    moved: Array | None
    why: str

    def widened(self, b: Budget) -> Budget:
        """The budget plus what the limited range may move."""
        return b if self.moved is None else b.wider(MOVED, ORDERS * self.moved)


class _ExcuseBuilder:
    """Collects excuses."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.ignore_nonfinite, self.ignore, self.shown = (np.zeros(shape, dtype=bool) for _ in range(3))
        self.moved: Array | None = None
        self.why: list[str] = []

    def excuse(self, what: Mask, where: Mask, why: str, shown: bool = False) -> None:
        """Add the elements `where` to `ignore_nonfinite` or `ignore` (what). shown: by an experiment."""
        if where.any():
            what |= where
            self.shown |= where if shown else False
            self.why.append(why)

    def move(self, moved: Array, b: Budget, why: str) -> None:
        """Add how far elements may move."""
        if moved.any():
            self.moved = moved if self.moved is None else np.maximum(self.moved, moved)
        if (moved > OFF * b.total).any():
            self.why.append(why)


def excuses(bench: Bench, b: Budget, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> Excuses:
    """The elements of one result that a device may get wrong, with the reasons. They follow from the case, not from what the
    device returned.

    Excused are:
      - gradients of any order that depend on their own operand where it is NaN or Inf,
      - complex numbers for which the formula itself gives NaN in float64 (Inf - Inf on the way),
      - the spreading of an operand's NaN or Inf, if the tolerance tables say that nothing is promised; what it certainly
        reaches is NaN or Inf by every algorithm,
      - sums and products of finite numbers whose magnitudes leave the dtype's range,
      - elements that change when all numbers on the way are limited to the range of their dtype.
    """
    builder = _ExcuseBuilder(parts(truth).shape)
    _nonfinite(builder, bench, truth, name, f, pass_)
    _products(builder, bench, b, truth, name, f, pass_)
    small = bench.oracle.small(name, lambda dtype: _flushes(bench, dtype), f.name) if f.is_inexact else None
    if small is not None and small.shape == truth.shape:
        builder.excuse(builder.ignore_nonfinite, _where(small, truth), "an operand's subnormal number may count as zero", True)
    if rule_of_pass(bench.row, pass_).rounds and b.certain is None and bench.oracle.truth(name) is not None:
        _range(builder, bench, b, truth, name, f, pass_)
        _unsettled(builder, bench, truth, name, f, pass_)
    return Excuses(
        builder.ignore_nonfinite, builder.ignore, builder.shown, builder.moved, "; ".join(dict.fromkeys(builder.why))
    )


def _nonfinite(builder: _ExcuseBuilder, bench: Bench, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> None:
    """Excuse NaN and Inf of operands, and NaN that complex arithmetic makes."""
    row, tables, oracle = bench.row, bench.tables, bench.oracle
    if oracle.holds("nonfinite"):
        policy = tables.special(row.name, row.rule, "nonfinite_spread")
        spreads = policy == "any" or (policy == "any_with_nan" and oracle.holds("nan")) or oracle.ignores_a_product()
        certain, possible = _reached(bench, truth, name)
        certain &= policy != "any_with_nan" or not oracle.holds("inf")  # -Inf masks what a NaN would reach
        undecided = ~certain & ~np.isfinite(parts(truth))  # a product by 0, which some algorithms skip
        if spreads:
            builder.excuse(builder.ignore_nonfinite, possible, SPREAD, True)
            builder.excuse(builder.ignore, possible & undecided, SPREAD, True)
        if f.kind == "complex" and (rule_of(row).free_at_infinity or pass_ == "backward"):
            builder.excuse(builder.ignore_nonfinite, possible, "complex arithmetic at Inf is nobody's promise", True)
        if name.startswith("grad["):
            for own in oracle.operands_of_derivative(int(name[5:-1])):
                if own.shape == truth.shape and (own.is_floating_point() or own.is_complex()):
                    odd = _where(~torch.isfinite(own.abs()), truth) & (certain | undecided)
                    builder.excuse(builder.ignore, odd, "gradients at NaN and Inf")
    if f.kind == "complex":
        freed = builder.ignore_nonfinite if rule_of(row).sums_products else builder.ignore
        builder.excuse(freed, _where(oracle.undefined(truth), truth), "complex arithmetic makes NaN of numbers")
    if tables.special(row.name, row.rule, "at_nan") == "any":
        kernel = row.family == "gradients"  # whose own gradients need not read what is NaN
        derived = oracle.operands_of_derivative(int(name[5:-1])) if name.startswith("grad[") and not kernel else ()
        for own in (*oracle.operands_of_shape(truth), *derived):
            if own.shape == truth.shape:
                builder.excuse(builder.ignore, _where(torch.isnan(own.abs()), truth), "gradients at NaN")


def _flushes(bench: Bench, dtype: str) -> bool:
    return bench.tables.flushes(dtype, bench.row.name, bench.row.rule)


def _reached(bench: Bench, truth: Tensor, name: str) -> tuple[Mask, Mask]:
    """The elements that NaN and Inf of the operands certainly reach (none of a matrix: elimination may leave them out), and
    those that they may reach. None and all if that is unknown."""
    reach, shape = bench.oracle.spread(name), parts(truth).shape
    if reach is None or reach.possible.shape != truth.shape:
        return np.zeros(shape, dtype=bool), np.ones(shape, dtype=bool)
    possible = _where(reach.possible, truth)
    return (np.zeros_like(possible) if rule_of(bench.row).keeps_samples else _where(reach.certain, truth)), possible


def _products(builder: _ExcuseBuilder, bench: Bench, b: Budget, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> None:
    """Excuse products and sums whose partial results may leave the range in some order."""
    row, oracle = bench.row, bench.oracle
    kept = f if narrow(bench, pass_) else max(f, FACTS["float32"], key=lambda facts: facts.max)
    most = kept.max
    any_order = bench.tables.special(row.name, row.rule, "partial_overflow") == "any"
    grown, shrunk = (oracle.grown(name), oracle.shrunk(name)) if any_order else (None, None)
    if grown is not None and grown.shape == truth.shape:
        builder.excuse(builder.ignore_nonfinite, paired(grown, truth) > most, "partial results leave the range", True)
    if shrunk is not None and shrunk.shape == truth.shape:
        size = np.nan_to_num(np.abs(parts(truth)), nan=0.0, posinf=0.0)
        below = paired(shrunk, truth) < kept.tiny
        builder.move(np.where(below, size, 0.0), b, "partial results fall below the range")
        flushed = below & ~np.isfinite(parts(truth))  # Inf times what counts as 0
        builder.excuse(builder.ignore_nonfinite, flushed, "partial results fall below the range", True)
    with_inf = oracle.shrunk_with_inf(name) if rule_of(row).sums_products else None
    if with_inf is not None and with_inf.shape == truth.shape:
        least = kept.tiny if _flushes(bench, f.name) else kept.smallest
        below = ~np.isfinite(parts(truth)) & (paired(with_inf, truth) < least)
        builder.excuse(builder.ignore_nonfinite, below, "Inf times a product that falls below the range", True)
    sums = oracle.magnitudes(name) if rule_of(row).sums_products else None
    if sums is not None and sums[0].shape == truth.shape:
        builder.excuse(builder.ignore_nonfinite, paired(sums[0], truth) > most / PARTIAL, "partial sums leave the range", True)


def _range(builder: _ExcuseBuilder, bench: Bench, b: Budget, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> None:
    """Excuse what changes if every number on the way is limited to the range of the dtype in which a device keeps it.

    An element that an overflow moves may become anything: another order of the same arithmetic gives NaN, or a number. An
    element that an underflow moves may be off by that much.
    """
    inside, between = ranges(bench, f, pass_)
    leaves = bench.oracle.limited(name, inside, between) is not None  # at either end, in one run
    over = bench.oracle.limited(name, inside.above, between.above) if leaves else None
    below = [bench.oracle.limited(name, inside.below, between.below) if leaves else None]
    flushed = not (inside.grid or between.grid)
    if below[0] is not None:  # else no number is so small, and none is rounded up either
        below += [bench.oracle.limited(name, Range(), between.below)]  # kernels that are wider inside
        below += [] if flushed else [bench.oracle.limited(name, inside.upward, between.upward)]
        below += [bench.oracle.limited(name, inside.some(n), between.some(n)) for n in range(1, DRAWS + 1)]
    if over is not None and over.shape == truth.shape:
        lost = _moved(truth, over, f) > OFF * b.total
        _lost(builder, truth, over, lost, "numbers on the way leave the range")
    if f.name in HALF and narrow(bench, pass_):
        roundoff = rule_of_pass(bench.row, pass_).roundoff(bench.row, f, pass_)
        rounded = bench.oracle.lost_by_rounding(name, (inside.above, between.above), *roundoff)
        if rounded is not None and rounded.shape == truth.shape:
            lost = _where(rounded, truth) & np.isfinite(parts(truth))
            builder.excuse(builder.ignore_nonfinite, lost, "a rounding on the way may leave the range", True)
    if f.name in HALF and not narrow(bench, pass_) and bench.oracle.holds("inf"):
        passed = bench.oracle.limited(name, inside.below, range_of(f, _flushes(bench, f.name)).below)
        if passed is not None and passed.shape == truth.shape:
            lost = np.isinf(parts(truth)) & np.isnan(parts(passed))
            builder.excuse(builder.ignore_nonfinite, lost, "Inf times what kernels pass on as 0 in the half type", True)
    for under in below:
        if under is None or under.shape != truth.shape:
            continue
        moved = _moved(truth, under, f)
        gone = np.isinf(moved)
        if flushed:  # such an element may also be a quotient by numbers that count as 0
            gone |= (moved > OFF * b.total) & (moved >= VANISHED * np.abs(parts(truth)))
        _lost(builder, truth, under, gone, "numbers on the way fall below the range")
        builder.move(np.where(np.isinf(moved), 0.0, moved), b, "numbers on the way fall below the range")


def _lost(builder: _ExcuseBuilder, truth: Tensor, limited: Tensor, where: Mask, why: str) -> None:
    """Excuse elements that a limited run changes: their value, or only which NaN or Inf it is if that run says so too."""
    stays = ~np.isfinite(parts(truth)) & ~np.isfinite(parts(limited))
    builder.excuse(builder.ignore, where & ~stays, why, True)
    builder.excuse(builder.ignore_nonfinite, where & stays, why, True)


def _moved(truth: Tensor, limited: Tensor, f: DtypeFacts) -> Array:
    """How far a limited run moves each element; Inf if its class changes. Both ends of the result's own range are limited
    alike."""
    most = range_of(f, False).most
    before, after = (np.where(np.abs(x) >= most, np.copysign(np.inf, x), x) for x in (parts(truth), parts(limited)))
    with np.errstate(invalid="ignore"):
        moved = np.abs(after - before)
    alike = (before == after) | (np.isnan(before) & np.isnan(after))
    distance: Array = np.where(alike, 0.0, np.nan_to_num(moved, nan=np.inf, posinf=np.inf))
    return distance


def ranges(bench: Bench, f: DtypeFacts, pass_: str) -> tuple[Range, Range]:
    """(range of the steps inside a kernel, range of what kernels pass to each other) for a result of this dtype."""

    def of(facts: DtypeFacts) -> Range:
        return range_of(facts, _flushes(bench, facts.name))

    float32 = FACTS["float32"] if f.name in HALF else f
    inside = f if pass_ in bench.row.judged.accumulates else float32
    return of(inside), of(f if narrow(bench, pass_) else float32)


def narrow(bench: Bench, pass_: str) -> bool:
    """Whether half-precision kernels pass numbers in the half type to each other on the way to this result.

    Formulas of second derivatives call one kernel after another.
    """
    return (
        bench.row.judged.rounds_between
        or pass_ in bench.row.judged.accumulates
        or bench.oracle.chains
        or bool(bench.oracle.fed)
    )


def _unsettled(builder: _ExcuseBuilder, bench: Bench, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> None:
    """Excuse elements for which rounding on the way decides whether they are NaN, or which Inf."""
    roundoff = rule_of_pass(bench.row, pass_).roundoff(bench.row, f, pass_)
    doubtful = bench.oracle.unsettled(name, *roundoff)
    if doubtful is not None:
        builder.excuse(builder.ignore, _where(doubtful, truth), "rounding on the way decides whether it is NaN or Inf", True)
    turned = bench.oracle.turned(name, *roundoff)
    if turned is not None:  # Inf times a number that may be of either sign, or 0
        builder.excuse(
            builder.ignore_nonfinite, _where(turned, truth), "the way of adding decides which NaN or Inf it is", True
        )


def _where(places: Tensor, truth: Tensor) -> Mask:
    """A mask over elements in the shape of the real parts."""
    return paired(places.to(torch.float64), truth) > 0.0
