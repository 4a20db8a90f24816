"""A device that needs no simulation: the CPU behind uploads that copy, with a fault in what comes back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from parity.devices.base import Device


class Spoiled(Device):
    """The CPU behind uploads that copy, as on every real device, and `spoil` over whatever is downloaded."""

    name = "spoiled"
    torch_device = torch.device("cpu")

    def __init__(self, spoil: Callable[[Tensor], Tensor] = lambda t: t) -> None:
        self.spoil = spoil

    def download(self, t: Tensor) -> Tensor:
        """What arrives on the CPU."""
        return self.spoil(super().download(t))

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def seed(self, n: int) -> None:
        """Torch's own generator."""
        torch.default_generator.manual_seed(n)
