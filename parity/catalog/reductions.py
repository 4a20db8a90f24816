"""Reductions: over everything, one dimension or several, kept or not, with another dtype, with a correction."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import EVERY, FLOATING, NUMERIC, REAL, Row, Signature
from parity.catalog.signatures import Operand, anything, hollow, lengthy, whole, within
from parity.dtypes import BOOL, FLOATS
from parity.vocabulary import Arg, OpClass, Word

_row = partial(Row, family="reductions", rule=OpClass.CONTRACTION)


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
    """The shape, now and then with one long dimension, which the kernels take in several passes."""
    return lengthy(draw, shape, draw.pick(len(shape))) if shape else shape


def reduction(operand: Operand = anything, *, many: bool = True, typed: bool = False, empty: bool = True) -> Signature:
    """`f(x, dim=..., keepdim=..., dtype=...)`; no dim is everything. empty: whether nothing may be reduced; where not, what is
    left may still be nothing."""

    def signature(draw: Draw) -> Call:
        shape = _lengthy(draw, draw.shape(0, 5, empty=empty))
        x = operand(draw, shape)
        dim = _where(draw, shape, many)
        if not empty and isinstance(dim, int) and draw.rare(16):
            x = hollow(x, dim)
        keep = _keep(draw, dim)
        dtype = _dtype(draw) if typed else None
        return Call((x,), keywords(dim=dim, keepdim=keep, dtype=dtype))

    return signature


def _dtype(draw: Draw) -> Arg:
    """An accumulation dtype at least as wide as the operand's; for integers also their own or a narrower one, in which sums
    wrap round."""
    if draw.pick(4) != 3:
        return None
    if draw.kind == "complex":
        return Word("complex64")
    if draw.kind == "int" and draw.flag():
        return Word(draw.choice((draw.dtype, "uint8", "int8", "int16")))
    return Word("float32" if draw.kind == "float" else draw.choice(("int64", "float32", "int32")))


def _mean(draw: Draw) -> Call:
    """Integers must name a floating dtype."""
    call = reduction()(draw)
    if draw.is_inexact:
        return call
    return Call(call.args, (*call.kwargs, ("dtype", Word(draw.choice(("float32", "float16"))))))


def _dim_needed(operand: Operand = anything, *, many: bool = True) -> Signature:
    """`f(x, dim, keepdim=...)` where the dim must be given."""

    def signature(draw: Draw) -> Call:
        shape = _lengthy(draw, draw.shape(0, 5))
        x = operand(draw, shape)
        dim: Arg = draw.dims(shape) if many and draw.flag() else draw.dim(shape)
        return Call((x, dim), keywords(keepdim=draw.option(True)))

    return signature


def _spread(draw: Draw) -> Call:
    """std and var: mostly two elements or more are reduced, so that the correction leaves some; values far from 0 now and
    then, whose squares cancel. Of one element, or of none, nothing is left to be rounded."""
    if draw.rare(16):
        return Call((draw.tensor(()),), keywords(dim=draw.option(0, -1, ()), correction=draw.option(0, 2)))
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
    return Call((x,), keywords(dim=dim, correction=draw.option(0, 2, 0.5), keepdim=_keep(draw, dim)))


EXTREME = -1, float("inf"), float("-inf")  # norms that nothing has


def _filled(shape: Shape) -> Shape:
    """The shape with one element where it has none."""
    return tuple(max(n, 1) for n in shape)


def _norm(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    p = draw.option(1, 2, 0, 3, 0.5, -1, float("inf"), float("-inf")) if draw.flag() else None
    shape = _filled(shape) if p in EXTREME else shape
    dim = _where(draw, shape) if shape else None
    dim = None if dim == () else dim
    wide = _norm_dtype(draw) if draw.rare(4) else None
    if p is None:
        return Call((draw.tensor(shape),), keywords(dim=dim, keepdim=_keep(draw, dim), dtype=wide))
    # Zeros are what order 0 is about.
    x = whole(0, 2)(draw, shape) if p == 0 and draw.flag() else draw.tensor(shape)
    return Call((x, p), keywords(dim=dim, keepdim=_keep(draw, dim), dtype=wide))


def _diff(draw: Draw) -> Call:
    shape = draw.shape(1, 4)
    d = draw.dim(shape)
    rim = tuple(draw.choice((1, 2)) if k == d % len(shape) else s for k, s in enumerate(shape))
    ends = keywords(prepend=draw.maybe(draw.tensor(rim)), append=draw.maybe(draw.tensor(rim)))
    return Call((draw.tensor(shape),), (*keywords(n=draw.option(2, 0), dim=None if d in (-1, len(shape) - 1) else d), *ends))


def _area(draw: Draw) -> Call:
    shape = draw.shape(1, 4)
    d = draw.dim(shape)
    kind = draw.pick(3)
    x = draw.tensor(shape)
    if kind == 1:
        return Call((x, draw.tensor((shape[d],))), keywords(dim=d))
    return Call((x,), keywords(dim=d, dx=draw.option(0.5, 2.0) if kind else None))


def _old_norm(draw: Draw) -> Call:
    """torch.norm, which has a kernel of its own: dims, dtypes of the result."""
    shape = draw.shape(0, 4)
    dim = draw.dims(shape) if shape else ()
    p = draw.choice((2, 1, 0, 3, 0.5, float("inf"), float("-inf"), -1))
    shape = _filled(shape) if p in EXTREME else shape
    wide = _norm_dtype(draw) if draw.kind == "float" else None
    return Call((draw.tensor(shape), p, dim, draw.flag()), keywords(dtype=wide))


def _norm_dtype(draw: Draw) -> Arg:
    """The dtype in which powers are added: left out, or one that is as wide."""
    return draw.option(Word("complex64" if draw.kind == "complex" else "float32"))


def _norm_public(draw: Draw) -> Call:
    """torch.norm as people call it: a number or a word for the norm, everything or some dimensions, another dtype."""
    shape = draw.shape(0, 4)
    norms: tuple[Arg, ...] = ("fro", 2, 1, 0, 3, 0.5, float("inf"))
    p = draw.choice(norms)
    shape = _filled(shape) if p in EXTREME else shape
    dim: Arg = draw.dims(shape)[:2] if shape and draw.pick(3) else None
    return Call((draw.tensor(shape), p), keywords(dim=dim, keepdim=draw.option(True), dtype=_norm_dtype(draw)))


def _correlated(draw: Draw) -> Call:
    shape = draw.shape(1, 2)
    rows = tuple(min(n, 257) for n in shape[:-1])  # the result has as many elements as their square
    return Call((draw.tensor((*rows, shape[-1] + 2)),))


def _square(draw: Draw) -> Call:
    n, m = draw.size(), draw.size()
    return Call((draw.tensor((n, m if n * m <= draw.sizes.limit else min(m, 2))),))


def _count(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    x = whole(0, 2)(draw, shape) if draw.flag() else draw.tensor(shape)
    return Call((x,), keywords(dim=_where(draw, shape)))


ROWS = (
    _row(
        name="sum",
        promotes=True,
        call="torch.sum",
        signature=reduction(typed=True),
        dtypes=EVERY,
        grad=FLOATING,
        opinfo=("sum",),
    ),
    _row(
        name="sum_dim",
        call="torch.sum",
        signature=_dim_needed(),
        dtypes=EVERY,
        grad=FLOATING,
        out=True,
    ),
    _row(
        name="prod_dim",
        rule=OpClass.COMPOSITE,
        call="torch.prod",
        signature=_dim_needed(within(-2, 2), many=False),
        accumulates=("backward",),  # as prod
        dtypes=EVERY,
        grad=FLOATING,
        out=True,
    ),
    _row(name="mean", promotes=True, call="torch.mean", signature=_mean, dtypes=EVERY, grad=FLOATING, opinfo=("mean",)),
    _row(
        name="mean_dim",
        call="torch.mean",
        signature=_dim_needed(),
        dtypes=FLOATING,
        grad=FLOATING,
        out=True,
    ),
    _row(
        name="nansum",
        call="torch.nansum",
        signature=reduction(),
        dtypes=(*REAL, *BOOL),
        grad=FLOATS,
        out=True,
        opinfo=("nansum",),
    ),
    _row(name="nanmean", call="torch.nanmean", signature=reduction(), dtypes=FLOATS, grad=FLOATS, opinfo=("nanmean",)),
    _row(
        name="prod",
        promotes=True,
        rule=OpClass.COMPOSITE,
        call="torch.prod",
        signature=reduction(within(-2, 2), many=False, typed=True),
        accumulates=("backward",),  # where a factor is 0, by running products, which CUDA keeps in the dtype
        dtypes=EVERY,
        grad=FLOATING,
        opinfo=("prod",),
    ),
    _row(
        name="std",
        rule=OpClass.COMPOSITE,
        call="torch.std",
        signature=_spread,
        dtypes=FLOATING,
        grad=FLOATING,
        out=True,
        opinfo=("std", "std:unbiased"),
    ),
    _row(
        name="var",
        rule=OpClass.COMPOSITE,
        call="torch.var",
        signature=_spread,
        dtypes=FLOATING,
        grad=FLOATING,
        out=True,
        opinfo=("var", "var:unbiased"),
    ),
    _row(
        name="var_mean",
        rule=OpClass.COMPOSITE,
        call="torch.var_mean",
        signature=_spread,
        dtypes=FLOATING,
        grad=FLOATING,
        opinfo=("var_mean", "var_mean:unbiased"),
    ),
    _row(
        name="std_mean",
        rule=OpClass.COMPOSITE,
        call="torch.std_mean",
        signature=_spread,
        dtypes=FLOATING,
        grad=FLOATING,
        opinfo=("std_mean", "std_mean:unbiased"),
    ),
    _row(
        name="logsumexp",
        rounds_between=True,  # a difference, exp, sum and log, each rounded to the dtype
        promotes=True,
        rule=OpClass.COMPOSITE,
        call="torch.logsumexp",
        signature=_dim_needed(within(-30, 30)),
        dtypes=EVERY,
        grad=FLOATING,
        out=True,
        opinfo=("logsumexp",),
    ),
    _row(
        name="norm",
        rule=OpClass.COMPOSITE,
        call="torch.linalg.vector_norm",
        signature=_norm,
        dtypes=FLOATING,
        grad=FLOATING,
        out=True,
        opinfo=("linalg.vector_norm",),
    ),
    _row(name="all", rule=OpClass.EXACT, call="torch.all", signature=reduction(), dtypes=EVERY, out=True, opinfo=("all",)),
    _row(name="any", rule=OpClass.EXACT, call="torch.any", signature=reduction(), dtypes=EVERY, out=True, opinfo=("any",)),
    _row(
        name="count_nonzero",
        rule=OpClass.EXACT,
        call="torch.count_nonzero",
        signature=_count,
        dtypes=EVERY,
        opinfo=("count_nonzero",),
    ),
    _row(
        name="amax",
        rule=OpClass.EXACT,
        call="torch.amax",
        signature=reduction(empty=False),
        dtypes=(*REAL, *BOOL),
        grad=FLOATS,
        out=True,
        opinfo=("amax",),
    ),
    _row(
        name="amin",
        rule=OpClass.EXACT,
        call="torch.amin",
        signature=reduction(empty=False),
        dtypes=(*REAL, *BOOL),
        grad=FLOATS,
        out=True,
        opinfo=("amin",),
    ),
    _row(
        name="norm_dims",
        rule=OpClass.COMPOSITE,
        call="parity.catalog.aten.norm",
        signature=_old_norm,
        dtypes=FLOATING,
        grad=FLOATING,
        out=True,
    ),
    _row(
        name="norm_public",
        rule=OpClass.COMPOSITE,
        accumulates=("backward",),  # its gradient multiplies and divides powers in half kernels
        call="torch.norm",
        signature=_norm_public,
        dtypes=FLOATING,
        grad=FLOATING,
    ),
    _row(
        name="corrcoef",
        rule=OpClass.COMPOSITE,
        rounds_between=True,
        call="torch.corrcoef",
        signature=_correlated,
        dtypes=("float32", "complex64"),
        opinfo=("corrcoef",),
    ),
    _row(name="trace", call="torch.trace", signature=_square, dtypes=NUMERIC, grad=FLOATING, opinfo=("trace",)),
    _row(
        name="diff",
        rounds_between=True,  # n differences one after the other
        rule=OpClass.COMPOSITE,
        call="torch.diff",
        signature=_diff,
        dtypes=EVERY,
        grad=FLOATING,
        out=True,
        opinfo=("diff",),
    ),
    _row(
        name="trapezoid",
        rule=OpClass.COMPOSITE,  # differences of the abscissae may cancel
        rounds_between=True,  # sums and products of half kernels
        call="torch.trapezoid",
        signature=_area,
        dtypes=FLOATING,
        grad=FLOATING,
        opinfo=("trapezoid", "trapz"),
    ),
)
