"""Calls that need glue around torch. Named by rows as dotted paths; never imported by the catalog itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Triple = tuple[Tensor, Tensor, Tensor]


def batch_norm_train(
    x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None, bias: Tensor | None, **options: Any
) -> Tensor | Triple:
    """batch_norm in training mode, with the running statistics that it wrote (to copies)."""
    if mean is None or var is None:
        return F.batch_norm(x, None, None, weight, bias, training=True, **options)
    running = mean.detach().clone(), var.detach().clone()
    return (F.batch_norm(x, *running, weight, bias, training=True, **options), *running)


def instance_norm_running(x: Tensor, mean: Tensor, var: Tensor, **options: Any) -> Triple:
    """instance_norm that updates running statistics (copies of them)."""
    running = mean.detach().clone(), var.detach().clone()
    return (F.instance_norm(x, *running, use_input_stats=True, **options), *running)


def max_unpool1d(x: Tensor, indices: Tensor, *window: Any) -> Tensor:
    """max_unpool1d; window: its size and stride."""
    return F.max_unpool1d(x, indices, *window)


def max_unpool2d(x: Tensor, indices: Tensor, *window: Any) -> Tensor:
    """max_unpool2d with indices given flat, (..., H * W), so that they can be drawn without repeats."""
    return F.max_unpool2d(x, indices.reshape(x.shape), *window)


def max_unpool3d(x: Tensor, indices: Tensor, *window: Any) -> Tensor:
    """max_unpool3d with flat indices."""
    return F.max_unpool3d(x, indices.reshape(x.shape), *window)


def ctc_loss(logits: Tensor, targets: Tensor, inputs: Any, lengths: Any, **options: Any) -> Tensor:
    """ctc_loss of log-probabilities made from logits."""
    return F.ctc_loss(logits.log_softmax(-1), targets, inputs, lengths, **options)


def lstsq(a: Tensor, b: Tensor) -> Tensor:
    """The solution of linalg.lstsq (the other fields depend on the driver)."""
    solution: Tensor = torch.linalg.lstsq(a, b).solution
    return solution


def lu_solve(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """A system solved from its LU factors; the factors themselves may differ by pivoting."""
    solution: Tensor = torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, **options)
    return solution


def cholesky_solve(a: Tensor, b: Tensor, upper: bool = False) -> Tensor:
    """A system solved from its Cholesky factor."""
    return torch.cholesky_solve(b, torch.linalg.cholesky(a, upper=upper), upper=upper)


def cholesky_inverse(a: Tensor, upper: bool = False) -> Tensor:
    """The inverse from the Cholesky factor."""
    return torch.cholesky_inverse(torch.linalg.cholesky(a, upper=upper), upper=upper)


def lstm(x: Tensor, hidden: tuple[Tensor, ...], weights: tuple[Tensor, ...], *flags: Any) -> Triple:
    """torch.lstm without dropout; flags: has_biases, layers, train, bidirectional, batch_first."""
    biases, layers, train, bidirectional, batch_first = flags
    return torch.lstm(x, hidden, weights, biases, layers, 0.0, train, bidirectional, batch_first)


def gru(x: Tensor, hidden: Tensor, weights: tuple[Tensor, ...], *flags: Any) -> tuple[Tensor, Tensor]:
    """torch.gru with the flags of `lstm`."""
    biases, layers, train, bidirectional, batch_first = flags
    return torch.gru(x, hidden, weights, biases, layers, 0.0, train, bidirectional, batch_first)


def rnn_tanh(x: Tensor, hidden: Tensor, weights: tuple[Tensor, ...], *flags: Any) -> tuple[Tensor, Tensor]:
    """torch.rnn_tanh with the flags of `lstm`."""
    biases, layers, train, bidirectional, batch_first = flags
    return torch.rnn_tanh(x, hidden, weights, biases, layers, 0.0, train, bidirectional, batch_first)


def rnn_relu(x: Tensor, hidden: Tensor, weights: tuple[Tensor, ...], *flags: Any) -> tuple[Tensor, Tensor]:
    """torch.rnn_relu with the flags of `lstm`."""
    biases, layers, train, bidirectional, batch_first = flags
    return torch.rnn_relu(x, hidden, weights, biases, layers, 0.0, train, bidirectional, batch_first)


def multi_head_attention(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, out_bias: Tensor | None, heads: int, mask: Tensor | None
) -> Tensor:
    """Self-attention by multi_head_attention_forward, (length, batch, features), without weights and dropout."""
    width = x.shape[-1]
    return F.multi_head_attention_forward(
        x, x, x, width, heads, weight, bias, None, None, False, 0.0, out, out_bias,
        training=False, need_weights=False, attn_mask=mask,
    )[0]  # fmt: skip


def stft(x: Tensor, n_fft: int, window: Tensor | None, **options: Any) -> Tensor:
    """stft with a complex result."""
    return torch.stft(x, n_fft, window=window, return_complex=True, **options)


def round_trip_stft(x: Tensor, n_fft: int, window: Tensor | None, length: int) -> Tensor:
    """istft of a stft: the signal again, and a backward through overlapping windows."""
    spectrum = torch.stft(x, n_fft, n_fft // 2, window=window, return_complex=True)
    return torch.istft(spectrum, n_fft, n_fft // 2, window=window, length=length)


def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """What _int_mm must give: the product in int32."""
    return a.to(torch.int32) @ b.to(torch.int32)


# ------------------------------------------------------- creation: on the device and in the dtype of the first operand


def arange(like: Tensor, start: float, stop: float, step: float) -> Tensor:
    """arange beside `like`."""
    return torch.arange(start, stop, step, dtype=like.dtype, device=like.device)


def linspace(like: Tensor, start: float, stop: float, steps: int) -> Tensor:
    """linspace beside `like`."""
    return torch.linspace(start, stop, steps, dtype=like.dtype, device=like.device)


def logspace(like: Tensor, start: float, stop: float, steps: int) -> Tensor:
    """logspace beside `like`."""
    return torch.logspace(start, stop, steps, dtype=like.dtype, device=like.device)


def eye(like: Tensor, n: int, m: int) -> Tensor:
    """eye beside `like`."""
    return torch.eye(n, m, dtype=like.dtype, device=like.device)


def full(like: Tensor, shape: tuple[int, ...], value: float) -> Tensor:
    """full beside `like`."""
    return torch.full(shape, value, dtype=like.dtype, device=like.device)


def tril_indices(like: Tensor, n: int, m: int, offset: int) -> Tensor:
    """tril_indices beside `like`."""
    return torch.tril_indices(n, m, offset, dtype=like.dtype, device=like.device)


def fftfreq(like: Tensor, n: int, d: float) -> Tensor:
    """fftfreq beside `like`."""
    made: Tensor = torch.fft.fftfreq(n, d, dtype=like.dtype, device=like.device)
    return made


def hann_window(like: Tensor, n: int, periodic: bool) -> Tensor:
    """hann_window beside `like`."""
    return torch.hann_window(n, periodic, dtype=like.dtype, device=like.device)


def randperm(like: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """randperm beside `like`."""
    return torch.randperm(n, dtype=like.dtype, device=like.device, generator=generator)


def randint(like: Tensor, low: int, high: int) -> Tensor:
    """randint_like."""
    return torch.randint_like(like, low, high)


def integers(like: Tensor, low: int, high: int, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """randint beside `like`."""
    return torch.randint(low, high, shape, dtype=like.dtype, device=like.device, generator=generator)


def rand(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """rand beside `like`."""
    return torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)


def randn(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """randn beside `like`."""
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def binomial(count: Tensor, chance: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """binomial with counts that are rounded to whole numbers first."""
    return torch.binomial(count.round(), chance, generator=generator)


def with_zeros(x: Tensor) -> Tensor:
    """Weights with a chance of 0 in front, in the place of what is negative, and at the end; before that a 1."""
    rim = torch.zeros_like(x[..., :1])
    return torch.cat([rim, x.relu(), rim + 1, rim], -1)


def multinomial_zeros(x: Tensor, count: int, replacement: bool = False, generator: torch.Generator | None = None) -> Tensor:
    """multinomial where some categories have a chance of 0."""
    return torch.multinomial(with_zeros(x), count, replacement, generator=generator)


def attention_dropout(q: Tensor, k: Tensor, mask: Tensor | None, p: float, causal: bool) -> Tensor:
    """Attention with dropout over the unit matrix: the result is the matrix of weights after dropout."""
    unit = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:-2], -1, -1)
    return F.scaled_dot_product_attention(q, k, unit, mask, p, causal)


def lstm_dropout(x: Tensor, hidden: tuple[Tensor, ...], weights: tuple[Tensor, ...], p: float, *flags: Any) -> Triple:
    """torch.lstm in training with dropout between its layers; flags: has_biases, layers, bidirectional, batch_first."""
    biases, layers, bidirectional, batch_first = flags
    return torch.lstm(x, hidden, weights, biases, layers, p, True, bidirectional, batch_first)


def bucketize(x: Tensor, boundaries: Tensor, **options: Any) -> Tensor:
    """bucketize with boundaries that are sorted first (they are drawn in any order)."""
    return torch.bucketize(x, boundaries.sort().values, **options)


def searchsorted(sequence: Tensor, x: Tensor, **options: Any) -> Tensor:
    """searchsorted in a sequence that is sorted first."""
    return torch.searchsorted(sequence.sort(-1).values, x, **options)


def adjoint(x: Tensor) -> Tensor:
    """The attribute mH."""
    return x.mH


# ------------------------------------------------------------- gradient kernels, with what the forward hands to them


def _into(out: Tensor | None, name: str = "grad_input") -> dict[str, Tensor]:
    return {} if out is None else {name: out}


def log_sigmoid_backward(grad: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """The gradient of logsigmoid; its buffer comes from the forward (some devices leave it empty)."""
    buffer = torch.ops.aten.log_sigmoid_forward(x)[1]
    made: Tensor = torch.ops.aten.log_sigmoid_backward(grad, x, buffer, **_into(out))
    return made


def softmax_backward(grad: Tensor, x: Tensor, dim: int, log: bool, out: Tensor | None = None) -> Tensor:
    """The gradient kernel of (log_)softmax on the result that it made of x."""
    y = x.log_softmax(dim) if log else x.softmax(dim)
    if log:
        made: Tensor = torch.ops.aten._log_softmax_backward_data(grad, y, dim, x.dtype, **_into(out, "out"))
        return made
    made = torch.ops.aten._softmax_backward_data(grad, y, dim, x.dtype, **_into(out))
    return made


def max_pool2d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, out: Tensor | None = None
) -> Tensor:
    """The gradient kernel of max_pool2d at the places that the forward chose."""
    places = torch.ops.aten.max_pool2d_with_indices(x, kernel, stride, padding, (1, 1), ceil)[1]
    back = torch.ops.aten.max_pool2d_with_indices_backward
    made: Tensor = back(grad, x, kernel, stride, padding, (1, 1), ceil, places, **_into(out))
    return made


def max_pool3d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, out: Tensor | None = None
) -> Tensor:
    """The gradient kernel of max_pool3d at the places that the forward chose."""
    places = torch.ops.aten.max_pool3d_with_indices(x, kernel, stride, padding, (1, 1, 1), ceil)[1]
    back = torch.ops.aten.max_pool3d_with_indices_backward
    made: Tensor = back(grad, x, kernel, stride, padding, (1, 1, 1), ceil, places, **_into(out))
    return made


def adaptive_max_pool2d_backward(grad: Tensor, x: Tensor, size: Any, out: Tensor | None = None) -> Tensor:
    """The gradient kernel of adaptive_max_pool2d at the places that the forward chose."""
    places = torch.ops.aten.adaptive_max_pool2d(x, size)[1]
    made: Tensor = torch.ops.aten.adaptive_max_pool2d_backward(grad, x, places, **_into(out))
    return made


def batch_norm_with_update(x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, *rest: float) -> Triple:
    """The training kernel of batch_norm that writes its running statistics, with them (each run gets copies)."""
    made = torch.ops.aten._batch_norm_with_update(x, weight, bias, mean, var, *rest)
    return made[0], mean, var


def nll_loss2d_backward(grad: Tensor, x: Tensor, *rest: Any, out: Tensor | None = None) -> Tensor:
    """The gradient kernel of nll_loss over images; the CPU takes only dense operands."""
    made: Tensor = torch.ops.aten.nll_loss2d_backward(grad, x.contiguous(), *rest, **_into(out))
    return made


def weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x @ (weight * scales[:, None]).T in one kernel; as that formula on the CPU, whose kernel ends the process on operands
    that do not start at an aligned address (torch 2.13)."""
    if x.device.type == "cpu":
        wide = x.double() @ (weight.double() * scales.double()[:, None]).T
        return wide.to(x.dtype)
    return torch._weight_int8pack_mm(x.contiguous(), weight.contiguous(), scales.contiguous())


