"""What a worker leaves out of an item that was begun before."""

from __future__ import annotations

from typing import Any

from parity.engine.journal import LOCATING, REPLAYING, SHRINKING
from parity.faces.checker import Checker
from parity.faces.survival import ALONE_AFTER


def left_out(*deaths: tuple[int, str, str]) -> set[int]:
    """deaths: (ordinal, how, stage)."""
    nothing: Any = None
    rows = [{"ordinal": k, "how": how, "stage": stage, "case": "", "blame": "device"} for k, how, stage in deaths]
    return set(Checker(nothing, nothing, nothing, rows)._dead()[0])


def test_a_case_that_hung_is_never_run_again() -> None:
    """After several deaths all cases run in processes of their own, those that ended the worker, too: some deaths are none of
    their case's. A hang on the device is its case's, and would take its time again."""
    hangs = [(3, "hang", "device"), (5, "hang", "device")]
    assert left_out(*hangs) == {3, 5}
    assert left_out(*hangs, (7, "crash", "device")) == {3, 5}
    assert left_out((3, "hang", "compare"), (5, "crash", "device"), (7, "crash", "device")) == set()


def test_what_hung_while_causes_were_looked_for_is_no_case() -> None:
    assert left_out((SHRINKING, "hang", "device"), (LOCATING, "hang", "device")) == {SHRINKING, LOCATING}
    assert ALONE_AFTER == 3
    assert left_out(*[(REPLAYING, "hang", "device")] * 3) == {REPLAYING}
