"""Other right results where several exist: positions of ties, signs and phases of vectors, pivots, random streams.

Sums over repeated indices in another order, and repeated writes of which another one wins.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.devices import Call, Fault
from parity.devices.sim.honest import rounding
from parity.devices.sim.honest.rerun import (
    AS_THEY_ARE,
    HALVES,
    IN_FLOAT32,
    ROUNDED,
    any_range,
    arithmetic,
    honest,
    narrowed,
    pick,
    rerun,
    rounds,
)

# Not argmax, argmin, max and min: torch documents that they return the first of tied positions, and its gradient formulas rely
# on it (cumprod's).
PLACED = ("kthvalue", "median", "mode", "nanmedian", "sort", "topk")
RANDOM = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "native_dropout", "normal", "poisson",
    "random", "randperm", "rrelu_with_noise", "uniform", "_standard_gamma", "_sample_dirichlet", "binomial",
)  # fmt: skip
POOLS = ("adaptive_max_pool2d", "adaptive_max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")


def _any(call: Call) -> bool:
    return any(t.numel() > 1 for t in call.operands)


def _order(call: Call, n: int, of: Tensor | None = None) -> Tensor:
    """A permutation of n positions, the same for equal calls, or for equal tensors `of`."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(pick(call, 1 << 30, of)))


def _places(call: Call, plain: Any) -> Any:
    """Run the kernel on its operand in another order and translate the positions back, so that any tied one may be returned."""
    x, base = call.args[0], call.op.partition(".")[0]
    if base == "mode" and x.is_floating_point() and bool(torch.isnan(x).any()):
        return None  # NaN is unequal to everything, so its position depends on the order
    if base == "sort" and call.kwargs.get("stable"):
        return None
    if isinstance(plain, Tensor) or not x.dim():
        return None  # the call returns no positions, or has only one to choose
    dim = _dim(call, {"sort": 1, "median": 1, "nanmedian": 1, "mode": 1}.get(base, 2), -1)
    order = _order(call, x.shape[dim])
    got = rerun(call, AS_THEY_ARE, {id(x): x.index_select(dim, order)})
    values, places = got[0], order[got[1]]
    if base == "topk" and not _dim(call, 4, True, "sorted"):
        turn = _order(call, values.shape[dim])
        values, places = values.index_select(dim, turn), places.index_select(dim, turn)
    return values, places


def _dim(call: Call, position: int, default: Any, name: str = "dim") -> Any:
    if name in call.kwargs:
        return call.kwargs[name]
    return call.args[position] if position < len(call.args) else default


def _running(call: Call) -> Any:
    """cummax and cummin: the first of the tied positions instead of the last."""
    call.run()
    x, values, indices, dim = call.args[:4]
    last = indices.clone()
    if x.dim() and x.numel():
        v, i = values.movedim(dim, 0), indices.movedim(dim, 0)
        for k in range(1, v.shape[0]):
            same = (
                (v[k] == v[k - 1]) | (torch.isnan(v[k]) & torch.isnan(v[k - 1])) if v.is_floating_point() else v[k] == v[k - 1]
            )
            i[k] = torch.where(same, i[k - 1], i[k])
    rounding.note("ties-running", indices, last)
    return None


def _ranks(x: Tensor, lead: int, order: Tensor) -> Tensor:
    """Each element's rank in its plane, with ties broken by `order`, so that exactly one maximum remains."""
    planes = x.reshape(*x.shape[:lead], -1)[..., order]
    ranks = torch.empty(planes.shape, dtype=torch.float64)
    places = torch.arange(planes.shape[-1], dtype=torch.float64).expand(planes.shape)
    ranks.scatter_(-1, planes.sort(dim=-1, stable=True).indices, places)
    back = torch.empty_like(ranks)
    back[..., order] = ranks
    return back.reshape(x.shape)


