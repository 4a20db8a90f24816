"""Order statistics: sorting, the largest few, extrema with their places, distinct values."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import REAL, Row, Signature
from parity.catalog.signatures import hollow, lengthy, whole
from parity.dtypes import BOOL, FLOATS
from parity.vocabulary import Arg, OpClass, TensorSpec

ORDERED = (*REAL, *BOOL)
_row = partial(Row, family="selection", rule=OpClass.SELECTION, dtypes=ORDERED, grad=FLOATS)


def _operand(draw: Draw, low: int = 0, empty: bool = False) -> tuple[TensorSpec, tuple[int, ...]]:
    """Anything, or a few whole numbers with many ties; a long dimension now and then."""
    shape = draw.shape(low, 5, empty=empty)
    shape = lengthy(draw, shape, draw.pick(len(shape))) if shape else shape
    return (whole(0, 3)(draw, shape) if draw.pick(4) == 3 else draw.tensor(shape)), shape


def _sort(draw: Draw) -> Call:
    x, shape = _operand(draw, empty=True)
    stable = draw.option(True)
    named = keywords(stable=stable, dim=draw.option(draw.dim(shape)), descending=draw.option(True))
    return Call((x,), named)


def _argsort(draw: Draw) -> Call:
    x, shape = _operand(draw, empty=True)
    named = keywords(stable=draw.option(True), dim=draw.option(draw.dim(shape)), descending=draw.option(True))
    return Call((x,), named)


def _msort(draw: Draw) -> Call:
    return Call((_operand(draw, empty=True)[0],))


def _topk(draw: Draw) -> Call:
    x, shape = _operand(draw, empty=True)
    d = draw.dim(shape)
    size = shape[d] if shape else 1
    k = min(size, draw.choice((1, 2, 3, 5, 16, size, 0, 17, 100, max(0, size - 1))))
    k = k if shape else 1  # nobody says what 0 elements of a tensor without dimensions are
    dim = None if shape and d in (-1, len(shape) - 1) and not draw.flag() else d
    return Call((x, k), keywords(dim=dim, largest=draw.option(False), sorted=draw.option(False)))


def _kthvalue(draw: Draw) -> Call:
    x, shape = _operand(draw)
    d = draw.dim(shape)
    size = shape[d] if shape else 1
    k = draw.choice((1, size, (size + 1) // 2, 1 + draw.pick(min(size, 16))))
    return Call((hollow(x, d) if draw.rare(16) else x, k, d), keywords(keepdim=draw.option(True)))


def _along(draw: Draw) -> Call:
    """One dimension, its values and their places."""
    x, shape = _operand(draw)
    d = draw.dim(shape)
    return Call((hollow(x, d) if draw.rare(16) else x, d), keywords(keepdim=draw.option(True)))


def _whole(draw: Draw) -> Call:
    return Call((_operand(draw)[0],))


def _whole_or_nothing(draw: Draw) -> Call:
    """The middle of nothing is no number."""
    return Call((_operand(draw, empty=draw.dtype in FLOATS)[0],))


def _arg(draw: Draw) -> Call:
    x, shape = _operand(draw)
    dim: Arg = draw.option(draw.dim(shape))
    if isinstance(dim, int) and draw.rare(16):
        x = hollow(x, dim)
    return Call((x,), keywords(dim=dim, keepdim=None if dim is None else draw.option(True)))


def _quantile(draw: Draw) -> Call:
    shape = () if draw.rare(16) else draw.shape(1, 4, empty=False)
    q: Arg = draw.choice((0.5, 0.0, 1.0, 0.25))
    if draw.flag():
        q = draw.inside(() if draw.pick(4) == 3 else (draw.choice((1, 2, 3)),), 0, 1, grad=False)
    dim = draw.option(draw.dim(shape))
    mode = draw.option("lower", "higher", "midpoint", "nearest")
    return Call((draw.tensor(shape), q), keywords(dim=dim, keepdim=draw.option(True), interpolation=mode))


def _unique(consecutive: bool) -> Signature:
    def signature(draw: Draw) -> Call:
        shape = draw.shape(0, 3)
        x = whole(0, 3)(draw, shape) if draw.flag() else draw.tensor(shape)
        named = keywords(return_inverse=draw.option(True), return_counts=draw.option(True))
        if len(shape) and 0 not in shape and draw.pick(4) == 3:
            return Call((x,), (*named, *keywords(dim=draw.dim(shape))))
        return Call((x,), named if consecutive else (*keywords(sorted=True if draw.flag() else None), *named))

    return signature


def _unique_rows(draw: Draw) -> Call:
    """Rows, columns or slices that occur more than once, next to each other or not."""
    shape = draw.shape(1, 3, empty=False)
    flags = draw.flag(), draw.flag()
    return Call((whole(0, 1)(draw, shape), draw.dim(shape), *flags))


ROWS = (
    _row(name="sort", relation="sort", call="torch.sort", signature=_sort, out=True, opinfo=("sort",)),
    _row(name="argsort", relation="argsort", call="torch.argsort", signature=_argsort, grad=(), opinfo=("argsort",)),
    _row(name="msort", relation="order", rule=OpClass.EXACT, call="torch.msort", signature=_msort, opinfo=("msort",)),
    _row(name="topk", dtypes=REAL, relation="topk", call="torch.topk", signature=_topk, out=True, opinfo=("topk",)),
    _row(
        name="kthvalue",
        dtypes=REAL,
        relation="kthvalue",
        call="torch.kthvalue",
        signature=_kthvalue,
        out=True,
        opinfo=("kthvalue",),
    ),
    _row(
        name="median",
        unexpanded=True,
        dtypes=REAL,
        relation="median",
        call="torch.median",
        signature=_along,
        out=True,
        opinfo=("median",),
    ),
    _row(
        name="nanmedian",
        unexpanded=True,
        dtypes=REAL,
        relation="median",
        call="torch.nanmedian",
        signature=_along,
        out=True,
        opinfo=("nanmedian",),
    ),
    _row(
        name="median_all", relation="order", dtypes=REAL, rule=OpClass.EXACT, call="torch.median", signature=_whole_or_nothing
    ),
    _row(
        name="nanmedian_all",
        relation="order",
        dtypes=REAL,
        rule=OpClass.EXACT,
        call="torch.nanmedian",
        signature=_whole_or_nothing,
    ),
    _row(name="mode", relation="mode", call="torch.mode", signature=_along, opinfo=("mode",)),
    _row(name="max", relation="max_dim", call="torch.max", signature=_along, out=True, opinfo=("max:reduction_with_dim",)),
    _row(name="min", relation="max_dim", call="torch.min", signature=_along, out=True, opinfo=("min:reduction_with_dim",)),
    _row(name="max_all", rule=OpClass.EXACT, call="torch.max", signature=_whole, opinfo=("max:reduction_no_dim",)),
    _row(name="min_all", rule=OpClass.EXACT, call="torch.min", signature=_whole, opinfo=("min:reduction_no_dim",)),
    _row(
        name="argmax",
        dtypes=REAL,
        relation="argmax",
        call="torch.argmax",
        signature=_arg,
        grad=(),
        out=True,
        opinfo=("argmax",),
    ),
    _row(
        name="argmin",
        dtypes=REAL,
        relation="argmax",
        call="torch.argmin",
        signature=_arg,
        grad=(),
        out=True,
        opinfo=("argmin",),
    ),
    _row(name="aminmax", rule=OpClass.EXACT, call="torch.aminmax", signature=_arg, out=True, opinfo=("aminmax",)),
    _row(
        name="quantile",
        relation="order",
        rule=OpClass.COMPOSITE,
        call="torch.quantile",
        signature=_quantile,
        dtypes=("float32",),
        grad=("float32",),
        opinfo=("quantile",),
    ),
    _row(
        name="nanquantile",
        relation="order",
        rule=OpClass.COMPOSITE,
        call="torch.nanquantile",
        signature=_quantile,
        dtypes=("float32",),
        grad=("float32",),
        opinfo=("nanquantile",),
    ),
    _row(name="unique", relation="unique", call="torch.unique", signature=_unique(False), grad=(), opinfo=("unique",)),
    _row(
        name="unique_consecutive",
        rule=OpClass.EXACT,
        call="torch.unique_consecutive",
        signature=_unique(True),
        grad=(),
        opinfo=("unique_consecutive",),
    ),
    _row(
        name="unique_rows",
        rule=OpClass.EXACT,
        call="parity.catalog.steps.unique_rows",
        signature=_unique_rows,
        grad=(),
    ),
)
