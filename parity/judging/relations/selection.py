"""Ties (sort, topk, mode, extrema, unique, pooled indices): any index is right at which the input is the value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from parity.execution.execute import program
from parity.judging.relations.bound import (
    Bound,
    Problem,
    Problems,
    Relation,
    Results,
    everything,
    in_range,
    indices,
    only,
    outs,
    picked,
    same,
)


def _is_permutation(index: Tensor, dim: int) -> bool:
    if not index.dim():
        return bool(index == 0)
    n = index.shape[dim]
    shape = [1] * index.dim()
    shape[dim] = n
    return torch.equal(index.sort(dim).values, torch.arange(n).view(shape).expand_as(index))


def _sort(call: Bound, r: Results) -> Problems:
    x, dim = call.args[0], call.get(1, "dim", -1)
    if not isinstance(dim, int) or isinstance(dim, bool):
        dim = call.kwargs.get("dim", -1)
    v, i = (r[n] for n in outs(r)[:2])
    return _ordered("out[1]", x, v, i, dim)


def _ordered(name: str, x: Tensor, v: Tensor | None, i: Tensor, dim: int) -> Problems:
    if not _is_permutation(i, dim):
        return [Problem(name, "the indices are no permutation")]
    got = picked(x, i, dim, True)
    if got is None or (v is not None and not same(got, v)):
        return [Problem(name, "the input at the indices is not the sorted values")]
    return []


def _argsort(call: Bound, r: Results) -> Problems:
    x, dim = call.args[0], call.kwargs.get("dim", -1)
    descending = bool(call.kwargs.get("descending", False))
    if len(call.args) > 1 and isinstance(call.args[1], int):
        dim = call.args[1]
        descending = bool(call.get(2, "descending", False))
    i = r[outs(r)[0]]
    return _ordered("out", x, torch.sort(x, dim=dim, descending=descending).values, i, dim)


def _topk(call: Bound, r: Results) -> Problems:
    x, dim = call.args[0], call.get(2, "dim", -1)
    largest, ordered = call.get(3, "largest", True), call.get(4, "sorted", True)
    k = call.get(1, "k", 1)
    v, i = (r[n] for n in outs(r)[:2])
    got = picked(x, i, dim, True)
    if got is None or not same(got, v):
        return [Problem("out[1]", "the input at the indices is not the returned values")]
    if x.dim():
        want = torch.topk(x, k, dim, largest).values
        got = v if ordered else torch.sort(v, dim, descending=largest).values
        if not same(want, got):
            return [Problem("out[0]", "these are not the k extreme values")]
        repeated = i.sort(dim).values.diff(dim=dim) == 0
        if bool(repeated.any()):
            return [Problem("out[1]", "an index is returned twice")]
    return []


def _topk_covers(call: Bound, r: Results) -> frozenset[str]:
    """Covers the indices; the values too if the caller asked for no order."""
    return indices(call, r) if call.get(4, "sorted", True) else frozenset(outs(r))


def _value_at(position: int) -> Callable[[Bound, Results], Problems]:
    """Relation for values with the index of one of their places: kthvalue(k, dim), median(dim), mode(dim), max(dim)."""

    def problems(call: Bound, r: Results) -> Problems:
        names = outs(r)
        if len(names) < 2 or r[names[1]].is_floating_point() or r[names[1]].dtype != torch.int64:
            return []
        x = call.args[0]
        dim = call.get(position, "dim", -1)
        keepdim = bool(call.get(position + 1, "keepdim", False))
        got = picked(x, r[names[1]], dim if isinstance(dim, int) else -1, keepdim)
        if got is None or not same(got, r[names[0]]):
            return [Problem(names[1], "the input at the index is not the returned value")]
        return []

    return problems


def _longest_run(rows: Tensor) -> Tensor:
    """How often the most frequent number of each row occurs; every NaN is a number of its own."""
    ordered = rows.to(torch.uint8).sort(-1).values if rows.dtype is torch.bool else rows.sort(-1).values
    place = torch.arange(rows.shape[-1]).expand(rows.shape)
    begins = torch.ones(rows.shape, dtype=torch.bool)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    start = torch.where(begins, place, 0).cummax(-1).values
    return (place - start + 1).amax(-1, keepdim=True)


def _mode(call: Bound, r: Results) -> Problems:
    """No other value may occur more often; NaN may count as equal to itself or not."""
    problems = _value_at(1)(call, r)
    names = outs(r)
    if problems or len(names) < 2:
        return problems
    x, value = call.args[0], r[names[0]]
    if not x.dim() or not x.numel():
        return problems
    dim = call.get(1, "dim", -1)
    if not bool(call.get(2, "keepdim", False)):
        value = value.unsqueeze(dim)
    rows, got = x.movedim(dim, -1), value.movedim(dim, -1)
    nan = torch.isnan(rows) if rows.is_floating_point() else torch.zeros_like(rows, dtype=torch.bool)
    longest = _longest_run(rows)
    most = torch.maximum(longest, nan.sum(-1, keepdim=True))
    times = ((rows == got) | (nan & torch.isnan(got) if got.is_floating_point() else nan)).sum(-1, keepdim=True)
    return (
        []
        if bool(((times == most) | (times == longest) | nan.any(-1, keepdim=True)).all())
        else [Problem(names[0], "another value occurs more often")]
    )


def _argmax(call: Bound, r: Results, low: bool = False) -> Problems:
    """The input at the index must be the largest element. low: the smallest."""
    x, dim = call.args[0], call.get(1, "dim")
    keepdim = bool(call.get(2, "keepdim", False))
    name = outs(r)[0]
    index = r[name]
    if dim is None:
        if not in_range(index, x.numel()):
            return [Problem(name, "the index is out of range")]
        got = x.reshape(-1)[index.reshape(-1)[0]]
        extreme = torch.amin(x) if low else torch.amax(x)
    else:
        at_index = picked(x, index, dim, keepdim)
        if at_index is None:
            return [Problem(name, "an index is out of range")]
        got, extreme = at_index, torch.amin(x, dim, keepdim) if low else torch.amax(x, dim, keepdim)
    return [] if same(got, extreme) else [Problem(name, "the input at the index is not the extreme value")]


def _cummax(call: Bound, r: Results) -> Problems:
    x, dim = call.args[0], call.get(1, "dim", 0)
    names = outs(r)
    got = picked(x, r[names[1]], dim, True)
    if got is None or not same(got, r[names[0]]):
        return [Problem(names[1], "the input at the index is not the running extreme")]
    index = r[names[1]]
    if index.dim():
        shape = [1] * index.dim()
        shape[dim] = index.shape[dim]
        if bool((index > torch.arange(index.shape[dim]).view(shape)).any()):
            return [Problem(names[1], "an index points ahead of its place")]
    return []


def _unique(call: Bound, r: Results) -> Problems:
    x = call.args[0]
    name = outs(r)[0]
    if call.get(5, "dim") is not None or call.kwargs.get("dim") is not None or r[name].dim() != 1:
        return []
    want, got = torch.unique(x).sort().values, r[name].sort().values
    return [] if same(want, got) else [Problem(name, "these are not the distinct values")]


def _unordered(call: Bound, r: Results) -> frozenset[str]:
    """Covers everything if the caller asked for no order, else nothing."""
    return frozenset(outs(r)) if call.get(1, "sorted", True) is False else frozenset()


def _pool(call: Bound, r: Results, dilated: bool = False) -> Problems:
    """The input at each index must be the value. dilated: whether the call may leave elements out between those of a window."""
    names = outs(r)
    if len(names) < 2:
        return []
    x, v, i = call.args[0], r[names[0]], r[names[1]]
    spatial = call.row.draws.spatial
    flat = x.reshape(*x.shape[: x.dim() - spatial], -1)
    index = i.reshape(*i.shape[: i.dim() - spatial], -1)
    if not in_range(index, flat.shape[-1]):
        return [Problem(names[1], "an index is outside the plane")]
    if not same(flat.gather(-1, index), v.reshape(index.shape)):
        return [Problem(names[1], "the input at the index is not the maximum")]

    def pool(t: Tensor) -> Tensor:
        return program(call.row).function(t, *call.args[1:], **call.kwargs)[0]  # type: ignore[no-any-return]

    steps = _each(call.get(4, "dilation", 1) if dilated else 1, spatial)
    if not bool(in_windows(pool, i, x, steps).all()):
        return [Problem(names[1], "an index is outside the window of its element")]
    return []


def in_windows(pool: Callable[[Tensor], Tensor], index: Tensor, x: Tensor, steps: Sequence[int]) -> Tensor:
    """Whether each index lies in the window of its element. pool: gives the maxima of a tensor like x in the windows; steps:
    from one element of a window to the next, in each dimension. Pooled coordinates are those of its first and last element."""
    plane, inside = x.shape[x.dim() - len(steps) :], torch.ones(index.shape, dtype=torch.bool)
    for d in range(len(plane)) if index.numel() else ():
        at = index // math.prod(plane[d + 1 :]) % plane[d]  # torch.unravel_index would import sympy
        line = torch.arange(plane[d], dtype=torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else None)
        lines = line.view(-1, *[1] * (len(plane) - d - 1)).expand(x.shape)
        first, last = -pool(-lines), pool(lines)
        inside &= (at >= first) & (at <= last) & ((at - first) % steps[d] == 0)
    return inside


def _each(given: int | Sequence[int], spatial: int) -> list[int]:
    """A pooling argument for each dimension; one number counts for all."""
    sizes = [given] if isinstance(given, int) else list(given)
    return sizes * spatial if len(sizes) == 1 else sizes


def _unpool(call: Bound, r: Results) -> Problems:
    """Every place named by an index must hold one of the values written there, every other place 0."""
    x, index, name = call.args[0], call.get(1, "indices"), outs(r)[0]
    spatial = call.row.draws.spatial
    values, places, got = (t.reshape(*t.shape[: t.dim() - spatial], -1) for t in (x, index, r[name]))
    if values.shape[:-1] != got.shape[:-1] or not in_range(places, got.shape[-1]):
        return [Problem(name, "planes of another number or size than the indices ask for")]
    there = got.gather(-1, places)
    held = (there == values) | (torch.isnan(there) & torch.isnan(values) if values.is_floating_point() else False)
    none = torch.zeros(got.shape, dtype=torch.int64)
    written, right = none.scatter_add(-1, places, torch.ones_like(places)), none.scatter_add(-1, places, held.to(torch.int64))
    if bool(((written > 0) & (right == 0)).any()):
        return [Problem(name, "a place does not hold a value that was written there")]
    return [] if bool((got[written == 0] == 0).all()) else [Problem(name, "a place that no index names is not 0")]


def _nothing(call: Bound, r: Results) -> frozenset[str]:
    """Covers nothing: values are compared as they are."""
    return frozenset()


RELATIONS: dict[str, Relation] = {
    "sort": Relation(indices, _sort), "argsort": Relation(only, _argsort), "topk": Relation(_topk_covers, _topk),
    "kthvalue": Relation(indices, _value_at(2)), "median": Relation(indices, _value_at(1)),
    "mode": Relation(everything, _mode), "max_dim": Relation(indices, _value_at(1)), "argmax": Relation(only, _argmax),
    "argmin": Relation(only, partial(_argmax, low=True)), "cummax": Relation(indices, _cummax),
    "unique": Relation(_unordered, _unique), "max_pool_indices": Relation(indices, partial(_pool, dilated=True)),
    "adaptive_pool_indices": Relation(indices, _pool), "sampled_pool_indices": Relation(indices, _pool),
    "unpool": Relation(only, _unpool, chooses=False), "order": Relation(_nothing, lambda call, r: []),
}  # fmt: skip
