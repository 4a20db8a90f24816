"""Bugs of elementwise functions of two operands: where they look in memory, and what they make of certain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import read_with, skip
from parity.devices.sim.faults import Effect, abort
from parity.zoo.effects import is_host, is_in_place, is_integer, ramp, reported

FORK = "https://github.com/kulinseth/pytorch/"
HALVES = (torch.float16, torch.bfloat16)
# The functions of two operands that MPS computes by one and the same routine.
ROUTINE = (
    "add sub mul div floor_divide fmod remainder pow atan2 hypot maximum minimum eq ne lt le gt ge logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor"
)


# ------------------------------------------------------------------------------------------------------- the operands


def _tensors(call: Call) -> list[Tensor]:
    """The two operands; numbers as tensors without dimensions."""
    return [a if isinstance(a, Tensor) else torch.tensor(a) for a in call.args[:2]]


def _dtype(call: Call) -> torch.dtype:
    """What the two operands are promoted to."""
    return torch.result_type(*call.args[:2])


# ------------------------------------------------------------------------------------------------------------- memory


def _is_late(a: Any) -> bool:
    """A tensor without dimensions that does not stand at the start of its memory."""
    return isinstance(a, Tensor) and a.dim() == 0 and a.storage_offset() > 0


def _is_late_here(a: Any) -> bool:
    return _is_late(a) and not is_host(a)


def _is_late_on_host(a: Any) -> bool:
    return _is_late(a) and is_host(a)


def _any(chosen: Callable[[Any], bool]) -> Callable[[Call], bool]:
    return lambda call: any(chosen(a) for a in call.args[:2])


def _first_of_memory(chosen: Callable[[Any], bool]) -> Effect:
    """The first element of the memory in the place of such an operand."""

    def effect(call: Call) -> Any:
        call.args[:2] = [read_with(call, a, (), 0) if chosen(a) else a for a in call.args[:2]]
        return call.run()

    return effect


def _reshaped_slice(call: Call) -> bool:
    """Whether an operand lies past the start of its base and is none of its slices: dimensions were merged or split."""
    return any(t.storage_offset() > 0 and t._base is not None and not _is_slice(t, t._base) for t in call.operands)


def _is_slice(view: Tensor, base: Tensor) -> bool:
    """Whether every dimension of a view is a stretch of one dimension of its base, each used once."""
    free = [(n, s) for n, s in zip(base.shape, base.stride()) if n > 1]
    for size, stride in sorted(zip(view.shape, view.stride()), key=lambda p: -p[1]):
        if size < 2 or stride == 0:
            continue
        fits = [(n, s) for n, s in free if stride % s == 0 and (size - 1) * (stride // s) < n]
        if not fits:
            return False
        free.remove(max(fits, key=lambda p: p[1]))
    return True


# ------------------------------------------------------------------------------------------------------------- values


def _by_logarithms(call: Call) -> Tensor:
    """Powers of integers as 2 ** (exponent * log2(base)) in float32, as far as they are not trivial."""
    base, exponent = _tensors(call)
    power = torch.exp2(exponent.float() * torch.log2(base.float().abs())).round()
    sign = torch.where((base < 0) & (exponent % 2 == 1), -1, 1)
    whole = torch.where(power < 2.0**63, power, 0).to(torch.int64)
    whole = torch.where(power < 2.0**63, whole, torch.iinfo(torch.int64).max) * sign
    matters = (base.to(torch.int64).abs() > 1) & (exponent > 0)
    right: Tensor = call.run()
    return torch.where(matters, whole.to(right.dtype), right)


def _one_off(call: Call) -> Tensor:
    """A quotient within float16's precision of an integer is cut to the wrong one of its neighbours."""
    a, b = (t.float() for t in _tensors(call))
    quotient = a / b
    nearest = quotient.round()
    is_near = ((quotient - nearest).abs() <= quotient.abs() * 2.0**-10) & (nearest != 0) & quotient.isfinite()
    beyond = quotient.abs() >= nearest.abs()
    wrong = torch.where(beyond, nearest - nearest.sign(), nearest)
    right: Tensor = call.run()
    return torch.where(is_near, wrong.to(right.dtype), right)


def _has_nan(call: Call) -> bool:
    return any(t.isnan().any() for t in _tensors(call))


def _is_extraordinary(call: Call) -> Tensor:
    """Where an operand is not finite, or the divisor is zero."""
    a, b = _tensors(call)
    return ~a.isfinite() | ~b.isfinite() | (b == 0)


def _floors(call: Call) -> bool:
    floors = call.op.startswith("floor_divide") or call.kwargs.get("rounding_mode") == "floor"
    return floors and _dtype(call).is_floating_point and bool(_is_extraordinary(call).any())


def _floor_of_quotient(call: Call) -> Tensor:
    a, b = (t.to(_dtype(call)) for t in _tensors(call))
    odd, wrong = _is_extraordinary(call), (a / b).floor()
    right: Tensor = call.run()
    return torch.where(odd, wrong.to(right.dtype), right)


def _in_accuracy(call: Call) -> list[Tensor]:
    """The operands as a shader computes with them: half types in float32."""
    dtype = _dtype(call)
    return [t.to(torch.float32 if dtype in HALVES else dtype) for t in _tensors(call)]


def _square_overflows(call: Call) -> bool:
    operands = _in_accuracy(call)
    if operands[0].is_complex():  # which torch refuses
        return False
    edge = torch.finfo(operands[0].dtype).max ** 0.5
    return any(bool((~(t.abs() <= edge)).any()) for t in operands)


def _root_of_squares(call: Call) -> Tensor:
    a, b = _in_accuracy(call)
    return torch.sqrt(a * a + b * b).to(_dtype(call))


