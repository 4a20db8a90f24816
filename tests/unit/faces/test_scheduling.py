"""The order in which the parts of a run with a limit of time are handed out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parity.faces.scheduling import Rounds, RoundScheduling

TESTS = [
    *("t[a-f]", "t[b-f]", "t[c-f]", "t[a-f causes]", "t[b-f causes]", "t[c-f causes]"),
    *("t[a-f round 1]", "t[b-f round 1]", "t[c-f round 1]", "t[a-f round 2]", "t[b-f round 2]", "t[c-f round 2]"),
]


class Worker:
    """A worker that does nothing but note what it is given."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw0")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def begun(rounds: Rounds, *workers: Worker) -> RoundScheduling:
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * len(workers), getoption=lambda name: None, hook=None)
    made = RoundScheduling(config, None, rounds)
    for w in workers:
        made.add_node(w)
        made.add_node_collection(w, TESTS)
    made.schedule()
    return made


def order(schedule: RoundScheduling, worker: Worker, seconds: float = 1.0) -> list[str]:
    """All that one worker is given, each test done when it has the next."""
    done = 0
    while done < len(worker.given):
        schedule.mark_test_complete(worker, worker.given[done], seconds)
        done += 1
    return [TESTS[k].removeprefix("t") for k in worker.given]


def failed(node: str) -> Any:
    return SimpleNamespace(nodeid=node, when="call", failed=True)


def test_pinned_cases_first_then_the_most_productive() -> None:
    """Round by round; an item that is worth nothing is left alone, and causes are for what was found."""
    worker = Worker()
    rounds = Rounds(1000.0, {"a-f": 1.0, "b-f": 5.0, "c-f": -1.0})
    rounds.pytest_runtest_logreport(failed("t[b-f]"))
    assert order(begun(rounds, worker), worker) == [
        *("[a-f]", "[b-f]", "[c-f]", "[b-f causes]", "[b-f round 1]", "[a-f round 1]", "[b-f round 2]", "[a-f round 2]")
    ]
    assert worker.shutting_down


def test_causes_take_no_more_time_than_exploration() -> None:
    """Where every item found something."""
    worker, rounds = Worker(), Rounds(1000.0, {})
    for k in "abc":
        rounds.pytest_runtest_logreport(failed(f"t[{k}-f]"))
    got = order(begun(rounds, worker), worker)[3:]
    assert sorted(got) == sorted(t.removeprefix("t") for t in TESTS[3:])
    assert 0 < sum("causes" in t for t in got[:5]) < 4


def test_nothing_begins_when_the_time_is_over() -> None:
    """Workers are sent home, and the run is finished."""
    worker, rounds = Worker(), Rounds(1000.0, {})
    schedule = begun(rounds, worker)
    rounds.deadline = 0.0
    assert order(schedule, worker) == ["[a-f]", "[b-f]"]
    assert worker.shutting_down
    assert schedule.tests_finished
    assert not schedule.has_pending


@pytest.mark.parametrize("again", [True, False])
def test_what_a_dead_worker_leaves_is_given_to_another(again: bool) -> None:
    """What it had queued, and its last test if that is to run again."""
    one, two = Worker(), Worker()
    schedule = begun(Rounds(1000.0, {}), one, two)
    assert schedule.remove_node(one) == "t[a-f]"
    if again:
        schedule.mark_test_pending("t[a-f]")
    got = order(schedule, two)
    assert ("[a-f]" in got) == again
    assert {"[b-f]", "[c-f]"} <= set(got)
