"""What many planted bugs have in common: wrong readings of memory, arguments that are lost, inputs to show them with."""

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
    """An argument by place or by name; a kernel is not told what was left at its default."""
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


def replace(call: Call, position: int, name: str, value: Any) -> None:
    """Put another value where `argument` finds one."""
    if len(call.args) > position:
        call.args[position] = value
    else:
        call.kwargs[name] = value


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor of this shape, last dimension innermost."""
    return torch.empty(tuple(shape), device="meta").stride()


def looks_channels_last(t: Tensor) -> bool:
    """What torch's `suggest_memory_format` sees in a tensor of four dimensions: the order of its strides only. True also
    for a slice with gaps, and for some views that are contiguous at the same time (dimensions of size 1)."""
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
    """Whether the destination is the first operand itself, whichever form the call had (`a.add_(b)`, `add(a, b, out=a)`)."""
    if not call.outs or not isinstance(call.args[0], Tensor):
        return False
    x, out = call.args[0], call.outs[0]
    return x.data_ptr() == out.data_ptr() and x.shape == out.shape and x.stride() == out.stride()


def is_host(t: Tensor) -> bool:
    """At kernel level: whether an operand is the CPU's own. What lies on the device is seen through memory that cannot grow."""
    return t.untyped_storage().resizable()


def is_transposed(t: Tensor) -> bool:
    """Whether the dimensions lie in memory in another order than their own, with gaps or without."""
    strides = [s for n, s in zip(t.shape, t.stride()) if n > 1]
    return not t.is_contiguous() and strides != sorted(strides, reverse=True)


# ------------------------------------------------------------------------------------------------- wrong readings


def read_with(call: Call, t: Tensor, strides: Sequence[int], offset: int | None = None) -> Tensor:
    """The elements that a kernel finds which starts at `t`'s own place (or at `offset`) and takes these strides for its.
    What would lie past the end of the memory is the last element."""
    memory = call.memory(t)
    index = torch.tensor(int(t.storage_offset()) if offset is None else offset)
    for size, stride in zip(t.shape, strides):
        index = index.unsqueeze(-1) + torch.arange(size) * stride
    return memory[index.clamp(max=max(memory.numel() - 1, 0))] if t.numel() else t


def as_contiguous(call: Call, t: Tensor) -> Tensor:
    """`t` read as if it were dense, from where it begins."""
    return read_with(call, t, row_major(t.shape))


def as_channels_last(call: Call, t: Tensor) -> Tensor:
    """`t` of shape (N, C, H, W) read as if it were dense in the order N, H, W, C, from where it begins."""
    _, c, h, w = t.shape
    return read_with(call, t, (h * w * c, 1, w * c, c))


def wrapped(t: Tensor, limit: int) -> Tensor:
    """`t` as an index finds it that starts again at 0 where it reaches `limit`: what lies further repeats the beginning."""
    return t.reshape(-1)[torch.arange(t.numel(), device=t.device) % limit].reshape(t.shape)


def has_gaps(t: Tensor) -> bool:
    """Whether memory lies between the elements of `t` that is none of its own: a stepped or column slice, a slice of
    either transposed; not what is only permuted, nor what is expanded."""
    if t.is_contiguous() or any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride())):
        return False
    span: int = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1
    return span > t.numel()


def has_repeats(index: Tensor) -> bool:
    """Whether a number comes twice."""
    numbers = index.reshape(-1).sort().values
    return bool((numbers[1:] == numbers[:-1]).any())


def is_permuted(t: Tensor) -> bool:
    """Whether `t` is dense in memory, but in another order than its dimensions say (transposed, channels_last, ...)."""
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
    """At function level: `values` in the place of `t`, while gradients flow to `t` as if it had been read right."""
    result: Tensor = _instead(t, values)
    return result


def noise(call: Call, t: Tensor) -> Tensor:
    """Values like `t`'s that are others at every call of the fault: what memory holds that nobody has written."""
    count = call.state["noise"] = call.state.get("noise", 0) + 1
    stream = torch.Generator().manual_seed(count)
    return torch.empty_like(t).copy_(torch.randn(t.shape, generator=stream) * 100)


# ------------------------------------------------------------------------------------------------- ready-made effects


def raising(error: Exception) -> Effect:
    """The device raises this."""

    def effect(call: Call) -> NoReturn:
        raise error.with_traceback(None)

    return effect


def skip(call: Call) -> None:
    """Nothing is written: the destination keeps what it had."""


def write_contiguous(call: Call, values: Tensor) -> None:
    """Into the destination's memory, from its first element on and one after the other, as if it were dense."""
    out = call.outs[0]
    run = call.memory(out)[out.storage_offset() :][: out.numel()]
    run.copy_(values.detach().expand(out.shape).reshape(-1)[: run.numel()])


def replacing(position: int, reading: Callable[[Call, Tensor], Tensor]) -> Effect:
    """The kernel is right, but gets a tensor argument as `reading(call, tensor)` finds it."""

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
    """The gradients of a function's inputs, under an incoming gradient that is different at every element."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    result = function(*leaves)
    incoming = (ramp("cpu", *result.shape) + 2).to(result)
    return torch.autograd.grad(result, leaves, incoming)


def tried(function: Callable[[], Any]) -> Any:
    """What a call returns, or the name of the type of what it raises: for bugs that raise nothing where they should."""
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
    """A bug of torch's MPS backend. report: "issues/123" or "pull/123" of pytorch, or a whole address. triggers, rows: words.
    name: the id where it is not "pt-" and the number."""
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
