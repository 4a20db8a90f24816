"""What the device does right before a case: calls that may leave a trace in its memory, its graphs and its caches.

Nothing here is judged. The case that follows is, and a device that keys a cache too coarsely, or hands out memory that it does
not write, gives its answer away.

    garbage        tensors of the operands' and the results' sizes are filled with NaN and freed again
    other_scalar   the same call with another number or word, once for each of its first ones, where the CPU takes it; for a
                   float also with one that is printed alike
    other_values   the same call with other values in the operands
    other_layout   the same call with the operands dense, and those that are dense turned
    other_dtype    the same call with the operands in another dtype of their kind that the row has
    smaller        the same kind of call with every size halved, or the simplest call of the row
    larger         the case itself, and then the same kind of call with every size doubled
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from parity import execute as ex
from parity.catalog import opinfo
from parity.catalog.draw import Call, Draw, Sizes
from parity.catalog.row import Row
from parity.checking.trial import Trial
from parity.devices.base import Device
from parity.dtypes import FACTS
from parity.errors import CaseError
from parity.execute import Placed, Program
from parity.inputs import Inputs, Operand, apply, build, lay, torch_word
from parity.vocabulary import Arg, Case, Computed, Layout, Outcome, Raised, TensorSpec

NUMBERS = 4  # of a call that are changed, one after the other
HIDDEN = 2.0**-22  # what six decimals do not show: a number with it makes the same key for a cache that prints its numbers
LARGEST = 1 << 16  # elements of an operand of a larger call
# Kernels that believe what they are told: with other counts, sizes or flags, or a destination that does not fit, they read and
# write beside. Rows that call them below torch's public functions, by their paths and OpInfo names; and recurrent layers.
BELOW = ("torch._", "torch.ops.", "torch.native_", "parity.catalog.aten.", "opinfo:_", "opinfo:native_")
RECURRENT = ("lstm", "gru", "rnn")
PUBLIC = ("torch._C._nn.", "torch._foreach_", "opinfo:__")
# Where a dilated window steps over its whole input, the CPU's kernels read beside it (torch 2.13): their rows draw none.
WINDOWS = ("pooling",)
TRIES = 3  # calls of the row that are drawn where the case itself cannot be resized
Step = tuple[Program, Case, Inputs]


def unchecked(row: Row) -> bool:
    """Whether nobody checks the arguments of the row's call before its kernel does."""
    recurrent = row.family == "recurrent" or row.call.rpartition(".")[2].startswith(RECURRENT)
    below = row.call.startswith(BELOW) or row.family == "kernels"
    return recurrent or (below and not row.call.startswith(PUBLIC))


def play(t: Trial, here: Placed, reference: Outcome, grad: bool) -> None:
    """Do on the device what the case says comes before it. What it raises there is nobody's business: the case is judged."""
    if t.case.after == "garbage":
        ex.attempt(lambda: _litter(t, reference), "run")
        t.notes.clear()
        return
    t.mark("reference")
    steps = tuple(_STEPS[t.case.after](t, here, grad))
    t.mark("device")
    for step in steps:
        ex.attempt(partial(_run, step, t.device, grad), "run")
    t.notes.clear()


def _run(step: Step, device: Device, grad: bool) -> None:
    """The call, and its backward where the case has one."""
    p, case, inputs = step
    live = ex.forward(p, case, inputs, ex.place(inputs, device, case.under), grad)
    tracked = ex.differentiable(live) if grad and case.under == "grad" else ()
    if tracked:
        ex.backward(live, [torch.ones_like(x) for _, x in tracked])


def _taken(t: Trial, step: Step, grad: bool) -> bool:
    """Whether the CPU takes the call."""
    return not isinstance(ex.precisely(partial(_run, step, t.cpu, grad), "run"), Raised)


