"""The job of examining a device, which notes in its journal each operator that it is about to call."""

from __future__ import annotations

import math

from parity.core.child import Given, Job
from parity.devices import preflight
from parity.engine.journal import Journal


def job(given: Given) -> Job:
    """One answer, as `doctor.examined` gives it. given: device, faults, setup."""
    journal = Journal(given.journal)
    device, faults, setup = given.asked
    yield {"answer": preflight.examined(device, faults, setup, lambda name: journal.begin(0, name, name, math.inf))}
