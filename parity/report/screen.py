"""The screen of a run: a progress bar below the lines on a terminal, plain lines in a log."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

from parity.report import output
from parity.report.words import clock

BAR_SECONDS = 0.2
BAR_LEAST = 5  # least columns of a useful bar
LOG_STEPS = 10  # number of progress lines in a log


class Screen:
    """The standard output, or another stream. muted: whether nothing is written for now."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._drawn = 0.0  # when the bar was drawn, by `time.monotonic`
        self._step = 0
        self._from = 0.0  # what was done when this began
        self.muted = False

    @property
    def columns(self) -> int | None:
        """Of a terminal; None for a log."""
        return shutil.get_terminal_size().columns if self._live else None

    def say(self, text: str) -> None:
        """Print a text above the bar."""
        self.write(text + "\n", wiped=True)
        self._drawn = 0.0

    def wait(self, text: str, seconds: float) -> None:
        """Say on a terminal what takes up to so many seconds; the next text overwrites it."""
        if self._live:
            room = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
            self.write(f"{text}, for at most {clock(seconds)}"[:room], wiped=True)

    def write(self, text: str, wiped: bool = False) -> None:
        """Write to the stream, and continue without output if its reader is gone: the run file and the exit code are still
        needed. wiped: whether to overwrite the bar."""
        if self.muted:
            return
        try:
            if wiped and self._live:
                output.control(self._stream, "\r\033[K")
            self._stream.write(text)
            self._stream.flush()
        except OSError as e:
            if not isinstance(e, BrokenPipeError):  # a reader that closed the pipe needs no message
                print(f"parity: cannot write to the standard output ({e.strerror}); the run goes on", file=sys.stderr)
            self._live, self._stream = False, open(os.devnull, "w")  # noqa: SIM115 -- lives as long as the run

    def begin_anew(self, done: float) -> None:
        """What follows begins at 0 %, or at what of it is done already."""
        self._step, self._from = 0, min(done, 0.99)

    def show(self, fraction: float, text: str, spent: float, most: float) -> None:
        """Draw the bar, or a line of a log for each tenth. spent: seconds so far; most: seconds that all of it may take."""
        done = (fraction - self._from) / (1.0 - self._from)
        left = min(spent / done, most) - spent if done > 0.02 else 0.0
        text += f"  {clock(left)} left" if left > 0 else ""
        if self._live:
            if time.monotonic() - self._drawn < BAR_SECONDS and fraction < 1.0:
                return
            self._drawn = time.monotonic()
            columns = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
            width = min(40, columns - len(text) - 10)
            full = int(fraction * width)
            bar = f"[{'#' * full}{'.' * (width - full)}] " if width >= BAR_LEAST else ""
            self.write(f"{bar}{fraction:4.0%}  {text}"[:columns], wiped=True)
        elif int(fraction * LOG_STEPS) > self._step:
            self._step = int(fraction * LOG_STEPS)
            self.write(f"{fraction:4.0%}  {text}\n")
