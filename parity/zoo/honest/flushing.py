"""Subnormal numbers taken for zero, as operands and as results: float32 and bfloat16, as on Apple GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.devices import Call, Fault
from parity.zoo.honest import tally
from parity.zoo.honest.rerun import again, stretch, widened

FLUSHED = (torch.float32, torch.bfloat16, torch.complex64)


def flushed(t: Tensor) -> Tensor:
    """The tensor with its subnormal elements (or parts) replaced by zeros of their sign, in the same strides."""
    if t.dtype not in FLUSHED or not t.numel():
        return t
    other = widened(t, t.dtype)
    memory = stretch(other)
    parts = torch.view_as_real(memory) if t.is_complex() else memory
    small = parts.abs() < torch.finfo(parts.dtype).tiny
    parts.copy_(torch.where(small, torch.copysign(torch.zeros_like(parts), parts), parts))
    return other


def _flush(call: Call) -> Any:
    kept = [t for t in call.operands if t.dtype in FLUSHED]
    swap = {id(t): flushed(t) for t in kept}
    result = again(call, swap=swap)
    answer = tree_map(lambda r: flushed(r) if isinstance(r, Tensor) else r, result)
    tally.note("flushing", (answer, list(swap.values())), (result, kept))
    return answer


def _subnormal(call: Call) -> bool:
    return any(t.dtype in FLUSHED and t.numel() for t in (*call.outs, *call.operands))


def faults(ops: tuple[str, ...]) -> tuple[Fault, ...]:
    """Flushing around these kernels; plant it before the others, which then get flushed operands."""
    return (Fault("honest-flushing", ops, _flush, _subnormal, title="subnormal numbers taken for zero"),)
