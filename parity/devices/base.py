"""The interface of a device to the rest of parity.

Everything that may change numerics between two runs on "the same" device.
"""

from __future__ import annotations

import contextlib
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from parity.core import extensions, state
from parity.core.devices import Backend, Health, all_backends, backend_of
from parity.core.machine import IMAGE, asked
from parity.core.processes import asked_to_stop, deadly
from parity.core.results import Fingerprint
from parity.core.version import __version__


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


# Variables of torch, including those of its backends, are recognized by these prefixes.
PREFIXES = ("PYTORCH_", "TORCH_ALLOW_TF32", "MTL_")
# Variable -> what it does to results.
VARIABLES = {
    **{name: effect for b in all_backends() for name, effect in b.variables.items()},
    "ATEN_CPU_CAPABILITY": "kernels of the reference for other vector instructions",
    **dict.fromkeys(IMAGE, "the image of GitHub's runner, whose macOS and drivers change with it"),
    "DNNL_DEFAULT_FPMATH_MODE": "oneDNN may compute float32 in a narrower dtype",
    "ONEDNN_DEFAULT_FPMATH_MODE": "oneDNN may compute float32 in a narrower dtype",
    "DNNL_MAX_CPU_ISA": "kernels of the reference for other vector instructions",
    "ONEDNN_MAX_CPU_ISA": "kernels of the reference for other vector instructions",
    "MKL_CBWR": "in which order MKL sums",
    "MKL_NUM_THREADS": "in how many parts the reference sums",
    "OMP_NUM_THREADS": "in how many parts the reference sums",
}


def fingerprint(device: Device, health: Health | None = None) -> Fingerprint:
    """The fingerprint of a device in its current state. health: what its probe measured, if it was probed."""
    own = device.facts()
    return Fingerprint(
        parity=__version__,
        torch=torch.__version__,
        torch_git=torch.version.git_version or "",
        python=platform.python_version(),
        os=operating_system(),
        machine=machine(),
        device=device.name,
        device_name=own.get("chip", ""),
        driver=own.get("driver", ""),
        simulated=device.simulated,
        environment=(*environment(os.environ), *extensions.sources()),
        facts=health.facts if health is not None else tuple(own.items()),
    )


def environment(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The environment variables that are set and may change numerics, by name."""
    return tuple(sorted((k, v) for k, v in variables.items() if k in VARIABLES or k.startswith(PREFIXES)))


def operating_system() -> str:
    """Name, version and build: "macOS 15.5 (24F74)", "Linux 6.8.0-41-generic". The build identifies Apple's GPU library."""
    if platform.system() == "Darwin":
        build = asked("sw_vers", "-buildVersion") or platform.release()
        return f"macOS {platform.mac_ver()[0]} ({build})"
    return f"{platform.system()} {platform.release()}"


def machine() -> str:
    """Architecture and, on a Mac, the hardware model: "arm64 Mac14,9"."""
    model = asked("sysctl", "-n", "hw.model") if platform.system() == "Darwin" else ""
    return f"{platform.machine()} {model}".strip()
