"""The cases that were reported in public, run as they are on a device: which of the zoo's bugs does this one have?

A case may end the process: then another one starts after that case (`parity.faces.archive`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.core.child import BEGIN, Given, Job
from parity.devices import Device, load_faults, resolve
from parity.devices.refusals import listening
from parity.devices.setup import run_setup
from parity.zoo import BUGS
from parity.zoo.bug import Bug

SAME, DIFFERS, RAISED, FELL_BACK, RANDOM, VOID = "same", "differs", "raised", "fell back", "random", "void"
DIED = "died"  # of a case that ended its process, or was ended for not coming back


def outcome(bug: Bug, device: Device) -> tuple[str, str]:
    """What the bug's case does on a device, and how: one of the words above. Results are compared with the CPU's by
    `torch.testing.assert_close`; those of random numbers are not."""
    if bug.kind == "rng":
        return _without_numbers(bug.trigger, device)
    try:
        right = _values(bug.trigger, "cpu")
    except Exception as e:  # another version of torch may refuse what was reported with this one
        return VOID, f"the CPU raises {_said(e)}"
    notes: list[str] = []
    try:
        with device.active(), listening(notes):
            there = _values(bug.trigger, str(device.torch_device))
            device.synchronize()
    except Exception as e:  # whatever a backend raises is the outcome
        return RAISED, _said(e)
    if difference := _difference(there, right):
        return DIFFERS, difference
    return (FELL_BACK, ", ".join(notes)) if notes else (SAME, "")


def _without_numbers(case: Callable[[str], object], device: Device) -> tuple[str, str]:
    try:
        with device.active(), listening([]):
            _values(case, str(device.torch_device))
    except Exception as e:  # whatever a backend raises is the outcome
        return RAISED, _said(e)
    return RANDOM, ""


def _values(case: Callable[[str], object], device: str) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return tuple(v.detach().cpu().clone() if isinstance(v, Tensor) else v for v in tree_leaves(case(device)))


def _difference(there: Sequence[Any], right: Sequence[Any]) -> str:
    """In one line; empty where there is none. A NaN equals a NaN."""
    if len(there) != len(right):
        return f"{len(there)} results instead of {len(right)}"
    for k, (a, b) in enumerate(zip(there, right)):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            try:
                torch.testing.assert_close(a, b, equal_nan=True)
            except AssertionError as e:
                return f"result {k}: {' '.join(str(e).split())[:300]}"
        elif type(a) is not type(b) or (a != b and a == a):
            return f"result {k}: {a!r} instead of {b!r}"[:300]
    return ""


def _said(e: BaseException) -> str:
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"


def job(given: Given) -> Job:
    """Run the cases, each as an event that it begins, and one of what came of it. given: the device, faults, setup, and the
    number of the first case."""
    device_name, faults, setup, start = given.asked
    warnings.simplefilter("ignore")
    if setup:
        run_setup(setup)
    device = resolve(device_name, load_faults(faults) if faults else ())
    given.of = len(BUGS) - start
    for k, bug in enumerate(BUGS[start:], start):
        about = {"id": bug.fault.id, "ordinal": k}
        yield {BEGIN: about}
        state, how = outcome(bug, device)
        yield {**about, "state": state, "how": how, "kind": bug.kind, "source": bug.fault.source}
