"""What the operands of a case hold: a family for each, and special numbers planted in none, one, each, or where all meet.

One NaN hides whatever else is wrong with a sum, so half of the cases hold no special number at all. And what two special
numbers give together (Inf * 0, hypot of Inf and NaN, 0 / 0, x beside -x) shows only where both meet.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from parity import values
from parity.catalog.draw import Pick, Shape
from parity.catalog.row import Row
from parity.dtypes import FACTS, DtypeFacts
from parity.vocabulary import OpClass, TensorSpec, Values

# What no integer type holds, and no matrix that is to be factorized.
BEYOND_CASTS = ("nan", "inf", "max", "lowest", "min")
# Which of a complex number's parts is infinite or not a number, and the sign of a zero part at a branch cut: what functions
# make of it is left open (C99, annex G, which no backend follows); what is only moved must keep it.
MIXED = ("inf+nanj", "nan-infj", "-1-0.0j")
FREE = ("any", "between", "sample")  # families that may hold special numbers; the others are a contract
PLAIN, ONE, EACH, TOGETHER = range(4)
# Elementwise results show every element alone; in all others one special number may hide the rest.
ALONE = (OpClass.ELEMENTWISE, OpClass.EXACT)
WAYS = {True: (*(PLAIN,) * 7, *(ONE,) * 2, *(EACH,) * 2, *(TOGETHER,) * 5), False: (*(PLAIN,) * 5, ONE, EACH, TOGETHER)}
PLACES = 16  # flat indices at which a special number may stand
# What meets what: the indeterminate forms, the zeros of both signs, equal and opposite numbers, the ends of the range.
MEETING = {
    "inf": ("nan", "inf", "0", "-inf", "-0.0"),
    "nan": ("inf", "nan", "0", "-inf", "1"),
    "0": ("0", "inf", "-0.0", "nan", "1"),
    "-inf": ("inf", "-inf", "0", "nan"),
    "-0.0": ("0", "-0.0", "1", "-1"),
    "1": ("1", "-1", "0", "-inf"),
    "max": ("max", "min", "smallest", "-1"),
    "min": ("min", "max", "-1"),
    "smallest": ("smallest", "0", "max"),
}


def contents(specs: Sequence[TensorSpec], row: Row, pick: Pick) -> list[TensorSpec]:
    """The operands with what they hold."""
    made = [_holding(s, _family(s, row, pick)) for s in specs]
    # One number may end what a solver's sample promises: that the matrix is definite, triangular, or has an inverse.
    given = row.places or row.rule in (OpClass.SOLVER, OpClass.DECOMPOSITION)
    exact = row.rule is OpClass.EXACT
    words = [_words(s.values.family, s.values.params, s.dtype, given, row.finite, exact) for s in specs]
    able = [k for k, w in enumerate(words) if w and specs[k].numel]
    if not able:
        return made
    ways = WAYS[row.rule in ALONE]
    way = ways[pick(len(ways))]
    if way == ONE:
        able = [able[pick(len(able))]]
    if way == TOGETHER and len(able) > 1:
        return _together(made, able, words, row, pick)
    if way == PLAIN:
        return made
    for k in able:
        count = 1 + pick(3) if len(able) == 1 else max(0, pick(4) - 1)
        _plant(made, k, [(pick(PLACES), words[k][pick(len(words[k]))]) for _ in range(count)])
    return made


def _holding(s: TensorSpec, v: Values) -> TensorSpec:
    """The operand with these values; made whole, which costs a third of `replace`."""
    return s if v is s.values else TensorSpec(s.dtype, s.shape, s.layout, v, s.grad, s.on_cpu)


def _plant(specs: list[TensorSpec], k: int, planted: Sequence[tuple[int, str]]) -> None:
    if planted:
        v = specs[k].values
        specs[k] = _holding(specs[k], Values(v.family, v.params, v.seed, tuple(planted), v.literal))


def _together(
    specs: list[TensorSpec], able: Sequence[int], words: Sequence[tuple[str, ...]], row: Row, pick: Pick
) -> list[TensorSpec]:
    """The same elements of all operands hold a special number each, under broadcasting."""
    largest = max((specs[k].shape for k in able), key=math.prod)
    planted: dict[int, dict[int, str]] = {k: {} for k in able}
    for _ in range(1 + pick(8 if row.rule in ALONE else 2)):
        where = pick(PLACES)
        wanted = tuple(MEETING)
        for k in able:
            fit = tuple(w for w in wanted if w in words[k]) if pick(4) < 3 else ()
            word = fit[pick(len(fit))] if fit else words[k][pick(len(words[k]))]
            planted[k][aligned(where, largest, specs[k].shape)] = word
            wanted = MEETING.get(word, wanted)
    for k in able:
        _plant(specs, k, tuple(planted[k].items()))
    return specs


def aligned(where: int, largest: Shape, shape: Shape) -> int:
    """The flat index in a tensor of `shape` of the element that meets element `where` of the largest when they broadcast; the
    nearest where they do not."""
    where %= math.prod(largest)
    index: list[int] = []
    for d in reversed(largest):
        index.append(where % d)
        where //= d
    flat, stride = 0, 1
    for d, i in zip(reversed(shape), index):
        flat += min(i, d - 1) * stride
        stride *= d
    return flat


def _family(spec: TensorSpec, row: Row, pick: Pick) -> Values:
    """A family for an operand without a domain; the others keep theirs."""
    v = spec.values
    if v.family not in FREE:
        return v
    options = _families(v.family, spec.dtype, row.rule in ALONE)
    family = options[max(0, pick(len(options) + 3) - 3)]
    return Values(family, v.params)


@functools.cache
def _families(family: str, dtype: str, alone: bool) -> tuple[str, ...]:
    """What an operand may hold whose signature asked for this family."""
    return tuple(f for f in values.families(Values(family), dtype) if alone or f not in values.OVERFLOWING)


def _ends(low: float, high: float, f: DtypeFacts) -> tuple[str, ...]:
    """The ends of a closed domain, which random numbers never meet; those that the dtype holds."""
    held = (e for e in (low, high) if (math.frexp(e)[0] / f.unit_roundoff).is_integer() and float(f"{e:g}") == e)
    return tuple(f"{e:g}" for e in held) if low < high else ()


@functools.lru_cache(maxsize=1024)
def _words(family: str, params: tuple[float, ...], dtype: str, given: bool, finite: bool, exact: bool) -> tuple[str, ...]:
    """The special numbers that an operand may hold. given: a sample keeps its numbers. finite: the row's. exact: its rule."""
    f = FACTS[dtype]
    if family == "inside" and f.kind == "float" and not given:
        return _ends(params[0], params[1], f)
    if family not in FREE or f.kind == "bool":
        return ()
    if family == "sample" and (given or f.kind == "int"):
        return ()  # equal numbers may be written to one place, and only equal ones leave no question open; or an index
    words = values.specials(dtype)
    if family == "between":
        low, high = params
        if f.kind == "int":
            return str(math.ceil(low)), str(math.floor(high))
        edges = [w for e in (low, high) for w in (f"{e:g}", *(values.beside(float(f"{e:g}"), f) if f.kind == "float" else ()))]
        words = (*edges, "nan", "inf", "-inf", "-0.0", "smallest")
    if finite:
        words = tuple(w for w in words if not any(b in w for b in BEYOND_CASTS))
    return words if exact else tuple(w for w in words if w not in MIXED)
