"""Signatures that several families share. Each maker returns a `Signature`; the simplest call comes first at every pick."""

from __future__ import annotations

from collections.abc import Callable

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import Signature
from parity.vocabulary import Arg, TensorSpec

Operand = Callable[[Draw, Shape], TensorSpec]
Options = Callable[[Draw], tuple[tuple[str, Arg], ...]]
Limits = tuple[float, float]


def anything(draw: Draw, shape: Shape) -> TensorSpec:
    """An operand without a domain."""
    return draw.tensor(shape)


def within(low: float, high: float) -> Operand:
    """An operand with values in [low, high], now and then beyond."""
    return lambda draw, shape: draw.between(shape, low, high)


def strictly(low: float, high: float) -> Operand:
    """An operand with values in [low, high], never beyond."""
    return lambda draw, shape: draw.inside(shape, low, high)


def divisor(draw: Draw, shape: Shape) -> TensorSpec:
    """Anything for floats; integers without zero, which the CPU refuses to divide by."""
    return draw.tensor(shape) if draw.is_inexact else draw.inside(shape, 1, 9)


def count(draw: Draw, shape: Shape) -> TensorSpec:
    """An exponent: -3..3 for floats, small and not negative for integers."""
    return draw.between(shape, -3, 3) if draw.is_inexact else draw.inside(shape, 0, 5)


def none(draw: Draw) -> tuple[tuple[str, Arg], ...]:
    """No keyword arguments."""
    return ()


def unary(operand: Operand = anything, options: Options = none, *, low: int = 0, high: int = 5) -> Signature:
    """`f(x, **options)` over every shape of rank low..high."""

    def signature(draw: Draw) -> Call:
        return Call((operand(draw, draw.shape(low, high)),), options(draw))

    return signature


def pair(
    first: Operand = anything,
    second: Operand = anything,
    options: Options = none,
    *,
    scalar: bool = True,
    both: bool = True,
) -> Signature:
    """`f(a, b, **options)` with broadcasting: of b, of a where `both`; b a Python scalar where `scalar`."""

    def signature(draw: Draw) -> Call:
        shape = draw.shape(0, 5)
        kind = draw.pick(4)
        if kind == 1 and scalar:
            number = draw.number() if second is anything else draw.choice((1, 2, 3) if second is divisor else (2, 1, 0, 3))
            return Call((first(draw, shape), number), options(draw))
        if kind == 2 and both:
            return Call((first(draw, draw.broadcastable(shape)), second(draw, shape)), options(draw))
        other = shape if kind == 3 else draw.broadcastable(shape)
        return Call((first(draw, shape), second(draw, other)), options(draw))

    return signature


def along(
    operand: Operand = anything,
    options: Options = none,
    *,
    low: int = 0,
    high: int = 5,
    empty: bool = True,
    by_name: bool = False,
) -> Signature:
    """`f(x, dim, **options)` for one dimension, positive or negative; `f(x, dim=dim)` where `by_name`."""

    def signature(draw: Draw) -> Call:
        shape = draw.shape(low, high, empty=empty)
        x = operand(draw, shape)
        d = draw.dim(shape)
        return Call((x,), keywords(dim=d)) if by_name else Call((x, d), options(draw))

    return signature


def options(**makers: Callable[[Draw], Arg]) -> Options:
    """Keyword arguments drawn one after the other; None leaves one out."""
    return lambda draw: keywords(**{name: make(draw) for name, make in makers.items()})


def on(draw: Draw) -> Arg:
    """A flag that is off by default: left out, or True."""
    return draw.option(True)


def off(draw: Draw) -> Arg:
    """A flag that is on by default: left out, or False."""
    return draw.option(False)


def one_of(*values: Arg) -> Callable[[Draw], Arg]:
    """Left out, or one of the values."""
    return lambda draw: draw.option(*values)


REDUCTION = one_of("sum", "none")
