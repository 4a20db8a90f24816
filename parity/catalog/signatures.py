"""Signatures that several families use. Each function that returns a `Signature` offers the simplest call first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import Signature
from parity.core.case import Arg, TensorSpec, Values
from parity.core.dtypes import FACTS, FLOATS

Operand = Callable[[Draw, Shape], TensorSpec]
Options = Callable[[Draw], tuple[tuple[str, Arg], ...]]
Number = Callable[[Draw, Operand], Arg]


def anything(draw: Draw, shape: Shape) -> TensorSpec:
    """An operand without a domain."""
    return draw.tensor(shape)


def within(low: float, high: float) -> Operand:
    """An operand with values in [low, high], sometimes outside."""
    return lambda draw, shape: draw.between(shape, low, high)


def strictly(low: float, high: float) -> Operand:
    """An operand with values in [low, high], never outside."""
    return lambda draw, shape: draw.inside(shape, low, high)


def mostly(low: float, high: float) -> Operand:
    """An operand with values in [low, high], sometimes outside; in one case of four any values of its dtype."""
    return lambda draw, shape: draw.tensor(shape) if draw.pick(4) == 3 else draw.between(shape, low, high)


def divisor(draw: Draw, shape: Shape) -> TensorSpec:
    """Any values for floats; integers without 0, which the CPU refuses, and without -1, by which the smallest integer cannot be
    divided (the processor traps)."""
    if draw.is_inexact:
        return draw.tensor(shape)
    return draw.inside(shape, *((-9, -2) if draw.dtype != "uint8" and draw.pick(3) == 2 else (1, 9)))


def scalar(draw: Draw) -> Arg:
    """A Python number of the item's kind, or, in one case of four (for bool in three of four), of another kind, which torch
    promotes."""
    if draw.pick(4) < (1 if draw.kind == "bool" else 3):
        return draw.value()
    other: dict[str, tuple[Arg, ...]] = {
        "bool": (2, -1, 1, 0, 0.5), "int": (0.5, 2.5, True), "float": (True, 3, False), "complex": (0.5, True, 2),
    }  # fmt: skip
    return draw.choice(other[draw.kind])


def cast_scalar(draw: Draw) -> Arg:
    """A Python number that torch casts to the item's dtype: of the item's kind, or sometimes of another."""
    return draw.value() if draw.kind == "complex" else scalar(draw)


def any_scalar(draw: Draw) -> Arg:
    """A Python number of any kind, for ops that also take complex ones. (None with float16, which would become complex32.)"""
    if draw.kind != "complex" and draw.dtype != "float16" and draw.pick(12) == 11:
        return draw.choice((1j, 2 - 0.5j, complex(0.5, 0)))
    return scalar(draw)


CASTS = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
# Floats in the range of an integer type, and outside of it. torch casts to uint8 by way of int64 (`c10/util/TypeCast.h`), so
# values wrap; for int8 this is not documented, but the kernels of the CPU and of CUDA agree on it.
WITHIN = {"uint8": (-0.875, 255.5), "int8": (-128.5, 127.5), "int16": (-32768.5, 32767.5)}
WITHIN |= dict.fromkeys(("uint16", "uint32", "uint64"), (-0.875, 999.5))
BEYOND = {"uint8": (-999.5, 999.5), "int8": (-300.5, 300.5)}


def castable(draw: Draw, shape: Shape, dtype: str, source: str | None = None) -> TensorSpec:
    """A source of a cast to `dtype`, without values whose cast is undefined in C++ (floats outside wider integer types)."""
    source = source or draw.dtype
    if FACTS[source].kind in ("float", "complex") and FACTS[dtype].kind == "int":
        wide = dtype in BEYOND and draw.pick(3) > 0
        low, high = BEYOND[dtype] if wide else WITHIN.get(dtype, (-999.5, 999.5))
        return draw.inside(shape, low, high, dtype=source)
    if source == "uint8" and draw.flag():  # also the upper half, which would be negative if read as signed
        return draw.inside(shape, 0, 255, dtype=source)
    return draw.tensor(shape, dtype=source)


def source_of(draw: Draw) -> str:
    """The dtype of a source that is written into the item's dtype: the same, or another. Not complex into real, because torch
    warns that it drops the imaginary part."""
    if not draw.flag():
        return draw.dtype
    if draw.kind == "int" and draw.flag():
        return draw.choice(FLOATS)
    return draw.choice(CASTS if draw.kind == "complex" else CASTS[:-1])


def whole(low: int, high: int) -> Operand:
    """An operand of integers in [low, high] in any dtype, so that ties, zeros and values on edges are frequent."""

    def operand(draw: Draw, shape: Shape) -> TensorSpec:
        if draw.kind in ("int", "bool"):
            return draw.inside(shape, low, high)
        return TensorSpec(draw.dtype, shape, values=Values("index", (low, high + 1)))

    return operand


def count(draw: Draw, shape: Shape) -> TensorSpec:
    """An exponent: -3..3 for floats, small and not negative for integers."""
    return draw.between(shape, -3, 3) if draw.is_inexact else draw.inside(shape, 0, 5)


def none(draw: Draw) -> tuple[tuple[str, Arg], ...]:
    """No keyword arguments."""
    return ()


def unary(operand: Operand = anything, options: Options = none, *, low: int = 0, high: int = 5) -> Signature:
    """`f(x, **options)` over every shape of rank low..high."""

    def signature(draw: Draw) -> Arguments:
        return Arguments((operand(draw, draw.grown(draw.shape(low, high))),), options(draw))

    return signature


def own(draw: Draw, second: Operand) -> Arg:
    """A Python number of the item's kind that `second` may be."""
    if second is anything:
        return draw.value()
    if second is not divisor:
        return draw.choice((2, 1, 0, 3))
    return draw.choice((1, 2, 3, -2, 0.5, -1.5) if draw.is_inexact else (1, 2, 3) if draw.dtype == "uint8" else (1, 2, 3, -2))


