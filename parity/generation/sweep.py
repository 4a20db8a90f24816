"""The sweep: calls in which one dimension has a border size, or two at once, or so many elements that kernels count or launch
in another way, with all other dimensions small.

A `SweepPlan` says which cases an item has: first those of one border, then of two, then of many elements. Each kind walks its
table in turn, and each seed goes on where the one before it ended, so that two runs with consecutive seeds and half of the
table each meet all of it. What is left out: two borders whose product is above ROOM_OF_TWO, three at once, sizes above
2**24 + 1, many elements where a call takes too long (LIMITS), and the dimensions that a row fixes or cuts (the rows without any
are listed in tests/unit/generation/test_sweep.py).
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from parity.catalog.draw import Arguments, Pick, Sweep, SweepPlan
from parity.catalog.row import Row
from parity.core.case import Arg, Case, Cotangent, TensorSpec, Values, operands_in
from parity.core.dtypes import FACTS
from parity.generation.generate import SEEDS, Drawn, fits, is_seeded, source
from parity.generation.room import MOST
from parity.judging.rules import rule_of

TRIES = 6  # structures that are drawn until one has so many dimensions
SHORTEST = 256  # a row may cut a border size (the side of a kernel), but not below this
# Sizes of which two meet, each with its neighbours: tiles, threads of a group, blocks, 15 and 16 bits.
CLASSES = (16, 64, 256, 1024, 4096, 32768, 65536)
ROOM_OF_TWO = 1 << 20  # the largest product of two of them, without neighbours
TWO = tuple((a, b) for a, b in itertools.product(CLASSES, CLASSES) if a * b <= ROOM_OF_TWO)
LIMIT_OF_TWO = 1 << 21  # elements of the operands of a case with two borders
# The same where time grows faster than operands do; of these no case has many elements.
LIMITS = {"recurrent": 1 << 16, "attention": 1 << 18, "linalg": 1 << 18, "sparse": 1 << 18, "random": 1 << 19}
LIMIT_OF_FACTORS = 1 << 16  # and where a matrix is solved or factorized
# Numbers of elements: above 2**21 in one dimension, or as a nearly square plane; float32 counts to 2**24 only.
ELEMENTS = (
    *((1 << 22,), ((1 << 22) + 1,), (2048, 2049), ((1 << 22) - 1,), (1 << 21, 2), (2049, 2047)),
    *((1 << 24,), ((1 << 24) + 1,), (4096, 4097), ((1 << 24) - 1,), ((1 << 23) + 1,), (2, 1 << 23)),
)
# What the truth may make of a call, for each element that its operands may have: formulas of resampling make a hundred and
# more. Of 65,535 x 2 x 2 results of four images they made 30 million, and judging their gradient took 64 s on an H200.
MADE_PER_ELEMENT = 16
ROOM_FOR_MORE = 1 + 2**-8  # a factor for elements past a power of two, and for small operands next to large ones


def swept(row: Row, dtype: str, plan: SweepPlan, seed: str, ordinal: int) -> Drawn | None:
    """Case number `ordinal` of an item's sweep; None where the row draws no dimension, or not two, or not so many elements."""
    one, two, elements = plan.counts(dtype)
    if ordinal < one:
        return with_one_border(row, dtype, plan.borders, plan.limit, seed, turn(seed, one) + ordinal)
    if ordinal < one + two:
        return with_two_borders(row, dtype, seed, turn(seed, two) + ordinal - one)
    return with_many_elements(row, dtype, plan.most, seed, turn(seed, elements) + ordinal - one - two)


def turn(seed: str, count: int) -> int:
    """Where a seed begins to walk a table of which each run takes `count`: where the seed before it ended."""
    return (int(seed) if seed.isdecimal() else _offset(seed)) * count


def with_one_border(row: Row, dtype: str, borders: Sequence[int], limit: int, seed: str, index: int) -> Drawn | None:
    """A plain case in which one dimension has a border size and all others are small. The borders come in turn, and each time
    around with another dimension. A border with which the operands have more than `limit` elements gives way to the next
    smaller one."""
    for attempt in range(TRIES):  # some calls have no dimension: 0-d operands, sizes that the row fixes or cuts
        text = f"{seed}:{row.name}:{dtype}:sweep:{index}:{attempt}"
        if not (count := _dimensions(row, dtype, text)):
            continue
        around, first = divmod(_offset(f"{row.name}:{dtype}") + index, len(borders))
        at = (first + around + attempt) % count
        smaller = sorted((b for b in borders if b < borders[first]), reverse=True)
        if one := _first(row, dtype, text, [{at: b} for b in (borders[first], *smaller)], limit):
            return one
    return None