def _litter(t: Trial, reference: Outcome) -> None:
    results = [x for _, x in reference.tensors] if isinstance(reference, Computed) else []
    sizes = {x.numel() * x.element_size() for x in (*results, *(o.base for o in t.inputs.operands))}
    words = sorted({-(-n * k // 4) for n in sizes for k in (1, 2)} - {0})
    held = [torch.full((n,), float("nan"), device=t.device.torch_device) for n in words if n <= 1 << 22]
    if held:
        (held[-1].view(-1, 1) * 2.0).sum()  # another op, of another shape
    t.device.synchronize()
    del held


# --------------------------------------------------------------------------------------------------- the same call, almost


def _other_scalar(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    if unchecked(t.program.row):
        return
    args, kwargs = ex.arguments(t.case, t.inputs, here.views, torch_word)
    found = [(k, x) for k, x in enumerate(tree_leaves((args, kwargs))) if type(x) in _OTHERS]
    for k, x in found[:NUMBERS]:
        for group in _OTHERS[type(x)](x):
            for number in group:
                step = replace(t.program, function=_changed(t.program.function, k, number)), t.case, t.inputs
                if _taken(t, step, grad):
                    yield step
                    break


# Words that stand for each other in the calls of torch: reductions, formulas, modes of padding and of interpolation.
WORDS = (
    ("mean", "sum", "none", "batchmean"),
    ("none", "tanh"),
    ("floor", "trunc"),
    ("constant", "reflect", "replicate", "circular"),
    ("zeros", "border", "reflection"),
    ("nearest", "bilinear", "bicubic", "nearest-exact", "linear", "area", "trilinear"),
    ("sum", "prod", "mean", "amax", "amin"),
    ("linear", "lower", "higher", "midpoint", "nearest"),
    ("backward", "forward", "ortho"),
    ("reduced", "complete", "r"),
    ("ij", "xy"),
    ("L", "U"),
    ("relu", "gelu"),
)


def _other_words(x: str) -> tuple[tuple[str, ...], ...]:
    """One group of other words for each that `WORDS` has with this one."""
    return tuple([tuple([w for w in group if w != x]) for group in WORDS if x in group])


# Groups of other numbers for each kind, of a group the likelier legal one first.
_OTHERS: dict[type, Callable[[Any], tuple[tuple[Any, ...], ...]]] = {
    bool: lambda x: ((not x,),),
    int: lambda x: ((x + 1, x - 1),),
    float: lambda x: (((x + 1) / 2 if x != 1 else 0.5, 2 * x + 1), (x + HIDDEN,)),
    complex: lambda x: ((x + 1, x + 2),),
    str: _other_words,
}


def _changed(function: Callable[..., Any], k: int, number: Any) -> Callable[..., Any]:
    """The function with another number in place of its argument number k."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        leaves[k] = number
        other_args, other_kwargs = tree_unflatten(leaves, tree)
        return function(*other_args, **other_kwargs)

    return call


def _other_values(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    if t.program.row.family != "opinfo":
        case = _mapped(t.case, lambda s: replace(s, values=replace(s.values, seed=s.values.seed + 1, literal=None)))
        yield t.program, case, build(case)
        return
    halved = [
        replace(o, base=o.base * 0.5) if o.base.is_floating_point() or o.base.is_complex() else o for o in t.inputs.operands
    ]
    yield t.program, t.case, replace(t.inputs, operands=tuple(halved))


def _other_layout(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    row = t.program.row
    dense_only = bool(row.packed) or unchecked(row)

    def laid(o: Operand) -> Operand:
        layout: Layout = ()
        if not o.spec.layout and not dense_only:
            layout = _TURNED[min(len(o.spec.shape), 2)]
        dense = o.view.resolve_conj().resolve_neg().contiguous()
        return Operand(replace(o.spec, layout=layout), *lay(dense, layout))

    yield from _others(t, laid, grad)


# By rank: as an element of a longer row, every second element, rows and columns exchanged in memory.
_TURNED: tuple[Layout, ...] = ((("select", 1, 2),), (("step", -1, 2, 0),), (("transpose", -2, -1),))


def _other_dtype(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    if unchecked(t.program.row):
        return

    def cast(o: Operand) -> Operand:
        own = o.spec.dtype
        others = [d for d in t.program.row.dtypes if FACTS[d].kind == FACTS[own].kind and d != own]
        if not others or o.spec.values.family in ("index", "unique"):
            return o
        base = o.base.to(getattr(torch, others[0]))
        return Operand(replace(o.spec, dtype=others[0]), base, apply(base, o.spec.layout, o.spec.shape))

    yield from _others(t, cast, grad)


def _others(t: Trial, change: Callable[[Operand], Operand], grad: bool) -> Iterator[Step]:
    """The same call with every operand changed, where the CPU takes it."""
    if not t.program.row.memory:  # whose results are about where the operands lie
        step = t.program, t.case, replace(t.inputs, operands=tuple([change(o) for o in t.inputs.operands]))
        if _taken(t, step, grad):
            yield step


# --------------------------------------------------------------------------------------------------------- other sizes


def _smaller(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    for case in (_resized(t, lambda d: max(1, d // 2)), *_drawn(t, larger=False)):
        step = _built(t, case)
        if step is not None and _taken(t, step, grad):
            yield step
            return


def _larger(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    for case in (_resized(t, lambda d: 2 * d), *_drawn(t, larger=True)):
        step = _built(t, case)
        if step is not None and _taken(t, step, grad):
            yield t.program, t.case, t.inputs
            yield step
            return


def _built(t: Trial, case: Case | None) -> Step | None:
    if case is None or case == t.case:
        return None
    try:
        return t.program, case, build(case)
    except CaseError:
        return None


def _resized(t: Trial, change: Callable[[int], int]) -> Case | None:
    """The case with every size above 1 changed, and indices with them; None where it is no larger or smaller than before."""
    row = t.program.row
    if row.family == "opinfo" or row.family in WINDOWS or unchecked(row):
        return None

    def sized(s: TensorSpec) -> TensorSpec:
        v = s.values
        shape = tuple(change(d) if d > 1 else d for d in s.shape)
        params = v.params
        if v.family == "index":
            params = tuple(int(p // abs(p) * change(abs(int(p)))) if p else p for p in params)
        elif v.family == "unique":
            params = (change(int(params[0])), *params[1:])
        return replace(s, shape=shape, values=replace(v, params=params, literal=None))

    made = _mapped(t.case, sized)
    return made if made != t.case and all(s.numel <= LARGEST for s in _specs(made)) else None


def _drawn(t: Trial, larger: bool) -> Iterator[Case]:
    """Calls as the row draws them, undecorated: the simplest, or some that hold more elements than the case."""
    row, size = t.program.row, sum(o.view.numel() for o in t.inputs.operands)
    if row.family == "opinfo":
        kept = opinfo.samples(t.case.op, t.case.dtype)
        sizes = [sum(x.numel() for x in s.tensors) for s in kept.values()]
        k = sizes.index(max(sizes) if larger else min(sizes))
        if (sizes[k] > size) if larger else (sizes[k] < size):
            yield _case(t.case, row.signature(Draw(lambda n: k if n == len(sizes) else 0, t.case.dtype, Sizes())))
        return
    if not larger:
        yield _case(t.case, row.signature(Draw(lambda n: 0, t.case.dtype, Sizes())))
        return
    rng = random.Random(f"{row.name}:{t.case.dtype}")
    for _ in range(TRIES):
        case = _case(t.case, row.signature(Draw(rng.randrange, t.case.dtype, Sizes())))
        if size < sum(s.numel for s in _specs(case)) <= LARGEST:
            yield case


def _case(like: Case, call: Call) -> Case:
    def plain(s: TensorSpec) -> TensorSpec:
        return replace(s, values=replace(s.values, family="uniform")) if s.values.family == "any" else s

    return _mapped(replace(like, args=call.args, kwargs=call.kwargs), plain)


def _specs(case: Case) -> Iterator[TensorSpec]:
    def walk(tree: Any) -> Iterator[TensorSpec]:
        if isinstance(tree, TensorSpec):
            yield tree
        elif isinstance(tree, tuple):
            for a in tree:
                yield from walk(a)

    yield from walk((case.args, tuple(v for _, v in case.kwargs)))


def _mapped(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """The case with every operand changed."""

    def walk(a: Arg) -> Arg:
        if isinstance(a, TensorSpec):
            return change(a)
        return tuple(walk(x) for x in a) if isinstance(a, tuple) else a

    return replace(case, args=tuple(walk(a) for a in case.args), kwargs=tuple((k, walk(v)) for k, v in case.kwargs))


_STEPS: dict[str, Callable[[Trial, Placed, bool], Iterator[Step]]] = {
    "other_scalar": _other_scalar,
    "other_values": _other_values,
    "smaller": _smaller,
    "larger": _larger,
    "other_layout": _other_layout,
    "other_dtype": _other_dtype,
}