def _pool(call: Call, plain: Any) -> Any:
    """Max pooling that returns another one of the tied maxima in a window."""
    x = call.args[0]
    lead = x.dim() - (3 if "3d" in call.op else 2)
    order = _order(call, math.prod(x.shape[lead:]))
    swap = {id(x): _ranks(x, lead, order)}
    for t in call.outs[:1]:
        swap[id(t)] = torch.empty_strided(t.shape, t.stride(), dtype=torch.float64)
    _, indices = rerun(call, AS_THEY_ARE, swap)
    if bool(((indices < 0) | (indices >= order.numel())).any()):
        return None  # a window of padding only: the CPU's position lies outside
    picked = x.reshape(*x.shape[:lead], -1).gather(-1, indices.reshape(*indices.shape[:lead], -1))
    picked = picked.reshape(plain[0].shape)
    same = (picked == plain[0]) | (picked.isnan() & plain[0].isnan())
    return (picked, indices) if bool(same.all()) else None  # the CPU has its own maximum for some empty windows


def _pool_backward(call: Call, plain: Any) -> Any:
    """The gradient of max pooling flows to another one of the tied maxima, the same for every gradient that comes in."""
    g, x = call.args[:2]
    lead = x.dim() - 2
    ranks = _ranks(x, lead, _order(call, math.prod(x.shape[lead:]), x)).to(torch.float32)
    dtypes = IN_FLOAT32 if g.dtype in HALVES else AS_THEY_ARE
    return narrowed(rerun(call, dtypes, {id(x): ranks}), plain)


def _distinct(call: Call, plain: Any) -> Any:
    """unique without sorting: the distinct values, inverse and counts in another order."""
    if _dim(call, 1, True, "sorted"):
        return None
    values, inverse, counts = plain
    order = _order(call, values.shape[0])
    place = torch.empty_like(order)
    place[order] = torch.arange(order.shape[0])
    return values[order], place[inverse] if inverse.numel() else inverse, counts[order] if counts.numel() else counts


# ------------------------------------------------------------------------------------------------ vectors and their phases


def _phases(call: Call, like: Tensor, n: int) -> Tensor:
    """n signs or n complex phases for the columns of a matrix."""
    turn = torch.rand(n, generator=torch.Generator().manual_seed(pick(call, 1 << 30)), dtype=torch.float64)
    if like.is_complex():
        return torch.polar(torch.ones(n, dtype=torch.float64), 2 * math.pi * turn)
    return torch.where(turn < 0.5, -1.0, 1.0).to(torch.float64)


def _wide(call: Call) -> Any:
    return rerun(call, arithmetic(call))


def _svd(call: Call, plain: Any) -> Any:
    u, s, vh = _wide(call)
    k = s.shape[-1]
    if not u.numel() or not vh.numel():
        return None
    phases = _phases(call, u, max(u.shape[-1], vh.shape[-2]))
    other = phases.clone()
    other[k:] = other[k:].flip(0)
    return narrowed((u * phases[: u.shape[-1]], s, vh * other[: vh.shape[-2], None].conj_physical()), plain)


def _eigh(call: Call, plain: Any) -> Any:
    w, v = _wide(call)
    return narrowed((w, v * _phases(call, v, v.shape[-1]) if v.numel() else v), plain)


def _qr(call: Call, plain: Any) -> Any:
    q, r = _wide(call)
    if not q.numel() or not r.numel():
        return None
    phases = _phases(call, q, q.shape[-1])
    return narrowed((q * phases, r * phases[: r.shape[-2], None].conj_physical()), plain)


def _lu(call: Call, plain: Any) -> Any:
    """Gaussian elimination that takes the last of equally large pivots."""
    a = call.args[0]
    if not _dim(call, 1, True, "pivot") or a.dtype not in ROUNDED or min(a.shape[-2:]) > 64:
        return None
    lu, pivots = _eliminated(a.to(torch.complex128 if a.is_complex() else torch.float64))
    if not torch.isfinite(lu.abs()).all():
        return None
    if call.op.startswith("linalg_lu_factor"):
        return narrowed((lu, pivots, *plain[2:]), plain)
    return narrowed(tuple(torch.lu_unpack(lu, pivots)), plain)


