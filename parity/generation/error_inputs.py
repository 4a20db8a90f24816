"""Turns a case into one with an error: a call that the CPU refuses, so that the device must refuse it too.

Each error is one change of the call, of a kind in `parity.core.case.ERROR_KINDS`. It is only drawn where the change nearly
always makes the call illegal; if the CPU computes it all the same, the case is void. OpInfo rows use the error inputs of
OpInfo.

Calls that an op refuses for a reason of its own: arguments that contradict one another or make no sense, matrices without
factors, sizes that do not fit, operands on two devices.

Only checks that torch makes in the operator or leaves to the kernel are listed. Checks in Python are the same for every device,
so they would test nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from parity.catalog import entries, opinfo
from parity.catalog.draw import Pick
from parity.catalog.row import Quirk, Row, Wrong
from parity.core.case import Arg, Case, TensorSpec, Values, operands_in
from parity.core.dtypes import FACTS
from parity.execution import values
from parity.generation.mixing import is_taken
from parity.judging.rules import rule_of

ErrorInput = tuple[str, Callable[[], Case]]
# Families in which every operator requires its operands on one device.
ONE_DEVICE = ("contractions", "linalg", "convolutions", "normalization", "losses", "attention")


def forbidden_calls(row: Row, case: Case) -> Iterator[ErrorInput]:
    """(kind of error from `parity.core.case.ERROR_KINDS`, function that builds the case) for each that fits the case."""
    first = case.args[0] if case.args else None
    if not isinstance(first, TensorSpec):
        return
    some_empty = not all(s.numel for s in case.args if isinstance(s, TensorSpec))
    if first.shape and (row.refuses.fits == "always" or (row.refuses.fits == "filled" and not some_empty)):
        longer = replace(first, shape=(*first.shape[:-1], first.shape[-1] + 1))
        yield "shape", lambda: replace(case, args=(longer, *case.args[1:]))
    if some_empty:
        return  # some ops return before their checks if there are no elements
    for w in row.refuses.wrong:
        if _fits(w, case):
            yield w.word, lambda w=w: _with(case, w)  # type: ignore[misc]  # bound early
    if Quirk.CHANCES in row.quirks:
        place = max(k for k, a in enumerate(case.args) if isinstance(a, TensorSpec))
        yield (
            "chance",
            lambda: replace(case, args=tuple(_negative_values(a) if k == place else a for k, a in enumerate(case.args))),
        )
    if row.refuses.raises_on and min(first.shape[-2:]) > 1:
        number = -1 if row.refuses.raises_on == "indefinite" else 1  # a matrix of equal numbers is singular
        equal = replace(first, values=Values("inside", (number, number)), grad=False)
        yield "value", lambda: replace(case, args=(equal, *case.args[1:]))
        if row.refuses.raises_on == "indefinite":  # only the last matrix of a stack, by its last pivot or by a NaN
            for word in ("-1", "nan"):
                yield "value", lambda word=word: replace(case, args=(_last_pivot(first, word), *case.args[1:]))  # type: ignore[misc]
    if row.family in ONE_DEVICE and row.draws.on_cpu != "all" and first.shape:
        shaped = [k for k, a in enumerate(case.args) if k and isinstance(a, TensorSpec) and a.shape]
        if shaped:
            yield (
                "device",
                lambda: replace(case, args=tuple(_apart(a) if k == shaped[0] else a for k, a in enumerate(case.args))),
            )


def _last_pivot(matrices: TensorSpec, word: str) -> TensorSpec:
    """The matrices with this number in the last place of the diagonal of the last one."""
    v = matrices.values
    return replace(matrices, values=replace(v, specials=(*v.specials, (matrices.numel - 1, word))), grad=False)


def _negative_values(operand: Arg) -> Arg:
    assert isinstance(operand, TensorSpec)
    return replace(operand, values=Values("inside", (-1, -1)), grad=False)


def _apart(operand: Arg) -> Arg:
    assert isinstance(operand, TensorSpec)
    return replace(operand, on_cpu=True)


def _fits(wrong: Wrong, case: Case) -> bool:
    """Whether the case has the argument to replace, and the keyword without which the value would be legal."""
    if isinstance(wrong.where, int):
        return len(case.args) > wrong.where
    return not wrong.needs or wrong.needs in dict(case.kwargs)


def _with(case: Case, wrong: Wrong) -> Case:
    where = wrong.where
    if isinstance(where, int):
        return replace(case, args=tuple(wrong.value if k == where else a for k, a in enumerate(case.args)))
    return replace(case, kwargs=(*((n, v) for n, v in case.kwargs if n != where), (where, wrong.value)))


INDICES = ("index", "unique")
# Families in which sizes of operands must fit together, and in which the CPU never died of some that do not (torch 2.13): its
# complex convolutions, fused optimizers and some solvers read past them.
FITTING = (
    *("contractions", "convolutions", "pooling", "normalization", "losses"),
    *("indexing", "writing", "movement", "vision"),
)
RIGID = (*values.MATRICES, "unique", "sample")  # families that not every shape can have
MOST_OF_A_KIND = 4  # at most so many times as often as a kind that one change gives
BEYOND = 9  # a dim that no operand has
PAST = (0, 1, 5)  # distances from the first illegal index: a kernel may accept one more, or check only the last
OTHERS = {
    **dict.fromkeys(("float32", "bfloat16"), ("int64", "int8", "float16")),
    **dict.fromkeys(("float16", "complex64"), ("int64", "int8", "float32")),
}


def error_case(row: Row, case: Case, pick: Pick) -> Case:
    """The case with one of the errors that fit it; the case itself if none does."""
    if row.is_sampled:
        return _from_samples(case, pick)
    fit = (*_error_inputs(row, case), *_misfits(row, case, pick))
    if not fit:
        return case
    counts = Counter(word for word, _ in fit)
    # A kind that more changes give is drawn more often, though not so often that it hides the others.
    words = tuple(word for word, n in counts.items() for _ in range(min(n, MOST_OF_A_KIND)))
    word = words[pick(len(words))]
    ways = tuple(make for w, make in fit if w == word)
    return replace(ways[pick(len(ways))](), refused=word)


def _from_samples(case: Case, pick: Pick) -> Case:
    """One of the error inputs of torch's test data, in the mode of the case."""
    listed = tuple(entries.refusals(case.op))
    if not listed:
        return case
    call, beyond = listed[pick(len(listed))]
    return Case(case.op, case.dtype, call.args, call.kwargs, under=case.under, refused="index" if beyond else "inputs")


