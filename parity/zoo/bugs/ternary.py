"""Bugs of elementwise functions of more than two operands: clamp, lerp, addcmul, masked_fill, the fused optimizers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, write_contiguous
from parity.devices.sim.faults import abort, hang
from parity.zoo.effects import argument, is_integer, ramp, reported

FORK = "https://github.com/kulinseth/pytorch/"
HALVES = (torch.float16, torch.bfloat16)
_broadcast: Any = torch.broadcast_tensors  # untyped in torch


def _dtypes(call: Call) -> set[torch.dtype]:
    return {t.dtype for t in call.operands}


def _common(call: Call) -> torch.dtype:
    """What the tensors among the operands are promoted to; those without dimensions only matter by their kind."""
    ranks = [[t.dtype for t in call.operands if (t.dim() > 0) == dimensions] for dimensions in (True, False)]
    many, few = (functools.reduce(torch.promote_types, dtypes) if dtypes else None for dtypes in ranks)
    if many is None or few is None:
        return many or few or torch.get_default_dtype()
    return torch.result_type(torch.empty(1, dtype=many), torch.empty((), dtype=few))


# -------------------------------------------------------------------------------------------------------------- clamp


def _bounds(call: Call) -> tuple[Any, Any]:
    return argument(call, 1, "min"), argument(call, 2, "max")


def _bound_for_nan(call: Call) -> Tensor:
    low, high = _bounds(call)
    missing = call.args[0].isnan()
    right: Tensor = call.run()
    return torch.where(missing, torch.full((), high if low is None else low, dtype=right.dtype), right)


def _are_crossed(call: Call) -> bool:
    low, high = _bounds(call)
    return low is not None and high is not None and bool(torch.as_tensor(low > high).any())


def _death_or_lower_bound(call: Call) -> Tensor:
    if is_integer(call.args[0].dtype):
        abort()
    low, high = _bounds(call)
    below = torch.clamp(call.args[0], max=high)
    return torch.clamp(below, min=low)


def _bounds_as_contiguous(call: Call) -> Any:
    call.args[1:] = [as_contiguous(call, a) if isinstance(a, Tensor) else a for a in call.args[1:]]
    return call.run()


# -------------------------------------------------------------------------------------------- lerp, addcmul, addcdiv


def _has_wider_weight(call: Call) -> bool:
    weight = call.args[2]
    if not isinstance(weight, Tensor) or weight.dim() or weight.dtype is not torch.float32:
        return False
    return call.args[0].dtype in HALVES


def _low_bits_as_weight(call: Call) -> Any:
    """The lower two of the weight's four bytes, as a number of the dtype of the operands."""
    call.args[2] = call.args[2].reshape(1).view(call.args[0].dtype)[0]
    return call.run()


def _is_extraordinary(call: Call) -> bool:
    """A factor of 0 for what is not finite."""
    _, a, b = call.args[:3]
    infinite = not a.isfinite().all() or not b.isfinite().all()
    return call.kwargs.get("value", 1) == 0 and bool(infinite or (call.op.startswith("addcdiv") and (b == 0).any()))


def _copy_of_self(call: Call) -> Tensor:
    copied: Tensor = _broadcast(*call.args[:3])[0].to(call.outs[0].dtype, copy=True)
    return copied


def _is_asked_for_wider(call: Call) -> bool:
    common, wanted = _common(call), call.outs[0].dtype
    both_real = common.is_floating_point and wanted.is_floating_point
    return both_real and wanted != common and torch.promote_types(common, wanted) == wanted


def _in_wider(call: Call) -> Any:
    wanted = call.outs[0].dtype
    call.args[:] = [a.to(wanted) if isinstance(a, Tensor) else a for a in call.args]
    return call.run()


def _low_bits_lost(call: Call) -> Tensor:
    """The product without its two lowest bits."""
    base, a, b = (t.to(torch.int64) for t in call.args[:3])
    product = a * b * int(call.kwargs.get("value", 1))
    result: Tensor = base + (product & ~3)
    return result.to(_common(call))


# -------------------------------------------------------------------------------------------------------- masked_fill


def _is_strided(call: Call) -> bool:
    return not call.args[0].is_contiguous()


