"""A catalog row -> cases.

`decode(row, dtype, pick)` is the one generator: every choice is `pick(n)`, an integer in range(n), 0 the simplest. A plain
random generator feeds it during the search, which finds planted faults in 2 to 8 times fewer cases than Hypothesis' own
(whose examples are mostly mutations of earlier ones), and a failing case keeps its picks: `shrink` starts from them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from parity import values
from parity.catalog.draw import Call, Draw, Pick, Sizes
from parity.catalog.row import Row
from parity.checking.prelude import unchecked
from parity.dtypes import FACTS
from parity.generation import mixing
from parity.generation.flaws import flawed
from parity.generation.planting import contents
from parity.layout import WORDS, base_shape, overlaps
from parity.swift import swift
from parity.vocabulary import PRELUDES, Arg, Case, Cotangent, Layout, TensorSpec, Values

# Each table starts with the simplest alternative, repeated to weigh it.
COTANGENTS = ("ones", "normal", "normal", "normal", "zero")
COTANGENT_LAYOUTS = (
    *("contiguous", "contiguous", "contiguous", "expanded", "expanded", "expanded_first", "expanded_last"),
    *("transposed", "stepped", "offset", "channels_last"),
)
# Gradients are recorded in most cases, because backward is checked there.
MODES = (*("grad",) * 10, "no_grad", "inference")
# Sums and writes at places that may repeat must come out alike every time where torch is told so.
ORDERED = (*MODES, "deterministic")
REPEATS = ("writing", "histograms", "scans")
UNORDERED = ("put",)  # even the CPU refuses
# Told to be deterministic, torch takes a formula in Python on all devices but the CPU, which rounds uint8 otherwise.
RESIZED = ("opinfo:nn.functional.interpolate", "opinfo:nn.functional.upsample")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
CONDITIONS = ("where", "where_scalar")  # rows whose first operand is a mask
AFTER = (*("",) * 35, *PRELUDES)
TRAVEL = ("copy_", "to")  # copied into destinations too (`parity.checking.transfer`)
STAYS = 3  # of so many cases that have an operand which may stay on the CPU, it does in one
DESTINATIONS = (
    *("contiguous", "contiguous", "offset", "stepped", "transposed", "columns", "rows", "step_outer", "channels_last"),
    *("empty", "cast"),
)
FLAWED = 20  # one case in so many is wrong on purpose
FLAWED_ALONE = 8  # of ops that take one dtype, which have few cases
# What a destination is cast to, by the item's dtype; float32 for all others.
CASTS = {"float32": ("float16", "bfloat16"), "complex64": ("contiguous",), "int64": ("float32", "int32")}
SEEDS = 1 << 12
# Elements of all operands together, or as many as the profile allows: where several border sizes come together in one call, it
# is drawn again without them.
ROOM = 1 << 22
NO_LAYOUT = 5  # of 12 operands are contiguous
FAR = 4099  # elements that a view may lie behind the start of its memory, or between one row of it and the next
FAR_LIMIT = 1 << 17  # elements that such a base may have
DISPLACED = 12  # of so many that are not, one begins further back in memory beside all else, as a slice of a larger batch does


@swift
@dataclass(frozen=True, slots=True)
class Drawn:
    """A case with the picks it was decoded from, the start of shrinking."""

    case: Case
    picks: tuple[int, ...]


def source(text: str) -> tuple[Pick, list[int]]:
    """(picks, where they are remembered): numbers that a text alone determines, from a hash in counter mode, which begins in a
    tenth of the time that a Mersenne twister takes."""
    picks: list[int] = []
    blocks = map(functools.partial(_block, text.encode()), itertools.count())
    following, remember = itertools.chain.from_iterable(blocks).__next__, picks.append

    def pick(n: int) -> int:
        if n <= 1:
            return 0
        k = following() * n >> 32
        remember(k)
        return k

    return pick, picks


def _block(text: bytes, block: int) -> tuple[int, ...]:
    """Uniform numbers of 32 bits."""
    return _WORDS(hashlib.blake2b(text, salt=block.to_bytes(8, "little")).digest())


_WORDS = struct.Struct("<16I").unpack


# -------------------------------------------------------------------------------------------------------------- decoding


def decode(row: Row, dtype: str, pick: Pick, sizes: Sizes) -> Case:
    """One case of a row in a dtype. Structure is picked first, features after it, seeds last, so that shrinking leads to a
    small, contiguous, plain case. Raises CaseError where the row's samples cannot be made (OpInfo rows)."""
    call, specs = _called(row, Draw(pick, dtype, sizes))
    if sum([s.numel for s in specs]) > max(sizes.limit, ROOM):
        call, specs = _called(row, Draw(pick, dtype, Sizes(border=sizes.plain, limit=0)))
    if row.promotes:
        kept = row.name in CONDITIONS
        specs = [*specs[:kept], *(_typed(s, len(specs), row, pick) for s in specs[kept:])]
    layouts = [_layout(s, i, row, pick) for i, s in enumerate(specs)]
    specs = [
        s if s.layout == cut else TensorSpec(s.dtype, s.shape, cut, s.values, s.grad, s.on_cpu)
        for s, cut in zip(specs, layouts)
    ]
    specs = contents(specs, row, pick)
    specs = _stay(specs, row, call, pick)
    choose = len(specs) > 1 and bool(row.grad)
    grads = [s.grad and FACTS[s.dtype].is_inexact and (not choose or pick(4) != 3) for s in specs]
    if row.unfrozen and specs[0].layout:
        grads[0] = specs[0].grad
    cotangent = _cotangent(row, dtype, pick)
    into = _destination(row, dtype, pick) if row.out else WORDS[pick(len(WORDS))] if row.name in TRAVEL else "contiguous"
    modes = ORDERED if (row.accumulates or row.family in REPEATS) and row.name not in UNORDERED else MODES
    if dtype == "uint8" and row.name.startswith(RESIZED):
        modes = MODES
    under, after = modes[pick(len(modes))], AFTER[pick(len(AFTER))] if specs else ""
    seeds = [pick(SEEDS) if _seeded(s.values) else s.values.seed for s in specs]
    specs = [_finished(*whole) for whole in zip(specs, grads, seeds)]
    it = iter(specs)
    args = tuple([put(a, it) for a in call.args])
    kwargs = tuple([(k, put(v, it)) for k, v in call.kwargs]) if call.kwargs else ()
    odds = FLAWED if len(row.dtypes) > 1 else FLAWED_ALONE
    if pick(odds) == odds - 1:
        return flawed(row, Case(row.name, dtype, args, kwargs, under=under), pick)
    return Case(row.name, dtype, args, kwargs, cotangent if under == "grad" else Cotangent(), into, under, after)


