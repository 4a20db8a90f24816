"""Ten faults of ten kinds, for `--setup`: what the suite must find, name and shrink at the quick profile."""

from __future__ import annotations

import os
from typing import Any

import torch

from parity.devices import Call, Fault

MISSING = "The operator 'aten::erfinv' is not currently implemented for the MPS device."


def five_percent(call: Call) -> Any:
    """A wrong value everywhere."""
    return call.run() * 1.05


def nothing(call: Call) -> Any:
    """No write."""
    return None


def at_offset_zero(call: Call) -> Any:
    """The operand is read from the start of its storage."""
    x = call.args[0]
    call.args[0] = x.as_strided(x.shape, x.stride(), 0)
    return call.run()


def without_nan(call: Call) -> Any:
    """maximum computed as fmax."""
    return torch.fmax(*call.operands[:2])


def flattened(call: Call) -> Any:
    """A dimension is lost."""
    return call.run().reshape(-1)


def refused(call: Call) -> Any:
    """The op is not there."""
    raise NotImplementedError(MISSING)


def refused_dtype(call: Call) -> Any:
    """The dtype is not there."""
    raise RuntimeError("Undefined type Half")


def abort(call: Call) -> Any:
    """The process ends."""
    os.abort()


def forty_ulp(call: Call) -> Any:
    """One element, the first, is 40 representable numbers away."""
    result = call.run()
    if result.numel():
        moved = result.contiguous().clone()
        moved.view(-1)[:1].view(torch.int16).add_(40)
        result = moved
    return result


def strided(call: Call) -> bool:
    """In place, on a view with gaps or another order."""
    return bool(call.outs) and call.outs[0] is call.args[0] and not call.outs[0].is_contiguous()


def is_single(call: Call) -> bool:
    """float32 throughout."""
    return call.operands[0].dtype is torch.float32


def is_half(call: Call) -> bool:
    """float16 throughout."""
    return call.operands[0].dtype is torch.float16


# Those with values are in one dtype each: a run shrinks and explains the findings of every dtype on their own. The deaths are
# fewer than three, after which every other case of the item would be run in a process of its own.
FAULTS = [
    Fault("wrong-forward", ("tanh",), five_percent, is_single),
    Fault("wrong-gradient", ("sigmoid_backward",), five_percent, is_single),
    Fault("no-op-in-place", ("mul_",), nothing, lambda c: is_single(c) and not c.args[0].is_contiguous(), level="function"),
    Fault("offset-zero", ("neg",), at_offset_zero, lambda c: is_single(c) and c.args[0].storage_offset() > 0),
    Fault("nan-dropped", ("maximum",), without_nan, is_single),
    Fault("wrong-shape", ("cumsum",), flattened, lambda c: is_single(c) and c.args[0].dim() > 1, level="function"),
    Fault("refused-op", ("erfinv",), refused),
    Fault("refused-dtype", ("cumprod",), refused_dtype, is_half),
    Fault("abort", ("cosh",), abort, lambda c: is_single(c) and c.operands[0].dim() == 3 and c.operands[0].shape[0] == 3),
    Fault("40-ulp-exp", ("exp",), forty_ulp, is_half),
    Fault("40-ulp-matmul", ("mm",), forty_ulp, lambda c: is_half(c) and c.operands[0].shape[1] == 256),
]
