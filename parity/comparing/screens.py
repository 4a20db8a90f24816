"""Cheap screens: which results of an operator, or of a large function, need no truth, because roundings alone explain how they
differ from the CPU's.

Three questions, each dearer than the one before, and none as dear as a truth: whether the results are as near as one rounding
brings them; for sums of products, whether the error is inside what sums of that length lose in any order; and whether it is as
large as the CPU's own results move if operands and kernels move by a roundoff. Each bound lies inside that of the judge.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.checks.operators import OperatorCall, StridedOperand, run_on
from parity.comparing.meter import Meter
from parity.comparing.moved_runs import ATEN_SUMS, Moved, Screened, comparable, moved_results, screened
from parity.comparing.subject import Subject, word
from parity.core.dtypes import FACTS, HALF
from parity.core.results import Raised
from parity.execution import execute as ex
from parity.oracle.sensitivity import NEIGHBOURS
from parity.oracle.yardstick import LEAN, NEAR_MOVEMENT, ODD, OPERATOR_SUM, OWN_MOVEMENT, OWN_ULP, SUM_ULP

FEW = 16  # elements from which on a common factor of all errors shows
RUNS = 2  # with everything moved by a roundoff or two
MOST = 4  # of a whole function, for elements that happen to move little in both
LARGE = 1 << 18  # elements of a function's operands and results from which on moved runs come before the truth
# The screen of what they explain, its row and its reason.
BY = "movement", "own movement", "no farther from the CPU's result than roundings move it"
CACHED = 1 << 16  # elements that are compared at a time
NUMBERED = ("alpha", "beta")  # factors of the sum, which are not squared


def is_settled(got: Tensor, cpu: Tensor, ratio: float = 1.0) -> bool:
    """Whether two results are equal, or differ by roundings alone: no element is far off and, in half types, where a fault of
    a percent is as small as a rounding, the errors have no factor in common. ratio: how far off an element may be, in units of
    what one operator's roundings explain."""
    if got.shape != cpu.shape or got.dtype != cpu.dtype:
        return False
    if torch.equal(got, cpu):
        return True
    if not cpu.is_floating_point() and not cpu.is_complex():
        return False
    return _is_near(got, cpu, ratio) and (word(cpu.dtype) not in HALF or not _leans(got, cpu))


def _is_near(got: Tensor, cpu: Tensor, ratio: float = 1.0, more: Tensor | None = None) -> bool:
    """Whether no element is off by more than is allowed. The arguments are those of `_allowed`."""
    error, allowed = _allowed(got, cpu, ratio, more)
    return bool((error <= allowed).all())  # NaN is not


def _allowed(
    got: Tensor, cpu: Tensor, ratio: float = 1.0, more: Tensor | None = None, sums: float = SUM_ULP
) -> tuple[Tensor, Tensor]:
    """The errors of all elements, and what is allowed: `ratio` times the roundings of one operator, and `more`, a bound of each
    element's real and imaginary part. sums: roundings of the largest element, which sums may lose in any other. An error is
    infinite where only one side is finite, or the others differ."""
    d, c = _parts(got), _parts(cpu)
    if not cpu.numel():
        return d, c
    info, size = torch.finfo(cpu.dtype), c.abs()
    top = size.max()
    if not bool(top.isfinite()):
        finite = d.isfinite() & c.isfinite()
        same = (d == c) | (d.isnan() & c.isnan())
        d, c = torch.where(finite, d, torch.where(same, 0.0, torch.inf)), torch.where(finite, c, 0.0)
        size = c.abs()
        top = size.max()
    allowed = size.mul_(ratio * info.eps * OWN_ULP).add_(ratio * info.eps * sums * top + ratio * info.tiny)
    allowed = allowed if more is None else allowed.add_(more)
    return d.sub(c).abs_(), allowed


