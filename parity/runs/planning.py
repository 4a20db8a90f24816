"""What all items of a process share, made from the options of its run."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import torch

from parity import tolerance
from parity.core import processes
from parity.core.dtypes import FACTS
from parity.devices import load_faults, resolve
from parity.devices.preflight import is_fast
from parity.devices.setup import run_setup
from parity.runs import known, suite
from parity.runs.examine import RunPlan
from parity.runs.options import RunOptions
from parity.runs.rounds import TimeLimit


def run_plan(options: RunOptions, power: float, left: float | None, later: bool = False) -> RunPlan:
    """The RunPlan of this process. power, later: see `RunPlan`; left: seconds until the time is over."""
    processes.prepare_torch()
    if options.setup:  # before OpInfo is imported, which freezes the backend flags
        run_setup(options.setup)
    device = resolve(options.device, load_faults(options.faults) if options.faults else ())
    tables = tolerance.load(device.name, known_ops={r.name for r in suite.rows("all")}, fast=is_fast(device))
    cpu, profile = resolve("cpu"), suite.profile(options.profile)
    gc.freeze()  # torch and the catalog stay alive, so the collector need not scan them
    with device.active():
        takes = frozenset(d for d in FACTS if device.takes(getattr(torch, d)))
    limit = None if left is None else TimeLimit(time.monotonic() + left)
    held = known.read(Path(options.known)) if options.known else None
    return RunPlan(device, cpu, tables, profile, options, power, takes, limit, held, later)
