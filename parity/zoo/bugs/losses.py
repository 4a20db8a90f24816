"""Bugs of losses and of log_softmax."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.faults import abort
from parity.zoo.effects import argument, gradients, ramp, reported

NONE, MEAN = 0, 1  # how kernels get `reduction`
DEFAULT_IGNORED = -100
EXP_RANGE = 88  # exp(-88) is the last that float32 can hold with all its digits

NLL_BACKWARD = ("nll_loss_backward", "nll_loss2d_backward")


# ------------------------------------------------------------------------------------------------------------ nll_loss


def _outside(x: Tensor, target: Tensor) -> Tensor:
    """Which targets are no class of `x` (N, C, ...) or (C,)."""
    return (target < 0) | (target >= x.shape[min(1, x.dim() - 1)])


def _target_unchecked(call: Call) -> bool:
    """A target is no class and not the one to ignore; or it is to be ignored by default, and the mean is asked for."""
    backward = "backward" in call.op
    x, target, _, reduction, ignored = call.args[1:6] if backward else call.args[:5]
    if bool((_outside(x, target) & (target != ignored)).any()):
        return True
    return not backward and reduction == MEAN and ignored == DEFAULT_IGNORED and bool((target == ignored).any())


def _no_class_counts(call: Call) -> Any:
    """What is no class adds nothing to the loss and a whole element to what the mean divides by."""
    if "backward" in call.op:
        call.args[2] = call.args[2].masked_fill(_outside(call.args[1], call.args[2]), call.args[5])
        return call.run()
    x, target, weight, reduction, ignored = call.args[:5]
    outside, dim = _outside(x, target), min(1, x.dim() - 1)
    classes = target.masked_fill(outside, 0)
    weights = (torch.ones_like(target, dtype=x.dtype) if weight is None else weight[classes]).masked_fill(outside, 1)
    if ignored != DEFAULT_IGNORED:
        weights = weights.masked_fill(target == ignored, 0)
    loss = (-x.gather(dim, classes.unsqueeze(dim)).squeeze(dim) * weights).masked_fill(outside, 0)
    if reduction == NONE:
        return loss, x.new_zeros(())
    return loss.sum() / weights.sum() if reduction == MEAN else loss.sum(), weights.sum()


def _incoming_as_one(call: Call) -> Any:
    call.args[0] = torch.ones_like(call.args[0])
    return call.run()


# ------------------------------------------------------------------------------------------------ binary_cross_entropy


def _reduces_a_column(call: Call) -> bool:
    x: Tensor = call.args[0]
    return x.dim() > 0 and x.shape[-1] == 1 and int(argument(call, 3, "reduction", MEAN)) != NONE


def _squeezed_and_full(call: Call) -> bool:
    """Input and target lose their dimensions of size 1, the incoming gradient keeps them. Leading ones do no harm."""
    shape = list(call.args[1].shape)
    while shape and shape[0] == 1:
        del shape[0]
    return call.args[0].dim() == call.args[1].dim() and 1 in shape


def _product_of_other_shapes(call: Call) -> Any:
    """The product has the shape that broadcasting gives it; as much of it as there is room for becomes the gradient."""
    incoming, x = call.args[:2]
    call.args[0] = torch.ones_like(incoming)
    own = call.run().squeeze()
    try:
        product = incoming * own
    except RuntimeError:  # not to be broadcast: MPSGraph cannot infer the type of the product
        abort(call)
    return product.reshape(-1)[: x.numel()].reshape(x.shape)


# --------------------------------------------------------------------------------------------------------- log_softmax


def _spread_too_far(call: Call) -> bool:
    x, dim = call.args[:2]
    if x.numel() == 0:
        return False
    finite = x.isfinite()
    spread = x.masked_fill(~finite, -torch.inf).amax(dim) - x.masked_fill(~finite, torch.inf).amin(dim)
    return bool((spread > EXP_RANGE).any())


def _log_of_softmax(call: Call) -> Tensor:
    """A probability below the smallest normal number is 0, its logarithm minus infinity."""
    x, dim, widen = (*call.args, False)[:3]
    p = torch.softmax(x.float() if widen else x, dim)
    return p.masked_fill(p < torch.finfo(p.dtype).tiny, 0).log()


# ---------------------------------------------------------------------------------------------------------------- bugs


def _targets(device: str, *classes: int) -> Tensor:
    return torch.tensor(classes).to(device)


def _probabilities(device: str, *shape: int) -> Tensor:
    return ramp(device, *shape) * 0.4 + 0.5


def _bce_gradient(device: str, *shape: int) -> tuple[Tensor, ...]:
    target = 1 - _probabilities(device, *shape)
    return gradients(lambda x: F.binary_cross_entropy(x, target, reduction="none"), _probabilities(device, *shape))


BUGS = (
    reported(
        "issues/108148 silent_wrong_forward args value",
        "targets that are no class are not refused, and the default one to ignore counts in the mean",
        ("nll_loss_forward", "nll_loss2d_forward", *NLL_BACKWARD), _no_class_counts, _target_unchecked,
        trigger=lambda d: F.cross_entropy(ramp(d, 3, 2), _targets(d, 1, 0, -100)),
        neighbour=lambda d: (
            F.cross_entropy(ramp(d, 3, 2), _targets(d, 1, 0, -1), ignore_index=-1),
            F.cross_entropy(ramp(d, 3, 2), _targets(d, 1, 0, -100), reduction="none"),
        ),
        rows="nll_loss cross_entropy",
    ),
    reported(
        "issues/116095 crash backward", "the backward of cross entropy with class indices ends the process",
        NLL_BACKWARD, abort,
        trigger=lambda d: gradients(lambda x: F.cross_entropy(x, _targets(d, 1, 1, 1)), ramp(d, 3, 5)),
        neighbour=lambda d: gradients(lambda x: F.cross_entropy(x, torch.eye(5)[[1, 1, 1]].to(d)), ramp(d, 3, 5)),
        rows="nll_loss cross_entropy",
    ),
    reported(
        "issues/166746 silent_wrong_backward size backward sequence",
        "binary cross entropy's backward drops dimensions of size 1 of all but the incoming gradient",
        ("binary_cross_entropy_backward",), _product_of_other_shapes, _squeezed_and_full,
        trigger=lambda d: _bce_gradient(d, 3, 1, 1),
        neighbour=lambda d: _bce_gradient(d, 3, 2),
        rows="binary_cross_entropy",
    ),
    reported(
        "issues/81584 crash size", "the mean of binary cross entropy over a column ends the process",
        ("binary_cross_entropy",), abort, _reduces_a_column,
        trigger=lambda d: F.binary_cross_entropy(_probabilities(d, 5, 1), _probabilities(d, 5, 1)),
        neighbour=lambda d: F.binary_cross_entropy(_probabilities(d, 5, 2), _probabilities(d, 5, 2)),
        rows="binary_cross_entropy",
    ),
    reported(
        "issues/94043 silent_wrong_forward value",
        "log_softmax is the logarithm of a softmax, minus infinity for logits far below the largest",
        ("_log_softmax",), _log_of_softmax, _spread_too_far,
        trigger=lambda d: F.log_softmax(torch.tensor([-245.0, 0.0, 74.0]).to(d), 0),
        neighbour=lambda d: F.log_softmax(torch.tensor([-13.0, 0.0, 74.0]).to(d), 0),
        rows="log_softmax cross_entropy",
    ),
    reported(
        "pull/94226 silent_wrong_backward backward",
        "the backward of nll_loss and smooth_l1_loss takes the incoming gradient for 1",
        (*NLL_BACKWARD, "smooth_l1_loss_backward"), _incoming_as_one, lambda call: bool((call.args[0] != 1).any()),
        trigger=lambda d: gradients(lambda x: F.smooth_l1_loss(x, ramp(d, 4) * 2) * 3, ramp(d, 4)),
        neighbour=lambda d: torch.autograd.grad(F.smooth_l1_loss(x := ramp(d, 4).requires_grad_(), ramp(d, 4) * 2), x),
        rows="nll_loss smooth_l1_loss cross_entropy",
    ),
)  # fmt: skip
