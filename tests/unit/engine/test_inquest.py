"""Inquests while a run goes on: their answers come when they are there, and none is waited for longer than allowed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.engine import inquest
from parity.engine.journal import COMPARING, JournalEntry
from parity.store.rows import CPU, DEVICE, UNKNOWN

ROW = {"case": "sin(float32[2])", "how": "hang"}
HOW = inquest.How("sim")
PATIENCE = 20.0  # seconds after which a test would rather fail than wait


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let an attempt last until this is set, or until nobody wants its answer."""
    free = threading.Event()

    def attempt(case: str, how: inquest.How, *asked: Any) -> inquest.Attempt:
        over = asked[3]
        while not (free.wait(0.01) or over.is_set()):
            pass
        return inquest.Attempt(0) if how.device == "cpu" else inquest.Attempt(1, "SIGSEGV", False, "compare")

    monkeypatch.setattr(inquest, "attempt", attempt)
    yield free
    free.set()


def test_an_answer_comes_when_it_is_there(slow: threading.Event) -> None:
    looked_into = inquest.Inquests()
    looked_into.begin(ROW, HOW, 1.0)
    assert not [*looked_into.done()]
    assert looked_into.left == 1
    slow.set()
    [(row, blame, why)] = looked_into.rest(PATIENCE)
    assert (row, blame, looked_into.left) == (ROW, DEVICE, 0)
    assert "3 of 3 times (SIGSEGV)" in why


def test_what_is_not_answered_in_time_blames_nobody(slow: threading.Event) -> None:
    """Also those that had not begun, and after the end, too: no death is lost."""
    looked_into = inquest.Inquests()
    for _ in range(3):
        looked_into.begin(ROW, HOW, 1.0)
    assert [(blame, why) for _, blame, why in looked_into.rest(0.05)] == [(UNKNOWN, inquest.NOT_DONE)] * 3
    assert not [*looked_into.rest(0.0)]


def test_the_answer_that_comes_first_is_given_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are looked into at a time: one that hangs holds up no other."""
    free = threading.Event()

    def held(case: str, *_: Any) -> tuple[str, str]:
        return DEVICE, case if case != ROW["case"] or free.wait(PATIENCE) else "not freed"

    monkeypatch.setattr(inquest, "held", held)
    looked_into = inquest.Inquests(2)
    looked_into.begin(ROW, HOW, 1.0)
    looked_into.begin({**ROW, "case": "cos(float32[2])"}, HOW, 1.0)
    until = time.monotonic() + PATIENCE
    while not (given := looked_into.done()) and time.monotonic() < until:
        time.sleep(0.01)
    assert [why for _, _, why in given] == ["cos(float32[2])"]
    assert looked_into.left == 1
    free.set()
    assert [why for _, _, why in looked_into.rest(PATIENCE)] == [ROW["case"]]


def test_what_hangs_on_the_cpu_alone_is_not_tried_with_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hangs settle it, and each takes its whole time. What takes the machine's memory is tried on both sides."""
    tried: list[str] = []

    def attempt(case: str, how: inquest.How, *_: Any) -> inquest.Attempt:
        tried.append(how.device)
        return inquest.Attempt(1, "no answer within 2 s", True, "reference")

    monkeypatch.setattr(inquest, "attempt", attempt)
    blame, why = inquest.held(ROW["case"], HOW, 1.0, inquest.HANG)
    assert (blame, why) == (CPU, "it comes on the CPU alone, 3 of 3 times (no answer within 2 s)")
    assert tried == ["cpu"] * 3


def test_a_hang_is_tried_for_as_long_as_its_case_may_take(tmp_path: Path) -> None:
    """Not for as long as a process may take to start."""
    faults = tmp_path / "faults.py"
    faults.write_text(
        "import time\nfrom parity.devices import Fault\nFAULTS = [Fault('hangs', ('sin',), lambda call: time.sleep(1000))]\n"
    )
    began = time.monotonic()
    blame, why = inquest.held(ROW["case"], inquest.How("sim", str(faults)), 1.0, inquest.HANG)
    assert (blame, why) == (
        DEVICE, "it comes with the device 3 of 3 times (no answer within 2 s), and never on the CPU alone"
    )  # fmt: skip
    assert time.monotonic() - began < inquest.STARTING


def test_a_case_that_had_too_little_time_on_the_cpu_is_not_its_hang() -> None:
    """Where a stage may take little, preparing a sound case takes longer: a hang of the device would be the CPU's."""
    assert inquest.held(ROW["case"], HOW, 0.05, inquest.HANG)[0] != CPU


@pytest.mark.parametrize(
    ("stage", "since", "late"),
    [("reference", 1.5, True), ("reference", 0.5, False), ("compare", 4.0, False), ("compare", 5.5, True)],
)
def test_a_try_hangs_where_a_stage_takes_longer_than_a_run_lets_it(
    stage: str, since: float, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage that compares may take five times as long as another."""
    now = time.monotonic()
    entry = JournalEntry(True, stage, 0, now - since, 20.0, 1, "sin-float32", ROW["case"])
    assert inquest.is_hung(entry, 1.0) is late
    assert not inquest.is_hung(None, 1.0)


def test_a_hang_while_comparing_is_tried_for_as_long_as_comparing_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[float]()

    def attempt(case: str, how: inquest.How, seconds: float, *_: Any) -> inquest.Attempt:
        given.append(seconds)
        return inquest.Attempt(0)

    monkeypatch.setattr(inquest, "attempt", attempt)
    inquest.held(ROW["case"], HOW, 20.0, inquest.HANG, stage="compare")
    assert min(given) > inquest.STARTING + COMPARING * 20.0


def test_without_time_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where nobody wants the answer any more; with time one is."""

    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(inquest, "Child", started)
    over = threading.Event()
    over.set()
    for seconds, wanted in ((0.0, None), (60.0, over)):
        assert inquest.attempt("exp(float32[2])", inquest.How("sim"), seconds, over=wanted) == inquest.Attempt(1)
    with pytest.raises(AssertionError, match="started"):
        inquest.attempt("exp(float32[2])", inquest.How("sim"), 60.0)


def test_starting_a_process_takes_nothing_of_the_seconds_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[float]()

    def attempt(case: str, how: inquest.How, seconds: float, *_: Any) -> inquest.Attempt:
        given.append(seconds)
        return inquest.Attempt(0)

    monkeypatch.setattr(inquest, "attempt", attempt)
    inquest.held(ROW["case"], HOW, 7.0)
    assert given
    assert min(given) >= inquest.STARTING + 7.0
