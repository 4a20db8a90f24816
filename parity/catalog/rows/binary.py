"""Elementwise functions of two operands, with broadcasting, Python scalars and type promotion."""

from __future__ import annotations

from typing import Any

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import (
    COMPOSITE,
    ELEMENTWISE,
    EVERY,
    EXACT,
    FLOATING,
    METHOD,
    NUMERIC,
    OUT,
    OWN,
    REAL,
    Counts,
    Draws,
    Forms,
    Judged,
    Refuses,
    Row,
    Signature,
)
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
from parity.core.case import Arg, OpClass, TensorSpec
from parity.core.dtypes import BOOL, FACTS, FLOATS, INTS

FAMILY = "binary"
FORMS: dict[str, Any] = {"inplace": METHOD, "out": True, "promotes": True}


def _binary(
    name: str,
    rule: OpClass,
    dtypes: tuple[str, ...] = EVERY,
    grad: tuple[str, ...] = FLOATING,
    *,
    signature: Signature | None = None,
    **more: Any,
) -> Row:
    """A function of two operands. more: `inplace`, `out` and `promotes` of its forms, and other fields of the row."""
    forms = Forms(strides=True, **{field: more.pop(field, default) for field, default in FORMS.items()})
    fields = {"dtypes": dtypes, "grad": grad, "forms": forms, "counts": OWN, **more}
    return Row(name, signature or pair(), family=FAMILY, rule=rule, **fields)


def _compare(name: str, dtypes: tuple[str, ...] = EVERY) -> Row:
    return _binary(name, EXACT, dtypes, (), signature=_comparison)


def _comparison(draw: Draw) -> Arguments:
    """The operands have few different values, so that some are equal."""
    few = draw.flag()
    return pair(whole(0, 2) if few else anything, whole(0, 2) if few else anything, number=promoted)(draw)


def _any_number(draw: Draw, second: Operand) -> Arg:
    """A Python number of any kind, including complex."""
    return any_scalar(draw) if second is anything else promoted(draw, second)


def _equal(draw: Draw) -> Arguments:
    """Two tensors, sometimes equal ones."""
    shape = draw.shape(0, 4)
    high = draw.choice((1, 2))
    return Arguments((draw.between(shape, 1, high), draw.between(shape, 1, high)))


def _alpha(draw: Draw) -> Arg:
    """A factor of the item's kind."""
    return draw.number(2) if draw.flag() and draw.kind != "bool" else None


def _shift(draw: Draw, shape: tuple[int, ...]) -> TensorSpec:
    return draw.inside(shape, 0, FACTS[draw.dtype].bits - 2)


