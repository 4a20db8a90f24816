"""Writing by index, mask and slice."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.indexing import WHOLE, advanced, extent, picked, slices, smaller, some, target
from parity.catalog.row import EVERY, FLOATING, REAL, Row, Signature
from parity.catalog.signatures import cast_scalar, castable, scalar, source_of
from parity.dtypes import FLOATS
from parity.vocabulary import Arg, OpClass, TensorSpec

_row = partial(Row, family="writing", rule=OpClass.EXACT, dtypes=EVERY, grad=FLOATING)


def _scatter(draw: Draw) -> Call:
    """A tensor or a scalar to unique places along the dimension."""
    x, shape, d = target(draw, empty=True)
    where = smaller(draw, shape, d, some(draw, extent(shape, d), unique=True))
    index = draw.unique_index(where, extent(shape, d), dim=d)
    if draw.pick(3) == 2:
        return Call((x, d, index, cast_scalar(draw)))
    if draw.pick(6) == 5:  # equal numbers may be written to one place
        value = draw.choice((1, 0))
        repeated = draw.index(where, extent(shape, d))
        return Call((x, d, repeated, draw.inside(where, value, value, grad=False)))
    source = tuple(s + draw.pick(2) for s in where) if draw.pick(4) == 3 else where
    return Call((x, d, index, draw.tensor(source, grad=source == where)))  # torch has no gradient for a larger source


def _scatter_add(draw: Draw) -> Call:
    x, shape, d = target(draw, empty=True)
    where = smaller(draw, shape, d, some(draw, extent(shape, d)))
    return Call((x, d, draw.index(where, extent(shape, d)), draw.tensor(where)))


def _scatter_reduce(reduce: str) -> Signature:
    def signature(draw: Draw) -> Call:
        call = _scatter_add(draw)
        return Call((*call.args, reduce), keywords(include_self=draw.option(False)))

    return signature


def _places(draw: Draw, n: int) -> Shape:
    """The shape of n indices; a single one may be 0-d."""
    return () if n == 1 and draw.rare(3) else (n,)


def _index_add(draw: Draw) -> Call:
    x, shape, d = target(draw, empty=True)
    n = some(draw, 9) if shape else 1
    index = draw.index(_places(draw, n), extent(shape, d), dtype=draw.choice(("int64", "int32")))
    source = draw.tensor(picked(draw, shape, d, n))
    return Call((x, d, index, source), keywords(alpha=draw.number(2) if draw.flag() else None))


def _index_copy(draw: Draw) -> Call:
    x, shape, d = target(draw, empty=True)
    if draw.pick(6) == 5 and shape:  # equal numbers may be written to one place
        n = some(draw, 9)
        return Call((x, d, draw.index((n,), extent(shape, d)), draw.inside(picked(draw, shape, d, n), 1, 1, grad=False)))
    n = some(draw, extent(shape, d), unique=True) if shape else 1
    return Call((x, d, draw.unique_index(_places(draw, n), extent(shape, d)), draw.tensor(picked(draw, shape, d, n))))


def _index_fill(draw: Draw) -> Call:
    x, shape, d = target(draw, empty=True)
    value: Arg = draw.tensor(()) if draw.pick(3) == 2 else cast_scalar(draw)
    return Call((x, d, draw.index(_places(draw, some(draw, 9) if shape else 1), extent(shape, d)), value))


def _index_reduce(reduce: str) -> Signature:
    def signature(draw: Draw) -> Call:
        x, shape, d = target(draw, 1)
        n = some(draw, 9)
        index = draw.index(_places(draw, n), shape[d])
        return Call((x, d, index, draw.tensor(picked(draw, shape, d, n)), reduce), keywords(include_self=draw.option(False)))

    return signature


def _index_put(accumulate: bool) -> Signature:
    """Index tensors for the first dimensions, broadcast against each other; values that broadcast; or a mask."""

    def signature(draw: Draw) -> Call:
        x, shape, _ = target(draw, 1)
        used = 1 + draw.pick(len(shape))
        alike = not accumulate and draw.pick(6) == 5  # equal numbers may be written to one place
        n = some(draw, min(shape[:used]), unique=not accumulate and not alike)
        if accumulate or alike:
            indices = tuple(draw.index((n,), s, negative=True) for s in shape[:used])
        else:
            indices = tuple(draw.unique_index((n,), s) for s in shape[:used])
        full = (n, *shape[used:])
        if alike:
            v = draw.choice((1, 0))
            value = draw.inside(full if draw.flag() else (), v, v, grad=False)
        else:
            value = draw.tensor(full if not draw.flag() else full[1:] if draw.flag() else ())
        return Call((x, indices, value), keywords(accumulate=True if accumulate else None))

    return signature


def _mask_put(draw: Draw) -> Call:
    x, shape, _ = target(draw, 1)
    used = draw.choice(tuple(range(len(shape), 0, -1)))
    mask = draw.mask(shape[:used])
    if draw.pick(4) == 3:  # all or nothing
        mask = draw.inside(shape[:used], *draw.choice(((0, 0), (1, 1))), dtype="bool", grad=False)
    return Call((x, (mask,), draw.tensor(())))


def _scatter_old(draw: Draw) -> Call:
    """scatter with a reduction by name, from a tensor or a number."""
    x, shape, d = target(draw, empty=True)
    where = smaller(draw, shape, d, some(draw, extent(shape, d)))
    source: Arg = draw.number(2) if draw.flag() else draw.tensor(where, grad=False)
    return Call((x, d, draw.index(where, extent(shape, d)), source), keywords(reduce=draw.choice(("add", "multiply"))))


def _put_unsafe(draw: Draw) -> Call:
    """The kernel behind index_put_, which is also told not to check its indices."""
    call = _index_put(draw.flag())(draw)
    accumulate = bool(dict(call.kwargs).get("accumulate"))
    return Call((*call.args, accumulate, draw.flag()))


def _put(draw: Draw) -> Call:
    x, _, _ = target(draw)
    if draw.flag():
        where = draw.shape(0, 2)
        index, named = draw.index(where, max(1, x.numel)), keywords(accumulate=True)
    elif draw.pick(6) == 5:  # equal numbers may be written to one place
        where = draw.shape(0, 2)
        return Call((x, draw.index(where, max(1, x.numel)), draw.inside(where, 1, 1, grad=False)))
    else:
        where = (min(max(1, x.numel), draw.choice((1, 2, 3))),)
        index, named = draw.unique_index(where, max(1, x.numel)), ()
    return Call((x, index, draw.tensor(where)), named)


def _masked_fill(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    mask = draw.mask(draw.broadcastable(shape))
    return Call((draw.tensor(shape), mask, draw.tensor(()) if draw.pick(3) == 2 else cast_scalar(draw)))


def _masked_scatter(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    return Call((draw.tensor(shape), draw.mask(draw.broadcastable(shape)), draw.tensor(shape)))


def _value(draw: Draw, shape: Shape) -> Arg:
    """A number, a 0-d tensor, or one that broadcasts; of the item's kind or another."""
    kind = draw.pick(3)
    if kind == 0:
        return scalar(draw)
    return castable(draw, draw.broadcastable(shape) if kind == 1 else (), draw.dtype, source_of(draw))


