"""The call of a case: drawn by its row, its numbers, and what runs before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from parity.catalog.draw import Arguments, Draw, Pick
from parity.catalog.row import RAW, Quirk, Row
from parity.core.case import HISTORIES, Arg, Case, TensorSpec, Values, Word, operands_in
from parity.core.dtypes import FACTS
from parity.core.errors import UsageError
from parity.core.layout import overlaps
from parity.execution.values import FLOAT_FAMILIES, MATRICES, ROWS
from parity.generation.mixing import is_taken
from parity.generation.room import made
from parity.judging.rules import rule_of

# 42 entries, the first seven histories last: a longer table would change every case drawn from the same picks.
AFTER = (*("",) * (42 - len(HISTORIES)), *HISTORIES[7:], *HISTORIES[:7])
SQUARE = "orthogonal", "symmetric", "upper"
STRUCTURES = (*ROWS, "unit_rows", *SQUARE)
FRACTIONS = 3  # of the empty entries, from the second on: another scalar, for a call that has a fraction (caches print them)


def draw_call(row: Row, draw: Draw) -> tuple[Arguments, list[TensorSpec]]:
    """The arguments that the row's signature draws, and the operands in them, in order."""
    call: object = row.signature(draw)
    if not isinstance(call, Arguments):
        what = f"the signature of the row '{row.name}' returns {type(call).__name__}"
        raise UsageError(f"{what}; it has to return Arguments((draw.tensor(draw.shape()),)) or the like")
    return call, operands_in((call.args, call.kwargs))


def history(row: Row, call: Arguments, specs: list[TensorSpec], pick: Pick) -> str:
    """What runs before the call, or "". A history that would change nothing gives way to the next one that does."""
    drawn = pick(len(AFTER))
    if not specs or not AFTER[drawn]:
        fractional = 0 < drawn <= FRACTIONS and specs and not row.refuses.unchecked and not row.is_sampled
        return "other_scalar" if fractional and _has_fraction(call) else ""
    following = (AFTER[drawn], *AFTER[drawn + 1 :], *HISTORIES)
    return next(word for word in following if changes(word, row, call, specs))


def changes(word: str, row: Row, call: Arguments, specs: list[TensorSpec]) -> bool:
    """Whether the row and the call have what the history changes; `garbage` and `other_values` always do."""
    if word == "other_scalar":
        return not row.refuses.unchecked and any(True for _ in scalars(call))
    if word == "other_layout":
        return Quirk.MEMORY not in row.quirks
    if word == "other_dtype":
        alike = {d for d in row.dtypes for s in specs[:1] if FACTS[d].kind == FACTS[s.dtype].kind}
        return not row.refuses.unchecked and Quirk.MEMORY not in row.quirks and len(alike) > 1
    if word == "other_presence":
        return not (row.refuses.unchecked or row.is_sampled or row.family in RAW) and len(specs) > 1
    if word == "destination":
        return not (row.refuses.unchecked or row.forms.mutates) and bool(row.forms.inplace or row.forms.out)
    if word == "sibling":
        return not (row.refuses.unchecked or row.is_sampled)
    return True


def _has_fraction(call: Arguments) -> bool:
    return any(isinstance(a, float) for a in scalars(call))


def scalars(call: Arguments) -> Iterator[Arg]:
    """The numbers, flags and words of a call."""
    yield from _leaves((call.args, tuple(v for _, v in call.kwargs)))


def _leaves(tree: Arg) -> Iterator[Arg]:
    if isinstance(tree, tuple):
        for a in tree:
            yield from _leaves(a)
    elif isinstance(tree, bool | int | float | complex | str) and not isinstance(tree, Word):
        yield tree


def replaced(tree: Any, x: float, y: complex) -> Any:
    """The arguments with y for each x."""
    if isinstance(tree, tuple):
        return tuple([replaced(a, x, y) for a in tree])
    return y if type(tree) is type(x) and tree == x else tree


FORCED = {"sample", "unique"}  # families of values that belong to a shape
BROADCASTS = "binary"  # the family of functions of two tensors that broadcast
NUMBERS = 1.0, 2.0, 0.0  # in place of a number of a call, besides its negative
LARGE_NUMBERS = {float: 1e6, int: (1 << 33) + 1}
NOT_FINITE = math.inf, -math.inf, math.nan
LEAST_NUMBER = 2.0**-6  # smaller ones keep a quotient finite: they may be 1
TRIES = 4  # numbers that are tried
MADE = 1 << 20  # elements that a call with another one makes: a scale of a million is a giant


Feature = Callable[[Row, Case, Pick], Case | None]


def either(one: Feature, holds: Callable[[Row], bool], other: Feature) -> Feature:
    """A feature of the rows for which this holds, another of all others."""
    return lambda row, case, pick: (one if holds(row) else other)(row, case, pick)


