"""Bugs of reading and writing by index: scatter, index_copy, index_add, masks, places found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from parity.core.compiler import set_deterministic
from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, has_repeats, skip
from parity.devices.sim.faults import abort, refuse
from parity.zoo.effects import argument, ramp, replace, reported, tried

LIMIT = 64  # 2**24: from here on a float32 no longer holds every integer
Indices = Sequence[Tensor | None]


def _destination(call: Call) -> Tensor:
    """The destination, holding the first operand's elements; another tensor where the caller's has another shape."""
    x, out = call.args[0], call.outs[0]
    if out.shape != x.shape:
        return torch.empty_like(x).copy_(x)
    return out if out.data_ptr() == x.data_ptr() else out.copy_(x)


def _without_masks(indices: Indices) -> list[Tensor | None]:
    """Indices with each mask as the places that it picks, one tensor for each of its dimensions."""
    found: list[Tensor | None] = []
    for i in indices:
        found += i.nonzero(as_tuple=True) if i is not None and i.dtype in (torch.bool, torch.uint8) else (i,)
    return found


def _where_indexed(indices: Indices) -> int:
    """Where the dimensions of the index stand in the result of advanced indexing."""
    used = [k for k, i in enumerate(indices) if i is not None]
    return used[0] if used == list(range(used[0], used[-1] + 1)) else 0


def _places(x: Tensor, indices: Indices) -> Tensor:
    """What the indices name, as one number each, in the shape to which they broadcast."""
    place = torch.zeros((), dtype=torch.int64)
    for size, i in zip(x.shape, indices):
        place = place if i is None else place * size + i % max(size, 1)
    return place


# ------------------------------------------------------------------------------------------------------- scatter


def _ends_in_one(call: Call) -> bool:
    """Along another dimension than the last one, which has size 1."""
    x, dim = call.args[0], argument(call, 1, "dim")
    return bool(x.dim() > 1 and x.shape[-1] == 1 and dim % x.dim() != x.dim() - 1)


def _scattered(x: Tensor) -> Tensor:
    index = torch.arange(x.shape[-1]).flip(0).expand(x.shape).contiguous().to(x.device)
    return x.scatter_(-1, index, ramp(str(x.device), *x.shape))


def _added(x: Tensor) -> Tensor:
    return x.scatter_add_(0, torch.tensor([0, 0]).to(x.device), ramp(str(x.device), 2))


# ------------------------------------------------------------------------------------------------------- index_copy


def _copy_as_if_dense(call: Call) -> Tensor:
    """The source is read, and the destination written, as if both were dense from where they begin."""
    out = _destination(call)
    dense = call.memory(out)[out.storage_offset() :][: out.numel()].view(out.shape)
    source = as_contiguous(call, argument(call, 3, "source"))
    dense.index_copy_(argument(call, 1, "dim"), argument(call, 2, "index"), source)
    return out


def _first_wins(call: Call) -> Any:
    """The reference writes in the order of the index, so that the last one stays: turned round, the first one does."""
    dim, index, source = (argument(call, k, name) for k, name in ((1, "dim"), (2, "index"), (3, "source")))
    replace(call, 2, "index", index.flip(0))
    replace(call, 3, "source", source.flip(dim))
    return call.run()


def _leaves_dimension(call: Call) -> bool:
    x, dim, index = call.args[0], argument(call, 1, "dim"), argument(call, 2, "index")
    return bool(((index < 0) | (index >= (x.shape[dim] if x.dim() else 1))).any())


def _copy_unchecked(call: Call) -> Tensor:
    """Each row goes where its index points in memory, outside the view too; what would leave the memory is dropped."""
    out = _destination(call)
    dim, index, source = argument(call, 1, "dim"), argument(call, 2, "index").reshape(-1), argument(call, 3, "source")
    rows, memory = out if out.dim() else out.view(1), call.memory(out)
    place = torch.full((), int(out.storage_offset()))
    for d, (size, stride) in enumerate(zip(rows.shape, rows.stride())):
        place = place.unsqueeze(-1) + stride * (index if d == dim % rows.dim() else torch.arange(size))
    within = (place >= 0) & (place < memory.numel())
    memory[place[within]] = source.reshape(place.shape)[within]
    return out


def _copied(x: Tensor, dim: int, places: list[int], source: Tensor | None = None) -> Tensor:
    """`x` after index_copy_ of `source`, or of rows that are all different."""
    d = str(x.device)
    shape = [len(places) if k == dim else s for k, s in enumerate(x.shape)]
    return x.index_copy_(dim, torch.tensor(places).to(d), ramp(d, *shape) if source is None else source)


def _copied_into_part(d: str, places: list[int]) -> list[Any]:
    """What index_copy_ into the first two of four rows says, and the four rows after it."""
    base = ramp(d, 4, 3)
    return [tried(lambda: _copied(base[:2], 0, places).cpu()), base]


# ------------------------------------------------------------------------------------------------------- sums


def _races(call: Call) -> bool:
    """Sums of floats at repeated places, while the caller asks for determinism."""
    if not (torch.are_deterministic_algorithms_enabled() and call.args[0].is_floating_point()):
        return False
    if call.op.startswith("index_add"):
        return has_repeats(argument(call, 2, "index"))
    accumulate = bool(argument(call, 3, "accumulate", False))
    return accumulate and has_repeats(_places(call.args[0], _without_masks(call.args[1])))


def _in_any_order(call: Call) -> Any:
    """The terms are added in another order at every call."""
    noise = call.state.setdefault("noise", torch.Generator().manual_seed(0))
    if call.op.startswith("index_add"):
        dim, index, source = (argument(call, k, name) for k, name in ((1, "dim"), (2, "index"), (3, "source")))
        order = torch.randperm(index.numel(), generator=noise)
        replace(call, 2, "index", index[order])
        replace(call, 3, "source", source.index_select(dim, order))
        return call.run()
    x, indices, values = call.args[0], _without_masks(call.args[1]), call.args[2]
    at, shape = _where_indexed(indices), _places(x, indices).shape
    order = torch.randperm(shape.numel(), generator=noise)
    picked = x[tuple(slice(None) if i is None else i for i in indices)].shape
    call.args[1] = [None if i is None else i.expand(shape).reshape(-1)[order] for i in indices]
    call.args[2] = values.expand(picked).flatten(at, at + len(shape) - 1).index_select(at, order)
    return call.run()


def _alike(d: str, places: int) -> bool:
    """Whether sums of 4096 terms at so many places have the same bits twice, under deterministic algorithms."""
    index, terms = (torch.arange(4096) % places).to(d), ramp(d, 4096)
    set_deterministic(True)
    try:
        a, b = (torch.zeros(places, device=d).index_add_(0, index, terms).cpu() for _ in range(2))
        c, e = (torch.zeros(places, device=d).index_put_((index,), terms, accumulate=True).cpu() for _ in range(2))
    finally:
        set_deterministic(False)
    return torch.equal(a, b) and torch.equal(c, e)


# ------------------------------------------------------------------------------------------------------- places and masks


def _round_far(call: Call) -> Tensor:
    """Places beyond LIMIT as a float holds them that has the bits of LIMIT: multiples of 2, beyond 2 * LIMIT of 4, ..."""
    found: Tensor = call.run()
    gap = 2.0 ** (found.clamp(min=1).log2().floor() - (LIMIT.bit_length() - 2)).clamp(min=0)
    return found.copy_((found / gap).round() * gap)


def _beyond(call: Call) -> tuple[Tensor, int]:
    """Of an indexing call: which entries of the index name a place after the last, and where they stand in the result."""
    x = call.args[0]
    if call.op.startswith("index_select"):
        dim, index = argument(call, 1, "dim"), argument(call, 2, "index")
        return index >= (x.shape[dim] if x.dim() else 1), dim % max(x.dim(), 1)
    indices = _without_masks(call.args[1])
    beyond = torch.zeros((), dtype=torch.bool)
    for size, i in zip(x.shape, indices):
        beyond = beyond if i is None else beyond | (i >= size)
    return beyond, _where_indexed(indices)


def _reads_beyond(call: Call) -> bool:
    if call.op == "embedding_dense_backward":
        return bool((call.args[1] >= call.args[2]).any())
    return bool(call.args[0].numel() and _beyond(call)[0].any())


def _zeros_beyond(call: Call) -> Tensor:
    """Places after the last give zeros. On the way back their gradient is nobody's: as if the table had those rows too."""
    if call.op == "embedding_dense_backward":
        rows = call.args[2]
        call.args[2] = int(call.args[1].max()) + 1
        gradient: Tensor = call.run()[:rows]
        return gradient
    beyond, at = _beyond(call)
    if call.op.startswith("index_select"):
        replace(call, 2, "index", argument(call, 2, "index").masked_fill(beyond, 0))
    else:
        indices = _without_masks(call.args[1])
        call.args[1] = [None if i is None else i.masked_fill(i >= s, 0) for s, i in zip(call.args[0].shape, indices)]
    result: Tensor = call.run()
    rest = max(result.dim() - at - beyond.dim(), 0)
    return result.masked_fill(beyond.reshape(*beyond.shape, *([1] * rest)), 0)


