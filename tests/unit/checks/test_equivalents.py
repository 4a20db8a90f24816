"""The operators that the CPU runs in place of those that only some devices have."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from parity.checks.equivalents import EQUIVALENTS, on_the_cpu

aten = torch.ops.aten


def cpu(name: str, *args: Any) -> Any:
    """What the CPU computes for an operator of this name."""
    made: Any = on_the_cpu(getattr(aten, name).default)(*args)
    return made


def test_every_equivalent_is_an_operator_of_torch() -> None:
    """So that a misspelt name is found."""
    known = {n.partition("::")[2] for n in torch._C._dispatch_get_all_op_names()}
    assert set(EQUIVALENTS) <= known | {"_mps_convolution", "mps_convolution_backward"}


def test_convolutions_of_libraries() -> None:
    """Their arguments come in another order than those of `torch.nn.functional`."""
    torch.manual_seed(0)
    x, w, bias = torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 2), torch.randn(6)
    stride, padding, dilation, how = [2, 1], [1, 2], [1, 2], (False, True, False)
    plain = F.conv2d(x, w, None, stride, padding, dilation, 2)
    assert torch.equal(cpu("cudnn_convolution", x, w, padding, stride, dilation, 2, *how), plain)
    with_bias = F.conv2d(x, w, bias, stride, padding, dilation, 2)
    assert torch.equal(cpu("miopen_convolution", x, w, bias, padding, stride, dilation, 2, *how[1:]), with_bias)
    back, outer = torch.randn(4, 3, 3, 2), [1, 0]
    turned = F.conv_transpose2d(x, back, None, stride, padding, outer, 2, dilation)
    assert torch.equal(cpu("cudnn_convolution_transpose", x, back, padding, outer, stride, dilation, 2, *how), turned)
    deep = torch.randn(4, 1, 3, 3)
    each = F.conv2d(x, deep, bias[:4], stride, padding, dilation, 4)
    assert torch.equal(cpu("_conv_depthwise2d", x, deep, [3, 3], bias[:4], stride, padding, dilation), each)
    cube, kernel = torch.randn(1, 4, 5, 6, 7), torch.randn(4, 1, 3, 2, 3)
    third = F.conv3d(cube, kernel, None, [1, 2, 1], [1, 0, 1], [1, 1, 2], 4)
    assert torch.equal(cpu("conv_depthwise3d", cube, kernel, [3, 2, 3], None, [1, 2, 1], [1, 0, 1], [1, 1, 2]), third)


def test_batch_norm_of_libraries() -> None:
    """The result, the gradients and the running statistics."""
    torch.manual_seed(0)
    x, grad, weight, bias = torch.randn(5, 3, 4), torch.randn(5, 3, 4), torch.rand(3), torch.randn(3)
    mean, variance = torch.zeros(3), torch.ones(3)
    made = cpu("cudnn_batch_norm", x, weight, bias, mean, variance, True, 0.1, 1e-5)
    own = [t.clone().requires_grad_() for t in (x, weight, bias)]
    plain = F.batch_norm(own[0], None, None, own[1], own[2], True, 0.1, 1e-5)
    assert torch.equal(made[0], plain)
    assert not torch.equal(mean, torch.zeros(3))
    wanted = torch.autograd.grad(plain, own, grad)
    got = cpu("cudnn_batch_norm_backward", x, grad, weight, mean, variance, made[1], made[2], 1e-5, torch.empty(0))
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a, b)
