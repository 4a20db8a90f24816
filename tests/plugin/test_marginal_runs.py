"""A finding that is marginal, in whole runs: said and no failure; and each way to make a faulty device green with it."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from parity.core import project
from parity.engine import findings
from parity.faces import commandline
from parity.store import run_file

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("examined_once")]

# In the workers a cause is looked for without a limit of time: on a busy machine a finding without one is a cause of its own.
FAULTS = """
import math
from parity.devices import Fault
from parity.engine import findings

findings.CAUSE_SECONDS = findings.FINDING_SECONDS = math.inf
struck = {{}}

def off(call):
    out = call.run()
    mine, key = struck.setdefault(call.op, set()), (out.numel(), float(out.sum()))
    if out.numel() >= 100 and out.is_contiguous() and str(out.dtype) == "torch.float32" and (key in mine or len(mine) < {n}):
        mine.add(key)
        out.view(-1)[out.view(-1).abs().argmax()] *= 1 + 3.8e-6
    return out

FAULTS = [Fault(f"off-{{op}}", (op,), off) for op in {ops}]
"""
SHORT = "--device=sim", "--dtype=float32", "--examples=40", "-n", "1", "--power=0", "--setup=faults.py", "--seed=4"


def planted(results: int, *ops: str) -> None:
    """In this folder, a fault near the budget in so many results of each of these ops."""
    Path("faults.py").write_text(FAULTS.format(n=results, ops=ops))


def said(*argv: str) -> int:
    return commandline.main([*argv])


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CAUSE_SECONDS", "FINDING_SECONDS"):  # which the faults set in this process too
        monkeypatch.setattr(findings, name, math.inf)


_ONE: dict[str, str] = {}  # of the first run of `one`: file -> content, and what it said


def one(capsys: pytest.CaptureFixture[str]) -> str:
    """What a run with a fault in one result says, with one.jsonl and one.xml in this folder; run once for all tests."""
    planted(1, "silu")
    if not _ONE:
        assert said("run", "silu", *SHORT, "--output", "one.jsonl", "--junit-xml", "one.xml") == 0
        _ONE.update({"said": capsys.readouterr().out, **{n: Path(n).read_text() for n in ("one.jsonl", "one.xml")}})
    for name in ("one.jsonl", "one.xml"):
        Path(name).write_text(_ONE[name])
    return _ONE["said"]


def test_one_finding_near_its_budget_is_said_and_fails_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    out = one(capsys)
    assert "marginal   2 findings just outside an estimated budget, in few elements and cases: silu float32 forward" in out
    assert "PASS  2 marginal findings; everything else agrees" in out
    assert {r.status for r in run_file.read(Path("one.jsonl")).records} == {"agree", "marginal"}
    suite = ElementTree.parse("one.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    for form, words in (("junit", "marginal"), ("markdown", "Marginal: 2 findings"), ("text", "Marginal: 2 findings")):
        assert said("report", "one.jsonl", "--format", form) == 0
        assert words in capsys.readouterr().out

    asked = "--fail-on", "marginal", "--junit-xml", "asked.xml"
    assert said("run", "silu", *SHORT, "--skip", "shrink", "--output", "asked.jsonl", *asked) == 1
    assert "--fail-on fails the run for 2 checks marginal" in capsys.readouterr().out
    assert ElementTree.parse("asked.xml").getroot()[0].get("failures") == "1"
    assert said("run", "silu", *SHORT, "--skip", "shrink", "--output", "timed.jsonl", "--time", "10m") == 0
    assert "PASS  2 marginal findings; everything else agrees" in capsys.readouterr().out

    planted(0, "silu")
    assert said("run", "silu", *SHORT, "--skip", "shrink", "--output", "healthy.jsonl", "--fail-on", "marginal") == 0
    assert "PASS  everything that was compared agrees" in capsys.readouterr().out


def test_a_file_of_known_findings_takes_drift_and_marginal_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """An entry of the one accepts the other; a diff names what changed between them."""
    one(capsys)
    assert said("known", "add", "one.jsonl", "--reason", "seen") == 0
    assert "nothing to add" in (out := capsys.readouterr().out)
    assert "--status marginal" in out
    assert said("known", "add", "one.jsonl", "--reason", "seen", "--status", "marginal") == 0
    known = "--known", "parity-known.toml"
    assert said("run", "silu", *SHORT, "--output", "known.jsonl", *known, "--fail-on", "marginal") == 0

    planted(4, "silu")
    assert said("run", "silu", *SHORT, "--skip", "again", "--output", "many.jsonl") == 1
    assert said("run", "silu", *SHORT, "--skip", "again", "--output", "known.jsonl", *known) == 0
    Path("parity-known.toml").unlink()
    assert said("known", "add", "many.jsonl", "--reason", "seen") == 0
    planted(1, "silu")
    assert said("run", "silu", *SHORT, "--output", "known.jsonl", *known, "--fail-on", "marginal") == 0
    capsys.readouterr()

    assert said("diff", "one.jsonl", "many.jsonl") == 1
    assert "marginal -> drift" in (out := capsys.readouterr().out)
    assert "regressed: 1" in out, out
    said("diff", "many.jsonl", "one.jsonl")
    assert "drift -> marginal" in (out := capsys.readouterr().out)
    assert "eased: 1" in out


def test_a_shard_fails_and_the_merged_run_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """With one operator it is marginal; a fault in two operators of so small a run is none, whichever shard has which."""

    def shards(*ops: str) -> tuple[list[int], str]:
        planted(1, *ops)
        codes = [
            said("run", "silu", "mish", *SHORT, "--skip", "again,shrink", "--shard", f"{k}/2", "--output", f"{k}.jsonl")
            for k in (1, 2)
        ]
        assert said("merge", "1.jsonl", "2.jsonl", "--output", "whole.jsonl") == 0
        assert capsys.readouterr().out.count("the run that parity merge makes of all shards says") == sum(codes)
        said("report", "whole.jsonl")
        return codes, capsys.readouterr().out.strip().splitlines()[-1]

    codes, last = shards("silu")
    assert sorted(codes) == [0, 1]
    assert last.startswith("PASS")
    codes, last = shards("silu", "mish")
    assert codes == [1, 1]
    assert last.startswith("FAIL")


def test_the_suite_under_pytest_alone_fails(pytester: pytest.Pytester) -> None:
    """It has no end of a run that could decide."""
    planted(1, "silu")
    suite, asked = (
        project.resource_folder("conformance"),
        [f"--parity-{w}" for w in ("device=sim", "dtype=float32", "examples=40")],
    )
    asked += ["--parity-op=silu", f"--parity-setup={Path('faults.py').absolute()}", "-p", "no:cacheprovider"]
    done = pytester.runpytest_subprocess(str(suite), "-c", str(suite / "pytest.ini"), *asked)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*drift*1.21 times the budget*"])
