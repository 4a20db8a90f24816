"""The operators that the examination of a device calls: named before each call, and replaced where one ended it before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from parity.core.processes import DEADLY
from parity.devices import Fault, preflight, resolve
from parity.devices.sim.call import Call
from parity.engine import doctor


def interrupts(call: Call) -> object:
    raise KeyboardInterrupt


def test_each_call_is_noted_and_whatever_it_raises_has_words() -> None:
    device = resolve("sim", (Fault("interrupts", ("exp",), interrupts),))
    notes: list[str] = []
    with preflight.guarded(device, notes.append), device.active():
        x = device.upload(torch.ones(3))
        total = x.sum()
        assert notes[-1] == "sum"
        assert device.download(total).item() == 3.0
        with pytest.raises(RuntimeError, match="exp raised KeyboardInterrupt"):
            x.exp()
        assert notes[-1] == "exp"
    with device.active(), pytest.raises(KeyboardInterrupt):
        device.upload(torch.ones(3)).exp()


def test_a_deadly_operator_is_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEADLY, "exp")
    device = resolve("sim", (Fault("interrupts", ("exp",), interrupts),))
    with preflight.guarded(device), device.active():
        got = torch.exp(device.upload(torch.zeros(2)))
        assert got.device.type == device.torch_device.type
        assert device.download(got).tolist() == [1.0, 1.0]
    assert preflight.reasons({}) == ("exp: ended the process that examined the device; its own findings say more",)
    assert device.answers()  # by transfers alone


def test_what_the_sum_leaves_in_the_state_of_torch_is_put_back() -> None:
    """Else a case with the same operator would begin with it, and nobody would be accused."""

    def lowers(call: Call) -> Any:
        torch.set_float32_matmul_precision("medium")
        return call.run()

    device = resolve("sim", (Fault("lowers", ("add",), lowers),))
    with device.active():
        assert device.answers()
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_device_that_dies_in_the_examination_is_suspect_by_name(tmp_path: Path) -> None:
    (tmp_path / "faults.py").write_text(
        "import os\nfrom parity.devices import Fault\nFAULTS = [Fault('dies', ('cumsum',), lambda call: os.abort())]\n"
    )
    answer = doctor.examined("sim", str(tmp_path / "faults.py"))
    assert answer["verdict"] == "suspect"
    assert answer["deadly"] == ["cumsum"]
    assert answer["reasons"] == ["cumsum: ended the process that examined the device; its own findings say more"]
    assert DEADLY not in os.environ


class Detaching(TorchFunctionMode):
    """A mode that calls functions itself: ten of them in force take a thousand calls for each."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.detach() if isinstance(result, torch.Tensor) else result


@pytest.mark.parametrize("faulty", [True, False])
def test_a_mode_that_a_call_leaves_is_put_back_and_the_device_suspect(faulty: bool) -> None:
    def enters(call: Call) -> Any:
        result = call.run()
        if faulty:
            torch._C._push_on_torch_function_stack(Detaching())
        return result

    device = resolve("sim", (Fault("enters", ("add",), enters),))
    with preflight.guarded(device) as left, device.active(), torch.no_grad():
        x = device.upload(torch.ones(3))
        for _ in range(40):
            x = torch.add(x, 1)
        assert device.download(x).tolist() == [41.0] * 3
    assert not torch._C._len_torch_function_stack()
    said = ("add: left the function modes (none before, Detaching after) in its process",)
    assert preflight.reasons(left) == (said if faulty else ())
