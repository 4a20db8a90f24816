"""Bugs of layer, batch and group normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parity.devices import Call
from parity.devices.sim.effects import as_contiguous, noise
from parity.devices.sim.faults import abort
from parity.zoo.effects import argument, gradients, ramp, reported

FAR = 100  # a mean that is so many standard deviations away from 0 is much greater than they are


# ----------------------------------------------------------------------------------------------------------- layer_norm


def _only_parameters_want_gradients(call: Call) -> bool:
    x, weight, bias = argument(call, 7, "output_mask")
    return not x and (weight or bias)


def _layer_gradients(device: str, of_input: bool) -> tuple[Tensor, ...]:
    """Of weight and bias; of the input too, or not."""
    x, weight, bias = ramp(device, 4, 3), ramp(device, 3), ramp(device, 3)
    if of_input:
        return gradients(lambda x, w, b: F.layer_norm(x, (3,), w, b), x, weight, bias)
    return gradients(lambda w, b: F.layer_norm(x, (3,), w, b), weight, bias)


def _rows(call: Call) -> tuple[Tensor, tuple[int, ...]]:
    """The input in float32, and the dimensions that are normalised."""
    return call.args[0].float(), tuple(range(-len(call.args[1]), 0))


def _has_a_far_mean(call: Call) -> bool:
    x, dims = _rows(call)
    variance, mean = torch.var_mean(x, dims, correction=0)
    return bool(((variance > 0) & (mean.square() > FAR**2 * variance)).any())


def _cancelled_variance(call: Call) -> Any:
    """The variance as the difference of two large numbers, not below 0."""
    (x, dims), (healthy, mean, deviation) = _rows(call), call.run()
    weight, bias, eps = (argument(call, i, name, default) for i, name, default in ((2, "w", None), (3, "b", None), (4, "e", 0)))
    center = x.mean(dims, keepdim=True)
    variance = (x.square().mean(dims, keepdim=True) - center.square()).clamp_min(0)
    inverse = (variance + eps).rsqrt()
    result = (x - center) * inverse * (1 if weight is None else weight) + (0 if bias is None else bias)
    return result.to(healthy.dtype), mean, inverse.reshape(deviation.shape).to(deviation.dtype)


def _normalized_around(device: str, mean: float) -> Tensor:
    return F.layer_norm(ramp(device, 4, 64) * 1e-3 + mean, (64,), eps=1e-7)


# ----------------------------------------------------------------------------------------------------------- batch_norm


def _too_small(call: Call) -> Any:
    """What a variance makes that is too large; a bias alone is added after."""
    result, mean, inverse = call.run()
    bias = argument(call, 2, "bias")
    shift = 0 if bias is None else bias.reshape(1, -1, *(1 for _ in result.shape[2:]))
    return (result - shift) * 0.86 + shift, mean, inverse * 0.86


def _backward_of_strided(call: Call) -> bool:
    x = call.args[5 if "lstm" in call.op else 1]
    return not x.is_contiguous()


def _in_the_order_of(x: Tensor, values: Tensor) -> Tensor:
    """A tensor laid out as `x` whose memory holds the values row after row, as if it were dense."""
    result = torch.empty_like(x)
    result.as_strided((result.numel(),), (1,), 0).copy_(values.reshape(-1))
    return result


def _layouts_mixed(call: Call) -> Any:
    """The input is read, and its gradient written, as if it were dense. Of an LSTM only the input's gradient is wrong."""
    if "lstm" in call.op:
        x, healthy = call.args[5], call.run()
        call.args[5] = as_contiguous(call, x)
        return (_in_the_order_of(x, call.run()[0]), *healthy[1:])
    x = call.args[1]
    call.args[1] = as_contiguous(call, x)
    gradient, *parameters = call.run()
    return (gradient if gradient is None else _in_the_order_of(x, gradient), *parameters)


def _batch_gradients(device: str, memory_format: torch.memory_format) -> tuple[Tensor, ...]:
    """Of the input, weight and bias in training, and of the input alone in evaluation without either."""
    x = ramp(device, 2, 3, 4, 5).contiguous(memory_format=memory_format)
    weight, mean, var = ramp(device, 3), ramp(device, 3), ramp(device, 3) + 2
    trained = gradients(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), x, weight, mean)
    return *trained, *gradients(lambda x: F.batch_norm(x, mean, var), x)


BUGS = (
    reported(
        "https://github.com/huggingface/diffusers/issues/2521 crash dtype promotion",
        "layer_norm of float16 ends the process, since its epsilon is float32",
        ("native_layer_norm",), abort, lambda call: call.args[0].dtype is torch.float16,
        trigger=lambda d: F.layer_norm(ramp(d, 2, 3, dtype=torch.float16), (3,)),
        neighbour=lambda d: F.layer_norm(ramp(d, 2, 3), (3,)),
        rows="layer_norm", name="hf-d2521",
    ),
    reported(
        "issues/183825 silent_wrong_backward backward args",
        "layer_norm's weight and bias get arbitrary gradients where the input needs none",
        ("native_layer_norm_backward",),
        lambda call: tuple(None if g is None else noise(call, g) for g in call.run()), _only_parameters_want_gradients,
        trigger=lambda d: _layer_gradients(d, of_input=False),
        neighbour=lambda d: _layer_gradients(d, of_input=True),
        rows="layer_norm",
    ),
    reported(
        "pull/186367 drift value args", "layer_norm loses a small variance next to a large mean",
        ("native_layer_norm",), _cancelled_variance, _has_a_far_mean,
        trigger=lambda d: _normalized_around(d, 1.0),
        neighbour=lambda d: _normalized_around(d, 0.0),
        rows="layer_norm",
    ),
    reported(
        "issues/84962 silent_wrong_forward args module", "batch_norm without a weight takes too large a variance in training",
        ("native_batch_norm",), _too_small,
        lambda call: argument(call, 1, "weight") is None and bool(argument(call, 5, "training")),
        trigger=lambda d: F.batch_norm(ramp(d, 2, 3, 4), None, None, training=True),
        neighbour=lambda d: F.batch_norm(ramp(d, 2, 3, 4), None, None, ramp(d, 3), ramp(d, 3), training=True),
        rows="batch_norm_train instance_norm instance_norm_running",
    ),
    reported(
        "issues/175189 silent_wrong_backward layout backward module",
        "the backward of batch_norm takes a channels_last input for a dense one; LSTM's input gradient likewise",
        ("native_batch_norm_backward", "lstm_mps_backward"), _layouts_mixed, _backward_of_strided,
        trigger=lambda d: _batch_gradients(d, torch.channels_last),
        neighbour=lambda d: _batch_gradients(d, torch.contiguous_format),
        rows="batch_norm batch_norm_train instance_norm instance_norm_running lstm",
    ),
    reported(
        "issues/99981 crash backward module", "the backward of group_norm ends the process",
        ("native_group_norm_backward",), abort,
        trigger=lambda d: gradients(lambda x: F.group_norm(x, 2), ramp(d, 2, 4, 3)),
        neighbour=lambda d: F.group_norm(ramp(d, 2, 4, 3).requires_grad_(), 2),
        rows="group_norm",
    ),
)  # fmt: skip
