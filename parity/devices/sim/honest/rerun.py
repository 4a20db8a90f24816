"""Run a kernel on private copies of its operands, optionally in another precision, so that nothing of the caller's is
written."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.devices import Call, Fault
from parity.devices.sim.honest.rounding import bits, cut, note
from parity.devices.sim.honest.rounding import differs as are_apart

Dtypes = Mapping[torch.dtype, torch.dtype]
CONTAINERS = (tuple, list, dict)  # all others are leaves
HALVES = (torch.float16, torch.bfloat16)
# The dtypes that these controls may round differently; float64 and complex128 are unchanged.
ROUNDED = (torch.float32, torch.complex64, *HALVES)
AS_THEY_ARE: Dtypes = {}
PICKED = "picked"  # in `Call.state`: (call, hash) while an effect, which asks several times, is at a call
# The CPU's float32 gelu fills a destination in the order of its operand's memory (torch 2.13).
DENSE = ("gelu.",)
NEAR_TINY = 2.0**-116  # below it float32 loses digits to underflow: its smallest normal number times 2**10
# Half types are computed in float32, and float32 in float64; both are rounded once.
IN_FLOAT32: Dtypes = dict.fromkeys(HALVES, torch.float32)
IN_DOUBLE: Dtypes = {torch.float32: torch.float64, torch.complex64: torch.complex128}
ALL_IN_DOUBLE: Dtypes = {torch.float16: torch.float64, torch.bfloat16: torch.float64, **IN_DOUBLE}


# Computed in integers by torch if all operands are integers, whatever the destination's dtype; sums convert first, but are
# compared with the sum in integers.
WHOLE = frozenset(
    ("add", "addcmul", "addr", "cumprod", "cumsum", "mul", "nansum", "pow", "prod", "rsub", "square", "sub", "sum", "trace")
)


def whole(call: Call) -> bool:
    """Whether the call computes in integers, so that it wraps around, and a floating destination gets the integer result."""
    if call.op.partition(".")[0].rstrip("_") not in WHOLE or call.kwargs.get("dtype") is not None:
        return False
    inexact = (t.is_floating_point() or t.is_complex() for t in call.operands)
    return not any(inexact) and not any(isinstance(a, (float, complex)) for a in tree_leaves((call.args, call.kwargs)))


def rounds(call: Call) -> bool:
    """Whether the call has a result or an operand in a dtype that a device rounds to, and any element at all."""
    tensors = (*call.outs, *call.operands)
    return any(t.dtype in ROUNDED for t in tensors) and any(t.numel() for t in call.operands)


def arithmetic(call: Call) -> Dtypes:
    """The wider precision for a call: float32 if a half type takes part, else double."""
    return IN_FLOAT32 if any(t.dtype in HALVES for t in (*call.outs, *call.operands)) else IN_DOUBLE


def mapped(function: Callable[..., Any], x: Any, *more: Any) -> Any:
    """torch's `tree_map`, which takes twenty times as long where there is no tree."""
    return tree_map(function, x, *more) if isinstance(x, CONTAINERS) else function(x, *more)


def rerun(call: Call, dtypes: Dtypes = AS_THEY_ARE, swap: Mapping[int, Any] | None = None) -> Any:
    """The healthy result on private copies. dtypes: what floating operands, destinations and dtype arguments are converted to.

    swap: replacements for arguments, by the id of the original. Integer operands are unchanged. If dtypes change, Python
    numbers are rounded to float32, as a device receives them.
    """
    copies = dict(swap or {})
    read = {id(a) for arg in call.args for a in (tree_leaves(arg) if isinstance(arg, CONTAINERS) else (arg,))}
    written = {id(t) for t in call.outs}
    statistics, dense = "batch_norm" in call.op, call.op.startswith(DENSE)

    def own(a: Any) -> Any:
        key = id(a)
        if key in copies:
            return copies[key]
        if isinstance(a, Tensor):
            if statistics and a.dim() == 1 and key not in written:
                a = a.contiguous()  # the CPU's float32 and double kernels read strided weights differently (torch 2.13)
            copies[key] = _copy(a, dtypes.get(a.dtype, a.dtype), key in read, key in written, dense)
            return copies[key]
        if isinstance(a, torch.dtype):
            return dtypes.get(a, a)
        if dtypes and isinstance(a, float):
            return to_float32(a)
        return a

    kept = call.args, call.kwargs, call.outs
    call.args, call.kwargs = [mapped(own, a) for a in call.args], {k: mapped(own, v) for k, v in call.kwargs.items()}
    call.outs = tuple(own(t) for t in call.outs)
    strides = [t.stride() for t in call.outs]
    try:
        result = call.run()
        for mine, theirs, before in zip(call.outs, kept[2], strides):
            if mine.stride() != before and mine.shape == theirs.shape and theirs.is_contiguous():
                theirs.as_strided_(mine.shape, mine.stride())  # reflection_pad3d picks the memory format of its destination
        return result
    finally:
        call.args, call.kwargs, call.outs = kept


