"""Bugs of padding, resampling and grids."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, raising, replacing
from parity.devices.sim.faults import abort, fall_back, garbage
from parity.zoo.effects import argument, forward_only, gradients, looks_channels_last, ramp, replace, reported

BATCH = 1 << 16

# ------------------------------------------------------------------------------------------------------------- padding


def _sides(pad: Any) -> list[tuple[int, int]]:
    """(before, after) of the padded dimensions, the last dimension first."""
    return list(zip(pad[::2], pad[1::2]))


def _is_mode(call: Call, mode: str) -> bool:
    return (call.op.endswith("constant_pad_nd") and mode == "constant") or mode == argument(call, 2, "mode", "constant")


def _narrowed_twice(call: Call) -> bool:
    if call.op.endswith("narrow"):
        x: Tensor = call.args[0]
        if x._base is None or x.numel() == 0 or argument(call, 3, "length") == 0:
            return False
        return x.numel() < x._base.numel() and x.storage_offset() > x._base.storage_offset()
    pad = argument(call, 1, "pad", ())
    return _is_mode(call, "constant") and sum(p < 0 for p in pad) > 1 and any(p < 0 for p in pad[::2])


def _first_offset_lost(call: Call) -> Any:
    """The region begins where the first of the nested slices would begin without its start."""
    if call.op.endswith("narrow"):
        base, view = call.args[0]._base, call.run()
        lost = call.args[0].storage_offset() - base.storage_offset()
        return base.as_strided(view.shape, view.stride(), view.storage_offset() - lost)
    x, pad = call.args[0], list(argument(call, 1, "pad"))
    at = max(i for i in range(0, len(pad), 2) if pad[i] < 0)
    dim = x.dim() - 1 - at // 2
    call.args[0], pad[at] = x.narrow(dim, 0, x.shape[dim] + pad[at]), 0
    replace(call, 1, "pad", pad)
    return call.run()


def _single_column_padded(call: Call) -> bool:
    """The last dimension has size 1 (after negative padding) and grows."""
    x, (before, after) = call.args[0], _sides(call.args[1])[0] if call.args[1] else (0, 0)
    return x.numel() > 1 and x.shape[-1] + min(before, 0) + min(after, 0) == 1 and max(before, after) > 0


def _written_linearly(call: Call) -> Any:
    """The part that holds the input gets it as one dense run from its first element on."""
    result = call.run()
    part = result
    for i, (before, after) in enumerate(_sides(call.args[1])):
        dim = result.dim() - 1 - i
        part = part.narrow(dim, max(before, 0), result.shape[dim] - max(before, 0) - max(after, 0))
    dense = torch.full(result.shape, argument(call, 2, "value", 0), dtype=result.dtype)
    start = sum(max(b, 0) * dense.stride(-1 - i) for i, (b, _) in enumerate(_sides(call.args[1])))
    dense.view(-1)[start : start + part.numel()] = part.reshape(-1)
    return dense


def _circular_at_offset_zero(call: Call) -> Any:
    """Each copy into a slice of the fresh result lands at the beginning of its memory, with the slice's strides."""
    x, pad = call.args[0].detach().cpu(), _sides(argument(call, 1, "pad"))
    result = call.run()
    out = garbage(torch.empty(result.shape, dtype=x.dtype))
    inner, source = out, x
    for i, (before, after) in enumerate(pad):
        dim = x.dim() - 1 - i
        inner = inner.narrow(dim, max(before, 0), out.shape[dim] - max(before, 0) - max(after, 0))
        source = source.narrow(dim, max(-before, 0), inner.shape[dim])
    _land_at_zero(inner, source)
    for i, (before, after) in reversed(list(enumerate(pad))):
        dim = x.dim() - 1 - i
        size, left, right = out.shape[dim], max(before, 0), max(after, 0)
        if left:
            _land_at_zero(out.narrow(dim, 0, left), out.narrow(dim, size - right - left, left))
        if right:
            _land_at_zero(out.narrow(dim, size - right, right), out.narrow(dim, left, right))
    return forward_only(result, out.to(result.device))


def _land_at_zero(part: Tensor, source: Tensor) -> None:
    part.as_strided(part.shape, part.stride(), 0).copy_(source.clone())


def _replicated_past_the_edge(call: Call) -> bool:
    x = call.args[0]
    return any(max(sides) >= x.shape[-1 - i] for i, sides in enumerate(_sides(call.args[1])))


