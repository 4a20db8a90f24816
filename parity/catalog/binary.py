"""Elementwise functions of two operands, with broadcasting, Python scalars and type promotion."""

from __future__ import annotations

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import EVERY, FLOATING, NUMERIC, REAL, Row, Signature
from parity.catalog.signatures import (
    Operand,
    Options,
    any_scalar,
    anything,
    count,
    divisor,
    options,
    pair,
    promoted,
    scalar,
    strictly,
    whole,
    within,
)
from parity.dtypes import BOOL, FACTS, FLOATS, INTS
from parity.vocabulary import Arg, OpClass, TensorSpec

FAMILY = "binary"
ELEMENTWISE, EXACT = OpClass.ELEMENTWISE, OpClass.EXACT


def _binary(
    name: str,
    rule: OpClass,
    dtypes: tuple[str, ...] = EVERY,
    grad: tuple[str, ...] = FLOATING,
    *,
    signature: Signature | None = None,
    inplace: bool = True,
    out: bool = True,
    promotes: bool = True,
    opinfo: tuple[str, ...] | None = None,
    oracle: str = "wide",
    call: str = "",
    written: str = "",
) -> Row:
    return Row(
        name=name,
        family=FAMILY,
        rule=rule,
        call=call or f"torch.{name}",
        signature=signature or pair(),
        dtypes=dtypes,
        grad=grad,
        inplace=written or (f"torch.Tensor.{name}_" if inplace else ""),
        out=out,
        strides=True,
        promotes=promotes,
        oracle=oracle,
        opinfo=(name,) if opinfo is None else opinfo,
    )


def _compare(name: str, dtypes: tuple[str, ...] = EVERY) -> Row:
    return _binary(name, EXACT, dtypes, (), signature=_comparison)


def _comparison(draw: Draw) -> Call:
    """Compared operands come from a few values, so that equality happens."""
    few = draw.flag()
    return pair(whole(0, 2) if few else anything, whole(0, 2) if few else anything, number=promoted)(draw)


def _any_number(draw: Draw, second: Operand) -> Arg:
    """A Python number of any kind, complex ones too."""
    return any_scalar(draw) if second is anything else promoted(draw, second)


def _equal(draw: Draw) -> Call:
    """Two tensors that are alike now and then."""
    shape = draw.shape(0, 4)
    high = draw.choice((1, 2))
    return Call((draw.inside(shape, 1, high), draw.inside(shape, 1, high)))


def _alpha(draw: Draw) -> Arg:
    """A factor of the item's kind."""
    return draw.number(2) if draw.flag() and draw.kind != "bool" else None


def _shift(draw: Draw, shape: tuple[int, ...]) -> TensorSpec:
    return draw.inside(shape, 0, FACTS[draw.dtype].bits - 2)


