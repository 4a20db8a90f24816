"""What has no tangent counts as zero in forward-mode derivatives, whatever it is multiplied with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor

from parity.devices import Device
from parity.devices.sim import memory


@pytest.mark.parametrize("call", [lambda x, c: x / c, lambda x, c: x * c, lambda x, c: (x * c) * c, lambda x, c: x.t() * c.t()])
def test_a_missing_tangent_is_zero_beside_nan(sim: Device, call: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The derivative by the other operand is NaN here, but nobody asks for it."""
    x, c = torch.full((2, 3), math.nan), torch.full((2, 3), 2.0)
    x[0, 0] = 1

    def tangent(x: Tensor, c: Tensor) -> Any:
        with fwAD.dual_level():
            dual = fwAD.make_dual(x, torch.ones_like(x))  # type: ignore[no-untyped-call]  # torch tells no type
            return fwAD.unpack_dual(call(dual, c)).tangent  # type: ignore[no-untyped-call]  # torch tells no type

    got, want = tangent(sim.upload(x), sim.upload(c)), tangent(x, c)
    assert want.isfinite().all()
    torch.testing.assert_close(got.cpu(), want)


def test_zeros_by_definition_last_until_they_are_written_or_freed(sim: Device) -> None:
    start = len(memory.live_zeros)
    zero, x = torch._efficientzerotensor((2, 3), device=sim.torch_device), torch.full((2, 3), math.nan)
    there = sim.upload(x)
    product = zero.t() * there.t()
    assert not product.cpu().any()
    product += 1
    assert (product * there.t()).isnan().all().cpu()
    assert len(memory.live_zeros) == start + 1
    view = zero[1:]
    del zero
    assert not (view * there[1:]).cpu().any()
    view.copy_(there[1:])
    assert len(memory.live_zeros) == start
