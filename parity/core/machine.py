"""The machine that parity runs on: virtual or real, how much memory it has, and how much of it the workers of a run may take
together.

MPS compiles and keeps a graph for every new shape and gives none of them back (55 KB each by one report, 13.7 GB after 315
batches by another), so a worker that passes its share ends between two items, and another one takes its place.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Protocol

from parity.core.devices import Backend

GIB = float(1 << 30)
IMAGE = ("ImageOS", "ImageVersion")  # variables that name the image of a hosted runner
PARAVIRTUAL = "Paravirtual"  # in the name of the GPU that Apple gives to a virtual machine


def is_virtual(chip: str = "") -> str:
    """Whether it is virtual: yes or no, with what says so, or unknown. chip: the device's name."""
    if platform.system() == "Darwin":
        model = asked("sysctl", "-n", "hw.model")
        if PARAVIRTUAL in chip or model.startswith("Virtual") or asked("sysctl", "-n", "kern.hv_vmm_present") == "1":
            return f"yes ({chip if PARAVIRTUAL in chip else model or 'a hypervisor is present'})"
        return f"no ({model})" if model else "unknown"
    if platform.system() != "Linux":
        return "unknown"
    if PARAVIRTUAL in chip:
        return f"yes ({chip})"
    board = " ".join(filter(None, (_line(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))))
    flags = _text("/proc/cpuinfo")
    if " hypervisor" in flags:
        return f"yes ({board or 'a hypervisor is present'})"
    return f"no ({board or 'no hypervisor is present'})" if board or "flags" in flags else "unknown"


def total_memory() -> int:
    """Bytes of memory that this machine gives to processes; 0 where it does not say. In a container it is the container's."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        said = asked("sysctl", "-n", "hw.memsize")
        return int(said) if said.isdigit() else 0
    limits = [_text(p).strip() for p in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    return min([total, *(int(t) for t in limits if t.isdigit() and int(t) > 0)])


def free_memory() -> int:
    """Bytes that could be had without swapping; 0 where the system does not say."""
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def asked(*command: str) -> str:
    """The output of a system tool; empty if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def resident_memory() -> int:
    """Bytes of memory that this process occupies; where the system reports only the most that it ever occupied, that."""
    if figures := _text("/proc/self/statm").split():
        return int(figures[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if platform.system() == "Darwin" else most * 1024


def size(n: int) -> str:
    """A number of bytes for a person."""
    return f"{n / GIB:.1f} GB" if n >= GIB / 10 else f"{n / (1 << 20):.1f} MB"


def _line(path: str) -> str:
    return (_text(path).splitlines() or [""])[0].strip()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


MOST_WORKERS = 8  # workers by default
PART = 0.6  # of the machine's memory, and of the device's, for all workers: the rest is for the system and for inquests
NEED = 1 << 30  # bytes of a worker after all items of the quick profile on `sim`, rounded up
LEAST_SHARE = 3 << 28  # a share is never less: importing torch and the first items take this much


class Measurable(Protocol):
    """What is asked of a device here (`parity.devices.base.Device`)."""

    shares_memory: bool

    @property
    def backend(self) -> Backend:
        """What parity knows of its backend."""

    def memory(self) -> dict[str, int]:
        """Bytes that the backend reports."""

    def facts(self) -> dict[str, str]:
        """Its chip."""


def ceiling() -> int:
    """Bytes that all workers together may occupy; 0 where the machine does not say how much it has."""
    return int(PART * total_memory())


def default_workers() -> int:
    """One for each core, at most 8, and no more than fit under the ceiling."""
    fit = ceiling() // NEED if ceiling() else MOST_WORKERS
    return max(1, min(MOST_WORKERS, os.cpu_count() or 1, fit))


def room(workers: int) -> int:
    """How many processes fit under the ceiling besides so many workers."""
    return max(0, ceiling() // NEED - workers) if ceiling() else workers


def share(workers: int) -> int:
    """Bytes that each of so many workers may occupy; 0 for no limit."""
    return max(LEAST_SHARE, ceiling() // max(1, workers)) if ceiling() else 0


def occupied(device: Measurable) -> int:
    """Bytes of the machine's memory that this process and its device occupy."""
    return resident_memory() + (device.memory().get("reserved", 0) if device.shares_memory else 0)


def has_passed(device: Measurable, share: int, workers: int) -> bool:
    """Whether this worker occupies more than its share of the machine's memory, or of the device's. share: 0 for no limit."""
    figures = device.memory()
    most = figures.get("recommended_max") or figures.get("total") or 0
    if (limit := device.backend.most_virtual) and PARAVIRTUAL in device.facts().get("chip", ""):
        most = min(most or limit, limit)
    own = PART * most / max(1, workers)
    return (share > 0 and occupied(device) > share) or (own > 0 and figures.get("reserved", 0) > own)
