"""Data movement without arithmetic: copies, casts, fills, concatenation, repeats, flips, padding, triangles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    EVERY,
    EXACT,
    FLOATING,
    METHOD,
    NUMERIC,
    OUT,
    OWN,
    SCATTERED,
    Counts,
    Draws,
    Forms,
    Judged,
    Quirk,
    Row,
    Signature,
)
from parity.catalog.signatures import CASTS, cast_scalar, castable, scalar, source_of, unary
from parity.core.case import Arg, Word
from parity.core.dtypes import FACTS

SELDOM = "uint16", "uint32", "uint64"
_row = partial(Row, family="movement", rule=EXACT, dtypes=EVERY, grad=FLOATING)


def _targets(draw: Draw) -> tuple[str, ...]:
    """Target dtypes of a cast, sometimes one of those that few ops have. Complex to real is rare, because torch warns that it
    drops the imaginary part."""
    if draw.kind == "complex":
        return "complex64", "complex64", "complex64", "float32"
    return SELDOM if draw.rare(12) else CASTS


def _to(draw: Draw) -> Arguments:
    dtype = draw.choice(_targets(draw))
    shape = draw.shape(0, 5)
    form = draw.option(Word("preserve_format"), *_formats(shape)) if draw.pick(4) == 3 else None
    named = keywords(copy=draw.option(True), memory_format=form, non_blocking=True if draw.rare(6) else None)
    return Arguments((castable(draw, shape, dtype), Word(dtype)), named)


def _copy(draw: Draw) -> Arguments:
    """A destination, and a source that broadcasts to it, often of another dtype; one of them sometimes on the CPU, in a dtype
    that a device may not have."""
    shape = draw.shape(0, 5)
    if draw.is_inexact and draw.rare(8):
        wide = FACTS[draw.dtype].wide
        there = replace(draw.tensor(shape, dtype=wide, grad=False), on_cpu=True)
        if draw.flag():
            return Arguments((draw.tensor(shape), there))
        return Arguments((there, draw.tensor(draw.broadcastable(shape), grad=False)))
    source = castable(draw, draw.broadcastable(shape), draw.dtype, source_of(draw))
    return Arguments((draw.tensor(shape), source), keywords(non_blocking=True if draw.rare(6) else None))


def _fill(draw: Draw) -> Arguments:
    """With a number of any kind, or with a 0-d tensor of any dtype."""
    x = draw.tensor(draw.shape(0, 5))
    return Arguments((x, castable(draw, (), draw.dtype, source_of(draw)) if draw.flag() else scalar(draw)))


def _formats(shape: Shape) -> tuple[Arg, ...]:
    """Memory formats that a shape of this rank may take."""
    plain = (Word("contiguous_format"),)
    return (
        (*plain, Word("channels_last")) if len(shape) == 4 else (*plain, Word("channels_last_3d")) if len(shape) == 5 else plain
    )


def _contiguous(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(shape),), keywords(memory_format=draw.option(*_formats(shape))))


def _clone(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    formats = (Word("preserve_format"), *_formats(shape))
    return Arguments((draw.tensor(shape),), keywords(memory_format=draw.option(*formats)))


def _cat(draw: Draw) -> Arguments:
    """One to four pieces that differ along the dimension; sometimes with an empty vector among them."""
    shape = draw.shape(1, 5)
    d = draw.dim(shape)
    pieces = []
    count = draw.choice((33, 65, 130)) if draw.rare(24) else 2 if not draw.flag() else draw.choice((1, 3, 4))
    if count > 4:
        shape = tuple(min(s, 2) for s in shape)
    for k in range(count):
        size = shape[d] if k == 0 or not draw.flag() else draw.choice((1, 2, 3, 0))
        own = list(shape)
        own[d] = size
        pieces.append(draw.tensor(tuple(own)))
    if draw.pick(8) == 7:
        pieces.append(draw.tensor((0,)))
    return Arguments((tuple(pieces), d))


def _stack(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    many = draw.rare(24)
    shape = tuple(min(s, 2) for s in shape) if many else shape
    pieces = tuple(draw.tensor(shape) for _ in range(draw.choice((33, 65)) if many else draw.choice((2, 1, 3, 4))))
    rank = len(shape) + 1
    d = draw.pick(rank)
    return Arguments((pieces, d - rank if draw.flag() else d))


def _pieces(low: int, d: int) -> Signature:
    """Two or three tensors that may differ along dimension d (0 for vectors); of equal shape where torch adds dimensions."""

    def signature(draw: Draw) -> Arguments:
        if low and draw.rare(8):
            shape = draw.shape(0, low - 1)
            return Arguments((tuple(draw.tensor(shape) for _ in range(draw.choice((2, 1, 3)))),))
        shape = draw.shape(low, 4)
        where = min(d, len(shape) - 1)
        pieces = [draw.tensor(shape)]
        for _ in range(draw.choice((1, 2))):
            own = list(shape)
            if shape and draw.flag():
                own[where] = draw.choice((1, 2, 3))
            pieces.append(draw.tensor(tuple(own)))
        return Arguments((tuple(pieces),))

    return signature


def _repeat(draw: Draw) -> Arguments:
    shape = tuple(min(s, 64) for s in draw.shape(0, 4))
    rank = len(shape) + draw.pick(2)
    return Arguments((draw.tensor(shape), tuple(draw.extent((1, 2, 3, 0)) for _ in range(rank))))


def _tile(draw: Draw) -> Arguments:
    shape = tuple(min(s, 64) for s in draw.shape(0, 4))
    return Arguments((draw.tensor(shape), tuple(draw.extent((1, 2, 3)) for _ in range(draw.pick(5)))))


def _repeat_interleave(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    x = draw.tensor(shape)
    if not draw.flag():
        return Arguments((x, draw.choice((2, 1, 3, 0))))
    if not shape:
        return Arguments((x, draw.choice((2, 1, 3, 0))))
    d = draw.dim(shape)
    if draw.flag():
        return Arguments((x, draw.inside((shape[d],), 0, 3, dtype="int64", grad=False)), keywords(dim=d))
    return Arguments((x, draw.choice((2, 1, 3, 0))), keywords(dim=d))


def _flip(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(shape), draw.dims(shape) if shape or draw.flag() else ()))


def _roll(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    x = draw.tensor(shape)
    shifts = (1, -1, 2, 0, 5, -3)
    kind = draw.pick(3)
    if kind == 0 or not shape:
        return Arguments((x, draw.choice(shifts)))
    if kind == 1:
        return Arguments((x, draw.choice(shifts), draw.dim(shape)))
    dims = draw.dims(shape)
    return Arguments((x, tuple(draw.choice(shifts) for _ in dims), dims))


def _rot90(draw: Draw) -> Arguments:
    shape = draw.shape(2, 4)
    dims = draw.permutation(len(shape))[:2]
    return Arguments((draw.tensor(shape), draw.choice((1, 2, 3, -1, 0, 5)), dims))


def _triangle(draw: Draw) -> Arguments:
    shape = draw.shape(2, 5)
    return Arguments((draw.tensor(shape),), keywords(diagonal=draw.option(1, -1, 2, -3, 9, -9)))


def _matrix_triangle(draw: Draw) -> Arguments:
    return Arguments((draw.tensor(draw.shape(2, 2)),), keywords(diagonal=draw.option(1, -1, 2, -3)))


def _pad_constant(draw: Draw) -> Arguments:
    """Any number of trailing dimensions, sometimes none; negative amounts crop, but not everything."""
    shape = draw.shape(1, 5)
    pad: list[int] = []
    for k in range(0 if draw.rare(24) else 1 + draw.pick(len(shape))):
        size = shape[-1 - k]
        for _ in range(2):
            low = -1 if size >= 3 else 0
            pad.append(draw.choice((1, 0, 2, low, -((size - 1) // 2))))
    value = draw.value(2) if draw.flag() else None
    value = value.real if isinstance(value, complex) else value  # torch takes only a real number
    return Arguments((draw.tensor(shape), tuple(pad)), keywords(value=value))


def _pad_mode(mode: str) -> Signature:
    """Padding from the operand itself: the last one to three dimensions, with or without the batch."""

    def signature(draw: Draw) -> Arguments:
        count = 1 + draw.pick(3)
        lead = (draw.extent((1, 2, 3)),) if draw.flag() and mode != "circular" else (draw.batch(), draw.extent((1, 2, 3)))
        sizes = draw.shape(count, count, empty=False)
        if draw.rare(24):
            many = draw.choice((65536, 65537, 65535))
            lead = draw.choice(((many, 1), (1, many)))
            sizes = (*(1,) * (count - 1), 2)
        pad: list[int] = []
        for s in reversed(sizes):
            most = s - 1 if mode == "reflect" else s if mode == "circular" else 4
            cut = -1 if s >= 4 and draw.pick(6) == 5 else 0
            for _ in range(2):
                options = tuple(p for p in (1, 0, 2, 3) if p <= most)
                pad.append(cut or draw.choice(options))
        return Arguments((draw.tensor((*lead, *sizes)), tuple(pad)), keywords(mode=mode))

    return signature


def _pad_row(mode: str, dtypes: tuple[str, ...] = EVERY, more: tuple[str, ...] = (), accumulates: tuple[str, ...] = ()) -> Row:
    """Padding in a mode. more: further OpInfo entries."""
    opinfo = (f"nn.functional.pad:{mode}", *more)
    path = "torch.nn.functional.pad"
    return _row(
        f"pad_{mode}", _pad_mode(mode), call=path, dtypes=dtypes, judged=Judged(accumulates=accumulates), counts=Counts(opinfo)
    )


def _diagonals(draw: Draw) -> Arguments:
    return Arguments((draw.tensor(tuple(min(s, 257) for s in draw.shape(1, 3))),), keywords(offset=draw.option(1, -1, 2)))


def _diag(draw: Draw) -> Arguments:
    return Arguments((draw.tensor(tuple(min(s, 257) for s in draw.shape(1, 2))),), keywords(diagonal=draw.option(1, -1, 4, -4)))


def _flat_diagonal(draw: Draw) -> Arguments:
    shape = tuple(min(s, 17) for s in draw.shape(0, 3))
    return Arguments((draw.tensor(shape),), keywords(offset=draw.option(1, -1, 3, -3)))


def _meshgrid(draw: Draw) -> Arguments:
    vectors = tuple(draw.tensor(draw.lead(((2,), (1,), (3,), (5,), ()))) for _ in range(draw.choice((2, 1, 3))))
    return Arguments(vectors, keywords(indexing=draw.choice(("ij", "xy"))))


def _blocks(draw: Draw) -> Arguments:
    return Arguments(tuple(draw.tensor(tuple(min(s, 8) for s in draw.shape(0, 2))) for _ in range(draw.choice((2, 1, 3)))))


def _constant(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(shape), cast_scalar(draw)))


def _combinations(draw: Draw) -> Arguments:
    size, named = draw.extent((3, 1, 2, 5)), keywords(r=draw.option(1, 3), with_replacement=draw.option(True))
    return Arguments((draw.tensor((min(size, 33 if ("r", 3) in named else 257),)),), named)


def _like(draw: Draw) -> Arguments:
    """Strides kept, or a memory format; another dtype."""
    shape = draw.shape(0, 5)
    return Arguments(
        (draw.tensor(shape),),
        keywords(dtype=draw.option(Word("float32"), Word("int64")), memory_format=draw.option(*_formats(shape))),
    )


ROWS = (
    _row(
        "copy_",
        _copy,
        call="torch.Tensor.*",
        forms=Forms(mutates=True),
        draws=Draws(on_cpu="either"),
        quirks=(Quirk.TRANSFERS,),
    ),
    _row("fill_", _fill, call="torch.Tensor.*", forms=Forms(mutates=True), counts=Counts(("fill",))),
    _row("zero_", unary(), call="torch.Tensor.*", forms=Forms(mutates=True), counts=OWN),
    _row("to", _to, call="torch.Tensor.*", judged=Judged(oracle="exact"), counts=OWN, quirks=(Quirk.TRANSFERS,)),
    _row("clone", _clone, forms=Forms(strides=True), counts=OWN),
    _row("contiguous", _contiguous, call="torch.Tensor.*", forms=Forms(strides=True), counts=OWN),
    _row("full_like", _constant, grad=(), forms=Forms(strides=True), counts=OWN),
    _row("zeros_like", _like, grad=(), forms=Forms(strides=True), counts=OWN),
    _row("ones_like", _like, grad=(), forms=Forms(strides=True), counts=OWN),
    _row("cat", _cat, forms=Forms(out=True, promotes=True), counts=OWN),
    _row("stack", _stack, forms=Forms(out=True, promotes=True), counts=OWN),
    _row("hstack", _pieces(0, 1), forms=Forms(out=True, promotes=True), counts=OWN),
    _row("vstack", _pieces(2, 0), forms=Forms(out=True, promotes=True), counts=OWN),
    _row("dstack", _pieces(3, 2), forms=Forms(out=True, promotes=True), counts=OWN),
    _row("column_stack", _pieces(2, 1), forms=Forms(out=True, promotes=True), counts=OWN),
    _row("repeat", _repeat, call="torch.Tensor.*", counts=OWN),
    _row("tile", _tile, counts=OWN),
    _row("repeat_interleave", _repeat_interleave, judged=Judged(accumulates=SCATTERED), counts=OWN),
    _row("flip", _flip, counts=OWN),
    _row("fliplr", unary(low=2), counts=OWN),
    _row("flipud", unary(low=1), counts=OWN),
    _row("roll", _roll, counts=OWN),
    _row("rot90", _rot90, counts=OWN),
    # No out=: torch 2.13 on the CPU writes outside a destination whose batch dimensions cannot be merged.
    *(_row(f"{name}_matrix", _matrix_triangle, call=f"torch.{name}", forms=OUT) for name in ("tril", "triu")),
    _row("tril", _triangle, forms=Forms(inplace=METHOD), counts=OWN),
    _row("triu", _triangle, forms=Forms(inplace=METHOD), counts=OWN),
    _row(
        "pad_constant",
        _pad_constant,
        call="torch.nn.functional.pad",
        counts=Counts(("nn.functional.pad:constant", "constant_pad_nd")),
    ),
    _pad_row("reflect", NUMERIC, accumulates=SCATTERED),
    _pad_row("replicate", NUMERIC, ("nn.functional.pad:replicate_negative",), SCATTERED),
    _pad_row("circular"),
    _row("diag", _diag, forms=OUT, counts=OWN),
    _row("diag_embed", _diagonals, counts=OWN),
    _row("diagflat", _flat_diagonal, dtypes=("float32", "int64"), grad=("float32",), counts=OWN),
    _row("meshgrid", _meshgrid, counts=Counts(("meshgrid:variadic_tensors", "meshgrid:list_of_tensors"))),
    _row("combinations", _combinations, counts=OWN),
    _row(
        "cartesian_prod",
        lambda draw: Arguments(tuple(draw.tensor((draw.extent((2, 1, 3)),)) for _ in range(draw.choice((2, 1, 3))))),
        counts=OWN,
    ),
    _row("block_diag", _blocks, counts=OWN),
)
