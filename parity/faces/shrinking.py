"""The deaths of a run are shrunk: those that are known early while some workers have nothing left to do, the others at its end.

What shrinks them loads torch, which the process of a run does without. That is done in a thread, so that the run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from parity.engine.inquest import How
from parity.engine.options import RunOptions
from parity.store.rows import Death, Shrunk

if TYPE_CHECKING:
    from parity.engine.shrinking import Shrinking


class EarlyDeaths:
    """`Shrinking` of a run, which is loaded when the first death is offered."""

    def __init__(self, o: RunOptions, workers: int) -> None:
        self._o, self._workers = o, workers
        self._thread = ThreadPoolExecutor(1)
        self._loading: Future[Shrinking] | None = None

    def offer(self, deaths: Sequence[Death], free: int) -> int:
        """Begin with deaths that nobody has begun with, as soon as it is loaded; how many run then. free: how many may."""
        if self._loading is None and deaths:
            self._loading = self._thread.submit(self._load)
        return self._loading.result().offer(deaths, free) if self._loading is not None and self._loading.done() else 0

    def done(self, deaths: Sequence[Death], seconds: float) -> tuple[Shrunk, ...]:
        """One of each kind, shrunk. seconds: for those that are left."""
        self.offer(deaths, 0)
        return self._loading.result().done(deaths, seconds) if self._loading is not None else ()

    def stop(self) -> None:
        """End what still runs."""
        if self._loading is not None:
            self._loading.result().stop()
        self._thread.shutdown()

    def _load(self) -> Shrinking:
        from parity.engine.shrinking import Shrinking

        return Shrinking(How(self._o.device, self._o.faults, self._o.setup), self._workers, self._o.hang_after)


def shrink(o: RunOptions, workers: int, reporter: Any, until: float) -> None:
    """Look for the least case of each kind of death, within half of the time that is left."""
    if not (deaths := reporter.run.to_shrink):
        return
    from parity.engine.shrinking import ALL
    from parity.report.finding import write_script_of_death  # torch is loaded where there is something to shrink

    began = time.monotonic()
    seconds = min(ALL, max(0.0, until - began) / 2)
    reporter.wait("looking for the least case of each kind of death", seconds)
    reporter.run.idle(0, max(1, workers // 2))  # findings are tried once more meanwhile
    early = reporter.run.early.deaths if reporter.run.early is not None else EarlyDeaths(o, workers)
    reporter.take_shrunk(early.done(deaths, seconds), o.device, time.monotonic() - began, write_script_of_death)
