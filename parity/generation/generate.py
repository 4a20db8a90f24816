"""Draws the cases of a catalog row.

`decode(row, dtype, pick)` is the only generator: every choice is `pick(n)`, an integer in range(n), where 0 is the simplest. In
the search the picks are random numbers, which find planted faults in 2 to 8 times fewer cases than Hypothesis' own search
(whose examples are mostly mutations of earlier ones). A failing case keeps its picks, and `shrink` starts from them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from parity.catalog.draw import Arguments, Draw, Pick, Sizes
from parity.catalog.row import Quirk, Row
from parity.core.case import Arg, Case, Cotangent, Layout, TensorSpec, Values, map_operands_in
from parity.core.dtypes import FACTS
from parity.core.layout import WORDS, base_shape, overlaps
from parity.execution import values
from parity.generation import mixing
from parity.generation.aiming import featured, formed, forms_of, is_form, picked, planned
from parity.generation.calls import draw_call, history
from parity.generation.error_inputs import error_case
from parity.generation.mixed_dtypes import with_mixed_dtypes
from parity.generation.planting import contents
from parity.generation.room import LARGE, MOST, made

# Each table starts with the simplest alternative; repeated entries are drawn more often.
COTANGENTS = ("ones", "normal", "normal", "normal", "zero")
COTANGENT_LAYOUTS = (
    *("contiguous", "contiguous", "contiguous", "expanded", "expanded", "expanded_first", "expanded_last"),
    *("transposed", "stepped", "offset", "channels_last"),
)
# Gradients are recorded in most cases, because backward is checked there.
MODES = (*("grad",) * 10, "no_grad", "inference")
# Sums and writes at repeated indices must be reproducible if torch is set to deterministic algorithms.
ORDERED = (*MODES, "deterministic")
REPEATS = ("writing", "histograms", "scans")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
ON_CPU_ODDS = 3  # one in this many cases with an operand that may stay on the CPU has it there
DESTINATIONS = (
    *("contiguous", "contiguous", "offset", "stepped", "transposed", "columns", "rows", "step_outer", "channels_last"),
    *("empty", "cast"),
)
ERROR_ODDS = 14  # one case in this many must be refused
ERROR_ODDS_ONE_DTYPE = 8  # for ops with a single dtype, which have few cases
# Dtypes of a destination that torch casts to, by the dtype of the item; float32 for all others.
CASTS = {"float32": ("float16", "bfloat16"), "complex64": ("contiguous",), "int64": ("float32", "int32")}
SEEDS = 1 << 12
# Elements of all operands together; the limit of the profile counts if that is larger. A call with more, because several border
# sizes came together, is drawn again without them.
ROOM = 1 << 22
MADE_PER_OPERAND = 8  # elements that formulas make for each of an operand, of a function of one element; more are drawn again
MADE_PER_RESULT = 32  # elements that formulas make for each of a result: calls with smaller results are not looked at
NO_LAYOUT = 5  # of 12 operands are contiguous
FAR = 4099  # elements between the start of the memory and the view, or between rows of the view
FAR_LIMIT = 1 << 17  # limit for the elements of a base with such gaps
ALIKE = 6  # one in this many cases has all operands of one rank in one layout
DISPLACED = 12  # one in this many views also gets an offset, like a slice of a larger batch


@dataclass(frozen=True, slots=True)
class Drawn:
    """A case with the picks it was decoded from, the start of shrinking."""

    case: Case
    picks: tuple[int, ...]


def source(text: str, picks: list[int]) -> Pick:
    """A source of picks, which it adds to the list. They depend on the text alone: they come from a hash in counter mode, which
    starts ten times faster than a Mersenne twister."""
    blocks = map(functools.partial(_block, text.encode()), itertools.count())
    following, remember = itertools.chain.from_iterable(blocks).__next__, picks.append

    def pick(n: int) -> int:
        if n <= 1:
            return 0
        k = following() * n >> 32
        remember(k)
        return k

    return pick


def _block(text: bytes, block: int) -> tuple[int, ...]:
    """16 uniform 32-bit integers."""
    return _WORDS(hashlib.blake2b(text, salt=block.to_bytes(8, "little")).digest())


_WORDS = struct.Struct("<16I").unpack


# -------------------------------------------------------------------------------------------------------------- decoding


def decode(
    row: Row, dtype: str, pick: Pick, sizes: Sizes, draw: Draw | None = None, mixes: bool = True, aim: Pick | None = None
) -> Case:
    """One case of a row in a dtype. What it is aimed at is picked first, then structure, features after it, seeds last, so that
    shrinking leads to a small, contiguous, plain case. draw: draws the structure, if that has sizes or a source of its own.
    mixes: whether all operands may get one layout, one argument another dtype, and the case a feature it is aimed at. aim:
    picks that feature, if a plan does. Raises CaseError where the row's samples cannot be made (OpInfo rows)."""
    number, turn = picked(aim or pick) if mixes and not row.is_sampled else (0, 0)
    odds = ERROR_ODDS if len(row.dtypes) > 1 else ERROR_ODDS_ONE_DTYPE
    misfit, case = None, None
    if forms := forms_of(number, turn):
        misfit = pick(odds) == odds - 1
        case = None if misfit else formed(row, dtype, forms, turn, pick, functools.partial(_completed, row, dtype, pick))
    if case is None:
        case = _completed(row, dtype, pick, *_ordinary(row, draw or Draw(pick, dtype, sizes)))
        if pick(odds) == odds - 1 if misfit is None else misfit:
            return error_case(row, Case(row.name, dtype, case.args, case.kwargs, under=case.under), pick)
    elif is_form(number):
        return case
    if not mixes:
        return case
    return featured(row, with_mixed_dtypes(row, _in_one_layout(row, case, pick), pick), number, turn, pick)


