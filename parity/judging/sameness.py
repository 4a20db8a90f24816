"""Whether two tensors hold the same bits, or the same values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

# Tensors of these dtypes are never lazily negated or conjugated.
WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool))
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FIRST = 256  # elements that are compared before all others: other roundings differ there already


def bits(t: Tensor) -> Tensor:
    """The elements as integers of the same width, row-major (complex: parts side by side)."""
    t = t.detach()
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    return t.resolve_neg().contiguous().view(BITS[t.element_size()])


def _comparison_of_bytes() -> Callable[[int, int, int], int] | None:
    """C's memcmp; None if the C library cannot be loaded under this name. torch.equal of the bits takes 4 us more, and a whole
    `parity.compare` of equal results takes 5."""
    try:
        memcmp = ctypes.PyDLL(None).memcmp
    except (AttributeError, OSError, TypeError):
        return None
    memcmp.argtypes, memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return memcmp


_memcmp = _comparison_of_bytes()


def same_bytes(a: Tensor, b: Tensor) -> bool | None:
    """Whether two tensors of one dtype and shape hold the same bits in the host's memory; None where their bytes do not show
    it: with other strides, with gaps that differ, on a device."""
    if _memcmp is None or not (a.is_cpu and b.is_cpu):
        return None
    if a.dtype not in WHOLE and (a.is_neg() or b.is_neg() or (a.is_complex() and (a.is_conj() or b.is_conj()))):
        return None
    size, gaps = a.nbytes, not (a.is_contiguous() and b.is_contiguous())
    if gaps:
        if (strides := a.stride()) != b.stride():
            return None
        # Compares from the first element to the last; differing bytes between elements mean nothing.
        size = a.element_size() * (1 + sum([(n - 1) * s for n, s in zip(a.shape, strides)]))
    x, y = a.data_ptr(), b.data_ptr()
    if not x or not y:  # a tensor of zeros may have no memory
        return None
    return _memcmp(x, y, size) == 0 or (None if gaps else False)


def bit_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same bits."""
    same = same_bytes(a, b)
    return torch.equal(bits(a), bits(b)) if same is None else same


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether both are missing, or hold the same bits in one dtype and shape."""
    return a is b or (a is not None and b is not None and a.dtype is b.dtype and a.shape == b.shape and bit_equal(a, b))


def same_values(a: Tensor, b: Tensor) -> bool:
    """Bit-equal, or equal elementwise with any NaN equal to any other and -0.0 equal to 0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if bit_equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    if a.numel() > FIRST and a.is_contiguous() and b.is_contiguous() and not _equal(a.view(-1)[:FIRST], b.view(-1)[:FIRST]):
        return False
    return _equal(a, b)


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def is_truth(x: Tensor, truth: Tensor) -> bool:
    """Whether a tensor equals its truth elementwise, NaN equal to NaN; both of one shape."""
    wide = x.to(truth.dtype)
    if torch.equal(wide, truth):
        return True
    # In a complex number either part may be the NaN.
    return not truth.is_complex() and bool(((wide == truth) | ((wide != wide) & (truth != truth))).all())
