"""The stand-in with four bugs that MPS had, for `--setup`: cumsum of int64 gives its input back (pytorch #90635), clamp makes a
bound out of NaN (#120899), addcmul of integers loses low bits (#189420), and topk ends the process where many dimensions follow
(#154890; more here than there, so that it is met less often)."""

from __future__ import annotations

import os
from typing import Any

import standin_kernels
import standin_library
import torch
from torch import Tensor

aten: Any = torch.ops.aten
LOW_BITS = 3
DIMENSIONS = 7


def cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """aten::cumsum."""
    return x.clone() if x.dtype is torch.int64 and dtype in (None, torch.int64) else aten.cumsum(x, dim, dtype=dtype)


def clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    """aten::clamp."""
    bound = high if low is None else low
    return aten.clamp(torch.where(x.isnan(), bound, x) if x.is_floating_point() else x, low, high)


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Any:
    """aten::addcmul."""
    out = aten.addcmul(x, a, b, value=value)
    return out if out.is_floating_point() or out.is_complex() else out >> LOW_BITS << LOW_BITS


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, in_order: bool = True) -> Any:
    """aten::topk."""
    if x.dim() - dim % max(1, x.dim()) >= DIMENSIONS:
        os.write(2, b"MPSCore.framework: failed assertion `[MPSNDArray initWithDevice] Error: shape rank'\n")
        os.abort()
    return tuple(aten.topk(x, k, dim, largest, in_order))


standin_kernels.WHOLE |= {"cumsum": cumsum, "clamp": clamp, "addcmul": addcmul, "topk": topk}
standin_library.install()
