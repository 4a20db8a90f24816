"""Processes that parity starts. Python puts the current folder on `sys.path`, where a `random.py` would shadow the standard
library; parity's processes run without it.

No process outlives the one that started it, and no folder stays behind, however the parent ends.

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
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from parity.core import compiler

SAFE, PATH = "PYTHONSAFEPATH", "PYTHONPATH"
OPTIONS, MORE_PLUGINS, AUTOLOAD = "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
CALLED = "PARITY_COMMAND"  # how a person calls parity where it is not installed (`parity.history.environments`)
_OURS: list[str] = []  # the folder that Python itself put on the `sys.path` of this process


def command(job: str, folder: str, python: str = sys.executable) -> list[str]:
    """The command line that does a job in a new process, which ends when this one does (`parity.core.child`). Start it inside
    `isolated`."""
    return [python, "-P", "-m", "parity.core.child", str(os.getpid()), job, folder]


def called() -> str:
    """How a person calls parity in the environment of this process."""
    return os.environ.get(CALLED, "parity")


def asked_to_stop(e: BaseException) -> bool:
    """Whether an exception is a person's Ctrl-C. Where the signal is ignored, as in all workers, it is none: whatever was
    called has raised a KeyboardInterrupt of its own."""
    return isinstance(e, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


DEADLY = "PARITY_DEADLY_OPERATORS"  # in the environment of every process of a run: names with commas between them


def deadly() -> frozenset[str]:
    """The operators that ended the process which examined the device at the start of this run."""
    return frozenset(filter(None, os.environ.get(DEADLY, "").split(",")))


_forks = [0]


def forks() -> int:
    """How often this process was forked since `end_forks`."""
    return _forks[0]


def end_forks() -> None:
    """End every copy that a call makes of this process by `os.fork`: it would go on as a second worker, and report everything
    twice. Processes that `subprocess` starts are no such copies, nor are those of `multiprocessing` (the workers of a
    DataLoader), which do what they are given and end."""

    def count() -> None:
        _forks[0] += not _is_worker(sys._getframe(1))

    def end() -> None:
        if not _is_worker(sys._getframe(1)):
            os._exit(0)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_parent=count, after_in_child=end)


def _is_worker(caller: FrameType) -> bool:
    """Whether a fork is one of `multiprocessing`. caller: the frame in which the process was forked."""
    return caller.f_globals.get("__name__") == "multiprocessing.popen_fork"


OUT_OF_THE_WAY = 200  # the least number of a descriptor that is set aside
_decoys: list[int] = []


def set_aside(number: int) -> int:
    """Another number of a descriptor of this process, where calls that write to whatever they find do not come. A file that
    nobody reads takes its place (`strayed`). The number as it is where the system cannot do that."""
    try:
        import fcntl

        moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
        with tempfile.TemporaryFile() as decoy:
            os.dup2(decoy.fileno(), number, inheritable=False)
    except (ImportError, OSError):
        return number
    _decoys.append(number)
    return moved


def strayed() -> int:
    """Bytes that were written, since this was asked last, to descriptors that nobody but this process uses."""
    total = 0
    for number in _decoys:
        try:
            if size := os.fstat(number).st_size:
                total += size
                os.ftruncate(number, 0)
                os.lseek(number, 0, os.SEEK_SET)
        except OSError:  # a call has closed it
            pass
    return total


STOP_LOOK = 1.0  # seconds between two looks at whether a process is stopped


class Stops:
    """When processes were stopped (SIGSTOP, Ctrl-Z): they do nothing meanwhile, and are no hang. Whoever watches a process for
    a hang counts its time from there."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._looked: dict[int, float] = {}
        self._awake = time.monotonic()

    def last(self, pid: int) -> float:
        """When the process, or this one, was last seen stopped, by `time.monotonic`; 0.0 if never. To be asked again and
        again."""
        now = time.monotonic()
        if now - self._awake > 3 * STOP_LOOK:  # so long has nobody asked: this process did not run
            self._last[0] = now
        self._awake = now
        if now - self._looked.get(pid, 0.0) >= STOP_LOOK:
            self._looked[pid] = now
            if is_stopped(pid):
                self._last[pid] = now
        return max(self._last.get(pid, 0.0), self._last.get(0, 0.0))


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    try:
        if sys.platform == "linux":
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
        asked = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return asked.stdout.startswith("T")
    except (OSError, IndexError):  # it has ended, or there is no ps
        return False


def prepare_torch() -> None:
    """Set torch up in a process of parity's own: one thread, the backward pass on the thread that calls it (simulated devices
    need that), and no compiler that nothing is compiled by."""
    import torch

    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    compiler.keep_out()


@contextmanager
def isolated() -> Iterator[None]:
    """While active, every process that is started, by whatever library, runs without its current folder on `sys.path`, and
    imports the same parity as this process."""
    with restored(SAFE, PATH):
        os.environ[SAFE] = "1"
        if not _is_found():
            os.environ[PATH] = os.pathsep.join([p for p in (str(_root()), os.environ.get(PATH)) if p])
        yield


# pytest's plugins for a run of parity: plugins that happen to be installed may reorder tests, repeat them, or warn.
PLUGINS = ("-p", "xdist.plugin", "-p", "parity.faces.plugin")


@contextmanager
def only_our_plugins() -> Iterator[None]:
    """While active, pytest loads no plugin but those named to it (`PLUGINS`), in its workers, too, and takes no options
    from the environment."""
    with restored(OPTIONS, MORE_PLUGINS, AUTOLOAD):
        for name in (OPTIONS, MORE_PLUGINS):
            os.environ.pop(name, None)
        os.environ[AUTOLOAD] = "1"
        yield


@contextmanager
def restored(*names: str) -> Iterator[None]:
    """Restore these variables of the environment at the end."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _is_found() -> bool:
    """Whether `sys.path` has the folder of parity, not counting the entry that Python put first for this process."""
    others = sys.path if sys.flags.safe_path or _OURS else sys.path[1:]
    return any(p and p not in _OURS and Path(p).resolve() == _root() for p in others)


def leave_the_current_folder() -> None:
    """Remove the folder that `python -m` puts first on this process's `sys.path`; move it to the end if parity lies in it."""
    try:
        current = os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", current):
        here = sys.path.pop(0)
        _OURS.append(here or current)
        if Path(here or ".").resolve() == _root():
            sys.path.append(_OURS[0])


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


def end_with_parent(parent: int) -> None:
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


def note_folder(folder: Path, worker: str) -> None:
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
