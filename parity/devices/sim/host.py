"""Kernels that torch's CPU does not have, as formulas on host tensors: what MPS runs as one call, and fused RNN cells."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor

aten = torch.ops.aten
_COMPOSED: Any = torch._C.DispatchKey.CompositeImplicitAutograd


def linear_backward(x: Tensor, g: Tensor, w: Tensor, mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients of input, weight and bias of `linear`, as far as the mask asks for them. A weight without outputs of its own
    (1-d) is one row, and the result has no such dimension."""
    rows, w2 = math.prod(x.shape[:-1]), w.unsqueeze(0) if w.dim() == 1 else w
    g2, x2 = g.reshape(rows, w2.shape[0]), x.reshape(rows, x.shape[-1])
    gx = (g2 @ w2.conj()).reshape(x.shape) if mask[0] else None
    return gx, (g2.t() @ x2.conj()).reshape(w.shape) if mask[1] else None, g2.sum(0) if mask[2] else None


def tril_out(x: Tensor, diagonal: int = 0, *, out: Tensor) -> Tensor:
    """aten::tril.out. The CPU's own writes out of bounds where the batch dimensions of `out` cannot be merged (2.13)."""
    return _into(out, x.tril(diagonal))


def triu_out(x: Tensor, diagonal: int = 0, *, out: Tensor) -> Tensor:
    """aten::triu.out; see `tril_out`."""
    return _into(out, x.triu(diagonal))


def lu_unpack_out(*args: Any, **outs: Tensor) -> tuple[Tensor, ...]:
    """aten::lu_unpack.out (P, L and U), which takes the triangles; see `tril_out`."""
    return tuple(_into(outs[name], t) for name, t in zip("PLU", torch.lu_unpack(*args)))


def linalg_lu_out(x: Tensor, *, pivot: bool = True, **outs: Tensor) -> tuple[Tensor, ...]:
    """aten::linalg_lu.out (P, L and U), which takes the triangles; see `tril_out`."""
    return tuple(_into(outs[name], t) for name, t in zip("PLU", torch.linalg.lu(x, pivot=pivot)))


def _into(out: Tensor, result: Tensor) -> Tensor:
    """Write a result into a destination, which takes its shape where it has another. Raises where it cannot grow."""
    written: Tensor = aten.alias_copy.out(result, out=out)
    return written


def native_group_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes: Any) -> Any:
    """aten::native_group_norm. The CPU's own reads weight and bias as if they were contiguous, next to a strided one (2.13)."""
    return aten.native_group_norm.default(x, _dense(weight), _dense(bias), *sizes)


def native_group_norm_backward(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, *rest: Any) -> Any:
    """aten::native_group_norm_backward; see `native_group_norm`."""
    return aten.native_group_norm_backward.default(g, x, mean, rstd, _dense(weight), *rest)


def _dense(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


def max_pool2d_backward(g: Tensor, x: Tensor, k: Any, s: Any = (), p: Any = 0, d: Any = 1, ceil: bool = False) -> Tensor:
    """Gradient of `max_pool2d`, by way of the indices that it does not keep."""
    _, indices = aten.max_pool2d_with_indices.default(x, k, s, p, d, ceil)
    gradient: Tensor = aten.max_pool2d_with_indices_backward.default(g, x, k, s or k, p, d, ceil, indices)
    return gradient


def convolution_backward_overrideable(g: Tensor, x: Tensor, w: Tensor, *rest: Any) -> Any:
    """Gradients of input, weight and bias of a convolution."""
    *_, transposed, _, groups, _ = rest
    return aten.convolution_backward.default(g, x, w, [w.shape[1] * groups if transposed else w.shape[0]], *rest)


# ---------------------------------------------- fused cells: torch picks them for this device (formulas of RNN.cpp, RNN.cu)


def lstm_cell(ig: Tensor, hg: Tensor, cx: Tensor, ib: Tensor | None = None, hb: Tensor | None = None) -> tuple[Tensor, ...]:
    """aten::_thnn_fused_lstm_cell: hidden state, cell state, workspace of the four gates."""
    z = ig + hg
    if ib is not None and hb is not None:
        z = z + ib + hb
    i, f, g, o = z.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def lstm_cell_backward(
    gh: Tensor | None, gc: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, ...]:
    """aten::_thnn_fused_lstm_cell_backward_impl: gradients of the gates, the cell state, the bias."""
    i, f, g, o = workspace.chunk(4, 1)
    t = cy.tanh()
    gh = torch.zeros_like(cx) if gh is None else gh
    dc = gh * o * (1 - t * t) + (0 if gc is None else gc)
    gates = torch.cat((dc * g * i * (1 - i), dc * cx * f * (1 - f), dc * i * (1 - g * g), gh * t * o * (1 - o)), 1)
    return gates, dc * f, gates.sum(0) if has_bias else torch.empty(0)


def gru_cell(ig: Tensor, hg: Tensor, hx: Tensor, ib: Tensor | None = None, hb: Tensor | None = None) -> tuple[Tensor, ...]:
    """aten::_thnn_fused_gru_cell: hidden state, workspace."""
    if ib is not None and hb is not None:
        ig, hg = ig + ib, hg + hb
    ir, ii, new_i = ig.chunk(3, 1)
    hr, hi, new_h = hg.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (ii + hi).sigmoid()
    n = (new_i + r * new_h).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, new_h), 1)


