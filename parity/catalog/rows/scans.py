"""Running sums, products and extrema along a dimension."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import COMPOSITE, CONTRACTION, EVERY, FLOATING, METHOD, NUMERIC, OWN, REAL, SCATTERED, SELECTION, Row
from parity.catalog.signatures import along, anything, options, within
from parity.core.case import Arg, Word
from parity.core.dtypes import BOOL, FLOATS

# For second derivatives torch runs Python code for every element of the dimension.
PRODUCTS = 129
_row = partial(Row, family="scans", rule=CONTRACTION, grad=FLOATING, out=True)


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
    _row("cumsum", along(), accumulates=("forward", "backward"), dtypes=EVERY, inplace=METHOD, opinfo=OWN, running=True),
    _row(
        "cumsum_wider",
        along(options=options(dtype=_wider)),
        promotes=True,
        call="torch.cumsum",
        dtypes=EVERY,
        accumulates=SCATTERED,
        running=True,
    ),
    # accumulates: CUDA stores the running value in the dtype
    _row(
        "cumprod",
        along(within(-2, 2), most=PRODUCTS),
        accumulates=("forward", "backward"),
        rule=COMPOSITE,
        dtypes=EVERY,
        inplace=METHOD,
        opinfo=OWN,
    ),
    _row(
        "cumprod_wider",
        along(within(-2, 2), options=options(dtype=_wider), most=PRODUCTS),
        rule=COMPOSITE,
        promotes=True,
        call="torch.cumprod",
        dtypes=EVERY,
    ),
    # accumulates: the running value is stored in the dtype
    _row(
        "logcumsumexp", along(within(-20, 20)), accumulates=("forward", "backward"), rule=COMPOSITE, dtypes=FLOATING, opinfo=OWN
    ),
    # rule: differences of the abscissae may cancel
    # rounds_between: sums and products, then a cumsum, each in the half type
    _row(
        "cumulative_trapezoid", _areas, rule=COMPOSITE, rounds_between=True, dtypes=NUMERIC, out=False, opinfo=OWN, running=True
    ),
    *(
        _row(
            name,
            along(operand),
            rule=SELECTION,
            dtypes=(*REAL, *BOOL),
            grad=FLOATS,
            relation="cummax",
            accumulates=SCATTERED,
            opinfo=OWN,
        )
        for name, operand in (("cummax", anything), ("cummin", anything))
    ),
)
