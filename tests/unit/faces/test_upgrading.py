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
import os, signal, sys, time

def ends(*_):
    time.sleep(1)
    open(sys.argv[-1], "w").write("the end of the file")
    sys.exit(1)

signal.signal(signal.SIGINT, ends)
os.kill(os.getppid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are sent between processes")
def test_ctrl_c_waits_until_the_run_has_ended_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both get the signal; the run, whose file can then be resumed, takes longer than a moment."""
    end = tmp_path / "end"
    monkeypatch.setattr(Environment, "command", lambda *_: [sys.executable, "-c", RUN, str(end)])
    there, asked = Environment("there", "python", "lent", "2.14.1"), argparse.Namespace(folder=tmp_path, asked=[])
    plain = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            upgrading._run("after", there, asked)
    finally:
        signal.signal(signal.SIGINT, plain)
    assert end.read_text() == "the end of the file"
