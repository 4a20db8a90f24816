"""Elementwise functions of one tensor: arithmetic, rounding, exponentials, trigonometry, classes of numbers."""

from __future__ import annotations

from parity.catalog.draw import Call, Draw
from parity.catalog.row import EVERY, FLOATING, NUMERIC, REAL, Row, Signature
from parity.catalog.signatures import Operand, anything, mostly, one_of, options, unary, within
from parity.dtypes import BOOL, COMPLEX, FLOATS, INTS
from parity.vocabulary import Arg, OpClass

FAMILY = "unary"


def _function(
    name: str,
    operand: Operand = anything,
    dtypes: tuple[str, ...] = EVERY,
    grad: tuple[str, ...] = FLOATING,
    rule: OpClass = OpClass.ELEMENTWISE,
    opinfo: tuple[str, ...] | None = None,
) -> Row:
    """A function of one number that has a method, an in-place form and an out= form."""
    return Row(
        name=name,
        family=FAMILY,
        rule=rule,
        call=f"torch.{name}",
        signature=unary(operand),
        dtypes=dtypes,
        grad=grad,
        inplace=f"torch.Tensor.{name}_",
        out=True,
        strides=True,
        promotes=True,
        opinfo=(name,) if opinfo is None else opinfo,
    )


def _exact(
    name: str,
    dtypes: tuple[str, ...],
    grad: tuple[str, ...] = (),
    *,
    inplace: bool = True,
    out: bool = True,
    signature: Signature | None = None,
    oracle: str = "wide",
) -> Row:
    return Row(
        name=name,
        family=FAMILY,
        rule=OpClass.EXACT,
        call=f"torch.{name}",
        signature=signature or unary(),
        dtypes=dtypes,
        grad=grad,
        inplace=f"torch.Tensor.{name}_" if inplace else "",
        out=out,
        strides=True,
        oracle=oracle,
        opinfo=(name,),
    )


def _complex(name: str, call: str) -> Row:
    """The complex half of an op whose real half is exact."""
    return Row(
        name=f"{name}_complex",
        family=FAMILY,
        rule=OpClass.ELEMENTWISE,
        call=call,
        signature=unary(),
        dtypes=COMPLEX,
        grad=COMPLEX,
        out=True,
        strides=True,
    )


def _view(name: str, dtypes: tuple[str, ...], grad: tuple[str, ...], call: str = "", packed: int = 0) -> Row:
    return Row(
        name=name,
        family=FAMILY,
        rule=OpClass.EXACT,
        call=call or f"torch.{name}",
        signature=unary(),
        dtypes=dtypes,
        grad=grad,
        view=True,
        packed=packed,
        opinfo=(name,),
    )


def _decimals(draw: Draw) -> Arg:
    return None if draw.dtype in INTS else draw.option(1, 3, -1, -3, 0, 2)


def _as_pairs(draw: Draw) -> Call:
    return Call((draw.tensor((*draw.shape(0, 3), 2)),))


WORDS = options(nan=one_of(0.5, -1.0), posinf=one_of(2.0), neginf=one_of(-2.0))

ROWS = (
    _exact("neg", NUMERIC, FLOATING),
    _exact("abs", REAL, FLOATS),
    _complex("abs", "torch.abs"),
    _exact("sign", (*REAL, *BOOL), FLOATS),
    _exact("sgn", (*REAL, *BOOL), FLOATS),
    _complex("sgn", "torch.sgn"),
    _view("positive", NUMERIC, FLOATING),  # the operand itself
    _exact("ceil", REAL, FLOATS),
    _exact("floor", REAL, FLOATS),
    _exact("trunc", REAL, FLOATS),
    _exact("round", REAL, FLOATS),
    Row(
        name="round_decimals",
        family=FAMILY,
        rule=OpClass.ELEMENTWISE,
        call="torch.round",
        signature=unary(within(-99, 99), options(decimals=_decimals)),
        grad=FLOATS,
        inplace="torch.Tensor.round_",
        out=True,
        oracle="exact",  # scales by 10^decimals in the dtype: another number in float64
        opinfo=("round:decimals_0", "round:decimals_3", "round:decimals_neg_3"),
    ),
    _exact("frac", FLOATS, FLOATS),
    _exact("bitwise_not", (*INTS, *BOOL)),
    _exact("logical_not", EVERY),
    _exact("isnan", EVERY, inplace=False, out=False),
    _exact("isinf", EVERY, inplace=False, out=False),
    _exact("isfinite", EVERY, inplace=False, out=False),
    _exact("isposinf", (*REAL, *BOOL), inplace=False),
    _exact("isneginf", (*REAL, *BOOL), inplace=False),
    _exact("isreal", EVERY, inplace=False, out=False),
    _exact("signbit", (*REAL, *BOOL), inplace=False),
    # The defaults are the largest numbers of the dtype: another meaning in float64.
    _exact("nan_to_num", EVERY, FLOATS, signature=unary(options=WORDS), oracle="exact"),
    _exact("conj_physical", EVERY, FLOATING),
    Row(
        name="frexp",
        family=FAMILY,
        rule=OpClass.EXACT,
        call="torch.frexp",
        signature=unary(),
        out=True,
        grad=FLOATS,
        oracle="exact",
        opinfo=("frexp",),
    ),
    _view("real", EVERY, FLOATING),
    _view("imag", COMPLEX, COMPLEX),
    _view("conj", EVERY, FLOATING),
    _view("resolve_conj", EVERY, FLOATING),
    _view("resolve_neg", EVERY, FLOATING),
    _view("view_as_real", COMPLEX, COMPLEX, packed=3),  # refuses lazy conjugates
    Row(
        name="view_as_complex",
        family=FAMILY,
        rule=OpClass.EXACT,
        call="torch.view_as_complex",
        signature=_as_pairs,
        dtypes=("float32",),  # float16 would make complex32, which hardly an op takes
        grad=("float32",),
        view=True,
        packed=3,
        opinfo=("view_as_complex",),
    ),
    _function("reciprocal"),
    _function("sqrt", mostly(0, 64)),
    _function("rsqrt", mostly(0, 64)),
    _function("square", rule=OpClass.ELEMENTWISE),
    _function("exp", mostly(-10, 10)),
    _function("exp2", mostly(-10, 10)),
    _function("expm1", mostly(-2, 4)),
    _function("log", mostly(0, 8)),
    _function("log2", mostly(0, 8)),
    _function("log10", mostly(0, 8)),
    _function("log1p", mostly(-1, 8)),
    _function("sin", mostly(-20, 20)),
    _function("cos", mostly(-20, 20)),
    _function("tan", mostly(-4, 4)),
    _function("asin", mostly(-1, 1)),
    _function("acos", mostly(-1, 1)),
    _function("atan", mostly(-9, 9)),
    _function("sinh", mostly(-6, 6)),
    _function("cosh", mostly(-6, 6)),
    _function("tanh", mostly(-6, 6)),
    _function("asinh", mostly(-9, 9)),
    _function("acosh", mostly(1, 9)),
    _function("atanh", mostly(-1, 1)),
    _function("sinc", mostly(-6, 6)),
    _function("deg2rad", mostly(-360, 360), (*REAL, *BOOL), FLOATS),
    _function("rad2deg", mostly(-7, 7), (*REAL, *BOOL), FLOATS),
    Row(
        name="angle",
        family=FAMILY,
        rule=OpClass.ELEMENTWISE,
        call="torch.angle",
        signature=unary(),
        dtypes=EVERY,
        grad=FLOATING,
        out=True,
        promotes=True,
        opinfo=("angle",),
    ),
)
