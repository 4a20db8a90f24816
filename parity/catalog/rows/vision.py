"""Resampling, grids, shuffles and patches of images."""

from __future__ import annotations

from functools import partial
from typing import Any

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    EVERY,
    EXACT,
    FLOATING,
    OWN,
    SCATTERED,
    Counts,
    Judged,
    Refuses,
    Row,
    Signature,
    Wrong,
)
from parity.core.case import Arg
from parity.core.dtypes import FLOATS

MOST_SMOOTH = 1025  # of a dimension that is resampled with antialiasing: the truth takes a table of weights, old size by new

_row = partial(Row, family="vision", rule=COMPOSITE, dtypes=FLOATS, grad=FLOATS, call="torch.nn.functional.*")


def _interpolate(mode: str, ranks: tuple[int, ...]) -> Signature:
    """To a size (larger, smaller, equal), or by a factor; corners aligned or not."""

    def signature(draw: Draw) -> Arguments:
        spatial = draw.choice(ranks)
        sizes = tuple(draw.extent((1, 2, 3, 4, 5, 7, 20) if spatial == 1 else (1, 2, 3, 4, 5)) for _ in range(spatial))
        lead = draw.batch(), draw.extent((1, 2, 3, 5))
        if draw.rare(6):  # with size-1 dimensions a tensor is both contiguous and channels_last
            k = draw.pick(spatial)
            lead, sizes = (1, 1) if draw.flag() else (1, lead[1]), (*sizes[:k], 1, *sizes[k + 1 :])
        if draw.rare(40):
            lead = draw.choice(((1, 1025), (4099, 1)))
            sizes = tuple(min(s, 2) for s in sizes)
        x = draw.tensor((*lead, *sizes))
        size: Arg = None
        factor: Arg = None
        if draw.pick(3) < 2:
            target = tuple(draw.extent((1, 2, 3, 4, 5, 6, 11, 13)) for _ in range(spatial))
            size = target[0] if spatial == 1 else target
        else:
            factor = draw.choice((2.0, 1.0, 1.5, 3.0, 1.25, 2.3, 4.7))
            if spatial > 1 and draw.pick(3) == 2:
                factor = tuple(draw.choice((2.0, 1.5, 1.0, 2.75)) for _ in range(spatial))
        linear = mode in ("linear", "bilinear", "bicubic", "trilinear")
        corners = draw.option(True, False) if linear else None
        again = draw.option(True) if factor is not None and mode != "area" else None
        weighed = mode in ("bilinear", "bicubic") and draw.dtype == "float32" and max(sizes) <= MOST_SMOOTH
        smooth = draw.option(True) if weighed else None
        named = keywords(size=size, scale_factor=factor, mode=mode, align_corners=corners)
        return Arguments((x,), (*named, *keywords(recompute_scale_factor=again, antialias=smooth)))

    return signature


def _grid_sample(spatial: int) -> Signature:
    """Positions inside the image and slightly outside; every padding and mode."""

    def signature(draw: Draw) -> Arguments:
        batch, channels = draw.batch(), draw.extent((1, 2, 3))
        source = tuple(draw.extent((2, 1, 3, 4)) for _ in range(spatial))
        target = tuple(draw.extent((1, 2, 3, 5)) for _ in range(spatial))
        if draw.rare(16):  # no positions, or no images
            batch, target = (0, target) if draw.flag() else (batch, (0, *target[1:]))
        # Never NaN: torch 2.13 on the CPU reads out of bounds for a NaN in the grid under reflection padding.
        reach = draw.choice((1.25, 1, 3))
        grid = draw.inside((batch, *target, spatial), -reach, reach)
        modes = ("nearest", "bicubic") if spatial == 2 else ("nearest",)
        named = keywords(
            mode=draw.option(*modes), padding_mode=draw.option("border", "reflection"), align_corners=draw.choice((False, True))
        )
        return Arguments((draw.tensor((batch, channels, *source)), grid), named)

    return signature


def _affine_grid(draw: Draw) -> Arguments:
    batch = draw.choice((1, 2))
    spatial = draw.choice((2, 3))
    size = (batch, draw.extent((1, 3)), *(draw.extent((2, 1, 3, 5)) for _ in range(spatial)))
    theta = draw.between((batch, spatial, spatial + 1), -1, 1)
    return Arguments((theta, size), keywords(align_corners=draw.choice((False, True))))


def _lead(draw: Draw) -> Shape:
    return draw.choice(((1,), (), (2,), (2, 1)))


def _shuffle(draw: Draw) -> Arguments:
    r, channels = draw.choice((2, 1, 3)), draw.extent((1, 2, 3))
    return Arguments((draw.tensor((*_lead(draw), channels * r * r, draw.extent((1, 2, 3)), draw.extent((1, 2, 3)))), r))


