"""Names of devices: known, near, absent."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from parity import devices
from parity.core import extensions, project
from parity.core.errors import DeviceError, UsageError
from parity.devices import Fault, resolve

NO_MPS = pytest.mark.skipif(torch.backends.mps.is_built(), reason="this torch is built with MPS")


@pytest.mark.parametrize("name", ["cpu", "sim", "sim:mps", "sim:honest", "sim:mps:honest"])
def test_a_device_keeps_its_name(name: str) -> None:
    device = resolve(name)
    assert device.name == name
    assert device.simulated == name.startswith("sim")


@pytest.mark.skipif(torch.accelerator.is_available() and not hasattr(torch, "sim"), reason="has an accelerator")
def test_auto_without_an_accelerator_is_the_simulated_mps_also_when_asked_twice() -> None:
    assert resolve("auto").name == "sim:mps"
    assert resolve("auto").name == "sim:mps"


@NO_MPS
def test_an_absent_device_says_why_and_what_to_do() -> None:
    with pytest.raises(DeviceError) as e:
        resolve("mps")
    assert e.value.exit_code == 4
    assert str(e.value) == (
        f"device 'mps' is not available: torch {torch.__version__} is built without MPS (it needs macOS on Apple silicon); "
        "name a device that is here (--device auto finds one), or test without hardware: --device sim:mps"
    )


@pytest.mark.parametrize("name", ["xpu", "hpu:1", "mtia"])
def test_other_backends_of_torch_are_known_but_absent(name: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{name}' is not available"):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("simm", "did you mean 'sim' or 'sim:mps'?"),
        ("sim:cuda", "did you mean"),
        ("sim:3", "did you mean"),
        ("mps:x", "did you mean 'mps'"),
        ("cdua", "did you mean 'cuda' or 'cpu'?"),
        ("meta", "allowed: auto, cpu, sim, sim:mps, sim:honest, sim:mps:honest, mps"),
        ("", "(cuda, cuda:1, xpu)"),
    ],
)
def test_an_unknown_name_is_a_usage_error_with_the_nearest_ones(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as e:
        resolve(name)
    assert e.value.exit_code == 2
    assert str(e.value).startswith(
        f"no device '{name}'; allowed: auto, cpu, sim, sim:mps, sim:honest, sim:mps:honest, mps, or another of torch's names"
    )
    assert hint in str(e.value)


def test_faults_need_a_simulated_device() -> None:
    fault = Fault("x", ("add",), effect=lambda call: None)
    with pytest.raises(UsageError, match="faults can only be planted on a simulated device, not on 'cpu'"):
        resolve("cpu", (fault,))


def test_devices_with_faults_live_beside_healthy_ones_and_give_their_index_back() -> None:
    fault = Fault("x", ("add",), effect=lambda call: call.run() * 2)
    indices = set()
    for _ in range(200):
        device = resolve("sim", (fault,))
        indices.add(device.torch_device.index)
        del device
    assert not indices & {0, 1}
    healthy, faulty = resolve("sim"), resolve("sim", (fault,))
    one = torch.ones(2)
    assert (healthy.upload(one) + 1).tolist() == [2, 2]
    assert (faulty.upload(one) + 1).tolist() == [4, 4]


def test_a_type_of_devices_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the name that was typed; a type that is there cannot be taken."""
    monkeypatch.setattr(importlib.import_module("parity.devices.resolve"), "ADDED", {})
    monkeypatch.setattr(extensions, "added", [])
    cpu = resolve("cpu")
    named: list[str] = []
    devices.add("mine", lambda name: named.append(name) or cpu)  # type: ignore[func-returns-value]
    assert resolve("mine:1") is cpu
    assert named == ["mine:1"]
    for taken in ("mine", "mps", "Mine"):
        with pytest.raises(UsageError, match=f"no type of devices can be added as '{taken}'; name yours otherwise"):
            devices.add(taken, resolve)


def test_a_type_with_a_table_can_be_added_where_torch_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is what parity knows of a backend; the devices may come with a package. Until they do, it is said how."""
    module = importlib.import_module("parity.devices.resolve")
    monkeypatch.setattr(module, "ADDED", {})
    monkeypatch.setattr(module, "USUAL", (*module.USUAL, "mine"))
    monkeypatch.setattr(extensions, "added", [])
    why = "torch does not know the device 'mine' before its package is imported; import that in a file, --setup FILE"
    with pytest.raises(UsageError, match=why):
        resolve("mine")
    cpu = resolve("cpu")
    devices.add("mine", lambda name: cpu)
    assert resolve("mine") is cpu
    for taken in ("mine", "auto", "sim", "hpu"):
        with pytest.raises(UsageError, match="no type of devices can be added"):
            devices.add(taken, resolve)


def test_an_unknown_device_of_the_settings_names_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.parity]\ndevice = "mpss"\n')
    monkeypatch.setenv(project.FILE, str(file))
    with pytest.raises(UsageError) as e:
        resolve("mpss")
    assert str(e.value).endswith(f"? (device of [tool.parity] in {file})")
