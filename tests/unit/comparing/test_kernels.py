"""The author of a kernel compares it with a reference function, as the chapter `kernels` of the manual says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pages
import pytest
import torch
from torch import Tensor, nn

import parity
from parity.devices import resolve

X = torch.linspace(-3.0, 3.0, 48).requires_grad_()
SHADER = next(b.text for b in pages.blocks(pages.MANUAL / "kernels.md") if b.file == "shader.py")


def right(x: Tensor) -> Tensor:
    """The kernel of the chapter."""
    return x / (1 + torch.exp(-x))


def one_element_off(x: Tensor) -> Tensor:
    """The last one, as where a grid ends too early."""
    out = right(x)
    out.reshape(-1)[-1:].zero_()
    return out


def scaled(x: Tensor) -> Tensor:
    """Too large by 0.1 %."""
    return right(x) * 1.001


def backward(ctx: Any, g: Tensor) -> Tensor:
    """The gradient of `right`."""
    x: Tensor = ctx.saved_tensors[0]
    s = torch.sigmoid(x)
    return g * (s + x * s * (1 - s))


class Net(nn.Module):
    """An operator between operators of torch. It is an attribute, which cannot be copied."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.before, self.operator = nn.Linear(8, 8), operator

    def forward(self, x: Tensor) -> Any:
        return self.operator(self.before(x)).sin()


@pytest.mark.parametrize(("kernel", "is_right"), [(right, True), (one_element_off, False), (scaled, False)])
def test_an_operator_of_torch_library_is_compared_with_its_kernel_for_the_cpu(
    kernel: Callable[[Tensor], Tensor], is_right: bool
) -> None:
    device = resolve("sim")
    name = f"parity_tests::{kernel.__name__}"
    made: Any = torch.library.custom_op(name, right, mutates_args=(), device_types="cpu", schema="(Tensor x) -> Tensor")
    made.register_kernel(device.torch_device.type)(kernel)
    made.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    net = Net(made)
    found = parity.locate(net, X.view(6, 8), device=device)
    if is_right:
        assert "2 of 2 tensors agree" in str(parity.assert_parity(made, X, device=device))
        assert found.agrees
        return
    with pytest.raises(parity.ParityFailure, match="in out"):
        parity.assert_parity(made, X, device=device)
    assert [(d.operator, d.pass_) for d in found.divergences] == [(name, "forward")]
    assert "test_kernels.py" in str(found)


def stub(kernel: Callable[[Tensor], Tensor]) -> Callable[[str], Any]:
    """A `torch.mps.compile_shader` whose kernel sees memory without strides, as Metal does."""

    def swish(out: Tensor, x: Tensor) -> None:
        out.view(-1).copy_(kernel(x.as_strided((out.numel(),), (1,))))

    def compiled(source: str) -> Any:
        assert "kernel void swish" in source
        return SimpleNamespace(swish=swish)

    return compiled


@pytest.mark.parametrize(
    ("kernel", "forgotten", "agree"),
    [
        (right, "", [True, True, True]),
        (scaled, "", [False, False, False]),
        (one_element_off, "", [False, False, False]),
        (right, ".contiguous()", [True, False, False]),  # views alone show it
    ],
)
def test_a_shader_is_compared_with_a_reference_function(
    kernel: Callable[[Tensor], Tensor],
    forgotten: str,
    agree: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The program of the chapter, on a simulated device."""
    monkeypatch.setattr(torch.mps, "compile_shader", stub(kernel))
    there = str(resolve("sim").torch_device)
    program = SHADER.replace('device="mps"', f'device="{there}"').replace(forgotten or "\0", "")
    assert there in program
    exec(compile(program, "shader.py", "exec"), {"__name__": "__main__"})
    answers = [line for line in capsys.readouterr().out.splitlines() if "reference float32 on" in line]
    assert [line.startswith("OK") for line in answers] == agree
