"""A catalog row -> cases. The only module that knows Hypothesis.

`decode(row, dtype, pick)` is the one generator: every choice is `pick(n)`, an integer in range(n), 0 the simplest. A plain
random generator feeds it during the search, which finds planted faults in 2 to 8 times fewer cases than Hypothesis' own
(whose examples are mostly mutations of earlier ones), and a failing case keeps its picks. Hypothesis shrinks from those
picks over `cases(...)`, the same decode as a strategy; the strategy is public, for people's own property tests.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
from hypothesis.errors import Flaky, NoSuchExample

from parity import values
from parity.catalog.draw import Call, Draw, Pick, Sizes
from parity.catalog.row import Row
from parity.dtypes import FACTS
from parity.errors import CaseError
from parity.flaws import flawed
from parity.layout import base_shape, overlaps
from parity.layout import check as check_layout
from parity.prelude import unchecked
from parity.vocabulary import PRELUDES, Arg, Case, Cotangent, Layout, TensorSpec, Values

# Each table starts with the simplest alternative, repeated to weigh it.
COTANGENTS = ("ones", "normal", "normal", "normal", "zero")
COTANGENT_LAYOUTS = (
    *("contiguous", "contiguous", "contiguous", "expanded", "expanded", "expanded_first", "expanded_last"),
    *("transposed", "stepped", "offset", "channels_last"),
)
# Gradients are recorded in most cases, because backward is checked there.
MODES = (*("grad",) * 10, "no_grad", "inference")
AFTER = (*("",) * 35, *PRELUDES)
DESTINATIONS = (
    *("contiguous", "contiguous", "offset", "stepped", "transposed", "columns", "rows", "step_outer", "channels_last"),
    *("empty", "cast"),
)
FLAWED = 20  # one case in so many is wrong on purpose
# What a destination is cast to, by the item's dtype; float32 for all others.
CASTS = {"float32": ("float16", "bfloat16"), "complex64": ("contiguous",), "int64": ("float32", "int32")}
# Ops that take a 0-d operand from the CPU beside device tensors; all others ask for one device.
MIXES_DEVICES = (
    *("add", "sub", "rsub", "mul", "div", "div_floor", "div_trunc", "floor_divide", "remainder", "fmod", "pow", "atan2"),
    *("hypot", "copysign", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"),
    *("bitwise_and", "bitwise_or", "bitwise_xor"),
)
SEEDS = 1 << 12
NO_SPECIALS = 5  # of 8 operands hold no planted special
NO_LAYOUT = 5  # of 12 operands are contiguous


@dataclass(frozen=True, slots=True)
class Drawn:
    """A case with the picks it was decoded from, the start of shrinking."""

    case: Case
    picks: tuple[int, ...]


class Recorder:
    """A random source that remembers its picks."""

    __slots__ = ("picks", "rng")

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.picks = rng, list[int]()

    def __call__(self, n: int) -> int:
        if n <= 1:
            return 0
        k = int(self.rng.random() * n)
        self.picks.append(k)
        return k


# -------------------------------------------------------------------------------------------------------------- decoding


def decode(row: Row, dtype: str, pick: Pick, sizes: Sizes) -> Case:
    """One case of a row in a dtype. Structure is picked first, features after it, seeds last, so that shrinking leads to a
    small, contiguous, plain case. Raises CaseError where the row's samples cannot be made (OpInfo rows)."""
    draw = Draw(pick, dtype, sizes)
    call: Call = row.signature(draw)
    specs: list[TensorSpec] = []
    args = tuple(_collect(a, specs) for a in call.args)
    kwargs = tuple((k, _collect(v, specs)) for k, v in call.kwargs)
    specs = [_typed(s, i, row, pick) for i, s in enumerate(specs)]
    specs = [replace(s, layout=_layout(s, i, row, pick)) for i, s in enumerate(specs)]
    specs = [replace(s, values=_values(s, row, pick)) for s in specs]
    choose = len(specs) > 1 and bool(row.grad)
    specs = [replace(s, grad=s.grad and FACTS[s.dtype].is_inexact and (not choose or pick(4) != 3)) for s in specs]
    cotangent = _cotangent(row, dtype, pick)
    into = _destination(row, dtype, pick) if row.out else "contiguous"
    under, after = MODES[pick(len(MODES))], AFTER[pick(len(AFTER))] if specs else ""
    specs = [replace(s, values=replace(s.values, seed=pick(SEEDS))) if _seeded(s.values) else s for s in specs]
    it = iter(specs)
    made = Case(row.name, dtype, tuple(_put(a, it) for a in args), tuple((k, _put(v, it)) for k, v in kwargs))
    if pick(FLAWED) == FLAWED - 1 and row.family != "opinfo":
        return flawed(row, replace(made, under=under), pick)
    return replace(made, cotangent=cotangent if under == "grad" else Cotangent(), into=into, under=under, after=after)


