"""The workers of an xdist run: how one takes its tests, and spares, which wait to take the place of one that dies. A worker
that is only started then takes 2 s to its first item, and 20 s where torch loads CUDA and the machine is busy. Where workers
are copies (`parity.core.copies`) there are no spares: a copy is there at once. A Mac has no copies, because no process that
has loaded Metal can be copied. In the controller: how a run starts its workers, on this machine (`Starting`) and over several
(`SeveralMachines`), and ends without one."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from parity.core import copies, machine, project
from parity.core.errors import UsageError
from parity.engine.options import MIXED, RunOptions
from parity.faces import remote_worker
from parity.faces.files import located

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]  # xdist ships no types

SPARE_FOR = 8  # workers that one spare is for: on an H100, 15 lost 20 in 220 s, and each start took 20 s


def spares(config: pytest.Config, places: int) -> int:
    """How many spares a run with so many places has: none where there is no memory for them, or its workers are elsewhere or
    copies."""
    if copies.ADDRESS in os.environ:
        return 0
    return min(1 + places // SPARE_FOR, machine.room(places)) if config.getoption("numprocesses") else 0


def start_spares(config: pytest.Config, like: WorkerController, number: int) -> None:
    """Start so many workers beyond those that xdist has. like: one of them."""
    import execnet  # xdist's: there in a run with workers

    controller: Any = config.pluginmanager.getplugin("dsession")
    for _ in range(number):
        spec = execnet.XSpec(str(like.gateway.spec))
        controller.nodemanager.group.allocate_id(spec)
        with suppress(EOFError, OSError):  # it was tried several times, as a replacement is
            controller._active_nodes.add(controller.nodemanager.setup_node(spec, controller.queue.put))


def not_needed(config: pytest.Config, nodes: Iterable[WorkerController]) -> list[WorkerController]:
    """Those of a run's workers that wait or only start when nothing is left, for which its end would wait; from then on nobody
    is replaced."""
    controller: Any = config.pluginmanager.getplugin("dsession")
    working = getattr(controller.sched, "working", None)
    if working is None or not controller.sched.tests_finished:
        return []
    if others := [node for node in nodes if node not in working and not is_remote(node)]:
        controller._max_worker_restart = 0
    return others


class EagerWorker:
    """A plugin of a worker that begins each test as soon as it has it. xdist's own loop waits until it knows the next one, so
    that it tears down no fixture that both use. It lets go of tests that are done: pytest adds to each, and a run of hours has
    thousands."""

    def __init__(self, config: pytest.Config, prepare: Callable[[pytest.Session], None] | None = None) -> None:
        """prepare: loads what the first test needs, in a worker that may have to wait for one."""
        self._config, self._prepare = config, prepare
        self._commands: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what the controller sends, in the place of xdist's loop."""
        xdist: Any = next(p for p in self._config.pluginmanager.get_plugins() if type(p).__name__ == "WorkerInteractor")
        xdist.channel.setcallback(self._commands.put, endmarker=None)
        if self._prepare is not None and self._commands.empty():
            with suppress(Exception):  # the first test meets it, too, and can report it
                self._prepare(session)
        tests = session.items
        alike = len(tests) > 1 and len({t.parent for t in tests}) == 1  # any other test keeps what the next one uses
        while (command := self._commands.get()) is not None and command[0] == "runtests":
            for index in command[1]["indices"]:
                xdist.item_index, began = index, time.perf_counter()
                following = (tests[0] if index else tests[-1]) if alike else None
                self._config.hook.pytest_runtest_protocol(item=tests[index], nextitem=following)
                xdist.sendevent("runtest_protocol_complete", item_index=index, duration=time.perf_counter() - began)
                tests[index] = tests[index if index == len(tests) - 1 else 0]  # no worker gets a test twice
                if session.shouldfail or session.shouldstop:
                    return True
        return True


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


class SeveralMachines:
    """A plugin of the controller. A machine that is gone for good costs its workers and not the run."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_getremotemodule(self) -> ModuleType:
        """Workers keep the `sys.path` of their own Python."""
        return remote_worker

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Let a worker know whether its disk is another one, and if so, what the file of known findings holds, and which file
        names rows or tables, which must be there too."""
        node.workerinput["parity_remote"] = is_remote(node)
        asked = project.found()
        if is_remote(node) and (asked.rows or asked.tolerances):
            node.workerinput["parity_project"] = str(asked.path)
        if is_remote(node) and node.config.option.parity_known:
            node.workerinput["parity_known"] = Path(node.config.option.parity_known).read_text(encoding="utf-8")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Guard the replacement of workers, for which xdist has no hook."""
        runner: Any = session.config.pluginmanager.getplugin("dsession")
        clone = runner._clone_node

        def cloned(node: Any) -> Any:
            try:
                return clone(node)
            except Exception as e:  # whatever a gateway raises; the other workers go on
                why = str(e).strip().splitlines()[-1:] or [type(e).__name__]
                print(f"machine {node.gateway.spec} is gone ({why[0]}); the run goes on without its worker", file=sys.stderr)
                return None

        runner._clone_node = cloned


def is_remote(node: Any) -> bool:
    """Whether a worker is on another machine than the controller, as far as its gateway shows."""
    return not node.gateway.spec.popen


def computers_of(o: RunOptions) -> list[Any]:
    """The machines of -n, examined; none without it."""
    if not o.tx:
        if o.mixed:
            raise UsageError(f"--accept {MIXED} is for runs over several machines: name them with -n")
        return []
    if o.workers:
        raise UsageError(
            f"-n {o.workers} starts workers here, -n {o.tx[0]} where it says; give each a place ('{o.workers}*popen' is here)"
        )
    from parity.engine import machines

    faults = located(o.faults) if o.faults else None
    setup = str(Path(o.setup).absolute()) if o.setup else None
    return machines.examine(machines.read_specs(o.tx), o.device, faults, setup)
