"""No process outlives the one that started it, and no folder stays behind, however the parent ends.

A child watches its parent from a thread. A thread does not get its turn while native code holds the interpreter, so a run also
starts a sentinel: a small process that waits for the end of the run's main process, kills what is left, and removes the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

EVERY_SECONDS = 0.5
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
PIDS = "pid-"  # prefix of the files in a run's folder that hold the numbers of its workers
OVER = "over"  # what the main process says when it has cleaned up itself
# The sentinel. It imports nothing of parity, so that it starts at once.
SENTINEL = f"""
import os, pathlib, shutil, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
folder = pathlib.Path(sys.argv[1])
if sys.stdin.read() != {OVER!r}:
    for path in folder.glob("**/{PIDS}*"):
        try:
            os.kill(int(path.read_text()), signal.SIGKILL)
        except (OSError, ValueError):
            pass
    shutil.rmtree(folder, ignore_errors=True)
"""


def end_with(parent: int) -> None:
    """End this process, without any clean-up, when its parent is gone. parent: its number; if it is another process by now, the
    parent is gone already."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(EVERY_SECONDS)
        os._exit(1)

    if sys.platform == "linux":  # the system kills it when the thread that started it ends
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    threading.Thread(target=watch, daemon=True, name="parity-parent").start()


def note(folder: Path, worker: str) -> None:
    """Write the number of this process where the sentinel, and who interrupts the run, look for it."""
    keep_folder(folder)
    with contextlib.suppress(OSError):  # the process ends by itself when its parent does, only later
        (folder / f"{PIDS}{worker}").write_text(str(os.getpid()))


def keep_folder(folder: Path) -> None:
    """Make the folder again if somebody has cleaned it up during the run."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextlib.contextmanager
def guarded_folder() -> Iterator[Path]:
    """A folder for all temporary files of this process and its children, removed at the end even if this process is killed."""
    folder = Path(tempfile.mkdtemp(prefix="parity-"))
    command = [sys.executable, "-I", "-S", "-c", SENTINEL, str(folder)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    sentinel: subprocess.Popen[str] | None = None
    try:
        with contextlib.suppress(OSError):  # no process can be started here: the run will show it
            sentinel = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True, **quiet)  # type: ignore[call-overload]
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        yield folder
    finally:
        tempfile.tempdir = before[0]
        if before[1] is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = before[1]
        shutil.rmtree(folder, ignore_errors=True)
        if sentinel is not None:
            with contextlib.suppress(OSError):
                sentinel.communicate(OVER, timeout=5)
