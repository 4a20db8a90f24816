"""Running sums, products and extrema along a dimension."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    EVERY,
    FLOATING,
    METHOD,
    NUMERIC,
    OUT,
    OWN,
    REAL,
    ROUNDED,
    SCATTERED,
    SELECTION,
    Forms,
    Judged,
    Quirk,
    Row,
)
from parity.catalog.signatures import along, anything, options, within
from parity.core.case import Arg, Word
from parity.core.dtypes import BOOL, FLOATS

# For second derivatives torch runs Python code for every element of the dimension.
PRODUCTS = 129
_row = partial(Row, family="scans", rule=CONTRACTION, grad=FLOATING, forms=OUT)


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


ROWS = (
    # accumulates: CUDA stores the running value in the dtype
    _row(
        "cumsum",
        along(),
        forms=Forms(inplace=METHOD, out=True),
        dtypes=EVERY,
        judged=Judged(accumulates=("forward", "backward")),
        counts=OWN,
        quirks=(Quirk.RUNNING,),
    ),
    _row(
        "cumsum_wider",
        along(options=options(dtype=_wider)),
        forms=Forms(out=True, promotes=True),
        call="torch.cumsum",
        dtypes=EVERY,
        judged=Judged(accumulates=SCATTERED),
        quirks=(Quirk.RUNNING,),
    ),
    # accumulates: CUDA stores the running value in the dtype
    _row(
        "cumprod",
        along(within(-2, 2), most=PRODUCTS),
        forms=Forms(inplace=METHOD, out=True),
        rule=COMPOSITE,
        dtypes=EVERY,
        judged=Judged(accumulates=("forward", "backward")),
        counts=OWN,
    ),
    _row(
        "cumprod_wider",
        along(within(-2, 2), options=options(dtype=_wider), most=PRODUCTS),
        rule=COMPOSITE,
        forms=Forms(out=True, promotes=True),
        call="torch.cumprod",
        dtypes=EVERY,
    ),
    # accumulates: the running value is stored in the dtype
    _row(
        "logcumsumexp",
        along(within(-20, 20)),
        judged=Judged(accumulates=("forward", "backward")),
        rule=COMPOSITE,
        dtypes=FLOATING,
        counts=OWN,
    ),
    # rule: differences of the abscissae may cancel
    # rounds_between: sums and products, then a cumsum, each in the half type
    _row(
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
        _row(
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
)
