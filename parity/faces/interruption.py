"""Treat Ctrl-C, SIGTERM (a cancelled CI job) and SIGHUP (a terminal that was closed) as a request to stop, after
which a run still reports and stores what it has."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, ClassVar, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
DEAF_SECONDS = 1.0


def stop_soon(config: Any, why: str) -> None:
    """Let the workers of a pytest run end after what they have been given, and start no others. xdist asks neither its session
    nor its options."""
    running = config.pluginmanager.getplugin("dsession")
    running.shouldstop, running._max_worker_restart = why, 0


class Interruptions:
    """A context in which these signals raise KeyboardInterrupt in the main thread, at most once a second, because `timeout`
    sends two signals and people press twice. Later ones still count, since Python drops an exception that it cannot propagate
    (in a callback of the garbage collector). Signals that were ignored before (a script in the background) stay ignored.
    Outside of the main thread, which alone may handle signals, nothing changes."""

    _waits: ClassVar[bool | None] = None  # whether a signal waits for the end of `later`; None outside of it

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
        """Ignore further signals: the end of the run is being written."""
        self._deaf_until = math.inf

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if (now := time.monotonic()) > self._deaf_until:
            self._deaf_until = now + DEAF_SECONDS
            if Interruptions._waits is not False:  # the second one: a screen or a disk may hold up what was to be waited for
                raise KeyboardInterrupt
            Interruptions._waits = True

    @classmethod
    @contextmanager
    def later(cls) -> Iterator[None]:
        """A context that the first of these signals does not break off: it is heard at its end. One more a second later is."""
        cls._waits = False
        try:
            yield
        finally:
            waits, cls._waits = cls._waits, None
            if waits:
                raise KeyboardInterrupt