def _leans(got: Tensor, cpu: Tensor) -> bool:
    """Whether the errors of all elements have a factor in common, besides that of independent roundings of half an ULP, each
    relative to its own element. True also where there are too few elements to decide."""
    d, c = (_parts(x).to(torch.float64).flatten() for x in (got, cpu))
    usable = d.isfinite() & c.isfinite()
    d, c = d[usable], c[usable]
    size = float(c.square().sum())
    if d.numel() < FEW or size == 0.0:
        return not torch.equal(d, c)
    common = abs(float(((d - c) * c).sum())) / size
    eps = torch.finfo(cpu.dtype).eps
    alone = eps * float(c.pow(4).sum()) ** 0.5 / size
    return bool(common > LEAN * max(alone, eps / d.numel() ** 0.5))


class Sums:
    """What the orders of addition explain in sums of products. The number of terms is counted once for equal calls."""

    def __init__(self) -> None:
        self._terms: dict[object, list[float]] = {}

    def left(self, call: OperatorCall, pairs: Sequence[tuple[int, Tensor, Tensor]]) -> list[int]:
        """Which of the results of a call they do not explain, by their places in `pairs`: (number of the result, the device's,
        the CPU's).

        An element may be off by OPERATOR_SUM sqrt(n) u max(|sum|, 2 sqrt(sum of squares)) besides the rounding of a result. The
        tables' bound for sums of products has the sum of magnitudes there (Higham and Mary, SIAM J. Sci. Comput. 41 (2019)
        A2815), which is sqrt(n) times as large for terms of both signs: their partial sums stay below twice the root of the
        sum of squares, nearly always.
        """
        every = list(range(len(pairs)))
        if call.base_name not in ATEN_SUMS or any(name in call.kwargs for name in NUMBERED):
            return every
        try:
            squares = _run(call, _squared)
            terms = self._counted(call)
        except Exception:  # not with these operands, or not in their wider dtype
            return every
        return [k for k in every if not self._explained(*pairs[k], squares, terms)]

    @staticmethod
    def _explained(number: int, got: Tensor, cpu: Tensor, squares: Sequence[Tensor], terms: Sequence[float]) -> bool:
        if number >= len(squares) or not _alike(got, cpu) or squares[number].shape != cpu.shape:
            return False
        u = min(FACTS["float32"].unit_roundoff, FACTS[word(cpu.dtype.to_real())].unit_roundoff)
        partial = 2.0 * squares[number].to(torch.float64).sqrt()
        size = torch.maximum(cpu.abs().to(torch.float64), partial)
        more = OPERATOR_SUM * math.sqrt(terms[number]) * u * (size.unsqueeze(-1) if cpu.is_complex() else size)
        return _is_near(got, cpu, more=more.nan_to_num(0.0, 0.0, 0.0)) and not (word(cpu.dtype) in HALF and _leans(got, cpu))

    def _counted(self, call: OperatorCall) -> list[float]:
        """The largest number of terms in an element of each result."""
        plain = tree_map(
            lambda x: (x.shape, x.strides, x.offset) if isinstance(x, StridedOperand) else x, (call.args, call.kwargs)
        )
        key = f"{call.name} {plain}"
        if key not in self._terms:
            self._terms[key] = [float(t.max()) if t.numel() else 0.0 for t in _run(call, torch.ones_like)]
        return self._terms[key]


