"""Findings do not stop the line: all items come first, then the causes of what they found, as far as their share of the time
goes; and nothing of them is lost."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from parity.core.results import Record
from parity.engine import again, rounds
from parity.faces import commandline, scheduling
from parity.store import run_file
from parity.store.rows import ItemRow, Run

pytestmark = [pytest.mark.usefixtures("examined_once"), pytest.mark.slow]

OPS = ("abs", "neg", "square")  # of whole numbers, which have no derivatives: fewer findings for each op
WRONG = """
import sys
from parity.devices import Fault

def explaining(call):
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "explain":
        frame = frame.f_back
    return frame is not None

FAULTS = [Fault("one more", ("abs", "neg"), lambda call: call.run() + 1, level="kernel")]
"""
DEADLY = '\nFAULTS.append(Fault("deadly", ("abs",), lambda call: __import__("os").abort(), explaining))\n'
SHORT = ("--examples", "4", "--skip", "again", "--power", "0")
ASKED = ("run", *OPS, "--device", "sim", "--dtype", "int32", *SHORT, "-n", "1", "--setup", "faults.py")


@pytest.fixture(autouse=True)
def in_a_folder_with_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the three ops are wrong."""
    monkeypatch.chdir(tmp_path)
    Path("faults.py").write_text(WRONG)


WORST = """
from parity.devices import Fault

FAULTS = [
    Fault("a little off", ("abs",), lambda call: call.run() * 1.001, level="kernel"),
    Fault("far off", ("neg",), lambda call: call.run() * 1e6, level="kernel"),
]
"""


def test_a_run_that_is_cut_has_looked_into_the_worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The op that is far outside comes last of all items, and has its cause; its line is on the screen before the others."""
    Path("faults.py").write_text(WORST)
    due = rounds.Causes.due
    monkeypatch.setattr(rounds.Causes, "due", lambda self: None if self.explained else due(self))
    asked = ("run", "abs", "floor", "neg", *(w.replace("int", "float") for w in ASKED[len(OPS) + 1 :]))
    assert commandline.main([*asked, "--output", "run.jsonl"]) == 1
    assert without_cause(run_file.read(Path("run.jsonl"))) == {"abs"}


def test_causes_are_looked_for_while_items_are_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first finding is on the screen at once, and its cause before the last item; a healthy op is not spoken of."""
    monkeypatch.setattr(scheduling, "EARLY_ITEMS", 1)
    assert commandline.main([*ASKED, "--output", "run.jsonl"]) == 1
    rows = run_file.rows_of(Path("run.jsonl"))
    last = max(k for k, r in enumerate(rows) if isinstance(r, ItemRow))
    assert min(k for k, r in enumerate(rows) if isinstance(r, Record) and r.shrunk and r.cause is not None) < last
    assert not without_cause(run_file.read(Path("run.jsonl")))
    said = capsys.readouterr().out
    first = said.index("first finding, its cause comes later: ")
    cause = re.search(r"^[ABC] \[", said, re.MULTILINE)
    assert cause is not None
    assert first < cause.start()
    assert said.count("first finding") == 1


def findings(run: Run) -> set[tuple[str, ...]]:
    """What a run found, with least cases and causes."""
    return {(*r.kind, r.case, r.shrunk, str(r.cause), str(r.count)) for r in run.records if r.shrunk}


def without_cause(run: Run) -> set[str]:
    """The ops with findings of which no cause was looked for."""
    return {r.op for r in run.records if r.unexplained}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that had time for everything."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("faults.py").write_text(WRONG)
        assert commandline.main([*ASKED, "--output", "run.jsonl", "--junit-xml", "j.xml"]) == 1
    return folder


def test_all_items_come_before_the_causes(whole: Path) -> None:
    """In the file each finding stands twice, as it was drawn and with its cause; a reader has it once."""
    rows = run_file.rows_of(whole / "run.jsonl")
    last = max(k for k, r in enumerate(rows) if isinstance(r, ItemRow))
    told = [k for k, r in enumerate(rows) if isinstance(r, Record) and r.shrunk and r.cause is not None]
    drawn = [k for k, r in enumerate(rows) if isinstance(r, Record) and r.unexplained]
    assert max(drawn) < last < min(told)
    run = run_file.read(whole / "run.jsonl")
    assert not without_cause(run)
    assert len([r for r in run.records if r.shrunk]) == len(told) == len(drawn)
    assert {r.cause.subject for r in run.records if r.cause} == {"aten::abs", "aten::neg"}


def test_the_least_case_is_what_junit_and_the_script_show(whole: Path) -> None:
    """One test case for each item."""
    (suite,) = ElementTree.parse(whole / "j.xml").iter("testsuite")
    failed = {str(c.get("name")): c.findtext("failure") for c in suite.iter("testcase")}
    assert set(failed) == {f"test_operator[{op}-int32]" for op in OPS}
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    assert "smallest case: neg(int32[()])" in str(failed["test_operator[neg-int32]"])
    assert "int32[()]" in (whole / "findings" / "neg-int32-forward-out.py").read_text()


