"""A job is done where it says so; whatever else ends its process is a death, named with what it was at."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from parity.core import processes
from parity.core.errors import UsageError
from parity.engine import journal
from parity.engine.child import Child, End, Limit, Watch, word

JOBS = """
import math, os, sys, time
from parity.core.child import BEGIN
from parity.core.errors import UsageError
from parity.engine.journal import Journal


def counts(given):
    given.of = len(given.asked)
    for act in given.asked:
        yield {BEGIN: act}
        exec(act)
        yield {"did": act}
        if act == "leave = 1":
            os._exit(0)
        if act == "stop = 1":
            return


def refuses(given):
    raise UsageError("no such thing")
    yield


def notes(given):
    journal = Journal(given.journal)
    for allowed, seconds in given.asked:
        journal.begin(7, "op", f"case {allowed}", allowed)
        journal.stage("device")
        time.sleep(seconds)
        journal.end()
    yield {}


def adds(given):
    for a, b in given.more():
        yield {"sum": a + b}
"""
FINE = ["x = 1", "x = 2"]


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs above, for children to import."""
    (tmp_path / "played.py").write_text(JOBS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(processes.__file__).parents[2])]))


def done(job: str, given: object, watch: Watch | None = None) -> tuple[list[Any], Any, End]:
    """What came of the things that a job was given, what it was at in the end, and how it ended."""
    with Child(f"played.{job}", given, watch or Watch()) as process:
        events = [e["did"] for e in process if "did" in e]
        return events, process.at, process.ending()


def test_what_has_done_all_that_it_was_given_has_not_died() -> None:
    events, at, end = done("counts", FINE)
    assert (events, at) == (FINE, None)
    assert (end.died, end.whole, end.code) == ("", True, 0)


@pytest.mark.parametrize(
    ("act", "came", "died"),
    [
        ("os.abort()", False, "SIGABRT"),
        ("os._exit(0)", False, "exit code 0"),
        ("sys.exit(0)", False, "exit code 0"),
        ("raise ValueError('five')", False, "exit code 1"),
        ("os.closerange(0, 3)", False, "it closed file descriptors of its process"),
        ("leave = 1", True, "exit code 0"),
        ("stop = 1", True, "exit code 0"),
    ],
)
def test_without_its_end_record_it_is_a_death_whatever_the_exit_code(act: str, came: bool, died: str) -> None:
    """Also between two things, and where it stops before it has done all of them."""
    events, at, end = done("counts", [FINE[0], act, FINE[1]])
    assert events == ([FINE[0], act] if came else FINE[:1])
    assert at == (None if came else act)
    assert (end.died, end.whole, end.hung) == (died, False, False)
    if "five" in act:
        assert end.said.endswith("ValueError: five")


def test_what_it_refuses_is_an_error_of_the_person() -> None:
    _, _, end = done("refuses", None)
    assert isinstance(end.refused, UsageError)
    assert (str(end.refused), end.died) == ("no such thing", "no such thing")


def test_one_that_says_nothing_for_too_long_hangs() -> None:
    events, at, end = done("counts", [FINE[0], "time.sleep(60)"], Watch(silence=0.5))
    assert (events, at, end.hung, end.late, end.code) == (FINE[:1], "time.sleep(60)", True, False, None)
    assert re.fullmatch(r"no answer within \d{1,2} s", end.died)
    _, _, slow = done("counts", ["time.sleep(0.5)"], Watch(silence=30.0))
    assert not slow.died


def test_one_whose_journal_says_that_a_call_takes_too_long_hangs() -> None:
    _, _, end = done("notes", [(30.0, 0.3), (0.3, 60.0)], Watch(stages=("device",)))
    assert end.entry is not None
    assert (end.hung, end.entry.case) == (True, "case 0.3")
    _, _, of_another_stage = done("notes", [(0.3, 1.0)], Watch(stages=("reference",)))
    assert not of_another_stage.died


@pytest.mark.parametrize(("allowed", "hung"), [(0.1, True), (1e9, False)])
def test_one_that_has_begun_a_journal_and_said_nothing_is_watched_by_the_journal(
    allowed: float, hung: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the time in which it had to say something."""
    entry = journal.JournalEntry(True, "device", 0, 0.0, allowed, os.getpid(), "item", "case")
    monkeypatch.setattr(journal, "read", lambda path: entry)
    _, _, end = done("counts", ["time.sleep(2)"], Watch(starting=0.0, stages=("device",)))
    assert (end.hung, end.entry) == (hung, entry)


def test_its_time_may_be_over_and_nobody_may_want_it_any_more() -> None:
    limit = Limit(time.monotonic() + 60)
    limit.over.set()
    for one in (limit, Limit(time.monotonic() + 0.5)):
        _, _, end = done("counts", ["time.sleep(60)"], Watch(limit=one))
        assert (end.late, end.hung, end.code) == (True, False, None)


def test_what_is_asked_to_stop_has_its_seconds_for_it(tmp_path: Path) -> None:
    """It does what it does at Ctrl-C, and its end is heard; one that takes longer is ended."""
    there = tmp_path / "there"
    stopped = f"try:\n    open({str(there)!r}, 'w')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    time.sleep({{}})"
    for takes, given, ends in ((0.3, 30.0, True), (60, 0.3, False)):
        there.unlink(missing_ok=True)
        with Child("played.counts", [stopped.format(takes)], Watch()) as process:
            while not there.exists():
                time.sleep(0.01)
            assert (process.stop(given).died == "") is ends


def test_more_can_be_sent() -> None:
    with Child("played.adds", None, fed=True) as process:
        process.send([1, 2])
        assert process.hear(30.0) == {"sum": 3}
        assert process.hear(0.05) is None
        process.send([3, 4])
        assert process.hear(30.0) == {"sum": 7}


@pytest.mark.parametrize(
    ("code", "said"), [(None, "unknown"), (0, "exit code 0"), (-11, "SIGSEGV"), (-9, "SIGKILL"), (-99, "signal 99")]
)
def test_an_end_is_named_by_its_signal_or_exit_code(code: int | None, said: str) -> None:
    assert word(code) == said
