"""Ctrl-C and SIGTERM (a cancelled job of a CI) as one request to stop, after which a run still tells and stores what it has."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEAF_SECONDS = 1.0


class Interruptions:
    """While it is entered, these signals raise KeyboardInterrupt in the main thread, at most one a second: `timeout` sends two,
    and people press twice. A later one is heard, since Python loses what is raised where it cannot be passed on (in a callback
    of the garbage collection). What was ignored before (in the background of a script) stays so. Outside of the main thread,
    which alone may ask for signals, everything stays as it is."""

    def __init__(self) -> None:
        self._deaf_until = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            wanted = [s for s in SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
            self._before = {s: signal.signal(s, self._hear) for s in wanted}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Hear none from now on: the end is being written."""
        self._deaf_until = math.inf

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if (now := time.monotonic()) > self._deaf_until:
            self._deaf_until = now + DEAF_SECONDS
            raise KeyboardInterrupt
