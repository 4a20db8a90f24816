"""The cheap screens of `locate` pass what roundings explain, and nothing that is a tenth of a percent off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import parity
from parity.checks.operators import OperatorCall, StridedOperand
from parity.comparing.function import compared
from parity.comparing.moved_runs import moved_run
from parity.comparing.pair import compare
from parity.comparing.screens import Sums, is_settled, moves_as_far
from parity.devices import Call, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST
from parity.locating import calls, search


def strided(t: Tensor, group: int) -> StridedOperand:
    return StridedOperand(t.flatten(), tuple(t.shape), t.stride(), 0, False, False, group)


def product(a: Tensor, b: Tensor) -> OperatorCall:
    return OperatorCall(torch.ops.aten.mm.default, (strided(a, 0), strided(b, 1)), {})


def chained(a: Tensor, b: Tensor) -> Tensor:
    """A product that adds one term after the other, in the dtype of its operands: the worst of the honest orders."""
    total = torch.zeros(len(a), b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k]
    return total


def one_off(t: Tensor, factor: float, at: int | None = None) -> Tensor:
    """One element off: that of the usual size, or another."""
    wrong = t.clone()
    wrong.view(-1)[int(t.abs().flatten().median(0).indices) if at is None else at] *= factor
    return wrong


def test_sums_are_settled_in_any_order_and_no_error_of_a_tenth_of_a_percent_is() -> None:
    """Nor TF32, which rounds the operands to 11 bits, nor a result whose operands are in half types."""
    torch.manual_seed(0)
    a, b = torch.randn(24, 6000), torch.randn(6000, 24)
    cpu, sums = a @ b, Sums()
    got = chained(a, b)
    assert not is_settled(got, cpu)
    assert not sums.left(product(a, b), [(0, got, cpu)])
    assert sums.left(product(a, b), [(0, one_off(cpu, 1.001), cpu)])
    assert sums.left(product(a, b), [(0, one_off(cpu, float("nan")), cpu)])
    assert sums.left(product(a, b), [(0, cpu * 1.001, cpu)])
    lower = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a, b)]
    assert sums.left(product(a, b), [(0, lower[0] @ lower[1], cpu)])
    halves = a.half(), b.half()
    assert sums.left(product(*halves), [(0, (halves[0] @ halves[1]) * 1.002, halves[0] @ halves[1])])


def test_a_sum_of_one_sign_is_settled_as_well() -> None:
    """Its partial sums grow with the number of terms."""
    torch.manual_seed(0)
    a, b = torch.rand(8, 6000), torch.rand(6000, 8)
    assert not Sums().left(product(a, b), [(0, chained(a, b), a @ b)])


def test_what_moves_as_far_as_roundings_move_it_is_settled() -> None:
    """A layer_norm of numbers far from 0 loses digits on any device; an element that is off, or all by a factor, is seen."""
    torch.manual_seed(0)
    x = torch.randn(16, 64) + 300

    def run(t: Tensor) -> list[Tensor]:
        return [F.layer_norm(t, (64,))]

    cpu = run(x)[0]
    other = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    moved = moved_run(run, [x], 5)[0]
    assert not is_settled(moved, cpu)
    for got, settled in (
        (other, True),
        (moved, True),
        (one_off(cpu, 1.01), False),
        (cpu * 1.001, False),
        (one_off(cpu, float("inf")), False),
    ):
        assert moves_as_far([(got, cpu)], lambda key: moved_run(run, [x], key)) is settled
    half = cpu.half()
    assert not moves_as_far([(half, half)], lambda key: [half])


def test_special_numbers_are_settled_where_both_have_the_same() -> None:
    x = torch.tensor([float("inf"), float("nan"), 1.0, -2.0])
    assert is_settled(x * (1 + 1e-7), x)
    assert not is_settled(torch.tensor([float("-inf"), float("nan"), 1.0, -2.0]), x)
    assert not is_settled(torch.tensor([float("inf"), 3.0, 1.0, -2.0]), x)


class Net(nn.Module):
    """A convolution whose gradient has long sums, a normalization, attention and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 16, 5, padding=2), nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, 3, height, width)."""
        y = self.norm(F.gelu(self.conv(x)).flatten(2).transpose(1, 2))
        out: Tensor = self.head(F.scaled_dot_product_attention(y, y[:, :50], y[:, :50]).mean(1))
        return out


def test_no_truth_is_computed_for_an_honest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any operator; the model as a whole is judged as by `assert_parity`, and `effort="full"` computes all."""
    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 3, 48, 48)

    asked: list[str] = []

    def noting(plain: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            asked.append(plain.__name__)
            return plain(*args, **kwargs)

        return noted

    monkeypatch.setattr(calls, "compare", noting(compare))
    monkeypatch.setattr(search, "compared", noting(compared))
    assert parity.locate(net, x, device=resolve("sim", HONEST)).agrees
    assert asked == ["compared"]
    assert parity.locate(net, x[:1, :, :8, :8], device=resolve("sim", HONEST), effort="full").agrees
    assert {"compare", "compared"} <= set(asked)


@pytest.mark.parametrize("op", ["convolution_backward", "native_layer_norm"])
def test_an_operator_that_is_a_tenth_of_a_percent_off_is_named(op: str) -> None:
    """On a device that rounds otherwise everywhere else."""
    torch.manual_seed(0)

    def off(call: Call) -> Any:
        result = call.run()
        return (
            tuple(t * 1.001 if k == 0 and t is not None else t for k, t in enumerate(result))
            if isinstance(result, tuple)
            else result * 1.001
        )

    net = nn.Sequential(Net(), nn.Linear(5, 5))
    x = torch.randn(2, 3, 16, 16, requires_grad=True)
    found = parity.locate(net, x, device=resolve("sim", (Fault("off", (op,), off), *HONEST)), whole=False)
    assert found.first is not None
    assert op in found.first.operator


def test_what_only_the_whole_shows_is_found_at_a_tenth_of_a_percent() -> None:
    """A gradient of the user's own that is made otherwise on the device: each of its operators agrees."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] if grads[0].is_cpu else grads[0] * 1.001

    def fn(t: Tensor) -> Any:
        return F.gelu(Own.apply(F.gelu(t)))  # type: ignore[no-untyped-call]

    x = torch.randn(64, 64, requires_grad=True)
    found = parity.locate(fn, x, device="sim")
    assert found.first is None
    assert "grad[" in found.whole
