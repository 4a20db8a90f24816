"""The worst causes as GitHub's annotations."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import stored

from parity.core.results import Cause
from parity.report import github
from parity.store.rows import End, Run

COMMAND = re.compile(r"::(error|warning|notice) title=([^:,\r\n]*)::([^\r\n]*)")


def lines(run: Run) -> list[tuple[str, str, str]]:
    """(kind, title, message) of each line, as GitHub's runner takes them back."""
    text = github.render(run)
    assert text.endswith("\n")
    parsed = []
    for line in text[:-1].split("\n"):
        match = COMMAND.fullmatch(line)
        assert match, line
        title, message = (_back(part) for part in match.groups()[1:])
        parsed.append(
            (match[1], title.replace("%3A", ":").replace("%2C", ",").replace("%25", "%"), message.replace("%25", "%"))
        )
    return parsed


def _back(text: str) -> str:
    assert not re.search(r"%(?!25|0D|0A|3A|2C)", text), "a percent sign that is not escaped"
    return text.replace("%0D", "\r").replace("%0A", "\n")


def test_causes_are_told_with_the_command_that_shows_them() -> None:
    made = lines(stored.run())
    assert [kind for kind, _, _ in made] == ["error", "error"]
    exp = next(m for m in made if "exp-" in m[1])
    assert exp[1].startswith("parity A exp-")
    assert exp[2].split("\n") == [
        "aten::exp gives wrong values, with offset operand; 2 kinds in exp (float32)",
        "reproduce: parity replay 'exp(float32[2])' --device sim --setup faults.py",
        "a simulated device: this says nothing about any hardware",
    ]


def test_there_are_ten_at_most_and_the_last_counts_the_rest() -> None:
    """The worst first; errors in words are warnings."""
    whole = stored.run()
    causes = [Cause(f"aten::{k}", "values") for k in range(20)]
    records = [replace(whole.records[0], cause=c) for c in causes]
    made = lines(replace(whole, records=tuple(records), deaths=()))
    assert len(made) == 10
    assert made[-1] == ("warning", "parity: 11 more causes", "11 causes (A 11): parity report RUN shows all 20")
    words = replace(whole.records[0], status="error", cause=Cause("aten::tan", "raises: no"))
    made = lines(replace(whole, records=(words, records[0]), deaths=()))
    assert [kind for kind, _, _ in made] == ["error", "warning"]


def test_what_a_file_holds_begins_no_command() -> None:
    """Line ends, percent signs, colons and commas; the runner's older commands, too."""
    whole = stored.run()
    evil = Cause("aten::a\n::error::no\r,%0A:", "values", ("##[error]x",))
    made = lines(replace(whole, records=(replace(whole.records[0], cause=evil),), deaths=()))
    assert len(made) == 1
    assert "%0A:" in made[0][2]
    assert "##[" not in github.render(replace(whole, records=(replace(whole.records[0], cause=evil),)))
    lines(stored.run(stored.EVIL))


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (None, "parity: the run file is cut"),
        (End(1.0, stopped="interrupted"), "parity: the run did not end"),
        (End(1.0, expected=9), "parity: items are missing"),
        (End(1.0, expected=1, broken=("it broke",)), "parity: parity itself failed"),
    ],
)
def test_a_run_that_is_not_whole_is_an_error(end: End | None, said: str) -> None:
    healthy = replace(stored.run(), records=(), deaths=(), items=stored.run().items[1:2], end=end)
    assert lines(healthy)[0][:2] == ("error", said)


def test_a_run_that_agrees_is_a_notice_and_one_that_compared_nothing_an_error() -> None:
    healthy = replace(stored.run(), records=(), deaths=(), items=stored.run().items[1:2], end=End(1.0))
    assert lines(healthy) == [("notice", "parity", "everything that counts agrees on sim")]
    assert lines(replace(healthy, items=()))[0][:2] == ("error", "parity: nothing was compared")
