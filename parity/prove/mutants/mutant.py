"""A mutant: one thing that one kernel, or one public function, does wrong. Sizes, positions and numbers in it are drawn.

A class of mutants is a function of a `Kernel` that yields (word, effect); `mutants` registers it. All effects but one leave a
result of the shape and dtype that it has, and none raises on purpose but that one: a wrong answer is silent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.devices import Fault
from parity.devices.sim.call import Call

Condition = Callable[[Call], bool]
Facts = dict[str, Any]
Made = Iterator[tuple[str, "Effect"]]
UNFIT = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
SHORT = {"forward": "f", "backward": "b", "any": "a"}


class Effect(NamedTuple):
    """when: where it is at work. how: "results" (change(call, results) returns new ones, None for those that stay), "reads"
    (change(call, copy) changes the arguments of a second run, whose answer counts where it has the form of the right one) or
    "instead" (change(call) runs in place of the call)."""

    when: Condition
    how: str
    change: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What mutants are made for: a kernel that a row calls in one direction, or ("any") its public function. facts: what was
    recorded of its calls; more: what was recorded of the row; draw: draws the numbers in its mutants."""

    name: str
    direction: str
    facts: Facts
    more: Facts
    draw: Random

    @property
    def tensors(self) -> int:
        """How many operands get mutants of their own."""
        return min(int(self.facts["tensors"]), 2 if self.facts["lists"] else 3)

    @property
    def is_inexact(self) -> bool:
        """Whether it gives floating or complex numbers."""
        return bool({"float32", "complex64"} & {d for ds in self.facts["outdt"] for d in ds})

    @property
    def ranks(self) -> set[int]:
        """The ranks of its first operand that were recorded."""
        return set(self.facts["ndim"])

    @property
    def takes_any_rank(self) -> bool:
        """Whether it takes operands of more than two ranks."""
        return len(self.ranks - {0}) > 2


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant. kind: its class; policy: whether a real device may do it; level: of its fault."""

    row: str
    op: str
    direction: str
    kind: str
    word: str
    effect: Effect = field(compare=False, repr=False)
    policy: bool = False
    level: str = "kernel"

    @property
    def id(self) -> str:
        """Its name, the same in each process with one seed."""
        return f"{self.row}/{self.op}/{SHORT[self.direction]}/{self.kind}:{self.word}"


class Class(NamedTuple):
    """A class of mutants. level: "kernel" or "function"; policy: the words that a real device may do."""

    title: str
    level: str
    policy: tuple[str, ...]
    make: Callable[[Kernel], Made]


CLASSES: dict[str, Class] = {}


def mutants(title: str, level: str = "kernel", policy: Sequence[str] = ()) -> Callable[[Callable[[Kernel], Made]], Any]:
    """Registers a class under the name of its function."""

    def register(make: Callable[[Kernel], Made]) -> Callable[[Kernel], Made]:
        CLASSES[make.__name__.strip("_")] = Class(title, level, tuple(policy), make)
        return make

    return register


@dataclass(slots=True)
class Witnessed:
    """How often a mutant's condition held (fired) and how often it changed an answer (changed). worst: the largest change,
    relative to the largest number, inf where the kind of a number differs."""

    fired: int = 0
    changed: int = 0
    worst: float = 0.0

    def note(self, off: float) -> None:
        """Count a change."""
        self.changed += 1
        self.worst = max(self.worst, off)


# ------------------------------------------------------------------------------------------------------------ conditions


def always(call: Call) -> bool:
    """Every call."""
    return True


def operand(call: Call, i: int) -> Tensor | None:
    """Strided operand number i, if it is there."""
    ops = call.operands
    return ops[i] if i < len(ops) and ops[i].layout is torch.strided else None


# --------------------------------------------------------------------------------------------------------------- effects

Change = Callable[[Call, Tensor], "Tensor | None"]
Holds = Callable[[Call, Tensor], bool]


def results(change: Callable[[Call, Tensor], Tensor | None], when: Condition = always, first: bool = False) -> Effect:
    """Changes each result, or the first one only."""
    return Effect(when, "results", lambda c, outs: [change(c, o) if not k or not first else None for k, o in enumerate(outs)])


def reads(i: int | None, change: Change, holds: Holds = lambda c, t: True) -> Effect:
    """Reads operand i wrongly where `holds` is true of it; every operand where i is None."""

    def meant(c: Call, k: int, t: Tensor) -> bool:
        return (i is None or k == i) and t.layout is torch.strided and t.numel() > 0 and holds(c, t)

    def when(c: Call) -> bool:
        return any(meant(c, k, t) for k, t in enumerate(c.operands))

    def alter(c: Call, copy: Call) -> None:
        ops = c.operands  # what holds of them may not hold of their copies: a bit that torch resolved before the kernel
        mapped(copy, lambda k, t: change(c, t) if k < len(ops) and meant(c, k, ops[k]) else None)

    return Effect(when, "reads", alter)


def argued(change: Callable[[Call, Call], None], when: Condition) -> Effect:
    """Changes the arguments of a copy of the call."""
    return Effect(when, "reads", change)


def instead(run: Callable[[Call], Any], when: Condition) -> Effect:
    """Runs in place of the call."""
    return Effect(when, "instead", run)


def wrong(when: Condition) -> Effect:
    """The first result is wrong everywhere."""
    return results(lambda c, o: off(o), when, first=True)


def wrong_at(place: float, when: Condition = always, value: Callable[[Tensor], Any] | None = None) -> Effect:
    """One element of the first result is wrong: the one at this fraction of them."""

    def change(c: Call, o: Tensor) -> Tensor:
        new = o.clone(memory_format=torch.contiguous_format)
        if flat := new.numel():
            at = min(int(place * flat), flat - 1)
            one = new.view(-1)[at : at + 1]
            one.copy_(off(one) if value is None else torch.as_tensor(value(one)).to(one.dtype))
        return new

    return results(change, when, first=True)


def off(t: Tensor) -> Tensor:
    """Values that no rounding explains; NaN and Inf stay."""
    if t.dtype is torch.bool:
        return ~t
    if t.is_floating_point() or t.is_complex():
        return t * 1.25 + (t == 0).to(t.dtype)
    return (t.to(torch.int64) + 1).to(t.dtype) if t.dtype in (torch.uint16, torch.uint32, torch.uint64) else t + 1


def mapped(call: Call, change: Callable[[int, Tensor], Tensor | None]) -> None:
    """Replace operand k of the call by change(k, t), in the order of `Call.operands`; None keeps it."""
    count = iter(range(1 << 20))
    written = {id(o) for o in call.outs}

    def walk(a: Any) -> Any:
        if isinstance(a, Tensor):
            new = change(next(count), a)
            return a if new is None else new
        if isinstance(a, (list, tuple)) and any(isinstance(x, Tensor) for x in a):
            return type(a)(walk(x) for x in a)
        return a

    call.args[:] = [walk(a) for a in call.args]
    call.kwargs.update({n: walk(v) for n, v in call.kwargs.items() if id(v) not in written and n != "out"})


# -------------------------------------------------------------------------------------------------------------- planting


def leaves(result: Any) -> list[Tensor]:
    """The strided tensors in a result."""
    return [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.layout is torch.strided]


def _written(call: Call) -> list[Tensor]:
    """What a kernel that returns nothing writes into: the first list of tensors, or its destinations."""
    first = next((a for a in call.args if isinstance(a, (list, tuple)) and a and isinstance(a[0], Tensor)), None)
    return [t for t in (first or call.outs) if t.layout is torch.strided]


def distance(a: Tensor, b: Tensor) -> float:
    """0 if equal in bits; else the largest difference relative to the largest number, inf where the kind differs."""
    if not a.numel():
        return 0.0
    a, b = ((torch.view_as_real(t) if t.is_complex() else t) for t in (x.detach().resolve_conj().resolve_neg() for x in (a, b)))
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    if bool(((a == b) & (torch.signbit(a) == torch.signbit(b)) | (a.isnan() & b.isnan())).all()):
        return 0.0
    if bool(((a.isfinite() != b.isfinite()) | (a.isinf() & b.isinf() & (a != b))).any()):
        return float("inf")
    a, b = (x.double().nan_to_num(0.0, 0.0, 0.0) for x in (a, b))
    size = float(b.abs().max())
    return max(float((a - b).abs().max()) / size, 1e-30) if size else float("inf")


def _copied(call: Call) -> Call:
    """The call on copies of all its tensors, with their strides, offsets and common memory."""
    stores: dict[int, Tensor] = {}

    def copy(t: Tensor) -> Tensor:
        if t.layout is not torch.strided:
            return t
        s = t.untyped_storage()
        if not s.nbytes() or not t.numel():
            return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
        memory = stores.setdefault(s.data_ptr(), call.memory(t).clone())
        memory = memory if memory.dtype == t.dtype else memory.view(torch.uint8).view(t.dtype)
        new = memory.as_strided(t.shape, t.stride(), t.storage_offset())
        new = new.conj() if t.is_conj() else new
        return torch._neg_view(new) if t.is_neg() else new

    def walk(a: Any) -> Any:
        if isinstance(a, Tensor):
            return copy(a)
        return type(a)(walk(x) for x in a) if isinstance(a, (list, tuple)) and any(isinstance(x, Tensor) for x in a) else a

    return replace(call, args=[walk(a) for a in call.args], kwargs={n: walk(v) for n, v in call.kwargs.items()})


def fault(m: Mutant, seen: Witnessed | None = None) -> Fault:
    """The mutant as a fault that counts in `seen`."""
    s = seen or Witnessed()

    def matches(call: Call) -> bool:
        if m.level == "kernel":
            if m.direction != "any" and call.direction != m.direction:
                return False
            if any(t.layout is not torch.strided for t in (*call.operands, *call.outs)):
                return False
        return m.effect.when(call)

    def put(outs: Sequence[Tensor], new: Sequence[Tensor | None]) -> None:
        for o, n in zip(outs, new):
            if n is not None and n.shape == o.shape and n.dtype == o.dtype and (d := distance(n, o)) > 0:
                s.note(d)
                o.copy_(n)

    def changed(call: Call) -> Any:
        s.fired += 1
        result = call.run()
        outs = leaves(result) or _written(call)
        put(outs, m.effect.change(call, [o.detach().clone() for o in outs]))
        return result

    def misread(call: Call) -> Any:
        s.fired += 1
        stream, copy, wrong_ones = torch.get_rng_state(), _copied(call), None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                m.effect.change(call, copy)
                wrong_ones = leaves(copy.run()) or _written(copy)
            except UNFIT:  # a kernel that cannot do what it reads answers rightly
                wrong_ones = None
        torch.set_rng_state(stream)
        result = call.run()
        outs = leaves(result) or _written(call)
        if wrong_ones is not None and [(o.shape, o.dtype) for o in outs] == [(o.shape, o.dtype) for o in wrong_ones]:
            put(outs, wrong_ones)
        return result

    def replaced(call: Call) -> Any:
        s.fired += 1
        s.note(float("inf"))
        return m.effect.change(call)

    effect = {"results": changed, "reads": misread, "instead": replaced}[m.effect.how]
    return Fault(m.id, (m.op,), effect, matches, level=m.level)
