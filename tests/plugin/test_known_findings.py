"""Known findings as a person meets them: the first red day, what fails later, and what pytest and JUnit say of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from xml.etree import ElementTree

import commands
import pytest

from parity.core import project
from parity.store import run_file

SUITE = project.resource_folder("conformance")
FAULTS = """
import os
from parity.devices import Fault

FAULTS = [
    Fault("exp", ("exp",), lambda c: c.run() * 1.01),
    Fault("abort", ("sin",), lambda c: os.abort(), lambda c: c.operands[0].dim() == 2),
]
"""
HONEST = "from parity.devices import Fault\nFAULTS = [Fault('none', ('erf',), lambda c: c.run(), lambda c: False)]\n"
Parity = Callable[..., tuple[int, str]]


pytestmark = pytest.mark.usefixtures("examined_once")


@pytest.fixture
def parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Parity:
    """A command of parity in an empty folder: (exit code, everything it said). Runs are of exp and sin in float32."""
    (tmp_path / "faults.py").write_text(FAULTS)
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> tuple[int, str]:
        given = [*argv]
        if argv[0] == "run":
            given += ["exp", "sin"] if argv[1].startswith("-") else []
            given += ["--device", "sim", "--dtype", "float32", "-n", "1", "--power", "0"]
            given += [] if "--examples" in argv else ["--examples", "6"]
            given += [] if "--setup" in argv else ["--setup", "faults.py"]
        return commands.told(capfd, *given)

    return run


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run with wrong values and a death, as a person starts it: in a process of its own."""
    folder = tmp_path_factory.mktemp("red")
    (folder / "faults.py").write_text(FAULTS)
    asked = ["run", "exp", "sin", "--device", "sim", "--dtype", "float32", "--examples", "6", "-n", "1", "--power", "0"]
    command = [sys.executable, "-m", "parity", *asked, "--setup", "faults.py", "--output", "first.jsonl"]
    path = os.pathsep.join(p for p in (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")) if p)
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1
    return folder / "first.jsonl"


@pytest.mark.slow
def test_the_first_red_day_ends_green_and_stays_so(parity: Parity, tmp_path: Path, red: Path) -> None:
    """Wrong values and a death: run, add, run; then one of them mended, and both."""
    shutil.copy(red, "first.jsonl")
    code, said = parity("known", "add", "first.jsonl", "--until", "2090-01-31")
    assert code == 2
    assert "needs a reason" in said
    assert not (tmp_path / "parity-known.toml").exists()
    code, said = parity("known", "add", "first.jsonl", "--reason", "torch 2.13", "--link", "https://example.org")
    assert code == 0
    assert "2 added, 0 updated, 2 known findings in parity-known.toml; next: parity run --known parity-known.toml" in said

    code, said = parity(
        "run", "--known", "parity-known.toml", "--output", "second.jsonl", "--junit-xml", "j.xml", "--fail-on", "known"
    )
    assert code == 0, said
    assert "known findings: 2 known, 0 new, 0 fixed, 0 grown, 0 expired, 0 not seen (parity-known.toml)" in said
    assert "[exp-b4c8f1] aten::exp gives wrong values (torch 2.13; https://example.org)" in said
    assert "everything that was compared agrees, or is known" in said
    second = run_file.read(tmp_path / "second.jsonl")
    assert second.header.known.digest
    assert {s.id for s in second.known} == {"exp-b4c8f1", "SIGABRT-in-sin-27bf27"}
    (suite,) = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert "known: [exp-b4c8f1]" in str([e.get("message") for e in suite.iter("skipped")])
    code, said = parity("known", "add", "second.jsonl")
    assert code == 0
    assert "nothing to add" in said

    (tmp_path / "honest.py").write_text(HONEST)
    code, said = parity("run", "--known", "parity-known.toml", "--setup", "honest.py", "--output", "third.jsonl")
    assert code == 0
    assert "0 known, 0 new, 2 fixed" in said
    assert (
        "fixed [exp-b4c8f1] aten::exp gives wrong values: remove it with parity known drop parity-known.toml exp-b4c8f1" in said
    )
    code, said = parity("run", "exp", "--known", "parity-known.toml", "--setup", "honest.py", "--fail-on", "known")
    assert code == 1
    assert "0 known, 0 new, 1 fixed, 0 grown, 0 expired, 1 not seen" in said
    code, said = parity("known", "drop", "parity-known.toml", "exp-b4c8f1")
    assert (code, said) == (0, "dropped exp-b4c8f1; 1 left in parity-known.toml\n")
    code, said = parity("run", "exp", "--known", "parity-known.toml", "--skip", "again")
    assert code == 1
    assert "known findings: 0 known" in said, said


@pytest.mark.slow
def test_an_expired_entry_and_one_for_another_device(parity: Parity, tmp_path: Path, red: Path) -> None:
    """The first fails with its reason; the second is used, and a warning says so. A device of another family is refused in
    `add`."""
    file = tmp_path / "parity-known.toml"
    shutil.copy(red, "first.jsonl")
    parity("known", "add", "first.jsonl", "exp-b4c8f1", "--reason", "until the upgrade", "--until", str(date.today()))
    assert parity("run", "exp", "--known", "parity-known.toml")[0] == 0
    file.write_text(file.read_text().replace(str(date.today()), str(date.today() - timedelta(1))))
    code, said = parity("run", "exp", "--known", "parity-known.toml", "--output", "late.jsonl")
    assert code == 1
    assert "0 known, 0 new, 0 fixed, 0 grown, 1 expired" in said
    assert "expired, and left as they are: exp-b4c8f1" in parity("known", "add", "late.jsonl", "--reason", "r")[1]
    assert (
        f"EXPIRED [exp-b4c8f1] aten::exp gives wrong values: accepted until {date.today() - timedelta(1)}: until the upg"
        in said
    )
    code, said = parity("known", "list")
    assert code == 1
    assert "expired on" in said
    code, said = parity("known", "add", "late.jsonl", "exp-b4c8f1", "--until", "2090-01-31")
    assert "0 added, 1 updated" in said
    assert "until the upgrade" in file.read_text()
    file.write_text(file.read_text().replace('device = "sim"\n', 'device = "mps"\n'))
    code, said = parity("run", "exp", "--known", "parity-known.toml")
    assert code == 0
    assert "warning: parity-known.toml was written for device mps, and this is sim: its entries are used all the same" in said
    code, said = parity("known", "add", "first.jsonl", "--reason", "r")
    assert code == 2
    assert "parity-known.toml is for mps, and first.jsonl is of sim" in said


def test_mistakes_are_one_sentence(parity: Parity, tmp_path: Path) -> None:
    """Before any device is touched."""
    (tmp_path / "broken.toml").write_text('format = 1\n[[known]]\nid = "x"\nreason = "r"\nops = ["exp"]\nstatus = "wrnog"\n')
    code, said = parity("run", "--known", "broken.toml")
    assert (code, said.count("\n")) == (2, 1)
    assert "parity: broken.toml:6: known 'x': an entry stands for no status 'wrnog'; allowed: drift, wrong, " in said
    code, said = parity("run", "--known", "none.toml")
    assert code == 2
    assert "parity known add RUN" in said
    code, said = parity("run", "--fail-on", "known")
    assert code == 2
    assert "name their file with --known" in said
    (tmp_path / "typo.toml").write_text('format = 1\n[[known]]\nid = "x"\nreason = "r"\nops = ["expp"]\nstatus = "wrong"\n')
    code, said = parity("known", "list", "typo.toml")
    assert code == 1
    assert "[x] wrong in expp" in said
    assert "typo.toml:2: known 'x': no op is called 'expp'; did you mean 'exp'" in said
    code, said = parity("known", "drop", "typo.toml", "y")
    assert code == 2
    assert "typo.toml has no entry 'y'" in said
    (tmp_path / "right.toml").write_text((tmp_path / "typo.toml").read_text().replace("expp", "exp"))
    code, said = parity("known", "list", "right.toml")
    assert (code, "[x] wrong in exp" in said) == (0, True)


@pytest.mark.slow
def test_nothing_compared_is_not_green_whatever_is_known(parity: Parity, tmp_path: Path) -> None:
    """All that a run of one op does is to raise."""
    (tmp_path / "raises.py").write_text(
        "from parity.devices import Fault\n\n\ndef fails(c):\n    raise RuntimeError('no such thing')\n\n\n"
        "FAULTS = [Fault('exp', ('exp',), fails)]\n"
    )
    parity("run", "exp", "--setup", "raises.py", "--output", "first.jsonl")
    assert parity("known", "add", "first.jsonl", "--reason", "r")[0] == 0
    code, said = parity("run", "exp", "--setup", "raises.py", "--known", "parity-known.toml")
    assert "1 known, 0 new" in said
    assert code == 3
    assert "nothing was compared: this is no success" in said


ENTRY = """format = 1
[[known]]
id = "exp-by-hand"
reason = "ours"
ops = ["exp"]
status = "wrong"
cases = ["forward: exp(float32[3])"]
"""


@pytest.mark.slow
def test_the_settings_name_the_file_and_workers_use_it(pytester: pytest.Pytester) -> None:
    """As a path relative to them; pytest says what became of the entries, and strictly what is fixed fails."""
    faults = pytester.makepyfile(
        faults="from parity.devices import Fault\nFAULTS = [Fault('exp', ('exp',), lambda c: c.run() * 1.01)]\n"
    )
    (pytester.path / "known.toml").write_text(ENTRY)
    pytester.makepyprojecttoml('[tool.parity]\nknown = "known.toml"\n')
    given = ["--rootdir", str(SUITE), str(SUITE), "-p", "no:cacheprovider", "--parity-device", "sim"]
    given += ["--parity-op", "exp", "--parity-dtype", "float32", "--parity-examples", "4"]
    broken = ("--parity-faults", str(faults))
    done = pytester.runpytest_subprocess(*given, *broken)
    done.assert_outcomes(xfailed=1)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*known findings*", "*[[]exp-by-hand[]] wrong in exp (ours)*"])
    done = pytester.runpytest_subprocess(*given, *broken, "-n", "1")
    done.assert_outcomes(xfailed=1)
    done = pytester.runpytest_subprocess(*given, "-n", "1", "--parity-fail-on=known")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*fixed [[]exp-by-hand[]]*remove it with parity known drop*"])
    assert done.ret == 1
    done = pytester.runpytest_subprocess(*given, "--parity-known=none.toml")
    assert done.ret == 2
    assert "there is no file of known findings" in done.stderr.str() + done.stdout.str()


@pytest.mark.slow
def test_parts_of_items_and_reports_know_them(parity: Parity, tmp_path: Path, red: Path) -> None:
    """With a limit of time, each known case is run once; reports mark what is known, and gates leave it out."""
    shutil.copy(red, "first.jsonl")
    assert parity("known", "add", "first.jsonl", "--reason", "planted")[0] == 0
    code, said = parity("run", "--known", "parity-known.toml", "--time", "5m", "--output", "timed.jsonl")
    assert code == 0, said
    run = run_file.read(tmp_path / "timed.jsonl")
    assert run.end is not None
    assert len(run.end.rounds) > 1
    assert len(run.known) == len(set(run.known)) > 0
    assert all(r.known for r in run.records if r.shrunk)
    for form in ("text", "markdown", "json"):
        assert "known: planted" in parity("report", "timed.jsonl", "--format", form)[1]
    assert parity("report", "timed.jsonl", "--format", "html", "-o", "page.html")[0] == 0
    assert "known: planted" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "::error" not in parity("report", "timed.jsonl", "--format", "github")[1]
    suite = ElementTree.fromstring(parity("report", "timed.jsonl", "--format", "junit")[1])
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert "known none -> " in parity("diff", "first.jsonl", "timed.jsonl")[1].splitlines()[0]

    head = (tmp_path / "parity-known.toml").read_text(encoding="utf-8")
    (tmp_path / "parity-known.toml").write_text(head[: head.index("[[known]]")], encoding="utf-8")
    code, said = parity("run", "exp", "--known", "parity-known.toml", "--time", "5m", "--output", "new.jsonl")
    assert code == 1, "what is in no entry is new in every part"
    assert "known findings: 0 known" in said, said


@pytest.mark.slow
def test_a_derivative_that_is_wrong_by_itself_is_seen_next_to_a_known_forward(parity: Parity, tmp_path: Path) -> None:
    """Although the forward that is known to be wrong is the first operator in it that differs."""
    known = 'Fault("forward", ("gelu",), lambda c: c.run() * 1.02)'
    further = 'Fault("backward", ("gelu_backward",), lambda c: c.run() * 3)'
    (tmp_path / "one.py").write_text(f"from parity.devices import Fault\nFAULTS = [{known}]\n")
    (tmp_path / "two.py").write_text(f"from parity.devices import Fault\nFAULTS = [{known}, {further}]\n")
    run = ("run", "gelu", "--examples", "12", "--skip", "again")
    assert parity(*run, "--setup", "one.py", "--output", "first.jsonl")[0] == 1
    assert parity("known", "add", "first.jsonl", "--reason", "planted")[0] == 0
    code, said = parity(*run, "--setup", "two.py", "--known", "parity-known.toml", "--output", "two.jsonl")
    assert code == 1, said
