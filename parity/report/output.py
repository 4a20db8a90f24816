"""The standard streams. Their reader may close them, as `head` does; findings and the exit code must not depend on that. The
output may contain text from files and devices, so control characters are escaped before they reach a terminal or a CI log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from parity.core.untrusted import shown


class Outlet:
    """A stream that ignores output after its reader has gone, and escapes control characters (`untrusted.shown`). Everything
    else is passed to the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, escaped; ignored if nobody reads it."""
        return self.control(shown(text))

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


def control(stream: TextIO, text: str) -> None:
    """Write cursor codes to an Outlet or any other stream."""
    cast(Outlet, stream).control(text) if isinstance(stream, Outlet) else stream.write(text)