def structured(row: Row, case: Case, pick: Pick) -> Case | None:
    """One operand that may have any values is made of shares of 1, sorted, one-hot, symmetric, triangular or orthogonal, by
    turns, without special values."""
    specs = case.operands()
    free = [k for k, s in enumerate(specs) if s.values.family in FLOAT_FAMILIES and s.values.literal is None]
    able = [(k, word) for word in STRUCTURES for k in free if _may_be(specs[k], word)]
    if not able:
        return None
    square = [(k, word) for k, word in able if word in SQUARE]  # rarer
    k, word = (square or able)[pick(len(square or able))]
    laid = () if overlaps(specs[k].layout) else specs[k].layout
    one = replace(specs[k], layout=laid, values=Values(word, (), specs[k].values.seed))
    return case.with_operands([one if j == k else s for j, s in enumerate(specs)])


def _may_be(s: TensorSpec, word: str) -> bool:
    """Whether an operand has the dtype and the shape for such values."""
    kind, rank = FACTS[s.dtype].kind, len(s.shape)
    if word in ROWS:
        return kind == "float" and s.numel > 1 and rank > 0
    square = rank > 1 and (word == "unit_rows" or s.shape[-1] == s.shape[-2])
    return square and s.numel > 1 and kind in ("float", "complex")


def broadcasts(row: Row) -> bool:
    """Whether the call takes any two shapes that broadcast."""
    return row.family == BROADCASTS or (row.forms.promotes and row.rule.is_by_element)


def plain(s: TensorSpec) -> TensorSpec:
    """The operand without special values."""
    return replace(s, values=replace(s.values, specials=())) if s.values.specials else s


def other_number(row: Row, case: Case, pick: Pick) -> Case | None:
    """A number of the call is its negative, 1, 2, 0, a million or, if whole, one above 2**32; where the call promotes it,
    complex; of functions of single elements, Inf or NaN. The CPU has to give finite numbers for all others; what keeps a
    quotient finite is 1 at most. Of raw kernels only those of gradients have numbers that say nothing of memory."""
    if row.refuses.unchecked and row.family != "gradients":
        return None
    whole = broadcasts(row)  # of others they are sizes and dimensions
    named = scalars(Arguments(case.args, case.kwargs))
    found = [x for x in named if isinstance(x, float) or (whole and isinstance(x, int) and not isinstance(x, bool))]
    small = dict.fromkeys(x for x in found if 0 < abs(x) < LEAST_NUMBER)
    held = dict.fromkeys(x for x in found if x == 0 or LEAST_NUMBER <= abs(x) < math.inf)
    others = [(x, y) for x in held for y in (-x, *NUMBERS, LARGE_NUMBERS[type(x)]) if x != y != 1 << 63]  # no int64 holds that
    able: list[tuple[float, complex]] = [*((x, type(x)(y)) for x, y in others), *((x, 1.0) for x in small)]
    if rule_of(row).by_element and not row.draws.finite:
        able += [(x, y) for x in held if isinstance(x, float) for y in NOT_FINITE]
    if whole and row.forms.promotes and "complex64" in row.dtypes and FACTS[case.dtype].kind == "float":
        able += [(x, complex(x, 2)) for x in held]
    start = pick(max(1, len(able)))
    for x, y in (*able[start:], *able[:start])[:TRIES]:
        args, kwargs = replaced((case.args, case.kwargs), x, y)
        new = replace(case, args=args, kwargs=kwargs)
        if made(row, new).elements <= MADE and is_taken(row, new.map_operands(plain), finite=y not in NOT_FINITE):
            return new
    return None


def expanded(row: Row, case: Case, pick: Pick) -> Case | None:
    """One operand alone, by turns, is expanded along one of its dimensions; not one in channels_last, which is rarer."""
    if row.forms.mutates or row.draws.unexpanded or row.draws.packed or row.quirks:
        return None
    specs, kept = case.operands(), FORCED | set(MATRICES)
    free = [k for k, s in enumerate(specs) if not (s.on_cpu or s.values.family in kept or s.values.literal is not None)]
    able = [k for k in free if max(specs[k].shape, default=0) > 1 and _is_read(row, specs[k])]
    able = [k for k in able if ("channels_last",) not in specs[k].layout]
    if not able:
        return None
    k = able[pick(len(able))]
    along = [d for d, n in enumerate(specs[k].shape) if n > 1]
    layout = (("expand", along[pick(len(along))] - len(specs[k].shape)),)
    return case.with_operands([replace(s, layout=layout) if j == k else s for j, s in enumerate(specs)])


def _is_read(row: Row, s: TensorSpec) -> bool:
    """Whether an operand does not say where the call writes."""
    return not (row.draws.places and FACTS[s.dtype].kind == "int")
