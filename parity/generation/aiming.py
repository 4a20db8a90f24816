"""Gives a drawn case a feature that random choices hardly ever meet: `AIMS`. Which one, a plan decides.

A feature takes the place of what was drawn; no case is added. Whether a call can have it is read from the row and the operands
alone: nothing is tried. Where it can't, the one before it in the list takes its turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from parity.catalog.draw import Pick, Shape, Sweep
from parity.catalog.row import Row
from parity.core.case import Case, TensorSpec, Values, operands_in
from parity.core.dtypes import FACTS
from parity.core.layout import overlaps
from parity.execution.values import FLOAT_FAMILIES, MATRICES
from parity.generation.planting import PLACES, contents, words_of
from parity.generation.room import fits

Aim = Callable[[Row, Case, Pick], Case | None]
SEEDS = 1 << 12
BROADCASTS = "binary"  # the family of functions of two tensors that broadcast
MOST = 1 << 12  # elements of a result of broadcast operands, or of a square matrix
UNSHARED = "recurrent"  # the family of functions that are given many operands of one shape
BOUND = ("between", "inside", "index")  # families of values with limits
FORCED = {"sample", "unique"}  # families of values that belong to a shape
SHORTEST, LONGEST, LARGE = 17, 1 << 14, 1 << 18  # sizes of one long dimension; elements of operands drawn anew, or shared


def aimed(row: Row, case: Case, aim: Pick, pick: Pick) -> Case:
    """The case with the feature that `aim` picks, or the next before it that the call can have; as it is where `aim` picks 0,
    or where it can have none."""
    k = aim(len(AIMS) + 1)
    if not k or case.is_sample or case.refused:
        return case
    return next((met for feature in AIMS[k - 1 :: -1] if (met := feature(row, case, pick))), case)


def _cotangent(*words: str) -> Aim:
    """The incoming gradient holds such numbers."""

    def feature(row: Row, case: Case, pick: Pick) -> Case | None:
        if row.family == "recurrent":  # the gradient of a gate is 0 times Inf in one formula of a cell, and not in another
            return None
        if row.family == "attention" and "nonfinite" in words:  # flash kernels sum it with the result, others with the weights
            return None
        able = case.dtype in row.grad and FACTS[case.dtype].kind == "float"
        special = any(s.values.specials for s in case.operands())  # it is rarer, and would hide what the gradient's own do
        if not able or special or row.draws.finite or row.rule.is_conditional:
            return None
        fed = replace(case.cotangent, values=words[pick(len(words))], seed=pick(SEEDS))
        return replace(case, cotangent=fed, under="grad")

    return feature


def _outer(row: Row, case: Case, pick: Pick) -> Case | None:
    """Two operands are both broadcast, as in `a[:, None] + b[None, :]`, or one is along a dimension between others."""
    shape = _broadcast(row, case, 3)
    if shape is None:
        return None
    first, second = pick(len(shape)), 1 + pick(len(shape) - 1)
    one, other = _with_one(shape, (first + second) % len(shape)), _with_one(shape, first)
    middle = _with_one(shape, 1 + pick(len(shape) - 2))
    return _with_shapes(case, ((one, other), (middle, shape), (shape, middle))[max(0, pick(4) - 1)])


def _shared(row: Row, case: Case, pick: Pick) -> Case | None:
    """Two operands that may have the same numbers are one tensor, as in `mm(x, x)`."""
    left_out = row.forms.mutates or row.forms.updates or row.draws.choices or row.quirks
    if left_out or row.rule.is_conditional or row.family == UNSHARED:
        return None
    specs = case.operands()
    pairs = [(j, k) for k in range(len(specs)) for j in range(k) if _alike(specs[j], specs[k], _broadcasts(row))]
    # Of a call that takes operands of two dtypes, it has the one that the call is named by; and the limits of either.
    order = [sorted(p, key=lambda i: (specs[i].dtype != case.dtype, not _bound(specs[i]))) for p in pairs]
    pairs = [(j, k) for j, k in order if specs[j].dtype == case.dtype and (_bound(specs[j]) or not _bound(specs[k]))]
    if not pairs:
        return None
    j, k = pairs[pick(len(pairs))]
    one = replace(specs[j], on_cpu=False)
    both = {j: one, k: replace(one, grad=specs[k].grad)}
    return replace(case, sharing="memory").with_operands([both.get(i, s) for i, s in enumerate(specs)])


def _twins(row: Row, case: Case, pick: Pick) -> Case | None:
    """`_shared`, where all sizes are 2: operands often have one shape."""
    new = _redrawn(row, case, pick, tight=True, least=2) if len(case.operands()) > 1 else None
    return _shared(row, new, pick) if new else None


def _alike(a: TensorSpec, b: TensorSpec, any_two: bool) -> bool:
    """Whether one tensor may be both operands. any_two: whether the call takes any two shapes that broadcast, and dtypes that
    promote."""
    families = {v.values.family for v in (a, b)}
    kept = families & FORCED or families & set(MATRICES) or ((a.on_cpu or b.on_cpu) and not any_two)
    if kept or overlaps(a.layout) or overlaps(b.layout) or not all(0 < x.numel <= LARGE for x in (a, b)):
        return False
    bound = {(v.values.family, v.values.params) for v in (a, b) if _bound(v)}
    return len(bound) < 2 and (any_two or (a.dtype == b.dtype and a.shape == b.shape))


def _bound(spec: TensorSpec) -> bool:
    """Whether its values have limits."""
    return spec.values.family in BOUND


def _broadcast(row: Row, case: Case, rank: int) -> Shape | None:
    """The shape of the result of a call that broadcasts its first two operands, with `rank` dimensions or more, all larger than
    1; None for a call that does not, or is large."""
    if not _broadcasts(row) or len(case.operands()) != 2:
        return None
    a, b = case.args[0], case.args[1] if len(case.args) > 1 else None
    if not (isinstance(a, TensorSpec) and isinstance(b, TensorSpec)) or a.on_cpu or b.on_cpu:
        return None
    if FORCED & {a.values.family, b.values.family} or not (a.values.literal is b.values.literal is None):
        return None
    whole = max((a.shape, b.shape), key=lambda s: (len(s), math.prod(s)))
    shape = (*(2, 3, 2)[: max(0, rank - len(whole))], *(max(2, n) for n in whole))
    return shape if math.prod(shape) <= MOST else None


def _broadcasts(row: Row) -> bool:
    """Whether the call takes any two shapes that broadcast."""
    return row.family == BROADCASTS or (row.forms.promotes and row.rule.is_by_element)


def _special(row: Row, case: Case, pick: Pick) -> Case | None:
    """One operand holds NaN or Inf, and no other a special value."""
    if row.family == "attention":  # kernels differ in what they make of it: their row plants it where they agree
        return None
    specs = [replace(s, values=replace(s.values, specials=())) for s in case.operands()]
    free = [replace(s, values=Values("any")) if s.values.family in FLOAT_FAMILIES else s for s in specs]
    able = [(k, w) for k, s in enumerate(free) if s.numel for w in words_of(s, row) if w in ("nan", "inf", "-inf")]
    if not able:
        return None
    k, word = able[pick(len(able))]
    specs[k] = replace(specs[k], values=replace(specs[k].values, specials=((pick(PLACES), word),)))
    return case.with_operands(specs)


def _image(row: Row, case: Case, pick: Pick) -> Case | None:
    """Operands of four or five dimensions are in channels_last: all, or one alone; the incoming gradient too, or not."""
    new = None if row.draws.packed or row.quirks else _redrawn(row, case, pick, rank=4 + pick(2), least=2)
    able = [k for k, s in enumerate(new.operands()) if len(s.shape) in (4, 5) and not s.on_cpu] if new else []
    if new is None or not able:
        return None
    laid = able if pick(2) else [able[pick(len(able))]]
    specs = [replace(s, layout=(("channels_last",),)) if k in laid else s for k, s in enumerate(new.operands())]
    fed = new.cotangent if case.dtype not in row.grad or pick(2) else replace(new.cotangent, layout="channels_last")
    return replace(new, cotangent=fed).with_operands(specs)


def _ones(row: Row, case: Case, pick: Pick) -> Case | None:
    """Every size that the row draws is 1, in few dimensions or in many."""
    new = _redrawn(row, case, pick, rank=(6, 5, 2)[pick(3)], tight=True)
    return new if new and all(s.numel == 1 for s in new.operands()) else None


def _empty(row: Row, case: Case, pick: Pick) -> Case | None:
    """One dimension that the row draws has no elements."""
    new = _redrawn(row, case, pick, {pick(3): 0}, rank=1 + pick(3))
    return new if new and not all(s.numel for s in new.operands()) else None


def _long(row: Row, case: Case, pick: Pick) -> Case | None:
    """One dimension of three has any size up to `LONGEST`, by its logarithm."""
    n = round(SHORTEST * (LONGEST / SHORTEST) ** (pick(SEEDS) / SEEDS))
    new = None if row.family == UNSHARED else _redrawn(row, case, pick, {pick(3): n}, rank=3)
    return new if new and any(n in s.shape for s in new.operands()) else None


def _redrawn(row: Row, case: Case, pick: Pick, borders: Mapping[int, int] = {}, **how: int) -> Case | None:
    """The case with a call that a `Sweep` draws; None for one without operands, or a large one."""
    call = row.signature(Sweep(pick, case.dtype, borders, **how))
    specs = contents(operands_in((call.args, call.kwargs)), row, pick)
    if not specs or sum(s.numel for s in specs) > LARGE or not fits(row, case.dtype, call, LARGE // 2, LARGE):
        return None
    seeds = (pick(SEEDS) if s.values.literal is None else 0 for s in specs)
    specs = [
        replace(s, values=replace(s.values, seed=n), grad=s.grad and FACTS[s.dtype].is_inexact) for s, n in zip(specs, seeds)
    ]
    return replace(case, args=call.args, kwargs=call.kwargs, after="").with_operands(specs)


def _with_one(shape: Shape, where: int) -> Shape:
    """The shape with 1 in one dimension."""
    return (*shape[:where], 1, *shape[where + 1 :])


def _with_shapes(case: Case, shapes: Sequence[Shape]) -> Case:
    """The case with operands of these shapes; one of another rank than before is contiguous."""
    specs = zip(case.operands(), shapes, strict=True)
    return case.with_operands([replace(s, shape=n, layout=s.layout if len(n) == len(s.shape) else ()) for s, n in specs])


KEPT: tuple[Aim, ...] = (_cotangent("nonfinite"), _outer, _shared, _special, _cotangent("huge", "tiny"))  # sizes, or nearly
AIMS: tuple[Aim, ...] = (*KEPT, _twins, _image, _long, _empty, _ones)
