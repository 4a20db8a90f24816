"""Bugs of reductions and of running sums, products and sorts.

Bugs of sorting, of the largest few, and of comparing what they give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, is_permuted, raising
from parity.devices.sim.faults import abort, garbage
from parity.zoo.effects import argument, ramp, reported

AXES = 4  # that some kernels of MPS can distinguish, from the last one on


def _dims(call: Call) -> list[int]:
    """The dimensions that a kernel is asked to reduce; none of them where it is to reduce all."""
    dim = argument(call, 1, "dim")
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


def _is_over_everything(call: Call) -> bool:
    return call.op in ("all.all_out", "any.all_out", "max", "min", "max.unary_out", "min.unary_out")


# ---------------------------------------------------------------------------------------------------------- dimensions


def _negative_as_last(call: Call) -> Tensor:
    rank, named = call.args[0].dim(), {k: v for k, v in call.kwargs.items() if k != "out"}
    dims = sorted({(-1 if d < 0 else d) % rank for d in _dims(call)})
    kernel: Any = getattr(torch.ops.aten, call.op.partition(".")[0]).correction
    result: Tensor = kernel(call.args[0], dims, *call.args[2:], **named)
    return result


def _seems_to_have_four(call: Call) -> bool:
    """Dimensions after the fourth are all 1 and were dropped, and a dimension is counted from the end."""
    x = call.args[0]
    return x.dim() > AXES and set(x.shape[AXES:]) == {1} and any(d < 0 for d in _dims(call))


def _counted_from_the_fourth(call: Call) -> Any:
    """What comes out is laid into the memory of the right result from its start; what it does not fill is 0."""
    dims = [d + AXES if d < 0 else d for d in _dims(call)]
    if min(dims) < 0:
        raise IndexError(f"Dimension out of range (expected to be in range of [-4, 3], but got {min(dims) - AXES})")
    right = call.run()
    wrong = torch.sum(call.args[0], sorted(set(dims)), dtype=right.dtype).reshape(-1)[: right.numel()]
    result = torch.zeros(right.numel(), dtype=right.dtype)
    result[: wrong.numel()] = wrong
    return result.reshape(right.shape)


def _axis_out_of_reach(call: Call) -> bool:
    rank: int = call.args[0].dim()
    return rank > AXES and rank - int(argument(call, 1, "dim", -1)) % rank > AXES


def _named_none(call: Call) -> bool:
    """`dim=[]`, which means all of them."""
    dim = argument(call, 1, "dim", call.kwargs.get("axis"))
    return isinstance(dim, (tuple, list)) and not dim


def _negative_refused(call: Call) -> NoReturn:
    raise RuntimeError(f"Expected dim to be between 0 and {call.args[0].dim()} but got {call.args[1]}")


# -------------------------------------------------------------------------------------------------------------- values


def _has_nan(call: Call) -> bool:
    return call.args[0].is_floating_point() and bool(call.args[0].isnan().any())


def _nan_never_wins(call: Call) -> Any:
    worst = -torch.inf if "max" in call.op.partition(".")[0] else torch.inf
    call.args[0] = call.args[0].masked_fill(call.args[0].isnan(), worst)
    return call.run()


def _first_or_zero(call: Call) -> Tensor:
    """The largest is the first, the smallest is 0."""
    x: Tensor = call.args[0]
    return x.reshape(-1)[0].clone() if call.op.startswith("max") else x.new_zeros(())


def _beyond_int32(call: Call) -> bool:
    x = call.args[0]
    if x.dtype != torch.int32 or call.outs[0].dtype != torch.int64:
        return False
    total = torch.sum(x, _dims(call), dtype=torch.int64)
    return bool((total != total.int()).any())


def _summed_as(*dtypes: torch.dtype) -> Callable[[Call], bool]:
    """A running sum in one of these dtypes: the one that is asked for, else the input's."""
    return lambda call: (call.kwargs.get("dtype") or call.args[0].dtype) in dtypes


# ---------------------------------------------------------------------------------------------------------------- bugs


def _ints(device: str, *values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype).to(device)


