"""Operators of aten that only some devices have, by operators that the CPU has: what they compute must be the same.

MPS computes `linear`, convolutions and attention by operators of its own, CUDA convolutions and batch_norm by those of cuDNN
or MIOpen, and so do devices that are not built into torch. The gradient of MPS's pooling is none of them: which of several
equal elements it goes to is free. Their names and the order of their arguments are those of torch's native_functions.yaml. An
equivalent leaves out the last results that only the device's own gradient reads (cuDNN's reserve).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _linear_backward(x: Tensor, grad: Tensor, weight: Tensor, mask: Sequence[bool]) -> tuple[Any, ...]:
    flat, rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    to_x, to_weight, to_bias = mask
    return grad @ weight if to_x else None, flat.t() @ rows if to_weight else None, flat.sum(0) if to_bias else None


def _convolution(x: Tensor, weight: Tensor, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int) -> Any:
    return aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def _transposed(x: Tensor, weight: Tensor, padding: Any, outer: Any, stride: Any, dilation: Any, groups: int) -> Any:
    return aten.convolution(x, weight, None, stride, padding, dilation, True, outer, groups)


def _convolution_backward(x: Tensor, grad: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, *rest: Any) -> Any:
    nothing = [0] * len(stride)
    sizes = [grad.shape[1]]
    return aten.convolution_backward(grad, x, weight, sizes, stride, padding, dilation, False, nothing, *rest)


def _transposed_backward(
    x: Tensor, grad: Tensor, weight: Tensor, padding: Any, outer: Any, stride: Any, dilation: Any, *rest: Any
) -> Any:
    groups, mask = rest
    return aten.convolution_backward(grad, x, weight, [0], stride, padding, dilation, True, outer, groups, [*mask, False])[:2]


def _convolution_backward_overrideable(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    return aten.convolution_backward(grad, x, weight, [grad.shape[1]], *rest)


def _library_convolution(x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *how: bool) -> Any:
    return _convolution(x, weight, None, padding, stride, dilation, groups)


def _library_transposed(
    x: Tensor, weight: Tensor, padding: Any, outer: Any, stride: Any, dilation: Any, groups: int, *how: bool
) -> Any:
    return _transposed(x, weight, padding, outer, stride, dilation, groups)


def _biased_convolution(
    x: Tensor, weight: Tensor, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int, *how: bool
) -> Any:
    return _convolution(x, weight, bias, padding, stride, dilation, groups)


def _depthwise_convolution(x: Tensor, weight: Tensor, kernel: Any, bias: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    return _convolution(x, weight, bias, padding, stride, dilation, x.shape[-1 - len(kernel)])


def _batch_norm_backward(x: Tensor, grad: Tensor, weight: Tensor, *rest: Any) -> Any:
    *statistics, eps = rest[:5]  # then comes cuDNN's reserve
    return aten.native_batch_norm_backward(grad, x, weight, *statistics, True, eps, [True] * 3)


EQUIVALENTS: Mapping[str, Callable[..., Any]] = {
    "linear_backward": _linear_backward, "convolution_overrideable": aten.convolution,
    "convolution_backward_overrideable": _convolution_backward_overrideable, "_mps_convolution": _convolution,
    "mps_convolution_backward": _convolution_backward, "_mps_convolution_transpose": _transposed,
    "mps_convolution_transpose_backward": _transposed_backward, "cudnn_convolution": _library_convolution,
    "cudnn_convolution_transpose": _library_transposed, "miopen_convolution": _biased_convolution,
    "miopen_depthwise_convolution": _biased_convolution, "_conv_depthwise2d": _depthwise_convolution,
    "conv_depthwise3d": _depthwise_convolution, "cudnn_batch_norm": aten.native_batch_norm,
    "miopen_batch_norm": aten.native_batch_norm, "cudnn_batch_norm_backward": _batch_norm_backward,
    "miopen_batch_norm_backward": _batch_norm_backward,
    "_scaled_dot_product_attention_math_for_mps": aten._scaled_dot_product_attention_math,
}  # fmt: skip


def on_the_cpu(operator: Any) -> Callable[..., Any]:
    """What to call on the CPU for an overload: itself, or its equivalent if the CPU has no kernel of it."""
    name = operator.name().partition("::")[2]
    if name not in EQUIVALENTS or torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU"):
        made: Callable[..., Any] = operator
        return made
    return EQUIVALENTS[name]
