"""A command in a process of its own, because a device may end it or hang: its operator is then reported.

MPS ends the whole process where an assertion of Metal fails. The process notes each operator before the device runs it, or the
CPU runs it again, and is ended where one takes too long.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from parity.comparing import meter
from parity.core import processes
from parity.core.errors import DeviceError
from parity.engine import inquest, journal
from parity.engine.options import HANG_AFTER, hang_after
from parity.faces.running import INTERRUPTED

ENDED = ".ended"  # after the journal's name: the command came to its end
SECONDS = 300.0  # that one operator may take on a side
LOOK_SECONDS = 0.2
SIDES = {"device": "the device", "reference": "the CPU of this machine"}  # by the journal's stage; the others have no limit
CODES = range(DeviceError.exit_code + 1)  # with which a command ends by itself


def ended(code: int) -> int:
    """The exit code of the command in such a process, which notes that it came to its end; so that a model that ends the
    process with 0 is no success."""
    Path(os.environ[journal.NOTES] + ENDED).touch()
    return code


def inside() -> bool:
    """Whether this is such a process."""
    return journal.NOTES in os.environ


def run(argv: Sequence[str]) -> int:
    """Run a command of parity, and pass on what it says; its exit code, or 1 if the device ended it or hung. argv: its
    arguments. Raises UsageError for a time that is none."""
    allowed = hang_after() or SECONDS
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        notes = Path(folder, "journal")
        environment = {**os.environ, journal.NOTES: str(notes), journal.ALLOWED: str(allowed)}
        process = subprocess.Popen(
            processes.command("parity", *argv), env=environment, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        hung, over = threading.Event(), threading.Event()
        watch = threading.Thread(target=_end_where_it_hangs, args=(process, notes, hung, over), daemon=True)
        watch.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
            code = process.wait()
        finally:
            over.set()
            watch.join()
            inquest.end(process)
        entry = journal.read(notes)
        gone = code == 0 and not Path(f"{notes}{ENDED}").exists()
        inside = entry is not None and entry.running and entry.stage in SIDES
        side = SIDES.get(entry.stage, SIDES["device"]) if entry is not None else SIDES["device"]
        if code == INTERRUPTED or (code in CODES and not inside and not gone):
            return code
        meter.Bar().wipe(always=True)  # the process could not
        if hung.is_set() and entry is not None:
            print(f"{side} hangs: {allowed:g} s in {entry.case} ({HANG_AFTER} gives it more)")
            return 1
        where = "before it came to an operator" if entry is None else f"{'in' if inside else 'after'} {entry.case}"
        print(f"{side} ends the process ({inquest.word(code)}) {where}")
        return 1


def _end_where_it_hangs(process: subprocess.Popen[str], notes: Path, hung: threading.Event, over: threading.Event) -> None:
    """Kill the process where an operator takes longer on a side than it may. hung: set then; over: set at its end."""
    while not over.wait(LOOK_SECONDS):
        entry = journal.read(notes)
        if entry is not None and entry.stage in SIDES and entry.overdue:
            hung.set()
            process.kill()
            return
