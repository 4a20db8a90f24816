"""Operators by forms of theirs that torch's public functions do not take, with glue. Never imported by the catalog itself.

Their out= forms write into dense destinations that hold something else before: those that the CPU's kernels fill wrongly or
refuse where a destination has strides (torch 2.13), and those that have no public out=.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

UNTOUCHED = 77  # what a destination holds before


def _filled(like: Tensor) -> Tensor:
    return torch.full(like.shape, UNTOUCHED, dtype=like.dtype, device=like.device)


def _fresh(args: Any) -> tuple[Any, ...]:
    return tuple(a.clone() if isinstance(a, Tensor) else a for a in args)


def _written(operator: Any, names: tuple[str, ...], *args: Any, **named: Any) -> Any:
    """What the out= form leaves in destinations of these names, made in the shapes that the plain form gives."""
    made = operator(*_fresh(args), **named)
    into = dict(zip(names, map(_filled, made if isinstance(made, (tuple, list)) else (made,)), strict=True))
    operator(*args, **named, **into)
    return tuple(into.values()) if len(into) > 1 else into[names[0]]


# ------------------------------------------------------------------------------------------------------------------ pooling


def avg_pool2d(*args: Any) -> Any:
    """avg_pool2d.out."""
    return _written(torch.ops.aten.avg_pool2d, ("out",), *args)


def avg_pool3d(*args: Any) -> Any:
    """avg_pool3d.out."""
    return _written(torch.ops.aten.avg_pool3d, ("out",), *args)


def avg_pool2d_backward(*args: Any) -> Any:
    """avg_pool2d_backward.grad_input."""
    return _written(torch.ops.aten.avg_pool2d_backward, ("grad_input",), *args)


def avg_pool3d_backward(*args: Any) -> Any:
    """avg_pool3d_backward.grad_input."""
    return _written(torch.ops.aten.avg_pool3d_backward, ("grad_input",), *args)


def adaptive_avg_pool2d(x: Tensor, size: Any) -> Any:
    """adaptive_avg_pool2d.out."""
    return _written(torch.ops.aten.adaptive_avg_pool2d, ("out",), x, size)


def adaptive_max_pool2d(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    """The maxima of adaptive_max_pool2d.out, and what lies at its indices (which of tied ones it takes is nobody's promise)."""
    most, places = _written(torch.ops.aten.adaptive_max_pool2d, ("out", "indices"), x, size)
    return most, x.flatten(-2).gather(-1, places.flatten(-2)).reshape(most.shape)


def max_unpool2d(x: Tensor, indices: Tensor, kernel: int, stride: int) -> Any:
    """max_unpool2d.out with flat indices."""
    size = [(s - 1) * stride + kernel for s in x.shape[-2:]]
    return _written(torch.ops.aten.max_unpool2d, ("out",), x.contiguous(), indices.reshape(x.shape), size)


def max_unpool3d(x: Tensor, indices: Tensor, kernel: int, stride: int) -> Any:
    """max_unpool3d.out with flat indices."""
    size, dense = [(s - 1) * stride + kernel for s in x.shape[-3:]], x.contiguous()
    return _written(torch.ops.aten.max_unpool3d, ("out",), dense, indices.reshape(x.shape), size, [stride] * 3, [0] * 3)


# ------------------------------------------------------------------------------------------------- counts, places, systems


def histogram(x: Tensor, bins: int, **named: Any) -> Any:
    """histogram.bin_ct_out."""
    return _written(torch.ops.aten.histogram, ("hist", "bin_edges"), x, bins, **named)


def histogram_edges(x: Tensor, edges: Tensor, **named: Any) -> Any:
    """histogram.bins_tensor_out between edges that are sorted first."""
    return _written(torch.ops.aten.histogram, ("hist", "bin_edges"), x, edges.sort().values, **named)


def histogram_between(x: Tensor, edges: tuple[Tensor, ...], **named: Any) -> Tensor:
    """The counts of histogramdd between the edges of each coordinate, which are sorted first."""
    counted: Tensor = torch.ops.aten._histogramdd_from_bin_tensors(x, [e.sort().values for e in edges], **named)
    return counted


def nonzero_static(x: Tensor, **named: Any) -> Any:
    """nonzero_static.out."""
    return _written(torch.ops.aten.nonzero_static, ("out",), x, **named)


def triangular_solve(b: Tensor, a: Tensor, **options: Any) -> Tensor:
    """The solution of triangular_solve.X (what it leaves of A is every device's own affair)."""
    solution: Tensor = _written(torch.ops.aten.triangular_solve, ("X", "M"), b, a, **options)[0]
    return solution


def cholesky_inverse(a: Tensor, upper: bool = False) -> Any:
    """cholesky_inverse.out of the Cholesky factor."""
    return _written(torch.ops.aten.cholesky_inverse, ("out",), torch.linalg.cholesky(a, upper=upper), upper)


def lu(a: Tensor, **named: Any) -> Any:
    """linalg_lu.out."""
    return _written(torch.ops.aten.linalg_lu, ("P", "L", "U"), a, **named)


def lu_parts(a: Tensor) -> Any:
    """lu_unpack.out of the operand as if it were LU factors, with rows that change places in a fixed way."""
    n = min(a.shape[-2:])
    order = torch.arange(1, n + 1, dtype=torch.int32, device=a.device)
    pivots = torch.maximum(order.flip(0), order).expand(*a.shape[:-2], n).contiguous()
    return _written(torch.ops.aten.lu_unpack, ("P", "L", "U"), a, pivots)


def log_sigmoid_forward(x: Tensor) -> Tensor:
    """The result of log_sigmoid_forward.output; its buffer is every device's own affair."""
    made: Tensor = _written(torch.ops.aten.log_sigmoid_forward, ("output", "buffer"), x)[0]
    return made


def closed_range(like: Tensor, start: float, stop: float, step: float) -> Tensor:
    """range.out beside `like`."""
    into = _filled(torch.range(start, stop, step, dtype=like.dtype, device=like.device))
    return torch.range(start, stop, step, out=into)


def eye(like: Tensor, n: int) -> Tensor:
    """eye.out beside `like`."""
    return torch.eye(n, out=_filled(like.new_empty((n, n))))


# ---------------------------------------------------------------------------------------------------------- normalisation

SAVED = ("out", "save_mean", "save_invstd")


def native_batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any) -> tuple[Any, ...]:
    """native_batch_norm.out, with the running statistics that it wrote (each run gets copies); in evaluation without the saved
    statistics, which some devices leave empty there."""
    made = _written(torch.ops.aten.native_batch_norm, SAVED, x, weight, bias, mean, var, training, *rest)
    return (*(made if training else made[:1]), mean, var)


