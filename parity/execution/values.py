"""Contents of tensors: value families, computed by a counter-based integer generator and exactly rounded steps.

Neither libm nor a generator of torch is used, so the same description gives the same bits on every machine. A family is a
pool of 2**16 float64 (or int64) values, computed once from Philox words; a tensor is a window of it, whose start depends on the
seed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parity.core import layout as layouts
from parity.core.case import TensorSpec, Values
from parity.core.dtypes import FACTS, DtypeFacts
from parity.core.errors import CaseError, near

POOL = 1 << 16
PERIOD = 65521
KEYS = 100  # words of smaller keys, those of pools, are cached: pools with a range need them again for every range
BORDERS = (0, 7, 8, 11, 15, 16, 24, 31, 32, 53, 62)  # exponents of two: limits of integer types and of significands
Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def words(key: int, n: int) -> npt.NDArray[np.uint64]:
    """n 64-bit words of Philox with this key, read only. The documentation of numpy fixes the algorithm."""
    return _kept(key, n) if key < KEYS else _raw(key, n)


def _raw(key: int, n: int) -> npt.NDArray[np.uint64]:
    return np.asarray(np.random.Philox(key=key).random_raw(n), dtype=np.uint64)


@functools.lru_cache(maxsize=64)
def _kept(key: int, n: int) -> npt.NDArray[np.uint64]:
    numbers = _raw(key, n)
    numbers.setflags(write=False)
    return numbers


def unit(key: int, n: int = POOL) -> Array:
    """n uniform multiples of 2**-53 in [0, 1)."""
    return (words(key, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bell(key: int, n: int = POOL) -> Array:
    """n values with a nearly normal distribution of mean 0 and variance 1: sums of four uniform 32-bit integers
    (Irwin-Hall)."""
    w = words(key, 2 * n).reshape(n, 2)
    total = (w >> np.uint64(32)).astype(np.int64).sum(1) + (w & np.uint64(0xFFFFFFFF)).astype(np.int64).sum(1)
    return np.asarray((total - 2 * (2**32 - 1)).astype(np.float64) * (math.sqrt(3.0) * 2.0**-32), dtype=np.float64)


def integers(key: int, low: int, high: int, n: int = POOL) -> IntArray:
    """n integers in [low, high]."""
    return np.asarray(low + (words(key, n) % np.uint64(high - low + 1)).astype(np.int64), dtype=np.int64)


def _wide(f: DtypeFacts) -> Array:
    """Exponents up to a quarter of the dtype's largest, of both signs."""
    reach = math.frexp(f.max)[1] // 4
    return np.asarray(np.ldexp(bell(11), integers(12, -reach, reach)), dtype=np.float64)


