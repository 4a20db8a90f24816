"""Factory functions: tensors from numbers, in the dtype and on the device of the first operand."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import COMPOSITE, ELEMENTWISE, EVERY, EXACT, GLUE, NUMERIC, OUT, REAL, ROUNDED, Counts, Refuses, Row
from parity.catalog.signatures import cast_scalar
from parity.core.case import TensorSpec
from parity.core.dtypes import BOOL, FLOATS

_row = partial(Row, family="creation", rule=EXACT)


def _like(draw: Draw) -> TensorSpec:
    """The operand that only gives dtype and device."""
    return draw.tensor((), grad=False)


def _arange(draw: Draw) -> Arguments:
    """Steps that are no power of two stay on one side of zero: near zero the result is only the rounding error of the step."""
    count = draw.extent((1, 5, 17, 64, 100, 0))
    if draw.is_inexact and draw.pick(4) == 3:
        sign = draw.choice((1, -1))
        start, step = draw.choice((0, 0.1, 2.5, 7)), draw.choice((0.1, 0.3, 1 / 3, 0.7))
        return Arguments((_like(draw), sign * start, sign * (start + draw.choice((5, 1, 33)) * 10), sign * step))
    start = draw.choice((0, 1, 3) if draw.dtype == "uint8" else (0, 1, -5, 3))
    step = draw.choice((1, 2, 3) if not draw.is_inexact else (1, 2, 0.5, 0.25))
    if draw.dtype != "uint8" and draw.pick(3) == 2:
        return Arguments((_like(draw), start, start - count, -step))
    return Arguments((_like(draw), start, start + count, step))


def _far(draw: Draw) -> Arguments:
    """Many elements, and far from zero."""
    start = draw.choice((2**24 - 5, 2**31 - 7, -(2**31) - 3, 2**40, 2**53 - 9))
    return Arguments((_like(draw), start, start + draw.extent((17, 1000, 4099)), draw.choice((1, 3))))


def _fractions(draw: Draw) -> Arguments:
    """Start and step are 0-d operands, so that the oracle includes the effect of their rounding: steps that are no power of
    two, negative steps, results across zero."""
    start = draw.inside((), -8, 8, grad=False)
    low, high = draw.choice(((0.0625, 2), (-2, -0.0625), (0.001, 0.01)))
    return Arguments((start, draw.inside((), low, high, grad=False), draw.extent((5, 1, 2, 17, 64, 100, 1000))))


def _ends(draw: Draw) -> Arguments:
    steps = draw.extent((5, 1, 2, 9, 16, 33, 100, 1000))
    return Arguments((draw.inside((), -8, 8, grad=False), draw.inside((), -8, 8, grad=False), steps))


def _linspace(draw: Draw) -> Arguments:
    steps = draw.extent((5, 1, 2, 9, 0, 16, 33, 100))
    if draw.pick(4) == 3:
        return Arguments((_like(draw), draw.choice((0, 0.1, 2.5)), draw.choice((0.3, 7.7, 1000.1)), steps))
    return Arguments((_like(draw), draw.choice((0, 1, -4)), draw.choice((1, 8, 100, -3)), steps))


def _whole_steps(draw: Draw) -> Arguments:
    """Ends after a whole number of steps, above the integers that float32 represents if the dtype allows; or has ends on both
    sides of 0 with a fraction, which torch truncates before it counts the steps."""
    far = {"int64": (0, 2**20, 2**40), "int32": (0, 2**20, 2**26)}.get(draw.dtype, (0, 3))
    start, steps, step = draw.choice(far), draw.extent((5, 2, 9, 17)), draw.choice((1, 2))
    stop = start + (steps - 1) * step
    if draw.flag() and draw.dtype != "uint8":
        start = draw.choice((1, 2, 3))
        ends = start + draw.choice((0.75, 0.5, 0.875)), start - (steps - 1) * step - draw.choice((0.25, 0.0, 0.875))
        return Arguments((_like(draw), *(ends[::-1] if draw.flag() else ends), steps))
    return Arguments((_like(draw), start, stop, steps))


def _logspace(draw: Draw) -> Arguments:
    ends = draw.choice((0, 1, -2)), draw.choice((1, 2, 3, -1))
    return Arguments((_like(draw), *ends, draw.extent((5, 1, 2, 9)), draw.choice((10.0, 2.0, 0.5))))


def _eye(draw: Draw) -> Arguments:
    return Arguments(
        (_like(draw), draw.choice((draw.size(), 0)), draw.choice((draw.size(), 0)))
        if draw.rare(12)
        else (_like(draw), draw.size(), draw.size())
    )


def _full(draw: Draw) -> Arguments:
    return Arguments((_like(draw), draw.shape(0, 4), cast_scalar(draw)))


def _triangle(draw: Draw) -> Arguments:
    return Arguments((_like(draw), draw.extent((3, 1, 5, 0, 33)), draw.extent((3, 1, 4, 0)), draw.choice((0, 1, -1, 2, -3))))


def _frequencies(draw: Draw) -> Arguments:
    return Arguments((_like(draw), draw.extent((4, 1, 5, 16, 17, 100, 10000)), draw.choice((1.0, 0.5, 2.0))))


def _window(draw: Draw) -> Arguments:
    return Arguments((_like(draw), draw.extent((4, 1, 2, 5, 16, 33)), not draw.flag()))


def _named_window(draw: Draw) -> Arguments:
    like, *rest = _window(draw).args
    return Arguments((like, draw.choice(("bartlett", "hamming")), *rest))


def _range(draw: Draw) -> Arguments:
    """torch.range, which includes its end."""
    start, step = draw.choice((0, 1, 3)), draw.choice((1, 2, 3) if not draw.is_inexact else (1, 2, 0.5, 0.25))
    return Arguments((_like(draw), start, start + step * draw.extent((1, 5, 17, 64)), step))


ROWS = (
    # rule: near zero the error is that of start and step
    _row("arange_fractional", _fractions, rule=COMPOSITE, judged=ROUNDED, call=GLUE, dtypes=("float32",)),
    _row("arange_far", _far, call="parity.catalog.glue.calls.arange", dtypes=("int64",), forms=OUT),
    _row(
        "range", _range, rule=ELEMENTWISE, call="parity.catalog.glue.calls.closed_range", dtypes=("float32", "int64", "int32")
    ),
    _row("linspace_fractional", _ends, rule=COMPOSITE, judged=ROUNDED, call=GLUE, dtypes=("float32",)),
    _row("triu_indices", _triangle, call=GLUE, dtypes=("int64", "int32"), counts=Counts(("triu_indices",))),
    _row("arange", _arange, rule=ELEMENTWISE, call=GLUE, forms=OUT, dtypes=REAL, counts=Counts(("arange",))),
    # rounds_between: the step is rounded to the dtype
    _row(
        "linspace",
        _linspace,
        forms=OUT,
        rule=ELEMENTWISE,
        call=GLUE,
        judged=ROUNDED,
        dtypes=FLOATS,
        counts=Counts(("linspace",)),
    ),
    _row(
        "linspace_whole",
        _whole_steps,
        call="parity.catalog.glue.calls.linspace",
        dtypes=("int64", "int32", "int16", "int8", "uint8"),
    ),
    # rounds_between: the exponent is rounded to the dtype
    _row(
        "logspace", _logspace, forms=OUT, rule=COMPOSITE, call=GLUE, judged=ROUNDED, dtypes=FLOATS, counts=Counts(("logspace",))
    ),
    _row("eye", _eye, call=GLUE, forms=OUT, dtypes=(*NUMERIC, *BOOL), counts=Counts(("eye",))),
    _row("full", _full, call=GLUE, forms=OUT, dtypes=EVERY, refuses=Refuses(sized=True), counts=Counts(("full",))),
    _row("tril_indices", _triangle, call=GLUE, dtypes=("int64", "int32"), counts=Counts(("tril_indices",))),
    _row("fft.fftfreq", _frequencies, rule=ELEMENTWISE, call="parity.catalog.glue.calls.fftfreq", dtypes=("float32",)),
    _row(
        "hann_window",
        _window,
        rule=COMPOSITE,
        call=GLUE,
        dtypes=("float32",),
        refuses=Refuses(takes=("complex",)),
        counts=Counts(("signal.windows.hann",)),
    ),
    # without those whose ends cancel to a rounding of zero (blackman)
    _row("window", _named_window, rule=COMPOSITE, call=GLUE, dtypes=("float32",), judged=ROUNDED),
)
