"""What rounding does on the way, imitated in float64: operands and the results of kernels moved by a relative roundoff."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from parity import values

DOUBLE = (torch.float64, torch.complex128)
LONG = 16  # terms of a sum whose order matters beside its own rounding
# Kernels that move numbers without rounding them.
_MOVERS = """_to_copy abs amax amin aminmax bernoulli cat ceil clamp clamp_max clamp_min clone complex conj_physical
    constant_pad_nd copysign cummax cummin _cummax_helper diag_embed diagonal_backward embedding empty empty_like
    empty_strided expand_copy flip floor fmax fmin full full_like gather hardshrink hardtanh heaviside im2col imag index
    index_copy index_fill index_select kthvalue masked_fill masked_scatter masked_select max maximum median min minimum mode
    msort nan_to_num nanmedian neg new_empty new_empty_strided new_full new_zeros ones ones_like pixel_shuffle
    pixel_unshuffle real reflection_pad1d reflection_pad2d reflection_pad3d relu repeat replication_pad1d
    replication_pad2d replication_pad3d roll round scalar_tensor scatter select_backward select_scatter sgn sign
    slice_backward slice_scatter sort stack take threshold threshold_backward topk tril triu trunc unfold_copy
    upsample_nearest1d upsample_nearest2d upsample_nearest3d view_copy where zeros zeros_like max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d max_unpool2d max_unpool3d"""
# Fused kernels whose formulas lose digits inside.
FUSED = """gelu gelu_backward native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
    silu_backward mish_backward elu_backward softplus softplus_backward log_sigmoid_forward log_sigmoid_backward glu
    glu_backward hardswish_backward logit logit_backward huber_loss_backward smooth_l1_loss_backward
    binary_cross_entropy binary_cross_entropy_backward upsample_bicubic2d upsample_bilinear2d grid_sampler_2d
    _fused_rms_norm _fused_rms_norm_backward logaddexp logaddexp2 _euclidean_dist hann_window xlogy special_entr
    special_log_ndtr special_xlog1py sinc lerp addcmul addcdiv addr cumprod logcumsumexp var std var_mean std_mean"""
_MOVERS += " copy fill zero set resize normal uniform bernoulli exponential"
# These turn a tensor in place and write none of its elements.
TURNS = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_", "detach_")
EXACT_KERNELS = frozenset(_MOVERS.split())


@functools.lru_cache(maxsize=4)
def _signs(key: int) -> Tensor:
    return torch.from_numpy((values.words(key, 1 << 16) & np.uint64(1)).astype("float64") * 2 - 1)


def perturbed(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element moved by a relative +-u, signs from a fixed stream."""
    if not (t.is_floating_point() or t.is_complex()):
        return t
    n = t.numel()
    signs = _signs(0)
    start = (key * 4099) % (1 << 16)
    index = signs[start : start + n] if start + n <= 1 << 16 else signs[torch.arange(start, start + n) % (1 << 16)]
    return t * (1 + u * index.view(t.shape))


