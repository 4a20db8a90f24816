"""Writing by index, mask and slice."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    EVERY,
    EXACT,
    FLOATING,
    GLUE,
    METHOD,
    OWN,
    REAL,
    Counts,
    Draws,
    Forms,
    Judged,
    Quirk,
    Refuses,
    Row,
    Signature,
)
from parity.catalog.rows.indexing import WHOLE, advanced, extent, picked, slices, smaller, some, target
from parity.catalog.signatures import cast_scalar, castable, scalar, source_of
from parity.core.case import Arg, TensorSpec
from parity.core.dtypes import FLOATS

_row = partial(Row, family="writing", rule=EXACT, dtypes=EVERY, grad=FLOATING)


def _scatter(draw: Draw) -> Arguments:
    """Writes a tensor or a scalar to unique indices along the dimension."""
    x, shape, d = target(draw, empty=True)
    where = smaller(draw, shape, d, some(draw, extent(shape, d), unique=True))
    index = draw.unique_index(where, extent(shape, d), dim=d)
    if draw.pick(3) == 2:
        return Arguments((x, d, index, cast_scalar(draw)))
    if draw.pick(6) == 5:  # equal values may be written to one index
        value = draw.choice((1, 0))
        repeated = draw.index(where, extent(shape, d))
        return Arguments((x, d, repeated, draw.inside(where, value, value, grad=False)))
    source = tuple(s + draw.pick(2) for s in where) if draw.pick(4) == 3 else where
    return Arguments(
        (x, d, index, draw.tensor(source, grad=source == where))
    )  # torch has no gradient for a source larger than the index


def _scatter_add(draw: Draw) -> Arguments:
    x, shape, d = target(draw, empty=True)
    where = smaller(draw, shape, d, some(draw, extent(shape, d)))
    return Arguments((x, d, draw.index(where, extent(shape, d)), draw.tensor(where)))


def _scatter_reduce(reduce: str) -> Signature:
    def signature(draw: Draw) -> Arguments:
        call = _scatter_add(draw)
        return Arguments((*call.args, reduce), keywords(include_self=draw.option(False)))

    return signature


def _places(draw: Draw, n: int) -> Shape:
    """The shape of n indices; a single one may be 0-d."""
    return () if n == 1 and draw.rare(3) else (n,)


def _index_add(draw: Draw) -> Arguments:
    x, shape, d = target(draw, empty=True)
    n = some(draw, 9) if shape else 1
    index = draw.index(_places(draw, n), extent(shape, d), dtype=draw.choice(("int64", "int32")))
    source = draw.tensor(picked(draw, shape, d, n))
    return Arguments((x, d, index, source), keywords(alpha=draw.number(2) if draw.flag() else None))


def _index_copy(draw: Draw) -> Arguments:
    x, shape, d = target(draw, empty=True)
    if draw.pick(6) == 5 and shape:  # equal values may be written to one index
        n = some(draw, 9)
        return Arguments((x, d, draw.index((n,), extent(shape, d)), draw.inside(picked(draw, shape, d, n), 1, 1, grad=False)))
    n = some(draw, extent(shape, d), unique=True) if shape else 1
    return Arguments((x, d, draw.unique_index(_places(draw, n), extent(shape, d)), draw.tensor(picked(draw, shape, d, n))))


def _index_fill(draw: Draw) -> Arguments:
    x, shape, d = target(draw, empty=True)
    value: Arg = draw.tensor(()) if draw.pick(3) == 2 else cast_scalar(draw)
    return Arguments((x, d, draw.index(_places(draw, some(draw, 9) if shape else 1), extent(shape, d)), value))


def _index_reduce(reduce: str) -> Signature:
    def signature(draw: Draw) -> Arguments:
        x, shape, d = target(draw, 1)
        n = some(draw, 9)
        index = draw.index(_places(draw, n), shape[d])
        return Arguments(
            (x, d, index, draw.tensor(picked(draw, shape, d, n)), reduce), keywords(include_self=draw.option(False))
        )

    return signature


def _index_put(accumulate: bool) -> Signature:
    """Index tensors for the first dimensions, broadcast against each other; values that broadcast; or a mask."""

    def signature(draw: Draw) -> Arguments:
        x, shape, _ = target(draw, 1)
        used = 1 + draw.pick(len(shape))
        alike = not accumulate and draw.pick(6) == 5  # equal values may be written to one index
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
        return Arguments((x, indices, value), keywords(accumulate=True if accumulate else None))

    return signature


def _mask_put(draw: Draw) -> Arguments:
    x, shape, _ = target(draw, 1)
    used = draw.choice(tuple(range(len(shape), 0, -1)))
    mask = draw.mask(shape[:used])
    if draw.pick(4) == 3:  # a mask of one element: selects all or nothing
        mask = draw.inside(shape[:used], *draw.choice(((0, 0), (1, 1))), dtype="bool", grad=False)
    return Arguments((x, (mask,), draw.tensor(())))


def _scatter_old(draw: Draw) -> Arguments:
    """scatter with a reduction by name, from a tensor or a number."""
    x, shape, d = target(draw, empty=True)
    where = smaller(draw, shape, d, some(draw, extent(shape, d)))
    source: Arg = draw.number(2) if draw.flag() else draw.tensor(where, grad=False)
    return Arguments((x, d, draw.index(where, extent(shape, d)), source), keywords(reduce=draw.choice(("add", "multiply"))))


def _put_unsafe(draw: Draw) -> Arguments:
    """The kernel of index_put_, which can also skip the check of its indices."""
    call = _index_put(draw.flag())(draw)
    accumulate = bool(dict(call.kwargs).get("accumulate"))
    return Arguments((*call.args, accumulate, draw.flag()))


def _put(draw: Draw) -> Arguments:
    x, _, _ = target(draw)
    if draw.flag():
        where = draw.shape(0, 2)
        index, named = draw.index(where, max(1, x.numel)), keywords(accumulate=True)
    elif draw.pick(6) == 5:  # equal values may be written to one index
        where = draw.shape(0, 2)
        return Arguments((x, draw.index(where, max(1, x.numel)), draw.inside(where, 1, 1, grad=False)))
    else:
        where = (min(max(1, x.numel), draw.choice((1, 2, 3))),)
        index, named = draw.unique_index(where, max(1, x.numel)), ()
    return Arguments((x, index, draw.tensor(where)), named)


def _masked_fill(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    mask = draw.mask(draw.broadcastable(shape))
    return Arguments((draw.tensor(shape), mask, draw.tensor(()) if draw.pick(3) == 2 else cast_scalar(draw)))


def _masked_scatter(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    return Arguments((draw.tensor(shape), draw.mask(draw.broadcastable(shape)), draw.tensor(shape)))


def _value(draw: Draw, shape: Shape) -> Arg:
    """A number, a 0-d tensor, or one that broadcasts; of the item's kind or another."""
    kind = draw.pick(3)
    if kind == 0:
        return scalar(draw)
    return castable(draw, draw.broadcastable(shape) if kind == 1 else (), draw.dtype, source_of(draw))