def _run(call: OperatorCall, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    """The results of a call on the CPU, with its floating operands changed."""
    made: dict[int, Tensor] = {}

    def changed(x: object) -> object:
        if not isinstance(x, StridedOperand) or not (x.base.is_floating_point() or x.base.is_complex()):
            return x
        if x.group not in made:
            wide = x.base.abs() if x.base.is_complex() else x.base
            made[x.group] = change(wide if wide.dtype == torch.float64 else wide.to(torch.float32))
        return replace(x, base=made[x.group], conj=False, neg=False)

    args, kwargs = tree_map(changed, call.args), tree_map(changed, call.kwargs)
    return run_on(replace(call, args=args, kwargs=kwargs), None, bases=False).results


def _squared(t: Tensor) -> Tensor:
    return t.square()


def may_move(t: Tensor) -> bool:
    """Whether `is_movement` may be asked: not of half types, in which a fault of a percent is as small as a rounding."""
    return (t.is_floating_point() or t.is_complex()) and word(t.dtype) not in HALF


def moves_as_far(pairs: Sequence[tuple[Tensor, Tensor]], run: Callable[[int], Sequence[Tensor]]) -> bool:
    """Whether all pairs of a device's and the CPU's results differ by no more than moved runs of them do. run: makes the one
    with a number, as many as are needed."""

    def made(number: int) -> Mapping[str, Tensor]:
        return dict(zip(named, run(number - 1)))

    named = {str(k): pair for k, pair in enumerate(pairs)}
    return len(screened(named, RUNS, made, moves_by, BY).passed) == len(pairs)


def by_movement(
    s: Subject, backward: bool, fed: Sequence[Tensor], theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], meter: Meter
) -> Screened:
    """The results of a large function that differ from the CPU's by no more, element by element, than moved runs of it do, each
    with its verdict. All others are for the judge, and so are all where a step is rounded to a half type: of these the moved
    runs are kept where one differs as no honest device does. fed: the cotangents."""
    every = {n: (theirs[n], t) for n, t in ours.items() if n in theirs and comparable(theirs[n], t)}
    if not every or sum(t.numel() for t in (*(t for _, t in s.tensors), *ours.values())) < LARGE:
        return Screened({})

    def run(number: int, halves: bool = False) -> Mapping[str, Tensor] | None:
        mode = Moved(number)
        with meter.run("a moved run", 1):
            made = ex.attempt(functools.partial(moved_results, s, backward, fed, mode, moves_operands=True), "run")
        return None if isinstance(made, Raised) or (mode.halves and not halves) else made

    pairs = {n: pair for n, pair in every.items() if may_move(pair[1])}
    if len(pairs) == len(every):
        return screened(pairs, MOST, run, moves_by_place, BY)
    runs = [made for k in range(RUNS) if (made := run(k + 1, True)) is not None]
    odd = any(_is_odd(*pair, [r[n] for r in runs if n in r]) for n, pair in every.items())
    return Screened({}, runs=runs if odd else ())


def _is_odd(got: Tensor, cpu: Tensor, moved: Sequence[Tensor]) -> bool:
    """Whether a result as a whole is about as far from the CPU's as where every kernel moves by `STEP` roundoffs, several times
    as far as kernels round, or leans as much."""
    sides = (torch.view_as_real(t) if t.is_complex() else t.float() for t in (got, cpu, *moved) if t.shape == cpu.shape)
    d, c, *others = (t.flatten().nan_to_num(0.0, 0.0, 0.0) for t in sides)
    size, off, by = float(c.norm()), d.sub_(c), [t.sub_(c) for t in others]
    most = max((float(t.norm()) for t in by), default=0.0)
    lean = max((abs(float(t @ c)) for t in by), default=0.0)
    return size > 0.0 and (float(off.norm()) > ODD * most or abs(float(off @ c)) > lean)


def moves_by(got: Tensor, cpu: Tensor, moved: Sequence[Tensor], sums: float = SUM_ULP) -> float:
    """How far a result is from the CPU's, at most, in units of what the moved runs explain: for each element the roundings of
    an operator, `OWN_MOVEMENT` times its own movement, and `NEAR_MOVEMENT` times the usual one of its neighbours. Infinite for
    what cannot be decided. sums: as `_allowed` has it."""
    if not _can_be_decided(got, cpu, moved):
        return math.inf
    movement = _movement(cpu, moved)
    usual = _usual(movement) * NEAR_MOVEMENT
    return _largest(*_allowed(got, cpu, more=movement.mul_(OWN_MOVEMENT).add_(usual), sums=sums))


