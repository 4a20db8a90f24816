"""`parity locate -v` says how long both sides take, by operator, and what the fallback to the CPU costs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import parity
from parity.devices import Call, Device, Fault, resolve
from parity.locating import search, timing

X = torch.linspace(0.5, 2.0, 12).view(3, 4).requires_grad_()
SIMULATED = "SIMULATED: this says nothing about any hardware"


def net(x: Tensor) -> Tensor:
    """Two operators, and their gradients."""
    return x.exp().cumsum(-1)


class Clock:
    """A clock that stands still but for what the operators of a device say they take, so that no load changes a test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Each reading takes a millisecond."""
        self.now += 1e-3
        return self.now

    def slow(self, seconds: float, falls: bool = False) -> Callable[[Call], Any]:
        """An effect that takes so long and leaves results as they are. falls: as torch warns of its fallback."""

        def effect(call: Call) -> Any:
            self.now += seconds
            if falls:
                text = f"The operator 'aten::{call.op}' is not currently supported and will fall back to run on the CPU."
                warnings.warn(text, stacklevel=2)
            return call.run()

        return effect


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "perf_counter", made)
    return made


def on(*faults: Fault) -> Device:
    return resolve("sim", faults)


@pytest.mark.filterwarnings("ignore:The operator")
def test_a_slow_operator_has_its_share_and_its_fallback_the_cost(clock: Clock) -> None:
    device = on(Fault("slow", ("cumsum",), clock.slow(0.037, falls=True), level="kernel"))

    def slow_net(x: Tensor) -> Tensor:
        clock.now += 3e-3  # of Python, on both sides
        return net(x)

    found = parity.locate(slow_net, X, device=device, backward=False, times=True)
    assert found.agrees
    assert found.times == (
        f"time: 10 times slower than on the CPU (41 ms, 4 ms there; forward; {SIMULATED})",
        "of the time in operators: aten::cumsum 97% (38 ms, CPU 1 ms), by fallback, aten::exp 3% (1 ms, CPU 1 ms)",
        "ran on the CPU by fallback, 97% of it (38 ms): aten::cumsum (1 call)",
    )
    assert all(line in str(found).splitlines() for line in found.times)


def test_a_device_as_fast_as_the_cpu_is_not_called_slower_and_nothing_falls_back(clock: Clock) -> None:
    lines = parity.locate(net, X, device=on(), times=True).times
    assert lines[0] == f"time: as long as on the CPU (2 ms, 2 ms there; forward and backward; {SIMULATED})"
    assert not any("fallback" in line for line in lines)


def test_operators_get_no_share_where_waiting_for_each_takes_longer_than_the_run(clock: Clock) -> None:
    """As on a GPU with many small operators: each reading of this clock takes as long as a whole run."""

    def many(x: Tensor) -> Tensor:
        return x.exp().exp().sin().sin().cos()

    lines = parity.locate(many, X, device=on(), backward=False, times=True).times
    assert lines[1:] == ("no times of operators: waiting for each takes 5 times as long as a plain run",)


def test_the_device_is_waited_for_before_the_clock_is_read(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that is done behind the program's back, in the time of whoever waits for it."""
    device = on()
    monkeypatch.setattr(type(device), "synchronize", lambda self: setattr(clock, "now", clock.now + 0.5))
    assert "(501 ms, 1 ms there;" in parity.locate(net, X, device=device, backward=False, times=True).times[0]


def test_a_plain_search_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "times", None)
    assert parity.locate(net, X, device=on(), modules=True).times == ()
