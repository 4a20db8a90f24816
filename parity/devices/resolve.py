"""From the name of a device to the device."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from parity.core import extensions, project
from parity.core.devices import SIMULATED, USUAL, backend_of, torch_at
from parity.core.errors import DeviceError, UsageError, near
from parity.devices.base import Device
from parity.devices.sim import Fault, simulated

# Types that torch parses but that cannot compute numbers here.
NO_NUMBERS = ("meta", "lazy", "fpga", "ort", "vulkan", "ideep", "mkldnn", "opengl", "opencl", "hip", "ve", "maia", "xla")
ADDED: dict[str, Callable[[str], Device]] = {}  # of files outside of the package: type -> what makes the device of a name


def add(kind: str, make: Callable[[str], Device]) -> None:
    """Add a type of devices of a file outside of the package, for a backend that needs a class of its own; one that torch knows
    by a module `torch.<type>` needs none. make: takes the name ("mine:1"). Raises UsageError for a type that is taken."""
    if _is_taken(kind) or kind in ADDED or not re.fullmatch(r"[a-z_]+", kind):
        raise UsageError(f"no type of devices can be added as '{kind}'; name yours otherwise, in small letters")
    ADDED[kind] = make
    extensions.note("device", kind)


def resolve(name: str, faults: Sequence[Fault] = ()) -> Device:
    """The device of that name, with faults planted if it is a simulated one.

    `auto` is the first accelerator that torch reports, and `sim:mps` if there is none. Raises UsageError for a name that torch
    does not know and for faults on a device that is not simulated, DeviceError for a device that this machine does not have.
    """
    if name == "auto":
        name = _first_accelerator()
    if name.partition(":")[0] == "sim":
        if name not in SIMULATED:
            raise UsageError(_unknown(name))
        return simulated(name, faults)
    if faults:
        raise UsageError(f"faults can only be planted on a simulated device, not on '{name}'; use --device sim or sim:mps")
    if not _is_taken(kind := name.partition(":")[0]):
        extensions.load()  # it may import the backend, or add the type
        if kind in ADDED:
            return ADDED[kind](name)
    kind, index = _parse(name)
    if kind == "cpu":
        return CpuDevice()
    module = _available(name, kind, index)
    return NativeDevice(torch.device(kind) if backend_of(kind).alone else torch.device(kind, index or 0), module)


def _first_accelerator() -> str:
    if not torch.accelerator.is_available():
        return "sim:mps"
    accelerator = torch.accelerator.current_accelerator()
    # torch reports a registered simulated device as an accelerator, too.
    return "sim:mps" if accelerator is None or accelerator.type == "sim" else accelerator.type


def _is_taken(kind: str) -> bool:
    """Whether a usual name is parity's or torch's own. That of a table alone is not: a package may bring its devices."""
    return kind in ("auto", *SIMULATED) or (kind in USUAL and _is_torchs(kind))


def _is_torchs(kind: str) -> bool:
    try:
        torch.device(kind)
    except RuntimeError:
        return False
    return True


def _parse(name: str) -> tuple[str, int | None]:
    """Type and index. A type is known if torch parses it and can compute on it."""
    match = re.fullmatch(r"([a-z_]+\d*[a-z_]*)(?::(\d+))?", name)
    kind = match.group(1) if match else ""
    if not match or not _is_torchs(kind) or kind in NO_NUMBERS:
        raise UsageError(_unknown(name))
    return kind, None if match.group(2) is None else int(match.group(2))


def _unknown(name: str) -> str:
    if name in USUAL:
        way_out = "import that in a file, --setup FILE" + project.origin("device", name)
        return f"torch does not know the device '{name}' before its package is imported; {way_out}"
    hint = near(name, USUAL)
    return (
        f"no device '{name}'; allowed: auto, cpu, {', '.join(SIMULATED)}, mps, or another of torch's names with or without an "
        "index (cuda, cuda:1, xpu)" + (f"; {hint}" if hint.startswith("did") else "") + project.origin("device", name)
    )


def _available(name: str, kind: str, index: int | None) -> Any:
    """The backend's module. Raises DeviceError with the reason and the remedy."""
    module = getattr(torch, kind, None)
    way_out = "name a device that is here (--device auto finds one), or test without hardware: --device sim:mps"
    if module is None or not module.is_available():
        reason = backend_of(kind).absent() or f"torch {torch.__version__} sees no {kind} device"
        raise DeviceError(f"device '{name}' is not available: {reason}; {way_out}")
    count = int(module.device_count())
    if (index or 0) >= count:
        raise DeviceError(f"device '{name}' is not available: torch sees {count} device(s) of type {kind}; {way_out}")
    return module


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
