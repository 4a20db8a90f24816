"""Native devices against stand-ins: torch's module for the backend, and for MPS a device with its limits."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from parity.core.devices import backend_of
from parity.devices import classify, resolve
from parity.devices.resolve import CpuDevice, NativeDevice


class FakeMps:
    """`torch.mps` as of 2.13, as far as it answers without arguments: passing a device is a TypeError, as there."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def manual_seed(self, seed: int) -> None:
        self.calls.append(f"seed {seed}")

    def current_allocated_memory(self) -> int:
        return 1024

    def driver_allocated_memory(self) -> int:
        return 4096

    def recommended_max_memory(self) -> int:
        return 1 << 33


def mps(module: object = None) -> NativeDevice:
    """Tensors go to `sim:mps`, which refuses what MPS refuses."""
    return NativeDevice(resolve("sim:mps").torch_device, module or FakeMps(), "mps")


def test_mps_is_asked_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M4 Pro")
    monkeypatch.setattr(torch.backends.mps, "get_core_count", lambda: 20)
    device = mps()
    device.synchronize()
    device.seed(7)
    assert device.module.calls == ["synchronize", "seed 7"]
    assert device.memory() == {"allocated": 1024, "reserved": 4096, "recommended_max": 1 << 33}
    assert device.name == "mps"
    assert not device.simulated
    assert {"chip": "Apple M4 Pro", "cores": "20"}.items() <= device.facts().items()


def test_mps_without_the_newer_questions_still_has_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("get_name", "get_core_count"):
        monkeypatch.delattr(torch.backends.mps, name)
    bare = mps(SimpleNamespace(synchronize=lambda: None))
    assert bare.memory() == {}
    assert (bare.shares_memory, bare.keeps_graphs) == (True, True)
    assert "chip" not in bare.facts()


def test_mps_waits_before_a_download() -> None:
    device = mps()
    t = device.upload(torch.ones(2))
    back = device.download(t.requires_grad_())
    assert device.module.calls == ["synchronize"]
    assert not back.requires_grad
    assert back.is_cpu


def test_mps_never_gets_float64() -> None:
    with pytest.raises(TypeError) as e:
        mps().upload(torch.ones(2, dtype=torch.float64))
    assert classify(e.value, "upload") == "refused"


def test_another_backend_is_asked_with_its_device() -> None:
    asked: list[object] = []

    @contextlib.contextmanager
    def device(d: torch.device) -> Iterator[None]:
        asked.append(("device", d))
        yield

    def broken(d: torch.device) -> int:
        raise RuntimeError("not on this backend")

    module = SimpleNamespace(
        synchronize=lambda d: asked.append(("synchronize", d)),
        manual_seed=lambda n: asked.append(("seed", n)),
        device=device,
        memory_allocated=lambda d: 3,
        memory_reserved=broken,
        get_device_properties=lambda d: SimpleNamespace(total_memory=9),
        get_device_name=lambda d: "Some GPU",
        get_device_capability=lambda d: (9, 0),
    )
    place = torch.device("maia", 1)  # which computes no numbers, so that nobody adds a table of it
    native = NativeDevice(place, module)
    native.synchronize()
    native.seed(5)
    assert asked == [("synchronize", place), ("device", place), ("seed", 5)]
    assert native.name == "maia:1"
    assert native.memory() == {"allocated": 3, "total": 9}
    assert native.facts() == {"chip": "Some GPU", "capability": "9.0"}


def test_the_cpu_copies_both_ways() -> None:
    cpu = resolve("cpu")
    t = torch.ones(2)
    up = cpu.upload(t)
    up.add_(1)
    down = cpu.download(up)
    up.add_(1)
    assert (t.tolist(), down.tolist()) == ([1, 1], [2, 2])
    cpu.seed(3)
    first = torch.rand(1)
    cpu.seed(3)
    assert torch.equal(first, torch.rand(1))


@pytest.mark.parametrize("functions", [("empty_cache",), ("empty_cache", "clear_graph_cache"), ()])
def test_mps_gives_back_what_this_torch_can(functions: tuple[str, ...]) -> None:
    """The allocator's pools, and the compiled graphs in versions of torch that have a function for it."""
    called: list[str] = []
    module = SimpleNamespace(**{name: functools.partial(called.append, name) for name in functions})
    NativeDevice(torch.device("mps"), module).release()
    assert tuple(called) == functions


def test_a_device_without_memory_is_asked_once_more_without_its_caches() -> None:
    """Too little memory is no death."""

    class Full(CpuDevice):
        full = True

        def release(self) -> None:
            self.full = False

        def computes(self) -> bool:
            return not self.full

    assert Full().answers()


@pytest.mark.parametrize(("place", "pinned", "waits"), [("cuda", False, False), ("cuda", True, True), ("xpu", False, True)])
def test_an_upload_to_cuda_alone_is_not_waited_for(place: str, pinned: bool, waits: bool) -> None:
    """CUDA has read pageable memory when a copy returns; from pinned memory it reads later."""
    asked: list[bool] = []

    class Tensor:
        def detach(self) -> Tensor:
            return self

        def is_pinned(self) -> bool:
            return pinned

        def to(self, device: torch.device, copy: bool, non_blocking: bool) -> Tensor:
            asked.append(non_blocking)
            return self

    NativeDevice(torch.device(place), SimpleNamespace()).upload(Tensor())  # type: ignore[arg-type]
    assert asked == [not waits]


def test_the_driver_is_told_without_a_cudnn_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises where the one that it finds is another than it was built for."""

    def another() -> int:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "version", another)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12080, raising=False)
    assert backend_of("cuda").driver().endswith("driver 12080")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    assert backend_of("cuda").driver().endswith("driver 12080, cuDNN 91002")
