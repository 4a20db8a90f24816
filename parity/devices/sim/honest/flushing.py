"""Flush subnormal numbers to zero, in operands and results, in the dtypes for which the device's tables say so: float32 and
bfloat16 on Apple GPUs, none on others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.devices import Call, Fault
from parity.devices.sim.honest import tally
from parity.devices.sim.honest.rerun import rerun, stretch, widened
from parity.devices.sim.honest.rounding import device_of
from parity.devices.sim.honest.rounding import flushed as flushed_on

Dtypes = frozenset[torch.dtype]


def flushed(t: Tensor, dtypes: Dtypes) -> Tensor:
    """The tensor with its subnormal elements (or complex parts) replaced by zeros of the same sign, with the same strides."""
    if t.dtype not in dtypes or not t.numel():
        return t
    other = widened(t, t.dtype)
    memory = stretch(other)
    parts = torch.view_as_real(memory) if t.is_complex() else memory
    small = parts.abs() < torch.finfo(parts.dtype).tiny
    parts.copy_(torch.where(small, torch.copysign(torch.zeros_like(parts), parts), parts))
    return other


def _flush(call: Call) -> Any:
    dtypes = flushed_on(device_of(call))
    kept = [t for t in call.operands if t.dtype in dtypes]
    swap = {id(t): flushed(t, dtypes) for t in kept}
    result = rerun(call, swap=swap)
    answer = tree_map(lambda r: flushed(r, dtypes) if isinstance(r, Tensor) else r, result)
    tally.note("flushing", (answer, list(swap.values())), (result, kept))
    return answer


def _flushes(call: Call) -> bool:
    """Whether the device's tables say that it flushes a dtype of this call."""
    dtypes = flushed_on(device_of(call))
    return bool(dtypes) and any(t.dtype in dtypes and t.numel() for t in (*call.outs, *call.operands))


def faults(ops: tuple[str, ...]) -> tuple[Fault, ...]:
    """Flushing for these kernels. Plant it before the other faults, so that they get flushed operands."""
    return (Fault("honest-flushing", ops, _flush, _flushes, title="subnormal numbers taken for zero"),)