def _error_inputs(row: Row, case: Case) -> Iterator[tuple[str, Callable[[], Case]]]:
    specs = case.operands()
    if Quirk.READS_PAST not in row.quirks and not row.forms.promotes and any(_is_index(s, case) for s in specs):
        wraps = row.refuses.wraps
        for far in PAST:  # bound early, which mypy cannot infer
            yield "index", lambda far=far: case.map_operands(lambda s: _beyond(s, far) if _is_index(s, case) else s)  # type: ignore[misc]
        yield "index", lambda: case.map_operands(lambda s: _below(s, wraps) if _is_index(s, case) else s)
    if any(_is_index(s, case) for s in specs):
        yield "dtype", lambda: case.map_operands(lambda s: _unindexed(s) if _is_index(s, case) else s)
    if _real_only(row, case, specs):
        yield "dtype", lambda: case.map_operands(lambda s: _complex(s, case.dtype))
    if _inexact_only(row, case, specs):
        yield "dtype", lambda: case.map_operands(lambda s: _whole(s, case.dtype))
    if row.refuses.alike and (k := _second(case)) is not None:
        for other in OTHERS.get(case.dtype, ("float32",)):
            yield "dtype", lambda k=k, other=other: _retyped(case, k, other)  # type: ignore[misc]  # bound early
    if row.forms.promotes and (k := _mismatching(case)) is not None:
        yield "shape", lambda: replace(case, args=tuple(_longer(a) if j == k else a for j, a in enumerate(case.args)))
    if any(name == "dim" and (_is_int(value) or _sizes(value)) for name, value in case.kwargs):
        for none in (BEYOND, -1 - BEYOND):
            yield "dim", lambda none=none: _dimmed(case, none)  # type: ignore[misc]  # bound early
    yield from forbidden_calls(row, case)
    if row.refuses.sized and any(_sizes(a) for a in case.args):
        yield "size", lambda: replace(case, args=tuple(_negative(a) if _sizes(a) else a for a in case.args))


def _misfits(row: Row, case: Case, pick: Pick) -> Iterator[tuple[str, Callable[[], Case]]]:
    """One change of an operand's shape that the CPU refuses: a dimension more, before or behind the others, or one element more
    along a dimension. A device that leaves out the check reads past an operand, or computes something else. None if the CPU
    takes the change that was picked, and for operands without elements, which are rare and may be returned unchecked."""
    if row.family not in FITTING or row.refuses.fits == "never" or FACTS[case.dtype].kind == "complex":
        return
    if row.refuses.unchecked or not row.call.startswith("torch."):
        return
    specs = case.operands()
    able = [k for k, s in enumerate(specs) if s.values.family not in RIGID and s.values.literal is None]
    if not able or not all(s.numel for s in specs):
        return
    k = able[pick(len(able))]
    shape, way = specs[k].shape, pick(3)
    if way == 2 and shape:
        d = pick(len(shape))
        changed = (*shape[:d], shape[d] + 1, *shape[d + 1 :])
    else:
        changed = (1, *shape) if way == 1 else (*shape, 1)
    misfit = case.with_operands([*specs[:k], replace(specs[k], shape=changed, layout=()), *specs[k + 1 :]])
    if not is_taken(row, replace(misfit, under="no_grad")):
        yield "shape", lambda: misfit


def _real_only(row: Row, case: Case, specs: list[TensorSpec]) -> bool:
    """Whether OpInfo says that the CPU does not accept complex numbers here, and the case has elements."""
    entries = [opinfo.ENTRIES[n] for n in row.counts.opinfo if n in opinfo.ENTRIES]
    if "complex" in row.refuses.takes or rule_of(row).is_random or FACTS[case.dtype].kind == "complex":
        return False
    known = bool(entries) and not any("complex64" in e.dtypes for e in entries)
    return known and bool(specs) and specs[0].numel > 1 and all(s.numel for s in specs)


