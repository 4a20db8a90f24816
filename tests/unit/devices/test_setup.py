"""Code that a person names may set flags for good, but no mode in which parity would compare less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parity.core import state
from parity.core.errors import UsageError
from parity.devices import load_faults
from parity.devices.setup import refuse_modes, run_setup

FAULTS = "from parity.devices import Fault\nFAULTS = [Fault('f', ('exp',), lambda c: c.run())]\n"
MODES = {
    "inference mode": "torch.kept = torch.inference_mode(); torch.kept.__enter__()",
    "grad mode": "torch.set_grad_enabled(False)",
    "autocast": "torch.autocast('cpu').__enter__()",
    "forward gradients": "torch._C._set_fwd_grad_enabled(False)",
    "the level of dual numbers": "torch.autograd.forward_ad.enter_dual_level()",
    "detection of anomalies": "torch.autograd.set_detect_anomaly(True)",
    "the function modes": "torch.set_default_device('meta')",
}


def written(folder: Path, text: str) -> str:
    path = folder / "own.py"
    path.write_text(f"import torch\n{text}\n")
    return str(path)


@pytest.mark.parametrize(("run", "more"), [(run_setup, ""), (load_faults, FAULTS)], ids=["setup", "faults"])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_that_stays_in_force_is_refused(run: Any, more: str, mode: str, tmp_path: Path) -> None:
    """And it is not in force any more, so that the process can report it."""
    refused = pytest.raises(UsageError, match=rf"own\.py leaves {mode} .*end that mode there")
    with state.Kept(), refused:  # the default device's mode is put back at once, what torch notes of it is not
        run(written(tmp_path, f"{MODES[mode]}\n{more}"))
    assert not state.unusual(state.TAKING)


@pytest.mark.parametrize(("run", "more"), [(run_setup, ""), (load_faults, FAULTS)], ids=["setup", "faults"])
def test_flags_and_modes_that_end_are_not(run: Any, more: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    with state.Kept():
        run(written(tmp_path, f"torch.set_num_threads({threads + 1})\nwith torch.inference_mode():\n    torch.ones(2)\n{more}"))
        assert torch.get_num_threads() == threads + 1


def test_a_mode_that_a_backend_brings_with_torch_is_refused() -> None:
    refuse_modes()
    with torch.inference_mode(), pytest.raises(UsageError, match=r"importing torch.*inference mode \(on\)"):
        refuse_modes()
