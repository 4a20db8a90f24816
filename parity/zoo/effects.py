"""Shared parts of planted bugs: wrong readings of memory, ignored arguments, and inputs that show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

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


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor of this shape, last dimension innermost."""
    return torch.empty(tuple(shape), device="meta").stride()


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


def is_in_place(call: Call) -> bool:
    """Whether the destination is the first operand itself, however the call was written (`a.add_(b)`, `add(a, b, out=a)`)."""
    if not call.outs or not isinstance(call.args[0], Tensor):
        return False
    x, out = call.args[0], call.outs[0]
    return x.data_ptr() == out.data_ptr() and x.shape == out.shape and x.stride() == out.stride()


def is_host(t: Tensor) -> bool:
    """At kernel level: whether an operand belongs to the CPU. Operands of the device appear as memory that cannot be
    resized."""
    return t.untyped_storage().resizable()


def is_transposed(t: Tensor) -> bool:
    """Whether the dimensions are ordered differently in memory than in the shape, with or without gaps."""
    strides = [s for n, s in zip(t.shape, t.stride()) if n > 1]
    return not t.is_contiguous() and strides != sorted(strides, reverse=True)


# ------------------------------------------------------------------------------------------------- wrong readings


def read_with(call: Call, t: Tensor, strides: Sequence[int], offset: int | None = None) -> Tensor:
    """The elements that a kernel reads when it starts at `t`'s first element (or at `offset`) and uses these strides. Reads
    past the end of the memory give the last element."""
    memory = call.memory(t)
    index = torch.tensor(int(t.storage_offset()) if offset is None else offset)
    for size, stride in zip(t.shape, strides):
        index = index.unsqueeze(-1) + torch.arange(size) * stride
    return memory[index.clamp(max=max(memory.numel() - 1, 0))] if t.numel() else t


def as_contiguous(call: Call, t: Tensor) -> Tensor:
    """`t` read as if it were dense, starting at its first element."""
    return read_with(call, t, row_major(t.shape))


def as_channels_last(call: Call, t: Tensor) -> Tensor:
    """`t` of shape (N, C, H, W) read as if it were dense in the order N, H, W, C, starting at its first element."""
    _, c, h, w = t.shape
    return read_with(call, t, (h * w * c, 1, w * c, c))


def wrapped(t: Tensor, limit: int) -> Tensor:
    """`t` read with an index that wraps to 0 at `limit`: elements further on repeat the beginning."""
    return t.reshape(-1)[torch.arange(t.numel(), device=t.device) % limit].reshape(t.shape)


def has_gaps(t: Tensor) -> bool:
    """Whether memory that does not belong to `t` lies between its elements: true for a stepped or column slice and for a slice
    of either transposed, false for a tensor that is only permuted or expanded."""
    if t.is_contiguous() or any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride())):
        return False
    span: int = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1
    return span > t.numel()


def has_repeats(index: Tensor) -> bool:
    """Whether any number occurs twice."""
    numbers = index.reshape(-1).sort().values
    return bool((numbers[1:] == numbers[:-1]).any())


def is_permuted(t: Tensor) -> bool:
    """Whether `t` is dense in memory but in another order than its dimensions (transposed, channels_last, ...)."""
    order = sorted(range(t.dim()), key=lambda d: (t.stride(d), t.shape[d] > 1), reverse=True)
    return not t.is_contiguous() and t.permute(order).is_contiguous()


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


def noise(call: Call, t: Tensor) -> Tensor:
    """Values like `t`'s that differ at every call of the fault, as uninitialized memory does."""
    count = call.state["noise"] = call.state.get("noise", 0) + 1
    stream = torch.Generator().manual_seed(count)
    return torch.empty_like(t).copy_(torch.randn(t.shape, generator=stream) * 100)


# ------------------------------------------------------------------------------------------------- ready-made effects


def raising(error: Exception) -> Effect:
    """An effect that raises this error."""

    def effect(call: Call) -> NoReturn:
        raise error.with_traceback(None)

    return effect


def skip(call: Call) -> None:
    """Write nothing: the destination keeps its old contents."""


def write_contiguous(call: Call, values: Tensor) -> None:
    """Write the values into the destination's memory as if it were dense, starting at its first element."""
    out = call.outs[0]
    run = call.memory(out)[out.storage_offset() :][: out.numel()]
    run.copy_(values.detach().expand(out.shape).reshape(-1)[: run.numel()])


def replacing(position: int, reading: Callable[[Call, Tensor], Tensor]) -> Effect:
    """An effect that runs the healthy kernel on `reading(call, tensor)` instead of one tensor argument."""

    def effect(call: Call) -> Any:
        call.args[position] = reading(call, call.args[position])
        return call.run()

    return effect


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
    report: str,
    kind: str,
    triggers: str,
    title: str,
    ops: tuple[str, ...],
    effect: Effect,
    when: Callable[[Call], bool] = always,
    *,
    trigger: Callable[[str], object],
    neighbour: Callable[[str], object],
    rows: str = "",
    level: str = "kernel",
    deadly: str = "",
    scaled: str = "",
    name: str = "",
) -> Bug:
    """A bug of torch's MPS backend. report: "issues/123" or "pull/123" of pytorch, or a whole URL. triggers, rows: words
    separated by spaces. name: the id, if it is not "pt-" and the number."""
    source = report if "://" in report else PYTORCH + report
    return Bug(
        fault=Fault(name or "pt-" + report.rpartition("/")[2], ops, effect, when, level, source, title, scaled),
        kind=kind,
        triggers=tuple(triggers.split()),
        trigger=trigger,
        neighbour=neighbour,
        rows=tuple(rows.split()),
        deadly=deadly,
    )
