"""Which properties of an operator's call decide that it differs: each is taken away in turn, and the call is run again.

The answers are words for a person and part of a cause's id, so they depend on the call alone: not on its values, sizes or dtype
as far as those do not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.checks.operators import Lain, OperatorCall, compared
from parity.core.layout import dense
from parity.devices.base import Device

Change = Callable[[Lain], Lain]


def properties(call: OperatorCall, device: Device) -> tuple[str, ...]:
    """The deciding properties of a call that differs on the device; empty if it differs however it is called.

    Layouts are tried first ("non-contiguous operand", "strided destination"), then special values ("NaN", "huge"), dtypes
    ("half types"), and flags ("keepdim"). Later kinds are not tried once one decides: what hides a difference in one call need
    not matter to another, and would split findings of one cause.
    """
    if not call.differs:
        return ()
    for asked in (_layouts, _values, _dtypes, _arguments):
        if words := tuple(dict.fromkeys(asked(call, _asked(device)))):
            return words
    return ()


def _asked(device: Device) -> Callable[[OperatorCall], bool]:
    def differs(changed: OperatorCall) -> bool:
        again = compared(changed, device)
        return again.differs or again.unknown  # a call that the CPU refuses decides nothing

    return differs


# ------------------------------------------------------------------------------------------------------------- layouts


def _layouts(call: OperatorCall, differs: Callable[[OperatorCall], bool]) -> Iterator[str]:
    """The layouts without which the call agrees: of all operands at once first, because few findings need one."""
    odd = [k for k, x in enumerate(call.operands) if x.conj or x.neg or strides_word(x)]
    if not odd or differs(_changed(call, dict.fromkeys(odd, dense_copy))):
        return
    needed = [k for k in odd if not differs(_changed(call, {k: dense_copy}))] or odd
    for k in needed:
        x = call.operands[k]
        bits = [word for word, has in (("conj", x.conj), ("neg", x.neg)) if has]
        # With both bits and strides: the strides, unless the call differs without them.
        if bits and (not strides_word(x) or differs(_changed(call, {k: dense_with_bits}))):
            yield from (f"{word} operand" for word in bits)
        else:
            yield f"{strides_word(x)} operand" if k not in call.written else "strided destination"


def strides_word(x: Lain) -> str:
    """What is unusual about where an operand lies, or "". All kinds of strides are one word, since most kernels that misread
    one kind misread another."""
    pairs = [(n, s) for n, s in zip(x.shape, x.strides) if n > 1]
    if tuple(s for _, s in pairs) != dense(tuple(n for n, _ in pairs)):
        return "non-contiguous"
    return "offset" if x.offset else ""


def dense_copy(x: Lain) -> Lain:
    """The operand with the same values, contiguous, in a storage of its own."""
    return _of_values(x, x.values)


def dense_with_bits(x: Lain) -> Lain:
    """The operand with the same values and lazy bits, contiguous."""
    stored = x.values.conj_physical() if x.conj else x.values
    return replace(_of_values(x, -stored if x.neg else stored), conj=x.conj, neg=x.neg)


def _of_values(x: Lain, values: Tensor) -> Lain:
    return Lain(values.reshape(-1).clone(), x.shape, dense(x.shape), 0, False, False, -1)


# -------------------------------------------------------------------------------------------------------------- values


def _tamed(x: Lain, which: Callable[[Tensor], Tensor]) -> Lain:
    """The operand with its own other numbers in place of some of its elements, in the same layout: those lie in the domain of
    the operator. If there are no others, with their magnitudes, or with numbers around 0.5."""
    chosen = which(x.base)
    others = x.base[~chosen]
    if not others.numel():
        n = x.base.numel()
        sizes = x.base.abs() if bool((x.base.abs() > 0).all() & x.base.isfinite().all()) else torch.linspace(0.25, 0.75, n)
        others = sizes.to(x.base.dtype)
    ordinary = others[torch.arange(x.base.numel()) % others.numel()]
    return replace(x, base=torch.where(chosen, ordinary, x.base))


def _magnitude(x: Tensor) -> Tensor:
    return x.abs().to(torch.float64)


# What may be special about a number: (word, which elements have it).
SPECIAL: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("NaN", lambda x: x.isnan()),
    ("Inf", lambda x: x.isinf()),
    ("subnormal", lambda x: (_magnitude(x) < torch.finfo(x.dtype).tiny) & (x != 0)),
    ("huge", lambda x: (_magnitude(x) > torch.finfo(x.dtype).max ** 0.5) & x.isfinite()),
    ("tiny", lambda x: (_magnitude(x) < torch.finfo(x.dtype).tiny ** 0.5) & (x != 0)),
)


def _values(call: OperatorCall, differs: Callable[[OperatorCall], bool]) -> Iterator[str]:
    inexact = [k for k, x in enumerate(call.operands) if x.base.is_floating_point() or x.base.is_complex()]
    for word, which in SPECIAL:
        having = [k for k in inexact if bool(which(call.operands[k].base).any())]
        if having and not differs(_changed(call, dict.fromkeys(having, functools.partial(_tamed, which=which)))):
            yield word


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


def _dtypes(call: OperatorCall, differs: Callable[[OperatorCall], bool]) -> Iterator[str]:
    """The dtypes without which the call agrees: each is replaced by float32 or int64 in all operands."""
    for dtype in sorted({x.base.dtype for x in call.operands} & WIDER.keys(), key=str):
        wider = WIDER[dtype]

        def recast(leaf: Any, dtype: torch.dtype = dtype, wider: torch.dtype = wider) -> Any:
            if isinstance(leaf, Lain) and leaf.base.dtype == dtype:
                base = (leaf.base.real if leaf.base.is_complex() else leaf.base).to(wider)
                return replace(leaf, base=base, conj=False, neg=leaf.neg and not leaf.base.is_complex())
            return wider if leaf == dtype and isinstance(leaf, torch.dtype) else leaf

        other = OperatorCall(call.operator, tree_map(recast, call.args), tree_map(recast, call.kwargs))
        if not differs(other):
            yield "half types" if dtype in HALVES else "narrow integers" if wider is torch.int64 else str(dtype)[6:]


def _arguments(call: OperatorCall, differs: Callable[[OperatorCall], bool]) -> Iterator[str]:
    """The flags and words without which the call agrees. Numbers are left out: another one can make a wrong result right."""
    schema = call.operator._schema.arguments
    given = dict(zip((a.name for a in schema), call.args)) | call.kwargs
    for a in schema:
        if a.name not in given or not a.has_default_value():
            continue
        value = given[a.name]
        if not isinstance(value, (bool, str)) or value == a.default_value:
            continue
        args = tuple(a.default_value if s.name == a.name else v for s, v in zip(schema, call.args))
        kwargs = {k: a.default_value if k == a.name else v for k, v in call.kwargs.items()}
        if not differs(OperatorCall(call.operator, args, kwargs)):
            yield a.name


def _changed(call: OperatorCall, changes: dict[int, Change]) -> OperatorCall:
    """The call with some operands changed, by their number."""
    count = iter(range(len(call.operands)))
    fresh = iter(range(1000, 2000))

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Lain):
            return leaf
        made = changes.get(next(count), _same)(leaf)
        return replace(made, group=next(fresh)) if made.group == -1 else made

    args = tree_map(change, call.args)
    return OperatorCall(call.operator, args, tree_map(change, call.kwargs))


def _same(x: Lain) -> Lain:
    return x
