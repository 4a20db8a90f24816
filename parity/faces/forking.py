"""The workers of a run on Linux are copies of a process that has loaded torch and the suite while the device was examined
(`parity.core.copies`): each takes its first item at once, and so does one that takes the place of a dead one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from parity.core import copies, processes

if TYPE_CHECKING:
    import execnet
    import pytest

LOADED = (
    "pytest", "xdist.plugin", "xdist.remote", "parity.faces.plugin", "parity.faces.scheduling", "parity.faces.checker",
    "parity.engine.planning", "parity.engine.suite", "parity.engine.jobs", "parity.faces.replaying",
    "torch._decomp.decompositions_for_jvp",  # what the first derivative in forward mode imports, sympy among it
)  # fmt: skip


class Nursery:
    """A plugin of the controller that gives xdist its workers."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(processes.restored(copies.ADDRESS))
        os.environ.pop(copies.ADDRESS, None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def begin(self) -> None:
        """Start the process, where workers can be copies of it."""
        address = str(Path(tempfile.gettempdir(), "copies"))
        if (process := copies.source(address, LOADED)) is not None:
            os.environ[copies.ADDRESS] = address
            self._open.callback(_end, process)

    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Take the place of the function that starts a process, for the workers of this machine."""
        group: Any = config.pluginmanager.getplugin("dsession").nodemanager.group
        start = group.makegateway

        def makegateway(spec: execnet.XSpec) -> Any:
            plain = spec.popen and not (spec.python or spec.via or spec.chdir or spec.nice or spec.env)
            return (plain and _copied(group, spec)) or start(spec)

        group.makegateway = makegateway


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _copied(group: Any, spec: execnet.XSpec) -> Any:
    """A gateway to a new copy; None where there is none."""
    from execnet import gateway_base, gateway_bootstrap, gateway_io  # xdist's: there in a run with workers

    (stdin, ours), (answers, stdout) = os.pipe(), os.pipe()
    files = os.fdopen(ours, "wb"), os.fdopen(answers, "rb")
    worker = copies.start((), os.environ, (stdin, stdout, 2), *files)
    for number in (stdin, stdout):
        os.close(number)
    if worker is None:
        for file in files:
            file.close()
        return None
    group.allocate_id(spec)
    spec.execmodel = spec.execmodel or group.remote_execmodel.backend
    io: Any = object.__new__(gateway_io.Popen2IOMaster)
    io.popen = worker
    gateway_base.Popen2IO.__init__(io, *files, group.execmodel)
    gateway: Any = gateway_bootstrap.bootstrap(io, spec)
    gateway.spec = spec
    group._register(gateway)
    return gateway
