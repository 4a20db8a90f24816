"""Which elements of a result are nobody's promise, and which are known less well than rounding alone says: asked element by
element, and shown by experiment or by the element's own operands.

This is asked of results that are outside their budget, and where somebody wants to know what an agreement excludes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parity.dtypes import FACTS, HALF, DtypeFacts
from parity.judging.bench import Bench
from parity.judging.budget import Array, Budget
from parity.judging.measures import Mask, parts
from parity.judging.promises import PARTIAL, paired, roundoff
from parity.truth.limited import Range, range_of
from parity.vocabulary import OpClass

MOVED = "moved by numbers that leave the range on the way"
OFF = 0.25  # of the budget: what moves by less is held to it as it is
ORDERS = 2.0  # how much farther than one order of the same arithmetic another one may move an element


@dataclass(frozen=True, slots=True)
class Excuses:
    """All arrays have the shape of the truth's real parts.

    free: where the class of the result (NaN, Inf, finite) is nobody's promise; unspoken: where the result is not at all.
    shown: where an experiment with this very case shows either. moved: how far an element moves where numbers on the way are
    limited to their dtype's range; None where none does. why: the reasons, in words.
    """

    free: Mask
    unspoken: Mask
    shown: Mask
    moved: Array | None
    why: str

    def widened(self, b: Budget) -> Budget:
        """The budget with what the range may move."""
        return b if self.moved is None else b.wider(MOVED, ORDERS * self.moved)


class _Found:
    """Excuses as they come together."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.free, self.unspoken, self.shown = (np.zeros(shape, dtype=bool) for _ in range(3))
        self.moved: Array | None = None
        self.why: list[str] = []

    def excuse(self, what: Mask, where: Mask, why: str, shown: bool = False) -> None:
        """Add to `free` or `unspoken` (what)."""
        if where.any():
            what |= where
            self.shown |= where if shown else False
            self.why.append(why)


