"""A probe finds healthy devices healthy, and says what is wrong with the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parity.core.errors import DeviceError, UsageError
from parity.devices import Call, Fault, resolve
from parity.devices.base import environment, fingerprint
from parity.devices.preflight import probe
from parity.devices.sim.profile import FLOAT64_TEXT
from parity.engine import doctor

OOM_TEXT = "MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes). Tried to allocate 1 on shared pool."


@pytest.mark.parametrize("name", ["cpu", "sim", "sim:mps"])
def test_a_healthy_device_is_healthy(name: str) -> None:
    health = probe(resolve(name))
    assert health.reasons == ()
    assert health.verdict == "healthy"
    assert ("float64" in health.dtypes) == (name != "sim:mps")
    assert dict(health.facts)["subnormals float32"] == "kept"
    assert dict(health.facts)["float32_matmul"] == "float32"


def test_a_wrong_linear_is_suspect() -> None:
    def forgets_bias(call: Call) -> Any:
        return call.run() - call.args[2]

    fault = Fault("l", ("linear",), effect=forgets_bias, when=lambda c: len(c.args) > 2 and c.args[0].dim() == 3)
    health = probe(resolve("sim", (fault,)))
    assert health.verdict == "suspect"
    assert len(health.reasons) == 1
    assert health.reasons[0].startswith("linear, 3-D, bias: 48 of 60 elements are wrong, e.g. ")


def test_a_canary_that_raises_is_a_reason_and_the_others_still_run() -> None:
    def fails(call: Call) -> None:
        raise RuntimeError("shader is gone")

    faults = (Fault("c", ("cumsum",), effect=fails), Fault("s", ("sum",), effect=lambda call: call.run() * float("nan")))
    health = probe(resolve("sim", faults))
    assert health.verdict == "suspect"
    assert [r.partition(":")[0] for r in health.reasons] == ["sum", "cumsum"]
    assert "raised RuntimeError: shader is gone" in health.reasons[1]


def test_a_view_that_is_lost_in_the_copy_is_found() -> None:
    fault = Fault("v", ("copy_",), effect=lambda c: None, when=lambda c: not c.outs[0].is_contiguous())
    assert "write into a strided view" in [r.partition(":")[0] for r in probe(resolve("sim", (fault,))).reasons]


def test_no_memory_at_all_is_an_unusable_machine() -> None:
    def full(call: Call) -> None:
        raise RuntimeError(OOM_TEXT)

    health = probe(resolve("sim", (Fault("m", ("empty", "empty_strided"), effect=full),)))
    assert health.verdict == "unusable"
    assert health.reasons == ("out of memory at 256 bytes with 0 bytes allocated",)


def test_flushed_subnormals_are_measured() -> None:
    def flush(call: Call) -> torch.Tensor:
        result: torch.Tensor = call.run()
        return torch.where(result.abs() < torch.finfo(torch.float32).tiny, 0, result)

    fault = Fault("f", ("add", "mul"), effect=flush, when=lambda c: c.outs[0].dtype == torch.float32)
    facts = dict(probe(resolve("sim", (fault,))).facts)
    assert (facts["subnormals float32"], facts["subnormals float16"]) == ("flushed", "kept")


def test_a_matmul_in_half_precision_shows() -> None:
    fault = Fault("h", ("mm",), effect=lambda c: (c.args[0].half() @ c.args[1].half()).float())
    assert dict(probe(resolve("sim", (fault,))).facts)["float32_matmul"] == "tf32 or float16"


def test_a_dtype_that_answers_wrongly_is_a_reason_and_a_refused_one_is_not() -> None:
    def refuse(call: Call) -> None:
        raise TypeError(FLOAT64_TEXT)

    faults = (
        Fault("i", ("add",), effect=lambda c: c.run() + 1, when=lambda c: c.outs[0].dtype == torch.int16),
        Fault("d", ("add",), effect=refuse, when=lambda c: c.outs[0].dtype == torch.float64),
    )
    health = probe(resolve("sim", faults))
    assert health.reasons == ("int16: 1 + 1 gave [3, 3, 3] in int16",)
    assert not {"int16", "float64"} & set(health.dtypes)


def test_the_fingerprint_names_what_changes_numbers() -> None:
    device = resolve("sim:mps")
    found = fingerprint(device, probe(device))
    assert (found.device, found.device_name, found.simulated) == ("sim:mps", "simulated", True)
    assert found.torch_git == torch.version.git_version
    assert ("float32_matmul", "float32") in found.facts
    variables = {"PYTORCH_MPS_FAST_MATH": "1", "OMP_NUM_THREADS": "2", "HOME": "/h", "NVIDIA_TF32_OVERRIDE": "0"}
    assert environment(variables) == (("NVIDIA_TF32_OVERRIDE", "0"), ("OMP_NUM_THREADS", "2"), ("PYTORCH_MPS_FAST_MATH", "1"))


def test_a_child_examines_it(tmp_path: Path) -> None:
    faults = tmp_path / "faults.py"
    faults.write_text("from parity.devices import Fault\nF = Fault('s', ('sum',), lambda call: call.run() + 1)\n")
    found = doctor.examined("sim", str(faults))
    assert (found["device"], found["verdict"]) == ("sim", "suspect")
    assert found["fingerprint"]["simulated"] is True
    with pytest.raises(UsageError, match="nowhere"):
        doctor.examined("nowhere")


def test_a_child_that_ends_before_it_answers_is_no_device(tmp_path: Path) -> None:
    """With 0, too: it has not said that it has done what it was given."""
    setup = tmp_path / "setup.py"
    setup.write_text("import os\nos._exit(0)\n")
    with pytest.raises(DeviceError, match=r"the probe of device sim died after --setup .* \(exit code 0\); it is unusable"):
        doctor.examined("sim", setup=str(setup))
