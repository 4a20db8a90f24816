"""The efforts of `assert_parity`: what passes by default without a truth and what does not, and what the full one adds."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import parity
from parity import Call, Fault, ParityFailure
from parity.comparing import meter
from parity.comparing.truth import FunctionTruth
from parity.core.errors import UsageError
from parity.devices import resolve
from parity.devices.sim import honest

HONEST = tuple(honest.FAULTS)


class Net(nn.Module):
    """Convolution, batch norm with its buffers, attention and a linear layer, of a few thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, 3, height, width)."""
        x = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        out: Tensor = self.head(x.mean(1)).softmax(-1)
        return out


def net() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(4, 3, 9, 9)


@pytest.fixture
def truths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tensors whose truth is asked for."""
    asked: list[str] = []
    real = FunctionTruth.truth

    def noted(self: FunctionTruth, name: str) -> Tensor | None:
        asked.append(name)
        return real(self, name)

    monkeypatch.setattr(FunctionTruth, "truth", noted)
    return asked


def large() -> tuple[nn.Sequential, Tensor]:
    """As many elements as moved runs are asked for before the truth."""
    torch.manual_seed(0)
    layers = nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 8), nn.Softmax(-1)
    return nn.Sequential(*layers), torch.randn(16, 512, requires_grad=True)


def test_a_large_function_needs_no_truth_where_roundings_move_it_as_far(truths: list[str]) -> None:
    """Element by element; with `detail` and in full effort the truth is asked all the same."""
    model, x = large()
    found = parity.assert_parity(model, x, device=resolve("sim", HONEST))
    assert not truths
    assert 0.0 < found.share <= 1.0
    parity.assert_parity(model[:2], x, device=resolve("sim", HONEST), detail=True)
    assert truths


@pytest.mark.parametrize(
    "op", ["gelu", *(pytest.param(op, marks=pytest.mark.slow) for op in ("addmm", "native_layer_norm_backward"))]
)
def test_a_large_function_that_is_a_tenth_of_a_percent_off_is_found(op: str) -> None:
    """On top of honest roundings, and in all elements or in one of a row."""
    model, x = large()

    def off(call: Call) -> Any:
        out = call.run()
        return (out[0] * 1.001, *out[1:]) if isinstance(out, tuple) else out * 1.001

    def once(call: Call) -> Any:
        out = call.run()
        first = (out[0] if isinstance(out, tuple) else out).view(-1)
        first[first.abs().argmax()] *= 1.001
        return out

    for effect in (off, once):
        device = resolve("sim", (Fault("off", (op, "linear") if op == "addmm" else (op,), effect), *HONEST))
        with pytest.raises(ParityFailure):
            parity.assert_parity(model, x, device=device)


@pytest.mark.parametrize("inside", [False, True])
def test_half_types_are_judged_by_the_truth(truths: list[str], inside: bool) -> None:
    """Also those that a function casts to inside: a fault of a percent is as small as a rounding there."""
    torch.manual_seed(0)
    weight, x = torch.randn(512, 512, requires_grad=True), torch.randn(4, 512)

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return (x.bfloat16() @ weight.bfloat16()).float().sin() if inside else (x @ weight).sin()

    parity.assert_parity(f, x, weight, device=resolve("sim", HONEST))
    assert bool(truths) is inside


@pytest.mark.parametrize("wrong", [True, False])
def test_moved_runs_stand_for_samples_next_to_a_wrong_operator_of_half_types(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """In half types, where one is wrong by itself, the whole function runs in float64 for none; the honest device agrees."""
    taken: list[int] = []
    real = FunctionTruth._take_one

    def noted(self: FunctionTruth, *given: Any) -> bool:
        taken.extend([1] * self._backward)  # of the whole function: operators have no backward pass
        return real(self, *given)

    monkeypatch.setattr(FunctionTruth, "_take_one", noted)
    model, x = large()
    off = Fault("off", ("gelu",), lambda call: call.run() * 1.02)
    device = resolve("sim", (off,) if wrong else HONEST)
    given = model.bfloat16(), x.detach().bfloat16().requires_grad_()
    if wrong:
        with pytest.raises(ParityFailure, match=r"first in 1.*aten::gelu"):
            parity.assert_parity(*given, device=device)
    else:
        assert parity.assert_parity(*given, device=device).agrees
    assert bool(taken) is not wrong


def test_full_judges_equal_tensors_by_the_truth(truths: list[str]) -> None:
    """The default takes equal bits for an agreement."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(2, 4)
    parity.assert_parity(model, x, device="sim")
    assert not truths
    found = parity.assert_parity(model, x, device="sim", effort="full")
    assert {n for n, _ in found.verdicts} == {*truths} == {"out", "grad[0.weight]", "grad[0.bias]"}


@pytest.mark.parametrize("word", ["hard", "quick"])
def test_an_unknown_effort_is_named(word: str) -> None:
    with pytest.raises(UsageError, match=f"^effort is '{word}'; allowed: default, full$"):
        parity.assert_parity(torch.exp, torch.ones(3), device="sim", effort=word)  # type: ignore[arg-type]


def test_a_long_truth_says_how_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From a number of seconds on, here none, and after each run."""
    monkeypatch.setattr(meter.Meter, "_next", property(lambda _: 0.0, lambda *_: None), raising=False)
    model, x = net()
    parity.assert_parity(model, x, device=resolve("sim", HONEST))
    said = capsys.readouterr().err
    assert re.search(r"parity: Net: \d s so far, with the runs on the CPU; about \d+ s more\n", said)
    assert re.search(r"parity: Net: \d s so far, with a run in float64; about \d+ s more\n", said)


def test_the_fixture_takes_the_effort_of_the_run(pytester: pytest.Pytester) -> None:
    """As an option, and in the settings."""
    pytester.makepyfile(
        "import torch\n"
        "def test_one(parity):\n"
        "    assert parity._options['effort'] == 'full'\n"
        "    parity(torch.exp, torch.ones(3))\n"
    )
    given = ("--parity-device", "sim", "-p", "no:cacheprovider")
    assert pytester.runpytest_subprocess(*given, "--parity-effort", "full").ret == 0
    pytester.makepyprojecttoml("[tool.parity]\neffort = 'full'\n")
    assert pytester.runpytest_subprocess(*given).ret == 0
