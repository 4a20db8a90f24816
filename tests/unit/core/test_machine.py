"""The memory of workers is bounded, a case without memory is tried once more, and calls that leave memory behind are found."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch

from parity import catalog, tolerance
from parity.core import machine
from parity.core.notation import parse
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.devices.sim.faults import out_of_memory
from parity.engine import suite
from parity.engine.checking import leak_of, leaked
from parity.engine.examine import Examined, examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.suite import Item
from parity.execution.execute import program

GB = 1 << 30


@pytest.mark.parametrize(
    ("total", "cores", "workers"), [(7 * GB, 3, 3), (7 * GB, 16, 4), (64 * GB, 16, 8), (2 * GB, 4, 1), (0, 4, 4), (0, 64, 8)]
)
def test_as_many_workers_as_the_memory_holds(monkeypatch: pytest.MonkeyPatch, total: int, cores: int, workers: int) -> None:
    """A hosted runner has 7 GB and 3 cores; 0 is a machine that does not say."""
    monkeypatch.setattr(machine, "total_memory", lambda: total)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert machine.default_workers() == workers
    assert workers * machine.share(workers) <= max(machine.ceiling(), machine.LEAST_SHARE)
    assert (machine.share(workers) == 0) == (total == 0)


class Apple(Device):
    """A device of Apple's in a machine whose process occupies nothing."""

    shares_memory = True

    def __init__(self, chip: str, reserved: int) -> None:
        self.name, self.chip, self.reserved = "mps", chip, reserved

    def memory(self) -> dict[str, int]:
        return {"reserved": self.reserved, "recommended_max": 5 * GB}

    def facts(self) -> dict[str, str]:
        return {"chip": self.chip}

    def synchronize(self) -> None: ...

    def seed(self, n: int) -> None: ...


