"""Numbers moved by relative roundoffs, always in the same way: in fixed random directions, by their places or their values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.core.dtypes import FACTS
from parity.execution import values

Factors: TypeAlias = npt.NDArray[np.float64]
DOUBLE = (torch.float64, torch.complex128)
MANY = 1 << 17  # elements above which factors are taken by place: looking each number up costs as much as the kernel
FEW = 1 << 10  # elements that are asked at once
BLOCK = 1 << 14  # elements that go through several passes together: they stay in the cache
# Factorizations: stable by the norm of the matrix, not by element (LAPACK Users' Guide, 3rd ed., 1999, chapter 4).
BY_NORM = ("_linalg_svd", "linalg_pinv", "_linalg_eigh", "linalg_eig", "linalg_qr")
_TILE = 65_521  # a prime, so that rows of usual lengths meet it at other places
_TABLE = 12  # bits of a place in the table of factors
_TURN = np.uint64(0x2545F4914F6CDD1D)
_DOWN, _CHOICES = np.uint64(64 - _TABLE), np.uint64(60)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Of a dtype, real or complex; float32's for those that are none of floating numbers."""
    f = FACTS.get(str(dtype.to_real() if dtype.is_complex else dtype).removeprefix("torch."))
    return f.unit_roundoff if f is not None and f.is_inexact else FACTS["float32"].unit_roundoff


@functools.lru_cache(maxsize=16)
def _factors(u: float) -> Tensor:
    """1 + u or 1 - u, in a fixed random order."""
    signs = (values.words(0, 1 << 16) & np.uint64(1)).astype("float64") * 2 - 1
    return torch.from_numpy(1 + u * signs)  # by numpy: under a mode that rounds, torch would keep rounded factors


