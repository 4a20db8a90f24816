"""The truth with the range of a dtype: which elements depend on numbers that leave it on the way.

In float64 no square overflows and no product underflows, so the truth says nothing about numbers that a device loses on the
way. Here the result of every operator is limited to the range of the dtype in which a device keeps it: larger numbers become
Inf, smaller ones 0. Fused kernels are replaced by their formulas, so that the squares inside a norm are visible. An element
that does not change depends on nothing that left the range, and is judged like any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.core.dtypes import HALF, DtypeFacts
from parity.core.observer import Operators
from parity.oracle.kernels import EXACT_KERNELS, TURNS, kernel_of
from parity.oracle.roundoffs import DOUBLE
from parity.oracle.summation import PRODUCTS, SUMS

Formula = Callable[..., Any]
ADDS = frozenset((*PRODUCTS, *SUMS, "convolution", "convolution_backward", "embedding_dense_backward"))
# One operation each: their formulas add nothing, and read a number once more (isnan: x != x), where only some are flushed.
PLAIN = frozenset((
    "add", "sub", "rsub", "mul", "div", "neg", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10",
    "log1p", "sin", "cos", "tan", "tanh", "erf", "erfc", "pow", "atan", "atan2", "abs", "maximum", "minimum", "remainder",
    "fmod", "isnan", "eq", "ne", "lt", "le", "gt", "ge",
))  # fmt: skip
MULTIPLIES = frozenset(("prod", "cumprod"))
ATEN_FRESH = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
PAST = 1e300  # past the range of every dtype that a device keeps numbers in
# The decompositions of these kernels are not their formulas: they draw, or depend on the device.
CLOSED = ("bernoulli", "dropout", "normal", "rand", "rrelu", "uniform", "exponential", "geometric", "cauchy", "log_normal")


@dataclass(frozen=True, slots=True)
class Range:
    """The magnitudes that a dtype holds besides 0: smaller than `least` becomes 0, `most` and larger becomes Inf.

    grid: numbers below `normal` are rounded to multiples of it, down or up.
    draw: if not 0, a seed; only some of the numbers below `least` become 0, or are rounded down and the others up: every other
    number, or (even seed) all numbers of every other call, because one device may have kernels that flush and kernels that do
    not, and functions that are off by one of the smallest numbers.
    """

    least: float = 0.0
    most: float = float("inf")
    grid: float = 0.0
    normal: float = 0.0
    up: bool = False
    draw: int = 0

    @property
    def above(self) -> Range:
        """Only the upper end."""
        return Range(most=self.most)

    @property
    def below(self) -> Range:
        """Only the lower end."""
        return Range(least=self.least, grid=self.grid, normal=self.normal)

    @property
    def upward(self) -> Range:
        """Only the lower end, rounded up, so that nothing becomes 0."""
        return Range(least=self.grid, grid=self.grid, normal=self.normal, up=True)

    def some(self, draw: int) -> Range:
        """Only the lower end, where only some of the numbers below it become 0, or are rounded down."""
        return Range(least=self.least, grid=self.grid, normal=self.normal, draw=draw)


def range_of(f: DtypeFacts, flushes: bool) -> Range:
    """The range of results in this dtype. flushes: subnormal numbers become 0, too.

    Rounding to nearest gives Inf from half a step past the largest number, and 0 up to half of the smallest.
    """
    most = f.max * (1.0 + f.unit_roundoff / 2.0)
    # On a finer grid a single sample would show no loss by chance; results in a half type often lie on it.
    coarser = 1.0 if f.name in HALF else 4.0
    return Range(f.tiny, most) if flushes else Range(f.smallest / 2.0, most, coarser * f.smallest, coarser * f.tiny)


@functools.cache
def _table() -> Mapping[Any, Formula]:
    """All of torch's decompositions. (The core set keeps layer_norm and others whole, and hides their squares.)"""
    try:
        from torch._decomp import decomposition_table
    except ImportError:
        return {}
    return decomposition_table


@functools.cache
def _formula(func: Any) -> Formula | None:
    kernel = kernel_of(func)
    if (formula := _own_formulas().get(kernel.name) or kernel.formula) is not None:
        return formula
    if kernel.name.startswith("_foreach_") and not kernel.aliases:
        return _each(func) if hasattr(torch.ops.aten, kernel.name.removeprefix("_foreach_")) else None
    whole = kernel.aliases or kernel.exact or kernel.name in ADDS | MULTIPLIES | PLAIN
    return None if whole or any(word in kernel.name for word in CLOSED) else _table().get(func)


