"""Ready-made parts of faults: wrong readings of memory, what to look for in a tensor, effects. Public, for files of faults.

from parity.devices.sim.effects import as_contiguous, has_gaps, replacing, skip, sometimes, write_contiguous
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.faults import Effect

# ------------------------------------------------------------------------------------------------- looking at a tensor


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor of this shape, last dimension innermost."""
    return torch.empty(tuple(shape), device="meta").stride()


def is_transposed(t: Tensor) -> bool:
    """Whether the dimensions are ordered differently in memory than in the shape, with or without gaps."""
    strides = [s for n, s in zip(t.shape, t.stride()) if n > 1]
    return not t.is_contiguous() and strides != sorted(strides, reverse=True)


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


def noise(call: Call, t: Tensor) -> Tensor:
    """Values like `t`'s that differ at every call of the fault, as uninitialized memory does."""
    count = call.state["noise"] = call.state.get("noise", 0) + 1
    stream = torch.Generator().manual_seed(count)
    return torch.empty_like(t).copy_(torch.randn(t.shape, generator=stream) * 100)


def raising(error: Exception) -> Effect:

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


def sometimes(share: float) -> Callable[[Call], bool]:
    """A condition that holds in this share of all calls, by chance: `Fault(..., when=sometimes(0.1))`."""

    def when(call: Call) -> bool:
        return random.random() < share

    return when
