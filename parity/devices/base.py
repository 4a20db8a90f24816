"""The seam: what the rest of parity knows of a device."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor


class Device(ABC):
    """A place where torch computes.

    name: as a person names it ("cpu", "mps", "cuda:0", "sim:mps"). torch_device: as tensors on it say (always with an index
    where torch gives one). simulated: whether the figures say nothing about real hardware.
    """

    name: str
    torch_device: torch.device
    simulated: bool = False

    def upload(self, t: Tensor) -> Tensor:
        """A copy on the device of a dense CPU tensor (a base storage; views are made there)."""
        return t.detach().to(self.torch_device, copy=True)

    def download(self, t: Tensor) -> Tensor:
        """A detached copy on the CPU, complete when this returns; lazy conj and neg bits are resolved there."""
        return t.detach().to("cpu", copy=True).resolve_conj().resolve_neg()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Wrap this around calls on the device. Simulated devices need it for function-level faults; others do nothing."""
        yield

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device; errors that it kept for later are raised here."""

    @abstractmethod
    def seed(self, n: int) -> None:
        """Seed the device's own random generator."""

    def answers(self) -> bool:
        """Whether the device still computes: after some errors every further call fails, and only a new process helps."""
        try:
            return float(self.download(self.upload(torch.ones(2)) + 1.0).sum()) == 4.0
        except Exception:  # whatever a backend raises
            return False

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether a tensor of this dtype comes back from the device."""
        try:
            self.download(self.upload(torch.ones(2, dtype=dtype)))
        except Exception:  # whatever a backend raises
            return False
        return True

    def memory(self) -> dict[str, int]:
        """Figures in bytes, as far as the backend has them ("allocated", "reserved", "recommended_max", "total")."""
        return {}

    def facts(self) -> dict[str, str]:
        """What identifies the hardware and its software: "chip", "driver" ..., as far as the backend says."""
        return {}

    def __repr__(self) -> str:
        return f"<Device {self.name}>"