@functools.cache
def _own_formulas() -> Mapping[str, Formula]:
    """Formulas by name, for kernels that compute by squares or in another order on devices than in torch's decompositions."""

    def inverse(x: Tensor) -> Any:
        return quotient_of(torch.ones((), dtype=x.dtype), x) if x.is_complex() else NotImplemented

    def quotient_of(a: Any, b: Any, **more: Any) -> Any:
        if more or not isinstance(b, Tensor) or not b.is_complex() or not (isinstance(a, Tensor) and a.is_complex()):
            return NotImplemented
        (p, q), (r, s) = ((x.resolve_conj().real, x.resolve_conj().imag) for x in (a, b))
        size = r * r + s * s
        return torch.complex((p * r + q * s) / size, (q * r - p * s) / size)

    def sinh(x: Tensor) -> Tensor:
        result: Tensor = (torch.exp(x) - torch.exp(-x)) / 2.0
        return result

    def cosh(x: Tensor) -> Tensor:
        result: Tensor = (torch.exp(x) + torch.exp(-x)) / 2.0
        return result

    def product(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
        result: Tensor = x + value * (a * b)
        return result + _lost(value * a, a) + _lost(value * b, b)

    def quotient(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
        result: Tensor = x + value * (a / b)
        return result + _lost(value * a, a) + _lost(value / b, b)

    def distances(a: Tensor, b: Tensor, p: float = 2.0, mode: Any = None) -> Tensor:
        result: Tensor = torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)
        return result

    def pairs(x: Tensor, p: float = 2.0) -> Tensor:
        one, two = torch.triu_indices(x.shape[0], x.shape[0], 1)
        result: Tensor = torch.linalg.vector_norm(x[one] - x[two], p, -1)
        return result

    return {
        "addcmul": product, "addcdiv": quotient, "_cdist_forward": distances, "_euclidean_dist": distances,
        "_pdist_forward": pairs, "reciprocal": inverse, "div": quotient_of, "sinh": sinh, "cosh": cosh,
        "native_batch_norm": _batch_norm,
    }  # fmt: skip


def _batch_norm(x: Tensor, weight: Any, bias: Any, *more: Any) -> Any:
    """As kernels of scale and shift have it, too: x (weight / std) + (bias - mean (weight / std)), where an infinite weight
    takes Inf from Inf as one past the range does. more: the running mean and variance, whether it trains, momentum and eps."""
    result, middle, inverse = _table()[torch.ops.aten.native_batch_norm.default](x, weight, bias, *more)
    if weight is None or x.dim() < 2:
        return result, middle, inverse
    mean, var, training, _, eps = more
    centre, factor = (middle, inverse) if training else (mean, torch.rsqrt(var + eps))
    weight = weight.nan_to_num(math.nan, PAST, -PAST)
    scale = factor * weight
    lost = _lost(scale, weight) + _lost(centre * scale, centre)
    return result + lost.view(-1, *(1 for _ in x.shape[2:])), middle, inverse


def _lost(partial: Tensor, factor: Tensor) -> Tensor:
    """NaN where a partial result, which another order of the same product has, is Inf and its factor finite; else 0."""
    return torch.where((partial.abs() == float("inf")) & torch.isfinite(factor), float("nan"), 0.0)


def _each(func: Any) -> Formula:
    """The formula of a kernel over lists: the plain kernel for each element."""
    plain = getattr(torch.ops.aten, kernel_of(func).name.removeprefix("_foreach_"))

    def formula(*args: Any, **kwargs: Any) -> Any:
        def of(a: Any, i: int) -> Any:
            return a[i] if isinstance(a, (list, tuple)) else a

        return [plain(*(of(a, i) for a in args), **kwargs) for i in range(len(args[0]))]

    return formula


class Limited(Operators):
    """Limits the float64 result of every operator.

    inside: the range of steps of a fused kernel. between: that of results passed from one kernel to the next. steps: the range
    of the next call of a kernel, by its name, if it is not `between`. left_range: whether any number left the range.
    """

    def __init__(self, inside: Range, between: Range, steps: Callable[[str], Range] | None = None) -> None:
        super().__init__()
        self._inside, self._between, self._steps = inside, between, steps
        self.left_range = False
        draw = max(inside.draw, between.draw)
        self._drawn = torch.Generator().manual_seed(draw) if draw else None
        self._by_call = draw % 2 == 0

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        kernel = kernel_of(func)
        if self._steps is not None and not self.open and not kernel.exact and not (kernel.aliases and not kernel.writes):
            self._between = self._steps(kernel.name)
        if not kernel.exact and not kernel.writes and "batch_norm" not in kernel.name:  # batch_norm writes its statistics
            args, kwargs = tree_map(self._flushed, (args, kwargs))
        elif kernel.name.endswith("_") and kernel.name not in TURNS and kernel.name.rstrip("_") not in EXACT_KERNELS:
            self._read_in_place(args[0])
            args = (args[0], *tree_map(self._flushed, args[1:]))
        result = self._by_formula(func, args, kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
        if kernel.aliases and not kernel.writes:
            return result
        if kernel.writes:
            if not kernel.exact and kernel.name not in TURNS:
                tree_map(self._write, result)
            return result
        if kernel.exact:
            # Fresh memory holds no result yet: a copy of it without its smallest numbers would have views of its own.
            return result.zero_() if kernel.name in ATEN_FRESH else result
        if kernel.name in ADDS | MULTIPLIES:
            result = self._partial(func, result, args, kwargs, kernel.name in MULTIPLIES)
        return tree_map(self._limited, result)

    def _by_formula(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result by the kernel's formula; NotImplemented if it has none or the formula fails."""
        formula = None if func in self.open else _formula(func)
        if formula is None:
            return NotImplemented
        try:
            return self.opened(func, formula, args, kwargs)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError):
            return NotImplemented  # some formulas do not accept all operands that their kernels accept

    def _partial(self, func: Any, result: Any, args: Any, kwargs: Any, multiplies: bool) -> Any:
        """Inf in sums and products of which a partial result leaves the range in some order: with positive terms, or factors of
        at least 1."""
        range_ = self._range
        if not isinstance(result, Tensor) or not _wide(result) or not result.numel():
            return result
        bound = 1.0
        for x in args:
            if _wide(x) and x.numel():
                bound *= max(1.0, float(torch.nan_to_num(x.abs(), 0.0, 0.0, 0.0).max())) * x.numel()
        if bound < range_.most and not multiplies:
            return result
        plain = {k: abs(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else v for k, v in kwargs.items()}
        least = 1.0 if multiplies else 0.0
        sums = func(*(x.abs().clamp(min=least).to(x.dtype) if _wide(x) else x for x in args), **plain).abs()
        past = (sums >= range_.most) & torch.isfinite(result.abs())
        self.left_range |= bool(past.any())
        return torch.where(past, torch.full_like(result, float("inf")), result)

    @property
    def _range(self) -> Range:
        return self._inside if self.open else self._between

    def _limited(self, x: Any) -> Any:
        if not _wide(x) or x.layout is not torch.strided or x._is_zerotensor() or not x.numel():
            return x
        if x.is_complex():
            pair = torch.view_as_real(x.resolve_conj().resolve_neg())
            limited = self._limited_real(pair)
            return x if limited is pair else torch.view_as_complex(limited.contiguous())
        return self._limited_real(x)

    def _flushed(self, x: Any) -> Any:
        """An operand as arithmetic reads it: numbers below the range count as 0, though comparisons see them."""
        least = self._range.least
        if not least or self._range.up or not _wide(x) or x.layout is not torch.strided or x._is_zerotensor() or not x.numel():
            return x
        pair = torch.view_as_real(x.resolve_conj().resolve_neg()) if x.is_complex() else x
        size = pair.abs()
        if _all_within(size, least, float("inf")):
            return x
        under = self._chosen((size < least) & (size > 0.0))
        if not bool(under.any()):
            return x
        self.left_range = True
        flushed = torch.where(under, 0.0 * pair, pair)
        return torch.view_as_complex(flushed.contiguous()) if x.is_complex() else flushed

    def _read_in_place(self, x: Any) -> None:
        """`_flushed` for an operand that the kernel writes, too."""
        flushed = self._flushed(x)
        if flushed is not x:
            x.copy_(flushed)

    def _limited_real(self, x: Tensor) -> Tensor:
        range_, every = self._range, x.abs()
        low, most = max(range_.least, range_.normal), range_.most
        if _all_within(every, low, most):
            return x
        out = ((every < low) & (every > 0.0)) | ((every >= most) & (every < float("inf")))
        if not bool(out.any()):
            return x
        self.left_range = True
        # Mostly a few of many: what follows is computed for them alone.
        some, size = x[out], every[out]
        under, coarse = size < range_.least, size < range_.normal
        under = under if range_.grid else self._chosen(under)
        if range_.grid:  # not 0, because the number only lost digits and may be a divisor
            up = self._chosen(coarse) & (range_.up or bool(range_.draw))
            steps = torch.where(up, (size / range_.grid).ceil(), (size / range_.grid).floor().clamp(min=0.25))
            some, under = torch.where(coarse, torch.copysign(steps * range_.grid, some), some), under & ~up
        limited = x.clone()
        infinite = torch.copysign(torch.full_like(some, float("inf")), some)
        limited[out] = torch.where(under, 0.0 * some, torch.where(size >= most, infinite, some))
        return limited

    def _chosen(self, under: Tensor) -> Tensor:
        """All of these places, or a random selection."""
        if self._drawn is None:
            return under
        return under & (torch.rand(() if self._by_call else under.shape, generator=self._drawn) < 0.5)

    def _write(self, x: Any) -> None:
        """Limit in place a tensor that a kernel wrote and that autograd already knows."""
        limited = self._limited(x)
        if limited is not x:
            x.copy_(limited)


def _all_within(size: Tensor, least: float, most: float) -> bool:
    """Whether all of these magnitudes are 0 or lie from `least` to below `most`; says no where any is NaN."""
    low, high = torch.aminmax(size)
    if not bool(high < most) or bool(low >= least):
        return bool(high < most)
    return not bool(low) and bool(torch.nn.functional.threshold(size, 0.0, most).amin() >= least)


def _wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in DOUBLE and x.device.type != "meta" and not x.is_nested
