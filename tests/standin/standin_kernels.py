"""What torch has for MPS alone, over the CPU's tensors: operators that no other device has, and what `#ifdef USE_MPS` adds to
code that all devices share (torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

aten = torch.ops.aten
_keys: Any = torch._C.DispatchKey
MIXED = "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!"


def register(kernels: Any, above: Any) -> None:
    """kernels: a library for the key MPS. above: one for AutogradMPS."""
    for name, kernel in WHOLE.items():
        kernels.impl(name, _on_host(kernel))
    for name, kernel in COMPOSED.items():
        kernels.impl(name, kernel)
    for name, kernel in BRANCHES.items():
        kernels.impl(name, kernel)  # in inference mode there is no autograd key
        above.impl(name, kernel)


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel for MPS from a function of the CPU's tensors. Raises RuntimeError for an operand that lies on the CPU."""
    to: Any = torch.ops.standin

    def near(x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_cpu and x.dim():
            raise RuntimeError(MIXED)
        return to.host(x) if isinstance(x, Tensor) else x

    def far(x: Any) -> Any:
        return to.device(x) if isinstance(x, Tensor) else x

    def kernel(*args: Any, **kwargs: Any) -> Any:
        near_args, near_kwargs = tree_map(near, (args, kwargs))
        return tree_map(far, function(*near_args, **near_kwargs))

    return kernel


# ---------------------------------------------------------------------------------------- operators that exist on MPS alone


def convolution(x: Tensor, w: Tensor, b: Tensor | None, padding: Any, stride: Any, dilation: Any, groups: int) -> Any:
    """aten::_mps_convolution."""
    return aten.convolution(x, w, b, stride, padding, dilation, False, [0] * len(padding), groups)


def convolution_backward(
    x: Tensor, g: Tensor, w: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, mask: Sequence[bool]
) -> Any:
    """aten::mps_convolution_backward."""
    none = [0] * len(padding)
    return aten.convolution_backward(g, x, w, None, stride, padding, dilation, False, none, groups, mask)


def transposed(x: Tensor, w: Tensor, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int) -> Any:
    """aten::_mps_convolution_transpose."""
    return aten.convolution(x, w, None, stride, padding, dilation, True, output_padding, groups)


def transposed_backward(
    x: Tensor, g: Tensor, w: Tensor, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, mask: Any
) -> Any:
    """aten::mps_convolution_transpose_backward."""
    asked = [*mask, False]
    return aten.convolution_backward(g, x, w, None, stride, padding, dilation, True, output_padding, groups, asked)[:2]


def linear_backward(x: Tensor, g: Tensor, w: Tensor, mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """aten::linear_backward."""
    rows = x.shape[:-1].numel()
    w2 = w if w.dim() == 2 else w[None]
    flat = g.reshape(rows, w2.shape[0])
    weights = flat.t().mm(x.reshape(rows, x.shape[-1]).conj()).reshape(w.shape) if mask[1] else None
    inputs = flat.mm(w2.conj()).reshape(x.shape) if mask[0] else None
    return inputs, weights, flat.sum(0).reshape(w.shape[:-1]) if mask[2] else None


def max_pool2d_backward(g: Tensor, x: Tensor, k: Any, s: Any = (), p: Any = 0, d: Any = 1, ceil: bool = False) -> Any:
    """aten::max_pool2d_backward."""
    where = aten.max_pool2d_with_indices(x, k, s, p, d, ceil)[1]
    return aten.max_pool2d_with_indices_backward(g, x, k, s, p, d, ceil, where)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, p: float = 0.0, causal: bool = False, drop: Any = None, **named: Any
) -> Any:
    """aten::_scaled_dot_product_attention_math_for_mps."""
    return tuple(aten._scaled_dot_product_attention_math(q, k, v, mask, p, causal, drop, **named))


def lstm(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *config: Any) -> tuple[Tensor, ...]:
    """aten::_lstm_mps; the first of the three workspaces keeps the seed that dropout is drawn by."""
    seed = (
        torch.empty((), dtype=torch.int64, device="mps").random_() if config[2] and config[3] else torch.zeros((), device="mps")
    )
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(int(seed))
        out, hy, cy = aten.lstm.input(x, hx, params, *config)
    return out, hy, cy, torch.tensor(int(seed)), x.new_empty(1), x.new_empty(1)


def lstm_backward(
    gy: Any, ghy: Any, gcy: Any, z: Tensor, cells: Tensor, x: Tensor, fwd: Tensor, hx: Any, params: Any, *config: Any
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """aten::lstm_mps_backward, by differentiating the CPU's own LSTM."""
    include: Any = torch._C._IncludeDispatchKeyGuard  # a kernel stands below autograd
    with torch.random.fork_rng(devices=()), torch.enable_grad(), torch.inference_mode(False), include(_keys.AutogradCPU):
        torch.default_generator.manual_seed(int(z))
        leaves = [t.detach().clone().requires_grad_() for t in (x, *hx, *params)]
        after = 1 + len(hx)
        out = aten.lstm.input(leaves[0], leaves[1:after], leaves[after:], *config)
        pairs = [(o, g) for o, g in zip(out, (gy, ghy, gcy)) if g is not None]
        grads = torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs], materialize_grads=True)
    return grads[0], list(grads[1:after]), list(grads[after:])


