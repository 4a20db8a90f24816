"""A device that ends the process of a command is reported with the operator that it was at."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.engine.reading import HANG_AFTER
from parity.faces.commandline import main

MODEL = """
import torch


def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), torch.randn(2, 4)
"""
LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset


def read(x):
    for (batch,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4, num_workers=1, multiprocessing_context="fork"):
        x = x + batch.sum()
    return x.exp()


def net():
    return read, torch.randn(3)
"""
TRAINING = """
import torch


def make(device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda x: step(model, x)


def step(model, x):
    loss = model(x).sum()
    loss.backward()
    return loss


def small():
    return make, [torch.randn(2, 4)]
"""
SLOW_CPU = """
import time
from parity.locating import calls

plain = calls.cpu_results


def slow(call, theirs):
    if call.base_name == "gelu_backward":
        time.sleep(100)
    return plain(call, theirs)


calls.cpu_results = slow
"""
FAULT = """
import os
from parity.devices import Fault
FAULTS = [Fault("dies", ("gelu_backward",), lambda call: {act}, level="kernel")]
"""


@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("os.abort()", "the device ends the process (SIGABRT) in aten::gelu_backward, backward of 1 (GELU)"),
        ("os._exit(0)", "the device ends the process (exit code 0) in aten::gelu_backward, backward of 1 (GELU)"),
    ],
)
def test_the_operator_is_named(
    act: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exit code of 0 is no agreement."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("faults.py").write_text(FAULT.format(act=act))
    assert main(["locate", "model.py:net", "--device", "sim", "--setup", "faults.py"]) == 1
    assert told in capsys.readouterr().out


def test_what_a_healthy_device_ends_with_is_passed_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Findings, agreement and mistakes."""
    (tmp_path / "model.py").write_text(MODEL)
    assert main(["locate", f"{tmp_path / 'model.py'}:net", "--device", "sim"]) == 0
    assert main(["locate", f"{tmp_path / 'model.py'}:other", "--device", "sim"]) == 2
    assert "other" in capfd.readouterr().err


def test_a_model_that_ends_the_process_with_0_is_no_success(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(
        f"import os\n{MODEL}\n\ndef gone():\n    return (lambda x: os._exit(0)), torch.ones(3)\n"
    )
    assert main(["locate", f"{tmp_path / 'model.py'}:gone", "--device", "sim"]) == 1
    assert "ends the process (exit code 0)" in capfd.readouterr().out


@pytest.mark.parametrize("given", [("locate", "--device", "sim"), ("train", "--device", "sim"), ("audit",)], ids=lambda g: g[0])
def test_a_model_that_leaves_the_command_by_sys_exit_is_no_success(
    given: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """While it is made, where only the command itself would see it."""
    (tmp_path / "model.py").write_text("import sys\n\n\ndef gone():\n    sys.exit(0)\n")
    assert main([given[0], f"{tmp_path / 'model.py'}:gone", *given[1:]]) == 2
    said = "".join(capfd.readouterr())
    assert "sys.exit(0)" in said or "SystemExit: 0" in said


def test_a_model_may_read_its_data_by_workers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Forked processes of `multiprocessing`, which call operators of their own while the device is watched."""
    (tmp_path / "model.py").write_text(LOADER)
    assert main(["locate", f"{tmp_path / 'model.py'}:net", "--device", "sim"]) == 0
    assert "exited unexpectedly" not in "".join(capfd.readouterr())


def test_a_device_that_hangs_is_told_with_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A healthy operator before it takes less than the limit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(HANG_AFTER, "1.5")
    Path("model.py").write_text(MODEL)
    Path("faults.py").write_text(FAULT.format(act="__import__('time').sleep(100)"))
    given = ["model.py:net", "--device", "sim", "--setup", "faults.py"]
    assert main(["locate", *given]) == 1
    assert "the device hangs: 1.5 s in aten::gelu_backward, backward of 1 (GELU)" in capsys.readouterr().out


def test_a_training_tells_the_operator_that_a_device_does_not_come_back_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the user's own step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(HANG_AFTER, "1.5")
    Path("train.py").write_text(TRAINING)
    Path("faults.py").write_text(FAULT.format(act="__import__('time').sleep(100)"))
    given = ["train.py:small", "--device", "sim", "--setup", "faults.py", "--steps", "1"]
    assert main(["train", *given]) == 1
    told = "the device hangs: 1.5 s in aten::gelu_backward, backward of 1 (GELU) at train.py:11, in step"
    assert told in capsys.readouterr().out


def test_a_cpu_that_hangs_where_it_runs_a_capture_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device made its results long ago, on another machine."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("slow.py").write_text(SLOW_CPU)
    assert main(["locate", "model.py:net", "--device", "sim", "--capture", "a.capture"]) == 0
    monkeypatch.setenv(HANG_AFTER, "1.5")
    assert main(["locate", "model.py:net", "--against", "a.capture", "--setup", "slow.py"]) == 1
    told = "the CPU of this machine hangs: 1.5 s in aten::gelu_backward, backward of 1 (GELU)"
    assert told in capsys.readouterr().out
