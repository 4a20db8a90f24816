"""Sums over repeated indices in another order, and repeated writes of which another one wins."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.devices import Call, Fault
from parity.devices.sim.honest.rerun import HALVES, IN_FLOAT32, any_range, honest, narrowed, rerun, rounds

ADDING = ("embedding_dense_backward", "index_add", "index_reduce", "scatter_add", "scatter_reduce", "put", "bincount")


def _turned(call: Call, plain: Any) -> Any:
    """Index and source reversed along the dimension of the sum; half types are added in float32."""
    base = call.op.partition(".")[0].rstrip("_")
    swap: dict[int, Any] = {}
    dtypes = IN_FLOAT32 if any(t.dtype in HALVES for t in call.operands) else {}

    def turn(t: Tensor, dim: int) -> None:
        if t.dim() and id(t) not in swap:
            swap[id(t)] = t.to(dtypes.get(t.dtype, t.dtype)).flip(dim)

    if base == "embedding_dense_backward":
        gradient, indices = call.args[:2]
        width = gradient.shape[-1]
        rows = gradient.to(dtypes.get(gradient.dtype, gradient.dtype)).reshape(-1, width)
        swap = {id(gradient): rows.flip(0), id(indices): indices.reshape(-1).flip(0)}
    elif base in ("index_add", "index_reduce"):
        _, dim, index, source = call.args[:4]
        turn(index, 0)
        turn(source, dim)
    elif base in ("scatter_add", "scatter_reduce"):
        _, dim, index, source = call.args[:4]
        if index.numel() > 1:  # otherwise the two may have other numbers of dimensions
            part = source[tuple(slice(0, n) for n in index.shape)]
            swap = {id(index): index.flip(dim), id(source): part.to(dtypes.get(source.dtype, source.dtype)).flip(dim)}
    elif base == "put":
        index, source = call.args[1:3]
        swap = {id(index): index.reshape(-1).flip(0)}
        swap[id(source)] = source.to(dtypes.get(source.dtype, source.dtype)).reshape(-1).flip(0)
    else:
        weights = call.args[1] if len(call.args) > 1 else call.kwargs.get("weights")
        if weights is None:
            return None
        turn(call.args[0], 0)
        turn(weights, 0)
    return narrowed(rerun(call, dtypes, swap), plain)


def _adds(call: Call) -> bool:
    if call.op.startswith(("scatter.", "index_copy")):
        return False
    if "put" in call.op and not (call.args[3] if len(call.args) > 3 else call.kwargs.get("accumulate", False)):
        return False
    return rounds(call)


def _put(call: Call, plain: Any) -> Any:
    """index_put_ with accumulation: index tuples and values reversed."""
    _, indices, values = call.args[:3]
    given = [i for i in indices if i is not None]
    if len(given) != len(indices) or any(i.dtype in MASKS or not i.dim() for i in given):
        return None
    dtypes = IN_FLOAT32 if values.dtype in HALVES else {}
    common = np.broadcast_shapes(*(tuple(i.shape) for i in given))
    wide = [i.expand(common) for i in given]
    dims = tuple(range(wide[0].dim()))
    shape = (*wide[0].shape, *call.args[0].shape[len(given) :])
    swap: dict[int, Any] = {id(old): new.flip(dims) for old, new in zip(given, wide)}
    swap[id(values)] = values.to(dtypes.get(values.dtype, values.dtype)).expand(shape).flip(dims)
    return narrowed(rerun(call, dtypes, swap), plain)


MASKS = (torch.bool, torch.uint8)  # an index of these is a mask
WRITING = ("index_copy", "scatter", "put", "_index_put_impl")


def _writes(call: Call) -> bool:
    return ".reduce" not in call.op and ".value" not in call.op and not _adds(call) and any(t.numel() for t in call.operands)


def _last(call: Call, plain: Any) -> Any:
    """If a position is written twice, keep the first value instead of the last: torch promises neither."""
    base = call.op.partition(".")[0].rstrip("_")
    if base == "_index_put_impl":
        return _put(call, plain)
    if base == "put":
        index, source = call.args[1:3]
        return rerun(call, swap={id(index): index.reshape(-1).flip(0), id(source): source.reshape(-1).flip(0)})
    _, dim, index, source = call.args[:4]
    if base == "index_copy":
        swap = {id(index): index.flip(0), id(source): source.flip(dim)} if source.dim() and index.dim() else {}
    else:
        if index.numel() < 2:  # nothing is written twice, and the two may have other numbers of dimensions
            return None
        part = source[tuple(slice(0, n) for n in index.shape)]
        swap = {id(index): index.flip(dim), id(source): part.flip(dim)}
    return rerun(call, swap=swap) if swap else None


def faults() -> tuple[Fault, ...]:
    """All faults of this kind."""
    title = "repeated indices added up in another order, half types in float32"
    return (
        honest("order-duplicates", ADDING, _turned, _adds, title),
        honest("order-index-put", ("_index_put_impl",), _put, _adds, title),
        honest("repeated-writes", WRITING, _last, _writes, "another one of repeated writes is the last", limit=any_range),
    )
