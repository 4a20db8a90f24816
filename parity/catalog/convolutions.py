"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import FLOATING, Row, Signature
from parity.vocabulary import Arg, OpClass


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
    """(groups, channels per group in, channels per group out); depthwise now and then, a border size now and then."""
    groups = draw.choice((1, 1, 1, 2, 3))
    inner, outer = draw.choice((1, 2, 3, 4, 8)), draw.choice((1, 2, 3, 5, 8))
    if draw.pick(8) == 7:
        border = draw.choice((16, 17, 32, 33, 64))
        inner, outer = (border, 2) if draw.flag() else (2, border)
    return groups, inner, outer


def _kernel(draw: Draw, spatial: int) -> tuple[int, ...]:
    if draw.pick(12) == 11:  # one long side
        return (*(1,) * (spatial - 1), draw.choice((9, 17, 32)))
    return tuple(draw.choice((1, 2, 3, 4) if spatial < 3 else (1, 2, 3)) for _ in range(spatial))


def _conv(spatial: int) -> Signature:
    """The input is at least as large as the dilated kernel."""

    def signature(draw: Draw) -> Call:
        groups, inner, outer = _channels(draw)
        kernel = _kernel(draw, spatial)
        stride, dilation = _each(draw, spatial, 1, 2, 3), _each(draw, spatial, 1, 2)
        padding: Arg = _each(draw, spatial, 0, 1, 2)
        if stride is None and draw.pick(6) == 5:
            padding = draw.choice(("same", "valid"))
        reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, _per_dim(dilation, 1, spatial)))
        size = tuple(r + draw.choice((0, 1, 2, 3, 5) if spatial < 3 else (0, 1, 2)) for r in reach)
        batch = draw.choice(((1,), (2,), (), (3,)))
        x = draw.tensor((*batch, groups * inner, *size))
        weight = draw.tensor((groups * outer, inner, *kernel))
        bias = draw.maybe(draw.tensor((groups * outer,)))
        return Call(
            (x, weight),
            keywords(bias=bias, stride=stride, padding=padding, dilation=dilation, groups=None if groups == 1 else groups),
        )

    return signature


def _transposed(spatial: int) -> Signature:
    """The output is not empty, and the output padding stays below stride or dilation."""

    def signature(draw: Draw) -> Call:
        groups, inner, outer = _channels(draw)
        kernel = _kernel(draw, spatial)
        stride, dilation = _each(draw, spatial, 1, 2, 3), _each(draw, spatial, 1, 2)
        padding = _each(draw, spatial, 0, 1)
        most = max(min(s, 3) for s in (*_per_dim(stride, 1, spatial), 1))
        extra = draw.option(1) if most > 1 and all(s > 1 for s in _per_dim(stride, 1, spatial)) else None
        size = tuple(2 + draw.choice((0, 1, 2, 4) if spatial < 3 else (0, 1, 2)) for _ in range(spatial))
        if any(k == 1 for k in kernel) and padding is not None:
            size = tuple(s + 1 for s in size)
        batch = draw.choice(((1,), (2,), (), (3,)))
        x = draw.tensor((*batch, groups * inner, *size))
        weight = draw.tensor((groups * inner, outer, *kernel))
        bias = draw.maybe(draw.tensor((groups * outer,)))
        return Call(
            (x, weight),
            keywords(
                bias=bias, stride=stride, padding=padding, output_padding=extra,
                groups=None if groups == 1 else groups, dilation=dilation,
            ),
        )  # fmt: skip

    return signature


def _row(name: str, signature: Signature) -> Row:
    return Row(
        name=name,
        family="convolutions",
        rule=OpClass.CONTRACTION,
        call=f"torch.nn.functional.{name}",
        signature=signature,
        dtypes=FLOATING,
        grad=FLOATING,
        rounds_between=True,  # CUDA rounds the sum of products to the dtype before it adds the bias
        opinfo=(f"nn.functional.{name}",),
    )


ROWS = (
    _row("conv1d", _conv(1)),
    _row("conv2d", _conv(2)),
    _row("conv3d", _conv(3)),
    _row("conv_transpose1d", _transposed(1)),
    _row("conv_transpose2d", _transposed(2)),
    _row("conv_transpose3d", _transposed(3)),
)
