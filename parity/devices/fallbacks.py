"""torch's warnings about operators that fell back to the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from parity.core import state

FALLBACK_TEXT = "fall back to run on the CPU"
MOST = 1000  # warnings that are kept of a case: a call may warn without end


@contextmanager
def listening(notes: list[str]) -> Iterator[None]:
    """Collect the device's fallback warnings for every operator, count other warnings, and silence them all. By default MPS
    warns only for the first operator of a process."""

    def hear(message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        if FALLBACK_TEXT not in text:
            state.warned[0] += 1
        elif len(notes) < MOST:
            notes.append(text.split(" is not currently", 1)[0].removeprefix("The operator ").strip("'"))

    before = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(before)
