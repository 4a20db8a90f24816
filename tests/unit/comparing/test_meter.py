"""How long a comparison will take is said where it is known."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from parity.comparing.meter import IMPORTED, Meter


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands."""
    seconds = [100.0]
    monkeypatch.setattr("parity.comparing.meter.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


@pytest.mark.parametrize("imported", [0, IMPORTED - 1, IMPORTED])
def test_a_run_that_imports_says_nothing_about_the_next(
    imported: int, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch imports its compiler for its first decomposition of a kernel: a second that is spent once."""
    world: Any = SimpleNamespace(modules={}, stderr=io.StringIO())
    monkeypatch.setattr("parity.comparing.meter.sys", world)
    meter = Meter("net")
    with meter.run("a run in float64", 20):
        now[0] += 1.0
        world.modules |= dict.fromkeys(map(str, range(imported)))
    told = "parity: net: 1 s so far, with a run in float64; about 20 s more\n"
    assert world.stderr.getvalue() == (told if imported < IMPORTED else "")
