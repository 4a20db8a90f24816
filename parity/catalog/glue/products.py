"""Products that torch takes with layouts, dtypes and helpers of their own: groups of matrices, float8, Householder vectors;
and which element of a row is the extreme one under a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grouped_mm(a: Tensor, b: Tensor, ends: tuple[int, ...]) -> Tensor:
    """The product of each group of rows, columns or terms, which end at these. Gradients reach torch as dense tensors, which
    its kernels require: multiplying by ones makes them so. In float64, which they refuse, one product after the other."""
    if a.dtype == torch.float64:
        return _groups(a, b, ends)
    offsets = torch.tensor(ends, dtype=torch.int32, device=a.device) if ends else None
    product = torch._grouped_mm(a, b, offs=offsets)
    return product * torch.ones_like(product)


def _groups(a: Tensor, b: Tensor, ends: tuple[int, ...]) -> Tensor:
    parts = [slice(low, high) for low, high in zip((0, *ends), ends, strict=False)]
    if not ends:
        return a @ b
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, p] @ b[p] for p in parts])
    if a.dim() == 2:
        return torch.cat([a[p] @ b[k] for k, p in enumerate(parts)])
    return torch.cat([a[k] @ b[:, p] for k, p in enumerate(parts)], -1)


def _float8(x: Tensor, name: str) -> Tensor:
    return x.to(getattr(torch, name))


def scaled_mm(a: Tensor, b: Tensor, left: Tensor, right: Tensor, names: tuple[str, str]) -> Tensor:
    """A product of float8 matrices, the second one in columns, times a scale of each."""
    first, second = _float8(a, names[0]), _float8(b.mT.contiguous(), names[1]).mT
    return torch._scaled_mm(first, second, left, right, out_dtype=a.dtype)


def scaled(a: Tensor, b: Tensor, left: Tensor, right: Tensor, names: tuple[str, str]) -> Tensor:
    """The truth for `scaled_mm`: a product of what float8 holds."""
    first, second = (_float8(x.float(), n).to(x.dtype) for x, n in zip((a, b), names, strict=True))
    return (first @ second) * (left * right).to(a.dtype)


def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    """Q and R of the Householder vectors that geqrf gives."""
    packed, factors = torch.geqrf(a)
    k = factors.shape[-1]
    return torch.linalg.householder_product(packed[..., :k].contiguous(), factors), packed.triu()[..., :k, :]


def masked_extreme(name: str, x: Tensor, dim: int, mask: Tensor) -> Tensor:
    """The element at the place that argmax or argmin gives; 0 where that is masked."""
    place = getattr(torch.masked, name)(x, dim, keepdim=True, dtype=torch.int64, mask=mask)
    kept = x.masked_fill(~mask, 0)
    return kept.gather(dim, place) if x.dim() else kept
