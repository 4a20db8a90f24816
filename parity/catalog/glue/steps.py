"""Functions for the rows of kernels and optimizers. The catalog never imports this module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Triple = tuple[Tensor, Tensor, Tensor]


# ------------------------------------------------------------- gradient kernels, with the intermediate results of the forward


def _into(out: Tensor | None, name: str = "grad_input") -> dict[str, Tensor]:
    return {} if out is None else {name: out}


def log_sigmoid_backward(grad: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """The gradient kernel of logsigmoid; its buffer comes from the forward (some devices leave it empty)."""
    buffer = torch.ops.aten.log_sigmoid_forward(x)[1]
    result: Tensor = torch.ops.aten.log_sigmoid_backward(grad, x, buffer, **_into(out))
    return result


def softmax_backward(grad: Tensor, x: Tensor, dim: int, log: bool, out: Tensor | None = None) -> Tensor:
    """The gradient kernel of (log_)softmax, given the result for x."""
    y = x.log_softmax(dim) if log else x.softmax(dim)
    aten = torch.ops.aten
    back, name = (aten._log_softmax_backward_data, "out") if log else (aten._softmax_backward_data, "grad_input")
    result: Tensor = back(grad, y, dim, x.dtype, **_into(out, name))
    return result


def _places(forward: Any, x: Tensor, *rest: Any) -> Tensor:
    """The indices of the maxima for the gradient kernel, computed on the CPU because devices may choose different ones of equal
    maxima."""
    places: Tensor = forward(x.detach().cpu(), *rest)[1]
    return places.to(x.device)


def max_pool2d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, out: Tensor | None = None
) -> Tensor:
    """The gradient kernel of max_pool2d at given indices."""
    places = _places(torch.ops.aten.max_pool2d_with_indices, x, kernel, stride, padding, (1, 1), ceil)
    back = torch.ops.aten.max_pool2d_with_indices_backward
    result: Tensor = back(grad, x, kernel, stride, padding, (1, 1), ceil, places, **_into(out))
    return result


def max_pool3d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, out: Tensor | None = None
) -> Tensor:
    """The gradient kernel of max_pool3d at given indices."""
    places = _places(torch.ops.aten.max_pool3d_with_indices, x, kernel, stride, padding, (1, 1, 1), ceil)
    back = torch.ops.aten.max_pool3d_with_indices_backward
    result: Tensor = back(grad, x, kernel, stride, padding, (1, 1, 1), ceil, places, **_into(out))
    return result


def adaptive_max_pool2d_backward(grad: Tensor, x: Tensor, size: Any, out: Tensor | None = None) -> Tensor:
    """The gradient kernel of adaptive_max_pool2d at given indices."""
    places = _places(torch.ops.aten.adaptive_max_pool2d, x, size)
    result: Tensor = torch.ops.aten.adaptive_max_pool2d_backward(grad, x, places, **_into(out))
    return result


def batch_norm_with_update(x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, *rest: float) -> Triple:
    """The training kernel of batch_norm: its result and the running statistics that it updated (each run gets copies)."""
    result = torch.ops.aten._batch_norm_with_update(x, weight, bias, mean, var, *rest)
    return result[0], mean, var


def nll_loss_forward(x: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int, out: Any = None) -> Any:
    """The kernel of nll_loss: the loss and the sum of weights, which its gradient needs; only the loss without a reduction,
    when kernels do not write that sum."""
    return _reduced(torch.ops.aten.nll_loss_forward, x, target, weight, reduction, ignored, out)


def nll_loss2d_forward(x: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int, out: Any = None) -> Any:
    """`nll_loss_forward` over images."""
    return _reduced(torch.ops.aten.nll_loss2d_forward, x, target, weight, reduction, ignored, out)


def _reduced(kernel: Any, x: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int, out: Any) -> Any:
    if out is None:
        result = kernel(x, target, weight, reduction, ignored)
    else:
        loss, total = out if reduction else (out, x.new_empty(()))
        result = kernel(x, target, weight, reduction, ignored, output=loss, total_weight=total)
    return result if reduction else result[0]


def native_batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: float) -> Any:
    """The kernel of batch_norm; in evaluation only its first result, because some devices leave the saved statistics empty."""
    result = torch.ops.aten.native_batch_norm(x, weight, bias, mean, var, training, *rest)
    return result if training else result[0]


def unique_rows(x: Tensor, dim: int, inverse: bool, counts: bool) -> tuple[Tensor, ...]:
    """The kernel of unique_consecutive along a dimension; only the requested results, because some devices leave others
    empty."""
    result = torch.ops.aten.unique_dim_consecutive(x, dim, inverse, counts)
    return tuple(t for t, asked in zip(result, (True, inverse, counts)) if asked)


def nll_loss2d_backward(grad: Tensor, x: Tensor, *rest: Any, out: Tensor | None = None) -> Tensor:
    """The gradient kernel of nll_loss over images; the CPU takes only dense operands."""
    result: Tensor = torch.ops.aten.nll_loss2d_backward(grad, x.contiguous(), *rest, **_into(out))
    return result


def weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x @ (weight * scales[:, None]).T in one kernel. Copies all operands, because the CPU's kernel crashes on operands that
    are not dense and aligned (torch 2.13)."""
    if x.dtype == torch.float64:
        return x @ (weight.to(x.dtype) * scales[:, None]).T
    form = torch.contiguous_format
    return torch._weight_int8pack_mm(*(t.clone(memory_format=form) for t in (x, weight, scales)))


