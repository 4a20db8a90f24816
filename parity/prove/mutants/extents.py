"""Sizes and ranks at which a kernel is wrong."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.prove.mutants.mutant import Kernel, Made, instead, mutants, operand, reads, results, wrong, wrong_at

LEAST, MOST = 17, 100_000  # of a size beyond which a kernel is wrong; drawn log-uniformly


@mutants("wrong beyond a size")
def beyond(k: Kernel) -> Made:
    """Elements of an operand past a drawn size are read as 0: of the last dimension, the first, the second, or in all."""
    for n in (1, 2, 3) if k.tensors else ():
        for word in ("last", "first", "second", "elements"):
            limit = int(exp(k.draw.uniform(log(LEAST), log(MOST))))
            yield f"{word}_{n}", reads(None, _cut(word, limit), _longer(word, limit))


def _longer(word: str, limit: int) -> Callable[[Call, Tensor], bool]:
    def holds(c: Call, t: Tensor) -> bool:
        if word == "elements":
            return t.numel() > limit
        rank, dim = {"last": (1, -1), "first": (2, 0), "second": (3, 1)}[word]
        return t.dim() >= rank and t.shape[dim] > limit

    return holds


def _cut(word: str, limit: int) -> Callable[[Call, Tensor], Tensor]:
    def change(c: Call, t: Tensor) -> Tensor:
        new = t.clone(memory_format=torch.contiguous_format)
        if word == "elements":
            new.view(-1)[limit:] = 0
        else:
            dim = {"last": t.dim() - 1, "first": 0, "second": 1}[word]
            new.narrow(dim, limit, t.shape[dim] - limit).zero_()
        return new

    return change


@mutants("empty operand")
def empty(k: Kernel) -> Made:
    """Raises, or gives ones where there is a result."""
    if not k.tensors:
        return

    def holds(c: Call) -> bool:
        return any(t.numel() == 0 for t in c.operands)

    def refuse(c: Call) -> None:
        raise RuntimeError("Placeholder tensor is empty!")

    yield "raises", instead(refuse, holds)
    yield "ones", results(lambda c, o: torch.ones_like(o) if o.numel() else None, holds)
    for i in range(k.tensors):

        def alone(c: Call, i: int = i) -> bool:
            t = operand(c, i)
            return t is not None and not t.numel() and all(x.numel() for j, x in enumerate(c.operands) if j != i)

        yield f"alone_{i}", results(lambda c, o: torch.ones_like(o) if o.numel() else None, alone)


@mutants("0-d operand")
def scalar(k: Kernel) -> Made:
    """Wrong where an operand, or each, has no dimension."""
    if 0 in k.ranks:
        yield "all", wrong(lambda c: bool(c.operands) and all(t.dim() == 0 for t in c.operands))
    for i in range(k.tensors):
        if 0 in k.ranks or (i and k.facts["bcast"]):

            def holds(c: Call, i: int = i) -> bool:
                t = operand(c, i)
                return t is not None and t.dim() == 0 and not any(c.is_scalar(j) and a is t for j, a in enumerate(c.args))

            yield str(i), wrong(holds)


def _wide(c: Call, t: Tensor) -> tuple[list[int], int]:
    """The dimensions of an operand that are broadcast, and the rank of what it is broadcast to."""
    try:
        shape = tuple(torch.broadcast_shapes(*[x.shape for x in c.operands]))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return [], 0
    own = shape[len(shape) - t.dim() :]
    return [d for d in range(t.dim()) if t.shape[d] == 1 < own[d]], len(shape)


@mutants("broadcasting")
def broadcast(k: Kernel) -> Made:
    """Of one operand along a middle dimension, the first, the last, or missing ones; of both."""
    if k.facts["tensors"] < 2 or not k.facts["bcast"]:
        return
    tests: dict[str, Callable[[Tensor, list[int], int], bool]] = {
        "middle": lambda t, wide, rank: any(0 < d < t.dim() - 1 for d in wide),
        "first": lambda t, wide, rank: 0 in wide and t.dim() == rank > 1,
        "last": lambda t, wide, rank: t.dim() > 1 and t.dim() - 1 in wide,
        "rank": lambda t, wide, rank: 0 < t.dim() < rank,
    }
    for i in range(k.tensors):
        for word, test in tests.items():

            def holds(c: Call, i: int = i, test: Callable[[Tensor, list[int], int], bool] = test) -> bool:
                t = operand(c, i)
                return t is not None and t.dim() > 0 and test(t, *_wide(c, t))

            yield f"{word}_{i}", wrong(holds)

    def both(c: Call) -> bool:
        return len(c.operands) > 1 and all(t.dim() and _wide(c, t)[0] for t in c.operands[:2])

    yield "both", wrong(both)


@mutants("one rank")
def rank(k: Kernel) -> Made:
    """Wrong for a first operand of one rank."""
    for n in range(1, 7) if k.takes_any_rank else sorted(k.ranks - {0}):
        yield str(n), wrong(lambda c, n=n: bool(c.operands) and c.operands[0].dim() == n)  # type: ignore[misc]


@mutants("form of the last size")
def form(k: Kernel) -> Made:
    """One element is wrong where the last size is odd, 1, no multiple, a power of two, or long."""
    if not k.ranks - {0}:
        return
    multiple, long = k.draw.choice((4, 8, 16)), k.draw.randrange(33, 200)
    tests: dict[str, Callable[[Tensor], bool]] = {
        "odd": lambda t: t.shape[-1] % 2 == 1 < t.shape[-1],
        "one": lambda t: t.shape[-1] == 1,
        "multiple": lambda t: t.shape[-1] > multiple and t.shape[-1] % multiple > 0,
        "power": lambda t: t.shape[-1] >= 16 and t.shape[-1] & (t.shape[-1] - 1) == 0,
        "wide": lambda t: t.shape[-1] > long,
        "tall": lambda t: t.dim() > 1 and t.shape[-2] > long,
        "ones": lambda t: t.dim() > 1 and t.numel() == 1,
    }
    for word, test in tests.items():

        def holds(c: Call, test: Callable[[Tensor], bool] = test) -> bool:
            return bool(c.operands) and c.operands[0].dim() > 0 and test(c.operands[0])

        yield word, wrong_at(k.draw.choice((1.0, 0.0, k.draw.random())), holds)