def _with_nan(device: str) -> Tensor:
    return torch.tensor([[1.0, torch.nan, 3.0], [2.0, 5.0, 4.0]]).to(device)


def _extremes(x: Tensor) -> object:
    return x.max(), x.min(), x.max(1), x.min(1), x.argmax(), x.argmin(1)


def _read_as_dense(call: Call) -> Any:
    """Every strided operand is read as if it were dense from where it begins."""
    dense = [as_contiguous(call, a) if isinstance(a, Tensor) and not a.is_contiguous() else a for a in call.args]
    call.args[:] = dense
    return call.run()


def _sorted(call: Call) -> tuple[Tensor, int]:
    """What is sorted, and along which dimension."""
    x = call.args[0]
    return x, call.kwargs.get("dim", -1) % max(x.dim(), 1)


def _extremum(x: Tensor) -> Tensor:
    """Which elements equal what fills a row up to a power of two: NaN, True, the largest integer."""
    if x.is_floating_point():
        return x.isnan()
    return x if x.dtype == torch.bool else x == torch.iinfo(x.dtype).max


def _ties_with_filling(call: Call) -> bool:
    """Ascending only: the other way round, the filling is the least value."""
    x, dim = _sorted(call)
    size = x.shape[dim] if x.dim() else 1
    if call.kwargs.get("descending", False) or size & (size - 1) == 0:
        return False
    return bool(_extremum(x).any())


def _filling_leaks(call: Call) -> tuple[Tensor, Tensor]:
    """Where a row ends in such an element, its last index is the first place of the filling."""
    x, dim = _sorted(call)
    values, indices = call.run()
    last = indices.select(dim, -1)
    last.masked_fill_(_extremum(values.select(dim, -1)), x.shape[dim])
    return values, indices


def _many_behind(call: Call) -> bool:
    """More than four dimensions from the one that is searched to the end."""
    x, dim = call.args[0], argument(call, 2, "dim", -1)
    return bool(x.dim() - dim % max(x.dim(), 1) > 4)


def _is_expanded(t: Tensor) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride()))


def _hits(d: str, transposed: bool) -> Tensor:
    """Which of the largest three are the ones wanted, one column per row of scores."""
    scores = ramp(d, 4, 7)
    found = scores.topk(3).indices.t()
    wanted = scores.argmax(1).view(1, -1).expand_as(found)
    return found == wanted if transposed else found.contiguous() == wanted