def _one_value(draw: Draw) -> Arg:
    """A number or a 0-d tensor."""
    return castable(draw, (), draw.dtype, source_of(draw)) if draw.flag() else scalar(draw)


def _setitem(draw: Draw) -> Call:
    """One assignment, or a few of single values one right after the other, which may overlap."""
    if draw.rare(16):
        return Call((draw.tensor(()), draw.choice(WHOLE), _one_value(draw)))
    x, shape, _ = target(draw, 1)
    if draw.pick(4) == 3:
        pairs = tuple(part for _ in range(draw.choice((2, 3))) for part in (slices(draw, shape)[0], _one_value(draw)))
        return Call((x, *pairs))
    index, named = slices(draw, shape)
    return Call((x, index, _value(draw, named)))


def _setitem_advanced(draw: Draw) -> Call:
    """By index and by mask; torch asks for tensors of the same dtype there."""
    x, shape, _ = target(draw, 1)
    one: Arg = draw.tensor(()) if draw.flag() else scalar(draw)
    if draw.pick(6) == 5:  # one value may be written to a place repeatedly
        return Call((x, advanced(draw, shape, unique=False)[0], one))
    index, named = advanced(draw, shape, unique=True)
    mask = isinstance(index[0], TensorSpec) and index[0].dtype == "bool"
    if mask or len(index) == 3 or draw.flag():  # torch may move the indexed dimension, so that only one value fits for certain
        return Call((x, index, one))
    return Call((x, index, draw.tensor(draw.broadcastable(named))))


ROWS = (
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
            accumulates=("forward", "backward"),  # as scatter_reduce; its gradient gathers, and the gradient of that adds up
            rule=rule,
            call="torch.index_reduce",
            signature=_index_reduce(r),
            dtypes=REAL,
            grad=FLOATS,
            inplace="torch.Tensor.index_reduce_",
            out=True,
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
    _row(
        name="masked_scatter",
        call="torch.masked_scatter",
        signature=_masked_scatter,
        inplace="torch.Tensor.masked_scatter_",
        opinfo=("masked_scatter",),
    ),
    _row(name="setitem", call="parity.catalog.calls.setitem", signature=_setitem, mutates=True),
    _row(name="setitem_advanced", call="operator.setitem", signature=_setitem_advanced, mutates=True),
    _row(
        name="scatter_old",
        accumulates=("forward", "backward"),  # repeats are combined one by one in the dtype (atomics)
        rule=OpClass.COMPOSITE,
        call="torch.scatter",
        signature=_scatter_old,
        dtypes=(*REAL, "complex64"),
        grad=(),
        inplace="torch.Tensor.scatter_",
        out=True,
    ),
    _row(
        name="index_put_kernel",
        accumulates=("forward",),
        rule=OpClass.CONTRACTION,
        call="parity.catalog.aten._index_put_impl_",
        signature=_put_unsafe,
        grad=(),
        mutates=True,
    ),
)