def _ordinary(row: Row, draw: Draw) -> tuple[Arguments, list[TensorSpec]]:
    """A call of ordinary sizes, and its operands."""
    call, specs = draw_call(row, draw)
    if sum([s.numel for s in specs]) > max(draw.sizes.limit, ROOM) or not fits(row, draw.dtype, call, draw.sizes.limit):
        return draw_call(row, Draw(draw.pick, draw.dtype, Sizes(border=draw.sizes.plain, limit=0)))
    return call, specs


def _completed(row: Row, dtype: str, pick: Pick, call: Arguments, specs: list[TensorSpec]) -> Case:
    """The case of a call: dtypes, layouts, contents and gradients of its operands, its destination, modes, and what runs
    before."""
    if row.forms.promotes:
        kept = int(Quirk.MASK in row.quirks)
        specs = [*specs[:kept], *(_typed(s, len(specs), row, pick) for s in specs[kept:])]
    layouts = [layout_of(s, i, row, pick) for i, s in enumerate(specs)]
    if Quirk.DENSE in row.quirks and (len(specs[0].shape) != 3 or specs[0].shape[2] == 1):
        layouts = [() if len(s.shape) == 1 else cut for s, cut in zip(specs, layouts)]
    specs = [
        s if s.layout == cut else TensorSpec(s.dtype, s.shape, cut, s.values, s.grad, s.on_cpu)
        for s, cut in zip(specs, layouts)
    ]
    specs = contents(specs, row, pick)
    specs = _one_on_cpu(specs, row, call, pick)
    choose = len(specs) > 1 and bool(row.grad)
    grads = [s.grad and FACTS[s.dtype].is_inexact and (not choose or pick(4) != 3) for s in specs]
    if Quirk.UNFROZEN in row.quirks and specs[0].layout:
        grads[0] = specs[0].grad
    cotangent = _cotangent(row, dtype, pick)
    into = "contiguous"
    if row.forms.out:
        into = _destination(row, dtype, pick)
    elif Quirk.TRANSFERS in row.quirks:
        into = WORDS[pick(len(WORDS))]
    modes = ORDERED if (row.judged.accumulates or row.family in REPEATS) and dtype not in row.draws.nondeterministic else MODES
    under, after = modes[pick(len(modes))], history(row, call, specs, pick)
    seeds = [pick(SEEDS) if is_seeded(s.values) else s.values.seed for s in specs]
    specs = [_with_seed(*whole) for whole in zip(specs, grads, seeds)]
    args, kwargs = _with_operands(call, specs)
    return Case(row.name, dtype, args, kwargs, cotangent if under == "grad" else Cotangent(), into, under, after)


