"""A case -> the same case, wrong on purpose: a call that the CPU refuses, so that the device must refuse it too.

Each flaw is one change of the call, and the words of `vocabulary.FLAWS` say which. They are offered only where the change
nearly always makes the call illegal; what the CPU computes all the same is void and counted. OpInfo rows take the calls that
OpInfo itself has for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from parity.catalog import opinfo
from parity.catalog.draw import Pick
from parity.catalog.row import Row
from parity.dtypes import FACTS
from parity.generation import forbidden
from parity.vocabulary import Arg, Case, OpClass, TensorSpec, Values

INDICES = ("index", "unique")
SIZED = ("view", "reshape", "expand", "broadcast_to", "full", "rand", "randn")
# torch 2.13's CPU computes these in complex numbers too, whatever its own test data says.
COMPLEX_TOO = (
    *("nan_to_num", "select_scatter", "slice_scatter", "bilinear", "silu", "soft_margin_loss", "poisson_nll_loss"),
    *("smooth_l1_loss", "hann_window", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "interpolate_area"),
)
# And these take an index past the end, which they read from or leave out.
UNCHECKED = ("take_along_dim", "nll_loss_backward", "nll_loss2d_backward")
# These count indices from the end, too.
FROM_THE_END = ("multilabel_margin_loss", "index_fill", "index_put", "put", "setitem_advanced", "index_put_kernel")
# And these take integers, by one route or another.
INTEGERS_TOO = (
    *("allclose", "lu_parts", "matrix_power", "max_pool1d", "embedding", "l1_loss", "hinge_embedding_loss"),
    *("interpolate_bilinear", "interpolate_trilinear", "round_decimals", "histc"),
)
BEYOND = 9  # no rank, so no dim
PAST = (0, 1, 5)  # how far behind the first index that is none: a kernel may have room for one more, or look at the last alone
# The CPU asks for operands of one dtype here, where other ops promote.
ALIKE = (
    *("mm", "bmm", "matmul", "addmm", "addmv", "addbmm", "baddbmm", "dot", "mv", "linear", "scaled_dot_product_attention"),
    *(f"{conv}{n}d" for conv in ("conv", "conv_transpose") for n in (1, 2, 3)),
)
OTHERS = {
    **dict.fromkeys(("float32", "bfloat16"), ("int64", "int8", "float16")),
    **dict.fromkeys(("float16", "complex64"), ("int64", "int8", "float32")),
}


def flawed(row: Row, case: Case, pick: Pick) -> Case:
    """The case with one of the flaws that fit it; the case itself where none does."""
    if row.family == "opinfo":
        return _known(case, pick)
    fit = tuple(_flaws(row, case))
    if not fit:
        return case
    words = tuple(dict.fromkeys(word for word, _ in fit))  # each as often as another, however many ways there are to it
    word = words[pick(len(words))]
    ways = tuple(made for w, made in fit if w == word)
    return replace(ways[pick(len(ways))](), refused=word)


def _known(case: Case, pick: Pick) -> Case:
    """One of the calls that OpInfo itself says must be refused, in the mode of the case."""
    wrong = tuple(opinfo.refusals(case.op))
    if not wrong:
        return case
    call, beyond = wrong[pick(len(wrong))]
    return Case(case.op, case.dtype, call.args, call.kwargs, under=case.under, refused="index" if beyond else "inputs")


def _flaws(row: Row, case: Case) -> Iterator[tuple[str, Callable[[], Case]]]:
    specs = [*_specs(case.args), *_specs(tuple(v for _, v in case.kwargs))]
    if row.name not in UNCHECKED and not row.promotes and any(_is_index(s, case) for s in specs):
        wraps = row.name in FROM_THE_END
        for far in PAST:  # bound early, which mypy cannot infer
            yield "index", lambda far=far: _mapped(case, lambda s: _beyond(s, far) if _is_index(s, case) else s)  # type: ignore[misc]
        yield "index", lambda: _mapped(case, lambda s: _below(s, wraps) if _is_index(s, case) else s)
    if any(_is_index(s, case) for s in specs):
        yield "dtype", lambda: _mapped(case, lambda s: _unindexed(s) if _is_index(s, case) else s)
    if _real_only(row, case, specs):
        yield "dtype", lambda: _mapped(case, lambda s: _complex(s, case.dtype))
    if _inexact_only(row, case, specs):
        yield "dtype", lambda: _mapped(case, lambda s: _whole(s, case.dtype))
    if row.name in ALIKE and (k := _second(case)) is not None:
        for other in OTHERS.get(case.dtype, ("float32",)):
            yield "dtype", lambda k=k, other=other: _retyped(case, k, other)  # type: ignore[misc]  # bound early
    if row.promotes and (k := _mismatching(case)) is not None:
        yield "shape", lambda: replace(case, args=tuple(_longer(a) if j == k else a for j, a in enumerate(case.args)))
    if any(name == "dim" and (_is_int(value) or _sizes(value)) for name, value in case.kwargs):
        for none in (BEYOND, -1 - BEYOND):
            yield "dim", lambda none=none: _dimmed(case, none)  # type: ignore[misc]  # bound early
    yield from forbidden.calls(row, case)
    if row.name in SIZED and any(_sizes(a) for a in case.args):
        yield "size", lambda: replace(case, args=tuple(_negative(a) if _sizes(a) else a for a in case.args))


def _real_only(row: Row, case: Case, specs: list[TensorSpec]) -> bool:
    """Whether torch's test data says that the CPU does not take complex numbers here, and the case holds some to be taken."""
    entries = [opinfo.ENTRIES[n] for n in row.opinfo if n in opinfo.ENTRIES]
    if row.name in COMPLEX_TOO or row.rule is OpClass.RANDOM or FACTS[case.dtype].kind == "complex":
        return False
    known = bool(entries) and not any("complex64" in e.dtypes for e in entries)
    return known and bool(specs) and specs[0].numel > 1 and all(s.numel for s in specs)


