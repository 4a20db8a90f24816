"""The workers of a run on Linux are copies of one process that has loaded torch and the suite, while the device is examined: a
worker then takes its first item at once, and one that takes the place of a dead one, too.

`Nursery` is the controller's side, `serve` that process. It opens no device, and has one thread: only so can it be copied.
Where it has more, or a file of the person's is to run first, workers are started as xdist starts them.
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
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from parity.core import processes
from parity.faces.interruption import SIGNALS

if TYPE_CHECKING:
    import execnet
    import pytest

LOADED = (
    "pytest", "xdist.plugin", "xdist.remote", "parity.faces.plugin", "parity.faces.workers", "parity.faces.checker",
    "parity.engine.planning", "parity.engine.suite",
    "torch._decomp.decompositions_for_jvp",  # what the first derivative in forward mode imports, sympy among it
)  # fmt: skip
LARGEST = 1 << 20  # bytes of an environment
LOADING = 120.0  # seconds that it may take until the first worker


def serve(number: int) -> None:
    """In that process: load what workers need, then make a copy for each request, which has an environment and the ends of two
    pipes. number: of the socket."""
    control = socket.socket(fileno=number)
    for s in SIGNALS:  # the controller ends all
        signal.signal(s, signal.SIG_IGN)
    processes.prepare_torch()
    for name in LOADED:
        with suppress(ImportError):  # whoever needs it says so
            importlib.import_module(name)
    from parity.engine import suite

    suite.select((), (), (), "all")
    gc.collect()
    gc.freeze()
    if len(os.listdir("/proc/self/task")) > 1:
        return
    heard, ended = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(ended, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control.fileno(), heard], [], [])
        if heard in ready:
            os.read(heard, 4096)
            _tell_ended(control)
        if control.fileno() in ready:
            asked, pipes, _, _ = socket.recv_fds(control, LARGEST, 2)
            if not asked:  # the controller is gone
                os._exit(0)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _work(json.loads(asked), pipes)
            for pipe in pipes:
                os.close(pipe)
            control.send(json.dumps([pid, None]).encode())


def _tell_ended(control: socket.socket) -> None:
    """Tell the controller which workers have ended, and how."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            control.send(json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode())


def _work(environment: dict[str, str], pipes: list[int]) -> None:
    """Do in a copy what xdist has a new process do, and end it."""
    os.environ.clear()
    os.environ.update(environment)
    for s in SIGNALS:
        signal.signal(s, signal.default_int_handler if s == signal.SIGINT else signal.SIG_DFL)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", 1, closefd=False)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})  # execnet's protocol
    sys.exit()


class Worker:
    """A copy, as execnet uses a process that it has started. parent: the number of the process that it is a copy of."""

    def __init__(self, nursery: Nursery, parent: int, pid: int, stdin: Any, stdout: Any) -> None:
        self._nursery, self.parent, self.pid, self.stdin, self.stdout = nursery, parent, pid, stdin, stdout

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        return self._nursery.code(self.pid, timeout)

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """A plugin of the controller that gives xdist its workers."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid: int | None = None  # of the copy that was asked for
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._left()

    def begin(self) -> None:
        """Start the process, where workers can be copies of it."""
        if sys.platform != "linux":
            return
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(LOADING)
        code = f"import sys; sys.path[:] = {sys.path!r}; from parity.faces import forking; forking.serve({theirs.fileno()})"
        variables = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # numpy's starts threads when it is loaded
        with theirs, suppress(OSError):  # none can be started: xdist says so
            command = [sys.executable, "-c", code]
            self._process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Take the place of the function that starts a process, for the workers of this machine."""
        if self._process is None:
            return
        group: Any = config.pluginmanager.getplugin("dsession").nodemanager.group
        start = group.makegateway

        def makegateway(spec: execnet.XSpec) -> Any:
            plain = spec.popen and not (spec.python or spec.via or spec.chdir or spec.nice or spec.env)
            return (plain and self._copied(group, spec)) or start(spec)

        group.makegateway = makegateway

    def _copied(self, group: Any, spec: execnet.XSpec) -> Any:
        """A gateway to a new copy; None where there is none."""
        from execnet import gateway_base, gateway_bootstrap, gateway_io  # xdist's: there in a run with workers

        if (worker := self._new()) is None:
            return None
        group.allocate_id(spec)
        spec.execmodel = spec.execmodel or group.remote_execmodel.backend
        io: Any = object.__new__(gateway_io.Popen2IOMaster)
        io.popen = worker
        gateway_base.Popen2IO.__init__(io, worker.stdin, worker.stdout, group.execmodel)
        gateway: Any = gateway_bootstrap.bootstrap(io, spec)
        gateway.spec = spec
        group._register(gateway)
        return gateway

    def _new(self) -> Worker | None:
        """Ask for a copy."""
        if self._control is None or self._process is None:
            return None
        (stdin, ours), (answers, stdout) = os.pipe(), os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(dict(os.environ)).encode()], [stdin, stdout])
                self._pid = None
                while self._pid is None:
                    self._hear()
                pid = self._pid
            return Worker(self, self._process.pid, pid, os.fdopen(ours, "wb"), os.fdopen(answers, "rb"))
        except (OSError, EOFError):
            os.close(ours)
            os.close(answers)
            self._left()
            return None
        finally:
            os.close(stdin)
            os.close(stdout)

    def code(self, pid: int, timeout: float | None) -> int:
        """The exit code of a copy. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if pid in self._codes:
                    return self._codes[pid]
                if self._control is None:
                    raise OSError("the process that it is a copy of is gone")
                try:
                    if select.select([self._control], [], [], 0.02)[0]:
                        self._hear()
                except (OSError, EOFError):
                    self._left()
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)

    def _left(self) -> None:
        """The process is gone, or of no use."""
        if self._control is not None:
            self._control.close()
            self._control = None

    def _hear(self) -> None:
        """Take one answer."""
        assert self._control is not None
        if not (said := self._control.recv(LARGEST)):
            raise EOFError
        pid, code = json.loads(said)
        if code is None:
            self._pid = pid
        else:
            self._codes[pid] = code