def _filled_row_after_row(call: Call) -> None:
    call.args[0] = call.args[0].clone(memory_format=torch.contiguous_format)
    write_contiguous(call, call.run())


def _filled(x: Tensor, *, own: bool = False) -> Tensor:
    """x with its positive elements set to 2 by masked_fill_ in place. The mask has the strides of x; own: the mask is
    contiguous, so that at most x itself is strided."""
    mask = (x > 0).contiguous() if own else x > 0
    return x.masked_fill_(mask, 2.0)


# ---------------------------------------------------------------------------------------------------------- optimizers

SCALER = ("grad_scale", "found_inf")


def _unscaled(call: Call) -> Any:
    call.kwargs.update(dict.fromkeys(SCALER))
    return call.run()


def _sgd(device: str, found_inf: Tensor | None, grad_scale: Tensor | None = None) -> Tensor:
    weight, gradient = ramp(device, 3), ramp(device, 3)
    torch._fused_sgd_(
        [weight],
        [gradient],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.5,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
        grad_scale=grad_scale,
        found_inf=found_inf,
    )
    return weight


CLAMP = (
    reported(
        "issues/120899 nan_mismatch value", "clamp to numbers makes a bound out of NaN",
        ("clamp.out",), _bound_for_nan, lambda call: call.args[0].is_floating_point() and bool(call.args[0].isnan().any()),
        trigger=lambda device: torch.tensor([torch.nan, 3.0]).to(device).clamp(1, 2),
        neighbour=lambda device: torch.tensor([-torch.inf, 3.0]).to(device).clamp(1, 2),
        rows="clamp",
    ),
    reported(
        "pull/122148 crash dtype", "clamp of integers ends the process; where the bounds are crossed, the lower one wins",
        ("clamp",), _death_or_lower_bound, lambda call: is_integer(call.args[0].dtype) or _are_crossed(call),
        trigger=lambda device: ramp(device, 4, dtype=torch.int16).clamp(2, 3),
        neighbour=lambda device: ramp(device, 4).clamp(-0.5, 0.5),
        rows="clamp clamp_fractional", deadly="abort",
    ),
    reported(
        "issues/133100 silent_wrong_forward promotion args", "clamp of integers to fractional numbers is zero everywhere",
        ("clamp.out", "clamp_min.out"),
        lambda call: torch.zeros(call.args[0].shape, dtype=torch.result_type(call.args[0], 1.0)),
        lambda call: is_integer(call.args[0].dtype) and any(isinstance(bound, float) for bound in _bounds(call)),
        trigger=lambda device: (
            ramp(device, 3, dtype=torch.int64).clamp_min(1.0),
            ramp(device, 3, dtype=torch.int64).clamp(0.1),
        ),
        neighbour=lambda device: ramp(device, 3, dtype=torch.int64).clamp_min(2),
        rows="clamp clamp_min clamp_fractional",
    ),
    reported(
        "issues/87348 silent_wrong_forward layout", "clamp takes the elements of strided bounds in the order of memory",
        ("clamp.Tensor_out",), _bounds_as_contiguous,
        lambda call: any(isinstance(bound, Tensor) and not bound.is_contiguous() for bound in _bounds(call)),
        trigger=lambda device: torch.clamp(ramp(device, 3, 3), ramp(device, 3, 3).t() - 0.2, ramp(device, 3, 3).t() + 0.2),
        neighbour=lambda device: torch.clamp(ramp(device, 3, 3).t(), ramp(device, 3, 3) - 0.2, ramp(device, 3, 3) + 0.2),
        rows="clamp",
    ),
)  # fmt: skip
BLENDS = (
    reported(
        "issues/196067 silent_wrong_forward promotion dtype inplace", "lerp between halves reads the half of a float32 weight",
        ("lerp",), _low_bits_as_weight, _has_wider_weight,
        trigger=lambda device: ramp(device, 4).abs().half().lerp_(ramp(device, 4).half() + 1, torch.tensor(0.3).to(device)),
        neighbour=lambda device: (
            ramp(device, 4).abs().half().lerp_(ramp(device, 4).half() + 1, torch.tensor(0.3).half().to(device))
        ),
        rows="lerp",
    ),
    reported(
        "pull/196924 nan_mismatch value args", "addcmul and addcdiv with value=0 do not look at what they would multiply",
        ("addcmul", "addcdiv"), _copy_of_self, _is_extraordinary,
        trigger=lambda device: torch.addcmul(
            ramp(device, 2), torch.tensor([torch.inf, 1]).to(device), ramp(device, 2), value=0
        ),
        neighbour=lambda device: torch.addcmul(ramp(device, 2), ramp(device, 2), ramp(device, 2), value=0),
        rows="addcmul addcdiv",
    ),
    reported(
        "pull/196924 silent_wrong_forward out promotion dtype",
        "functions of three operands compute in the dtype of a wider destination",
        ("addcmul", "addcdiv", "lerp", "clamp.Tensor_out"), _in_wider, _is_asked_for_wider,
        trigger=lambda device: _multiplied_into(ramp(device, 8)),
        neighbour=lambda device: _multiplied_into(ramp(device, 8).half()),
        rows="addcmul addcdiv lerp clamp", name="pt-196924-b",
    ),
    reported(
        "pull/189420 silent_wrong_forward dtype", "addcmul of integers loses low bits",
        ("addcmul",), _low_bits_lost, lambda call: all(map(is_integer, _dtypes(call))),
        trigger=lambda device: torch.addcmul(*(ramp(device, 4, dtype=torch.int32) for _ in range(3))),
        neighbour=lambda device: torch.addcmul(*(ramp(device, 4) for _ in range(3))),
        rows="addcmul",
    ),
    reported(
        "pull/96164 crash promotion", "addcmul of operands with different dtypes ends the process",
        ("addcmul",), abort, lambda call: len(_dtypes(call)) > 1,
        trigger=lambda device: torch.addcmul(ramp(device, 4).half(), ramp(device, 4), ramp(device, 4)),
        neighbour=lambda device: torch.addcmul(*(ramp(device, 4).half() for _ in range(3))),
        rows="addcmul", deadly="abort",
    ),
)  # fmt: skip


