"""Order statistics: sort, topk, extrema with their indices, distinct values; running sums, products and extrema; histograms
and counts.

Histograms between edges, and counts of integers.
"""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    EVERY,
    EXACT,
    FLOATING,
    GLUE,
    METHOD,
    NUMERIC,
    OUT,
    OWN,
    REAL,
    ROUNDED,
    SCATTERED,
    SELECTION,
    Counts,
    Draws,
    Forms,
    Judged,
    Quirk,
    Refuses,
    Row,
    Signature,
)
from parity.catalog.signatures import along, anything, hollow, lengthy, options, strictly, whole, within
from parity.core.case import Arg, TensorSpec, Word
from parity.core.dtypes import BOOL, FLOATS

_histogram_row = partial(Row, family="histograms", rule=COMPOSITE)


def _histc(draw: Draw) -> Arguments:
    shape = draw.shape(0, 3)
    x = whole(-5, 5)(draw, shape) if draw.flag() else draw.between(shape, -4, 4)
    limits = keywords(min=-4, max=4) if draw.pick(3) < 2 else keywords(min=-3, max=3)  # values outside ±4 are drawn
    return Arguments((x,), (*keywords(bins=_bins(draw)), *limits))


def _bins(draw: Draw) -> int:
    """Few bins, or more than the memory of a thread group holds."""
    return draw.choice((1024, 8192, 8193, 10000)) if draw.rare(12) else draw.choice((4, 1, 5, 16, 100))


def _histogram(draw: Draw) -> Arguments:
    """Bins by number with a range, or by their edges; weights and densities. Some values are on edges."""
    shape = draw.shape(0, 3)
    x = (whole(-5, 5) if draw.flag() else strictly(-5, 5))(draw, shape)
    weight = draw.maybe(draw.inside(shape, 0.25, 2))
    named = keywords(weight=weight, density=draw.option(True))
    return Arguments((x, _bins(draw)), (*keywords(range=draw.choice(((-4.0, 4.0), (-3.0, 3.0)))), *named))


def _histogram_edges(draw: Draw) -> Arguments:
    shape = draw.shape(0, 3)
    named = keywords(weight=draw.maybe(draw.inside(shape, 0.25, 2)), density=draw.option(True))
    values = whole(-5, 5) if draw.flag() else strictly(-5, 5)
    return Arguments((values(draw, shape), values(draw, (draw.choice((2, 3, 5, 17)),))), named)


def _histogram_many(draw: Draw) -> Arguments:
    """Points of one to three coordinates."""
    k = draw.choice((1, 2, 3))
    x = (whole(-5, 5) if draw.flag() else strictly(-5, 5))(draw, (draw.size(), k))
    weight = draw.maybe(draw.inside(x.shape[:1], 0.25, 2))
    named = keywords(range=draw.choice(((-4.0, 4.0), (-3.0, 2.0))) * k, weight=weight)
    return Arguments((x, tuple(draw.choice((3, 1, 4, 8)) for _ in range(k))), (*named, *keywords(density=draw.option(True))))


def _bincount(draw: Draw) -> Arguments:
    n = draw.size()
    x = draw.inside((n,), 0, draw.choice((9, 1, 100)))
    return Arguments((x,), keywords(weights=draw.maybe(draw.tensor((n,), dtype="float32")), minlength=draw.option(4, 16, 4097)))


# For second derivatives torch runs Python code for every element of the dimension.
PRODUCTS = 129
_scan_row = partial(Row, family="scans", rule=CONTRACTION, grad=FLOATING, forms=OUT)


def _wider(draw: Draw) -> Arg:
    """A dtype at least as wide as the operand's; for integers also their own, in which sums wrap."""
    if draw.kind == "complex":
        return Word("complex64")
    own = (draw.dtype,) if draw.kind == "int" else ()
    return Word("float32") if draw.kind == "float" else Word(draw.choice(("int64", "float32", "int32", *own)))


