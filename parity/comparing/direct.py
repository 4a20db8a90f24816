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
from parity.comparing.subject import is_dense, word
from parity.core.case import OpClass
from parity.core.dtypes import HALF
from parity.judging.rules import rule_of
from parity.oracle.kernels import TURNS, kernel_of
from parity.oracle.oracle import FACTORS

GIVEN = ""  # in place of the name of an operator
SCALED = " times"  # after the name of a sum, for each further step: a number multiplies it, which rounds again
# Operators whose results are elements of their operands, and zeros or ones.
ATEN_MOVES = frozenset((
    "clone", "_to_copy", "flip", "roll", "repeat", "index_select", "gather", "cat", "stack", "neg", "im2col", "index", "take",
    "index_fill", "slice_backward", "select_backward", "diagonal_backward", "_sparse_coo_tensor_with_dims_and_tensors",
    "sparse_compressed_tensor", "sparse_mask",
))  # fmt: skip
ATEN_CONSTANTS = ("zeros", "zeros_like", "new_zeros", "ones", "ones_like")
ATEN_SCALES = ("mul", "div")
ATEN_MASKS = ("isnan", "ne", "logical_not", "logical_not_")  # of what was given, they are the same on all sides
# Gradients of what picks elements: sums of those of their first operand, at the places of the second's.
ATEN_PICKED = (
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward",
)  # fmt: skip
ATEN_SUMMED = frozenset((
    "mm", "bmm", "mv", "dot", "vdot", "addmm", "baddbmm", "addbmm", "addmv", "addr", "sum", "cumsum", "col2im", "convolution",
    "convolution_backward", "scatter_add", "scatter_reduce", "index_add", "mean", "nansum", "trace", "put", "index_put",
    "_trilinear", "embedding_dense_backward", "_embedding_bag_dense_backward", "_coalesce", "_to_dense", "_sparse_addmm",
    "_sparse_sum", "_sparse_sum_backward", *ATEN_PICKED,
))  # fmt: skip  # sums of products, whatever their orders
ATEN_PAIRED = ("mul", "add")  # of two tensors, they are as well
ATEN_CHAINED = ATEN_SUMMED.union(ATEN_PAIRED)  # of which several in turn are one sum, in float32
ATEN_WAYS = {"scatter_reduce": ("sum",)}  # of several, that which sums
STEPS = 3  # of them at most: each rounds once more
# Means of windows, and of windows that adapt.
ATEN_POOLS = frozenset(
    f"{name}{n}d{way}"
    for name in ("avg_pool", "_adaptive_avg_pool", "adaptive_avg_pool")
    for n in (2, 3)
    for way in ("", "_backward")
)
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
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
    name = kernel_of(func).name
    if name == "neg" and not kwargs:
        return args[0].clone()
    if name in ATEN_SCALES:
        args = [abs(a) if isinstance(a, (int, float)) else a for a in args]
    return func(*args, **{k: abs(v) if k in FACTORS else v for k, v in kwargs.items()})


