"""Pooling: maxima, averages, adaptive ones, norms, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import Row, Signature
from parity.dtypes import FLOATS, INTS
from parity.vocabulary import Arg, OpClass

_row = partial(Row, family="pooling", dtypes=FLOATS, grad=FLOATS)


def _lead(draw: Draw) -> Shape:
    """(batch, channels) or (channels,)."""
    channels = draw.choice((1, 2, 3, 5, 16))
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

    def signature(draw: Draw) -> Call:
        if draw.rare(40):  # many planes, or long ones
            lead, long = draw.choice((((1, 1025), 2), ((65537, 1), 2), ((1, 1), 4099)))
            x = draw.tensor((*lead, *(1,) * (spatial - 1), long))
            return Call((x, (*(1,) * (spatial - 1), 2)), keywords(stride=draw.option(1)))
        window, sizes = _window(draw, spatial)
        stride = _stride(draw, spatial)
        dilation = draw.option(2, 3) if dilated else None
        half = min(sizes) // 2
        padding: Arg = draw.option(*range(1, half + 1)) if half else None
        if draw.pick(4) == 3:
            padding = tuple(draw.pick(k // 2 + 1) for k in sizes)
        shape = tuple((k - 1) * (dilation or 1) + 1 + draw.choice((0, 1, 2, 3, 5, 17)) for k in sizes)
        # Smaller than the window, which the padding fills; torch 2.13's CPU wants one for 3-d averages all the same. Where a
        # dilation steps over the whole input, a window holds nothing: its index lies outside, its gradient is written there.
        if isinstance(padding, int) and (dilated or spatial < 3) and draw.pick(4) == 3:
            least = dilation or 1
            shape = tuple(max(least, (k - 1) * least + 1 - draw.integer(0, 2 * padding)) for k in sizes)
        ceil = draw.option(True)
        named: dict[str, Arg] = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil}
        return Call((draw.tensor((*_lead(draw), *shape)), window), keywords(**named, **more(draw)))

    return signature


def _indices(draw: Draw) -> dict[str, Arg]:
    return {"return_indices": draw.option(True)}


def _average1(draw: Draw) -> dict[str, Arg]:
    return {"count_include_pad": draw.option(False)}


def _average(draw: Draw) -> dict[str, Arg]:
    return {"count_include_pad": draw.option(False), "divisor_override": draw.option(1, 3, -2)}


def _adaptive(spatial: int, more: Callable[[Draw], dict[str, Arg]]) -> Signature:
    """Output sizes that divide the input and that do not, smaller and larger ones, and None (the input's own)."""

    def signature(draw: Draw) -> Call:
        shape = tuple(draw.choice((1, 2, 3, 4, 5, 6, 7, 9)) for _ in range(spatial))
        size: Arg = draw.choice((1, 2, 3, 4))
        if draw.flag():
            optional: tuple[int | None, ...] = (1, 2, 3, 5, 8) if spatial == 1 else (1, 2, 3, 5, 8, None)
            size = tuple(draw.choice(optional) for _ in range(spatial))
        return Call((draw.tensor((*_lead(draw), *shape)), size), keywords(**more(draw)))

    return signature


def _nothing(draw: Draw) -> dict[str, Arg]:
    return {}


def _norms(spatial: int) -> Signature:
    def signature(draw: Draw) -> Call:
        k = draw.choice((2, 1, 3))
        shape = tuple(k + draw.choice((0, 1, 2, 3)) for _ in range(spatial))
        p = draw.choice((2.0, 1.0, 3.0))
        x = draw.inside((*_lead(draw), *shape), 0.25, 4)  # roots of what is not positive are NaN or steep
        return Call((x, p, k), keywords(stride=draw.option(1, 2), ceil_mode=draw.option(True)))

    return signature


def _fractional(spatial: int) -> Signature:
    """Windows placed by samples in [0, 1), one for each plane and dimension; sizes or ratios of the result."""

    def signature(draw: Draw) -> Call:
        k = tuple(draw.choice((2, 1, 3)) for _ in range(spatial))
        shape = tuple(s + draw.choice((1, 2, 4)) for s in k)
        size = tuple(1 + draw.pick(s - n) for s, n in zip(shape, k))
        batch, channels = draw.choice((1, 2)), draw.choice((1, 2, 3))
        samples = draw.inside((batch, channels, spatial), 0, 0.96875, grad=False)
        return Call((draw.tensor((batch, channels, *shape)), k, size, draw.flag(), samples))

    return signature


def _unpool(spatial: int) -> Signature:
    """Indices without repeats, flat over the spatial dimensions."""

    def signature(draw: Draw) -> Call:
        k = draw.choice((2, 1, 3))
        shape = tuple(draw.choice((1, 2, 3)) for _ in range(spatial))
        lead = _lead(draw)
        inner = outer = 1
        for s in shape:
            inner, outer = inner * s, outer * s * k
        return Call((draw.tensor((*lead, *shape)), draw.unique_index((*lead, inner), outer), k, k))

    return signature


def _rows(spatial: int) -> tuple[Row, ...]:
    n = f"{spatial}d"
    path = "torch.nn.functional."
    name = "nn.functional."
    average = _average1 if spatial == 1 else _average
    averaged = FLOATS if spatial < 3 else ("float32",)
    compared = FLOATS if spatial == 1 else (*FLOATS, *INTS)
    return (
        _row(
            name=f"max_pool{n}",
            rule=OpClass.SELECTION,
            relation="max_pool_indices",
            call=f"{path}max_pool{n}",
            signature=_pool(spatial, _indices, dilated=True),
            dtypes=compared,
            opinfo=(f"{name}max_pool{n}",),
        ),
        _row(
            name=f"avg_pool{n}",
            rule=OpClass.CONTRACTION,
            call=f"{path}avg_pool{n}",
            signature=_pool(spatial, average),
            dtypes=averaged,
            grad=averaged,
            opinfo=(f"{name}avg_pool{n}",),
        ),
        _row(
            name=f"adaptive_avg_pool{n}",
            rule=OpClass.CONTRACTION,
            call=f"{path}adaptive_avg_pool{n}",
            signature=_adaptive(spatial, _nothing),
            opinfo=(f"{name}adaptive_avg_pool{n}",),
        ),
        _row(
            name=f"adaptive_max_pool{n}",
            rule=OpClass.SELECTION,
            relation="max_pool_indices",
            call=f"{path}adaptive_max_pool{n}",
            signature=_adaptive(spatial, _indices),
            opinfo=(f"{name}adaptive_max_pool{n}",),
        ),
        _row(
            name=f"lp_pool{n}",
            rule=OpClass.COMPOSITE,
            call=f"{path}lp_pool{n}",
            signature=_norms(spatial),
            dtypes=averaged,
            grad=averaged,
            rounds_between=True,  # a power, an average pool and a root, each rounded to the dtype
        ),
        _row(
            name=f"max_unpool{n}",
            rule=OpClass.EXACT,
            call=f"parity.catalog.calls.max_unpool{n}",
            signature=_unpool(spatial),
            opinfo=(f"{name}max_unpool{n}", f"{name}max_unpool{n}:grad"),
        ),
    )


ROWS = (
    *_rows(1),
    *_rows(2),
    *_rows(3),
    *(
        _row(
            name=f"fractional_max_pool{n}d_sampled",
            rule=OpClass.SELECTION,
            relation="max_pool_indices",
            call=f"parity.catalog.calls.fractional_max_pool{n}d",
            signature=_fractional(n),
            dtypes=("float32",),
            grad=("float32",),
        )
        for n in (2, 3)
    ),
)
