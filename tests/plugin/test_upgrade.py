"""Two environments compared as a person would type it: the other one has a torch of its own and nothing else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import commands
import pytest
import second_torch

from parity.store import run_file

sys.path.append(str(Path(__file__).parents[1] / "bench"))
import upgrade as bench

pytestmark = pytest.mark.slow

PLANTED = ("missing function", "signature", "dtype", "model only")


@pytest.mark.skipif(os.name == "nt", reason="the environments of the test are made of links")
def test_an_upgrade_tells_what_another_torch_changes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A sample of tests/bench/upgrade.py. What it says to do next is done in the other environment."""
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(bench.MODELS)
    plants = [bench.PLANTS[name] for name in PLANTED]
    other = second_torch.environment(tmp_path / "other", "2.99.0", bench.planted(plants))
    asked = ("special.entr", "lerp", "atan2", "sin", "exp", "models.py", "--dtype", "float32", "--examples", "2", "-n", "1")
    code, told = commands.told(capfd, "upgrade", "--after", str(other), *asked, "--device", "sim", "-o", "diff.json")
    tree = json.loads(Path("diff.json").read_text())
    groups = {
        g: {op for entry in entries for op in entry["ops"]}
        for g, entries in tree["groups"].items()
        if g not in ("slower", "faster")
    }  # a machine that does something else meanwhile is slower
    assert (code, groups) == bench.expected(plants), told
    assert tree["doubts"] == []
    assert "torch 2.13.0+cpu -> 2.99.0: look before you upgrade, 1 regressed and 1 lost support and 1 other signature" in told
    lent = tmp_path / "parity-upgrade" / "after" / "lent"
    there = f"{other / 'bin' / 'python'} {lent}"
    assert tree["next"] == f"{there} run models.py:mlp --device sim"
    assert f"reproduce: {there} run models.py:mlp --device=sim" in told
    before, after = (run_file.read(Path("parity-upgrade", f"{side}.jsonl")) for side in ("before", "after"))
    assert (before.header.command, after.header.command) == ((), (str(other / "bin" / "python"), str(lent)))
    assert not {"torch", "pip"} & {p.name for p in lent.iterdir()}
    assert {"pytest", "_pytest", "py.py", "numpy"} <= {p.name for p in lent.iterdir()}
