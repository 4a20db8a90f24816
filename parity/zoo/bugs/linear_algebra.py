"""Bugs of factorisations and solvers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from parity.devices import Call
from parity.devices.sim.effects import raising, read_with, replacing, row_major
from parity.devices.sim.faults import abort, garbage
from parity.zoo.effects import argument, complex_ramp, ramp, reported

LIMIT = 256  # elements, in the place of an svd's 4.2e7
ORDER = 256  # of a stack of LU factorisations, as reported
JACOBI = 8192  # elements from which stacks of complex matrices take another SVD, as reported


def _matrix(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A well-conditioned matrix, or a stack of them; complex ones have an imaginary part."""
    a = complex_ramp("cpu", *shape) if dtype.is_complex else ramp("cpu", *shape)
    return (a + 4 * math.sqrt(shape[-1]) * torch.eye(shape[-2], shape[-1])).to(device)


def _second_lost(call: Call) -> Any:
    """The second matrix of a stack is left over from before, and what is computed from it."""
    call.run()
    for out in call.outs:
        stack = out.shape[: argument(call, 0, "A").dim() - 2]
        if out.is_floating_point() or out.is_complex():
            second = torch.unravel_index(torch.tensor(1), stack)
            out[second] = garbage(out[second])
    return call.outs


def _is_stack_of_large(call: Call) -> bool:
    a = call.args[0]
    return bool(min(a.shape[-2:]) >= ORDER and math.prod(a.shape[:-2]) > 1)


def _row_major_factor(call: Call) -> Any:
    """Dense rows where torch promises dense columns; a destination of the caller's is laid out anew as well."""
    call.run()
    factor = call.outs[0]
    values = factor.clone()
    factor.as_strided_(factor.shape, row_major(factor.shape))
    return (factor.copy_(values), *call.outs[1:])


def _strides_of_factors(device: str) -> tuple[tuple[int, ...], ...]:
    """Of a fresh factor, and of a destination that is dense by columns."""
    a = _matrix(device, 3, 3) @ _matrix(device, 3, 3).mT
    destination = torch.empty(3, 3, device=device).mT
    torch.linalg.cholesky(a, out=destination)
    return torch.linalg.cholesky(a).stride(), destination.stride()


def _is_singular(call: Call) -> bool:
    a = call.args[0]
    return a.numel() > 0 and bool(torch.linalg.lu_factor_ex(a).info.any())


def _no_complaint(call: Call) -> Any:
    call.run()
    call.outs[2].zero_()
    return call.outs


def _is_complex(call: Call) -> bool:
    return bool(call.args[0].is_complex())


def _is_jacobi(call: Call) -> bool:
    a = call.args[0]
    return bool(a.is_complex() and a.dim() > 2 and a.shape[-2] < a.shape[-1] and a.numel() >= JACOBI)


def _unconjugated_right_vectors(call: Call) -> Any:
    if "svd" in call.op:
        u, s, vh = call.run()
        return u, s, vh.conj_physical()
    a, b = call.args[:2]
    columns = b.unsqueeze(-1) if b.dim() < a.dim() else b
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    solution = vh.mT @ ((u.mH @ columns) / s.unsqueeze(-1))
    return (solution if columns is b else solution.squeeze(-1), *call.run()[1:])


def _values_off(call: Call) -> Any:
    """Singular values with a relative error of 1e-3."""
    u, s, vh = call.run()
    return u, s * 1.001, vh


