"""Calls whose operands share memory. Either an operand shares memory with the destination, which shows kernels that read after
they have written; or two operands are views of one tensor, which shows kernels that identify operands by their memory alone.
The calls are in `parity.catalog.glue.into`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import CONTRACTION, ELEMENTWISE, EVERY, EXACT, FLOATING, NUMERIC, Forms, Judged, Row, Signature
from parity.catalog.rows import activations, selection, unary
from parity.catalog.signatures import whole
from parity.core.dtypes import FLOATS

INTO = "parity.catalog.glue.into."
_row = partial(Row, family="writing", rule=EXACT, forms=Forms(mutates=True))
SOME = "float32", "float16", "int64"
_SOURCES: dict[str, Row] = {r.name: r for m in (unary, activations, selection) for r in m.ROWS}


def _within(draw: Draw) -> Arguments:
    """Copies by at least half of the dimension, so that source and destination do not overlap."""
    shape = draw.shape(1, 4, empty=False)
    d = draw.pick(len(shape)) - len(shape)
    n = max(4, shape[d])
    shift = n - draw.integer(1, min(n // 2, 4)) if draw.flag() else n - n // 2
    shape = tuple(n if k == d % len(shape) else s for k, s in enumerate(shape))
    return Arguments((draw.tensor(shape),), keywords(dim=d, shift=shift))


def _neighbours(word: str) -> Signature:
    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(1, 4)
        return Arguments((draw.tensor((*shape[:-1], 2 * shape[-1])), word))

    return signature


def _itself(word: str) -> Signature:
    def signature(draw: Draw) -> Arguments:
        return Arguments((draw.tensor(draw.shape(0, 5)), word))

    return signature


def _parts(word: str) -> Signature:
    """Two parts of one tensor, apart or overlapping."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(1, 4, empty=False)
        d = draw.pick(len(shape)) - len(shape)
        n = max(2, shape[d])
        if word not in ("cat", "stack") and draw.rare(4):  # a few elements each, narrowed along every dimension
            return Arguments(
                (draw.tensor(tuple(max(2, s) for s in shape)), word, tuple(range(len(shape))), draw.choice((1, 2)))
            )
        few = draw.flag() and word not in ("bmm", "cat", "stack")  # few values, so that some are equal
        shape = tuple(n if k == d % len(shape) else s for k, s in enumerate(shape))
        x = whole(0, 2)(draw, shape) if few else draw.tensor(shape)
        return Arguments((x, word, d, n - n // 2 if draw.flag() else 1))

    return signature


def _matrices(draw: Draw) -> Arguments:
    """A stack of square matrices, two parts of which are multiplied with each other."""
    n, b = draw.choice((2, 1, 3, 5, 16)), draw.choice((2, 3, 4, 5))
    return Arguments((draw.tensor((b, n, n)), "bmm", 0, draw.choice((1, b - b // 2))))


def _filled(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4, empty=False)
    return Arguments((draw.tensor(shape), draw.pick(shape[-1]), draw.flag()))


def _into_itself(name: str) -> Row:
    """A row of another family, with its operand as the destination of out=."""
    source = _SOURCES[name]

    def signature(draw: Draw) -> Arguments:
        first, *rest = source.signature(draw).args
        return Arguments((first, name, *rest))

    return replace(
        source,
        name=f"{name}_into_itself",
        family="writing",
        call=INTO + "into_itself",
        signature=signature,
        dtypes=FLOATS,
        grad=(),
        forms=replace(source.forms, inplace="", out=False, mutates=True, strides=False),
        judged=replace(source.judged, ulp=source.judged.ulp or source.name),
        counts=replace(source.counts, opinfo=()),
    )


ROWS = (
    _row("copy_within", _within, call=INTO + "copy_within", dtypes=EVERY, grad=FLOATING),
    _row("filled_from_itself", _filled, call=INTO + "filled_from_itself", dtypes=NUMERIC),
    *(
        _row(f"{word}_interleaved", _neighbours(f"{word}_"), call=INTO + "interleaved", dtypes=EVERY, grad=FLOATING)
        for word in ("copy",)
    ),
    *(
        # grad: whose gradient needs what it wrote over
        _row(
            f"{word}_interleaved",
            _neighbours(f"{word}_"),
            call=INTO + "interleaved",
            rule=ELEMENTWISE,
            dtypes=NUMERIC,
            grad=() if word == "mul" else FLOATING,
            judged=Judged(ulp=word),
        )
        for word in ("add", "mul")
    ),
    *(
        # grad: whose gradient needs what it wrote over
        _row(
            f"{word}_with_itself",
            _itself(f"{word}_"),
            call=INTO + "with_itself",
            rule=ELEMENTWISE,
            dtypes=NUMERIC,
            grad=() if word == "mul" else FLOATING,
            judged=Judged(ulp=word),
        )
        for word in ("add", "sub", "mul")
    ),
    *(
        Row(
            f"{word}_of_neighbours",
            _matrices if word == "bmm" else _parts(word),
            family="writing",
            rule=rule,
            call=INTO + "of_neighbours",
            dtypes=dtypes,
            grad=grad,
            judged=Judged(ulp=word),
        )
        for word, rule, dtypes, grad in (
            ("le", EXACT, SOME, ()),
            ("ge", EXACT, SOME, ()),
            ("eq", EXACT, SOME, ()),
            ("ne", EXACT, SOME, ()),
            ("sub", ELEMENTWISE, SOME, ("float32",)),
            ("mul", ELEMENTWISE, SOME, ("float32",)),
            ("maximum", EXACT, SOME, ()),
            ("bitwise_xor", EXACT, ("int64", "uint8"), ()),
            ("cat", EXACT, SOME, ("float32",)),
            ("bmm", CONTRACTION, ("float32", "float16"), ("float32",)),
        )
    ),
    _row("copy_with_itself", _itself("copy_"), call=INTO + "with_itself", dtypes=EVERY),
    *(_into_itself(name) for name in ("neg", "exp", "tanh", "sigmoid", "cumsum", "cumprod")),
)
