"""The results of healthy half-precision kernels: each CPU kernel computes in float32 and rounds its results once.

The CPU's own half kernels are a poor reference if they add up in the half type (gradients of norms and convolutions): their
error would excuse a device's. This run shows whether an error comes from those kernels or from the op.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.core.observer import Operators

HALF = (torch.float16, torch.bfloat16)


def in_float32() -> Operators:
    """Computes every kernel that makes new half-precision results in float32.

    Kernels that write into or return an operand, and those that fail in float32, run unchanged.
    """
    return Operators(_rounded_once)


def _rounded_once(func: Any, args: Any, kwargs: Any) -> Any:
    plain = func(*args, **kwargs)
    if any(r.alias_info is not None for r in func._schema.returns) or not _halves((args, kwargs)) or not _halves(plain):
        return plain
    try:
        wide = func(*tree_map(_wide, args), **tree_map(_wide, kwargs))
    except (RuntimeError, NotImplementedError):
        return plain
    return tree_map(_rounded, wide, plain)


def _halves(tree: Any) -> bool:
    return any(isinstance(a, Tensor) and a.dtype in HALF for a in tree_leaves(tree))


def _wide(a: Any) -> Any:
    if isinstance(a, Tensor):
        return a.to(torch.float32) if a.dtype in HALF else a
    return torch.float32 if a in HALF else a


def _rounded(wide: Any, plain: Any) -> Any:
    fits = isinstance(wide, Tensor) and isinstance(plain, Tensor) and wide.shape == plain.shape
    return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype).copy_(wide) if fits else plain