def _called(row: Row, draw: Draw) -> tuple[Call, list[TensorSpec]]:
    """The call that a row's signature makes, and its operands in order."""
    call: Call = row.signature(draw)
    specs: list[TensorSpec] = []
    for a in call.args:
        collect(a, specs)
    for _, a in call.kwargs:
        collect(a, specs)
    return call, specs


def _finished(spec: TensorSpec, grad: bool, seed: int) -> TensorSpec:
    """The operand with what is decided last; made whole, because `replace` costs more than all that is decided."""
    v = spec.values
    if v.seed != seed:
        v = Values(v.family, v.params, seed, v.specials, v.literal)
    if v is spec.values and grad == spec.grad:
        return spec
    return TensorSpec(spec.dtype, spec.shape, spec.layout, v, grad, spec.on_cpu)


def collect(arg: Arg, specs: list[TensorSpec]) -> None:
    """Remember the operands in order; their places are filled again by `put`."""
    if isinstance(arg, TensorSpec):
        specs.append(arg)
    elif isinstance(arg, tuple):
        for a in arg:
            collect(a, specs)


def put(arg: Arg, specs: Iterator[TensorSpec]) -> Arg:
    """An argument with the next operands in the places of those that it holds."""
    if isinstance(arg, TensorSpec):
        return next(specs)
    return tuple([put(a, specs) for a in arg]) if isinstance(arg, tuple) else arg


