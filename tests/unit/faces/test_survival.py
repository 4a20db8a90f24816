"""What the controller of a run does for workers that come late, and for those that end together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from xdist.scheduler import LoadScheduling, WorkStealingScheduling  # type: ignore[import-untyped]

from parity.faces import survival as survival_
from parity.faces.scheduling import HandsOut
from parity.faces.survival import Survival


@pytest.mark.parametrize("scheduling", [LoadScheduling, WorkStealingScheduling])
def test_a_worker_that_was_sent_home_as_it_came_may_still_report_its_tests(scheduling: Any, tmp_path: Any) -> None:
    options = SimpleNamespace(parity_rundir=str(tmp_path))
    config: Any = SimpleNamespace(option=options, getvalue=lambda name: ["popen"], getoption=lambda name: None, hook=None)
    sched = scheduling(config, None)
    config.pluginmanager = SimpleNamespace(getplugin=lambda name: SimpleNamespace(sched=sched))
    late: Any = Mock(shutting_down=True)

    for _ in range(2):  # once is how xdist calls it; a worker that it knows stays what it is
        Survival(config).pytest_xdist_node_collection_finished(late)
    sched.add_node_collection(late, ["test_a"])

    assert sched.nodes == [late]


@pytest.mark.parametrize("scheduling", [LoadScheduling, WorkStealingScheduling])
def test_two_workers_that_end_together_do_not_end_the_run(scheduling: Any, tmp_path: Any) -> None:
    """The tests of the one that the controller hears of first are sent to the other, which has ended as well."""
    tests = [f"t[{k}]" for k in range(200)]
    options = SimpleNamespace(parity_rundir=str(tmp_path), numprocesses=3, maxschedchunk=None)
    config: Any = SimpleNamespace(option=options, getvalue=lambda name: ["popen"] * 3, getoption=lambda name: None, hook=None)
    sched, survival = scheduling(config, None), Survival(config)
    nodes = [_Node(f"gw{k}") for k in range(3)]
    for node in nodes:
        survival.pytest_configure_node(node)
        sched.add_node(node)
        sched.add_node_collection(node, tests)
    sched.schedule()
    nodes[0].ended = nodes[1].ended = True
    crashed = [sched.remove_node(nodes[0]), sched.remove_node(nodes[1])]
    for test in crashed:
        sched.mark_test_pending(test)
    assert sorted(sched.node2pending[nodes[2]] + sched.pending) == list(range(200))


@pytest.mark.parametrize(("seconds", "most"), [(None, 6), (20.0, 2), (60.0, 3), (600.0, 6)])
def test_an_item_is_given_up_before_it_has_had_more_than_its_share_of_the_time(
    seconds: float | None, most: int, tmp_path: Path
) -> None:
    config: Any = SimpleNamespace(option=SimpleNamespace(parity_rundir=str(tmp_path)))
    survival = Survival(config, None if seconds is None else HandsOut(True, seconds))
    test = "t[exp-float32]"
    survival.deaths = [{"node": test, "blame": "device"}] * (most - 2)
    assert not survival._is_last(test, False)
    survival.deaths.append({"node": test, "blame": "device"})
    assert survival._is_last(test, False)
    assert not survival._is_last("t[sin-float32]", False)


@pytest.mark.parametrize(
    ("code", "workers", "setup", "after", "said"),
    [
        (
            7,
            1,
            "flags.py",
            3,
            "(exit code 7) before their first case; look at flags.py, which each runs first (--setup), or try",
        ),
        (-6, 2, None, 6, "6 workers ended one after another (SIGABRT) before their first case; try the device with"),
        (-9, 1, None, 10, "10 workers ended one after another (SIGKILL) before their first case; try the device with"),
    ],
)
def test_workers_that_end_at_their_start_end_the_run_with_the_reason(
    code: int, workers: int, setup: str | None, after: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon where they end by themselves; what kills them from outside may pass."""
    monkeypatch.setattr(survival_, "_exit_code", lambda node: code)
    option = SimpleNamespace(parity_rundir=str(tmp_path), numprocesses=workers, parity_setup=setup)
    running = SimpleNamespace(shouldstop=False, _max_worker_restart=100)
    config: Any = SimpleNamespace(option=option, pluginmanager=SimpleNamespace(getplugin=lambda name: running))
    survival = Survival(config)
    for k in range(after):
        assert not running.shouldstop
        survival.pytest_testnodedown(_Node(f"gw{k}"), "Not properly terminated")
    assert (bool(running.shouldstop), running._max_worker_restart) == (True, 0)
    (unable,) = tmp_path.glob("unable-4")
    assert said in unable.read_text()
    assert ("(-n 1)" in unable.read_text()) == (workers > 1)


@pytest.mark.parametrize(("finished", "error", "ended"), [(True, None, ["gw1", "gw2"]), (False, None, []), (True, "died", [])])
def test_at_the_end_nobody_waits_for_a_worker_that_has_no_place(
    finished: bool, error: str | None, ended: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spare, and one that only starts; those that work end by themselves, and so does everything while tests are left."""
    nodes = [_Node(f"gw{k}") for k in range(4)]
    killed: list[int] = []
    monkeypatch.setattr(survival_, "_process", lambda node: SimpleNamespace(pid=nodes.index(node)))
    monkeypatch.setattr(survival_, "_exit_code", lambda node: -9)
    monkeypatch.setattr(survival_, "_kill", killed.append)
    sched = SimpleNamespace(working=[nodes[0], nodes[3]], tests_finished=finished)
    running = SimpleNamespace(sched=sched, _max_worker_restart=100)
    option = SimpleNamespace(parity_rundir=str(tmp_path), numprocesses=2)
    config: Any = SimpleNamespace(option=option, pluginmanager=SimpleNamespace(getplugin=lambda name: running))
    survival = Survival(config)
    for node in nodes:
        survival.pytest_configure_node(node)
    survival.pytest_testnodedown(nodes[0], error)
    assert [nodes[k].gateway.id for k in killed] == ended
    assert running._max_worker_restart == (0 if ended else 100)
    for node in nodes[1:3] * (10 if ended else 0):  # no device keeps these from a case
        survival.pytest_testnodedown(node, "Not properly terminated")
    assert not [*tmp_path.glob("unable-*")]


class _Node:
    """A worker as schedulers see it, which cannot be sent anything when it has ended."""

    def __init__(self, name: str) -> None:
        self.gateway, self.workerinput = SimpleNamespace(id=name, spec=SimpleNamespace(popen=True)), dict[str, Any]()
        self.ended = self.shutting_down = False

    def sendcommand(self, name: str, **more: Any) -> None:
        if self.ended:
            raise OSError("cannot send (already closed?)")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sendcommand("runtests", indices=indices)

    def send_steal(self, indices: list[int]) -> None:
        self.sendcommand("steal", indices=indices)
