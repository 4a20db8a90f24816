"""Composite kernels computed differently: wider inside and rounded once, or by another valid formula in float32 with functions
within the device's ULP bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.devices import Call, Fault
from parity.devices.sim.honest.noise import RANGES, computing, flushed, promoted
from parity.devices.sim.honest.order import product, total
from parity.devices.sim.honest.rerun import (
    ALL_IN_DOUBLE,
    HALVES,
    ROUNDED,
    arithmetic,
    finite_alike,
    honest,
    in_range,
    mapped,
    narrowed,
    once,
    pick,
    rerun,
    rounding,
    rounds,
    stretch,
    to_float32,
    unlike,
    widened,
)
from parity.devices.sim.honest.rounding import bounds, device_of, flushed_dtypes, noisy, note
from parity.devices.sim.memory import to_host, to_sim

# Kernels that may round once, with everything inside wider. Left out: functions that depend on the dtype (nextafter,
# frexp), exact ones, and nearest interpolation, whose float32 coordinates are part of its definition.
ONCE = (
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward",
    "_cdist_backward", "_cdist_forward", "_cholesky_solve_helper", "_ctc_loss", "_ctc_loss_backward", "_embedding_bag",
    "_embedding_bag_backward", "_embedding_bag_forward_only", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "_lstm_mps",
    "_pdist_backward", "_pdist_forward", "_prelu_kernel", "_prelu_kernel_backward", "_thnn_fused_gru_cell",
    "_thnn_fused_gru_cell_backward", "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl", "_upsample_bicubic2d_aa",
    "_upsample_bicubic2d_aa_backward", "_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward", "angle", "avg_pool2d",
    "avg_pool2d_backward", "avg_pool3d", "avg_pool3d_backward", "binary_cross_entropy", "binary_cross_entropy_backward",
    "celu", "cholesky_inverse", "col2im", "digamma", "elu", "elu_backward", "erfinv", "gelu_backward", "glu", "glu_backward",
    "glu_jvp", "grid_sampler_2d", "grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward", "hardsigmoid",
    "hardsigmoid_backward", "hardswish", "hardswish_backward", "huber_loss", "huber_loss_backward", "hypot", "i0", "igamma",
    "igammac", "leaky_relu", "leaky_relu_backward", "lgamma", "linalg_cholesky_ex", "linalg_householder_product",
    "linalg_inv_ex", "linalg_lstsq", "linalg_lu_solve", "linalg_matrix_exp", "linalg_solve_triangular", "linspace",
    "log_sigmoid_backward", "logaddexp", "logaddexp2", "logit", "logit_backward", "logspace", "lstm_mps_backward",
    "mish_backward", "mse_loss", "mse_loss_backward", "multi_margin_loss", "multi_margin_loss_backward",
    "multilabel_margin_loss_backward", "multilabel_margin_loss_forward", "mvlgamma", "native_batch_norm_backward",
    "native_group_norm", "native_group_norm_backward", "native_layer_norm_backward", "nll_loss2d_backward",
    "nll_loss2d_forward", "nll_loss_backward", "nll_loss_forward", "polar", "polygamma", "reflection_pad1d_backward",
    "reflection_pad2d_backward", "reflection_pad3d_backward", "renorm", "replication_pad1d_backward",
    "replication_pad2d_backward", "replication_pad3d_backward", "sigmoid_backward", "silu_backward", "sinc", "smooth_l1_loss",
    "smooth_l1_loss_backward", "softplus_backward", "softshrink", "special_airy_ai", "special_bessel_j0",
    "special_bessel_j1", "special_bessel_y0", "special_bessel_y1", "special_chebyshev_polynomial_t",
    "special_chebyshev_polynomial_u", "special_entr", "special_erfcx", "special_hermite_polynomial_h",
    "special_hermite_polynomial_he", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr",
    "special_modified_bessel_i0", "special_modified_bessel_i1", "special_modified_bessel_k0", "special_modified_bessel_k1",
    "special_ndtri", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0", "special_xlog1py", "special_zeta", "tanh_backward", "unfold_backward",
    "upsample_bicubic2d", "upsample_bicubic2d_backward", "upsample_bilinear2d", "upsample_bilinear2d_backward",
    "upsample_linear1d", "upsample_linear1d_backward", "upsample_trilinear3d", "upsample_trilinear3d_backward", "xlogy",
)  # fmt: skip
# Those of them that are functions. In half types Metal's are off by up to 1 ULP (Metal Shading Language specification,
# chapter 8), and a library's may be, too. Without lgamma and its derivatives, which other kernels sum.
HALF_FUNCTIONS = (
    "erfinv", "hypot", "i0", "igamma", "igammac", "logaddexp", "logaddexp2", "logit", "sinc", "special_entr", "special_erfcx",
    "special_i0e", "special_i1", "special_i1e", "special_log_ndtr", "special_ndtri", "special_xlog1py", "xlogy",
)  # fmt: skip
HALF_ULP = 1.0
FUSED = ("addcdiv", "addcmul", "lerp", "linalg_cross")
FORMULAS = ("gelu", "log_sigmoid_forward", "mish", "sigmoid", "silu", "softplus")
SOFTMAX = ("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data")


def _once(call: Call, plain: Any) -> Any:
    if call.op.startswith("grid_sampler") and call.args[-3 if "backward" not in call.op else -4] == 1:
        return None  # nearest interpolation depends on the rounded coordinates
    if call.op.startswith("_embedding_bag") and "backward" not in call.op and call.args[7:8] == [True]:
        return None  # in float64 torch 2.13 reads on after the last offset
    if call.op.startswith(("_cdist", "_pdist")) and any(isinstance(a, float) and a == math.inf for a in call.args):
        return None  # the gradient asks which difference equals the distance: on a device, both are rounded alike
    if call.op.partition(".")[0].rstrip("_") in HALF_FUNCTIONS and plain.dtype in HALVES:
        return unlike(plain, lambda: once(call, plain), lambda: _within(call, plain))
    return once(call, plain)


def _within(call: Call, plain: Tensor) -> Tensor:
    """A half-precision function within its ULP bound."""
    return noisy(rerun(call, ALL_IN_DOUBLE, promoted(call, computing(call, plain.dtype))), plain.dtype, HALF_ULP)


# -------------------------------------------------------------------------------------- fused multiply-adds


def _fused(call: Call, plain: Any) -> Any:
    """A fused multiply-add: the last product is not rounded before the sum; earlier products are."""
    base = call.op.partition(".")[0].rstrip("_")
    if plain.dtype not in ROUNDED or plain.is_complex() or pick(call, 4) == 3:
        return _whole_in_result(call, plain)
    near = computing(call, plain.dtype)
    args = [t.to(plain.dtype).to(near) if isinstance(t, Tensor) and t.dtype not in ROUNDED else t for t in call.args]
    a = [t.to(torch.float64) if isinstance(t, Tensor) else t for t in args]
    if base in ("addcmul", "addcdiv"):
        value = call.kwargs.get("value", 1)
        value = to_float32(float(value))
        left = _f32(value * a[1])
        y = a[0] + (left * a[2] if base == "addcmul" else left / a[2])
    elif base == "lerp":
        weight = a[2] if isinstance(a[2], Tensor) else torch.tensor(to_float32(float(a[2])), dtype=torch.float64)
        way = _f32(a[1] - a[0])
        y = torch.where(weight.abs() < 0.5, a[0] + weight * way, a[1] - way * _f32(1 - weight))
    else:
        dim = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else -1)
        shape = np.broadcast_shapes(tuple(a[0].shape), tuple(a[1].shape))
        p, q = a[0].expand(shape), a[1].expand(shape)
        p1, p2 = p.roll(-1, dim), p.roll(-2, dim)
        q1, q2 = q.roll(-1, dim), q.roll(-2, dim)
        y = p1 * q2 - _f32(p2 * q1)
    return y.to(torch.float32).to(plain.dtype)


def _whole_in_result(call: Call, plain: Any) -> Any:
    """`once`, with integers first rounded to the dtype of the result."""
    integers = () if plain.is_complex() else [t for t in call.operands if t.dtype not in ROUNDED]
    cast = {id(t): t.to(plain.dtype).to(torch.float64) for t in integers}
    return narrowed(rerun(call, arithmetic(call), cast or promoted(call, computing(call, plain.dtype))), plain, rounding(call))


def _f32(x: Tensor) -> Tensor:
    return x.to(torch.float32).to(torch.float64)


# ------------------------------------------------------------------------------------------------------- other formulas


class Library:
    """Functions in float32, within the ULP bounds of the device of a call."""

    def __init__(self, call: Call) -> None:
        self._bounds = bounds(device_of(call))

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """torch's function of that name, within its bound."""
        truth = getattr(torch, name)(x.to(torch.float64))
        limits = RANGES.get(name, (-math.inf, math.inf))
        return noisy(truth, torch.float32, self._bounds.of(name, torch.float32), limits)


