"""Numbers that are wrong: lost NaN and Inf, regions of values, narrower arithmetic, small errors.

Sizes and ranks at which a kernel is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.prove.mutants.mutant import Kernel, Made, instead, mutants, operand, reads, results, wrong, wrong_at

INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
HALVES = (torch.float16, torch.bfloat16)
Where = Callable[[Tensor], Tensor]


def _is_int(c: Call, t: Tensor) -> bool:
    return t.dtype in INTS


def _of_floats(change: Callable[[Tensor], Tensor]) -> Callable[[Call, Tensor], Tensor | None]:
    return lambda c, o: change(o) if o.is_floating_point() else None


@mutants("one element stale or zero")
def element(k: Kernel) -> Made:
    """The last element, the first, or a drawn one."""
    place = k.draw.choice((1.0, 1.0, 0.0, k.draw.random()))
    yield "zero", wrong_at(place, value=lambda one: 0)
    yield "off", wrong_at(k.draw.choice((1.0, 0.0, k.draw.random())))

    def stale(c: Call, o: Tensor) -> Tensor:
        new = o.clone()
        if new.dim() and new.shape[-1] > 1:
            new[..., -1] = new[..., -2]
        return new

    yield "stale", results(stale, first=True)


@mutants("NaN or Inf lost")
def nonfinite(k: Kernel) -> Made:
    """In one operand, or in the results."""
    if not k.is_inexact:
        return
    most = 10.0 ** k.draw.randrange(2, 5)
    for i in range(k.tensors):
        yield f"nan_{i}", reads(i, lambda c, t: t.nan_to_num(0.0, float("inf"), -float("inf")), _any(torch.isnan))
        yield f"inf_{i}", reads(i, lambda c, t: torch.where(t.isinf(), torch.sign(t) * most, t), _any(torch.isinf))
    yield "out_nan", results(_of_floats(lambda o: torch.where(o.isnan(), torch.zeros_like(o), o)))
    yield "out_inf", results(_of_floats(lambda o: torch.where(o.isinf(), torch.sign(o) * torch.finfo(o.dtype).max, o)))


def _any(where: Where) -> Callable[[Call, Tensor], bool]:
    return lambda c, t: t.is_floating_point() and bool(where(t).any())


def _subnormal(t: Tensor) -> Tensor:
    return (t != 0) & (t.abs() < torch.finfo(t.dtype).tiny)


@mutants("region of values wrong", policy=("subnormal_in", "subnormal_out"))
def region(k: Kernel) -> Made:
    """Huge, large, tiny numbers, numbers beyond a drawn one; the ends of integers, and negative ones."""
    if {"int64", "int32"} & set(k.facts["dtypes"]):
        yield "int_max", reads(None, lambda c, t: torch.where(t == torch.iinfo(t.dtype).max, t - 1, t), _at_end(max))
        yield "int_min", reads(None, lambda c, t: torch.where(t == torch.iinfo(t.dtype).min, t + 1, t), _at_end(min))
        yield "int_negative", reads(None, lambda c, t: t.abs(), lambda c, t: _is_int(c, t) and bool((t < 0).any()))
    if not k.is_inexact:
        return
    yield "subnormal_in", reads(None, lambda c, t: torch.where(_subnormal(t), torch.zeros_like(t), t), _any(_subnormal))
    yield "subnormal_out", results(_of_floats(lambda o: torch.where(_subnormal(o), torch.zeros_like(o), o)))
    infinite = float("inf")
    beyond = k.draw.uniform(20, 100)
    for word, high, put in (
        ("huge", lambda t: torch.finfo(t.dtype).max ** 0.8, infinite),
        ("large", lambda t: torch.finfo(t.dtype).max ** 0.51, infinite),
        ("beyond", lambda t: beyond, beyond),
    ):

        def where(t: Tensor, high: Callable[[Tensor], float] = high) -> Tensor:
            found: Tensor = t.isfinite() & (t.abs() > high(t))
            return found

        def cut(c: Call, t: Tensor, where: Where = where, put: float = put) -> Tensor:
            new: Tensor = torch.where(where(t), torch.sign(t) * put, t)
            return new

        yield word, reads(None, cut, _any(where))

    def tiny(t: Tensor) -> Tensor:
        found: Tensor = (t != 0) & (t.abs() < torch.finfo(t.dtype).tiny ** 0.5) & ~_subnormal(t)
        return found

    yield "tiny", reads(None, lambda c, t: torch.where(tiny(t), torch.zeros_like(t), t), _any(tiny))


def _at_end(which: Callable[[int, int], int]) -> Callable[[Call, Tensor], bool]:
    def holds(c: Call, t: Tensor) -> bool:
        if not _is_int(c, t) or (which is min and t.dtype is torch.uint8):
            return False
        facts = torch.iinfo(t.dtype)
        return bool((t == which(facts.min, facts.max)).any())

    return holds


def _negative_zero(t: Tensor) -> Tensor:
    return (t == 0) & torch.signbit(t)


@mutants("sign of zero lost", policy=("out", "in"))
def zero(k: Kernel) -> Made:
    """In the operands or in the results."""
    if k.is_inexact:
        yield "out", results(_of_floats(lambda o: torch.where(_negative_zero(o), torch.zeros_like(o), o)))
        yield "in", reads(None, lambda c, t: torch.where(_negative_zero(t), torch.zeros_like(t), t), _any(_negative_zero))


def _repeated(t: Tensor) -> Tensor:
    flat = t.reshape(-1)
    order = flat.argsort(stable=True)
    found = torch.zeros_like(flat, dtype=torch.bool)
    found[order[1:]] = flat[order][1:] == flat[order][:-1]
    return found.reshape(t.shape)


@mutants("ties", policy=("equal", "half"))
def tie(k: Kernel) -> Made:
    """Equal elements differ, halves are rounded the other way."""
    if not k.tensors:
        return

    def bump(t: Tensor) -> Tensor:
        f = torch.finfo(t.dtype) if t.is_floating_point() else None
        return t + (t.abs() * f.eps * 2).clamp(min=f.tiny) if f else t + 1

    def has(c: Call, t: Tensor) -> bool:
        return (t.is_floating_point() or t.dtype is torch.int64) and t.numel() < 1e5 and bool(_repeated(t).any())

    yield "equal", reads(0, lambda c, t: torch.where(_repeated(t), bump(t), t), has)

    def half(t: Tensor) -> Tensor:
        return t.isfinite() & (t - t.floor() == 0.5) & torch.tensor(t.dtype is not torch.float64)

    if k.is_inexact:
        yield "half", reads(None, lambda c, t: torch.where(half(t), t + t.abs() * torch.finfo(t.dtype).eps, t), _any(half))


def _rounded(to: torch.dtype) -> Callable[[Call, Tensor], Tensor]:
    def change(c: Call, t: Tensor) -> Tensor:
        if t.is_complex():
            parts = torch.view_as_real(t.resolve_conj().resolve_neg().contiguous())
            return torch.view_as_complex(parts.to(to).to(parts.dtype).contiguous())
        return t.to(to).to(t.dtype)

    return change


def _by_float32(t: Tensor) -> Tensor:
    most = 2.0**63 - 1025 if t.dtype is torch.int64 else 2.0**31 - 1
    return t.to(torch.float32).to(torch.float64).clamp(-most, most).to(t.dtype)


@mutants("computed in a narrower dtype")
def narrow(k: Kernel) -> Made:
    """Operands in half precision or tf32, integers in 32 bits or in float32."""
    if k.is_inexact:

        def single(c: Call, t: Tensor) -> bool:
            return t.dtype in (torch.float32, torch.complex64)

        bits = k.draw.randrange(10, 15)
        mask = ~((1 << bits) - 1)
        yield "half", reads(None, _rounded(torch.float16), single)
        yield "bfloat16", reads(None, _rounded(torch.bfloat16), single)

        def cut(c: Call, t: Tensor) -> Tensor:
            return (t.contiguous().view(torch.int32) & mask).view(torch.float32).where(t.isfinite(), t)

        yield "tf32", reads(None, cut, lambda c, t: t.dtype is torch.float32)
        yield "out_half", results(lambda c, o: o.half().float() if o.dtype is torch.float32 else None)
    if {"int64", "int32"} & set(k.facts["dtypes"]):
        whole = (torch.int64, torch.int32)
        yield "int_float32", reads(None, lambda c, t: _by_float32(t), lambda c, t: t.dtype in whole)
        yield "int_32", reads(None, lambda c, t: t.to(torch.int32).to(torch.int64), lambda c, t: t.dtype is torch.int64)
        yield "int_out_32", results(lambda c, o: o.to(torch.int32).to(torch.int64) if o.dtype is torch.int64 else None)
        yield "int_out_float32", results(lambda c, o: _by_float32(o) if o.dtype is torch.int64 else None)


@mutants("small relative error")
def error(k: Kernel) -> Made:
    """In one element of many, or in all."""
    if not k.is_inexact:
        return
    every = k.draw.randrange(300, 1500)
    share: float = 10.0 ** k.draw.uniform(-3.3, -2.7)

    def size(o: Tensor) -> float:
        return 20 * share if o.dtype in HALVES else share

    def one(c: Call, o: Tensor) -> Tensor | None:
        if not (o.is_floating_point() or o.is_complex()):
            return None
        new = o.clone(memory_format=torch.contiguous_format)
        start = c.state.get("n", every // 2)
        c.state["n"] = start + new.numel()
        hit = torch.arange(start, start + new.numel()) % every == every - 1
        new.view(-1)[hit] = new.view(-1)[hit] * (1 + size(o))
        return new

    yield "one", results(one, first=True)
    for word, factor in (("all", 1.0), ("bias", 0.1)):

        def scaled(c: Call, o: Tensor, factor: float = factor) -> Tensor | None:
            return o * (1 + factor * size(o)) if o.is_floating_point() or o.is_complex() else None

        yield word, results(scaled, first=True)


@mutants("later output wrong")
def output(k: Kernel) -> Made:
    """An output after the first."""
    for j in range(1, min(int(k.facts["outs"]), 4)):

        def change(c: Call, o: Tensor) -> Tensor:
            if o.is_floating_point() or o.is_complex():
                return o * 1.05
            return ~o if o.dtype is torch.bool else o.flip(-1) if o.dim() else torch.where(o > 0, o - 1, o)

        made = results(change)
        yield str(j), made._replace(change=lambda c, outs, j=j: [change(c, o) if i == j else None for i, o in enumerate(outs)])


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