# ---------------------------------------------------------------------------------------------------------- resampling


def _sources(size: int, wanted: int, factor: float | None) -> tuple[Tensor, Tensor]:
    """(source index, whether the exact place falls on the border between two) of each element of one dimension.

    Only where the ratio has no exact float can rounding decide which of the two it is.
    """
    ratio = 1 / Fraction(factor).limit_denominator(10**6) if factor else Fraction(size, wanted)
    rounded = Fraction(float(np.float32(ratio)))
    places = [(i + Fraction(1, 2)) * ratio for i in range(wanted)]
    ties = torch.tensor([p.denominator == 1 and p > 0 and rounded != ratio for p in places])
    return torch.tensor([min(int(p), size - 1) for p in places]), ties


def _image_sources(call: Call) -> list[tuple[int, Tensor, Tensor]]:
    """(dimension, source index, tie) of each spatial dimension."""
    x, wanted = call.args[0], call.args[1]
    factors = [*call.args[2:], *(None,) * len(wanted)][: len(wanted)]
    return [(2 + i, *_sources(x.shape[2 + i], n, f)) for i, (n, f) in enumerate(zip(wanted, factors))]


def _one_neighbour_lower(call: Call) -> Any:
    result = call.args[0]
    for dim, source, tie in _image_sources(call):
        result = result.index_select(dim, source - tie.long())
    return result


# ---------------------------------------------------------------------------------------------------------------- bugs


def _image(device: str, *shape: int) -> Tensor:
    """An image with its channels last in memory, as files are read."""
    return ramp(device, *shape).permute(0, 3, 1, 2)


def _sampled(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, align_corners=False)


def _bilinear(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(2, 2), mode="bilinear", align_corners=False)


