"""Bugs of sorting, of the largest few, and of comparing what they give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, is_permuted
from parity.devices.sim.faults import abort
from parity.zoo.effects import argument, ramp, reported


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
