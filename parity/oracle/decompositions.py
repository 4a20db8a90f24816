"""Formulas of kernels that torch does not decompose itself.

They are windows, antialiased resampling, the gradients of all resampling, and attention (whose gradient is a difference that
cancels where one key takes all the weight). Resampling kernels round numbers derived from coordinates (weights, and differences
of weights that cancel), forward and backward alike. The gradient is computed as the adjoint of the forward's formula, step by
step, so that its steps can be rounded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import enable_reentrant_dispatch

# Resampling of a regular grid: (gradient, output size, input size, more) returns the operand's gradient.
LINEAR = """upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa"""
# Resampling at given places: (gradient, operand, places, more, which gradients) returns both gradients.
AT_PLACES = "grid_sampler_2d grid_sampler_3d"
MASKED = 1e150  # larger numbers are those that torch masks others with: logcumsumexp's gradient, with the lowest of the dtype

Formula = Callable[..., Any]
# Formulas mark intermediate results that half-type kernels store in the dtype with this operator, which changes no number.
stored = torch.ops.aten.lift_fresh_copy.default


def _triangle(x: Tensor) -> Tensor:
    return torch.clamp(1.0 - x.abs(), min=0.0)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    """Keys' cubic convolution (IEEE Trans. ASSP 29 (1981) 1153), with -0.5, as torch uses for antialiasing."""
    x = x.abs()
    near, far = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0, (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0 * x))


def _weights(size: int, out: int, corners: bool, scale: float | None, bump: Formula, dtype: torch.dtype) -> Tensor:
    """Antialiasing weights [out, size] of one dimension (the formula of Pillow's resize, which torch follows).

    Each row is a normalised bump about the centre of one output; when shrinking, it is scaled to the width of an output.
    """
    if corners:
        step = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        step = 1.0 / scale if scale is not None and scale > 0.0 else size / out
    centres = (torch.arange(out, dtype=dtype) + 0.5) * step
    places = torch.arange(size, dtype=dtype) + 0.5
    weights: Tensor = bump((places - centres[:, None]) * (1.0 / step if step >= 1.0 else 1.0))
    return weights / weights.sum(1, keepdim=True)


