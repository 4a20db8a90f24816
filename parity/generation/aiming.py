"""Gives a drawn case a feature that random choices hardly ever meet: `AIMS`. Which one, a plan decides.

A feature takes the place of what was drawn; no case is added. Whether a call can have it is read from the row and the operands
alone; the CPU is asked only for more dimensions than a row draws. Where it can't, one of the first features is left out, and
of the others the one before takes its turn.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from parity.catalog.draw import Pick, Shape, Sweep
from parity.catalog.row import Row
from parity.core.case import Case, TensorSpec, Values
from parity.core.dtypes import FACTS
from parity.core.layout import overlaps
from parity.execution.values import FLOAT_FAMILIES, MATRICES
from parity.generation.planting import PLACES, words_of
from parity.generation.room import is_slow, made
from parity.generation.taken import is_taken

Aim = Callable[[Row, Case, Pick], Case | None]
How = Callable[[Pick], dict[str, Any]]  # what a sweep is to draw
SEEDS = 1 << 12
BROADCASTS, RECURRENT = "binary", "recurrent"  # families: functions of two tensors that broadcast; of many of one shape
MOST = 1 << 12  # elements of a result of broadcast operands
STEPS, NOT_FINITE = "optimizers", ("nan", "inf", "-inf")  # the family of functions of lists; values of `_special`
BOUND = ("between", "inside", "index")  # families of values with limits
FORCED = {"sample", "unique"}  # families of values that belong to a shape
SHORTEST, LONGEST, LARGE = 300, 100_000, 1 << 18  # sizes of one long dimension; elements of all operands drawn anew
ROOM, TRIES = 1 << 20, 4  # elements that a call with these makes; such calls, until one has the feature


def aimed(row: Row, case: Case, aim: Pick, pick: Pick, anew: Callable[[Sweep], Case]) -> Case:
    """The case with the feature that `aim` picks; as it is where `aim` picks 0, or where the call can't have that feature.
    anew: draws a case with the sizes of a sweep."""
    k = aim(len(AIMS) + 1) - 1
    if k < 0 or case.is_sample or case.refused:
        return case
    start, stop = next((a, b) for a, b in itertools.pairwise((0, FIRST, FIRST + FORMS, len(AIMS))) if k < b)
    tries = AIMS[k], AIMS[k - 1 if k > start else stop - 1]
    for how, feature in (t for t in tries[: 1 + bool(start)] if not t[0] or row.family != RECURRENT):
        for _ in range(TRIES if how else 1):
            drawn = how(pick) if how else {}
            drawn["beyond"] = bool(drawn.get("beyond")) and not row.refuses.unchecked  # then the CPU is asked
            new = anew(Sweep(pick, case.dtype, **drawn)) if how else case
            many = how and sum(s.numel for s in new.operands()) > LARGE
            large = many or (how and (made(row, new).elements > ROOM or is_slow(row, new)))
            if not (new.refused or large) and (met := feature(row, new, pick)):
                return met
    return case


def _cotangent(*words: str) -> Aim:
    """The incoming gradient holds such numbers."""

    def feature(row: Row, case: Case, pick: Pick) -> Case | None:
        if row.family == RECURRENT:  # the gradient of a gate is 0 times Inf in one formula of a cell, and not in another
            return None
        if row.family == "attention" and "nonfinite" in words:  # flash kernels sum it with the result, others with the weights
            return None
        able = case.dtype in row.grad and FACTS[case.dtype].kind == "float"
        if not able or row.draws.finite or row.rule.is_conditional:
            return None
        fed = replace(case.cotangent, values=words[pick(len(words))], seed=pick(SEEDS))
        # One in an operand would hide what the gradient's own do.
        return replace(case, cotangent=fed, under="grad").with_operands([_plain(s) for s in case.operands()])

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
    """Two operands that may have the same numbers are one tensor, as in `mm(x, x)`; or all that may be."""
    left_out = row.forms.mutates or row.forms.updates or row.draws.choices or row.quirks or row.family == RECURRENT
    if left_out or row.rule.is_conditional:
        return None
    specs = case.operands()
    pairs = [(j, k) for j, k in itertools.permutations(range(len(specs)), 2) if _serves(row, case, specs[j], specs[k])]
    if not pairs:
        return None
    j, k = pairs[pick(len(pairs))]
    both = {i for p in pairs if p[0] == j for i in p} if pick(2) else {j, k}
    one = replace(specs[j], on_cpu=False)
    specs = [replace(one, grad=s.grad) if i in both else s for i, s in enumerate(specs)]
    return replace(case, sharing="memory").with_operands(specs)


def _serves(row: Row, case: Case, one: TensorSpec, other: TensorSpec) -> bool:
    """Whether a tensor may be another operand, too; of two dtypes, only one in that which the call is named by."""
    any_two = _broadcasts(row)
    families = {one.values.family, other.values.family}
    kept = families & FORCED or families & set(MATRICES) or ((one.on_cpu or other.on_cpu) and not any_two)
    if kept or overlaps(one.layout) or overlaps(other.layout) or not all(0 < x.numel <= LARGE for x in (one, other)):
        return False
    if one.dtype not in (other.dtype, case.dtype) or (not any_two and (one.dtype != other.dtype or one.shape != other.shape)):
        return False
    if other.values.family not in BOUND:
        return True
    within = one.values.family in BOUND and one.values.family in (other.values.family, "inside")
    (low, high), (least, most) = (one.values.params, other.values.params) if within else ((0, 0), (1, 0))
    return least <= low <= high <= most


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


def _plain(s: TensorSpec) -> TensorSpec:
    """The operand without special values."""
    return replace(s, values=replace(s.values, specials=())) if s.values.specials else s


def _again(row: Row, case: Case, pick: Pick) -> Case | None:
    """The second call of its shapes, with other values."""
    return replace(case, after="other_values") if case.operands() else None


def _special(row: Row, case: Case, pick: Pick) -> Case | None:
    """One operand holds NaN or Inf, and no other a special value."""
    if row.family == "attention":  # kernels differ in what they make of it: their row plants it where they agree
        return None
    specs = [_plain(s) for s in case.operands()]
    free = [replace(s, values=Values("any")) if s.values.family in FLOAT_FAMILIES else s for s in specs]
    able = [(k, w) for k, s in enumerate(free) if s.numel for w in (*words_of(s, row), *_of_steps(s, row)) if w in NOT_FINITE]
    if not able:
        return None
    k, word = able[pick(len(able))]
    specs[k] = replace(specs[k], values=replace(specs[k].values, specials=((pick(PLACES), word),)))
    return case.with_operands(specs)


def _of_steps(s: TensorSpec, row: Row) -> tuple[str, ...]:
    """Of parameters and gradients, whose limits keep steps comparable: a scaler meets gradients that are not finite."""
    v = s.values
    ranged = row.family == STEPS and v.family == "inside" and s.shape and v.params[0] < v.params[1]
    return NOT_FINITE if ranged and FACTS[s.dtype].kind == "float" else ()


def _image(row: Row, case: Case, pick: Pick) -> Case | None:
    """Operands of four or five dimensions are in channels_last: all, or one alone; the incoming gradient too, or not."""
    able = [k for k, s in enumerate(case.operands()) if len(s.shape) in (4, 5) and not s.on_cpu]
    if row.draws.packed or row.quirks or not able:
        return None
    laid = able if pick(2) else [able[pick(len(able))]]
    specs = [replace(s, layout=(("channels_last",),)) if k in laid else s for k, s in enumerate(case.operands())]
    fed = case.cotangent if case.under != "grad" or pick(2) else replace(case.cotangent, layout="channels_last")
    return replace(case, cotangent=fed).with_operands(specs)


def _where(holds: Callable[[Sequence[TensorSpec]], bool]) -> Aim:
    """The case, if its operands are so."""
    return lambda row, case, pick: case if holds(case.operands()) else None


def _many(row: Row, case: Case, pick: Pick) -> Case | None:
    """Single elements, or more dimensions than are usual, if the CPU takes them: it is asked where it checks its arguments, and
    no operand says where to read."""
    specs, unasked = case.operands(), row.refuses.unchecked
    able = any(len(s.shape) > 3 or s.shape == (1,) * max(2, len(s.shape)) for s in specs)
    safe = len({FACTS[s.dtype].kind for s in specs}) == 1 and not (row.judged.law or row.judged.relation)
    return case if able and (unasked or (safe and is_taken(row, case))) else None


def _long(dim: int) -> tuple[How, Aim]:
    """One dimension of three has any size up to `LONGEST`, by its logarithm."""

    def how(pick: Pick) -> dict[str, Any]:
        n = round(SHORTEST * (LONGEST / SHORTEST) ** (pick(SEEDS) / SEEDS))
        return {"borders": {dim: n}, "rank": 3, "tight": n > MOST}

    return how, _where(lambda specs: any(n >= SHORTEST for s in specs for n in s.shape))


def _with_one(shape: Shape, where: int) -> Shape:
    """The shape with 1 in one dimension."""
    return (*shape[:where], 1, *shape[where + 1 :])


def _with_shapes(case: Case, shapes: Sequence[Shape]) -> Case:
    """The case with operands of these shapes; one of another rank than before is contiguous."""
    specs = zip(case.operands(), shapes, strict=True)
    return case.with_operands([replace(s, shape=n, layout=s.layout if len(n) == len(s.shape) else ()) for s, n in specs])


TWINS = lambda pick: {"tight": True, "least": 2 + pick(4), "rank": 1 + pick(3)}, _shared  # they often have one shape then
IMAGE = lambda pick: {"rank": 4 + pick(2), "least": 2}, _image
EMPTY = lambda pick: {"borders": {pick(3): 0}, "rank": 1 + pick(3)}, _where(lambda x: not all(s.numel for s in x))
SIX, FIVE = ((lambda pick, n=n: {"rank": n, "beyond": True}, _many) for n in (6, 5))
ONES = lambda pick: {"rank": (2, 4)[pick(2)], "tight": True, "beyond": True}, _many
NONFINITE, EXTREME, OUTER = (None, _cotangent("nonfinite")), (None, _cotangent("huge", "tiny")), (None, _outer)
HUGE, TINY = (None, _cotangent("huge")), (None, _cotangent("tiny"))
AIMS: tuple[tuple[How | None, Aim], ...] = (
    *(NONFINITE, OUTER, (None, _shared), EXTREME, OUTER),
    *(_long(0), SIX, TWINS, EMPTY, _long(2), ONES, IMAGE, FIVE, _long(1)),
    *(NONFINITE, (None, _again), OUTER, HUGE, (None, _special), TINY),
)
# Of them, in the first cases of an item, and in later ones; the rest are of contents.
FIRST, FORMS = 5, 9
# One in so many of an item's first cases, and of those after all that quick has, is aimed at a feature; how many those are.
AIMED, ORDINARY, PLANNED = 3, 8, 32
# Late cases of a row in the dtypes before, in quick.
GOING_ON = {
    "float16": 24, "bfloat16": 36, "complex64": 44, "int64": 48, "int32": 58, "int16": 64, "int8": 70, "uint8": 76, "bool": 82,
}  # fmt: skip


def planned(row: Row, dtype: str, seed: str, ordinal: int, alike: int) -> int:
    """Which of `AIMS` a case is aimed at, from 1 on; 0 for none. Of the first cases of an item, and of those that share shapes,
    every third one meets the next of `FIRST`. Later random cases would mostly repeat what the row has shown: by turns one meets
    the next of the forms, one the next of the contents, and one stays as it is; the dtypes of a row go on with both. Integers,
    of few cases, begin at once."""
    late = ordinal - ORDINARY if FACTS[dtype].is_inexact else ordinal
    if late <= 0 or alike > 1:
        turn = zlib.crc32(f"{seed}:{row.name}:{dtype}".encode()) + ordinal // AIMED
        return 0 if ordinal % AIMED else 1 + turn % FIRST
    turn, way = divmod(late + GOING_ON.get(dtype, 0), AIMED)
    if ordinal > PLANNED:
        turn, rest = divmod(ordinal, 2 * AIMED)
        way = {0: 1, AIMED: 2}.get(rest, 0)
    turn += zlib.crc32(f"{seed}:{row.name}".encode())
    return (0, 1 + FIRST + FORMS + turn % (len(AIMS) - FIRST - FORMS), 1 + FIRST + turn % FORMS)[way]
