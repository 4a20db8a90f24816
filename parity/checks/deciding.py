"""Finds by experiment which properties of an operator's call make it differ.

Each kind of property is taken away from the whole call, and the call is run again: what it can lose is gone for good, as in
delta debugging, so that a special value cannot hide a layout. Of what is left the most informative kind is named. The answers
are words for a person and part of a cause's id, so they depend on the call alone: not on its values, sizes or dtype as far as
those do not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.checks.operators import OperatorCall, StridedOperand, compared
from parity.core.layout import dense
from parity.core.results import (
    CPU_OPERAND,
    EMPTY_OPERAND,
    EXTREME_VALUES,
    HALF_TYPES,
    LAZY_OPERAND,
    NARROW_INTEGERS,
    NON_FINITE,
    OTHER_DESTINATION,
    STRIDED_DESTINATION,
)
from parity.devices.base import Device

Change = Callable[[StridedOperand], StridedOperand]
Asked = Callable[[OperatorCall], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of property. without: the call with all of the kind taken away, or None if it has none; words: the single
    properties that are needed, given that the kind as a whole is."""

    without: Callable[[OperatorCall], OperatorCall | None]
    words: Callable[[OperatorCall, Asked], Iterator[str]]


def properties(call: OperatorCall, device: Device) -> tuple[str, ...]:
    """The deciding properties of a call that differs on the device, or raises there; empty if it does so however it is called.

    Only those of the first kind of `KINDS` that is needed are reported. What else is needed in this call need not matter to
    another one with the same fault, and would split its findings.
    """
    raises = call.symptom == "raises"
    if not (raises or call.differs):
        return ()

    def differs(changed: OperatorCall) -> bool | None:
        again = compared(changed, device)
        if again.unknown:  # what the CPU refuses decides nothing
            return None
        return again.symptom == "raises" if raises else again.differs

    def asked(changed: OperatorCall) -> bool:
        return differs(changed) is not False

    needed: set[str] = set()
    for name in TAKEN:
        plainer = KINDS[name].without(call)
        still = None if plainer is None else differs(plainer)
        if still is False:
            needed.add(name)
        elif still and plainer is not None:
            call = plainer
    first = next((name for name in KINDS if name in needed), None)
    return tuple(dict.fromkeys(KINDS[first].words(call, asked))) if first is not None else ()


# ------------------------------------------------------------------------------------------------------------- layouts


def _odd(call: OperatorCall) -> list[int]:
    return [k for k, x in enumerate(call.operands) if x.conj or x.neg or strides_word(x)]


def _dense(call: OperatorCall) -> OperatorCall | None:
    odd = _odd(call)
    return _changed(call, dict.fromkeys(odd, dense_copy)) if odd else None


def _layouts(call: OperatorCall, asked: Asked) -> Iterator[str]:
    """The layouts without which the call agrees, operand by operand."""
    odd = _odd(call)
    for k in [k for k in odd if not asked(_changed(call, {k: dense_copy}))] or odd:
        x = call.operands[k]
        # With both bits and strides: the strides, unless the call differs without them; of a copy the bits that it needs.
        copies = call.is_copy and not asked(_changed(call, {k: without_bits}))
        if (x.conj or x.neg) and (not strides_word(x) or copies or asked(_changed(call, {k: dense_with_bits}))):
            yield LAZY_OPERAND
        else:
            yield f"{strides_word(x)} operand" if k not in call.written else STRIDED_DESTINATION


def strides_word(x: StridedOperand) -> str:
    """What is unusual about where an operand lies, or "". All kinds of strides are one word, since most kernels that misread
    one kind misread another."""
    pairs = [(n, s) for n, s in zip(x.shape, x.strides) if n > 1]
    if tuple(s for _, s in pairs) != dense(tuple(n for n, _ in pairs)):
        return "non-contiguous"
    return "offset" if x.offset else ""


def dense_copy(x: StridedOperand) -> StridedOperand:
    """The operand with the same values, contiguous, in a storage of its own."""
    return _of_values(x, x.values)


def without_bits(x: StridedOperand) -> StridedOperand:
    """The operand in the same memory, as it is without its lazy bits."""
    return replace(x, conj=False, neg=False)


def dense_with_bits(x: StridedOperand) -> StridedOperand:
    """The operand with the same values and lazy bits, contiguous."""
    stored = x.values.conj_physical() if x.conj else x.values
    return replace(_of_values(x, -stored if x.neg else stored), conj=x.conj, neg=x.neg)


