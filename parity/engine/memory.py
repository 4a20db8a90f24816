"""Limits the memory that the workers of a run occupy together. Nothing here imports torch.

MPS compiles and keeps a graph for every new shape and gives none of them back (55 KB each by one report, 13.7 GB after 315
batches by another), so a worker that passes its share ends between two items, and another one takes its place.
"""

from __future__ import annotations

import os
from typing import Protocol

from parity.core import machine
from parity.core.devices import Backend

MOST = 8  # workers by default
PART = 0.6  # of the machine's memory, and of the device's, for all workers: the rest is for the system and for inquests
NEED = 1 << 30  # bytes of a worker after all items of the quick profile on `sim`, rounded up
LEAST = 3 << 28  # a share is never less: importing torch and the first items take this much


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
    return int(PART * machine.total_memory())


def default_workers() -> int:
    """One for each core, at most 8, and no more than fit under the ceiling."""
    fit = ceiling() // NEED if ceiling() else MOST
    return max(1, min(MOST, os.cpu_count() or 1, fit))


def room(workers: int) -> int:
    """How many processes fit under the ceiling besides so many workers."""
    return max(0, ceiling() // NEED - workers) if ceiling() else workers


def share(workers: int) -> int:
    """Bytes that each of so many workers may occupy; 0 for no limit."""
    return max(LEAST, ceiling() // max(1, workers)) if ceiling() else 0


def occupied(device: Measurable) -> int:
    """Bytes of the machine's memory that this process and its device occupy."""
    return machine.resident_memory() + (device.memory().get("reserved", 0) if device.shares_memory else 0)


def has_passed(device: Measurable, share: int, workers: int) -> bool:
    """Whether this worker occupies more than its share of the machine's memory, or of the device's. share: 0 for no limit."""
    figures = device.memory()
    most = figures.get("recommended_max") or figures.get("total") or 0
    if (limit := device.backend.most_virtual) and machine.PARAVIRTUAL in device.facts().get("chip", ""):
        most = min(most or limit, limit)
    own = PART * most / max(1, workers)
    return (share > 0 and occupied(device) > share) or (own > 0 and figures.get("reserved", 0) > own)