def _cancelling(_: DtypeFacts) -> Array:
    """Pairs x, -x(1 + d) with d up to 2**-10: sums lose ten bits."""
    x = bell(13)
    x[1::2] = -x[::2] * (1 + unit(14, POOL // 2) * 2.0**-10)
    return x


def _ties(_: DtypeFacts) -> Array:
    return integers(15, -2, 2).astype(np.float64) * 0.5


def _constant(_: DtypeFacts) -> Array:
    """Runs of 4096 equal values."""
    return np.repeat(np.ldexp(np.floor(np.ldexp(unit(16, 16), 6)) - 32, -4), POOL // 16)


def _around_powers(low: float, high: float) -> IntArray:
    """Powers of two in `BORDERS`, and these plus or minus 1, of both signs, within [low, high]."""
    near = [s * 2**k + d for k in BORDERS for s in (1, -1) for d in (0, 1, -1)]
    fitting = np.asarray([x for x in near if low <= x <= high], dtype=np.int64)
    return np.asarray(fitting[words(17, POOL) % np.uint64(len(fitting))], dtype=np.int64)


def _huge(f: DtypeFacts) -> Array:
    """Between 1/32 of the largest number and that number: squares and most sums overflow."""
    sign = np.where(unit(18) < 0.5, -1.0, 1.0)
    return np.asarray(sign * np.ldexp((1 + unit(19)) / 2, integers(20, -4, 0)) * f.max, dtype=np.float64)


def _extreme(f: DtypeFacts, sign: int) -> Array:
    """Exponents of one sign, of half to five sixths of the dtype's largest: squares overflow, most sums do not."""
    most = math.frexp(f.max)[1]
    return np.asarray(np.ldexp(bell(27), sign * integers(28, most // 2, most * 5 // 6)), dtype=np.float64)


# Families for an operand without a domain. The first is the default and the simplest.
FLOAT_FAMILIES: dict[str, Callable[[DtypeFacts], Array]] = {
    "uniform": lambda f: 2 * unit(1) - 1,
    "normal": lambda f: bell(2),
    "integers": lambda f: integers(3, -8, 8).astype(np.float64),
    "positive": lambda f: 4 * unit(4),
    "ties": _ties,
    "constant": _constant,
    "wide": _wide,
    "cancelling": _cancelling,
    "large": lambda f: bell(5) * (100.0 if f.bits == 16 and f.max < 1e5 else 1e4),
    "tiny": lambda f: np.ldexp(bell(6), math.frexp(f.tiny)[1] + 1),  # around the smallest normal number
    "halves": lambda f: np.asarray(integers(24, -99, 98) + 0.5, dtype=np.float64),
    "decimals": lambda f: (
        integers(25, -99, 99).astype(np.float64) / 10.0
    ),  # numbers with inexact binary forms, as people write them
    "borders": lambda f: _around_powers(-f.max, f.max).astype(np.float64),
    "huge": _huge,
    "vast": lambda f: _extreme(f, 1),
    "minute": lambda f: _extreme(f, -1),
}
INT_FAMILIES: dict[str, Callable[[DtypeFacts, int, int], IntArray]] = {
    "uniform": lambda f, low, high: integers(1, max(low, -8), 16 if low == 0 else 8),
    "full": lambda f, low, high: _full(f.bits, low),
    "large": lambda f, low, high: integers(3, -9, 9) + 2 ** (min(f.bits, 26) - 2),
    "constant": lambda f, low, high: np.repeat(integers(4, max(low, -3), 3, 16), POOL // 16),
    "borders": lambda f, low, high: _around_powers(low, high),
}
# Masks: half true, runs of equal values, few true, many true.
BOOL_FAMILIES: dict[str, Callable[[], npt.NDArray[np.bool_]]] = {
    "uniform": lambda: (words(7, POOL) & np.uint64(1)).astype(np.bool_),
    "constant": lambda: np.repeat(words(26, 16) & np.uint64(1), POOL // 16).astype(np.bool_),
    "few": lambda: words(27, POOL) % np.uint64(8) == 0,
    "many": lambda: words(28, POOL) % np.uint64(8) != 0,
}
EXTREME_FAMILIES = "vast", "minute"  # drawn by plan only
OVERFLOWING = ("huge",)  # not drawn where one Inf in the result hides everything else
ALWAYS_LEGAL = "between", "inside", "index", "unique"
ROWS = "shares", "sorted"  # the last dimension sums to 1 up to rounding; rises, with equal neighbours
MATRICES = (*("conditioned", "spd", "symmetric", "lower", "upper", "full_rank", "half_rank", "unit_rows", "orthogonal"), *ROWS)


def integer_range(f: DtypeFacts) -> tuple[int, int]:
    """(Smallest, largest) value of an integer dtype as Python integers."""
    unsigned = f.name.startswith("u")
    top = (1 << (f.bits - (not unsigned))) - 1
    return (0 if unsigned else -top - 1), top


SPECIALS: dict[str, Callable[[DtypeFacts], float | int]] = {
    "nan": lambda f: math.nan,
    "-nan": lambda f: -math.nan,  # sign bit set, which must not matter; torch drops it in conversions to bfloat16
    "inf": lambda f: math.inf,
    "-inf": lambda f: -math.inf,
    "-0.0": lambda f: -0.0,
    "0": lambda f: 0,
    "1": lambda f: 1,
    "smallest": lambda f: f.smallest,
    "subnormal": lambda f: f.tiny * 0.375,
    "tiny": lambda f: f.tiny,
    "max": lambda f: integer_range(f)[1] if f.kind == "int" else f.max,
    "min": lambda f: integer_range(f)[0] if f.kind == "int" else -f.max,
    "2**24+1": lambda f: 2**24 + 1,
    "2**31": lambda f: 2**31,
    "2**53+1": lambda f: 2**53 + 1,
}
FLOAT_SPECIALS = ("nan", "-nan", "inf", "-inf", "-0.0", "0", "1", "smallest", "subnormal", "max", "min", "-1", "0.5", "-2.5")
COMPLEX_SPECIALS = (*FLOAT_SPECIALS, "infj", "nanj", "-0.0j", "inf+nanj", "nan-infj", "-1-0.0j")
INT_SPECIALS = ("0", "1", "max", "min")


def _full(bits: int, low: int) -> IntArray:
    w = words(2, POOL).view(np.int64)
    return (
        w
        if bits == 64 and low < 0
        else (w >> (64 - bits) if low < 0 else (w >> (65 - min(bits, 63))) & ((1 << min(bits, 63)) - 1))
    )


@functools.lru_cache(maxsize=256)
def pool(family: str, dtype: str, low: float = 0, high: float = 0) -> torch.Tensor:
    """The 2**16 values of a family in a dtype (complex: in both parts). Raises CaseError for an unknown family."""
    f = FACTS[dtype]
    if family == "between" or family == "inside":
        if f.is_inexact:
            return _inexact(low + unit(21) * (high - low), f)
        return torch.from_numpy(integers(22, math.ceil(low), math.floor(high))).to(getattr(torch, dtype))
    if family == "index":
        return torch.from_numpy(integers(23, int(low), max(int(low), int(high) - 1))).to(getattr(torch, dtype))
    if f.kind == "bool":
        if family not in BOOL_FAMILIES:
            raise CaseError(f"unknown value family '{family}' for bool; {near(family, (*BOOL_FAMILIES, *ALWAYS_LEGAL))}")
        return torch.from_numpy(BOOL_FAMILIES[family]())
    if f.is_inexact:
        if family not in FLOAT_FAMILIES:
            raise CaseError(f"unknown value family '{family}'; {near(family, (*FLOAT_FAMILIES, *ALWAYS_LEGAL, *MATRICES))}")
        return _inexact(FLOAT_FAMILIES[family](f), f)
    if family not in INT_FAMILIES:
        raise CaseError(f"unknown value family '{family}' for {dtype}; {near(family, (*INT_FAMILIES, *ALWAYS_LEGAL))}")
    bottom, top = integer_range(f)
    top = min(top, 2**63 - 1)
    numbers = INT_FAMILIES[family](f, bottom, top)
    return torch.from_numpy(np.clip(numbers, max(bottom, -(2**63)), top)).to(getattr(torch, dtype))


def _inexact(values: Array, f: DtypeFacts) -> torch.Tensor:
    if f.kind == "complex":
        turned = np.roll(values, POOL // 3)
        return torch.complex(torch.from_numpy(values), torch.from_numpy(turned)).to(getattr(torch, f.name))
    clipped = np.clip(values, -f.max, f.max)
    return torch.from_numpy(clipped).to(getattr(torch, f.name))


def begin(seed: int, position: int) -> int:
    """Index in its pool at which the window of an operand begins."""
    return (seed * 7919 + position * 10007) % POOL


def window(source: torch.Tensor, n: int, seed: int, position: int) -> torch.Tensor:
    """n values of a pool; the start depends on the seed and the operand's position. Beyond the end the pool repeats with a
    prime period, so that an index that wraps at 2**16 (a real bug) reads other values."""
    start = begin(seed, position)
    if start + n <= POOL:
        return source.narrow(0, start, n)
    first = start % PERIOD
    periods, rest = divmod(first + n, PERIOD)
    head, *others = (*(source[:PERIOD],) * periods, source[:rest])  # ten times faster than by index
    return torch.cat((head[first:], *others))


def dense(spec: TensorSpec, position: int = 0, fresh: bool = True) -> torch.Tensor:
    """The values of an operand as a contiguous CPU tensor of its shape. position: number of the operand, so that operands with
    equal seeds differ. fresh: allocate memory; otherwise the result may be a part of a pool, and must not be written. Raises
    CaseError for values that cannot be built."""
    v, n = spec.values, spec.numel
    if v.literal is not None:
        elements = torch.tensor(v.literal, dtype=getattr(torch, spec.dtype))
    elif v.family in MATRICES:
        elements = matrices(spec, position).reshape(-1)
    elif v.family == "unique":
        elements = unique(spec, position).reshape(-1)
    else:
        low, high = (*v.params, 0, 0)[:2]
        family = "uniform" if v.family == "any" else v.family
        source, start = pool(family, spec.dtype, float(low), float(high)), begin(v.seed, position)
        if not v.specials and start + n <= POOL:
            elements = source.as_strided(spec.shape, layouts.dense(spec.shape), start)
            return elements.clone() if fresh else elements
        elements = window(source, n, v.seed, position)
        if start + n <= POOL:
            elements = elements.clone()
    if v.specials and n:
        f = FACTS[spec.dtype]
        for where, word in v.specials:
            elements[where % n] = special(word, f)
    return elements.view(spec.shape)


def specials(dtype: str) -> tuple[str, ...]:
    """The special values of a dtype, by name; none for bool."""
    f = FACTS[dtype]
    if f.kind != "int":
        return {"float": FLOAT_SPECIALS, "complex": COMPLEX_SPECIALS, "bool": ()}[f.kind]
    low, high = integer_range(f)
    more = (("-1", -1), ("2**24+1", 2**24 + 1), ("2**31", 2**31), ("2**53+1", 2**53 + 1))
    return (*INT_SPECIALS, *(word for word, x in more if low <= x <= high))


def neighbours(x: float, f: DtypeFacts) -> tuple[str, str]:
    """The next larger and the next smaller number of a floating dtype, as texts."""
    step = math.ldexp(f.unit_roundoff, math.frexp(x)[1]) if x else f.smallest
    down = step / 2 if math.frexp(x)[0] in (0.5, -0.5) else step  # towards zero from a power of two
    up, low = (step, down) if x >= 0 else (down, step)
    return repr(x + up), repr(x - low)


def special(word: str, f: DtypeFacts) -> Any:
    """The number that the name of a special value or a numeral stands for. Raises CaseError."""
    if word in SPECIALS:
        return SPECIALS[word](f)
    try:
        return complex(word) if f.kind == "complex" else float(word) if f.is_inexact else int(word)
    except ValueError:
        raise CaseError(f"unknown special value '{word}'; {near(word, SPECIALS)}, or a number") from None


def unique(spec: TensorSpec, position: int) -> torch.Tensor:
    """Integers in [0, size) without repeats along a dim: the sort order of random words. Raises CaseError."""
    size, dim = int(spec.values.params[0]), int(spec.values.params[1]) if len(spec.values.params) > 1 else -1
    if not spec.shape:
        return torch.zeros((), dtype=getattr(torch, spec.dtype))
    shape = list(spec.shape)
    dim %= len(shape)
    if shape[dim] > size:
        raise CaseError(f"unique indices: {shape[dim]} different values asked of [0, {size})")
    taken = shape[dim]
    shape[dim] = size
    n = math.prod(shape)
    raw = words(spec.values.seed * 31 + position + 1000, max(n, 1))[:n]
    order = np.argsort(raw.reshape(shape), axis=dim, kind="stable").astype(np.int64)
    return torch.from_numpy(order).narrow(dim, 0, taken).contiguous().to(getattr(torch, spec.dtype))


@functools.cache
def _entries(key: int) -> torch.Tensor:
    """The pool for entries of matrices, times 64."""
    return torch.from_numpy(integers(key, -64, 64))


def matrices(spec: TensorSpec, position: int) -> torch.Tensor:
    """A stack of matrices of the kind that the spec asks for, or rows. Entries are multiples of 2**-6 in [-1, 1], so that
    products are exact. Raises CaseError for a shape of rank below 2, and of rows below 1."""
    kind, shape, f = spec.values.family, spec.shape, FACTS[spec.dtype]
    if kind in ROWS and shape:
        row = window(_entries(33), spec.numel, spec.values.seed, position).view(shape).to(torch.float64)
        share = (row + 65) / (row + 65).sum(-1, keepdim=True)
        return (share if kind == "shares" else torch.sort(row // 8).values / 8).to(getattr(torch, spec.dtype))
    if len(shape) < 2:
        raise CaseError(f"values '{kind}' need a matrix, got shape {list(shape)}")
    n, m = shape[-2], shape[-1]
    raw = window(_entries(31), spec.numel, spec.values.seed, position).view(shape)
    a = raw.to(torch.float64) / 64
    if f.kind == "complex":
        turned = window(_entries(32), spec.numel, spec.values.seed, position).view(shape)
        a = torch.complex(a, turned.to(torch.float64) / 64)
    eye = torch.eye(n, m, dtype=a.dtype)
    if kind in ("conditioned", "full_rank"):
        matrix = a + (max(n, m) + 1) * eye
    elif kind == "spd":
        matrix = a @ a.mH + max(1, n) * eye
    elif kind == "half_rank":
        r = max(1, min(n, m) // 2)
        matrix = a[..., :r] @ a[..., :r, :]
    elif kind == "symmetric":
        matrix = (a + a.mH) / 2
    elif kind == "unit_rows" and spec.numel:  # a permutation, of a square matrix
        places = torch.argsort(raw.reshape(-1, n * m)[:, : max(n, m)], stable=True)[:, :n] % m
        matrix = torch.nn.functional.one_hot(places, m).view(shape).to(a.dtype)
    elif kind == "orthogonal":  # a reflection
        v = a[..., :1]
        matrix = eye - v * v.mH * (2 / (v.mH @ v).real.clamp(min=2.0**-12))
    elif kind == "lower":
        matrix = torch.tril(a) + (n + 1) * eye
    else:
        matrix = torch.triu(a) + (n + 1) * eye
    return matrix.to(getattr(torch, spec.dtype))


def families(values: Values, dtype: str) -> tuple[str, ...]:
    """The families to draw from for an operand whose signature asked for `values`."""
    f = FACTS[dtype]
    if values.family != "any":
        return (values.family,)
    if f.kind == "bool":
        return ("uniform",) * 4 + tuple(BOOL_FAMILIES)[
            1:
        ]  # equal elements cannot reveal a wrong index, so half true is drawn most
    if f.kind == "int":
        return tuple(INT_FAMILIES)
    return tuple(w for w in FLOAT_FAMILIES if w not in EXTREME_FAMILIES)