def _one_value(draw: Draw) -> Arg:
    """A number or a 0-d tensor."""
    return castable(draw, (), draw.dtype, source_of(draw)) if draw.flag() else scalar(draw)


def _setitem(draw: Draw) -> Arguments:
    """One assignment, or a few of single values in sequence, which may overlap."""
    if draw.rare(16):
        return Arguments((draw.tensor(()), draw.choice(WHOLE), _one_value(draw)))
    x, shape, _ = target(draw, 1)
    if draw.pick(4) == 3:
        pairs = tuple(part for _ in range(draw.choice((2, 3))) for part in (slices(draw, shape)[0], _one_value(draw)))
        return Arguments((x, *pairs))
    index, named = slices(draw, shape)
    return Arguments((x, index, _value(draw, named)))


def _setitem_advanced(draw: Draw) -> Arguments:
    """By index and by mask, with a source of the same dtype, as torch requires."""
    x, shape, _ = target(draw, 1)
    one: Arg = draw.tensor(()) if draw.flag() else scalar(draw)
    if draw.pick(6) == 5:  # one value may be written to a place repeatedly
        return Arguments((x, advanced(draw, shape, unique=False)[0], one))
    index, named = advanced(draw, shape, unique=True)
    mask = isinstance(index[0], TensorSpec) and index[0].dtype == "bool"
    if mask or len(index) == 3 or draw.flag():  # torch may move the indexed dimension, so only a single value certainly fits
        return Arguments((x, index, one))
    return Arguments((x, index, draw.tensor(draw.broadcastable(named))))