WHOLE: dict[str, Callable[..., Any]] = {
    "_lstm_mps": lstm,
    "_mps_convolution": convolution,
    "_mps_convolution_transpose": transposed,
    "_scaled_dot_product_attention_math_for_mps": attention,
    "linear_backward": linear_backward,
    "lstm_mps_backward": lstm_backward,
    "max_pool2d_backward": max_pool2d_backward,
    "mps_convolution_backward": convolution_backward,
    "mps_convolution_transpose_backward": transposed_backward,
}

# --------------------------------------------------------------------------------- what `#ifdef USE_MPS` adds to shared code


def choose_convolution(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    turned: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """`_convolution` of Convolution.cpp: ConvBackend::Mps and ConvBackend::MpsTranspose."""
    if not turned:
        return aten._mps_convolution(x, w, b, padding, stride, dilation, groups)
    out = aten._mps_convolution_transpose(x, w, padding, output_padding, stride, dilation, groups)
    return out if b is None else out + b.reshape(1, -1, *[1] * (out.dim() - 2))


def choose_convolution_backward(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    turned: bool,
    output_padding: Any,
    groups: int,
    mask: Any,
) -> Any:
    """`convolution_backward` of Convolution.cpp."""
    if not turned:
        return aten.mps_convolution_backward(x, g, w, padding, stride, dilation, groups, mask)
    grads = aten.mps_convolution_transpose_backward(x, g, w, padding, output_padding, stride, dilation, groups, mask[:2])
    return *grads, g.sum([0, *range(2, g.dim())]) if mask[2] else None


def choose_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, p: float = 0.0, causal: bool = False, **named: Any
) -> Any:
    """`scaled_dot_product_attention` of attention.cpp, which does not ask whether the mask needs a gradient."""
    if not all(t.numel() for t in (q, k, v)):
        empty = aten.scaled_dot_product_attention.default  # torch's own way, as far as it needs no kernel
        return empty._op_dk(_keys.CompositeImplicitAutograd, q, k, v, mask, p, causal, **named)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), -torch.inf)
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    composed, whole = aten._scaled_dot_product_attention_math, aten._scaled_dot_product_attention_math_for_mps
    chosen = composed if p != 0.0 or wanted else whole
    return chosen(q, k, v, mask, p, causal, None, **named)[0]


def choose_lstm(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *config: Any) -> Any:
    """`lstm` of RNN.cpp."""
    return aten._lstm_mps(x, hx, params, *config)[:3]


def choose_rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
    """`rms_norm` of layer_norm.cpp."""
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight))
    if weight is not None and not wanted:
        return aten._fused_rms_norm(x.contiguous(), shape, weight, eps)[0]
    return aten._fused_rms_norm.default._op_dk(_keys.CompositeImplicitAutograd, x, shape, weight, eps)[0]


def ldexp(x: Tensor, other: Tensor) -> Tensor:
    """`ldexp` of BinaryOps.cpp for a device without a kernel of its own. torch on Linux raises where MPS is asked for one."""
    return torch.mul(x, _power_of_two(x, other))


def ldexp_out(x: Tensor, other: Tensor, *, out: Tensor) -> Tensor:
    """`ldexp_out`; see `ldexp`."""
    return torch.mul(x, _power_of_two(x, other), out=out)


def _power_of_two(x: Tensor, other: Tensor) -> Tensor:
    if x.dtype is torch.float32 or not (x.is_floating_point() or x.is_complex()):
        return torch.pow(2.0, other)
    return torch.full((), 2.0, dtype=x.dtype, device=x.device).pow(other)


def conj_physical_(x: Tensor) -> Tensor:
    """`conj_physical_` of UnaryOps.cpp. It asks for a kernel that MPS has under `conj_physical.out` alone."""
    if not x.is_complex():
        return x
    raise RuntimeError("DispatchStub: missing kernel for mps")


COMPOSED: dict[str, Callable[..., Any]] = {  # below autograd, which has their derivatives
    "conj_physical_": conj_physical_,
    "ldexp.Tensor": ldexp,
    "ldexp.out": ldexp_out,
}
BRANCHES: dict[str, Callable[..., Any]] = {
    "convolution_backward_overrideable": choose_convolution_backward,
    "convolution_overrideable": choose_convolution,
    "lstm.input": choose_lstm,
    "rms_norm": choose_rms_norm,
    "scaled_dot_product_attention": choose_attention,
}
