"""Functions that make sparse tensors of dense operands, compute with them, and return dense results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def coo(values: Tensor, rows: Tensor, columns: Tensor, size: Any) -> Tensor:
    """A sparse matrix in coordinates, in which places may come twice. values: (n,), or (n, k) for a vector at each place. Its
    places are checked, because kernels write outside of their memory otherwise."""
    places = torch.stack((rows, columns))
    return torch.sparse_coo_tensor(places, values, (*size, *values.shape[1:]), check_invariants=True)


def csr(values: Tensor, each: int, width: int) -> Tensor:
    """A sparse matrix in compressed rows, with `each` numbers at the beginning of each row of `width`."""
    if not 1 <= each <= width or values.shape[0] % each:
        raise ValueError(f"{values.shape[0]} numbers fill no rows of {each} in a width of {width}")
    begin = torch.arange(0, values.shape[0] + 1, each, device=values.device)
    places = torch.arange(each, device=values.device).repeat(values.shape[0] // each)
    return torch.sparse_csr_tensor(begin, places, values, (values.shape[0] // each, width))


def coo_to_dense(values: Tensor, rows: Tensor, columns: Tensor, size: Any) -> Tensor:
    """The same matrix, dense."""
    return coo(values, rows, columns, size).to_dense()


def csr_to_dense(values: Tensor, each: int, width: int) -> Tensor:
    """The same matrix, dense."""
    return csr(values, each, width).to_dense()


def coo_coalesce(values: Tensor, rows: Tensor, columns: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    """The matrix with each place once, dense, and the places in order, (2, m)."""
    once = coo(values, rows, columns, size).coalesce()
    return once.to_dense(), once.indices()


def coo_mm(values: Tensor, rows: Tensor, columns: Tensor, size: Any, dense: Tensor) -> Tensor:
    """sparse.mm of a matrix in coordinates and a dense one."""
    product: Tensor = torch.sparse.mm(coo(values, rows, columns, size), dense)
    return product


def csr_mm(values: Tensor, each: int, width: int, dense: Tensor) -> Tensor:
    """The product of a matrix in compressed rows and a dense one."""
    return csr(values, each, width) @ dense


def coo_add(values: Tensor, others: Tensor, rows: Tensor, columns: Tensor, size: Any) -> Tensor:
    """The sum of two sparse matrices, the second one with rows and columns the other way round along the places."""
    return (coo(values, rows, columns, size) + coo(others, rows.flip(0), columns, size)).to_dense()


def coo_sum(values: Tensor, rows: Tensor, columns: Tensor, size: Any, dim: Any) -> Tensor:
    """sparse.sum over a dimension, or several."""
    total = torch.sparse.sum(coo(values, rows, columns, size), dim)
    dense: Tensor = total.to_dense() if total.is_sparse else total
    return dense


def coo_mul(values: Tensor, rows: Tensor, columns: Tensor, size: Any, dense: Tensor) -> Tensor:
    """The product of a sparse and a dense tensor of the same size, element by element."""
    product: Tensor = coo(values, rows, columns, size).coalesce() * dense
    return product.to_dense()


def to_sparse(x: Tensor, *dims: int) -> Tensor:
    """A dense tensor made sparse and dense again. dims: of how many dimensions the places are stored, or none for all."""
    return x.to_sparse(*dims).to_dense()
