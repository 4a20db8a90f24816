"""Order statistics: sort, topk, extrema with their indices, distinct values."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import COMPOSITE, EXACT, OUT, OWN, REAL, SELECTION, Counts, Draws, Judged, Row, Signature
from parity.catalog.signatures import hollow, lengthy, whole
from parity.core.case import Arg, TensorSpec
from parity.core.dtypes import BOOL, FLOATS

ORDERED = (*REAL, *BOOL)
SINGLE = ("float32",)
_row = partial(Row, family="selection", rule=SELECTION, dtypes=ORDERED, grad=FLOATS)


def _operand(draw: Draw, low: int = 0, empty: bool = False) -> tuple[TensorSpec, tuple[int, ...]]:
    """Any values, or integers with many ties; sometimes a long dimension."""
    shape = draw.shape(low, 5, empty=empty)
    shape = lengthy(draw, shape, draw.pick(len(shape))) if shape else shape
    return (whole(0, 3)(draw, shape) if draw.pick(4) == 3 else draw.tensor(shape)), shape


def _sort(draw: Draw) -> Arguments:
    x, shape = _operand(draw, empty=True)
    stable = draw.option(True)
    named = keywords(stable=stable, dim=draw.option(draw.dim(shape)), descending=draw.option(True))
    return Arguments((x,), named)


def _argsort(draw: Draw) -> Arguments:
    x, shape = _operand(draw, empty=True)
    named = keywords(stable=draw.option(True), dim=draw.option(draw.dim(shape)), descending=draw.option(True))
    return Arguments((x,), named)


def _msort(draw: Draw) -> Arguments:
    return Arguments((_operand(draw, empty=True)[0],))


def _topk(draw: Draw) -> Arguments:
    x, shape = _operand(draw, empty=True)
    d = draw.dim(shape)
    size = shape[d] if shape else 1
    k = min(size, draw.choice((1, 2, 3, 5, 16, size, 0, 17, 100, max(0, size - 1))))
    k = k if shape else 1  # the result for 0 elements of a 0-d tensor is unspecified
    dim = None if shape and d in (-1, len(shape) - 1) and not draw.flag() else d
    return Arguments((x, k), keywords(dim=dim, largest=draw.option(False), sorted=draw.option(False)))


def _kthvalue(draw: Draw) -> Arguments:
    x, shape = _operand(draw)
    d = draw.dim(shape)
    size = shape[d] if shape else 1
    k = draw.choice((1, size, (size + 1) // 2, 1 + draw.pick(min(size, 16))))
    return Arguments((hollow(x, d) if draw.rare(16) else x, k, d), keywords(keepdim=draw.option(True)))


def _along(draw: Draw) -> Arguments:
    """One dimension; the results are values and their indices."""
    x, shape = _operand(draw)
    d = draw.dim(shape)
    return Arguments((hollow(x, d) if draw.rare(16) else x, d), keywords(keepdim=draw.option(True)))


def _whole(draw: Draw) -> Arguments:
    return Arguments((_operand(draw)[0],))


def _whole_or_nothing(draw: Draw) -> Arguments:
    """The middle of nothing has no value."""
    return Arguments((_operand(draw, empty=draw.dtype in FLOATS)[0],))


def _arg(draw: Draw) -> Arguments:
    x, shape = _operand(draw)
    dim: Arg = draw.option(draw.dim(shape))
    if isinstance(dim, int) and draw.rare(16):
        x = hollow(x, dim)
    return Arguments((x,), keywords(dim=dim, keepdim=None if dim is None else draw.option(True)))


def _quantile(draw: Draw) -> Arguments:
    shape = () if draw.rare(16) else draw.shape(1, 4, empty=False)
    q: Arg = draw.choice((0.5, 0.0, 1.0, 0.25))
    if draw.flag():
        q = draw.inside(() if draw.pick(4) == 3 else (draw.choice((1, 2, 3)),), 0, 1, grad=False)
    dim = draw.option(draw.dim(shape))
    mode = draw.option("lower", "higher", "midpoint", "nearest")
    return Arguments((draw.tensor(shape), q), keywords(dim=dim, keepdim=draw.option(True), interpolation=mode))


def _unique(consecutive: bool) -> Signature:
    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(0, 3)
        x = whole(0, 3)(draw, shape) if draw.flag() else draw.tensor(shape)
        named = keywords(return_inverse=draw.option(True), return_counts=draw.option(True))
        if len(shape) and 0 not in shape and draw.pick(4) == 3:
            return Arguments((x,), (*named, *keywords(dim=draw.dim(shape))))
        return Arguments((x,), named if consecutive else (*keywords(sorted=True if draw.flag() else None), *named))

    return signature


def _unique_rows(draw: Draw) -> Arguments:
    """Repeated rows, columns or slices, adjacent or not."""
    shape = draw.shape(1, 3, empty=False)
    flags = draw.flag(), draw.flag()
    return Arguments((whole(0, 1)(draw, shape), draw.dim(shape), *flags))


ROWS = (
    _row("sort", _sort, forms=OUT, judged=Judged(relation="sort"), counts=OWN),
    _row("argsort", _argsort, judged=Judged(relation="argsort"), grad=(), counts=OWN),
    _row("msort", _msort, judged=Judged(relation="order"), rule=EXACT, counts=OWN),
    _row("topk", _topk, dtypes=REAL, forms=OUT, judged=Judged(relation="topk"), counts=OWN),
    _row("kthvalue", _kthvalue, dtypes=REAL, forms=OUT, judged=Judged(relation="kthvalue"), counts=OWN),
    _row("median", _along, forms=OUT, dtypes=REAL, draws=Draws(unexpanded=True), judged=Judged(relation="median"), counts=OWN),
    _row(
        "nanmedian", _along, forms=OUT, dtypes=REAL, draws=Draws(unexpanded=True), judged=Judged(relation="median"), counts=OWN
    ),
    _row("median_all", _whole_or_nothing, judged=Judged(relation="order"), dtypes=REAL, rule=EXACT, call="torch.median"),
    _row("nanmedian_all", _whole_or_nothing, judged=Judged(relation="order"), dtypes=REAL, rule=EXACT, call="torch.nanmedian"),
    _row("mode", _along, judged=Judged(relation="mode"), counts=OWN),
    _row("max", _along, forms=OUT, judged=Judged(relation="max_dim"), counts=Counts(("max:reduction_with_dim",))),
    _row("min", _along, forms=OUT, judged=Judged(relation="max_dim"), counts=Counts(("min:reduction_with_dim",))),
    _row("max_all", _whole, rule=EXACT, call="torch.max", counts=Counts(("max:reduction_no_dim",))),
    _row("min_all", _whole, rule=EXACT, call="torch.min", counts=Counts(("min:reduction_no_dim",))),
    _row("argmax", _arg, dtypes=REAL, forms=OUT, grad=(), judged=Judged(relation="argmax"), counts=OWN),
    _row("argmin", _arg, dtypes=REAL, forms=OUT, grad=(), judged=Judged(relation="argmin"), counts=OWN),
    _row("aminmax", _arg, rule=EXACT, forms=OUT, counts=OWN),
    *(
        _row(n, _quantile, judged=Judged(relation="order"), rule=COMPOSITE, dtypes=SINGLE, grad=SINGLE, counts=OWN)
        for n in ("quantile", "nanquantile")
    ),
    _row("unique", _unique(False), judged=Judged(relation="unique"), grad=(), counts=OWN),
    _row("unique_consecutive", _unique(True), rule=EXACT, grad=(), counts=OWN),
    _row(
        "unique_rows",
        _unique_rows,
        rule=EXACT,
        call="parity.catalog.glue.steps.*",
        grad=(),
        counts=Counts(under="unique_consecutive"),
    ),
)
