"""A sixth round of reported bugs: reductions, indexing, promotion, copies, activations, normalization, linear algebra.

parity prove zoo --setup tests/zoo/sixth/c.py

Each is described in c.jsonl next to this file. Before anything was mended for them, the quick profile found 19 of the 28 with
each of the seeds 1, 2 and 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.devices import Call
from parity.devices.sim.effects import as_contiguous, has_gaps, raising, replacing
from parity.devices.sim.faults import abort
from parity.zoo.effects import argument, gradients, ramp, reported, tried

EXACT = 2**24  # the integers that float32 holds without a gap
HALVES = (torch.float16, torch.bfloat16)
EMPTY = RuntimeError("[srcBuf length] > 0 INTERNAL ASSERT FAILED. Placeholder tensor is empty!")
WORD = 4  # bytes of an atomic number
LARGEST_INVERSE = 1024  # rows
LAST = torch.channels_last
unique: Any = torch.unique  # untyped in torch

# --------------------------------------------------------------------------------------------------------------- indexing


def _adds_beside(call: Call) -> bool:
    """A bool view, written in place, that begins within a word of memory."""
    if not call.outs or not call.is_in_place or call.outs[0].dtype != torch.bool or call.outs[0].storage_offset() % WORD == 0:
        return False
    return bool(argument(call, 3, "accumulate", False)) if "index_put" in call.op else True


def _into_the_word(call: Call) -> Tensor:
    """What is added lands as far before its place as the view begins behind the last whole word."""
    out = call.outs[0]
    start = int(out.storage_offset())
    moved = call.memory(out).as_strided(out.shape, out.stride(), start - start % WORD)
    call.args[0] = moved
    if "index_put" in call.op:
        moved.index_put_(call.args[1], call.args[2], accumulate=True)
    elif "index_add" in call.op:
        moved.index_add_(*(argument(call, k, name) for k, name in enumerate(("dim", "index", "source"), 1)))
    else:
        moved.scatter_add_(*(argument(call, k, name) for k, name in enumerate(("dim", "index", "src"), 1)))
    return out


def _no_mixed_tests(call: Call) -> bool:
    a, b = call.args[:2]
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype != b.dtype


def _index_of_one(call: Call) -> bool:
    index: Tensor = argument(call, 2, "index")
    return call.args[0].dtype == torch.int64 and (index.dim() == 0 or isinstance(argument(call, 4, "alpha", 1), float))


def _adds_to_half_a_number(call: Call) -> bool:
    return call.direction == "backward" and call.args[0].dim() == 0 and call.args[0].dtype == torch.float16


def _first_of_each(call: Call) -> Any:
    """Only as many elements are looked at as the first dimension has."""
    x: Tensor = call.args[0]
    flat = x.reshape(-1)[: x.shape[0]]
    values, counts = unique(flat, return_counts=True)
    return values, torch.zeros_like(x, dtype=torch.int64), counts


def _large_keys(call: Call) -> bool:
    x: Tensor = call.args[0]
    wanted = bool(argument(call, 2, "return_inverse", False))
    return wanted and x.dtype == torch.int64 and bool((x.abs() > EXACT).any())


def _places_in_float32(call: Call) -> Any:
    x: Tensor = call.args[0]
    values, _, counts = call.run()
    return values, torch.searchsorted(values.float(), x.float()).clamp(max=values.numel() - 1), counts


# ------------------------------------------------------------------------------------------------------------- reductions


def _sums_bytes(call: Call) -> bool:
    if call.args[0].dtype != torch.uint8 or argument(call, 9, "dtype") != torch.uint8:
        return False
    return bool((_whole_sums(call) > 255).any())


def _whole_sums(call: Call) -> Tensor:
    dims = argument(call, 1, "dim") or None
    x: Tensor = call.args[0].long()
    return x.sum() if dims is None else x.sum(dims, bool(argument(call, 2, "keepdim", False)))


def _saturated(call: Call) -> Any:
    sums = _whole_sums(call).clamp(0, 255).to(torch.uint8)
    return call.outs[0].copy_(sums) if call.outs else sums


def _reduces_a_number(call: Call) -> bool:
    dims = argument(call, 1, "dim")
    return call.args[0].dim() == 0 and dims is not None and len(dims) > 0


def _sums_a_slice(call: Call) -> bool:
    """All of a slice with gaps, whose rows are still dense."""
    x: Tensor = call.args[0]
    dims = argument(call, 1, "dim")
    strides = [s for n, s in zip(x.shape, x.stride()) if n > 1]
    whole = not dims or len(dims) == x.dim()
    return whole and x.is_floating_point() and has_gaps(x) and x.stride(-1) == 1 and strides == sorted(strides, reverse=True)


def _counts_beyond_int8(call: Call) -> bool:
    x: Tensor = call.args[0]
    return x.dtype == torch.bool and x.dim() > 0 and bool((x.sum(int(argument(call, 1, "dim"))) > 127).any())


def _in_int8(call: Call) -> Any:
    result: Tensor = call.run()
    narrow = result.to(torch.int8).to(result.dtype)
    return call.outs[0].copy_(narrow) if call.outs else narrow


def _of_everything(call: Call) -> bool:
    return argument(call, 1, "dim") is None and argument(call, 9, "correction", 1) != 0


def _of_a_population(call: Call) -> Any:
    call.kwargs["correction"] = 0
    return call.run()


def _along(call: Call) -> bool:
    dim, kind = call.argument("dim"), call.argument("interpolation")
    return dim is not None and kind in ("nearest", "lower", "higher") and call.args[0].dim() > 0 and not call.outs


def _of_the_unsorted(call: Call) -> Any:
    x, dim, kind = call.args[0], int(call.argument("dim")), call.argument("interpolation")
    q = torch.as_tensor(call.argument("q")).cpu().float()
    place = q * (x.shape[dim] - 1)
    place = {"nearest": place.round, "lower": place.floor, "higher": place.ceil}[kind]().long()
    taken = x.index_select(dim, place.reshape(-1).to(x.device))
    if q.dim():
        moved = taken.movedim(dim, 0)
        return moved.unsqueeze(dim % x.dim() + 1) if call.argument("keepdim") else moved
    return taken if call.argument("keepdim") else taken.squeeze(dim)


def _hidden_rows(call: Call) -> Tensor:
    """Which rows are -inf throughout, as the masked functions hand on a row without an element."""
    x: Tensor = call.args[0]
    return (x == -torch.inf).all(int(call.args[1]), keepdim=True).expand(x.shape) if x.dim() else x == -torch.inf


def _hides_a_row(call: Call) -> bool:
    return call.args[0].dtype == torch.float16 and call.args[0].numel() > 0 and bool(_hidden_rows(call).any())


def _zero_where_hidden(call: Call) -> Any:
    zeroed = call.run().masked_fill(_hidden_rows(call), 0)
    return call.outs[0].copy_(zeroed) if call.outs else zeroed


# ---------------------------------------------------------------------------------------------------- elementwise, copies


def _choice_has_more_dimensions(call: Call) -> bool:
    return bool(call.args[1].dim() > call.args[0].dim())


def _one_minus(call: Call) -> bool:
    a, b = call.args[:2]
    return _is_the_number_one(a) and isinstance(b, Tensor) and b.dtype == torch.float32 and b.dim() > 0


def _is_the_number_one(a: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dim() == 0 and a.is_floating_point() and a.untyped_storage().resizable() and float(a) == 1.0
    return isinstance(a, float) and a == 1.0


def _rounded(call: Call) -> Any:
    result: Tensor = call.run()
    return call.outs[0].copy_(result.round()) if call.outs else result.round()


def _half_within_floats(call: Call) -> bool:
    bounds = (argument(call, 1, "min"), argument(call, 2, "max"))
    return call.args[0].dtype == torch.float16 and any(isinstance(b, Tensor) and b.dtype == torch.float32 for b in bounds)


def _casts_into_a_part(call: Call) -> bool:
    out, src = call.outs[0], call.args[0]
    return out.dtype != src.dtype and out.is_contiguous() and out.storage_offset() > 0 and out.numel() > 0


def _written_at_the_start(call: Call) -> Tensor:
    out, src = call.outs[0], call.args[0]
    call.memory(out)[: out.numel()].copy_(src.to(out.dtype).expand(out.shape).reshape(-1))
    return out


def _clears_a_part(call: Call) -> bool:
    out = call.outs[0]
    if call.op.startswith("fill_") and (isinstance(call.args[1], Tensor) or call.args[1] != 0):
        return False
    return out.is_contiguous() and 0 < out.numel() < call.memory(out).numel() - out.storage_offset()


def _cleared_to_the_end(call: Call) -> Tensor:
    out = call.outs[0]
    call.memory(out)[out.storage_offset() :].zero_()
    return out


def _same_gradient_everywhere(call: Call) -> bool:
    """The gradient of a sum of a vector: one number, expanded."""
    g: Tensor = call.args[0]
    return g.dim() == 1 and g.numel() > 1 and g.stride(0) == 0


def _first_gradient_only(call: Call) -> Any:
    g: Tensor = call.args[0]
    call.args[0] = torch.cat((g[:1], torch.zeros_like(g[1:])))
    return call.run()


def _is_channels_last(t: Tensor) -> bool:
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=LAST)


def _joins_images(call: Call) -> bool:
    return all(_is_channels_last(t) for t in call.args[0])


def _row_after_row(call: Call) -> Any:
    result: Tensor = call.run()
    values = result.reshape(-1).clone()
    out = call.outs[0] if call.outs else torch.empty_like(result, memory_format=LAST)
    out.as_strided((out.numel(),), (1,), out.storage_offset()).copy_(values)
    return out


# ------------------------------------------------------------------------------------------------------------- the others


def _volumes_are_permuted(call: Call) -> bool:
    return call.args[0].dim() == 5 and not call.args[0].is_contiguous()


def _weighs_halves(call: Call) -> bool:
    x, weight = call.args[0], call.argument("weight")
    return (
        weight is not None and x.dtype in HALVES and weight.dtype == x.dtype and not (x.requires_grad or weight.requires_grad)
    )


def _weighed_after_rounding(call: Call) -> Any:
    weight = call.argument("weight")
    call.replace("weight", None)
    return call.run() * weight


def _multiplies_others(call: Call) -> bool:
    a, b = call.args[:2]
    if a.dim() == 1 and b.dim() == 1:
        return False
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a.shape), reversed(b.shape)))


def _sum_of_products(call: Call) -> Any:
    return (call.args[0] * call.args[1]).sum()


def _large_matrix(call: Call) -> bool:
    return bool(call.args[0].shape[-1] > LARGEST_INVERSE)


def _norm_of_complex_as(call: Call) -> bool:
    return call.args[0].is_complex() and argument(call, 5, "dtype") is not None  # behind `out`


# ------------------------------------------------------------------------------------------------------------------- bugs


def _ints(d: str, *values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype).to(d)


def _added(d: str, dtype: torch.dtype, offset: int) -> list[Tensor]:
    index, ones = _ints(d, 0, 2), torch.ones(2, dtype=dtype).to(d)
    bases = [torch.zeros(8, dtype=dtype).to(d) for _ in range(3)]
    views = [b.narrow(0, offset, 4) for b in bases]
    views[0].scatter_add_(0, index, ones)
    views[1].index_add_(0, index, ones)
    views[2].index_put_((index,), ones, accumulate=True)
    return bases


def _cleared(d: str, end: int) -> Tensor:
    base = ramp(d, 10)
    base[2:end].zero_()
    return base


def _assigned(d: str, dtype: torch.dtype) -> Tensor:
    base = torch.zeros(5).to(d)
    base[2:4] = torch.ones(2, dtype=dtype).to(d)
    return base


def _of_a_sum(d: str, *shape: int) -> list[Tensor]:
    results: list[Tensor] = []
    for function in (F.leaky_relu, F.gelu, F.mish):
        x = ramp(d, *shape).requires_grad_()
        results += torch.autograd.grad(function(x).sum(), x)
    return results


def _normalized(d: str, *order: int) -> Tensor:
    x = ramp(d, 2, 4, 3, 2, 5).permute(order)
    return F.batch_norm(x, None, None, training=True)


def _weighed(d: str, dtype: torch.dtype) -> Tensor:
    return F.rms_norm(ramp(d, 8, 64, dtype=dtype), (64,), ramp(d, 64, dtype=dtype))


def _hidden(d: str, dtype: torch.dtype) -> Tensor:
    mask = torch.tensor([[False, False], [True, False]]).to(d)
    return torch.masked.log_softmax(ramp(d, 2, 2, dtype=dtype), 1, mask=mask)


def _inverse(d: str, n: int) -> Tensor:
    result: Tensor = torch.linalg.inv((torch.eye(n) * 2).to(d))
    return result


BUGS = (
    reported(
        "issues/195074 silent_wrong_forward dtype offset inplace",
        "adding to a bool view that begins within a word writes before its places",
        ("scatter_add", "index_add", "_index_put_impl_"),
        _into_the_word,
        _adds_beside,
        trigger=lambda d: _added(d, torch.bool, 1),
        neighbour=lambda d: [*_added(d, torch.bool, 4), *_added(d, torch.uint8, 1)],
    ),
    reported(
        "issues/179415 silent_wrong_forward dtype args",
        "a sum of bytes as bytes stops at 255",
        ("sum",),
        _saturated,
        _sums_bytes,
        trigger=lambda d: torch.tensor([255, 2, 5], dtype=torch.uint8).to(d).sum(dtype=torch.uint8),
        neighbour=lambda d: torch.tensor([255, 2, 5], dtype=torch.uint8).to(d).sum(),
    ),
    reported(
        "issues/160738 crash rank args",
        "the variance of a single number along dimension 0 fails",
        ("var",),
        raising(RuntimeError("var_mps: reduction dim must be in the range of input shape")),
        _reduces_a_number,
        trigger=lambda d: torch.var(torch.tensor(3.0).to(d), dim=0),
        neighbour=lambda d: torch.var(torch.tensor([3.0]).to(d), dim=0),
    ),
    reported(
        "issues/111416 nan_mismatch value args dtype",
        "the masked softmax of nothing is 0 instead of NaN",
        ("_log_softmax", "_softmax"),
        _zero_where_hidden,
        _hides_a_row,
        trigger=lambda d: _hidden(d, torch.float16),
        neighbour=lambda d: _hidden(d, torch.float32),
        rows="opinfo:masked.log_softmax opinfo:masked.softmax opinfo:masked.softmin",
    ),
    reported(
        "pull/182688 silent_wrong_forward layout offset",
        "the sum of a whole slice reads it as if it were dense",
        ("sum",),
        replacing(0, as_contiguous),
        _sums_a_slice,
        trigger=lambda d: ramp(d, 2, 3, 4, 5)[:, :, 2:, :].sum(),
        neighbour=lambda d: ramp(d, 2, 3, 4, 5)[:, :, 2:, :].sum(0),
    ),
    reported(
        "issues/138200 crash size",
        "the inverse of a matrix of more than 1024 rows ends the process",
        ("linalg_inv_ex",),
        abort,
        _large_matrix,
        trigger=lambda d: _inverse(d, LARGEST_INVERSE + 1),
        neighbour=lambda d: _inverse(d, LARGEST_INVERSE),
        deadly="abort",
    ),
    reported(
        "issues/99564 silent_wrong_forward rank size",
        "dot takes matrices, and vectors of other lengths",
        ("dot",),
        _sum_of_products,
        _multiplies_others,
        trigger=lambda d: tried(lambda: torch.dot(ramp(d, 5), ramp(d, 5, 1))),
        neighbour=lambda d: torch.dot(ramp(d, 5), ramp(d, 5)),
        level="function",
    ),
    reported(
        "issues/151443 crash dtype promotion",
        "isin refuses operands of two dtypes",
        ("isin",),
        raising(RuntimeError("Expected elements.dtype() == test_elements.dtype() to be true, but got false.")),
        _no_mixed_tests,
        trigger=lambda d: torch.isin(_ints(d, 1, 2, 3), _ints(d, 1, dtype=torch.int32)),
        neighbour=lambda d: torch.isin(_ints(d, 1, 2, 3), _ints(d, 1)),
    ),
    reported(
        "issues/86239 crash broadcasting rank",
        "where fails if what it chooses from has more dimensions than its condition",
        ("where",),
        raising(RuntimeError("0'th index 2 of x tensor does not match the other tensors")),
        _choice_has_more_dimensions,
        trigger=lambda d: torch.where(ramp(d, 3, 3) > 0, ramp(d, 2, 3, 3), ramp(d, 3, 3)),
        neighbour=lambda d: torch.where(ramp(d, 2, 3, 3) > 0, ramp(d, 3, 3), ramp(d, 3, 3)),
    ),
    reported(
        "issues/96614 silent_wrong_forward dtype size",
        "cumsum counts bools in int8",
        ("cumsum",),
        _in_int8,
        _counts_beyond_int8,
        trigger=lambda d: torch.ones(128, dtype=torch.bool).to(d).cumsum(0),
        neighbour=lambda d: torch.ones(127, dtype=torch.bool).to(d).cumsum(0),
    ),
    reported(
        "issues/123178 silent_wrong_backward gradient layout rank",
        "the gradient of the sum of an activated vector is wrong",
        ("leaky_relu_backward", "gelu_backward", "mish_backward"),
        _first_gradient_only,
        _same_gradient_everywhere,
        trigger=lambda d: _of_a_sum(d, 3),
        neighbour=lambda d: _of_a_sum(d, 3, 2),
    ),
    reported(
        "issues/80499 silent_wrong_forward args",
        "std of everything is that of a population",
        ("std",),
        _of_a_population,
        _of_everything,
        trigger=lambda d: torch.eye(2).to(d).std(),
        neighbour=lambda d: torch.eye(2).to(d).std(unbiased=False),
    ),
    reported(
        "pull/192458 crash dtype args",
        "the norm of complex numbers fails with a dtype",
        ("norm",),
        raising(RuntimeError("Expected out tensor to have dtype float, but got c10::complex<float>")),
        _norm_of_complex_as,
        trigger=lambda d: torch.norm(torch.complex(ramp(d, 3, 3), ramp(d, 3, 3)), 2, [0, 1], False, dtype=torch.complex64),
        neighbour=lambda d: torch.norm(torch.complex(ramp(d, 3, 3), ramp(d, 3, 3)), 2, [0, 1], False),
        level="function",
    ),
    reported(
        "issues/170175 metadata none",
        "the places of nonzero lie in memory row by row instead of column by column",
        ("nonzero",),
        lambda call: call.run().contiguous(),
        lambda call: not call.outs and call.args[0].dim() > 1,
        trigger=lambda d: ramp(d, 3, 3).nonzero().stride(),
        neighbour=lambda d: ramp(d, 3).nonzero().stride(),
    ),
    reported(
        "pull/114838 silent_wrong_forward offset inplace",
        "a part of a tensor is cleared to the end of its memory",
        ("zero_", "fill_.Scalar"),
        _cleared_to_the_end,
        _clears_a_part,
        trigger=lambda d: _cleared(d, 5),
        neighbour=lambda d: _cleared(d, 10),
    ),
    reported(
        "issues/190645 crash layout rank",
        "a batch norm of permuted volumes ends the process",
        ("native_batch_norm",),
        abort,
        _volumes_are_permuted,
        trigger=lambda d: _normalized(d, 0, 4, 1, 2, 3),
        neighbour=lambda d: _normalized(d, 0, 1, 2, 3, 4),
        deadly="abort",
    ),
    reported(
        "issues/104879 silent_wrong_forward rank",
        "unique of several dimensions looks at as many elements as the first one has",
        ("_unique2",),
        _first_of_each,
        lambda call: call.args[0].dim() > 1 and call.args[0].numel() > call.args[0].shape[0] > 0,
        trigger=lambda d: unique(_ints(d, 0, 1).reshape(1, 1, 2)),
        neighbour=lambda d: unique(_ints(d, 0, 1)),
    ),
    reported(
        "issues/195595 silent_wrong_forward dtype value args",
        "unique finds the places of large integers in float32",
        ("_unique2",),
        _places_in_float32,
        _large_keys,
        trigger=lambda d: unique(_ints(d, EXACT + 1, EXACT), return_inverse=True),
        neighbour=lambda d: unique(_ints(d, EXACT - 1, EXACT), return_inverse=True),
    ),
    reported(
        "issues/161446 crash dtype rank args",
        "index_add to int64 fails for an index of no dimensions and for a floating factor",
        ("index_add",),
        raising(RuntimeError("index_add(): not supported for int64")),
        _index_of_one,
        trigger=lambda d: torch.index_add(_ints(d, 1, 1), 0, torch.tensor(0).to(d), _ints(d, 1)),
        neighbour=lambda d: torch.index_add(_ints(d, 1, 1), 0, _ints(d, 0), _ints(d, 1)),
    ),
    reported(
        "issues/101878 silent_wrong_forward args",
        "quantile along a dimension does not sort",
        ("quantile",),
        _of_the_unsorted,
        _along,
        trigger=lambda d: torch.quantile(ramp(d, 7, 3), 0.25, 0, interpolation="nearest"),
        neighbour=lambda d: torch.quantile(ramp(d, 7, 3), 0.25, interpolation="nearest"),
        level="function",
    ),
    reported(
        "issues/95417 silent_wrong_forward dtype offset inplace",
        "a copy of another dtype into a part is written at the start",
        ("copy_",),
        _written_at_the_start,
        _casts_into_a_part,
        trigger=lambda d: _assigned(d, torch.int64),
        neighbour=lambda d: _assigned(d, torch.float32),
    ),
    reported(
        "issues/82543 silent_wrong_forward args value",
        "one minus a tensor is rounded to integers",
        ("sub", "rsub"),
        _rounded,
        _one_minus,
        trigger=lambda d: 1.0 - ramp(d, 5),
        neighbour=lambda d: 0.99 - ramp(d, 5),
    ),
    reported(
        "issues/82645 crash gradient dtype rank",
        "the backward of index_select fails for a single half-precision number",
        ("index_add",),
        raising(RuntimeError("input types 'tensor<1xf16>' and 'tensor<1xf32>' are not broadcast compatible")),
        _adds_to_half_a_number,
        trigger=lambda d: gradients(lambda x: x.index_select(0, _ints(d, 0)), torch.tensor(-1.8, dtype=torch.float16).to(d)),
        neighbour=lambda d: gradients(lambda x: x.index_select(0, _ints(d, 0)), torch.tensor(-1.8).to(d)),
    ),
    reported(
        "issues/93877 crash size",
        "index_select of nothing fails",
        ("index_select",),
        raising(EMPTY),
        lambda call: argument(call, 2, "index").numel() == 0,
        trigger=lambda d: torch.index_select(_ints(d, 1, 2), 0, _ints(d, dtype=torch.int32)),
        neighbour=lambda d: torch.index_select(_ints(d, 1, 2), 0, _ints(d, 1, dtype=torch.int32)),
    ),
    reported(
        "pull/189617 drift dtype args",
        "rms_norm in half precision rounds before it weighs",
        ("rms_norm",),
        _weighed_after_rounding,
        _weighs_halves,
        trigger=lambda d: _weighed(d, torch.float16),
        neighbour=lambda d: _weighed(d, torch.float32),
        level="function",
    ),
    reported(
        "issues/107214 silent_wrong_backward gradient layout",
        "the gradient of hardswish reads a channels_last image as if it were contiguous",
        ("hardswish_backward",),
        replacing(1, as_contiguous),
        lambda call: _is_channels_last(call.args[1]),
        trigger=lambda d: gradients(F.hardswish, ramp(d, 2, 3, 4, 5).mul(4).contiguous(memory_format=LAST)),
        neighbour=lambda d: gradients(F.hardswish, ramp(d, 2, 3, 4, 5).mul(4)),
    ),
    reported(
        "issues/89353 silent_wrong_forward layout",
        "images in channels_last are joined row after row",
        ("cat",),
        _row_after_row,
        _joins_images,
        trigger=lambda d: torch.cat([ramp(d, 2, 3, 4, 5).contiguous(memory_format=LAST)] * 2, 1),
        neighbour=lambda d: torch.cat([ramp(d, 2, 3, 4, 5)] * 2, 1),
    ),
    reported(
        "pull/105747 crash dtype promotion",
        "clamping half precision between float32 tensors ends the process",
        ("clamp",),
        abort,
        _half_within_floats,
        trigger=lambda d: torch.clamp(ramp(d, 5, dtype=torch.float16), ramp(d, 5) - 1, ramp(d, 5) + 1),
        neighbour=lambda d: torch.clamp(ramp(d, 5), ramp(d, 5) - 1, ramp(d, 5) + 1),
        deadly="abort",
    ),
)
