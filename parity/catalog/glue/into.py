"""Forms of operators that no public function of torch calls. The catalog never imports this module.

The out= forms write into dense, pre-filled destinations. They are those of operators without a public out=, and those whose CPU
kernels refuse strided destinations or fill them wrongly (torch 2.13).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

UNTOUCHED = 77  # value of destinations before the call


def _filled(like: Tensor) -> Tensor:
    return torch.full(like.shape, UNTOUCHED, dtype=like.dtype, device=like.device)


def _fresh(args: Any) -> tuple[Any, ...]:
    return tuple(a.clone() if isinstance(a, Tensor) else a for a in args)


def _written(operator: Any, names: tuple[str, ...], *args: Any, **named: Any) -> Any:
    """The contents of the destinations after the out= form. Their shapes are those of the results of the plain form."""
    result = operator(*_fresh(args), **named)
    into = dict(zip(names, map(_filled, result if isinstance(result, (tuple, list)) else (result,)), strict=True))
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
    """The maxima of adaptive_max_pool2d.out, and the elements at its indices (the index of equal maxima is unspecified)."""
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
    """histogram.bins_tensor_out with the edges sorted first."""
    return _written(torch.ops.aten.histogram, ("hist", "bin_edges"), x, edges.sort().values, **named)


def histogram_between(x: Tensor, edges: tuple[Tensor, ...], **named: Any) -> Tensor:
    """The counts of histogramdd with the edges of each coordinate sorted first."""
    counted: Tensor = torch.ops.aten._histogramdd_from_bin_tensors(x, [e.sort().values for e in edges], **named)
    return counted


def nonzero_static(x: Tensor, **named: Any) -> Any:
    """nonzero_static.out."""
    return _written(torch.ops.aten.nonzero_static, ("out",), x, **named)


def triangular_solve(b: Tensor, a: Tensor, **options: Any) -> Tensor:
    """The solution of triangular_solve.X (its second result is device-specific)."""
    solution: Tensor = _written(torch.ops.aten.triangular_solve, ("X", "M"), b, a, **options)[0]
    return solution


def cholesky_inverse(a: Tensor, upper: bool = False) -> Any:
    """cholesky_inverse.out of the Cholesky factor."""
    return _written(torch.ops.aten.cholesky_inverse, ("out",), torch.linalg.cholesky(a, upper=upper), upper)


def lu(a: Tensor, **named: Any) -> Any:
    """linalg_lu.out."""
    return _written(torch.ops.aten.linalg_lu, ("P", "L", "U"), a, **named)


def lu_parts(a: Tensor) -> Any:
    """lu_unpack.out of the operand as if it were LU factors, with fixed pivots."""
    n = min(a.shape[-2:])
    order = torch.arange(1, n + 1, dtype=torch.int32, device=a.device)
    pivots = torch.maximum(order.flip(0), order).expand(*a.shape[:-2], n).contiguous()
    return _written(torch.ops.aten.lu_unpack, ("P", "L", "U"), a, pivots)


def log_sigmoid_forward(x: Tensor) -> Tensor:
    """The result of log_sigmoid_forward.output; its buffer is device-specific."""
    result: Tensor = _written(torch.ops.aten.log_sigmoid_forward, ("output", "buffer"), x)[0]
    return result


def closed_range(like: Tensor, start: float, stop: float, step: float) -> Tensor:
    """range.out in the dtype and on the device of `like`."""
    into = _filled(torch.range(start, stop, step, dtype=like.dtype, device=like.device))
    return torch.range(start, stop, step, out=into)


def eye(like: Tensor, n: int) -> Tensor:
    """eye.out in the dtype and on the device of `like`."""
    return torch.eye(n, out=_filled(like.new_empty((n, n))))


# ---------------------------------------------------------------------------------------------------------- normalisation

SAVED = ("out", "save_mean", "save_invstd")


def native_batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any) -> tuple[Any, ...]:
    """native_batch_norm.out and the running statistics that it updated (each run gets copies); in evaluation without the saved
    statistics, which some devices leave empty."""
    result = _written(torch.ops.aten.native_batch_norm, SAVED, x, weight, bias, mean, var, training, *rest)
    return (*(result if training else result[:1]), mean, var)


def batch_norm_legit(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> tuple[Any, ...]:
    """_native_batch_norm_legit in training, and the running statistics that it updated."""
    result = torch.ops.aten._native_batch_norm_legit(x, weight, bias, mean, var, True, *rest)
    return (*result, mean, var)


def batch_norm_legit_written(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> tuple[Any, ...]:
    """_native_batch_norm_legit.out in training, and the running statistics that it updated."""
    result = _written(torch.ops.aten._native_batch_norm_legit, SAVED, x, weight, bias, mean, var, True, *rest)
    return (*result, mean, var)


def batch_norm_without(x: Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    """_native_batch_norm_legit.no_stats in training."""
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, weight, bias, True, *rest)


def batch_norm_without_written(x: Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    """_native_batch_norm_legit.no_stats_out in training."""
    return _written(torch.ops.aten._native_batch_norm_legit, SAVED, x, weight, bias, True, *rest)


def batch_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, eps: float) -> Any:
    """The gradient kernel of batch norm in training, given the saved results of its forward."""
    aten = torch.ops.aten
    _, saved, inverse, reserve = aten._batch_norm_with_update(x, weight, weight, mean.clone(), var.clone(), 0.125, eps)
    return aten.batch_norm_backward(grad, x, weight, mean, var, saved, inverse, True, eps, [True] * 3, reserve)


def embedding_bag_dense_backward(
    grad: Tensor, index: Tensor, table: Tensor, offsets: Tensor, mode: int, weights: Tensor | None
) -> Tensor:
    """The gradient kernel of embedding_bag for its table, given the intermediate results of the forward. Sorts the offsets and
    makes the indices dense, because the kernels do not check either."""
    offsets, index = offsets.sort().values, index.contiguous()
    offsets = torch.cat([torch.zeros_like(offsets[:1]), offsets[1:]])
    aten, rows = torch.ops.aten, table.shape[0]
    _, _, sizes, most = aten._embedding_bag(table, index, offsets, False, mode, False, weights)
    # The forward does not compute the bag of each index in every mode.
    bags = torch.searchsorted(offsets, torch.arange(len(index), device=index.device), right=True) - 1
    result: Tensor = aten._embedding_bag_dense_backward(grad, index, bags, sizes, most, rows, False, mode, weights)
    return result


def weight_int4pack_mm(x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor, group: int) -> Tensor:
    """x @ w.T in one kernel, where w is (weight - 8) * scale + zero with one scale and zero for each group of columns in a row,
    and weight has integers of 4 bits. Their packing is device-specific; the CPU has its own operators for it.
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
    """set_ of an empty tensor to another tensor."""
    fresh: Any = x.new_empty(0)
    result: Tensor = fresh.set_(x.clone())
    return result


