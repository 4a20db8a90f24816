"""Calls of operands that share memory. An operand lies in the memory that is written: the destination itself, or elements
beside it, and what a kernel reads after it has written there shows. Or two operands are views of one tensor, which a kernel may
take for one where it knows them by their memory alone. The calls stand in `parity.catalog.into`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parity.catalog import activations, scans, unary
from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import EVERY, FLOATING, NUMERIC, Row, Signature
from parity.catalog.signatures import whole
from parity.dtypes import FLOATS
from parity.vocabulary import OpClass

INTO = "parity.catalog.into."
_row = partial(Row, family="writing", rule=OpClass.EXACT, mutates=True)
SOME = "float32", "float16", "int64"
_SOURCES: dict[str, Row] = {r.name: r for m in (unary, activations, scans) for r in m.ROWS}


def _within(draw: Draw) -> Call:
    """At least half of the dimension further, so that the parts do not meet."""
    shape = draw.shape(1, 4, empty=False)
    d = draw.pick(len(shape)) - len(shape)
    n = max(4, shape[d])
    shift = n - draw.integer(1, min(n // 2, 4)) if draw.flag() else n - n // 2
    shape = tuple(n if k == d % len(shape) else s for k, s in enumerate(shape))
    return Call((draw.tensor(shape),), keywords(dim=d, shift=shift))


def _neighbours(word: str) -> Signature:
    def signature(draw: Draw) -> Call:
        shape = draw.shape(1, 4)
        return Call((draw.tensor((*shape[:-1], 2 * shape[-1])), word))

    return signature


def _itself(word: str) -> Signature:
    def signature(draw: Draw) -> Call:
        return Call((draw.tensor(draw.shape(0, 5)), word))

    return signature


def _parts(word: str) -> Signature:
    """Two parts of one tensor, apart or overlapping."""

    def signature(draw: Draw) -> Call:
        shape = draw.shape(1, 4, empty=False)
        d = draw.pick(len(shape)) - len(shape)
        n = max(2, shape[d])
        if word not in ("cat", "stack") and draw.rare(4):  # a few elements each, each cut out along every dimension
            return Call((draw.tensor(tuple(max(2, s) for s in shape)), word, tuple(range(len(shape))), draw.choice((1, 2))))
        few = draw.flag() and word not in ("bmm", "cat", "stack")  # so that equal ones happen
        shape = tuple(n if k == d % len(shape) else s for k, s in enumerate(shape))
        x = whole(0, 2)(draw, shape) if few else draw.tensor(shape)
        return Call((x, word, d, n - n // 2 if draw.flag() else 1))

    return signature


def _matrices(draw: Draw) -> Call:
    """A stack of square matrices, two parts of which are multiplied with each other."""
    n, b = draw.choice((2, 1, 3, 5, 16)), draw.choice((2, 3, 4, 5))
    return Call((draw.tensor((b, n, n)), "bmm", 0, draw.choice((1, b - b // 2))))


def _filled(draw: Draw) -> Call:
    shape = draw.shape(1, 4, empty=False)
    return Call((draw.tensor(shape), draw.pick(shape[-1]), draw.flag()))


def _into_itself(name: str) -> Row:
    """A row of another family, its operand as the destination of out=."""
    source = _SOURCES[name]

    def signature(draw: Draw) -> Call:
        first, *rest = source.signature(draw).args
        return Call((first, name, *rest))

    return replace(
        source,
        name=f"{name}_into_itself",
        family="writing",
        call=INTO + "into_itself",
        signature=signature,
        dtypes=FLOATS,
        grad=(),
        inplace="",
        out=False,
        mutates=True,
        strides=False,
        ulp=source.ulp or source.name,
        opinfo=(),
    )


ROWS = (
    _row(name="copy_within", call=INTO + "copy_within", signature=_within, dtypes=EVERY, grad=FLOATING),
    _row(name="filled_from_itself", call=INTO + "filled_from_itself", signature=_filled, dtypes=NUMERIC),
    *(
        _row(
            name=f"{word}_interleaved",
            call=INTO + "interleaved",
            signature=_neighbours(f"{word}_"),
            dtypes=EVERY,
            grad=FLOATING,
        )
        for word in ("copy",)
    ),
    *(
        _row(
            name=f"{word}_interleaved",
            call=INTO + "interleaved",
            signature=_neighbours(f"{word}_"),
            rule=OpClass.ELEMENTWISE,
            dtypes=NUMERIC,
            grad=() if word == "mul" else FLOATING,  # whose gradient needs what it wrote over
            ulp=word,
        )
        for word in ("add", "mul")
    ),
    *(
        _row(
            name=f"{word}_with_itself",
            call=INTO + "with_itself",
            signature=_itself(f"{word}_"),
            rule=OpClass.ELEMENTWISE,
            dtypes=NUMERIC,
            grad=() if word == "mul" else FLOATING,  # whose gradient needs what it wrote over
            ulp=word,
        )
        for word in ("add", "sub", "mul")
    ),
    *(
        Row(
            name=f"{word}_of_neighbours",
            family="writing",
            rule=rule,
            call=INTO + "of_neighbours",
            signature=_matrices if word == "bmm" else _parts(word),
            dtypes=dtypes,
            grad=grad,
            ulp=word,
        )
        for word, rule, dtypes, grad in (
            ("le", OpClass.EXACT, SOME, ()),
            ("ge", OpClass.EXACT, SOME, ()),
            ("eq", OpClass.EXACT, SOME, ()),
            ("ne", OpClass.EXACT, SOME, ()),
            ("sub", OpClass.ELEMENTWISE, SOME, ("float32",)),
            ("mul", OpClass.ELEMENTWISE, SOME, ("float32",)),
            ("maximum", OpClass.EXACT, SOME, ()),
            ("bitwise_xor", OpClass.EXACT, ("int64", "uint8"), ()),
            ("cat", OpClass.EXACT, SOME, ("float32",)),
            ("bmm", OpClass.CONTRACTION, ("float32", "float16"), ("float32",)),
        )
    ),
    _row(name="copy_with_itself", call=INTO + "with_itself", signature=_itself("copy_"), dtypes=EVERY),
    *(_into_itself(name) for name in ("neg", "exp", "tanh", "sigmoid", "cumsum", "cumprod")),
)