def _sigmoid(f: Library, x: Tensor, call: Call) -> Tensor:
    return 1 / (1 + f("exp", -x))


def _silu(f: Library, x: Tensor, call: Call) -> Tensor:
    return x / (1 + f("exp", -x))


def _gelu(f: Library, x: Tensor, call: Call) -> Tensor:
    if call.kwargs.get("approximate", "none") == "tanh":
        return 0.5 * x * (1 + f("tanh", 0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return x * 0.5 * (1 + f("erf", x * 0.7071067811865476))


def _softplus(f: Library, x: Tensor, call: Call) -> Tensor:
    beta, threshold = (*call.args[1:], *(1, 20)[len(call.args) - 1 :])[:2]
    return torch.where(x * beta > threshold, x, f("log1p", f("exp", x * beta)) / beta)


def _mish(f: Library, x: Tensor, call: Call) -> Tensor:
    return x * f("tanh", f("log1p", f("exp", x)))


def _log_sigmoid(f: Library, x: Tensor, call: Call) -> Tensor:
    return x.clamp(max=0) - f("log1p", f("exp", -x.abs()))


WRITTEN: Mapping[str, Callable[[Library, Tensor, Call], Tensor]] = {
    "gelu": _gelu,
    "log_sigmoid_forward": _log_sigmoid,
    "mish": _mish,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "softplus": _softplus,
}


def _softmax(call: Call, plain: Tensor) -> Any:
    """Powers of 2 after multiplying by log2(e), as attention kernels compute it, or powers of e; sums reordered."""
    f, base, way = Library(call), call.op.partition(".")[0], pick(call, 3)
    if way == 2 or not call.args[0].dim():
        return once(call, plain)
    if "backward" in base:
        g, y, dim = call.args[0].to(torch.float32), call.args[1].to(torch.float32), call.args[2]
        if base.startswith("_log"):
            sums = total(g.movedim(dim, 0), way).unsqueeze(dim)
            return (g - f("exp", y) * sums).to(plain.dtype)
        sums = total((g * y).movedim(dim, 0), way).unsqueeze(dim)
        return (y * (g - sums)).to(plain.dtype)
    x, dim = call.args[0].to(torch.float32), call.args[1]
    off = x - x.amax(dim, keepdim=True)
    e = f("exp2", off * 1.4426950408889634) if way else f("exp", off)
    sums = total(e.movedim(dim, 0), way).unsqueeze(dim)
    return (off - f("log", sums) if base == "_log_softmax" else e / sums).to(plain.dtype)


def _layer_norm(call: Call, plain: Any) -> Any:
    """The mean, then the squared differences, then scale and shift with a fused multiply-add."""
    x, shape, weight, bias, eps = call.args[:5]
    f, way = Library(call), pick(call, 3)
    rows = math.prod(x.shape[: x.dim() - len(shape)])
    if way == 2 or not x.numel():
        return once(call, plain)
    flat = x.to(torch.float32).reshape(rows, -1).t()
    n = flat.shape[0]
    mean = total(flat, way) / n
    off = flat - mean
    rstd = f("rsqrt", total(off * off, way) / n + to_float32(eps))
    y = (off * rstd).t().reshape(x.shape)
    w = torch.ones(tuple(shape)) if weight is None else weight.to(torch.float32)
    b = torch.zeros(tuple(shape)) if bias is None else bias.to(torch.float32)
    y = (y.to(torch.float64) * w.to(torch.float64) + b).to(torch.float32)
    return (
        y.to(plain[0].dtype),
        mean.reshape(plain[1].shape).to(plain[1].dtype),
        rstd.reshape(plain[2].shape).to(plain[2].dtype),
    )


def _batch_norm(call: Call) -> Any:
    """Everything inside is wider, including the running statistics, which the kernel updates although its schema does not say
    so."""
    dtypes = arithmetic(call)
    running = [t for t in call.args[3:5] if t is not None]
    plain = rerun(call, swap={id(t): t.clone() for t in running})
    wide = {id(t): widened(t, dtypes.get(t.dtype, t.dtype)) for t in running}
    other = mapped(in_range, narrowed(rerun(call, dtypes, wide), plain), plain)
    for t in running:
        if t.numel():
            stretch(t).copy_(stretch(wide[id(t)]))
    note("batch-norm", other, plain)
    return other


BLOCK, BLOCKS = 4, 16  # keys per block, and most blocks of a row


class _Valued(torch.autograd.Function):
    """The value of one tensor with the derivatives of another."""

    @staticmethod
    def forward(ctx: Any, derived: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None

    @staticmethod
    def jvp(ctx: Any, derived: Tensor, value: Any) -> Tensor:
        return derived.clone()


_valued: Any = _Valued.apply  # untyped in torch


def _attention(call: Call) -> Any:
    """Attention over blocks of keys, with the gradients of the device's own softmax: higher-order gradients through the running
    maximum would cancel differently from any real kernel's."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, call.args)) | call.kwargs
    q = given["query"]
    plain = call.run()
    other = given.get("dropout_p") or given.get("enable_gqa") or q.dtype not in ROUNDED or q.is_nested
    if other or torch.is_autocast_enabled(q.device.type):  # under autocast the op decides what it casts
        return plain
    host = {n: to_host(t.detach()) for n in names[:4] if isinstance(t := given.get(n), Tensor)}
    operands = [host[n] for n in names[:3]]
    if not all(t.numel() and bool(torch.isfinite(t).all()) for t in operands):
        return plain
    scale = 1.0 / math.sqrt(q.shape[-1]) if given.get("scale") is None else given["scale"]
    mask = host.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(q.shape[-2], operands[1].shape[-2], dtype=torch.bool).tril()
    with torch.no_grad():
        usual = to_host(plain.detach())
        dtypes = flushed_dtypes(device_of(call))
        left, k, v = (flushed(t.to(torch.float32), dtypes) for t in operands)
        y = _blocks(Library(call), left * scale, k, v, mask).to(q.dtype)
        y = finite_alike(y.reshape(usual.shape), usual)
        note("attention", y, usual)
    return _valued(plain, to_sim(y, q.get_device()))


def _blocks(f: Library, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """Attention of scaled queries with a running maximum (Dao and others, arXiv 2205.14135), on the host: passed through the
    device's kernels one by one, its steps take ten times as long."""
    top: Any = None
    sums: Any = None
    acc: Any = None
    block = max(BLOCK, k.shape[-2] // BLOCKS)
    for at in range(0, k.shape[-2], block):
        some = slice(at, min(at + block, k.shape[-2]))
        scores = product(q, k[..., some, :].transpose(-1, -2), 1)
        if mask is not None:
            part = mask[..., some] if mask.shape[-1] > 1 else mask
            scores = scores.masked_fill(~part, -math.inf) if part.dtype == torch.bool else scores + part.to(torch.float32)
        high = scores.amax(-1, keepdim=True)
        peak = high if top is None else torch.maximum(top, high)
        still = peak.masked_fill(peak == -math.inf, 0.0)
        weights = f("exp", scores - still)
        part_sum = weights @ v[..., some, :]
        if acc is None:
            sums, acc = weights.sum(-1, keepdim=True), part_sum
        else:
            shrink = f("exp", top - still)
            sums, acc = sums * shrink + weights.sum(-1, keepdim=True), acc * shrink + part_sum
        top = peak
    y: Tensor = acc / sums.masked_fill(sums == 0, 1.0)
    return y


def _formula(call: Call, plain: Any) -> Any:
    x = call.args[0]
    more = (lambda: _within(call, plain),) if isinstance(plain, Tensor) and plain.dtype in HALVES else ()
    wrong = call.op.startswith("gelu") and bool(x.isinf().any())  # in float32 torch 2.13 gives NaN for Inf on the CPU
    if not wrong and (x.is_complex() or pick(call, 3) == 2):
        return unlike(plain, lambda: once(call, plain), *more)
    y = WRITTEN[call.op.partition(".")[0].rstrip("_")](Library(call), x.to(torch.float32), call)
    answer = y.to(plain.dtype) if isinstance(plain, Tensor) else (y.to(plain[0].dtype), *plain[1:])
    return answer if wrong else unlike(plain, lambda: answer, lambda: once(call, plain), *more)


def faults() -> tuple[Fault, ...]:
    """All faults of this kind."""
    return (
        honest("rounded-once", ONCE, _once, title="everything inside wider, one rounding at the end"),
        Fault(
            "honest-batch-norm", ("native_batch_norm",), _batch_norm, rounds, title="everything inside wider", remembers=False
        ),
        Fault(
            "honest-attention",
            ("scaled_dot_product_attention",),
            _attention,
            level="function",
            title="attention over blocks",
            remembers=False,
        ),
        honest(
            "fused",
            FUSED,
            lambda c, p: unlike(p, lambda: _fused(c, p), lambda: _whole_in_result(c, p)),
            title="the product is not rounded before the sum",
        ),
        honest("formula", FORMULAS, _formula, title="another formula in float32"),
        honest(
            "formula-softmax",
            SOFTMAX,
            lambda c, p: unlike(p, lambda: _softmax(c, p), lambda: once(c, p)),
            title="another formula in float32",
        ),
        honest(
            "formula-layer-norm",
            ("native_layer_norm",),
            lambda c, p: unlike(p, lambda: _layer_norm(c, p), lambda: once(c, p)),
            title="two passes in float32",
        ),
    )
