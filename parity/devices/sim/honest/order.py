"""Sums in another order: reductions, scans, matrix products, convolutions, transforms. Accumulation is in float32 (complex64),
and half types are rounded once at the end."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parity.devices import Call, Fault
from parity.devices.sim.honest.rerun import (
    ALL_IN_DOUBLE,
    HALVES,
    IN_FLOAT32,
    ROUNDED,
    finite_alike,
    honest,
    narrowed,
    once,
    pick,
    rerun,
    rounding,
    unlike,
)

LANES = 32
FAINT = 2.0**-62  # the product of two smaller numbers may be subnormal in float32
LOOP = 256  # most sequential steps; longer sums use more lanes
CHAIN = 48  # longest dot product computed as one chain of fused multiply-adds

REDUCTIONS = ("mean", "nansum", "prod", "std", "std_mean", "sum", "trace", "var", "var_mean", "linalg_vector_norm", "norm")
SCANS = ("cumprod", "cumsum", "logcumsumexp", "_logcumsumexp")
PRODUCTS = ("addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "dot", "linear", "linear_backward", "mm", "vdot")
CONVOLUTIONS = ("convolution_overrideable", "convolution_backward_overrideable")
TRANSFORMS = ("_fft_c2c", "_fft_c2r", "_fft_r2c")


def wide_enough(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a device accumulates results of this dtype."""
    return torch.complex64 if dtype.is_complex else torch.float32


def total(x: Tensor, way: int) -> Tensor:
    """The sum over dim 0 in x's own dtype, float32 or complex64. way 0: strided lanes, each summed sequentially, then combined
    pairwise; way 1: blocks of neighbours from back to front, then the blocks in order."""
    n = x.shape[0]
    if n < 2 or not x.numel():
        return x.sum(0)
    if x.is_complex():  # part by part, because torch's sum of two multiplies one by 1 + 0i, and infinity times 0 is NaN
        return torch.view_as_complex(total(torch.view_as_real(x.resolve_conj()), way).contiguous())
    lanes = max(LANES, math.ceil(n / LOOP)) if way == 0 else max(1, math.ceil(n / LOOP), math.ceil(n**0.5))
    steps = math.ceil(n / lanes)
    padded = torch.cat((x, x.new_zeros(steps * lanes - n, *x.shape[1:])))
    rest = x.shape[1:]
    rows = padded.view(steps, lanes, *rest) if way == 0 else padded.view(lanes, steps, *rest).transpose(0, 1).flip(0)
    return torch.from_numpy(_added(rows.numpy(), way))


def _added(rows: npt.NDArray[Any], way: int) -> npt.NDArray[Any]:
    """The sum over the first two dimensions, in numpy, whose calls on a few numbers cost a quarter of torch's."""
    with np.errstate(all="ignore"):
        partial = rows[0].copy()
        for row in rows[1:]:
            partial += row
        if way == 1:
            result: npt.NDArray[Any] = np.array(partial[-1])
            for row in partial[-2::-1]:
                result += row
            return result
        while partial.shape[0] > 1:
            n, half = partial.shape[0], (partial.shape[0] + 1) // 2
            partial = np.concatenate((partial[: n - half] + partial[half:], partial[n - half : half]))
    return np.array(partial[0])


def _dims(x: Tensor, dim: Any) -> list[int]:
    if dim is None or dim == [] or dim == ():
        return list(range(x.dim()))
    return [d % x.dim() for d in ([dim] if isinstance(dim, int) else dim)] if x.dim() else []