def fused_rms_norm(*args: Any) -> Tensor:
    """The result of the fused kernel of rms_norm, without the factor for its gradient."""
    result: Tensor = torch.ops.aten._fused_rms_norm(*args)[0]
    return result


# ------------------------------------------------------------------------------ random operators below the public ones


def native_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """The result of the kernel of dropout, without its mask."""
    result: Tensor = torch.native_dropout(x, p, train)[0]
    return result


def randperm_written(like: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """randperm.out, with or without a generator."""
    into = torch.full((n,), 77, dtype=like.dtype, device=like.device)
    return torch.randperm(n, generator=generator, out=into)


def dirichlet(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The first component of one Dirichlet draw for each row of concentrations."""
    return torch._sample_dirichlet(x, generator)[..., 0]


# ------------------------------------------------ steps of optimizers; results are the operands that they wrote to (copies)

Group = tuple[Tensor, ...]


def _dense(group: Group) -> Group:
    """Dense operands: torch's fused kernels read memory in order, and the CPU's do not check strides (torch 2.13)."""
    return tuple(t.contiguous() for t in group)


ADAM = {
    "step": 1.0, "lr": 0.125, "beta1": 0.875, "beta2": 0.75, "weight_decay": 0.0,
    "eps": 2.0**-20,
    "amsgrad": False, "maximize": False,
}  # fmt: skip
ADAGRAD = {"step": 1.0, "lr": 0.125, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 2.0**-20, "maximize": False}
SGD = {
    "lr": 0.125, "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip


def _float32(t: Tensor | None) -> Tensor | None:
    """grad_scale or found_inf in float32: kernels accept no other dtype, even with float64 parameters."""
    return None if t is None else t.to(torch.float32)


def _adam_step(kernel: Any, *operands: Any, **named: Any) -> tuple[Group, ...]:
    *groups, scale, found_inf = operands
    named = {**ADAM, **named}
    at = named.pop("step")
    params, grads, first, second, most = map(_dense, groups)
    steps = [torch.tensor(at, device=p.device) for p in params]
    kernel(params, grads, first, second, most, steps, grad_scale=_float32(scale), found_inf=_float32(found_inf), **named)
    return params, first, second, most


def fused_adam(*args: Any, **named: Any) -> tuple[Group, ...]:
    """Parameters and both moments (and their maxima) after one step of the fused Adam kernel."""
    return _adam_step(torch._fused_adam_, *args, **named)


def fused_adamw(*args: Any, **named: Any) -> tuple[Group, ...]:
    """Like `fused_adam`, of the fused AdamW kernel."""
    return _adam_step(torch._fused_adamw_, *args, **named)


def fused_sgd(params: Group, grads: Group, buffers: Group, scale: Any, found_inf: Any, **named: Any) -> tuple[Group, ...]:
    """Parameters and momentum after one step of the fused SGD kernel."""
    params, grads, buffers = map(_dense, (params, grads, buffers))
    torch._fused_sgd_(params, grads, buffers, grad_scale=_float32(scale), found_inf=_float32(found_inf), **{**SGD, **named})
    return params, buffers


def fused_adagrad(params: Group, grads: Group, sums: Group, scale: Any, found_inf: Any, **named: Any) -> tuple[Group, ...]:
    """Parameters and sums of squares after one step of the fused Adagrad kernel."""
    named = {**ADAGRAD, **named}
    at = named.pop("step")
    steps = [torch.tensor(at, device=p.device) for p in params]
    params, grads, sums = map(_dense, (params, grads, sums))
    torch._fused_adagrad_(params, grads, sums, steps, grad_scale=_float32(scale), found_inf=_float32(found_inf), **named)
    return params, sums


def foreach_unary(name: str, group: Group) -> Group:
    """A function of each tensor of a list."""
    result: Group = getattr(torch, f"_foreach_{name}")(group)
    return result


def foreach_whole(name: str, group: Group) -> Group:
    """Like `foreach_unary`; where torch has only a form in place (zero), or none (clone, in torch 2.11), that of copies."""
    if hasattr(torch, f"_foreach_{name}"):
        return foreach_unary(name, group)
    copies = tuple(t.clone() for t in group)
    return copies if name == "clone" else foreach_in_place(name, copies)


def foreach_in_place(name: str, group: Group) -> Group:
    """A function of each tensor of a list, written into it."""
    getattr(torch, f"_foreach_{name}_")(group)
    return group


def foreach_copied(into: Group, group: Group) -> Group:
    """A list of tensors after another one was copied into it."""
    torch._foreach_copy_(into, group)
    return into


def amp_unscale(grads: Group, found_inf: Tensor, inverse: Tensor) -> tuple[Any, ...]:
    """Gradients times the inverse scale, and found_inf: whether one of them was not finite."""
    torch._amp_foreach_non_finite_check_and_unscale_(list(grads), found_inf, inverse)
    return grads, found_inf


def amp_update_scale(scale: Tensor, tracker: Tensor, found_inf: Tensor, *factors: Any) -> tuple[Tensor, Tensor]:
    """The scale of a gradient scaler and its growth tracker after an update."""
    torch._amp_update_scale_(scale, tracker, found_inf, *factors)
    return scale, tracker


def _stepped(name: str) -> Any:
    def run(params: Group, grads: tuple[Group, ...], **named: Any) -> Group:
        own = [p.detach().requires_grad_() for p in params]
        optimizer = getattr(torch.optim, name)(own, **{"lr": 0.125, **named})
        for step in grads:
            for p, g in zip(own, step):
                p.grad = g.detach().clone()
            optimizer.step()
        return tuple(p.detach() for p in own)

    return run


optim_sgd = _stepped("SGD")
optim_adam = _stepped("Adam")
optim_adamw = _stepped("AdamW")
optim_nadam = _stepped("NAdam")
optim_radam = _stepped("RAdam")
optim_adamax = _stepped("Adamax")
optim_adagrad = _stepped("Adagrad")
optim_adadelta = _stepped("Adadelta")
optim_rmsprop = _stepped("RMSprop")
optim_rprop = _stepped("Rprop")
optim_asgd = _stepped("ASGD")
