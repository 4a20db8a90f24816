"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import CONTRACTION, FLOATING, OWN, Counts, Judged, Refuses, Row, Signature, Wrong
from parity.core.case import Arg, TensorSpec
from parity.core.dtypes import HALF

LAYERS = "parity.catalog.glue.layers."
# In bfloat16 torch 2.13's CPU (oneDNN) crashes on some narrow images in channels_last: see `_undilated`.
LAST = ("float32", "float16", "complex64")


def _each(draw: Draw, spatial: int, *values: int) -> tuple[int, ...] | int | None:
    """Left out, one number for all spatial dimensions, or one for each."""
    kind = draw.pick(4)
    if kind < 2:
        return None
    if kind == 2:
        return draw.choice(values)
    return tuple(draw.choice(values) for _ in range(spatial))


def _per_dim(value: tuple[int, ...] | int | None, default: int, spatial: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (default if value is None else value,) * spatial


def _channels(draw: Draw) -> tuple[int, int, int]:
    """(groups, channels per group in, channels per group out); sometimes depthwise, sometimes with a border size."""
    groups = draw.choice((1, 1, 1, 2, 3, 8))
    if groups == 8:
        return 8, 1, draw.choice((1, 2))
    inner, outer = draw.extent((1, 2, 3, 4, 8)), draw.extent((1, 2, 3, 5, 8))
    if draw.pick(8) == 7:
        border = draw.choice((16, 17, 32, 33, 64))
        inner, outer = (border, 2) if draw.flag() else (2, border)
    return groups, inner, outer


LONGEST = 300  # side of a kernel: the CPU takes minutes for transposed ones with thousands


def _kernel(draw: Draw, spatial: int) -> tuple[int, ...]:
    if draw.pick(12) == 11:  # one long side
        side = draw.choice((9, 17, 32))
        return (side, *(1,) * (spatial - 1)) if draw.flag() else (*(1,) * (spatial - 1), side)
    return tuple(min(LONGEST, draw.extent((1, 2, 3, 4) if spatial < 3 else (1, 2, 3))) for _ in range(spatial))


def _undilated(dilation: tuple[int, ...] | int | None, kernel: tuple[int, ...]) -> tuple[int, ...] | int | None:
    """The dilation; 1 in the last dimension, where it has no effect, of a kernel that is one wide there. Of others oneDNN dies,
    with padding and a stride on images one or two wide: in bfloat16 and channels_last (torch 2.13), and in a run of 2.11."""
    each = _per_dim(dilation, 1, len(kernel))
    return (*each[:-1], 1) if kernel[-1] == 1 < each[-1] else dilation


def _conv(spatial: int) -> Signature:
    """The input is at least as large as the dilated kernel."""

    def signature(draw: Draw) -> Arguments:
        if draw.rare(12):
            return _border(draw, spatial)
        groups, inner, outer = _channels(draw)
        kernel = _kernel(draw, spatial)
        stride, dilation = _each(draw, spatial, 1, 2, 3, 4), _undilated(_each(draw, spatial, 1, 2, 3), kernel)
        padding: Arg = _each(draw, spatial, 0, 1, 2)
        if stride is None and draw.pick(6) == 5:
            padding = draw.choice(("same", "valid"))
        reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, _per_dim(dilation, 1, spatial)))
        size = tuple(r + draw.extent((0, 1, 2, 3, 5) if spatial < 3 else (0, 1, 2)) for r in reach)
        batch = draw.choice(((1,), (2,), (), (3,), (0,)))
        x = draw.tensor((*batch, groups * inner, *size))
        weight = draw.tensor((groups * outer, inner, *kernel))
        bias = draw.maybe(draw.tensor((groups * outer,)))
        return Arguments(
            (x, weight),
            keywords(bias=bias, stride=stride, padding=padding, dilation=dilation, groups=None if groups == 1 else groups),
        )

    return signature


def _with_bias(draw: Draw, spatial: int, x: TensorSpec, weight: TensorSpec, channels: int) -> Arguments:
    """With a bias and a stride, or without."""
    bias = draw.maybe(draw.tensor((channels,)))
    return Arguments((x, weight), keywords(bias=bias, stride=draw.option(2, (2,) * spatial)))


# Limits of one dimension of a grid and of 16-bit integers.
BEYOND = 65537, 70001, 65536