def _eliminated(a: Tensor) -> tuple[Tensor, Tensor]:
    """(both factors in one, pivots) of all matrices of a batch at once."""
    lu = a.clone().reshape(-1, *a.shape[-2:])
    k, every = min(a.shape[-2:]), torch.arange(lu.shape[0])
    pivots = torch.empty(lu.shape[0], k, dtype=torch.int32)
    for j in range(k):
        size = lu[:, j:, j].abs()
        largest = size.amax(-1, keepdim=True)
        from_the_end = (size >= largest * (1 - 1e-6)).flip(-1).to(torch.int8).argmax(-1)
        p = j + torch.where(largest[:, 0] > 0, size.shape[1] - 1 - from_the_end, 0)
        pivots[:, j] = p + 1
        upper, lower = lu[every, p], lu[every, j]
        lu[every, p], lu[every, j] = lower, upper
        pivot = upper[:, j]
        some = pivot != 0
        factors = lu[:, j + 1 :, j] / torch.where(some, pivot, 1)[:, None]
        lu[:, j + 1 :, j] = factors
        lu[:, j + 1 :, j + 1 :] -= torch.where(some[:, None, None], factors[:, :, None] * upper[:, None, j + 1 :], 0)
    return lu.reshape(a.shape), pivots.reshape(*a.shape[:-2], k)


def faults() -> tuple[Fault, ...]:
    """All faults of this kind."""
    tied, turned = "any of the tied places", "other signs and phases"
    return (
        honest("ties", PLACED, _places, _any, tied, limit=any_range),
        Fault(
            "honest-ties-running",
            ("_cummax_helper", "_cummin_helper"),
            _running,
            title="the first of the tied places",
            remembers=False,
        ),
        honest("ties-pool", POOLS, _pool, _any, tied, limit=any_range),
        honest("ties-pool-gradient", ("max_pool2d_backward",), _pool_backward, _any, tied, limit=any_range),
        honest("order-unique", ("_unique2",), _distinct, _any, "distinct values in another order", limit=any_range),
        honest("phases-svd", ("_linalg_svd",), _svd, _any, turned, limit=any_range),
        honest("phases-eigh", ("_linalg_eigh",), _eigh, _any, turned, limit=any_range),
        honest("phases-eig", ("linalg_eig",), _eigh, _any, turned, limit=any_range),
        honest("phases-qr", ("linalg_qr",), _qr, _any, turned, limit=any_range),
        honest("pivots", ("linalg_lu_factor_ex", "linalg_lu"), _lu, _any, "the last of equally large pivots", limit=any_range),
    )


def _another_stream(call: Call) -> Any:
    """Run the kernel with another generator, seeded by one draw from the caller's, so that equal seeds give equal numbers and
    the next call gives other numbers."""
    given = next((a for a in (*call.args, *call.kwargs.values()) if isinstance(a, torch.Generator)), None)
    seed = int(torch.randint(1 << 62, (), generator=given)) ^ 0x5DEECE66D
    rounding.ANSWERED["stream"] += 1
    rounding.CHANGED["stream"] += 1  # counted as changed without a comparison, which would need another draw
    if given is not None:  # by name or by position
        own = torch.Generator().manual_seed(seed)
        call.args = [own if a is given else a for a in call.args]
        call.kwargs = {k: own if a is given else a for k, a in call.kwargs.items()}
        return call.run()
    kept = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        return call.run()
    finally:
        torch.default_generator.set_state(kept)


def streams() -> tuple[Fault, ...]:
    """Another stream for every random kernel."""
    return (Fault("honest-stream", RANDOM, _another_stream, title="random numbers of another stream", remembers=False),)


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


def repeats() -> tuple[Fault, ...]:
    """All faults of this kind."""
    title = "repeated indices added up in another order, half types in float32"
    return (
        honest("order-duplicates", ADDING, _turned, _adds, title),
        honest("order-index-put", ("_index_put_impl",), _put, _adds, title),
        honest("repeated-writes", WRITING, _last, _writes, "another one of repeated writes is the last", limit=any_range),
    )
