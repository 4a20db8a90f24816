"""The interface of a device to the rest of parity."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from parity.core import state
from parity.core.devices import Backend, backend_of
from parity.core.processes import asked_to_stop, deadly


class Device(ABC):
    """A place where torch computes.

    name: as a person writes it ("cpu", "mps", "cuda:0", "sim:mps"). torch_device: the device of tensors on it (always with an
    index if torch gives one). simulated: whether the results say nothing about real hardware. shares_memory: whether what it
    reserves is the machine's own memory, besides what the process occupies. keeps_graphs: whether it compiles and keeps a graph
    for every new combination of shapes, dtypes and scalars.
    """

    name: str
    torch_device: torch.device
    simulated: bool = False
    shares_memory: bool = False
    keeps_graphs: bool = False

    @property
    def backend(self) -> Backend:
        """What parity knows of its backend."""
        return backend_of(self.name)

    def upload(self, t: Tensor) -> Tensor:
        """A copy on the device of a dense CPU tensor (a base storage; views are made on the device)."""
        return t.detach().to(self.torch_device, copy=True)

    def download(self, t: Tensor) -> Tensor:
        """A detached copy on the CPU, complete when this returns, with lazy conj and neg bits resolved."""
        return t.detach().to("cpu", copy=True).resolve_conj().resolve_neg()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """A context for calls on the device. Simulated devices need it for function-level faults; for others it does
        nothing."""
        yield

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """A context within `active` for calls of what torch.compile made. It does nothing but for simulated devices, which are
        Python themselves."""
        yield

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device; asynchronous errors are raised here."""

    @abstractmethod
    def seed(self, n: int) -> None:
        """Seed the device's own random generator."""

    def answers(self) -> bool:
        """Whether the device still computes. After some errors every further call fails until the process is restarted; one
        that is out of memory is asked once more without its caches. What the sum leaves in torch's state is put back, so that a
        case with the same operator is accused of it."""
        if deadly():  # the examination uses no operator where one of them ends the process
            return self.takes(torch.float32)
        with state.Kept(closely=False):
            if self.computes():
                return True
            self.release()
            return self.computes()

    def computes(self) -> bool:
        """Whether one sum is right."""
        try:
            return float(self.download(self.upload(torch.ones(2)) + 1.0).sum()) == 4.0
        except BaseException as e:  # whatever a backend raises
            if asked_to_stop(e):
                raise
            return False

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether a tensor of this dtype can be uploaded and downloaded."""
        try:
            self.download(self.upload(torch.ones(2, dtype=dtype)))
        except BaseException as e:  # whatever a backend raises
            if asked_to_stop(e):
                raise
            return False
        return True

    def memory(self) -> dict[str, int]:
        """Numbers of bytes that the backend reports ("allocated", "reserved", "recommended_max", "total")."""
        return {}

    def used(self) -> int | None:
        """Bytes in use, to be compared before and after calls; None where the backend does not say."""
        return self.memory().get("allocated")

    def release(self) -> None:  # noqa: B027 -- most backends keep nothing
        """Give back the memory that the backend keeps for later calls."""

    def facts(self) -> dict[str, str]:
        """Identification of the hardware and its software ("chip", "driver" ...), as far as the backend reports it."""
        return {}

    def __repr__(self) -> str:
        return f"<Device {self.name}>"
