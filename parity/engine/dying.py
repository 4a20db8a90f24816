"""The process in which deaths are tried: `python -m parity.engine.dying`, with JSON lines on its standard input.

The first line says where ("device", "faults", "setup"); each later one is a case with the aspect to check, "" for all, and the
seconds to live on after it. It says "ready", then "begin" and "lives" or "unable" for each case (`parity.engine.shrinking`).
"""

from __future__ import annotations

import json
import sys
import time

from parity.checks.check import EVERYTHING, Settings, check, quiet
from parity.core import notation
from parity.core.results import Aspect
from parity.devices.fallbacks import listening
from parity.engine import suite
from parity.engine.options import RunOptions
from parity.engine.planning import run_plan
from parity.engine.shrinking import BEGIN, LIVES, MARK, READY, UNABLE


def main() -> None:
    """Check the cases in their order."""
    where = json.loads(sys.stdin.readline())
    plan, notes = run_plan(RunOptions(**where), 0.0, None), list[str]()
    device = plan.device
    say(READY)
    for line in sys.stdin:
        text, aspect, linger = json.loads(line)
        how = Settings(True, aspect == Aspect.REPEAT, aspect) if aspect else EVERYTHING
        word = LIVES
        try:
            case = notation.parse(text)
            say(BEGIN)
            with device.active(), listening(notes):
                check(suite.row(case.op), case, device, plan.cpu, plan.tables, how, quiet, notes)
                if not device.answers():
                    return
        except Exception:  # a reduced case may fit no call
            word = UNABLE
        notes.clear()
        time.sleep(linger)
        say(word)


def say(word: str) -> None:
    """One line of the protocol."""
    print(f"{MARK}{word}", flush=True)


if __name__ == "__main__":
    main()