def excuses(bench: Bench, b: Budget, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> Excuses:
    """What is excused of one result, of whatever value the device gave.

    Gradients at an operand's own NaN or Inf, of whatever order (that of a gradient with respect to its cotangent is the
    gradient again); complex numbers that float64's own formula makes NaN of what is none (Inf - Inf on the way); results at an
    operand's NaN, and NaN that spreads, where the tables say that they may; sums and products whose magnitudes leave the range;
    and whatever moves where numbers on the way are limited to the range of their dtype.
    """
    found = _Found(parts(truth).shape)
    _nonfinite(found, bench, truth, name, f, pass_)
    _products(found, bench, truth, name, f, pass_)
    small = bench.oracle.small(name, lambda dtype: _flushes(bench, dtype), f.name) if f.is_inexact else None
    if small is not None and small.shape == truth.shape:
        found.excuse(found.free, _where(small, truth), "an operand's subnormal number may count as zero", True)
    rounds = bench.row.rule not in (OpClass.EXACT, OpClass.SELECTION) or pass_ == "backward"
    if rounds and b.certain is None and bench.oracle.truth(name) is not None:
        _range(found, bench, b, truth, name, f, pass_)
        _unsettled(found, bench, truth, name, f, pass_)
    return Excuses(found.free, found.unspoken, found.shown, found.moved, "; ".join(dict.fromkeys(found.why)))


def _nonfinite(found: _Found, bench: Bench, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> None:
    """NaN and Inf that go in, or that complex arithmetic makes."""
    row, tables, oracle = bench.row, bench.tables, bench.oracle
    if oracle.holds("nonfinite"):
        policy = tables.special(row.name, row.rule, "nonfinite_spread")
        spreads = policy == "any" or (policy == "any_with_nan" and oracle.holds("nan")) or oracle.ignores_a_product()
        if spreads:
            found.excuse(found.free, _reached(bench, truth, name), "how NaN and Inf spread is nobody's promise here", True)
        if f.kind == "complex" and (row.rule is OpClass.COMPOSITE or pass_ == "backward"):  # C99's annex G, or as it comes
            found.excuse(found.free, _reached(bench, truth, name), "complex arithmetic at Inf is nobody's promise", True)
        if name.startswith("grad["):
            for own in oracle.beneath(int(name[5:-1])):
                if own.shape == truth.shape and (own.is_floating_point() or own.is_complex()):
                    found.excuse(found.unspoken, _where(~torch.isfinite(own.abs()), truth), "gradients at NaN and Inf")
    if f.kind == "complex":
        found.excuse(found.unspoken, _where(oracle.undefined(truth), truth), "complex arithmetic makes NaN of numbers")
    if tables.special(row.name, row.rule, "at_nan") == "any":
        for own in oracle.beside(truth):
            found.excuse(found.unspoken, _where(torch.isnan(own.abs()), truth), "gradients at NaN")


def _flushes(bench: Bench, dtype: str) -> bool:
    return bench.tables.flushes(dtype, bench.row.name, bench.row.rule)


def _reached(bench: Bench, truth: Tensor, name: str) -> Mask:
    """The elements that an operand's NaN or Inf may reach; all where that is not known."""
    reached = bench.oracle.spread(name)
    known = reached is not None and reached.shape == truth.shape
    return _where(reached, truth) if known and reached is not None else np.ones(parts(truth).shape, dtype=bool)


def _products(found: _Found, bench: Bench, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> None:
    """Products and sums whose partial results may leave the range, in whatever order they are taken."""
    row, oracle = bench.row, bench.oracle
    most = (f if narrow(bench, pass_) else max(f, FACTS["float32"], key=lambda facts: facts.max)).max
    grown = oracle.grown(name) if bench.tables.special(row.name, row.rule, "partial_overflow") == "any" else None
    if grown is not None and grown.shape == truth.shape:
        found.excuse(found.free, paired(grown, truth) > most, "partial results leave the range", True)
    sums = oracle.magnitudes(name) if row.rule is OpClass.CONTRACTION else None
    if sums is not None and sums[0].shape == truth.shape:
        found.excuse(found.free, paired(sums[0], truth) > most / PARTIAL, "partial sums leave the range", True)


def _range(found: _Found, bench: Bench, b: Budget, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> None:
    """The truth with every number on the way limited to the range of the dtype that a device keeps it in. What an overflow
    moves may become anything, because another order of the same arithmetic makes NaN of it, or a number; what an underflow
    moves is off by that."""
    inside, between = ranges(bench, f, pass_)
    over = bench.oracle.limited(name, inside.above, between.above)
    below = [bench.oracle.limited(name, inside.below, between.below)]
    below += [bench.oracle.limited(name, inside.upward, between.upward)] if inside.grid or between.grid else []
    if over is not None and over.shape == truth.shape:
        lost = _moved(truth, over, f) > OFF * b.total
        found.excuse(found.unspoken, lost, "numbers on the way leave the range", True)
    for under in below:
        if under is None or under.shape != truth.shape:
            continue
        moved = _moved(truth, under, f)
        found.excuse(found.unspoken, np.isinf(moved), "numbers on the way fall below the range", True)
        moved = np.where(np.isinf(moved), 0.0, moved)
        if moved.any():
            found.moved = moved if found.moved is None else np.maximum(found.moved, moved)
        if (moved > OFF * b.total).any():
            found.why.append("numbers on the way fall below the range")


def _moved(truth: Tensor, limited: Tensor, f: DtypeFacts) -> Array:
    """How far a limited run moves each element; Inf where its class is another. Both ends of the result's own range count as
    they come."""
    most = range_of(f, False).most
    before, after = (np.where(np.abs(x) >= most, np.copysign(np.inf, x), x) for x in (parts(truth), parts(limited)))
    with np.errstate(invalid="ignore"):
        moved = np.abs(after - before)
    alike = (before == after) | (np.isnan(before) & np.isnan(after))
    found: Array = np.where(alike, 0.0, np.nan_to_num(moved, nan=np.inf))
    return found


def ranges(bench: Bench, f: DtypeFacts, pass_: str) -> tuple[Range, Range]:
    """The ranges of (steps inside a kernel, what one kernel hands to the next) for a result of this dtype."""

    def of(facts: DtypeFacts) -> Range:
        return range_of(facts, bench.tables.flushes(facts.name, bench.row.name, bench.row.rule))

    single = FACTS["float32"] if f.name in HALF else f
    inside = f if pass_ in bench.row.accumulates else single
    return of(inside), of(f if narrow(bench, pass_) else single)


def narrow(bench: Bench, pass_: str) -> bool:
    """Whether a half-precision kernel hands on numbers in the half type on the way to this result. Formulas of second
    derivatives call one kernel after another."""
    return bench.row.rounds_between or pass_ in bench.row.accumulates or bench.oracle.chains or bool(bench.oracle.fed)


def _unsettled(found: _Found, bench: Bench, truth: Tensor, name: str, f: DtypeFacts, pass_: str) -> None:
    doubtful = bench.oracle.unsettled(name, *roundoff(bench.row, f, pass_))
    if doubtful is not None:
        found.excuse(found.unspoken, _where(doubtful, truth), "rounding on the way decides whether it is NaN", True)


def _where(places: Tensor, truth: Tensor) -> Mask:
    """Places of a result in the shape of its real parts."""
    return paired(places.to(torch.float64), truth) > 0.0


