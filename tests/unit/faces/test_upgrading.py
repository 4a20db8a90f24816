"""A run of one side of an upgrade, in a process of its own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import pytest

from parity.core.errors import UsageError
from parity.faces import upgrading
from parity.history.environments import Environment

DEAD = """
import os, pathlib

def run(given):
    (pathlib.Path(__file__).parent / "after.jsonl").{write}
    yield {{"code": 0}}
    os._exit(0)
"""
RUN = """
import os, pathlib, signal, time

def run(given):
    def ends(*_):
        time.sleep(1)
        pathlib.Path(__file__).with_name("end").write_text("the end of the file")
        os._exit(1)

    signal.signal(signal.SIGINT, ends)
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
    yield {}
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are sent between processes")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_waits_until_the_run_has_ended_its_file(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run, which is asked to stop and whose file can then be resumed, takes longer than a moment."""
    (tmp_path / "played.py").write_text(RUN.replace("os.getppid(), signal.SIGINT", f"os.getppid(), signal.{number}"))
    monkeypatch.setattr(upgrading, "COMMAND", "played.run")
    there = Environment("there", sys.executable, str(tmp_path), "2.14.1")
    asked = argparse.Namespace(folder=tmp_path, asked=[])
    plain = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            upgrading._run("after", there, asked)
    finally:
        signal.signal(signal.SIGINT, plain)
    assert (tmp_path / "end").read_text() == "the end of the file"


@pytest.mark.parametrize("write", ["touch()", "exists()"])
def test_a_run_that_dies_with_0_is_not_compared(write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the file that an earlier upgrade left there."""
    (tmp_path / "played.py").write_text(DEAD.format(write=write))
    (tmp_path / "after.jsonl").write_text("of an earlier upgrade")
    monkeypatch.setattr(upgrading, "COMMAND", "played.run")
    there = Environment("there", sys.executable, str(tmp_path), "2.14.1")
    with pytest.raises(UsageError, match="the run after ended with exit code 0"):
        upgrading._run("after", there, argparse.Namespace(folder=tmp_path, asked=[]))
    assert (tmp_path / "after.jsonl").exists() is (write == "touch()")