def perturbed(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element moved by a relative +-u, signs from a fixed stream."""
    if not (t.is_floating_point() or t.is_complex()):
        return t
    n, stream = t.numel(), _factors(u)
    start = (key * 4099) % (1 << 16)
    if n > 1 << 16 and not t.is_complex():
        return _tiled(t.detach().contiguous().view(-1), stream.roll(-start)).view(t.shape)
    some = stream[start : start + n] if start + n <= 1 << 16 else stream[torch.arange(start, start + n) % (1 << 16)]
    factors = some.view(t.shape)
    if t.is_complex():  # part by part: a complex product makes both parts NaN if one is NaN or Inf
        return torch.complex(t.real * factors, t.imag * factors)
    return t * factors


@functools.lru_cache(maxsize=16)
def _single_factors(u: float) -> Tensor:
    """`_factors` in float32."""
    return _factors(u).to(torch.float32)


def perturb(t: Tensor, u: float, key: int, out: Tensor) -> None:
    """`perturbed` into a tensor like it, or in place; in one pass where that can be. u: at least a unit in the last place."""
    flat = t.is_contiguous() or (t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last))
    if t.numel() <= FEW or not flat or t.stride() != out.stride() or not t.is_floating_point():
        out.copy_(perturbed(t, u, key))
        return
    tile = _factors(u) if t.dtype is torch.float64 else _single_factors(u)
    source, target = (x.as_strided((t.numel(),), (1,)) for x in (t, out))
    _tiled(source, tile.roll(-((key * 4099) % (1 << 16))), target)


def perturbed_in_place(t: Tensor, u: float, key: int) -> Tensor:
    """`perturbed`, of a tensor that nobody else has, in place where that can be."""
    if not t.is_floating_point() or t.layout is not torch.strided or t.is_nested:
        return perturbed(t, u, key)
    perturb(t, u, key, t)
    return t


def _tiled(t: Tensor, tile: Tensor, moved: Tensor | None = None) -> Tensor:
    """A flat tensor times a tile that is repeated along it: one pass over memory. moved: where it is written."""
    whole = t.numel() // tile.numel() * tile.numel()
    moved = torch.empty_like(t) if moved is None else moved
    torch.mul(t[:whole].view(-1, tile.numel()), tile, out=moved[:whole].view(-1, tile.numel()))
    torch.mul(t[whole:], tile[: t.numel() - whole], out=moved[whole:])
    return moved


def shifted(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element of a matrix moved by u times the largest element of that matrix.

    This is the error in the operand of an algorithm that is stable by norm, not by element.
    """
    if t.dim() < 2 or not t.numel() or not (t.is_floating_point() or t.is_complex()):
        return perturbed(t, u, key)
    largest = torch.nan_to_num(t.abs(), 0.0, 0.0, 0.0).amax((-2, -1), keepdim=True)
    real = torch.ones(t.shape, dtype=largest.dtype)
    sides = [perturbed(real, u, key + 3 * k) - 1.0 for k in range(2 if t.is_complex() else 1)]
    return t + largest * (torch.complex(*sides) if t.is_complex() else sides[0])


def by_norm(name: str, result: Any, args: Any, u: float, key: int) -> Any:
    """What a kernel of this name returns, with the matrices that a factorization gives off by a roundoff of their norm."""
    if name not in BY_NORM:
        return result
    return tree_map(lambda x: shifted(x.detach(), u, key) if isinstance(x, Tensor) and x.dim() == args[0].dim() else x, result)


def _chosen(u: float, key: int, n: int) -> Factors:
    """n factors, 1 + u/2 to 1 + u or 1 - u/2 to 1 - u in eight steps each, in a fixed random order."""
    steps = np.array([1 + u * (sign * (0.5 + k / 14)) for sign in (-1.0, 1.0) for k in range(8)])
    chosen: Factors = steps[(values.words(key, n) >> _CHOICES).astype(np.int64)]
    return chosen


@functools.lru_cache(maxsize=16)
def _table(u: float) -> Factors:
    """The factors that numbers are looked up in."""
    return _chosen(u, 2, 1 << _TABLE)


@functools.lru_cache(maxsize=1)
def _places() -> npt.NDArray[np.uint64]:
    """What is added to the bits of a number, by its place."""
    return np.arange(MANY, dtype=np.uint64) * _TURN


@functools.lru_cache(maxsize=4096)
def _multiplier(key: int) -> np.uint64:
    """An odd number for every key."""
    return np.uint64((0x9E3779B97F4A7C15 + 2 * key * int(_TURN)) % (1 << 64))


def _hashed(raw: npt.NDArray[np.uint64], u: float, key: int) -> Factors:
    """A factor for every number, from its bits; odd keys: from bits and place.

    Multiplicative hashing (Knuth, The Art of Computer Programming 3, section 6.4): the upper bits of the product depend on all
    bits of the number. The factors of the table are random, so that numbers in a row get unrelated ones.
    """
    if key % 2:
        raw = raw + _places()[: raw.size]
    mixed = raw * _multiplier(key)
    mixed >>= _DOWN
    return _table(u).take(mixed.view(np.int64))


@functools.lru_cache(maxsize=16)
def _tile(u: float) -> Factors:
    """Factors by place, twice in a row: from any place of the first on there is a whole tile."""
    tile = _chosen(u, 1, _TILE)
    return np.concatenate((tile, tile))


@functools.lru_cache(maxsize=1)
def _signs() -> Factors:
    """The directions of `_tile`."""
    return np.sign(_tile(0.5) - 1.0)


def _start(numbers: Factors, key: int) -> int:
    """Where a tile begins: another place for other numbers, so that two kernels in a row do not move an element alike."""
    some = numbers[:: max(1, numbers.size // 7)].view(np.uint64)
    return (int(np.bitwise_xor.reduce(some)) * int(_TURN) + key * 4099) % _TILE


def _from(tile: Factors, numbers: Factors, key: int) -> Tensor:
    """A tile for these numbers, of a tensor twice its length."""
    start = _start(numbers, key)
    return torch.from_numpy(tile[start : start + _TILE])


def rounded(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element moved by a relative u / 2 to u, up or down.

    A constant u would let two kernels in a row cancel in every fourth case. Even keys hash the value, so that equal numbers
    stay equal, as under rounding. Odd keys hash value and place, as if equal numbers were computed in different ways. Of many
    elements, each takes its factor from its place alone.
    """
    if t.dtype not in DOUBLE:
        return t
    parts = torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()
    moved = _times(parts, _numbers(parts.resolve_neg().contiguous()), u, key)
    return torch.view_as_complex(moved) if t.is_complex() else moved


def _numbers(t: Tensor) -> Factors:
    """The elements of a contiguous tensor, flattened, in numpy: for a dozen elements its calls cost a third of torch's."""
    numbers: Factors = t.numpy().reshape(-1)
    return numbers


def _times(t: Tensor, numbers: Factors, u: float, key: int) -> Tensor:
    """`rounded` for a tensor whose numbers are already known."""
    if numbers.size > MANY:
        return _tiled(torch.from_numpy(numbers), _from(_tile(u), numbers, key)).view(t.shape)
    return torch.from_numpy((numbers * _hashed(numbers.view(np.uint64), u, key)).reshape(t.shape))


def by_modulus(x: Tensor, moved: Tensor, factors: Sequence[object]) -> Tensor:
    """`rounded` complex numbers with each part moved in units of the modulus instead of its own. Zero parts stay zero, except
    the differences of two products of `factors`: a device may round one of these alone."""
    before, after = (torch.view_as_real(t.detach().resolve_conj()) for t in (x, moved))
    off = (after - before) / before.abs() * x.abs().unsqueeze(-1)
    given = [t.detach() for t in factors if isinstance(t, Tensor) and t.is_complex()]
    if len(given) == 2:
        a, b = given
        crossed = torch.stack((a.real * b.real, a.real * b.imag), -1) != 0.0
        off = torch.where((before == 0.0) & crossed, off.flip(-1), off)
    after.copy_(torch.where(off.isfinite(), before + off, after))
    return moved


def rounded_at_least(x: Tensor, u: float, key: int, least: float) -> Tensor:
    """x as `rounded` moves it, but at least by `least` or 3/4 of the way to zero: small numbers lose digits, but not to 0."""
    moved = rounded(x, u, key)
    if moved is x:
        return x
    parts, turned = (torch.view_as_real(t) if t.is_complex() else t for t in (x.detach().resolve_conj(), moved))
    before, after = (_numbers(t.resolve_neg().contiguous()) for t in (parts, turned))
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(before)
        off = np.maximum(u * size, least)
        np.minimum(off, 0.75 * size, out=off)
        off *= np.sign(after - before)
        off += before
    if not size.max(initial=0.0) < np.inf:
        off = np.where(np.isfinite(before), off, before)
    turned.copy_(torch.from_numpy(off).view(turned.shape))
    return moved


def extremes(t: Tensor) -> tuple[float, float]:
    """(smallest, largest) finite magnitude of the non-zero elements; (inf, 0) without any."""
    size = t.detach().abs().to(torch.float64).numpy()  # numpy knows no bfloat16
    if not size.size:
        return float("inf"), 0.0
    low, high = float(np.minimum.reduce(size, None)), float(np.maximum.reduce(size, None))
    if low > 0.0 and high < np.inf:  # so there is no NaN either
        return low, high
    size = size[(size > 0) & (size < np.inf)]
    return (float(size.min()), float(size.max())) if size.size else (float("inf"), 0.0)


def _largest_and_small(numbers: Factors, below: float) -> tuple[float, bool]:
    """(the largest finite magnitude, 0 without any; whether some number that is not 0 has a magnitude below this)."""
    largest, small = 0.0, False
    size = np.empty(min(numbers.size, BLOCK))
    for k in range(0, numbers.size, BLOCK):
        block = numbers[k : k + BLOCK]
        some = np.abs(block, out=size[: block.size])
        high = float(np.maximum.reduce(some))
        if not high < np.inf:
            high = float(np.where(some < np.inf, some, 0.0).max())
        largest = max(largest, high)
        if below > 0.0 and not small and not float(np.minimum.reduce(some)) >= below:
            small = bool(((some < below) & (some > 0.0)).any())
    return largest, small


def is_whole(t: Tensor, most: float) -> bool:
    """Whether all numbers of a tensor of float64 are integers of at most this magnitude."""
    if t._is_zerotensor():
        return True
    numbers: Factors = t.detach().resolve_neg().numpy()
    first = float(numbers[(0,) * numbers.ndim]) if numbers.size else 0.0
    if not (abs(first) <= most and first.is_integer()):  # which is so nearly always
        return False
    return bool((numbers == np.trunc(numbers)).all()) and bool((np.abs(numbers) <= most).all())


def seems_whole(t: Tensor) -> bool:
    """Whether a tensor of real numbers holds none that is not whole; most show it at the first."""
    if not t.is_floating_point() or t.element_size() == 1 or t.is_meta or t.is_nested or not t.numel():
        return False
    if t._is_zerotensor():  # has no memory that can be read
        return True
    first = t[(0,) * t.dim()]
    return bool(first == first.trunc()) and bool((t == t.trunc()).all())


def keep_whole(x: Tensor, moved: Tensor, most: float) -> None:
    """Put the integers among the numbers of a tensor of float64, of at most this magnitude, back into those that were moved."""
    if not (x.is_contiguous() and moved.is_contiguous()):
        whole = (x == x.trunc()) & (x.abs() <= most)
        moved.copy_(torch.where(whole, x, moved))
        return
    before, after = _numbers(x.detach().resolve_neg()), _numbers(moved.detach())
    for k in range(0, before.size, BLOCK):
        block = before[k : k + BLOCK]
        whole = block == np.trunc(block)
        if whole.any():
            np.copyto(after[k : k + BLOCK], block, where=whole & (np.abs(block) <= most))


def rounded_and_largest(x: Tensor, u: float, key: int, least: float) -> tuple[Tensor, float]:
    """(x as `rounded_at_least` moves it, its largest finite magnitude), with fewer passes over memory."""
    plain = x.detach() if x.dtype is torch.float64 and x.is_contiguous() and not x.is_neg() else None
    numbers = None if plain is None else _numbers(plain)
    if plain is None or numbers is None:
        low, high = extremes(x)
        small = low * u < least
    else:
        high, small = _largest_and_small(numbers, least / u if least > 0.0 else 0.0)
    if small:
        return rounded_at_least(x, u, key, least), high
    return rounded(x, u, key) if plain is None or numbers is None else _times(plain, numbers, u, key), high


def off_by(x: Tensor, lost: Tensor, key: int) -> Tensor:
    """x with each element moved by as much as `lost` says, up or down."""
    plain = torch.view_as_real(x).select(-1, 0) if x.is_complex() else x
    if plain.numel() > MANY:
        numbers = _numbers(plain.detach().resolve_neg().contiguous())
        return x + _tiled(lost.contiguous().view(-1), _from(_signs(), numbers, key)).view(x.shape)
    return x + torch.where(rounded(plain, 0.5, key) < plain, -lost, lost)
