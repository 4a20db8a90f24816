"""What parity prints is what tests/golden holds: `python tests/meta/golden.py --write` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

import golden
import pytest
import screens


def test_outputs_of_stored_runs_are_as_they_were() -> None:
    changed = [golden.difference(name, text) for name, text in golden.outputs()]
    assert not any(changed), "".join(changed)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "dying" else n for n in golden.RUNS])
def test_the_screen_of_a_run_is_as_it_was(name: str, tmp_path: Path) -> None:
    _, screen = golden.made(name, tmp_path)
    assert not (change := golden.difference(f"{name}.screen", screen)), change


def test_masks_hide_what_differs_between_equal_runs_and_nothing_else() -> None:
    text = '{"seconds": 1.5, "started": "2026-01-02T03:04:05+00:00"} 1:42 on Linux 6.1.0-x: 37.2 times, 12 checks in 3.4 s\n'
    assert golden.masked(text) == '{"seconds": X, "started": "DATE"} TIME on SYSTEM: 37.2 times, 12 checks in TIME\n'


@pytest.mark.slow
def test_screens_of_standard_situations_are_as_they_were() -> None:
    changed = [golden.difference(name, text) for name, text in screens.outputs()]
    assert not any(changed), "".join(changed)


SCREENS = [(n, *x) for n in screens.NAMES for x in screens.apart((screens.FOLDER / n).read_text())]
HEALTHY, MOST = 8, 30  # lines of a run
WITHOUT_VERDICT = ("bad-input", "failing-test")  # a mistake is named in one line; pytest's last line is its own


@pytest.mark.parametrize(("name", "width", "text"), SCREENS, ids=[f"{n}-{w}" for n, w, _ in SCREENS])
def test_a_screen_is_short_fits_the_terminal_and_ends_with_its_verdict(name: str, width: int, text: str) -> None:
    lines = [x for x in text.splitlines() if not x.startswith("exit code ")]
    assert len(lines) <= (HEALTHY if name == "healthy-run" else MOST)
    too_long = [x for x in lines if len(x) > width and " " in x.strip().removesuffix("\\").strip()]
    assert not too_long, "only what must stay whole to be copied may be longer than the terminal"
    if name in WITHOUT_VERDICT:
        return
    verdict = next(k for k in reversed(range(len(lines))) if not lines[k].startswith(" "))
    assert re.match(r"(PASS|FAIL|INCONCLUSIVE)  \S", lines[verdict])
    assert ("TIME" in "".join(lines[verdict:])) is not name.startswith("diff"), "a diff of two files takes no time"


@pytest.mark.parametrize("count", ["2", "60"])
def test_causes_come_first_and_in_two_lines_at_least(count: str) -> None:
    for _, _, text in (s for s in SCREENS if s[0] == f"run-with-{count}-causes"):
        _, _, found = text.partition("\n\n")
        assert found.startswith(f"{count} causes (A ")
        assert found.index("  [") < found.index("\n\ndevice ") < found.index("\nFAIL  ")


def test_screens_are_of_every_width() -> None:
    assert [(name, width) for name, width, _ in SCREENS] == [(n, w) for n in screens.NAMES for w in screens.WIDTHS]
