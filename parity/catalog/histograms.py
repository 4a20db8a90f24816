"""Counts: histograms between edges, and of whole numbers."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import Row
from parity.catalog.signatures import strictly, whole
from parity.dtypes import FLOATS
from parity.vocabulary import OpClass

_row = partial(Row, family="histograms", rule=OpClass.COMPOSITE)


def _histc(draw: Draw) -> Call:
    shape = draw.shape(0, 3)
    x = whole(-5, 5)(draw, shape) if draw.flag() else draw.between(shape, -4, 4)
    limits = keywords(min=-4, max=4) if draw.pick(3) < 2 else keywords(min=-3, max=3)  # what lies beside ±4 is drawn
    return Call((x,), (*keywords(bins=_bins(draw)), *limits))


def _bins(draw: Draw) -> int:
    """Few bins, or more than a group of threads keeps in its memory."""
    return draw.choice((1024, 8192, 8193, 10000)) if draw.rare(12) else draw.choice((4, 1, 5, 16, 100))


def _histogram(draw: Draw) -> Call:
    """Bins by number with a range, or by their edges; weights and densities. Values lie on edges now and then."""
    shape = draw.shape(0, 3)
    x = (whole(-5, 5) if draw.flag() else strictly(-5, 5))(draw, shape)
    weight = draw.maybe(draw.inside(shape, 0.25, 2))
    named = keywords(weight=weight, density=draw.option(True))
    return Call((x, _bins(draw)), (*keywords(range=draw.choice(((-4.0, 4.0), (-3.0, 3.0)))), *named))


def _histogram_edges(draw: Draw) -> Call:
    shape = draw.shape(0, 3)
    named = keywords(weight=draw.maybe(draw.inside(shape, 0.25, 2)), density=draw.option(True))
    values = whole(-5, 5) if draw.flag() else strictly(-5, 5)
    return Call((values(draw, shape), values(draw, (draw.choice((2, 3, 5, 17)),))), named)


def _histogram_many(draw: Draw) -> Call:
    """Points of one to three coordinates."""
    k = draw.choice((1, 2, 3))
    x = (whole(-5, 5) if draw.flag() else strictly(-5, 5))(draw, (draw.size(), k))
    weight = draw.maybe(draw.inside(x.shape[:1], 0.25, 2))
    named = keywords(range=draw.choice(((-4.0, 4.0), (-3.0, 2.0))) * k, weight=weight)
    return Call((x, tuple(draw.choice((3, 1, 4, 8)) for _ in range(k))), (*named, *keywords(density=draw.option(True))))


def _bincount(draw: Draw) -> Call:
    n = draw.size()
    x = draw.inside((n,), 0, draw.choice((9, 1, 100)))
    return Call((x,), keywords(weights=draw.maybe(draw.tensor((n,), dtype="float32")), minlength=draw.option(4, 16, 4097)))


ROWS = (
    _row(
        name="histc",
        rule=OpClass.EXACT,
        call="torch.histc",
        signature=_histc,
        dtypes=FLOATS,
        out=True,
        opinfo=("histc",),
        oracle="exact",  # bins of float32 edges: an element may lie in another bin in float64
    ),
    _row(
        name="histogram",
        rule=OpClass.COMPOSITE,
        call="torch.histogram",
        signature=_histogram,
        dtypes=("float32",),
        oracle="exact",
        choices=(0,),
        opinfo=("histogram",),
    ),
    _row(
        name="histogram_edges",
        rule=OpClass.COMPOSITE,
        call="parity.catalog.calls.histogram_edges",
        signature=_histogram_edges,
        dtypes=("float32",),
        oracle="exact",
        choices=(0, 1),
    ),
    _row(
        name="histogramdd",
        rule=OpClass.COMPOSITE,
        call="torch.histogramdd",
        signature=_histogram_many,
        dtypes=("float32",),
        oracle="exact",
        choices=(0,),
        opinfo=("histogramdd",),
    ),
    _row(
        name="bincount",
        rule=OpClass.CONTRACTION,
        call="torch.bincount",
        signature=_bincount,
        dtypes=("int64", "int32", "int16", "int8", "uint8"),
        opinfo=("bincount",),
    ),
)
