"""Bugs of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from parity.devices.sim.call import Call, CallOutline
from parity.devices.sim.effects import as_channels_last, as_contiguous, raising, replacing
from parity.devices.sim.faults import abort, refuse
from parity.zoo.effects import argument, gradients, looks_channels_last, ramp, reported

CONVOLUTION = ("convolution", "convolution_overrideable")
CONVOLUTION_BACKWARD = ("convolution_backward", "convolution_backward_overrideable")
LARGEST = 1 << 16  # no dimension of a convolution's result may be larger
TOO_LARGE = (
    "Output channels > 65536 not supported at the MPS device. As a temporary fix, you can set the environment variable "
    "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this will be slower than running "
    "natively on MPS."
)

OUT_OF_REACH = {
    "tv-9510": "roi_align, roi_pool and ps_roi_align are torchvision's operators: torch has none of them, the catalog neither"
}


# ------------------------------------------------------------------------------------------------------- convolutions


def _is(call: Call, spatial: int) -> bool:
    """A forward kernel of so many spatial dimensions. conv1d's has two, the first of size 1, as on MPS."""
    return call.args[0].dim() == spatial + 2 and call.args[6] is False


def _result_too_large(call: Call) -> bool:
    """The check looks at every size of the output, not only at its channels."""
    args, kwargs = tree_map_only(Tensor, lambda t: torch.empty(t.shape, device="meta"), (call.args, call.kwargs))
    return max(F.conv1d(*args, **kwargs).shape) > LARGEST


def _in_other_order(t: Tensor) -> bool:
    return looks_channels_last(t) and not t.is_contiguous()


def _permuted_operands(call: Call) -> Any:
    """Memory in the order N, H, W, C is described as N, C, H, W."""
    for i in (0, 1):
        if _in_other_order(call.args[i]):
            call.args[i] = as_contiguous(call, call.args[i])
    return call.run()


def _slice_of_channels_last(call: Call) -> bool:
    x = call.args[0]
    plain = not call.op.startswith("convolution") or call.args[6] is False
    return plain and looks_channels_last(x) and not x.is_contiguous(memory_format=torch.channels_last)


def _first_255_taps(call: Call) -> Any:
    weight = call.args[1].clone()
    weight[:, :, 255:], weight[..., 255:] = 0, 0
    call.args[1] = weight
    return call.run()


def _plain_3d(call: Call) -> bool:
    x = call.args[0]
    return _is(call, 3) and x.is_contiguous() and x.shape[1] >= 4 and x.dtype == torch.float32


def _weight_as_dhwio(call: Call) -> Any:
    o, i, *k = call.args[1].shape
    call.args[1] = call.args[1].reshape(*k, i, o).permute(4, 3, 0, 1, 2)
    return call.run()