def gru_cell_backward(gh: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    """aten::_thnn_fused_gru_cell_backward: gradients of both gate inputs, the hidden state, both biases."""
    r, z, n, hx, new_h = workspace.chunk(5, 1)
    dn = gh * (1 - z) * (1 - n * n)
    dz = gh * (hx - n) * z * (1 - z)
    dr = dn * new_h * r * (1 - r)
    gi, ghid = torch.cat((dr, dz, dn), 1), torch.cat((dr, dz, dn * r), 1)
    none = torch.empty(0)
    return gi, ghid, gh * z, gi.sum(0) if has_bias else none, ghid.sum(0) if has_bias else none


# ------------------------- one-call LSTM as on MPS: lstm.input -> _lstm_mps, whose derivative in torch is lstm_mps_backward


def lstm_input(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *config: Any) -> tuple[Tensor, Tensor, Tensor]:
    """aten::lstm.input on the autograd key, so that `_lstm_mps` is what autograd records."""
    out, hy, cy = aten._lstm_mps(x, list(hx), list(params), *config)[:3]
    return out, hy, cy


def lstm_mps(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *config: Any) -> tuple[Tensor, ...]:
    """aten::_lstm_mps. The backward computes anew: the first of the three workspaces keeps the stream of random numbers from
    which dropout is drawn, the others are empty."""
    stream = torch.get_rng_state() if config[2] else torch.empty(0)
    out, hy, cy = torch.lstm(x, list(hx), list(params), *config)
    return out, hy, cy, stream, torch.empty(0), torch.empty(0)


def lstm_mps_backward(*args: Any) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
    """aten::lstm_mps_backward, by differentiating the CPU's forward."""
    *cotangents, z, _, x, _, hx, params = args[:9]
    with _above_autograd(), torch.random.fork_rng(devices=()):
        if z.numel():
            torch.set_rng_state(z)
        leaves = [t.detach().requires_grad_() for t in (x, *hx, *params)]
        after = 1 + len(hx)
        outs = torch.lstm(leaves[0], leaves[1:after], leaves[after:], *args[9:])
        pairs = [(o, g) for o, g in zip(outs, cotangents) if g is not None]
        found = torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    grads = [torch.zeros_like(v) if g is None else g for g, v in zip(found, leaves)]
    return grads[0], grads[1:after], grads[after:]


@contextlib.contextmanager
def _above_autograd() -> Iterator[None]:
    """A backend kernel runs with the autograd keys excluded; a host kernel that differentiates must lift that."""
    c: Any = torch._C
    excluded = c._dispatch_tls_local_exclude_set()
    for name in ("AutogradCPU", "ADInplaceOrView", "AutogradFunctionality", "AutogradOther"):
        if (key := getattr(c.DispatchKey, name, None)) is not None:
            excluded = excluded.remove(key)
    with c._ForceDispatchKeyGuard(c._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        yield


# --------------------- one call as on MPS where no gradient is wanted; otherwise MPS takes the composition too (attention.cpp,
# --------------------- layer_norm.cpp)


def whole_unless_differentiated(composed: Callable[..., Tensor], whole: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel, on the autograd key, of a composed operator that MPS runs `whole` where nothing asks for its derivative.

    whole: takes the operator's arguments and may answer None, for what MPS leaves to the composition.
    """

    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        wanted = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args)
        found = None if wanted or fwAD._current_level >= 0 else whole(*args, **kwargs)
        return composed(*args, **kwargs) if found is None else found

    return kernel


def attention_composed(*args: Any, **kwargs: Any) -> Any:
    """aten::scaled_dot_product_attention in torch's own pieces."""
    return aten.scaled_dot_product_attention.default._op_dk(_COMPOSED, *args, **kwargs)


def rms_norm_composed(*args: Any) -> Any:
    """aten::rms_norm in torch's own pieces, below `_fused_rms_norm` (MPS has no backward of it), with torch's own check."""
    x, shape = args[0], tuple(args[1])
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise RuntimeError(f"Given normalized_shape={list(shape)}, expected input with shape [*, ...], not {list(x.shape)}")
    return aten._fused_rms_norm.default._op_dk(_COMPOSED, *(args + (None,) * (4 - len(args))))[0]


_TAKES_GROUPS = any(a.name == "enable_gqa" for a in aten._scaled_dot_product_attention_math_for_mps.default._schema.arguments)


def attention_whole(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, p: float = 0.0, *rest: Any, **named: Any
) -> Any:
    """aten::scaled_dot_product_attention by way of `_scaled_dot_product_attention_math_for_mps`, without dropout only."""
    if p != 0.0:
        return None
    causal = rest[0] if rest else named.pop("is_causal", False)
    if not _TAKES_GROUPS and named.pop("enable_gqa", False):  # until torch 2.11 the heads are repeated before
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) if x.dim() > 2 and x.shape[-3] else x for x in (k, v))
    return aten._scaled_dot_product_attention_math_for_mps(q, k, v, mask, p, causal, None, **named)[0]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    p: float = 0.0,
    causal: bool = False,
    _: Any = None,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    """aten::_scaled_dot_product_attention_math_for_mps, in the CPU's own way; the weights, which nobody reads, stay empty.

    By its formula where the CPU's fused kernel is wrong (torch 2.13): it multiplies the -Inf of a causal mask by the scale, and
    gives 0 for an Inf in a mask of half types."""
    result = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, p, causal, **named)  # refuses what it must
    scale = named.get("scale")
    wrong = (causal and scale is not None and scale <= 0.0) or (mask is not None and bool((mask == math.inf).any()))
    if wrong and all(t.numel() for t in (q, k, v)):  # of no elements torch makes zeros, in the shape of the query
        result = aten._scaled_dot_product_attention_math(q, k, v, mask, p, causal, **named)[0]
    return result, torch.empty(0)


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """aten::dropout in the pieces that MPS takes: torch calls `native_dropout` for CUDA, XPU and such a device only."""
    if not train or not 0.0 < p < 1.0 or not x.numel():
        composed: Tensor = aten.dropout.default._op_dk(_COMPOSED, x, p, train)
        return composed
    return x * torch.empty_like(x).bernoulli_(1.0 - p).div_(1.0 - p)


def rms_norm_whole(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
    """aten::rms_norm by way of `_fused_rms_norm`, with a weight only."""
    return None if weight is None else aten._fused_rms_norm(x, shape, weight, eps)[0]


def convert_weight_to_int4pack(packed: Tensor, tiles: int) -> Tensor:
    """aten::_convert_weight_to_int4pack: two numbers of 4 bits in a byte, the first one high, in the CPU's order and in the
    shape that CUDA's and MPS's results have."""
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    numbers = torch.stack((packed >> 4, packed & 15), -1).reshape(rows, columns).to(torch.int32)
    made: Tensor = aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    return made.view(torch.int32).reshape(rows // 8, columns // (16 * tiles), 32, tiles // 2)


def weight_int4pack_mm(x: Tensor, weight: Tensor, group: int, scales: Tensor) -> Tensor:
    """aten::_weight_int4pack_mm of such a weight."""
    dense = weight.contiguous().view(torch.uint8).reshape(8 * weight.shape[0], -1)
    made: Tensor = aten._weight_int4pack_mm_for_cpu(x, dense, group, scales)
    return made
