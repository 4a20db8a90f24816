"""The loss of a long sum in one chain of additions, beyond the roundings of its terms.

Bounds the error of fast convolution algorithms, where a kernel larger than one element moves by single steps.

Winograd's and those by Fourier transforms compute whole tiles together and take them apart again, so that an element is off in
units of its tile, even one that is a sum of zeros (Barabasz et al., ACM Trans. Math. Softw. 46 (2020) 37). The norms of the
two planes that a tile comes from bound it (Cauchy and Schwarz). cuDNN on an H100, float32, 12 shapes with 3 x 3 to 9 x 9
elements, dense and sparse: weight gradients were off by up to 16 unit roundoffs of these norms, 40 % of the exact zeros among
them; results and gradients of the input by up to 1.6, and by up to 0.07 roundoffs of half types where it transforms in those.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.oracle.roundoffs import DOUBLE
from parity.oracle.yardstick import FAST_CONVOLUTION, SUM_LOSS


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


LONG = 16  # sums of at least so many terms lose more than one rounding
CHAIN = 4096  # no device adds more terms in one chain
FLOAT32_ROUNDOFF = 2.0**-24  # float32's roundoff
# Products that are sums in an unspecified order -> position of the operand whose last dimension is summed.
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "addbmm": 1}
SUMS = ("sum", "mean", "nansum", "cumsum")
SIZES = ("linalg_vector_norm", "_cdist_forward", "_pdist_forward", "prod")  # sums of terms that cannot cancel, and products
CHAINS = ("cumsum", "embedding_dense_backward")  # one term after the other on every device, however many
OF_ONE = (*SUMS, "prod", "linalg_vector_norm")  # round nothing if they have one term
# Repeated places are combined one by one.
SCATTERED = ("scatter_reduce", "index_reduce", "scatter_add", "index_add", "put", "index_put")


def chain_loss(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Loss of summing these numbers over dims in one chain of float32 additions, flattened.

    Many terms of one size, or below half an ULP of the sum, are all rounded to one side, which no random walk describes. The
    result is the larger of two losses: adding in order, and adding the largest term first, next to which all terms below half
    an ULP of it vanish.
    """
    front = x.detach().movedim(list(dims), list(range(len(dims))))
    terms = front.reshape(math.prod(front.shape[: len(dims)]), -1).to(torch.float32)
    with np.errstate(all="ignore"):
        added = torch.from_numpy(np.add.accumulate(terms.numpy(), axis=0))[-1]  # numpy adds in turn here, and rounds each time
    sizes = terms.abs()
    vanishing = torch.where(sizes < FLOAT32_ROUNDOFF * sizes.amax(0), terms, 0.0).sum(0).abs().to(torch.float64)
    in_turn = (added.to(torch.float64) - terms.to(torch.float64).sum(0)).abs()
    return torch.maximum(in_turn, vanishing).nan_to_num(0.0, 0.0, 0.0)


def float32_chain_loss(func: Any, result: Tensor, args: Any) -> Tensor:
    """Loss of a chain of float32 additions of these numbers, which may all be rounded to one side.

    Running sums use numpy (the CPU's own adds in double), all others the CPU's kernel.
    """
    first = args[0].detach().to(torch.float32)
    if first.dim() and func is torch.ops.aten.cumsum.default:
        with np.errstate(all="ignore"):
            added = torch.from_numpy(np.add.accumulate(first.numpy(), axis=args[1]))
    else:
        added = func(first, *args[1:])
    return (added.to(torch.float64) - result).abs().nan_to_num(0.0, 0.0, 0.0)


def repeats(name: str, args: Any) -> float:
    """The largest number of elements that are combined at one place, including the one already there."""
    if name in ("put", "index_put"):
        combines = len(args) > 3 and args[3]
    else:
        combines = name.endswith("_add") or args[4] in ("sum", "mean", "prod")
    if not combines or not args[0].numel():
        return 0.0
    if name == "index_reduce":
        return 1.0 + (float(args[2].bincount().max()) if args[2].numel() else 0.0)
    ones = [torch.ones(a.shape) if isinstance(a, Tensor) and a.dtype in DOUBLE else a for a in args[1:4]]
    add = torch.ops.aten.scatter_add if name == "scatter_reduce" else getattr(torch.ops.aten, name)
    return 1.0 + float(add(torch.zeros(args[0].shape), *ones).max())


