"""Signatures that several families share. Each maker returns a `Signature`; the simplest call comes first at every pick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import Signature
from parity.dtypes import FACTS, FLOATS
from parity.vocabulary import Arg, TensorSpec, Values

Operand = Callable[[Draw, Shape], TensorSpec]
Options = Callable[[Draw], tuple[tuple[str, Arg], ...]]
Number = Callable[[Draw, Operand], Arg]


def anything(draw: Draw, shape: Shape) -> TensorSpec:
    """An operand without a domain."""
    return draw.tensor(shape)


def within(low: float, high: float) -> Operand:
    """An operand with values in [low, high], now and then beyond."""
    return lambda draw, shape: draw.between(shape, low, high)


def strictly(low: float, high: float) -> Operand:
    """An operand with values in [low, high], never beyond."""
    return lambda draw, shape: draw.inside(shape, low, high)


def mostly(low: float, high: float) -> Operand:
    """An operand with values in [low, high], now and then beyond; in one case of four anything of its dtype."""
    return lambda draw, shape: draw.tensor(shape) if draw.pick(4) == 3 else draw.between(shape, low, high)


def divisor(draw: Draw, shape: Shape) -> TensorSpec:
    """Anything for floats; integers without 0, by which the CPU refuses to divide, and -1, by which the smallest integer
    has no quotient (the processor traps)."""
    if draw.is_inexact:
        return draw.tensor(shape)
    return draw.inside(shape, *((-9, -2) if draw.dtype != "uint8" and draw.pick(3) == 2 else (1, 9)))


def scalar(draw: Draw, simple: float = 1) -> Arg:
    """A Python number of the item's kind, or, in one case of four (beside truth values in most), of another kind, which torch
    promotes."""
    if draw.pick(4) < (1 if draw.kind == "bool" else 3):
        return draw.value(simple)
    other: dict[str, tuple[Arg, ...]] = {
        "bool": (2, -1, 1, 0, 0.5), "int": (0.5, 2.5, True), "float": (True, 3, False), "complex": (0.5, True, 2),
    }  # fmt: skip
    return draw.choice(other[draw.kind])


def cast_scalar(draw: Draw) -> Arg:
    """A Python number that is written, so that it becomes the item's dtype: of the item's kind, or now and then of another."""
    return draw.value() if draw.kind == "complex" else scalar(draw)


def any_scalar(draw: Draw, simple: float = 1) -> Arg:
    """A Python number of any kind, for ops that also take complex ones. (float16 would become complex32, which hardly an op
    takes.)"""
    if draw.kind != "complex" and draw.dtype != "float16" and draw.pick(12) == 11:
        return draw.choice((1j, 2 - 0.5j, complex(0.5, 0)))
    return scalar(draw, simple)


CASTS = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
# Floats that an integer type holds, and beyond. torch casts to uint8 by way of int64 (`c10/util/TypeCast.h`), so that whatever
# int64 holds wraps round; the same for int8 is not promised, but the processors' and NVIDIA's kernels agree on it.
WITHIN = {"uint8": (-0.875, 255.5), "int8": (-128.5, 127.5), "int16": (-32768.5, 32767.5)}
BEYOND = {"uint8": (-999.5, 999.5), "int8": (-300.5, 300.5)}


def castable(draw: Draw, shape: Shape, dtype: str, source: str | None = None) -> TensorSpec:
    """A source of a cast: what C++ leaves undefined (a float that no wider integer type holds) is not drawn."""
    source = source or draw.dtype
    if FACTS[source].kind in ("float", "complex") and FACTS[dtype].kind == "int":
        wide = dtype in BEYOND and draw.pick(3) > 0
        low, high = BEYOND[dtype] if wide else WITHIN.get(dtype, (-999.5, 999.5))
        return draw.inside(shape, low, high, dtype=source)
    if source == "uint8" and draw.flag():  # the upper half, too, which is negative to what takes it for signed
        return draw.inside(shape, 0, 255, dtype=source)
    return draw.tensor(shape, dtype=source)


def source_of(draw: Draw) -> str:
    """The dtype of what is written into the item's: its own, or another. Nothing complex into real numbers: torch warns that
    it drops half of them."""
    if not draw.flag():
        return draw.dtype
    if draw.kind == "int" and draw.flag():
        return draw.choice(FLOATS)
    return draw.choice(CASTS if draw.kind == "complex" else CASTS[:-1])


def whole(low: int, high: int) -> Operand:
    """An operand of whole numbers in [low, high] in any dtype, so that equal ones, zeros and exact edges are frequent."""

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

    def signature(draw: Draw) -> Call:
        return Call((operand(draw, draw.grown(draw.shape(low, high))),), options(draw))

    return signature


def own(draw: Draw, second: Operand) -> Arg:
    """A Python number of the item's kind that `second` may be."""
    if second is anything:
        return draw.value()
    if second is not divisor:
        return draw.choice((2, 1, 0, 3))
    return draw.choice((1, 2, 3, -2, 0.5, -1.5) if draw.is_inexact else (1, 2, 3) if draw.dtype == "uint8" else (1, 2, 3, -2))


def promoted(draw: Draw, second: Operand) -> Arg:
    """A Python number, now and then of another kind than the item's."""
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

    def signature(draw: Draw) -> Call:
        kind = draw.pick(4)
        if kind == 1 and number is not None:
            # a 0-d tensor and a number rank by their kinds alone
            odds = 2 if draw.kind == "bool" else 4
            shape = () if draw.pick(odds) == odds - 1 else draw.shape(0, 5)
            return Call((first(draw, shape), number(draw, second)), options(draw))
        shape = draw.grown(draw.shape(0, 5))
        if kind == 2 and both:
            return Call((first(draw, draw.broadcastable(shape)), second(draw, shape)), options(draw))
        other = shape if kind == 3 else draw.broadcastable(shape)
        return Call((first(draw, shape), second(draw, other)), options(draw))

    return signature


LONG = 1000, 1024, 1025, 2049, 4100


def lengthy(draw: Draw, shape: Shape, dim: int, odds: int = 24) -> Shape:
    """The shape, or in one of `odds` cases with a dimension of a thousand and more, and the others tiny; or grown, where the
    profile allows it."""
    if not shape or not draw.rare(odds):
        return draw.grown(shape, dim)
    tiny = [min(s, 2) if len(shape) <= 3 else 1 for s in shape]
    tiny[dim] = draw.choice(LONG)
    return tuple(tiny)


def hollow(x: TensorSpec, dim: int) -> TensorSpec:
    """The operand without elements, although there are some to take along `dim`: a dimension beside it is 0."""
    beside = len(x.shape) - 1 - (dim % len(x.shape) == len(x.shape) - 1) if x.shape else -1
    return x if beside < 0 else replace(x, shape=(*x.shape[:beside], 0, *x.shape[beside + 1 :]))


def along(
    operand: Operand = anything,
    options: Options = none,
    *,
    low: int = 0,
    high: int = 5,
    empty: bool = True,
    by_name: bool = False,
    most: int | None = None,
) -> Signature:
    """`f(x, dim, **options)` for one dimension, positive or negative, now and then a long one; `f(x, dim=dim)` where
    `by_name`. most: the longest dimension, where a call is dearer than its elements."""

    def signature(draw: Draw) -> Call:
        shape = draw.shape(low, high, empty=empty)
        d = draw.dim(shape)
        shape = lengthy(draw, shape, d)
        x = operand(draw, shape if most is None else tuple(min(n, most) for n in shape))
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
