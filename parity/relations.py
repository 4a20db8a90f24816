"""What must hold where several answers are right: ties, signs, phases, pivots, random streams.

A relation looks at the inputs and the device's results only, and says what is wrong with them. The results that it names in
`covers` are not compared by value; all others still are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.dtypes import FACTS

INVARIANT_LIMIT = 30.0  # LAPACK's test ratio: residual / (norm * size * u)


@dataclass(frozen=True, slots=True)
class Bound:
    """A call with its operands on the CPU, as the reference got them."""

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else default


Results = Mapping[str, Tensor]
Problems = list[tuple[str, str]]  # (name of the result, what is wrong)


@dataclass(frozen=True, slots=True)
class Relation:
    """covers: names of the results that are judged here instead of by value."""

    covers: Callable[[Bound, Results], frozenset[str]]
    problems: Callable[[Bound, Results], Problems]


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    equal = a == b
    if a.is_floating_point() or a.is_complex():
        equal |= torch.isnan(a) & torch.isnan(b)
    return bool(equal.all())


def _in_range(index: Tensor, size: int) -> bool:
    return bool(((index >= 0) & (index < max(size, 1))).all()) if index.numel() else True


def _picked(x: Tensor, index: Tensor, dim: int, keepdim: bool) -> Tensor | None:
    """x at the indices along dim, in the shape of the indices; None where an index is out of range."""
    if not x.dim():
        return x.clone() if _in_range(index, 1) else None
    full = index if keepdim else index.unsqueeze(dim)
    if not _in_range(full, x.shape[dim]):
        return None
    got = x.gather(dim, full.to(torch.int64))
    return got if keepdim else got.squeeze(dim)


def _names(results: Results) -> list[str]:
    return [n for n in results if n.startswith("out")]


def _indices(call: Bound, results: Results) -> frozenset[str]:
    return frozenset(n for n in _names(results)[1:] if not results[n].is_floating_point())


def _only(call: Bound, results: Results) -> frozenset[str]:
    return frozenset(_names(results)[:1])


def _all(call: Bound, results: Results) -> frozenset[str]:
    return frozenset(_names(results))


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
    v, i = (r[n] for n in _names(r)[:2])
    return _ordered("out[1]", x, v, i, dim)


def _ordered(name: str, x: Tensor, v: Tensor | None, i: Tensor, dim: int) -> Problems:
    if not _is_permutation(i, dim):
        return [(name, "the indices are no permutation")]
    got = _picked(x, i, dim, True)
    if got is None or (v is not None and not _same(got, v)):
        return [(name, "the input at the indices is not the sorted values")]
    return []


def _argsort(call: Bound, r: Results) -> Problems:
    x, dim = call.args[0], call.kwargs.get("dim", -1)
    descending = bool(call.kwargs.get("descending", False))
    if len(call.args) > 1 and isinstance(call.args[1], int):
        dim = call.args[1]
        descending = bool(call.get(2, "descending", False))
    i = r[_names(r)[0]]
    return _ordered("out", x, torch.sort(x, dim=dim, descending=descending).values, i, dim)


def _topk(call: Bound, r: Results) -> Problems:
    x, dim = call.args[0], call.get(2, "dim", -1)
    largest, ordered = call.get(3, "largest", True), call.get(4, "sorted", True)
    k = call.get(1, "k", 1)
    v, i = (r[n] for n in _names(r)[:2])
    got = _picked(x, i, dim, True)
    if got is None or not _same(got, v):
        return [("out[1]", "the input at the indices is not the returned values")]
    if x.dim():
        want = torch.topk(x, k, dim, largest).values
        got = v if ordered else torch.sort(v, dim, descending=largest).values
        if not _same(want, got):
            return [("out[0]", "these are not the k extreme values")]
        repeated = i.sort(dim).values.diff(dim=dim) == 0
        if bool(repeated.any()):
            return [("out[1]", "an index is returned twice")]
    return []


def _topk_covers(call: Bound, r: Results) -> frozenset[str]:
    """The indices; the values too where the caller asked for no order."""
    return _indices(call, r) if call.get(4, "sorted", True) else frozenset(_names(r))


def _value_at(position: int) -> Callable[[Bound, Results], Problems]:
    """Values with the index of one of their places: kthvalue(k, dim), median(dim), mode(dim), max(dim)."""

    def problems(call: Bound, r: Results) -> Problems:
        names = _names(r)
        if len(names) < 2 or r[names[1]].is_floating_point() or r[names[1]].dtype != torch.int64:
            return []
        x = call.args[0]
        dim = call.get(position, "dim", -1)
        keepdim = bool(call.get(position + 1, "keepdim", False))
        got = _picked(x, r[names[1]], dim if isinstance(dim, int) else -1, keepdim)
        if got is None or not _same(got, r[names[0]]):
            return [(names[1], "the input at the index is not the returned value")]
        return []

    return problems


def _argmax(call: Bound, r: Results) -> Problems:
    x, dim = call.args[0], call.get(1, "dim")
    keepdim = bool(call.get(2, "keepdim", False))
    name = _names(r)[0]
    index = r[name]
    if dim is None:
        if not _in_range(index, x.numel()):
            return [(name, "the index is out of range")]
        got = x.reshape(-1)[index.reshape(-1)[0]]
        both = got, *(torch.amax(x), torch.amin(x))
    else:
        picked = _picked(x, index, dim, keepdim)
        if picked is None:
            return [(name, "an index is out of range")]
        both = picked, torch.amax(x, dim, keepdim), torch.amin(x, dim, keepdim)
    got, top, bottom = both
    return [] if _same(got, top) or _same(got, bottom) else [(name, "the input at the index is not the extreme value")]


def _cummax(call: Bound, r: Results) -> Problems:
    x, dim = call.args[0], call.get(1, "dim", 0)
    names = _names(r)
    got = _picked(x, r[names[1]], dim, True)
    if got is None or not _same(got, r[names[0]]):
        return [(names[1], "the input at the index is not the running extreme")]
    index = r[names[1]]
    if index.dim():
        shape = [1] * index.dim()
        shape[dim] = index.shape[dim]
        if bool((index > torch.arange(index.shape[dim]).view(shape)).any()):
            return [(names[1], "an index points ahead of its place")]
    return []


def _unique(call: Bound, r: Results) -> Problems:
    x = call.args[0]
    name = _names(r)[0]
    if call.get(5, "dim") is not None or call.kwargs.get("dim") is not None or r[name].dim() != 1:
        return []
    want, got = torch.unique(x).sort().values, r[name].sort().values
    return [] if _same(want, got) else [(name, "these are not the distinct values")]


def _unordered(call: Bound, r: Results) -> frozenset[str]:
    """Everything only where the caller asked for no order."""
    return frozenset(_names(r)) if call.get(1, "sorted", True) is False else frozenset()


def _pool(call: Bound, r: Results) -> Problems:
    names = _names(r)
    if len(names) < 2:
        return []
    x, v, i = call.args[0], r[names[0]], r[names[1]]
    spatial = next((int(d) for d in "123" if f"{d}d" in call.op), 2)
    flat = x.reshape(*x.shape[: x.dim() - spatial], -1)
    index = i.reshape(*i.shape[: i.dim() - spatial], -1)
    if not _in_range(index, flat.shape[-1]):
        return [(names[1], "an index is outside the plane")]
    return (
        []
        if _same(flat.gather(-1, index), v.reshape(index.shape))
        else [(names[1], "the input at the index is not the maximum")]
    )


# --------------------------------------------------------------------------------------------------------- decompositions


def _wide(t: Tensor) -> Tensor:
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64)


def _u(t: Tensor) -> float:
    return FACTS[str(t.dtype).removeprefix("torch.")].unit_roundoff


def _residual(name: str, what: str, got: Tensor, want: Tensor, scale: Tensor, u: float) -> Problems:
    if not torch.isfinite(want.abs()).all():
        return []
    n = max(1, *got.shape[-2:]) if got.dim() >= 2 else 1
    error = torch.linalg.matrix_norm(got - want) if got.numel() else torch.zeros(())
    limit = INVARIANT_LIMIT * n * u * torch.clamp(scale, min=torch.finfo(torch.float64).tiny)
    bad = ~(error <= limit)
    if bool(bad.any()):
        ratio = float((error / limit).nan_to_num(float("inf")).max()) * INVARIANT_LIMIT
        return [(name, f"{what}: residual {ratio:.3g} in units of n u norm, at most {INVARIANT_LIMIT:g}")]
    return []


def _orthonormal(name: str, q: Tensor, u: float) -> Problems:
    eye = torch.eye(q.shape[-1], dtype=q.dtype).expand(*q.shape[:-2], q.shape[-1], q.shape[-1])
    return _residual(name, "columns are not orthonormal", q.mH @ q, eye, torch.ones(q.shape[:-2], dtype=torch.float64), u)


def _norm(a: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(a).to(torch.float64) if a.numel() else torch.zeros(a.shape[:-2], dtype=torch.float64)


def _svd(call: Bound, r: Results) -> Problems:
    names = _names(r)
    if len(names) < 3:
        return []
    a, u = _wide(call.args[0]), _u(call.args[0])
    left, s, right = (_wide(r[n]) for n in names[:3])
    if left.shape[-1] == 0 or not left.numel():
        return []
    k = s.shape[-1]
    if right.shape[-1] == k and right.shape[-2] == a.shape[-1] and right.shape[-2:] != (k, a.shape[-1]):
        right = right.mH
    built = (left[..., :k] * s.unsqueeze(-2)) @ right[..., :k, :]
    also = (left[..., :k] * s.unsqueeze(-2)) @ right.mH[..., :k, :] if right.shape[-1] == right.shape[-2] else built
    found = _residual(names[0], "U S Vh does not rebuild the input", built, a, _norm(a), u)
    if found and also is not built:
        found = _residual(names[0], "U S Vh does not rebuild the input", also, a, _norm(a), u)
    return [*found, *_orthonormal(names[0], left, u), *_orthonormal(names[2], right.mH, u)]


def _eigh(call: Bound, r: Results) -> Problems:
    names = _names(r)
    if len(names) < 2:
        return []
    a, u = _wide(call.args[0]), _u(call.args[0])
    upper = call.get(1, "UPLO", "L") == "U"
    a = torch.triu(a) + torch.triu(a, 1).mH if upper else torch.tril(a) + torch.tril(a, -1).mH
    if a.is_complex():
        a = a - 1j * torch.diag_embed(torch.diagonal(a, dim1=-2, dim2=-1).imag)  # LAPACK takes the diagonal as real
    w, v = _wide(r[names[0]]), _wide(r[names[1]])
    if not v.numel():
        return []
    return [
        *_residual(names[1], "A V is not V diag(w)", a @ v, v * w.to(v.dtype).unsqueeze(-2), _norm(a), u),
        *_orthonormal(names[1], v, u),
    ]


def _eig(call: Bound, r: Results) -> Problems:
    names = _names(r)
    if len(names) < 2:
        return []
    a, u = _wide(call.args[0]).to(torch.complex128), _u(call.args[0])
    w, v = (r[n].to(torch.complex128) for n in names[:2])
    if not v.numel():
        return []
    return _residual(names[1], "A V is not V diag(w)", a @ v, v * w.unsqueeze(-2), _norm(a), u)


def _qr(call: Bound, r: Results) -> Problems:
    names = _names(r)
    if len(names) < 2 or not r[names[0]].numel():
        return []
    a, u = _wide(call.args[0]), _u(call.args[0])
    q, rr = _wide(r[names[0]]), _wide(r[names[1]])
    found = _residual(names[0], "Q R is not the input", q @ rr, a, _norm(a), u) + _orthonormal(names[0], q, u)
    return found + ([] if _same(torch.triu(rr), rr) else [(names[1], "R is not upper triangular")])


def _lu(call: Bound, r: Results) -> Problems:
    names = _names(r)
    a, u = _wide(call.args[0]), _u(call.args[0])
    if len(names) >= 2 and r[names[1]].dtype == torch.int32:
        if not r[names[0]].numel():
            return []
        p, low, up = torch.lu_unpack(_wide(r[names[0]]), r[names[1]])
    elif len(names) >= 3:
        p, low, up = (_wide(r[n]) for n in names[:3])
    else:
        return []
    if not low.numel() or not up.numel():
        return []
    built = p @ low @ up if p.numel() else low @ up
    return _residual(names[0], "P L U is not the input", built, a, _norm(a), u)


def _lstsq(call: Bound, r: Results) -> Problems:
    """The residual is orthogonal to the columns (m >= n), or there is none; small elements may be off by more."""
    name = _names(r)[0]
    a, b, x = _wide(call.args[0]), _wide(call.get(1, "B")), _wide(r[name])
    if b.dim() == a.dim() - 1:
        b, x = b.unsqueeze(-1), x.unsqueeze(-1)
    if not a.numel() or not b.numel():
        return []
    residual = a @ x - b
    scale = _norm(a) * _norm(x) + _norm(b)
    if a.shape[-2] >= a.shape[-1]:
        residual, scale = a.mH @ residual, _norm(a) * scale
    return _residual(name, "no least-squares solution", residual, torch.zeros_like(residual), scale, _u(call.args[0]))


def _nothing(call: Bound, r: Results) -> Problems:
    return []


def _vectors(*positions: int) -> Callable[[Bound, Results], frozenset[str]]:
    def covers(call: Bound, r: Results) -> frozenset[str]:
        names = _names(r)
        return frozenset(names[i] for i in positions if i < len(names)) if len(names) > 1 else frozenset()

    return covers


RELATIONS: dict[str, Relation] = {
    "sort": Relation(_indices, _sort),
    "argsort": Relation(_only, _argsort),
    "topk": Relation(_topk_covers, _topk),
    "kthvalue": Relation(_indices, _value_at(2)),
    "median": Relation(_indices, _value_at(1)),
    "mode": Relation(_indices, _value_at(1)),
    "max_dim": Relation(_indices, _value_at(1)),
    "argmax": Relation(_only, _argmax),
    "cummax": Relation(_indices, _cummax),
    "unique": Relation(_unordered, _unique),
    "max_pool_indices": Relation(_indices, _pool),
    "svd": Relation(_vectors(0, 2), _svd),
    "eigh": Relation(_vectors(1), _eigh),
    "eig": Relation(_vectors(0, 1), _eig),
    "qr": Relation(_vectors(0, 1), _qr),
    "lu": Relation(_all, _lu),
    "lstsq": Relation(_all, _lstsq),
    "random": Relation(_all, _nothing),
    "uninitialised": Relation(_all, _nothing),
}
# Relations whose gradients depend on the arbitrary choice (signs, phases, pivots), so that backward says nothing.
GAUGE_DEPENDENT = frozenset({"svd", "eigh", "eig", "qr", "lu", "lstsq", "random", "uninitialised"})