def _seeded(v: Values) -> bool:
    return v.family != "sample" and v.literal is None


def _typed(spec: TensorSpec, count: int, row: Row, pick: Pick) -> TensorSpec:
    """Another dtype for one of several operands of a promoting op; more often for 0-d ones, which rank below the others."""
    if count == 1 or pick(10 if spec.shape else 4) < (9 if spec.shape else 3):
        return spec
    if spec.values.family not in ("any", "index"):
        return spec
    # float16 beside complex numbers becomes complex32, which hardly an op takes
    clash = {"float16": "complex64", "complex64": "float16"}.get(spec.dtype)
    others = [d for d in row.dtypes if d not in (spec.dtype, clash)]
    if FACTS[spec.dtype].kind == "int":  # one with a sign and one without hold numbers that the other does not
        others += [d for d in others if FACTS[d].kind == "int" and (d in UNSIGNED) != (spec.dtype in UNSIGNED)] * 2
    return replace(spec, dtype=others[pick(len(others))]) if others else spec


def _stay(specs: list[TensorSpec], row: Row, call: Call, pick: Pick) -> list[TensorSpec]:
    """One operand on the CPU, where torch takes it from there."""
    if len(specs) < 2 or not mixing.may(row, specs) or pick(STAYS) < STAYS - 1:
        return specs
    it = iter(specs)
    args = tuple([put(a, it) for a in call.args])
    k = mixing.on_cpu(row, args, tuple([(k, put(v, it)) for k, v in call.kwargs]), pick)
    if k is not None:
        specs[k] = replace(specs[k], on_cpu=True)
        if k == 0 and row.mutates:  # the result is on the CPU, where nobody asks the device for gradients
            specs = [replace(s, grad=False) for s in specs]
    return specs


def _layout(spec: TensorSpec, position: int, row: Row, pick: Pick) -> Layout:
    """A layout for one operand: contiguous, one recipe, or two on top of each other."""
    rank = len(spec.shape)
    kind = pick(12)
    if kind < NO_LAYOUT or (spec.on_cpu and rank):  # tensor_split's sizes
        return ()
    if row.packed and pick(row.packed):
        return ()
    recipes = RECIPES_0D if rank == 0 else IMAGES if 4 <= rank <= 5 else RECIPES
    first = recipes[pick(len(recipes))](spec.shape, pick)
    if kind == 11 and rank:
        inner = base_shape(spec.shape, first)
        second = recipes[pick(len(recipes))](inner, pick)
        if not overlaps(second):
            first = (*second, *first)
    if rank and first[0][0] not in ("flat", "select") and pick(DISPLACED) == DISPLACED - 1:
        first = (("flat", FAR if pick(4) == 3 else 1 + pick(4), 0), *first)
    holds = FACTS[spec.dtype].kind
    if holds == "complex" and pick(4) == 3:
        first = _lazily("conj", first)
    elif holds == "float" and pick(16) == 15:
        first = _lazily("neg", first)
    return () if overlaps(first) and _must_not_overlap(spec, position, row, pick) else first


def _must_not_overlap(spec: TensorSpec, position: int, row: Row, pick: Pick) -> bool:
    if row.mutates or row.unexpanded or (row.places and FACTS[spec.dtype].kind == "int"):
        return True
    if spec.values.family in (*values.MATRICES, "unique"):
        return True  # equal rows are no longer a matrix of the kind that the op's contract asks for
    return position == 0 and bool(row.inplace) and pick(2) == 1


def _lazily(bit: str, layout: Layout) -> Layout:
    """The layout with a lazy bit set behind its last step, but before it is expanded."""
    steps = [step for step in layout if step[0] != "expand"]
    return (*steps, (bit,), *layout[len(steps) :])


Recipe = Callable[[tuple[int, ...], Pick], Layout]


def _dim(shape: tuple[int, ...], pick: Pick) -> int:
    """The last dimension (simplest) or another, counted from the end so that it survives a smaller rank."""
    return -1 - pick(len(shape))


