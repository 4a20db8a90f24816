"""Histograms between edges, and counts of integers."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import COMPOSITE, CONTRACTION, EXACT, GLUE, OUT, OWN, Draws, Judged, Refuses, Row
from parity.catalog.signatures import strictly, whole
from parity.core.dtypes import FLOATS

_row = partial(Row, family="histograms", rule=COMPOSITE)


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


ROWS = (
    # oracle: bins of float32 edges: an element may lie in another bin in float64
    _row(
        "histc",
        _histc,
        rule=EXACT,
        dtypes=FLOATS,
        forms=OUT,
        refuses=Refuses(takes=("int",)),
        judged=Judged(oracle="exact"),
        counts=OWN,
    ),
    _row(
        "histogram",
        _histogram,
        rule=COMPOSITE,
        dtypes=("float32",),
        draws=Draws(choices=(0,)),
        judged=Judged(oracle="exact"),
        counts=OWN,
    ),
    _row(
        "histogram_edges",
        _histogram_edges,
        rule=COMPOSITE,
        call=GLUE,
        dtypes=("float32",),
        draws=Draws(choices=(0, 1)),
        judged=Judged(oracle="exact"),
    ),
    _row(
        "histogramdd",
        _histogram_many,
        rule=COMPOSITE,
        dtypes=("float32",),
        draws=Draws(choices=(0,)),
        judged=Judged(oracle="exact"),
        counts=OWN,
    ),
    _row("bincount", _bincount, rule=CONTRACTION, dtypes=("int64", "int32", "int16", "int8", "uint8"), counts=OWN),
)
