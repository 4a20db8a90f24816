"""Measures what a device that compiles graphs takes for the pieces of a run: a graph, a kernel, a call, a copy, and the memory
that a graph keeps. `parity prove cost` multiplies by these, in place of the figures of public reports.

A graph is timed by what the first call with a shape takes longer than the next ones. The operators are some of those that have
a function of MPS's own by torch's table, and of Metal kernels that the CPU shares. One in ten is under low and over high.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import quantiles

import torch
from torch import Tensor

from parity.core import machine
from parity.devices.base import Device, fingerprint

GRAPHS: tuple[Callable[[Tensor], object], ...] = (
    lambda x: torch.log_softmax(x, 1), lambda x: torch.var(x, 1), lambda x: torch.cumsum(x, 1), lambda x: torch.argmax(x, 1),
)  # fmt: skip
KERNELS: tuple[Callable[[Tensor], object], ...] = (torch.exp, torch.sin, torch.sqrt, torch.tanh, torch.erf, torch.log)
SHAPES = 30  # new ones for each operator with a graph
BATCHES = 3  # in which they come, each with its growth of memory
AGAIN = 3  # calls with a shape that is known, of which the shortest counts
CALLS, ROUNDS, COPIES = 100, 5, 40
LIMIT = 60.0  # seconds for all of it; after half of them no further shape is tried
MOST = 1e12  # of a value, whatever its unit: another one is no measurement


@dataclass(frozen=True, slots=True)
class Spread:
    """What a piece took, in seconds or bytes. samples: how often it was measured."""

    low: float
    middle: float
    high: float
    samples: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.middle <= self.high <= MOST:
            raise ValueError(f"{self.low:g}, {self.middle:g} and {self.high:g} are no low, middle and high value")
        if self.samples < 1:
            raise ValueError(f"it was measured {self.samples} times")


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured on one machine. memory: its bytes; then the pieces, in seconds, and in bytes that a graph keeps."""

    device: str
    chip: str
    os: str
    torch: str
    simulated: bool
    cores: int
    memory: int
    graph: Spread
    kernel: Spread
    graph_call: Spread
    kernel_call: Spread
    copy: Spread
    graph_memory: Spread

    def __post_init__(self) -> None:
        if not (0 < self.cores <= 4096 and 0 < self.memory <= MOST * 1000):
            raise ValueError(f"a machine of {self.cores} cores and {self.memory} bytes is none")

    @property
    def pieces(self) -> dict[str, Spread]:
        """The pieces by name."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in held.items() if isinstance(value, Spread)}

    @property
    def where(self) -> str:
        """The machine in words."""
        chip = f" ({self.chip})" if self.chip else ""
        simulated = ", SIMULATED" if self.simulated else ""
        return f"{self.device}{chip}{simulated}, {self.os}, torch {self.torch}"


def measured(device: Device, limit: float = LIMIT) -> Costs:
    """What a device takes. Whatever it raises is raised."""
    with device.active():
        pieces = {name: _spread(values) for name, values in _samples(device, limit).items()}
    f = fingerprint(device)
    cores, memory = os.cpu_count() or 1, machine.total_memory()
    return Costs(device.name, f.device_name, f.os, f.torch, device.simulated, cores, memory, **pieces)


def _samples(device: Device, limit: float) -> Mapping[str, Sequence[float]]:
    """The values of each piece, in the order in which they came."""
    scalar = device.upload(torch.ones(1))
    copies = [*_timed(device, COPIES, lambda: device.upload(torch.ones(1)))]
    copies += _timed(device, COPIES, lambda: device.download(scalar))
    first = device.upload(torch.rand(4, 4))
    for call in GRAPHS:  # what a library takes when it is first used is no graph's
        call(first)
    graphs, memory, until = list[float](), list[float](), time.monotonic() + limit / 2
    for batch in range(BATCHES):
        before, many = _occupied(device), len(graphs)
        for k in range(batch, SHAPES, BATCHES):
            x = device.upload(torch.rand(5 + k, 7 + 2 * k))
            if not graphs or time.monotonic() < until:
                graphs += [_first(device, call, x) for call in GRAPHS]
        if made := len(graphs) - many:
            memory.append((_occupied(device) - before) / made)
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    return {
        "graph": graphs,
        "kernel": [_first(device, call, device.upload(torch.rand(9).to(d))) for call in KERNELS for d in dtypes],
        "graph_call": [s for call in GRAPHS for s in _dispatched(device, call, first)],
        "kernel_call": [s for call in KERNELS for s in _dispatched(device, call, first)],
        "copy": copies,
        "graph_memory": memory,
    }


def _timed(device: Device, times: int, call: Callable[[], object]) -> list[float]:
    """Seconds of each call, with the wait for the device."""
    taken = []
    for _ in range(times):
        device.synchronize()
        began = time.perf_counter()
        call()
        device.synchronize()
        taken.append(time.perf_counter() - began)
    return taken


def _first(device: Device, call: Callable[[Tensor], object], x: Tensor) -> float:
    """How much longer a first call takes than the next ones."""
    first, *again = _timed(device, 1 + AGAIN, lambda: call(x))
    return first - min(again)


def _dispatched(device: Device, call: Callable[[Tensor], object], x: Tensor) -> list[float]:
    """Seconds of a call of which everything is known, one of many that nobody waits for."""

    def many() -> None:
        for _ in range(CALLS):
            call(x)

    many()
    return [s / CALLS for s in _timed(device, ROUNDS, many)]


def _occupied(device: Device) -> int:
    """Bytes of this process, and of the device where they are the machine's own, without what can be given back."""
    gc.collect()
    device.release()
    return machine.resident_memory() + (device.memory().get("reserved", 0) if device.shares_memory else 0)


def _spread(values: Sequence[float]) -> Spread:
    """One in ten is below low, one in ten above high. What noise makes less than nothing is nothing."""
    whole = [max(0.0, v) for v in values]
    if len(whole) < 2:
        return Spread(whole[0], whole[0], whole[0], 1)
    tenths = quantiles(whole, n=10, method="inclusive")
    return Spread(tenths[0], tenths[4], tenths[8], len(whole))
