"""A command in a process of its own, because a device may end it: which operator it was at is told.

MPS ends the whole process where an assertion of Metal fails. The process notes each operator before the device runs it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from parity.core import processes
from parity.core.errors import DeviceError
from parity.faces.running import INTERRUPTED
from parity.runs import inquest, journal

CODES = range(DeviceError.exit_code + 1)  # with which a command ends by itself


def run(argv: Sequence[str]) -> int:
    """Run a command of parity, and pass on what it says; its exit code, or 1 if the device ended it. argv: its arguments."""
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        notes = Path(folder, "journal")
        environment = {**os.environ, journal.NOTES: str(notes)}
        process = subprocess.Popen(
            processes.command("parity", *argv), env=environment, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
            code = process.wait()
        finally:
            inquest.end(process)
        entry = journal.read(notes)
        inside = entry is not None and entry.running and entry.stage == "device"
        if code == INTERRUPTED or (code in CODES and not inside):
            return code
        where = "before it came to an operator" if entry is None else f"{'in' if inside else 'after'} {entry.case}"
        print(f"the device ends the process ({inquest.word(code)}) {where}")
        return 1