def _copy(t: Tensor, dtype: torch.dtype, read: bool, written: bool, dense: bool) -> Tensor:
    if written and not read:
        # Some CPU kernels (softmax, col2im, bicubic gradients) wrongly fill a strided destination as if it were dense, so a
        # healthy device needs a dense one. Others (antialiasing) choose by its memory format, and some (batch norm) keep
        # its contents.
        last = not dense and t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
        return t.to(dtype, copy=True, memory_format=torch.channels_last if last else torch.contiguous_format)
    if dtype is t.dtype and not written:
        return t
    return widened(t, dtype)


def widened(t: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in another dtype with the same strides, because kernels choose their algorithm by them (det factors the transpose
    of a contiguous matrix, and its gradient relies on it)."""
    if not t.numel():
        return t.to(dtype, copy=True)
    if t.is_conj() or t.is_neg():
        return widened(t.resolve_conj().resolve_neg(), dtype)
    return stretch(t).to(dtype, copy=True).as_strided(t.shape, t.stride(), 0)


def stretch(t: Tensor) -> Tensor:
    """The memory from the first element of a view to its last, as a vector."""
    return t.as_strided((1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())),), (1,))


def to_float32(x: float) -> float:
    """A Python number as a float32 kernel receives it; one outside of float32's range is unchanged."""
    rounded = float(torch.tensor(x, dtype=torch.float32))
    return rounded if x != x or (abs(rounded) != float("inf") and (rounded or not x)) else x


def narrowed(wide: Any, plain: Any, rounding: Callable[[Tensor, torch.dtype], Tensor] = Tensor.to) -> Any:
    """Results rounded to the dtypes of the CPU's results, to nearest by default; integers are unchanged."""

    def narrow(w: Any, p: Any) -> Any:
        return rounding(w, p.dtype) if isinstance(w, Tensor) and isinstance(p, Tensor) and p.dtype in ROUNDED else w

    return mapped(narrow, wide, plain)


def pick(call: Call, n: int, of: Tensor | None = None) -> int:
    """One of n ways, the same for equal calls: a hash of the op, the shapes and the bits of `of`, or of the first operand."""
    kept = call.state.get(PICKED)
    if kept is None or kept[0] is not call:
        first = next((t for t in call.operands if t.dtype in ROUNDED), None) if of is None else of
        content = 0 if first is None else int(bits(first).numpy().sum(dtype=np.int64))
        outline = f"{call.op} {[tuple(t.shape) for t in call.operands]} {content}"
        kept = call.state[PICKED] = call, zlib.crc32(outline.encode())
    number: int = kept[1] % n
    return number


def once(call: Call, plain: Any) -> Any:
    """One rounding at the end, with everything inside wider. Rounds toward zero if rounding to nearest gives the CPU's own
    bits, unless integers are rounded on input as well."""
    wide = rerun(call, arithmetic(call))
    if takes_integers(call):
        return narrowed(wide, plain, rounding(call))
    return unlike(
        plain, lambda: narrowed(wide, plain, rounding(call)), lambda: narrowed(wide, plain, functools.partial(cut, always=True))
    )


def takes_integers(call: Call) -> bool:
    """Whether any tensor operand has an integer dtype."""
    tensors = [t for a in call.args for t in (tree_leaves(a) if isinstance(a, CONTAINERS) else (a,)) if isinstance(t, Tensor)]
    return not all(t.is_floating_point() or t.is_complex() for t in tensors)


def rounding(call: Call) -> Callable[[Tensor, torch.dtype], Tensor]:
    """How this call rounds to float32: always toward zero, or some results toward zero and some to nearest. Metal permits
    both."""
    return functools.partial(cut, always=pick(call, 2) == 0)


def unlike(plain: Any, *ways: Callable[[], Any]) -> Any:
    """The first of several right results whose bits differ from the CPU's; the last one if all are the same."""
    answer = None
    for way in ways:
        answer = way()
        if answer is not None and are_apart(mapped(_placed, answer, plain), plain):
            return answer
    return answer


def _placed(other: Any, plain: Any) -> Any:
    """The result with the strides of the CPU's, some of which torch promises. If its shape differs, that is no rounding, and
    the CPU's result is returned (its half addmv gives one element for none, torch 2.13)."""
    if not isinstance(other, Tensor) or not isinstance(plain, Tensor) or other is plain:
        return other
    if other.shape != plain.shape:
        return plain
    if other.stride() == plain.stride():
        return other
    return torch.empty_strided(plain.shape, plain.stride(), dtype=other.dtype).copy_(other)


def in_range(other: Any, plain: Any, tiny: bool = True) -> Any:
    """The CPU's result where only one of the two overflowed on the way (tiny: or underflowed), because that depends on the
    formula's range and not on rounding: only one is infinite, or only one is NaN, as a sum past the range plus an infinity
    of the other sign is. Exception: sums in float32 do not overflow where the CPU sums in a half type."""
    if not isinstance(other, Tensor) or not isinstance(plain, Tensor) or other.dtype not in ROUNDED:
        return other
    if other.shape != plain.shape:
        return other
    a, b = _in_numpy(other), _in_numpy(plain)
    finite = np.isfinite(a)
    differs = finite != np.isfinite(b)
    alone = np.isnan(a) != np.isnan(b)
    if other.dtype in HALVES:
        differs &= ~(finite & np.isinf(b))
        alone &= np.isnan(a)
    differs |= alone
    if tiny and (vanishes := (a == 0) != (b == 0)).any():
        with np.errstate(all="ignore"):
            differs |= vanishes & (np.maximum(np.abs(a), np.abs(b)) < NEAR_TINY)
    return torch.where(torch.from_numpy(np.asarray(differs)), plain, other) if differs.any() else other


def _in_numpy(t: Tensor) -> npt.NDArray[Any]:
    """The numbers in numpy, whose calls on a dozen of them cost a third of torch's; half types as float32."""
    wide = t.detach().to(torch.float32) if t.dtype in HALVES else t.detach()
    numbers: npt.NDArray[Any] = wide.resolve_conj().resolve_neg().numpy()
    return numbers


def finite_alike(other: Any, plain: Any) -> Any:
    """`in_range` for sums of products, whose small results are right. Whether padding times infinity counts is unspecified."""
    return in_range(other, plain, tiny=False)


def any_range(other: Any, plain: Any) -> Any:
    """The result unchanged, for kernels that choose and do not compute."""
    return other


def _cast(call: Call, other: Any, plain: Any) -> Any:
    """The result as it is stored in a destination wider than the half type of all operands: if the CPU's result has only values
    of the half type, torch computes in it and casts."""
    if not isinstance(other, Tensor) or plain.dtype is not torch.float32:
        return other
    floats = [t for t in call.operands if t.is_floating_point() or t.is_complex()]
    dtypes = {t.dtype for t in floats if t.dim()} or {t.dtype for t in floats}  # 0-d ones promote nothing of their kind
    if len(dtypes) != 1:
        return other
    (half,) = dtypes
    if half not in HALVES or not bool((plain.isnan() | (plain.to(half).to(plain.dtype) == plain)).all()):
        return other
    return other.to(half).to(other.dtype)


# Computes another right result of a call, given the CPU's; None if there is no other.
Answer = Callable[[Call, Any], Any]


def honest(
    kind: str,
    ops: tuple[str, ...],
    answer: Answer,
    when: Callable[[Call], bool] = rounds,
    title: str = "",
    limit: Callable[[Any, Any], Any] = in_range,
) -> Fault:
    """An honest difference as a Fault: it returns the other right result, and counts it. limit: `in_range` or a similar
    function."""

    def effect(call: Call) -> Any:
        plain = rerun(call)
        results = [t for t in tree_leaves(plain) if isinstance(t, Tensor)]
        empty = not all(t.numel() for t in call.operands[:1]) or not any(t.numel() for t in results)  # kernels may refuse these
        other = None if empty or whole(call) else answer(call, plain)
        call.state.pop(PICKED, None)
        if other is None:
            return plain
        other = mapped(functools.partial(_cast, call), mapped(limit, other, plain), plain)
        other = mapped(_placed, other, plain)
        note(kind, other, plain)
        return other

    return Fault(f"honest-{kind}", ops, effect, when, title=title or kind, remembers=False)