def _shift_by(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    first = draw.tensor(shape)
    if draw.pick(3) == 1:
        return Arguments((first, draw.choice((1, 0, 2, 5))))
    return Arguments((first, _shift(draw, draw.broadcastable(shape))))


def _power(draw: Draw) -> Arguments:
    """The exponent is a Python scalar (small integers have their own kernels) or a tensor."""
    shape = draw.shape(0, 4)
    whole = not draw.is_inexact
    base = draw.between(shape, 0, 4) if draw.is_inexact else draw.inside(shape, 0, 10) if draw.flag() else draw.tensor(shape)
    if draw.flag():
        return Arguments((base, draw.choice((2, 1, 3, 0, 4) if whole else (2, 1, 3, 0, -1, 0.5, -2, -0.5, 1.5))))
    free = draw.tensor(shape) if draw.flag() else base
    return Arguments((free, count(draw, draw.broadcastable(shape))))


def _scalar_power(draw: Draw) -> Arguments:
    return Arguments((draw.choice((2, 1, 3, 0)), count(draw, draw.shape(0, 4))))


def _float_power(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    base = draw.between(shape, 0, 4)
    if draw.flag():
        return Arguments((base, draw.choice((2, 1, 3, 0, -1, 0.5))))
    return Arguments((base, draw.between(draw.broadcastable(shape), -3, 3)))


def _ldexp(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    return Arguments((draw.tensor(shape), draw.inside(draw.broadcastable(shape), -6, 6, dtype="int32", grad=False)))


def _polar(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    return Arguments((draw.between(shape, 0, 8), draw.between(draw.broadcastable(shape), -4, 4)))


def _close(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    operands = (draw.between(shape, 0, 3), draw.between(draw.broadcastable(shape), 0, 3))
    flag = None if not draw.is_inexact else draw.option(True)
    return Arguments(operands, keywords(rtol=draw.option(0.0, 0.5) if draw.is_inexact else None, equal_nan=flag))


_ROUNDING: Options = options(rounding_mode=lambda draw: "trunc")
_FLOOR: Options = options(rounding_mode=lambda draw: "floor")
_TENSORS = pair(number=None)
_REMAINDER = pair(second=divisor, number=promoted)
_QUOTIENT = pair(second=divisor, number=promoted)


def _dividing(draw: Draw, shape: tuple[int, ...]) -> TensorSpec:
    """Operands of true division: integers become floats, so divisors of 0 are legal."""
    return divisor(draw, shape) if draw.is_inexact or draw.pick(3) < 2 else draw.inside(shape, -2, 2)


def _ratio(draw: Draw, second: Operand) -> Arg:
    """A Python number to divide by, including 0 and Inf for real dtypes; complex quotients by those are unspecified."""
    kind = 0 if draw.kind == "complex" else draw.pick(4)
    return promoted(draw, divisor) if kind < 2 else scalar(draw) if kind == 2 else 0


def _difference(draw: Draw, second: Operand) -> Arg:
    """torch refuses to subtract a bool."""
    number = promoted(draw, second)
    return int(number) if isinstance(number, bool) else number


def _reflected(operand: Operand, *numbers: Arg) -> Signature:
    """A Python number first."""
    return lambda draw: Arguments((draw.choice(numbers), operand(draw, draw.shape(0, 5))))


def _dist(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    operands = draw.tensor(shape), draw.tensor(draw.broadcastable(shape))
    return Arguments(operands, keywords(p=draw.option(1.0, 3.0, *(() if 0 in shape else (float("inf"),)))))


ROWS = (
    _binary("add", ELEMENTWISE, signature=pair(options=options(alpha=_alpha), number=_any_number)),
    _binary("sub", ELEMENTWISE, NUMERIC, signature=pair(options=options(alpha=_alpha), number=_difference)),
    _binary("mul", ELEMENTWISE, signature=pair(number=_any_number)),
    _binary(
        "div",
        ELEMENTWISE,
        signature=pair(second=_dividing, number=_ratio),
        counts=Counts(("div:no_rounding_mode", "true_divide")),
    ),
    *(
        _binary(
            name,
            ELEMENTWISE,
            dtypes,
            grad,
            call=f"operator.{word}",
            signature=_reflected(operand, *numbers),
            inplace="",
            out=False,
            counts=Counts((entry,)) if entry.startswith("__") else Counts(under=entry),
        )
        for name, word, dtypes, grad, operand, numbers, entry in (
            ("rtruediv", "truediv", EVERY, FLOATING, anything, (1, 2, 0.5, -3.5, 0), "__rdiv__"),
            ("rfloordiv", "floordiv", REAL, (), divisor, (7, 1, -7, 0, 2), "floor_divide"),
            ("rmod", "mod", REAL, (), divisor, (7, 1, -7, 0, 2), "__rmod__"),
        )
    ),
    _binary("rsub", ELEMENTWISE, NUMERIC, signature=pair(options=options(alpha=_alpha)), inplace="", out=False),
    # Discontinuous: the quotient may round across an integer in the dtype but not in float64.
    *(
        _binary(
            f"div_{word}",
            ELEMENTWISE,
            REAL,
            FLOATS,
            call="torch.div",
            inplace="torch.Tensor.div_",
            signature=pair(second=divisor, options=how, number=promoted),
            counts=Counts((f"div:{word}_rounding",)),
        )
        for word, how in (("floor", _FLOOR), ("trunc", _ROUNDING))
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
        inplace="",
        counts=Counts(("__rpow__",)),
    ),
    _binary("float_power", ELEMENTWISE, EVERY, FLOATING, signature=_float_power, inplace=""),
    _binary("atan2", ELEMENTWISE, (*REAL, *BOOL), FLOATS, signature=_TENSORS),
    _binary("hypot", ELEMENTWISE, FLOATS, FLOATS, signature=_TENSORS),
    _binary("copysign", EXACT, (*REAL, *BOOL), FLOATS),
    _binary("dist", COMPOSITE, FLOATING, FLOATING, signature=_dist, inplace="", out=False, promotes=False),
    _binary("equal", EXACT, EVERY, (), signature=_equal, inplace="", out=False, promotes=False),
    _binary(
        "allclose",
        EXACT,
        FLOATS,
        (),
        signature=_close,
        inplace="",
        out=False,
        promotes=False,
        draws=Draws(on_cpu="rest"),
        refuses=Refuses(takes=("int",)),
    ),
    _binary("nextafter", EXACT, FLOATS, (), signature=_TENSORS, promotes=False, judged=Judged(oracle="exact")),
    _binary("ldexp", ELEMENTWISE, EVERY, FLOATING, signature=_ldexp, promotes=False),
    _binary(
        "logaddexp", ELEMENTWISE, FLOATING, FLOATING, signature=pair(within(-20, 20), within(-20, 20), number=None), inplace=""
    ),
    _binary(
        "logaddexp2", ELEMENTWISE, FLOATS, FLOATS, signature=pair(within(-20, 20), within(-20, 20), number=None), inplace=""
    ),
    _binary("maximum", EXACT, (*REAL, *BOOL), FLOATS, signature=_TENSORS, inplace="", counts=Counts(("maximum", "max:binary"))),
    _binary("minimum", EXACT, (*REAL, *BOOL), FLOATS, signature=_TENSORS, inplace="", counts=Counts(("minimum", "min:binary"))),
    _binary("fmax", EXACT, (*REAL, *BOOL), FLOATS, signature=_TENSORS, inplace=""),
    _binary("fmin", EXACT, (*REAL, *BOOL), FLOATS, signature=_TENSORS, inplace=""),
    _compare("eq"),
    _compare("ne"),
    _compare("lt", (*REAL, *BOOL)),
    _compare("le", (*REAL, *BOOL)),
    _compare("gt", (*REAL, *BOOL)),
    _compare("ge", (*REAL, *BOOL)),
    _binary("isclose", EXACT, EVERY, (), signature=_close, inplace="", out=False, promotes=False, draws=Draws(on_cpu="rest")),
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
            inplace=f"operator.i{name}",
            counts=Counts(under=f"bitwise_{side}_shift"),
        )
        for name, side in (("lshift", "left"), ("rshift", "right"))
    ),
    *(
        _binary(
            f"r{word}",
            EXACT,
            INTS,
            (),
            call=f"operator.{word}",
            signature=_reflected(_shift, *numbers),
            inplace="",
            out=False,
            promotes=False,
            counts=Counts(),
        )
        for word, numbers in (("lshift", (1, 3, 0)), ("rshift", (100, 1, 7, 0)))
    ),
    *(
        _binary(
            name,
            EXACT,
            (*INTS, *BOOL),
            (),
            call=f"torch.Tensor.{method}",
            signature=pair(number=lambda draw, second: draw.choice((1, 6, 0))),
            inplace="",
            out=False,
            promotes=False,
            counts=Counts((method,)),
        )
        for name, method in (("rand_", "__rand__"), ("ror_", "__ror__"), ("rxor", "__rxor__"))
    ),
    _binary("gcd", EXACT, INTS, (), signature=_TENSORS),
    _binary("lcm", EXACT, INTS, (), signature=pair(strictly(-10, 10), strictly(0, 10), number=None)),
    _binary("heaviside", EXACT, (*REAL, *BOOL), (), signature=_TENSORS, promotes=False),
    Row("polar", _polar, family=FAMILY, rule=ELEMENTWISE, dtypes=("float32",), grad=("float32",), forms=OUT, counts=OWN),
    # dtypes: float16 would give complex32, which hardly an op takes
    Row("complex", _TENSORS, family=FAMILY, rule=EXACT, dtypes=("float32",), grad=("float32",), forms=OUT, counts=OWN),
)
