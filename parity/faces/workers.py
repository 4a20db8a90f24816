"""The workers of an xdist run: how one takes its tests, and spares, which wait to take the place of one that dies. A worker
that is only started then takes 2 s to its first item, and 20 s where torch loads CUDA and the machine is busy. Where workers
are copies (`parity.core.copies`) there are no spares: a copy is there at once. A Mac has no copies, because no process that
has loaded Metal can be copied."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from parity.core import copies
from parity.engine import memory
from parity.faces.remote import is_remote

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]  # xdist ships no types

SPARE_FOR = 8  # workers that one spare is for: on an H100, 15 lost 20 in 220 s, and each start took 20 s


def spares(config: pytest.Config, places: int) -> int:
    """How many spares a run with so many places has: none where there is no memory for them, or its workers are elsewhere or
    copies."""
    if copies.ADDRESS in os.environ:
        return 0
    return min(1 + places // SPARE_FOR, memory.room(places)) if config.getoption("numprocesses") else 0


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
