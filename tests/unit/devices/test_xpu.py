"""Intel's GPUs from public facts, on a stub: functions like those of `torch.xpu`, and tensors on the simulated device."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import CPU, tables

from parity import catalog
from parity.checks.check import Settings, check, quiet
from parity.checks.refusal import survives
from parity.comparing.advice import advice, on_the_cpu, raised_on_the_cpu
from parity.core.backends import xpu
from parity.core.devices import Backend, backend_of
from parity.core.errors import DeviceError
from parity.core.notation import parse
from parity.core.results import Aspect, Status
from parity.devices import Call, Fault, refusals, resolve
from parity.devices.base import environment, fingerprint
from parity.devices.preflight import probe
from parity.devices.refusals import UNNAMED, listening
from parity.devices.resolve import NativeDevice

NO_FLOAT64 = "Required aspect fp64 is not supported on the device"
# Of torch-xpu-ops; the first as several versions have it, without the end of the quotation.
FALLBACKS = {
    "The operator 'aten::tanh.out on the XPU backend is falling back to run on the CPU.": "aten::tanh.out",
    "The operator 'aten::tanh.out' is not currently supported on the XPU backend and will fall back to run on the CPU. This "
    "may have performance implications.": "aten::tanh.out",
    "Aten Op fallback from XPU to CPU happends. This may have performance implications. If need debug the fallback ops please "
    "set environment variable `PYTORCH_DEBUG_XPU_FALLBACK=1` ": UNNAMED,
}


class Stub(NativeDevice):
    """An Arc A770: `torch.xpu` as of 2.13, whose functions take the device, over simulated memory."""

    def __init__(self, *faults: Fault) -> None:
        self.asked: list[str] = []
        self.inner = resolve("sim", faults)
        self.active = self.inner.active  # type: ignore[method-assign]
        super().__init__(self.inner.torch_device, self._module(), "xpu:0")

    def _module(self) -> Any:
        @contextlib.contextmanager
        def device(_: torch.device) -> Iterator[None]:
            yield

        def capability(_: torch.device) -> dict[str, Any]:
            raise NotImplementedError("a mapping of thirty numbers is no line of a report")

        about = SimpleNamespace(total_memory=16 << 30, driver_version="1.6.31896", has_fp64=False, architecture=1 << 32)
        return SimpleNamespace(
            synchronize=lambda d: self.asked.append("synchronize"),
            manual_seed=lambda n: self.asked.append(f"seed {n}"),
            device=device,
            memory_allocated=lambda d: 3,
            memory_reserved=lambda d: 5,
            empty_cache=lambda: self.asked.append("empty"),
            get_device_properties=lambda d: about,
            get_device_name=lambda d: "Intel(R) Arc(TM) A770 Graphics",
            get_device_capability=capability,
        )


def raises(error: Exception) -> Callable[[Call], Any]:
    def effect(call: Call) -> Any:
        raise error

    return effect


def without_float64() -> Fault:
    """A tensor of float64 can be made and copied; every kernel refuses it."""
    wide = (torch.float64, torch.complex128)
    return Fault(
        "fp64",
        ("*",),
        raises(RuntimeError(NO_FLOAT64)),
        lambda c: any(isinstance(a, torch.Tensor) and a.dtype in wide for a in (*c.args, *c.outs)) and "copy" not in c.op,
    )


def checked(text: str, *faults: Fault) -> dict[Aspect, Any]:
    device, notes, case = Stub(*faults), list[str](), parse(text)
    with device.active(), listening(notes):
        results, _ = check(catalog.row(case.op), case, device, CPU, tables("xpu"), Settings(), quiet, notes)
    return {r.aspect: r.verdict for r in results}


def test_it_is_asked_in_its_own_words() -> None:
    device = Stub()
    device.synchronize()
    device.seed(7)
    device.release()
    assert device.asked == ["synchronize", "seed 7", "empty"]
    assert device.memory() == {"allocated": 3, "reserved": 5, "total": 16 << 30}
    facts = {"chip": "Intel(R) Arc(TM) A770 Graphics", "driver": "1.6.31896", "float64": "False", "architecture": "4294967296"}
    assert device.facts() == facts
    assert fingerprint(device).driver == "1.6.31896"
    assert (device.shares_memory, device.keeps_graphs) == (False, False)


@pytest.mark.parametrize("wide", [True, False])
def test_the_doctor_finds_it_healthy_with_and_without_float64(wide: bool) -> None:
    """Arc of the first generation has none, and says so only where a kernel computes."""
    health = probe(Stub() if wide else Stub(without_float64()))
    assert health.reasons == ()
    assert health.verdict == "healthy"
    assert ("float64" in health.dtypes) == wide
    assert "float32" in health.dtypes


def test_what_it_refuses_is_unsupported_and_no_error() -> None:
    assert checked("exp(float64[3])", without_float64())[Aspect.FORWARD].status is Status.UNSUPPORTED
    assert checked("exp(float32[3])", without_float64())[Aspect.FORWARD].status is Status.AGREE
    missing = NotImplementedError(xpu.REFUSALS[0].texts[0].example)
    assert checked("exp(float32[3])", Fault("m", ("exp",), raises(missing)))[Aspect.FORWARD].status is Status.UNSUPPORTED
    lost = RuntimeError(xpu.ERRORS[0].texts[0].example)
    assert checked("exp(float32[3])", Fault("l", ("exp",), raises(lost)))[Aspect.FORWARD].status is Status.ERROR


@pytest.mark.parametrize(("warning", "name"), FALLBACKS.items())
def test_what_ran_on_the_cpu_is_heard_in_its_words(warning: str, name: str) -> None:
    def falls_back(call: Call) -> Any:
        warnings.warn(warning, UserWarning, stacklevel=1)
        return call.run()

    found = checked("tanh(float32[3])", Fault("f", ("tanh",), falls_back))[Aspect.FORWARD]
    assert (found.status, found.reason) == (Status.FALLBACK, f"ran on the CPU: {name}")


def test_other_warnings_are_no_fallback() -> None:
    def warns(call: Call) -> Any:
        warnings.warn("The operator 'aten::tanh' on the CPU backend is slow.", UserWarning, stacklevel=1)
        return call.run()

    assert checked("tanh(float32[3])", Fault("w", ("tanh",), warns))[Aspect.FORWARD].status is Status.AGREE


def test_a_kernel_that_would_end_the_process_is_not_called() -> None:
    """An assertion of a kernel ends the whole process there."""
    assert not survives(Stub(), "index")
    assert survives(Stub(), "shape")
    assert survives(resolve("sim"), "index")


def test_advice_names_its_own_variable() -> None:
    said = xpu.REFUSALS[0].texts[0].example
    assert on_the_cpu(said) == "PYTORCH_ENABLE_XPU_FALLBACK=1 in the environment runs it on the CPU (slower)"
    assert on_the_cpu("the device is lost") == ""
    assert raised_on_the_cpu("Torch not compiled with XPU enabled").startswith("let it compute where its inputs lie")
    assert advice(None, f"RuntimeError: {NO_FLOAT64}", "", "").startswith("use float32")  # type: ignore[arg-type]


def test_its_variables_are_in_the_fingerprint() -> None:
    """Those that choose a device are not: the steps of an archive go without what is, and would be on another device."""
    given = {"IGC_EnableDPEmulation": "1", "ZE_AFFINITY_MASK": "0.1", "ONEAPI_DEVICE_SELECTOR": "level_zero:1", "HOME": "/root"}
    assert environment(given) == (("IGC_EnableDPEmulation", "1"),)
    assert backend_of("xpu:1") is xpu.BACKEND


@pytest.mark.skipif(torch.xpu._is_compiled(), reason="this torch is built with XPU")
def test_an_absent_one_says_why() -> None:
    with pytest.raises(DeviceError, match=r"device 'xpu' is not available: torch .+ is built without XPU; name a device"):
        resolve("xpu")


def test_a_pattern_of_a_fallback_need_not_name_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another backend, whose table has a pattern without a group."""
    other = Backend(name="npu", fallback=re.compile(r"runs on the host"))
    monkeypatch.setattr(refusals, "all_backends", lambda: (other,))
    assert refusals.fell_back("tanh runs on the host") == UNNAMED
    assert refusals.fell_back("tanh runs on the device") == ""