def _unshuffle(draw: Draw) -> Arguments:
    r, channels = draw.choice((2, 1, 3)), draw.extent((1, 2, 3))
    return Arguments((draw.tensor((*_lead(draw), channels, r * draw.extent((1, 2, 3)), r * draw.extent((1, 2, 3)))), r))


def _channel_shuffle(draw: Draw) -> Arguments:
    groups, each = draw.choice((2, 1, 3)), draw.choice((1, 2, 3))
    return Arguments((draw.tensor((draw.choice((1, 2, 0)), groups * each, *draw.shape(1, 2))), groups))


def _blocks(draw: Draw) -> tuple[tuple[int, int], tuple[int, int], tuple[tuple[str, Arg], ...], tuple[int, int]]:
    """(image size, kernel, options, number of blocks in each direction)."""
    kernel = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    stride, padding, dilation = draw.option(2, 3), draw.option(1), draw.option(2)
    s, p, d = stride or 1, padding or 0, dilation or 1
    reach = (kernel[0] - 1) * d + 1, (kernel[1] - 1) * d + 1
    image = reach[0] + draw.extent((0, 1, 2, 4, 9)), reach[1] + draw.extent((0, 1, 2, 4))
    counts = (image[0] + 2 * p - reach[0]) // s + 1, (image[1] + 2 * p - reach[1]) // s + 1
    return image, kernel, keywords(stride=stride, padding=padding, dilation=dilation), counts


def _unfold(draw: Draw) -> Arguments:
    image, kernel, named, _ = _blocks(draw)
    lead = draw.choice(((1,), (2,), ()))
    return Arguments((draw.tensor((*lead, draw.choice((1, 2, 3)), *image)), kernel), named)


def _fold(draw: Draw) -> Arguments:
    image, kernel, named, counts = _blocks(draw)
    lead = draw.choice(((1,), (2,), ()))
    x = draw.tensor((*lead, draw.choice((1, 2, 3)) * kernel[0] * kernel[1], counts[0] * counts[1]))
    return Arguments((x, image, kernel), named)


def _resample(mode: str, ranks: tuple[int, ...], **more: Any) -> Row:
    """Resampling in a mode. more: other fields of the row."""
    return _row(
        f"interpolate_{mode.replace('-', '_')}",
        _interpolate(mode, ranks),
        call="torch.nn.functional.interpolate",
        counts=Counts((f"nn.functional.interpolate:{mode}",)),
        **more,
    )


_BLOCKS = (("dilation", -1), ("dilation", 0), ("stride", -1), ("stride", 0), ("padding", -1))
_WRONG = tuple(Wrong(where, value) for where, value in _BLOCKS)

ROWS = (
    _resample("nearest", (2, 1, 3), rule=EXACT, dtypes=(*FLOATS, "uint8")),
    _resample("nearest-exact", (2, 1, 3), rule=EXACT, dtypes=(*FLOATS, "uint8")),
    _resample("linear", (1,), judged=Judged(accumulates=SCATTERED)),
    _resample("bilinear", (2,), refuses=Refuses(takes=("int",)), judged=Judged(accumulates=SCATTERED)),
    _resample("bicubic", (2,), judged=Judged(accumulates=SCATTERED)),
    _resample("trilinear", (3,), refuses=Refuses(takes=("int",)), judged=Judged(accumulates=SCATTERED)),
    # rule: torch.nn.functional calls adaptive_avg_pool
    _resample("area", (2, 1, 3), rule=CONTRACTION, refuses=Refuses(takes=("complex",)), judged=Judged(accumulates=SCATTERED)),
    _row(
        "grid_sample_2d",
        _grid_sample(2),
        call="torch.nn.functional.grid_sample",
        judged=Judged(accumulates=SCATTERED),
        counts=Counts(("*", "grid_sampler_2d")),
    ),
    # rounds_between: in three dimensions coordinates are computed in the dtype (GridSampler.cuh: scalar_t)
    _row(
        "grid_sample_3d",
        _grid_sample(3),
        call="torch.nn.functional.grid_sample",
        judged=Judged(rounds_between=True, accumulates=SCATTERED),
        counts=Counts(("grid_sampler_3d",)),
    ),
    _row("affine_grid", _affine_grid, dtypes=("float32",), grad=("float32",)),
    _row("pixel_shuffle", _shuffle, rule=EXACT, dtypes=EVERY, grad=FLOATING, counts=OWN),
    _row("pixel_unshuffle", _unshuffle, rule=EXACT, dtypes=EVERY, grad=FLOATING, counts=OWN),
    _row("channel_shuffle", _channel_shuffle, rule=EXACT, dtypes=EVERY, grad=FLOATING, counts=OWN),
    _row("unfold", _unfold, rule=EXACT, dtypes=FLOATING, grad=FLOATING, refuses=Refuses(wrong=_WRONG), counts=OWN),
    _row("fold", _fold, rule=CONTRACTION, dtypes=FLOATING, grad=FLOATING, refuses=Refuses(wrong=_WRONG, fits="filled")),
)