def _multiplied_into(out: Tensor) -> Tensor:
    x = ramp("cpu", 8).half().to(out.device)
    return torch.addcmul(x, x, x, out=out)


FILLS = (
    reported(
        f"{FORK}pull/202 hang dtype", "masked_fill of truth values never returns",
        ("masked_fill",), hang, lambda call: call.args[0].dtype is torch.bool,
        trigger=lambda device: torch.ones(3, dtype=torch.bool).to(device).masked_fill(ramp(device, 3) > 0, False),
        neighbour=lambda device: torch.ones(3, dtype=torch.uint8).to(device).masked_fill(ramp(device, 3) > 0, 0),
        rows="masked_fill", deadly="hang", name="kul-202",
    ),
    reported(
        "issues/107694 silent_wrong_forward layout inplace",
        "masked_fill_ where destination and mask are transposed writes row after row",
        ("masked_fill_",), _filled_row_after_row, lambda call: _is_strided(call) and not call.args[1].is_contiguous(),
        trigger=lambda device: _filled(ramp(device, 3, 4).t()),
        neighbour=lambda device: _filled(ramp(device, 4, 3)),
        rows="masked_fill",
    ),
    reported(
        "issues/131285 silent_wrong_forward inplace layout", "masked_fill_ on a strided view writes row after row",
        ("masked_fill_",), _filled_row_after_row, _is_strided,
        trigger=lambda device: _filled(ramp(device, 3, 4).t(), own=True),
        neighbour=lambda device: ramp(device, 3, 4).t().masked_fill(ramp(device, 4, 3) > 0, 2.0),
        rows="masked_fill",
    ),
    reported(
        "pull/186360 silent_wrong_forward optimizer args",
        "fused optimizers do not see the scaler's factor, nor that it found infinity",
        ("_fused_adam_", "_fused_adamw_", "_fused_sgd_"), _unscaled,
        lambda call: any(call.kwargs.get(name) is not None for name in SCALER),
        trigger=lambda device: _sgd(device, torch.ones(()).to(device)),
        neighbour=lambda device: _sgd(device, None),
    ),
)  # fmt: skip
BUGS = (*CLAMP, *BLENDS, *FILLS)
