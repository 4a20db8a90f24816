"""Calls on the device before a case, which may leave traces in its memory, its graphs and its caches, and one after it, which
may change what the case returned.

These calls are not judged; the case is. It reveals a device whose cache keys are too coarse, or which returns memory
that it did not write.

    garbage        tensors of the operands' and the results' sizes are filled with NaN and freed again
    other_scalar   the same call with another number or word, once for each of its first ones, if the CPU accepts it; for a
                   float also with one that prints alike
    other_values   the same call with other values in the operands
    other_layout   the same call with the operands dense, and dense ones with other strides
    other_dtype    the same call with the operands in another dtype of their kind that the row has
    smaller        the same kind of call with every size halved, or the simplest call of the row (first where graphs are kept)
    larger         the case itself, and then the same kind of call with every size doubled
    larger_smaller the case itself, then a larger call, then a smaller one
    other_grad     the same call in the other autograd mode; a call with gradients also with those of one operand only
    other_presence the same call without one of its tensors, or with one in place of a None, for each that the CPU accepts
    destination    the same call in place and with out=, as far as the op has these forms
    sibling        other ops of the family, whose arguments are drawn in the same way, with the arguments of the case
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from parity import catalog
from parity.catalog import entries
from parity.catalog.draw import Arguments, Draw, Sizes
from parity.catalog.row import RAW, Quirk, Row
from parity.checks.trial import Trial, is_giant
from parity.core.case import Case, Layout, TensorSpec
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError
from parity.core.results import Computed, Outcome, Raised
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.execution.execute import Placed, Program
from parity.execution.inputs import Inputs, Operand, apply, build, lay, torch_word

NUMBERS = 4  # at most so many scalars of a call are changed, one after the other
HIDDEN = 2.0**-22  # not visible in six decimals: a cache that prints its numbers gets the same key
LARGEST = 1 << 16  # elements of an operand of a larger call
# If a dilated window steps over its whole input, the CPU's kernels read outside of it (torch 2.13); these rows are not resized.
WINDOWS = ("pooling",)
SIBLINGS = 3  # other ops of the family that are called
PRESENT = 4  # at most so many arguments of a call are left out or filled in
TRIES = 3  # calls drawn from the row if the case cannot be resized
Step = tuple[Program, Case, Inputs]


def play(t: Trial, here: Placed, reference: Outcome, grad: bool) -> None:
    """Run the calls that the case says come before it. Exceptions are ignored, because only the case is judged."""
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


def call_with_other_values(t: Trial, here: Placed) -> None:
    """Run the same call with other values after the case, none of them planted, without gradients. Values that are written out
    stay as they are."""
    if any(s.values.literal is not None for s in t.case.operands()):
        return
    plain = t.case.map_operands(lambda s: replace(s, values=replace(s.values, specials=())))
    for step in _other_values(replace(t, case=plain), here, False):
        ex.attempt(partial(_run, step, t.device, False), "run")
    t.notes.clear()


def _run(step: Step, device: Device, grad: bool) -> None:
    """The call, and its backward where the case has one."""
    p, case, inputs = step
    live = ex.forward(p, case, inputs, ex.place(inputs, device, case.under), grad)
    tracked = ex.differentiable(live) if grad and case.under == "grad" else ()
    if tracked:
        ex.backward(live, [torch.ones_like(x) for _, x in tracked])


def _taken(t: Trial, step: Step, grad: bool) -> bool:
    """Whether the CPU accepts the call, and makes no giant of it."""
    return not (is_giant(*step) or isinstance(ex.precisely(partial(_run, step, t.cpu, grad), "run"), Raised))


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
    if t.program.row.refuses.unchecked:
        return
    args, kwargs = ex.arguments(t.case, t.inputs, here.views, torch_word)
    scalars = [(k, x) for k, x in enumerate(tree_leaves((args, kwargs))) if type(x) in _OTHERS]
    if len(scalars) > NUMBERS:  # each has its turn, by the seeds of the case
        first = sum(s.values.seed for s in t.case.operands()) % len(scalars)
        scalars = [*scalars[first:], *scalars[:first]]
    for k, x in scalars[:NUMBERS]:
        for group in _OTHERS[type(x)](x):
            for number in group:
                step = replace(t.program, function=_changed(t.program.function, k, number)), t.case, t.inputs
                if _taken(t, step, grad):
                    yield step
                    break


# Interchangeable words in the calls of torch: reductions, formulas, modes of padding and of interpolation.
ARGUMENT_WORDS = (
    ("mean", "sum", "none", "batchmean"), ("none", "tanh"), ("floor", "trunc"),
    ("constant", "reflect", "replicate", "circular"), ("zeros", "border", "reflection"),
    ("nearest", "bilinear", "bicubic", "nearest-exact", "linear", "area", "trilinear"), ("sum", "prod", "mean", "amax", "amin"),
    ("linear", "lower", "higher", "midpoint", "nearest"), ("backward", "forward", "ortho"), ("reduced", "complete", "r"),
    ("ij", "xy"), ("L", "U"), ("relu", "gelu"),
)  # fmt: skip


def _other_words(x: str) -> tuple[tuple[str, ...], ...]:
    """The other words of each group in `ARGUMENT_WORDS` that contains this one."""
    return tuple([tuple([w for w in group if w != x]) for group in ARGUMENT_WORDS if x in group])


# Groups of other values by type; the value that is more likely legal comes first in its group.
_OTHERS: dict[type, Callable[[Any], tuple[tuple[Any, ...], ...]]] = {
    bool: lambda x: ((not x,),),
    int: lambda x: ((x + 1, x - 1),),
    float: lambda x: (((x + 1) / 2 if x != 1 else 0.5, 2 * x + 1), (x + HIDDEN,)),
    complex: lambda x: ((x + 1, x + 2),),
    str: _other_words,
}


def _changed(function: Callable[..., Any], k: int, number: Any) -> Callable[..., Any]:
    """The function with another value for its k-th argument, or with what that makes of the first one if it is callable."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        leaves[k] = number(leaves[0]) if callable(number) else number
        other_args, other_kwargs = tree_unflatten(leaves, tree)
        return function(*other_args, **other_kwargs)

    return call