def _of_values(x: StridedOperand, values: Tensor) -> StridedOperand:
    return StridedOperand(values.reshape(-1).clone(), x.shape, dense(x.shape), 0, False, False, -1, x.on_cpu)


# ----------------------------------------------------------------------------------------------------- places and sizes


def _all_on_the_device(call: OperatorCall) -> OperatorCall | None:
    """With the operands of the CPU on the device; a copy between the two is none then."""
    there = [k for k, x in enumerate(call.operands) if x.on_cpu and not call.is_copy]
    return _changed(call, dict.fromkeys(there, lambda x: replace(x, on_cpu=False))) if there else None


def _filled(call: OperatorCall) -> OperatorCall | None:
    """With one element along every dimension that has none."""
    empty = [k for k, x in enumerate(call.operands) if 0 in x.shape]
    return _changed(call, dict.fromkeys(empty, _one_element)) if empty else None


def _one_element(x: StridedOperand) -> StridedOperand:
    shape = tuple(max(n, 1) for n in x.shape)
    values = torch.full(shape, 0.5 if x.base.is_floating_point() else 0, dtype=x.base.dtype)
    return StridedOperand(values.reshape(-1), shape, dense(shape), 0, False, False, -1, x.on_cpu)


# -------------------------------------------------------------------------------------------------------------- values


def _tamed(x: StridedOperand, which: Callable[[Tensor], Tensor]) -> StridedOperand:
    """The operand with its own other numbers in place of some of its elements, in the same layout: those lie in the domain of
    the operator. If there are no others, with numbers around 0.5."""
    chosen = which(x.base)
    others = x.base[~chosen]
    if not others.numel():
        others = torch.linspace(0.25, 0.75, max(x.base.numel(), 1)).to(x.base.dtype)
    ordinary = others[torch.arange(x.base.numel()) % others.numel()]
    return replace(x, base=torch.where(chosen, ordinary, x.base))


def _extreme(x: Tensor) -> Tensor:
    """Which numbers are so large or small that products of a few of them leave the range."""
    info = torch.finfo(x.dtype)
    root = 0.5 if x.dtype == torch.float16 else 0.25
    size = x.abs().to(torch.float64)
    extreme: Tensor = ((size > info.max**root) & x.isfinite()) | ((size < info.tiny**root) & (x != 0))
    return extreme


# What may be special about a number: (word, which elements are).
SPECIAL: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    (NON_FINITE, lambda x: ~x.isfinite()),
    (EXTREME_VALUES, _extreme),
)


def _having(call: OperatorCall, which: Callable[[Tensor], Tensor]) -> list[int]:
    inexact = [k for k, x in enumerate(call.operands) if x.base.is_floating_point() or x.base.is_complex()]
    return [k for k in inexact if bool(which(call.operands[k].base).any())]


def _ordinary(call: OperatorCall) -> OperatorCall | None:
    changed = call
    for _, which in SPECIAL:
        changed = _changed(changed, dict.fromkeys(_having(changed, which), functools.partial(_tamed, which=which)))
    return changed if any(_having(call, which) for _, which in SPECIAL) else None


def _values(call: OperatorCall, asked: Asked) -> Iterator[str]:
    having = [(word, which, ks) for word, which in SPECIAL if (ks := _having(call, which))]
    needed = [
        w for w, which, ks in having if not asked(_changed(call, dict.fromkeys(ks, functools.partial(_tamed, which=which))))
    ]
    yield from needed or [word for word, _, _ in having]


# --------------------------------------------------------------------------------------------------- dtypes and arguments

HALVES = (torch.float16, torch.bfloat16)
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float64: torch.float32,
    torch.complex64: torch.float32,
    torch.int8: torch.int64,
    torch.int16: torch.int64,
    torch.int32: torch.int64,
    torch.uint8: torch.int64,
    torch.bool: torch.int64,
}


