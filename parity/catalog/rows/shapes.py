"""Views: other shapes, orders and parts of the same storage."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import EVERY, EXACT, FLOATING, OWN, Counts, Draws, Forms, Judged, Quirk, Refuses, Row
from parity.catalog.signatures import unary
from parity.core.case import Arg, Word
from parity.core.dtypes import FLOATS

_row = partial(Row, family="shapes", rule=EXACT, dtypes=EVERY, grad=FLOATING, forms=Forms(view=True))


def _reshaped(draw: Draw, shape: Shape) -> Shape:
    """Another shape with the same number of elements: flat, with -1, with size-1 dimensions, or with two dimensions merged."""
    kind = draw.pick(4)
    n = 1
    for s in shape:
        n *= s
    if kind == 0 or not shape:
        return (n,)
    if kind == 1:
        return (-1,) if n else (n,)
    if kind == 2:
        return (1, *shape, 1)
    return (shape[0] * shape[1], *shape[2:]) if len(shape) > 1 else (1, *shape)


def _reshape(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(shape), _reshaped(draw, shape)))


def _view_dtype(draw: Draw) -> Arguments:
    """Other dtypes of the same width."""
    same = {
        "float32": ("int32",), "int32": ("float32",), "float16": ("int16", "bfloat16"), "bfloat16": ("int16", "float16"),
        "int16": ("float16", "bfloat16"), "int8": ("uint8",), "uint8": ("int8", "bool"), "bool": ("uint8",),
        "int64": ("complex64",), "complex64": ("int64",),
    }  # fmt: skip
    x = draw.inside(draw.shape(0, 4), 0, 1, grad=False) if draw.dtype == "uint8" else draw.tensor(draw.shape(0, 4), grad=False)
    return Arguments((x, Word(draw.choice(same[draw.dtype]))))


def _transpose(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(shape), draw.dim(shape), draw.dim(shape)))


def _permute(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(shape), draw.dims(shape, len(shape)) if shape else ()))


def _movedim(draw: Draw) -> Arguments:
    shape = () if draw.rare(16) else draw.shape(1, 5)
    if not shape or draw.flag():
        return Arguments((draw.tensor(shape), draw.dim(shape), draw.dim(shape)))
    count = 1 + draw.pick(len(shape))
    source, target = draw.permutation(len(shape))[:count], draw.permutation(len(shape))[:count]
    return Arguments((draw.tensor(shape), source, target))


def _expand(draw: Draw) -> Arguments:
    """Size-1 dimensions grow, -1 keeps one, new ones come in front."""
    shape = draw.shape(0, 4)
    target = tuple(draw.choice((2, 1, 3)) if s == 1 else draw.choice((s, -1)) for s in shape)
    lead = tuple(draw.choice((1, 2, 3)) for _ in range(draw.pick(2)))
    return Arguments((draw.tensor(shape), (*lead, *target)))


def _broadcast_to(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(draw.broadcastable(shape)), shape))


def _squeeze(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    kind = draw.pick(3)
    if kind == 0:
        return Arguments((draw.tensor(shape),))
    return Arguments((draw.tensor(shape), draw.dim(shape) if kind == 1 or not shape else draw.dims(shape)))


def _unsqueeze(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    rank = len(shape) + 1
    d = draw.pick(rank)
    return Arguments((draw.tensor(shape), d - rank if draw.flag() else d))


def _narrow(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    d = draw.dim(shape)
    start = draw.pick(shape[d]) if shape[d] else 0
    length = draw.pick(shape[d] - start + 1)
    return Arguments((draw.tensor(shape), d, start, length))


def _select(draw: Draw) -> Arguments:
    shape = draw.shape(1, 5, empty=False)
    d = draw.dim(shape)
    k = draw.pick(shape[d])
    return Arguments((draw.tensor(shape), d, k - shape[d] if draw.flag() else k))


def _split(draw: Draw) -> Arguments:
    """Pieces of one size, or of given sizes that sum up."""
    shape = draw.shape(1, 4, empty=False)
    d = draw.dim(shape)
    if draw.flag():
        first = draw.pick(shape[d] + 1)
        rest = (shape[d] - first,) if draw.flag() else (0, shape[d] - first)
        return Arguments((draw.tensor(shape), (first, *rest)), keywords(dim=d))
    return Arguments((draw.tensor(shape), draw.choice((1, 2, 3)) if shape[d] < 32 else 16), keywords(dim=d))


def _chunk(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    return Arguments((draw.tensor(shape), draw.choice((1, 2, 3, 5))), keywords(dim=draw.option(draw.dim(shape))))


def _tensor_split(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    where: Arg = draw.choice((1, 2, 3)) if not draw.flag() else draw.choice(((1, 2), (0, 1), (-1,), (2, 1), ()))
    return Arguments((draw.tensor(shape), where), keywords(dim=draw.option(draw.dim(shape))))


def _unbind(draw: Draw) -> Arguments:
    shape = tuple(min(s, 8) for s in draw.shape(1, 4, empty=False))
    return Arguments((draw.tensor(shape),), keywords(dim=draw.option(draw.dim(shape))))


def _unfold(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4, empty=False)
    d = draw.dim(shape)
    return Arguments((draw.tensor(shape), d, 1 + draw.pick(min(shape[d], 4)), draw.choice((1, 2, 3))))


def _flatten(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    if not shape or not draw.flag():
        return Arguments((draw.tensor(shape), *((0, -1) if draw.flag() else ())))
    a = draw.pick(len(shape))
    b = a + draw.pick(len(shape) - a)
    return Arguments((draw.tensor(shape), a, b - len(shape) if draw.flag() else b))


def _unflatten(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    d = draw.dim(shape)
    sizes = (1, shape[d]) if draw.flag() or shape[d] % 2 or not shape[d] else (2, shape[d] // 2)
    return Arguments((draw.tensor(shape), d, sizes))


def _diagonal(draw: Draw) -> Arguments:
    shape = draw.shape(2, 4)
    a, b = draw.permutation(len(shape))[:2]
    dims = {"dim1": a - len(shape) if draw.flag() else a, "dim2": b} if (a, b) != (0, 1) else {}
    return Arguments((draw.tensor(shape),), keywords(offset=draw.option(1, -1, 2, 9, -9), **dims))


def _as_strided(draw: Draw) -> Arguments:
    """A window with its own strides inside the first n elements, whatever the shape."""
    n = draw.choice((8, 12, 16))
    windows: tuple[tuple[Shape, Shape], ...] = (
        ((2,), (1,)),
        ((2, 3), (3, 1)),
        ((2, 3), (1, 2)),
        ((3, 2), (1, 1)),
        ((), ()),
        ((2, 0), (1, 1)),
        ((4,), (0,)),
        ((2, 2, 2), (1, 2, 2)),
    )
    size, stride = draw.choice(windows)
    return Arguments((draw.tensor((n,)), size, stride, draw.choice((0, 1, 2))))


def _as_strided_scatter(draw: Draw) -> Arguments:
    """A window that meets no element twice, replaced out of place."""
    n = draw.choice((8, 12, 16))
    windows: tuple[tuple[Shape, Shape], ...] = (
        *(((2,), (1,)), ((2, 3), (3, 1)), ((2, 3), (1, 2)), ((), ())),
        *(((2, 0), (1, 1)), ((3,), (2,)), ((2, 1, 2), (1, 4, 3))),
    )
    size, stride = draw.choice(windows)
    return Arguments((draw.tensor((n,)), draw.tensor(size), size, stride, draw.choice((0, 1, 2))))


def _slice_scatter(draw: Draw) -> Arguments:
    """A part of a tensor replaced, out of place."""
    shape = draw.shape(1, 4, empty=False)
    d = draw.dim(shape)
    start = draw.pick(shape[d])
    step = draw.choice((1, 2, 3))
    end = draw.option(shape[d], -1, shape[d] + 3)
    length = len(range(shape[d])[start:end:step])
    part = list(shape)
    part[d] = length
    named = keywords(dim=d, start=start or None, end=end, step=None if step == 1 else step)
    return Arguments((draw.tensor(shape), draw.tensor(tuple(part))), named)


def _select_scatter(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4, empty=False)
    d = draw.dim(shape)
    part = list(shape)
    del part[d]
    return Arguments((draw.tensor(shape), draw.tensor(tuple(part)), d, draw.pick(shape[d]) - (shape[d] if draw.flag() else 0)))


def _diagonal_scatter(draw: Draw) -> Arguments:
    """A diagonal replaced, out of place."""
    shape = draw.shape(2, 4, empty=False)
    a, b = draw.permutation(len(shape))[:2]
    offset = draw.choice((0, 1, -1))
    if not -shape[a] < offset < shape[b]:
        offset = 0
    length = min(shape[a] + min(offset, 0), shape[b] - max(offset, 0))
    part = tuple(s for k, s in enumerate(shape) if k not in (a, b))
    return Arguments((draw.tensor(shape), draw.tensor((*part, length))), keywords(offset=offset or None, dim1=a, dim2=b))


ROWS = (
    _row("view", _reshape, call="torch.Tensor.*", draws=Draws(packed=3), refuses=Refuses(sized=True), counts=OWN),
    _row("view_dtype", _view_dtype, call="torch.Tensor.view", grad=(), judged=Judged(oracle="exact")),
    _row("reshape", _reshape, refuses=Refuses(sized=True), counts=OWN),
    _row("transpose", _transpose, counts=OWN),
    _row("permute", _permute, counts=OWN),
    _row("movedim", _movedim, counts=OWN),
    _row("t", unary(high=2), counts=OWN),
    _row("mH", unary(low=2), call="parity.catalog.glue.calls.adjoint", counts=Counts(("mH",))),
    _row("expand", _expand, call="torch.Tensor.*", refuses=Refuses(sized=True), counts=OWN),
    _row("broadcast_to", _broadcast_to, refuses=Refuses(sized=True), counts=OWN),
    _row("squeeze", _squeeze, counts=Counts(("*", "squeeze:multiple"))),
    _row("unsqueeze", _unsqueeze, counts=OWN),
    _row("narrow", _narrow, counts=OWN),
    _row("select", _select, counts=OWN),
    _row("split", _split, counts=Counts(("*", "split:list_args", "split_with_sizes"))),
    _row("chunk", _chunk, counts=OWN),
    _row("tensor_split", _tensor_split, counts=OWN),
    _row("unbind", _unbind, counts=OWN),
    _row("tensor_unfold", _unfold, call="torch.Tensor.unfold", counts=OWN),
    _row("flatten", _flatten, counts=OWN),
    _row("unflatten", _unflatten, counts=OWN),
    _row("diagonal", _diagonal, counts=OWN),
    _row("as_strided", _as_strided, draws=Draws(packed=3), judged=Judged(oracle="exact"), counts=OWN, quirks=(Quirk.MEMORY,)),
    _row(
        "as_strided_scatter",
        _as_strided_scatter,
        forms=Forms(),
        draws=Draws(packed=3),
        grad=FLOATS,
        counts=OWN,
        quirks=(Quirk.MEMORY,),
    ),
    _row("slice_scatter", _slice_scatter, forms=Forms(), grad=FLOATS, refuses=Refuses(takes=("complex",)), counts=OWN),
    _row("select_scatter", _select_scatter, forms=Forms(), grad=FLOATS, refuses=Refuses(takes=("complex",)), counts=OWN),
    _row("diagonal_scatter", _diagonal_scatter, forms=Forms(), grad=FLOATS, counts=OWN),
)
