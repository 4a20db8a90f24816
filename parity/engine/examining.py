"""The jobs of examining a device, which notes in its journal each operator that it is about to call, and of measuring it."""

from __future__ import annotations

import math
from dataclasses import asdict

from parity.core.child import Given, Job
from parity.devices import load_faults, preflight, resolve
from parity.devices.costs import measured
from parity.devices.setup import run_setup
from parity.engine.journal import Journal


def job(given: Given) -> Job:
    """One answer, as `doctor.examined` gives it. given: device, faults, setup."""
    journal = Journal(given.journal)
    device, faults, setup = given.asked
    yield {"answer": preflight.examined(device, faults, setup, lambda name: journal.begin(0, name, name, math.inf))}


def costs(given: Given) -> Job:
    """What the device takes for the pieces of a run, or that it compiles no graphs. given: device, faults, setup,
    seconds."""
    name, faults, setup, seconds = given.asked
    if setup:
        run_setup(setup)
    device = resolve(name, load_faults(faults) if faults else ())
    yield {"costs": asdict(measured(device, seconds)) if device.keeps_graphs else None}