def terms(name: str, result: Tensor, args: Any) -> float:
    """The number of terms that a kernel adds for each element of its result; 0 for a kernel that is no sum."""
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
        return repeats(name, args)
    if name == "cumsum":
        return float(args[0].shape[args[1]]) if args[0].dim() else 1.0
    if name == "embedding_dense_backward":
        return float(args[1].reshape(-1).bincount().max()) if args[1].numel() else 0.0
    return args[0].numel() / result.numel() if name in SUMS or name in SIZES else 0.0


def terms_lost(name: str, result: Tensor, call: tuple[Any, Any, Any], count: float, u: float, inside: float) -> Tensor:
    """What a sum of so many terms loses in its partial sums, which may be larger than it. call: (function, its arguments);
    inside: the roundoff in which it adds; u: that of its result."""
    func, args, kwargs = call
    if count < LONG:  # in any order they are about as large as a random walk
        squares = func(args[0].detach().abs().square(), *args[1:], **kwargs)
        walk: Tensor = squares.div(count if name == "mean" else 1.0).sqrt().nan_to_num(0.0, 0.0, 0.0)
        return walk.mul(SUM_LOSS * inside)
    wide = [a.abs() if isinstance(a, Tensor) and a.dtype in DOUBLE and not (a.is_meta or a.is_nested) else a for a in args]
    size = result if name in SIZES else func(*wide, **kwargs)
    if name in SCATTERED and inside > FLOAT32_ROUNDOFF:
        real = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
        squares = func(*(a * a if isinstance(a, Tensor) and a.dtype in DOUBLE else a for a in wide), **kwargs)
        size = torch.minimum(size.abs(), result.abs() + straying(real) * squares.abs().sqrt())
    lost: Tensor = SUM_LOSS * inside * count**0.5 * size.abs()
    single = inside == FLOAT32_ROUNDOFF and result.dtype is torch.float64
    if name in CHAINS and single:
        lost = torch.maximum(lost, SUM_LOSS * float32_chain_loss(func, result, args))
    if name in ("sum", "mean") and count <= CHAIN and single:
        dims = args[1] if len(args) > 1 and args[1] else range(args[0].dim())
        biased = chain_loss(args[0], dims).view(result.shape) / (count if name == "mean" else 1.0)
        lost = torch.maximum(lost, SUM_LOSS * biased)
    if name == "convolution" and u > inside and is_fast(args[1], args[3], args[5]):
        tiles = of_result(args[0], args[1], args[6], args[8])
        lost = torch.maximum(lost, FAST_CONVOLUTION * u * tiles)
    if name not in ("sum", "mean"):  # kernels that update a mean give NaN for Inf, too
        lost = torch.where(result.isinf(), 0.0, lost)  # an Inf less an Inf is NaN, behind which nothing moves
    return lost


def straying(operands: Sequence[Tensor]) -> float:
    """How far sums of the first numbers of an operand stray from their share of all, in units of the root of their sum of
    squares: about 1 for numbers in any order, more for sorted ones."""
    flat = [x.to(torch.float64).nan_to_num(0.0, 0.0, 0.0).reshape(-1) for x in operands if x.numel()]
    return max([1.0, *(float((x - x.mean()).cumsum(0).abs().max() / x.norm()) for x in flat if bool(x.any()))])


def order_of(name: str, args: Any) -> int:
    """A number for the operand of a sum, another one for the same in another order, by its first, middle and last elements;
    0 for a kernel that is no sum. Keys that it is added to stay even or odd, and are those of no other sample."""
    ends = list[bytes]()
    for t in args[:1] if name in SUMS else ():
        known = isinstance(t, Tensor) and t.dtype in DOUBLE and t.layout is torch.strided and not t.is_nested
        if known and t.numel() and not (t.is_meta or t._is_zerotensor()):
            numbers = t.detach().resolve_conj().resolve_neg().numpy()
            ends += [numbers[tuple(n * k // 2 - (k == 2) for n in t.shape)].tobytes() for k in range(3)]
    return 64 * (zlib.crc32(b"".join(ends)) % 1000)
