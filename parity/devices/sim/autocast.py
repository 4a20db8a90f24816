"""torch.autocast("sim"): which operators change the dtype of their operands, as on MPS.

The lists are those of `TORCH_LIBRARY_IMPL(aten, AutocastMPS)` in aten/src/ATen/autocast_mode.cpp at torch 2.13, checked against
the symbols of the macOS wheel of that version. They differ from CUDA's: batch_norm and conv_transpose3d run in float32, and GRU
cells keep their dtype.

A limit: torch.amp.GradScaler fails on `sim:mps`, which refuses float64: torch avoids float64 only if the device type is "mps".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.memory import NAME

LOWER_PRECISION = (
    *("_convolution", "_convolution.deprecated", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul"),
    *("conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "convolution", "einsum"),
    *("linalg_multi_dot", "linear", "lstm_cell", "matmul", "mm", "mv", "prelu", "scaled_dot_product_attention"),
)
FLOAT32 = (
    *("acos", "asin", "batch_norm", "binary_cross_entropy_with_logits", "cdist", "conv_transpose3d.input", "cosh"),
    *("cosine_embedding_loss", "cosine_similarity", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1"),
    *("frobenius_norm.dim", "group_norm", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "layer_norm"),
    *("linalg_matrix_norm", "linalg_matrix_norm.str_ord", "linalg_vector_norm", "log", "log10", "log1p", "log2"),
    *("log_softmax.int", "logsumexp", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss"),
    *("native_layer_norm", "nll_loss", "nll_loss2d", "nuclear_norm", "nuclear_norm.dim", "pdist", "poisson_nll_loss"),
    *("pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "prod", "prod.dim_int", "reciprocal", "renorm", "rsqrt"),
    *("sinh", "smooth_l1_loss", "soft_margin_loss", "softmax.int", "softplus", "sum", "sum.dim_IntList", "tan"),
    "triplet_margin_loss",
)
WIDEST = (*("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "scatter_add"), "tensordot")
DTYPES = (torch.float16, torch.bfloat16)

_keys: Any = torch._C.DispatchKey
_below = torch._C.DispatchKeySet(_keys.AutocastPrivateUse1)
_cast: dict[int, tuple[Tensor, Tensor]] = {}  # id of a weight -> (the weight, kept so that the id stays valid; its copy)
_lock = threading.Lock()


def register(library: Any) -> None:
    """Register a kernel that casts the operands for every operator in `LOWER_PRECISION`, `FLOAT32` and `WIDEST`. library: of
    the namespace aten, for the dispatch key of this device's autocast."""
    for names, dtype in ((LOWER_PRECISION, _asked_for), (FLOAT32, _float32), (WIDEST, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            library.impl(name, _kernel(getattr(getattr(torch.ops.aten, packet), overload or "default"), dtype))
    _patch_clearing()


def _kernel(op: Any, dtype_for: Callable[[Any, Any], torch.dtype]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = dtype_for(args, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_below):
            return op(*(_as(dtype, a) for a in args), **{k: _as(dtype, a) for k, a in kwargs.items()})

    return kernel


def _asked_for(args: Any, kwargs: Any) -> torch.dtype:
    return torch.get_autocast_dtype(NAME)


def _float32(args: Any, kwargs: Any) -> torch.dtype:
    return torch.float32


def _widest(args: Any, kwargs: Any) -> torch.dtype:
    """float32 if any operand is, else the dtype asked for. Other floating dtypes are an error, as in torch's `prioritize`."""
    asked = torch.get_autocast_dtype(NAME)
    dtypes = {t.dtype for t in _tensors((*args, *kwargs.values())) if _eligible(t)}
    if torch.float32 in dtypes:
        return torch.float32
    if dtypes - {asked}:
        raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return asked


def _tensors(values: Any) -> Iterator[Tensor]:
    for v in values:
        if isinstance(v, Tensor):
            yield v
        elif isinstance(v, (list, tuple)):
            yield from _tensors(v)


def _eligible(t: Tensor) -> bool:
    return t.device.type == NAME and t.is_floating_point() and t.dtype is not torch.float64


def _as(dtype: torch.dtype, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as(dtype, v) for v in value]
    if not isinstance(value, Tensor) or not _eligible(value) or value.dtype is dtype:
        return value
    is_weight = value.dtype is torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
    if not (is_weight and dtype in DTYPES and torch.is_autocast_cache_enabled()):
        return value.to(dtype)
    with _lock:
        if id(value) not in _cast:
            _cast[id(value)] = (value, value.to(dtype))
        return _cast[id(value)][1]


def _patch_clearing() -> None:
    """Clear our copies of weights when the outermost autocast ends, as torch clears its own cache, which we cannot access."""
    original = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        original()
        with _lock:
            _cast.clear()

    torch.clear_autocast_cache = clear_autocast_cache
