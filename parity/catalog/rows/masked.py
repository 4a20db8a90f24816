"""torch.masked: reductions, scans and normalisations of the elements that a mask keeps."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    EXACT,
    FLOATING,
    NUMERIC,
    OWN,
    REAL,
    ROUNDED,
    Counts,
    Judged,
    Row,
    Signature,
)
from parity.catalog.signatures import Operand, anything, within
from parity.core.case import Arg, TensorSpec
from parity.core.dtypes import FLOATS

_row = partial(Row, family="masked", rule=COMPOSITE, call="torch.*", dtypes=FLOATING, grad=FLOATING, judged=ROUNDED, counts=OWN)
GLUE = "parity.catalog.glue.layers.masked_extreme"


def _mask(draw: Draw, shape: Shape) -> TensorSpec:
    """A mask of the shape, or one that broadcasts to it."""
    return draw.mask(draw.broadcastable(shape))


def _reduced(operand: Operand = anything, *before: Arg, empty: bool = True) -> Signature:
    """`f(x, *before, dim=..., keepdim=..., mask=...)`, over one dimension, several or all. before: an argument for each draw.
    empty: whether dimensions may be empty."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(0, 4, empty=empty)
        x, kind = operand(draw, shape), draw.pick(4)
        dim: Arg = None if kind == 3 else draw.dims(shape) if kind == 2 else draw.dim(shape)
        first = (draw.choice(before),) if before else ()
        return Arguments((x, *first), keywords(dim=dim, keepdim=draw.option(True), mask=draw.maybe(_mask(draw, shape))))

    return signature


def _along(operand: Operand = anything, *before: Arg, most: int | None = None) -> Signature:
    """`f(x, *before, dim, mask=...)`. most: limit for sizes."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(0, 4)
        shape = shape if most is None else tuple(min(n, most) for n in shape)
        first = (draw.choice(before),) if before else ()
        return Arguments((operand(draw, shape), *first, draw.dim(shape)), keywords(mask=_mask(draw, shape)))

    return signature


def _spread(draw: Draw) -> Arguments:
    shape = draw.shape(1, 3, empty=False)
    d = draw.dim(shape)
    wide = tuple(n + 2 if k == d % len(shape) else n for k, n in enumerate(shape))
    return Arguments((draw.between(wide, -4, 4), d), keywords(correction=draw.option(0, 1), mask=draw.maybe(_mask(draw, wide))))


def _pair(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    x, other = (draw.between(shape, -20, 20) for _ in range(2))
    return Arguments((x, other), keywords(input_mask=draw.maybe(_mask(draw, shape)), other_mask=_mask(draw, shape)))


def _extreme(name: str) -> Signature:
    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(0, 4, empty=False)
        return Arguments((name, draw.tensor(shape), draw.dim(shape), draw.mask(shape)))

    return signature


PRODUCTS = Judged(rounds_between=True, accumulates=("backward",))  # as prod
RUNNING = Judged(rounds_between=True, accumulates=("forward", "backward"))  # CUDA stores the running value in the dtype
ROWS = (
    _row("masked.sum", _reduced(), rule=CONTRACTION, dtypes=NUMERIC),
    _row("masked.mean", _reduced(), rule=CONTRACTION),
    _row("masked.prod", _reduced(within(-2, 2)), judged=PRODUCTS),
    *(
        _row(f"masked.{n}", _reduced(empty=False), rule=EXACT, dtypes=REAL, grad=FLOATS, judged=Judged())
        for n in ("amax", "amin")
    ),
    *(
        _row(f"masked.{name}", _extreme(name), rule=EXACT, dtypes=FLOATS, grad=(), judged=Judged(), call=GLUE, counts=Counts())
        for name in ("argmax", "argmin")
    ),
    _row("masked.norm", _reduced(anything, 2.0, 1.0, 0.0, 3.0, float("inf"), empty=False)),
    _row("masked.logsumexp", _reduced(within(-30, 30))),
    *(_row(f"masked.{n}", _spread) for n in ("var", "std")),
    *(_row(f"masked.{n}", _along(within(-30, 30)), dtypes=FLOATS, grad=FLOATS) for n in ("softmax", "log_softmax", "softmin")),
    _row("masked.normalize", _along(anything, 2.0, 1.0, 3.0)),
    _row("masked.cumsum", _along(), rule=CONTRACTION, dtypes=NUMERIC, judged=RUNNING),
    _row("masked.cumprod", _along(within(-2, 2), most=129), judged=RUNNING),  # slow on long dimensions, as cumprod
    _row("masked.logaddexp", _pair, dtypes=FLOATS, grad=FLOATS),
)
