"""Simulated rounding in float64: operands and results of kernels move by a relative roundoff."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.core.dtypes import HALF, DtypeFacts
from parity.core.observer import Operators
from parity.oracle import summation as fast
from parity.oracle.decompositions import stored
from parity.oracle.kernels import ARITHMETIC, EXACT_KERNELS, MODE_DEPENDENT, PRODUCTS, TURNS, Kernel, kernel_of, picks, written
from parity.oracle.roundoffs import (
    DOUBLE,
    by_modulus,
    by_norm,
    extremes,
    is_whole,
    keep_whole,
    off_by,
    rounded,
    rounded_and_largest,
    rounded_at_least,
    seems_whole,
)
from parity.oracle.summation import FLOAT32_ROUNDOFF, LONG, OF_ONE, SUMS, order_of, terms, terms_lost
from parity.oracle.yardstick import FAST_CONVOLUTION, POWER, SUM_LOSS

JUMPS = ("eq", "ne", "lt", "le", "gt", "ge", "floor", "ceil", "trunc", "_to_copy")  # with whole numbers, at which labels lie
STEPS = ("floor", "ceil", "trunc", "round", "sign", "sgn", "heaviside")  # which are no copies of what a kernel rounded
SCALED = ("mul", "div", "add", "sub")  # exact with some numbers
Roundings: TypeAlias = Callable[[str], tuple[float, float, DtypeFacts, bool]]  # as `Rounding` has them


class Rounding(Operators):
    """Moves the floating result of every kernel that rounds, forward and backward, by a relative +-u, as rounding would.

    It covers what perturbed inputs cannot: sums that cancel whatever the inputs (the gradient of a bias before batch_norm is
    0), backward formulas that use a rounded saved result, and numbers that half-precision kernels pass to each other.

    A fused kernel with a decomposition is replaced by it, and nested ones too, with the steps rounded by `inside`: the formula
    cancels there, too. A device has functions of its own inside a fused kernel: with odd keys a step there moves otherwise than
    the same kernel outside. (Else the tanh in gelu's gradient and that in its second derivative cancel for some elements.)
    Numbers passed between kernels move by at least `least` (`rounded_at_least`), steps of a formula by `inside_least`. steps:
    (u, least, dtype, whether operands are cast to it) of the next call of a kernel, by its name, if these differ. Long sums
    also lose, at any depth, what one chain of additions loses. to_numbers: what a step of a half type returns is one of its
    numbers, before it is moved and after it: those that lie near together become equal, as they do there. largest: the largest
    finite magnitude that any kernel returned.

    A kernel of a half type also moves operands that are cast to it. Once operands are named to `hold`, it moves only those that
    its dtype does not hold: not what was given in it or what another kernel returned in it, nor exact copies of these. What
    jumps at numbers takes such an operand as it was given, and whole numbers that kernels made as they were without roundings
    (`jumps_from`): a label of 1.0 that moved would be no label.
    """

    def __init__(
        self,
        u: float,
        key: int,
        inside: float | None = None,
        least: float = 0.0,
        inside_least: float = 0.0,
        steps: Roundings | None = None,
        to_numbers: bool = False,
    ) -> None:
        super().__init__()
        self._u, self._key, self._inside, self._least = u, key, u if inside is None else inside, least
        self._finest = self._inside
        self._inside_least, self._steps, self._to_numbers = inside_least, steps, to_numbers
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}
        self._given: dict[int, tuple[Tensor, Tensor]] = {}  # storage -> an operand, moved and as it was given
        self._whole: Iterator[Tensor | None] = iter(())  # the operands of the next kernels that jump
        self._held: dict[int, float] | None = None  # storage -> roundoff of the coarsest dtype that holds its numbers
        self._own: DtypeFacts | None = None  # the dtype of the current step
        self._casts = True  # whether its operands are cast to that
        self.largest = 0.0
        self.met_mode_dependent = False

    def hold(self, t: Tensor, u: float, before: Tensor | None = None) -> None:
        """Note that the numbers of an operand are those of a dtype with this roundoff. before: the operand as it was given."""
        self._held = {} if self._held is None else self._held
        self._held[_storage(t)] = u
        if before is not None:
            self._given[_storage(t)] = t, before

    def jumps_from(self, operands: Sequence[Tensor | None]) -> None:
        """Give the kernels that jump at numbers these operands, one after the other; None for those that keep their own."""
        self._whole = iter(operands)

    def held(self, t: Tensor) -> float:
        """The roundoff of the coarsest dtype that holds the numbers of a tensor, as far as is known; 0 if nothing is."""
        return (self._held or {}).get(_storage(t), 0.0) if t.layout is torch.strided else 0.0

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        kernel = kernel_of(func)
        into = written(func, args, kwargs)
        for t in filter(_is_dense, into or (args[:1] if kernel.writes else ())):
            self._given.pop(_storage(t), None)
        if kernel.name in JUMPS and (before := self._before_roundings(args, kwargs)) is not None:
            self.hold(before, self.held(args[0]))
            result = func(before, *args[1:], **kwargs)
            self._hold_results(kernel, func, (before, *args[1:]), kwargs, result, True)
            return result
        if into:
            return self._into(kernel.name, into, functools.partial(func, *args, **kwargs))
        if self._steps is None or self.open or (kernel.aliases and not kernel.writes):
            return self._with_roundings(kernel, func, args, kwargs)
        exact = kernel.exact or kernel.name.rstrip("_") in EXACT_KERNELS
        if not kernel.exact:
            args = self._step(kernel, args)
            exact = exact or (self._held is not None and self._is_exact(kernel, args))
            self._u *= POWER if kernel.is_power(args) and self._u <= FLOAT32_ROUNDOFF else 1.0
        plain = exact and not kernel.exact and not kernel.writes
        result = func(*args, **kwargs) if plain else self._with_roundings(kernel, func, args, kwargs)
        result = by_norm(kernel.name, result, args, self._u, self._key)
        if self._held is not None:
            self._hold_results(kernel, func, args, kwargs, result, exact)
        return result

    def _into(self, name: str, into: list[Tensor], call: Callable[[], Any]) -> Any:
        """Call a kernel that returns nothing, and move what it wrote."""
        if self._steps is not None and not self.open:
            self._enter(self._steps, name)
        result = call()
        for t in into:
            self._rounded_in_place(name, t)
            if self._held is not None:
                self.hold(t, 0.0 if self._own is None else self._own.unit_roundoff)
        return result

    def _hold_results(self, kernel: Kernel, func: Any, args: Any, kwargs: Any, result: Any, exact: bool) -> None:
        """Note which dtype holds the results of a kernel. exact: whether it rounded nothing."""
        given = [x for x in _leaves((*args, *kwargs.values())) if _is_dense(x)]
        for t in filter(_is_dense, _leaves((result,))):
            self.hold(t, self._copied(kernel, given, t) if exact or self._own is None else self._own.unit_roundoff)
        copies = exact and kernel.name not in STEPS and "empty" not in kernel.name
        if copies and len(given) == 1 and not kernel.writes and _is_dense(result):
            label, before = self._as_given(given[0]), self.unrounded(given[0])
            if label is not None or before is not given[0]:  # what copies a result is rounded no more than that was
                known = before if label is None else label
                args, kwargs = tree_map(lambda x: known if x is given[0] else x, (args, kwargs))  # it may lie in a list
                notes, key = (self._moved, result.data_ptr()) if label is None else (self._given, _storage(result))
                notes[key] = result, func(*args, **kwargs)

    def _copied(self, kernel: Kernel, given: list[Tensor], t: Tensor) -> float:
        """`held` of what an exact kernel returns."""
        if given:
            return min(map(self.held, given))
        real = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
        return math.inf if "empty" in kernel.name or bool((real.to(torch.bfloat16) == real).all()) else 0.0

    def _with_roundings(self, kernel: Kernel, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a kernel, and move its results: those of a sum in another order otherwise, even where they are equal."""
        before, self._key = self._key, self._key + order_of(kernel.name, args)
        try:
            return self._called(kernel, func, args, kwargs)
        finally:
            self._key = before

    def _called(self, kernel: Kernel, func: Any, args: Any, kwargs: Any) -> Any:
        nested = any(isinstance(x, Tensor) and x.is_nested for x in args)  # formulas take dense tensors
        formula = None if func in self.open or nested else kernel.formula
        if formula is not None:
            before, self._key = self._key, self._key + (kernel.turn if self._key % 2 else 0)
            try:
                result = self.opened(func, formula, args, kwargs)
            finally:
                self._key = before
        else:
            result = func(*args, **kwargs)
        name = kernel.name
        if kernel.aliases:
            if kernel.writes and not (kernel.counts and self._counts(result, args)):
                self._rounded_in_place(name, result)
            return result
        if func is stored:
            return rounded_at_least(result, self._u, self._key, self._least) if _wide(result) else result
        self.met_mode_dependent |= name in MODE_DEPENDENT
        exact = kernel.exact and not (name == "sgn" and _wide(result) and result.is_complex())  # a complex sign is a quotient
        if exact or (kernel.norm and picks(args, kwargs)) or (kernel.counts and self._counts(result, args)):
            return result
        if formula is None and _wide(result) and result.numel():
            count = terms(name, result, args)
            if count == 1 and name in OF_ONE:
                return result
            if count >= LONG or name in SUMS:
                lost = terms_lost(name, result, (func, args, kwargs), count, self._u, self._inside)
                result = off_by(result, lost, self._key)
        if name == "convolution_backward" and not self.open:
            result = self._tiles_lost(result, args)
        if name in PRODUCTS and _wide(result) and result.is_complex():
            moved = self._rounded(result)
            return moved if moved is result else by_modulus(result, moved, args)
        stays = self.open and name in ARITHMETIC and not (name == "mul" and any(map(_is_rounded_factor, args)))
        change = self._rounded_but_whole if stays else self._rounded
        return change(result) if isinstance(result, Tensor) else tree_map(change, result)

    def _tiles_lost(self, result: Any, args: Any) -> Any:
        """The gradients of a convolution, off by what fast algorithms lose in their tiles."""
        grad, x, weight, _, stride, _, dilation, transposed, _, groups, mask = args
        if not (_wide(grad) and grad.dtype is torch.float64 and grad.numel() and fast.is_fast(weight, stride, dilation)):
            return result
        to_input, to_weight, to_bias = result
        if mask[0] and self._u > self._inside:
            tiles = fast.of_input_gradient(grad, weight, transposed, groups)
            to_input = off_by(to_input, (FAST_CONVOLUTION * self._u * tiles).expand_as(to_input), self._key)
        if mask[1]:
            count = grad.shape[0] * (x if transposed else grad)[0, 0].numel()
            tiles = fast.of_weight_gradient(x, grad, weight, transposed, groups)
            lost = (
                max(SUM_LOSS * self._inside * max(count, LONG) ** 0.5, FAST_CONVOLUTION * (self._u > self._inside) * self._u)
                * tiles
            )
            to_weight = off_by(to_weight, lost.expand_as(to_weight), self._key)
        return to_input, to_weight, to_bias

    def _enter(self, steps: Roundings, name: str) -> None:
        """Use the roundings of the next call of a kernel: in a function of float64, too, one of float32 adds in that."""
        self._u, self._least, self._own, self._casts = steps(name)
        self._inside = max(self._finest, min(self._u, FLOAT32_ROUNDOFF))

    def _step(self, kernel: Kernel, args: Any) -> Any:
        """Use the rounding of the step's own dtype, for its operands too, because autocast casts them first."""
        assert self._steps is not None
        self._enter(self._steps, kernel.name)
        if self._u <= self._finest or not self._casts:
            return args
        cast = tree_map(self._cast, args)
        if kernel.writes:  # in place: a copy would take what it writes
            return (args[0], *cast[1:])
        return (*cast[:3], *args[3:]) if "batch_norm" in kernel.name else cast  # batch_norm writes its running statistics

    def _cast(self, x: Any) -> Any:
        if not _is_dense(x) or x._is_zerotensor():
            return x
        if self._held is not None and self._own is not None and self.held(x) >= self._own.unit_roundoff:
            return x
        return rounded(x, self._u, self._key)

    def _is_exact(self, kernel: Kernel, args: Any) -> bool:
        """Whether this call rounds nothing: a product with a power of two, or a sum with 0, of normal numbers."""
        name = kernel.name
        if kernel.writes or name not in SCALED or len(args) < 2 or not isinstance(args[1], (int, float)) or not _wide(args[0]):
            return False
        x, by = args[0], float(args[1])
        if name in ("add", "sub"):
            return by == 0.0
        if not math.isfinite(by) or abs(math.frexp(by)[0]) != 0.5:
            return False
        low = extremes(x)[0] * abs(by if name == "mul" else 1.0 / by)
        return abs(by) == 1.0 or (self._own is not None and low >= self._own.tiny)

    def _counts(self, result: Any, args: Any) -> bool:
        """Whether a sum is one of integers that every dtype adds exactly: formulas use such sums as counts, and test for 1."""
        numbers = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (result, *args) if _wide(t)]
        return all(is_whole(t, 1.0 / self._inside) for t in numbers)

    def _rounded(self, x: Any) -> Any:
        dense = isinstance(x, Tensor) and x.layout is torch.strided and not x._is_zerotensor() and x.dtype in DOUBLE
        if not dense or x.device.type == "meta":  # some formulas compute on meta tensors to get the shape of a result
            return x
        if x.is_nested:
            x.values().copy_(self._rounded(x.values()))
            return x
        u, least = (self._inside, self._inside_least) if self.open else (self._u, self._least)
        near = self._to_number(x)
        moved, high = rounded_and_largest(near, u, self._key, least)
        if near is not x:  # as far as the spacing of numbers is, which is the same from one power of two to the next
            size = torch.frexp(near).mantissa.abs()
            moved = self._to_number(near + (moved - near) / torch.where(size > 0.0, size, 1.0))
        self.largest = max(self.largest, high)
        if self._held is not None and moved.stride() != x.stride():
            moved = torch.empty_like(x).copy_(moved)
        if moved is not x and moved.stride() == x.stride() and x.storage_offset() == 0:
            self._moved[moved.data_ptr()] = moved, x  # `moved` is kept alive, so that nothing else gets its address
        return moved

    def _to_number(self, x: Tensor) -> Tensor:
        """The nearest numbers of a half type, if the current step is in one and all are in its range."""
        if not self._to_numbers or self.open or self._own is None or self._own.name not in HALF or x.is_complex():
            return x
        near = x.detach().to(getattr(torch, self._own.name)).to(x.dtype)
        return near if bool(near.isfinite().all()) else x

    def _rounded_but_whole(self, x: Any) -> Any:
        """`_rounded`, but integers that a formula adds stay exact: they are indices, and one slightly lower would be the one
        before."""
        moved = self._rounded(x)
        if moved is not x and x.dtype is torch.float64:
            keep_whole(x, moved, 1.0 / self._inside)
        return moved

    def _rounded_in_place(self, name: str, x: Any) -> None:
        """Round in place a tensor that a kernel wrote and that autograd already knows."""
        if not isinstance(x, Tensor) or name in TURNS or x.device.type == "meta":
            return
        self._moved.pop(x.untyped_storage().data_ptr(), None)  # a view may be written; entries lie at their storage's beginning
        if name.rstrip("_") not in EXACT_KERNELS and x.dtype in DOUBLE and x.layout is torch.strided and not x.is_conj():
            x.copy_(rounded(x, self._inside if self.open else self._u, self._key))

    def _before_roundings(self, args: Any, kwargs: Any) -> Tensor | None:
        """The operand of a kernel that jumps, as it was given or whole; None for others."""
        t = _jumping(*args, **kwargs)
        whole = next(self._whole, None) if t is not None and not self.open else None
        given = self._as_given(*args, **kwargs)
        if t is None or whole is None or whole.shape != t.shape:
            return given
        return torch.where(whole.isnan(), t if given is None else given, whole.to(t.dtype))

    def _as_given(self, t: Any, other: Any = None, dtype: Any = torch.bool, **_: Any) -> Tensor | None:
        """The first operand of a kernel, or a view of one, before it was moved; None for others, and where nothing jumps."""
        if not (_is_dense(t) and _storage(t) in self._given) or t.is_neg() or _jumping(t, other, dtype) is None:
            return None
        moved, before = self._given[_storage(t)]
        before = before.detach().to(t.dtype)
        if before.stride() != moved.stride():
            return None
        return before.as_strided(t.shape, t.stride(), before.storage_offset() + t.storage_offset() - moved.storage_offset())

    def unrounded(self, t: Tensor) -> Tensor:
        """A final result as its kernel returned it: the rounding of the result itself is not part of the sensitivity."""
        known = self._moved.get(t.data_ptr())
        if known is None or known[0].dtype != t.dtype or t.storage_offset() or t.is_conj() or t.is_neg():
            return t
        return known[1].detach().as_strided(t.shape, t.stride())  # kernels may transpose their results in place


