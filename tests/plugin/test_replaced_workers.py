"""Workers that pass their share of the memory give way to others, and what a device does not have or leaks is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.core import machine
from parity.faces import commandline
from parity.store import run_file
from parity.store.rows import ItemRow

pytestmark = [pytest.mark.usefixtures("examined_once"), pytest.mark.slow]

OPS = "exp", "softmax"
LEAK = """
import torch
from parity.devices import Fault

def leaves(call):
    call.state.setdefault("kept", []).append(torch.empty(1000))
    return call.run()

FAULTS = [Fault("leak", ("exp.out",), leaves)]
"""


def timeless(row: ItemRow) -> tuple[object, ...]:
    """What is equal in every run of the same code."""
    return row.op, row.dtype, row.cases, row.counts, row.ids, row.judged


def test_workers_that_pass_their_share_are_replaced_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leak.py").write_text(LEAK)
    runs = {}
    for name in ("whole", "replaced"):
        if name == "replaced":
            monkeypatch.setattr(machine, "share", lambda workers: 1)
        path = tmp_path / f"{name}.jsonl"
        short = (
            "--dtype",
            "float32",
            "--examples",
            "3",
            "-n",
            "1",
            "--power",
            "0",
            "-v",
            "--findings",
            str(tmp_path / "findings"),
        )
        faults = "--device", "sim", "--setup", str(tmp_path / "leak.py")
        assert commandline.main(["run", *OPS, *faults, *short, "--output", str(path)]) == 0
        runs[name] = run_file.read(path)
    text = capsys.readouterr().out
    assert "2 workers passed the share and gave way to another" in text
    whole, replaced = runs["whole"], runs["replaced"]
    assert len(whole.items) == 2
    assert sorted(map(repr, map(timeless, whole.items))) == sorted(map(repr, map(timeless, replaced.items)))
    assert {r.case for r in whole.records} == {r.case for r in replaced.records}
    assert (replaced.deaths, replaced.end.lost, replaced.end.broken) == ((), (), ())  # type: ignore[union-attr]
    leaks = {i.op: set(i.leaks.values()) for i in whole.items if i.leaks}
    assert set(leaks) == {"exp"}
    assert all(4000 <= n <= 5000 for n in leaks["exp"])
    assert "leaks: every repeat of a call leaves memory on the device (no failure)" in text
