"""Changes the dtype of one argument of a drawn case: a weight in float32 next to half operands, an index in int32, a mask in
uint8, or a Python number as a tensor of one element, on the device or on the CPU.

Whether torch takes such a call is not known beforehand; the call runs once on the CPU, forward and backward, and the answer is
kept by op, argument and dtypes. Operands of ops that promote are mixed by `generate` already; here one argument of any op is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch

from parity.catalog.draw import Pick
from parity.catalog.row import Quirk, Row
from parity.core.case import Arg, Case, TensorSpec, Values, operands_in
from parity.core.dtypes import FACTS, FLOATS, HALF, INTS
from parity.execution import values
from parity.generation import mixing
from parity.generation.mixing import is_taken

ODDS = 12  # one in this many cases gets another dtype in one argument, if torch takes one
TRIES = 12  # changes that are tried for one case
REMEMBERED = 1 << 14
PLACES = ("index", "unique")  # families of indices
MASK = Values("inside", (0, 1))  # a mask in uint8
Place: TypeAlias = int | str  # of an argument: its position, or its keyword


class Change(NamedTuple):
    """A changed case. what: the argument and its new dtype, to remember the answer by. number: of the operand that was a Python
    number; None if there is none."""

    what: Hashable
    case: Case
    number: int | None = None


def with_mixed_dtypes(row: Row, case: Case, pick: Pick) -> Case:
    """The case; in one of `ODDS`, with another dtype in one argument, if the CPU computes that. Cases of torch's own samples,
    of calls that must be refused, of kernels that do not check their arguments, and of empty operands stay as they are."""
    if pick(ODDS) < ODDS - 1 or row.is_sampled or row.refuses.unchecked or case.refused:
        return case
    specs = case.operands()
    if not specs or not all(s.numel for s in specs):
        return case
    changes: list[Change] = [
        *_other_dtypes(case, specs),
        *(_as_tensors(row, case, specs) if not (row.judged.relation or row.judged.law) else ()),
    ]
    if not changes:
        return case
    first = pick(len(changes))
    for change in (*changes[first:], *changes[:first])[:TRIES]:
        if _is_legal(row, change):
            return change.case
    return case


# -------------------------------------------------------------------------------------------------- what may be changed


def _other_dtypes(case: Case, specs: list[TensorSpec]) -> Iterator[Change]:
    """The case with each operand in each other dtype of its kind, if it then differs from another one that it meets."""
    for k, s in enumerate(specs):
        for dtype in _others(s) if _meets(s, (*specs[:k], *specs[k + 1 :])) else ():
            layout = s.layout if FACTS[dtype].kind == FACTS[s.dtype].kind else ()
            held = MASK if s.dtype == "bool" else _legal(s.values, dtype)
            changed = replace(s, dtype=dtype, layout=layout, values=replace(held, seed=s.values.seed))
            yield Change((k, dtype), case.with_operands([*specs[:k], changed, *specs[k + 1 :]]))
    if len(specs) > 2 and specs[0].dtype in HALF:  # weights and statistics of a kernel must often have one dtype
        rest = (replace(s, dtype="float32") if s.dtype in HALF and s.values.literal is None else s for s in specs[1:])
        yield Change(("others", "float32"), case.with_operands([specs[0], *rest]))


def _meets(s: TensorSpec, rest: tuple[TensorSpec, ...]) -> bool:
    """Whether one of the other operands has numbers that the op may combine with those of this one: a lone operand in another
    dtype is another item of the row."""
    if s.values.family in PLACES or s.dtype == "bool":
        return bool(rest)
    if FACTS[s.dtype].is_inexact:
        return any(FACTS[o.dtype].is_inexact for o in rest)
    return any(o.values.family not in PLACES and o.dtype != "bool" for o in rest)


def _others(s: TensorSpec) -> tuple[str, ...]:
    """The other dtypes that an operand may have."""
    kind, v = FACTS[s.dtype].kind, s.values
    if v.literal is not None:
        return ()
    if kind == "bool":
        return ("uint8",)
    if kind == "float":
        return tuple(d for d in FLOATS if d != s.dtype)
    if kind != "int":
        return ()
    if v.family in PLACES:  # in uint8 an index would be a mask
        return tuple(d for d in ("int64", "int32") if d != s.dtype)
    others = tuple(d for d in INTS if d != s.dtype)
    return tuple(d for d in others if _holds(d, v.params)) if v.family in values.ALWAYS_LEGAL else others


def _holds(dtype: str, numbers: tuple[float | int, ...]) -> bool:
    low, high = values.integer_range(FACTS[dtype])
    return all(low <= x <= high for x in numbers)


def _legal(v: Values, dtype: str) -> Values:
    """The values without the special ones that the dtype has no place for."""
    known = values.specials(dtype)
    return replace(v, specials=tuple((where, word) for where, word in v.specials if word in known))


def _as_tensors(row: Row, case: Case, specs: list[TensorSpec]) -> Iterator[Change]:
    """The case with each Python number as a tensor of one element, if no operand that a row counts comes after it."""
    places: list[tuple[Place, Arg]] = [*enumerate(case.args), *case.kwargs]
    before = 0
    for place, number in places:
        before += len(operands_in(number))
        if place not in _tensors_of(row.call):
            continue
        if before < len(specs) and (row.draws.choices or row.judged.bias is not None or Quirk.CHANCES in row.quirks):
            continue
        if not isinstance(number, int | float | complex) or not math.isfinite(abs(number)):
            continue
        for dtype in _holding(number, case.dtype):
            grad = FACTS[dtype].is_inexact and case.dtype in row.grad
            plain = TensorSpec(dtype, (), values=Values(literal=(_element(number, dtype),)), grad=grad)
            for s in (plain, replace(plain, on_cpu=True, grad=False), replace(plain, shape=(1,))):
                yield Change((place, dtype), _with(case, place, s), before)


@functools.cache
def _tensors_of(path: str) -> frozenset[Place]:
    """Positions and names of the arguments that torch takes as tensors in some overload of the function at this path; none for
    functions of parity and those that torch writes in Python."""
    name = path.removeprefix("torch.").removeprefix("nn.functional.").removeprefix("Tensor.").replace(".", "_")
    if not path.startswith("torch."):
        return frozenset()
    return frozenset(
        key
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        for k, a in enumerate(schema.arguments)
        if str(a.type) in ("Tensor", "Optional[Tensor]")
        for key in (*(() if a.kwarg_only else (k,)), a.name)
    )


def _holding(number: complex, dtype: str) -> tuple[str, ...]:
    """The dtypes in which a Python number is tried: that of the item, and another one."""
    kind = FACTS[dtype].kind
    if isinstance(number, bool):
        return ("bool",) if kind == "bool" else ()
    if isinstance(number, complex):
        tried: tuple[str, ...] = (dtype,)
    elif isinstance(number, int) and kind == "int":
        tried = (dtype, "int32" if dtype == "int64" else "int64")
    elif kind in ("float", "complex"):
        tried = (dtype, "float16" if dtype == "float32" else "float32", *(("int64",) if isinstance(number, int) else ()))
    else:
        tried = ("float32",)
    return tuple(d for d in tried if _is_exact(number, d))


def _is_exact(number: complex, dtype: str) -> bool:
    if FACTS[dtype].kind == "int":
        return isinstance(number, int) and _holds(dtype, (number,))
    if isinstance(number, complex) and FACTS[dtype].kind != "complex":
        return False
    return bool(torch.tensor(number, dtype=getattr(torch, dtype)).item() == number)


def _element(number: complex, dtype: str) -> float | int | bool | complex:
    kind = FACTS[dtype].kind
    if isinstance(number, complex) or kind == "complex":
        return complex(number)
    return float(number) if kind == "float" else number


def _with(case: Case, place: Place, s: TensorSpec) -> Case:
    """The case with an operand in place of an argument."""
    if isinstance(place, str):
        return replace(case, kwargs=tuple((n, s if n == place else v) for n, v in case.kwargs))
    return replace(case, args=(*case.args[:place], s, *case.args[place + 1 :]))


# ---------------------------------------------------------------------------------------------------- what torch takes


def _is_legal(row: Row, change: Change) -> bool:
    """Whether the CPU computes the call and its gradients, and a device takes the new operand where it is. Cached by op and
    argument, by dtypes and places of the operands and which of their sizes are 1, and by the arguments that are no numbers."""
    case = change.case
    key = row.name, change.what, case.under, _outline(case.args), tuple([(n, _outline(v)) for n, v in case.kwargs])
    if key not in _answers:
        if len(_answers) >= REMEMBERED:
            _answers.clear()
        there = change.number is None or _may_be_there(row, case, change.number)
        _answers[key] = there and is_taken(row, case)
    return _answers[key]


def _may_be_there(row: Row, case: Case, k: int) -> bool:
    """Whether torch accepts operand k, which was a number, on the CPU or on the device, as the case has it."""
    specs = case.operands()
    if not specs[k].on_cpu:
        return not mixing.must_stay(row, case.args, case.kwargs)
    alone = sum(s.on_cpu for s in specs) == 1  # no kernel takes two operands from the CPU
    return k > 0 and alone and mixing.may_stay(row, case.args, case.kwargs, k)  # the result is where the first operand is


_answers: dict[Any, bool] = {}


def _outline(a: Arg) -> Any:
    if isinstance(a, TensorSpec):
        return a.dtype, tuple([min(n, 2) for n in a.shape]), a.grad, a.on_cpu
    if isinstance(a, tuple):
        return tuple([_outline(x) for x in a])
    return type(a).__name__ if isinstance(a, int | float | complex) and not isinstance(a, bool) else repr(a)
