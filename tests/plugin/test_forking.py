"""Workers that are copies of one process: they do what workers do that xdist starts, and where there can be none, those are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parity.faces import cli, forking
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
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the copies that were made; 0 where one was asked for in vain."""
    made = list[int]()
    new = forking.Nursery._new

    def noted(self: forking.Nursery) -> forking.Worker | None:
        worker = new(self)
        made.append(worker.pid if worker else 0)
        return worker

    monkeypatch.setattr(forking.Nursery, "_new", noted)
    return made


def test_a_copy_works_and_another_takes_its_place_when_it_dies(tmp_path: Path, copies: list[int]) -> None:
    """The controller learns how it died; a healthy op is examined by a copy too."""
    (tmp_path / "faults.py").write_text(DIES)
    path = tmp_path / "run.jsonl"
    more = "--setup", str(tmp_path / "faults.py"), "--skip", "shrink", "--findings", str(tmp_path / "f"), "-o", str(path)
    assert cli.main(["run", "exp", "neg", *ASKED, *more]) == 1
    run = run_file.read(path)
    assert {(d.op, d.signal) for d in run.deaths} == {("exp", "SIGSEGV")}
    assert {i.op for i in run.items} == {"exp", "neg"}
    assert len(copies) >= 2
    assert all(copies)


def test_without_that_process_workers_are_started_as_ever(
    tmp_path: Path, copies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone before the first one is asked for."""
    begin = forking.Nursery.begin

    def ended(self: forking.Nursery) -> None:
        begin(self)
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    monkeypatch.setattr(forking.Nursery, "begin", ended)
    assert cli.main(["run", "neg", *ASKED, "-o", str(tmp_path / "run.jsonl")]) == 0
    assert [i.op for i in run_file.read(tmp_path / "run.jsonl").items] == ["neg"]
    assert not any(copies)


def test_the_end_of_a_copy_is_waited_for(tmp_path: Path) -> None:
    """As of a process: its exit code, or that it takes longer."""
    with forking.Nursery() as nursery:
        nursery.begin()
        worker = nursery._new()
        assert worker is not None
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.05)
        worker.kill()
        assert worker.wait(20) == -9
        worker.stdin.close()
        worker.stdout.close()