def rounded(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element moved by a relative +-u. Even keys: signs from a hash of its value, so that what is equal stays
    equal, as under rounding. Odd keys: of value and place, as where equal numbers come about in different ways."""
    if t.dtype not in (torch.float64, torch.complex128):
        return t
    parts = torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()
    raw = parts.resolve_neg().contiguous().view(torch.int64)
    if key % 2:
        raw = raw + torch.arange(raw.numel()).view(raw.shape) * 0x9E3779B9
    mixed = (raw ^ (raw >> 29) ^ (key * 0x1234567)) * 0x2545F4914F6CDD1D
    mixed = (mixed ^ (mixed >> 32)) * 0x2545F4914F6CDD1D
    signs = (((mixed >> 61) & 2) - 1).to(torch.float64)
    moved = parts * (1 + u * signs)
    return torch.view_as_complex(moved) if t.is_complex() else moved


def extremes(t: Tensor) -> tuple[float, float]:
    """(smallest, largest) finite magnitude of the elements that are not 0; (inf, 0) without one."""
    size = t.detach().abs()
    size = size[torch.isfinite(size) & (size > 0)]
    return (float(size.min()), float(size.max())) if size.numel() else (float("inf"), 0.0)


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Formulas of the fused kernels that torch can take apart; empty where this torch has none."""
    try:
        from torch._decomp import get_decompositions
    except ImportError:
        return {}
    packets = [getattr(torch.ops.aten, name) for name in FUSED.split() if hasattr(torch.ops.aten, name)]
    found: Mapping[Any, Callable[..., Any]] = get_decompositions(packets)
    return found


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Moves the floating result of every kernel that rounds, forward and backward, by a relative +-u, as rounding would. It
    sees what perturbed inputs cannot: sums that cancel whatever goes in (the gradient of a bias before batch_norm is 0), what
    a backward formula makes of a rounded result that it saved, and what half-precision kernels hand to each other.

    A fused kernel that torch has a decomposition for is taken apart, its steps rounded by `inside`: the formula cancels there
    too. largest, smallest: the extreme finite magnitudes, without 0, that any kernel gave.
    """

    def __init__(self, u: float, key: int, inside: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._u, self._key, self._inside = u, key, u if inside is None else inside
        self._fused = _decompositions()
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}
        self._within = False
        self.largest, self.smallest = 0.0, float("inf")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._within and func in self._fused:
            self._within = True
            try:
                with self:
                    result = self._fused[func](*args, **(kwargs or {}))
            finally:
                self._within = False
        else:
            result = func(*args, **(kwargs or {}))
        aliases = [r.alias_info for r in func._schema.returns]
        if any(a is not None for a in aliases):
            if any(a is not None and a.is_write for a in aliases):
                self._rounded_in_place(func._schema.name.removeprefix("aten::"), result)
            return result
        name = func._schema.name.removeprefix("aten::")
        if name in EXACT_KERNELS:
            return result
        if name in ("sum", "mean") and args[0].dtype is torch.float64 and args[0].numel() >= LONG * result.numel() > 0:
            return self._summed(func, result, args, kwargs or {})
        return tree_map(self._rounded, result)

    def _summed(self, func: Any, x: Tensor, args: Any, kwargs: Any) -> Tensor:
        """A long sum or mean: one chain loses about sqrt(n) / 4 roundings of the magnitudes that it adds."""
        lost = self._inside * (args[0].numel() / x.numel()) ** 0.5 / 4.0
        moved: Tensor = self._rounded(x)
        size: Tensor = func(args[0].abs(), *args[1:], **kwargs)
        return moved + torch.where(moved < x, -lost, lost) * size

    def _rounded(self, x: Any) -> Any:
        if not (isinstance(x, Tensor) and x.layout is torch.strided and not x._is_zerotensor() and x.dtype in DOUBLE):
            return x
        low, high = extremes(x)
        self.smallest, self.largest = min(self.smallest, low), max(self.largest, high)
        moved = rounded(x, self._inside if self._within else self._u, self._key)
        if moved is not x and moved.stride() == x.stride() and x.storage_offset() == 0:
            self._moved[moved.data_ptr()] = moved, x  # `moved` is kept alive, so that nothing else gets its address
        return moved

    def _rounded_in_place(self, name: str, x: Any) -> None:
        """What a kernel wrote into a tensor that autograd knows already."""
        if not isinstance(x, Tensor) or name in TURNS:
            return
        self._moved.pop(x.data_ptr(), None)
        if name.rstrip("_") not in EXACT_KERNELS and x.dtype in DOUBLE and x.layout is torch.strided and not x.is_conj():
            x.copy_(rounded(x, self._inside if self._within else self._u, self._key))

    def unrounded(self, t: Tensor) -> Tensor:
        """A final result as its kernel gave it: the rounding of the result itself is no part of the sensitivity."""
        found = self._moved.get(t.data_ptr())
        if found is None or found[0].dtype != t.dtype or t.storage_offset() or t.is_conj() or t.is_neg():
            return t
        return found[1].detach().as_strided(t.shape, t.stride())  # kernels turn their results in place
