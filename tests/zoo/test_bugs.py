"""Every planted bug, those of the zoo and the held-out ones: its trigger shows the reported effect, its neighbour and a healthy
device do not."""

from __future__ import annotations

import dataclasses
import multiprocessing
import resource
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.catalog import ROWS, opinfo
from parity.devices import Call, resolve
from parity.devices.setup import load_module
from parity.devices.sim.faults import always
from parity.zoo import BEYOND, BUGS, OUT_OF_REACH, Bug
from parity.zoo.bug import versions

HELD_OUT = tuple(
    bug for path in sorted(Path(__file__).parent.glob("*th/*.py")) for bug in load_module(path).BUGS
)  # scored by `parity prove zoo --faults FILE`
EVERY = (*BUGS, *BEYOND, *HELD_OUT)
KNOWN = {*ROWS, *(row.name for row in opinfo.rows())}
BY_ID = {bug.fault.id: bug for bug in EVERY}
RAISES = ("crash", "unsupported_op", "unsupported_dtype")
START_SECONDS, DEATH_SECONDS, HANG_SECONDS = 120.0, 60.0, 1.0


def test_the_versions_of_reports_are_those_of_the_zoo() -> None:
    assert all(bug.versions for bug in BUGS)
    assert set(versions()) <= {bug.fault.id for bug in (*BUGS, *BEYOND)}


bugs = pytest.mark.parametrize("bug", EVERY, ids=lambda bug: bug.fault.id)


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What came of a case: its values on the CPU, or what it raised; what it warned of; how often the fault struck."""

    values: tuple[Any, ...] = ()
    raised: Exception | None = None
    warned: str = ""
    strikes: int = 0


def observe(bug: Bug, case: Callable[[str], object], name: str, *, faulty: bool = False) -> Seen:
    """A trigger or neighbour on the CPU ("cpu") or on a simulated device, with the bug in it or without."""
    strikes = 0

    def effect(call: Call) -> Any:
        nonlocal strikes
        strikes += 1
        return bug.fault.effect(call)

    device = resolve(name, [dataclasses.replace(bug.fault, effect=effect)] if faulty else [])
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with device.active():
                result = case(str(device.torch_device))
            values = tuple(v.detach().cpu().clone() if isinstance(v, Tensor) else v for v in tree_leaves(result))
            raised = None
        except Exception as e:  # what a device raises is an outcome
            values, raised = (), e
    return Seen(values, raised, "\n".join(str(w.message) for w in caught), strikes)


def agree(a: tuple[Any, ...], b: tuple[Any, ...], *, exactly: bool = False) -> bool:
    """Whether two cases gave the same values but for rounding: NaN equals NaN, a dtype or shape is a difference."""
    return len(a) == len(b) and all(_agree(x, y, exactly) for x, y in zip(a, b))


def _agree(a: Any, b: Any, exactly: bool) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and bool(a == b or (a != a and b != b))
    allowed = 0.0 if exactly else None
    try:
        torch.testing.assert_close(a, b, equal_nan=True, rtol=allowed, atol=allowed)
    except AssertionError:
        return False
    return True


def is_special(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Where NaN and infinities stand."""
    return tuple(tree_leaves([(v.isnan(), v.isinf()) if isinstance(v, Tensor) else v for v in values]))


@bugs
def test_trigger_shows_the_reported_effect_and_a_healthy_device_does_not(bug: Bug) -> None:
    right, healthy = observe(bug, bug.trigger, "cpu"), observe(bug, bug.trigger, "sim")
    assert right.raised is None, f"the CPU itself raises: {right.raised!r}"
    assert healthy.raised is None, f"the healthy device raises: {healthy.raised!r}"
    assert agree(healthy.values, right.values), f"{healthy.values} but should be {right.values}"
    if bug.fault.deadly:
        assert fate(bug) == bug.fault.deadly
        return
    wrong = observe(bug, bug.trigger, "sim", faulty=True)
    assert wrong.strikes
    if bug.kind == "fallback":
        # What falls back says so; what cannot even fall back points to the fallback in vain.
        refused = isinstance(wrong.raised, NotImplementedError) and "fallback" in str(wrong.raised)
        assert refused or "fall back to run on the CPU" in wrong.warned
    elif bug.kind in RAISES:
        assert wrong.raised is not None
    else:
        assert wrong.raised is None, f"reported as {bug.kind}, but it raises {wrong.raised!r}"
        assert not agree(wrong.values, right.values, exactly=bug.kind == "drift")
    if bug.kind == "nan_mismatch":
        assert not agree(is_special(wrong.values), is_special(right.values))


@bugs
def test_neighbour_is_healthy_and_the_condition_does_not_hold(bug: Bug) -> None:
    beside, right = observe(bug, bug.neighbour, "sim", faulty=True), observe(bug, bug.neighbour, "cpu")
    assert beside.raised is None, f"the neighbour raises: {beside.raised!r}"
    assert agree(beside.values, right.values), f"{beside.values} but should be {right.values}"
    if bug.fault.when is not always:  # a fault without a condition strikes here too, and does no harm
        assert not beside.strikes


def test_bugs_are_written_down_whole() -> None:
    for bug in EVERY:
        assert bug.fault.source.startswith("https://github.com/"), bug.fault.id
        assert bug.fault.title, bug.fault.id
        assert bug.triggers, bug.fault.id
        assert not (strangers := set(bug.rows) - KNOWN), f"{bug.fault.id}: no such rows: {sorted(strangers)}"


def test_ids_are_unique_and_nothing_is_both_planted_and_out_of_reach() -> None:
    ids = [bug.fault.id for bug in EVERY]
    assert len(ids) == len(set(ids))
    assert not set(ids) & set(OUT_OF_REACH)
    assert all(OUT_OF_REACH.values())


# ------------------------------------------------------------------------------------------------- cases that end a process


def fate(bug: Bug) -> str:
    """How a child process ends that runs the trigger: "abort", "hang" or how else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["parity.zoo", "parity.devices.sim.device"])
    ours, theirs = context.Pipe()
    child = context.Process(target=doomed, args=(bug.fault.id, theirs), daemon=True)
    child.start()
    try:
        assert ours.poll(START_SECONDS), "the child never began"
        ours.recv()
        child.join(HANG_SECONDS if bug.fault.deadly == "hang" else DEATH_SECONDS)
        if child.is_alive():
            return "hang"
        return "abort" if child.exitcode == -signal.SIGABRT else f"exit code {child.exitcode}"
    finally:
        child.kill()


def doomed(name: str, began: Connection) -> None:
    """The child: the trigger of the bug with this id on its faulty device."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bug = BY_ID[name]
    device = resolve("sim", [bug.fault])
    began.send("began")
    with device.active():
        bug.trigger(str(device.torch_device))
