"""torch's warnings about operators that fell back to the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from parity.core import state
from parity.core.devices import all_backends

FALLBACK_TEXT = "fall back to run on the CPU"  # of MPS, and of every backend that has taken over its words
UNNAMED = "an operator that torch does not name"
MOST = 1000  # warnings that are kept of a case: a call may warn without end


def fell_back(message: str) -> str:
    """The operator that a warning says to have run on the CPU, in words where it names none; "" where it says no such thing."""
    if FALLBACK_TEXT in message:
        return message.split(" is not currently", 1)[0].removeprefix("The operator ").strip("'")
    for backend in all_backends():
        if backend.fallback and (match := backend.fallback.search(message)):
            return (match[1] if match.re.groups else "") or UNNAMED
    return ""


@contextmanager
def listening(notes: list[str]) -> Iterator[None]:
    """Collect the device's fallback warnings for every operator, count other warnings, and silence them all. By default MPS
    warns only for the first operator of a process."""

    def hear(message: Warning | str, *_: Any, **__: Any) -> None:
        if not (name := fell_back(str(message))):
            state.warned[0] += 1
        elif len(notes) < MOST:
            notes.append(name)

    before = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(before)
