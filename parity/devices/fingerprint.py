"""Everything that may change numerics between two runs on "the same" device."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata

import torch

from parity.core.results import Fingerprint
from parity.devices.base import Device
from parity.devices.health import Health

# Variables of torch, including those of its MPS library, are recognized by these prefixes.
PREFIXES = ("PYTORCH_", "TORCH_ALLOW_TF32", "MTL_")
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDNN_LOGDEST_DBG",
    "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
)


def fingerprint(device: Device, health: Health | None = None) -> Fingerprint:
    """The fingerprint of a device in its current state. health: what its probe measured, if it was probed."""
    own = device.facts()
    return Fingerprint(
        parity=_own_version(),
        torch=torch.__version__,
        torch_git=torch.version.git_version or "",
        python=platform.python_version(),
        os=operating_system(),
        machine=machine(),
        device=device.name,
        device_name=own.get("chip", ""),
        driver=own.get("driver", ""),
        simulated=device.simulated,
        environment=environment(os.environ),
        facts=health.facts if health is not None else tuple(own.items()),
    )


def environment(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The environment variables that are set and may change numerics, by name."""
    return tuple(sorted((k, v) for k, v in variables.items() if k in VARIABLES or k.startswith(PREFIXES)))


def operating_system() -> str:
    """Name, version and build: "macOS 15.5 (24F74)", "Linux 6.8.0-41-generic". The build identifies Apple's GPU library."""
    if platform.system() == "Darwin":
        build = _asked("sw_vers", "-buildVersion") or platform.release()
        return f"macOS {platform.mac_ver()[0]} ({build})"
    return f"{platform.system()} {platform.release()}"


def machine() -> str:
    """Architecture and, on a Mac, the hardware model: "arm64 Mac14,9"."""
    model = _asked("sysctl", "-n", "hw.model") if platform.system() == "Darwin" else ""
    return f"{platform.machine()} {model}".strip()


def _asked(*command: str) -> str:
    """The output of a system tool; empty if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _own_version() -> str:
    try:
        return metadata.version("torch-parity")
    except metadata.PackageNotFoundError:
        return "source"
