"""Operands that are read wrongly: by other strides, from another place, one for the other."""

from __future__ import annotations

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, has_gaps, is_permuted, read_with
from parity.prove.mutants.mutant import Kernel, Made, mutants, reads, wrong

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_expanded(t: Tensor) -> bool:
    """Whether some elements are the same memory."""
    return any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape))


@mutants("non-contiguous operand read as dense")
def strides(k: Kernel) -> Made:
    """By gaps, permuted dimensions, or strides of 0."""
    for i in range(k.tensors):
        yield f"gaps_{i}", reads(i, as_contiguous, lambda c, t: has_gaps(t))
        yield f"permuted_{i}", reads(i, as_contiguous, lambda c, t: is_permuted(t))
        yield f"expanded_{i}", reads(i, as_contiguous, lambda c, t: is_expanded(t))


@mutants("storage offset ignored")
def offset(k: Kernel) -> Made:
    """Reads from the start of the memory."""
    for i in range(k.tensors):
        yield str(i), reads(i, lambda c, t: read_with(c, t, t.stride(), 0), lambda c, t: t.storage_offset() > 0)


@mutants("channels_last read as dense")
def channels_last(k: Kernel) -> Made:
    """Of two and of three dimensions of an image."""
    for i in range(k.tensors):
        for rank, form in FORMATS.items():
            if rank in k.ranks or k.takes_any_rank:

                def holds(c: Call, t: Tensor, rank: int = rank, form: torch.memory_format = form) -> bool:
                    return t.dim() == rank and not t.is_contiguous() and t.is_contiguous(memory_format=form)

                yield f"{rank}d_{i}", reads(i, as_contiguous, holds)


@mutants("one batch read for all")
def batch(k: Kernel) -> Made:
    """Each element of the first dimension, from a drawn one on, is the first."""
    for i in range(k.tensors):
        if (i and k.facts["tensors"] > 1) or len(k.facts["ndim"]) > 1:
            start = k.draw.choice((1, 1, 1, 2, 3))

            def repeated(c: Call, t: Tensor, start: int = start) -> Tensor:
                new = t.clone(memory_format=torch.contiguous_format)
                new[start:] = t[:1]
                return new

            yield str(i), reads(i, repeated, lambda c, t, start=start: t.dim() >= 2 and t.shape[0] > start)  # type: ignore[misc]


@mutants("lazy conj or neg bit ignored")
def lazy(k: Kernel) -> Made:
    """Reads the numbers as they lie in memory."""
    for i in range(k.tensors if "complex64" in k.facts["dtypes"] else 0):
        yield f"conj_{i}", reads(i, lambda c, t: t.conj(), lambda c, t: t.is_complex() and c.conj(t))
        yield f"neg_{i}", reads(i, lambda c, t: -t, lambda c, t: (t.is_floating_point() or t.is_complex()) and c.neg(t))


@mutants("one tensor as two operands")
def alias(k: Kernel) -> Made:
    """Wrong where two operands begin at one place in memory."""
    if k.facts["tensors"] > 1:

        def shared(c: Call) -> bool:
            ops = c.operands
            return any(a.numel() and a.data_ptr() == b.data_ptr() for j, a in enumerate(ops) for b in ops[:j])

        yield "any", wrong(shared)
