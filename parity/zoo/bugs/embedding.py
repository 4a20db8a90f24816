"""Bugs of looking up rows of a table, and of the table's gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import has_repeats, raising
from parity.devices.sim.faults import garbage
from parity.zoo.effects import gradients, ramp, reported, tried

EMBEDDING, BAG = "embedding_dense_backward", "_embedding_bag_backward"


def _other_width_first(call: Call) -> bool:
    """Whether the first call with indices of this shape, whose graph is kept, had rows of another width."""
    gradient, indices = call.args[:2]
    first = next((s for s in call.seen if s.shapes[1] == indices.shape), None)
    return first is not None and first.shapes[0][-1] != gradient.shape[-1]


def _without_padding(call: Call) -> Any:
    call.args[3] = -1
    return call.run()


def _scale_at(call: Call) -> int:
    """Position of scale_grad_by_freq in the backward of embedding, and of embedding_bag."""
    return 4 if call.op == EMBEDDING else 7


def _scales_repeats(call: Call) -> bool:
    indices = call.args[1]
    return bool(call.args[_scale_at(call)]) and has_repeats(indices)


def _without_scale(call: Call) -> Any:
    call.args[_scale_at(call)] = False
    return call.run()


def _one_row_too_far(call: Call) -> bool:
    indices = call.args[1]
    rows = call.args[6] if call.op == BAG else call.args[0].shape[0]
    return bool(indices.numel() and indices.max() == rows)


def _with_row_behind(call: Call) -> Any:
    """The row after the last is what lies in memory behind the table. On the way back its gradient falls away."""
    if call.op == BAG:
        rows = call.args[6]
        call.args[6] = rows + 1
        gradient: Tensor = call.run()[:rows]
        return gradient
    table = call.args[0]
    behind = call.memory(table)[table.storage_offset() + table.shape[0] * table.stride(0) :][: table.shape[1]]
    row = behind if behind.numel() == table.shape[1] else garbage(table[0])
    call.args[0] = torch.cat((table, row[None]))
    return call.run()


def _bag(d: str, *places: int, **options: Any) -> Tensor:
    """The sums over rows of a table of three."""
    return F.embedding_bag(torch.tensor([places]).to(d), ramp(d, 4, 2)[:3], mode="sum", **options)


def _table_gradient(d: str, places: Any, width: int = 2, **options: Any) -> tuple[Tensor, ...]:
    """The gradient of a table of four rows that are looked up at `places`."""
    return gradients(lambda w: F.embedding(torch.tensor(places).to(d), w, **options), ramp(d, 4, width))


def _bag_gradient(d: str, places: list[int]) -> tuple[Tensor, ...]:
    index = torch.tensor([places]).to(d)
    return gradients(lambda w: F.embedding_bag(index, w, mode="sum", scale_grad_by_freq=True), ramp(d, 4, 2))


BUGS = (
    reported(
        "issues/101198 crash sequence backward",
        "embedding's backward takes the graph of an earlier table with other columns for its own",
        (EMBEDDING,), raising(RuntimeError("shapes are not compatible: the cached graph was built for another embedding_dim")),
        _other_width_first,
        trigger=lambda d: [_table_gradient(d, [0, 2, 1], width) for width in (36, 48)],
        neighbour=lambda d: [_table_gradient(d, [0, 2, 1][:n], width) for n, width in ((3, 36), (2, 48), (3, 36))],
        rows="embedding",
    ),
    reported(
        "issues/103023 silent_wrong_backward backward args", "the row of padding_idx gets a gradient",
        (EMBEDDING,), _without_padding, lambda call: bool(call.args[3] >= 0 and (call.args[1] == call.args[3]).any()),
        trigger=lambda d: _table_gradient(d, [0, 2, 1], padding_idx=0),
        neighbour=lambda d: _table_gradient(d, [3, 2, 1], padding_idx=0),
        rows="embedding",
    ),
    reported(
        "pull/82809 crash rank backward", "embedding's backward fails for a single index without dimensions",
        (EMBEDDING,),
        raising(RuntimeError("Rank of updates array (1) must be greater than or equal to inner-most dimension of indices")),
        lambda call: call.args[1].dim() == 0,
        trigger=lambda d: _table_gradient(d, 2),
        neighbour=lambda d: _table_gradient(d, [2]),
        rows="embedding",
    ),
    reported(
        "issues/189971 silent_wrong_forward value",
        "embedding_bag takes the number of rows for an index and reads behind the table",
        ("_embedding_bag", "_embedding_bag_forward_only", BAG), _with_row_behind, _one_row_too_far,
        trigger=lambda d: tried(lambda: _bag(d, 0, 3).cpu()),
        neighbour=lambda d: [_bag(d, 0, 2), tried(lambda: _bag(d, 0, 4).cpu())],
        rows="embedding_bag",
    ),
    reported(
        "issues/190061 silent_wrong_backward backward args duplicates",
        "gradients of repeated rows are not scaled although scale_grad_by_freq asks for it",
        (BAG, EMBEDDING), _without_scale, _scales_repeats,
        trigger=lambda d: [_bag_gradient(d, [1, 0, 1, 1]), _table_gradient(d, [1, 0, 1, 1], scale_grad_by_freq=True)],
        neighbour=lambda d: [_bag_gradient(d, [1, 0, 2, 3]), _table_gradient(d, [1, 0, 2, 3], scale_grad_by_freq=True)],
        rows="embedding_bag embedding",
    ),
)  # fmt: skip
