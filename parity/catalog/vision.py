"""Resampling, grids, shuffles and patches of images."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import EVERY, FLOATING, Row, Signature
from parity.dtypes import FLOATS
from parity.vocabulary import Arg, OpClass

_row = partial(Row, family="vision", rule=OpClass.COMPOSITE, dtypes=FLOATS, grad=FLOATS)


def _interpolate(mode: str, ranks: tuple[int, ...]) -> Signature:
    """To a size (larger, smaller, equal), or by a factor; corners aligned or not."""

    def signature(draw: Draw) -> Call:
        spatial = draw.choice(ranks)
        sizes = tuple(draw.choice((1, 2, 3, 4, 5, 7, 20) if spatial == 1 else (1, 2, 3, 4, 5)) for _ in range(spatial))
        lead = draw.choice((1, 2)), draw.choice((1, 2, 3, 5))
        if draw.rare(6):  # size-1 dimensions make a tensor contiguous and channels_last at once
            k = draw.pick(spatial)
            lead, sizes = (1, 1) if draw.flag() else (1, lead[1]), (*sizes[:k], 1, *sizes[k + 1 :])
        if draw.rare(40):
            lead = draw.choice(((1, 1025), (4099, 1)))
            sizes = tuple(min(s, 2) for s in sizes)
        x = draw.tensor((*lead, *sizes))
        size: Arg = None
        factor: Arg = None
        if draw.pick(3) < 2:
            target = tuple(draw.choice((1, 2, 3, 4, 5, 6, 11, 13)) for _ in range(spatial))
            size = target[0] if spatial == 1 else target
        else:
            factor = draw.choice((2.0, 1.0, 1.5, 3.0, 1.25, 2.3, 4.7))
            if spatial > 1 and draw.pick(3) == 2:
                factor = tuple(draw.choice((2.0, 1.5, 1.0, 2.75)) for _ in range(spatial))
        linear = mode in ("linear", "bilinear", "bicubic", "trilinear")
        corners = draw.option(True, False) if linear else None
        again = draw.option(True) if factor is not None and mode != "area" else None
        smooth = draw.option(True) if mode in ("bilinear", "bicubic") and draw.dtype == "float32" else None
        named = keywords(size=size, scale_factor=factor, mode=mode, align_corners=corners)
        return Call((x,), (*named, *keywords(recompute_scale_factor=again, antialias=smooth)))

    return signature


def _grid_sample(spatial: int) -> Signature:
    """Places inside the image and a little beyond; every padding and mode."""

    def signature(draw: Draw) -> Call:
        batch, channels = draw.choice((1, 2)), draw.choice((1, 2, 3))
        source = tuple(draw.choice((2, 1, 3, 4)) for _ in range(spatial))
        target = tuple(draw.choice((1, 2, 3, 5)) for _ in range(spatial))
        if draw.rare(16):  # places, or images, of which there are none
            batch, target = (0, target) if draw.flag() else (batch, (0, *target[1:]))
        # Never NaN: torch 2.13 on the CPU reads out of bounds for a NaN in the grid under reflection padding.
        reach = draw.choice((1.25, 1, 3))
        grid = draw.inside((batch, *target, spatial), -reach, reach)
        modes = ("nearest", "bicubic") if spatial == 2 else ("nearest",)
        named = keywords(
            mode=draw.option(*modes),
            padding_mode=draw.option("border", "reflection"),
            align_corners=draw.choice((False, True)),
        )
        return Call((draw.tensor((batch, channels, *source)), grid), named)

    return signature


def _affine_grid(draw: Draw) -> Call:
    batch = draw.choice((1, 2))
    spatial = draw.choice((2, 3))
    size = (batch, draw.choice((1, 3)), *(draw.choice((2, 1, 3, 5)) for _ in range(spatial)))
    theta = draw.between((batch, spatial, spatial + 1), -1, 1)
    return Call((theta, size), keywords(align_corners=draw.choice((False, True))))


def _lead(draw: Draw) -> Shape:
    return draw.choice(((1,), (), (2,), (2, 1)))


def _shuffle(draw: Draw) -> Call:
    r, channels = draw.choice((2, 1, 3)), draw.choice((1, 2, 3))
    return Call((draw.tensor((*_lead(draw), channels * r * r, draw.choice((1, 2, 3)), draw.choice((1, 2, 3)))), r))


def _unshuffle(draw: Draw) -> Call:
    r, channels = draw.choice((2, 1, 3)), draw.choice((1, 2, 3))
    return Call((draw.tensor((*_lead(draw), channels, r * draw.choice((1, 2, 3)), r * draw.choice((1, 2, 3)))), r))


def _channel_shuffle(draw: Draw) -> Call:
    groups, each = draw.choice((2, 1, 3)), draw.choice((1, 2, 3))
    return Call((draw.tensor((draw.choice((1, 2, 0)), groups * each, *draw.shape(1, 2))), groups))


def _blocks(draw: Draw) -> tuple[tuple[int, int], tuple[int, int], tuple[tuple[str, Arg], ...], tuple[int, int]]:
    """Image size, kernel, options, and how many blocks fit each way."""
    kernel = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    stride, padding, dilation = draw.option(2, 3), draw.option(1), draw.option(2)
    s, p, d = stride or 1, padding or 0, dilation or 1
    reach = (kernel[0] - 1) * d + 1, (kernel[1] - 1) * d + 1
    image = reach[0] + draw.choice((0, 1, 2, 4, 9)), reach[1] + draw.choice((0, 1, 2, 4))
    counts = (image[0] + 2 * p - reach[0]) // s + 1, (image[1] + 2 * p - reach[1]) // s + 1
    return image, kernel, keywords(stride=stride, padding=padding, dilation=dilation), counts


def _unfold(draw: Draw) -> Call:
    image, kernel, named, _ = _blocks(draw)
    lead = draw.choice(((1,), (2,), ()))
    return Call((draw.tensor((*lead, draw.choice((1, 2, 3)), *image)), kernel), named)


def _fold(draw: Draw) -> Call:
    image, kernel, named, counts = _blocks(draw)
    lead = draw.choice(((1,), (2,), ()))
    x = draw.tensor((*lead, draw.choice((1, 2, 3)) * kernel[0] * kernel[1], counts[0] * counts[1]))
    return Call((x, image, kernel), named)


def _resample(mode: str, ranks: tuple[int, ...], rule: OpClass = OpClass.COMPOSITE) -> Row:
    return _row(
        name=f"interpolate_{mode.replace('-', '_')}",
        rule=rule,
        call="torch.nn.functional.interpolate",
        signature=_interpolate(mode, ranks),
        dtypes=(*FLOATS, "uint8") if rule is OpClass.EXACT else FLOATS,
        opinfo=(f"nn.functional.interpolate:{mode}",),
    )


ROWS = (
    _resample("nearest", (2, 1, 3), OpClass.EXACT),
    _resample("nearest-exact", (2, 1, 3), OpClass.EXACT),
    _resample("linear", (1,)),
    _resample("bilinear", (2,)),
    _resample("bicubic", (2,)),
    _resample("trilinear", (3,)),
    _resample("area", (2, 1, 3), OpClass.CONTRACTION),  # it is adaptive_avg_pool (torch.nn.functional)
    _row(
        name="grid_sample_2d",
        call="torch.nn.functional.grid_sample",
        signature=_grid_sample(2),
        opinfo=("nn.functional.grid_sample", "grid_sampler_2d"),
    ),
    _row(
        name="grid_sample_3d",
        call="torch.nn.functional.grid_sample",
        signature=_grid_sample(3),
        rounds_between=True,  # in three dimensions coordinates are computed in the dtype (GridSampler.cuh: scalar_t)
        opinfo=("grid_sampler_3d",),
    ),
    _row(
        name="affine_grid",
        call="torch.nn.functional.affine_grid",
        signature=_affine_grid,
        dtypes=("float32",),
        grad=("float32",),
    ),
    _row(
        name="pixel_shuffle",
        rule=OpClass.EXACT,
        call="torch.nn.functional.pixel_shuffle",
        signature=_shuffle,
        dtypes=EVERY,
        grad=FLOATING,
        opinfo=("nn.functional.pixel_shuffle",),
    ),
    _row(
        name="pixel_unshuffle",
        rule=OpClass.EXACT,
        call="torch.nn.functional.pixel_unshuffle",
        signature=_unshuffle,
        dtypes=EVERY,
        grad=FLOATING,
        opinfo=("nn.functional.pixel_unshuffle",),
    ),
    _row(
        name="channel_shuffle",
        rule=OpClass.EXACT,
        call="torch.nn.functional.channel_shuffle",
        signature=_channel_shuffle,
        dtypes=EVERY,
        grad=FLOATING,
        opinfo=("nn.functional.channel_shuffle",),
    ),
    _row(
        name="unfold",
        rule=OpClass.EXACT,
        call="torch.nn.functional.unfold",
        signature=_unfold,
        dtypes=FLOATING,
        grad=FLOATING,
        opinfo=("nn.functional.unfold",),
    ),
    _row(
        name="fold",
        rule=OpClass.CONTRACTION,
        call="torch.nn.functional.fold",
        signature=_fold,
        dtypes=FLOATING,
        grad=FLOATING,
    ),
)
