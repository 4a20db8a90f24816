"""Processes that are copies of one which has loaded torch and the suite: a copy begins at once, where a new process imports all
of it again, for 5 s here and 20 s on a machine whose cores are busy.

`serve` is the process that is copied. It opens no device, computes nothing and has one thread: only so can it be copied, and
only on Linux. `start` asks it for a copy, from any process that has its address in the environment. Each copy has a connection
of its own: on it come the number of its process and, at its end, the exit code; it is ended where the connection is closed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from parity.core import child, processes

LOADED = (  # what workers and jobs need, and the suite with it
    "pytest", "xdist.plugin", "xdist.remote", "parity.faces.plugin", "parity.faces.workers", "parity.faces.checker",
    "parity.faces.replaying", "parity.engine.jobs", "parity.engine.planning", "parity.engine.suite",
    "torch._decomp.decompositions_for_jvp",  # what the first derivative in forward mode imports
    "sympy",  # what drawing the first case imports: torch works out the sizes of results with it
)  # fmt: skip
ADDRESS = "PARITY_COPIES"  # in the environment of a run's processes: where copies are asked for
LARGEST = 1 << 20  # bytes of what is asked for: mostly an environment
LOADING = 120.0  # seconds until a copy is there
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else ()  # who started it ends all
LOOK = 0.02  # seconds between two looks at whether one has ended


class Copy:
    """A copy, used as a `subprocess.Popen`. parent: the number of the process that it is a copy of."""

    def __init__(self, connection: socket.socket, pid: int, parent: int, stdin: Any = None, stdout: Any = None) -> None:
        self._connection, self.pid, self.parent, self.stdin, self.stdout = connection, pid, parent, stdin, stdout
        self.returncode: int | None = None

    def poll(self, seconds: float = 0.0) -> int | None:
        """Its exit code, None if it has none after so many seconds."""
        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            said = b""
            with suppress(OSError):
                said = self._connection.recv(LARGEST)
            self.returncode = json.loads(said) if said else -signal.SIGKILL  # it ends with the process that it is a copy of
            self._connection.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll(LOOK)) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a copy", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def start(
    job: Sequence[str], environment: Mapping[str, str], streams: Sequence[int], stdin: Any = None, stdout: Any = None
) -> Copy | None:
    """A copy that does a job as `parity.core.child`, in a session of its own, or without one what it reads from its standard
    input; None where there is none. streams: its three; stdin, stdout: the other ends of two of them."""
    if not (address := environment.get(ADDRESS)):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(LOADING)
        connection.connect(address)
        asked = {"job": job, "environment": dict(environment), "folder": os.getcwd()}
        socket.send_fds(connection, [json.dumps(asked).encode()], [*streams])
        if said := connection.recv(LARGEST):
            pid, parent = json.loads(said)
            return Copy(connection, pid, parent, stdin, stdout)
    except OSError:
        pass
    os.environ.pop(ADDRESS, None)  # it is gone, or could not be copied: nobody waits for it again
    connection.close()
    return None


@contextmanager
def offered(wanted: bool, names: Sequence[str] = LOADED) -> Iterator[None]:
    """While active, there is a process that is copied, where it is wanted and there can be one. names: of the modules that it
    loads."""
    address, process = os.path.join(tempfile.gettempdir(), "copies"), None
    with processes.restored(ADDRESS):
        os.environ.pop(ADDRESS, None)  # of a run that this one is a part of
        if wanted and sys.platform == "linux":
            with suppress(OSError):  # a long path, or no process can be started: whoever needs one says so
                process = _started(address, names)
                os.environ[ADDRESS] = address
        try:
            yield
        finally:
            if process is not None:
                process.kill()
                process.communicate()


def _started(address: str, names: Sequence[str]) -> subprocess.Popen[bytes]:
    """That process, which ends when its standard input does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(256)
        code = f"import signal, sys; [signal.signal(s, signal.SIG_IGN) for s in {[*map(int, ENDS)]}]; "  # before it imports
        code += f"sys.path[:] = {sys.path!r}; from parity.core import copies; "
        command = [sys.executable, "-c", code + f"copies.serve({listener.fileno()}, {[*names]!r})"]
        variables = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # numpy's starts threads when it is loaded
        nowhere, held = subprocess.DEVNULL, [listener.fileno()]  # what it imports must print nothing into a run's answer
        return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=nowhere, pass_fds=held)


def serve(number: int, names: Sequence[str]) -> None:
    """Load modules, and make copies as long as somebody may ask for them. number: of the socket."""
    processes.prepare_torch()
    for name in names:
        with suppress(ImportError):  # whoever needs it says so
            importlib.import_module(name)
    sys.stdout.flush()  # what is left to write would be written by each copy
    gc.collect()
    gc.freeze()
    if len(os.listdir("/proc/self/task")) == 1:
        _Source(socket.socket(fileno=number)).serve()


class _Source:
    """The process that is copied."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._copies: dict[int, socket.socket] = {}  # number of a living one -> its connection
        self._heard, ended = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Until its standard input ends. In a copy, this returns when its job is done."""
        while True:
            connections = {c.fileno(): pid for pid, c in self._copies.items() if c.fileno() >= 0}
            ready, _, _ = select.select([0, self._listener.fileno(), self._heard, *connections], [], [])
            if 0 in ready:
                os._exit(0)
            if self._heard in ready:
                os.read(self._heard, 4096)
                self._report_ended()
            for pid in (connections[k] for k in ready if k in connections):
                if pid in self._copies:  # nobody waits for it any more
                    self._copies[pid].close()
                    for end in (os.kill, os.killpg):
                        with suppress(OSError):
                            end(pid, signal.SIGKILL)
            if self._listener.fileno() in ready and self._copied():
                return

    def _report_ended(self) -> None:
        """Say which copies have ended, and how."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with self._copies.pop(ended[0]) as connection, suppress(OSError):
                    connection.send(json.dumps(os.waitstatus_to_exitcode(ended[1])).encode())

    def _copied(self) -> bool:
        """Make a copy for who asks now; True in the copy, when it has done its job."""
        connection, streams, pid = self._listener.accept()[0], list[int](), -1
        source = os.getpid()
        with suppress(OSError):  # no more processes or files are allowed: the copies that there are go on
            asked, streams, _, _ = socket.recv_fds(connection, LARGEST, 3)
            pid = os.fork() if asked else -1
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for c in (connection, self._listener, *self._copies.values()):
                c.close()
            _do(**json.loads(asked), streams=streams, source=source)
            return True
        for stream in streams:
            os.close(stream)
        if pid < 0:
            connection.close()
            return False
        self._copies[pid] = connection
        with suppress(OSError):
            connection.send(json.dumps([pid, source]).encode())
        return False


def _do(job: Sequence[str], environment: Mapping[str, str], folder: str, streams: Sequence[int], source: int) -> None:
    """Do in a copy what a new process would be started for, and exit as it would."""
    os.environ.clear()
    os.environ.update(environment)
    for s in ENDS:
        signal.signal(s, signal.default_int_handler if s == signal.SIGINT else signal.SIG_DFL)
    with suppress(OSError):
        os.chdir(folder)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", 1, closefd=False)
    if job:
        os.setsid()
        sys.argv = [*job]
        sys.argv[1] = str(source)
        sys.exit(child.main())
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})  # execnet's way to start a worker
    sys.exit()
