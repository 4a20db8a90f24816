"""The choices that torch leaves to a device: made there, and followed on the CPU and in float64.

Which of equal elements an unstable sort puts first is free, and so are the positions that topk, median, mode, kthvalue, cummax
and maximum pools return, the order of unique without sorting, the signs or phases of the vectors of a factorization, and which
of several values written to one place stays. The code behind such an operator depends on the choice, so that the sides are
compared along the device's own. What torch documents (max, min, argmax and argmin: the first; a stable sort) is not free.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.core.observer import Functions, Operators
from parity.judging.relations.selection import in_windows
from parity.oracle.yardstick import SCALE

# Operators that return values and their positions along a dimension.
ATEN_PLACED = ("sort", "topk", "kthvalue", "median", "nanmedian", "mode")
ATEN_WHOLE = ("sort", "topk")  # of these, the results have the dimension too
ATEN_RUNNING = ("cummax", "cummin")
ATEN_SILENT = "max_pool2d"  # of a device: keeps no positions, and its gradient searches them again
ATEN_POSITIONS = "max_pool2d_with_indices"  # that keeps them
ATEN_POOLS = {
    **dict.fromkeys(("max_pool2d_with_indices", "adaptive_max_pool2d", "fractional_max_pool2d"), 2),
    **dict.fromkeys(("max_pool3d_with_indices", "adaptive_max_pool3d", "fractional_max_pool3d"), 3),
}
ATEN_DISTINCT = "_unique2"
# Operators that return vectors: where these are, the columns of the first and the rows of the second.
ATEN_TURNED = {"_linalg_svd": (0, 2), "_linalg_eigh": (1,), "linalg_qr": (0, 1), "linalg_eig": (1,), "_linalg_eigvals": ()}
ATEN_VALUES = {"_linalg_svd": 1, "_linalg_eigh": 0}  # of these the vectors of equal values are any of their space
ATEN_ORDERED = ("linalg_eig", "_linalg_eigvals")  # return eigenvalues in any order
ATEN_DIM = "scatter"  # writes along a dimension
ATEN_ROWS = "index_copy"  # writes whole rows
ATEN_FLAT = "put"  # writes at places of all numbers
ATEN_WRITTEN = (ATEN_DIM, "index_put", ATEN_ROWS, ATEN_FLAT)  # and those that write into an operand
ATEN_LAST = "amax"  # how torch reduces to the last of several places
_KINDS = (*ATEN_PLACED, *ATEN_RUNNING, ATEN_SILENT, *ATEN_POOLS, ATEN_DISTINCT, *ATEN_TURNED, *ATEN_WRITTEN)
ATEN_FREE = frozenset(f"aten::{n}{end}" for n in _KINDS for end in ("", "_" if n in ATEN_WRITTEN else ""))
MOST = 64  # gradients that are taken of a pool to see what it picks
Given = Mapping[str, Any]  # the arguments of a call, by name
Answer = tuple[Any, "tuple[Tensor, ...]", bool]  # the results, what they chose, and whether it is another choice


@dataclass(frozen=True, slots=True)
class Choice:
    """What one call chose, on the CPU: positions, values of a unique, vectors, or whether each written value stayed. A position
    below 0 is none: the call's own stands."""

    name: str
    chosen: tuple[Tensor, ...]


