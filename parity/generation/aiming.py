"""Gives a drawn case a feature that random choices hardly ever meet: `AIMS`. Which one, a plan decides.

A feature takes the place of what was drawn; no case is added. Whether a call can have it is read from the row and the operands
alone; the CPU is asked for more dimensions than a row draws, other numbers, and an operand alone without elements. Where it
can't, one of the first features is left out; of the forms the next takes its turn, of the others the next that it can. A form
is drawn in place of an ordinary case, and the rest of a case only for a call that has it.
A feature that has ways (which operand, which number, which dimension) has them in turn.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from parity.catalog.draw import Arguments, Pick, Shape, Sweep
from parity.catalog.row import RAW, Row
from parity.core.case import Case, TensorSpec, Values
from parity.core.dtypes import FACTS
from parity.core.layout import overlaps
from parity.execution.values import EXTREME_FAMILIES, FLOAT_FAMILIES, INT_FAMILIES, MATRICES
from parity.generation.calls import FORCED, broadcasts, changes, draw_call, either, expanded, other_number, plain, structured
from parity.generation.mixing import is_taken
from parity.generation.planting import PLACES, words_of
from parity.generation.room import is_slow, made

Aim = Callable[[Row, Case, Pick], Case | None]
Complete = Callable[[Arguments, list[TensorSpec]], Case]
SEEDS = 1 << 12
RECURRENT = "recurrent"  # the family of functions of many tensors of one shape
MOST = 1 << 12  # elements of a result of broadcast operands
STEPS, NOT_FINITE = "optimizers", ("nan", "inf", "-inf")  # the family of functions of lists; values of `_special`
BOUND = ("between", "inside", "index")  # families of values with limits
PLACED = ("index", "unique")  # families of indices
SHORTEST, LONG, LONGEST = 300, 10_000, 100_000  # of one long dimension: the first ones are above the second, the next below
LARGE = 1 << 18  # elements of all operands of a call that is drawn anew
CALLED_BEFORE = ("other_values", "other_scalar", "smaller", "garbage", "larger")
BY_ELEMENT = "by element"  # more dimensions than a row draws: the CPU is asked, but not where any may be
ROOM, TRIES = 1 << 20, 4  # elements that a call with these makes; such calls, until one has the feature


class Form(NamedTuple):
    """A feature of the sizes of a call. how: what a sweep is to draw; holds: whether it came out so, before anything but the
    arguments is drawn; feature: what becomes of the case then, None if it cannot have it."""

    how: Callable[[Pick], dict[str, Any]]
    holds: Callable[[Row, Sequence[TensorSpec]], bool]
    feature: Aim = lambda row, case, pick: case


def picked(aim: Pick) -> tuple[int, int]:
    """Which of `AIMS` a case is aimed at, from 1 on, 0 for none; and its turn."""
    return (number, aim(SEEDS)) if (number := aim(len(AIMS) + 1)) else (0, 0)


def is_form(number: int) -> bool:
    """Whether a case that is aimed at this one is drawn for it."""
    return GROUPS[1] < number <= GROUPS[2]


def forms_of(number: int, turn: int) -> tuple[Form, ...]:
    """The forms that such a case is drawn for: one and the next, in case the row does not draw the first. A feature of calls
    comes with a number of dimensions that they hardly have; none of values does."""
    k = number - 1 - GROUPS[1]
    if is_form(number):
        return FORMS[k], FORMS[(k + 1) % len(FORMS)]
    shape = SHAPES[(k + turn) % len(SHAPES)]
    return () if number <= GROUPS[3] else (shape, SINGLE) if shape is ONES else (shape,)


def formed(row: Row, dtype: str, forms: Sequence[Form], turn: int, pick: Pick, complete: Complete) -> Case | None:
    """A case with one of these forms; None where the row draws none. complete: makes a case of the arguments of a call and its
    operands. Nothing else is drawn for calls that do not have the form."""
    if row.family == RECURRENT:
        return None
    for passed, form in enumerate(forms):
        for n in range(TRIES):
            drawn = form.how(_by_turn(turn + n, pick))
            asked = not row.refuses.unchecked and drawn.get("beyond")
            drawn["beyond"] = asked is True or (asked == BY_ELEMENT and row.rule.is_by_element)
            call, specs = draw_call(row, Sweep(pick, dtype, **drawn))
            bare = Case(row.name, dtype, call.args, call.kwargs)
            if not form.holds(row, specs) or bare.numel > LARGE or made(row, bare).elements > ROOM or is_slow(row, bare):
                continue
            if met := form.feature(row, complete(call, specs), _by_turn(turn + passed, pick)):
                return met
    return None


def featured(row: Row, case: Case, number: int, turn: int, pick: Pick) -> Case:
    """The case with the feature of this number; as it is for 0, for a form, and where the call can't have it. Of later ones the
    next that it can takes its turn."""
    if not number or is_form(number):
        return case
    k, (start, stop) = number - 1, next((a, b) for a, b in itertools.pairwise(GROUPS) if number <= b)
    left = [*range(k, stop), *range(start, k)] if start else [k]
    found = (AIMS[n](row, case, _by_turn(turn + passed, pick)) for passed, n in enumerate(left))
    return next((met for met in found if met), case)


def _by_turn(turn: int, pick: Pick) -> Pick:
    """Picks the next at first, and then as `pick` does."""
    first = [turn]
    return lambda n: first.pop() % n if first else pick(n)


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
        return replace(case, cotangent=fed, under="grad").with_operands([plain(s) for s in case.operands()])

    return feature


def _outer(row: Row, case: Case, pick: Pick) -> Case | None:
    """Two operands are both broadcast, as in `a[:, None] + b[None, :]`, or one is along a dimension between others or has fewer
    dimensions; of a call that broadcasts its first two operands. One of another rank than before is contiguous."""
    specs = case.operands()
    if not broadcasts(row) or len(specs) != 2 or case.args[:2] != tuple(specs) or any(s.on_cpu for s in specs):
        return None
    if any(s.values.family in FORCED or s.values.literal is not None for s in specs):
        return None
    whole = max((s.shape for s in specs), key=lambda s: (len(s), math.prod(s)))
    shape = (*(2, 3, 2)[: max(0, 3 - len(whole))], *(max(2, n) for n in whole))
    if math.prod(shape) > MOST:
        return None
    way, first, second = pick(5), pick(len(shape)), 1 + pick(len(shape) - 1)
    one, other = _with_one(shape, (first + second) % len(shape)), _with_one(shape, first)
    middle = _with_one(shape, 1 + pick(len(shape) - 2))
    shapes = ((one, other), (middle, shape), (shape, middle), (shape[1:], shape), (shape, shape[second:]))[way]
    wide = [replace(s, shape=n, layout=s.layout if len(n) == len(s.shape) else ()) for s, n in zip(specs, shapes, strict=True)]
    return case.with_operands(wide)


def _shared(row: Row, case: Case, pick: Pick) -> Case | None:
    """Two operands that may have the same numbers are one tensor, as in `mm(x, x)`; or all that may be."""
    specs = case.operands()
    if not _may_share(row, len(specs)):
        return None
    pairs = [(j, k) for j, k in itertools.permutations(range(len(specs)), 2) if _serves(row, case, specs[j], specs[k])]
    if not pairs:
        return None
    j, k = pairs[pick(len(pairs))]
    both = {i for p in pairs if p[0] == j for i in p} if pick(2) else {j, k}
    one = replace(specs[j], on_cpu=False)
    specs = [replace(one, grad=s.grad) if i in both else s for i, s in enumerate(specs)]
    return replace(case, sharing="memory").with_operands(specs)


def _may_share(row: Row, count: int) -> bool:
    """Whether a call with so many operands may have one tensor as two of them."""
    left_out = row.forms.mutates or row.forms.updates or row.draws.choices or row.quirks or row.family == RECURRENT
    return count > 1 and not (left_out or row.rule.is_conditional)


def _serves(row: Row, case: Case, one: TensorSpec, other: TensorSpec) -> bool:
    """Whether a tensor may be another operand, too; of two dtypes, only one in that which the call is named by."""
    any_two = broadcasts(row)
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


def _again(row: Row, case: Case, pick: Pick) -> Case | None:
    """The second call of its shapes, with other values or another argument; or after smaller or larger ones, or garbage."""
    call, specs = Arguments(case.args, case.kwargs), case.operands()
    words = [w for w in CALLED_BEFORE if changes(w, row, call, specs)]
    return replace(case, after=words[pick(len(words))]) if specs else None


def _alone(row: Row, case: Case, pick: Pick) -> Case | None:
    """One operand has no elements, and each other has some, if the CPU takes that; of calls with indices or counts only indices
    may have none, because the CPU could read outside of the others. It does so in steps of optimizers. Of attention, with or
    without a law of its dropout, only some kernels check that there are as many queries as keys in a batch."""
    specs = case.operands()
    left_out = row.refuses.unchecked or row.quirks or row.judged.law or row.family in (*RAW, RECURRENT, STEPS, "attention")
    if left_out or len(specs) < 2 or not all(s.numel for s in specs):
        return None
    some = any(s.values.family in BOUND and FACTS[s.dtype].kind == "int" for s in specs)
    able = [k for k, s in enumerate(specs) if s.shape and (not some or s.values.family in PLACED)]
    start = pick(max(1, len(able)))
    for k, d in itertools.product((*able[start:], *able[:start]), (-1, 0)):
        shape = _with_one(specs[k].shape, d % len(specs[k].shape), 0)
        new = case.with_operands([replace(s, shape=shape, layout=()) if j == k else s for j, s in enumerate(specs)])
        if is_taken(row, new):
            return new
    return None


def _region(row: Row, case: Case, pick: Pick) -> Case | None:
    """One operand holds numbers of an extreme size, all or, where it has limits, one; no operand holds a special value."""
    if row.draws.finite or row.rule.is_conditional or row.family in ("attention", RECURRENT):
        return None
    specs = [plain(s) for s in case.operands()]
    free = [k for k, s in enumerate(specs) if s.numel and k not in row.draws.choices]
    able = [(k, v) for word in EXTREME_FAMILIES for k in free if (v := _extreme(specs[k], word))]
    return _with_one_of(case, specs, able, pick)


def _extreme(s: TensorSpec, word: str) -> Values | None:
    """The values of an operand as `_region` wants them; None where it has limits that exclude them."""
    v, f = s.values, FACTS[s.dtype]
    if v.family in (INT_FAMILIES if f.kind == "int" else FLOAT_FAMILIES) and f.kind != "bool" and v.literal is None:
        return replace(v, family="borders" if f.kind == "int" else word)
    ranged = f.kind == "float" and v.family in BOUND and len(v.params) > 1 and v.params[0] <= 0 < v.params[1]
    tiny = f"{f.tiny * 2.0 ** min(20, math.frexp(f.max)[1] // 4):g}"  # of float16, a higher power would be above most limits
    return replace(v, specials=((v.seed % PLACES, tiny),)) if ranged and word == "minute" else None


def _special(row: Row, case: Case, pick: Pick) -> Case | None:
    """One operand holds NaN or Inf, and no other a special value."""
    if row.family == "attention":  # kernels differ in what they make of it: their row plants it where they agree
        return None
    specs = [plain(s) for s in case.operands()]
    free = [replace(s, values=Values("any")) if s.values.family in FLOAT_FAMILIES else s for s in specs]
    held = [(*words_of(s, row), *_of_steps(s, row)) if s.numel else () for s in free]
    able = [(k, w) for w in NOT_FINITE for k in range(len(free)) if w in held[k]]
    values = [s.values for s in specs]
    return _with_one_of(case, specs, [(k, replace(values[k], specials=((values[k].seed % PLACES, w),))) for k, w in able], pick)


def _with_one_of(case: Case, specs: list[TensorSpec], able: Sequence[tuple[int, Values]], pick: Pick) -> Case | None:
    """The case with these operands, one of them with other values; None without any."""
    k, v = able[pick(len(able))] if able else (-1, Values())
    return case.with_operands([replace(s, values=v) if j == k else s for j, s in enumerate(specs)]) if able else None


def _of_steps(s: TensorSpec, row: Row) -> tuple[str, ...]:
    """Of parameters and gradients, whose limits keep steps comparable: a scaler meets gradients that are not finite."""
    v = s.values
    ranged = row.family == STEPS and v.family == "inside" and s.shape and v.params[0] < v.params[1]
    return NOT_FINITE if ranged and FACTS[s.dtype].kind == "float" else ()


def _images(row: Row, specs: Sequence[TensorSpec]) -> list[int]:
    """The operands that may be in channels_last."""
    some = not (row.draws.packed or row.quirks)
    return [k for k, s in enumerate(specs) if some and len(s.shape) in (4, 5) and not s.on_cpu]


def _image(row: Row, case: Case, pick: Pick) -> Case | None:
    """Operands of four or five dimensions are in channels_last: all, or one alone; the incoming gradient too, or not."""
    able = _images(row, case.operands())
    if not able:
        return None
    laid = (able, *([k] for k in able))[pick(1 + len(able))]
    specs = [replace(s, layout=(("channels_last",),)) if k in laid else s for k, s in enumerate(case.operands())]
    fed = case.cotangent if case.under != "grad" or pick(2) else replace(case.cotangent, layout="channels_last")
    return replace(case, cotangent=fed).with_operands(specs)


def _is_many(row: Row, specs: Sequence[TensorSpec]) -> bool:
    """Single elements, or more dimensions than are usual; where the CPU has to be asked, of operands that do not say where to
    read."""
    able = any(len(s.shape) > 3 or s.shape == (1,) * max(2, len(s.shape)) for s in specs)
    safe = len({FACTS[s.dtype].kind for s in specs} - {"bool"}) <= 1 and not (row.judged.law or row.judged.relation)
    return able and (safe or row.refuses.unchecked)


def _many(row: Row, case: Case, pick: Pick) -> Case | None:
    """The case, if the CPU takes it, or checks nothing."""
    return case if row.refuses.unchecked or is_taken(row, case) else None


def _of_rank(n: int) -> Form:
    return Form(lambda pick: {"rank": n, "beyond": True}, _is_many, _many)


def _long(which: int) -> Form:
    """One dimension has any size up to `LONGEST`, by its logarithm; now and then a power of two."""

    def how(pick: Pick) -> dict[str, Any]:
        turn = pick(SEEDS)
        low, high = ((LONG, LONGEST), (SHORTEST, LONG))[(turn + which) % 2]
        n = round(low * (high / low) ** (pick(SEEDS) / SEEDS))
        n = 1 << n.bit_length() - 1 if (turn + which) % 4 == 0 else n
        return {"borders": {which + 3 * (turn // 2 % 2): n}, "rank": 3, "tight": n > MOST}

    return Form(how, lambda row, specs: any(n >= SHORTEST // 2 for s in specs for n in s.shape), _at_ends)


def _at_ends(row: Row, case: Case, pick: Pick) -> Case | None:
    """The case with its special values in the last elements instead of the first ones: rows beyond what a kernel counts with
    are reached there."""
    return case.with_operands([_counted_back(s) if s.values.specials and s.numel else s for s in case.operands()])


def _counted_back(s: TensorSpec) -> TensorSpec:
    placed = tuple([(s.numel - 1 - where % s.numel, word) for where, word in s.values.specials])
    return replace(s, values=replace(s.values, specials=placed))


def _with_one(shape: Shape, where: int, one: int = 1) -> Shape:
    """The shape with 1, or another size, in one dimension."""
    return (*shape[:where], one, *shape[where + 1 :])


TWINS = Form(  # operands often have one shape then
    lambda pick: {"tight": True, "least": 2 + pick(4), "rank": 1 + pick(3)},
    lambda row, specs: _may_share(row, len(specs)),
    _shared,
)
IMAGE = Form(
    lambda pick: {"rank": 4 + pick(2), "least": 2, "beyond": BY_ELEMENT}, lambda row, specs: bool(_images(row, specs)), _image
)
EMPTY = Form(lambda pick: {"borders": {pick(3): 0}, "rank": 1 + pick(3)}, lambda row, specs: not all(s.numel for s in specs))
SIX, FIVE = _of_rank(6), _of_rank(5)
ONES = Form(lambda pick: {"rank": (2, 4)[pick(2)], "tight": True, "beyond": True}, _is_many, _many)
SINGLE = Form(  # of calls that draw no more dimensions than they have
    lambda pick: {"rank": 2 + pick(2), "tight": True},
    lambda row, specs: any(s.shape == (1,) * max(2, len(s.shape)) for s in specs[:1]),
)
FORMS, SHAPES = (_long(0), TWINS, _long(2), EMPTY, _long(1)), (SIX, ONES, IMAGE, FIVE)
LENGTHS = 0, 4, 2  # which of the forms is that of the first dimension, of the second, and of the third
NONFINITE, HUGE, TINY = _cotangent("nonfinite"), _cotangent("huge"), _cotangent("tiny")
AIMS: tuple[Aim, ...] = (
    *(NONFINITE, either(_outer, broadcasts, structured), _shared, _cotangent("huge", "tiny")),
    expanded,
    *(form.feature for form in FORMS),
    *(NONFINITE, _special, HUGE, _region, TINY),
    *(_alone, other_number, _outer, _again, _shared),
)
GROUPS = 0, 5, 10, 15, 20  # borders of them: in the first cases of an item; of forms, of values, and of calls in later ones
# One in so many of an item's first cases, and of those after all that quick has, is aimed at a feature; how many those are.
AIMED, ORDINARY, PLANNED = 3, 8, 32
# Late cases of a row in the dtypes before, in quick.
GOING_ON = {
    "float16": 24, "bfloat16": 36, "complex64": 44, "int64": 48, "int32": 58, "int16": 64, "int8": 70, "uint8": 76, "bool": 82,
}  # fmt: skip


def planned(row: Row, dtype: str, seed: str, ordinal: int, alike: int) -> tuple[int, int]:
    """Which of `AIMS` a case is aimed at, from 1 on, 0 for none; and its turn. Of the first cases of an item, and of those that
    share shapes, every third one meets the next of the first group. Later random cases would mostly repeat what the row has
    shown: by turns one meets the next of the forms, one of the values, and one of the calls; the dtypes of a row go on with
    all. Integers, of few cases, begin at once. The one form of complex numbers is a long dimension, with consecutive seeds
    another."""
    late = ordinal - ORDINARY if FACTS[dtype].is_inexact else ordinal
    if late <= 0 or alike > 1:
        turn = zlib.crc32(f"{seed}:{row.name}:{dtype}".encode()) + ordinal // AIMED
        return (0, 0) if ordinal % AIMED else (1 + turn % GROUPS[1], turn % SEEDS)
    turn, way = divmod(late + GOING_ON.get(dtype, 0), AIMED)
    if ordinal > PLANNED:
        turn, rest = divmod(ordinal, 2 * AIMED)
        way = {0: turn % 2, AIMED: 2}.get(rest, 3)
    turn += zlib.crc32(f"{seed}:{row.name}".encode())
    start, stop = GROUPS[3 - way :][:2]
    if way == 2 and FACTS[dtype].kind == "complex" and ordinal <= PLANNED:
        turn = zlib.crc32(row.name.encode()) + int(seed) if seed.isdecimal() else turn
        return 1 + start + LENGTHS[turn % 3], (turn % 3 % 2 + 4 * (turn // 3)) % SEEDS
    around, k = divmod(turn, stop - start)
    return (1 + start + k, around % SEEDS) if start else (0, 0)
