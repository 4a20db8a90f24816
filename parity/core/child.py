"""Do a job in a process that ends when its parent does: `python -m parity.core.child PARENT JOB FOLDER`.

PARENT is the number of the process that starts it. JOB is the dotted name of a function of parity, which is called with what it
is given, and yields events. FOLDER holds what both sides read and write (`parity.engine.child` is the other side):

    asked         what the job is given, as JSON
    events        an event in each line, as JSON: {"begin": ...} is what it does next, any other one what came of it; or
                  {"refused": why, "code": exit code} where it raises a ParityError; the last one is the end record,
                  {"end": how many it did, "of": how many it was given}, without which the process has died, whatever its code
    journal       what it is about to do, where the job watches calls (`parity.engine.journal`)
    journal.lost  why it can do nothing any more

Nothing heavy is imported before the watch begins, because the parent may be gone before this process has started.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.core import processes
from parity.core.errors import ParityError

ASKED, EVENTS, JOURNAL = "asked", "events", "journal"
BEGIN, REFUSED, END = "begin", "refused", "end"
LOST = 86  # exit code of a process that can do nothing any more
Event = dict[str, Any]
Job = Iterator[Event]


@dataclass(slots=True)
class Given:
    """What a job is given. asked: what it is to do; folder: for its journal; of: how many things it was given, which a job sets
    that counts them."""

    asked: Any
    folder: Path
    of: int | None = None

    @property
    def journal(self) -> Path:
        return self.folder / JOURNAL

    def more(self) -> Iterator[Any]:
        """What the parent sends later, until it sends nothing more."""
        return map(json.loads, sys.stdin)


class _Events:
    """Writes events. The file is opened for each, because a call may close all descriptors of this process; where its folder is
    gone, the parent still reads what this process has open. done: how many things were done."""

    def __init__(self, folder: Path) -> None:
        self.done = 0
        self._folder = folder
        self._held = processes.set_aside(os.open(folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        self._theirs = [*os.pipe(), *filter(_is_open, (0, 1, 2))]  # that nothing must close

    def say(self, event: Event) -> None:
        """Write an event; ends the process where a call has closed its descriptors."""
        if not all(map(_is_open, self._theirs)):
            lost = (self._folder / JOURNAL).with_suffix(".lost")
            lost.write_text("it closed file descriptors of its process", encoding="utf-8")
            os._exit(LOST)
        self.done += BEGIN not in event
        line = json.dumps(event).encode() + b"\n"
        try:
            with (self._folder / EVENTS).open("ab", buffering=0) as file:
                file.write(line)
        except FileNotFoundError:
            os.write(self._held, line)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def main() -> int:
    """Watch the parent, and do the job; the exit code."""
    number, name, folder = sys.argv[1:]
    processes.end_with_parent(int(number))
    processes.end_forks()
    sys.argv = [name]
    out = _Events(Path(folder))
    given = Given(json.loads(Path(folder, ASKED).read_text(encoding="utf-8")), Path(folder))
    try:
        module, _, function = name.rpartition(".")
        job: Job = getattr(importlib.import_module(module), function)(given)
        for event in job:
            out.say(event)
    except ParityError as e:
        out.say({REFUSED: str(e), "code": e.exit_code})
        return e.exit_code
    out.say({END: out.done, "of": out.done if given.of is None else given.of})
    return 0


if __name__ == "__main__":
    sys.exit(main())
