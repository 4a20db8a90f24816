"""Notes for the parent process which operator a command is at, on the device or again on the CPU, so that the report names
the operator if the process dies or hangs."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity.comparing.places import Place, Places
from parity.core.observer import Operators, in_backward, lies_on
from parity.engine.journal import ALLOWED, NOTES, Journal
from parity.locating.located import PASSES

DEVICE, CPU, NEITHER = "device", "reference", "compare"  # stages of the journal; the last one has no limit


def pass_now() -> str:
    """The pass in which the program is."""
    return PASSES[in_backward()]


class Noted:
    """The journal of a command that runs in a process of its own; nothing is noted elsewhere."""

    def __init__(self) -> None:
        path = os.environ.get(NOTES)
        self._journal = Journal(Path(path)) if path else None
        self._allowed = float(os.environ.get(ALLOWED, math.inf))
        self._count = 0

    @property
    def asked(self) -> bool:
        """Whether a parent reads it."""
        return self._journal is not None

    def begin(self, name: str, pass_: str, place: Place, stage: str = DEVICE) -> None:
        """A side is about to run an operator."""
        if self._journal is not None:
            at = f" at {place.line}" if place.line else ""
            self._journal.begin(self._count, name, f"{name}, {pass_} of {place}{at}", self._allowed)
            self._journal.stage(stage)
            self._count += 1

    def ended(self) -> None:
        """It has run."""
        if self._journal is not None:
            self._journal.stage(NEITHER)

    @contextlib.contextmanager
    def on_the_cpu(self) -> Iterator[None]:
        """The CPU runs the operator inside."""
        if self._journal is None:
            yield
            return
        self._journal.stage(CPU)
        try:
            yield
        finally:
            self._journal.stage(NEITHER)

    @contextlib.contextmanager
    def following(self, kind: str) -> Iterator[None]:
        """Note each operator on devices of this type that runs inside. The last one counts as running until the end: a device
        may compute when its results are asked for."""
        if self._journal is None:
            yield
            return
        places = Places(kind)

        def noted(func: Any, args: Any, kwargs: Any) -> Any:
            if lies_on(kind, (args, kwargs)):
                self.begin(func._schema.name, pass_now(), places.now)
            return func(*args, **kwargs)

        try:
            with places.watching(), Operators(noted):
                yield
        finally:
            self._journal.stage(NEITHER)