def with_two_borders(row: Row, dtype: str, seed: str, index: int) -> Drawn | None:
    """A plain case in which two dimensions have border sizes: entry number `index` of TWO, with a neighbour of each. All pairs
    of sizes come before the next pair of dimensions does."""
    limit = LIMIT_OF_FACTORS if rule_of(row).keeps_samples else LIMITS.get(row.family, LIMIT_OF_TWO)
    entry = index % len(TWO)
    for attempt in range(TRIES):
        text = f"{seed}:{row.name}:{dtype}:two:{index}:{attempt}"
        pairs = list(itertools.combinations(range(_dimensions(row, dtype, text)), 2))
        if not pairs:
            continue
        i, j = pairs[(_offset(f"{row.name}:{dtype}") + index // len(TWO) + entry + attempt) % len(pairs)]
        near = source(f"{text}:near", [])
        a, b = (n + (0, 1, -1)[near(3)] for n in TWO[entry])
        larger = i if a >= b else j
        tries = [{i: a, j: b}, *({i: a, j: b, larger: n} for n in reversed(CLASSES) if n < max(a, b))]
        if one := _first(row, dtype, text, tries, limit):
            return one
    return None


def with_many_elements(row: Row, dtype: str, most: int, seed: str, index: int) -> Drawn | None:
    """A plain case with as many elements as entry number `index` of ELEMENTS, of those below `most`: all other dimensions are
    as small as can be. None where a call would take too long, or have many times as many elements."""
    if rule_of(row).keeps_samples or row.family in LIMITS:
        return None
    fitting = [e for e in ELEMENTS if max(e) * min(e[1:], default=1) <= most * ROOM_FOR_MORE]
    sizes = fitting[(_offset(f"{row.name}:{dtype}") + index) % len(fitting)]
    for attempt in range(TRIES):
        text = f"{seed}:{row.name}:{dtype}:elements:{index}:{attempt}"
        places = list(itertools.combinations(range(_dimensions(row, dtype, text)), len(sizes)))
        if not places:
            continue
        where = places[(index + attempt) % len(places)]
        large, limit = dict(zip(where, sizes, strict=True)), int(2 * most * ROOM_FOR_MORE)
        if one := _first(row, dtype, text, [large], limit, least=True):
            return one
    return None


# ------------------------------------------------------------------------------------------------------------------ calls


def _dimensions(row: Row, dtype: str, text: str) -> int:
    """How many dimensions a call draws."""
    one = Sweep(source(text, []), dtype, {})
    row.signature(one)
    return one.drawn


def _first(row: Row, dtype: str, text: str, tries: Sequence[dict[int, int]], limit: int, least: bool = False) -> Drawn | None:
    """The case of the first of these borders with which the operands have no more than `limit` elements; None where there is
    none, or where the row cut it. least: all other dimensions are as small as can be; else they are so where the truth would
    make too much, or where two borders would not fit."""
    small = True
    for borders, tight in ((b, t) for b in tries for t in ((True,) if least else (False, True))):
        if tight and not (small or least) and len(borders) == 1:
            continue  # a smaller border takes its place
        call: Arguments = row.signature(Sweep(source(text, []), dtype, borders, tight))
        specs = operands_in((call.args, call.kwargs))
        small = sum(map(_elements, specs)) <= limit
        if small and fits(row, dtype, call, limit, min(MOST, MADE_PER_ELEMENT * limit)):
            break
    else:
        return None
    met = sorted(_numbers((call.args, call.kwargs)), reverse=True)[: len(borders)]
    wanted = sorted(borders.values(), reverse=True)
    if len(met) < len(wanted) or any(n < min(b, SHORTEST) for n, b in zip(met, wanted)):
        return None
    return Drawn(_plain(row, dtype, call, specs, source(f"{text}:seeds", [])), ())


def _elements(spec: TensorSpec) -> int:
    """Elements of an operand, or of what it points into without a repeat."""
    return max(spec.numel, int(spec.values.params[0]) if spec.values.family == "unique" else 0)


def _plain(row: Row, dtype: str, call: Arguments, specs: Sequence[TensorSpec], pick: Pick) -> Case:
    """The call with contiguous operands of whole numbers, and a gradient."""
    specs = [_in_whole_numbers(s, pick) for s in specs]
    cotangent = Cotangent("normal", "contiguous", pick(SEEDS)) if dtype in row.grad else Cotangent()
    return Case(row.name, dtype, call.args, call.kwargs, cotangent).with_operands(specs)


def _in_whole_numbers(spec: TensorSpec, pick: Pick) -> TensorSpec:
    """The operand with small whole numbers where it may have any, so that sums of many are exact in any order."""
    v, facts = spec.values, FACTS[spec.dtype]
    if v.family == "any":
        v = Values("integers" if facts.kind == "float" else "uniform")
    if is_seeded(v):
        v = replace(v, seed=pick(SEEDS))
    return replace(spec, values=v, grad=spec.grad and facts.is_inexact)


def _numbers(tree: Arg) -> Iterator[int]:
    """All sizes and whole numbers in an argument, or in a tuple of arguments."""
    if isinstance(tree, TensorSpec):
        yield from tree.shape
    elif isinstance(tree, tuple):
        for a in tree:
            yield from _numbers(a)
    elif isinstance(tree, int):
        yield tree


def _offset(text: str) -> int:
    return zlib.crc32(text.encode())
