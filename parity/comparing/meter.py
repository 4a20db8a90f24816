"""How far a long comparison has come, on stderr: lines of a comparison, and the bar of a command on a terminal."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

SILENT = 3.0  # seconds
IMPORTED = 100  # modules: a run that imports as many says nothing about the next (torch's compiler: 800 in a second)
QUIET = 3.0  # seconds in which a bar is not needed
DRAWN = 0.2  # seconds between two drawings
WIDTH = 30  # columns of the bar itself
WIPE = "\r\033[K"


class Meter:
    """Says how far a comparison has come, first where it takes more than `SILENT` seconds in all, then each time that they have
    doubled. name: of what is compared; without one it says nothing."""

    def __init__(self, name: str) -> None:
        self._name, self._next, self._began, self._took = name, SILENT, time.monotonic(), list[float]()

    @contextmanager
    def run(self, what: str, left: float, alike: bool = False) -> Iterator[None]:
        """Time a run. what: what it is, in words; left: how many that take as long are to come, as far as is known; alike:
        whether all runs are of one kind, so that what they usually take, the first left out, says more than this one."""
        began, modules = time.monotonic(), len(sys.modules)
        yield
        now = time.monotonic()
        self._took.append(now - began)
        if len(sys.modules) - modules >= IMPORTED:
            return
        spent, more = now - self._began, left * (statistics.median(self._took[1:] or self._took) if alike else now - began)
        if self._name and left and spent + more >= self._next:
            self._next = 2.0 * (spent + more)
            wipe()
            print(
                f"parity: {self._name}: {spent:.0f} s so far, with {what}; about {more:.0f} s more", file=sys.stderr, flush=True
            )


class Bar:
    """The last line of a terminal: how far a command has come, from the third second on, and about how long the rest takes.
    Nothing is written anywhere else."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live, self._began, self._last = self._stream.isatty(), time.monotonic(), 0.0
        self.drawn = False

    @property
    def live(self) -> bool:
        """Whether anybody sees it."""
        return self._live

    def at(self, done: float, total: float, what: str) -> None:
        """So much of the whole is done. what: in words."""
        now = time.monotonic()
        if not self._live or now - self._began < QUIET or now - self._last < DRAWN:
            return
        self._last, spent = now, now - self._began
        part = min(done / total, 0.99) if total else 0.0
        left = f", about {spent / part - spent:.0f} s left" if part > 0.02 else ""
        full = int(part * WIDTH)
        self._write(f"[{'#' * full}{'.' * (WIDTH - full)}] {part:4.0%}  {what}{left}"[: self._columns() - 1])
        self.drawn = True

    def wipe(self, always: bool = False) -> None:
        """Clear the line for other texts. always: also what another process drew there."""
        if self.drawn or (always and self._live):
            self._write("")
            self.drawn = False

    def _write(self, text: str) -> None:
        try:
            getattr(self._stream, "control", self._stream.write)(WIPE + text)  # an outlet escapes what is written plainly
            self._stream.flush()
        except OSError:  # nobody reads it any more
            self._live = False

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            return 80


_BARS: list[Bar] = []  # of the command that runs now


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[Bar]:
    """Show inside how far the work has come that says so by `at`, and wipe that at the end."""
    _BARS.append(Bar(stream))
    try:
        yield _BARS[-1]
    finally:
        _BARS.pop().wipe()


def at(done: float, total: float, what: str) -> None:
    """So much of the whole is done, where a command shows it."""
    if _BARS:
        _BARS[-1].at(done, total, what)


def watched() -> bool:
    """Whether a command shows it to anybody."""
    return bool(_BARS) and _BARS[-1].live


def wipe() -> None:
    """Clear the line for other texts."""
    if _BARS:
        _BARS[-1].wipe()