ROWS = (
    _row("scatter", _scatter, forms=Forms(inplace=METHOD, out=True), counts=OWN),
    # accumulates: repeats are added one by one in the dtype (atomics)
    _row(
        "scatter_add",
        _scatter_add,
        forms=Forms(inplace=METHOD, out=True),
        rule=CONTRACTION,
        judged=Judged(accumulates=("forward", "backward")),
        counts=OWN,
    ),
    *(
        # accumulates: repeats are combined one by one in the dtype (atomics)
        _row(
            f"scatter_reduce_{r}",
            _scatter_reduce(r),
            forms=Forms(inplace="torch.Tensor.scatter_reduce_", out=True),
            rule=rule,
            call="torch.scatter_reduce",
            dtypes=REAL,
            grad=FLOATS,
            judged=Judged(accumulates=("forward", "backward")),
            counts=Counts((f"scatter_reduce:{r}",)),
        )
        for r, rule in (("sum", CONTRACTION), ("prod", COMPOSITE), ("mean", COMPOSITE), ("amax", EXACT), ("amin", EXACT))
    ),
    # accumulates: repeats are added one by one in the dtype (atomics)
    _row(
        "index_add",
        _index_add,
        forms=Forms(inplace=METHOD, out=True),
        rule=CONTRACTION,
        judged=Judged(accumulates=("forward", "backward")),
        counts=OWN,
    ),
    _row("index_copy", _index_copy, forms=Forms(inplace=METHOD, out=True), counts=OWN),
    _row(
        "index_fill", _index_fill, forms=Forms(inplace=METHOD), refuses=Refuses(wraps=True), counts=OWN, quirks=(Quirk.NUMBER,)
    ),
    *(
        # accumulates: as scatter_reduce; its gradient gathers, and the gradient of that adds up
        _row(
            f"index_reduce_{r}",
            _index_reduce(r),
            forms=Forms(inplace="torch.Tensor.index_reduce_", out=True),
            rule=rule,
            call="torch.index_reduce",
            dtypes=REAL,
            grad=FLOATS,
            judged=Judged(accumulates=("forward", "backward")),
            counts=Counts((f"index_reduce:{r}",)),
        )
        for r, rule in (("prod", COMPOSITE), ("mean", COMPOSITE), ("amax", EXACT), ("amin", EXACT))
    ),
    _row(
        "index_put",
        _index_put(False),
        forms=Forms(inplace=METHOD),
        draws=Draws(on_cpu="indices"),
        refuses=Refuses(wraps=True),
        counts=OWN,
    ),
    # accumulates: repeats are added one by one in the dtype (atomics)
    _row(
        "index_put_accumulate",
        _index_put(True),
        forms=Forms(inplace="torch.Tensor.index_put_"),
        rule=CONTRACTION,
        call="torch.index_put",
        draws=Draws(on_cpu="indices"),
        judged=Judged(accumulates=("forward", "backward")),
    ),
    _row(
        "index_put_mask",
        _mask_put,
        call="torch.index_put",
        forms=Forms(inplace="torch.Tensor.index_put_"),
        draws=Draws(on_cpu="indices"),
    ),
    # accumulates: repeats are added one by one in the dtype (atomics)
    _row(
        "put",
        _put,
        forms=Forms(inplace=METHOD),
        rule=CONTRACTION,
        call="torch.Tensor.*",
        draws=Draws(nondeterministic=EVERY),
        refuses=Refuses(wraps=True),
        judged=Judged(accumulates=("forward", "backward")),
        counts=OWN,
    ),
    _row("masked_fill", _masked_fill, forms=Forms(inplace=METHOD), counts=OWN, quirks=(Quirk.NUMBER,)),
    _row("masked_scatter", _masked_scatter, forms=Forms(inplace=METHOD), counts=OWN),
    _row("setitem", _setitem, call=GLUE, forms=Forms(mutates=True), draws=Draws(on_cpu="either")),
    _row(
        "setitem_advanced",
        _setitem_advanced,
        call="operator.setitem",
        forms=Forms(mutates=True),
        draws=Draws(on_cpu="indices"),
        refuses=Refuses(wraps=True),
        counts=Counts(under="setitem"),
    ),
    # accumulates: repeats are combined one by one in the dtype (atomics)
    _row(
        "scatter_old",
        _scatter_old,
        forms=Forms(inplace="torch.Tensor.scatter_", out=True),
        rule=COMPOSITE,
        call="torch.scatter",
        dtypes=(*REAL, "complex64"),
        grad=(),
        judged=Judged(accumulates=("forward", "backward")),
    ),
    _row(
        "index_put_kernel",
        _put_unsafe,
        forms=Forms(mutates=True),
        rule=CONTRACTION,
        call="parity.catalog.glue.aten._index_put_impl_",
        grad=(),
        draws=Draws(on_cpu="indices"),
        refuses=Refuses(wraps=True, unchecked=True),
        judged=Judged(accumulates=("forward",)),
        counts=Counts(under="index_put"),
    ),
)