def _inexact_only(row: Row, case: Case, specs: list[TensorSpec]) -> bool:
    """Whether OpInfo says that the CPU accepts only floats here, and the case has elements."""
    entries = [opinfo.ENTRIES[n] for n in row.counts.opinfo if n in opinfo.ENTRIES]
    if "int" in row.refuses.takes or row.forms.promotes or rule_of(row).is_random or not FACTS[case.dtype].is_inexact:
        return False
    known = bool(entries) and not any("int64" in e.dtypes for e in entries)
    return known and bool(specs) and specs[0].numel > 1 and all(s.numel for s in specs)


def _is_index(s: TensorSpec, case: Case) -> bool:
    """Whether the values of an operand are indices, and not numbers that the op computes with."""
    return s.numel > 0 and s.values.family in INDICES and FACTS[s.dtype].kind == "int" and s.dtype != case.dtype


def _sizes(a: Arg) -> bool:
    return isinstance(a, tuple) and bool(a) and all(_is_int(d) for d in a)


def _negative(a: Arg) -> Arg:
    assert isinstance(a, tuple)
    return (-5, *a[1:])


def _dimmed(case: Case, none: int) -> Case:
    """The case with its argument `dim` replaced by `none`, an integer that is no dimension of any operand. If `dim` is a
    tuple, only its last element is replaced."""

    def instead(value: Arg) -> Arg:
        if isinstance(value, tuple):
            return (*value[:-1], none)
        return none if _is_int(value) else value

    return replace(case, kwargs=tuple((n, instead(v) if n == "dim" else v) for n, v in case.kwargs))


def _is_int(value: Arg) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _beyond(s: TensorSpec, far: int) -> TensorSpec:
    """The operand with an index past the last legal one as its first element. far: distance from the first illegal index."""
    return _first(s, far + int(s.values.params[1 if s.values.family == "index" else 0]))


def _below(s: TensorSpec, wraps: bool) -> TensorSpec:
    """The operand with the index before the first legal one as its first element. wraps: whether negative indices count from
    the end."""
    v = s.values
    low, size = (int(v.params[0]), int(v.params[1])) if v.family == "index" else (0, int(v.params[0]))
    return _first(s, (-size if wraps else low) - 1)


def _first(s: TensorSpec, number: int) -> TensorSpec:
    return replace(s, values=replace(s.values, specials=((0, str(number)), *s.values.specials)))


def _unindexed(s: TensorSpec) -> TensorSpec:
    """The operand with floats instead of indices."""
    return replace(s, dtype="float32", values=Values(), grad=False)


def _complex(s: TensorSpec, dtype: str) -> TensorSpec:
    """The operand with complex numbers instead of real ones."""
    if s.dtype != dtype or FACTS[dtype].kind == "complex":
        return s
    layout = tuple(step for step in s.layout if step[0] != "neg")
    return replace(s, dtype="complex64", layout=layout, values=replace(s.values, family="uniform", params=(), specials=()))


def _whole(s: TensorSpec, dtype: str) -> TensorSpec:
    """The operand with integers instead of floats."""
    if s.dtype != dtype:
        return s
    layout = tuple(step for step in s.layout if step[0] not in ("neg", "conj", "imag", "real"))
    return replace(s, dtype="int64", layout=layout, values=Values("inside", (1, 3), s.values.seed), grad=False)


def _second(case: Case) -> int | None:
    """Position of the second operand; None if there is none, other arguments exist, or an operand is empty."""
    places = [k for k, a in enumerate(case.args) if isinstance(a, TensorSpec)]
    if len(places) < 2 or len(places) < len(case.args) or not all(s.numel for s in operands_in(case.args)):
        return None
    return places[1]


def _retyped(case: Case, place: int, dtype: str) -> Case:
    """The case with small integers of another dtype for the operand at this position."""

    def other(s: Arg) -> Arg:
        assert isinstance(s, TensorSpec)
        layout = tuple(step for step in s.layout if step[0] not in ("neg", "conj"))
        return replace(s, dtype=dtype, layout=layout, values=Values("inside", (1, 3), s.values.seed), grad=False)

    return replace(case, args=tuple(other(a) if k == place else a for k, a in enumerate(case.args)))


def _mismatching(case: Case) -> int | None:
    """Position of the last argument after the first that no longer broadcasts if its last dimension is longer; None without."""
    shapes = [a.shape if isinstance(a, TensorSpec) else () for a in case.args]
    for k in range(len(shapes) - 1, 0, -1):
        own = shapes[k]
        if own and own[-1] > 1 and any(o and o[-1] == own[-1] for j, o in enumerate(shapes) if j != k):
            return k
    return None


def _longer(a: Arg) -> Arg:
    assert isinstance(a, TensorSpec)
    return replace(a, shape=(*a.shape[:-1], a.shape[-1] + 1))
