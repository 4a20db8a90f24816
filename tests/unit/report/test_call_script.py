"""The script of a call that diverges in a model shows the fault on the device that has it, and on no other."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import parity
from parity.devices import Call, Device, Fault, resolve
from parity.faces.commandline import main
from parity.locating.located import Divergence
from parity.report import script as module
from parity.report.script import Unwritable, call_script


def larger(call: Call) -> Any:
    """The first result 1 % too large."""
    result = call.run()
    return (result[0] * 1.01, *result[1:]) if isinstance(result, tuple) else result * 1.01


def more_variance(call: Call) -> Any:
    """What batch_norm keeps, 5 % too large."""
    result = call.run()
    call.operands[4].mul_(1.05)
    return result


def first(device: Device) -> Divergence:
    """What parts first in a small network: its convolution reads a transposed input."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(12, 2))
    found = parity.locate(net, torch.randn(4, 2, 4, 4).transpose(2, 3), device=device).first
    assert found is not None
    return found


def code(path: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> int:
    """What the script ends with on a device of this process."""
    monkeypatch.setattr(sys, "argv", [str(path), str(device.torch_device)])
    with device.active(), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("operator", "effect"),
    [("gelu", larger), ("gelu_backward", larger), ("convolution", larger), ("native_batch_norm", more_variance)],
)
def test_it_shows_the_fault_and_blames_no_healthy_device(
    operator: str, effect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forward, backward, with strides, and in what it writes; torch alone runs it."""
    faulty = resolve("sim", (Fault("off", (operator,), effect),))
    path = tmp_path / "call.py"
    path.write_text(call_script(first(faulty), faulty.name))
    assert code(path, faulty, monkeypatch) == 1
    assert code(path, resolve("sim"), monkeypatch) == 0
    assert "they differ" in capsys.readouterr().out
    assert "import parity" not in path.read_text()
    if operator == "native_batch_norm":  # the one that writes; a process takes a second
        done = subprocess.run([sys.executable, str(path), "cpu"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "they agree")


def test_what_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of operators that only the device has, and large operands."""
    faulty = resolve("sim", (Fault("off", ("_lstm_mps",), larger),))
    lstm = parity.locate(nn.LSTM(2, 3), torch.randn(4, 1, 2), device=faulty).first
    assert lstm is not None
    with pytest.raises(Unwritable, match=r"torch.lstm is not an operator that the CPU has, too; parity run tests it"):
        call_script(lstm, "sim")
    monkeypatch.setattr(module, "LARGEST", 8)
    with pytest.raises(Unwritable, match="the operands of aten::gelu take 0 KiB, and a script holds 0; try a smaller model"):
        call_script(first(resolve("sim", (Fault("off", ("gelu",), larger),))), "sim")


def test_the_command_writes_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where something parts; else it says that nothing does."""
    models, faults, script = (tmp_path / n for n in ("models.py", "faults.py", "call.py"))
    models.write_text("import torch\n\n\ndef net():\n    return torch.nn.GELU(), torch.randn(5)\n")
    faults.write_text("from parity.devices import Fault\nFAULTS = [Fault('gelu', ('gelu',), lambda call: call.run() * 1.01)]\n")
    asked = ["locate", str(models), "--device", "sim", "--output", str(script)]
    assert main(asked) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "no script: no operator diverges"
    assert main([*asked, "--setup", str(faults)]) == 1
    assert capfd.readouterr().out.splitlines()[-1] == f"the call of aten::gelu, for a report: python {script}"
    assert "torch.ops.aten.gelu" in script.read_text()
    assert main([*asked[:-1], str(tmp_path)]) == 2
    assert "is a folder; name a file with --output" in capfd.readouterr().err
