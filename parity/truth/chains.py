"""What a sum of many terms loses in one chain of additions, beside the roundings of its terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

LONG = 16  # terms of a sum whose order matters beside its own rounding
CHAIN = 4096  # no device adds more terms than these in one chain
SINGLE = 2.0**-24  # float32's roundoff
# Kernels that are sums of terms in an order of their own, by where the operand stands whose last dimension is added over.
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "addbmm": 1}
SUMS = ("sum", "mean", "nansum", "cumsum")
SIZES = ("linalg_vector_norm", "_cdist_forward", "_pdist_forward", "prod")  # of terms that cannot cancel, or of factors
CHAINS = ("cumsum", "embedding_dense_backward")  # one term after the other, on devices too, however many
OF_ONE = (*SUMS, "prod", "linalg_vector_norm")  # round nothing where they have one term
SCATTERED = ("scatter_reduce", "index_reduce")  # combined one by one where places repeat


def chained(x: Tensor, dims: Sequence[int]) -> Tensor:
    """What the sum of these very numbers over dims loses in one chain of float32 additions, flattened. Many terms of one size,
    or below half an ULP of the sum, are all rounded to one side; no random walk describes that. Either in turn, or with the
    largest first, which all others that are below half an ULP of it vanish beside."""
    front = x.detach().movedim(list(dims), list(range(len(dims))))
    terms = front.reshape(math.prod(front.shape[: len(dims)]), -1).to(torch.float32)
    with np.errstate(all="ignore"):
        added = torch.from_numpy(np.add.accumulate(terms.numpy(), axis=0))[-1]  # numpy adds in turn here, and rounds each time
    sizes = terms.abs()
    vanishing = torch.where(sizes < SINGLE * sizes.amax(0), terms, 0.0).sum(0).abs().to(torch.float64)
    in_turn = (added.to(torch.float64) - terms.to(torch.float64).sum(0)).abs()
    return torch.maximum(in_turn, vanishing).nan_to_num(0.0, 0.0, 0.0)


def in_single(func: Any, result: Tensor, args: Any) -> Tensor:
    """What a chain of float32 additions loses of these very numbers, which may all be rounded to one side: numpy's for running
    sums (the CPU's own adds in double), the CPU's kernel for the rest."""
    first = args[0].detach().to(torch.float32)
    if first.dim() and func is torch.ops.aten.cumsum.default:
        with np.errstate(all="ignore"):
            found = torch.from_numpy(np.add.accumulate(first.numpy(), axis=args[1]))
    else:
        found = func(first, *args[1:])
    return (found.to(torch.float64) - result).abs().nan_to_num(0.0, 0.0, 0.0)


def repeats(result: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str) -> float:
    """How many elements are combined at the place that is written most often, with the one that lies there."""
    if reduce not in ("sum", "mean", "prod") or not index.numel():
        return 0.0
    if index.dim() != source.dim():  # index_reduce: slices along dim
        return 1.0 + float(index.bincount().max())
    if not result.dim():
        return 1.0 + index.numel()
    return 1.0 + float(torch.zeros(result.shape).scatter_add_(dim, index.to(torch.int64), torch.ones(index.shape)).max())


def terms(name: str, result: Tensor, args: Any) -> float:
    """How many terms a kernel adds up for each element of its result; 0 for what is no sum."""
    if not args or not isinstance(args[0], Tensor):
        return 0.0
    if name in PRODUCTS:
        return float(args[PRODUCTS[name]].shape[-1] * (args[1].shape[0] if name == "addbmm" else 1))
    if name in ("_cdist_forward", "_pdist_forward"):
        return float(args[0].shape[-1])
    if name == "convolution":  # channels of a group and places of the kernel
        weight, transposed, groups = args[1], args[6], args[8]
        return float(weight[:, 0].numel() / groups if transposed else weight[0].numel()) if weight.numel() else 0.0
    if name in SCATTERED:
        return repeats(result, *args[1:5])
    if name == "cumsum":
        return float(args[0].shape[args[1]]) if args[0].dim() else 1.0
    if name == "embedding_dense_backward":
        return float(args[1].reshape(-1).bincount().max()) if args[1].numel() else 0.0
    return args[0].numel() / result.numel() if name in SUMS or name in SIZES else 0.0