def _strides_swapped(call: Call) -> Any:
    """What lies beyond the input with the strides exchanged is 0; the shape is the right one."""
    down, right = call.args[3]
    call.args[3] = [1, 1]
    result = call.run()
    for dim, step, own in ((2, right, down), (3, down, right)):
        size = result.shape[dim]
        at = torch.arange((size - 1) // own + 1) * step
        inside = (at < size).reshape(-1, *(1,) * (3 - dim))
        result = result.index_select(dim, at.clamp(max=size - 1)) * inside
    return result


def _conv1d_looks_channels_last(call: Call) -> bool:
    x = argument(call, 0, "input")
    image = (x if x.dim() == 3 else x.unsqueeze(0)).unsqueeze(2)
    return call.requires_grad and looks_channels_last(image)


def _crash_on_the_way_back(call: Call) -> Any:
    def crash(gradient: Tensor) -> Tensor:
        raise RuntimeError("failed assertion: source and gradient do not have the same layout")

    return call.run_with_gradient(crash)


# ------------------------------------------------------------------------------------------------------------- pooling


def _pool_options(scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    """Kernel, stride, padding, ceil mode, whether padding counts, divisor: what is left out at its default."""
    return (*scalars, *(None, (), (0, 0), False, True, None)[len(scalars) :])


def _cached_divisor(call: Call) -> Any:
    """The divisor of the first call that the cache takes for the same."""

    def key(seen: CallOutline) -> tuple[Any, ...]:
        return seen.shapes, seen.dtypes, _pool_options(seen.scalars)[:-1]

    own = call.outline
    return next(_pool_options(s.scalars)[-1] for s in (*call.seen, own) if key(s) == key(own))


def _pool_is_wrong(call: Call) -> bool:
    *_, padding, _, counts, divisor = _pool_options(call.outline.scalars)
    return _cached_divisor(call) != divisor or (divisor is None and counts and any(padding))


def _padding_not_counted(call: Call) -> Any:
    *options, _, _ = _pool_options(call.outline.scalars)
    call.args[1:] = [*options, False, _cached_divisor(call)]
    return call.run()


def _one_window(call: Call) -> Any:
    """An ordinary pool whose window and stride are made from the two sizes."""
    x, wanted = call.args
    sizes = x.shape[-2:]
    if not (all(a >= b for a, b in zip(sizes, wanted)) or all(a <= b for a, b in zip(sizes, wanted))):
        raise RuntimeError("Adaptive pool MPS: the output must be larger than the input in no dimension, or in both")
    stride = [max(a, b) // min(a, b) for a, b in zip(sizes, wanted)]
    window = [max(a, b) - (min(a, b) - 1) * s for a, b, s in zip(sizes, wanted, stride)]
    return torch.ops.aten.max_pool2d_with_indices(x, window, stride)


# ---------------------------------------------------------------------------------------------------------------- bugs


def _pooled_twice(first: int, second: int) -> Callable[[str], object]:
    """Two calls that differ in their divisor only."""
    return lambda d: [F.avg_pool2d(ramp(d, 1, 1, 4, 4), 2, divisor_override=n) for n in (first, second)]


def _channels_last(device: str) -> Tensor:
    return ramp(device, 1, 2, 1, 2).contiguous(memory_format=torch.channels_last)


def _conv1d_gradients(channels: int) -> Callable[[str], object]:
    """Of an input whose last two dimensions were exchanged."""
    return lambda d: gradients(
        lambda x, w: F.conv1d(x.transpose(1, 2), w), ramp(d, 2, 7, channels), ramp(d, 2, channels, 3)
    )  # fmt: skip


BUGS = (
    reported(
        "pull/116580 crash backward args",
        "the backward of a transposed 3-D convolution ends the process where it changes the number of channels",
        CONVOLUTION_BACKWARD, abort,
        lambda call: call.args[1].dim() == 5 and call.args[6] and call.args[2].shape[0] != call.args[2].shape[1] * call.args[8],
        trigger=lambda d: gradients(F.conv_transpose3d, ramp(d, 1, 4, 2, 2, 2), ramp(d, 4, 3, 1, 1, 1)),
        neighbour=lambda d: gradients(F.conv_transpose3d, ramp(d, 1, 3, 2, 2, 2), ramp(d, 3, 3, 1, 1, 1)),
        rows="conv_transpose3d",
    ),
    reported(
        "issues/134416 fallback size",
        "conv1d with more than 65536 output channels is refused inside the kernel, where no fallback can help",
        ("conv1d",), raising(NotImplementedError(TOO_LARGE)), _result_too_large,
        trigger=lambda d: F.conv1d(ramp(d, 1, 1, 2), ramp(d, LARGEST + 1, 1, 1)),
        neighbour=lambda d: F.conv1d(ramp(d, 1, 1, 2), ramp(d, LARGEST, 1, 1)),
        rows="conv1d", level="function",
    ),
    reported(
        "pull/143196 silent_wrong_backward layout backward",
        "conv2d's backward takes a channels_last input or incoming gradient for a contiguous one",
        CONVOLUTION_BACKWARD, _permuted_operands,
        lambda call: call.args[1].dim() == 4 and not call.args[6] and any(map(_in_other_order, call.args[:2])),
        trigger=lambda d: gradients(
            lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w), ramp(d, 1, 2, 3, 4), ramp(d, 3, 2, 2, 2)
        ),
        neighbour=lambda d: gradients(F.conv2d, ramp(d, 1, 2, 3, 4), ramp(d, 3, 2, 2, 2)),
        rows="conv2d",
    ),
    reported(
        "issues/180984 silent_wrong_forward layout",
        "some channels of a channels_last image are read as if no channels lay between them",
        (*CONVOLUTION, "native_batch_norm", "avg_pool2d", "_adaptive_avg_pool2d"), replacing(0, as_channels_last),
        _slice_of_channels_last,
        trigger=lambda d: F.conv2d(
            ramp(d, 1, 2, 1, 2).contiguous(memory_format=torch.channels_last)[:, :1], ramp(d, 1, 1, 1, 1)
        ),
        neighbour=lambda d: F.conv2d(_channels_last(d), ramp(d, 1, 2, 1, 1)),
        rows="conv2d batch_norm batch_norm_train avg_pool2d adaptive_avg_pool2d",
    ),
    reported(
        "pull/188359 silent_wrong_forward size args", "conv2d leaves out a part of a kernel that is 256 or more long",
        CONVOLUTION, _first_255_taps, lambda call: _is(call, 2) and max(call.args[1].shape[2:]) >= 256,
        trigger=lambda d: F.conv2d(ramp(d, 1, 1, 1, 260), ramp(d, 1, 1, 1, 256)),
        neighbour=lambda d: F.conv2d(ramp(d, 1, 1, 1, 260), ramp(d, 1, 1, 1, 255)),
        rows="conv2d",
    ),
    reported(
        "issues/197114 silent_wrong_forward layout size",
        "conv3d in the default layout takes its weight for one in another order",
        CONVOLUTION, _weight_as_dhwio, _plain_3d,
        trigger=lambda d: F.conv3d(ramp(d, 1, 8, 3, 3, 3), ramp(d, 8, 8, 2, 2, 2)),
        neighbour=lambda d: F.conv3d(
            ramp(d, 1, 8, 3, 3, 3).contiguous(memory_format=torch.channels_last_3d), ramp(d, 8, 8, 2, 2, 2)
        ),
        rows="conv3d",
    ),
    reported(
        "issues/83180 silent_wrong_forward args", "conv2d exchanges its two strides",
        CONVOLUTION, _strides_swapped, lambda call: _is(call, 2) and call.args[3][0] != call.args[3][1],
        trigger=lambda d: F.conv2d(ramp(d, 1, 1, 3, 6), ramp(d, 1, 1, 3, 3), stride=(1, 2)),
        neighbour=lambda d: F.conv2d(ramp(d, 1, 1, 3, 6), ramp(d, 1, 1, 3, 3), stride=(2, 2)),
        rows="conv2d",
    ),
    reported(
        "pull/85283 crash layout backward",
        "conv1d's backward fails for an input that looks channels_last, as a transposed one does",
        ("conv1d",), _crash_on_the_way_back, _conv1d_looks_channels_last,
        trigger=_conv1d_gradients(1),
        neighbour=lambda d: gradients(F.conv1d, ramp(d, 2, 1, 7), ramp(d, 2, 1, 3)),
        rows="conv1d", level="function",
    ),
    reported(
        "issues/190064 silent_wrong_forward args size",
        "adaptive_max_pool2d has one window and stride for all places, also where the sizes do not divide",
        ("adaptive_max_pool2d",), _one_window,
        lambda call: any(n and a % n for a, n in zip(call.args[0].shape[-2:], call.args[1])),
        trigger=lambda d: F.adaptive_max_pool2d(ramp(d, 1, 1, 5, 5), 3, return_indices=True),
        neighbour=lambda d: F.adaptive_max_pool2d(ramp(d, 1, 1, 6, 6), 3, return_indices=True),
        rows="adaptive_max_pool2d",
    ),
    reported(
        "issues/197847 unsupported_op none", "fractional max pooling has no kernel",
        ("fractional_max_pool2d", "fractional_max_pool3d"), refuse,
        trigger=lambda d: F.fractional_max_pool2d(
            ramp(d, 1, 1, 5, 5), 2, output_size=3, _random_samples=torch.full((1, 1, 2), 0.5).to(d)
        ),
        neighbour=lambda d: F.max_pool2d(ramp(d, 1, 1, 5, 5), 2),
    ),
    reported(
        "pull/94348 silent_wrong_forward args sequence",
        "avg_pool2d does not count the padding that it should, and keeps the divisor of an earlier call",
        ("avg_pool2d",), _padding_not_counted, _pool_is_wrong,
        trigger=lambda d: (F.avg_pool2d(ramp(d, 1, 1, 4, 4), 2, padding=1), _pooled_twice(3, 5)(d)),
        neighbour=lambda d: (F.avg_pool2d(ramp(d, 1, 1, 4, 4), 2, padding=1, count_include_pad=False), _pooled_twice(3, 3)(d)),
        rows="avg_pool2d",
    ),
)  # fmt: skip