def _areas(draw: Draw) -> Arguments:
    """Over unit steps, steps of one size, or abscissae (for one dimension, or of the whole shape)."""
    shape = draw.shape(1, 4)
    d = draw.dim(shape)
    kind = draw.pick(4)
    x: tuple[Arg, ...] = () if kind < 2 else (draw.tensor((shape[d],) if kind == 2 else shape),)
    return Arguments((draw.tensor(shape), *x), keywords(dim=d, dx=2 if kind == 1 else None))


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
    # oracle: bins of float32 edges: an element may lie in another bin in float64
    _histogram_row(
        "histc",
        _histc,
        rule=EXACT,
        dtypes=FLOATS,
        forms=OUT,
        refuses=Refuses(takes=("int",)),
        judged=Judged(oracle="exact"),
        counts=OWN,
    ),
    _histogram_row(
        "histogram",
        _histogram,
        rule=COMPOSITE,
        dtypes=("float32",),
        draws=Draws(choices=(0,)),
        judged=Judged(oracle="exact"),
        counts=OWN,
    ),
    _histogram_row(
        "histogram_edges",
        _histogram_edges,
        rule=COMPOSITE,
        call=GLUE,
        dtypes=("float32",),
        draws=Draws(choices=(0, 1)),
        judged=Judged(oracle="exact"),
    ),
    _histogram_row(
        "histogramdd",
        _histogram_many,
        rule=COMPOSITE,
        dtypes=("float32",),
        draws=Draws(choices=(0,)),
        judged=Judged(oracle="exact"),
        counts=OWN,
    ),
    _histogram_row("bincount", _bincount, rule=CONTRACTION, dtypes=("int64", "int32", "int16", "int8", "uint8"), counts=OWN),
    # accumulates: CUDA stores the running value in the dtype
    _scan_row(
        "cumsum",
        along(),
        forms=Forms(inplace=METHOD, out=True),
        dtypes=EVERY,
        judged=Judged(accumulates=("forward", "backward")),
        counts=OWN,
        quirks=(Quirk.RUNNING,),
    ),
    _scan_row(
        "cumsum_wider",
        along(options=options(dtype=_wider)),
        forms=Forms(out=True, promotes=True),
        call="torch.cumsum",
        dtypes=EVERY,
        judged=Judged(accumulates=SCATTERED),
        quirks=(Quirk.RUNNING,),
    ),
    # accumulates: CUDA stores the running value in the dtype
    _scan_row(
        "cumprod",
        along(within(-2, 2), most=PRODUCTS),
        forms=Forms(inplace=METHOD, out=True),
        rule=COMPOSITE,
        dtypes=EVERY,
        judged=Judged(accumulates=("forward", "backward")),
        counts=OWN,
    ),
    _scan_row(
        "cumprod_wider",
        along(within(-2, 2), options=options(dtype=_wider), most=PRODUCTS),
        rule=COMPOSITE,
        forms=Forms(out=True, promotes=True),
        call="torch.cumprod",
        dtypes=EVERY,
    ),
    # accumulates: the running value is stored in the dtype
    _scan_row(
        "logcumsumexp",
        along(within(-20, 20)),
        judged=Judged(accumulates=("forward", "backward")),
        rule=COMPOSITE,
        dtypes=FLOATING,
        counts=OWN,
    ),
    # rule: differences of the abscissae may cancel
    # rounds_between: sums and products, then a cumsum, each in the half type
    _scan_row(
        "cumulative_trapezoid",
        _areas,
        rule=COMPOSITE,
        forms=Forms(),
        dtypes=NUMERIC,
        judged=ROUNDED,
        counts=OWN,
        quirks=(Quirk.RUNNING,),
    ),
    *(
        _scan_row(
            name,
            along(operand),
            rule=SELECTION,
            dtypes=(*REAL, *BOOL),
            grad=FLOATS,
            judged=Judged(relation="cummax", accumulates=SCATTERED),
            counts=OWN,
        )
        for name, operand in (("cummax", anything), ("cummin", anything))
    ),
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
