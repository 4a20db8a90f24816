"""Reductions: over all dimensions, one or several, with keepdim, another dtype, a correction."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    EVERY,
    EXACT,
    FLOATING,
    GLUE,
    NUMERIC,
    OUT,
    OWN,
    REAL,
    ROUNDED,
    UNCHECKED,
    Counts,
    Forms,
    Judged,
    Row,
    Signature,
)
from parity.catalog.signatures import Operand, anything, hollow, lengthy, whole, within
from parity.core.case import Arg, Word
from parity.core.dtypes import BOOL, FLOATS

_row = partial(Row, family="reductions", rule=CONTRACTION)


NARROW = "uint8", "int8", "int16"


def _where(draw: Draw, shape: Shape, many: bool = True) -> Arg:
    """Left out, a dimension, or several (also none of them)."""
    kind = draw.pick(5 if many else 2)
    if kind == 0:
        return None
    if kind == 4:
        return ()
    return draw.dims(shape) if kind >= 2 else draw.dim(shape)


def _keep(draw: Draw, dim: Arg) -> Arg:
    return None if dim is None else draw.option(True)


def _lengthy(draw: Draw, shape: Shape) -> Shape:
    """The shape, sometimes with one long dimension, which kernels reduce in several passes."""
    return lengthy(draw, shape, draw.pick(len(shape))) if shape else shape


def reduction(operand: Operand = anything, *, many: bool = True, typed: bool = False, empty: bool = True) -> Signature:
    """`f(x, dim=..., keepdim=..., dtype=...)`; no dim reduces everything. empty: whether the reduced dimensions may be
    empty; the others always may."""

    def signature(draw: Draw) -> Arguments:
        shape = _lengthy(draw, draw.shape(0, 5, empty=empty))
        x = operand(draw, shape)
        dim = _where(draw, shape, many)
        if not empty and isinstance(dim, int) and draw.rare(16):
            x = hollow(x, dim)
        keep = _keep(draw, dim)
        dtype = _dtype(draw) if typed else None
        return Arguments((x,), keywords(dim=dim, keepdim=keep, dtype=dtype))

    return signature


def _dtype(draw: Draw) -> Arg:
    """An accumulation dtype at least as wide as the operand's; for integers also their own or a narrower one, in which sums
    wrap, and which narrow ones name more often."""
    odds = 2 if draw.dtype in NARROW else 4
    if draw.pick(odds) != odds - 1:
        return None
    if draw.kind == "complex":
        return Word("complex64")
    if draw.dtype in NARROW:
        return Word(draw.choice((draw.dtype, *NARROW, draw.dtype, "float32", "int32")))
    if draw.kind == "int" and draw.flag():
        return Word(draw.choice((draw.dtype, *NARROW)))
    return Word("float32" if draw.kind == "float" else draw.choice(("int64", "float32", "int32")))


def _mean(draw: Draw) -> Arguments:
    """Integers must name a floating dtype."""
    call = reduction()(draw)
    if draw.is_inexact:
        return call
    return Arguments(call.args, (*call.kwargs, ("dtype", Word(draw.choice(("float32", "float16"))))))


def _dim_needed(operand: Operand = anything, *, many: bool = True) -> Signature:
    """`f(x, dim, keepdim=...)` with a required dim."""

    def signature(draw: Draw) -> Arguments:
        shape = _lengthy(draw, draw.shape(0, 5))
        x = operand(draw, shape)
        dim: Arg = draw.dims(shape) if many and draw.flag() else draw.dim(shape)
        return Arguments((x, dim), keywords(keepdim=draw.option(True)))

    return signature


def _spread(draw: Draw) -> Arguments:
    """std and var: mostly of two or more elements, so that the divisor is positive; sometimes of values far from 0, whose
    squares cancel."""
    if draw.rare(16):
        return Arguments((draw.tensor(()),), keywords(dim=draw.option(0, -1, ()), correction=draw.option(0, 2)))
    shape = list(_lengthy(draw, draw.shape(1, 5)))
    kind = draw.pick(4)
    dim: Arg = None if kind == 0 else draw.dim(tuple(shape)) if kind < 3 else draw.dims(tuple(shape))
    inner = dim[0] if isinstance(dim, tuple) else dim
    few = len(shape) == 1 and draw.rare(6)
    if shape[inner if isinstance(inner, int) else -1] and not few:
        shape[inner if isinstance(inner, int) else -1] += 2
    if few:
        shape[0] = draw.choice((1, 0))
    x = draw.inside(tuple(shape), 100, 100.5) if draw.pick(6) == 5 and draw.kind == "float" else draw.tensor(tuple(shape))
    return Arguments((x,), keywords(dim=dim, correction=draw.option(0, 2, 0.5), keepdim=_keep(draw, dim)))


EXTREME = -1, float("inf"), float("-inf")  # norms that are undefined without elements


def _filled(shape: Shape) -> Shape:
    """The shape with 1 for sizes of 0."""
    return tuple(max(n, 1) for n in shape)


def _norm(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    p = draw.option(1, 2, 0, 3, 0.5, -1, float("inf"), float("-inf")) if draw.flag() else None
    shape = _filled(shape) if p in EXTREME else shape
    dim = _where(draw, shape) if shape else None
    dim = None if dim == () else dim
    wide = _norm_dtype(draw) if draw.rare(4) else None
    if p is None:
        return Arguments((draw.tensor(shape),), keywords(dim=dim, keepdim=_keep(draw, dim), dtype=wide))
    # Order 0 counts nonzero elements.
    x = whole(0, 2)(draw, shape) if p == 0 and draw.flag() else draw.tensor(shape)
    return Arguments((x, p), keywords(dim=dim, keepdim=_keep(draw, dim), dtype=wide))


def _diff(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    d = draw.dim(shape)
    rim = tuple(draw.choice((1, 2)) if k == d % len(shape) else s for k, s in enumerate(shape))
    ends = keywords(prepend=draw.maybe(draw.tensor(rim)), append=draw.maybe(draw.tensor(rim)))
    return Arguments(
        (draw.tensor(shape),), (*keywords(n=draw.option(2, 0), dim=None if d in (-1, len(shape) - 1) else d), *ends)
    )


def _gradient(draw: Draw) -> Arguments:
    """Central differences along one dimension, or along each."""
    edge = draw.option(2)
    shape = tuple(s + 2 for s in draw.shape(1, 3, empty=False))
    spacing = draw.option(0.5, 2.0, 3.0)
    return Arguments((draw.tensor(shape),), keywords(spacing=spacing, dim=draw.maybe(draw.dim(shape)), edge_order=edge))


def _segments(draw: Draw) -> Arguments:
    """Rows reduced in runs of given lengths, some of which are empty where the call says with what a run begins."""
    initial = draw.option(0.0, 1.0)
    lengths = tuple(draw.extent((1, 2, 3, 17) if initial is None else (0, 1, 2, 17)) for _ in range(draw.choice((1, 2, 3, 5))))
    x = draw.between((sum(lengths), *draw.shape(0, 2, empty=False)), -2, 2)
    reduce = draw.choice(("sum", "mean", "max", "min", "prod"))
    return Arguments((x, reduce, lengths), keywords(initial=initial))


def _area(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    d = draw.dim(shape)
    kind = draw.pick(3)
    x = draw.tensor(shape)
    if kind == 1:
        return Arguments((x, draw.tensor((shape[d],))), keywords(dim=d))
    return Arguments((x,), keywords(dim=d, dx=draw.option(0.5, 2.0) if kind else None))


def _old_norm(draw: Draw) -> Arguments:
    """torch.norm, which has its own kernel: dims, dtypes of the result."""
    shape = draw.shape(0, 4)
    dim = draw.dims(shape) if shape else ()
    p = draw.choice((2, 1, 0, 3, 0.5, float("inf"), float("-inf"), -1))
    shape = _filled(shape) if p in EXTREME else shape
    wide = _norm_dtype(draw) if draw.kind == "float" else None
    return Arguments((draw.tensor(shape), p, dim, draw.flag()), keywords(dtype=wide))


def _norm_dtype(draw: Draw) -> Arg:
    """The accumulation dtype: left out, or one that is at least as wide."""
    return draw.option(Word("complex64" if draw.kind == "complex" else "float32"))


def _norm_public(draw: Draw) -> Arguments:
    """torch.norm as people call it: a number or a word for the norm, everything or some dimensions, another dtype."""
    shape = draw.shape(0, 4)
    norms: tuple[Arg, ...] = ("fro", 2, 1, 0, 3, 0.5, float("inf"))
    p = draw.choice(norms)
    shape = _filled(shape) if p in EXTREME else shape
    dim: Arg = draw.dims(shape)[:2] if shape and draw.pick(3) else None
    return Arguments((draw.tensor(shape), p), keywords(dim=dim, keepdim=draw.option(True), dtype=_norm_dtype(draw)))


def _correlated(draw: Draw) -> Arguments:
    shape = draw.shape(1, 2)
    rows = tuple(min(n, 257) for n in shape[:-1])  # the result has as many elements as their square
    return Arguments((draw.tensor((*rows, shape[-1] + 2)),))


def _square(draw: Draw) -> Arguments:
    n, m = draw.size(), draw.size()
    return Arguments((draw.tensor((n, m if n * m <= draw.sizes.limit else min(m, 2))),))


def _count(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    x = whole(0, 2)(draw, shape) if draw.flag() else draw.tensor(shape)
    return Arguments((x,), keywords(dim=_where(draw, shape)))


ROWS = (
    _row("sum", reduction(typed=True), forms=Forms(promotes=True), dtypes=EVERY, grad=FLOATING, counts=OWN),
    _row("sum_dim", _dim_needed(), call="torch.sum", dtypes=EVERY, grad=FLOATING, forms=OUT),
    # accumulates: as prod
    _row(
        "prod_dim",
        _dim_needed(within(-2, 2), many=False),
        rule=COMPOSITE,
        call="torch.prod",
        forms=OUT,
        dtypes=EVERY,
        grad=FLOATING,
        judged=Judged(accumulates=("backward",)),
    ),
    _row("mean", _mean, forms=Forms(promotes=True), dtypes=EVERY, grad=FLOATING, counts=OWN),
    _row("mean_dim", _dim_needed(), call="torch.mean", dtypes=FLOATING, grad=FLOATING, forms=OUT),
    _row("nansum", reduction(), dtypes=(*REAL, *BOOL), grad=FLOATS, forms=OUT, counts=OWN),
    _row("nanmean", reduction(), dtypes=FLOATS, grad=FLOATS, counts=OWN),
    # accumulates: if a factor is 0, by running products, which CUDA stores in the dtype
    _row(
        "prod",
        reduction(within(-2, 2), many=False, typed=True),
        forms=Forms(promotes=True),
        rule=COMPOSITE,
        judged=Judged(accumulates=("backward",)),
        dtypes=EVERY,
        grad=FLOATING,
        counts=OWN,
    ),
    _row("std", _spread, rule=COMPOSITE, dtypes=FLOATING, grad=FLOATING, forms=OUT, counts=Counts(("*", "std:unbiased"))),
    _row("var", _spread, rule=COMPOSITE, dtypes=FLOATING, grad=FLOATING, forms=OUT, counts=Counts(("*", "var:unbiased"))),
    _row("var_mean", _spread, rule=COMPOSITE, dtypes=FLOATING, grad=FLOATING, counts=Counts(("*", "var_mean:unbiased"))),
    _row("std_mean", _spread, rule=COMPOSITE, dtypes=FLOATING, grad=FLOATING, counts=Counts(("*", "std_mean:unbiased"))),
    # rounds_between: a difference, exp, sum and log, each rounded to the dtype
    _row(
        "logsumexp",
        _dim_needed(within(-30, 30)),
        forms=Forms(out=True, promotes=True),
        judged=ROUNDED,
        rule=COMPOSITE,
        dtypes=EVERY,
        grad=FLOATING,
        counts=OWN,
    ),
    _row("norm", _norm, rule=COMPOSITE, call="torch.linalg.vector_norm", dtypes=FLOATING, grad=FLOATING, forms=OUT, counts=OWN),
    _row("all", reduction(), rule=EXACT, dtypes=EVERY, forms=OUT, counts=OWN),
    _row("any", reduction(), rule=EXACT, dtypes=EVERY, forms=OUT, counts=OWN),
    _row("count_nonzero", _count, rule=EXACT, dtypes=EVERY, counts=OWN),
    _row("amax", reduction(empty=False), rule=EXACT, dtypes=(*REAL, *BOOL), grad=FLOATS, forms=OUT, counts=OWN),
    _row("amin", reduction(empty=False), rule=EXACT, dtypes=(*REAL, *BOOL), grad=FLOATS, forms=OUT, counts=OWN),
    _row(
        "norm_dims",
        _old_norm,
        rule=COMPOSITE,
        call="parity.catalog.glue.aten.norm",
        dtypes=FLOATING,
        grad=FLOATING,
        forms=OUT,
        refuses=UNCHECKED,
    ),
    # accumulates: its gradient multiplies and divides powers in half-precision kernels
    _row(
        "norm_public",
        _norm_public,
        rule=COMPOSITE,
        judged=Judged(accumulates=("backward",)),
        call="torch.norm",
        dtypes=FLOATING,
        grad=FLOATING,
    ),
    _row("corrcoef", _correlated, rule=COMPOSITE, judged=ROUNDED, dtypes=("float32", "complex64"), counts=OWN),
    _row("trace", _square, dtypes=NUMERIC, grad=FLOATING, counts=OWN),
    # rounds_between: n differences one after the other
    _row("diff", _diff, forms=OUT, rule=COMPOSITE, dtypes=EVERY, grad=FLOATING, judged=ROUNDED, counts=OWN),
    # rounds_between: differences and quotients are separate half-precision kernels
    _row("gradient", _gradient, judged=ROUNDED, rule=COMPOSITE, dtypes=FLOATING, grad=FLOATING, counts=OWN),
    _row(
        "segment_reduce",
        _segments,
        rule=COMPOSITE,
        dtypes=FLOATS,
        grad=FLOATS,
        call=GLUE,
        judged=Judged(accumulates=("forward", "backward")),
        counts=Counts(("_segment_reduce:lengths", "_segment_reduce:offsets")),
    ),
    # rule: differences of the abscissae may cancel
    # rounds_between: sums and products are separate half-precision kernels
    _row("trapezoid", _area, rule=COMPOSITE, judged=ROUNDED, dtypes=FLOATING, grad=FLOATING, counts=Counts(("*", "trapz"))),
)