def _inexact_only(row: Row, case: Case, specs: list[TensorSpec]) -> bool:
    """Whether torch's test data says that the CPU takes floats alone here, and the case holds some to be taken."""
    entries = [opinfo.ENTRIES[n] for n in row.opinfo if n in opinfo.ENTRIES]
    if row.name in INTEGERS_TOO or row.promotes or row.rule is OpClass.RANDOM or not FACTS[case.dtype].is_inexact:
        return False
    known = bool(entries) and not any("int64" in e.dtypes for e in entries)
    return known and bool(specs) and specs[0].numel > 1 and all(s.numel for s in specs)


def _is_index(s: TensorSpec, case: Case) -> bool:
    """Whether an operand says where: its values are indices, and it is no number that the op computes with."""
    return s.numel > 0 and s.values.family in INDICES and FACTS[s.dtype].kind == "int" and s.dtype != case.dtype


def _sizes(a: Arg) -> bool:
    return isinstance(a, tuple) and bool(a) and all(_is_int(d) for d in a)


def _negative(a: Arg) -> Arg:
    assert isinstance(a, tuple)
    return (-5, *a[1:])


def _dimmed(case: Case, none: int) -> Case:
    """The case with `none` as its dimension, or as the last of several."""

    def instead(value: Arg) -> Arg:
        if isinstance(value, tuple):
            return (*value[:-1], none)
        return none if _is_int(value) else value

    return replace(case, kwargs=tuple((n, instead(v) if n == "dim" else v) for n, v in case.kwargs))


def _is_int(value: Arg) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _specs(tree: Arg) -> Iterator[TensorSpec]:
    if isinstance(tree, TensorSpec):
        yield tree
    elif isinstance(tree, tuple):
        for a in tree:
            yield from _specs(a)


def _mapped(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    def walk(a: Arg) -> Arg:
        if isinstance(a, TensorSpec):
            return change(a)
        return tuple(walk(x) for x in a) if isinstance(a, tuple) else a

    return replace(case, args=tuple(walk(a) for a in case.args), kwargs=tuple((k, walk(v)) for k, v in case.kwargs))


def _beyond(s: TensorSpec, far: int) -> TensorSpec:
    """An index past the last legal one, at the front."""
    return _first(s, far + int(s.values.params[1 if s.values.family == "index" else 0]))


def _below(s: TensorSpec, wraps: bool) -> TensorSpec:
    """An index one before the first legal one, at the front. wraps: whether the op counts negative ones from the end."""
    v = s.values
    low, size = (int(v.params[0]), int(v.params[1])) if v.family == "index" else (0, int(v.params[0]))
    return _first(s, (-size if wraps else low) - 1)


def _first(s: TensorSpec, number: int) -> TensorSpec:
    return replace(s, values=replace(s.values, specials=((0, str(number)), *s.values.specials)))


def _unindexed(s: TensorSpec) -> TensorSpec:
    """Floating numbers where integers are asked for."""
    return replace(s, dtype="float32", values=Values(), grad=False)


def _complex(s: TensorSpec, dtype: str) -> TensorSpec:
    """Complex numbers where real ones are asked for."""
    if s.dtype != dtype or FACTS[dtype].kind == "complex":
        return s
    layout = tuple(step for step in s.layout if step[0] != "neg")
    return replace(s, dtype="complex64", layout=layout, values=replace(s.values, family="uniform", params=(), specials=()))


def _whole(s: TensorSpec, dtype: str) -> TensorSpec:
    """Integers where floats are asked for."""
    if s.dtype != dtype:
        return s
    layout = tuple(step for step in s.layout if step[0] not in ("neg", "conj", "imag", "real"))
    return replace(s, dtype="int64", layout=layout, values=Values("inside", (1, 3), s.values.seed), grad=False)


def _second(case: Case) -> int | None:
    """The place of the second operand, where there is one and all of them have elements."""
    places = [k for k, a in enumerate(case.args) if isinstance(a, TensorSpec)]
    if len(places) < 2 or len(places) < len(case.args) or not all(s.numel for s in _specs(case.args)):
        return None
    return places[1]


def _retyped(case: Case, place: int, dtype: str) -> Case:
    """The case with small whole numbers of another dtype for one operand."""

    def other(s: Arg) -> Arg:
        assert isinstance(s, TensorSpec)
        layout = tuple(step for step in s.layout if step[0] not in ("neg", "conj"))
        return replace(s, dtype=dtype, layout=layout, values=Values("inside", (1, 3), s.values.seed), grad=False)

    return replace(case, args=tuple(other(a) if k == place else a for k, a in enumerate(case.args)))


def _mismatching(case: Case) -> int | None:
    """The last argument behind the first whose last dimension no broadcasting can match once it is longer."""
    shapes = [a.shape if isinstance(a, TensorSpec) else () for a in case.args]
    for k in range(len(shapes) - 1, 0, -1):
        own = shapes[k]
        if own and own[-1] > 1 and any(o and o[-1] == own[-1] for j, o in enumerate(shapes) if j != k):
            return k
    return None


def _longer(a: Arg) -> Arg:
    assert isinstance(a, TensorSpec)
    return replace(a, shape=(*a.shape[:-1], a.shape[-1] + 1))