def _antialiased(bump: Formula) -> Formula:
    def formula(
        x: Tensor, output_size: Any, align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Tensor:
        rows, columns = (
            _weights(x.shape[d], output_size[d], align_corners, scale, bump, x.dtype)
            for d, scale in ((-2, scales_h), (-1, scales_w))
        )
        return rows @ (x @ columns.mT)

    return formula


def antialiased() -> dict[Any, Formula]:
    """Formulas of the antialiased kernels, by overload."""
    ways = {"_upsample_bilinear2d_aa": _triangle, "_upsample_bicubic2d_aa": _cubic}
    return {kernel: _antialiased(bump) for name, bump in ways.items() if (kernel := _overload(name)) is not None}


def adjoints(forward: Mapping[Any, Formula]) -> dict[Any, Formula]:
    """Formulas of the gradient kernels, by overload, for every one whose forward has a formula.

    They must be called inside a dispatch mode, which sees their steps.
    """
    formulas: dict[Any, Formula] = {}
    for names, make in ((LINEAR, _linear), (AT_PLACES, _at_places)):
        for name in names.split():
            formula = forward.get(_overload(name))
            kernel = _overload(f"{name}_backward")
            if formula is not None and kernel is not None:
                formulas[kernel] = make(formula)
    return formulas


def _overload(name: str) -> Any:
    packet = getattr(torch.ops.aten, name, None)
    return getattr(packet, "default", None)


def _linear(formula: Formula) -> Formula:
    def gradient(grad: Tensor, output_size: Any, input_size: Any, *more: Any, **options: Any) -> Tensor:
        with enable_reentrant_dispatch(), torch.enable_grad():
            x = torch.zeros(input_size, dtype=grad.dtype, requires_grad=True)
            result: Tensor = torch.autograd.grad(formula(x, output_size, *more, **options), x, grad.detach())[0]
        return result

    return gradient


def _at_places(formula: Formula) -> Formula:
    def gradients(grad: Tensor, x: Tensor, places: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
        with enable_reentrant_dispatch(), torch.enable_grad():
            leaves = x.detach().requires_grad_(), places.detach().requires_grad_()
            results = torch.autograd.grad(formula(*leaves, *more[:-1]), leaves, grad.detach(), allow_unused=True)
        one, two = (torch.zeros_like(leaf) if g is None else g for g, leaf in zip(results, leaves))
        return one, two

    return gradients


# --------------------------------------------------------------------------------------------------------------- softmax


def softmax() -> dict[Any, Formula]:
    """The formula of softmax's gradient, by overload.

    Kernels write the product of gradient and result to memory in the dtype before they add it up (torch's SoftMax.cu: `Tensor
    tmp = grad * output`).
    """
    kernel = _overload("_softmax_backward_data")
    return {} if kernel is None else {kernel: _softmax_backward}


def _softmax_backward(grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    product: Tensor = stored(grad * out)
    return product - out * product.sum(dim, keepdim=True)


# ------------------------------------------------------------------------------------------------ scans, places in a volume


def stepwise() -> dict[Any, Formula]:
    """Formulas, by overload, for kernels that round at every inner step, written out so that each step is rounded here too.

    logcumsumexp and cumprod add one term, or multiply by one factor, at every step. grid_sampler_3d first adds 1 to its
    coordinates: even a coordinate near 0 gets a rounding error as large as that of a number near 1. logsumexp and
    soft_margin_loss are several kernels.
    """
    aten = torch.ops.aten
    ways: dict[str, Formula] = {
        "_logcumsumexp": _scanned(aten._logcumsumexp),
        "logcumsumexp": _scanned(aten.logcumsumexp),
        "cumprod": _products,
        "grid_sampler_3d": _in_volume,
        "grid_sampler_3d_backward": _in_volume_backward,
        "logsumexp": _logsumexp,
        "soft_margin_loss": _soft_margin,
        "soft_margin_loss_backward": _soft_margin_backward,
    }
    return {kernel: formula for name, formula in ways.items() if (kernel := _overload(name)) is not None}


def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """Five kernels on every device, of which each hands on what the dtype holds."""
    if not x.numel():
        return torch.exp(x).sum(dim, keepdim).log()
    top = torch.amax(torch.real(x), dim, True)
    top = torch.where(top.abs() == math.inf, 0.0, top)
    total = stored(stored(torch.exp(stored(x - top))).sum(dim, keepdim))
    result: Tensor = stored(total.log()) + (top if keepdim else top.squeeze(dim))
    return result


def _margin_power(x: Tensor, target: Tensor) -> Tensor:
    product = x * target
    power: Tensor = stored(torch.exp(-torch.where(target.abs() == 1.0, product, stored(product))))  # else exact
    return power


def _soft_margin(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """Three kernels and more on every device, as `_logsumexp`."""
    loss = torch.log1p(_margin_power(x, target))
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


def _soft_margin_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    power = _margin_power(x, target)
    slope = stored(-target * power / (x.numel() if reduction == 1 else 1.0))
    result: Tensor = stored(slope / stored(1.0 + power)) * grad
    return result


def _scanned(scan: Formula) -> Formula:
    """The scan as the sum of its steps: the differences of neighbouring results, which are rounded separately."""

    def formula(x: Tensor, dim: int) -> Tensor:
        if not x.dim() or not x.numel():
            result: Tensor = scan(x, dim)
            return result
        to, before = scan(x, dim), scan(x, dim)
        finite = (to.abs() < MASKED) & (before.abs() < MASKED)
        last = torch.where(finite, before, 0.0).narrow(dim, 0, x.shape[dim] - 1)
        steps = torch.where(finite, to, 0.0) - torch.cat((torch.zeros_like(to.narrow(dim, 0, 1)), last), dim)
        # Infinite results have no steps; they are returned as the scan gives them. So are those of numbers that mask others.
        return torch.where(finite, steps.cumsum(dim), to)

    return formula


def _products(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Running products by doubling the length of runs (Hillis and Steele, CACM 29 (1986) 1170), in n log2(n) steps.

    torch's own formula (`torch._refs.cumprod`) makes a table of n^2 factors.
    """
    x = x if dtype is None else x.to(dtype)
    n = x.shape[dim] if x.dim() else 0
    apart = 1
    while apart < n:
        longer = x.narrow(dim, apart, n - apart) * x.narrow(dim, 0, n - apart)
        x, apart = torch.cat((x.narrow(dim, 0, apart), longer), dim), 2 * apart
    return x if apart > 1 else x.clone()


def _in_volume(x: Tensor, places: Tensor, *more: Any) -> Tensor:
    result: Tensor = torch.ops.aten.grid_sampler_3d(x, (places + 1.0) - 1.0, *more)
    return result


def _in_volume_backward(grad: Tensor, x: Tensor, places: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
    results: tuple[Tensor, Tensor] = torch.ops.aten.grid_sampler_3d_backward(grad, x, (places + 1.0) - 1.0, *more)
    return results


# ------------------------------------------------------------------------------------------------------------- attention


def windows() -> dict[Any, Formula]:
    """Formulas, by overload, for windows, which cancel near their ends. torch decomposes `hann_window` alone, from 2.13 on."""
    ways: dict[str, Formula] = {
        "hann_window": functools.partial(_cosine_window, alpha=0.5, beta=0.5),
        "hamming_window": functools.partial(_cosine_window, alpha=0.54, beta=0.46),
        "bartlett_window": _triangular_window,
    }
    packets = ((getattr(torch.ops.aten, name, None), formula) for name, formula in ways.items())
    return {getattr(p, kind): formula for p, formula in packets for kind in ("default", "periodic") if hasattr(p, kind)}


def _cosine_window(n: int, periodic: bool = True, *, alpha: float, beta: float, dtype: Any = None, **_: Any) -> Tensor:
    """alpha - beta cos(2 pi k / N) for k from 0 to n - 1; N is n if periodic, else n - 1."""
    if n < 2:
        return torch.ones(n, dtype=dtype)
    return alpha - beta * torch.cos(torch.arange(n, dtype=dtype) * (2.0 * math.pi / (n if periodic else n - 1)))


def _triangular_window(n: int, periodic: bool = True, *, dtype: Any = None, **_: Any) -> Tensor:
    """2 k / N up to the middle, and 2 - 2 k / N from there; k and N as in `_cosine_window`."""
    if n < 2:
        return torch.ones(n, dtype=dtype)
    whole = n if periodic else n - 1
    rising = torch.arange(n, dtype=dtype) * (2.0 / whole)
    middle = whole // 2 + 1
    return torch.cat((rising[:middle], 2.0 - rising[middle:]))


def attention() -> dict[Any, Formula]:
    """Formulas of the CPU's fused attention and its gradient, by overload."""
    ways: dict[str, Formula] = {
        "_scaled_dot_product_flash_attention_for_cpu": _attend,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attend_backward,
    }
    return {kernel: formula for name, formula in ways.items() if (kernel := _overload(name)) is not None}


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    scores = (q @ k.mT) * scale
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask


def _weights_of(scores: Tensor) -> Tensor:
    """softmax over the keys; 0 in a row where every key is masked.

    Not from the saved logarithm of the sum: for large scores its rounding would make the exponentials infinite.
    """
    none = scores.amax(-1, keepdim=True) == float("-inf")
    return scores.softmax(-1).masked_fill(none, 0.0)


def _scale(q: Tensor, scale: float | None) -> float:
    return float(q.shape[-1]) ** -0.5 if scale is None else scale


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    groups = q.shape[-3] // k.shape[-3]
    k, v = (t.repeat_interleave(groups, -3) if groups > 1 else t for t in (k, v))
    scores = _scores(q, k, causal, attn_mask, _scale(q, scale))
    return stored(_weights_of(scores)) @ v, scores.logsumexp(-1)  # tensor cores take both factors in the dtype


def _attend_backward(*args: Any, attn_mask: Tensor | None = None, scale: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attention: Dao and others, arXiv 2205.14135, appendix B.2."""
    grad, q, k, v, out, _, _, causal = args
    heads, groups = k.shape[-3], q.shape[-3] // k.shape[-3]
    k, v = (t.repeat_interleave(groups, -3) if groups > 1 else t for t in (k, v))
    s = _scale(q, scale)
    weights = _weights_of(_scores(q, k, causal, attn_mask, s))
    off = stored(weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) * s)
    back: tuple[Tensor, ...] = off.mT @ q, stored(weights).mT @ grad
    if groups > 1:
        back = tuple(t.reshape(*t.shape[:-3], heads, groups, *t.shape[-2:]).sum(-3) for t in back)
    return off @ k, back[0], back[1]