def _shift_by(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    first = draw.tensor(shape)
    if draw.pick(3) == 1:
        return Call((first, draw.choice((1, 0, 2, 5))))
    return Call((first, _shift(draw, draw.broadcastable(shape))))


def _power(draw: Draw) -> Call:
    """To a Python scalar (small whole ones have kernels of their own) or to a tensor."""
    shape = draw.shape(0, 4)
    whole = not draw.is_inexact
    base = draw.between(shape, 0, 4) if draw.is_inexact else draw.inside(shape, 0, 10) if draw.flag() else draw.tensor(shape)
    if draw.flag():
        return Call((base, draw.choice((2, 1, 3, 0, 4) if whole else (2, 1, 3, 0, -1, 0.5, -2, -0.5, 1.5))))
    free = draw.tensor(shape) if draw.flag() else base
    return Call((free, count(draw, draw.broadcastable(shape))))


def _scalar_power(draw: Draw) -> Call:
    return Call((draw.choice((2, 1, 3, 0)), count(draw, draw.shape(0, 4))))


def _float_power(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    base = draw.between(shape, 0, 4)
    if draw.flag():
        return Call((base, draw.choice((2, 1, 3, 0, -1, 0.5))))
    return Call((base, draw.between(draw.broadcastable(shape), -3, 3)))


def _ldexp(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    return Call((draw.tensor(shape), draw.inside(draw.broadcastable(shape), -6, 6, dtype="int32", grad=False)))


def _polar(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    return Call((draw.between(shape, 0, 8), draw.between(draw.broadcastable(shape), -4, 4)))


def _close(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    operands = (draw.inside(shape, 0, 3), draw.inside(draw.broadcastable(shape), 0, 3))
    flag = None if not draw.is_inexact else draw.option(True)
    return Call(operands, keywords(rtol=draw.option(0.0, 0.5) if draw.is_inexact else None, equal_nan=flag))


_ROUNDING: Options = options(rounding_mode=lambda draw: "trunc")
_FLOOR: Options = options(rounding_mode=lambda draw: "floor")
_TENSORS = pair(number=None)
_REMAINDER = pair(second=divisor, number=promoted)
_QUOTIENT = pair(second=divisor, number=promoted)


def _dividing(draw: Draw, shape: tuple[int, ...]) -> TensorSpec:
    """What true division takes: integers become floats, so that 0 divides them as well."""
    return divisor(draw, shape) if draw.is_inexact or draw.pick(3) < 2 else draw.inside(shape, -2, 2)


def _ratio(draw: Draw, second: Operand) -> Arg:
    """A Python number to divide by, 0 and Inf among them; complex quotients by those are left open."""
    kind = 0 if draw.kind == "complex" else draw.pick(4)
    return promoted(draw, divisor) if kind < 2 else scalar(draw) if kind == 2 else 0


def _difference(draw: Draw, second: Operand) -> Arg:
    """torch refuses to subtract a bool."""
    number = promoted(draw, second)
    return int(number) if isinstance(number, bool) else number


def _reflected(operand: Operand, *numbers: Arg) -> Signature:
    """A Python number first."""
    return lambda draw: Call((draw.choice(numbers), operand(draw, draw.shape(0, 5))))


def _dist(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    operands = draw.tensor(shape), draw.tensor(draw.broadcastable(shape))
    return Call(operands, keywords(p=draw.option(1.0, 3.0, *(() if 0 in shape else (float("inf"),)))))


ROWS = (
    _binary("add", ELEMENTWISE, signature=pair(options=options(alpha=_alpha), number=_any_number), opinfo=("add",)),
    _binary("sub", ELEMENTWISE, NUMERIC, signature=pair(options=options(alpha=_alpha), number=_difference), opinfo=("sub",)),
    _binary("mul", ELEMENTWISE, signature=pair(number=_any_number)),
    _binary(
        "div", ELEMENTWISE, signature=pair(second=_dividing, number=_ratio), opinfo=("div:no_rounding_mode", "true_divide")
    ),
    *(
        _binary(
            name,
            ELEMENTWISE,
            dtypes,
            grad,
            call=f"operator.{word}",
            signature=_reflected(operand, *numbers),
            inplace=False,
            out=False,
            opinfo=(entry,) if entry else (),
        )
        for name, word, dtypes, grad, operand, numbers, entry in (
            ("rtruediv", "truediv", EVERY, FLOATING, anything, (1, 2, 0.5, -3.5, 0), "__rdiv__"),
            ("rfloordiv", "floordiv", REAL, (), divisor, (7, 1, -7, 0, 2), ""),
            ("rmod", "mod", REAL, (), divisor, (7, 1, -7, 0, 2), "__rmod__"),
        )
    ),
    _binary(
        "rsub",
        ELEMENTWISE,
        NUMERIC,
        signature=pair(options=options(alpha=_alpha)),
        inplace=False,
        out=False,
        opinfo=("rsub",),
    ),
    # Discontinuous: the quotient may round across an integer in the dtype and not in float64.
    _binary(
        "div_floor",
        ELEMENTWISE,
        REAL,
        FLOATS,
        call="torch.div",
        signature=pair(second=divisor, options=_FLOOR, number=promoted),
        written="torch.Tensor.div_",
        opinfo=("div:floor_rounding",),
    ),
    _binary(
        "div_trunc",
        ELEMENTWISE,
        REAL,
        FLOATS,
        call="torch.div",
        signature=pair(second=divisor, options=_ROUNDING, number=promoted),
        written="torch.Tensor.div_",
        opinfo=("div:trunc_rounding",),
    ),
    _binary("floor_divide", ELEMENTWISE, REAL, (), signature=_QUOTIENT),
    _binary("fmod", EXACT, REAL, FLOATS, signature=_REMAINDER),
    _binary("remainder", ELEMENTWISE, REAL, FLOATS, signature=_REMAINDER),
    _binary("pow", ELEMENTWISE, NUMERIC, FLOATING, signature=_power),
    _binary(
        "rpow",
        ELEMENTWISE,
        NUMERIC,
        FLOATING,
        call="torch.pow",
        signature=_scalar_power,
        inplace=False,
        opinfo=("__rpow__",),
    ),
    _binary("float_power", ELEMENTWISE, EVERY, FLOATING, signature=_float_power, inplace=False),
    _binary("atan2", ELEMENTWISE, (*REAL, *BOOL), FLOATS, signature=_TENSORS),
    _binary("hypot", ELEMENTWISE, FLOATS, FLOATS, signature=_TENSORS),
    _binary("copysign", EXACT, (*REAL, *BOOL), FLOATS),
    _binary("dist", OpClass.COMPOSITE, FLOATING, FLOATING, signature=_dist, inplace=False, out=False, promotes=False),
    _binary("equal", EXACT, EVERY, (), signature=_equal, inplace=False, out=False, promotes=False),
    _binary("allclose", EXACT, FLOATS, (), signature=_close, inplace=False, out=False, promotes=False),
    _binary("nextafter", EXACT, FLOATS, (), signature=_TENSORS, promotes=False, oracle="exact"),
    _binary("ldexp", ELEMENTWISE, EVERY, FLOATING, signature=_ldexp, promotes=False),
    _binary(
        "logaddexp",
        ELEMENTWISE,
        FLOATING,
        FLOATING,
        signature=pair(within(-20, 20), within(-20, 20), number=None),
        inplace=False,
    ),
    _binary(
        "logaddexp2",
        ELEMENTWISE,
        FLOATS,
        FLOATS,
        signature=pair(within(-20, 20), within(-20, 20), number=None),
        inplace=False,
    ),
    _binary("maximum", EXACT, (*REAL, *BOOL), FLOATS, signature=_TENSORS, inplace=False, opinfo=("maximum", "max:binary")),
    _binary("minimum", EXACT, (*REAL, *BOOL), FLOATS, signature=_TENSORS, inplace=False, opinfo=("minimum", "min:binary")),
    _binary("fmax", EXACT, (*REAL, *BOOL), FLOATS, signature=_TENSORS, inplace=False),
    _binary("fmin", EXACT, (*REAL, *BOOL), FLOATS, signature=_TENSORS, inplace=False),
    _compare("eq"),
    _compare("ne"),
    _compare("lt", (*REAL, *BOOL)),
    _compare("le", (*REAL, *BOOL)),
    _compare("gt", (*REAL, *BOOL)),
    _compare("ge", (*REAL, *BOOL)),
    _binary("isclose", EXACT, EVERY, (), signature=_close, inplace=False, out=False, promotes=False),
    _binary("logical_and", EXACT, EVERY, (), signature=_TENSORS),
    _binary("logical_or", EXACT, EVERY, (), signature=_TENSORS),
    _binary("logical_xor", EXACT, EVERY, (), signature=_TENSORS),
    _binary("bitwise_and", EXACT, (*INTS, *BOOL), ()),
    _binary("bitwise_or", EXACT, (*INTS, *BOOL), ()),
    _binary("bitwise_xor", EXACT, (*INTS, *BOOL), ()),
    _binary("bitwise_left_shift", EXACT, INTS, (), signature=_shift_by, promotes=False),
    _binary("bitwise_right_shift", EXACT, INTS, (), signature=_shift_by, promotes=False),
    *(
        _binary(
            name,
            EXACT,
            INTS,
            (),
            call=f"operator.{name}",
            signature=_shift_by,
            out=False,
            promotes=False,
            written=f"operator.i{name}",
            opinfo=(),
        )
        for name in ("lshift", "rshift")
    ),
    *(
        _binary(
            f"r{word}",
            EXACT,
            dtypes,
            (),
            call=f"operator.{word}",
            signature=_reflected(operand, *numbers),
            inplace=False,
            out=False,
            promotes=False,
            opinfo=(entry,) if entry else (),
        )
        for word, dtypes, operand, numbers, entry in (
            ("lshift", INTS, _shift, (1, 3, 0), ""),
            ("rshift", INTS, _shift, (100, 1, 7, 0), ""),
            ("and_", (*INTS, *BOOL), anything, (1, 6, 0), "__rand__"),
            ("or_", (*INTS, *BOOL), anything, (1, 6, 0), "__ror__"),
            ("xor", (*INTS, *BOOL), anything, (1, 6, 0), "__rxor__"),
        )
    ),
    _binary("gcd", EXACT, INTS, (), signature=_TENSORS),
    _binary("lcm", EXACT, INTS, (), signature=pair(strictly(-10, 10), strictly(0, 10), number=None)),
    _binary("heaviside", EXACT, (*REAL, *BOOL), (), signature=_TENSORS, promotes=False),
    Row(
        name="polar",
        family=FAMILY,
        rule=ELEMENTWISE,
        call="torch.polar",
        signature=_polar,
        dtypes=("float32",),
        grad=("float32",),
        out=True,
        opinfo=("polar",),
    ),
    Row(
        name="complex",
        family=FAMILY,
        rule=EXACT,
        call="torch.complex",
        signature=_TENSORS,
        dtypes=("float32",),  # float16 would make complex32, which hardly an op takes
        grad=("float32",),
        out=True,
        opinfo=("complex",),
    ),
)