def _other_values(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    if not t.program.row.is_sampled:
        case = t.case.map_operands(lambda s: replace(s, values=replace(s.values, seed=s.values.seed + 1, literal=None)))
        yield t.program, case, build(case)
        return
    halved = [
        replace(o, base=o.base * 0.5) if o.base.is_floating_point() or o.base.is_complex() else o for o in t.inputs.operands
    ]
    yield t.program, t.case, replace(t.inputs, operands=tuple(halved))


def _other_layout(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    row = t.program.row
    dense_only = bool(row.draws.packed) or row.refuses.unchecked

    def laid(o: Operand) -> Operand:
        layout: Layout = ()
        if not o.spec.layout and not dense_only:
            layout = _TURNED[min(len(o.spec.shape), 2)]
        dense = o.view.resolve_conj().resolve_neg().contiguous()
        return Operand(replace(o.spec, layout=layout), *lay(dense, layout))

    yield from _others(t, laid, grad)


# By rank: an element of a longer row; every second element; rows and columns exchanged in memory.
_TURNED: tuple[Layout, ...] = ((("select", 1, 2),), (("step", -1, 2, 0),), (("transpose", -2, -1),))


def _other_dtype(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    if t.program.row.refuses.unchecked:
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
    """The same call with every operand changed, if the CPU accepts it."""
    if Quirk.MEMORY not in t.program.row.quirks:  # their results depend on the memory of the operands
        step = t.program, t.case, replace(t.inputs, operands=tuple([change(o) for o in t.inputs.operands]))
        if _taken(t, step, grad):
            yield step


# ------------------------------------------------------------------------------------------------- the same call, otherwise


def _other_grad(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    other = replace(t.case, under="grad" if t.case.under in ("no_grad", "inference") else "no_grad")
    yield t.program, other, t.inputs
    tracked = [k for k, o in enumerate(t.inputs.operands) if o.spec.grad and FACTS[o.spec.dtype].is_inexact]
    if grad and t.case.under == "grad" and len(tracked) > 1 and Quirk.UNFROZEN not in t.program.row.quirks:
        frozen = [replace(o, spec=replace(o.spec, grad=k == tracked[0])) for k, o in enumerate(t.inputs.operands)]
        yield t.program, t.case, replace(t.inputs, operands=tuple(frozen))


def _other_presence(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    row = t.program.row
    if row.refuses.unchecked or row.is_sampled or row.family in RAW:
        return
    leaves = tree_leaves(ex.arguments(t.case, t.inputs, here.views, torch_word))
    main, count = leaves[0], 0
    if not isinstance(main, torch.Tensor):
        return
    for k, x in enumerate(leaves[1:], start=1):
        if (x is not None and not isinstance(x, torch.Tensor)) or count == PRESENT:
            continue
        for present in _optional(main) if x is None else (None,):
            step = replace(t.program, function=_changed(t.program.function, k, present)), t.case, t.inputs
            if _taken(t, step, grad):
                count += 1
                yield step
                break


def _optional(main: torch.Tensor) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """What makes a tensor for an argument that was None, from the first operand: one number for each channel, or for each
    column, or a mask of its shape."""
    shapes = dict.fromkeys((*((d,) for d in (*main.shape[1:2], *main.shape[-1:], *main.shape[:1])), tuple(main.shape)))
    for shape in shapes:
        for dtype in (None, torch.bool):
            yield partial(torch.Tensor.new_full, size=shape, fill_value=0 if dtype == torch.bool else 0.5, dtype=dtype)


def _destination(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    row = t.program.row
    if row.refuses.unchecked or row.forms.mutates:
        return
    plain = t.case if t.case.under == "inference" else replace(t.case, under="no_grad")
    inplace: Any = t.program.inplace
    forms = [lambda first, *args, **kwargs: inplace(first.clone(), *args, **kwargs)] if inplace is not None else []
    if t.program.out:
        here = ex.place(t.inputs, t.cpu, plain.under)
        live = ex.precisely(lambda: ex.forward(t.program, plain, t.inputs, here, False), "run")
        if not isinstance(live, Raised):
            forms.append(_into(t.program.function, [x for _, x in live.outputs]))
    for form in forms:
        step = replace(t.program, function=form), plain, t.inputs
        if _taken(t, step, False):
            yield step


def _into(function: Callable[..., Any], results: list[torch.Tensor]) -> Callable[..., Any]:
    """The function with fresh destinations like these results."""

    def call(*args: Any, **kwargs: Any) -> Any:
        device = next(x.device for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
        fresh = tuple([torch.empty_like(x, device=device) for x in results])
        return function(*args, **kwargs, out=fresh if len(fresh) > 1 else fresh[0])

    return call


def _sibling(t: Trial, here: Placed, grad: bool) -> Iterator[Step]:
    """Ops that could share kernels: those after the row in its family first, as far as the CPU takes these arguments."""
    row, dtype = t.program.row, t.case.dtype
    if row.refuses.unchecked or row.is_sampled:
        return
    steps = (
        (ex.program(other), replace(t.case, op=other.name), t.inputs)
        for other in _family(row.name)
        # The operand of one may be the divisor of another, and integers are not divided by zero.
        if dtype in other.dtypes and (other.signature is row.signature or FACTS[dtype].is_inexact)
    )
    yield from itertools.islice((step for step in steps if _taken(t, step, grad)), SIBLINGS)


@cache
def _family(name: str) -> tuple[Row, ...]:
    """The ops of the family whose arguments are drawn by the same function, and that write into none of them and draw no random
    numbers. Other arguments may end or hang the process: a solver reads pivots, a repetition counts."""
    row, order = catalog.row(name), {n: k for k, n in enumerate(catalog.ROWS)}
    if row.family in (*RAW, *WINDOWS):
        return ()
    safe = [
        r
        for r in catalog.ROWS.values()
        if (r.family, r.rule, r.signature.__qualname__) == (row.family, row.rule, row.signature.__qualname__)
        if r.name != name
        if not (r.judged.law or r.forms.mutates or r.forms.updates or r.counts.mps or r.refuses.unchecked)
        if not {Quirk.MEMORY, Quirk.READS_PAST}.intersection(r.quirks)
    ]
    return tuple(sorted(safe, key=lambda r: (order[r.name] - order[name]) % len(order)))


# --------------------------------------------------------------------------------------------------------- other sizes


def _sized(t: Trial, grad: bool, larger: bool) -> Iterator[Step]:
    """The first call of another size that the CPU accepts. Where graphs are kept, a smaller one is first the simplest that
    the row draws: a pinned case has compiled that."""
    cases = [_resized(t, (lambda d: 2 * d) if larger else (lambda d: max(1, d // 2))), *_drawn(t, larger)]
    for case in cases[:: 1 if larger or not t.device.keeps_graphs else -1]:
        step = _built(t, case)
        if step is not None and _taken(t, step, grad):
            yield step
            return


def _larger(t: Trial, grad: bool) -> Iterator[Step]:
    for step in _sized(t, grad, True):
        yield t.program, t.case, t.inputs
        yield step


def _built(t: Trial, case: Case | None) -> Step | None:
    if case is None or case == t.case:
        return None
    try:
        return t.program, case, build(case)
    except CaseError:
        return None


def _resized(t: Trial, change: Callable[[int], int]) -> Case | None:
    """The case with every size above 1, and its indices, changed; None if nothing changes or it is too large."""
    row = t.program.row
    if row.is_sampled or row.family in WINDOWS or row.refuses.unchecked:
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

    resized = t.case.map_operands(sized)
    return resized if resized != t.case and all(s.numel <= LARGEST for s in resized.operands()) else None


def _drawn(t: Trial, larger: bool) -> Iterator[Case]:
    """Undecorated calls drawn from the row: the simplest, or some with more elements than the case."""
    row, size = t.program.row, sum(o.view.numel() for o in t.inputs.operands)
    if row.is_sampled:
        kept = entries.samples(t.case.op, t.case.dtype)
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
        if size < case.numel <= LARGEST:
            yield case


def _case(like: Case, call: Arguments) -> Case:
    def plain(s: TensorSpec) -> TensorSpec:
        return replace(s, values=replace(s.values, family="uniform")) if s.values.family == "any" else s

    return replace(like, args=call.args, kwargs=call.kwargs).map_operands(plain)


_STEPS: dict[str, Callable[[Trial, Placed, bool], Iterator[Step]]] = {
    "other_scalar": _other_scalar, "other_values": _other_values, "other_layout": _other_layout, "other_dtype": _other_dtype,
    "other_grad": _other_grad, "other_presence": _other_presence, "destination": _destination, "sibling": _sibling,
    "smaller": lambda t, here, grad: _sized(t, grad, False), "larger": lambda t, here, grad: _larger(t, grad),
    "larger_smaller": lambda t, here, grad: itertools.chain(_larger(t, grad), _sized(t, grad, False)),
}  # fmt: skip
