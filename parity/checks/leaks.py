"""Calls that leave memory behind: the same call many times, and what the device says is in use after each."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress

from parity.checks.trial import values
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import Raised
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.execution.execute import Program
from parity.execution.inputs import apply, build
from parity.execution.modes import MODES

SCREENED = 2  # calls after one that fills caches: where the memory in use is no more than before, none of them leaks
# Calls that must all leave memory behind to count as a leak. The C library keeps seven freed pieces of each size for each
# thread and counts them as in use, so calls of a young process may leave some for a dozen times.
REPEATS = 30


def leaked(device: Device, call: Callable[[], object]) -> int:
    """Bytes that every repeat of a call leaves on the device; 0 where one of them leaves none, where the call raises, and where
    the device does not say."""
    with suppress(Exception):  # another check reports a call that raises
        call()
        device.synchronize()
        before = device.used()  # a figure may cost as much as many calls
        if before is None:
            return 0
        for _ in range(SCREENED):
            call()
        device.synchronize()
        if (device.used() or 0) - before >= SCREENED:
            return _least_growth(device, call)
    return 0


def _least_growth(device: Device, call: Callable[[], object]) -> int:
    """The least growth of any of some repeats. Cycles of Python objects, which may hold tensors for a while, are collected."""
    least, before = sys.maxsize, 0
    for k in range(REPEATS + 1):
        call()
        device.synchronize()
        gc.collect(1)  # what a call made is young; to look at all objects takes half a second
        now = device.used() or 0
        if k and (least := min(least, now - before)) <= 0:
            return 0  # whatever the repeats after it leave
        before = now
    return least


def leak_of(program: Program, case: Case, device: Device, differentiated: bool) -> int:
    """Bytes that a case's forward, and its backward if it is differentiated, leave on the device each time."""
    try:
        inputs = build(case)
    except CaseError:
        return 0
    placed = ex.attempt(lambda: ex.place(inputs, device, case.under), "upload")
    if isinstance(placed, Raised):
        return 0

    def call() -> None:
        with MODES["grad"]():
            live = ex.forward(program, case, inputs, placed, differentiated)
            if differentiated and live.leaves and ex.differentiable(live):
                fed = [ex.cotangent(case.cotangent, x, i, values) for i, (_, x) in enumerate(ex.differentiable(live))]
                ex.backward(live, [apply(device.upload(c.base), c.layout, c.shape) for c in fed])

    return leaked(device, call)
