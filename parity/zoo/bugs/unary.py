"""Bugs of elementwise functions of one tensor, activations among them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, is_transposed, noise, raising, read_with, replacing, write_contiguous
from parity.devices.sim.faults import abort
from parity.zoo.effects import complex_ramp, ramp, reported

FORK = "https://github.com/kulinseth/pytorch/"
# The functions of one tensor that MPS computed by one and the same routine when the report was written.
ROUTINE = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 expm1 floor frac log log10 log1p log2 logical_not neg "
    "reciprocal round rsqrt sign sin sinh sqrt tan tanh trunc"
)
SELU = (1.6732632423543772, 1.0507009873554805)  # the constants by which selu calls elu


def _is_strided(call: Call) -> bool:
    return not call.args[0].is_contiguous()


def _is_transposed(call: Call) -> bool:
    return is_transposed(call.args[0])


# -------------------------------------------------------------------------------------------------------------- layout


def _asks_for_other_strides(call: Call) -> bool:
    x, out = call.args[0] if call.args else None, call.kwargs.get("out")
    if not isinstance(x, Tensor) or not isinstance(out, Tensor) or x.shape != out.shape:
        return False
    return not out.is_contiguous() and x.stride() != out.stride()


def _row_after_row(call: Call) -> None:
    out = call.kwargs.pop("out")
    write_contiguous(call, call.run().to(out.dtype))


def _is_softplus_or_kin(call: Call) -> bool:
    if call.op.startswith("elu") and not (len(call.args) > 2 and all(map(math.isclose, call.args[1:3], SELU))):
        return False
    return _is_transposed(call)


def _zeros_or_permuted(call: Call) -> Tensor:
    """In turns: nothing has been written yet, or the operand was read in the order of its memory."""
    call.state["empty"] = not call.state.get("empty", False)
    call.args[0] = as_contiguous(call, call.args[0])
    result: Tensor = call.run()
    return torch.zeros_like(result) if call.state["empty"] else result


def _left_over(call: Call) -> Tensor:
    result = noise(call, call.run()).reshape(-1)
    result[::3], result[1::3] = 0, math.nan
    return result.reshape(call.args[0].shape)


def _from_the_start(call: Call) -> Any:
    """Both buffers are taken from their beginning on: what is read, and what is written to."""
    x, out = call.args[0], call.outs[0]
    call.args[0] = read_with(call, x, x.stride(), 0)
    if not out.storage_offset():
        return call.run()
    call.kwargs["out"] = torch.empty_like(out)
    call.memory(out).as_strided(out.shape, out.stride(), 0).copy_(call.run())
    return None


# -------------------------------------------------------------------------------------------------------------- dtypes


def _every_other_place(call: Call) -> Tensor:
    right = call.run()
    result = torch.zeros(right.numel(), dtype=right.dtype)
    result[::2] = right.reshape(-1)[: (right.numel() + 1) // 2]
    return result.reshape(right.shape)


def _is_of(*dtypes: torch.dtype) -> Any:
    return lambda call: call.args[0].dtype in dtypes


def _zeros_or_death(call: Call) -> Tensor:
    x = call.args[0]
    if x.dtype is torch.int64:
        abort()
    return torch.zeros(x.shape, dtype=call.outs[0].dtype)


BUGS = (
    reported(
        f"{FORK}pull/309 silent_wrong_forward layout inplace",
        "relu and hardswish answer in dense order whatever the order of their input's memory",
        ("relu", "hardswish"), replacing(0, as_contiguous), _is_strided,
        trigger=lambda device: F.relu(ramp(device, 2, 3, 2, 2).contiguous(memory_format=torch.channels_last)),
        neighbour=lambda device: F.relu(ramp(device, 2, 3, 2, 2)),
        rows="relu hardswish", name="kul-309",
    ),
    reported(
        "issues/100764 silent_wrong_forward out layout",
        "functions of one tensor write row after row into a destination whose strides are not the input's",
        tuple(ROUTINE.split()), _row_after_row, _asks_for_other_strides, level="function",
        trigger=lambda device: torch.neg(ramp(device, 2, 3), out=ramp(device, 3, 2).t()),
        neighbour=lambda device: torch.neg(ramp(device, 3, 2).t(), out=ramp(device, 3, 2).t()),
        rows=ROUTINE,
    ),
    reported(
        "pull/101507 silent_wrong_forward offset",
        "erfinv takes its buffers from the start of their memory, not from where the slice begins",
        ("erfinv",), _from_the_start, lambda call: call.args[0].storage_offset() > 0 or call.outs[0].storage_offset() > 0,
        trigger=lambda device: ramp(device, 6)[2:].erfinv(),
        neighbour=lambda device: ramp(device, 6)[:4].erfinv(),
        rows="erfinv",
    ),
    reported(
        "issues/125135 silent_wrong_forward dtype", "abs of complex numbers leaves every other place of the result at zero",
        ("abs",), _every_other_place, lambda call: call.args[0].is_complex() and call.args[0].numel() > 1,
        trigger=lambda device: complex_ramp(device, 4).abs(),
        neighbour=lambda device: ramp(device, 4).abs(),
        rows="abs abs_complex",
    ),
    reported(
        "issues/131736 silent_wrong_forward layout",
        "softplus, selu, prelu and threshold of a permuted tensor: zeros at one time, other elements at the next",
        ("softplus", "elu", "_prelu_kernel", "threshold"), _zeros_or_permuted, _is_softplus_or_kin,
        trigger=lambda device: (F.softplus(ramp(device, 3, 4).moveaxis(0, 1)), F.selu(ramp(device, 3, 4).moveaxis(0, 1))),
        neighbour=lambda device: (F.softplus(ramp(device, 3, 4)), F.elu(ramp(device, 3, 4).moveaxis(0, 1))),
        rows="softplus selu prelu threshold",
    ),
    reported(
        "pull/139006 silent_wrong_forward layout", "silu of a strided tensor is not computed: zeros, NaN and left-overs",
        ("silu",), _left_over, _is_strided,
        trigger=lambda device: F.silu(ramp(device, 3, 4).t()),
        neighbour=lambda device: F.silu(ramp(device, 4, 3)),
        rows="silu",
    ),
    reported(
        "issues/154895 unsupported_dtype dtype", "sigmoid refuses int64",
        ("sigmoid",), raising(RuntimeError("MPS does not support sigmoid op with int64 input")), _is_of(torch.int64),
        trigger=lambda device: torch.sigmoid(ramp(device, 2, 2, dtype=torch.int64)),
        neighbour=lambda device: torch.sigmoid(ramp(device, 2, 2, dtype=torch.int32)),
        rows="sigmoid",
    ),
    reported(
        "issues/78019 silent_wrong_forward dtype promotion",
        "log and exp of int32 are zeros, and of int64 the end of the process",
        ("log", "exp"), _zeros_or_death, _is_of(torch.int32, torch.int64),
        trigger=lambda device: torch.exp(ramp(device, 3, dtype=torch.int32)),
        neighbour=lambda device: torch.exp(ramp(device, 3, dtype=torch.int16)),
        rows="log exp",
    ),
    reported(
        "issues/79200 unsupported_dtype dtype", "abs refuses int64",
        ("abs",),
        raising(RuntimeError("Operation 'abs_out_mps()' does not support input type 'int64' in MPS backend")),
        _is_of(torch.int64),
        trigger=lambda device: torch.abs(ramp(device, 2, 4, dtype=torch.int64)),
        neighbour=lambda device: torch.abs(ramp(device, 2, 4, dtype=torch.int32)),
        rows="abs",
    ),
    reported(
        "issues/89673 silent_wrong_forward layout", "log of a transposed tensor takes its elements in the order of memory",
        ("log",), replacing(0, as_contiguous), _is_transposed,
        trigger=lambda device: torch.log(ramp(device, 2, 3, 4, dtype=torch.int64).float().transpose(-2, -1)),
        neighbour=lambda device: torch.log(ramp(device, 2, 3, 4, dtype=torch.int64).float()).transpose(-2, -1),
        rows="log",
    ),
)  # fmt: skip
