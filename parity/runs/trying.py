"""The process that tries findings once more: `python -m parity.runs.trying` with JSON on its standard input.

It writes "begin", then "came N" or "gone N" for each finding, where N is how often it was tried (`parity.runs.again`).
"""

from __future__ import annotations

import json
import sys

import torch

from parity import tolerance
from parity.checks.check import failing
from parity.core import notation
from parity.core.errors import ParityError
from parity.core.results import Aspect
from parity.devices import load_faults, resolve
from parity.devices.fallbacks import listening
from parity.devices.preflight import is_fast
from parity.devices.setup import run_setup
from parity.runs import suite
from parity.runs.again import MARK, TRIES
from parity.runs.examine import NoJournal, RunPlan, recheck
from parity.runs.suite import Item


def main() -> None:
    """Try the findings in their order."""
    asked = json.loads(sys.stdin.read())
    if asked["setup"]:
        run_setup(asked["setup"])
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    device = resolve(asked["device"], load_faults(asked["faults"]) if asked["faults"] else ())
    tables = tolerance.load(device.name, known_ops={r.name for r in suite.rows("all")}, fast=is_fast(device))
    plan = RunPlan(device, resolve("cpu"), tables, suite.profile("quick"))
    for least, drawn, aspect in asked["findings"]:
        say("begin")
        tried, came = 0, False
        while not came and tried <= TRIES:
            came = shows(least if tried < TRIES else drawn, Aspect(aspect), plan)
            tried += 1
        say(f"{'came' if came else 'gone'} {tried}")


def say(word: str) -> None:
    """One line of the protocol."""
    print(f"{MARK}{word}", flush=True)


def shows(text: str, aspect: Aspect, plan: RunPlan) -> bool:
    """Whether a case shows a finding in this aspect."""
    try:
        case = notation.parse(text)
        notes: list[str] = []
        with plan.device.active(), listening(notes):
            results = recheck(Item(suite.row(case.op), case.dtype), plan, case, notes, aspect, NoJournal())
            return bool(failing(results)) or not plan.device.answers()
    except ParityError:
        return False


if __name__ == "__main__":
    main()
