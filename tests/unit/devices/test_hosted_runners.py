"""The three hosted Apple runners that were reported, played by the simulated device, and the machine that a device is in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parity.core import machine
from parity.core.errors import DeviceError
from parity.devices import Call, Fault, resolve
from parity.devices.preflight import CANARIES, probe
from parity.devices.sim.faults import out_of_memory
from parity.engine import doctor
from parity.faces import commandline
from parity.store import run_file

# macos-14 (actions/runner-images#9918): any allocation fails, with 0 bytes in use.
MACOS_14 = """
from parity.devices import Fault
from parity.devices.sim.faults import out_of_memory
FAULTS = [Fault("macos-14", ("empty",), out_of_memory, level="allocation")]
"""
# macos-26 (pytorch#188438, #192934): F.linear with a bias is silently wrong in its virtual machine.
MACOS_26 = """
from parity.devices import Fault
FAULTS = [
    Fault("macos-26", ("linear",), lambda c: c.run() - c.args[2], when=lambda c: len(c.args) > 2 and c.args[2] is not None)
]
"""


def command(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    capsys.readouterr()
    code = commandline.main(args)
    said = capsys.readouterr()
    return code, said.out + said.err


def test_macos_14_is_unusable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A device without memory is no device: the doctor says so, and no run begins."""
    (tmp_path / "faults.py").write_text(MACOS_14)
    faults = "--device", "sim:mps", "--setup", str(tmp_path / "faults.py")
    code = commandline.main(["doctor", *faults, "--json"])
    answer = json.loads(capsys.readouterr().out)["data"]
    assert (code, answer["verdict"]) == (4, "unusable")
    assert answer["reasons"] == ["out of memory at 256 bytes with 0 bytes allocated"]
    assert answer["means"] == "unusable: nothing can be compared on it"
    code, text = command(capsys, "run", "exp", *faults, "--output", str(tmp_path / "run.jsonl"))
    assert code == 4
    assert "unusable: out of memory at 256 bytes with 0 bytes allocated" in text
    assert not (tmp_path / "run.jsonl").exists()


def test_macos_15_is_healthy_though_its_memory_is_capped() -> None:
    """A gigabyte at once is too much, and what the suite needs is there."""
    gigabyte = 1 << 30
    capped = Fault("macos-15", ("empty",), _too_much(gigabyte), level="allocation")
    assert probe(resolve("sim:mps", (capped,))).verdict == "healthy"
    small = Fault("smaller", ("empty",), _too_much(1 << 24), level="allocation")
    found = probe(resolve("sim:mps", (small,)))
    assert found.verdict == "unusable"
    assert found.reasons[0].startswith("out of memory at 67108864 bytes")


def _too_much(limit: int) -> Any:
    def effect(call: Call) -> Any:
        size = 1
        for n in call.args[0]:
            size *= int(n)
        return out_of_memory() if size > limit else call.run()

    return effect


def test_macos_26_is_suspect_and_a_run_goes_on_under_a_banner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "faults.py").write_text(MACOS_26)
    faults = "--device", "sim:mps", "--setup", str(tmp_path / "faults.py")
    code, text = command(capsys, "doctor", *faults)
    assert code == 1
    assert "verdict  suspect: it computes, but not all known answers are right" in text
    assert "linear, 3-D, bias: " in text
    assert "linear, 3-D: " not in text
    path = tmp_path / "run.jsonl"
    short = "--dtype", "float32", "--examples", "1", "-n", "1", "--findings", str(tmp_path / "findings")
    code, text = command(capsys, "run", "exp", *faults, *short, "--output", str(path))
    assert code == 0
    assert "SUSPECT device: it computes, but not all known answers are right; a run goes on" in text
    assert "SUSPECT    the doctor found wrong linear, 2-D, bias; linear, 3-D, bias" in text
    header = run_file.read(path).header
    assert doctor.suspicion(header.fingerprint).startswith("linear, 2-D, bias")
    code, text = command(capsys, "report", str(path))
    assert "The device is suspect: findings may be this machine's own" in text


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_a_healthy_device_has_no_suspicion(name: str) -> None:
    found = probe(resolve(name))
    assert (found.reasons, dict(found.facts).get("doctor")) == ((), None)
    assert {"virtual machine", "memory of the machine"} <= set(dict(found.machine))


@pytest.mark.parametrize(
    ("canary", "op", "when"),
    [
        ("matmul, K = 40000", "mm", lambda c: c.args[0].shape[-1] > 32768),
        ("index_put, duplicates", "_index_put_impl_", lambda c: True),
        ("layer_norm", "native_layer_norm", lambda c: True),
    ],
)
def test_each_call_is_a_canary_of_its_own(canary: str, op: str, when: Any) -> None:
    """A fault of one call is reported under its name alone."""

    def effect(call: Call) -> Any:
        result = call.run()
        first = result[0] if isinstance(result, tuple) else result
        first.view(-1)[0] += 1
        return result

    assert [r.partition(":")[0] for r in probe(resolve("sim", (Fault("f", (op,), effect, when),))).reasons] == [canary]


def test_attention_is_a_canary() -> None:
    fault = Fault("f", ("scaled_dot_product_attention",), lambda c: c.run() * 1.5, level="function")
    names = [r.partition(":")[0] for r in probe(resolve("sim", (fault,))).reasons]
    assert names == ["attention", "attention, causal"]
    assert set(names) < set(CANARIES)


def test_memory_that_comes_back_wrong_is_a_reason() -> None:
    def forgets(call: Call) -> Any:
        result = call.run()
        result.view(-1)[:5] = 0
        return result

    fault = Fault("f", ("add",), forgets, when=lambda c: c.outs[0].numel() == 1 << 20)
    assert probe(resolve("sim", (fault,))).reasons == ("allocation of 1048576 bytes: 0 + 1 is not 1 in 5 of them",)


@pytest.mark.parametrize(
    ("system", "answers", "chip", "said"),
    [
        ("Darwin", {"hw.model": "VirtualMac2,1"}, "Apple Paravirtual device", "yes (Apple Paravirtual device)"),
        ("Darwin", {"hw.model": "VirtualMac2,1", "kern.hv_vmm_present": "1"}, "Apple M1", "yes (VirtualMac2,1)"),
        ("Darwin", {"hw.model": "Mac14,9", "kern.hv_vmm_present": "0"}, "Apple M2 Pro", "no (Mac14,9)"),
        ("Windows", {}, "", "unknown"),
    ],
)
def test_a_virtual_machine_is_told(
    monkeypatch: pytest.MonkeyPatch, system: str, answers: dict[str, str], chip: str, said: str
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr(machine, "asked", lambda *command: answers.get(command[-1], ""))
    assert machine.is_virtual(chip) == said


def test_an_absent_device_is_an_answer_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def absent(*_: Any) -> dict[str, Any]:
        raise DeviceError("no such device here")

    monkeypatch.setattr("parity.faces.commands.doctor.examined", absent)
    assert commandline.main(["doctor", "--device", "mps", "--json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["error"], answer["data"]) == ("INCONCLUSIVE", "no such device here", None)


def test_variables_are_told_with_what_they_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTORCH_MPS_PREFER_METAL", "1")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    code, text = command(capsys, "doctor", "--device", "cpu")
    assert code == 0
    lines = {line.split()[0]: line for line in text.splitlines() if "=" in line}
    assert lines["PYTORCH_MPS_PREFER_METAL=1"].endswith("1 multiplies matrices by Metal kernels instead of MPSGraph")
    assert "0 forbids TF32" in lines["NVIDIA_TF32_OVERRIDE=0"]