def set_storage(x: Tensor) -> Tensor:
    """set_ of an empty tensor to a whole storage."""
    return x.new_empty(0).set_(x.clone(memory_format=torch.contiguous_format).untyped_storage())


def set_part(x: Tensor, start: int, size: Any, stride: Any) -> Tensor:
    """set_ of an empty tensor to a part of a storage."""
    return x.new_empty(0).set_(x.clone(memory_format=torch.contiguous_format).untyped_storage(), start, size, stride)


def set_nothing(x: Tensor) -> tuple[Tensor, Tensor]:
    """set_ without arguments, and the tensor that shared memory with it before."""
    other = x.clone()
    shared: Any = other.detach()
    return shared.set_(), other


def is_set_to(x: Tensor) -> tuple[bool, bool]:
    """is_set_to with a tensor on the same memory, and with a copy."""
    y = x.clone()
    return y.is_set_to(y.detach()), y.is_set_to(y.clone())


def resize(x: Tensor, size: Any) -> Tensor:
    """resize_ of a dense copy."""
    return x.clone(memory_format=torch.contiguous_format).resize_(size)


def reshape_alias(x: Tensor, size: Any, stride: Any) -> Tensor:
    """The view that reshape makes, without its checks."""
    result: Tensor = torch.ops.aten._reshape_alias(x.contiguous(), size, stride)
    return result


def copy_from(x: Tensor, resized: bool) -> tuple[Tensor, Tensor]:
    """The copy kernel of devices: a copy on the device, and one to the CPU and back. The CPU has none, and clones."""
    if x.is_cpu:
        return x.clone(), x.clone()
    copy = torch.ops.aten._copy_from_and_resize if resized else torch.ops.aten._copy_from
    on_device, here, back = (torch.empty_like(x, device=d) for d in (x.device, "cpu", x.device))
    copy(x, on_device)
    copy(x, here)
    copy(here, back)
    return on_device, back


# --------------------------------------------------------------------------- operands that lie where the result is written


def copy_within(x: Tensor, dim: int, shift: int) -> Tensor:
    """Copies the front of a dimension further back in the same tensor; torch refuses it if the two parts overlap."""
    n = x.shape[dim] - shift
    return x.narrow(dim, shift, n).copy_(x.narrow(dim, 0, n))


def interleaved(x: Tensor, word: str) -> Tensor:
    """An in-place method of every other element, with its neighbour as operand: same memory, no shared element."""
    n = x.shape[-1] // 2 * 2
    result: Tensor = getattr(x[..., 0:n:2], word)(x[..., 1:n:2])
    return result


def with_itself(x: Tensor, word: str) -> Tensor:
    """An in-place method of x with x as operand."""
    result: Tensor = getattr(x, word)(x)
    return result


def of_neighbours(x: Tensor, word: str, dim: int | tuple[int, ...], shift: int) -> Tensor:
    """A function of two views of one tensor: without the first, and without the last `shift` elements of a dimension; they may
    overlap, as in a difference of neighbours. For several dimensions: the last and the first `shift` elements of each."""
    if isinstance(dim, tuple):
        last = first = x
        for d in dim:
            last, first = last.narrow(d, x.shape[d] - shift, shift), first.narrow(d, 0, shift)
        parts = last, first
    else:
        n = x.shape[dim] - shift
        parts = x.narrow(dim, shift, n), x.narrow(dim, 0, n)
    result: Tensor = getattr(torch, word)(*((parts, dim) if word in ("cat", "stack") else parts))
    return result


def into_itself(x: Tensor, word: str, *rest: Any) -> Tensor:
    """A function of x with out=x."""
    result: Tensor = getattr(torch, word)(x, *rest, out=x)
    return result


def filled_from_itself(x: Tensor, place: int, masked: bool) -> Tensor:
    """Fills x with one of its own elements: everywhere, or where elements differ from it."""
    value = x.select(-1, place)
    while value.dim():
        value = value.select(0, 0)
    return x.masked_fill_(x != value.clone(), value) if masked else x.fill_(value)
