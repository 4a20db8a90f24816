"""Standard output whose reader may go away, as `head` does: what is found, and the exit code, must not depend on that."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class Outlet:
    """A stream that falls silent once nobody reads it. Everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or not."""
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
    """Standard output may lose its reader meanwhile; one that was closed by whoever started us goes nowhere, now and later."""
    if sys.stdout is None:
        sys.stdout = nowhere()
    before = sys.stdout
    outlet = sys.stdout = cast(TextIO, Outlet(before))
    try:
        yield
    finally:
        if sys.stdout is outlet:
            sys.stdout = before