def batch_norm_legit(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> tuple[Any, ...]:
    """_native_batch_norm_legit in training, with the running statistics that it wrote."""
    made = torch.ops.aten._native_batch_norm_legit(x, weight, bias, mean, var, True, *rest)
    return (*made, mean, var)


def batch_norm_legit_written(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> tuple[Any, ...]:
    """_native_batch_norm_legit.out in training, with the running statistics that it wrote."""
    made = _written(torch.ops.aten._native_batch_norm_legit, SAVED, x, weight, bias, mean, var, True, *rest)
    return (*made, mean, var)


def batch_norm_without(x: Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    """_native_batch_norm_legit.no_stats in training."""
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, weight, bias, True, *rest)


def batch_norm_without_written(x: Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    """_native_batch_norm_legit.no_stats_out in training."""
    return _written(torch.ops.aten._native_batch_norm_legit, SAVED, x, weight, bias, True, *rest)


def batch_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, eps: float) -> Any:
    """The gradients of batch norm in training, from what its forward saved."""
    aten = torch.ops.aten
    _, saved, inverse, reserve = aten._batch_norm_with_update(x, weight, weight, mean.clone(), var.clone(), 0.125, eps)
    return aten.batch_norm_backward(grad, x, weight, mean, var, saved, inverse, True, eps, [True] * 3, reserve)


def embedding_bag_dense_backward(
    grad: Tensor, index: Tensor, table: Tensor, offsets: Tensor, mode: int, weights: Tensor | None
) -> Tensor:
    """The gradient kernel of embedding_bag for its table, from what the forward hands to it; offsets are put in order, indices
    side by side, as the kernels take them on trust."""
    offsets, index = offsets.sort().values, index.contiguous()
    offsets = torch.cat([torch.zeros_like(offsets[:1]), offsets[1:]])
    aten, rows = torch.ops.aten, table.shape[0]
    _, _, sizes, most = aten._embedding_bag(table, index, offsets, False, mode, False, weights)
    # The forward leaves the bag of each index out where it does not need it itself.
    bags = torch.searchsorted(offsets, torch.arange(len(index), device=index.device), right=True) - 1
    made: Tensor = aten._embedding_bag_dense_backward(grad, index, bags, sizes, most, rows, False, mode, weights)
    return made


def weight_int4pack_mm(x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor, group: int) -> Tensor:
    """x @ w.T in one kernel, where w is (weight - 8) * scale + zero with one scale and zero for each group of columns in a row,
    and weight holds numbers of 4 bits. How these are packed is every device's own affair; the CPU has operators of its own.
    """
    if x.dtype == torch.float64:
        spread = [t.to(x.dtype).T.repeat_interleave(group, 1) for t in (scales, zeros)]
        return x @ ((weight - 8) * spread[0] + spread[1]).T
    aten, dense = torch.ops.aten, torch.contiguous_format
    x, weight = x.clone(memory_format=dense), weight.clone(memory_format=dense).to(torch.int32)
    both = torch.stack((scales, zeros), -1).contiguous()
    if x.is_cpu:
        packed = aten._convert_weight_to_int4pack_for_cpu(weight, 2)
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group, both)  # type: ignore[no-any-return]  # untyped
    halves = (weight[:, ::2] << 4 | weight[:, 1::2]).to(torch.uint8)
    return aten._weight_int4pack_mm(x, aten._convert_weight_to_int4pack(halves, 8), group, both)  # type: ignore[no-any-return]  # untyped


# ------------------------------------------------------------------------------------------------------ memory and copies


def set_tensor(x: Tensor) -> Tensor:
    """A tensor made to share the memory of another."""
    fresh: Any = x.new_empty(0)
    made: Tensor = fresh.set_(x.clone())
    return made


def set_storage(x: Tensor) -> Tensor:
    """A tensor over a whole storage."""
    return x.new_empty(0).set_(x.clone(memory_format=torch.contiguous_format).untyped_storage())


def set_part(x: Tensor, start: int, size: Any, stride: Any) -> Tensor:
    """A tensor over a part of a storage."""
    return x.new_empty(0).set_(x.clone(memory_format=torch.contiguous_format).untyped_storage(), start, size, stride)


def set_nothing(x: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor that lets go of its memory, and the one that it shared it with."""
    other = x.clone()
    shared: Any = other.detach()
    return shared.set_(), other


def is_set_to(x: Tensor) -> tuple[bool, bool]:
    """Whether tensors share memory, offset, shape and strides: one that does, and one that does not."""
    y = x.clone()
    return y.is_set_to(y.detach()), y.is_set_to(y.clone())


def resize(x: Tensor, size: Any) -> Tensor:
    """A dense tensor that is made smaller, or given another shape."""
    return x.clone(memory_format=torch.contiguous_format).resize_(size)


def reshape_alias(x: Tensor, size: Any, stride: Any) -> Tensor:
    """The view that reshape makes, without its checks."""
    made: Tensor = torch.ops.aten._reshape_alias(x.contiguous(), size, stride)
    return made


def copy_from(x: Tensor, resized: bool) -> tuple[Tensor, Tensor]:
    """The kernel of copies: a copy beside `x`, and one on the CPU and back. The CPU has none."""
    if x.is_cpu:
        return x.clone(), x.clone()
    copy = torch.ops.aten._copy_from_and_resize if resized else torch.ops.aten._copy_from
    beside, here, back = (torch.empty_like(x, device=d) for d in (x.device, "cpu", x.device))
    copy(x, beside)
    copy(x, here)
    copy(here, back)
    return beside, back


# --------------------------------------------------------------------------- operands that lie where the result is written


def copy_within(x: Tensor, dim: int, shift: int) -> Tensor:
    """What stands at the front of a dimension, further back too; torch refuses it where the two parts overlap."""
    n = x.shape[dim] - shift
    return x.narrow(dim, shift, n).copy_(x.narrow(dim, 0, n))


def interleaved(x: Tensor, word: str) -> Tensor:
    """Every other element with its neighbour: one memory, no element in both."""
    n = x.shape[-1] // 2 * 2
    made: Tensor = getattr(x[..., 0:n:2], word)(x[..., 1:n:2])
    return made


def with_itself(x: Tensor, word: str) -> Tensor:
    """The operand is the destination, all of it."""
    made: Tensor = getattr(x, word)(x)
    return made


def of_neighbours(x: Tensor, word: str, dim: int | tuple[int, ...], shift: int) -> Tensor:
    """A function of two parts of one tensor, of which neither is a copy: all but the last elements of a dimension, and all but
    the first. shift: how many; the parts may overlap, as in a difference of neighbours. Of several dimensions: the last
    `shift` elements along each of them, and the first."""
    if isinstance(dim, tuple):
        last = first = x
        for d in dim:
            last, first = last.narrow(d, x.shape[d] - shift, shift), first.narrow(d, 0, shift)
        parts = last, first
    else:
        n = x.shape[dim] - shift
        parts = x.narrow(dim, shift, n), x.narrow(dim, 0, n)
    made: Tensor = getattr(torch, word)(*((parts, dim) if word in ("cat", "stack") else parts))
    return made


def into_itself(x: Tensor, word: str, *rest: Any) -> Tensor:
    """The destination of out= is the operand."""
    made: Tensor = getattr(torch, word)(x, *rest, out=x)
    return made


def filled_from_itself(x: Tensor, place: int, masked: bool) -> Tensor:
    """One of its own elements is what is written, there too: everywhere, or where another one stands."""
    value = x.select(-1, place)
    while value.dim():
        value = value.select(0, 0)
    return x.masked_fill_(x != value.clone(), value) if masked else x.fill_(value)
