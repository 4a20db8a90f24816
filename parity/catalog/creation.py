"""Tensors made from numbers: beside the first operand, in its dtype and on its device."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw
from parity.catalog.row import EVERY, NUMERIC, REAL, Row
from parity.dtypes import BOOL, FLOATS
from parity.vocabulary import OpClass, TensorSpec

_row = partial(Row, family="creation", rule=OpClass.EXACT)


def _like(draw: Draw) -> TensorSpec:
    """The operand that only lends its dtype and its device."""
    return draw.tensor((), grad=False)


def _arange(draw: Draw) -> Call:
    start = draw.choice((0, 1, 3) if draw.dtype == "uint8" else (0, 1, -5, 3))
    step = draw.choice((1, 2, 3) if not draw.is_inexact else (1, 2, 0.5, 0.25))
    return Call((_like(draw), start, start + draw.choice((1, 5, 17, 64, 100)), step))


def _linspace(draw: Draw) -> Call:
    steps = draw.choice((5, 1, 2, 9, 0, 16, 33, 100))
    return Call((_like(draw), draw.choice((0, 1, -4)), draw.choice((1, 8, 100)), steps))


def _whole_steps(draw: Draw) -> Call:
    """Ends at a whole number of steps, far beyond what float32 holds where the dtype allows."""
    far = {"int64": (0, 2**20, 2**40), "int32": (0, 2**20, 2**26)}.get(draw.dtype, (0, 3))
    start, steps, step = draw.choice(far), draw.choice((5, 2, 9, 17)), draw.choice((1, 2))
    return Call((_like(draw), start, start + (steps - 1) * step, steps))


def _logspace(draw: Draw) -> Call:
    return Call((_like(draw), draw.choice((0, 1, -2)), draw.choice((1, 2, 3)), draw.choice((5, 1, 2, 9))))


def _eye(draw: Draw) -> Call:
    return Call((_like(draw), draw.size(), draw.size()))


def _full(draw: Draw) -> Call:
    return Call((_like(draw), draw.shape(0, 4), draw.number()))


def _triangle(draw: Draw) -> Call:
    return Call((_like(draw), draw.choice((3, 1, 5)), draw.choice((3, 1, 4)), draw.choice((0, 1, -1))))


def _frequencies(draw: Draw) -> Call:
    return Call((_like(draw), draw.choice((4, 1, 5, 16, 17, 100)), draw.choice((1.0, 0.5, 2.0))))


def _window(draw: Draw) -> Call:
    return Call((_like(draw), draw.choice((4, 1, 2, 5, 16, 33)), not draw.flag()))


ROWS = (
    _row(
        name="arange",
        rule=OpClass.ELEMENTWISE,
        call="parity.catalog.calls.arange",
        signature=_arange,
        dtypes=REAL,
        opinfo=("arange",),
    ),
    _row(
        name="linspace",
        rounds_between=True,  # the step is rounded to the dtype
        rule=OpClass.ELEMENTWISE,
        call="parity.catalog.calls.linspace",
        signature=_linspace,
        dtypes=FLOATS,
        opinfo=("linspace",),
    ),
    _row(
        name="linspace_whole",
        call="parity.catalog.calls.linspace",
        signature=_whole_steps,
        dtypes=("int64", "int32", "int16", "int8", "uint8"),
    ),
    _row(
        name="logspace",
        rounds_between=True,  # the exponent is rounded to the dtype
        rule=OpClass.COMPOSITE,
        call="parity.catalog.calls.logspace",
        signature=_logspace,
        dtypes=FLOATS,
        opinfo=("logspace",),
    ),
    _row(name="eye", call="parity.catalog.calls.eye", signature=_eye, dtypes=(*NUMERIC, *BOOL), opinfo=("eye",)),
    _row(name="full", call="parity.catalog.calls.full", signature=_full, dtypes=EVERY, opinfo=("full",)),
    _row(
        name="tril_indices",
        call="parity.catalog.calls.tril_indices",
        signature=_triangle,
        dtypes=("int64", "int32"),
        opinfo=("tril_indices",),
    ),
    _row(
        name="fft.fftfreq",
        rule=OpClass.ELEMENTWISE,
        call="parity.catalog.calls.fftfreq",
        signature=_frequencies,
        dtypes=("float32",),
    ),
    _row(
        name="hann_window",
        rule=OpClass.COMPOSITE,
        call="parity.catalog.calls.hann_window",
        signature=_window,
        dtypes=("float32",),
        opinfo=("signal.windows.hann",),
    ),
)