def terms(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator on numbers of terms: they are the same of a sum's multiple, and a mean of a window has all of its."""
    result, name = magnitudes(func, args, kwargs), kernel_of(func).name
    if name == "mean":
        return result.mul_(args[0].numel() // max(1, result.numel()))  # which may be an `out=`
    if name in ATEN_POOLS and "backward" not in name:  # in a gradient few terms come together
        adapts, spatial = "adaptive" in name, int(name[-2])
        size = args[0].numel() / max(1, result.numel()) if adapts else math.prod(args[1]) ** (1 if args[1][1:] else spatial)
        return result.mul_(max(1.0, size))
    scaled = name in ATEN_SCALES and len(args) == 2 and not kwargs and (isinstance(args[1], (int, float)) or _is_whole(args[1]))
    return args[0].expand_as(result).clone() if scaled and args[0].is_floating_point() else result


class Direct:
    """Follows a run: which tensors hold numbers that were given, and which the results of one operator on these, or of a few
    sums in turn. What is written in place, cast with a loss or made inside is neither."""

    def __init__(self) -> None:
        # By storage, which the tensor keeps from being another's: what it is, and in which dtype it was rounded.
        self._known: dict[int, tuple[Tensor, str, torch.dtype]] = {}
        self._decided: dict[int, Tensor] = {}  # by storage, the places and truth values that rounding may have decided
        self.picks = False  # whether an operator sums at places that another one picked

    def given(self, t: Tensor) -> Tensor:
        """A copy of an operand of the function, or of a cotangent."""
        copy = t.clone()
        if is_dense(copy):
            self._known[_storage(copy)] = copy, GIVEN, copy.dtype
        return copy

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator, and note what its result is."""
        result, kernel = func(*args, **kwargs), kernel_of(func)
        counts = kernel.name == "sum" and _is_whole(result)
        if (counts or kernel.name in ATEN_MASKS) and all(self._of(x) == GIVEN for x in (args[:1] if counts else args)):
            self._known[_storage(result)] = result, GIVEN, result.dtype
            return result
        places, names = _written(func)
        into = [args[k] for k in places if k < len(args)] + [kwargs[n] for n in names if n in kwargs]
        for t in filter(_has_numbers, tree_leaves(into) if into and kernel.name not in TURNS else ()):
            self._known.pop(_storage(t), None)
        of = [x for x in tree_leaves((args, kwargs)) if _has_numbers(x) and not any(x is t for t in into)]
        decides = into or not kernel.aliases  # the indices of a sparse tensor are a view
        if decides and any(self._is_decided(x) or not (_is_whole(x) or self._of(x) == GIVEN) for x in of):
            self._decided.update((_storage(t), t) for t in tree_leaves((result, into)) if _is_whole(t) and _has_numbers(t))
        plain = {name: x for name, x in kwargs.items() if name not in names}
        if (not kernel.aliases or len(plain) < len(kwargs)) and (isinstance(result, Tensor) or kernel.name in ATEN_SUMMED):
            for t in (result,) if isinstance(result, Tensor) else result:
                if _has_numbers(t) and t.is_floating_point():
                    self._note(kernel.name, args, plain, t)
        return result

    def _note(self, name: str, args: Any, kwargs: Any, t: Tensor) -> None:
        """Note what one result is, if it is known."""
        if name == "_to_copy":
            if (known := self._entry(args[0])) is not None and _keeps(args[0], t):
                self._known[_storage(t)] = t, *known[1:]
            return
        if name == "pow" and isinstance(args[1], (int, float)) and args[1] == 2:
            name = "square"
        alone = name == "_coalesce" and t._nnz() == args[0]._nnz()  # no two values lie at one place
        if alone or (name == "_to_dense" and (args[0].layout is not torch.sparse_coo or args[0].is_coalesced())):
            name = "clone"
        made = self._made(name, args, {k: x for k, x in kwargs.items() if k != "dtype" or x not in (None, t.dtype)}, t.dtype)
        if made is not None:
            self._known[_storage(t)] = t, made, t.dtype
            self.picks |= name in ATEN_PICKED

    def _made(self, name: str, args: Any, kwargs: Any, dtype: torch.dtype) -> str | None:
        """The operator behind a result, `GIVEN` for none; None if it is neither."""
        if name in ATEN_CONSTANTS:
            return GIVEN
        if (name in ATEN_PICKED and self._of(args[1]) != GIVEN) or any(map(self._is_decided, tree_leaves((args, kwargs)))):
            return None
        of = args[:1] if name in ATEN_PICKED or name == "sparse_mask" else (args, kwargs)
        known = [self._of(x, dtype) for x in tree_leaves(of) if isinstance(x, Tensor) and x.is_floating_point()]
        before = max((x for x in known if x is not None), key=_steps, default=None)
        if before is None or None in known:
            return None
        by = args[1] if name in ATEN_SCALES and len(args) == 2 and not kwargs else None
        number, whole = isinstance(by, (int, float)), isinstance(by, Tensor) and _is_whole(by) and self._of(by) == GIVEN
        if len({*known}) == 1:
            masks = before != GIVEN and whole and isinstance(by, Tensor) and by.dtype is torch.bool
            if name in ATEN_MOVES or masks or (number and by in (1, -1)):
                return before
        sums = set(kwargs) <= {*FACTORS, "include_self"} and args[4:5] == ATEN_WAYS.get(name, args[4:5])
        if before == GIVEN and row_of(name) is SUM:
            return name if sums else None
        if before == GIVEN:
            factor = kwargs.get("alpha", 1) if set(kwargs) <= {"alpha"} else None  # of a sum: doubling rounds nothing
            rest = () if whole else args if by is None else (by,)
            rounded = torch.finfo(dtype).eps if name == "mul" else 0.0  # a product is off by as little as the number
            exact = factor in (1, -1, 2, -2) and all(self._holds(dtype, x, rounded) for x in rest)
            return name if exact and row_of(name) is not None else None
        single = word(dtype) not in HALF
        if not sums or _steps(before) >= (STEPS if single else 2) or any(map(self._underflows, tree_leaves((args, kwargs)))):
            return None
        if (number or whole) and (row_of(before.removesuffix(SCALED)) is SUM or (single and _is_chained(before))):
            return f"{before}{SCALED}"
        several = name not in ATEN_PAIRED or len(known) == 2
        chained = single and several and all(x == GIVEN or _is_chained(x) for x in (*known, name))
        return f"{name}{SCALED * _steps(before)}" if chained else None

    def _holds(self, dtype: torch.dtype, x: object, rounded: float) -> bool:
        """Whether a dtype holds an operand exactly, or a number but for so much of it."""
        if isinstance(x, Tensor):
            fits = torch.promote_types(x.dtype, dtype) == dtype and (not _is_whole(x) or x.dtype is torch.bool)
            return fits and self._of(x) == GIVEN
        if not isinstance(x, (int, float)):
            return False
        near = float(torch.tensor(x, dtype=torch.float64).to(dtype))
        return near == x or abs(near - x) <= rounded * abs(x)

    def _is_decided(self, x: Any) -> bool:
        return _is_whole(x) and _has_numbers(x) and _storage(x) in self._decided

    def _underflows(self, t: Any) -> bool:
        """Whether an operand that was rounded holds numbers below the normal ones, whose errors are not relative."""
        if self._of(t) in (None, GIVEN):
            return False
        size = _values(t).detach().abs()
        return bool(((size > 0) & (size < torch.finfo(t.dtype).tiny)).any())

    def _entry(self, t: Any) -> tuple[Tensor, str, torch.dtype] | None:
        return self._known.get(_storage(t)) if _has_numbers(t) else None

    def _of(self, t: Any, dtype: torch.dtype | None = None) -> str | None:
        """What an operand is, taken in this dtype, its own by default; None if it was rounded otherwise, or that loses."""
        if (known := self._entry(t)) is None:
            return None
        dtype = t.dtype if dtype is None else dtype
        fits = torch.promote_types(t.dtype, dtype) == dtype if known[1] == GIVEN else known[2] == t.dtype == dtype
        return known[1] if fits else None

    def rows(self, results: Mapping[str, Tensor]) -> Iterator[tuple[str, Row]]:
        """The rows of those results that one operator gave, by their names. What was given is a sum of one term."""
        for name, t in results.items():
            operator = self._of(t)
            row = SUM if operator == GIVEN or SCALED in (operator or "") else row_of(operator or "")
            backward = name.startswith("grad[")
            if row is SUM or (row is not None and (not backward or operator in (*ATEN_SCALES, "add"))):
                yield name, SUM if backward else row  # a product is a sum of one term


@functools.cache
def _written(func: Any) -> tuple[list[int], list[str]]:
    """What an operator writes: the places and names of its arguments. Norms write their running statistics without saying so in
    their schema."""
    named = [(k, a.name, a.alias_info) for k, a in enumerate(func._schema.arguments)]
    found = [(k, name) for k, name, info in named if name.startswith("running_") or (info is not None and info.is_write)]
    return [k for k, _ in found], [name for _, name in found]


def _has_numbers(t: Any) -> bool:
    """Whether it is a tensor over one storage of numbers, or a sparse one, whose values have one."""
    return isinstance(t, Tensor) and (t.layout in SPARSE or is_dense(t))


def _values(t: Tensor) -> Tensor:
    return t if t.layout is torch.strided else t._values() if t.layout is torch.sparse_coo else t.values()


def _storage(t: Tensor) -> int:
    return int(_values(t).untyped_storage()._cdata)


def _steps(operator: str) -> int:
    """How many operators in turn are behind a result."""
    return 0 if operator == GIVEN else 1 + operator.count(SCALED)


def _is_chained(operator: str | None) -> bool:
    plain = (operator or "").replace(SCALED, "")
    return plain in ATEN_CHAINED or plain in ATEN_POOLS


def _is_whole(x: Any) -> bool:
    """Whether it is a tensor of whole numbers or truth values."""
    return isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex())


def _keeps(x: Tensor, t: Tensor) -> bool:
    """Whether a cast lost nothing."""
    if not x.is_floating_point():
        return x.dtype is torch.bool
    return torch.promote_types(x.dtype, t.dtype) == t.dtype or (is_dense(x) and torch.equal(t.to(x.dtype), x))
