"""Elementwise functions of one tensor: arithmetic, rounding, exponentials, trigonometry, classification."""

from __future__ import annotations

from functools import partial
from typing import Any

from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import (
    ELEMENTWISE,
    EVERY,
    EXACT,
    FLOATING,
    GLUE,
    METHOD,
    NUMERIC,
    OUT,
    OWN,
    POINTWISE,
    REAL,
    Counts,
    Draws,
    Forms,
    Judged,
    Refuses,
    Row,
    Signature,
)
from parity.catalog.signatures import Operand, anything, mostly, one_of, options, unary, within
from parity.core.case import Arg
from parity.core.dtypes import BOOL, COMPLEX, FLOATS, INTS

_row = partial(Row, family="unary", rule=ELEMENTWISE, dtypes=EVERY, grad=FLOATING, counts=OWN)


def _function(name: str, operand: Operand = anything, dtypes: tuple[str, ...] = EVERY, grad: tuple[str, ...] = FLOATING) -> Row:
    """A function of one tensor with an in-place form and an out= form."""
    return _row(name, unary(operand), dtypes=dtypes, grad=grad, forms=POINTWISE)


def _exact(
    name: str,
    dtypes: tuple[str, ...],
    grad: tuple[str, ...] = (),
    *,
    inplace: str = METHOD,
    out: bool = True,
    signature: Signature | None = None,
    **more: Any,
) -> Row:
    """A function without rounding. more: other fields of the row."""
    forms = Forms(inplace=inplace, out=out, strides=True)
    return _row(name, signature or unary(), rule=EXACT, dtypes=dtypes, grad=grad, forms=forms, **more)


def _quantized(draw: Draw) -> Arguments:
    """Scales that are powers of two, so that steps are exact; for the whole tensor, or for each channel."""
    shape = draw.shape(1, 4, empty=False)
    axis = draw.dim(shape, negative=False)
    channels = shape[axis] if draw.flag() and shape[axis] <= 64 else 1
    low, high = draw.choice(((-8, 7), (0, 15), (-128, 127), (0, 255)))
    scales = tuple(draw.choice((0.25, 0.5, 1.0, 0.0625)) for _ in range(channels))
    zeros = tuple(draw.choice((0, 1, 5)) for _ in range(channels))
    return Arguments((draw.between(shape, -9, 9), scales, zeros, axis, low, high))


def _complex(name: str, call: str) -> Row:
    """The row for complex dtypes of an op that is exact for real ones."""
    return _row(
        f"{name}_complex",
        unary(),
        call=call,
        dtypes=COMPLEX,
        grad=COMPLEX,
        forms=Forms(out=True, strides=True),
        counts=Counts(),
    )


_view = partial(_row, rule=EXACT, forms=Forms(view=True))


def _decimals(draw: Draw) -> Arg:
    return None if draw.dtype in INTS else draw.option(1, 3, -1, -3, 0, 2)


def _as_pairs(draw: Draw) -> Arguments:
    return Arguments((draw.tensor((*draw.shape(0, 3), 2)),))


WORDS = options(nan=one_of(0.5, -1.0), posinf=one_of(2.0), neginf=one_of(-2.0))

ROWS = (
    _exact("neg", NUMERIC, FLOATING),
    _exact("abs", REAL, FLOATS),
    _complex("abs", "torch.abs"),
    _exact("sign", (*REAL, *BOOL), FLOATS),
    _exact("sgn", (*REAL, *BOOL), FLOATS),
    _complex("sgn", "torch.sgn"),
    _view("positive", unary(), dtypes=NUMERIC, grad=FLOATING),  # the operand itself
    _exact("ceil", REAL, FLOATS),
    _exact("floor", REAL, FLOATS),
    _exact("trunc", REAL, FLOATS),
    _exact("round", REAL, FLOATS),
    # oracle: scales by 10^decimals in the dtype, which differs in float64
    _row(
        "round_decimals",
        unary(within(-99, 99), options(decimals=_decimals)),
        rule=ELEMENTWISE,
        call="torch.round",
        dtypes=FLOATS,
        grad=FLOATS,
        forms=Forms(inplace="torch.Tensor.round_", out=True),
        refuses=Refuses(takes=("int",)),
        judged=Judged(oracle="exact"),
        counts=Counts(("round:decimals_0", "round:decimals_3", "round:decimals_neg_3")),
    ),
    _exact("frac", FLOATS, FLOATS),
    _exact("bitwise_not", (*INTS, *BOOL)),
    _exact("logical_not", EVERY),
    _exact("isnan", EVERY, inplace="", out=False),
    _exact("isinf", EVERY, inplace="", out=False),
    _exact("isfinite", EVERY, inplace="", out=False),
    _exact("isposinf", (*REAL, *BOOL), inplace=""),
    _exact("isneginf", (*REAL, *BOOL), inplace=""),
    _exact("isreal", EVERY, inplace="", out=False),
    _exact("signbit", (*REAL, *BOOL), inplace=""),
    # oracle: the defaults are the largest numbers of the dtype, which differ in float64.
    _exact(
        "nan_to_num",
        EVERY,
        FLOATS,
        signature=unary(options=WORDS),
        refuses=Refuses(takes=("complex",)),
        judged=Judged(oracle="exact"),
    ),
    _exact("conj_physical", EVERY, FLOATING),
    _row("frexp", unary(), dtypes=FLOATS, rule=EXACT, forms=OUT, grad=FLOATS, judged=Judged(oracle="exact"), counts=OWN),
    _view("real", unary(), dtypes=EVERY, grad=FLOATING),
    _view("imag", unary(), dtypes=COMPLEX, grad=COMPLEX),
    _view("conj", unary(), dtypes=EVERY, grad=FLOATING),
    _view("resolve_conj", unary(), dtypes=EVERY, grad=FLOATING),
    _view("resolve_neg", unary(), dtypes=EVERY, grad=FLOATING),
    _view("view_as_real", unary(), dtypes=COMPLEX, grad=COMPLEX, draws=Draws(packed=3)),  # refuses lazy conjugates
    # dtypes: float16 would give complex32, which hardly an op takes
    _row(
        "view_as_complex",
        _as_pairs,
        rule=EXACT,
        dtypes=("float32",),
        grad=("float32",),
        forms=Forms(view=True),
        draws=Draws(packed=3),
        counts=OWN,
    ),
    _function("reciprocal"),
    _function("sqrt", mostly(0, 64)),
    _function("rsqrt", mostly(0, 64)),
    _function("square"),
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
    # finite: the step of NaN, and of numbers that no integer holds, is undefined
    _row(
        "fake_quantize",
        _quantized,
        rule=EXACT,
        dtypes=FLOATS,
        grad=FLOATS,
        call=GLUE,
        draws=Draws(finite=True),
        judged=Judged(oracle="exact"),
        counts=Counts(),
    ),
    _row("angle", unary(), rule=ELEMENTWISE, dtypes=EVERY, grad=FLOATING, forms=Forms(out=True, promotes=True), counts=OWN),
)
