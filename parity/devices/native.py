"""Native devices, by torch's own names: the CPU, and any other backend that torch knows (`parity.core.devices.Backend`)."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.core.devices import torch_at
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
    """A backend with a module `torch.<type>`, of which only what is there is used, as its table says."""

    def __init__(self, torch_device: torch.device, module: Any, name: str | None = None) -> None:
        """module: `torch.cuda` and the like. name: how a person names it; the torch device's own otherwise."""
        self.torch_device, self.module = torch_device, module
        self.name = name or str(torch_device)
        self.shares_memory, self.keeps_graphs = self.backend.shares_memory, self.backend.keeps_graphs
        self._which = () if self.backend.alone else (torch_device,)  # what its functions take

    def upload(self, t: Tensor) -> Tensor:
        """A copy on the device of a dense CPU tensor. Pinned memory is read later than the copy returns, on every backend."""
        early = self.backend.reads_at_once and not t.is_pinned()
        return t.detach().to(self.torch_device, copy=True, non_blocking=early)

    def download(self, t: Tensor) -> Tensor:
        """A detached copy on the CPU. Where errors of earlier kernels would come with it, it waits first, so that they are not
        blamed on the copy."""
        if self.backend.waits:
            self.synchronize()
        return super().download(t)

    def synchronize(self) -> None:
        """Wait for this device; asynchronous errors are raised here."""
        self.module.synchronize(*self._which)

    def seed(self, n: int) -> None:
        """Seed this device's own generator."""
        with contextlib.nullcontext() if self.backend.alone else self.module.device(self.torch_device):
            self.module.manual_seed(n)

    def memory(self) -> dict[str, int]:
        """Bytes allocated by tensors, reserved by the allocator, and on the device in all, or recommended at most."""
        figures = {figure: _call(self.module, name, *self._which) for figure, name in self.backend.memory.items()}
        figures["total"] = getattr(self._properties(), "total_memory", None)
        return {k: int(v) for k, v in figures.items() if v is not None}

    def release(self) -> None:
        """Give back what torch's allocator keeps, and the compiled graphs where this torch can."""
        for name in self.backend.releases:
            _call(self.module, name)

    def facts(self) -> dict[str, str]:
        """Name, capability, driver and what else the backend says of itself."""
        facts = {fact: self._asked(path) for fact, path in self.backend.facts.items()}
        properties = self._properties()
        facts |= {fact: getattr(properties, name, None) for fact, name in self.backend.properties.items()}
        facts.setdefault("driver", self.backend.driver())
        return {k: _text(v) for k, v in facts.items() if v not in (None, "")}

    def _asked(self, path: str) -> Any:
        owner, _, name = path.rpartition(".")
        return _call(torch_at(owner) if owner else self.module, name, *self._which)

    def _properties(self) -> Any:
        return None if self.backend.alone else _call(self.module, "get_device_properties", *self._which)


def _call(module: Any, name: str, *args: Any) -> Any:
    """The answer of a backend's function, or None where the backend does not have it or cannot say."""
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        return None
    try:
        return function(*args)
    except (RuntimeError, AssertionError, NotImplementedError):
        return None


def _text(value: Any) -> str:
    return ".".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