# --------------------------------------------------------------------------------------------------------------- bugs


def _third(device: str, dtype: torch.dtype) -> Tensor:
    """A view without dimensions of the third of three different elements."""
    return torch.tensor([0, 3, 8], dtype=dtype).to(device)[2]


MEMORY = (
    reported(
        "issues/100370 silent_wrong_forward offset rank",
        "an element picked out of a tensor counts as the first one of its memory",
        tuple(ROUTINE.split()), _first_of_memory(_is_late_here), _any(_is_late_here),
        trigger=lambda device: [_third(device, dtype) + 1 for dtype in (torch.int64, torch.float32)],
        neighbour=lambda device: torch.tensor([5, 3]).to(device)[0] + 1,
        rows=ROUTINE,
    ),
    reported(
        "issues/182822 silent_wrong_forward dtype offset rank broadcasting",
        "logic on bits of truth values takes the first byte of the memory for an element picked out of it",
        ("bitwise_and", "bitwise_or", "bitwise_xor"), _first_of_memory(_is_late_here),
        lambda call: _dtype(call) is torch.bool and _any(_is_late_here)(call),
        trigger=lambda device: torch.ones(4, dtype=torch.bool).to(device) & _third(device, torch.bool),
        neighbour=lambda device: torch.ones(4, dtype=torch.int32).to(device) & _third(device, torch.int32),
        rows="bitwise_and bitwise_or bitwise_xor",
    ),
    reported(
        "issues/187117 silent_wrong_forward offset promotion value",
        "an element picked out of a tensor on the CPU counts as the first one of its memory",
        tuple(ROUTINE.split()), _first_of_memory(_is_late_on_host), _any(_is_late_on_host),
        trigger=lambda device: ramp(device, 3) * _third("cpu", torch.float32),
        neighbour=lambda device: ramp(device, 3) * _third(device, torch.float32),
        rows=ROUTINE,
    ),
    reported(
        "issues/79672 silent_noop layout inplace", "adding in place to a strided view changes nothing",
        ("add",), skip, lambda call: is_in_place(call) and not call.outs[0].is_contiguous(),
        trigger=lambda device: _columns_added(ramp(device, 3, 4)),
        neighbour=lambda device: ramp(device, 3, 4)[:2].add_(ramp(device, 2, 4)),
        rows="add",
    ),
    reported(
        "issues/96153 crash offset layout", "a slice that was reshaped ends the process as an operand",
        ("add", "baddbmm"), abort, _reshaped_slice, level="function",
        trigger=lambda device: ramp(device, 6, 4)[3:].reshape(-1) + 1,
        neighbour=lambda device: ramp(device, 6, 4)[3:] + 1,
        rows="add baddbmm", deadly="abort",
    ),
)  # fmt: skip


def _columns_added(a: Tensor) -> Tensor:
    a[:, 0] += a[:, 1]
    return a


VALUES = (
    reported(
        f"{FORK}pull/288 silent_wrong_forward dtype value",
        "powers of integers go through logarithms in float32 and lose their low digits",
        ("pow",), _by_logarithms, lambda call: is_integer(_dtype(call)),
        trigger=lambda device: torch.tensor([9, 3]).to(device) ** 8,
        neighbour=lambda device: torch.tensor([9.0, 3.0]).to(device) ** 8,
        rows="pow rpow", name="kul-288",
    ),
    reported(
        f"{FORK}pull/342 silent_wrong_forward dtype args",
        "truncating division in float16 is one off where the quotient is close to an integer",
        ("div",), _one_off, lambda call: call.kwargs.get("rounding_mode") == "trunc" and _dtype(call) is torch.float16,
        trigger=lambda device: torch.div(torch.tensor([6.0, 7.0]).half().to(device), 2, rounding_mode="trunc"),
        neighbour=lambda device: torch.div(torch.tensor([6.0, 7.0]).to(device), 2, rounding_mode="trunc"),
        rows="div_trunc", name="kul-342",
    ),
    reported(
        "issues/143976 nan_mismatch value", "maximum and minimum let a number win over NaN",
        ("maximum", "minimum"),
        lambda call: (torch.fmax if call.op.startswith("maximum") else torch.fmin)(*_tensors(call)), _has_nan,
        trigger=lambda device: torch.maximum(torch.tensor([1.0, torch.nan]).to(device), ramp(device, 2)),
        neighbour=lambda device: torch.maximum(torch.tensor([1.0, torch.inf]).to(device), ramp(device, 2)),
        rows="maximum minimum",
    ),
    reported(
        "pull/189252 nan_mismatch value args",
        "division that rounds down takes the floor of the quotient of what is infinite, NaN or divided by zero",
        ("floor_divide", "div"), _floor_of_quotient, _floors,
        trigger=lambda device: torch.tensor([torch.inf, 1.0]).to(device) // torch.tensor([1.0, -torch.inf]).to(device),
        neighbour=lambda device: torch.tensor([7.0, -1.0]).to(device) // torch.tensor([2.0, 3.0]).to(device),
        rows="floor_divide div_floor",
    ),
    reported(
        "issues/192507 nan_mismatch value",
        "hypot squares its operands: large ones overflow, and an infinite one does not win over NaN",
        ("hypot",), _root_of_squares, _square_overflows,
        trigger=lambda device: torch.hypot(
            torch.tensor([3e20, torch.inf]).to(device), torch.tensor([4e20, torch.nan]).to(device)
        ),
        neighbour=lambda device: torch.hypot(torch.tensor([3e18]).to(device), torch.tensor([4e18]).to(device)),
        rows="hypot",
    ),
)  # fmt: skip
BUGS = (*MEMORY, *VALUES)
