"""The progress of a long comparison, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

SILENT = 5.0  # seconds
IMPORTED = 100  # modules: a run that imports as many says nothing about the next (torch's compiler: 800 in a second)


class Meter:
    """Says how far a comparison has come, first where it takes more than `SILENT` seconds in all, then each time that they have
    doubled. name: of what is compared."""

    def __init__(self, name: str) -> None:
        self._name, self._next, self._began = name, SILENT, time.monotonic()

    @contextmanager
    def run(self, what: str, left: float, hint: str = "") -> Iterator[None]:
        """Time a run. what: what it is, in words; left: how many that take as long are to come, as far as is known."""
        began, modules = time.monotonic(), len(sys.modules)
        yield
        now = time.monotonic()
        if len(sys.modules) - modules >= IMPORTED:
            return
        spent, more = now - self._began, left * (now - began)
        if left and spent + more >= self._next:
            self._next = 2.0 * (spent + more)
            print(
                f"parity: {self._name}: {spent:.0f} s so far, with {what}; about {more:.0f} s more{hint}",
                file=sys.stderr,
                flush=True,
            )
