"""Data movement without arithmetic: copies, casts, fills, joins, repeats, flips, padding, triangles."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import EVERY, FLOATING, NUMERIC, Row, Signature
from parity.catalog.signatures import CASTS, cast_scalar, castable, scalar, source_of, unary
from parity.vocabulary import Arg, OpClass, Word

_row = partial(Row, family="movement", rule=OpClass.EXACT, dtypes=EVERY, grad=FLOATING)


def _targets(draw: Draw) -> tuple[str, ...]:
    """Dtypes that a cast may lead to. Complex numbers seldom become real: torch warns that it drops half of them."""
    return ("complex64", "complex64", "complex64", "float32") if draw.kind == "complex" else CASTS


def _to(draw: Draw) -> Call:
    dtype = draw.choice(_targets(draw))
    shape = draw.shape(0, 5)
    form = draw.option(Word("preserve_format"), *_formats(shape)) if draw.pick(4) == 3 else None
    named = keywords(copy=draw.option(True), memory_format=form, non_blocking=True if draw.rare(6) else None)
    return Call((castable(draw, shape, dtype), Word(dtype)), named)


def _copy(draw: Draw) -> Call:
    """Into a tensor, from one that broadcasts to it, often of another dtype."""
    shape = draw.shape(0, 5)
    source = castable(draw, draw.broadcastable(shape), draw.dtype, source_of(draw))
    return Call((draw.tensor(shape), source), keywords(non_blocking=True if draw.rare(6) else None))


def _fill(draw: Draw) -> Call:
    """With a number of any kind, or with a 0-d tensor of any dtype."""
    x = draw.tensor(draw.shape(0, 5))
    return Call((x, castable(draw, (), draw.dtype, source_of(draw)) if draw.flag() else scalar(draw)))


def _formats(shape: Shape) -> tuple[Arg, ...]:
    """Memory formats that a shape of this rank may take."""
    plain = (Word("contiguous_format"),)
    return (
        (*plain, Word("channels_last")) if len(shape) == 4 else (*plain, Word("channels_last_3d")) if len(shape) == 5 else plain
    )


def _contiguous(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    return Call((draw.tensor(shape),), keywords(memory_format=draw.option(*_formats(shape))))


def _clone(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    formats = (Word("preserve_format"), *_formats(shape))
    return Call((draw.tensor(shape),), keywords(memory_format=draw.option(*formats)))


def _cat(draw: Draw) -> Call:
    """One to four pieces that differ along the dimension; an empty vector among them now and then."""
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
    return Call((tuple(pieces), d))


def _stack(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    many = draw.rare(24)
    shape = tuple(min(s, 2) for s in shape) if many else shape
    pieces = tuple(draw.tensor(shape) for _ in range(draw.choice((33, 65)) if many else draw.choice((2, 1, 3, 4))))
    rank = len(shape) + 1
    d = draw.pick(rank)
    return Call((pieces, d - rank if draw.flag() else d))


def _pieces(low: int, d: int) -> Signature:
    """Two or three tensors that may differ along dimension d (0 for vectors); alike, where torch gives them more dimensions."""

    def signature(draw: Draw) -> Call:
        if low and draw.rare(8):
            shape = draw.shape(0, low - 1)
            return Call((tuple(draw.tensor(shape) for _ in range(draw.choice((2, 1, 3)))),))
        shape = draw.shape(low, 4)
        where = min(d, len(shape) - 1)
        pieces = [draw.tensor(shape)]
        for _ in range(draw.choice((1, 2))):
            own = list(shape)
            if shape and draw.flag():
                own[where] = draw.choice((1, 2, 3))
            pieces.append(draw.tensor(tuple(own)))
        return Call((tuple(pieces),))

    return signature


def _repeat(draw: Draw) -> Call:
    shape = tuple(min(s, 64) for s in draw.shape(0, 4))
    rank = len(shape) + draw.pick(2)
    return Call((draw.tensor(shape), tuple(draw.choice((1, 2, 3, 0)) for _ in range(rank))))


def _tile(draw: Draw) -> Call:
    shape = tuple(min(s, 64) for s in draw.shape(0, 4))
    return Call((draw.tensor(shape), tuple(draw.choice((1, 2, 3)) for _ in range(draw.pick(5)))))


def _repeat_interleave(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    x = draw.tensor(shape)
    if not draw.flag():
        return Call((x, draw.choice((2, 1, 3, 0))))
    if not shape:
        return Call((x, draw.choice((2, 1, 3, 0))))
    d = draw.dim(shape)
    if draw.flag():
        return Call((x, draw.inside((shape[d],), 0, 3, dtype="int64", grad=False)), keywords(dim=d))
    return Call((x, draw.choice((2, 1, 3, 0))), keywords(dim=d))


def _flip(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    return Call((draw.tensor(shape), draw.dims(shape) if shape or draw.flag() else ()))


def _roll(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    x = draw.tensor(shape)
    shifts = (1, -1, 2, 0, 5, -3)
    kind = draw.pick(3)
    if kind == 0 or not shape:
        return Call((x, draw.choice(shifts)))
    if kind == 1:
        return Call((x, draw.choice(shifts), draw.dim(shape)))
    dims = draw.dims(shape)
    return Call((x, tuple(draw.choice(shifts) for _ in dims), dims))


def _rot90(draw: Draw) -> Call:
    shape = draw.shape(2, 4)
    dims = draw.permutation(len(shape))[:2]
    return Call((draw.tensor(shape), draw.choice((1, 2, 3, -1, 0, 5)), dims))


def _triangle(draw: Draw) -> Call:
    shape = draw.shape(2, 5)
    return Call((draw.tensor(shape),), keywords(diagonal=draw.option(1, -1, 2, -3, 9, -9)))


def _matrix_triangle(draw: Draw) -> Call:
    return Call((draw.tensor(draw.shape(2, 2)),), keywords(diagonal=draw.option(1, -1, 2, -3)))


def _pad_constant(draw: Draw) -> Call:
    """Any number of trailing dimensions, now and then none; negative amounts cut, as long as something may remain."""
    shape = draw.shape(1, 5)
    pad: list[int] = []
    for k in range(0 if draw.rare(24) else 1 + draw.pick(len(shape))):
        size = shape[-1 - k]
        for _ in range(2):
            low = -1 if size >= 3 else 0
            pad.append(draw.choice((1, 0, 2, low, -((size - 1) // 2))))
    value = draw.value(2) if draw.flag() else None
    value = value.real if isinstance(value, complex) else value  # torch takes a real number alone
    return Call((draw.tensor(shape), tuple(pad)), keywords(value=value))


def _pad_mode(mode: str) -> Signature:
    """Padding from the operand itself: the last one to three dimensions, with or without the batch."""

    def signature(draw: Draw) -> Call:
        count = 1 + draw.pick(3)
        lead = (
            (draw.choice((1, 2, 3)),) if draw.flag() and mode != "circular" else (draw.choice((1, 2)), draw.choice((1, 2, 3)))
        )
        sizes = draw.shape(count, count, empty=False)
        if draw.rare(40):
            lead = draw.choice(((65537, 1), (1, 65537)))
            sizes = (*(1,) * (count - 1), 2)
        pad: list[int] = []
        for s in reversed(sizes):
            most = s - 1 if mode == "reflect" else s if mode == "circular" else 4
            cut = -1 if s >= 4 and draw.pick(6) == 5 else 0
            for _ in range(2):
                options = tuple(p for p in (1, 0, 2, 3) if p <= most)
                pad.append(cut or draw.choice(options))
        return Call((draw.tensor((*lead, *sizes)), tuple(pad)), keywords(mode=mode))

    return signature


def _pad_row(mode: str, dtypes: tuple[str, ...] = EVERY, opinfo: tuple[str, ...] = ()) -> Row:
    return _row(
        name=f"pad_{mode}",
        call="torch.nn.functional.pad",
        signature=_pad_mode(mode),
        dtypes=dtypes,
        opinfo=opinfo or (f"nn.functional.pad:{mode}",),
    )


def _diagonals(draw: Draw) -> Call:
    return Call((draw.tensor(tuple(min(s, 257) for s in draw.shape(1, 3))),), keywords(offset=draw.option(1, -1, 2)))


def _diag(draw: Draw) -> Call:
    return Call((draw.tensor(tuple(min(s, 257) for s in draw.shape(1, 2))),), keywords(diagonal=draw.option(1, -1, 4, -4)))


def _meshgrid(draw: Draw) -> Call:
    vectors = tuple(draw.tensor(draw.choice(((2,), (1,), (3,), (5,), ()))) for _ in range(draw.choice((2, 1, 3))))
    return Call(vectors, keywords(indexing=draw.choice(("ij", "xy"))))


def _blocks(draw: Draw) -> Call:
    return Call(tuple(draw.tensor(tuple(min(s, 8) for s in draw.shape(0, 2))) for _ in range(draw.choice((2, 1, 3)))))


def _constant(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    return Call((draw.tensor(shape), cast_scalar(draw)))


def _combinations(draw: Draw) -> Call:
    return Call((draw.tensor((draw.choice((3, 1, 2, 5)),)),), keywords(r=draw.option(1, 3), with_replacement=draw.option(True)))


def _like(draw: Draw) -> Call:
    """Strides kept, or a memory format; another dtype."""
    shape = draw.shape(0, 5)
    return Call(
        (draw.tensor(shape),),
        keywords(dtype=draw.option(Word("float32"), Word("int64")), memory_format=draw.option(*_formats(shape))),
    )


ROWS = (
    _row(name="copy_", call="torch.Tensor.copy_", signature=_copy, mutates=True),
    _row(name="fill_", call="torch.Tensor.fill_", signature=_fill, mutates=True, opinfo=("fill",)),
    _row(name="zero_", call="torch.Tensor.zero_", signature=unary(), mutates=True, opinfo=("zero_",)),
    _row(name="to", call="torch.Tensor.to", signature=_to, oracle="exact", opinfo=("to",)),
    _row(name="clone", call="torch.clone", signature=_clone, strides=True, opinfo=("clone",)),
    _row(name="contiguous", call="torch.Tensor.contiguous", signature=_contiguous, strides=True, opinfo=("contiguous",)),
    _row(name="full_like", call="torch.full_like", signature=_constant, grad=(), strides=True, opinfo=("full_like",)),
    _row(name="zeros_like", call="torch.zeros_like", signature=_like, grad=(), strides=True, opinfo=("zeros_like",)),
    _row(name="ones_like", call="torch.ones_like", signature=_like, grad=(), strides=True, opinfo=("ones_like",)),
    _row(name="cat", call="torch.cat", signature=_cat, out=True, promotes=True, opinfo=("cat",)),
    _row(name="stack", call="torch.stack", signature=_stack, out=True, promotes=True, opinfo=("stack",)),
    _row(name="hstack", call="torch.hstack", signature=_pieces(0, 1), out=True, promotes=True, opinfo=("hstack",)),
    _row(name="vstack", call="torch.vstack", signature=_pieces(2, 0), out=True, promotes=True, opinfo=("vstack",)),
    _row(name="dstack", call="torch.dstack", signature=_pieces(3, 2), out=True, promotes=True, opinfo=("dstack",)),
    _row(
        name="column_stack",
        call="torch.column_stack",
        signature=_pieces(2, 1),
        out=True,
        promotes=True,
        opinfo=("column_stack",),
    ),
    _row(name="repeat", call="torch.Tensor.repeat", signature=_repeat, opinfo=("repeat",)),
    _row(name="tile", call="torch.tile", signature=_tile, opinfo=("tile",)),
    _row(
        name="repeat_interleave",
        call="torch.repeat_interleave",
        signature=_repeat_interleave,
        never=(("argument negative dim", "shape 0-d"),),  # torch asks for more than one dimension then
        opinfo=("repeat_interleave",),
    ),
    _row(name="flip", call="torch.flip", signature=_flip, opinfo=("flip",)),
    _row(name="fliplr", call="torch.fliplr", signature=unary(low=2), opinfo=("fliplr",)),
    _row(name="flipud", call="torch.flipud", signature=unary(low=1), opinfo=("flipud",)),
    _row(name="roll", call="torch.roll", signature=_roll, opinfo=("roll",)),
    _row(name="rot90", call="torch.rot90", signature=_rot90, opinfo=("rot90",)),
    # No out=: torch 2.13 on the CPU writes beside a destination whose batch dimensions cannot be merged.
    *(_row(name=f"{name}_matrix", call=f"torch.{name}", signature=_matrix_triangle, out=True) for name in ("tril", "triu")),
    _row(name="tril", call="torch.tril", signature=_triangle, inplace="torch.Tensor.tril_", opinfo=("tril",)),
    _row(name="triu", call="torch.triu", signature=_triangle, inplace="torch.Tensor.triu_", opinfo=("triu",)),
    _row(
        name="pad_constant",
        call="torch.nn.functional.pad",
        signature=_pad_constant,
        opinfo=("nn.functional.pad:constant", "constant_pad_nd"),
    ),
    _pad_row("reflect", NUMERIC),
    _pad_row("replicate", NUMERIC, opinfo=("nn.functional.pad:replicate", "nn.functional.pad:replicate_negative")),
    _pad_row("circular"),
    _row(name="diag", call="torch.diag", signature=_diag, out=True, opinfo=("diag",)),
    _row(name="diag_embed", call="torch.diag_embed", signature=_diagonals, opinfo=("diag_embed",)),
    _row(
        name="meshgrid",
        call="torch.meshgrid",
        signature=_meshgrid,
        opinfo=("meshgrid:variadic_tensors", "meshgrid:list_of_tensors"),
    ),
    _row(name="combinations", call="torch.combinations", signature=_combinations, opinfo=("combinations",)),
    _row(
        name="cartesian_prod",
        call="torch.cartesian_prod",
        signature=lambda draw: Call(tuple(draw.tensor((draw.choice((2, 1, 3)),)) for _ in range(draw.choice((2, 1, 3))))),
        opinfo=("cartesian_prod",),
    ),
    _row(name="block_diag", call="torch.block_diag", signature=_blocks, opinfo=("block_diag",)),
)
