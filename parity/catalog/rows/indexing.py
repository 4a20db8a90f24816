"""Reading by index, mask, slice; embeddings; searching."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    EVERY,
    EXACT,
    FLOATING,
    GLUE,
    OUT,
    OWN,
    REAL,
    ROUNDED,
    SCATTERED,
    UNCHECKED,
    Counts,
    Draws,
    Forms,
    Judged,
    Quirk,
    Refuses,
    Row,
)
from parity.catalog.signatures import strictly, unary, whole
from parity.core.case import Arg, Slice, TensorSpec, Values
from parity.core.dtypes import FLOATS

_row = partial(Row, family="indexing", rule=EXACT, dtypes=EVERY, grad=FLOATING)


def target(draw: Draw, low: int = 0, empty: bool = False) -> tuple[TensorSpec, Shape, int]:
    """A tensor, its shape, and a dimension of it (possibly negative). empty: other dimensions may be 0."""
    shape = draw.shape(low, 4, empty=False)
    d = draw.dim(shape)
    if empty and len(shape) > 1 and draw.rare(16):
        shape = picked(draw, shape, d + 1 if d + 1 < len(shape) else d - 1, 0)
    return draw.tensor(shape), shape, d


def extent(shape: Shape, dim: int) -> int:
    return shape[dim] if shape else 1


def some(draw: Draw, size: int, unique: bool = False) -> int:
    """A number of indices: few, none, many, or more than the dimension has elements."""
    options = (1, 2, 3, 0) if unique else (1, 2, 3, 5, 0)
    if draw.rare(24):
        return size if unique else draw.choice((33, 257, 1025))
    n = draw.choice(options)
    return min(n, size) if unique else n


def picked(draw: Draw, shape: Shape, dim: int, count: int) -> Shape:
    """`shape` with another extent along dim."""
    if not shape:
        return ()
    dim %= len(shape)
    return (*shape[:dim], count, *shape[dim + 1 :])


def smaller(draw: Draw, shape: Shape, dim: int, count: int) -> Shape:
    """An index shape for gather and scatter: `count` along dim, sometimes smaller elsewhere."""
    shape = picked(draw, shape, dim, count)
    return tuple(max(min(s, 1), s - 1) if i != dim % len(shape) and draw.pick(4) == 3 else s for i, s in enumerate(shape))


def _gather(draw: Draw) -> Arguments:
    x, shape, d = target(draw, empty=True)
    where = smaller(draw, shape, d, some(draw, extent(shape, d)))
    return Arguments((x, d, draw.index(where, extent(shape, d))))


def _take_along(draw: Draw) -> Arguments:
    x, shape, d = target(draw, 1, empty=True)
    return Arguments((x, draw.index(picked(draw, shape, d, some(draw, shape[d])), shape[d]), d))


def _take(draw: Draw) -> Arguments:
    x, _, _ = target(draw)
    return Arguments((x, draw.index(draw.shape(0, 3), max(1, x.numel), negative=True)))


def _select(draw: Draw) -> Arguments:
    x, shape, d = target(draw, empty=True)
    dtype = draw.choice(("int64", "int32"))
    if draw.rare(12):
        return Arguments((x, d, draw.index((), extent(shape, d), dtype=dtype)))
    return Arguments((x, d, draw.index((some(draw, 9) if shape else 1,), extent(shape, d), dtype=dtype)))


def _masked_select(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(shape), draw.mask(draw.broadcastable(shape))))


def _part(draw: Draw, size: int) -> Slice:
    """A slice with bounds counted from either end, and a step."""
    start = draw.option(1, -1, -2)
    stop = draw.option(-1, max(1, size - 1), 0, size + 2)
    return Slice(start, stop, draw.option(2, 3))


def slices(draw: Draw, shape: Shape) -> tuple[tuple[Arg, ...], Shape]:
    """(basic indices: slices, integers, None, an ellipsis; shape of what they select)."""
    index: list[Arg] = []
    named: list[int] = []
    for k, size in enumerate(shape):
        kind = draw.pick(5)
        if kind == 4:  # a new dimension before this one
            index.append(None)
            named.append(1)
            kind = draw.choice((0, 3))
        if kind == 2 and draw.flag() and size and k + 1 < len(shape):
            # an ellipsis in the middle, and an integer for the last dimension
            return (*index, ..., -1), (*named, *shape[k:-1])
        if kind == 0:
            part = _part(draw, size)
            index.append(part)
            named.append(len(range(size)[slice(part.start, part.stop, part.step)]))
        elif kind == 1 and size:
            index.append(draw.choice((0, -1, size - 1)))
        elif kind == 2:
            return (*index, ...), (*named, *shape[k:])
        else:
            index.append(Slice())
            named.append(size)
    return tuple(index), tuple(named)


WHOLE: tuple[tuple[Arg, ...], ...] = (...,), (), (None,), (..., None)  # indices of a 0-d tensor


def _getitem(draw: Draw) -> Arguments:
    if draw.rare(16):
        return Arguments((draw.tensor(()), draw.choice(WHOLE)))
    x, shape, _ = target(draw, 1)
    index, _named = slices(draw, shape)
    return Arguments((x, (*index, None) if draw.pick(4) == 3 else index))


def advanced(draw: Draw, shape: Shape, unique: bool) -> tuple[tuple[Arg, ...], Shape]:
    """A mask, an index tensor, a list, or an index tensor between slices; and the shape of what they name, with masks
    counted as one element (only a scalar may be written there)."""
    kind = draw.pick(8)
    first = shape[0]
    n = some(draw, first, unique)
    if kind == 0:
        return ((draw.unique_index((n,), first) if unique else draw.index((n,), first, negative=True)),), (n, *shape[1:])
    if kind == 1:
        return (draw.mask(shape[: 1 + draw.pick(len(shape))]),), (1,)
    if kind == 2:
        chosen = tuple(range(min(first, 3)))[:: -1 if draw.flag() else 1]
        return (chosen,), (len(chosen), *shape[1:])
    if kind == 5 and len(shape) > 1:  # two index tensors that broadcast against each other: one for rows and one for columns
        rows, columns = some(draw, first, unique), some(draw, shape[1], unique)
        if unique:
            pair = draw.unique_index((rows, 1), first, dim=0), draw.unique_index((columns,), shape[1])
        else:
            pair = draw.index((rows, 1), first, negative=True), draw.index((columns,), shape[1], negative=True)
        return pair, (rows, columns, *shape[2:])
    if kind == 6:  # a mask of one element: selects all or nothing
        return (draw.inside(shape[:1], *draw.choice(((0, 0), (1, 1))), dtype="bool", grad=False),), (1,)
    if kind == 7:  # a bool: selects all or nothing, in a new dimension
        return (draw.choice((True, False)),), (1, *shape)
    last = shape[-1]
    m = some(draw, last, unique)
    tail = draw.unique_index((m,), last) if unique else draw.index((m,), last, negative=True)
    if len(shape) > 1 and kind == 3:
        return (0, ..., tail), (m, *shape[1:-1])
    return (..., tail), (*shape[:-1], m)


def _getitem_advanced(draw: Draw) -> Arguments:
    x, shape, _ = target(draw, 1)
    return Arguments((x, advanced(draw, shape, unique=False)[0]))


def _table(draw: Draw) -> tuple[TensorSpec, TensorSpec, int]:
    """Indices of any rank (0 too) into a table, and the table."""
    rows, width = draw.size(), draw.choice((1, 2, 3, 4, 8, 36, 48))
    dtype = draw.choice(("int64", "int32"))
    where = draw.choice(((1025,), (65537,))) if draw.rare(40) else draw.shape(0, 3)
    return draw.index(where, rows, dtype=dtype), draw.tensor((rows, width)), rows


def _embedding(draw: Draw) -> Arguments:
    index, table, rows = _table(draw)
    padding = draw.option(0, -1, rows - 1)
    return Arguments((index, table), keywords(padding_idx=padding, scale_grad_by_freq=draw.option(True)))


def _limited(draw: Draw) -> Arguments:
    """Rows longer than max_norm are renormalised in the table itself, which the glue also returns."""
    index, table, _ = _table(draw)
    norm = draw.choice((1.0, 0.25, 4.0))
    plain = replace(table, values=Values("inside", (-2, 2)), grad=False)
    return Arguments((index, plain), keywords(max_norm=norm, norm_type=draw.option(1.0, 3.0), padding_idx=draw.option(0)))


def _embedding_bag(draw: Draw) -> Arguments:
    """Bags as rows of a matrix, or as offsets into a vector (empty bags too); weights per sample for sums."""
    rows, width = draw.size(), draw.choice((1, 2, 3, 4, 8))
    table = draw.tensor((rows, width))
    mode = draw.choice(("mean", "sum", "max"))
    weighted = mode == "sum" and draw.flag()
    if draw.flag():
        n = draw.choice((3, 1, 5, 8))
        dtype = draw.choice(("int64", "int32"))
        # The glue sorts them; the first is 0, equal ones give empty bags.
        offsets = draw.inside((draw.choice((1, 2, 3, 5)),), 0, n, dtype=dtype, grad=False)
        index: TensorSpec = draw.index((n,), rows, dtype=dtype)
        last = draw.option(True)
        # Indices after the last offset are in no bag; torch 2.13's CPU returns arbitrary gradients for them, and only sums
        # without padding leave them out.
        early = last and mode == "sum" and draw.pick(4) > 0
        table = replace(table, grad=not early)
        weights = draw.tensor((n,), grad=not early) if weighted else None
        named = keywords(offsets=offsets, mode=mode, per_sample_weights=weights, include_last_offset=last)
        named = (*named, *keywords(early=True if early else None))
    else:
        shape = (draw.choice((1, 2, 3)), draw.choice((1, 2, 3)))
        index = draw.index(shape, rows)
        named = keywords(mode=mode, per_sample_weights=draw.tensor(shape) if weighted else None)
    scale = draw.option(True) if mode != "max" else None
    padding = None if ("early", True) in named else draw.option(0, rows - 1)
    return Arguments((index, table), (*named, *keywords(scale_grad_by_freq=scale, padding_idx=padding)))


def _one_hot(draw: Draw) -> Arguments:
    classes = draw.choice((3, 1, 2, 8, 17))
    return Arguments((draw.index(draw.shape(0, 3), classes), draw.choice((classes, classes + 2))))


def _bucketize(draw: Draw) -> Arguments:
    count = draw.choice((1025, 8193)) if draw.rare(24) else draw.size()
    values = strictly(0, 8) if draw.flag() else whole(0, 8)
    x, boundaries = values(draw, draw.shape(0, 4)), values(draw, (draw.choice((count, 0)),))
    return Arguments((x, boundaries), keywords(right=draw.option(True), out_int32=draw.option(True)))


def _searchsorted(draw: Draw) -> Arguments:
    lead = draw.shape(0, 2, empty=False)
    values = strictly(0, 8) if draw.flag() else whole(0, 8)
    sequence, x = values(draw, (*lead, draw.size())), values(draw, (*lead, draw.choice((1, 2, 3))))
    if draw.pick(4) == 3 and len(lead) == 0:
        number = draw.choice((3, 1, 0, 8))
        return Arguments((sequence, number), keywords(right=draw.option(True), out_int32=draw.option(True)))
    if draw.pick(3) == 2:  # a sorter instead of a sorted sequence; insertion from the left or the right
        side = draw.option("left", "right")
        return Arguments((sequence, x), keywords(side=side, out_int32=draw.option(True), sorted_by=True))
    return Arguments((sequence, x), keywords(right=draw.option(True), out_int32=draw.option(True)))


def _between_numbers(draw: Draw) -> Arguments:
    """A number among boundaries."""
    number = draw.choice((3, 1, 0, 8, 7))
    return Arguments(
        (number, whole(1, 7)(draw, (draw.size(),))), keywords(right=draw.option(True), out_int32=draw.option(True))
    )


def _isin(draw: Draw) -> Arguments:
    high = draw.choice((4, 100))
    few = whole(0, high)
    x, others = few(draw, draw.shape(0, 4)), few(draw, (draw.choice((2, 1, 3, 16, 0, 100, 257)),))
    if draw.kind == "int" and draw.pick(6) == 5:  # compared in the promoted dtype
        others = draw.inside(others.shape, 0, high, dtype=draw.choice(("int64", "int32", "uint8", "int16")), grad=False)
    named = keywords(invert=draw.option(True))
    kind = draw.pick(6)
    if kind >= 4:
        return Arguments((x, draw.choice((1, 0, 3))) if kind == 4 else (draw.choice((1, 0, 3)), others), named)
    return Arguments((x, others), named)


def _some_zeros(draw: Draw, shape: Shape) -> TensorSpec:
    """Half of the elements are 0; or any numbers, so that NaN and zeros of both signs are met."""
    return whole(0, 1)(draw, shape) if draw.flag() else draw.tensor(shape)


def _static(draw: Draw) -> Arguments:
    """A fixed number of indices of nonzero elements: truncated, or padded."""
    x = _some_zeros(draw, draw.shape(0, 4))
    return Arguments((x,), keywords(size=draw.choice((2, 0, 1, 5, 17)), fill_value=draw.option(0, 7)))


def _dense_index(draw: Draw) -> Arguments:
    """Index tensors for the first dimensions, broadcast against each other, with a destination."""
    x, shape, _ = target(draw, 1)
    used = 1 + draw.pick(len(shape))
    n = some(draw, 9)
    indices: tuple[Arg, ...] = tuple(
        draw.index((n,) if k == 0 or draw.flag() else (1,), s, negative=True) for k, s in enumerate(shape[:used])
    )
    if len(shape) > used and draw.pick(4) == 3:
        indices = (None, *(draw.index((n,), s, negative=True) for s in shape[1 : used + 1]))
    return Arguments((x, indices))


def _item(draw: Draw) -> Arguments:
    """A tensor of one element, of any rank."""
    return Arguments((draw.tensor(draw.choice(((), (1,), (1, 1, 1)))),))


ROWS = (
    _row("gather", _gather, forms=OUT, judged=Judged(accumulates=SCATTERED), counts=OWN),
    _row(
        "take_along_dim", _take_along, forms=OUT, judged=Judged(accumulates=SCATTERED), counts=OWN, quirks=(Quirk.READS_PAST,)
    ),
    _row("take", _take, forms=OUT, judged=Judged(accumulates=SCATTERED), counts=OWN),
    _row("index_select", _select, forms=OUT, judged=Judged(accumulates=SCATTERED), counts=OWN),
    _row("masked_select", _masked_select, forms=OUT, counts=OWN),
    _row("getitem", _getitem, call="operator.*", forms=Forms(view=True), counts=Counts(("__getitem__",))),
    _row(
        "getitem_advanced",
        _getitem_advanced,
        call="operator.getitem",
        draws=Draws(on_cpu="indices"),
        judged=Judged(accumulates=SCATTERED),
        counts=Counts(under="__getitem__"),
    ),
    _row("nonzero", unary(_some_zeros), grad=(), forms=OUT, counts=OWN),
    _row("argwhere", unary(_some_zeros), grad=(), counts=OWN),
    _row("item", _item, call="torch.Tensor.*", grad=(), counts=OWN),
    _row(
        "embedding",
        _embedding,
        call="torch.nn.functional.*",
        grad=FLOATS,
        refuses=Refuses(takes=("int",)),
        judged=Judged(accumulates=SCATTERED),
        counts=OWN,
    ),
    _row(
        "embedding_bag",
        _embedding_bag,
        rule=CONTRACTION,
        call=GLUE,
        dtypes=FLOATS,
        grad=FLOATS,
        draws=Draws(cases=2),
        judged=Judged(accumulates=SCATTERED),
        counts=Counts(("nn.functional.embedding_bag",)),
    ),
    _row("one_hot", _one_hot, call="torch.nn.functional.*", dtypes=("int64",), grad=(), counts=OWN),
    _row("bucketize", _bucketize, call=GLUE, forms=OUT, dtypes=REAL, grad=(), counts=Counts(("bucketize",))),
    _row("searchsorted", _searchsorted, call=GLUE, forms=OUT, dtypes=REAL, grad=(), counts=Counts(("searchsorted",))),
    _row("isin", _isin, dtypes=REAL, grad=(), forms=OUT, counts=OWN),
    _row(
        "index",
        _dense_index,
        call="parity.catalog.glue.aten.*",
        grad=(),
        forms=OUT,
        draws=Draws(on_cpu="indices"),
        refuses=UNCHECKED,
        counts=Counts(under="__getitem__"),
    ),
    _row(
        "embedding_limited",
        _limited,
        rule=COMPOSITE,
        forms=Forms(updates=True),
        judged=ROUNDED,
        call=GLUE,
        dtypes=("float32",),
        grad=(),
    ),
    _row("nonzero_static", _static, grad=(), counts=OWN),
    _row("bucketize_number", _between_numbers, call="parity.catalog.glue.calls.bucketize", dtypes=REAL, grad=()),
)