def _masks(call: Call) -> list[Tensor]:
    return [i for i in call.args[1] if i is not None and i.dtype == torch.bool]


def _lose_mask(call: Call) -> Tensor:
    """The mask arrives as zeros: nothing is picked; with more than two elements, a check inside torch fails."""
    if any(m.numel() > 2 for m in _masks(call)):
        raise RuntimeError("INTERNAL ASSERT FAILED: shapes of the result and of the indexed tensor do not fit")
    index = (slice(None) if i is None else torch.zeros_like(i) if i.dtype == torch.bool else i for i in call.args[1])
    nothing: Tensor = call.args[0][tuple(index)]
    return nothing


BUGS = (
    reported(
        "issues/115152 silent_noop layout inplace", "scatter_ into a tensor with permuted strides leaves it as it was",
        ("scatter",), skip, lambda call: not call.outs[0].is_contiguous(),
        trigger=lambda d: _scattered(torch.zeros_like(ramp(d, 2, 3, 4).permute(0, 2, 1))),
        neighbour=lambda d: _scattered(torch.zeros(2, 4, 3, device=d)),
        rows="scatter",
    ),
    reported(
        "issues/121557 crash size args",
        "scatter_ ends the process where the last dimension has size 1 and another one is scattered along",
        ("scatter",), abort, _ends_in_one,
        trigger=lambda d: torch.zeros(4, 6, 1, device=d).scatter_(1, torch.tensor([[[1], [2]]]).to(d), 1.0),
        neighbour=lambda d: torch.zeros(4, 6, 2, device=d).scatter_(1, torch.tensor([[[1], [2]]]).to(d), 1.0),
        rows="scatter", deadly="abort",
    ),
    reported(
        "issues/163327 silent_noop offset inplace",
        "scatter_add_ into a slice that does not begin where its memory does is lost",
        ("scatter_add",), skip, lambda call: call.outs[0].storage_offset() > 0,
        trigger=lambda d: _added(ramp(d, 3, 4)[1]),
        neighbour=lambda d: _added(ramp(d, 3, 4)[0]),
        rows="scatter_add",
    ),
    reported(
        "issues/97093 unsupported_op none", "scatter_reduce has no kernel",
        ("scatter_reduce",), refuse,
        trigger=lambda d: ramp(d, 4).scatter_reduce(0, torch.tensor([1, 1]).to(d), ramp(d, 2), "amax"),
        neighbour=lambda d: ramp(d, 4).scatter_add(0, torch.tensor([1, 2]).to(d), ramp(d, 2)),
        rows="scatter_reduce_sum scatter_reduce_prod scatter_reduce_mean scatter_reduce_amax scatter_reduce_amin",
    ),
    reported(
        "issues/160993 silent_wrong_forward layout inplace",
        "index_copy_ addresses a strided destination or source as if it were dense",
        ("index_copy",), _copy_as_if_dense,
        lambda call: not (call.outs[0].is_contiguous() and argument(call, 3, "source").is_contiguous()),
        trigger=lambda d: (
            _copied(torch.zeros(4, 5, 3, device=d).transpose(0, 1), 0, [3, 0]),
            _copied(torch.zeros(5, 4, device=d), 0, [4, 1], ramp(d, 4, 2).t()),
        ),
        neighbour=lambda d: _copied(torch.zeros(5, 4, 3, device=d), 1, [3, 0]),
        rows="index_copy",
    ),
    reported(
        "issues/166237 silent_wrong_forward duplicates",
        "of several rows for one place, index_copy keeps the first where the CPU keeps the last",
        ("index_copy",), _first_wins, lambda call: has_repeats(argument(call, 2, "index")),
        trigger=lambda d: torch.zeros(5, device=d).index_copy(0, torch.tensor([1, 3, 1, 0, 3]).to(d), ramp(d, 5)),
        neighbour=lambda d: torch.zeros(5, device=d).index_copy(0, torch.tensor([1, 3, 4, 0, 2]).to(d), ramp(d, 5)),
        rows="index_copy",
    ),
    reported(
        "issues/189968 silent_wrong_forward value inplace",
        "index_copy_ takes indices outside the dimension and writes outside the view",
        ("index_copy",), _copy_unchecked, _leaves_dimension,
        trigger=lambda d: _copied_into_part(d, [0, 3]),
        neighbour=lambda d: _copied_into_part(d, [1, 0]),
        rows="index_copy",
    ),
    reported(
        "issues/161029 nondeterminism duplicates args",
        "sums at repeated places differ from run to run although deterministic algorithms are asked for",
        ("index_add", "_index_put_impl_"), _in_any_order, _races,
        trigger=lambda d: _alike(d, 4),
        neighbour=lambda d: _alike(d, 4096),
        rows="index_add index_put_accumulate",
    ),
    reported(
        "issues/122916 silent_wrong_forward size", "nonzero rounds the places of a very long tensor to floats",
        ("nonzero",), _round_far, lambda call: any(s > LIMIT + 1 for s in call.args[0].shape),
        trigger=lambda d: torch.where(torch.ones(LIMIT + 9, dtype=torch.bool, device=d)),
        neighbour=lambda d: torch.where(torch.ones(LIMIT, dtype=torch.bool, device=d)),
        rows="nonzero argwhere", scaled="2**24 places along a dimension -> LIMIT = 64",
    ),
    reported(
        "issues/144824 silent_wrong_forward value", "an index after the last place reads zeros instead of raising",
        ("index_select", "index", "embedding_dense_backward"), _zeros_beyond, _reads_beyond,
        trigger=lambda d: [
            tried(lambda: torch.nn.functional.embedding(torch.tensor([1, 3]).to(d), ramp(d, 3, 2)).cpu()),
            tried(lambda: ramp(d, 3, 4)[:, torch.tensor([[0], [4]]).to(d)].cpu()),
        ],
        neighbour=lambda d: [
            torch.nn.functional.embedding(torch.tensor([1, 2]).to(d), ramp(d, 3, 2)),
            ramp(d, 3, 4)[:, torch.tensor([[0], [-4]]).to(d)],
        ],
        rows="embedding index_select getitem_advanced",
    ),
    reported(
        "issues/77977 crash dtype size",
        "indexing with a mask finds no element of small ones and fails inside torch for others",
        ("index",), _lose_mask, lambda call: any(m.any() for m in _masks(call)),
        trigger=lambda d: ramp(d, 3)[torch.ones(3, dtype=torch.bool, device=d)],
        neighbour=lambda d: ramp(d, 3)[torch.tensor([0, 1, 2]).to(d)],
        rows="getitem_advanced",
    ),
)  # fmt: skip
