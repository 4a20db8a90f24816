"""A case -> the cases that say a little less: one reduction each, the steps of shrinking (`parity.generation.shrink`).

Every reduction leads downwards (fewer operands, fewer elements, fewer words, simpler numbers), so that a walk along them ends.
Not every case that comes out can be built or run: then it does not fail in the way that is shrunk, and is left alone. What is
never touched: which sample an OpInfo case names, and the probabilities and modes that make an op random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from parity.dtypes import FACTS
from parity.errors import CaseError
from parity.generation.generate import collect, put
from parity.layout import check as check_layout
from parity.values import ALWAYS_LEGAL, MATRICES, specials
from parity.vocabulary import Arg, Case, Cotangent, Layout, TensorSpec, Values

Where = tuple[int, int]  # operand and dimension
Pass = Callable[[Case], Iterator[Case]]

CHANCE = ("p", "dropout", "dropout_p", "training", "train")  # keywords that turn randomness on and off
PINNED = ("torch", "digest")  # what ties an OpInfo case to its sample
PLACES = ("index", "unique")  # families whose numbers are places in another operand
CONTRACTS = (*ALWAYS_LEGAL, *MATRICES, "sample", "any")  # families that are not exchanged for the plain one
NOTED = ("max", "min", "nan", "inf", "-inf", "0")  # numbers that a large operand may hold by chance
ENOUGH = 6  # elements, above which a number of note takes their place
LISTED = 40  # sizes of which pairs are tried


def tensors(case: Case) -> list[TensorSpec]:
    """The operands in the order of the text."""
    specs: list[TensorSpec] = []
    for arg in (*case.args, *(v for _, v in case.kwargs)):
        collect(arg, specs)
    return specs


def elements(case: Case) -> int:
    """Elements in all operands together."""
    return sum(s.numel for s in tensors(case))


def with_tensors(case: Case, specs: Iterable[TensorSpec]) -> Case:
    """The case with other operands in their places."""
    it = iter(specs)
    return replace(case, args=tuple(put(a, it) for a in case.args), kwargs=tuple((n, put(v, it)) for n, v in case.kwargs))


def _locked(case: Case) -> int:
    """How many arguments at the front name the sample."""
    return 1 if case.op.startswith("opinfo:") else 0


def _fits(spec: TensorSpec) -> bool:
    with suppress(CaseError):
        check_layout(spec.shape, spec.layout)
        return spec.values.literal is None
    return False


def _with_one(case: Case, specs: list[TensorSpec], k: int, spec: TensorSpec) -> Case:
    return with_tensors(case, [*specs[:k], spec, *specs[k + 1 :]])


def _all_plain(case: Case) -> Iterator[Case]:
    """Without all of its decorations at once: where a case takes long, few tries are left for each alone."""
    specs = [replace(s, layout=(), values=replace(s.values, seed=0, specials=())) for s in tensors(case)]
    yield with_tensors(replace(case, cotangent=Cotangent(), into="contiguous", under="grad", after=""), specs)


def _route(case: Case) -> Iterator[Case]:
    """Without parts of the route."""
    yield replace(case, cotangent=Cotangent(), into="contiguous", under="grad", after="")
    yield replace(case, cotangent=Cotangent())
    yield replace(case, cotangent=replace(case.cotangent, layout="contiguous"))
    yield replace(case, cotangent=replace(case.cotangent, seed=0))
    yield replace(case, into="contiguous")
    yield replace(case, under="grad")
    yield replace(case, after="")


def _bare(case: Case) -> Iterator[Case]:
    """Without all layouts, all special numbers, or both, in all operands or in one."""
    specs = tensors(case)
    plain: tuple[Callable[[TensorSpec], TensorSpec], ...] = (
        lambda s: replace(s, layout=(), values=replace(s.values, specials=())),
        lambda s: replace(s, layout=()),
        lambda s: replace(s, values=replace(s.values, specials=())),
        lambda s: replace(s, values=replace(s.values, seed=0)),
    )
    for f in plain:
        yield with_tensors(case, map(f, specs))
    for k, spec in enumerate(specs):
        for f in plain:
            yield _with_one(case, specs, k, f(spec))


def _simpler_layouts(layout: Layout, rank: int) -> Iterator[Layout]:
    """With a step less, or with smaller numbers in a step."""
    for k, step in enumerate(layout):
        before, after = layout[:k], layout[k + 1 :]
        if len(layout) > 1:
            yield (*before, *after)
        word, *rest = step
        ints = [int(i) for i in rest]
        if word in ("permute", "channels_last") and rank >= 2:
            yield (*before, ("transpose", -2, -1), *after)
        least = {"flat": (1, 0), "select": (0, 2), "slice": (ints[0], 1, 0), "step": (ints[0], 2, 0)} if ints else {}
        other = {"flat": (0, 1), "select": (1, 2), "slice": (ints[0], 0, 1), "step": (ints[0], 2, 1)} if ints else {}
        for found in (least.get(str(word)), other.get(str(word))):
            if tuple(ints) == found:
                break  # the second is simplified to the first, and not the other way round
            if found is not None and sum(found) <= sum(ints):
                yield (*before, (word, *found), *after)


def _details(case: Case) -> Iterator[Case]:
    """Of one operand: a step of its layout, a special number, its dtype, family, seed and whereabouts."""
    specs = tensors(case)
    for k, spec in enumerate(specs):
        for plainer in _plainer_specs(spec, case.dtype):
            if _fits(plainer):
                yield _with_one(case, specs, k, plainer)


def _plainer_specs(spec: TensorSpec, dtype: str) -> Iterator[TensorSpec]:
    v = spec.values
    if spec.on_cpu:
        yield replace(spec, on_cpu=False)
    for less in _simpler_layouts(spec.layout, len(spec.shape)):
        yield replace(spec, layout=less)
    for k, (where, word) in enumerate(v.specials):
        yield replace(spec, values=replace(v, specials=(*v.specials[:k], *v.specials[k + 1 :])))
        if word == "-nan":
            yield replace(spec, values=replace(v, specials=(*v.specials[:k], (where, "nan"), *v.specials[k + 1 :])))
        for place in dict.fromkeys((0, where % max(1, spec.numel))):
            if place < where:
                yield replace(spec, values=replace(v, specials=(*v.specials[:k], (place, word), *v.specials[k + 1 :])))
    if spec.dtype != dtype and v.family not in (*PLACES, "sample"):
        yield replace(spec, dtype=dtype, grad=FACTS[dtype].is_inexact)
    if v.family not in CONTRACTS and v.family != "uniform":
        yield replace(spec, values=Values(specials=v.specials))
        yield replace(spec, values=Values(seed=v.seed, specials=v.specials))
    if not spec.grad and FACTS[spec.dtype].is_inexact:
        yield replace(spec, grad=True)


def _without_parts(args: tuple[Arg, ...], length: int, start: int, stop: int, only: int | None) -> tuple[Arg, ...]:
    """Lists of operands of this length without the elements [start, stop): all of them, or only the one at a place."""

    def cut(arg: Arg, k: int) -> Arg:
        if isinstance(arg, tuple) and len(arg) == length and _holds_tensors(arg) and only in (None, k):
            return (*arg[:start], *arg[stop:])
        return arg

    return tuple(cut(a, k) for k, a in enumerate(args))


def _holds_tensors(arg: Arg) -> bool:
    specs: list[TensorSpec] = []
    collect(arg, specs)
    return bool(specs)


def _fewer(case: Case) -> Iterator[Case]:
    """Without keyword arguments, arguments at the end, operands, and elements of lists of operands."""
    locked = _locked(case)
    for k, (name, _) in enumerate(case.kwargs):
        if name not in (*CHANCE, *PINNED):
            yield replace(case, kwargs=(*case.kwargs[:k], *case.kwargs[k + 1 :]))
    if not locked:
        if len(case.args) > 1:
            yield replace(case, args=case.args[:-1])
        yield from _shorter(case)


def _shorter(case: Case) -> Iterator[Case]:
    """With fewer elements in lists of operands: halves, quarters ... single ones, of all lists of a length and of one."""
    lists = [(k, len(a)) for k, a in enumerate(case.args) if isinstance(a, tuple) and len(a) > 1 and _holds_tensors(a)]
    for length in sorted({n for _, n in lists}, reverse=True):
        places = [k for k, n in lists if n == length]
        chunk = length // 2
        while chunk:
            for start in range(0, length, chunk):
                for only in (None, *(places if len(places) > 1 else ())):
                    yield replace(case, args=_without_parts(case.args, length, start, start + chunk, only))
            chunk //= 2


def lesser(size: int) -> tuple[int, ...]:
    """Smaller sizes to try, the boldest first; the steps halve, so that a border between is found soon."""
    steps = [size - (size >> k) for k in range(1, size.bit_length())]
    return tuple(dict.fromkeys(n for n in (1, 2, 3, *steps, size - 1) if 0 < n < size))


def _renumbered(case: Case, change: Callable[[int], int]) -> Case:
    """The case with other integers among its arguments, and as bounds of its indices."""

    def to(arg: Arg) -> Arg:
        if isinstance(arg, TensorSpec):
            v = arg.values
            bounds = (v.family == "index" and len(v.params) == 2) or (v.family == "unique" and bool(v.params))
            k = 1 if v.family == "index" else 0
            if bounds and isinstance(v.params[k], int):
                params = (*v.params[:k], change(int(v.params[k])), *v.params[k + 1 :])
                return replace(arg, values=replace(v, params=params))
            return arg
        if isinstance(arg, tuple):
            return tuple(map(to, arg))
        return change(arg) if isinstance(arg, int) and not isinstance(arg, bool) else arg

    n = _locked(case)
    return replace(case, args=(*case.args[:n], *map(to, case.args[n:])), kwargs=tuple((k, to(v)) for k, v in case.kwargs))


def _zeroed(spec: TensorSpec) -> TensorSpec:
    """A single index as the index 0, which is legal in everything that has an element; many would repeat it."""
    chosen = spec.values.family in ("index", "sample") and FACTS[spec.dtype].kind == "int"
    return replace(spec, values=Values("index", (0, 1))) if chosen and spec.numel == 1 else spec


def _sized(case: Case, where: set[Where], change: Callable[[int], int], number: Callable[[int], int]) -> Iterator[Case]:
    """With other sizes in these places: with the integers of the call as they are, changed too, and with indices 0."""
    specs = tensors(case)
    smaller = [
        replace(s, shape=tuple(change(d) if (i, a) in where else d for a, d in enumerate(s.shape))) for i, s in enumerate(specs)
    ]
    if not all(map(_fits, smaller)):
        return
    cut = with_tensors(case, smaller)
    told = _renumbered(cut, number)
    found = [cut] if told == cut else [cut, told]
    zeroed = [_zeroed(s) for s in smaller]
    if zeroed != smaller:
        found += [with_tensors(c, zeroed) for c in found]
    yield from found


def _to(size: int, less: int) -> Callable[[int], int]:
    return lambda n: less if n == size else n


def _multiples(size: int, less: int) -> Callable[[int], int]:
    return lambda n: n // size * less if n and n % size == 0 else n


def _everywhere(case: Case) -> Iterator[Case]:
    """Smaller sizes wherever they stand: sizes that belong together sink together, and their multiples with them."""
    specs = tensors(case)
    places = {(i, a) for i, s in enumerate(specs) for a in range(len(s.shape))}
    sizes = sorted({d for s in specs for d in s.shape if d > 1}, reverse=True)
    for most in (1, 2):
        if sizes and sizes[0] > most:
            yield from _sized(case, places, _at_most(most), _at_most(most))
    for size in sizes:
        if any(d > size and d % size == 0 for d in sizes):
            for less in lesser(size):
                yield from _sized(case, places, _multiples(size, less), _multiples(size, less))
    for size in sizes:
        for less in lesser(size):
            yield from _sized(case, places, _to(size, less), _to(size, less))


def _in_line(case: Case) -> Iterator[Case]:
    """Smaller sizes in one dimension of all operands, counted from either end; then in one place; then in two."""
    specs = tensors(case)
    places = [(i, a) for i, s in enumerate(specs) for a, d in enumerate(s.shape) if d > 1]
    groups: dict[frozenset[Where], None] = {}
    for size in dict.fromkeys(specs[i].shape[a] for i, a in places):
        same = [(i, a) for i, a in places if specs[i].shape[a] == size]
        for w in same:
            groups[frozenset(v for v in same if v[1] == w[1])] = None
            groups[frozenset(v for v in same if v[1] - len(specs[v[0]].shape) == w[1] - len(specs[w[0]].shape))] = None
        groups |= dict.fromkeys(frozenset([w]) for w in same)
        if len(places) <= LISTED:
            groups |= dict.fromkeys(frozenset([v, w]) for n, v in enumerate(same) for w in same[:n])
    for group in groups:
        i, a = min(group)
        size = specs[i].shape[a]
        for less in lesser(size):
            yield from _sized(case, set(group), _to(size, less), _to(size, less))


def _ranks(case: Case) -> Iterator[Case]:
    """Without a dimension of size 1: in all operands that have it, counted from either end, and in one alone."""
    specs = tensors(case)
    if any(s.values.family == "sample" for s in specs):
        return  # a corner of a sample has its dimensions
    most = max((len(s.shape) for s in specs), default=0)
    dims = [*range(-most, 0), *range(most)]
    groups = [frozenset((i, d % len(s.shape)) for i, s in enumerate(specs) if -len(s.shape) <= d < len(s.shape)) for d in dims]
    groups += [frozenset([(i, a)]) for i, s in enumerate(specs) for a in range(len(s.shape))]
    for group in dict.fromkeys(groups):
        if not group or any(specs[i].shape[a] != 1 for i, a in group):
            continue
        fewer = [replace(s, shape=tuple(d for a, d in enumerate(s.shape) if (i, a) not in group)) for i, s in enumerate(specs)]
        if all(map(_fits, fewer)):
            less = with_tensors(case, fewer)
            yield less
            moved = _renumbered(less, lambda n: n - 1 if 0 < n < most else n + 1 if -most <= n < -1 else n)
            if moved != less:
                yield moved


def _simpler_numbers(x: Arg) -> Iterator[Arg]:
    """Numbers that are easier to type than this one, of its own type."""
    if x is True:
        yield False
    elif isinstance(x, int) and not isinstance(x, bool):
        near = (x // 2, x - 1) if x > 1 else ()
        yield from (n for n in dict.fromkeys((0, 1, -1, *near)) if _weight(n) < _weight(x))
    elif isinstance(x, float):
        whole = (float(round(x)),) if math.isfinite(x) else ()
        yield from (n for n in dict.fromkeys((0.0, 1.0, -1.0, *whole)) if _weight(n) < _weight(x))


def _weight(x: float) -> tuple[bool, float]:
    """How hard a number is to type: 0, 1, -1, whole numbers, all others."""
    if x in (0, 1, -1):
        return False, {0: 0.0, 1: 1.0, -1: 2.0}[int(x)]
    return not (math.isfinite(x) and x == int(x)), 3.0 + (abs(x) if math.isfinite(x) else 0.0)


def _replaced(arg: Arg) -> Iterator[Arg]:
    """The argument with one number simpler; a list of equal numbers also with all of them at once."""
    if isinstance(arg, tuple):
        if len(arg) > 1 and len(set(map(repr, arg))) == 1:
            yield from (tuple(n for _ in arg) for n in _simpler_numbers(arg[0]))
        for k, part in enumerate(arg):
            yield from ((*arg[:k], less, *arg[k + 1 :]) for less in _replaced(part))
    elif not isinstance(arg, TensorSpec):
        yield from _simpler_numbers(arg)


def _numbers(case: Case) -> Iterator[Case]:
    """With one simpler number among the arguments."""
    for k in range(_locked(case), len(case.args)):
        for less in _replaced(case.args[k]):
            yield replace(case, args=(*case.args[:k], less, *case.args[k + 1 :]))
    for k, (name, value) in enumerate(case.kwargs):
        if name not in CHANCE:
            for less in _replaced(value):
                yield replace(case, kwargs=(*case.kwargs[:k], (name, less), *case.kwargs[k + 1 :]))


def _planted(case: Case) -> Iterator[Case]:
    """Few elements, one of them a number of note, instead of many among which one may be: sorts, scans and searches need it."""
    specs = tensors(case)
    for k, spec in enumerate(specs):
        if spec.numel <= ENOUGH or spec.values.family in (*ALWAYS_LEGAL, *MATRICES) or spec.values.specials:
            continue
        places = {(k, a) for a, d in enumerate(spec.shape) if d > 1}
        for word in (w for w in NOTED if w in specials(spec.dtype)):
            put_there = replace(spec, values=replace(spec.values, specials=((0, word),)))
            for most in (1, 2, 3):
                yield from _sized(_with_one(case, specs, k, put_there), places, _at_most(most), _at_most(most))


def _at_most(most: int) -> Callable[[int], int]:
    return lambda n: min(n, most)


def _together(case: Case) -> Iterator[Case]:
    """A simpler number and a smaller size that go together, like those of a window: one size, in all its places or in one."""
    specs = tensors(case)
    places = [(i, a) for i, s in enumerate(specs) for a, d in enumerate(s.shape) if d > 1]
    groups: dict[frozenset[Where], None] = {}
    for size in dict.fromkeys(specs[i].shape[a] for i, a in places):
        groups[frozenset((i, a) for i, a in places if specs[i].shape[a] == size)] = None
    groups |= {frozenset([w]): None for w in places if len(places) <= LISTED // 4}
    for plainer in _numbers(case):
        for group in groups:
            i, a = min(group)
            size = specs[i].shape[a]
            for less in dict.fromkeys((1, 2, 3, size - 1)):
                if 0 < less < size:
                    yield from _sized(plainer, set(group), _to(size, less), lambda n: n)


# What takes most away stands first.
PASSES: tuple[Pass, ...] = (
    _all_plain,
    _everywhere,
    _route,
    _bare,
    _fewer,
    _in_line,
    _ranks,
    _details,
    _numbers,
    _planted,
    _together,
)