def test_what_had_no_time_is_told_and_resumed(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is whole, and fails; another one with its file gives the rest, and is in the end what a run with time is."""
    due = rounds.Causes.due
    with monkeypatch.context() as patch:
        patch.setattr(rounds.Causes, "due", lambda self: None if self.explained else due(self))
        assert commandline.main([*ASKED, "--output", "run.jsonl"]) == 1
    said = capsys.readouterr().out
    run = run_file.read(Path("run.jsonl"))
    assert without_cause(run) == {"abs"}
    assert run.end is not None
    assert (run.end.stopped, len(run.items)) == ("", len(OPS))
    assert "NO CAUSE   of the findings of 1 of 2 items no cause was looked for, and no smaller case: that had its share" in said
    told = next(line for line in said.splitlines() if "to go on: " in line).partition("to go on: parity ")[2]
    assert f"{sum(bool(r.shrunk) for r in run.records)} findings in" in said
    resume = [*shlex.split(told), "-n", "1"]
    assert commandline.main(resume) == 1
    assert "2 items of 3 are whole in run.jsonl; the rest is run" in capsys.readouterr().out
    assert findings(run_file.read(Path("run.jsonl"))) == findings(run_file.read(whole / "run.jsonl"))
    assert commandline.main(resume) == 2
    assert "nothing is left to run" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_among_the_causes_loses_no_finding(number: int, whole: Path) -> None:
    """Interrupted or killed: what was found is in the file as it was drawn, and is explained when the run is resumed."""
    command = (sys.executable, "-m", "parity", *ASKED, "--output", "run.jsonl")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        for line in process.stdout or ():
            if "looking for the causes" in line:
                process.send_signal(number)
    assert process.wait() == (130 if number == signal.SIGINT else -number)
    run = run_file.read(Path("run.jsonl"), partial=True)
    assert without_cause(run)
    assert len(run.items) == len(OPS)
    drawn = {k[:5] for k in findings(run_file.read(whole / "run.jsonl"))}
    assert {k[:5] for k in findings(run)} == drawn
    assert commandline.main(["run", "--resume", "run.jsonl", "--setup", "faults.py", "-n", "1"]) == 1
    assert findings(run_file.read(Path("run.jsonl"))) == findings(run_file.read(whole / "run.jsonl"))


def test_a_run_that_is_interrupted_while_findings_are_tried_again_can_be_resumed(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was not tried counts, and may not be reproduced; so the file says that the run was interrupted."""

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(again, "again", interrupt)
        assert commandline.main([*(w for w in ASKED if w not in ("--skip", "again")), "--output", "run.jsonl"]) == 130
    last = capsys.readouterr().out.splitlines()[-1]
    assert "; the run was interrupted after 3 of 3 items, and not all findings were tried again, in " in last
    run = run_file.read(Path("run.jsonl"))
    assert (run.end.stopped if run.end else "", run.again) == ("interrupted", ())
    assert commandline.main([*shlex.split(last.rpartition("; next: parity ")[2]), "-n", "1"]) == 1
    assert "3 items of 3 are whole in run.jsonl; the rest is run" in capsys.readouterr().out
    resumed = run_file.read(Path("run.jsonl"))
    assert findings(resumed) == findings(run_file.read(whole / "run.jsonl"))
    assert len(resumed.again) == len(findings(resumed))


def test_a_death_among_the_causes_costs_the_causes_of_its_item_alone(whole: Path) -> None:
    """It is reported as a death, and the findings of its item as they were drawn."""
    Path("faults.py").write_text(WRONG + DEADLY)
    assert commandline.main([*ASKED, "--output", "run.jsonl"]) == 1
    run = run_file.read(Path("run.jsonl"))
    assert {d.op for d in run.deaths} == {"abs"}
    assert not without_cause(run)
    expected = findings(run_file.read(whole / "run.jsonl"))
    assert {f for f in findings(run) if f[0] != "abs"} == {f for f in expected if f[0] != "abs"}
    assert {f[:6] for f in findings(run) if f[0] == "abs"} == {f[:6] for f in expected if f[0] == "abs"}
    assert {r.case == r.shrunk for r in run.records if r.op == "abs" and r.shrunk} == {True}


def test_findings_without_shrinking_are_told_at_once() -> None:
    """As they were drawn, and once."""
    assert commandline.main([*ASKED, "--skip", "shrink", "--output", "run.jsonl"]) == 1
    rows = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    found = [(r["op"], r["aspect"], r["reason"]) for r in rows if r.get("kind") == "record" and r.get("shrunk")]
    assert len(found) == len(set(found)) > 3
    assert not without_cause(run_file.read(Path("run.jsonl")))


FULL = """
from pathlib import Path

def write(path, data, write=Path.write_bytes):
    if path.name.startswith("held-") and not Path("room").exists():
        raise OSError(28, "No space left on device")
    return write(path, data)

Path.write_bytes = write
"""


def test_a_full_disk_costs_the_causes_and_not_the_findings() -> None:
    """What was found is reported as it was drawn, and can be resumed."""
    Path("faults.py").write_text(WRONG + FULL)
    assert commandline.main([*ASKED, "--output", "run.jsonl"]) == 1
    assert without_cause(run_file.read(Path("run.jsonl"))) == {"abs", "neg"}
    Path("room").touch()
    assert commandline.main(["run", "--resume", "run.jsonl", "--setup", "faults.py", "-n", "1"]) == 1
    assert not without_cause(run_file.read(Path("run.jsonl")))