@pytest.mark.parametrize(
    ("chip", "reserved", "share", "passed"),
    [
        ("Apple M2", GB // 2, GB, False),
        ("Apple M2", 2 * GB, GB, True),
        ("Apple M2", 3 * GB // 2, 0, False),  # just what it may take
        ("Apple M2", 2 * GB, 0, True),  # of what the device recommends, though the machine's memory is not known
        ("Apple Paravirtual device", GB // 4, GB, False),
        ("Apple Paravirtual device", GB // 2, GB, True),
    ],
)
def test_a_worker_passes_its_share(monkeypatch: pytest.MonkeyPatch, chip: str, reserved: int, share: int, passed: bool) -> None:
    """A virtual machine gives MPS a gigabyte, whatever it recommends."""
    monkeypatch.setattr(machine, "resident_memory", lambda: 0)
    assert machine.has_passed(Apple(chip, reserved), share, 2) == passed


def test_no_other_device_has_the_limit_of_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "resident_memory", lambda: 0)
    other = Apple("Paravirtual device", GB // 2)
    other.name = "xpu"
    assert not machine.has_passed(other, GB, 2)


def test_a_device_that_does_not_say_how_much_it_has_is_never_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "resident_memory", lambda: 0)
    monkeypatch.setattr(Apple, "memory", lambda _: {"reserved": GB})
    assert not machine.has_passed(Apple("Apple M2", GB), 0, 2)


def test_this_process_occupies_something() -> None:
    before = machine.resident_memory()
    with mmap.mmap(-1, 1 << 26) as new:  # torch may use memory again that it has
        new.write(b"1" * len(new))
        assert machine.resident_memory() - before >= len(new) * 3 / 4
    assert machine.total_memory() > machine.resident_memory()


# ------------------------------------------------------------------------------------------------------- a case without memory


def examined(faults: Sequence[Fault], op: str = "exp", device: str = "sim") -> Examined:
    o = RunOptions(device=device, examples=3, skip=("shrink",))
    d = resolve(device, faults)
    row = catalog.row(op)
    plan = RunPlan(d, resolve("cpu"), tolerance.load(device), suite.profile("quick"), o)
    return examine(Item(row, "float32"), plan, NoJournal())


def statuses(done: Examined) -> Counter[str]:
    return sum((Counter(c) for c in done.summary.counts.values()), Counter())


def test_what_fits_at_the_second_try_is_no_finding() -> None:
    """Out of memory once, as where another process held the device."""

    def once(call: Call) -> Any:
        if not call.state.setdefault("raised", False):
            call.state["raised"] = True
            out_of_memory()
        return call.run()

    fault = Fault("once", ("exp.out",), once)
    assert set(statuses(examined((fault,)))) == {"agree"}


def test_what_never_fits_is_oom() -> None:
    found = statuses(examined((Fault("never", ("exp.out",), out_of_memory),)))
    assert found["oom"] > 0
    assert not {"wrong", "error", "malformed"} & set(found)


@pytest.mark.parametrize("every", [3, 5, 7])
@pytest.mark.parametrize("op", ["exp", "layer_norm", "sort"])
def test_a_lack_of_memory_at_any_allocation_is_never_wrong(op: str, every: int) -> None:
    """Forward, backward, destinations and repeats: each allocation fails now and then."""

    def sometimes(call: Call) -> Any:
        call.state["n"] = call.state.get("n", 0) + 1
        return out_of_memory() if call.state["n"] % every == 0 else call.run()

    found = statuses(examined((Fault("some", ("empty",), sometimes, level="allocation"),), op))
    assert found["oom"] > 0
    assert set(found) <= {"oom", "agree", "unsupported", "void"}


# ------------------------------------------------------------------------------------------------------------------- leaks


def left(text: str, effect: Callable[[Call], Any] | None = None, op: str = "exp.out") -> int:
    device = resolve("sim", (Fault("leak", (op,), effect),) if effect else ())
    case = parse(text)
    with device.active():
        return leak_of(program(catalog.row(case.op)), case, device, True)


class Figures(Device):
    """A device that says these figures in turn, the last one for ever. used: None where it says none; asked: how often."""

    name, asked = "figures", 0

    def __init__(self, *used: int | None) -> None:
        self._used = used

    def used(self) -> int | None:
        self.asked += 1
        return self._used[min(self.asked, len(self._used)) - 1]

    def synchronize(self) -> None: ...

    def seed(self, n: int) -> None: ...


def test_a_byte_a_call_leaks_and_a_call_that_leaves_none_ends_the_search() -> None:
    assert leaked(Figures(*range(0, 200, 2)), lambda: None) == 2
    assert leaked(Figures(0, 2, *range(3, 90)), lambda: None) == 1
    calls: list[int] = []
    for used, expected in ((0, 2, 3, 3), 5), ((None,), 1):
        assert leaked(Figures(*used), lambda: calls.append(1)) == 0
        assert len(calls) == expected
        calls.clear()


def test_a_leak_is_found_with_its_bytes() -> None:
    def leaves(call: Call) -> Any:
        call.state.setdefault("kept", []).append(torch.empty(1000))
        return call.run()

    def leaves_the_first(call: Call) -> Any:
        call.state.setdefault("kept", torch.empty(1000))
        return call.run()

    def leaves_backward(call: Call) -> Any:
        call.state.setdefault("kept", []).append(torch.empty(5000))
        return call.run()

    assert 4000 <= left("exp(float32[3])", leaves) <= 5000
    assert left("exp(float32[3])", leaves_the_first) == 0
    assert 20_000 <= left("tanh(float32[3])", leaves_backward, "tanh_backward") <= 22_000


@pytest.mark.parametrize("text", ["exp(float32[200, 200])", "mm(float32[30, 40], float32[40, 50])", "sort(float32[9, 9])"])
def test_a_healthy_call_leaves_nothing(text: str) -> None:
    assert left(text) == 0


@pytest.mark.parametrize(
    ("figures", "left", "asked"), [((0, 100, 200, 200, 300), 0, 4), ((0, 9, *range(20, 320, 10), 319), 9, 33)]
)
def test_the_first_repeat_that_leaves_nothing_is_the_last(figures: tuple[int, ...], left: int, asked: int) -> None:
    """To count what is in use may take as long as many calls."""
    used, calls = mock.Mock(side_effect=figures), mock.Mock()
    assert leaked(mock.Mock(spec=Device, used=used), calls) == left
    assert (used.call_count, calls.call_count) == (asked, asked + 1)
