"""Decompositions are right up to phases, signs and pivots: the factors must rebuild the input (LAPACK's test ratios)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from parity.judging.relations.bound import (
    INVARIANT_LIMIT,
    SYMMETRIC_LIMIT,
    UNSOUND,
    Bound,
    Problem,
    Problems,
    Relation,
    Results,
    Unjudged,
    everything,
    norm,
    outs,
    residual,
    roundoff,
    same,
    sound,
    unsound,
    wide,
)


def _orthonormal(name: str, q: Tensor, u: float, excluded: Tensor, limit: float = INVARIANT_LIMIT) -> Problems:
    eye = torch.eye(q.shape[-1], dtype=q.dtype).expand(*q.shape[:-2], q.shape[-1], q.shape[-1])
    size = torch.ones(q.shape[:-2], dtype=torch.float64)
    return residual(name, "columns are not orthonormal", q.mH @ q, eye, size, u, limit, excluded=excluded)


def _svd(call: Bound, r: Results) -> Problems:
    names = outs(r)
    if len(names) < 3:
        return []
    excluded, u = unsound(call, call.args[0]), roundoff(call.args[0])
    a = sound(wide(call.args[0]), excluded)
    left, s, right = (wide(r[n]) for n in names[:3])
    if left.shape[-1] == 0 or not left.numel():
        return []
    k = s.shape[-1]
    if right.shape[-1] == k and right.shape[-2] == a.shape[-1] and right.shape[-2:] != (k, a.shape[-1]):
        right = right.mH
    built = (left[..., :k] * s.unsqueeze(-2)) @ right[..., :k, :]
    also = (left[..., :k] * s.unsqueeze(-2)) @ right.mH[..., :k, :] if right.shape[-1] == right.shape[-2] else built
    problems = residual(names[0], "U S Vh does not rebuild the input", built, a, norm(a), u, excluded=excluded)
    if any(isinstance(p, Problem) for p in problems) and also is not built:
        problems = residual(names[0], "U S Vh does not rebuild the input", also, a, norm(a), u, excluded=excluded)
    values = _spectrum(names[1], s, torch.linalg.svdvals(a), a, u, excluded)
    return [*problems, *values, *_orthonormal(names[0], left, u, excluded), *_orthonormal(names[2], right.mH, u, excluded)]


def _spectrum(name: str, got: Tensor, want: Tensor, a: Tensor, u: float, excluded: Tensor) -> Problems:
    """Compare values in the order that torch promises; they are perfectly conditioned (Weyl)."""
    return residual(name, "not the spectrum of the input", got.unsqueeze(-1), want.unsqueeze(-1), norm(a), u, excluded=excluded)


def _eigh(call: Bound, r: Results) -> Problems:
    names = outs(r)
    if len(names) < 2:
        return []
    a, u = wide(call.args[0]), roundoff(call.args[0])
    upper = call.get(1, "UPLO", "L") == "U"
    a = torch.triu(a) + torch.triu(a, 1).mH if upper else torch.tril(a) + torch.tril(a, -1).mH
    if a.is_complex():
        a = a - 1j * torch.diag_embed(torch.diagonal(a, dim1=-2, dim2=-1).imag)  # LAPACK takes the diagonal as real
    w, v = wide(r[names[0]]), wide(r[names[1]])
    if not v.numel():
        return []
    excluded = unsound(call, a)
    a = sound(a, excluded)
    turned = v * w.to(v.dtype).unsqueeze(-2)
    return [
        *residual(names[1], "A V is not V diag(w)", a @ v, turned, norm(a), u, SYMMETRIC_LIMIT, excluded=excluded),
        *_orthonormal(names[1], v, u, excluded, SYMMETRIC_LIMIT),
        *_spectrum(names[0], w, torch.linalg.eigvalsh(a), a, u, excluded),
    ]


def _eig(call: Bound, r: Results) -> Problems:
    names = outs(r)
    if len(names) < 2:
        return []
    a, u = wide(call.args[0]).to(torch.complex128), roundoff(call.args[0])
    w, v = (r[n].to(torch.complex128) for n in names[:2])
    if not v.numel():
        return []
    excluded = unsound(call, a)
    a = sound(a, excluded)
    lengths = torch.linalg.vector_norm(v, dim=-2).unsqueeze(-1)
    one = torch.ones(v.shape[:-2], dtype=torch.float64)
    # The values of excluded matrices are not judged either.
    return [
        *residual(names[1], "A V is not V diag(w)", a @ v, v * w.unsqueeze(-2), norm(a), u, excluded=excluded),
        *residual(names[1], "eigenvectors are not of length 1", lengths, torch.ones_like(lengths), one, u, excluded=excluded),
        *([Unjudged(names[0], excluded, UNSOUND)] if bool(excluded.any()) else []),
    ]


def _qr(call: Bound, r: Results) -> Problems:
    names = outs(r)
    if len(names) < 2 or not r[names[0]].numel():
        return []
    a, u = wide(call.args[0]), roundoff(call.args[0])
    q, rr, excluded = wide(r[names[0]]), wide(r[names[1]]), unsound(call, a)
    problems = residual(names[0], "Q R is not the input", q @ rr, a, norm(a), u, excluded=excluded)
    problems += _orthonormal(names[0], q, u, excluded)
    return problems + ([] if same(torch.triu(rr), rr) else [Problem(names[1], "R is not upper triangular")])


def _lu(call: Bound, r: Results) -> Problems:
    names = outs(r)
    a, u = wide(call.args[0]), roundoff(call.args[0])
    if len(names) >= 2 and r[names[1]].dtype == torch.int32:
        if not r[names[0]].numel():
            return []
        if bool(((r[names[1]] < 1) | (r[names[1]] > a.shape[-2])).any()):
            return [Problem(names[1], "a pivot is no row of the matrix")]
        p, low, up = torch.lu_unpack(wide(r[names[0]]), r[names[1]])
    elif len(names) >= 3:
        p, low, up = (wide(r[n]) for n in names[:3])
    else:
        return []
    if not low.numel() or not up.numel():
        return []
    built = p @ low @ up if p.numel() else low @ up
    return residual(names[0], "P L U is not the input", built, a, norm(a), u, excluded=unsound(call, a))


def _lowrank(call: Bound, r: Results, centered: bool = False) -> Problems:
    """U S V^H of a matrix, given as two factors, whose rank is the number of singular values requested: it rebuilds the matrix
    from any random start.

    With M subtracted the rank is full; then U and V must agree with the matrix on the subspace they span.
    """
    names = outs(r)
    left, right = call.args[0], call.get(1, "b")
    if len(names) < 3 or not isinstance(right, Tensor):
        return []
    a, u = wide(left) @ wide(right).mT, roundoff(left)
    size = norm(a)
    shift = call.kwargs.get("M")
    if shift is not None:
        a, size = a - wide(shift), size + norm(wide(shift))
    if centered and call.kwargs.get("center", True):
        a = a - a.mean(-2, keepdim=True)
    left, s, right = (wide(r[n]) for n in names[:3])
    if not left.numel() or not right.numel():
        return []
    excluded = unsound(call, a)
    problems = [*_orthonormal(names[0], left, u, excluded), *_orthonormal(names[2], right, u, excluded)]
    scaled = left * s.unsqueeze(-2)
    if shift is None:
        return problems + residual(
            names[0], "U S Vh does not rebuild the input", scaled @ right.mH, a, size, u, excluded=excluded
        )
    beyond = residual(names[0], "A V is not U S", a @ right, scaled, size, u, excluded=excluded)
    other = residual(names[2], "Uh A is not S Vh", left.mH @ a, (right * s.unsqueeze(-2)).mH, size, u, excluded=excluded)
    return problems + (other if any(isinstance(p, Problem) for p in beyond) else beyond)


def _vectors(*positions: int) -> Callable[[Bound, Results], frozenset[str]]:
    def covers(call: Bound, r: Results) -> frozenset[str]:
        names = outs(r)
        return frozenset(names[i] for i in positions if i < len(names)) if len(names) > 1 else frozenset()

    return covers


RELATIONS: dict[str, Relation] = {
    "svd": Relation(_vectors(0, 1, 2), _svd),
    "eigh": Relation(_vectors(0, 1), _eigh),
    "eig": Relation(_vectors(0, 1), _eig),
    "qr": Relation(_vectors(0, 1), _qr),
    "lu": Relation(everything, _lu),
    "lowrank": Relation(everything, _lowrank),
    "pca_lowrank": Relation(everything, partial(_lowrank, centered=True)),
}
