"""The reductions of shrinking (`parity.generation.shrink`): each function yields cases that are slightly simpler than a case.

Every reduction simplifies (fewer operands, fewer elements, a shorter text, simpler numbers), so that applying them terminates.
Not every reduced case can be built or run; those do not fail in the same way, so shrinking drops them. Reductions never change
which sample an OpInfo case names, nor the probabilities and modes that make an op random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from parity.core.case import Arg, Case, Cotangent, Layout, TensorSpec, Values, operands_in
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError
from parity.core.layout import check as check_layout
from parity.execution.values import ALWAYS_LEGAL, MATRICES, specials

Where = tuple[int, int]  # operand and dimension
Pass = Callable[[Case], Iterator[Case]]

ARGUMENTS_OF_CHANCE = ("p", "dropout", "dropout_p", "training", "train")  # keywords that control randomness
PINNED = ("torch", "digest")  # keywords that identify the sample of an OpInfo case
PLACES = ("index", "unique")  # families whose values are indices into another operand
CONTRACTS = (*ALWAYS_LEGAL, *MATRICES, "sample", "any")  # families that are not replaced by the plain one
NOTABLE = ("max", "min", "nan", "inf", "-inf", "0")  # special values that a large operand may contain by chance
ENOUGH = 6  # elements; a larger operand is also tried with few elements and one special value
LISTED = 40  # dimensions; with more of them, pairs are not tried


def _locked(case: Case) -> int:
    """Number of leading arguments that identify the sample."""
    return 1 if case.is_sample else 0


def _fits(spec: TensorSpec) -> bool:
    with suppress(CaseError):
        check_layout(spec.shape, spec.layout)
        return spec.values.literal is None
    return False


def _with_one(case: Case, specs: list[TensorSpec], k: int, spec: TensorSpec) -> Case:
    return case.with_operands([*specs[:k], spec, *specs[k + 1 :]])


def _all_plain(case: Case) -> Iterator[Case]:
    """Without layouts, special values, seeds and suffixes, all at once: slow cases leave few tries to remove each alone."""
    specs = [replace(s, layout=(), values=replace(s.values, seed=0, specials=())) for s in case.operands()]
    yield replace(case, cotangent=Cotangent(), into="contiguous", under="grad", after="").with_operands(specs)


def _without_suffixes(case: Case) -> Iterator[Case]:
    """Without cotangent, destination, mode and history, together and one by one."""
    yield replace(case, cotangent=Cotangent(), into="contiguous", under="grad", after="")
    yield replace(case, sharing="")
    yield replace(case, cotangent=Cotangent())
    yield replace(case, cotangent=replace(case.cotangent, layout="contiguous"))
    yield replace(case, cotangent=replace(case.cotangent, seed=0))
    yield replace(case, into="contiguous")
    yield replace(case, under="grad")
    yield replace(case, after="")


def _without_decorations(case: Case) -> Iterator[Case]:
    """Without layouts, special values, both, or seeds, in all operands or in one."""
    specs = case.operands()
    plain: tuple[Callable[[TensorSpec], TensorSpec], ...] = (
        lambda s: replace(s, layout=(), values=replace(s.values, specials=())),
        lambda s: replace(s, layout=()),
        lambda s: replace(s, values=replace(s.values, specials=())),
        lambda s: replace(s, values=replace(s.values, seed=0)),
    )
    for f in plain:
        yield case.with_operands(map(f, specs))
    for k, spec in enumerate(specs):
        for f in plain:
            yield _with_one(case, specs, k, f(spec))


def _simpler_layouts(layout: Layout, rank: int) -> Iterator[Layout]:
    """Layouts with one step less, or with smaller integers in a step."""
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
        for smaller in (least.get(str(word)), other.get(str(word))):
            if tuple(ints) == smaller:
                break  # `least` is simpler than `other`, so it must not become that
            if smaller is not None and sum(smaller) <= sum(ints):
                yield (*before, (word, *smaller), *after)


def _details(case: Case) -> Iterator[Case]:
    """With one detail of one operand simpler: a layout step, a special value, dtype, family, seed or device."""
    specs = case.operands()
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
    """The arguments with elements [start, stop) removed from lists of operands of this length: all of them, or the one at
    position `only`."""

    def cut(arg: Arg, k: int) -> Arg:
        if isinstance(arg, tuple) and len(arg) == length and _holds_tensors(arg) and only in (None, k):
            return (*arg[:start], *arg[stop:])
        return arg

    return tuple(cut(a, k) for k, a in enumerate(args))


def _holds_tensors(arg: Arg) -> bool:
    return bool(operands_in(arg))


def _fewer_arguments(case: Case) -> Iterator[Case]:
    """Without a keyword argument, without the last argument, or with shorter lists of operands."""
    locked = _locked(case)
    for k, (name, _) in enumerate(case.kwargs):
        if name not in (*ARGUMENTS_OF_CHANCE, *PINNED):
            yield replace(case, kwargs=(*case.kwargs[:k], *case.kwargs[k + 1 :]))
    if not locked:
        if len(case.args) > 1:
            yield replace(case, args=case.args[:-1])
        yield from _shorter(case)


def _shorter(case: Case) -> Iterator[Case]:
    """Without halves, quarters ... single elements of lists of operands: of all lists of a length, or of one."""
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
    """Smaller sizes to try, the smallest first; the steps halve, so that a threshold is found in few tries."""
    steps = [size - (size >> k) for k in range(1, size.bit_length())]
    return tuple(dict.fromkeys(n for n in (1, 2, 3, *steps, size - 1) if 0 < n < size))


def _renumbered(case: Case, change: Callable[[int], int]) -> Case:
    """The case with `change` applied to integer arguments and to bounds of indices."""

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
    """The operand with index 0, if it is a single index: 0 is legal unless the dimension is empty."""
    chosen = spec.values.family in ("index", "sample") and FACTS[spec.dtype].kind == "int"
    return replace(spec, values=Values("index", (0, 1))) if chosen and spec.numel == 1 else spec


def _with_sizes(case: Case, where: set[Where], change: Callable[[int], int], number: Callable[[int], int]) -> Iterator[Case]:
    """With `change` applied to the sizes at these places: with the integer arguments as they are, with `number` applied to
    them, and both with single indices set to 0."""
    specs = case.operands()
    smaller = [
        replace(s, shape=tuple(change(d) if (i, a) in where else d for a, d in enumerate(s.shape))) for i, s in enumerate(specs)
    ]
    if not all(map(_fits, smaller)):
        return
    cut = case.with_operands(smaller)
    renumbered = _renumbered(cut, number)
    reduced = [cut] if renumbered == cut else [cut, renumbered]
    zeroed = [_zeroed(s) for s in smaller]
    if zeroed != smaller:
        reduced += [c.with_operands(zeroed) for c in reduced]
    yield from reduced


def _to(size: int, less: int) -> Callable[[int], int]:
    return lambda n: less if n == size else n


def _multiples(size: int, less: int) -> Callable[[int], int]:
    return lambda n: n // size * less if n and n % size == 0 else n


def _smaller_everywhere(case: Case) -> Iterator[Case]:
    """With a size made smaller everywhere it occurs, also together with its multiples."""
    specs = case.operands()
    places = {(i, a) for i, s in enumerate(specs) for a in range(len(s.shape))}
    sizes = sorted({d for s in specs for d in s.shape if d > 1}, reverse=True)
    for most in (1, 2):
        if sizes and sizes[0] > most:
            yield from _with_sizes(case, places, _at_most(most), _at_most(most))
    for size in sizes:
        if any(d > size and d % size == 0 for d in sizes):
            for less in lesser(size):
                yield from _with_sizes(case, places, _multiples(size, less), _multiples(size, less))
    for size in sizes:
        for less in lesser(size):
            yield from _with_sizes(case, places, _to(size, less), _to(size, less))


def _smaller_in_dimension(case: Case) -> Iterator[Case]:
    """With a size made smaller in one dimension of all operands, counted from either end; in one place; in two places."""
    specs = case.operands()
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
            yield from _with_sizes(case, set(group), _to(size, less), _to(size, less))


def _ranks(case: Case) -> Iterator[Case]:
    """Without a dimension of size 1: in all operands that have it, counted from either end, or in one operand."""
    specs = case.operands()
    if any(s.values.family == "sample" for s in specs):
        return  # samples can be cropped, but keep their rank
    most = max((len(s.shape) for s in specs), default=0)
    dims = [*range(-most, 0), *range(most)]
    groups = [frozenset((i, d % len(s.shape)) for i, s in enumerate(specs) if -len(s.shape) <= d < len(s.shape)) for d in dims]
    groups += [frozenset([(i, a)]) for i, s in enumerate(specs) for a in range(len(s.shape))]
    for group in dict.fromkeys(groups):
        if not group or any(specs[i].shape[a] != 1 for i, a in group):
            continue
        fewer = [replace(s, shape=tuple(d for a, d in enumerate(s.shape) if (i, a) not in group)) for i, s in enumerate(specs)]
        if all(map(_fits, fewer)):
            less = case.with_operands(fewer)
            yield less
            moved = _renumbered(less, lambda n: n - 1 if 0 < n < most else n + 1 if -most <= n < -1 else n)
            if moved != less:
                yield moved


def _simpler_numbers(x: Arg) -> Iterator[Arg]:
    """Simpler numbers of the same type."""
    if x is True:
        yield False
    elif isinstance(x, int) and not isinstance(x, bool):
        near = (x // 2, x - 1) if x > 1 else ()
        yield from (n for n in dict.fromkeys((0, 1, -1, *near)) if _weight(n) < _weight(x))
    elif isinstance(x, float):
        whole = (float(round(x)),) if math.isfinite(x) else ()
        yield from (n for n in dict.fromkeys((0.0, 1.0, -1.0, *whole)) if _weight(n) < _weight(x))


def _weight(x: float) -> tuple[bool, float]:
    """Sort key for simplicity: 0, 1, -1, whole numbers by size, all others."""
    if x in (0, 1, -1):
        return False, {0: 0.0, 1: 1.0, -1: 2.0}[int(x)]
    return not (math.isfinite(x) and x == int(x)), 3.0 + (abs(x) if math.isfinite(x) else 0.0)


def _replaced(arg: Arg) -> Iterator[Arg]:
    """The argument with one number simpler; a list of equal numbers also with all of them simpler."""
    if isinstance(arg, tuple):
        if len(arg) > 1 and len(set(map(repr, arg))) == 1:
            yield from (tuple(n for _ in arg) for n in _simpler_numbers(arg[0]))
        for k, part in enumerate(arg):
            yield from ((*arg[:k], less, *arg[k + 1 :]) for less in _replaced(part))
    elif not isinstance(arg, TensorSpec):
        yield from _simpler_numbers(arg)


def _numbers(case: Case) -> Iterator[Case]:
    """With one number among the arguments simpler."""
    for k in range(_locked(case), len(case.args)):
        for less in _replaced(case.args[k]):
            yield replace(case, args=(*case.args[:k], less, *case.args[k + 1 :]))
    for k, (name, value) in enumerate(case.kwargs):
        if name not in ARGUMENTS_OF_CHANCE:
            for less in _replaced(value):
                yield replace(case, kwargs=(*case.kwargs[:k], (name, less), *case.kwargs[k + 1 :]))


def _with_special(case: Case) -> Iterator[Case]:
    """With a special value planted in a small operand instead of a large one that contains it by chance; useful for sorts,
    scans and searches."""
    specs = case.operands()
    for k, spec in enumerate(specs):
        if spec.numel <= ENOUGH or spec.values.family in (*ALWAYS_LEGAL, *MATRICES) or spec.values.specials:
            continue
        places = {(k, a) for a, d in enumerate(spec.shape) if d > 1}
        for word in (w for w in NOTABLE if w in specials(spec.dtype)):
            put_there = replace(spec, values=replace(spec.values, specials=((0, word),)))
            for most in (1, 2, 3):
                yield from _with_sizes(_with_one(case, specs, k, put_there), places, _at_most(most), _at_most(most))


def _at_most(most: int) -> Callable[[int], int]:
    return lambda n: min(n, most)


def _together(case: Case) -> Iterator[Case]:
    """With a simpler number and a smaller size at once, as windows need: one size, everywhere or in one place."""
    specs = case.operands()
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
                    yield from _with_sizes(plainer, set(group), _to(size, less), lambda n: n)


# Those that remove most come first.
PASSES: tuple[Pass, ...] = (
    _all_plain, _smaller_everywhere, _without_suffixes, _without_decorations, _fewer_arguments,
    _smaller_in_dimension, _ranks, _details, _numbers, _with_special, _together,
)  # fmt: skip
