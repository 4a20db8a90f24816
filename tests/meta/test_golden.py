"""What parity prints is what tests/golden holds: `python tests/meta/golden.py --write` writes it anew."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest


def test_outputs_of_stored_runs_are_as_they_were() -> None:
    changed = [golden.difference(name, text) for name, text in golden.outputs()]
    assert not any(changed), "".join(changed)


@pytest.mark.parametrize("name", list(golden.RUNS))
def test_the_screen_of_a_run_is_as_it_was(name: str, tmp_path: Path) -> None:
    _, screen = golden.made(name, tmp_path)
    assert not (change := golden.difference(f"{name}.screen", screen)), change


def test_masks_hide_what_differs_between_equal_runs_and_nothing_else() -> None:
    text = '{"seconds": 1.5, "started": "2026-01-02T03:04:05+00:00"} 1:42 on Linux 6.1.0-x: 37.2 times, 12 checks in 3.4 s\n'
    assert golden.masked(text) == '{"seconds": X, "started": "DATE"} TIME on SYSTEM: 37.2 times, 12 checks in TIME\n'
