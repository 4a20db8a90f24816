"""The causes that a run has found so far, for all of its processes.

Most findings of a run have the cause of another one: 523 on an H100 have some 60. Shrinking takes half of the time that looking
into one takes, and what follows a third. So a finding is first followed as it was drawn. If others of its cause were looked at
closely, it only loses what it does not need, or nothing where its op has shown the cause before, and no ways around are tried.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from parity.core.results import STRIDED_DESTINATION, Cause, Record
from parity.findings.causes import OPERATORS, weight

CLOSELY = 3  # findings of one cause, of all items, that are looked at closely; one if it is plain, or an error in words
PLAIN = ("A", "R")  # of classes


class Seen:
    """The causes of what other items of a run found, in any process that has the same folder; none without one.

    A line of a file for each finding that was looked into, with the id of its cause, the class of its least case, and its op.
    What an item itself has found does not count before the next one, so that each item looks closely at what is new to it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._path = None if folder is None else folder / "causes"
        self._found: dict[str, list[tuple[str, str]]] = {}  # id -> (class, op) of each finding

    def __bool__(self) -> bool:
        return bool(self._found)

    def read(self) -> None:
        """Take note of what all processes have found so far."""
        self._found.clear()
        with suppress(OSError):
            for line in self._path.read_text(encoding="utf-8").splitlines() if self._path is not None else ():
                id, letter, op = line.split(" ", 2)
                self._found.setdefault(id, []).append((letter, op))

    def has(self, c: Cause) -> bool:
        """Whether another finding of the cause would show nothing new."""
        found = self._found.get(_kept_as(c), [])
        return len(found) >= CLOSELY or any(letter in PLAIN for letter, _ in found)

    def shows(self, c: Cause, op: str) -> bool:
        """Whether the op has shown the cause."""
        return any(o == op for _, o in self._found.get(_kept_as(c), []))

    def add(self, c: Cause, r: Record) -> None:
        """Let all processes know of a finding that was looked into. A full disk costs time, not the finding."""
        if self._path is not None and c.searched:
            with suppress(OSError), self._path.open("a", encoding="utf-8") as f:
                f.write(f"{_kept_as(c)} {weight(r)} {r.op}\n")


def _kept_as(c: Cause) -> str:
    """The id of a cause; those that write beside strided destinations share it, because nothing else is to be found of them."""
    return (replace(c, subject=OPERATORS) if c.properties == (STRIDED_DESTINATION,) else c).id