# ------------------------------------------------ steps of optimizers: what they wrote to (copies), as their results

Group = tuple[Tensor, ...]


def _dense(group: Group) -> Group:
    """Dense operands: torch's fused kernels walk memory in order, and the CPU's does not check it (torch 2.13)."""
    return tuple(t.contiguous() for t in group)


def _adam_step(
    kernel: Any, params: Group, grads: Group, first: Group, second: Group, most: Group, scale: Any, found: Any, **named: Any
) -> tuple[Group, ...]:
    at = named.pop("step")
    steps = [torch.tensor(at, device=p.device) for p in params]
    params, grads, first, second, most = map(_dense, (params, grads, first, second, most))
    kernel(params, grads, first, second, most, steps, eps=2.0**-20, grad_scale=scale, found_inf=found, **named)
    return params, first, second, most


def fused_adam(*args: Any, **named: Any) -> tuple[Group, ...]:
    """Parameters and both moments (and their maxima) after one step of the fused Adam kernel."""
    return _adam_step(torch._fused_adam_, *args, **named)


def fused_adamw(*args: Any, **named: Any) -> tuple[Group, ...]:
    """The same of the fused AdamW kernel."""
    return _adam_step(torch._fused_adamw_, *args, **named)


def fused_sgd(params: Group, grads: Group, buffers: Group, scale: Any, found: Any, **named: Any) -> tuple[Group, ...]:
    """Parameters and momentum after one step of the fused SGD kernel."""
    params, grads, buffers = map(_dense, (params, grads, buffers))
    torch._fused_sgd_(params, grads, buffers, grad_scale=scale, found_inf=found, **named)
    return params, buffers


