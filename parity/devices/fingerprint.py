"""Everything that may change numerics between two runs on "the same" device."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

import torch

from parity.core import extensions
from parity.core.devices import all_backends
from parity.core.health import Health
from parity.core.machine import IMAGE, asked
from parity.core.results import Fingerprint
from parity.core.version import __version__
from parity.devices.base import Device

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
