"""Half-precision kernels of the CPU that compute in float32 and round once."""

from __future__ import annotations

import pytest
import torch

from parity.oracle.float64 import in_float32

HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_kernel_computes_in_float32_and_rounds_once(dtype: torch.dtype) -> None:
    x = (torch.arange(64.0) * 1.37 - 40).to(dtype)
    with in_float32():
        soft = torch.softmax(x, 0)
        total = torch.addcmul(x, x, x)
    assert soft.dtype is dtype
    assert torch.equal(soft, torch.softmax(x.float(), 0).to(dtype))
    assert torch.equal(total, torch.addcmul(x.float(), x.float(), x.float()).to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_what_one_kernel_hands_to_the_next_is_rounded(dtype: torch.dtype) -> None:
    a, b = (torch.linspace(1, 2, 33).to(dtype) for _ in range(2))
    with in_float32():
        found = (a * b) + a
    assert torch.equal(found, ((a.float() * b.float()).to(dtype).float() + a.float()).to(dtype))


def test_gradients_are_computed_so_too() -> None:
    """The CPU adds up the gradient of the shift of a norm in the half type: 4096 ones come to 256 in bfloat16."""
    x = torch.ones(4096, 3, dtype=torch.bfloat16)
    shift = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    with in_float32():
        y = torch.nn.functional.layer_norm(x, (3,), bias=shift)
        (g,) = torch.autograd.grad(y, shift, torch.ones_like(y))
    assert g.tolist() == [4096.0] * 3


def test_views_writes_and_other_dtypes_are_left_alone() -> None:
    x = torch.ones(4, 2, dtype=torch.float16)
    with in_float32():
        view = x.t()
        x.mul_(3)
        single = torch.ones(3) / 3
        whole = x.argmax(0)
        wide = x.to(torch.float64)
    assert view.data_ptr() == x.data_ptr()
    assert view[0, 0] == 3
    assert (single.dtype, whole.dtype, wide.dtype) == (torch.float32, torch.int64, torch.float64)
