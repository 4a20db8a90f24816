"""A command in a process of its own, because a device may end it or hang: its operator is then reported.

MPS ends the whole process where an assertion of Metal fails. The process notes each operator before the device runs it, or the
CPU runs it again, and is ended where one takes too long.
"""

from __future__ import annotations

import argparse
import math
import os

from parity.comparing import meter
from parity.core.status import Conclusion
from parity.engine import journal
from parity.engine.child import SHOWN, Child, Watch
from parity.engine.reading import HANG_AFTER, hang_after

COMMAND = "parity.faces.commandline.job"
SECONDS = 300.0  # that one operator may take on a side
SIDES = {"device": "the device", "reference": "the CPU of this machine"}  # by the journal's stage; the others have no limit


def inside() -> bool:
    """Whether this is such a process."""
    return journal.NOTES in os.environ


def run(o: argparse.Namespace) -> int:
    """Run a command of parity, and pass on what it says; its exit code, or 1 if the device ended it or hung. Raises UsageError
    for a time that is none."""
    allowed = hang_after() or SECONDS
    with Child(COMMAND, (o.argv, allowed), Watch(math.inf, stages=SIDES), out=SHOWN) as process:
        events = [*process]
        end = process.ending()
    if not end.died:
        (event,) = events
        if answer := event["answer"]:
            o.answer, o.verdict, o.error = answer["data"], Conclusion(answer["verdict"]), answer["error"]
        return int(event["code"])
    meter.Bar().wipe(always=True)  # the process could not
    entry = end.entry
    side = SIDES.get(entry.stage, SIDES["device"]) if entry is not None else SIDES["device"]
    if end.hung and entry is not None:
        o.error = f"{side} hangs: {allowed:g} s in {entry.case} ({HANG_AFTER} gives it more)"
    else:
        preposition = "in" if entry is not None and entry.stage in SIDES else "after"
        where = "before it came to an operator" if entry is None else f"{preposition} {entry.case}"
        o.error = f"{side} ends the process ({end.died}) {where}"
    print(o.error)
    return 1
