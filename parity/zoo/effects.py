"""Shared parts of planted bugs: wrong readings of memory, ignored arguments, and inputs that show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.faults import Effect, Fault, always
from parity.zoo.bug import Bug

# ------------------------------------------------------------------------------------------------- looking at a call


def argument(call: Call, position: int, name: str, default: Any = None) -> Any:
    """An argument by position or by name. A kernel does not receive arguments that were left at their default, hence
    `default`."""
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


def replace(call: Call, position: int, name: str, value: Any) -> None:
    """Replace an argument where `argument` finds it."""
    if len(call.args) > position:
        call.args[position] = value
    else:
        call.kwargs[name] = value


def looks_channels_last(t: Tensor) -> bool:
    """What torch's `suggest_memory_format` concludes for a 4-d tensor from the order of its strides. Also True for a slice with
    gaps, and for some views that are contiguous as well (dimensions of size 1)."""
    if t.dim() != 4 or t.stride(1) == 0:
        return False
    least = 0
    for d in (1, 3, 2, 0):
        stride, size = t.stride(d), t.size(d)
        if size == 0 or stride < least or (d == 0 and least == t.stride(1)):
            return False
        least = stride * max(size, 1)
    return True


def is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def is_in_place(call: Call) -> bool:
    """`Call.is_in_place`, as a condition."""
    return call.is_in_place


def is_host(t: Tensor) -> bool:
    """At kernel level: whether an operand belongs to the CPU. Operands of the device appear as memory that cannot be
    resized."""
    return t.untyped_storage().resizable()


# ------------------------------------------------------------------------------------------------- wrong readings


class _Instead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


_instead: Any = _Instead.apply  # untyped in torch


def forward_only(t: Tensor, values: Tensor) -> Tensor:
    """At function level: the result has these `values`, while gradients flow to `t` as if its values had been right."""
    result: Tensor = _instead(t, values)
    return result


# ------------------------------------------------------------------------------------------------- showing a bug


def ramp(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values that are all different, between -1 and 1 (integers: 1, 2, 3, ...), row after row."""
    count = torch.empty(shape, device="meta").numel()
    steps = torch.arange(1, count + 1)
    values = (steps * 0.6180339887) % 2 - 1 if dtype.is_floating_point or dtype.is_complex else steps
    return values.to(dtype).reshape(shape).to(device)


def complex_ramp(device: str, *shape: int) -> Tensor:
    """Complex values that are all different; the first of every row is real."""
    real = ramp("cpu", *shape)
    return torch.complex(real, real.cumsum(-1) - real[..., :1]).to(device)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a function's inputs, for an incoming gradient that differs at every element."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    result = function(*leaves)
    incoming = (ramp("cpu", *result.shape) + 2).to(result)
    return torch.autograd.grad(result, leaves, incoming)


def tried(function: Callable[[], Any]) -> Any:
    """What a call returns, or the name of the exception type it raises: for bugs where an error is missing."""
    try:
        return function()
    except Exception as e:  # the outcome of the case, whatever it is
        return type(e).__name__


# ------------------------------------------------------------------------------------------------- writing a bug down

PYTORCH = "https://github.com/pytorch/pytorch/"


def reported(
    head: str,
    title: str,
    ops: tuple[str, ...],
    effect: Effect,
    when: Callable[[Call], bool] = always,
    *,
    trigger: Callable[[str], object],
    neighbour: Callable[[str], object],
    rows: str | tuple[str, ...] = "",
    level: str | tuple[str, ...] = "kernel",
    deadly: str = "",
    scaled: str = "",
    name: str = "",
) -> Bug:
    """A bug of torch's MPS backend. head: the report ("issues/123" or "pull/123" of pytorch, or a whole URL), the kind, and the
    triggers. rows: names, with spaces between them. name: the id, if it is not "pt-" and the number. The other arguments are
    those of Bug and Fault."""
    report, kind, *triggers = head.split()
    source = report if "://" in report else PYTORCH + report
    return Bug(
        fault=Fault(name or "pt-" + report.rpartition("/")[2], ops, effect, when, level, source, title, scaled, deadly),
        kind=kind,
        triggers=tuple(triggers),
        trigger=trigger,
        neighbour=neighbour,
        rows=tuple(rows.split()) if isinstance(rows, str) else rows,
    )