BUGS = (
    reported(
        "https://github.com/kulinseth/pytorch/pull/31 silent_wrong_forward layout offset args",
        "a slice of a slice, as negative padding makes it, begins too early: the first start is forgotten",
        ("pad", "constant_pad_nd", "narrow"), _first_offset_lost, _narrowed_twice,
        trigger=lambda d: torch.nn.ConstantPad2d((-2, -2, -2, -2), 3.5)(ramp(d, 1, 2, 6, 6)),
        neighbour=lambda d: torch.nn.ConstantPad2d((-2, 1, 1, 1), 3.5)(ramp(d, 1, 2, 6, 6)),
        rows="pad_constant narrow", level="function", name="kul-31",
    ),
    reported(
        "issues/102453 crash args size",
        "replication padding in 3-D is held to the limit of reflection: it must be less than the dimension",
        ("replication_pad3d",),
        raising(RuntimeError("Argument #8: Padding size should be less than the corresponding input dimension")),
        _replicated_past_the_edge,
        trigger=lambda d: F.pad(ramp(d, 1, 1, 3, 8, 8), (5,) * 6, mode="replicate"),
        neighbour=lambda d: F.pad(ramp(d, 1, 1, 3, 8, 8), (5, 5, 5, 5, 2, 2), mode="replicate"),
        rows="pad_replicate",
    ),
    reported(
        "issues/134430 silent_wrong_forward args size",
        "nearest-exact takes the lower neighbour where the place lies on a border that rounding misses",
        ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d"), _one_neighbour_lower,
        lambda call: any(bool(tie.any()) for _, _, tie in _image_sources(call)),
        trigger=lambda d: F.interpolate(ramp(d, 1, 1, 20), size=11, mode="nearest-exact"),
        neighbour=lambda d: F.interpolate(ramp(d, 1, 1, 20), size=12, mode="nearest-exact"),
        rows="interpolate_nearest_exact",
    ),
    reported(
        "issues/135447 silent_wrong_backward size backward",
        "the gradient of replication padding is zero where the third dimension from the end has 65536 or more",
        ("replication_pad1d_backward", "replication_pad2d_backward"), lambda call: torch.zeros_like(call.args[1]),
        lambda call: call.args[1].dim() >= 3 and call.args[1].shape[-3] >= BATCH,
        trigger=lambda d: gradients(lambda x: F.pad(x, (3, 4), mode="replicate"), ramp(d, BATCH + 200, 2, 4)),
        neighbour=lambda d: gradients(lambda x: F.pad(x, (3, 4), mode="replicate"), ramp(d, 2, BATCH + 200, 4)),
        rows="pad_replicate",
    ),
    reported(
        "issues/171602 silent_wrong_forward layout", "grid_sample in 3-D reads a permuted grid as if it were contiguous",
        ("grid_sampler_3d",), replacing(1, as_contiguous), lambda call: not call.args[1].is_contiguous(),
        trigger=lambda d: F.grid_sample(
            ramp(d, 1, 1, 3, 3, 3), ramp(d, 1, 3, 2, 2, 2).permute(0, 2, 3, 4, 1), align_corners=False
        ),
        neighbour=lambda d: F.grid_sample(ramp(d, 1, 1, 3, 3, 3), ramp(d, 1, 2, 2, 2, 3), align_corners=False),
        rows="grid_sample_3d",
    ),
    reported(
        "issues/80192 silent_wrong_forward size args",
        "constant padding around a single column writes the column along the row",
        ("constant_pad_nd",), _written_linearly, _single_column_padded,
        trigger=lambda d: F.pad(ramp(d, 2, 1), (1, 1, 1, 1)),
        neighbour=lambda d: F.pad(ramp(d, 2, 2), (1, 1, 1, 1)),
        rows="pad_constant",
    ),
    reported(
        "issues/80856 silent_wrong_forward sequence inplace offset",
        "circular padding copies every piece to the beginning of its memory, and what follows computes with that",
        ("pad",), _circular_at_offset_zero, lambda call: _is_mode(call, "circular") and any(argument(call, 1, "pad")),
        trigger=lambda d: F.conv2d(F.pad(ramp(d, 1, 1, 4, 4), (1, 1, 1, 1), mode="circular"), ramp(d, 1, 1, 3, 3)),
        neighbour=lambda d: F.conv2d(F.pad(ramp(d, 1, 1, 4, 4), (1, 1, 1, 1), mode="replicate"), ramp(d, 1, 1, 3, 3)),
        rows="pad_circular", level="function",
    ),
    reported(
        "issues/86107 crash none", "affine_grid ends the process",
        ("affine_grid",), abort,
        trigger=lambda d: F.affine_grid(ramp(d, 1, 2, 3), [1, 3, 3, 3], align_corners=False),
        neighbour=lambda d: F.grid_sample(ramp(d, 1, 3, 3, 3), ramp(d, 1, 2, 2, 2), align_corners=False),
        rows="affine_grid", level="function",
    ),
    reported(
        "issues/86954 silent_wrong_forward layout", "bilinear resizing scrambles an image whose channels come last in memory",
        ("upsample_bilinear2d",), replacing(0, as_contiguous),
        lambda call: looks_channels_last(call.args[0]) and not call.args[0].is_contiguous(),
        trigger=lambda d: _bilinear(_image(d, 1, 4, 4, 3)),
        neighbour=lambda d: _bilinear(_image(d, 1, 4, 4, 3).contiguous()),
        rows="interpolate_bilinear",
    ),
    reported(
        "issues/88183 silent_wrong_forward layout size",
        "bilinear resizing gives zeros for a permuted image that dimensions of size 1 keep contiguous",
        ("upsample_bilinear2d",), lambda call: call.run().zero_(),
        lambda call: looks_channels_last(call.args[0]) and call.args[0].is_contiguous(),
        trigger=lambda d: _bilinear(torch.ones(1, 1, 1, 2).to(d).permute(0, 3, 1, 2).contiguous()),
        neighbour=lambda d: _bilinear(torch.ones(1, 2, 1, 1).to(d)),
        rows="interpolate_bilinear",
    ),
    reported(
        "https://github.com/roboflow/rf-detr/pull/821 fallback backward",
        "the backward of grid_sample and of bicubic resizing runs on the CPU",
        ("grid_sampler_2d_backward", "upsample_bicubic2d_backward"), fall_back,
        trigger=lambda d: gradients(
            lambda x, g: F.grid_sample(x, g, align_corners=False), ramp(d, 1, 1, 3, 3), ramp(d, 1, 2, 2, 2)
        ),
        neighbour=lambda d: _sampled(ramp(d, 1, 1, 3, 3), ramp(d, 1, 2, 2, 2)),
        rows="grid_sample_2d interpolate_bicubic", name="rfdetr-821",
    ),
)  # fmt: skip
