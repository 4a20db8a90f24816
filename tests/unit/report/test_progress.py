"""A run as it goes: what stands on a terminal fits there, and what is said is not lost."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from parity import store
from parity.report.progress import Reporter
from parity.store import Header
from parity.vocabulary import Fingerprint


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def reporter(path: Path, stream: io.StringIO) -> Reporter:
    made = Reporter(Header(Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "", simulated=True)), path, stream)
    made.expected, made.done, made.checks, made.findings = 4315, 1721, 171_127, 12
    return made


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_the_bar_never_breaks_into_a_second_line(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that breaks could not be wiped out again."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 30)))
    screen = Screen()
    made = reporter(tmp_path / "run.jsonl", screen)
    made.started -= 1000.0
    made._progress()
    line = screen.getvalue().removeprefix("\r\033[K")
    assert len(line) < columns
    assert ("[" in line) == (columns > 40)
    assert "40%  1721/4315 items" in line


def test_the_end_is_folded_to_the_screen_and_not_in_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of words; the last line holds a command and stays whole."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((60, 30)))
    screen, log = Screen(), io.StringIO()
    for stream in (screen, log):
        reporter(tmp_path / "run.jsonl", stream).finish(0)
    told, plain = (s.getvalue().split("\n\n")[0].splitlines() for s in (screen, log))
    assert max(map(len, told)) <= 60 < max(map(len, plain))


def test_ctrl_c_is_answered_and_what_is_done_is_kept(tmp_path: Path) -> None:
    """At once: ending the workers may take a while."""
    log, path = io.StringIO(), tmp_path / "run.jsonl"
    made = reporter(path, log)
    made.pytest_keyboard_interrupt()
    assert log.getvalue() == f"interrupted: keeping the 1721 items that are done in {path}\n"
    made.finish(130)
    end = store.read(path).end
    assert end is not None
    assert end.stopped == "interrupted"


class Full(io.StringIO):
    """A disk without room."""

    def write(self, text: str) -> int:
        """Never."""
        raise OSError(28, "No space left on device")


def test_an_output_that_is_full_costs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run file and the exit code are still wanted."""
    path = tmp_path / "run.jsonl"
    made = reporter(path, Full())
    made.say("x")
    made.finish(3)
    assert store.read(path).end is not None
    assert capsys.readouterr().err == "parity: cannot write to the standard output (No space left on device); the run goes on\n"