def _border(draw: Draw, spatial: int) -> Arguments:
    """One large dimension, all others tiny: a side of the kernel above 255, a result above 2**16, or batch, input or output
    channels beyond the limit of a grid."""
    ones = (1,) * (spatial - 1)
    kind = draw.pick(6)
    if kind == 0:
        side = draw.choice((255, 256, 257, 300))
        stride = draw.option(2)
        shape, kernel = (*ones, side + draw.choice((0, 1, 5))), (*ones, side)
        if draw.flag():
            shape, kernel = shape[::-1], kernel[::-1]
        return Arguments((draw.tensor((1, 1, *shape)), draw.tensor((1, 1, *kernel))), keywords(stride=stride))
    if kind == 1:
        long = draw.choice((65535, 65536, 65537, 65600, *draw.huge))
        return _with_bias(draw, spatial, draw.tensor((1, 1, *ones, long)), draw.tensor((1, 1, *ones, draw.choice((1, 2)))), 1)
    if kind == 2:
        many = draw.tensor((draw.choice(BEYOND), 1, *ones, 1))
        return _with_bias(draw, spatial, many, draw.tensor((2, 1, *ones, 1)), 2)
    if kind == 3:
        wide = draw.choice((512, 1024, 1025))
        shape, kernel = ((1, wide, *ones, 2), (1, wide, *ones, 2)) if draw.flag() else ((1, 1, *ones, 2), (wide, 1, *ones, 1))
        return Arguments((draw.tensor(shape), draw.tensor(kernel)))
    wide, side, batch = draw.choice(BEYOND), draw.choice((1, 2)), draw.choice((1, 2, 0))
    x, weight = (batch, 1, *(side,) * spatial), (wide, 1, *ones, 1)
    if kind == 5:
        x, weight = (1, wide, *ones, side), (1, wide, *ones, side)
    return _with_bias(draw, spatial, draw.tensor(x), draw.tensor(weight), weight[0])


def _border_transposed(draw: Draw, spatial: int) -> Arguments:
    """One large dimension, all others tiny: kernel, input, batch, input or output channels."""
    ones = (1,) * (spatial - 1)
    kind = draw.pick(6)
    if kind == 0:
        side = draw.choice((255, 256, 257, 300))
        return Arguments((draw.tensor((1, 1, *ones, 2)), draw.tensor((1, 1, *ones, side))), keywords(stride=draw.option(2)))
    if kind == 1:
        long = draw.choice((32768, 65535, 65537, *draw.huge))
        return _with_bias(draw, spatial, draw.tensor((1, 1, *ones, long)), draw.tensor((1, 1, *ones, draw.choice((1, 2)))), 1)
    if kind == 2:
        many = draw.tensor((draw.choice(BEYOND), 1, *ones, 1))
        return _with_bias(draw, spatial, many, draw.tensor((1, 2, *ones, 1)), 2)
    if kind == 3:
        wide = draw.choice((512, 1024, 1025))
        shape, kernel = ((1, wide, *ones, 2), (wide, 1, *ones, 2)) if draw.flag() else ((1, 1, *ones, 2), (1, wide, *ones, 1))
        return Arguments((draw.tensor(shape), draw.tensor(kernel)))
    wide, side, batch = draw.choice(BEYOND), draw.choice((1, 2)), draw.choice((1, 2, 0))
    x, weight = (batch, 1, *(side,) * spatial), (1, wide, *ones, 1)
    if kind == 5:
        x, weight = (1, wide, *ones, side), (wide, 2, *ones, 1)
    return _with_bias(draw, spatial, draw.tensor(x), draw.tensor(weight), weight[1])


def _batched(of: Signature) -> Signature:
    """With a batch dimension, because memory formats need four dimensions; the bias is positional."""

    def signature(draw: Draw) -> Arguments:
        call = of(draw)
        x, weight = call.args
        assert isinstance(x, TensorSpec)
        return Arguments((x if len(x.shape) == 4 else replace(x, shape=(1, *x.shape)), weight), call.kwargs)

    return signature


def _rounded(of: Signature) -> Signature:
    """(bits of the operands given in float32 under autocast, arguments of the call), with small numbers."""

    def signature(draw: Draw) -> Arguments:
        call = of(draw)
        named = dict(call.kwargs)
        operands = (*call.args, *((named.pop("bias"),) if "bias" in named else ()))
        plain = tuple(draw.inside(a.shape, -2, 2, grad=a.grad) for a in operands if isinstance(a, TensorSpec))
        return Arguments((1 + draw.pick(7), *plain), tuple(named.items()))

    return signature


