"""Draws the contents of operands: a family for each, and special values planted in none, in one, in each, or in elements that
are combined with each other.

One NaN hides whatever else is wrong with a sum, so half of the cases have no special values. The results of two special values
(Inf * 0, hypot of Inf and NaN, 0 / 0, x - x) are only tested if both are in elements that the op combines.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from parity.catalog.draw import Pick, Shape
from parity.catalog.row import Row
from parity.core.case import TensorSpec, Values
from parity.core.dtypes import FACTS, DtypeFacts
from parity.execution import values
from parity.judging.rules import rule_of

# Values that integer types cannot represent, and that matrices to be factorized must not contain.
BEYOND_CASTS = ("nan", "inf", "max", "lowest", "min")
# Complex numbers with one infinite or NaN part, or with a signed zero at a branch cut. No backend follows C99, annex G, for
# functions of these, so only ops that move data get them, and must keep them.
PARTLY_NONFINITE = ("inf+nanj", "nan-infj", "-1-0.0j")
# Families that may get special values; the values of all others must stay within their domain.
FREE = ("any", "between", "sample")
PLAIN, ONE, EACH, TOGETHER = range(4)
# By whether each element of the result depends on single elements; otherwise one special value may hide the rest.
WAYS = {True: (*(PLAIN,) * 7, *(ONE,) * 2, *(EACH,) * 2, *(TOGETHER,) * 5), False: (*(PLAIN,) * 5, ONE, EACH, TOGETHER)}
# How often the plain family is drawn besides; less of integers, which have few others, and which kernels compute in float32.
MORE_PLAIN = {"int": 1}
PLACES = 16  # flat indices at which special values are planted
# Partners for a special value: indeterminate forms, zeros of both signs, equal and opposite numbers, ends of the range.
PARTNERS = {
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
    """The operands with drawn families and special values."""
    operands = [_with_contents(s, _family(s, row, pick)) for s in specs]
    rule = rule_of(row)
    words = [words_of(s, row) for s in specs]
    able = [k for k, w in enumerate(words) if w and specs[k].numel]
    if not able:
        return operands
    ways = WAYS[rule.by_element]
    way = ways[pick(len(ways))]
    if way == ONE:
        able = [able[pick(len(able))]]
    if way == TOGETHER and len(able) > 1:
        return _together(operands, able, words, row, pick)
    if way == PLAIN:
        return operands
    for k in able:
        count = 1 + pick(3) if len(able) == 1 else max(0, pick(4) - 1)
        _plant(operands, k, [(pick(PLACES), words[k][pick(len(words[k]))]) for _ in range(count)])
    return operands


def words_of(spec: TensorSpec, row: Row) -> tuple[str, ...]:
    """The special values that an operand of a row may get."""
    rule, v = rule_of(row), spec.values
    return _words(v.family, v.params, spec.dtype, row.draws.places or rule.keeps_samples, row.draws.finite, rule.exact)


def _with_contents(s: TensorSpec, v: Values) -> TensorSpec:
    """The operand with these values. Constructs it directly, in a third of the time of `replace`."""
    return s if v is s.values else TensorSpec(s.dtype, s.shape, s.layout, v, s.grad, s.on_cpu)


def _plant(specs: list[TensorSpec], k: int, planted: Sequence[tuple[int, str]]) -> None:
    if planted:
        v = specs[k].values
        specs[k] = _with_contents(specs[k], Values(v.family, v.params, v.seed, tuple(planted), v.literal))


def _together(
    specs: list[TensorSpec], able: Sequence[int], words: Sequence[tuple[str, ...]], row: Row, pick: Pick
) -> list[TensorSpec]:
    """Plants special values in the elements of all operands that broadcasting combines."""
    largest = max((specs[k].shape for k in able), key=math.prod)
    planted: dict[int, dict[int, str]] = {k: {} for k in able}
    for _ in range(1 + pick(8 if rule_of(row).by_element else 2)):
        where = pick(PLACES)
        wanted = tuple(PARTNERS)
        for k in able:
            fit = tuple(w for w in wanted if w in words[k]) if pick(4) < 3 else ()
            word = fit[pick(len(fit))] if fit else words[k][pick(len(words[k]))]
            planted[k][aligned(where, largest, specs[k].shape)] = word
            wanted = PARTNERS.get(word, wanted)
    for k in able:
        _plant(specs, k, tuple(planted[k].items()))
    return specs


def aligned(where: int, largest: Shape, shape: Shape) -> int:
    """Flat index of the element of a tensor of `shape` that broadcasting combines with element `where` of the largest; the
    nearest element if they do not broadcast."""
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
    """Values of a drawn family, for an operand without a domain; its own values for all others."""
    v = spec.values
    if v.family not in FREE:
        return v
    options = _families(v.family, spec.dtype, rule_of(row).by_element)
    more = MORE_PLAIN.get(FACTS[spec.dtype].kind, 3)
    family = options[max(0, pick(len(options) + more) - more)]
    return Values(family, v.params)


@functools.cache
def _families(family: str, dtype: str, alone: bool) -> tuple[str, ...]:
    """The families to draw from for an operand whose signature asked for this one."""
    return tuple(f for f in values.families(Values(family), dtype) if alone or f not in values.OVERFLOWING)


def _ends(low: float, high: float, f: DtypeFacts) -> tuple[str, ...]:
    """The ends of a closed domain that the dtype represents exactly, as texts; random numbers never hit them."""
    held = (e for e in (low, high) if (math.frexp(e)[0] / f.unit_roundoff).is_integer() and float(f"{e:g}") == e)
    return tuple(f"{e:g}" for e in held) if low < high else ()


@functools.lru_cache(maxsize=1024)
def _words(family: str, params: tuple[float, ...], dtype: str, given: bool, finite: bool, exact: bool) -> tuple[str, ...]:
    """The special values that an operand may get. given: whether a sample keeps its own values. finite, exact: of the row and
    of its rule."""
    f = FACTS[dtype]
    if family == "inside" and f.kind == "float" and not given:
        return _ends(params[0], params[1], f)
    if family not in FREE or f.kind == "bool":
        return ()
    if family == "sample" and (given or f.kind == "int"):
        return ()  # its values may be written to one place, where only equal ones are well defined; or it is an index
    words = values.specials(dtype)
    if family == "between":
        low, high = params
        if f.kind == "int":
            return str(math.ceil(low)), str(math.floor(high))
        edges = [
            w for e in (low, high) for w in (f"{e:g}", *(values.neighbours(float(f"{e:g}"), f) if f.kind == "float" else ()))
        ]
        words = (*edges, "nan", "inf", "-inf", "-0.0", "smallest")
    if finite:
        words = tuple(w for w in words if not any(b in w for b in BEYOND_CASTS))
    return words if exact else tuple(w for w in words if w not in PARTLY_NONFINITE)
