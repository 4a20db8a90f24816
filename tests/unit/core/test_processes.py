"""A process that is killed leaves no child and no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.core import processes

MAIN = """
import os, pathlib, subprocess, sys, time
from parity.core import processes as parent, processes

with parent.guarded_folder() as folder:
    (folder / "asked").write_text("null")
    child = subprocess.Popen(processes.command("sleeper.job", str(folder)))
    while not pathlib.Path("asleep").exists():
        time.sleep(0.01)
    nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)  # else whoever reads ours would wait for it
    hard = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], **nowhere)  # it does not watch its parent
    (folder / "pid-gw0").write_text(str(hard.pid))
    print(folder, child.pid, hard.pid, flush=True)
    time.sleep(100 if sys.argv[1:] else 0)
    child.kill()
"""
SLEEPER = """
import pathlib, time

def job(given):
    pathlib.Path("asleep").write_text("")
    time.sleep(100)
    yield {}
"""


def lives(number: int) -> bool:
    try:
        os.kill(number, 0)
        state = Path(f"/proc/{number}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a signal that nobody can catch")
def test_what_a_killed_process_started_ends_and_its_folder_goes(tmp_path: Path) -> None:
    """A child that watches, and a worker that does not, which the sentinel ends; after an ordinary end no folder either."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(processes.__file__).parents[2])])}
    line = [sys.executable, "main.py"]
    with subprocess.Popen([*line, "wait"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder, *numbers = process.stdout.readline().split()
        assert Path(folder).is_dir()
        assert all(lives(int(n)) for n in numbers)
        process.kill()
    until = time.monotonic() + 5
    while time.monotonic() < until and (Path(folder).exists() or any(lives(int(n)) for n in numbers)):
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not any(lives(int(n)) for n in numbers)
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    folder, _, hard = done.stdout.split()
    os.kill(int(hard), signal.SIGKILL)
    assert not Path(folder).exists()


def test_ctrl_c_is_a_persons_only_where_it_can_come_from_one() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert processes.asked_to_stop(KeyboardInterrupt())
        assert not processes.asked_to_stop(SystemExit())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert not processes.asked_to_stop(KeyboardInterrupt())
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_number_of_a_process_is_noted_in_a_folder_that_was_cleaned_up(tmp_path: Path) -> None:
    """A worker that found its folder gone ended the run with a traceback of xdist."""
    processes.note_folder(tmp_path / "gone" / "run", "gw0")
    assert [p.read_text() for p in (tmp_path / "gone" / "run").iterdir()] == [str(os.getpid())]
