"""Native devices, by torch's own names: the CPU, MPS, CUDA (and ROCm), XPU, and any other backend that torch knows."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.devices import mps
from parity.devices.base import Device


class CpuDevice(Device):
    """The reference's home as a device: for comparing the CPU with itself."""

    def __init__(self) -> None:
        self.name = "cpu"
        self.torch_device = torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def seed(self, n: int) -> None:
        """Seed torch's default generator."""
        torch.default_generator.manual_seed(n)

    def facts(self) -> dict[str, str]:
        """Processor and the vector instructions that torch uses."""
        return {"chip": platform.processor() or platform.machine(), "capability": torch.backends.cpu.get_cpu_capability()}


class NativeDevice(Device):
    """A backend with a module `torch.<type>`, of which only what is there is used."""

    def __init__(self, torch_device: torch.device, module: Any, name: str | None = None) -> None:
        """module: `torch.cuda` and the like. name: how a person names it; the torch device's own otherwise."""
        self.torch_device, self.module = torch_device, module
        self.name = name or str(torch_device)

    def upload(self, t: Tensor) -> Tensor:
        """A copy on the device of a dense CPU tensor. CUDA need not be waited for: it has read pageable memory when its copy
        returns (CUDA's documentation, "API synchronization behavior"), and every wait costs as much as a small kernel, or ten
        times as much where other processes use the device too. Pinned memory it reads later."""
        early = self.torch_device.type == "cuda" and not t.is_pinned()
        return t.detach().to(self.torch_device, copy=True, non_blocking=early)

    def synchronize(self) -> None:
        """Wait for this device; asynchronous errors are raised here."""
        self.module.synchronize(self.torch_device)

    def seed(self, n: int) -> None:
        """Seed this device's own generator."""
        with self.module.device(self.torch_device):
            self.module.manual_seed(n)

    def memory(self) -> dict[str, int]:
        """Bytes allocated by tensors, reserved by the allocator, and on the device in all."""
        figures = {
            "allocated": _call(self.module, "memory_allocated", self.torch_device),
            "reserved": _call(self.module, "memory_reserved", self.torch_device),
        }
        properties = _call(self.module, "get_device_properties", self.torch_device)
        figures["total"] = getattr(properties, "total_memory", None)
        return {k: int(v) for k, v in figures.items() if v is not None}

    def release(self) -> None:
        """Give back what torch's allocator keeps."""
        _call(self.module, "empty_cache")

    def facts(self) -> dict[str, str]:
        """Name, compute capability and driver, as far as the backend says."""
        index = self.torch_device
        facts = {
            "chip": _call(self.module, "get_device_name", index),
            "capability": _call(self.module, "get_device_capability", index),
            "driver": _driver(index.type),
        }
        return {k: _text(v) for k, v in facts.items() if v not in (None, "")}


class MpsDevice(NativeDevice):
    """Apple's GPU. `torch.mps` knows one device, and its functions take none as an argument."""

    shares_memory = True
    keeps_graphs = True

    def __init__(self, torch_device: torch.device, module: Any, backend: Any) -> None:
        """module: `torch.mps`. backend: `torch.backends.mps`, which names the chip."""
        super().__init__(torch_device, module, "mps")
        self.backend = backend

    def download(self, t: Tensor) -> Tensor:
        """A detached copy on the CPU; waits first, so that an error of an earlier kernel is not blamed on the copy."""
        self.synchronize()
        return super().download(t)

    def synchronize(self) -> None:
        """Wait for every command buffer; errors such as an index out of bounds are raised here."""
        self.module.synchronize()

    def seed(self, n: int) -> None:
        """Seed the MPS generator; its stream is another than the CPU's."""
        self.module.manual_seed(n)

    def memory(self) -> dict[str, int]:
        """Bytes in tensors, bytes that Metal has given out, and the size that the system recommends to stay under."""
        figures = {key: _call(self.module, name) for key, name in mps.MEMORY_FUNCTIONS.items()}
        return {k: int(v) for k, v in figures.items() if v is not None}

    def release(self) -> None:
        """Give back what the allocator keeps, and the compiled graphs where this torch can: 2.13 cannot."""
        super().release()
        _call(self.module, mps.CLEAR_GRAPHS)

    def facts(self) -> dict[str, str]:
        """Chip, number of GPU cores, and the macOS version and build: its MPSGraph is the driver."""
        facts = {
            **{key: _call(self.backend, name) for key, name in mps.FACTS.items()},
            "driver": f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else None,
        }
        return {k: _text(v) for k, v in facts.items() if v not in (None, "")}


def _call(module: Any, name: str, *args: Any) -> Any:
    """The answer of a backend's function, or None where the backend does not have it or cannot say."""
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        return None
    try:
        return function(*args)
    except (RuntimeError, AssertionError, NotImplementedError):
        return None


def _driver(device_type: str) -> str:
    if device_type != "cuda":
        return ""
    versions = {"CUDA": torch.version.cuda, "HIP": torch.version.hip}
    parts = [f"{k} {v}" for k, v in versions.items() if v]
    if (driver := _call(torch._C, "_cuda_getDriverVersion")) is not None:
        parts.append(f"driver {driver}")
    if (cudnn := _call(torch.backends.cudnn, "version")) is not None:
        parts.append(f"cuDNN {cudnn}")
    return ", ".join(parts)


def _text(value: Any) -> str:
    return ".".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
