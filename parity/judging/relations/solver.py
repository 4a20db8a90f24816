"""Solvers are judged by their residual (backward error), not by how far an ill-conditioned answer moved.

A X = B holds up to 30 n u (|A| |X| + |B|) in the Frobenius norm (LAPACK's test ratio; Higham, Accuracy and Stability, 2002,
section 7.1). Spectra are perfectly conditioned (Weyl): the limit is 30 n u |A|.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from parity.core.dtypes import FACTS
from parity.judging.relations.bound import (
    Bound,
    Problem,
    Problems,
    Relation,
    Results,
    norm,
    only,
    outs,
    residual,
    roundoff,
    sound,
    unsound,
    wide,
)

PARTIAL = 8.0  # products of complex parts and partial sums may be this much larger than the operands


def _largest(u: float) -> float:
    """The largest number of the dtype with this roundoff."""
    return max(f.max for f in FACTS.values() if f.is_inexact and f.unit_roundoff == u)


def _system(call: Bound, name: str, a: Tensor, x: Tensor, b: Tensor, u: float, vectors: bool = True) -> Problems:
    """Whether x solves the system. vectors: if b has one dimension less, it is one column, for all matrices, or a batch of
    columns."""
    if vectors and (b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])):
        b, x = b.unsqueeze(-1), x.unsqueeze(-1)
    if not a.numel() or not b.numel():
        return []
    product = a @ x if call.kwargs.get("left", True) else x @ a
    wanted = b.expand_as(product)
    lost = wanted.abs().amax((-2, -1)) > _largest(u) / PARTIAL
    excluded = unsound(call, a, wanted)
    scale = norm(a) * norm(x) + norm(b)
    return residual(name, "no solution of the system", product, wanted, scale, u, lost=lost, excluded=excluded)


def _solve(call: Bound, r: Results) -> Problems:
    a, b, name = call.args[0], call.get(1, "B"), outs(r)[0]
    return _system(call, name, wide(a), wide(r[name]), wide(b), roundoff(a))


def _inverse(call: Bound, r: Results) -> Problems:
    a, name = call.args[0], outs(r)[0]
    x, w = wide(r[name]), wide(a)
    if not w.numel():
        return []
    eye = torch.eye(w.shape[-1], dtype=w.dtype).expand_as(w)
    return residual(name, "A X is not the identity", w @ x, eye, norm(w) * norm(x), roundoff(a), excluded=unsound(call, w))


def _triangular(call: Bound, r: Results) -> Problems:
    a, b, name = call.args[0], call.get(1, "B"), outs(r)[0]
    w = torch.triu(wide(a)) if call.kwargs.get("upper") else torch.tril(wide(a))
    if call.kwargs.get("unitriangular"):
        w = w - torch.diag_embed(torch.diagonal(w, dim1=-2, dim2=-1)) + torch.eye(w.shape[-1], dtype=w.dtype)
    return _system(call, name, w, wide(r[name]), wide(b), roundoff(a), False)


def _lu_solve(call: Bound, r: Results) -> Problems:
    a, b, name = call.args[0], call.get(1, "b"), outs(r)[0]
    w = wide(a).mH if call.kwargs.get("adjoint") else wide(a)
    return _system(call, name, w, wide(r[name]), wide(b), roundoff(a))


def _hermitian(a: Tensor) -> Tensor:
    """The matrix that a Cholesky factorisation reads: the lower triangle, with a real diagonal."""
    w = wide(a)
    low = torch.tril(w, -1)
    return low + low.mH + torch.diag_embed(torch.diagonal(w, dim1=-2, dim2=-1).real.to(w.dtype))


def _cholesky(call: Bound, r: Results) -> Problems:
    a, name = call.args[0], outs(r)[0]
    factor = wide(r[name])
    upper = bool(call.get(1, "upper", False))
    w = _hermitian(a.mH if upper else a)
    if not w.numel():
        return []
    triangle, excluded = torch.triu(factor) if upper else torch.tril(factor), unsound(call, w)
    if not torch.equal(sound(triangle, excluded), sound(factor, excluded)):
        return [Problem(name, "the factor is not triangular")]
    built = factor.mH @ factor if upper else factor @ factor.mH
    return residual(name, "the factor does not rebuild the input", built, w, norm(w), roundoff(a), excluded=excluded)


def _of_factored(solve: Callable[[str, Tensor, Tensor, Bound], Problems]) -> Callable[[Bound, Results], Problems]:
    """Relation of a row that factors its first operand itself and then solves with it."""

    def problems(call: Bound, r: Results) -> Problems:
        name = outs(r)[0]
        return solve(name, call.args[0], wide(r[name]), call)

    return problems


def _cholesky_solved(name: str, a: Tensor, x: Tensor, call: Bound) -> Problems:
    upper = bool(call.get(2, "upper", False))
    return _system(call, name, _hermitian(a.mH if upper else a), x, wide(call.get(1, "b")), roundoff(a))


def _cholesky_inverted(name: str, a: Tensor, x: Tensor, call: Bound) -> Problems:
    upper = bool(call.get(1, "upper", False))
    w = _hermitian(a.mH if upper else a)
    return _system(call, name, w, x, torch.eye(w.shape[-1], dtype=w.dtype).expand_as(w), roundoff(a))


def _spectrum(of: Callable[[Tensor], Tensor]) -> Callable[[Bound, Results], Problems]:
    """Relation for singular values or eigenvalues of the first operand, in the order that torch promises."""

    def problems(call: Bound, r: Results) -> Problems:
        a, name = call.args[0], outs(r)[0]
        excluded = unsound(call, a)
        w = sound(wide(a), excluded)
        if not w.numel():
            return []
        got, want = (t.unsqueeze(-1) for t in (wide(r[name]), of(w)))
        return residual(name, "not the spectrum of the input", got, want, norm(w), roundoff(a), excluded=excluded)

    return problems


def _pinv(call: Bound, r: Results, product: bool = False) -> Problems:
    """The Moore-Penrose conditions, whatever the rank. product: the first two operands are factors of the matrix."""
    a, name = call.args[0], outs(r)[0]
    w, x, u = _hermitian(a) if call.kwargs.get("hermitian") else wide(a), wide(r[name]), roundoff(a)
    if product:
        w = w @ wide(call.args[1]).mT
    if not w.numel() or x.shape[-2:] != (w.shape[-1], w.shape[-2]):
        return []
    excluded = unsound(call, w)
    # With a tolerance, the call drops small singular values, so A X A is not A.
    cut = not product and (bool(call.kwargs.keys() - {"hermitian"}) or len(call.args) > 1)
    p, q = w @ x, x @ w
    size = norm(w) * norm(x)
    return [
        *residual(name, "X A X is not X", q @ x, x, size * norm(x), u, excluded=excluded),
        *residual(name, "A X is not hermitian", p, p.mH, size, u, excluded=excluded),
        *residual(name, "X A is not hermitian", q, q.mH, size, u, excluded=excluded),
        *([] if cut else residual(name, "A X A is not A", p @ w, w, size * norm(w), u, excluded=excluded)),
    ]


def _of_spectrum(call: Bound, r: Results) -> frozenset[str]:
    """Covers a norm that is a singular value of the last two dimensions; others are compared by value."""
    plain = tuple(call.get(2, "dim", (-2, -1))) == (-2, -1)
    return only(call, r) if plain and call.get(1, "ord", "fro") in (2, -2) else frozenset()


def _spectral_norm(call: Bound, r: Results) -> Problems:
    a, order, name = call.args[0], call.get(1, "ord", "fro"), outs(r)[0]
    excluded = unsound(call, a)
    w = sound(wide(a), excluded)
    if not w.numel() or not _of_spectrum(call, r):
        return []
    want = torch.linalg.svdvals(w)[..., 0 if order == 2 else -1]
    got, wanted = (x.reshape(want.shape)[..., None, None] for x in (wide(r[name]), want))
    return residual(name, "not the spectral norm", got, wanted, norm(w) * max(w.shape[-2:]), roundoff(a), excluded=excluded)


def _eigvalsh(call: Bound, r: Results) -> Problems:
    """The eigenvalues of the matrix that the op reads: one triangle and its mirror, with a real diagonal."""
    a, name = call.args[0], outs(r)[0]
    w = _hermitian(a.mH if call.get(1, "UPLO", "L") == "U" else a)
    excluded = unsound(call, w)
    w = sound(w, excluded)
    if not w.numel():
        return []
    got, want = (t.unsqueeze(-1) for t in (wide(r[name]), torch.linalg.eigvalsh(w)))
    return residual(name, "not the spectrum of the input", got, want, norm(w), roundoff(a), excluded=excluded)


def _lstsq(call: Bound, r: Results) -> Problems:
    """The residual must be orthogonal to the columns (m >= n), or zero."""
    name = outs(r)[0]
    a, b, x = wide(call.args[0]), wide(call.get(1, "B")), wide(r[name])
    if b.dim() == a.dim() - 1:
        b, x = b.unsqueeze(-1), x.unsqueeze(-1)
    if not a.numel() or not b.numel():
        return []
    excluded = unsound(call, a, b)
    rest = a @ x - b
    scale = norm(a) * norm(x) + norm(b)
    if a.shape[-2] >= a.shape[-1]:
        rest, scale = a.mH @ rest, norm(a) * scale
    return residual(
        name, "no least-squares solution", rest, torch.zeros_like(rest), scale, roundoff(call.args[0]), excluded=excluded
    )


RELATIONS: dict[str, Relation] = {
    "solve": Relation(only, _solve, chooses=False),
    "inv": Relation(only, _inverse, chooses=False),
    "solve_triangular": Relation(only, _triangular, chooses=False),
    "lu_solve": Relation(only, _lu_solve, chooses=False),
    "cholesky": Relation(only, _cholesky, chooses=False),
    "cholesky_solve": Relation(only, _of_factored(_cholesky_solved), chooses=False),
    "cholesky_inverse": Relation(only, _of_factored(_cholesky_inverted), chooses=False),
    "svdvals": Relation(only, _spectrum(torch.linalg.svdvals), chooses=False),
    "eigvalsh": Relation(only, _eigvalsh, chooses=False),
    "spectral_norm": Relation(_of_spectrum, _spectral_norm, chooses=False),
    "pinv": Relation(only, _pinv, chooses=False),
    "pinv_any_rank": Relation(only, _pinv, chooses=False),
    "pinv_of_product": Relation(only, partial(_pinv, product=True), chooses=False),
    "lstsq": Relation(only, _lstsq, chooses=False),
}
