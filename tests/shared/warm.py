"""Python processes that have imported torch when they start, because the import alone takes more than two seconds.

While `Template.take_over` holds, a Python that this process starts, or that a command of parity started so starts in turn, is
forked from a process that has done its imports and nothing else. It is a process like any other: a child of the one that
started it, in a session of its own if asked, with arguments, environment, folder, streams, exit code and death of its own. What
differs: modules are imported already, and the seed of hashes is the same in all. A test of those is marked `cold`, and starts
real processes, as does what `fits` refuses.

Linux alone, where a process can become the parent of what its children leave behind (`prctl`).
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from parity.core import copies

IMPORTED = ("torch", "hypothesis", "pytest", "parity.engine.doctor", "parity.engine.examine", *copies.LOADED)
PYTHON = sys.executable  # a test may put another program there
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl
MOST = 1 << 17  # bytes of a request: arguments and environment
PASSED = 8  # files at most that a process gets besides its streams
# What is read when Python starts or when torch is imported: a process that is given other values than ours is a real one.
READ_EARLY = ("PYTHON", "OMP_", "MKL_", "TORCH", "PYTORCH_", "LD_")
TAKEN_UP = ("PYTHONPATH", "PYTHONSAFEPATH", "TORCHINDUCTOR_CACHE_DIR")  # of these, what a forked process takes up itself
THREADS = "OMP_NUM_THREADS"
COMMANDS = ("parity", "pytest")  # a program that names one of them starts other processes


def fits(args: Sequence[str], env: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    """Whether a command is a Python that can be forked: `-m`, `-c` or a file, at most with -P and -u before, and no variable
    that only a new process reads has another value than in the environment of the template, `ours`. One thread can be asked for
    later."""
    taken_up = (*TAKEN_UP, THREADS) if env.get(THREADS) == "1" else TAKEN_UP

    def early(variables: Mapping[str, str]) -> dict[str, str]:
        return {k: v for k, v in variables.items() if k.startswith(READ_EARLY) and k not in taken_up}

    program = args[_at(args)] if args[:1] == [PYTHON] else ""
    return (program in ("-m", "-c") or program.endswith(".py")) and early(env) == early(ours)


def apart(args: Sequence[str]) -> list[str]:
    """The arguments, where `-mpytest` is two of them."""
    at = _at(args)
    return [*args[:at], "-m", args[at][2:], *args[at + 1 :]] if at and args[at][:2] == "-m" != args[at] else list(args)


def _at(args: Sequence[str]) -> int:
    """Where the first argument stands that is not -P or -u."""
    return next((k for k, a in enumerate(args) if k and a not in ("-P", "-u")), 0)


class Template:
    """The process that is forked for each process that this one starts. ours: this side of the connection to it; without one,
    the template is started when it is needed first, and then does the imports."""

    def __init__(self, ours: socket.socket | None = None) -> None:
        self._ours, self._turn = ours, threading.Lock()
        self._real: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._names = inspect.signature(self._real)
        self._env, self._folder = dict(os.environ), os.getcwd()

    def _started(self) -> socket.socket:
        """A new process, with the environment of the time when this object was made: a test may have changed it since."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command, known = [PYTHON, "-P", __file__, str(theirs.fileno())], {"env": self._env, "cwd": self._folder}
        with theirs:
            subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, **known)  # type: ignore[call-overload]
        return ours

    @classmethod
    def forked(cls) -> Template:
        """A copy of this process, which has done nothing but imports so far."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nothing, descriptor)
            serve(theirs)
        theirs.close()
        return cls(ours)

    def take_over(self) -> None:
        """From now on `subprocess` forks the template wherever it can."""
        forked, real = self._forked, self._real

        def execute(popen: Any, *given: Any) -> None:
            if not forked(popen, *given):
                real(popen, *given)

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)

    def let_go(self) -> None:
        """Undo `take_over`."""
        subprocess.Popen._execute_child = self._real  # type: ignore[attr-defined]
        ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)

    def _forked(self, popen: Any, *given: Any) -> bool:
        """What `Popen._execute_child` does; False where that has to do it."""
        a = self._names.bind(popen, *given).arguments
        env = dict(os.environ if a["env"] is None else a["env"])
        odd = any(a[k] for k in ("executable", "preexec_fn", "shell")) or not a["close_fds"]
        if odd or not isinstance(a["args"], (list, tuple)) or __file__ in a["args"]:  # the template itself is none
            return False
        if not fits(args := apart([os.fspath(x) for x in a["args"]]), env, self._env):
            return False
        passed = [*a["pass_fds"]]
        asked = json.dumps([passed, args, env, os.path.abspath(a["cwd"] or "."), bool(a["start_new_session"])]).encode()
        pipes = {k: a[k] for k in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")}
        theirs = (pipes["p2cread"], pipes["c2pwrite"], pipes["errwrite"])
        with self._turn:
            self._ours = self._ours or self._started()
            socket.send_fds(self._ours, [asked], [*(own if pipe == -1 else pipe for own, pipe in enumerate(theirs)), *passed])
            popen.pid = int(self._ours.recv(32))
        popen._child_created = True
        popen._close_pipe_fds(*pipes.values())
        return True


class Program(BaseException):
    """The program of a forked process: carried up to the end of this file, where it runs and ends as any Python does."""


def serve(requests: socket.socket) -> NoReturn:
    """Fork this process for each request, until nobody can send one any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        asked, streams, *_ = socket.recv_fds(requests, MOST, 3 + PASSED)
        if not asked:
            os._exit(0)
        if between := os.fork():
            os.waitpid(between, 0)
            for stream in streams:
                os.close(stream)
            continue
        # A process whose parent has ended belongs to the nearest process above that takes such: the one that asked.
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:
            time.sleep(0.0002)
        requests.send(str(os.getpid()).encode())
        requests.detach()
        become(streams, *json.loads(asked))


