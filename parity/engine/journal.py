"""A worker's journal of what it is about to do, in shared memory that survives the death of the process.

One file per worker, mapped by the worker and read by the controller. An entry costs about a microsecond and no system call. It
survives the process, but not a power cut. A number counts the changes and is odd during one, so that a reader never takes half
of a change for an entry.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import struct
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from parity.core import processes
from parity.core.child import LOST as LOST
from parity.core.errors import DeviceError
from parity.engine.rounds import part_of

SIZE = 1 << 16
HEAD = struct.Struct("<BBxxIddIIQ")  # state, stage, changes, started, allowed seconds, ordinal, payload length, pid
CHANGES = struct.Struct("<I")  # of the head
CHANGES_AT = struct.calcsize("<BBxx")
CLOCK = struct.Struct("<d")  # of the head: started
CLOCK_AT = struct.calcsize("<BBxxI")
READS = 20  # tries to read an entry between two changes; the rest are those of a process that ended during one
IDLE, RUNNING = 0, 1
DEATHS = "deaths.jsonl"
FULL = ".full"  # of a file next to the journal: the worker ended itself between two items, because of its memory
NOTES = "PARITY_NOTES"  # variable of the environment: the path of the journal of a command that runs in a process of its own
ALLOWED = "PARITY_ALLOWED"  # and with it: the seconds that one operator may take on the device
STAGES = ("build", "reference", "device", "compare")
# Ordinals of no drawn case:
REPLAYING = 1 << 29  # the ordinal of the first known case that is replayed
SHRINKING = 1 << 30  # the ordinal of all cases tried in shrinking: if one ends the process, the item is not shrunk
LOCATING = SHRINKING + 1  # and of those tried for causes: if one ends the process, causes are reported without experiments
CALLS = 64  # cases before one of which a journal knows the texts
COMPARING = 5  # times as long as another stage: it is the CPU's, which runs a call dozens of times to judge its result


class CaseJournal(Protocol):
    """Receives what an item is about to do: the `Journal`, or nothing."""

    @property
    def calls(self) -> Collection[str]:
        """The cases that have begun in this process, the last one last."""

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """A case begins."""

    def stage(self, name: str) -> None:
        """The case reaches a stage."""

    def end(self) -> None:
        """The case is done."""

    def lost(self, why: str) -> None:
        """The case left the device unable to compute: a worker ends here, and another one continues without the case."""


class NoJournal:
    """Records nothing."""

    calls = ()

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """Nothing."""

    def stage(self, name: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def lost(self, why: str) -> None:
        """Raises DeviceError, because there is no other process to continue."""
        raise DeviceError(f"the device computes nothing any more after: {why}; run with -n 1 to go on without the case")


class Journal:
    """The writing side, used by the worker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        processes.keep_folder(path.parent)  # somebody may have cleaned it up
        path.write_bytes(b"\0" * SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._pid, self._changes = os.getpid(), 0
        self.calls: deque[str] = deque(maxlen=CALLS + 1)

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """Record that a case begins. ordinal: of the case in its item; allowed: seconds that each of its stages may take."""
        own = self._own()
        if not self.calls or self.calls[-1] != case:
            self.calls.append(case)
        payload = f"{item}\0{case}".encode()[: SIZE - HEAD.size]
        self._change()
        own[HEAD.size : HEAD.size + len(payload)] = payload
        head = HEAD.pack(RUNNING, 0, self._changes, time.monotonic(), allowed, ordinal, len(payload), self._pid)
        own[: HEAD.size] = head
        self._change()

    def stage(self, name: str) -> None:
        """Record the stage that the case has reached; each may take as long as a whole case is allowed to, so that many calls
        on a slow device are no hang."""
        self._own()
        self._change()
        self._map[1] = STAGES.index(name)
        self._map[CLOCK_AT : CLOCK_AT + CLOCK.size] = CLOCK.pack(time.monotonic())
        self._change()

    def end(self) -> None:
        """Record that the case is done."""
        self._own()[0] = IDLE

    def _own(self) -> mmap.mmap:
        """The map. A worker of a DataLoader writes to one that nobody reads; any other copy of the process ends, because native
        code has forked it, and it must not report the item, too."""
        if os.getpid() != self._pid:
            if multiprocessing.parent_process() is None:
                os._exit(LOST)
            self._map, self._pid = mmap.mmap(-1, SIZE), os.getpid()
        return self._map

    def _change(self) -> None:
        """Count the begin or the end of a change. Packed apart: pack_into would show a reader zeros before the number."""
        self._changes = (self._changes + 1) % (1 << 32)
        self._map[CHANGES_AT : CHANGES_AT + CHANGES.size] = CHANGES.pack(self._changes)

    def lost(self, why: str) -> None:
        """The case left the device unable to compute: write the reason to a file next to the journal and end the process. Never
        returns."""
        self._path.with_suffix(".lost").write_text(why, encoding="utf-8")
        os._exit(LOST)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The content of a journal. started: when its stage began, on the machine's monotonic clock, which all its processes
    share; allowed: seconds that a stage may take, `COMPARING` times as many where it compares."""

    running: bool
    stage: str
    ordinal: int
    started: float
    allowed: float
    pid: int
    item: str
    case: str

    def is_overdue(self, since: float = 0.0) -> bool:
        """Whether the stage has exceeded its time limit. since: from when it counts, if that is later than the stage began
        (`processes.Stops`)."""
        times = COMPARING if self.stage == "compare" else 1
        return self.running and time.monotonic() > max(self.started, since) + times * self.allowed


def read(path: Path) -> JournalEntry | None:
    """The journal at a path; None if it does not exist or is still empty."""
    try:
        raw = path.read_bytes()
        for _ in range(READS):
            again = path.read_bytes()
            if again[: HEAD.size] == raw[: HEAD.size] and not _is_changing(raw):
                break
            raw = again
    except OSError:
        return None
    if len(raw) < HEAD.size:
        return None
    state, stage, _, started, allowed, ordinal, n, pid = HEAD.unpack_from(raw)
    if pid <= 0:  # created but not yet written; signalling pid 0 would reach the whole process group
        return None
    item, _, case = raw[HEAD.size : HEAD.size + n].decode(errors="replace").partition("\0")
    return JournalEntry(state == RUNNING, STAGES[min(stage, 3)], ordinal, started, allowed, pid, item, case)


def _is_changing(raw: bytes) -> bool:
    """Whether what was read is from the middle of a change."""
    return len(raw) >= HEAD.size and bool(CHANGES.unpack_from(raw, CHANGES_AT)[0] % 2)


def deaths(folder: Path, node: str) -> list[dict[str, Any]]:
    """The deaths of one test that the controller recorded, and of the other parts of its item, in order."""
    path = folder / DEATHS
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if _whole(row["node"]) == _whole(node)]


def _whole(node: str) -> tuple[str, str]:
    """A test without the part of its item that it checks."""
    return node.rpartition("[")[0], part_of(node)[0]
