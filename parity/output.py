"""The standard streams. Their reader may go away, as `head` does: what is found, and the exit code, must not depend on that.
And what is printed holds text from files and devices, which a terminal or the log of a CI must not take for commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from parity.untrusted import shown


class Outlet:
    """A stream that falls silent once nobody reads it, and shows text as text (`untrusted.shown`). Everything else is the
    stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or not."""
        return self.control(shown(text))

    def control(self, text: str) -> int:
        """Write as it is: the codes that move a terminal's cursor, which are parity's own."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._hush()
            return len(text)

    def flush(self) -> None:
        """Flush, or not."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._hush()

    def _hush(self) -> None:
        """Let it all run into nothing, also what is buffered, and what a process of ours will write."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def nowhere() -> TextIO:
    """A stream that nobody reads."""
    return open(os.devnull, "w")  # stays open: the interpreter flushes it at exit


@contextmanager
def patient() -> Iterator[None]:
    """Standard output and standard error may lose their readers meanwhile, and what they print is text alone. A stream that was
    closed by whoever started us goes nowhere, now and later."""
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
    """Write codes that move the cursor to a stream of ours, or to any other."""
    cast(Outlet, stream).control(text) if isinstance(stream, Outlet) else stream.write(text)
