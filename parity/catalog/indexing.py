"""Reading and writing by index, mask, slice; embeddings; searching."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import EVERY, FLOATING, REAL, Row, Signature
from parity.catalog.signatures import strictly, unary
from parity.dtypes import FLOATS
from parity.vocabulary import Arg, OpClass, Slice, TensorSpec

_row = partial(Row, family="indexing", rule=OpClass.EXACT, dtypes=EVERY, grad=FLOATING)


def _target(draw: Draw, low: int = 0) -> tuple[TensorSpec, Shape, int]:
    """A tensor, its shape, and a dimension of it (possibly negative)."""
    shape = draw.shape(low, 4, empty=False)
    return draw.tensor(shape), shape, draw.dim(shape)


def _extent(shape: Shape, dim: int) -> int:
    return shape[dim] if shape else 1


def _some(draw: Draw, size: int, unique: bool = False) -> int:
    """How many indices: few, none, or more than there are."""
    options = (1, 2, 3, 0) if unique else (1, 2, 3, 5, 0)
    n = draw.choice(options)
    return min(n, size) if unique else n


def _picked(draw: Draw, shape: Shape, dim: int, count: int) -> Shape:
    """`shape` with another extent along dim."""
    if not shape:
        return ()
    dim %= len(shape)
    return (*shape[:dim], count, *shape[dim + 1 :])


def _smaller(draw: Draw, shape: Shape, dim: int, count: int) -> Shape:
    """An index shape for gather and scatter: `count` along dim, now and then smaller elsewhere."""
    shape = _picked(draw, shape, dim, count)
    return tuple(max(1, s - 1) if i != dim % len(shape) and draw.pick(4) == 3 else s for i, s in enumerate(shape))


def _gather(draw: Draw) -> Call:
    x, shape, d = _target(draw)
    where = _smaller(draw, shape, d, _some(draw, _extent(shape, d)))
    return Call((x, d, draw.index(where, _extent(shape, d))))


def _take_along(draw: Draw) -> Call:
    x, shape, d = _target(draw, 1)
    return Call((x, draw.index(_picked(draw, shape, d, _some(draw, shape[d])), shape[d]), d))


def _take(draw: Draw) -> Call:
    x, _, _ = _target(draw)
    return Call((x, draw.index(draw.shape(0, 3), max(1, x.numel), negative=True)))


def _select(draw: Draw) -> Call:
    x, shape, d = _target(draw)
    dtype = draw.choice(("int64", "int32"))
    return Call((x, d, draw.index((_some(draw, 9) if shape else 1,), _extent(shape, d), dtype=dtype)))


def _scatter(draw: Draw) -> Call:
    """A tensor or a scalar to unique places along the dimension."""
    x, shape, d = _target(draw)
    where = _smaller(draw, shape, d, _some(draw, _extent(shape, d), unique=True))
    index = draw.unique_index(where, _extent(shape, d), dim=d)
    if draw.pick(3) == 2:
        return Call((x, d, index, draw.number()))
    source = tuple(s + draw.pick(2) for s in where) if draw.pick(4) == 3 else where
    return Call((x, d, index, draw.tensor(source, grad=source == where)))  # torch has no gradient for a larger source


def _scatter_add(draw: Draw) -> Call:
    x, shape, d = _target(draw)
    where = _smaller(draw, shape, d, _some(draw, _extent(shape, d)))
    return Call((x, d, draw.index(where, _extent(shape, d)), draw.tensor(where)))


def _scatter_reduce(reduce: str) -> Signature:
    def signature(draw: Draw) -> Call:
        call = _scatter_add(draw)
        return Call((*call.args, reduce), keywords(include_self=draw.option(False)))

    return signature


def _index_add(draw: Draw) -> Call:
    x, shape, d = _target(draw)
    n = _some(draw, 9) if shape else 1
    index = draw.index((n,), _extent(shape, d), dtype=draw.choice(("int64", "int32")))
    source = draw.tensor(_picked(draw, shape, d, n))
    return Call((x, d, index, source), keywords(alpha=draw.number(2) if draw.flag() else None))


def _index_copy(draw: Draw) -> Call:
    x, shape, d = _target(draw)
    n = _some(draw, _extent(shape, d), unique=True) if shape else 1
    return Call((x, d, draw.unique_index((n,), _extent(shape, d)), draw.tensor(_picked(draw, shape, d, n))))


def _index_fill(draw: Draw) -> Call:
    x, shape, d = _target(draw)
    value: Arg = draw.tensor(()) if draw.pick(3) == 2 else draw.number()
    return Call((x, d, draw.index((_some(draw, 9) if shape else 1,), _extent(shape, d)), value))


def _index_reduce(reduce: str) -> Signature:
    def signature(draw: Draw) -> Call:
        x, shape, d = _target(draw, 1)
        n = _some(draw, 9)
        index = draw.index((n,), shape[d])
        return Call((x, d, index, draw.tensor(_picked(draw, shape, d, n)), reduce), keywords(include_self=draw.option(False)))

    return signature


def _index_put(accumulate: bool) -> Signature:
    """Index tensors for the first dimensions, broadcast against each other; values that broadcast; or a mask."""

    def signature(draw: Draw) -> Call:
        x, shape, _ = _target(draw, 1)
        used = 1 + draw.pick(len(shape))
        n = _some(draw, min(shape[:used]), unique=not accumulate)
        if accumulate:
            indices = tuple(draw.index((n,), s, negative=True) for s in shape[:used])
        else:
            indices = tuple(draw.unique_index((n,), s) for s in shape[:used])
        full = (n, *shape[used:])
        value = draw.tensor(full if not draw.flag() else full[1:] if draw.flag() else ())
        return Call((x, indices, value), keywords(accumulate=True if accumulate else None))

    return signature


def _mask_put(draw: Draw) -> Call:
    x, shape, _ = _target(draw, 1)
    used = draw.choice(tuple(range(len(shape), 0, -1)))
    return Call((x, (draw.mask(shape[:used]),), draw.tensor(())))


def _put(draw: Draw) -> Call:
    x, _, _ = _target(draw)
    if draw.flag():
        where = draw.shape(0, 2)
        index, named = draw.index(where, max(1, x.numel)), keywords(accumulate=True)
    else:
        where = (min(max(1, x.numel), draw.choice((1, 2, 3))),)
        index, named = draw.unique_index(where, max(1, x.numel)), ()
    return Call((x, index, draw.tensor(where)), named)


def _masked_fill(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    mask = draw.mask(draw.broadcastable(shape))
    return Call((draw.tensor(shape), mask, draw.tensor(()) if draw.pick(3) == 2 else draw.number()))


def _masked_select(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    return Call((draw.tensor(shape), draw.mask(draw.broadcastable(shape))))


def _masked_scatter(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    return Call((draw.tensor(shape), draw.mask(draw.broadcastable(shape)), draw.tensor(shape)))


def _part(draw: Draw, size: int) -> Slice:
    """A slice with bounds counted from either end, and a step."""
    start = draw.option(1, -1, -2)
    stop = draw.option(-1, max(1, size - 1))
    return Slice(start, stop, draw.option(2, 3))


def _slices(draw: Draw, shape: Shape) -> tuple[tuple[Arg, ...], Shape]:
    """Basic indices (slices, integers, None, an ellipsis) and the shape of what they name."""
    index: list[Arg] = []
    named: list[int] = []
    for size in shape:
        kind = draw.pick(4)
        if kind == 0:
            part = _part(draw, size)
            index.append(part)
            named.append(len(range(size)[slice(part.start, part.stop, part.step)]))
        elif kind == 1 and size:
            index.append(draw.choice((0, -1, size - 1)))
        elif kind == 2:
            return (*index, ...), (*named, *shape[len(index) :])
        else:
            index.append(Slice())
            named.append(size)
    return tuple(index), tuple(named)


def _getitem(draw: Draw) -> Call:
    x, shape, _ = _target(draw, 1)
    index, _named = _slices(draw, shape)
    return Call((x, (*index, None) if draw.pick(4) == 3 else index))


def _advanced(draw: Draw, shape: Shape, unique: bool) -> tuple[tuple[Arg, ...], Shape]:
    """A mask, an index tensor, a list, or an index tensor between slices; and the shape of what they name, with masks
    counted as one element (only a scalar may be written there)."""
    kind = draw.pick(5)
    first = shape[0]
    n = _some(draw, first, unique)
    if kind == 0:
        return ((draw.unique_index((n,), first) if unique else draw.index((n,), first, negative=True)),), (n, *shape[1:])
    if kind == 1:
        return (draw.mask(shape[: 1 + draw.pick(len(shape))]),), (1,)
    if kind == 2:
        chosen = tuple(range(min(first, 3)))[:: -1 if draw.flag() else 1]
        return (chosen,), (len(chosen), *shape[1:])
    last = shape[-1]
    m = _some(draw, last, unique)
    tail = draw.unique_index((m,), last) if unique else draw.index((m,), last, negative=True)
    if len(shape) > 1 and kind == 3:
        return (0, ..., tail), (m, *shape[1:-1])
    return (..., tail), (*shape[:-1], m)


def _getitem_advanced(draw: Draw) -> Call:
    x, shape, _ = _target(draw, 1)
    return Call((x, _advanced(draw, shape, unique=False)[0]))


def _value(draw: Draw, shape: Shape) -> Arg:
    kind = draw.pick(3)
    return draw.number() if kind == 0 else draw.tensor(draw.broadcastable(shape)) if kind == 1 else draw.tensor(())


def _setitem(draw: Draw) -> Call:
    x, shape, _ = _target(draw, 1)
    index, named = _slices(draw, shape)
    return Call((x, index, _value(draw, named)))


def _setitem_advanced(draw: Draw) -> Call:
    x, shape, _ = _target(draw, 1)
    index, named = _advanced(draw, shape, unique=True)
    if isinstance(index[0], TensorSpec) and index[0].dtype == "bool":
        return Call((x, index, draw.tensor(()) if draw.flag() else draw.number()))
    if len(index) == 3:  # torch may move the indexed dimension, so that only a scalar fits for certain
        return Call((x, index, draw.number()))
    return Call((x, index, _value(draw, named)))


def _table(draw: Draw) -> tuple[TensorSpec, TensorSpec, int]:
    """Indices of any rank (0 too) into a table, and the table."""
    rows, width = draw.size(), draw.choice((1, 2, 3, 4, 8, 36, 48))
    dtype = draw.choice(("int64", "int32"))
    return draw.index(draw.shape(0, 3), rows, dtype=dtype), draw.tensor((rows, width)), rows


def _embedding(draw: Draw) -> Call:
    index, table, rows = _table(draw)
    padding = draw.option(0, -1, rows - 1)
    return Call((index, table), keywords(padding_idx=padding, scale_grad_by_freq=draw.option(True)))


def _embedding_bag(draw: Draw) -> Call:
    """Bags as rows of a matrix, or as offsets into a vector (empty bags too); weights per sample for sums."""
    rows, width = draw.size(), draw.choice((1, 2, 3, 4, 8))
    table = draw.tensor((rows, width))
    mode = draw.choice(("mean", "sum", "max"))
    weighted = mode == "sum" and draw.flag()
    if draw.flag():
        n = draw.choice((3, 1, 5, 8))
        offsets = draw.inside((1,), 0, 0, dtype="int64", grad=False)
        index: TensorSpec = draw.index((n,), rows)
        named = keywords(offsets=offsets, mode=mode, per_sample_weights=draw.tensor((n,)) if weighted else None)
    else:
        shape = (draw.choice((1, 2, 3)), draw.choice((1, 2, 3)))
        index = draw.index(shape, rows)
        named = keywords(mode=mode, per_sample_weights=draw.tensor(shape) if weighted else None)
    scale = draw.option(True) if mode != "max" else None
    padding = draw.option(0, rows - 1)
    return Call((index, table), (*named, *keywords(scale_grad_by_freq=scale, padding_idx=padding)))


def _one_hot(draw: Draw) -> Call:
    classes = draw.choice((3, 1, 2, 8, 17))
    return Call((draw.index(draw.shape(0, 3), classes), classes))


def _bucketize(draw: Draw) -> Call:
    x, boundaries = draw.inside(draw.shape(0, 4), 0, 8), draw.inside((draw.size(),), 1, 7)
    return Call((x, boundaries), keywords(right=draw.option(True), out_int32=draw.option(True)))


def _searchsorted(draw: Draw) -> Call:
    lead = draw.shape(0, 2, empty=False)
    sequence, x = draw.inside((*lead, draw.size()), 1, 7), draw.inside((*lead, draw.choice((1, 2, 3))), 0, 8)
    return Call((sequence, x), keywords(right=draw.option(True), out_int32=draw.option(True)))


def _isin(draw: Draw) -> Call:
    x, others = draw.inside(draw.shape(0, 4), 0, 4), draw.inside((draw.choice((2, 1, 3, 16)),), 0, 4)
    return Call((x, others), keywords(invert=draw.option(True)))


ROWS = (
    _row(name="gather", call="torch.gather", signature=_gather, out=True, opinfo=("gather",)),
    _row(name="take_along_dim", call="torch.take_along_dim", signature=_take_along, out=True, opinfo=("take_along_dim",)),
    _row(name="take", call="torch.take", signature=_take, out=True, opinfo=("take",)),
    _row(name="index_select", call="torch.index_select", signature=_select, out=True, opinfo=("index_select",)),
    _row(
        name="scatter",
        call="torch.scatter",
        signature=_scatter,
        inplace="torch.Tensor.scatter_",
        out=True,
        opinfo=("scatter",),
    ),
    _row(
        name="scatter_add",
        accumulates=("forward", "backward"),  # repeats are added one by one in the dtype (atomics)
        rule=OpClass.CONTRACTION,
        call="torch.scatter_add",
        signature=_scatter_add,
        inplace="torch.Tensor.scatter_add_",
        out=True,
        opinfo=("scatter_add",),
    ),
    *(
        _row(
            name=f"scatter_reduce_{r}",
            accumulates=("forward", "backward"),  # repeats are combined one by one in the dtype (atomics)
            rule=rule,
            call="torch.scatter_reduce",
            signature=_scatter_reduce(r),
            dtypes=REAL,
            grad=FLOATS,
            inplace="torch.Tensor.scatter_reduce_",
            out=True,
            opinfo=(f"scatter_reduce:{r}",),
        )
        for r, rule in (
            ("sum", OpClass.CONTRACTION),
            ("prod", OpClass.COMPOSITE),
            ("mean", OpClass.COMPOSITE),
            ("amax", OpClass.EXACT),
            ("amin", OpClass.EXACT),
        )
    ),
    _row(
        name="index_add",
        accumulates=("forward", "backward"),  # repeats are added one by one in the dtype (atomics)
        rule=OpClass.CONTRACTION,
        call="torch.index_add",
        signature=_index_add,
        inplace="torch.Tensor.index_add_",
        out=True,
        opinfo=("index_add",),
    ),
    _row(
        name="index_copy",
        call="torch.index_copy",
        signature=_index_copy,
        inplace="torch.Tensor.index_copy_",
        out=True,
        opinfo=("index_copy",),
    ),
    _row(
        name="index_fill",
        call="torch.index_fill",
        signature=_index_fill,
        inplace="torch.Tensor.index_fill_",
        opinfo=("index_fill",),
    ),
    *(
        _row(
            name=f"index_reduce_{r}",
            rule=rule,
            call="torch.index_reduce",
            signature=_index_reduce(r),
            dtypes=REAL,
            grad=FLOATS,
            inplace="torch.Tensor.index_reduce_",
            opinfo=(f"index_reduce:{r}",),
        )
        for r, rule in (
            ("prod", OpClass.COMPOSITE),
            ("mean", OpClass.COMPOSITE),
            ("amax", OpClass.EXACT),
            ("amin", OpClass.EXACT),
        )
    ),
    _row(
        name="index_put",
        call="torch.index_put",
        signature=_index_put(False),
        inplace="torch.Tensor.index_put_",
        opinfo=("index_put",),
    ),
    _row(
        name="index_put_accumulate",
        accumulates=("forward", "backward"),  # repeats are added one by one in the dtype (atomics)
        rule=OpClass.CONTRACTION,
        call="torch.index_put",
        signature=_index_put(True),
        inplace="torch.Tensor.index_put_",
    ),
    _row(name="index_put_mask", call="torch.index_put", signature=_mask_put, inplace="torch.Tensor.index_put_"),
    _row(
        name="put",
        accumulates=("forward", "backward"),  # repeats are added one by one in the dtype (atomics)
        rule=OpClass.CONTRACTION,
        call="torch.Tensor.put",
        signature=_put,
        inplace="torch.Tensor.put_",
        opinfo=("put",),
    ),
    _row(
        name="masked_fill",
        call="torch.masked_fill",
        signature=_masked_fill,
        inplace="torch.Tensor.masked_fill_",
        opinfo=("masked_fill",),
    ),
    _row(name="masked_select", call="torch.masked_select", signature=_masked_select, out=True, opinfo=("masked_select",)),
    _row(
        name="masked_scatter",
        call="torch.masked_scatter",
        signature=_masked_scatter,
        inplace="torch.Tensor.masked_scatter_",
        opinfo=("masked_scatter",),
    ),
    _row(name="getitem", call="operator.getitem", signature=_getitem, view=True, opinfo=("__getitem__",)),
    _row(name="getitem_advanced", call="operator.getitem", signature=_getitem_advanced),
    _row(name="setitem", call="operator.setitem", signature=_setitem, mutates=True),
    _row(name="setitem_advanced", call="operator.setitem", signature=_setitem_advanced, mutates=True),
    _row(name="nonzero", call="torch.nonzero", signature=unary(strictly(0, 1)), grad=(), out=True, opinfo=("nonzero",)),
    _row(name="argwhere", call="torch.argwhere", signature=unary(strictly(0, 1)), grad=(), opinfo=("argwhere",)),
    _row(name="item", call="torch.Tensor.item", signature=lambda draw: Call((draw.tensor(()),)), grad=(), opinfo=("item",)),
    _row(
        name="embedding",
        call="torch.nn.functional.embedding",
        signature=_embedding,
        grad=FLOATS,
        opinfo=("nn.functional.embedding",),
    ),
    _row(
        name="embedding_bag",
        rule=OpClass.CONTRACTION,
        call="torch.nn.functional.embedding_bag",
        signature=_embedding_bag,
        dtypes=FLOATS,
        grad=FLOATS,
        opinfo=("nn.functional.embedding_bag",),
    ),
    _row(
        name="one_hot",
        call="torch.nn.functional.one_hot",
        signature=_one_hot,
        dtypes=("int64",),
        grad=(),
        opinfo=("nn.functional.one_hot",),
    ),
    _row(
        name="bucketize",
        call="parity.catalog.calls.bucketize",
        signature=_bucketize,
        dtypes=REAL,
        grad=(),
        opinfo=("bucketize",),
    ),
    _row(
        name="searchsorted",
        call="parity.catalog.calls.searchsorted",
        signature=_searchsorted,
        dtypes=REAL,
        grad=(),
        opinfo=("searchsorted",),
    ),
    _row(name="isin", call="torch.isin", signature=_isin, dtypes=REAL, grad=(), out=True, opinfo=("isin",)),
)
