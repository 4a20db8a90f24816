"""Tensors made from numbers: beside the first operand, in its dtype and on its device."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw
from parity.catalog.row import EVERY, NUMERIC, REAL, Row
from parity.catalog.signatures import cast_scalar
from parity.dtypes import BOOL, FLOATS
from parity.vocabulary import OpClass, TensorSpec

_row = partial(Row, family="creation", rule=OpClass.EXACT)


def _like(draw: Draw) -> TensorSpec:
    """The operand that only lends its dtype and its device."""
    return draw.tensor((), grad=False)


def _arange(draw: Draw) -> Call:
    """Steps that are no power of two lead away from zero: across it, the rounding of the step alone is the result."""
    count = draw.choice((1, 5, 17, 64, 100, 0))
    if draw.is_inexact and draw.pick(4) == 3:
        sign = draw.choice((1, -1))
        start, step = draw.choice((0, 0.1, 2.5, 7)), draw.choice((0.1, 0.3, 1 / 3, 0.7))
        return Call((_like(draw), sign * start, sign * (start + draw.choice((5, 1, 33)) * 10), sign * step))
    start = draw.choice((0, 1, 3) if draw.dtype == "uint8" else (0, 1, -5, 3))
    step = draw.choice((1, 2, 3) if not draw.is_inexact else (1, 2, 0.5, 0.25))
    if draw.dtype != "uint8" and draw.pick(3) == 2:
        return Call((_like(draw), start, start - count, -step))
    return Call((_like(draw), start, start + count, step))


def _far(draw: Draw) -> Call:
    """Many elements, and far from zero."""
    start = draw.choice((2**24 - 5, 2**31 - 7, -(2**31) - 3, 2**40, 2**53 - 9))
    return Call((_like(draw), start, start + draw.choice((17, 1000, 4099)), draw.choice((1, 3))))


def _fractions(draw: Draw) -> Call:
    """Start and step are 0-d operands of any size, so that the oracle knows what their rounding does: steps that are no power
    of two, negative ones, results across zero."""
    start = draw.inside((), -8, 8, grad=False)
    low, high = draw.choice(((0.0625, 2), (-2, -0.0625), (0.001, 0.01)))
    return Call((start, draw.inside((), low, high, grad=False), draw.choice((5, 1, 2, 17, 64, 100, 1000))))


def _ends(draw: Draw) -> Call:
    steps = draw.choice((5, 1, 2, 9, 16, 33, 100, 1000))
    return Call((draw.inside((), -8, 8, grad=False), draw.inside((), -8, 8, grad=False), steps))


def _linspace(draw: Draw) -> Call:
    steps = draw.choice((5, 1, 2, 9, 0, 16, 33, 100))
    if draw.pick(4) == 3:
        return Call((_like(draw), draw.choice((0, 0.1, 2.5)), draw.choice((0.3, 7.7, 1000.1)), steps))
    return Call((_like(draw), draw.choice((0, 1, -4)), draw.choice((1, 8, 100, -3)), steps))


def _whole_steps(draw: Draw) -> Call:
    """Ends at a whole number of steps, far beyond what float32 holds where the dtype allows; or on both sides of 0, a fraction
    further from it, which torch cuts off before it counts the steps."""
    far = {"int64": (0, 2**20, 2**40), "int32": (0, 2**20, 2**26)}.get(draw.dtype, (0, 3))
    start, steps, step = draw.choice(far), draw.choice((5, 2, 9, 17)), draw.choice((1, 2))
    stop = start + (steps - 1) * step
    if draw.flag() and draw.dtype != "uint8":
        start = draw.choice((1, 2, 3))
        ends = start + draw.choice((0.75, 0.5, 0.875)), start - (steps - 1) * step - draw.choice((0.25, 0.0, 0.875))
        return Call((_like(draw), *(ends[::-1] if draw.flag() else ends), steps))
    return Call((_like(draw), start, stop, steps))


def _logspace(draw: Draw) -> Call:
    ends = draw.choice((0, 1, -2)), draw.choice((1, 2, 3, -1))
    return Call((_like(draw), *ends, draw.choice((5, 1, 2, 9)), draw.choice((10.0, 2.0, 0.5))))


def _eye(draw: Draw) -> Call:
    return Call(
        (_like(draw), draw.choice((draw.size(), 0)), draw.choice((draw.size(), 0)))
        if draw.rare(12)
        else (_like(draw), draw.size(), draw.size())
    )


def _full(draw: Draw) -> Call:
    return Call((_like(draw), draw.shape(0, 4), cast_scalar(draw)))


def _triangle(draw: Draw) -> Call:
    return Call((_like(draw), draw.choice((3, 1, 5, 0, 33)), draw.choice((3, 1, 4, 0)), draw.choice((0, 1, -1, 2, -3))))


def _frequencies(draw: Draw) -> Call:
    return Call((_like(draw), draw.choice((4, 1, 5, 16, 17, 100, 10000)), draw.choice((1.0, 0.5, 2.0))))


def _window(draw: Draw) -> Call:
    return Call((_like(draw), draw.choice((4, 1, 2, 5, 16, 33)), not draw.flag()))


def _range(draw: Draw) -> Call:
    """torch.range: with its end."""
    start, step = draw.choice((0, 1, 3)), draw.choice((1, 2, 3) if not draw.is_inexact else (1, 2, 0.5, 0.25))
    return Call((_like(draw), start, start + step * draw.choice((1, 5, 17, 64)), step))


ROWS = (
    _row(
        name="arange_fractional",
        rule=OpClass.COMPOSITE,  # near zero the error is that of start and of step
        rounds_between=True,
        call="parity.catalog.calls.arange_fractional",
        signature=_fractions,
        dtypes=("float32",),
    ),
    _row(name="arange_far", call="parity.catalog.calls.arange", signature=_far, dtypes=("int64",), out=True),
    _row(
        name="range",
        rule=OpClass.ELEMENTWISE,
        call="parity.catalog.calls.closed_range",
        signature=_range,
        dtypes=("float32", "int64", "int32"),
    ),
    _row(
        name="linspace_fractional",
        rule=OpClass.COMPOSITE,
        rounds_between=True,
        call="parity.catalog.calls.linspace_fractional",
        signature=_ends,
        dtypes=("float32",),
    ),
    _row(
        name="triu_indices",
        call="parity.catalog.calls.triu_indices",
        signature=_triangle,
        dtypes=("int64", "int32"),
        opinfo=("triu_indices",),
    ),
    _row(
        name="arange",
        rule=OpClass.ELEMENTWISE,
        call="parity.catalog.calls.arange",
        signature=_arange,
        out=True,
        dtypes=REAL,
        opinfo=("arange",),
    ),
    _row(
        name="linspace",
        rounds_between=True,  # the step is rounded to the dtype
        rule=OpClass.ELEMENTWISE,
        call="parity.catalog.calls.linspace",
        signature=_linspace,
        out=True,
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
        out=True,
        dtypes=FLOATS,
        opinfo=("logspace",),
    ),
    _row(name="eye", call="parity.catalog.calls.eye", signature=_eye, out=True, dtypes=(*NUMERIC, *BOOL), opinfo=("eye",)),
    _row(name="full", call="parity.catalog.calls.full", signature=_full, out=True, dtypes=EVERY, opinfo=("full",)),
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