def moves_by_place(got: Tensor, cpu: Tensor, moved: Sequence[Tensor]) -> float:
    """`moves_by` for a result of many operators: its neighbours are those of its row and of its column, if there are enough
    (the gradient of a weight is a sum of products of a factor of each), and no element is granted a rounding of the largest."""
    together = _neighbours(cpu.shape)
    if cpu.is_complex() or not together or not _can_be_decided(got, cpu, moved):
        return moves_by(got, cpu, moved, sums=0.0)
    few = max(1, CACHED // together)  # rows at a time
    rows = [torch.split(t.reshape(-1, together), few) for t in (got, cpu, *moved)]
    off = _by_rows(rows, None)
    if off <= 1.0 or cpu.numel() < NEIGHBOURS * together:
        return off
    sums = torch.stack([_movement(c, m[:RUNS]).sqrt_().sum(0) for _, c, *m in zip(*rows)]).sum(0)
    return min(off, _by_rows(rows, sums / sums.mean().clamp_min(torch.finfo(sums.dtype).tiny)))


def _by_rows(rows: Sequence[Sequence[Tensor]], columns: Tensor | None) -> float:
    worst = 0.0
    for got, cpu, *moved in zip(*rows):
        if torch.equal(got, cpu):
            continue
        few = _movement(cpu, moved[:RUNS])
        movement = _movement(cpu, moved) if len(moved) > RUNS else few.clone()
        usual = few.sqrt_().mean(-1, keepdim=True)
        usual = (usual if columns is None else usual.mul(columns)).square_().mul_(NEAR_MOVEMENT)
        worst = max(worst, _largest(*_allowed(got, cpu, more=movement.mul_(OWN_MOVEMENT).add_(usual), sums=0.0)))
    return worst


def _can_be_decided(got: Tensor, cpu: Tensor, moved: Sequence[Tensor]) -> bool:
    return (
        bool(moved) and may_move(cpu) and _alike(got, cpu) and all(m.shape == cpu.shape and m.dtype == cpu.dtype for m in moved)
    )


def _movement(cpu: Tensor, moved: Sequence[Tensor]) -> Tensor:
    """The largest movement of each element's real and imaginary part, 0 where it is not finite."""
    c = _parts(cpu)
    return functools.reduce(torch.maximum, [_parts(m).sub(c).abs_() for m in moved]).nan_to_num_(0.0, 0.0, 0.0)


def _largest(error: Tensor, allowed: Tensor) -> float:
    off = float(error.div_(allowed).max()) if error.numel() else 0.0
    return math.inf if math.isnan(off) else off


def _usual(x: Tensor) -> Tensor:
    """The usual size of each element's neighbours: those in the last dimension, with as many more as make `NEIGHBOURS` of them.
    The square of the mean root is near the median, and takes one pass; a few large ones count little."""
    together = _neighbours(x.shape)
    if not together:
        return torch.zeros((), dtype=x.dtype)
    usual = x.reshape(-1, together).sqrt().mean(-1, keepdim=True).square_()
    return usual.expand(-1, together).reshape(x.shape)


def _neighbours(shape: Sequence[int]) -> int:
    """How many elements of the last dimensions are neighbours, 0 if all are too few."""
    together, k = 1, len(shape)
    while k and together < NEIGHBOURS:
        k -= 1
        together *= shape[k]
    return together if together >= NEIGHBOURS else 0


def _alike(got: Tensor, cpu: Tensor) -> bool:
    return got.shape == cpu.shape and got.dtype == cpu.dtype and (cpu.is_floating_point() or cpu.is_complex())


def _parts(x: Tensor) -> Tensor:
    """Real and imaginary parts, in float32 or finer: the difference of two near numbers of such a type is exact."""
    x = torch.view_as_real(x) if x.is_complex() else x
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float64)