BUGS = (
    reported(
        "issues/104694 silent_wrong_forward size", "all() of nothing is False",
        ("all",), lambda call: call.run().zero_(), lambda call: call.args[0].numel() == 0,
        trigger=lambda d: torch.empty(0, dtype=torch.bool).to(d).all(),
        neighbour=lambda d: torch.ones(1, dtype=torch.bool).to(d).all(),
        rows="all",
    ),
    reported(
        "issues/107116 silent_wrong_forward args", "std and var reduce the last dimension, whichever negative one is named",
        ("std", "var"), _negative_as_last, lambda call: any(d < -1 for d in _dims(call)),
        trigger=lambda d: ramp(d, 2, 3, 4).std(-2),
        neighbour=lambda d: ramp(d, 2, 3, 4).std(-1),
        rows="std var",
    ),
    reported(
        "issues/130295 nan_mismatch value", "the largest and the smallest element, and where they are, disregard NaN",
        ("max", "min", "argmax", "argmin"), _nan_never_wins, _has_nan,
        trigger=lambda d: _extremes(_with_nan(d)),
        neighbour=lambda d: _extremes(ramp(d, 2, 3)),
        rows="max min max_all min_all argmax argmin",
    ),
    reported(
        "issues/132732 silent_wrong_forward rank args size",
        "sum counts a negative dimension from the fourth where there are more and the rest are 1",
        ("sum",), _counted_from_the_fourth, _seems_to_have_four,
        trigger=lambda d: torch.ones(1, 2, 1, 1, 1).to(d).sum(-3),
        neighbour=lambda d: torch.ones(1, 2, 1, 1, 1).to(d).sum(2),
        rows="sum sum_dim",
    ),
    reported(
        "issues/136134 crash rank", "any() of a tensor with more than four dimensions ends the process",
        ("any", "all"), abort, lambda call: _is_over_everything(call) and call.args[0].dim() > AXES,
        trigger=lambda d: ramp(d, 2, 1, 1, 1, 1).isnan().any(),
        neighbour=lambda d: ramp(d, 2, 1, 1, 1).isnan().any(),
        rows="any all",
    ),
    reported(
        "issues/139400 silent_wrong_forward size sequence", "count_nonzero of nothing is whatever lay in memory",
        ("count_nonzero",), lambda call: garbage(call.run()), lambda call: call.args[0].numel() == 0,
        trigger=lambda d: torch.count_nonzero(ramp(d, 2) > torch.empty(0, 2, 2).to(d)),
        neighbour=lambda d: torch.count_nonzero(ramp(d, 2) > ramp(d, 1, 2, 2)),
        rows="count_nonzero",
    ),
    reported(
        "issues/187105 crash rank args",
        "running products and sums, and sorts, end the process on a dimension before the last four",
        ("cumprod", "cumsum", "sort"), abort, _axis_out_of_reach,
        trigger=lambda d: torch.cumprod(torch.ones(2, 1, 1, 1, 2).to(d), 0),
        neighbour=lambda d: (torch.cumprod(torch.ones(2, 2, 1, 1, 2).to(d), 1), torch.sort(ramp(d, 2, 1, 1, 1, 2))),
        rows="cumprod cumsum sort",
    ),
    reported(
        "pull/189464 silent_wrong_forward dtype value", "the int64 sum of int32 values wraps around as int32 does",
        ("sum",), lambda call: call.run().int().long(), _beyond_int32,
        trigger=lambda d: _ints(d, 2**31 - 1, 1, dtype=torch.int32).sum(),
        neighbour=lambda d: _ints(d, 2**31 - 2, 1, dtype=torch.int32).sum(),
        rows="sum sum_dim",
    ),
    reported(
        "pull/82834 crash rank args", "a tensor without dimensions may not be reduced, gathered or scattered along dimension 0",
        ("sum", "mean", "prod", "amax", "amin", "gather", "scatter"),
        raising(IndexError("Dimension specified as 0 but tensor has no dimensions")),
        lambda call: call.args[0].dim() == 0 and bool(_dims(call)),
        trigger=lambda d: torch.tensor(5.0).to(d).sum(0),
        neighbour=lambda d: (torch.tensor(5.0).to(d).sum(), torch.tensor([5.0]).to(d).sum(0)),
        rows="sum sum_dim mean mean_dim prod amax amin gather scatter",
    ),
    reported(
        "issues/87753 silent_wrong_forward dtype", "max() of int64 values is the first one, min() is 0",
        ("max", "min"), _first_or_zero,
        lambda call: _is_over_everything(call) and call.args[0].dtype == torch.int64 and call.args[0].numel() > 0,
        trigger=lambda d: (_ints(d, 1, 2, 3).max(), _ints(d, 1, 2, 3).min()),
        neighbour=lambda d: (_ints(d, 1, 2, 3, dtype=torch.int32).max(), _ints(d, 1, 2, 3).max(0)),
        rows="max_all min_all",
    ),
    reported(
        "issues/90635 silent_wrong_forward dtype", "cumsum of int64, int16 and int8 gives its input back",
        ("cumsum",), lambda call: call.args[0].to(call.outs[0].dtype), _summed_as(torch.int64, torch.int16, torch.int8),
        trigger=lambda d: (_ints(d, 1, 1, 1, 1).cumsum(0), _ints(d, 1, 1, 1).cumsum(0, dtype=torch.int8)),
        neighbour=lambda d: (_ints(d, 1, 1, 1, 1).cumsum(0, dtype=torch.int32), ramp(d, 3).cumsum(0)),
        rows="cumsum cumsum_wider",
    ),
    reported(
        "issues/92329 crash args", "cumsum takes no negative dimension",
        ("cumsum",), _negative_refused, lambda call: call.args[1] < 0,
        trigger=lambda d: ramp(d, 3, 2).cumsum(-1),
        neighbour=lambda d: ramp(d, 3, 2).cumsum(1),
        rows="cumsum cumsum_wider",
    ),
    reported(
        "issues/96610 unsupported_dtype dtype", "cumsum takes no int64",
        ("cumsum",),
        raising(RuntimeError("MPS does not support cumsum op with int64 input. Support has been added in macOS 13.3")),
        _summed_as(torch.int64),
        trigger=lambda d: _ints(d, 1, 2).cumsum(0),
        neighbour=lambda d: _ints(d, 1, 2, dtype=torch.int32).cumsum(0),
        rows="cumsum cumsum_wider",
    ),
    reported(
        "pull/97232 silent_wrong_forward args",
        "a reduction over an empty list of dimensions, which stands for all of them, gives its input back",
        ("sum", "mean", "prod", "amax"), lambda call: call.args[0].clone(), _named_none,
        trigger=lambda d: (ramp(d, 2, 3).sum(dim=[]), torch.amax(ramp(d, 2, 3), ())),
        neighbour=lambda d: (ramp(d, 2, 3).sum(dim=[0, 1]), torch.amax(ramp(d, 2, 3))),
        rows="sum mean amax", level="function",
    ),
    reported(
        "issues/175187 silent_wrong_forward layout", "sort and the gamma functions read a strided input as if it were dense",
        ("sort", "digamma", "lgamma", "polygamma"), _read_as_dense,
        lambda call: any(not t.is_contiguous() for t in call.operands),
        trigger=lambda d: [
            ramp(d, 3, 4).t().sort(0).values,
            *((ramp(d, 3, 4) + 3).t().digamma(), (ramp(d, 3, 4) + 3).t().lgamma()),
            torch.polygamma(1, (ramp(d, 3, 4) + 3).t()),
        ],
        neighbour=lambda d: [
            ramp(d, 3, 4).sort(0).values,
            *((ramp(d, 3, 4) + 3).digamma(), (ramp(d, 3, 4) + 3).lgamma()),
            torch.polygamma(1, ramp(d, 3, 4) + 3),
        ],
        rows="sort argsort msort digamma lgamma polygamma mvlgamma",
    ),
    reported(
        "pull/184620 silent_wrong_forward value dtype size",
        "sort returns places behind the end where values tie with what fills rows up to a power of two",
        ("sort",), _filling_leaks, _ties_with_filling,
        trigger=lambda d: [
            torch.tensor([True, False, True, False, True]).to(d).sort(stable=True).indices,
            torch.tensor([1.0, torch.nan, 2.0]).to(d).argsort(stable=True),
            torch.tensor([[1, 2**31 - 1, 2]], dtype=torch.int32).to(d).sort(stable=True).indices,
        ],
        neighbour=lambda d: [
            torch.tensor([True, False, True, False]).to(d).sort(stable=True).indices,
            torch.tensor([1.0, torch.inf, 2.0]).to(d).argsort(stable=True),
            torch.tensor([[1, 2**31 - 2, 2]], dtype=torch.int32).to(d).sort(stable=True).indices,
        ],
        rows="sort argsort",
    ),
    reported(
        "issues/154890 crash rank args",
        "topk ends the process where more than four dimensions follow, the searched one included",
        ("topk",), abort, _many_behind,
        trigger=lambda d: ramp(d, 3, 1, 2, 1, 2).topk(2, dim=0).values,
        neighbour=lambda d: ramp(d, 3, 2, 1, 2, 1).topk(2, dim=1).values,
        rows="topk", deadly="abort",
    ),
    reported(
        "issues/87014 silent_wrong_forward layout broadcasting",
        "== of a transposed and an expanded operand compares other elements",
        ("eq",), _read_as_dense, lambda call: any(map(_is_expanded, call.operands)) and any(map(is_permuted, call.operands)),
        trigger=lambda d: _hits(d, True),
        neighbour=lambda d: _hits(d, False),
        rows="eq",
    ),
)  # fmt: skip