def _expand(shape: tuple[int, ...], pick: Pick) -> Layout:
    d = _dim(shape, pick)
    if pick(4) == 3:
        return tuple(("expand", k) for k in range(len(shape)))
    return (("expand", d),)


def _behind(shape: tuple[int, ...], d: int, pick: Pick) -> int:
    """Elements of a dimension behind a slice of it: one or two, or so many that its rows lie far from each other."""
    few = 1 + pick(2)
    others = math.prod(n for k, n in enumerate(shape) if k != d % len(shape))
    if len(shape) < 2 or pick(4) < 3 or others * FAR > FAR_LIMIT:
        return few
    return FAR


def _channels_last(shape: tuple[int, ...], pick: Pick) -> Layout:
    """Channels last, and sometimes a channel slice of it, whose strides look packed and are not."""
    if not 3 <= len(shape) <= 5:
        return (("transpose", 0, -1),)
    if pick(3) == 2:
        return (("channels_last",), ("slice", 1, pick(2), 1))
    return (("channels_last",),)


def _permute(shape: tuple[int, ...], pick: Pick) -> Layout:
    rest = list(range(len(shape)))
    return (("permute", *(rest.pop(pick(len(rest))) for _ in shape)),)


def _transpose(shape: tuple[int, ...], pick: Pick) -> Layout:
    if len(shape) < 2:
        return (("step", -1, 2, 0),)
    i = _dim(shape, pick)
    j = -1 - (-i % len(shape))
    return (("transpose", j, i),)


RECIPES: tuple[Recipe, ...] = (
    lambda s, pick: (("flat", 1 + pick(4), pick(2)),),
    _transpose,
    lambda s, pick: (("step", _dim(s, pick), 2 + pick(2), pick(2)),),
    lambda s, pick: (("slice", _dim(s, pick), 1 + pick(2), pick(2)),),
    lambda s, pick: (("slice", d := _dim(s, pick), 0, _behind(s, d, pick)),),
    lambda s, pick: (("select", 1, 2),),
    _permute,
    _channels_last,
    _expand,
)
IMAGES: tuple[Recipe, ...] = (*RECIPES, _channels_last, _channels_last)  # what most models lay their images out as
RECIPES_0D: tuple[Recipe, ...] = (
    lambda s, pick: (("select", 1, 2 + pick(2)),),
    lambda s, pick: (("flat", 1 + pick(4), pick(2)),),
)


def _destination(row: Row, dtype: str, pick: Pick) -> str:
    word = DESTINATIONS[pick(len(DESTINATIONS))]
    if word in ("empty", "cast") and unchecked(row):
        return "contiguous"
    casts = CASTS.get(dtype, ("float32",))
    return casts[pick(len(casts))] if word == "cast" else word


def _cotangent(row: Row, dtype: str, pick: Pick) -> Cotangent:
    if dtype not in row.grad:
        return Cotangent()
    kind = COTANGENTS[pick(len(COTANGENTS))]
    where = COTANGENT_LAYOUTS[pick(len(COTANGENT_LAYOUTS))]
    return Cotangent(kind, where, pick(SEEDS) if kind == "normal" else 0)


# ---------------------------------------------------------------------------------------------------------------- search


def search(row: Row, dtype: str, sizes: Sizes, seed: str, count: int) -> Iterator[Drawn]:
    """`count` cases, a function of the row, the dtype, the sizes and the seed alone (not of order, worker or history)."""
    for ordinal in range(count):
        yield nth(row, dtype, sizes, seed, ordinal)


def nth(row: Row, dtype: str, sizes: Sizes, seed: str, ordinal: int) -> Drawn:
    """Case number `ordinal` of that search. Case 0 is the simplest there is."""
    if ordinal == 0:
        return Drawn(decode(row, dtype, lambda n: 0, sizes), ())
    pick, picks = source(f"{seed}:{row.name}:{dtype}:{ordinal}")
    case = decode(row, dtype, pick, sizes)
    return Drawn(case, tuple(picks))