def _jumping(t: Any, other: Any = None, dtype: Any = torch.bool, **_: Any) -> Tensor | None:
    """The operand of one of `JUMPS` that jumps at whole numbers: next to a number, or where it is cast to another kind."""
    jumps = isinstance(t, Tensor) and not isinstance(other, Tensor) and dtype is not None
    return t if jumps and t.is_floating_point() and not (dtype.is_floating_point or dtype.is_complex) else None


def whole_numbers(noted: list[Tensor | None]) -> Operators:
    """Notes inside for each kernel that jumps at numbers its operand, if that is whole numbers throughout, else None; of what
    arithmetic alone made, which all sides round alike, `STEPS` take those elements that are whole, and NaN for others. What
    only happens to be whole, made by other kernels of numbers that are not, counts as None."""
    estimated: dict[int, Tensor] = {}  # storage -> what other kernels rounded, or made of such numbers
    lucky: set[int] = set()  # the storages of those of them that only happen to be whole

    def observe(func: Any, args: Any, kwargs: Any) -> Any:
        kernel = kernel_of(func)
        given = [x for x in _leaves((*args, *kwargs.values())) if isinstance(x, Tensor) and x.layout is torch.strided]
        if kernel.name in JUMPS and (t := _jumping(*args, **kwargs)) is not None:
            known = t.layout is torch.strided and not t._is_zerotensor() and _storage(t) not in lucky
            wide = t.detach().to(torch.float64) if known else None
            if wide is not None and not is_whole(wide, 1.0 / FLOAT32_ROUNDOFF):
                free = kernel.name in STEPS and _storage(t) not in estimated and bool((some := wide == wide.trunc()).any())
                wide = torch.where(some & (wide.abs() * FLOAT32_ROUNDOFF <= 1.0), wide, torch.nan) if free else None
            noted.append(None if wide is None else wide.clone())
        result = func(*args, **kwargs)
        by_number = kernel.name == "div" and not (isinstance(args[1], Tensor) and args[1].dim())  # devices take its reciprocal
        exact = kernel.exact or kernel.aliases or (kernel.name in ("div", *ARITHMETIC) and not by_number)
        if not exact or any(_storage(x) in estimated for x in given):
            made = [x for x in _leaves((result,)) if isinstance(x, Tensor) and x.layout is torch.strided]
            estimated.update((_storage(x), x) for x in made)
            if kernel.name not in STEPS and any(map(seems_whole, made)):
                odd = any(_storage(x) in lucky or (x.is_floating_point() and not seems_whole(x)) for x in given)
                lucky.update(_storage(x) for x in made if odd)
        return result

    return Operators(observe)


def _leaves(found: Any) -> Iterator[Any]:
    """What arguments or results hold, as `tree_leaves` has it, which takes as long as a small kernel."""
    for x in found:
        if type(x) in (tuple, list):
            yield from _leaves(x)
        elif isinstance(x, (Tensor, int, float)) or x is None:
            yield x
        else:
            yield from tree_leaves(x)


def _storage(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _is_rounded_factor(x: Any) -> bool:
    """Whether a number is none of float32: what it makes whole in float64 (3 times 1/3) is not always whole on a device."""
    number = x.item() if isinstance(x, Tensor) and not x.dim() and x.dtype is torch.float64 and not x.is_meta else x
    with np.errstate(over="ignore"):
        return isinstance(number, float) and math.isfinite(number) and float(np.float32(number)) != number


def _wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in DOUBLE and x.device.type != "meta" and not x.is_nested


def _is_dense(x: Any) -> bool:
    """Whether it has memory of its own, by which its numbers are known again."""
    return _wide(x) and x.layout is torch.strided
