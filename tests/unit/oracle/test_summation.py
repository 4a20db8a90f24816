"""Fast algorithms of convolutions are off by their tiles, which is no difference; a weight gradient that is wrong is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import parity
from parity.devices import Call, Fault, resolve
from parity.oracle import summation as fast


def by_transform(call: Call) -> Any:
    """The weight gradient by Fourier transforms in float32: every plane is one tile."""
    grad, x, weight = call.args[:3]
    padding = call.args[5]
    to_input, _, to_bias = call.run()
    padded = nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    size = padded.shape[2:]
    turned = torch.einsum("nohw,nchw->ochw", torch.fft.rfft2(grad, s=size).conj(), torch.fft.rfft2(padded))
    whole = torch.fft.irfft2(turned, s=size)
    return to_input, whole[:, :, : weight.shape[2], : weight.shape[3]].contiguous(), to_bias


def located(effect: Any) -> parity.Located:
    """What is located in two convolutions whose planes and gradients are mostly zeros."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    x = torch.randn(2, 3, 12, 12) * (torch.rand(2, 3, 12, 12) < 0.05)
    return parity.locate(net, x, device=resolve("sim", (Fault("fast", ("convolution_backward",), effect),)))


def test_tiles_are_no_difference_and_one_percent_is() -> None:
    """Exact zeros that come out as roundings of their neighbours; then the same with the gradients 1 % too large."""
    struck: list[int] = []

    def off(call: Call) -> Any:
        first, second, third = by_transform(call)
        struck.append(int(((second != 0) & (call.run()[1] == 0)).sum()))
        return first, second, third

    found = located(off)
    assert sum(struck) > 0  # zeros that are off
    assert found.first is None, str(found)

    def wrong(call: Call) -> Any:
        first, second, third = by_transform(call)
        return first, second * 1.01, third

    assert {p.operator for p in located(wrong).divergences} == {"aten::convolution_backward"}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_norms_bound_every_element(transposed: bool, groups: int) -> None:
    """Cauchy and Schwarz, for the result and both gradients, with and without groups."""
    torch.manual_seed(1)
    x = torch.randn(3, 4, 7, 6, dtype=torch.float64)
    weight = torch.randn((4, 6 // groups, 3, 2) if transposed else (6, 4 // groups, 3, 2), dtype=torch.float64)
    rest = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
    out: Tensor = torch.ops.aten.convolution(x, weight, None, *rest)
    grad = torch.randn_like(out)
    to_input, to_weight, _ = torch.ops.aten.convolution_backward(grad, x, weight, [6], *rest, [True, True, False])
    for got, bound in (
        (out, fast.of_result(x, weight, transposed, groups)),
        (to_input, fast.of_input_gradient(grad, weight, transposed, groups)),
        (to_weight, fast.of_weight_gradient(x, grad, weight, transposed, groups)),
    ):
        assert bool((got.abs() <= bound.expand_as(got)).all())
    assert not fast.is_fast(weight, [2, 1], [1, 1])
    assert not fast.is_fast(weight[:, :, :1, :1], [1, 1], [1, 1])