def _collect(arg: Arg, specs: list[TensorSpec]) -> Arg:
    """Remember the operands in order; their places are filled again by `_put`."""
    if isinstance(arg, TensorSpec):
        specs.append(arg)
    elif isinstance(arg, tuple):
        for a in arg:
            _collect(a, specs)
    return arg


def _put(arg: Arg, specs: Iterator[TensorSpec]) -> Arg:
    if isinstance(arg, TensorSpec):
        return next(specs)
    return tuple(_put(a, specs) for a in arg) if isinstance(arg, tuple) else arg


def _seeded(v: Values) -> bool:
    return v.family != "sample" and v.literal is None


def _typed(spec: TensorSpec, position: int, row: Row, pick: Pick) -> TensorSpec:
    """Another dtype for an operand of a promoting op, and a place on the CPU for a 0-d one."""
    if not row.promotes or position == 0:
        return spec
    kind = pick(10)
    if kind == 9:
        others = [d for d in row.dtypes if d != spec.dtype and spec.values.family in ("any", "index")]
        spec = replace(spec, dtype=others[pick(len(others))]) if others else spec
    if kind == 8 and not spec.shape and row.name in MIXES_DEVICES:
        spec = replace(spec, on_cpu=True)
    return spec


def _layout(spec: TensorSpec, position: int, row: Row, pick: Pick) -> Layout:
    """A layout for one operand: contiguous, one recipe, or two on top of each other."""
    rank = len(spec.shape)
    kind = pick(12)
    if kind < NO_LAYOUT or (spec.on_cpu and rank):
        return ()
    if row.packed and pick(3):
        return ()
    recipes = RECIPES_0D if rank == 0 else RECIPES
    first = recipes[pick(len(recipes))](spec.shape, pick)
    if kind == 11 and rank:
        inner = base_shape(spec.shape, first)
        second = recipes[pick(len(recipes))](inner, pick)
        if not overlaps(second) and len(inner) == len(base_shape(inner, second)):
            first = (*second, *first)
    if FACTS[spec.dtype].kind == "complex" and pick(4) == 3 and not overlaps(first):
        first = (*first, ("conj",))
    elif FACTS[spec.dtype].kind == "float" and pick(16) == 15 and not overlaps(first):
        first = (*first, ("neg",))
    if overlaps(first) and (row.unexpanded or (row.places and FACTS[spec.dtype].kind == "int")):
        return ()
    if overlaps(first) and spec.values.family in (*values.MATRICES, "unique"):
        return ()  # equal rows are no longer a matrix of the kind that the op's contract asks for
    writes = position == 0 and (row.mutates or row.inplace)
    if overlaps(first) and (row.mutates or (writes and pick(2))):
        return ()
    return first


Recipe = Callable[[tuple[int, ...], Pick], Layout]


def _dim(shape: tuple[int, ...], pick: Pick) -> int:
    """The last dimension (simplest) or another, counted from the end so that it survives a smaller rank."""
    return -1 - pick(len(shape))


def _expand(shape: tuple[int, ...], pick: Pick) -> Layout:
    d = _dim(shape, pick)
    if pick(4) == 3:
        return tuple(("expand", k) for k in range(len(shape)))
    return (("expand", d),)


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
    lambda s, pick: (("slice", _dim(s, pick), 0, 1 + pick(2)),),
    lambda s, pick: (("select", 1, 2),),
    _permute,
    _channels_last,
    _expand,
)
# What no integer type holds.
BEYOND_CASTS = ("nan", "inf", "-inf", "max", "lowest", "min")
RECIPES_0D: tuple[Recipe, ...] = (
    lambda s, pick: (("select", 1, 2 + pick(2)),),
    lambda s, pick: (("flat", 1 + pick(4), pick(2)),),
)