def fits(row: Row, dtype: str, call: Arguments, limit: int, most: int = MOST) -> bool:
    """Whether what a call makes is not much more than operands of so many elements allow. most: elements that it may make."""
    most = max(most, MADE_PER_OPERAND * limit)
    return made(row, Case(row.name, dtype, call.args, call.kwargs), min(LARGE, most // MADE_PER_RESULT)).elements <= most


def _with_operands(call: Arguments, specs: Iterable[TensorSpec]) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
    """The arguments and keyword arguments of a call with these operands in place of its own."""
    following = iter(specs)
    args, kwargs = map_operands_in((call.args, call.kwargs), lambda _: next(following))
    return args, kwargs


def _with_seed(spec: TensorSpec, grad: bool, seed: int) -> TensorSpec:
    """The operand with this flag and seed. Constructs it directly, because `replace` is slow."""
    v = spec.values
    if v.seed != seed:
        v = Values(v.family, v.params, seed, v.specials, v.literal)
    if v is spec.values and grad == spec.grad:
        return spec
    return TensorSpec(spec.dtype, spec.shape, spec.layout, v, grad, spec.on_cpu)


def is_seeded(v: Values) -> bool:
    """Whether values depend on a seed."""
    return v.family != "sample" and v.literal is None


def _typed(spec: TensorSpec, count: int, row: Row, pick: Pick) -> TensorSpec:
    """The operand of a promoting op, sometimes with another dtype; more often if it is 0-d, since torch promotes these
    otherwise."""
    if count == 1 or pick(10 if spec.shape else 4) < (9 if spec.shape else 3):
        return spec
    if spec.values.family not in ("any", "index"):
        return spec
    # float16 mixed with complex64 can become complex32, which hardly an op takes
    clash = {"float16": "complex64", "complex64": "float16"}.get(spec.dtype)
    others = [d for d in row.dtypes if d not in (spec.dtype, clash)]
    if FACTS[spec.dtype].kind == "int":  # signed and unsigned types have values that the other does not have: drawn more often
        others += [d for d in others if FACTS[d].kind == "int" and (d in UNSIGNED) != (spec.dtype in UNSIGNED)] * 2
    return replace(spec, dtype=others[pick(len(others))]) if others else spec


def _one_on_cpu(specs: list[TensorSpec], row: Row, call: Arguments, pick: Pick) -> list[TensorSpec]:
    """The operands, sometimes with one of them on the CPU, if torch accepts that."""
    if len(specs) < 2 or not mixing.is_possible(row, specs) or pick(ON_CPU_ODDS) < ON_CPU_ODDS - 1:
        return specs
    k = mixing.pick_operand(row, *_with_operands(call, specs), pick)
    if k is not None and not any(s.on_cpu for s in specs):  # a row may put one there itself
        specs[k] = replace(specs[k], on_cpu=True)
        if k == 0 and row.forms.mutates:  # the result is on the CPU too, so the device computes no gradients
            specs = [replace(s, grad=False) for s in specs]
    return specs


def layout_of(spec: TensorSpec, position: int, row: Row, pick: Pick) -> Layout:
    """A layout for one operand: contiguous, one recipe, or two applied one after the other."""
    rank = len(spec.shape)
    kind = pick(12)
    if kind < NO_LAYOUT or (spec.on_cpu and rank):  # the sizes of tensor_split
        lazy = kind == NO_LAYOUT - 1 and FACTS[spec.dtype].kind == "complex" and not (spec.on_cpu or row.draws.packed)
        return (("conj",),) if lazy else ()
    if row.draws.packed and pick(row.draws.packed):
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
    if holds == "complex" and pick(4) >= 2:
        first = _lazily("conj", first)
    elif holds == "float" and pick(16) == 15:
        first = _lazily("neg", first)
    return () if overlaps(first) and _must_not_overlap(spec, position, row, pick) else first


def _must_not_overlap(spec: TensorSpec, position: int, row: Row, pick: Pick) -> bool:
    if row.forms.mutates or row.draws.unexpanded or (row.draws.places and FACTS[spec.dtype].kind == "int"):
        return True
    if spec.values.family in (*values.MATRICES, "unique"):
        return True  # with equal rows it would not be the kind of matrix that the op requires
    return position == 0 and bool(row.forms.inplace) and pick(2) == 1


def _in_one_layout(row: Row, case: Case, pick: Pick) -> Case:
    """The case; in one of `ALIKE`, with one layout for all operands that have the first one's rank. Kernels take other ways
    where all strides are equal, as in a model in channels_last; operands that draw theirs alone hardly ever have the same."""
    specs = case.operands()
    if len(specs) < 2 or pick(ALIKE) < ALIKE - 1 or row.draws.packed:
        return case
    alike = [k for k, s in enumerate(specs) if len(s.shape) == len(specs[0].shape) > 0 and not s.on_cpu]
    if len(alike) < 2:
        return case
    shape = max((specs[k].shape for k in alike), key=math.prod)
    recipes = IMAGES if 4 <= len(shape) <= 5 else RECIPES
    layout = recipes[pick(len(recipes))](shape, pick)
    if overlaps(layout) and any(_must_not_overlap(specs[k], k, row, pick) for k in alike):
        return case
    if Quirk.UNFROZEN in row.quirks and not specs[0].grad and any(s.grad for s in specs):
        return case
    return case.with_operands([_laid_out(s, layout) if k in alike else s for k, s in enumerate(specs)])


def _laid_out(spec: TensorSpec, layout: Layout) -> TensorSpec:
    """The operand in this layout, with the lazy bit of its own."""
    bits = [word for word, *_ in spec.layout if word in ("conj", "neg")]
    return replace(spec, layout=_lazily(bits[0], layout) if bits else layout)


def _lazily(bit: str, layout: Layout) -> Layout:
    """The layout with a lazy bit set after its last step other than expand."""
    steps = [step for step in layout if step[0] != "expand"]
    return (*steps, (bit,), *layout[len(steps) :])


Recipe = Callable[[tuple[int, ...], Pick], Layout]


def _dim(shape: tuple[int, ...], pick: Pick) -> int:
    """The last dimension (simplest) or another, counted from the end so that it stays valid for a smaller rank."""
    return -1 - pick(len(shape))


def _expand(shape: tuple[int, ...], pick: Pick) -> Layout:
    d = _dim(shape, pick)
    if pick(4) == 3:
        return tuple(("expand", k) for k in range(len(shape)))
    return (("expand", d),)


def _behind(shape: tuple[int, ...], d: int, pick: Pick) -> int:
    """Elements of a dimension after a slice of it: one or two, or so many that the rows of the slice are far apart in
    memory."""
    few = 1 + pick(2)
    others = math.prod(n for k, n in enumerate(shape) if k != d % len(shape))
    if len(shape) < 2 or pick(4) < 3 or others * FAR > FAR_LIMIT:
        return few
    return FAR


def _channels_last(shape: tuple[int, ...], pick: Pick) -> Layout:
    """Channels last, or a slice of the channels of it, whose strides look dense and are not."""
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
IMAGES: tuple[Recipe, ...] = (*RECIPES, _channels_last, _channels_last)  # drawn more often: most models use it for images
RECIPES_0D: tuple[Recipe, ...] = (
    lambda s, pick: (("select", 1, 2 + pick(2)),),
    lambda s, pick: (("flat", 1 + pick(4), pick(2)),),
)


def _destination(row: Row, dtype: str, pick: Pick) -> str:
    word = DESTINATIONS[pick(len(DESTINATIONS))]
    if word in ("empty", "cast") and row.refuses.unchecked:
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
    """`count` cases; they depend only on the row, the dtype, the sizes and the seed (not on order, worker or history)."""
    for ordinal in range(count):
        yield nth(row, dtype, sizes, seed, ordinal)


def nth(row: Row, dtype: str, sizes: Sizes, seed: str, ordinal: int, alike: int = 1, mixes: bool = True) -> Drawn:
    """Case number `ordinal` of `search`. Case 0 is the simplest case of the row. alike: so many cases in a row share their
    structure (shapes, scalars and flags), and differ in layouts, values, modes and destinations. mixes: as for `decode`; pinned
    cases do not mix, because a comparison of two runs counts on them, and what torch takes may change."""
    if ordinal == 0:
        return Drawn(decode(row, dtype, lambda n: 0, sizes), ())
    picks: list[int] = []
    pick = source(f"{seed}:{row.name}:{dtype}:{ordinal}", picks)
    one = source(f"{seed}:{row.name}:{dtype}:structure:{(ordinal - 1) // alike}", picks) if alike > 1 else pick
    plan = iter(planned(row, dtype, seed, ordinal, alike))

    def aim(n: int) -> int:
        picks.append(next(plan))
        return picks[-1]

    case = decode(row, dtype, pick, sizes, Draw(one, dtype, sizes), mixes, aim)
    # The shrinker decodes with mixing, so its picks need three more: no feature is met (samples know none), nothing is mixed.
    return Drawn(case, tuple(picks) if mixes else (*(0,) * (not row.is_sampled), *picks, 0, 0))
