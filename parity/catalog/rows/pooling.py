"""Pooling: maxima, averages, adaptive pooling, norms, and unpooling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    EXACT,
    GLUE,
    OWN,
    ROUNDED,
    SCATTERED,
    SELECTION,
    Counts,
    Draws,
    Judged,
    Refuses,
    Row,
    Signature,
    Wrong,
)
from parity.core.case import Arg
from parity.core.dtypes import FLOATS, INTS

_row = partial(Row, family="pooling", dtypes=FLOATS, grad=FLOATS, call="torch.nn.functional.*")


def _lead(draw: Draw) -> Shape:
    """(batch, channels) or (channels,)."""
    channels = draw.extent((1, 2, 3, 5, 16))
    return draw.choice(((1, channels), (channels,), (2, channels), (3, channels)))


def _window(draw: Draw, spatial: int) -> tuple[Arg, tuple[int, ...]]:
    """A window as an argument, one number or one for each dimension, and its sizes."""
    if draw.flag():
        sizes = tuple(draw.choice((2, 1, 3, 4)) for _ in range(spatial))
        return sizes, sizes
    k = draw.choice((2, 1, 3, 4))
    return k, (k,) * spatial


def _stride(draw: Draw, spatial: int) -> Arg:
    kind = draw.pick(3)
    return None if kind == 0 else draw.choice((1, 2, 3)) if kind == 1 else tuple(draw.choice((1, 2, 3)) for _ in range(spatial))


def _pool(spatial: int, more: Callable[[Draw], dict[str, Arg]], dilated: bool = False) -> Signature:
    """Window, stride, padding at most half the window, ceil mode; the input holds one window at least."""

    def signature(draw: Draw) -> Arguments:
        if draw.rare(40):  # many planes, or large ones
            lead, long = draw.choice((((1, 1025), 2), ((65537, 1), 2), ((1, 1), 4099)))
            x = draw.tensor((*lead, *(1,) * (spatial - 1), long))
            return Arguments((x, (*(1,) * (spatial - 1), 2)), keywords(stride=draw.option(1)))
        window, sizes = _window(draw, spatial)
        stride = _stride(draw, spatial)
        dilation = draw.option(2, 3) if dilated else None
        half = min(sizes) // 2
        padding: Arg = draw.option(*range(1, half + 1)) if half else None
        if draw.pick(4) == 3:
            padding = tuple(draw.pick(k // 2 + 1) for k in sizes)
        shape = tuple((k - 1) * (dilation or 1) + 1 + draw.extent((0, 1, 2, 3, 5, 17)) for k in sizes)
        # Smaller than the window, which the padding fills; torch 2.13's CPU wants one for 3-d averages all the same. Where a
        # dilation steps over the whole input, a window holds nothing: its index lies outside, its gradient is written there.
        if isinstance(padding, int) and (dilated or spatial < 3) and draw.pick(4) == 3:
            least = dilation or 1
            shape = tuple(max(least, (k - 1) * least + 1 - draw.integer(0, 2 * padding)) for k in sizes)
        ceil = draw.option(True)
        named: dict[str, Arg] = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil}
        return Arguments((draw.tensor((*_lead(draw), *shape)), window), keywords(**named, **more(draw)))

    return signature


def _indices(draw: Draw) -> dict[str, Arg]:
    return {"return_indices": draw.option(True)}


def _average1(draw: Draw) -> dict[str, Arg]:
    return {"count_include_pad": draw.option(False)}


def _average(draw: Draw) -> dict[str, Arg]:
    return {"count_include_pad": draw.option(False), "divisor_override": draw.option(1, 3, -2)}


def _adaptive(spatial: int, more: Callable[[Draw], dict[str, Arg]]) -> Signature:
    """Output sizes that divide the input size or not, smaller and larger ones, and None (the size of the input)."""

    def signature(draw: Draw) -> Arguments:
        shape = tuple(draw.extent((1, 2, 3, 4, 5, 6, 7, 9)) for _ in range(spatial))
        size: Arg = draw.choice((1, 2, 3, 4))
        if draw.flag():
            optional: tuple[int | None, ...] = (1, 2, 3, 5, 8) if spatial == 1 else (1, 2, 3, 5, 8, None)
            size = tuple(draw.choice(optional) for _ in range(spatial))
        return Arguments((draw.tensor((*_lead(draw), *shape)), size), keywords(**more(draw)))

    return signature


def _nothing(draw: Draw) -> dict[str, Arg]:
    return {}


def _norms(spatial: int) -> Signature:
    def signature(draw: Draw) -> Arguments:
        k = draw.choice((2, 1, 3))
        shape = tuple(k + draw.extent((0, 1, 2, 3)) for _ in range(spatial))
        p = draw.choice((2.0, 1.0, 3.0))
        x = draw.inside((*_lead(draw), *shape), 0.25, 4)  # roots of numbers near 0 are steep, of negative ones NaN
        return Arguments((x, p, k), keywords(stride=draw.option(1, 2), ceil_mode=draw.option(True)))

    return signature


def _fractional(spatial: int) -> Signature:
    """Windows placed by samples in [0, 1), one for each plane and dimension; sizes or ratios of the result."""

    def signature(draw: Draw) -> Arguments:
        k = tuple(draw.choice((2, 1, 3)) for _ in range(spatial))
        shape = tuple(s + draw.extent((1, 2, 4)) for s in k)
        size = tuple(1 + draw.pick(s - n) for s, n in zip(shape, k))
        batch, channels = draw.batch(), draw.extent((1, 2, 3))
        samples = draw.inside((batch, channels, spatial), 0, 0.96875, grad=False)
        return Arguments((draw.tensor((batch, channels, *shape)), k, size, draw.flag(), samples))

    return signature


def _unpool(spatial: int) -> Signature:
    """Indices without repeats, flat over the spatial dimensions."""

    def signature(draw: Draw) -> Arguments:
        k = draw.choice((2, 1, 3))
        shape = tuple(draw.extent((1, 2, 3)) for _ in range(spatial))
        lead = _lead(draw)
        inner = outer = 1
        for s in shape:
            inner, outer = inner * s, outer * s * k
        return Arguments((draw.tensor((*lead, *shape)), draw.unique_index((*lead, inner), outer), k, k))

    return signature


# Illegal: padding by more than half the window, a stride below 1, a window of that size.
_AVERAGED = (*(Wrong(*w) for w in (("padding", 99), ("padding", -1), ("stride", -1), ("stride", 0))), Wrong(1, 1 << 20, "size"))
_PICKED = (*_AVERAGED, Wrong("dilation", 0))


def _rows(spatial: int) -> tuple[Row, ...]:
    n = f"{spatial}d"
    average = _average1 if spatial == 1 else _average
    averaged = FLOATS if spatial < 3 else ("float32",)
    compared = FLOATS if spatial == 1 else (*FLOATS, *INTS)
    row = partial(_row, draws=Draws(spatial=spatial))
    scattered = partial(row, judged=Judged(accumulates=SCATTERED), counts=OWN)
    picks = partial(scattered, rule=SELECTION, judged=Judged(relation="max_pool_indices", accumulates=SCATTERED))
    averages = partial(scattered, rule=CONTRACTION)
    takes = ("int",) if spatial == 1 else ()
    mps = "own" if spatial == 2 else ""
    unpooled = (f"nn.functional.max_unpool{n}", f"nn.functional.max_unpool{n}:grad")
    return (
        picks(
            f"max_pool{n}",
            _pool(spatial, _indices, dilated=True),
            dtypes=compared,
            refuses=Refuses(wrong=_PICKED, takes=takes),
            counts=Counts(("*",), mps=mps),
        ),
        averages(f"avg_pool{n}", _pool(spatial, average), dtypes=averaged, grad=averaged, refuses=Refuses(wrong=_AVERAGED)),
        averages(f"adaptive_avg_pool{n}", _adaptive(spatial, _nothing), refuses=Refuses(takes=("complex",))),
        picks(
            f"adaptive_max_pool{n}",
            _adaptive(spatial, _indices),
            judged=Judged(relation="adaptive_pool_indices", accumulates=SCATTERED),
        ),
        # rounds_between: a power, an average pool and a root, each rounded to the dtype
        row(f"lp_pool{n}", _norms(spatial), rule=COMPOSITE, dtypes=averaged, grad=averaged, judged=ROUNDED),
        row(f"max_unpool{n}", _unpool(spatial), rule=EXACT, call=GLUE, counts=Counts(unpooled)),
    )


ROWS = (
    *_rows(1),
    *_rows(2),
    *_rows(3),
    *(
        _row(
            f"fractional_max_pool{n}d_sampled",
            _fractional(n),
            rule=SELECTION,
            draws=Draws(spatial=n),
            call=f"parity.catalog.glue.calls.fractional_max_pool{n}d",
            dtypes=("float32",),
            grad=("float32",),
            judged=Judged(relation="sampled_pool_indices"),
        )
        for n in (2, 3)
    ),
)
