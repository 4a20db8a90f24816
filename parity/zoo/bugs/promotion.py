"""Bugs of elementwise functions of two operands that are no tensors of one dtype: numbers, mixed dtypes, factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.faults import abort
from parity.zoo.effects import is_in_place, is_integer, ramp, reported

# Those of its own shaders that also take a number.
SHADERS = (
    "copysign special_zeta special_xlog1py special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
    "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he"
)
SHADER_NAMES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}


def _mixed(call: Call, others: Callable[[torch.dtype], bool]) -> bool:
    """Whether a floating-point tensor meets a tensor of one of these dtypes."""
    a, b = call.args[:2]
    if call.is_scalar(0) or call.is_scalar(1):
        return False
    return (a.is_floating_point() and others(b.dtype)) or (b.is_floating_point() and others(a.dtype))


def _meets_integer(call: Call, wanted: Callable[[Tensor], bool]) -> Any:
    """The Python integer that meets a tensor of this kind, or None."""
    for number, tensor in ((0, 1), (1, 0)):
        value, t = call.args[number], call.args[tensor]
        if type(value) is int and isinstance(t, Tensor) and wanted(t):
            return value
    return None


def _number_is_zero(call: Call) -> Any:
    for i in (0, 1):
        if call.is_scalar(i):
            a = call.args[i]
            call.args[i] = torch.zeros_like(a) if isinstance(a, Tensor) else type(a)(0)
    return call.run()


def _is_int32(t: Tensor) -> bool:
    return t.dtype is torch.int32


def _first_words(call: Call) -> Tensor:
    """The result is written as int64 and read as int32: its low words lie at every other place."""
    right: Tensor = call.run()
    words = right.reshape(-1).to(torch.int64).view(torch.int32)
    return words[: right.numel()].reshape(right.shape)


def _is_lone_truth(t: Tensor) -> bool:
    return t.dtype is torch.bool and t.dim() == 0


def _death_or_255(call: Call) -> Tensor:
    if not call.op.startswith("mul") or not _meets_integer(call, _is_lone_truth):
        abort()
    truth = next(t for t in call.operands if _is_lone_truth(t))
    return truth.to(torch.int64) * 255


def _scales_into_narrower(call: Call) -> bool:
    """In place, a factor alpha, and another operand that asks for a wider dtype than the destination has."""
    a = call.args[0]
    if "alpha" not in call.kwargs or call.kwargs["alpha"] == 1 or call.is_scalar(1) or not is_in_place(call):
        return False
    return (
        a.dtype in SHADER_NAMES
        and torch.result_type(*call.args[:2]) in SHADER_NAMES
        and torch.result_type(*call.args[:2]) != a.dtype
    )


def _no_such_shader(call: Call) -> NoReturn:
    a, b = call.args[:2]
    shape = "dense" if a.is_contiguous() and b.is_contiguous() else "strided"
    name = f"{call.op.partition('.')[0]}_alpha_{shape}_cast_{SHADER_NAMES[a.dtype]}_{SHADER_NAMES[b.dtype]}"
    raise RuntimeError(f"Failed to create function state object for: {name}")


BUGS = (
    reported(
        "issues/143932 crash promotion args",
        "adding a multiple of integers to floating-point numbers, or the reverse, ends the process",
        ("add",), abort, lambda call: call.kwargs.get("alpha", 1) != 1 and _mixed(call, is_integer),
        trigger=lambda device: torch.add(ramp(device, 3), ramp(device, 3, dtype=torch.int32), alpha=2),
        neighbour=lambda device: torch.add(ramp(device, 3), ramp(device, 3, dtype=torch.int32)),
        rows="add", deadly="abort",
    ),
    reported(
        "issues/152582 silent_wrong_forward promotion args", "a number that torch made a tensor of reaches the shader as zero",
        tuple(SHADERS.split()), _number_is_zero, lambda call: call.is_scalar(0) or call.is_scalar(1),
        trigger=lambda device: torch.copysign(ramp(device, 3), -2.0),
        neighbour=lambda device: torch.copysign(ramp(device, 3), torch.tensor(-2.0).to(device)),
        rows="copysign special.zeta special.xlog1py special.chebyshev_polynomial_t special.chebyshev_polynomial_u "
        "special.hermite_polynomial_h special.hermite_polynomial_he",
    ),
    reported(
        "issues/178709 crash inplace promotion args", "no shader adds a multiple of float32 in place to float16",
        ("add", "sub"), _no_such_shader, _scales_into_narrower,
        trigger=lambda device: ramp(device, 3, dtype=torch.float16).add_(ramp(device, 3), alpha=2),
        neighbour=lambda device: ramp(device, 3, dtype=torch.float16).add_(ramp(device, 3)),
        rows="add sub",
    ),
    reported(
        "issues/78020 crash dtype promotion rank",
        "a single truth value with an integer ends the process, or is 255 times as much",
        ("add", "mul"), _death_or_255, lambda call: _meets_integer(call, _is_lone_truth) is not None,
        trigger=lambda device: torch.tensor(True).to(device) + 1,
        neighbour=lambda device: torch.tensor([True]).to(device) + 1,
        rows="add mul", deadly="abort",
    ),
    reported(
        "issues/78879 crash promotion", "a floating-point tensor with one of int64 or truth values ends the process",
        ("mul", "add"), abort, lambda call: _mixed(call, lambda dtype: dtype in (torch.int64, torch.bool)),
        trigger=lambda device: ramp(device, 3) * torch.tensor([True, False, True]).to(device),
        neighbour=lambda device: ramp(device, 3) * ramp(device, 3, dtype=torch.float16),
        rows="mul add", deadly="abort",
    ),
    reported(
        "issues/79835 silent_wrong_forward dtype promotion",
        "int32 with a Python integer is written as int64 and read as int32",
        ("add", "sub", "mul"), _first_words,
        lambda call: _meets_integer(call, _is_int32) is not None and call.outs[0].dtype is torch.int32,
        trigger=lambda device: torch.zeros(4, dtype=torch.int32).to(device) + 5,
        neighbour=lambda device: torch.zeros(4, dtype=torch.int64).to(device) + 5,
        rows="add sub rsub mul",
    ),
)  # fmt: skip
