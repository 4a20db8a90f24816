"""Finds the results of a function that are those of one operator on what the function was given: the row of an elementwise one
bounds their errors in ULP, and few terms bound those of a sum, far more sharply than a composition can be judged."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity import catalog
from parity.catalog.draw import Arguments
from parity.catalog.row import Row
from parity.comparing.subject import is_dense
from parity.core.case import OpClass
from parity.judging.rules import rule_of
from parity.oracle.kernels import kernel_of
from parity.oracle.oracle import FACTORS

GIVEN = ""  # in place of the name of an operator
SCALED = " times"  # after the name of a sum whose result a number multiplies, once: each time rounds again
# Operators whose results are elements of their operands.
ATEN_MOVES = frozenset((
    "clone", "_to_copy", "flip", "roll", "repeat", "index_select", "gather", "cat", "stack", "neg", "im2col",
))  # fmt: skip
ATEN_SCALES = ("mul", "div")
ATEN_MASKS = ("isnan", "logical_not")  # of what was given, they are the same on all sides
ATEN_SUMMED = frozenset((
    "mm", "bmm", "mv", "dot", "vdot", "addmm", "baddbmm", "addbmm", "addmv", "addr", "sum", "cumsum", "col2im", "convolution",
    "convolution_backward", "scatter_add", "index_add", "mean", "nansum",
))  # fmt: skip  # sums of products, whatever their orders
# Means of windows -> position of the window's sizes; of windows that adapt -> 0.
ATEN_POOLS = {f"avg_pool{n}d{way}": 1 + (way != "") for n in (2, 3) for way in ("", "_backward")}
ATEN_POOLS |= {f"_adaptive_avg_pool{n}d{way}": 0 for n in (2, 3) for way in ("", "_backward")}
SUM = Row(name="assert_parity", family="own", rule=OpClass.CONTRACTION, call="", signature=lambda draw: Arguments(()))


@functools.cache
def row_of(operator: str) -> Row | None:
    """The row of an elementwise operator of aten, without "aten::", or of a sum; None for any other."""
    if operator in ATEN_SUMMED or operator in ATEN_POOLS:
        return SUM
    name = operator if operator in catalog.ROWS else operator.replace("special_", "special.", 1)
    row = catalog.ROWS.get(name)
    if row is None or row.call != f"torch.{name}":
        return None
    rule = rule_of(row)
    return row if rule.by_element and rule.rounds else None


def magnitudes(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator with the factors of a sum as magnitudes."""
    return func(*args, **{k: abs(v) if k in FACTORS else v for k, v in kwargs.items()})


def terms(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator on numbers of terms: they are the same of a sum's multiple, and a mean of a window has all of its."""
    result, name = magnitudes(func, args, kwargs), kernel_of(func).name
    if name == "mean":
        return result * (args[0].numel() // max(1, result.numel()))
    if name in ATEN_POOLS:
        spatial = int(name[name.index("pool") + 4])
        if at := ATEN_POOLS[name]:
            sizes = args[at] * spatial if len(args[at]) == 1 else args[at]
        else:  # where they do not divide it evenly, a window may reach one place farther at both ends
            of, into = (args[1], args[0]) if "backward" in name else (args[0], result)
            sizes = [m // max(1, n) + 2 * (m % max(1, n) > 0) for m, n in zip(of.shape[-spatial:], into.shape[-spatial:])]
        return result * math.prod(sizes)
    scaled = name in ATEN_SCALES and len(args) == 2 and not kwargs and isinstance(args[1], (int, float))
    return args[0].clone() if scaled and args[0].is_floating_point() else result


class Direct:
    """Follows a run: which tensors hold numbers that were given, and which the results of one operator on these. What is
    written in place, cast or made inside is neither."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, str]] = {}  # by storage, which the tensor keeps from being another's

    def given(self, t: Tensor) -> Tensor:
        """A copy of an operand of the function, or of a cotangent."""
        copy = t.clone()
        if is_dense(copy):
            self._known[_storage(copy)] = copy, GIVEN
        return copy

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator, and note what its result is."""
        result, kernel = func(*args, **kwargs), kernel_of(func)
        # Norms write their running statistics without saying so in their schema.
        written: Any = [x for a, x in zip(func._schema.arguments, args) if a.name.startswith("running_")]
        if func._schema.is_mutable or written:
            for t in tree_leaves((args, kwargs, result) if func._schema.is_mutable else written):
                if isinstance(t, Tensor) and is_dense(t):
                    self._known.pop(_storage(t), None)
        elif kernel.name in ATEN_MASKS and self._of(args[0]) == GIVEN:
            self._known[_storage(result)] = result, GIVEN
        elif not kernel.aliases and (isinstance(result, Tensor) or kernel.name in ATEN_SUMMED):
            for t in (result,) if isinstance(result, Tensor) else result:
                if t is not None and t.is_floating_point() and is_dense(t):
                    made = self._made(kernel.name, args, kwargs, t.dtype)
                    self._known |= {} if made is None else {_storage(t): (t, made)}
        return result

    def _made(self, name: str, args: Any, kwargs: Any, dtype: torch.dtype) -> str | None:
        """The operator behind a result, `GIVEN` for none; None if it is neither."""
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_floating_point()]
        known = {self._of(x) if x.dtype == dtype else None for x in leaves}
        if len(known) != 1 or None in known:
            return None
        (before,) = known
        number = args[1] if name in ATEN_SCALES and len(args) == 2 and not kwargs else None
        if name in ATEN_MOVES or (isinstance(number, (int, float)) and number in (1, -1)):
            return before
        if isinstance(number, (int, float)) and row_of(before or "") is SUM:
            return f"{before}{SCALED}"
        if name in ATEN_SUMMED or name in ATEN_POOLS:
            return name if before == GIVEN and set(kwargs) <= set(FACTORS) else None
        factor = kwargs.get("alpha", 1) if set(kwargs) <= {"alpha"} else None  # of a sum: doubling rounds nothing
        rest = [x for x in args if not (isinstance(x, Tensor) and x.dtype is torch.bool and self._of(x) == GIVEN)]
        exact = before == GIVEN and factor in (1, -1, 2, -2) and all(_holds(dtype, x) for x in rest)
        return name if exact and row_of(name) is not None else None

    def _of(self, t: Tensor) -> str | None:
        return self._known[_storage(t)][1] if is_dense(t) and _storage(t) in self._known else None

    def rows(self, results: Mapping[str, Tensor]) -> Iterator[tuple[str, Row]]:
        """The rows of those results that one operator gave, by their names. What was given is a sum of one term."""
        for name, t in results.items():
            operator = self._of(t)
            row = SUM if operator == GIVEN else row_of((operator or "").removesuffix(SCALED))
            backward = name.startswith("grad[")
            if row is SUM or (row is not None and (not backward or operator in ATEN_SCALES)):
                yield name, SUM if backward else row  # a product is a sum of one term


def _storage(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _holds(dtype: torch.dtype, x: object) -> bool:
    """Whether a dtype holds an operand exactly."""
    if isinstance(x, Tensor):
        return x.dtype == dtype
    return isinstance(x, (int, float)) and float(torch.tensor(x, dtype=torch.float64).to(dtype)) == x
