"""A run of one side of an upgrade, in a process of its own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import pytest

from parity.faces import upgrading
from parity.history.environments import Environment

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
def test_ctrl_c_waits_until_the_run_has_ended_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run, which is asked to stop and whose file can then be resumed, takes longer than a moment."""
    (tmp_path / "played.py").write_text(RUN)
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
