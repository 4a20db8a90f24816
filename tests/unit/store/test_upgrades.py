"""Run files that older versions of parity wrote: each format is read, and nothing of it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.core.errors import RunFileError
from parity.core.results import Fingerprint, Measure, Record
from parity.store.code import Code
from parity.store.features import Coverage
from parity.store.rows import Death, End, Header, ItemRow
from parity.store.run_file import read
from parity.store.upgrades import FORMAT, UPGRADES, upgraded

FILES = Path(__file__).with_name("run_files")  # format_N.jsonl holds what the last version with format N wrote
FINGERPRINT = Fingerprint("0.1.0", "2.13.0", "cf30153", "3.11.7", "Linux", "x86_64", "sim", "simulated")
SETUP = Code("/some/low flags.py", "8ae8e1ea")
SETUPS = {1: Code(), 2: Code(), 3: SETUP, 4: SETUP, 5: SETUP}
ITEMS = {
    1: {},
    2: {"operators": ("exp",), "idle": {"empty": "no case"}, "ids": "abcd"},
    3: {"operators": ("exp",), "idle": {"empty": "no case"}, "ids": "abcd", "judged": 24, "left": {"range": 1}},
    4: {"operators": ("exp",), "idle": {"empty": "no case"}, "ids": "abcd", "judged": 24, "left": {"range": 1}},
    5: {
        "operators": ("exp",),
        "idle": {"empty": "no case"},
        "ids": "abcd",
        "judged": 24,
        "left": {"range": 1},
        "elements": {"total": 4, "sharp": 3},
    },
}


def test_every_older_format_has_its_upgrade_and_its_file() -> None:
    assert sorted(UPGRADES) == list(range(1, FORMAT))
    assert sorted(p.name for p in FILES.iterdir()) == [f"format_{n}.jsonl" for n in range(1, FORMAT)]


def test_a_format_without_an_upgrade_is_too_old() -> None:
    with pytest.raises(RunFileError, match=r"x\.jsonl has format 0, too old for this parity"):
        upgraded(Path("x.jsonl"), {}, 0)


@pytest.mark.parametrize("form", range(1, FORMAT))
def test_an_older_file_is_read_whole(form: int) -> None:
    """Header, records, items, deaths and the end, with the defaults of what came later."""
    run = read(FILES / f"format_{form}.jsonl")
    started, faults = "2026-01-01T00:00:00+00:00", Code("/some/my faults.py")
    assert run.header == Header(FINGERPRINT, "0", "quick", "exp", started, False, faults, SETUPS[form])
    measures = (Measure("out", share=0.25, measured=True),)
    assert run.records == (
        Record("exp(float32[3])", "exp", "float32", "forward", "agree", "00ff", True, "", "exp ulp", measures),
        Record(
            "exp(float32[4])", "exp", "float32", "backward", "wrong", reason="out: 3 of 4 elements are wrong",
            measures=measures, shrunk="exp(float32[1])",
        ),
    )  # fmt: skip
    counts = {"forward": {"agree": 3}, "backward": {"wrong": 1, "agree": 2}}
    assert run.items == (ItemRow("exp", "float32", 3, counts, {"forward": 0.25}, seconds=1.5, **ITEMS[form]),)  # type: ignore[arg-type]
    assert run.deaths == (Death("exp", "float32", "exp(float32[9])", "forward", "crash", "SIGABRT", "device", ("a.py:1",)),)
    assert run.coverage == (() if form == 1 else (Coverage("unary", 3, {"1-d": 2}, {}),))
    assert run.end == End(1.5, {"agree": 5, "wrong": 1})
