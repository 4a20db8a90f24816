"""The order in which items and the causes of what they found are handed out."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from parity.faces import explaining
from parity.faces.explaining import CausesLast, Explaining
from parity.runs.rounds import LEAST_SECONDS

ITEMS = [f"{op}-{dtype}" for op in "abcd" for dtype in ("f", "i")]
TESTS = [*(f"t[{i}]" for i in ITEMS), *(f"t[{i} causes]" for i in ITEMS), "t[idle]"]
IDLE = len(TESTS) - 1


class Worker:
    """A worker that runs each test when it knows the next one, as those of xdist do."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.run: list[str] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw0")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Session:
    """Workers, the scheduler, and items that find something."""

    def __init__(self, workers: int, finding: tuple[str, ...] = (), causes: float = 1.0) -> None:
        """causes: seconds that looking for the causes of an item takes; an item takes one."""
        self.workers = [Worker() for _ in range(workers)]
        self.finding, self.causes = finding, causes
        self.plugin = Explaining()
        config: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * workers, getoption=lambda name: None, hook=None)
        self.schedule = CausesLast(config, None, self.plugin)
        for w in self.workers:
            self.add(w)
        self.schedule.schedule()

    def add(self, w: Worker) -> None:
        self.schedule.add_node(w)
        self.schedule.add_node_collection(w, TESTS)

    def step(self, w: Worker) -> bool:
        """Let a worker run one test; False if it cannot begin one."""
        if len(w.queue) < 2:
            return False
        index = w.queue.pop(0)
        if index != IDLE:
            item = TESTS[index][2:-1]
            w.run.append(item)
            told = json.dumps({"later": item in self.finding})
            report: Any = SimpleNamespace(
                nodeid=TESTS[index], when="call", failed=item in self.finding, user_properties=[("parity", told)]
            )
            self.plugin.pytest_runtest_logreport(report)
        self.schedule.mark_test_complete(w, index, self.causes if "causes" in TESTS[index] else 1.0)
        return True

    def go_on(self) -> list[str]:
        """All tests in the order in which they were run, the workers in turn, until there are none."""
        while [w for w in self.workers if self.step(w)]:
            pass
        assert self.schedule.tests_finished
        assert all(w.queue in ([], [IDLE]) for w in self.workers)
        return [i for w in self.workers for i in w.run]


@pytest.mark.parametrize("workers", [1, 2, 3, 11])
def test_every_item_is_run_once_and_causes_only_of_what_was_found(workers: int) -> None:
    """Also of the very last item, on a worker that has nothing else to do."""
    run = Session(workers, (ITEMS[0], ITEMS[-1])).go_on()
    assert sorted(run) == sorted([*ITEMS, f"{ITEMS[0]} causes", f"{ITEMS[-1]} causes"])


def test_all_items_come_before_any_causes() -> None:
    run = Session(1, tuple(ITEMS)).go_on()
    assert run[: len(ITEMS)] == ITEMS
    assert all("causes" in i for i in run[len(ITEMS) :])


def test_another_op_comes_before_another_dtype_of_the_same() -> None:
    """Findings of one op in two dtypes mostly have one cause."""
    run = Session(1, tuple(ITEMS)).go_on()[len(ITEMS) :]
    assert run == [f"{op}-{dtype} causes" for dtype in ("f", "i") for op in "abcd"]


def test_neighbouring_items_go_to_the_same_worker() -> None:
    """They share kernels, caches and operators."""
    session = Session(2)
    session.go_on()
    assert [w.run for w in session.workers] == [ITEMS[:4], ITEMS[4:]]


def test_a_worker_without_items_takes_those_of_another() -> None:
    """A slow one keeps what it has been given already."""
    session = Session(2)
    _, fast = session.workers
    while session.step(fast):
        pass
    assert len(fast.run) > len(ITEMS) // 2
    assert sorted(session.go_on()) == sorted(ITEMS)


def test_causes_take_as_long_as_the_items_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight items took eight seconds: the third begins when six are gone."""
    monkeypatch.setattr(explaining, "LEAST_SECONDS", 0.0)
    assert sum("causes" in i for i in Session(1, tuple(ITEMS), causes=3.0).go_on()) == 3


def test_each_worker_has_its_least_share() -> None:
    """However little time the items took."""
    assert sum("causes" in i for i in Session(1, tuple(ITEMS), causes=LEAST_SECONDS / 5).go_on()) == 5
    assert sum("causes" in i for i in Session(2, tuple(ITEMS), causes=LEAST_SECONDS / 5).go_on()) == len(ITEMS)


@pytest.mark.parametrize("part", ["items", "causes"])
def test_what_a_dead_worker_leaves_is_given_to_another(part: str) -> None:
    """What it had queued and what was still to be queued, and its last test, which is to come again."""
    session = Session(2, tuple(ITEMS))
    one, two = session.workers
    if part == "causes":
        while sum(len(w.run) for w in session.workers) < len(ITEMS) + 1:
            assert [session.step(w) for w in session.workers]
    crashed = session.schedule.remove_node(one)
    session.workers = [two]
    assert crashed is not None
    assert ("causes" in crashed) == (part == "causes")
    session.schedule.mark_test_pending(crashed)
    done = [*one.run, *session.go_on()]
    assert sorted(done) == sorted([*ITEMS, *(f"{i} causes" for i in ITEMS)])


def test_a_worker_that_ends_while_it_waits_ended_in_no_test() -> None:
    """Nothing is to be run again, and the run goes on with the one that takes its place."""
    session = Session(2, (ITEMS[0],))
    one, two = session.workers
    while session.step(two):
        pass
    assert two.queue == [IDLE]
    assert session.schedule.remove_node(two) is None
    session.schedule.mark_test_pending(TESTS[IDLE])
    new = Worker()
    session.workers = [one, new]
    session.add(new)
    session.schedule.schedule()
    assert sorted([*two.run, *session.go_on()]) == sorted([*ITEMS, f"{ITEMS[0]} causes"])
