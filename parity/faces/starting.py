"""How a run starts the workers of this machine: as copies of a process that has loaded what they need (`parity.core.copies`),
or as xdist does, and again where one is gone at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from parity.core import copies

STARTS = 3  # times that a worker of this machine is started, before the run ends with its error


class Starting:
    """A plugin that starts the workers of this machine as copies where there can be any (`parity.core.copies`), and starts one
    again that was gone before xdist knew it, as one that somebody kills in its first second."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Take the place of the functions that start a worker, before they start the first one."""
        manager: Any = self.config.pluginmanager.getplugin("dsession").nodemanager
        group, start = manager.group, manager.group.makegateway

        def makegateway(spec: Any) -> Any:
            plain = spec.popen and not (spec.python or spec.via or spec.chdir or spec.nice or spec.env)
            return (plain and _copied(group, spec)) or start(spec)

        group.makegateway = makegateway
        manager.setup_node = persistent(manager.setup_node, group)


def _copied(group: Any, spec: Any) -> Any:
    """A gateway to a copy, as execnet makes one to a new process; None where there is none."""
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


def persistent(start: Callable[..., Any], group: Any) -> Callable[..., Any]:
    """The function that starts a worker, made to try again. start: takes execnet's spec first; group: the gateways that there
    are. A worker elsewhere is started once: what ended it may be the way there."""

    def started(spec: Any, *more: Any) -> Any:
        for left in reversed(range(STARTS if spec.popen else 1)):
            try:
                return start(spec, *more)
            except (EOFError, OSError):
                if not left:
                    raise
                for gateway in [g for g in group if g.id == spec.id]:
                    gateway.exit()  # it is half there, and holds the id
        return None

    return started
