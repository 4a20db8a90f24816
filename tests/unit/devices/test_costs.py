"""What a device takes for the pieces of a run is found where it is planted, and nothing is where nothing is."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from parity.core import machine, stored
from parity.devices import Call, Device, Fault, costs, resolve
from parity.devices.costs import Costs, Spread, measured
from parity.prove import cost

GRAPH, KERNEL = 0.03, 0.05
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second instead of ten."""
    for name, value in {"SHAPES": 6, "CALLS": 10, "ROUNDS": 3, "COPIES": 6}.items():
        monkeypatch.setattr(costs, name, value)


def compiling(seconds: float = 0.0, kept: list[int] | None = None) -> Device:
    """`sim:mps`, which takes so long for each new graph, and keeps a megabyte of it."""
    keys = set[object]()

    def compiles(call: Call) -> Any:
        o = call.outline
        if not cost.is_metal(call.op) and (key := (o.op, o.shapes, o.dtypes)) not in keys:
            keys.add(key)
            if kept is not None:
                kept.append(MEGABYTE)
            time.sleep(seconds)
        return call.run()

    return resolve("sim:mps", (Fault("compiles", ("*",), compiles),))


def test_the_seconds_of_a_graph_are_found() -> None:
    """And only they: no call of a known shape is longer for it."""
    found = measured(compiling(GRAPH)).pieces
    assert GRAPH * 0.8 < found["graph"].middle < GRAPH * 3
    assert found["graph"].samples == 6 * len(costs.GRAPHS)
    assert found["graph_call"].middle < GRAPH / 3
    assert found["kernel"].middle < GRAPH / 3


def test_a_device_that_compiles_nothing_takes_nothing_for_it() -> None:
    found = measured(resolve("sim:mps")).pieces
    assert found["graph"].middle < GRAPH / 3
    assert found["graph_memory"].middle < MEGABYTE / 4
    assert {*found} == {*cost.costs()} - {"check", "start", "process"}
    assert found["copy"].middle > 0
    assert found["graph_call"].middle > 0


def test_the_memory_of_a_graph_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted here: what a process has freed before it may take again, and grows by nothing."""
    kept = list[int]()
    monkeypatch.setattr(machine, "resident_memory", lambda: sum(kept))
    assert measured(compiling(kept=kept)).pieces["graph_memory"].middle == MEGABYTE


def test_a_metal_kernel_is_loaded_once_for_a_function_and_a_dtype() -> None:
    seen = set[object]()

    def loads(call: Call) -> Any:
        if cost.is_metal(call.op) and call.outline.op not in ("add", "copy_") and (call.op, call.outline.dtypes) not in seen:
            seen.add((call.op, call.outline.dtypes))
            time.sleep(KERNEL)
        return call.run()

    found = measured(resolve("sim:mps", (Fault("loads", ("*",), loads),))).pieces
    assert KERNEL * 0.8 < found["kernel"].middle < KERNEL * 3
    assert found["kernel_call"].middle < KERNEL / 3


@pytest.mark.parametrize(("calls", "graphs"), [(costs.GRAPHS, True), (costs.KERNELS, False)], ids=["graphs", "kernels"])
def test_what_is_timed_is_what_it_is_taken_for(calls: tuple[Callable[..., object], ...], graphs: bool) -> None:
    """By torch's operator table: a function of MPS's own, or one that the CPU has as well."""
    made = cost.Counted()
    device = resolve("sim:mps", (Fault("calls", ("*",), Call.run, made.call),))
    x = device.upload(torch.rand(3, 3))
    with device.active():
        for call in calls:
            call(x)
    assert (len(made.keys), len(made.kernels)) == ((len(calls), 0) if graphs else (0, len(calls)))


def test_it_takes_no_longer_than_its_limit() -> None:
    """A slow device is measured at fewer shapes."""
    assert measured(compiling(GRAPH), limit=0.0).pieces["graph"].samples == len(costs.GRAPHS)


SPREAD = Spread(0.001, 0.002, 0.003, 9)
FOUND = Costs("mps", "Apple M4", "macOS 15.5 (24F74)", "2.13.0", False, 10, 16 << 30, *[SPREAD] * 6)


def test_it_comes_back_from_json() -> None:
    assert stored.convert(json.loads(json.dumps(asdict(FOUND))), Costs) == FOUND
    assert FOUND.where == "mps (Apple M4), macOS 15.5 (24F74), torch 2.13.0"
    assert "SIMULATED" in replace(FOUND, simulated=True).where


def spoiled(**fields: object) -> dict[str, Any]:
    """The graph's figures with others in their place."""
    tree = asdict(FOUND)
    tree["graph"] |= fields
    return tree


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (spoiled(low=-1.0), "-1, 0.002 and 0.003 are no low, middle and high value"),
        (spoiled(middle=0.0005), "are no low, middle and high value"),
        (spoiled(high=math.nan), "are no low, middle and high value"),
        (spoiled(high=math.inf), "are no low, middle and high value"),
        (spoiled(samples=0), "it was measured 0 times"),
        (spoiled(low="fast"), "expected 'float'"),
        (spoiled(mean=1.0), "unknown field 'mean'"),
        (asdict(FOUND) | {"cores": 0}, "a machine of 0 cores"),
        (asdict(FOUND) | {"memory": 0}, "and 0 bytes is none"),
        ({k: v for k, v in asdict(FOUND).items() if k != "copy"}, "missing required field 'copy'"),
        (asdict(FOUND) | {"run": "rm"}, "unknown field 'run'"),
        ({}, "missing required field"),
    ],
)
def test_figures_that_are_none_are_refused(tree: dict[str, Any], why: str) -> None:
    with pytest.raises(stored.Misfit, match=re.escape(why)):
        stored.convert(tree, Costs)
