"""The last line of a command: its verdict, in colour on a terminal, and no line longer than that."""

from __future__ import annotations

import io
import os
import shlex

import pytest

from parity.core.status import Conclusion
from parity.report.output import Outlet, document, fitted, last_line

NEXT = "parity replay 'add(float32[2, 1].expand(-2), float32[()])' --device sim:mps --faults 'my faults.py' --setup flags.py"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_holds_verdict_time_file_and_next_command() -> None:
    line = last_line(Conclusion.FAIL, "8 findings", 75.0, "run.jsonl", "parity report run.jsonl")
    assert line == "FAIL  8 findings, in 1:15; stored in run.jsonl; next: parity report run.jsonl"
    assert last_line(Conclusion.PASS, "all agrees") == "PASS  all agrees"


@pytest.mark.parametrize(
    "variables", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}]
)
@pytest.mark.parametrize("terminal", [False, True])
def test_colour_is_for_terminals_and_for_who_asks(
    variables: dict[str, str], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    print("PASS  all agrees", "PASSING", "a FAIL  inside", sep="\n", file=Outlet(stream))
    wanted = "NO_COLOR" not in variables and ("FORCE_COLOR" in variables or (terminal and "TERM" not in variables))
    verdict = "\033[1;32mPASS\033[0m" if wanted else "PASS"
    assert stream.getvalue() == f"{verdict}  all agrees\nPASSING\na FAIL  inside\n"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_longer_than_the_terminal_and_commands_can_be_copied(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 30)))
    monkeypatch.setenv("NO_COLOR", "1")
    screen, log = Terminal(), io.StringIO()
    line = last_line(Conclusion.FAIL, "3 of the 12 things that were compared differ from the CPU", 75.0, "run.jsonl", NEXT)
    for stream in (screen, log):
        print(f"    reproduce: {NEXT}\n{'words ' * 40}\n{line}", file=Outlet(stream))
    assert max(map(len, screen.getvalue().splitlines())) <= columns < max(map(len, log.getvalue().splitlines()))
    typed = screen.getvalue().replace("\\\n", "")  # as a shell reads it
    assert shlex.split(typed.partition("next: ")[2]) == shlex.split(NEXT)
    assert shlex.split(typed.partition("reproduce: ")[2].partition("\nwords")[0]) == shlex.split(NEXT)
    assert log.getvalue().endswith(f"{line}\n")


def test_a_document_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", Outlet(screen))
    document(f'{{"text": "{"words " * 40}"}}\n')
    assert screen.getvalue().count("\n") == 1


def test_what_has_no_space_stays_whole() -> None:
    assert fitted("x" * 200, 60) == ["x" * 200]
    assert fitted("  short", 60) == ["  short"]
    assert fitted(f"  begins {'y' * 90} ends", 60) == ["  begins", f"    {'y' * 90}", "    ends"]
