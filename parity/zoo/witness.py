"""Who sees a fault at work: a tap around its effect, and two journals that outlive the process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.devices import Call, Fault
from parity.errors import DeviceError
from parity.journal import Entry, Journal


class Tap:
    """Counts how often a fault is at work, and tells before it acts."""

    def __init__(self, fault: Fault, tell: Callable[[], None]) -> None:
        self.count, self.raised = 0, ""
        self._effect, self._tell = fault.effect, tell
        self.fault = replace(fault, effect=self._counted)

    def _counted(self, call: Call) -> Any:
        self.count += 1
        self._tell()
        try:
            return self._effect(call)
        except Exception as e:
            self.raised = type(e).__name__
            raise


class Watch:
    """Two journals, the case and the firing, so that whoever survives this process knows both. Ordinals count all cases."""

    def __init__(self, folder: Path) -> None:
        self._cases, self._fired = Journal(folder / "case"), Journal(folder / "fired")
        self._ordinal, self.head = 0, {"phase": "search"}

    def about(self, **facts: Any) -> None:
        """What the controller must know beside the case if the process dies in it."""
        self.head.update(facts)

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """A case begins."""
        self._ordinal += 1
        self._cases.begin(self._ordinal, json.dumps({**self.head, "item": item, "ordinal": ordinal}), case, allowed)

    def stage(self, name: str) -> None:
        """It comes to a stage."""
        self._cases.stage(name)

    def end(self) -> None:
        """It is done."""
        self._cases.end()

    def lost(self, why: str) -> None:
        """A simulated device cannot be lost; raises DeviceError."""
        raise DeviceError(why)

    def fired(self) -> None:
        """The fault is about to act."""
        self._fired.begin(self._ordinal, "", "", 0.0)


def facts(case: Entry) -> dict[str, Any]:
    """What `about` said of a journaled case, with its item and ordinal."""
    told: dict[str, Any] = json.loads(case.item)
    return told


def at_work(case: Entry, fired: Entry | None) -> bool:
    """Whether the fault had been at work in the case that a process died in, and the reference was not."""
    return fired is not None and fired.running and fired.ordinal == case.ordinal and case.stage != "reference"