def _values(spec: TensorSpec, row: Row, pick: Pick) -> Values:
    """A family and planted specials for one operand; operands with a strict domain keep it."""
    v = spec.values
    strict = v.family not in ("any", "between", "sample")
    if strict:
        return v
    options = values.families(v, spec.dtype)
    family = options[max(0, pick(len(options) + 3) - 3)]
    specials: tuple[tuple[int, str], ...] = ()
    kind = FACTS[spec.dtype].kind
    if kind != "bool" and (count := max(0, pick(8) - NO_SPECIALS + 1)):
        words: tuple[str, ...] = values.FLOAT_SPECIALS if kind in ("float", "complex") else values.INT_SPECIALS
        if v.family == "between":
            low, high = v.params
            ends = (f"{low:g}", f"{high:g}") if kind != "int" else (str(math.ceil(low)), str(math.floor(high)))
            words = ends if kind == "int" else (*ends, "nan", "inf", "-inf", "-0.0", "smallest")
        if row.places and v.family == "sample":
            words = ()  # equal numbers may be written to one place, and only equal ones leave no question open
        if row.finite:
            words = tuple(w for w in words if w not in BEYOND_CASTS)
        if v.family == "sample" and kind == "int":
            words = ()  # an integer operand of a sample may be an index
        if words:
            specials = tuple((pick(16), words[pick(len(words))]) for _ in range(count))
    return Values(family, v.params, 0, specials)


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
    recorder = Recorder(random.Random(f"{seed}:{row.name}:{dtype}:{ordinal}"))
    case = decode(row, dtype, recorder, sizes)
    return Drawn(case, tuple(recorder.picks))


@functools.lru_cache(maxsize=4096)
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


def cases(row: Row, dtype: str, sizes: Sizes | None = None) -> st.SearchStrategy[Case]:
    """A Hypothesis strategy of cases of a row, for property tests of one's own."""
    used = sizes or Sizes()

    @st.composite
    def strategy(draw: st.DrawFn) -> Case:
        return decode(row, dtype, lambda n: draw(_below(n)) if n > 1 else 0, used)

    return strategy()


ALL_HEALTH_CHECKS = tuple(HealthCheck)


def shrink(row: Row, dtype: str, sizes: Sizes, picks: tuple[int, ...], fails: Callable[[Case], bool]) -> Case | None:
    """The least case that fails, started from the picks of a failing one; None where it does not fail again.

    The surplus 0 behind the picks matters: an entry that replays exactly is taken for already shrunk and returned as it is.
    """
    database = InMemoryExampleDatabase()
    database.save(b"parity", choices_to_bytes((*picks, 0)))
    quiet = settings(
        database=database,
        phases=(Phase.reuse, Phase.shrink),
        max_examples=100_000,
        deadline=None,
        suppress_health_check=ALL_HEALTH_CHECKS,
        derandomize=False,
    )
    try:
        found = find(cases(row, dtype, sizes), fails, settings=quiet, database_key=b"parity")
    except (NoSuchExample, Flaky):
        return None
    return _polish(found, fails)


def _polish(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Drop what shrinking may leave behind: where two picks must change together, it stops at a local minimum."""
    again = True
    while again:
        again = False
        for plainer in _plainer(case):
            if plainer != case and fails(plainer):
                case, again = plainer, True
                break
    return case


def _plainer(case: Case) -> Iterator[Case]:
    """The case without one of its decorations."""
    yield replace(case, cotangent=Cotangent())
    yield replace(case, cotangent=replace(case.cotangent, layout="contiguous"))
    yield replace(case, into="contiguous")
    yield replace(case, under="grad")
    yield replace(case, after="")
    specs: list[TensorSpec] = []
    for arg in (*case.args, *(v for _, v in case.kwargs)):
        _collect(arg, specs)
    for k, spec in enumerate(specs):
        for plainer in _plainer_specs(spec):
            yield _with_specs(case, [*specs[:k], plainer, *specs[k + 1 :]])
    # One size less, wherever it stands: sizes that belong together sink together.
    for size in sorted({d for s in specs for d in s.shape if d > 1}, reverse=True):
        for less in (1, 2, 3, size - 1):
            if less < size:
                smaller = [replace(s, shape=tuple(less if d == size else d for d in s.shape)) for s in specs]
                if all(_fits(s) for s in smaller):
                    yield _with_specs(case, smaller)


def _with_specs(case: Case, specs: list[TensorSpec]) -> Case:
    it = iter(specs)
    return replace(case, args=tuple(_put(a, it) for a in case.args), kwargs=tuple((n, _put(v, it)) for n, v in case.kwargs))


def _fits(spec: TensorSpec) -> bool:
    with suppress(CaseError):
        check_layout(spec.shape, spec.layout)
        return spec.values.literal is None
    return False


def _plainer_specs(spec: TensorSpec) -> Iterator[TensorSpec]:
    if spec.layout:
        yield replace(spec, layout=())
    if len(spec.layout) > 1:
        for k in range(len(spec.layout)):
            less = (*spec.layout[:k], *spec.layout[k + 1 :])
            with suppress(CaseError):
                check_layout(spec.shape, less)
                yield replace(spec, layout=less)
    v = spec.values
    for k in range(len(v.specials)):
        yield replace(spec, values=replace(v, specials=(*v.specials[:k], *v.specials[k + 1 :])))
    if v.seed:
        yield replace(spec, values=replace(v, seed=0))
    if not spec.grad and FACTS[spec.dtype].is_inexact:
        yield replace(spec, grad=True)