def _transposed(spatial: int) -> Signature:
    """The output is not empty, and the output padding stays below stride or dilation."""

    def signature(draw: Draw) -> Arguments:
        if draw.rare(12):
            return _border_transposed(draw, spatial)
        groups, inner, outer = _channels(draw)
        kernel = _kernel(draw, spatial)
        stride, dilation = _each(draw, spatial, 1, 2, 3), _each(draw, spatial, 1, 2)
        padding = _each(draw, spatial, 0, 1)
        most = max(min(s, 3) for s in (*_per_dim(stride, 1, spatial), 1))
        extra = draw.option(1) if most > 1 and all(s > 1 for s in _per_dim(stride, 1, spatial)) else None
        size = tuple(2 + draw.choice((0, 1, 2, 4) if spatial < 3 else (0, 1, 2)) for _ in range(spatial))
        if any(k == 1 for k in kernel) and padding is not None:
            size = tuple(s + 1 for s in size)
        batch = draw.choice(((1,), (2,), (), (3,), (0,)))
        x = draw.tensor((*batch, groups * inner, *size))
        weight = draw.tensor((groups * inner, outer, *kernel))
        bias = draw.maybe(draw.tensor((groups * outer,)))
        return Arguments(
            (x, weight),
            keywords(
                bias=bias, stride=stride, padding=padding, output_padding=extra,
                groups=None if groups == 1 else groups, dilation=dilation,
            ),
        )  # fmt: skip

    return signature


# CUDA rounds the sum of products to the dtype before it adds the bias.
_row = partial(
    Row,
    family="convolutions",
    rule=CONTRACTION,
    dtypes=FLOATING,
    grad=FLOATING,
    judged=Judged(rounds_between=True, gauss=True, bias=2),
)
_plain = partial(_row, call="torch.nn.functional.*", refuses=Refuses(alike=True), counts=OWN)
_half = partial(_row, dtypes=HALF, grad=HALF)
_WINDOWS = (("padding", -1), ("stride", -1), ("stride", 0), ("groups", 7), ("groups", 0), ("dilation", 0))
_WRONG = tuple(Wrong(where, value) for where, value in _WINDOWS)
_TRANSPOSED = (*_WRONG, Wrong("output_padding", 9))
BOTH = ("forward", "backward")

ROWS = (
    _plain("conv1d", _conv(1), refuses=Refuses(wrong=_WRONG, alike=True), counts=Counts(("*",), mps="convolution")),
    _plain("conv2d", _conv(2), refuses=Refuses(wrong=_WRONG, alike=True), counts=Counts(("*",), mps="convolution")),
    _plain("conv3d", _conv(3), refuses=Refuses(wrong=_WRONG, alike=True), counts=Counts(("*",), mps="convolution")),
    _plain(
        "conv_transpose1d",
        _transposed(1),
        refuses=Refuses(wrong=_TRANSPOSED, alike=True),
        counts=Counts(("*",), mps="transposed"),
    ),
    _plain(
        "conv_transpose2d",
        _transposed(2),
        refuses=Refuses(wrong=_TRANSPOSED, alike=True),
        counts=Counts(("*",), mps="transposed"),
    ),
    # For some of these the CPU and cuDNN use im2col and one product per batch element.
    _plain(
        "conv_transpose3d",
        _transposed(3),
        refuses=Refuses(wrong=_TRANSPOSED, alike=True),
        judged=Judged(rounds_between=True, stages=BOTH, gauss=True, bias=2),
        counts=Counts(("*",), mps="transposed"),
    ),
    _row("conv2d_channels_last", _batched(_conv(2)), call=LAYERS + "conv2d_last", dtypes=LAST, grad=LAST),
    _row(
        "conv_transpose2d_channels_last",
        _batched(_transposed(2)),
        call=LAYERS + "conv_transpose2d_last",
        dtypes=LAST,
        grad=LAST,
    ),
    *(_half(f"conv{n}d_autocast", _rounded(_conv(n)), call=f"{LAYERS}autocast_conv{n}d") for n in (1, 2, 3)),
    *(
        _half(
            f"conv_transpose{n}d_autocast",
            _rounded(_transposed(n)),
            call=f"{LAYERS}autocast_conv_transpose{n}d",
            judged=Judged(rounds_between=True, stages=stages, gauss=True, bias=2),
        )
        for n, stages in ((1, ()), (2, ()), (3, BOTH))
    ),
)