def _front(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Move the reduced dimensions to the front and flatten them."""
    if not x.dim():
        return x.reshape(1)
    return x.movedim(list(dims), list(range(len(dims)))).flatten(0, len(dims) - 1) if dims else x.unsqueeze(0)


def _reduction(call: Call, plain: Any, way: int) -> Any:
    """Sums, means, variances and norms in float32; other reductions are computed wider and rounded once."""
    x, base = call.args[0], call.op.partition(".")[0]
    first = plain if isinstance(plain, Tensor) else plain[0]
    if first.dtype not in ROUNDED:
        return None
    if way == 2 and "norm" not in base:
        return once(call, plain)
    acc = wide_enough(first.dtype)
    if base in ("sum", "mean", "nansum"):
        dims = _dims(x, _argument(call, 1, "dim"))
        flat = _front(x.to(acc) if x.dtype in ROUNDED else x.to(first.dtype).to(acc), dims)
        flat = torch.where(torch.isnan(flat), 0.0, flat) if base == "nansum" else flat
        y = total(flat, way)
        n = flat.shape[0]
        if base == "mean" and n:
            y = y / n if way else y * torch.tensor(1.0 / n, dtype=torch.float32)
        return y.reshape(first.shape).to(first.dtype) if n else None
    if base == "prod":
        dim = _argument(call, 1, "dim") if "int" in call.op else None
        flat = _front(x.to(acc) if x.dtype in ROUNDED else x.to(first.dtype).to(acc), _dims(x, dim))
        while flat.shape[0] > 1:
            half = (flat.shape[0] + 1) // 2
            flat = torch.cat((flat[: flat.shape[0] - half] * flat[half:], flat[flat.shape[0] - half : half]))
        return flat[0].reshape(first.shape).to(first.dtype, copy=True) if flat.shape[0] else None
    if base in ("norm", "linalg_vector_norm"):
        p = _argument(call, 1, "ord", _argument(call, 1, "p", 2))
        if p is not None and float(p) in (math.inf, -math.inf):
            return None  # returns one modulus, and gradient formulas search for the element that has it
        return once(call, plain) if x.is_complex() else _norm(call, plain, x.to(acc), way)
    if base in ("var", "std", "var_mean", "std_mean") and not x.is_complex():
        return _spread(call, plain, x.to(acc), way, "std" in base)
    return once(call, plain)


def _argument(call: Call, position: int, name: str, default: Any = None) -> Any:
    if name in call.kwargs:
        return call.kwargs[name]
    return call.args[position] if position < len(call.args) else default


def _norm(call: Call, plain: Tensor, x: Tensor, way: int) -> Any:
    """Powers of absolute values, their sum, the root; without scaling, so that it overflows where the CPU's does."""
    p, dim = _argument(call, 1, "ord", _argument(call, 1, "p", 2)), _argument(call, 2, "dim")
    p = 2.0 if p is None else float(p)
    if p in (math.inf, -math.inf, 0.0) or not x.numel():
        return once(call, plain)
    flat = _front(x, _dims(x, dim)).abs()
    if flat.shape[0] == 1:
        y = flat[0]  # torch gives the absolute value of one element, on CUDA as well: its square may underflow
    elif p == 2.0:
        y = total(flat * flat, way).sqrt()
    else:
        y = total(flat if p == 1.0 else flat**p, way)
        y = y if p == 1.0 else y ** (1.0 / p)
    return y.reshape(plain.shape).to(plain.dtype)


def _spread(call: Call, plain: Any, x: Tensor, way: int, root: bool) -> Any:
    """Variance in two passes: the mean, then the squared differences."""
    first = plain if isinstance(plain, Tensor) else plain[0]
    flat = _front(x, _dims(x, _argument(call, 1, "dim")))
    n, correction = flat.shape[0], call.kwargs.get("correction")
    degrees = n - (1 if correction is None else correction)
    if n < 2 or degrees <= 0:
        return None
    mean = total(flat, way) / n
    off = flat - mean
    y = total(off * off, 1 - way) / degrees
    y = (y.sqrt() if root else y).reshape(first.shape).to(first.dtype)
    return y if isinstance(plain, Tensor) else (y, mean.reshape(first.shape).to(plain[1].dtype))


def _scan(call: Call, plain: Any) -> Any:
    """Prefix sums by doubling (Hillis and Steele), as on a GPU: each step adds the element twice as far back as the last step
    did."""
    x, base = call.args[0], call.op.partition(".")[0].rstrip("_")
    if base not in ("cumsum", "cumprod") or plain.dtype not in ROUNDED or not x.dim() or pick(call, 4) == 3:
        return once(call, plain)
    acc = wide_enough(plain.dtype)
    y = (x.to(acc) if x.dtype in ROUNDED else x.to(plain.dtype).to(acc)).movedim(call.args[1], 0)
    step = 1
    while step < y.shape[0]:
        head, tail = y[:step], (y[step:] + y[:-step] if base == "cumsum" else y[step:] * y[:-step])
        y, step = torch.cat((head, tail)), 2 * step
    return y.movedim(0, call.args[1]).to(plain.dtype)


# --------------------------------------------------------------------------------------------------- products of matrices


def product(a: Tensor, b: Tensor, way: int) -> Tensor:
    """a @ b of matrices or stacks, in float32 or complex64. way 0: in double, rounded once; 1: the shared dimension in pieces,
    the last first (split K); 2: a chain of fused multiply-adds."""
    k = a.shape[-1]
    if way == 0 or k < 2:
        wide = torch.complex128 if a.is_complex() else torch.float64
        return (a.to(wide) @ b.to(wide)).to(a.dtype)
    if way == 1 or k > CHAIN or a.is_complex():
        piece = max(1, math.ceil(k / 4))
        starts = list(range(0, k, piece))[::-1]
        result = a[..., starts[0] :] @ b[..., starts[0] :, :]
        for s in starts[1:]:
            result = result + a[..., s : s + piece] @ b[..., s : s + piece, :]
        return result
    wide_a, wide_b = a.to(torch.float64).numpy(), b.to(torch.float64).numpy()
    with np.errstate(all="ignore"):
        chain = (wide_a[..., :1] * wide_b[..., :1, :]).astype(np.float32)
        for i in range(1, k):
            chain = (chain + wide_a[..., i : i + 1] * wide_b[..., i : i + 1, :]).astype(np.float32)
    return torch.from_numpy(chain)


def _product(call: Call, plain: Any, way: int) -> Any:
    if _faint(call):
        return _exactly(call, plain)
    base = call.op.partition(".")[0].rstrip("_")
    factors = call.args[: {"linear": 2, "linear_backward": 3}.get(base, 0)]
    if base == "addr" or any(t.dim() < 2 for t in factors):
        return once(call, plain)
    if base == "linear_backward":
        return _linear_backward(call, plain, way)
    if plain.dtype not in ROUNDED:
        return None
    acc = wide_enough(plain.dtype)
    args = [a.to(acc) if isinstance(a, Tensor) else a for a in call.args]
    if base in ("mm", "bmm"):
        return product(args[0], args[1], way).to(plain.dtype)
    if base in ("dot", "vdot"):
        left = args[0].conj() if base == "vdot" else args[0]
        return product(left.reshape(1, -1), args[1].reshape(-1, 1), way)[0, 0].to(plain.dtype)
    if base == "linear":
        x, w = args[:2]
        bias = args[2] if len(args) > 2 else None
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        y = product(rows, w.t(), way)
        return (y if bias is None else _fused(y, 1, bias, 1)).reshape(plain.shape).to(plain.dtype)
    added, a, b = args[:3]
    alpha, beta = call.kwargs.get("alpha", 1), call.kwargs.get("beta", 1)
    if alpha == 0 or not a.shape[-1]:
        return None  # the CPU's own kernels differ in whether NaN times 0 counts
    if base == "addmv":
        p = product(a, b.unsqueeze(-1), way).squeeze(-1)
    elif base == "addbmm":
        p = total(product(a, b, way), way % 2)
    else:
        p = product(a, b, way)
    return _fused(p, alpha, added, beta).to(plain.dtype)


def _fused(p: Tensor, alpha: Any, c: Tensor, beta: Any) -> Tensor:
    """alpha p + beta c, rounded once; c is not read if beta is 0."""
    wide = torch.complex128 if p.is_complex() else torch.float64
    y: Tensor = p.to(wide) * alpha
    y = y + c.to(wide) * beta if beta != 0 else y
    return y.to(p.dtype)


def _linear_backward(call: Call, plain: Any, way: int) -> Any:
    x, g, w = call.args[:3]
    acc = wide_enough(x.dtype)
    rows = math.prod(g.shape[:-1])
    g2, x2, w2 = g.to(acc).reshape(rows, g.shape[-1]), x.to(acc).reshape(rows, x.shape[-1]), w.to(acc)
    gradients: tuple[Callable[[], Tensor], ...] = (
        functools.partial(product, g2, w2.conj(), way),
        functools.partial(product, g2.t(), x2.conj(), way),
        functools.partial(total, g2, way % 2),
    )
    return tuple(None if p is None else make().reshape(p.shape).to(p.dtype) for p, make in zip(plain, gradients))


# ----------------------------------------------------------------------------------------------------------- convolutions


def _convolution(call: Call, plain: Any) -> Any:
    """Input channels in pieces, the last first; gradients with batch and output channels reversed."""
    backward = "backward" in call.op
    x, w = (call.args[1], call.args[2]) if backward else (call.args[0], call.args[1])
    if backward:
        call.args[2] = w = _sure(w)
    if _faint(call):
        return _exactly(call, plain)
    if pick(call, 2) == 0 or call.args[8] != 1 or x.is_complex():
        return _in_one(call, plain)
    half = IN_FLOAT32 if x.dtype in HALVES else {}
    if not backward:
        transposed = call.args[6]
        channels = w.shape[0 if transposed else 1]
        if channels < 2:
            return _in_one(call, plain)
        bias, acc = call.args[2], wide_enough(x.dtype)
        middle = (channels + 1) // 2
        result: Any = None
        for lo, hi in ((middle, channels), (0, middle)):
            swap: dict[int, Any] = {
                id(x): x.to(acc).narrow(1, lo, hi - lo),
                id(w): w.to(acc).narrow(0 if transposed else 1, lo, hi - lo),
            }
            if bias is not None:
                swap[id(bias)] = None
            part = rerun(call, half, swap)
            result = part if result is None else result + part
        if bias is not None:
            result = _fused(result, 1, bias.to(acc).view(-1, *[1] * (w.dim() - 2)).expand_as(result), 1)
        return result.to(plain.dtype)
    g, acc, transposed = call.args[0], wide_enough(x.dtype), call.args[6]
    swap = {id(g): g.to(acc).flip((0, 1)), id(x): x.to(acc).flip(0), id(w): _sure(w.to(acc).flip(1 if transposed else 0))}
    gx, gw, gb = rerun(call, half, swap)
    turned = (
        None if gx is None else gx.flip(0),
        None if gw is None else gw.flip(1 if transposed else 0),
        None if gb is None else gb.flip(0),
    )
    return tuple(None if t is None or p is None else t.to(p.dtype) for t, p in zip(turned, plain))


def _sure(w: Tensor) -> Tensor:
    """A channels_last weight whose sides of length 1 also have channels_last strides. Otherwise, with a channels_last image,
    the CPU's own double kernel of transposed convolutions takes the weight for contiguous and refuses it (torch 2.13)."""
    last = torch.channels_last
    return w.clone(memory_format=last) if w.dim() == 4 and w.is_contiguous(memory_format=last) else w


def _in_one(call: Call, plain: Any) -> Any:
    """`once`, but half types in double: for channels-last operands in groups the CPU's own float32 kernel is wrong (torch 2.13,
    a kernel of 1 x 17 with permuted weights)."""
    return _exactly(call, plain) if any(t.dtype in HALVES for t in call.operands) else once(call, plain)


def _ways(answer: Callable[[Call, Any, int], Any]) -> Callable[[Call, Any], Any]:
    """The first of the ways, starting from one chosen by the call, whose bits differ from the CPU's; if none does, the exact
    result rounded once."""

    def unequal(call: Call, plain: Any) -> Any:
        first = pick(call, 3)
        ways = [functools.partial(answer, call, plain, (first + k) % 3) for k in range(3)]
        if (probe := ways[0]()) is None:
            return None
        return unlike(plain, lambda: probe, *ways[1:], lambda: once(call, plain))

    return unequal


def _or_once(answer: Callable[[Call, Any], Any], whole: Callable[[Call, Any], Any] = once) -> Callable[[Call, Any], Any]:
    return lambda call, plain: unlike(plain, lambda: answer(call, plain), lambda: whole(call, plain))


def _faint(call: Call) -> bool:
    """Whether products of elements may be subnormal in float32, which the CPU's own float32 libraries flush."""
    sizes = (t.abs() for t in call.operands if t.dtype in ROUNDED and t.numel())
    return any(bool(((s > 0) & (s < FAINT)).any()) for s in sizes)


def _exactly(call: Call, plain: Any) -> Any:
    """Everything in double, rounded once to float32 and then to the result's dtype."""
    return narrowed(rerun(call, ALL_IN_DOUBLE), plain, rounding(call))


def faults() -> tuple[Fault, ...]:
    """All faults of this kind."""
    title = "sums in another order, accumulated in float32"
    return (
        honest("order-reduction", REDUCTIONS, _ways(_reduction), title=title),
        honest("order-scan", SCANS, _or_once(_scan), title=title),
        honest("order-product", PRODUCTS, _ways(_product), title=title, limit=finite_alike),
        honest("order-convolution", CONVOLUTIONS, _or_once(_convolution, _in_one), title=title, limit=finite_alike),
        honest("order-transform", TRANSFORMS, once, title=title),
    )