class Choices:
    """Notes the choices of all calls inside in `made`, or follows those that are given. given: what another side chose; sure:
    whether that is known to be right here, so that the values need not be equal any more. differs: the operators of which a
    call followed another choice than its own."""

    def __init__(self, given: Sequence[Choice] | None = None, sure: bool = False) -> None:
        self.made: list[Choice] = []
        self.differs: set[str] = set()
        self._given, self._sure = given, sure

    def __enter__(self) -> Choices:
        self.made, self._modes = [], contextlib.ExitStack()
        self._modes.enter_context(Functions(_called))
        self._modes.enter_context(Operators(self._observe))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._modes.__exit__(*raised)

    def words(self) -> Iterator[str]:
        """What was chosen otherwise, in words that follow those of the operators."""
        turned, written = self.differs & ATEN_TURNED.keys(), self.differs & {*ATEN_WRITTEN}
        ways = ("otherwise among equal elements", "other signs, phases or order", "otherwise among values written to one place")
        for what, names in zip(ways, (self.differs - turned - written, turned, written)):
            if names:
                shown = sorted(n.strip("_").removesuffix("_with_indices") for n in names)
                yield f"{', '.join(shown)} chose {what} than on the CPU, which is free: compared along that choice"

    def _observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        name = plain if (plain := name.rstrip("_")) in ATEN_WRITTEN else name
        given = _by_name(func, args, kwargs)
        if name == ATEN_SILENT and given["self"].requires_grad:
            self.made.append(Choice(ATEN_POSITIONS, (_picks(given, out),)))
        if not (own := _chosen(name, out, given)):
            return out
        at = len(self.made)
        self.made.append(Choice(name, tuple(t.detach().cpu().clone() for t in own)))
        wanted = self._given[at] if self._given is not None and at < len(self._given) else None
        if wanted is None or wanted.name != name or [t.shape for t in wanted.chosen] != [t.shape for t in own]:
            return out
        if name in ATEN_TURNED:
            results, now, other = _turned(name, own, wanted.chosen)
        elif name == ATEN_DISTINCT:
            results, now, other = self._distinct(out, *wanted.chosen)
        elif name in ATEN_WRITTEN:
            results, now, other = _written(name, given, out, *own, *wanted.chosen)
        elif name in ATEN_PLACED:
            results, now, other = self._placed(name, given, out, *wanted.chosen)
        else:
            results, now, other = self._picked(name, given, out, *wanted.chosen)
        self.made[at] = Choice(name, now)
        self.differs |= {name} if other else set()
        for t, followed in zip((out,) if isinstance(out, Tensor) else out, results):
            t.copy_(followed)  # keeps its strides, and may be an `out=`
        return out

    def _placed(self, name: str, given: Given, out: Any, places: Tensor) -> Answer:
        """The results of a call with these positions, line by line where they are as right as its own."""
        x, dim = given["self"], given["dim"]
        flat = not (name in ATEN_WHOLE or given["keepdim"])
        values, own, wanted = (t.unsqueeze(dim) if flat else t for t in (*out, places))
        inside = (wanted >= 0) & (wanted < x.shape[dim])
        got = x.gather(dim, wanted.clamp(0, max(0, x.shape[dim] - 1)))
        right = inside.all(dim, keepdim=True)
        right &= ~(wanted.sort(dim).values.diff(dim=dim) == 0).any(dim, keepdim=True)
        if not self._sure and name == "mode":
            right &= (x == got).sum(dim, keepdim=True) == (x == values).sum(dim, keepdim=True)
        elif not self._sure:
            a, b = (t.sort(dim).values if given.get("sorted") is False else t for t in (got, values))
            right &= _equal(a, b).all(dim, keepdim=True)
        now = torch.where(right, wanted, own)
        results = tuple(t.squeeze(dim) if flat else t for t in (torch.where(right, got, values), now))
        return results, results[1:], not torch.equal(now, own)

    def _picked(self, name: str, given: Given, out: Any, places: Tensor) -> Answer:
        """The results of a pool or of a running extreme with these positions, one by one where they are as right as its own;
        the others are left free, for rounding may decide about them."""
        (values, own), x, plane = out, given["self"], ATEN_POOLS.get(name, 0)
        dim, line, at = (-1, x.flatten(-plane), places.flatten(-plane)) if plane else (given["dim"], x, places)
        got = line.gather(dim, at.clamp(0, max(0, line.shape[dim] - 1))).view(values.shape)
        right = (places >= 0) & (places < line.shape[dim])
        if not self._sure:
            right &= _equal(got, values)
            right &= _in_windows(name, given, places, plane) if plane else places < torch.ones_like(own).cumsum(dim)
        results = torch.where(right, got, values), torch.where(right, places, own)
        return results, (torch.where(right, places, -1),), not torch.equal(results[1], own)

    def _distinct(self, out: Any, wanted: Tensor, at: Tensor) -> Answer:
        """The distinct values in the order of others, with their inverse and counts. at: their inverse, which says which NaN
        is which."""
        values, inverse, counts = out
        order = values.argsort()[wanted.argsort().argsort()]
        if not self._sure and not bool(_equal(values[order], wanted).all()):
            return out, (values.clone(), inverse.clone()), False
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel())
        now = place[inverse] if inverse.numel() else inverse
        odd = values[order].isnan()[now]
        now[odd] = at[odd] if torch.equal(now[odd].sort().values, at[odd].sort().values) else now[odd]
        other = not (bool(_equal(values[order], values).all()) and torch.equal(now, inverse))
        results = values[order], now, counts[order] if counts.numel() else counts
        return results, results[:2], other


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a public function; eigenvalues without gradients by what torch calls where nobody looks on, where it computes the
    vectors as well, perhaps in another order."""
    if func is not torch.linalg.eigvals or len(args) != 1 or kwargs or (torch.is_grad_enabled() and args[0].requires_grad):
        return func(*args, **kwargs)
    return torch.ops.aten._linalg_eigvals(*args)


def _by_name(func: Any, args: Sequence[Any], kwargs: Given) -> dict[str, Any]:
    names = [a.name for a in func._schema.arguments if not a.is_out]
    given = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    return given | dict(zip(names, args)) | {n: kwargs[n] for n in names if n in kwargs}


def as_written(func: Any, args: Sequence[Any], kwargs: Given, device: Tensor, cpu: Tensor) -> Tensor:
    """What a device wrote by a call, with the CPU's number where it holds one of several values written to one place, of which
    any may stay. args, kwargs: on the CPU, as they were before the call. device, cpu: the results."""
    name, given = func._schema.name.partition("::")[2].strip("_").removesuffix("_impl"), _by_name(func, args, kwargs)
    if name not in ATEN_WRITTEN or device.shape != cpu.shape or not (stayed := _chosen(name, device, given)):
        return device
    places, _ = _writes(name, given, device.shape)
    free = torch.zeros(device.numel(), dtype=torch.bool).index_fill(0, places[stayed[0]], True).view(device.shape)
    return torch.where(free, cpu, device)


def _chosen(name: str, out: Any, given: Given) -> tuple[Tensor, ...]:
    """What a call chose of that which torch leaves to a device; nothing for other calls."""
    if name in ATEN_TURNED:
        results = (out,) if isinstance(out, Tensor) else tuple(out)
        return results if any(results[k].numel() for k in ATEN_TURNED[name] or (0,)) else ()
    if name == ATEN_DISTINCT:
        return () if given["sorted"] and int(out[0].isnan().sum()) < 2 else (out[0], out[1])
    if name in ATEN_WRITTEN:
        if given.get("accumulate") or given.get("reduce") or "value" in given or not out.numel():
            return ()
        places, sources = _writes(name, given, out.shape)
        repeated = places.numel() > 0 and int(places.bincount().max()) > 1
        return (_equal(out.cpu().reshape(-1)[places], sources),) if repeated else ()
    placed = name in ATEN_POOLS or name in ATEN_RUNNING or (name in ATEN_PLACED and not given.get("stable"))
    return (out[1],) if placed and isinstance(out, tuple) and given["self"].dim() > 0 else ()


def _writes(name: str, given: Given, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The places in the whole result that a call writes to, and the values, on the CPU. shape: of the result."""
    at: list[Any] = [None if i is None else i.cpu() for i in given.get("indices") or (given["index"],)]
    grid = torch.arange(math.prod(shape)).view(shape)
    sources = next(given[n] for n in ("src", "source", "values") if n in given).cpu()
    if name == ATEN_DIM:
        places = grid.gather(given["dim"], *at)
        sources = sources[tuple(slice(n) for n in places.shape)]
    elif name in (ATEN_ROWS, ATEN_FLAT):
        places = grid.take(*at) if name == ATEN_FLAT else grid.index_select(given["dim"], *at)
    else:
        places = torch.ops.aten.index(grid, at)
        sources = sources.expand(places.shape)
    return places.reshape(-1), sources.reshape(-1)


