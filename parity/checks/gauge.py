"""Derivatives of factorizations, whose results are right up to a sign, a phase or an order that each device chooses.

They are taken of functions of the results that do not depend on the choice: |U|**2 for singular vectors and eigenvectors,
sorted eigenvalues, Q and R with a positive diagonal. LU factors are unique once the pivots are chosen, and a pseudo-inverse or
a least-squares solution always, while the rank does not change. The derivatives are well defined if eigenvalues are far from
each other, and pivots and singular values far from 0 (Kato, Perturbation Theory for Linear Operators, 1995, chapter 2; Golub
and Pereyra, SIAM J. Numer. Anal. 10 (1973) 413); otherwise nothing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.execution.execute import outputs

APART = 1e-3  # of the largest: a thousand times float32's loss in a matrix of norm 1 of the size of torch's samples
ZERO = 1e-10  # of the largest: smaller singular values in float64 count as 0

Tensors = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Gauge:
    """fixed: functions of the results that do not depend on the choice. apart: whether derivatives are well defined for these
    operands and results, all in float64. chosen: results that must be equal on both sides, because `fixed` follows from them.
    """

    fixed: Callable[[Tensors], list[Tensor]]
    apart: Callable[[Tensors, Tensors], bool]
    chosen: Callable[[Tensors], list[Tensor]] = lambda results: []


def through(gauge: Gauge, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the gauge's fixed functions of the results; their arithmetic runs on the CPU."""

    def call(*args: Any, **kwargs: Any) -> list[Tensor]:
        results = [x for _, x in outputs(function(*args, **kwargs))]
        return [y.to(results[0].device) for y in gauge.fixed([x.cpu() for x in results])]

    return call


def _floating(results: Tensors) -> list[Tensor]:
    return [x for x in results if x.is_floating_point() or x.is_complex()]


def _whole(results: Tensors) -> list[Tensor]:
    return [x for x in results if not (x.is_floating_point() or x.is_complex())]


def _turning(*vectors: Tensor) -> list[Tensor]:
    """|x|**2 of column vectors; vectors with one element are left out, because the result is always 1."""
    return [(x * x.conj()).real if x.is_complex() else x * x for x in vectors if x.shape[-2] > 1]


def _full(*tensors: Tensor) -> bool:
    return all(t.numel() and bool(torch.isfinite(t.abs()).all()) for t in tensors)


def _far_from_zero(sizes: Tensor) -> bool:
    """Whether all numbers of each vector are at least APART times its largest. sizes: a batch of vectors."""
    return bool((sizes >= APART * sizes.amax(-1, keepdim=True)).all()) and bool((sizes > 0.0).all())


def _far_from_each_other(values: Tensor) -> bool:
    """Whether all differences in each vector are at least APART times its largest. values: a batch of vectors."""
    gaps = (values.unsqueeze(-1) - values.unsqueeze(-2)).abs()
    n = values.shape[-1]
    gaps = gaps + torch.diag_embed(torch.full((n,), torch.inf, dtype=gaps.dtype))
    return bool((gaps.amin((-2, -1)) >= APART * values.abs().amax(-1)).all())


def _diagonal(x: Tensor) -> Tensor:
    return torch.diagonal(x, dim1=-2, dim2=-1)


# --------------------------------------------------------------------------------------------------------------- spectra


def _of_svd(results: Tensors) -> list[Tensor]:
    """S, and |U|**2 and |V|**2 for as many vectors as there are singular values; V as in torch.svd, or its adjoint."""
    left, s, right = results[:3]
    k = s.shape[-1]
    by_rows = right.shape[-2] == k if right.shape[-2] != right.shape[-1] else True
    return [s, *_turning(left[..., :k], right[..., :k, :].mT if by_rows else right[..., :k])]


def _svd_apart(operands: Tensors, results: Tensors) -> bool:
    s = results[1]
    return _full(*results[:3]) and _far_from_zero(s) and _far_from_each_other(s)


def _of_eigh(results: Tensors) -> list[Tensor]:
    return [results[0], *_turning(results[1])]


def _in_order(results: Tensors) -> list[Tensor]:
    """Eigenvalues in an order that also separates conjugate pairs, and |V|**2 in the same order."""
    w = results[0]
    order = torch.argsort(0.8 * w.detach().real + 0.6 * w.detach().imag, dim=-1)
    values = torch.take_along_dim(w, order, -1)
    return [values, *_turning(*(torch.take_along_dim(v, order.unsqueeze(-2), -1) for v in results[1:2]))]


def _eig_apart(operands: Tensors, results: Tensors) -> bool:
    w = results[0]
    if not _full(*results[:2]) or not _far_from_each_other(w):
        return False
    if not _far_from_each_other(0.8 * w.real + 0.6 * w.imag):
        return False
    return len(results) < 2 or _far_from_zero(torch.linalg.svdvals(results[1]))


# --------------------------------------------------------------------------------------------------------------- factors


def _of_qr(results: Tensors) -> list[Tensor]:
    """Q and R with a positive diagonal; of a complete Q, as many columns as the input has."""
    q, r = results[:2]
    k = min(q.shape[-2], r.shape[-1])
    turn = torch.sgn(_diagonal(r))[..., :k]
    factors = [r[..., :k, :] * turn.conj().unsqueeze(-1)]
    return factors if q.shape[-2] == 1 else [q[..., :k] * turn.unsqueeze(-2), *factors]


def _qr_apart(operands: Tensors, results: Tensors) -> bool:
    return len(results) > 1 and _full(*results[:2]) and _far_from_zero(_diagonal(results[1]).abs())


def _pivots(results: Tensors) -> list[Tensor]:
    """The integer results, or the permutation matrix of torch.linalg.lu, which has no gradient."""
    return [results[0]] if len(results) == 3 and not _whole(results) else _whole(results)


def _of_lu(results: Tensors) -> list[Tensor]:
    return list(results[1:]) if len(results) == 3 and not _whole(results) else _floating(results)


def _lu_apart(operands: Tensors, results: Tensors) -> bool:
    factors = _of_lu(results)
    return _full(*factors) and _far_from_zero(_diagonal(factors[-1]).abs())


def _pinv_apart(operands: Tensors, results: Tensors) -> bool:
    """Whether the rank is stable; for a product of two factors it is their inner size."""
    if not _full(*operands, *results[:1]):
        return False
    s = torch.linalg.svdvals(results[0])
    if len(operands) == 2 and operands[1].dim() > 1:
        s, rest = s[..., : operands[0].shape[-1]], s[..., operands[0].shape[-1] :]
        if not bool((rest <= ZERO * s.amax(-1, keepdim=True)).all()):
            return False
    return _far_from_zero(s)


def _lstsq_apart(operands: Tensors, results: Tensors) -> bool:
    return _full(*operands) and _far_from_zero(torch.linalg.svdvals(operands[0]))


GAUGES: dict[str, Gauge] = {
    "svd": Gauge(_of_svd, _svd_apart),
    "eigh": Gauge(_of_eigh, lambda operands, results: _full(*results[:2]) and _far_from_each_other(results[0])),
    "eig": Gauge(_in_order, _eig_apart),
    "qr": Gauge(_of_qr, _qr_apart),
    "lu": Gauge(_of_lu, _lu_apart, _pivots),
    "pinv_any_rank": Gauge(lambda results: list(results[:1]), _pinv_apart),
    "pinv_of_product": Gauge(lambda results: list(results[:1]), _pinv_apart),
    "lstsq": Gauge(lambda results: list(results[:1]), _lstsq_apart),
}
