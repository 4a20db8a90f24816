"""What a device computes, against what the CPU does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parity.judging.measures import bits


def close(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert that a result on a device equals one on the CPU, up to rounding."""
    torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=rtol, atol=atol)


def ulp_distance(a: Tensor, b: Tensor) -> npt.NDArray[np.int64]:
    """Distance in representable numbers per real element; undefined where either is NaN."""
    x, y = (bits(t).reshape(-1).numpy().astype(np.int64) for t in (a, b))
    mask = np.int64((1 << (8 * (a.element_size() // (2 if a.is_complex() else 1)) - 1)) - 1)
    x, y = np.where(x < 0, -(x & mask), x), np.where(y < 0, -(y & mask), y)
    with np.errstate(over="ignore"):
        return np.asarray(np.abs(x - y), dtype=np.int64)
