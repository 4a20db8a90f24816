"""Facts about torch's kernels before they run: which of them round, and what they do inside."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.oracle.decompositions import AT_PLACES, LINEAR, adjoints, antialiased, attention, softmax, stepwise, windows

# Kernels whose gradients torch computes by another formula under a dispatch mode.
MODE_DEPENDENT = ("prod", "cumprod")
COUNTS = ("sum", "cumsum", "scatter_add", "index_add")
# Kernels that move numbers without rounding them, and a loss: its second result is a mask of 0 and 1 that its gradient checks.
_MOVERS = """_to_copy abs amax amin aminmax bernoulli cat ceil clamp clamp_max clamp_min clone complex conj_physical
    constant_pad_nd copysign cummax cummin _cummax_helper diag_embed diagonal_backward embedding empty empty_like
    empty_strided expand_copy flip floor fmax fmin full full_like gather hardshrink hardtanh heaviside im2col imag index
    index_copy index_fill index_select kthvalue masked_fill masked_scatter masked_select max maximum median min minimum mode
    msort nan_to_num nanmedian neg new_empty new_empty_strided new_full new_zeros ones ones_like pixel_shuffle
    pixel_unshuffle real reflection_pad1d reflection_pad2d reflection_pad3d relu repeat replication_pad1d
    replication_pad2d replication_pad3d roll round scalar_tensor scatter select_backward select_scatter sgn sign
    slice_backward slice_scatter sort stack take threshold threshold_backward topk tril triu trunc unfold_copy
    upsample_nearest1d upsample_nearest2d upsample_nearest3d view_copy where zeros zeros_like max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d max_unpool2d max_unpool3d
    copy fill zero set resize normal uniform exponential multilabel_margin_loss_forward"""
EXACT_KERNELS = frozenset(_MOVERS.split())
# Fused kernels whose formulas lose digits inside.
FUSED = """gelu gelu_backward native_layer_norm native_layer_norm_backward native_group_norm
    native_group_norm_backward native_batch_norm native_batch_norm_backward _native_batch_norm_legit _softmax
    _softmax_backward_data _log_softmax _log_softmax_backward_data silu_backward mish_backward elu_backward softplus
    softplus_backward log_sigmoid_forward log_sigmoid_backward glu glu_backward hardswish_backward logit
    logit_backward huber_loss_backward smooth_l1_loss_backward binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    grid_sampler_2d _fused_rms_norm _fused_rms_norm_backward logaddexp logaddexp2 _euclidean_dist xlogy
    soft_margin_loss special_entr special_log_ndtr special_xlog1py sinc lerp addcmul addcdiv addr cumprod logsumexp"""
# Norms; exact if their order only picks an element or counts.
NORMS = ("linalg_vector_norm", "norm")
ARITHMETIC = ("add", "sub", "rsub", "mul")
ATEN_POWERS = ("pow", "float_power")
OTHERWISE = (-1.0, -0.5, 0.5, 1.0, 2.0)  # powers that are quotients, roots and products
# Complex ones: each part is a sum of products that may cancel.
PRODUCTS = ("mul", "div", "reciprocal")
# Kernels in which a rounding decides whether Inf becomes NaN: they update a mean by one number after the other, or weigh
# elements by where they lie, and 0 times Inf is NaN.
UNSETTLED = frozenset(("var_mean", "std_mean", *LINEAR.split(), *AT_PLACES.split()))
# In-place views: they write no elements.
TURNS = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_", "detach_")
_SAMPLES = 64  # even, and more than there are samples: turned keys are those of no other sample


def _variance(x: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    """(variance, mean) as two sums, one after the other; decompositions of norms do not split them."""
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, unbiased = None, dim
    less = float(correction) if correction is not None else 1.0 if unbiased is None else float(unbiased)
    dims = list(range(x.dim())) if dim is None or dim == [] else dim
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    n = x.numel() / max(1, mean.numel())
    squares = torch.view_as_real(centred).square().sum(-1) if x.is_complex() else centred * centred
    return squares.sum(dims, keepdim=keepdim) / max(0.0, n - less), mean if keepdim else mean.squeeze(dims)


def _spreads() -> Mapping[Any, Callable[..., Any]]:
    """Formulas of var, std and their pairs with the mean, by overload."""

    def of(pick: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: pick(_variance(*args, **kwargs))

    aten = torch.ops.aten
    ways: dict[Any, Callable[[Any], Any]] = {
        aten.var: lambda f: f[0],
        aten.std: lambda f: f[0].sqrt(),
        aten.var_mean: lambda f: f,
        aten.std_mean: lambda f: (f[0].sqrt(), f[1]),
    }
    return {getattr(op, kind): of(pick) for op, pick in ways.items() for kind in ("default", "dim", "correction")}


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Formulas of fused kernels and variances; variances alone if this torch has no decompositions."""
    try:
        from torch._decomp import get_decompositions
    except ImportError:
        return _spreads()
    packets = [getattr(torch.ops.aten, name) for name in FUSED.split() if hasattr(torch.ops.aten, name)]
    fused: Mapping[Any, Callable[..., Any]] = get_decompositions(packets)
    formulas = {**fused, **_spreads(), **antialiased(), **attention(), **softmax(), **stepwise(), **windows()}
    return {**formulas, **adjoints(formulas)}


def picks(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a norm of this order is an element or a count, so that nothing is rounded."""
    order = kwargs.get("ord", kwargs.get("p", args[1] if len(args) > 1 else 2))
    return order in (0, float("inf"), -float("inf"))


class Kernel(NamedTuple):
    """What is known of a kernel before it runs. formula: its decomposition, or None. aliases: a result is an operand; writes:
    and is written. exact: it rounds nothing; counts, norm: nothing in some calls. turn: what it adds to odd keys inside."""

    name: str
    formula: Callable[..., Any] | None
    aliases: bool
    writes: bool
    exact: bool
    counts: bool
    norm: bool
    turn: int

    def is_power(self, args: Any) -> bool:
        """Whether a call computes a power as such."""
        return self.name in ATEN_POWERS and not (isinstance(args[1], (int, float)) and float(args[1]) in OTHERWISE)


def written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The operands that an overload writes and does not return, as those on lists of tensors and many of a person's own do."""
    schema = func._schema
    if not schema.is_mutable or schema.returns:
        return []
    named = dict(zip((a.name for a in schema.arguments), args)) | kwargs
    into = [named.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [x for x in tree_leaves(into) if isinstance(x, Tensor)]


@functools.cache
def kernel_of(func: Any) -> Kernel:
    """The facts about an overload, cached."""
    name = func._schema.name.removeprefix("aten::")
    aliases = [r.alias_info for r in func._schema.returns if r.alias_info is not None]
    writes = any(a.is_write for a in aliases)
    counts = (name.rstrip("_") if writes else name) in COUNTS
    turn = _SAMPLES * (1 + zlib.crc32(name.encode()) % 1000)
    return Kernel(name, _decompositions().get(func), bool(aliases), writes, name in EXACT_KERNELS, counts, name in NORMS, turn)
