"""Other strides than the CPU's: reported by a run, a failure where it is asked for, and the same again in a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.core.notation import parse
from parity.engine.inquest import How
from parity.faces import commandline, replaying
from parity.store import run_file

pytestmark = pytest.mark.usefixtures("examined_once")

FAULTS = """
from parity.devices import Fault

def transposed(call):
    return call.run().mT.contiguous().mT

FAULTS = [Fault("outer-transposed", ("outer",), transposed, level="function")]
"""


@pytest.mark.slow
def test_other_strides_are_told_and_fail_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faults.py").write_text(FAULTS)
    short = "--device", "sim", "--dtype", "float32", "--examples", "3", "-n", "1", "--power", "0", "--setup", "faults.py"
    words = "1 op gives other strides than the CPU: outer (permuted instead of contiguous)"

    assert commandline.main(["run", "outer", *short, "--output", "told.jsonl", "-v"]) == 0
    assert f"metadata: {words} (no failure; --fail-on metadata makes findings of them" in capsys.readouterr().out
    told = run_file.read(Path("told.jsonl"))
    assert not [r for r in told.records if r.counts]
    ((outer, note),) = [(i.op, n) for i in told.items for n in i.metadata]
    assert (outer, note.tensor, note.words) == ("outer", "out", "permuted instead of contiguous")
    assert note.count > 1
    assert note.case.startswith("outer(")
    assert commandline.main(["report", "told.jsonl"]) == 0
    assert words in capsys.readouterr().out

    assert commandline.main(["run", "outer", *short, "--output", "failed.jsonl", "--fail-on", "metadata"]) == 1
    out = capsys.readouterr().out
    assert "1 of 1 finding reproduced in fresh processes" in out
    assert "metadata:" not in out
    failed = run_file.read(Path("failed.jsonl"))
    (finding,) = [r for r in failed.records if r.shrunk]
    assert (finding.op, finding.status, finding.shrunk) == ("outer", "malformed", "outer(float32[2], float32[2])")
    assert commandline.main(["report", "failed.jsonl"]) in (0, 1)
    asked = "--device sim --setup faults.py --fail-on metadata"
    assert f"parity replay '{finding.shrunk}' {asked}" in capsys.readouterr().out.replace(str(tmp_path) + "/", "")
    assert commandline.main(["replay", "failed.jsonl", "--setup", "faults.py"]) == 1  # as strict as the run was
    assert replaying.run(parse(finding.shrunk), How("sim", "faults.py"))[0] == 0
    assert "permuted instead of contiguous: strides (1, 2), the CPU's (2, 1)" in capsys.readouterr().out
