"""A check of a random op: its law is asked, on a copy of the destination, and of the reference too."""

from __future__ import annotations

import pytest
import torch
from cases import checked
from spoiled import Spoiled
from torch import Tensor

from parity import catalog
from parity.devices.base import Device
from parity.execution import execute as ex


def at_the_other_rate(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    return x * (torch.rand(x.shape) < p) / (1 - p)


def verdict(text: str, device: Device) -> tuple[str, str]:
    said = next(iter(checked(device, text).values())).verdict
    return str(said.status), said.reason


def beside(t: Tensor) -> Tensor:
    if t.shape == (16,):  # the base, and nothing else, has 16 elements
        t[15] += 1
    return t


def test_a_check_of_a_random_op_asks_its_law() -> None:
    assert verdict("uniform_(float32[64])", Spoiled()) == ("agree", "by relation")
    assert verdict("uniform_(float32[64])", Spoiled(lambda t: t * 0.5))[0] == "wrong"
    assert verdict("uniform_(float32[8].step(-1, 2, 0))", Spoiled()) == ("agree", "by relation")
    assert verdict("uniform_(float32[8].step(-1, 2, 0))", Spoiled(beside)) == ("wrong", "written outside its destination")


def test_where_the_reference_fails_the_same_test_the_case_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ex.Program(catalog.row("dropout"), at_the_other_rate, None, False)
    monkeypatch.setattr("parity.checks.check.ex.program", lambda row: broken)
    status, reason = verdict("dropout(float32[64], p=0.25)", Spoiled())
    assert status == "void"
    assert reason.startswith("the reference fails the same test: outcome 0 came")
