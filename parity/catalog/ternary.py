"""Elementwise functions of three operands: addcmul, lerp, clamp, where."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import EVERY, FLOATING, NUMERIC, REAL, Row
from parity.catalog.signatures import divisor, scalar
from parity.dtypes import FLOATS
from parity.vocabulary import Arg, OpClass

_row = partial(Row, family="ternary", rule=OpClass.ELEMENTWISE, strides=True)


def _value(draw: Draw) -> Arg:
    return draw.number(2) if draw.flag() else None


def _shapes(draw: Draw, count: int) -> tuple[Shape, ...]:
    """Shapes that broadcast to one, mostly that of the first; in one case of eight any of them is the largest."""
    shape = draw.shape(0, 5)
    if draw.rare(8):
        largest = draw.pick(count)
        return tuple(shape if k == largest else draw.broadcastable(shape) for k in range(count))
    return (shape, *(draw.broadcastable(shape) for _ in range(count - 1)))


def _addcmul(draw: Draw) -> Call:
    return Call(tuple(draw.tensor(s) for s in _shapes(draw, 3)), keywords(value=_value(draw)))


def _addcdiv(draw: Draw) -> Call:
    first, second, third = _shapes(draw, 3)
    return Call((draw.tensor(first), draw.tensor(second), divisor(draw, third)), keywords(value=_value(draw)))


def _lerp(draw: Draw) -> Call:
    first, second, third = _shapes(draw, 3)
    ends = draw.tensor(first), draw.tensor(second)
    if draw.flag():
        return Call((*ends, draw.between(third, -1, 2)))
    if draw.pick(4) == 3 and draw.kind == "float":  # a 0-d weight takes part as a number, whatever its dtype
        return Call((*ends, draw.between((), -1, 2, dtype=draw.choice(("float32", draw.dtype)))))
    weights = 0.5, 0.0, 1.0, 0.25, 0.75, -1.0, 2.0
    return Call((*ends, draw.choice((*weights, 0.5j, 1 - 2j) if draw.kind == "complex" else weights)))


def _clamp(draw: Draw) -> Call:
    """Both bounds, one of them, or crossed ones; Python scalars or tensors."""
    first, second, third = _shapes(draw, 3)
    x = draw.tensor(first)
    sides = draw.choice(("both", "min", "max"))
    if draw.flag():
        low = draw.tensor(second) if sides != "max" else None
        high = draw.tensor(third) if sides != "min" else None
        return Call((x,), keywords(min=low, max=high))
    low_value = draw.choice((0, 1) if draw.dtype == "uint8" else (0, -1, 1, -0.5)) if sides != "max" else None
    high_value = draw.choice((1, 2, 0, 1.5)) if sides != "min" else None
    return Call((x,), keywords(min=low_value, max=high_value))


def _bound(draw: Draw) -> Call:
    first, second = _shapes(draw, 2)
    return Call((draw.tensor(first), draw.tensor(second) if draw.flag() else scalar(draw)))


def _float_bound(draw: Draw) -> Call:
    """An integer tensor with a fractional bound, which torch promotes."""
    return Call((draw.tensor(draw.shape(0, 4)),), keywords(**{draw.choice(("min", "max")): draw.choice((0.5, 1.0, 2.5))}))


def _where(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    mask = draw.mask(draw.broadcastable(shape))
    if draw.pick(3) == 2:
        return Call((mask, draw.tensor(draw.broadcastable(shape)), draw.tensor(shape)))
    return Call((mask, draw.tensor(shape), draw.tensor(draw.broadcastable(shape))))


def _where_scalar(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    mask = draw.mask(draw.broadcastable(shape))
    if draw.kind == "bool" and draw.pick(4) == 3:
        return Call((mask, draw.choice((1, 0.5, True)), draw.choice((2, -0.5, 0))))
    sides: tuple[Arg, ...] = (draw.tensor(shape), scalar(draw))
    return Call((mask, *(sides[::-1] if draw.flag() else sides)))


ROWS = (
    _row(
        name="addcmul",
        call="torch.addcmul",
        signature=_addcmul,
        dtypes=NUMERIC,
        grad=FLOATING,
        inplace="torch.Tensor.addcmul_",
        out=True,
        promotes=True,
        opinfo=("addcmul",),
    ),
    _row(
        name="addcdiv",
        call="torch.addcdiv",
        signature=_addcdiv,
        dtypes=FLOATING,
        grad=FLOATING,
        inplace="torch.Tensor.addcdiv_",
        out=True,
        promotes=True,
        opinfo=("addcdiv",),
    ),
    _row(
        name="lerp",
        call="torch.lerp",
        signature=_lerp,
        dtypes=FLOATING,
        grad=FLOATING,
        inplace="torch.Tensor.lerp_",
        out=True,
        opinfo=("lerp",),
    ),
    _row(
        name="clamp",
        rule=OpClass.EXACT,
        call="torch.clamp",
        signature=_clamp,
        dtypes=REAL,
        grad=FLOATS,
        inplace="torch.Tensor.clamp_",
        out=True,
        promotes=True,
        opinfo=("clamp",),
    ),
    _row(
        name="clamp_min",
        rule=OpClass.EXACT,
        call="torch.clamp_min",
        signature=_bound,
        dtypes=REAL,
        grad=FLOATS,
        inplace="torch.Tensor.clamp_min_",
        out=True,
        promotes=True,
        opinfo=("clamp_min",),
    ),
    _row(
        name="clamp_max",
        rule=OpClass.EXACT,
        call="torch.clamp_max",
        signature=_bound,
        dtypes=REAL,
        grad=FLOATS,
        inplace="torch.Tensor.clamp_max_",
        out=True,
        promotes=True,
        opinfo=("clamp_max",),
    ),
    _row(
        name="clamp_fractional",
        rule=OpClass.EXACT,
        call="torch.clamp",
        signature=_float_bound,
        dtypes=("int64", "int32", "int16", "int8", "uint8"),
        promotes=True,
    ),
    _row(
        name="where",
        rule=OpClass.EXACT,
        call="torch.where",
        signature=_where,
        dtypes=EVERY,
        grad=FLOATING,
        out=True,
        promotes=True,
        opinfo=("where",),
    ),
    _row(
        name="where_scalar",
        rule=OpClass.EXACT,
        call="torch.where",
        signature=_where_scalar,
        dtypes=EVERY,
        grad=FLOATING,
        promotes=True,
    ),
)
