"""Gives a drawn case a feature that random choices hardly ever meet: `AIMS`. Which one, a plan decides.

A feature takes the place of what was drawn; no case is added. Whether a call can have it is read from the row and the operands
alone: nothing is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from parity.catalog.draw import Pick, Shape
from parity.catalog.row import Row
from parity.core.case import Case, TensorSpec
from parity.core.dtypes import FACTS
from parity.core.layout import overlaps
from parity.execution.values import MATRICES

Aim = Callable[[Row, Case, Pick], Case | None]
SEEDS = 1 << 12
BROADCASTS = "binary"  # the family of functions of two tensors that broadcast
PRODUCTS = "contractions"  # the family of products of matrices
MOST = 1 << 12  # elements of a result of broadcast operands, or of a square matrix
UNSHARED = ("optimizers", "recurrent")  # they write their operands, or are given many of one shape
FORCED = {"sample", "unique"}  # families of values that belong to a shape


def aimed(row: Row, case: Case, aim: Pick, pick: Pick) -> Case:
    """The case with the feature that `aim` picks; as it is where `aim` picks 0, or where the call can't have that feature."""
    k = aim(len(AIMS) + 1)
    if not k or case.is_sample or case.refused:
        return case
    return AIMS[k - 1](row, case, pick) or case


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
    """Two operands are both broadcast, as in `a[:, None] + b[None, :]`."""
    shape = _broadcast(row, case, 2)
    if shape is None:
        return None
    first = pick(len(shape))
    second = (first + 1 + pick(len(shape) - 1)) % len(shape)
    return _with_shapes(case, (_with_one(shape, first), _with_one(shape, second)))


def _middle(row: Row, case: Case, pick: Pick) -> Case | None:
    """One operand is broadcast along a dimension between others."""
    shape = _broadcast(row, case, 3)
    if shape is None:
        return None
    narrow = _with_one(shape, 1 + pick(len(shape) - 2))
    return _with_shapes(case, (narrow, shape) if pick(2) else (shape, narrow))


def _shared(row: Row, case: Case, pick: Pick) -> Case | None:
    """Two operands that may have the same numbers are one tensor, as in `mm(x, x)`."""
    left_out = row.forms.mutates or row.forms.updates or row.refuses.unchecked or row.draws.choices or row.quirks
    if left_out or row.rule.is_conditional or row.family in UNSHARED:
        return None
    case = _square(row, case)
    specs = case.operands()
    pairs = [(j, k) for k in range(len(specs)) for j in range(k) if _alike(specs[j], specs[k], _broadcasts(row))]
    pairs = [(j, k) for j, k in pairs if case.dtype in (specs[j].dtype, specs[k].dtype)]
    if not pairs:
        return None
    j, k = pairs[pick(len(pairs))]
    if specs[j].dtype != case.dtype:  # of a call that takes operands of two dtypes, the one that it is named by
        j, k = k, j
    one = replace(specs[j], on_cpu=False)
    both = {j: one, k: replace(one, grad=specs[k].grad)}
    return replace(case, sharing="memory").with_operands([both.get(i, s) for i, s in enumerate(specs)])


def _square(row: Row, case: Case) -> Case:
    """A product of two matrices or batches of them with square ones, which can be one tensor; any other call as it is."""
    specs = case.operands()
    if row.family != PRODUCTS or len(specs) != 2 or len({len(s.shape) for s in specs}) > 1:
        return case
    a, b = specs
    if len(a.shape) < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2] or overlaps(a.layout):
        return case
    shape = (*a.shape[:-2], a.shape[-1], a.shape[-1])
    return _with_shapes(case, (shape, shape)) if math.prod(shape) <= MOST else case


def _alike(a: TensorSpec, b: TensorSpec, any_two: bool) -> bool:
    """Whether one tensor may be both operands. any_two: whether the call takes any two shapes that broadcast, and dtypes that
    promote."""
    families = {v.values.family for v in (a, b)}
    kept = families & FORCED or families & set(MATRICES) or ((a.on_cpu or b.on_cpu) and not any_two)
    if kept or overlaps(a.layout) or overlaps(b.layout) or not (a.numel and b.numel):
        return False
    free = families.isdisjoint(("between", "inside", "index")) or (a.values.params == b.values.params and len(families) == 1)
    return free and (any_two or (a.dtype == b.dtype and a.shape == b.shape))


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


def _with_one(shape: Shape, where: int) -> Shape:
    """The shape with 1 in one dimension."""
    return (*shape[:where], 1, *shape[where + 1 :])


def _with_shapes(case: Case, shapes: Sequence[Shape]) -> Case:
    """The case with operands of these shapes; one of another rank than before is contiguous."""
    specs = zip(case.operands(), shapes, strict=True)
    return case.with_operands([replace(s, shape=n, layout=s.layout if len(n) == len(s.shape) else ()) for s, n in specs])


AIMS: tuple[Aim, ...] = (_cotangent("nonfinite"), _outer, _shared, _cotangent("huge", "tiny"), _middle)