def amp_unscale(grads: Group, found: Tensor, inverse: Tensor) -> tuple[Any, ...]:
    """Gradients times the inverse scale, and whether one of them was not finite."""
    torch._amp_foreach_non_finite_check_and_unscale_(list(grads), found, inverse)
    return grads, found


def amp_update_scale(scale: Tensor, tracker: Tensor, found: Tensor, *factors: Any) -> tuple[Tensor, Tensor]:
    """The scale of a gradient scaler and its growth tracker after an update."""
    torch._amp_update_scale_(scale, tracker, found, *factors)
    return scale, tracker


def _stepped(name: str) -> Any:
    def run(params: Group, grads: tuple[Group, ...], **named: Any) -> Group:
        own = [p.detach().requires_grad_() for p in params]
        optimizer = getattr(torch.optim, name)(own, lr=0.125, **named)
        for step in grads:
            for p, g in zip(own, step):
                p.grad = g.detach().clone()
            optimizer.step()
        return tuple(p.detach() for p in own)

    return run


optim_SGD, optim_Adam, optim_AdamW, optim_NAdam = map(_stepped, ("SGD", "Adam", "AdamW", "NAdam"))
optim_RAdam, optim_Adamax, optim_Adagrad, optim_Adadelta = map(_stepped, ("RAdam", "Adamax", "Adagrad", "Adadelta"))
optim_RMSprop, optim_Rprop, optim_ASGD = map(_stepped, ("RMSprop", "Rprop", "ASGD"))
