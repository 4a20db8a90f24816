"""Fourier transforms: any length, padded or cut, every normalisation."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import COMPOSITE, EVERY, EXACT, GLUE, OWN, Counts, Forms, Judged, Row, Signature
from parity.core.case import Arg

# The CPU transforms float32 and complex64; integers and bool are promoted.
TYPES = ("float32", "complex64", "int64", "int32", "uint8", "bool")
REAL = ("float32", "int64", "int32", "uint8", "bool")
INEXACT = ("float32", "complex64")
# Integers are promoted, and rounded to the result's dtype before the transform.
_row = partial(Row, family="fft", rule=COMPOSITE, forms=Forms(promotes=True), judged=Judged(transform=True))
NORMS = "ortho", "forward", "backward"


def _one(low: int = 1) -> Signature:
    """One dimension, and a length shorter or longer than it."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(1, 5, empty=False)
        dim = draw.option(draw.dim(shape))
        d = -1 if dim is None else dim
        length = draw.option(shape[d] + 1, shape[d] + 3, max(low, shape[d] - 1)) if shape[d] >= low else low + 1
        return Arguments((draw.tensor(shape),), keywords(n=length, dim=dim, norm=draw.option(*NORMS)))

    return signature


def _half() -> Signature:
    """From half a spectrum: the length of the result must be possible, so it is given for a single bin."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(1, 5, empty=False)
        dim = draw.option(draw.dim(shape))
        size = shape[-1 if dim is None else dim]
        natural = 2 * (size - 1)
        length: Arg = draw.option(natural + 1, natural + 2) if natural > 0 else draw.choice((1, 2, 3))
        return Arguments((draw.tensor(shape),), keywords(n=length, dim=dim, norm=draw.option(*NORMS)))

    return signature


def _lengths(draw: Draw, count: int) -> Arg:
    """Left out, or a length of the transform for each dimension: cut or padded, odd and even."""
    return tuple(draw.choice((4, 3, 5, 2, 8)) for _ in range(count)) if draw.pick(3) == 2 else None


def _two(half: bool = False) -> Signature:
    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(2, 4, empty=False)
        shape = (*shape[:-1], shape[-1] + 1) if half else shape
        dim: Arg = None if half or not draw.flag() else draw.permutation(len(shape))[:2]
        if isinstance(dim, tuple) and draw.flag():
            dim = tuple(int(d) - len(shape) for d in dim if isinstance(d, int))
        named = keywords(s=_lengths(draw, 2), dim=dim, norm=draw.option(*NORMS))
        return Arguments((draw.tensor(shape),), named)

    return signature


def _many(half: bool = False) -> Signature:
    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(1, 4, empty=False)
        # torch 2.13's CPU writes outside its memory from 512 on: irfftn(randn(2, 512, 2)), three times, ends the process
        shape = (*(min(s, 257) for s in shape[:-1]), shape[-1] + 1) if half else shape
        dim = None if half or not draw.flag() else draw.dims(shape)
        lengths = _lengths(draw, len(dim)) if dim else None
        return Arguments((draw.tensor(shape),), keywords(s=lengths, dim=dim, norm=draw.option(*NORMS)))

    return signature


def _shift(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    return Arguments((draw.tensor(shape),), keywords(dim=draw.option(draw.dims(shape))))


def _stft(draw: Draw) -> Arguments:
    """A signal of several windows, in one or several rows."""
    n = draw.choice((4, 5, 8, 16))
    length = n * draw.extent((2, 3, 5)) + draw.choice((0, 1))
    x = draw.tensor((length,) if not draw.flag() else (2, length))
    window = draw.maybe(draw.inside((n,), 0, 1, dtype="float32"))
    sided = draw.option(False) if draw.kind == "float" else None
    mode = draw.option("constant", "replicate")
    named = keywords(hop_length=draw.option(1, n // 2), center=draw.option(False), normalized=draw.option(True), onesided=sided)
    named = (*named, *keywords(pad_mode=mode))
    return Arguments((x, n, window), named)


def _round_trip(draw: Draw) -> Arguments:
    n = draw.choice((4, 8, 16))
    length = n * draw.extent((2, 3, 5))
    window = draw.maybe(draw.inside((n,), 0.5, 1, dtype="float32"))
    return Arguments((draw.tensor((length,) if not draw.flag() else (2, length)), n, window, length))


def _transform(name: str, signature: Signature, dtypes: tuple[str, ...] = TYPES) -> Row:
    return _row(
        f"fft.{name}",
        signature,
        dtypes=dtypes,
        grad=tuple(d for d in dtypes if d in INEXACT),
        forms=Forms(out=True, promotes=True),
        counts=OWN,
    )


SOME = ("float32", "complex64")  # of composites of the rows above, with a conjugate between
ROWS = (
    _transform("fft", _one()),
    _transform("ifft", _one()),
    _transform("rfft", _one(), REAL),
    _transform("irfft", _half()),
    _transform("hfft", _half()),
    _transform("ihfft", _one(), REAL),
    _transform("fft2", _two()),
    _transform("ifft2", _two()),
    _transform("rfft2", _two(), REAL),
    _transform("irfft2", _two(half=True)),
    _transform("fftn", _many()),
    _transform("ifftn", _many()),
    _transform("rfftn", _many(), REAL),
    _transform("irfftn", _many(half=True)),
    _transform("hfft2", _two(half=True), SOME),
    _transform("ihfft2", _two(), ("float32",)),
    _transform("hfftn", _many(half=True), SOME),
    _transform("ihfftn", _many(), ("float32",)),
    _row("fft.fftshift", _shift, rule=EXACT, dtypes=EVERY, grad=("float32", "float16", "bfloat16", "complex64"), counts=OWN),
    _row("fft.ifftshift", _shift, rule=EXACT, dtypes=EVERY, grad=("float32", "float16", "bfloat16", "complex64"), counts=OWN),
    _row("stft", _stft, call=GLUE, dtypes=INEXACT, grad=INEXACT, counts=Counts(("stft",))),
    _row(
        "istft",
        _round_trip,
        call="parity.catalog.glue.calls.round_trip_stft",
        dtypes=("float32",),
        grad=("float32",),
        counts=Counts(("istft",)),
    ),
)
