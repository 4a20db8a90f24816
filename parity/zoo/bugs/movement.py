"""Bugs of joining and of cutting: cat, stack, triangles, and the operands of batched products."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, is_permuted, raising
from parity.zoo.effects import argument, gradients, ramp, reported

# ------------------------------------------------------------------------------------------------------- joins


def _is_stepped(t: Tensor) -> bool:
    """No two of its elements lie side by side."""
    strides = [s for n, s in zip(t.shape, t.stride()) if n > 1]
    return bool(strides) and min(strides) > 1


def _tensors(call: Call) -> list[Tensor]:
    return list(argument(call, 0, "tensors"))


def _begins_later(call: Call, t: Tensor) -> bool:
    """A dense slice of a base of another rank; stack gives its tensors one more dimension first."""
    rank = t.dim() + call.op.endswith("stack")
    base = t._base
    return base is not None and base.dim() != rank and t.is_contiguous() and t.storage_offset() > 0


def _from_the_beginning(call: Call) -> Any:
    joined = [t.as_strided(t.shape, t.stride(), 0) if _begins_later(call, t) else t for t in _tensors(call)]
    if call.args:
        call.args[0] = joined
    else:
        call.kwargs["tensors"] = joined
    return call.run()


def _ends(d: str) -> tuple[Tensor, Tensor]:
    """The first and the last column of one row."""
    row = torch.tensor([[1.0, 2.0]]).to(d)
    return row[:, :1], row[:, -1:]


# ------------------------------------------------------------------------------------------------------- matrices


def _first_batch_only(call: Call) -> Tensor:
    """Of the dimensions before the last three, only the first entry is cut; the rest is copied as it is."""
    x = call.args[0].clone()
    batches: Tensor = x.reshape(-1, *x.shape[-3:])
    batches[0] = call.run().reshape(batches.shape)[0]
    return batches.reshape(x.shape)


def _is_batch_permuted(t: Tensor) -> bool:
    """Dense, but neither a stack of matrices nor one of transposed matrices."""
    return is_permuted(t) and not t.mT.is_contiguous()


def _read_as_stack(call: Call) -> Any:
    call.args[:] = [as_contiguous(call, a) if _is_batch_permuted(a) else a for a in call.args]
    return call.run()


BUGS = (
    reported(
        "issues/78043 crash layout", "cat and stack fail for stepped slices",
        ("cat",), raising(RuntimeError("Placeholder tensor: the buffer does not have the size that the shape needs")),
        lambda call: any(map(_is_stepped, _tensors(call))),
        trigger=lambda d: torch.stack((-ramp(d, 2, 4)[..., 1::2], ramp(d, 2, 4)[..., ::2]), -1),
        neighbour=lambda d: torch.stack((-ramp(d, 2, 4)[..., 2:], ramp(d, 2, 4)[..., :2]), -1),
        rows="cat stack",
    ),
    reported(
        "issues/80850 silent_wrong_forward dtype", "cat and stack of bools are all False",
        ("cat",), lambda call: torch.zeros_like(call.run()), lambda call: all(t.dtype == torch.bool for t in _tensors(call)),
        trigger=lambda d: torch.stack((torch.tensor([True, False]).to(d),) * 2),
        neighbour=lambda d: torch.stack((torch.tensor([1, 0], dtype=torch.uint8).to(d),) * 2),
        rows="cat stack",
    ),
    reported(
        "issues/87856 silent_wrong_forward offset layout", "stack and cat read slices from the beginning of their memory",
        ("stack", "cat"), _from_the_beginning, lambda call: any(_begins_later(call, t) for t in _tensors(call)),
        trigger=lambda d: torch.stack(_ends(d), -1),
        neighbour=lambda d: torch.cat(_ends(d), -1),
        rows="stack cat", level="function",
    ),
    reported(
        "pull/144545 silent_wrong_forward rank", "tril and triu cut only the first of the batches beyond three dimensions",
        ("tril", "triu"), _first_batch_only,
        lambda call: call.args[0].dim() > 3 and math.prod(call.args[0].shape[:-3]) > 1 and call.args[0].numel() > 0,
        trigger=lambda d: [ramp(d, 2, 2, 3, 3).tril(), ramp(d, 2, 2, 3, 3).triu_(1)],
        neighbour=lambda d: [ramp(d, 2, 3, 3).tril(), ramp(d, 1, 2, 3, 3).triu_(1)],
        rows="tril triu",
    ),
    reported(
        "issues/117826 silent_wrong_backward backward layout",
        "the gradients of a product of stacks take permuted operands for dense ones",
        ("bmm",), _read_as_stack, lambda call: call.direction == "backward" and any(map(_is_batch_permuted, call.operands)),
        trigger=lambda d: gradients(lambda x, w: torch.einsum("bij,ijk->bik", x, w), ramp(d, 2, 3, 4), ramp(d, 3, 4, 5)),
        neighbour=lambda d: gradients(lambda x, w: torch.einsum("ibj,ijk->ibk", x, w), ramp(d, 3, 2, 4), ramp(d, 3, 4, 5)),
        rows="einsum bmm matmul",
    ),
)  # fmt: skip
