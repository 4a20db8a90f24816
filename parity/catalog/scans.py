"""Running sums, products and extrema along a dimension."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import EVERY, FLOATING, NUMERIC, REAL, Row
from parity.catalog.signatures import along, anything, options, within
from parity.dtypes import BOOL, FLOATS
from parity.vocabulary import Arg, OpClass, Word

# Where a gradient of the gradient is asked for, torch takes a step in Python's pace for every element of the dimension.
PRODUCTS = 129
_row = partial(Row, family="scans", rule=OpClass.CONTRACTION, grad=FLOATING, out=True)


def _wider(draw: Draw) -> Arg:
    """A dtype at least as wide as the operand's."""
    if draw.kind == "complex":
        return Word("complex64")
    return Word("float32") if draw.kind == "float" else Word(draw.choice(("int64", "float32", "int32")))


def _areas(draw: Draw) -> Call:
    """Over unit steps, steps of one size, or abscissae (for one dimension, or of the whole shape)."""
    shape = draw.shape(1, 4)
    d = draw.dim(shape)
    kind = draw.pick(4)
    x: tuple[Arg, ...] = () if kind < 2 else (draw.tensor((shape[d],) if kind == 2 else shape),)
    return Call((draw.tensor(shape), *x), keywords(dim=d, dx=2 if kind == 1 else None))


ROWS = (
    _row(
        name="cumsum",
        accumulates=("forward", "backward"),  # CUDA keeps the running value in the dtype
        call="torch.cumsum",
        signature=along(),
        dtypes=EVERY,
        inplace="torch.Tensor.cumsum_",
        opinfo=("cumsum",),
    ),
    _row(
        name="cumsum_wider",
        promotes=True,
        call="torch.cumsum",
        signature=along(options=options(dtype=_wider)),
        dtypes=EVERY,
    ),
    _row(
        name="cumprod",
        accumulates=("forward", "backward"),  # CUDA keeps the running value in the dtype
        rule=OpClass.COMPOSITE,
        call="torch.cumprod",
        signature=along(within(-2, 2), most=PRODUCTS),
        dtypes=EVERY,
        inplace="torch.Tensor.cumprod_",
        opinfo=("cumprod",),
    ),
    _row(
        name="cumprod_wider",
        rule=OpClass.COMPOSITE,
        promotes=True,
        call="torch.cumprod",
        signature=along(within(-2, 2), options=options(dtype=_wider), most=PRODUCTS),
        dtypes=EVERY,
    ),
    _row(
        name="logcumsumexp",
        accumulates=("forward", "backward"),  # the running value is stored in the dtype
        rule=OpClass.COMPOSITE,
        call="torch.logcumsumexp",
        signature=along(within(-20, 20)),
        dtypes=FLOATING,
        opinfo=("logcumsumexp",),
    ),
    _row(
        name="cumulative_trapezoid",
        rule=OpClass.COMPOSITE,  # differences of the abscissae may cancel
        rounds_between=True,  # sums and products, then a cumsum of half values
        call="torch.cumulative_trapezoid",
        signature=_areas,
        dtypes=NUMERIC,
        out=False,
        opinfo=("cumulative_trapezoid",),
    ),
    *(
        _row(
            name=name,
            rule=OpClass.SELECTION,
            call=f"torch.{name}",
            signature=along(operand),
            dtypes=(*REAL, *BOOL),
            grad=FLOATS,
            relation="cummax",
            opinfo=(name,),
        )
        for name, operand in (("cummax", anything), ("cummin", anything))
    ),
)
