"""What a device computes, against what the CPU does."""

from __future__ import annotations

import torch
from torch import Tensor


def close(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert that a result on a device equals one on the CPU, up to rounding."""
    torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=rtol, atol=atol)