def _written(name: str, given: Given, out: Tensor, own: Tensor, wanted: Tensor) -> Answer:
    """The result with the values that stayed elsewhere, where one of a place did. own, wanted: which values stayed."""
    places, sources = _writes(name, given, out.shape)
    last = torch.full((out.numel(),), -1).scatter_reduce(0, places[wanted], wanted.nonzero().squeeze(-1), ATEN_LAST)
    now = torch.where(last < 0, out.reshape(-1), sources[last.clamp(min=0)]).view(out.shape)
    return (now,), (torch.where(last[places] < 0, own, wanted),), not bool(_equal(now, out).all())


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))


def _in_windows(name: str, given: Given, places: Tensor, plane: int) -> Tensor:
    """Whether each position lies in the window of its element. plane: how many dimensions windows have."""
    pool, steps = getattr(torch.ops.aten, name), given.get("dilation", [1])
    inside = places.clamp(0, max(0, math.prod(given["self"].shape[-plane:]) - 1))
    return in_windows(lambda t: pool(**{**given, "self": t})[0], inside, given["self"], [*steps] * (plane // len(steps)))


def _picks(given: Given, out: Tensor) -> Tensor:
    """The positions that the gradient of a device's pool picks, on the CPU; -1 where they are not seen. One gradient is taken
    for all windows that share no element."""
    x, size, places = given["self"], out.shape[-2:], torch.full(out.shape, -1)
    how = {k: given[k] for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")}
    kernel, stride, step = ((how[k] or how["kernel_size"]) * 2 for k in ("kernel_size", "stride", "dilation"))
    apart = [min(size[d], ((kernel[d] - 1) * step[d]) // stride[d] + 1) for d in (0, 1)]
    if math.prod(apart) > MOST:
        return places
    row, column = (torch.arange(n) % a for n, a in zip(size, apart))
    for i, j in itertools.product(*map(range, apart)):
        asked = (row == i)[:, None] & (column == j)
        fed = asked.expand(out.shape).to(x.device, x.dtype).contiguous()
        got = torch.ops.aten.max_pool2d_backward(fed, x, **how).cpu()
        seen, at = torch.ops.aten.max_pool2d_with_indices((got != 0).float(), **how)
        places = torch.where(asked & (seen > 0), at, places)
    return places


def _turned(name: str, own: Sequence[Tensor], wanted: Sequence[Tensor]) -> Answer:
    """The results of a factorization with the order of other eigenvalues, and the signs or phases of other vectors: of each
    column of the first, and of the row of the second that belongs to it. Of vectors to which none belongs (of a complete Q),
    and of those of equal eigenvalues or singular values, only their space is given."""
    results, other, coarse = list(own), False, torch.finfo(wanted[0].dtype).eps
    wanted = [t.to(o.dtype) for t, o in zip(wanted, own)]
    if name in ATEN_ORDERED:
        order = _nearest(own[0], wanted[0])
        results = [t.gather(-1, order.unsqueeze(-2).expand_as(t) if k else order) for k, t in enumerate(own)]
        results[1:] = [_in_eigenspaces(t, like, results[0], coarse) for t, like in zip(results[1:], wanted[1:])]
        other = not all(map(torch.equal, results, own))
    places = [k for k in ATEN_TURNED[name] if own[k].numel()]
    rows = ATEN_TURNED[name][1:]
    columns, likes = ([ts[k].mT.conj_physical() if k in rows else ts[k] for k in places] for ts in (results, wanted))
    k, eps = min((n for t in columns for n in t.shape[-2:]), default=0), torch.finfo(own[0].dtype).eps
    loose = torch.zeros((), dtype=torch.bool)
    if name == "_linalg_svd":  # vectors of 0 do not belong together, and to those of an empty matrix belongs nothing
        k = own[1].shape[-1]
        loose = own[1] <= eps * max(t.shape[-2] for t in columns) * own[1][..., :1]  # the largest is the first
    dots = [(t.conj_physical() * like).sum(-2)[..., :k] for t, like in zip(columns, likes)]
    if name in ATEN_VALUES:
        before, columns = columns, list(_in_their_space(columns, likes, own[ATEN_VALUES[name]], loose, coarse))
        other = any(t is not b for t, b in zip(columns, before))
        dots = [(t.conj_physical() * like).sum(-2)[..., :k] for t, like in zip(columns, likes)]
    for at, t, like, dot in zip(places, columns, likes, dots):
        phase = torch.sgn(torch.where(loose, dot, sum(dots)))
        phase = torch.where(torch.isfinite(phase) & (phase != 0), phase, 1)
        u, _, vh = torch.linalg.svd(torch.nan_to_num(t[..., k:].mT.conj_physical() @ like[..., k:]))
        now = torch.cat((t[..., :k] * phase.unsqueeze(-2), t[..., k:] @ (u @ vh)), -1)
        other |= bool((phase - 1).abs().gt(math.sqrt(eps)).any() or (now - t)[..., k:].abs().gt(math.sqrt(eps)).any())
        results[at] = now.mT.conj_physical() if at in rows else now  # not mH: inside a mode its mark is not looked at
    results = results if other else [t.clone() for t in own]
    return results, tuple(results), other


def _in_their_space(
    columns: Sequence[Tensor], likes: Sequence[Tensor], values: Tensor, loose: Tensor, eps: float
) -> Sequence[Tensor]:
    """Orthonormal vectors turned within the spaces of equal values to those that are nearest to others. values: in their order;
    loose: whose vectors on one side are not bound to those on the other; eps: of the dtype in which the values differ, each
    of which may be off by `SCALE` times as much."""
    k = values.shape[-1]
    apart = (values.diff(dim=-1).abs() > 2.0 * SCALE * eps * values.abs().amax(-1, keepdim=True)) if k > 1 else torch.ones(())
    if bool(apart.all()):
        return columns
    group = torch.nn.functional.pad(apart.cumsum(-1), (1, 0))
    block = group.unsqueeze(-1) == group.unsqueeze(-2)
    alone, free = (x.unsqueeze(-2) for x in (block.sum(-1) == 1, loose.expand_as(values)))
    inner = [torch.nan_to_num(t[..., :k].mT.conj_physical() @ like[..., :k]) * block for t, like in zip(columns, likes)]
    turned = []
    for t, own in zip(columns, inner):
        u, _, vh = torch.linalg.svd(torch.where(free, own, sum(inner)))
        turned.append(torch.cat((torch.where(alone, t[..., :k], t[..., :k] @ (u @ vh)), t[..., k:]), -1))
    return turned


def _in_eigenspaces(columns: Tensor, likes: Tensor, values: Tensor, eps: float) -> Tensor:
    """Eigenvectors, of equal eigenvalues those vectors of their space that are nearest to others, which need not be orthogonal.
    The own ones stand where the others do not span that space. eps: as in `_in_their_space`."""
    near = (values.unsqueeze(-1) - values.unsqueeze(-2)).abs() <= 2.0 * SCALE * eps * values.abs().amax(-1)[..., None, None]
    made, wanted = (torch.nan_to_num(t).contiguous() for t in (columns, likes))
    for matrix, like, close in zip(*(t.view(-1, *t.shape[-2:]) for t in (made, wanted, near))):
        for at in close[close.sum(-1) > 1].unique(dim=0):
            u, s, _ = torch.linalg.svd(matrix[:, at], full_matrices=False)
            space = u[:, s > math.sqrt(eps)]
            now = torch.nn.functional.normalize(space @ (space.mH @ like[:, at]), dim=0)
            if int((torch.linalg.svdvals(now) > math.sqrt(eps)).sum()) == space.shape[-1]:
                matrix[:, at] = now
    return torch.where(columns.isfinite(), made, columns)


def _nearest(own: Tensor, wanted: Tensor) -> Tensor:
    """Where the number next to each wanted one is, each taken once."""
    order, taken = list[Tensor](), torch.zeros(own.shape)
    for one in wanted.unsqueeze(-1).unbind(-2):
        order.append(((own - one).abs().nan_to_num(torch.inf) + taken).argmin(-1, keepdim=True))
        taken = taken.scatter(-1, order[-1], torch.inf)
    return torch.cat(order, -1)
