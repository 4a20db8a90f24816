"""Arguments that are ignored, caches that are stale, destinations that are written wrongly, modes and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.core.errors import FaultError
from parity.devices.sim.call import Call
from parity.prove.mutants.mutant import (
    Condition,
    Kernel,
    Made,
    argued,
    distance,
    instead,
    leaves,
    mapped,
    mutants,
    operand,
    wrong,
    wrong_at,
)

# Arguments that say where or in which form a result is made, or what autograd asks for.
SKIPPED = {
    *("generator", "dtype", "layout", "device", "pin_memory", "out", "memory_format", "input_dtype", "size", "stride_"),
    *("self", "names", "non_blocking", "output_mask", "out_dtype", "output_size", "input_size", "input_sizes", "self_sizes"),
    *("half_to_float", "needed"),
}
DIMS = ("dim", "dims", "dim0", "dim1", "axis", "axes", "shifts", "start_dim")
MOST_VALUES = 3  # of one argument, that replace others


def given(c: Call, name: str) -> Any:
    """The argument of that name; None if the call has none."""
    try:
        return c.argument(name)
    except FaultError:
        return None


def _plain(k: Kernel) -> dict[str, list[Any]]:
    """The recorded values of each argument that can be written down."""
    listed = {
        n: [v for v in vs if not isinstance(v, str) or v[:1] != "<"] for n, vs in k.facts["args"].items() if n not in SKIPPED
    }
    return {n: vs for n, vs in listed.items() if vs}


def _holds_tensor(v: Any) -> bool:
    return any(isinstance(x, Tensor) for x in tree_leaves(v))


def _is_number(v: Any) -> bool:
    return isinstance(v, (int, float)) and not isinstance(v, bool)


@mutants("argument ignored")
def argument(k: Kernel) -> Made:
    """It has always one of its recorded values, or its default, or is left out."""
    for name, values in _plain(k).items():
        for value in values[:MOST_VALUES]:
            if value is not None:
                yield f"{name}={value}", _always_is(name, value)
        if any(_has_default(op, name) for op in k.facts["ops"]):
            yield (
                f"{name}=default",
                argued(
                    lambda c, copy, name=name: copy.replace(name, _default(c, name)),  # type: ignore[misc]
                    lambda c, name=name: not isinstance(v := given(c, name), Tensor) and v != _default(c, name),  # type: ignore[misc]
                ),
            )
    for name, forms in k.facts["optional"].items():
        if forms == 3:  # given and left out
            yield (
                f"{name}=none",
                argued(
                    lambda c, copy, name=name: copy.replace(name, None),  # type: ignore[misc]
                    lambda c, name=name: given(c, name) is not None,  # type: ignore[misc]
                ),
            )


def _always_is(name: str, value: Any) -> Any:
    def when(c: Call) -> bool:
        v = given(c, name)
        if isinstance(v, Tensor) or v is None:
            return False
        if isinstance(v, (list, tuple)) or isinstance(value, list):
            return isinstance(v, (list, tuple)) and isinstance(value, list) and list(v) != value and len(v) == len(value)
        return bool(v != value)

    return argued(lambda c, copy: copy.replace(name, value), when)


def _has_default(op: str, name: str) -> bool:
    base, _, overload = op.partition(".")
    one = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
    return one is not None and any(a.name == name and a.has_default_value() for a in one._schema.arguments)


def _default(c: Call, name: str) -> Any:
    return next((d for n, d in c._declared() if n == name), None)


@mutants("negative dim wrong")
def negative(k: Kernel) -> Made:
    """A dimension counted from the end is the one before."""
    for name in _plain(k):
        if name not in DIMS:
            continue

        def rank(c: Call) -> int:
            return max([t.dim() for t in c.operands] or [0])

        def has(c: Call, name: str = name) -> bool:
            v = given(c, name)
            return rank(c) > 1 and any(isinstance(d, int) and d < 0 for d in (v if isinstance(v, (list, tuple)) else (v,)))

        def shift(c: Call, copy: Call, name: str = name) -> None:
            v, n = given(c, name), rank(c)
            moved = [
                (d + n - 1) % n if isinstance(d, int) and d < 0 else d for d in (v if isinstance(v, (list, tuple)) else (v,))
            ]
            copy.replace(name, moved if isinstance(v, (list, tuple)) else moved[0])

        yield name, argued(shift, has)


@mutants("region of a number wrong")
def number(k: Kernel) -> Made:
    """A Python number of a region: 0, negative, a fraction, not finite, large, 1, or 2."""
    regions: dict[str, Callable[[Any], bool]] = {
        "zero": lambda v: v == 0,
        "negative": lambda v: v < 0,
        "fraction": lambda v: v == v and abs(v) < 1e15 and v != int(v),
        "nonfinite": lambda v: v != v or abs(v) == float("inf"),
        "large": lambda v: 1e3 < abs(v) < float("inf"),
        "one": lambda v: v == 1,
        "two": lambda v: v == 2,
    }
    named = [n for n, vs in _plain(k).items() if n not in DIMS and any(map(_is_number, vs))]
    for name in (*named, *(("#",) if k.facts["numbers"] else ())):
        for word in regions if "eps" not in name else ("fraction", "one"):

            def holds(c: Call, name: str = name, test: Callable[[Any], bool] = regions[word]) -> bool:
                v = _wrapped(c) if name == "#" else given(c, name)
                return _is_number(v) and test(v)

            yield f"{name}={word}", wrong(holds)


def _wrapped(c: Call) -> Any:
    """The first number that torch made a tensor of."""
    wrapped = (a for i, a in enumerate(c.args) if isinstance(a, Tensor) and c.is_scalar(i) and not a.is_complex())
    return next((a.item() for a in wrapped), None)


@mutants("stale cache")
def cache(k: Kernel) -> Made:
    """A call of the shapes of an earlier one takes a number, an argument, or the values of an operand from that one."""
    for i in range(k.tensors):
        yield f"values_{i}", _stale_values(i)
    for name, values in _plain(k).items():
        if len(values) > 1:
            yield name, _stale_argument(name)


def _form(c: Call) -> tuple[Any, ...]:
    return c.op, c.outline.shapes, c.outline.dtypes


def _stale_values(i: int) -> Any:
    def old(c: Call) -> Tensor | None:
        t = operand(c, i)
        if t is None or not 0 < t.numel() <= 4096:
            return None
        key = (*_form(c), str(c.outline.scalars)[:300])
        if key not in c.state:
            c.state[key] = t.detach().clone()
            return None
        kept: Tensor = c.state[key]
        return kept if kept.shape == t.shape and distance(kept, t) > 0 else None

    def reuse(c: Call, copy: Call) -> None:
        kept = old(c)
        mapped(copy, lambda j, t: kept.clone() if j == i and kept is not None else None)

    return argued(reuse, lambda c: old(c) is not None)


def _stale_argument(name: str) -> Any:
    def old(c: Call) -> tuple[Any, ...] | None:
        v = given(c, name)
        if isinstance(v, Tensor) or v is None:
            return None
        others = tuple(str(w) for n in c.names if n != name and not _holds_tensor(w := given(c, n)))
        first = c.state.setdefault((*_form(c), others), (v,))
        return first if first[0] != v and (first[0] == first[0] or v == v) else None

    return argued(lambda c, copy: copy.replace(name, (old(c) or (None,))[0]), lambda c: old(c) is not None)


@mutants("strided destination written wrongly")
def destination(k: Kernel) -> Made:
    """In place, or a given one: as if it were dense, at the start of its memory, or not at all."""
    for word, count in (("in place", k.facts["inplace"]), ("given", k.facts["given"])):
        for how in ("dense", "offset", "skipped") if count else ():

            def holds(c: Call, word: str = word, how: str = how) -> bool:
                if c.destination != word or c.outs[0].layout is not torch.strided:
                    return False
                o = c.outs[0]
                return o.numel() > 0 and (
                    o.storage_offset() > 0 if how == "offset" else o.numel() > 1 and not o.is_contiguous()
                )

            yield f"{word.replace(' ', '_')}_{how}", instead(_misplaced(how), holds)


def _misplaced(how: str) -> Callable[[Call], Any]:
    def run(c: Call) -> Any:
        out, memory = c.outs[0], c.memory(c.outs[0])
        before, result = memory.clone(), c.run()
        first = leaves(result)
        if not first or first[0].data_ptr() != out.data_ptr():
            return result
        values = first[0].detach().clone()
        memory.copy_(before)
        if how == "dense":
            part = memory[out.storage_offset() :][: out.numel()]
            part.copy_(values.reshape(-1)[: part.numel()])
        elif how == "offset":
            memory.as_strided(out.shape, out.stride(), 0).copy_(values)
        return result

    return run


@mutants("mixed dtypes")
def mixed(k: Kernel) -> Made:
    """An operand of another dtype loses what the dtype of the other cannot hold; a fraction next to integers is cut."""
    if k.facts["mixed"] and k.facts["tensors"] > 1:
        for word, by in (("second", 0), ("first", 1)):

            def holds(c: Call) -> bool:
                ops = c.operands
                return len(ops) > 1 and ops[1].dtype != ops[0].dtype and ops[0].numel() > 0

            def cast(c: Call, copy: Call, by: int = by) -> None:
                to = c.operands[by].dtype

                def one(j: int, t: Tensor) -> Tensor | None:
                    other = j > 0 if by == 0 else j == 0
                    return t.to(to).to(t.dtype) if other and not t.is_complex() and not to.is_complex else None

                mapped(copy, one)

            yield word, argued(cast, holds)
    if k.facts["numbers"]:

        def fraction(c: Call, i: int, a: Any) -> bool:
            if isinstance(a, Tensor):
                return c.is_scalar(i) and a.is_floating_point() and bool((a != a.trunc()).any())
            return isinstance(a, float) and abs(a) < 1e9 and a != int(a)

        def whole(c: Call, copy: Call) -> None:
            copy.args[:] = [
                (a.trunc() if isinstance(a, Tensor) else float(int(a))) if fraction(c, i, c.args[i]) else a
                for i, a in enumerate(copy.args)
            ]

        def next_to_integers(c: Call) -> bool:
            return (
                bool(c.operands)
                and not c.operands[0].is_floating_point()
                and any(fraction(c, i, a) for i, a in enumerate(c.args))
            )

        yield "cut", argued(whole, next_to_integers)


@mutants("grad mode")
def mode(k: Kernel) -> Made:
    """Wrong without gradients, with them, or where no operand asks for one."""
    tests: dict[str, Condition] = {
        "off": lambda c: not c.grad_mode,
        "on": lambda c: c.grad_mode and c.requires_grad,
        "plain": lambda c: c.grad_mode and not c.requires_grad,
    }
    for word, test in tests.items() if k.direction == "forward" else ():
        yield word, wrong(lambda c, test=test: c.direction == "forward" and test(c))  # type: ignore[misc]


@mutants("one dtype")
def dtype(k: Kernel) -> Made:
    """One element is wrong where the first operand has a dtype."""
    for d in k.facts["dtypes"]:
        if d not in ("float64", "complex128"):
            kind, place = getattr(torch, d), k.draw.choice((1.0, 0.0, k.draw.random()))
            yield d, wrong_at(place, lambda c, kind=kind: bool(c.operands) and c.operands[0].dtype is kind)  # type: ignore[misc]


@mutants("every n-th call")
def nth(k: Kernel) -> Made:
    """Wrong in each n-th call of the kernel."""
    for word, low, high in (("often", 5, 15), ("rarely", 25, 60)):

        def holds(c: Call, n: int = k.draw.randrange(low, high)) -> bool:
            c.state["calls"] = c.state.get("calls", 0) + 1
            return bool(c.state["calls"] % n == n - 1)

        yield word, wrong(holds)


@mutants("after a larger or a smaller call")
def after(k: Kernel) -> Made:
    """One element is wrong after a call of other size."""
    factor = k.draw.uniform(1.5, 4.0)
    for word in ("larger", "smaller") if k.tensors else ():

        def holds(c: Call, word: str = word) -> bool:
            n, known = max([t.numel() for t in c.operands] or [0]), c.state.get("elements", 0)
            c.state["elements"] = max(n, known) if word == "larger" else n
            return n > 0 and (known > factor * n if word == "larger" else 0 < known * factor < n)

        yield word, wrong_at(k.draw.choice((1.0, 0.0, k.draw.random())), holds)
