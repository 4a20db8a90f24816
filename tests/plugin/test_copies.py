"""Workers that are copies of one process: they do what workers do that xdist starts, and where there can be none, those are."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from parity.core import copies
from parity.engine.child import Child
from parity.faces import commandline
from parity.store import run_file

pytestmark = [
    pytest.mark.usefixtures("examined_once"),
    pytest.mark.skipif(sys.platform != "linux", reason="copies are of Linux"),
]

DIES = """
import os, signal
from parity.devices import Fault

def dies(call):
    if call.args[0].numel() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return call.run()

FAULTS = [Fault("deadly", ("exp",), dies)]
"""
ASKED = ("--device", "sim", "--dtype", "float32", "--examples", "2", "-n", "1", "--skip", "again", "--power", "0")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the copies that this process asks for; 0 where there was none."""
    numbers = list[int]()
    start = copies.start

    def noted(*asked: Any) -> copies.Copy | None:
        numbers.append(copy.pid if (copy := start(*asked)) else 0)
        return copy

    monkeypatch.setattr(copies, "start", noted)
    return numbers


def test_a_copy_works_and_another_takes_its_place_when_it_dies(tmp_path: Path, made: list[int]) -> None:
    """The controller learns how it died; a healthy op is examined by a copy too."""
    (tmp_path / "faults.py").write_text(DIES)
    path = tmp_path / "run.jsonl"
    more = "--setup", str(tmp_path / "faults.py"), "--skip", "shrink", "--findings", str(tmp_path / "f"), "-o", str(path)
    assert commandline.main(["run", "exp", "neg", *ASKED, *more]) == 1
    run = run_file.read(path)
    assert {(d.op, d.signal) for d in run.deaths} == {("exp", "SIGSEGV")}
    assert {i.op for i in run.items} == {"exp", "neg"}
    assert len(made) >= 2
    assert all(made)


def test_without_that_process_workers_are_started_as_ever(
    tmp_path: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone before the first one is asked for."""
    started = copies._started

    def ended(address: str, names: Sequence[str]) -> Any:
        process = started(address, names)
        process.kill()
        process.wait()
        return process

    monkeypatch.setattr(copies, "_started", ended)
    assert commandline.main(["run", "neg", *ASKED, "-o", str(tmp_path / "run.jsonl")]) == 0
    assert [i.op for i in run_file.read(tmp_path / "run.jsonl").items] == ["neg"]
    assert not any(made)


def test_the_first_case_imports_next_to_nothing() -> None:
    """Each copy would do so again: sympy alone took longer than an item."""
    code = (
        "import importlib, sys\nfrom parity.core import copies, processes\nprocesses.prepare_torch()\n"
        "for name in copies.LOADED: importlib.import_module(name)\n"
        "from parity.engine.planning import run_plan\nfrom parity.engine.options import RunOptions\n"
        "from parity.engine.examine import examine\nfrom parity.engine.journal import NoJournal\n"
        "from parity.engine import suite\n"
        "plan, loaded = run_plan(RunOptions(device='sim', examples=1), 0.0, None), set(sys.modules)\n"
        "examine(suite.Item(suite.row('add'), 'float32'), plan, NoJournal())\nprint(len(set(sys.modules) - loaded))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 40


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that is copied, which has loaded little."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with copies.offered(True, ()):
        yield


@pytest.mark.usefixtures("little")
def test_the_end_of_a_copy_is_that_of_a_process() -> None:
    """Its exit code, or that it takes longer; and it ends with who asked for it."""
    (theirs, ours), ended = os.pipe(), []
    for end in (b"'raise SystemExit(7)'\n", b""):
        copy = copies.start((), os.environ, (theirs, 1, 2))
        assert copy is not None
        with pytest.raises(subprocess.TimeoutExpired):
            copy.wait(0.05)
        os.write(ours, end)
        if not end:
            copy.kill()
        ended.append(copy.wait(20))
    assert ended == [7, -signal.SIGKILL]
    copy = copies.start((), os.environ, (theirs, 1, 2))
    assert copy is not None
    copy._connection.close()
    until = time.monotonic() + 20
    while Path(f"/proc/{copy.pid}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{copy.pid}").exists()
    os.close(theirs)
    os.close(ours)


def test_a_copy_that_cannot_be_made_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more processes are allowed, at the second one."""
    (tmp_path / "only_one.py").write_text(
        "import os\n\ndef fork(made=[], real=os.fork):\n    if made:\n        raise BlockingIOError\n    made.append(1)\n"
        "    return real()\n\nos.fork = fork\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs, ours = os.pipe()
    with copies.offered(True, ("only_one",)):
        copy = copies.start((), os.environ, (theirs, 1, 2))
        assert copy is not None
        assert copies.start((), os.environ, (theirs, 1, 2)) is None
        os.write(ours, b"'raise SystemExit(7)'\n")
        assert copy.wait(20) == 7
    os.close(theirs)
    os.close(ours)


def test_what_it_imports_prints_nothing_into_a_runs_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A copy prints where it is asked to."""
    (tmp_path / "noisy.py").write_text("print('a backend of torch says hello')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs, ours = os.pipe()
    with copies.offered(True, ("noisy",)):
        copy = copies.start((), os.environ, (theirs, 1, 2))
        assert copy is not None
        os.write(ours, b"'print(7)'\n")
        assert copy.wait(20) == 0
    os.close(theirs)
    os.close(ours)
    assert capfd.readouterr().out == "7\n"


@pytest.mark.cold
def test_what_ends_a_run_does_not_end_it_while_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C reaches all processes of a terminal: here, with a request to end, from the first module that parity imports."""
    sent = "for s in (signal.SIGINT, signal.SIGTERM): os.kill(os.getpid(), s)"
    (tmp_path / "dataclasses.py").write_text(f"import os, signal\n{sent}\nexec(open({dataclasses.__file__!r}).read())")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs, ours = os.pipe()
    with copies.offered(True, ()):
        copy = copies.start((), os.environ, (theirs, 1, 2))
        os.write(ours, b"'print(7)'\n")
        assert copy is not None
        assert copy.wait(20) == 0
    os.close(theirs)
    os.close(ours)
    assert capfd.readouterr() == ("7\n", "")


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("job", ["parity.engine.jobs.confirm", "parity.core.version.job"])
def test_jobs_that_need_no_new_process_are_done_in_a_copy(job: str, made: list[int]) -> None:
    """A job of parity's own is; here both are refused, as they are in any process: one is given too little."""
    with Child(job, {}) as process:
        end = process.ending()
    assert end.died == "exit code 1"
    assert "Error" in end.said
    assert len(made) == (job == "parity.engine.jobs.confirm")
    assert all(made)
