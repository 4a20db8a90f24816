"""Wrong gradients of one operand, and wrong views, at the level of the public function; and operands that are read wrongly: by
other strides, from another place, one for the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.call import Call, _tap
from parity.devices.sim.effects import as_contiguous, has_gaps, is_permuted, read_with
from parity.prove.mutants.mutant import Kernel, Made, instead, mapped, mutants, reads, wrong

MOST = 3  # tensors of a function with mutants of their own
OF_GRADIENTS = ("scale", "strided", "zerod", "broadcast", "expanded", "double", "large", "last")


@mutants("gradient of one operand wrong", "function")
def gradient(k: Kernel) -> Made:
    """Of an operand that is strided, 0-d, broadcast, expanded, large, or the only one that has a gradient."""
    if not k.more["grad"]:
        return
    share, large = k.draw.choice((0.99, 1.01, 1.02)), k.draw.randrange(200, 2000)
    for i in range(min(max(int(k.facts["tensors"]), 1), MOST)):
        for word in (*OF_GRADIENTS, *(("alone",) if i else ())):
            yield f"{word}_{i}", _of_gradient(i, word, share, large)


def _of_gradient(i: int, word: str, share: float, large: int) -> Any:
    def target(c: Call) -> Tensor | None:
        ts = c.operands
        fits = i < len(ts) and (ts[i].is_floating_point() or ts[i].is_complex()) and ts[i].requires_grad and not c.outs
        return ts[i] if fits else None

    tests: dict[str, Callable[[Call, Tensor], bool]] = {
        "strided": lambda c, t: not t.is_contiguous(),
        "zerod": lambda c, t: t.dim() == 0,
        "broadcast": lambda c, t: t.numel() < max(x.numel() for x in c.operands),
        "expanded": lambda c, t: is_expanded(t),
        "large": lambda c, t: t.numel() > large,
        "alone": lambda c, t: not any(x.requires_grad for j, x in enumerate(c.operands) if j != i),
    }

    def holds(c: Call) -> bool:
        t = target(c)
        return t is not None and t.numel() > 0 and (word not in tests or tests[word](c, t))

    def tampered(c: Call, t: Tensor) -> Callable[[Tensor], Tensor]:
        if word == "broadcast":
            n = max(x.numel() for x in c.operands)
            return lambda g: g * (t.numel() / n)
        if word == "double":
            return lambda g: g + (g - g.detach()) * 0.05
        if word == "last":
            return _without_last
        return lambda g: g * (share if word in ("scale", "zerod", "alone") else 1.5)

    def run(c: Call) -> Any:
        t = target(c)
        assert t is not None
        change = tampered(c, t)
        mapped(c, lambda j, x: _tap(x, change) if j == i else None)
        return c.run()

    return instead(run, holds)


def _without_last(g: Tensor) -> Tensor:
    mask = torch.ones_like(g)
    if mask.numel():
        mask[(Ellipsis, -1) if mask.dim() else ...] = 0
    return g * mask


@mutants("view: copy, offset or strides", "function")
def view(k: Kernel) -> Made:
    """A view that is a copy, or that forgets offset or strides of what it views."""
    if not k.more["view"]:
        return

    def of(how: str) -> Callable[[Call], Any]:
        def run(c: Call) -> Any:
            if how == "dense":
                c.args[0] = c.args[0].contiguous()
            r = c.run()
            if not isinstance(r, Tensor) or r.layout is not torch.strided or how == "dense":
                return r
            if how == "copy":
                return r.clone()
            if how == "offset":
                return r.as_strided(r.shape, r.stride(), 0)
            return r.as_strided(r.shape, torch.empty(r.shape, device="meta").stride()) if r.numel() else r

        return run

    tests: dict[str, Callable[[Tensor], bool]] = {
        "copy": lambda t: True,
        "offset": lambda t: t.storage_offset() > 0,
        "dense": lambda t: not t.is_contiguous(),
        "strides": lambda t: t.is_contiguous(),
    }
    for word, test in tests.items():

        def holds(c: Call, test: Callable[[Tensor], bool] = test) -> bool:
            first = c.args[0] if c.args else None
            if not isinstance(first, Tensor) or first.layout is not torch.strided:
                return False
            return not c.outs and first.numel() > 0 and test(first)

        yield word, instead(of(word), holds)


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
