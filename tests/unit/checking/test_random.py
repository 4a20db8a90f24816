"""A check of a random op: its law is asked, on a copy of the destination, and of the reference too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from parity import catalog, tolerance
from parity import execute as ex
from parity.checking.check import Settings, check, quiet
from parity.devices import resolve
from parity.devices.base import Device
from parity.notation import parse

CPU = resolve("cpu")


def at_the_other_rate(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    return x * (torch.rand(x.shape) < p) / (1 - p)


class Spoiled(Device):
    """The CPU behind uploads that copy, with a fault in the downloads."""

    name = "spoiled"
    torch_device = torch.device("cpu")

    def __init__(self, spoil: Callable[[Tensor], Tensor] = lambda t: t) -> None:
        self.spoil = spoil

    def download(self, t: Tensor) -> Tensor:
        """What arrives on the CPU."""
        return self.spoil(super().download(t))

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def seed(self, n: int) -> None:
        """Torch's own generator."""
        torch.default_generator.manual_seed(n)


def verdict(text: str, device: Device) -> tuple[str, str]:
    case = parse(text)
    results, _ = check(catalog.row(case.op), case, device, CPU, tolerance.load("cpu"), Settings(), quiet, [])
    return str(results[0].verdict.status), results[0].verdict.reason


def beside(t: Tensor) -> Tensor:
    if t.shape == (16,):  # the base, and nothing else, has 16 elements
        t[15] += 1
    return t


def test_a_check_of_a_random_op_asks_its_law() -> None:
    assert verdict("uniform_(float32[64])", Spoiled()) == ("agree", "by relation")
    assert verdict("uniform_(float32[64])", Spoiled(lambda t: t * 0.5))[0] == "wrong"
    assert verdict("uniform_(float32[8].step(-1, 2, 0))", Spoiled()) == ("agree", "by relation")
    assert verdict("uniform_(float32[8].step(-1, 2, 0))", Spoiled(beside)) == ("wrong", "written beside its destination")


def test_where_the_reference_fails_the_same_test_the_case_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ex.Program(catalog.row("dropout"), at_the_other_rate, None, False)
    monkeypatch.setattr("parity.checking.check.ex.program", lambda row: broken)
    status, reason = verdict("dropout(float32[64], p=0.25)", Spoiled())
    assert status == "void"
    assert reason.startswith("the reference fails the same test: outcome 0 came")
