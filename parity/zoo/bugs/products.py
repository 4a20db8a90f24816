"""Bugs of linear layers and matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parity.devices import Call
from parity.devices.sim.effects import as_contiguous, is_permuted, raising, replacing, wrapped
from parity.devices.sim.faults import refuse
from parity.zoo.effects import argument, complex_ramp, forward_only, ramp, reported

LIMIT = 256  # elements, in the place of 4.3e8 of a linear layer's output
FEATURES = 32  # scaled down from 32768 with it
BATCH = 2**16  # as reported: 65537 small matrices cost little


# --------------------------------------------------------------------------------------------------------------- linear


def _is_wide_and_large(call: Call) -> bool:
    x, weight = call.args[:2]
    if weight.dim() != 2 or weight.shape[0] <= FEATURES:
        return False
    return bool(x.numel() // max(x.shape[-1], 1) * weight.shape[0] > LIMIT)


def _linear_batch_wraps(call: Call) -> Tensor:
    """The batch index is a 16-bit word: what comes later overwrites what came 65536 before."""
    out: Tensor = call.run()
    for start in range(BATCH, out.shape[0], BATCH):
        later = out[start : start + BATCH]
        out[: later.shape[0]] = later
    return out


def _is_large_stack_with_bias(call: Call) -> bool:
    x = call.args[0]
    return bool(x.dim() == 3 and x.shape[0] > BATCH and argument(call, 2, "bias") is not None)


# -------------------------------------------------------------------------------------------------------------- products


def _factors(call: Call) -> list[Tensor]:
    """The two matrices of mm, bmm and addmm."""
    factors: list[Tensor] = call.args[-2:]
    return factors


def _unconjugated(call: Call) -> Any:
    call.args[-2:] = [t.conj() if t.is_conj() else t for t in _factors(call)]
    return call.run()


def _is_transposed_in_a_permuted_stack(t: Any) -> bool:
    """Neither dense nor the transpose of something dense: the matrices are transposed, and the stack is permuted too."""
    return isinstance(t, Tensor) and t.dim() > 2 and is_permuted(t) and not t.mT.is_contiguous() and t.stride(-1) != 1


def _permuted_read_as_dense(call: Call) -> Any:
    call.args[:] = [forward_only(t, as_contiguous(call, t)) if _is_transposed_in_a_permuted_stack(t) else t for t in call.args]
    return call.run()


def _heads(device: str) -> tuple[Tensor, Tensor]:
    """Query and key of an attention, (batch, heads, length, width), as views of (batch, length, heads, width)."""
    query, key = ramp("cpu", 2, 5, 3, 4), ramp("cpu", 2, 5, 3, 4).sin()
    return query.to(device).permute(0, 2, 1, 3), key.to(device).permute(0, 2, 1, 3)


BUGS = (
    reported(
        "issues/109457 silent_wrong_forward size",
        "a linear layer with many output features repeats its first outputs past a border",
        ("linear",), lambda call: wrapped(call.run(), LIMIT), _is_wide_and_large,
        trigger=lambda d: F.linear(ramp(d, 9, 1), ramp(d, 40, 1)),
        neighbour=lambda d: (F.linear(ramp(d, 6, 1), ramp(d, 40, 1)), F.linear(ramp(d, 99, 1), ramp(d, 32, 1))),
        rows="linear", scaled="4.3e8 output elements -> LIMIT = 256, 32768 output features -> FEATURES = 32",
    ),
    reported(
        "issues/189495 silent_wrong_forward size args",
        "a linear layer with bias counts the first of three dimensions in 16 bits",
        ("linear",), _linear_batch_wraps, _is_large_stack_with_bias,
        trigger=lambda d: F.linear(ramp(d, BATCH + 1, 1, 2), ramp(d, 3, 2), ramp(d, 3)),
        neighbour=lambda d: F.linear(ramp(d, BATCH + 1, 1, 2), ramp(d, 3, 2)),
        rows="linear",
    ),
    reported(
        "pull/116547 silent_wrong_forward size", "addmm multiplies by the transpose of a square matrix",
        ("addmm",), replacing(2, lambda call, t: t.t()), lambda call: call.args[2].shape[0] == call.args[2].shape[1],
        trigger=lambda d: torch.addmm(ramp(d, 3), ramp(d, 3, 3), ramp(d, 3, 3)),
        neighbour=lambda d: torch.addmm(ramp(d, 4), ramp(d, 3, 3), ramp(d, 3, 4)),
        rows="addmm",
    ),
    reported(
        "issues/148156 silent_wrong_forward dtype layout",
        "matrix products read lazily conjugated operands as they lie in memory",
        ("mm", "bmm", "addmm"), _unconjugated, lambda call: any(t.is_conj() for t in _factors(call)),
        trigger=lambda d: complex_ramp(d, 3, 2).t().conj() @ complex_ramp(d, 3, 2),
        neighbour=lambda d: complex_ramp(d, 3, 2).t().conj().resolve_conj() @ complex_ramp(d, 3, 2),
        rows="mm matmul addmm bmm",
    ),
    reported(
        "issues/78511 silent_wrong_forward layout rank",
        "a batched product reads transposed matrices of a permuted stack as if they were dense",
        ("matmul", "bmm"), _permuted_read_as_dense, lambda call: any(_is_transposed_in_a_permuted_stack(t) for t in call.args),
        trigger=lambda d: torch.matmul(_heads(d)[0], _heads(d)[1].transpose(-1, -2)),
        neighbour=lambda d: torch.matmul(_heads(d)[0], _heads(d)[1].contiguous().transpose(-1, -2)),
        rows="matmul bmm", level="function",
    ),
    reported(
        "pull/193153 unsupported_op dtype", "no product of int8 matrices",
        ("_int_mm",), refuse,
        trigger=lambda d: torch._int_mm(ramp(d, 17, 8, dtype=torch.int8), ramp(d, 8, 8, dtype=torch.int8)),
        neighbour=lambda d: torch.mm(ramp(d, 17, 8), ramp(d, 8, 8)),
        rows="int_mm",
    ),
    reported(
        "pull/196205 unsupported_op none", "compressed sparse tensors cannot be made",
        ("sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor", "sparse_compressed_tensor"),
        raising(
            NotImplementedError(
                "Could not run 'aten::_sparse_compressed_tensor_unsafe' with arguments from the 'SparseCsrMPS' backend.",
            ),
        ),
        trigger=lambda d: str(torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), device=d).layout),
        neighbour=lambda d: torch.tensor([1.0, 2.0], device=d),
        level="function",
    ),
)  # fmt: skip
