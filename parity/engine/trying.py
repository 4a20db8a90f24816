"""The process that tries findings once more: `python -m parity.engine.trying` with JSON on its standard input.

It writes "begin", then "came N", "gone N" or "unable N" for each finding, where N is how often it was tried
(`parity.engine.again`). Only a comparison that agrees acquits; what cannot be compared in this process does not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from parity.checks.check import Result, failing
from parity.core import notation
from parity.core.errors import ParityError
from parity.core.results import Aspect
from parity.devices.fallbacks import listening
from parity.engine import suite
from parity.engine.again import BEGIN, CAME, GONE, MARK, TRIES, UNABLE
from parity.engine.checking import recheck, replay
from parity.engine.journal import NoJournal
from parity.engine.options import METADATA, RunOptions
from parity.engine.planning import RunPlan, run_plan
from parity.engine.suite import Item


def main() -> None:
    """Try the findings in their order."""
    asked = json.loads(sys.stdin.read())
    where = {name: asked[name] for name in ("device", "faults", "setup")}
    plan = run_plan(RunOptions(**where, fail_on=(METADATA,) if asked["fail_on_metadata"] else ()), 0.0, None)
    plan = replace(plan, profile=replace(plan.profile, poison=True))
    for (least, *drawn), aspect in asked["findings"]:
        say(BEGIN)
        tried, able, came = 0, False, False
        for text in dict.fromkeys((least, *drawn)):
            for _ in range(TRIES if text == least and not asked["whole"] else 1):
                shown = None if came else shows(text, Aspect(aspect), plan, asked["whole"])
                tried, able, came = tried + (not came), able or shown is not None, came or bool(shown)
        say(f"{CAME if came else GONE if able else UNABLE} {tried}")


def say(word: str) -> None:
    """One line of the protocol."""
    print(f"{MARK}{word}", flush=True)


def shows(text: str, aspect: Aspect, plan: RunPlan, whole: bool) -> bool | None:
    """Whether a case shows a finding in this aspect; None if it compares nothing here, or cannot be built. whole: whether to
    check it in all aspects."""
    try:
        case = notation.parse(text)
        item, notes = Item(suite.row(case.op), case.dtype), list[str]()
        if whole:
            return _differs([r for r in replay(item, plan, case) if r.aspect is aspect])
        with plan.device.active(), listening(notes):
            results = recheck(item, plan, case, notes, aspect, NoJournal())
            return True if failing(results) or not plan.device.answers() else _differs(results)
    except ParityError:
        return None


def _differs(results: Sequence[Result]) -> bool | None:
    """Whether one is a finding; None if they compare nothing."""
    if failing(results):
        return True
    return False if any(r.verdict.status.is_comparison for r in results) else None


if __name__ == "__main__":
    main()
