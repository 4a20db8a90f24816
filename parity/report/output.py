"""The standard streams. Their reader may close them, as `head` does; findings and the exit code must not depend on that. The
output may contain text from files and devices, so control characters are escaped before they reach a terminal or a CI log.
On a terminal no line is longer than it, and verdicts have a colour.

The screen of a run: a progress bar below the lines on a terminal, plain lines in a log.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO, cast

from parity.core.status import Conclusion
from parity.core.untrusted import shown
from parity.report.words import clock

TOKEN = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\S)+")  # what a line may be broken between: nothing inside quotes
COMMAND = re.compile(r"\s*(?:reproduce|next|and here): |\s*or run ")  # what begins a line to copy
NARROWEST = 40  # columns for which lines are folded


def fitted(line: str, columns: int, indent: int = 2) -> list[str]:
    """A line, folded to so many columns at spaces; the next command of a verdict comes on a line of its own. Quoted arguments
    stay whole and commands go on after a backslash, so that they can be copied. indent: of what follows, beyond the line's."""
    columns = max(columns, NARROWEST)
    if len(line) <= columns:
        return [line]
    deeper = " " * (len(line) - len(line.lstrip()) + indent)
    if VERDICT.match(line) and "; next: " in line:
        before, _, after = line.rpartition("; next: ")
        return [*fitted(before, columns, indent), *fitted(f"{deeper}next: {after}", columns)]
    end, tokens = (" \\", TOKEN.finditer(line)) if COMMAND.match(line) else ("", re.finditer(r"\S+", line))
    begin = last = 0
    lines: list[str] = []
    for token in tokens:
        shift = len(deeper) if lines else 0
        if token.end() - begin + shift + len(end) > columns and last > begin and line[begin:last].strip():
            lines.append((deeper if lines else "") + line[begin:last] + end)
            begin = token.start()
        last = token.end()
    return [*lines, (deeper if lines else "") + line[begin:].rstrip()]


def columns() -> int | None:
    """Of the standard output; None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


class Outlet:
    """A stream that ignores output after its reader has gone, and escapes control characters (`untrusted.shown`); on a terminal
    it folds long lines and colours verdicts. Everything else is passed to the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, escaped; ignored if nobody reads it."""
        lines = shown(text).split("\n")
        if self._stream.isatty():
            columns = shutil.get_terminal_size().columns
            lines = [part for line in lines for part in fitted(line, columns)]
        return self.control("\n".join(coloured(line, self._stream) for line in lines))

    def control(self, text: str) -> int:
        """Write the text unescaped: for parity's own cursor codes."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._hush()
            return len(text)

    def flush(self) -> None:
        """Flush; ignored if nobody reads it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._hush()

    def _hush(self) -> None:
        """Redirect the stream to nowhere, including its buffer and the output of child processes."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def nowhere() -> TextIO:
    """A stream that discards everything."""
    return open(os.devnull, "w")  # never closed, because the interpreter flushes it at exit


@contextmanager
def patient() -> Iterator[None]:
    """Survive the loss of the readers of standard output and standard error, and escape what is printed. A stream that was
    closed before the start is replaced by one that discards everything, and standard input by one that holds nothing: else a
    file that is opened would take its number, which pytest closes."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 -- never closed, as in `nowhere`
    before = {}
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, nowhere())
        before[name] = getattr(sys, name)
        if hasattr(before[name], "reconfigure"):
            before[name].reconfigure(errors="backslashreplace")
        setattr(sys, name, cast(TextIO, Outlet(before[name])))
    ours = {name: getattr(sys, name) for name in before}
    try:
        yield
    finally:
        for name, stream in before.items():
            if getattr(sys, name) is ours[name]:
                setattr(sys, name, stream)


@contextmanager
def aside() -> Iterator[None]:
    """While active, all that is printed goes to standard error, of children and of code in C as well."""
    sys.stdout.flush()
    kept = None
    with suppress(OSError):  # a stream that is closed
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def document(text: str) -> None:
    """Print what is for other programs: escaped, but neither folded nor coloured."""
    control(sys.stdout, shown(text))


def control(stream: TextIO, text: str) -> None:
    """Write cursor codes to an Outlet or any other stream."""
    cast(Outlet, stream).control(text) if isinstance(stream, Outlet) else stream.write(text)


COLOURS = {Conclusion.PASS: 32, Conclusion.FAIL: 31, Conclusion.INCONCLUSIVE: 33}  # of a terminal: green, red, yellow
VERDICT = re.compile(rf"({'|'.join(Conclusion)})(?=  )")


def last_line(verdict: Conclusion, said: str, seconds: float | None = None, stored: str = "", following: str = "") -> str:
    """A verdict in one line. said: what was compared and what came of it; stored: the file; following: the next command."""
    parts = [f"{verdict}  {said}" + (f", in {clock(seconds)}" if seconds is not None else "")]
    parts += [f"stored in {stored}"] if stored else []
    return "; ".join([*parts, f"next: {following}"] if following else parts)


def coloured(line: str, stream: TextIO) -> str:
    """The line with its verdict in colour, on a terminal. NO_COLOR leaves colours out, FORCE_COLOR asks for them elsewhere."""
    asked = bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")
    if os.environ.get("NO_COLOR") or not asked:
        return line
    if (m := VERDICT.match(line)) is None:
        return line
    return f"\033[1;{COLOURS[Conclusion(m[1])]}m{m[1]}\033[0m{line[m.end() :]}"


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
                control(self._stream, "\r\033[K")
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
