"""The order of a run with a limit of time, in the controller of an xdist run: pinned cases of every item, then rounds of
exploration, each in the order of what the round before it brought."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler.load import LoadScheduling  # type: ignore[import-untyped]  # xdist ships no types

from parity.engine.rounds import CAUSES, END_SECONDS, PINNED, part_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

AHEAD = 2  # tests that a worker is given ahead: it begins one when it knows the next


class Rounds:
    """A plugin of the controller that hands out the parts of items. yields: item -> what its last part brought for each second
    (new kinds of findings, new pairs of features); below 0 if the item is not worth another part. `parity run` fills it."""

    def __init__(self, seconds: float, yields: Mapping[str, float]) -> None:
        self.deadline = time.monotonic() + seconds - END_SECONDS
        self.yields = yields
        self.found: set[str] = set()  # items whose pinned cases found something

    @property
    def left(self) -> float:
        """Seconds until no part begins any more."""
        return self.deadline - time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Let a new worker know how much time is left."""
        node.workerinput["parity_left"] = self.left

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> RoundScheduling:
        """Take the place of xdist's own scheduler."""
        return RoundScheduling(config, log, self)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which items' pinned cases found something."""
        item, number = part_of(report.nodeid)
        if number == PINNED and report.when == "call" and report.failed:
            self.found.add(item)


class RoundScheduling(LoadScheduling):  # type: ignore[misc]  # an untyped base
    """Gives each worker the next part that is due, one at a time."""

    def __init__(self, config: pytest.Config, log: Any, rounds: Rounds) -> None:
        super().__init__(config, log)
        self.collection: list[str] | None = None
        self._rounds = rounds
        self._pinned: deque[int] = deque()
        self._causes: dict[str, int] = {}
        self._later: dict[int, dict[str, int]] = {}  # round -> item -> test
        self._now: deque[int] = deque()  # what is left of the current round
        self._spent = {True: 0.0, False: 0.0}  # seconds of workers, for causes and for exploration

    @property
    def tests_finished(self) -> bool:
        """Whether every worker is at its last test."""
        started = self.collection_is_completed and self.collection is not None
        return started and not self._has_more() and all(len(p) < AHEAD for p in self.node2pending.values())

    @property
    def has_pending(self) -> bool:
        """Whether anything is left to do."""
        return self._has_more() or any(self.node2pending.values())

    def schedule(self) -> None:
        """Sort the collected parts into rounds, and begin."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = next(iter(self.node2collection.values()))
            for index, node in enumerate(self.collection):
                item, number = part_of(node)
                if number == PINNED:
                    self._pinned.append(index)
                elif number == CAUSES:
                    self._causes[item] = index
                else:
                    self._later.setdefault(number, {})[item] = index
        for node in self.nodes:
            self.check_schedule(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """A part is done."""
        assert self.collection is not None
        number = part_of(self.collection[item_index])[1]
        if number != PINNED:
            self._spent[number == CAUSES] += duration
        super().mark_test_complete(node, item_index, duration)

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Give a worker what is due, or send it home."""
        if node.shutting_down or self.collection is None:
            return
        while len(self.node2pending[node]) < AHEAD:
            index = self._next()
            if index is None:
                node.shutdown()
                return
            self.node2pending[node].append(index)
            node.send_runtest_some([index])

    def _has_more(self) -> bool:
        if self._rounds.left <= 0:
            return False
        return bool(self.pending or self._pinned or self._now or self._later or self._due())

    def _due(self) -> str | None:
        """An item whose pinned cases found something of which no cause is known yet."""
        return next((i for i in self._causes if i in self._rounds.found), None)

    def _next(self) -> int | None:
        """The test to run next; None if there is none, or no time."""
        if self._rounds.left <= 0:
            return None
        if self.pending:  # given back: by a worker that died
            return int(self.pending.pop(0))
        if self._pinned:
            return self._pinned.popleft()
        item = self._due()
        if item is not None and (self._spent[True] <= self._spent[False] or not self._exploring()):
            return self._causes.pop(item)
        return self._now.popleft() if self._exploring() else None

    def _exploring(self) -> bool:
        """Whether exploration goes on; begins its next round if one is through."""
        while not self._now and self._later:
            tests = self._later.pop(min(self._later))
            worth = {i: self._rounds.yields.get(i, 0.0) for i in tests}
            self._now.extend(tests[i] for i in sorted(tests, key=lambda i: -worth[i]) if worth[i] >= 0)
        return bool(self._now)
