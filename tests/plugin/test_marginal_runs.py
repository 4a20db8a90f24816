"""A finding that is marginal: a run succeeds, says so, and fails where it is asked to; an op with more of it drifts."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.faces import cli
from parity.store import run_file

pytestmark = pytest.mark.usefixtures("examined_once")

FAULTS = """
from parity.devices import Fault

struck = []

def off(call):
    out = call.run()
    if out.numel() > 50 and out.is_contiguous() and len(struck) < CALLS:
        struck.append(out.shape)
        out.view(-1)[0] *= 1 + 4.5e-6
    return out

FAULTS = [Fault("off", ("silu",), off)]
"""
SHORT = "--device", "sim", "--dtype", "float32", "--examples", "40", "-n", "1", "--power", "0", "--setup", "faults.py"


@pytest.mark.slow
def test_a_marginal_finding_is_told_and_fails_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faults.py").write_text(f"CALLS = 1\n{FAULTS}")
    assert cli.main(["run", "silu", *SHORT, "--output", "told.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "marginal   1 finding just outside an estimated budget, in few elements and cases: silu float32 forward" in out
    assert "PASS  1 marginal finding; everything else agrees" in out
    told = run_file.read(Path("told.jsonl"))
    assert [r.status for r in told.records if r.status != "agree"] == ["marginal"]

    assert cli.main(["run", "silu", *SHORT, "--output", "failed.jsonl", "--fail-on", "marginal"]) == 1
    assert "--fail-on fails the run for 1 check marginal" in capsys.readouterr().out
    assert cli.main(["run", "silu", *SHORT, "--output", "timed.jsonl", "--time", "20s"]) == 0
    assert "PASS  1 marginal finding; everything else agrees" in capsys.readouterr().out

    Path("faults.py").write_text(f"CALLS = 9\n{FAULTS}")
    assert cli.main(["run", "silu", *SHORT, "--output", "drift.jsonl", "--skip", "shrink", "--skip", "again"]) == 1
    drift = run_file.read(Path("drift.jsonl"))
    assert {r.status for r in drift.records} == {"agree", "drift"}
    capsys.readouterr()

    assert cli.main(["diff", "told.jsonl", "drift.jsonl"]) == 1
    assert "marginal -> drift" in capsys.readouterr().out
    cli.main(["diff", "drift.jsonl", "told.jsonl"])
    assert "drift -> marginal" in capsys.readouterr().out
    for form, words in (("junit", "marginal"), ("markdown", "Marginal: 1 finding"), ("text", "Marginal: 1 finding")):
        assert cli.main(["report", "told.jsonl", "--format", form]) == 0
        assert words in capsys.readouterr().out
