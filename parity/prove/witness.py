"""Detect when a fault is at work: a tap around its effect, and two journals that outlive the process."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.core.errors import DeviceError
from parity.devices import Call, Fault
from parity.engine.journal import Journal, JournalEntry

FIRED = "fired-"  # prefix of the journal of firings; the worker's name follows


class Tap:
    """Counts how often a fault is at work, and calls `first` before it acts. While `harmless` is set, the fault is only
    counted, so that one process can look for the cases in which a deadly fault would act."""

    def __init__(self, fault: Fault, first: Callable[[], None]) -> None:
        self.count, self.raised, self.harmless = 0, "", False
        self._effect, self._first = fault.effect, first
        self.fault = replace(fault, effect=self._counted)

    def _counted(self, call: Call) -> Any:
        self.count += 1
        if self.harmless:
            return call.run()
        self._first()
        try:
            return self._effect(call)
        except Exception as e:
            self.raised = type(e).__name__
            raise


class FaultJournals:
    """Two journals of a worker, one of cases and one of firings, which a surviving process can read. Ordinals count all cases.
    Between two cases the first journal holds an entry without a case, whose time limit is the rest of the worker's time: a
    process that hangs outside of every case is ended, too."""

    calls = ()

    def __init__(self, folder: Path, worker: str = "alone", seconds: float = math.inf) -> None:
        self._cases, self._fired = Journal(folder / f"journal-{worker}"), Journal(folder / f"{FIRED}{worker}")
        self._ordinal, self.head = 0, dict[str, Any]({"phase": "search"})
        self._until = time.monotonic() + seconds

    def about(self, **facts: Any) -> None:
        """Record facts that are needed if the process dies in the next case or after it."""
        self.head.update(facts)
        self.end()

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """Record that a case begins."""
        self._ordinal += 1
        self._cases.begin(self._ordinal, json.dumps({**self.head, "item": item, "ordinal": ordinal}), case, allowed)

    def stage(self, name: str) -> None:
        """Record the stage of the case."""
        self._cases.stage(name)

    def end(self) -> None:
        """Record that the case is done."""
        self.begin(0, "", "", self._until - time.monotonic())

    def close(self) -> None:
        """Close both journals: no more cases come, and nobody should wait for one."""
        self._cases.end()
        self._cases.close()
        self._fired.close()

    def lost(self, why: str) -> None:
        """Raises DeviceError: a simulated device cannot be lost."""
        raise DeviceError(why)

    def fired(self) -> None:
        """Record that the fault is about to act."""
        self._fired.begin(self._ordinal, "", "", 0.0)


def at_work(case: JournalEntry, fired: JournalEntry | None) -> bool:
    """Whether the fault had fired in the case in which a process died, outside of the reference's stage."""
    return fired is not None and fired.running and fired.ordinal == case.ordinal and case.stage != "reference"