def promoted(draw: Draw, second: Operand) -> Arg:
    """A Python number of the item's kind, sometimes of another."""
    if second is anything:
        return scalar(draw)
    return draw.choice((0.5, 2.5, -1.5)) if draw.kind == "int" and draw.pick(6) == 5 else own(draw, second)


def pair(
    first: Operand = anything,
    second: Operand = anything,
    options: Options = none,
    *,
    number: Number | None = own,
    both: bool = True,
) -> Signature:
    """`f(a, b, **options)` with broadcasting: of b, of a where `both`; b a Python scalar made by `number`."""

    def signature(draw: Draw) -> Arguments:
        kind = draw.pick(4)
        if kind == 1 and number is not None:
            # a 0-d tensor and a number promote by their kinds only
            odds = 2 if draw.kind == "bool" else 4
            shape = () if draw.pick(odds) == odds - 1 else draw.shape(0, 5)
            return Arguments((first(draw, shape), number(draw, second)), options(draw))
        shape = draw.grown(draw.shape(0, 5))
        if kind == 2 and both:
            return Arguments((first(draw, draw.broadcastable(shape)), second(draw, shape)), options(draw))
        other = shape if kind == 3 else draw.broadcastable(shape)
        return Arguments((first(draw, shape), second(draw, other)), options(draw))

    return signature


LONG = 1000, 1024, 1025, 2049, 4100
LONG_MASKS = 6  # one in this many masks is long: the counts of others are small numbers


def lengthy(draw: Draw, shape: Shape, dim: int) -> Shape:
    """The shape, or in one of 24 cases (of masks, `LONG_MASKS`) a shape with 1000 or more in dimension `dim` and tiny others;
    or the result of `Draw.grown`."""
    if not shape or not draw.rare(LONG_MASKS if draw.kind == "bool" else 24):
        return draw.grown(shape, dim)
    tiny = [min(s, 2) if len(shape) <= 3 else 1 for s in shape]
    tiny[dim] = draw.choice(LONG)
    return tuple(tiny)


def hollow(x: TensorSpec, dim: int) -> TensorSpec:
    """The operand with size 0 in a dimension other than `dim`; the operand itself if it has no other."""
    other = len(x.shape) - 1 - (dim % len(x.shape) == len(x.shape) - 1) if x.shape else -1
    return x if other < 0 else replace(x, shape=(*x.shape[:other], 0, *x.shape[other + 1 :]))


def along(operand: Operand = anything, options: Options = none, *, most: int | None = None) -> Signature:
    """`f(x, dim, **options)` for one dimension, positive or negative, sometimes a long one. most: limit for sizes, for ops that
    are slow on long dimensions."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(0, 5)
        d = draw.dim(shape)
        shape = lengthy(draw, shape, d)
        x = operand(draw, shape if most is None else tuple(min(n, most) for n in shape))
        return Arguments((x, d), options(draw))

    return signature


def options(**makers: Callable[[Draw], Arg]) -> Options:
    """Keyword arguments, drawn one after the other; one that is None is left out."""
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