def _recast(call: OperatorCall, dtype: torch.dtype) -> OperatorCall:
    """With float32 or int64 in place of a dtype, in all operands and arguments."""
    wider = WIDER[dtype]

    def recast(leaf: Any) -> Any:
        if isinstance(leaf, StridedOperand) and leaf.base.dtype == dtype:
            base = (leaf.base.real if leaf.base.is_complex() else leaf.base).to(wider)
            return replace(leaf, base=base, conj=False, neg=leaf.neg and not leaf.base.is_complex())
        return wider if isinstance(leaf, torch.dtype) and leaf == dtype else leaf

    return OperatorCall(call.operator, tree_map(recast, call.args), tree_map(recast, call.kwargs))


def _narrow(call: OperatorCall) -> list[torch.dtype]:
    return sorted({x.base.dtype for x in call.operands} & WIDER.keys(), key=str)


def _wide(call: OperatorCall) -> OperatorCall | None:
    narrow = _narrow(call)
    for dtype in narrow:
        call = _recast(call, dtype)
    return call if narrow else None


def _dtypes(call: OperatorCall, asked: Asked) -> Iterator[str]:
    """The dtypes without which the call agrees: each is replaced by float32 or int64."""
    narrow = _narrow(call)
    for dtype in [d for d in narrow if not asked(_recast(call, d))] or narrow:
        yield HALF_TYPES if dtype in HALVES else NARROW_INTEGERS if WIDER[dtype] is torch.int64 else str(dtype)[6:]


def _destination_of_the_dtype(call: OperatorCall) -> OperatorCall | None:
    """With destinations of the dtype that the call computes in."""
    read = [x.base.dtype for k, x in enumerate(call.operands) if k not in call.written]
    if not read:
        return None
    computed = functools.reduce(torch.promote_types, read)
    written = {k: call.operands[k].base.dtype for k in sorted(call.written)}
    other = [k for k, dtype in written.items() if dtype != computed and dtype != torch.int64]  # which are indices, or sums
    return _changed(call, dict.fromkeys(other, lambda x: replace(x, base=x.base.to(computed)))) if other else None


def _flags(call: OperatorCall) -> list[str]:
    """The flags and words that are not the default. Numbers are left out: another one can make a wrong result right."""
    schema = call.operator._schema.arguments
    given = dict(zip((a.name for a in schema), call.args)) | call.kwargs
    with_defaults = [a for a in schema if a.name in given and a.has_default_value()]
    return [a.name for a in with_defaults if isinstance(given[a.name], (bool, str)) and given[a.name] != a.default_value]


def _by_default(call: OperatorCall, names: list[str]) -> OperatorCall:
    schema = call.operator._schema.arguments
    args = tuple(a.default_value if a.name in names else v for a, v in zip(schema, call.args))
    defaults = {a.name: a.default_value for a in schema if a.name in names}
    return OperatorCall(call.operator, args, {k: defaults.get(k, v) for k, v in call.kwargs.items()})


def _without_flags(call: OperatorCall) -> OperatorCall | None:
    names = _flags(call)
    return _by_default(call, names) if names else None


def _arguments(call: OperatorCall, asked: Asked) -> Iterator[str]:
    names = _flags(call)
    yield from [n for n in names if not asked(_by_default(call, [n]))] or names


def _one(word: str) -> Callable[[OperatorCall, Asked], Iterator[str]]:
    return lambda _call, _asked: iter((word,))


# The most informative first.
KINDS: dict[str, Kind] = {
    "places": Kind(_all_on_the_device, _one(CPU_OPERAND)),
    "sizes": Kind(_filled, _one(EMPTY_OPERAND)),
    "layouts": Kind(_dense, _layouts),
    "values": Kind(_ordinary, _values),
    "destination": Kind(_destination_of_the_dtype, _one(OTHER_DESTINATION)),
    "dtypes": Kind(_wide, _dtypes),
    "arguments": Kind(_without_flags, _arguments),
}
# Layouts are taken away last: a destination that is written at all shows the other faults, too.
TAKEN = ("values", "places", "sizes", "arguments", "destination", "dtypes", "layouts")


def _changed(call: OperatorCall, changes: dict[int, Change]) -> OperatorCall:
    """The call with some operands changed, by their number."""
    count = iter(range(len(call.operands)))
    fresh = iter(range(1000, 2000))

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, StridedOperand):
            return leaf
        made = changes.get(next(count), _same)(leaf)
        return replace(made, group=next(fresh)) if made.group == -1 else made

    args = tree_map(change, call.args)
    return OperatorCall(call.operator, args, tree_map(change, call.kwargs))


def _same(x: StridedOperand) -> StridedOperand:
    return x