def _rebuilt(a: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    rebuilt: Tensor = (u * s) @ vh
    return rebuilt


def _solve_with_cpu_side(device: str) -> str:
    """What becomes of a triangular system whose right side lies on the CPU: torch refuses two devices."""
    try:
        if device != "cpu":
            torch.linalg.solve_triangular(_matrix(device, 3, 3).triu(), ramp("cpu", 3, 2), upper=True)
    except RuntimeError:
        return "refused"
    return "refused" if device == "cpu" else "computed"


def _factor_singular(device: str) -> str:
    try:
        torch.linalg.lu_factor(torch.tensor([[1.0, 2.0], [2.0, 4.0]], device=device))
    except RuntimeError:
        return "refused"
    return "factored"


def _least_squares(a: Tensor, b: Tensor) -> Tensor:
    """The solution by gelsd: the CPU's default driver, gelsy, is wrong in one of some hundred complex calls (torch 2.13)."""
    solution: Tensor = torch.linalg.lstsq(a, b, driver="gelsd").solution
    return solution


BUGS = (
    reported(
        "pull/146753 silent_wrong_forward size", "LU factors of large matrices in a stack are wrong from the second on",
        ("linalg_lu_factor_ex", "_linalg_solve_ex", "_linalg_det"), _second_lost, _is_stack_of_large,
        trigger=lambda d: torch.linalg.lu_factor(_matrix(d, 2, ORDER, ORDER))[0],
        neighbour=lambda d: (
            torch.linalg.lu_factor(_matrix(d, 1, ORDER, ORDER))[0],
            torch.linalg.lu_factor(_matrix(d, 2, ORDER - 1, ORDER - 1))[0],
        ),
        rows="lu_factor lu_solve solve det",
    ),
    reported(
        "pull/165871 metadata value", "LU factorisation does not say that a matrix is singular",
        ("linalg_lu_factor_ex",), _no_complaint, _is_singular,
        trigger=_factor_singular,
        neighbour=lambda d: torch.linalg.lu_factor_ex(_matrix(d, 3, 3)).info,
        rows="lu_factor",
    ),
    reported(
        "pull/188473 unsupported_dtype dtype", "LU factors and determinants of complex matrices are refused",
        ("linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet"),
        raising(RuntimeError("linalg.lu_factor(): MPS doesn't support complex types.")), _is_complex,
        trigger=lambda d: torch.linalg.det(_matrix(d, 3, 3, dtype=torch.complex64)),
        neighbour=lambda d: torch.linalg.det(_matrix(d, 3, 3)),
        rows="lu_factor lu_solve det slogdet",
    ),
    reported(
        "pull/146799 metadata out", "a Cholesky factor comes row by row, and out= is laid out anew",
        ("linalg_cholesky_ex",), _row_major_factor,
        trigger=_strides_of_factors,
        neighbour=lambda d: torch.linalg.cholesky(_matrix(d, 3, 3) @ _matrix(d, 3, 3).mT),
        rows="cholesky",
    ),
    reported(
        "issues/196113 silent_wrong_forward dtype size",
        "stacks of wide complex matrices: right singular vectors are not conjugated, so least squares fails",
        ("_linalg_svd", "linalg_lstsq"), _unconjugated_right_vectors, _is_jacobi,
        trigger=lambda d: _least_squares(_matrix(d, 4, 40, 52, dtype=torch.complex64), complex_ramp(d, 4, 40, 2)),
        neighbour=lambda d: _least_squares(_matrix(d, 4, 30, 52, dtype=torch.complex64), complex_ramp(d, 4, 30, 2)),
        rows="lstsq svd",
    ),
    reported(
        "issues/78099 drift size", "the factors of a large matrix's svd give it back only to three digits",
        ("_linalg_svd",), _values_off, lambda call: call.args[0].numel() > LIMIT,
        trigger=lambda d: _rebuilt(_matrix(d, 20, 17)),
        neighbour=lambda d: _rebuilt(_matrix(d, 16, 16)),
        rows="svd svdvals", scaled="a matrix of 4.2e7 elements -> LIMIT = 256 elements",
    ),
    reported(
        "issues/78363 silent_wrong_forward offset", "the inverse of one matrix of a stack is that of the first",
        ("linalg_inv_ex",), replacing(0, lambda call, t: read_with(call, t, t.stride(), 0)),
        lambda call: call.args[0].storage_offset() > 0,
        trigger=lambda d: torch.linalg.inv(_matrix(d, 3, 2, 2)[1]),
        neighbour=lambda d: torch.linalg.inv(_matrix(d, 3, 2, 2)[0]),
        rows="inv",
    ),
    reported(
        "pull/178319 crash args", "a triangular system with one side on the CPU ends the process",
        ("linalg.solve_triangular",), abort, lambda call: len({t.device for t in call.operands}) > 1,
        trigger=_solve_with_cpu_side,
        neighbour=lambda d: torch.linalg.solve_triangular(_matrix(d, 3, 3).triu(), ramp(d, 3, 2), upper=True),
        rows="solve_triangular", level="function",
    ),
)  # fmt: skip
