"""Elementwise functions of three operands: addcmul, lerp, clamp, where."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import ELEMENTWISE, EVERY, EXACT, FLOATING, METHOD, NUMERIC, OWN, POINTWISE, REAL, Forms, Quirk, Row
from parity.catalog.signatures import divisor, scalar
from parity.core.case import Arg
from parity.core.dtypes import FLOATS

_row = partial(Row, family="ternary", rule=ELEMENTWISE, forms=Forms(strides=True))


def _value(draw: Draw) -> Arg:
    return draw.number(2) if draw.flag() else None


def _shapes(draw: Draw, count: int) -> tuple[Shape, ...]:
    """Shapes that broadcast to that of the first; in one case of eight to that of any."""
    shape = draw.shape(0, 5)
    if draw.rare(8):
        largest = draw.pick(count)
        return tuple(shape if k == largest else draw.broadcastable(shape) for k in range(count))
    return (shape, *(draw.broadcastable(shape) for _ in range(count - 1)))


def _addcmul(draw: Draw) -> Arguments:
    return Arguments(tuple(draw.tensor(s) for s in _shapes(draw, 3)), keywords(value=_value(draw)))


def _addcdiv(draw: Draw) -> Arguments:
    first, second, third = _shapes(draw, 3)
    return Arguments((draw.tensor(first), draw.tensor(second), divisor(draw, third)), keywords(value=_value(draw)))


def _lerp(draw: Draw) -> Arguments:
    first, second, third = _shapes(draw, 3)
    ends = draw.tensor(first), draw.tensor(second)
    if draw.flag():
        return Arguments((*ends, draw.between(third, -1, 2)))
    if draw.pick(4) == 3 and draw.kind == "float":  # a 0-d weight acts as a number, whatever its dtype
        return Arguments((*ends, draw.between((), -1, 2, dtype=draw.choice(("float32", draw.dtype)))))
    weights = 0.5, 0.0, 1.0, 0.25, 0.75, -1.0, 2.0
    return Arguments((*ends, draw.choice((*weights, 0.5j, 1 - 2j) if draw.kind == "complex" else weights)))


def _clamp(draw: Draw) -> Arguments:
    """Both bounds, one of them, or crossed ones; Python scalars or tensors."""
    first, second, third = _shapes(draw, 3)
    x = draw.tensor(first)
    sides = draw.choice(("both", "min", "max"))
    if draw.flag():
        low = draw.tensor(second) if sides != "max" else None
        high = draw.tensor(third) if sides != "min" else None
        return Arguments((x,), keywords(min=low, max=high))
    low_value = draw.choice((0, 1) if draw.dtype == "uint8" else (0, -1, 1, -0.5)) if sides != "max" else None
    high_value = draw.choice((1, 2, 0, 1.5)) if sides != "min" else None
    return Arguments((x,), keywords(min=low_value, max=high_value))


def _bound(draw: Draw) -> Arguments:
    first, second = _shapes(draw, 2)
    return Arguments((draw.tensor(first), draw.tensor(second) if draw.flag() else scalar(draw)))


def _float_bound(draw: Draw) -> Arguments:
    """An integer tensor with a fractional bound, which torch promotes."""
    return Arguments((draw.tensor(draw.shape(0, 4)),), keywords(**{draw.choice(("min", "max")): draw.choice((0.5, 1.0, 2.5))}))


def _where(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    mask = draw.mask(draw.broadcastable(shape))
    if draw.pick(3) == 2:
        return Arguments((mask, draw.tensor(draw.broadcastable(shape)), draw.tensor(shape)))
    return Arguments((mask, draw.tensor(shape), draw.tensor(draw.broadcastable(shape))))


def _where_scalar(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    mask = draw.mask(draw.broadcastable(shape))
    if draw.kind == "bool" and draw.pick(4) == 3:
        return Arguments((mask, draw.choice((1, 0.5, True)), draw.choice((2, -0.5, 0))))
    sides: tuple[Arg, ...] = (draw.tensor(shape), scalar(draw))
    return Arguments((mask, *(sides[::-1] if draw.flag() else sides)))


ROWS = (
    _row("addcmul", _addcmul, dtypes=NUMERIC, grad=FLOATING, forms=POINTWISE, counts=OWN),
    _row("addcdiv", _addcdiv, dtypes=FLOATING, grad=FLOATING, forms=POINTWISE, counts=OWN),
    _row("lerp", _lerp, dtypes=FLOATING, grad=FLOATING, forms=Forms(inplace=METHOD, out=True, strides=True), counts=OWN),
    _row("clamp", _clamp, rule=EXACT, dtypes=REAL, grad=FLOATS, forms=POINTWISE, counts=OWN),
    _row("clamp_min", _bound, rule=EXACT, dtypes=REAL, grad=FLOATS, forms=POINTWISE, counts=OWN),
    _row("clamp_max", _bound, rule=EXACT, dtypes=REAL, grad=FLOATS, forms=POINTWISE, counts=OWN),
    _row(
        "clamp_fractional",
        _float_bound,
        rule=EXACT,
        call="torch.clamp",
        dtypes=("int64", "int32", "int16", "int8", "uint8"),
        forms=Forms(strides=True, promotes=True),
    ),
    _row(
        "where",
        _where,
        rule=EXACT,
        dtypes=EVERY,
        grad=FLOATING,
        forms=Forms(out=True, strides=True, promotes=True),
        counts=OWN,
        quirks=(Quirk.MASK,),
    ),
    _row(
        "where_scalar",
        _where_scalar,
        rule=EXACT,
        call="torch.where",
        dtypes=EVERY,
        grad=FLOATING,
        forms=Forms(strides=True, promotes=True),
        quirks=(Quirk.MASK,),
    ),
)
