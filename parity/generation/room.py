"""Counts the elements that a case takes: of its operands, its results, and all that the truth's formulas make on the way.

Factories and resampling have large results of small operands, and a formula may take their square. Tensors without memory are
enough to count them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.catalog.row import Row
from parity.core import machine
from parity.core.case import Arg, Case, TensorSpec, map_operands_in
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError
from parity.core.layout import base_shape
from parity.core.observer import Operators
from parity.execution.execute import program
from parity.execution.inputs import realise
from parity.oracle.float64 import wide_word
from parity.oracle.kernels import kernel_of

MOST = 1 << 26  # elements that a drawn case may make: in float64 and with their roundings 1 GB
LARGE = 1 << 20  # elements of a result
LONG, PRODUCTS = 256, 1 << 26  # places of a kernel; products of one convolution: in half types on the CPU 1 or 2 seconds
CALLS = 64  # operators that are looked at: a loop over many steps has the same ones again
BYTES = 100  # of each element of a case that somebody typed: all its aspects are checked, each of them in float64, too
SHARE = 0.5  # of the machine's memory, at most, for it


class Made(NamedTuple):
    """Elements that a call makes: all of them, and those of the largest result on the way."""

    elements: int = 0
    largest: int = 0


def made(row: Row, case: Case, large: int = LARGE) -> Made:
    """What a call makes, as far as its shapes show; nothing where it makes little. large: elements of a result, from which on
    all are counted."""
    if case.is_sample or not (may_be_large(case.args, case.kwargs, large) or _is_outer(row, case)):
        return Made()
    return _counted(row, case)


def _is_outer(row: Row, case: Case) -> bool:
    """Whether a convolution could make many elements of few: each number of an image meets each of the kernel."""
    first = case.operands()[:2] if row.family == "convolutions" else []
    return math.prod([x.numel for x in first]) >= LARGE


def elements(row: Row, case: Case) -> int:
    """The elements of the operands, with what lies between them, and of all that the call makes."""
    return sum(math.prod(base_shape(x.shape, x.layout)) for x in case.operands()) + made(row, case).elements


def refuse_giants(row: Row, case: Case) -> None:
    """Raise CaseError for a case that a typing error has made so large that it would fill the memory, or take minutes."""
    memory = machine.total_memory()
    most = min(MOST, int(SHARE * memory) // BYTES) if memory else MOST
    if (n := elements(row, case)) > most:
        raise CaseError(f"the case is too large: it takes {n:,} elements, at most {most:,} are checked; give it smaller sizes")


def may_be_large(args: Iterable[Arg], kwargs: Iterable[tuple[str, Arg]], large: int = LARGE) -> bool:
    """Whether a call could make so many elements: so many times those of its operands as its numbers say, or those of two
    dimensions together."""
    numel, times, largest, second = 0, 1.0, 1, 1
    left: list[Arg] = [*args, *[v for _, v in kwargs]]
    while left:
        leaf = left.pop()
        if isinstance(leaf, TensorSpec):
            count, sizes = 1, leaf.shape
            for n in sizes:
                count *= n
            numel += count
        elif isinstance(leaf, tuple):
            left.extend(leaf)
            continue
        elif isinstance(leaf, int) and leaf > 1:
            times, sizes = times * leaf, (leaf,)
        elif isinstance(leaf, float) and 1.0 < leaf < math.inf:
            times *= leaf**3  # it may count along every dimension of a volume
            continue
        else:
            continue
        for n in sizes:
            if n > largest:
                largest, second = n, largest
            elif largest > n > second:
                second = n
    return max(numel, 1) * times >= large or largest * second >= large


def is_slow(row: Row, case: Case) -> bool:
    """Whether a convolution goes over a long kernel for each of so many results that the CPU takes long."""
    weight = case.operands()[1:2] if row.family == "convolutions" else []
    volume = math.prod(weight[0].shape[2:]) if weight else 0
    return volume >= LONG and _counted(row, case).largest * volume > PRODUCTS


class _Enough(Exception):
    """Ends a count."""


@functools.cache
def _nowhere(func: Any) -> dict[str, Any]:
    """The argument with which an operator makes a tensor without memory, if it takes one."""
    return {"device": torch.device("meta")} if any(a.name == "device" for a in func._schema.arguments) else {}


@functools.lru_cache(maxsize=64)  # a case is drawn, and then asked how long it may take
def _counted(row: Row, case: Case) -> Made:
    """What a call makes until it comes to an operator whose results depend on values."""
    calls, sizes = 0, [0]

    def counted(func: Any, args: Any, kwargs: Any) -> Any:
        """Of formulas instead of kernels where the truth takes those."""
        nonlocal calls
        calls += 1
        if calls > CALLS:
            raise _Enough
        formula = None if func in operators.open else kernel_of(func).formula
        if formula is not None:
            return operators.opened(func, formula, args, kwargs)
        result = func(*args, **kwargs | _nowhere(func))
        sizes.extend(x.numel() for x in tree_leaves(result) if isinstance(x, Tensor))
        return result

    args, kwargs = map_operands_in((case.args, case.kwargs), _without_memory)
    operators = Operators(counted)
    with warnings.catch_warnings(), torch.device("meta"), operators, contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        program(row).function(*realise(args, (), wide_word), **{k: realise(v, (), wide_word) for k, v in kwargs})
    return Made(sum(sizes), max(sizes))


def _without_memory(s: TensorSpec) -> Tensor:
    return torch.empty(s.shape, dtype=getattr(torch, FACTS[s.dtype].wide), device="meta")