def become(
    files: Sequence[int], passed: list[int], args: list[str], env: dict[str, str], folder: str, session: bool
) -> NoReturn:
    """Be the Python that was asked for, all but its program. files: its streams, and those that have the numbers `passed`."""
    if session:
        os.setsid()
    numbers = (0, 1, 2, *passed)
    for own, given in zip(numbers, [fcntl.fcntl(f, fcntl.F_DUPFD, max(numbers) + 1) for f in files], strict=True):
        os.dup2(given, own)
    for below, number in zip(sorted(numbers), [*sorted(numbers)[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(below + 1, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    if env.get(THREADS) == "1":
        sys.modules["torch"].set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    at, unbuffered = _at(args), "-u" in args[1:3]
    kind, text = args[at : at + 2] if args[at] in ("-m", "-c") else ("", os.path.join(folder, args[at]))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    out, err = (open(k, "w", errors=e, closefd=False) for k, e in ((1, "strict"), (2, "backslashreplace")))  # noqa: SIM115
    for stream in (out, err):
        stream.reconfigure(line_buffering=stream is err or stream.isatty(), write_through=unbuffered)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = out, err  # type: ignore[misc]
    safe = "-P" in args[:at] or env.get("PYTHONSAFEPATH")
    more = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    first = {"-m": folder, "-c": ""}.get(kind, os.path.dirname(os.path.realpath(text)))
    sys.path[:] = [*([] if safe else [first]), *more, *_PATH]
    sys.modules["xdist.plugin"].__dict__["_sys_path"] = list(sys.path)  # as it is when Python starts: that of its workers
    sys.orig_argv, sys.argv = args, [args[at], *args[at + len(kind) // 2 + 1 :]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    # What is copied (`parity.core.copies`), which alone gets files, is the parent of nothing but its copies.
    if not passed and (not kind or any(command in text for command in COMMANDS)):
        Template.forked().take_over()
    raise Program(kind, text)


_PATH: list[str] = []  # sys.path but for PYTHONPATH

if __name__ == "__main__":
    _PATH[:] = [p for p in sys.path if p not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for name in IMPORTED:
        importlib.import_module(name)
    # Else pytest says in a forked process of each plugin that it comes too late to rewrite its assertions.
    sys.modules["_pytest.assertion.rewrite"].AssertionRewritingHook._warn_already_imported = lambda *_: None
    gc.freeze()
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except Program as program:
        kind, text = program.args
    if kind == "-m":
        if not hasattr(sys.modules.get(text), "__path__"):  # else a package, whose `__main__` runs
            sys.modules.pop(text, None)
        runpy._run_module_as_main(text)  # type: ignore[attr-defined]
    elif kind == "-c":
        exec(text, sys.modules["__main__"].__dict__)
    else:
        sys.modules["__main__"].__file__ = text
        with open(text, "rb") as file:
            exec(compile(file.read(), text, "exec"), sys.modules["__main__"].__dict__)
