"""The order of a run without a limit of time, in the controller of an xdist run: all items, of which some workers begin with
those that take long, and only then the causes of what they found.

An item with findings takes as long as a hundred others while its cases are shrunk and its causes looked for. So that is a part
of its own (`parity.engine.rounds.CAUSES`), which a worker is given when no item is left for it. These parts together take as
long as the items did, or `LEAST_SECONDS` of each worker if that is more; what is left then keeps its findings as they were
drawn.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler.load import LoadScheduling  # type: ignore[import-untyped]  # xdist ships no types

from parity.engine.rounds import CAUSES, IDLE, LEAST_SECONDS, PINNED, is_long, part_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

LONG_SHARE = 2  # one in so many workers begins with what takes long, half of the work there: a run may be ended early
MOST_AHEAD = 8  # tests that a worker is given while many are left, so that it need not wait for a controller that is busy


class Explaining:
    """A plugin of the controller that hands out the items, and then the parts that explain what they found. causes: whether
    there are such parts."""

    def __init__(self, causes: bool) -> None:
        self.causes = causes
        self.found: dict[str, None] = {}  # items that found something, in order

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Let a new worker know whether the causes come later."""
        node.workerinput["parity_later"] = self.causes

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> CausesLast:
        """Take the place of xdist's own scheduler."""
        return CausesLast(config, log, self)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which items found something."""
        item, number = part_of(report.nodeid)
        if number == PINNED and report.when == "call" and report.failed:
            parts = [json.loads(str(value)) for name, value in report.user_properties if name == "parity"]
            self.found |= dict.fromkeys([item] if any(part.get("later") for part in parts) else [])


class CausesLast(LoadScheduling):  # type: ignore[misc]  # an untyped base
    """Gives some workers ops that take long, one op to each and then dtypes that others have not come to, and all of them
    neighbouring items of their own, then those of others, then causes one at a time."""

    def __init__(self, config: pytest.Config, log: Any, explaining: Explaining) -> None:
        super().__init__(config, log)
        self.collection: list[str] | None = None
        self._explaining = explaining
        self._long: deque[list[int]] = deque()  # the items of each op that takes long
        self._op: dict[Any, deque[int]] = {}  # worker -> those of the op that it is at; of dead ones, too
        self._items: dict[Any, deque[int]] = {}  # worker -> the other items that it has not been given yet; of dead ones, too
        self._causes: dict[str, int] = {}
        self._idle = -1
        self._spent = {True: 0.0, False: 0.0}  # seconds of workers, for causes and for items
        self._began: dict[Any, float] = {}  # worker -> when it was given the part that it looks for causes in
        self._least = 0.0
        self._explained: Counter[str] = Counter()  # op -> items whose causes were looked for

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is left but to send the workers home."""
        if self.collection is None or self._has_more():
            return False
        return all(self._is_free(node) for node in self.node2pending)

    @property
    def has_pending(self) -> bool:
        """Whether anything is left to do."""
        return self._has_more() or any(self.node2pending.values())

    def schedule(self) -> None:
        """Share out the collected items, and begin."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = next(iter(self.node2collection.values()))
            long, items = dict[str, list[int]](), list[int]()
            for index, test in enumerate(self.collection):
                item, number = part_of(test)
                if number == IDLE:
                    self._idle = index
                elif number == CAUSES:
                    self._causes[item] = index
                elif is_long(item):
                    long.setdefault(_op(item), []).append(index)
                else:
                    items.append(index)
            n = len(self.nodes)
            self._long.extend(long.values())
            self._items = {w: deque(items[k * len(items) // n : (k + 1) * len(items) // n]) for k, w in enumerate(self.nodes)}
            self._least = LEAST_SECONDS * n
        self._check_all()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """A test is done."""
        assert self.collection is not None
        if item_index != self._idle:
            self._began.pop(node, None)
            self._spent[part_of(self.collection[item_index])[1] == CAUSES] += duration
        super().mark_test_complete(node, item_index, duration)
        if not self._left():  # what it found may be explained by any worker
            self._check_all()
        if idle := sum(map(self._is_free, self.nodes)):
            self.config.hook.pytest_parity_idle(workers=len(self.nodes), idle=idle)

    def mark_test_pending(self, item: str) -> None:
        """A test is to be run again. A part that looks for causes waits for its turn, and for its share of the time."""
        name, number = part_of(item)
        if number == CAUSES and self.collection is not None:
            self._causes[name] = self.collection.index(item)
            self._check_all()
        elif number != IDLE:
            super().mark_test_pending(item)

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker is gone; the test at which it was, if it was at one. Its time counts."""
        self._spent[True] += self._looked(node)
        self._began.pop(node, None)
        self.node2pending[node] = [k for k in self.node2pending[node] if k != self._idle]
        crashed: str | None = super().remove_node(node)
        return crashed

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Give a worker what is due, and where that is one test, another one that does nothing, so that it begins it."""
        if node.shutting_down or self.collection is None:
            return
        pending, before = self.node2pending[node], len(self.node2pending[node])
        ahead, given = self._ahead(node), before - pending.count(self._idle)
        while given < ahead and (index := self._next(node)) is not None:
            pending.append(index)
            given += 1
        if given == 1 and pending[-1] != self._idle:
            pending.append(self._idle)
        if pending[before:]:
            node.send_runtest_some(pending[before:])

    def _check_all(self) -> None:
        for node in self.nodes:
            self.check_schedule(node)

    def _ahead(self, node: WorkerController) -> int:
        """How many tests a worker is given: one while they are long, or few, so that none waits behind it for nothing."""
        if self._begins_long(node) and (self._long or any(self._op.values())):
            return 1
        return min(MOST_AHEAD, max(1, self._left() // max(1, len(self.nodes)) // 4))

    def _begins_long(self, node: WorkerController) -> bool:
        """Whether a worker is to take what takes long: some do at once, and the others when nothing else is left."""
        return self.nodes.index(node) % LONG_SHARE == 0 or not any(self._items.values())

    def _left(self) -> int:
        """How many items no worker has been given."""
        return sum(map(len, (*self._long, *self._op.values(), *self._items.values())))

    def _has_more(self) -> bool:
        return bool(self.pending) or self._left() > 0 or self._due() is not None

    def _is_free(self, node: WorkerController) -> bool:
        """Whether a worker has nothing to do."""
        return all(index == self._idle for index in self.node2pending[node])

    def _next(self, node: WorkerController) -> int | None:
        """The test that a worker is to run next; None if there is none for it now."""
        if self.pending:  # given back: by a worker that died
            return int(self.pending.pop(0))
        op, own = self._op.setdefault(node, deque()), self._items.setdefault(node, deque())
        if not op and self._begins_long(node):
            op.extend(self._long.popleft() if self._long else _half_of_most(self._op))
        if not op and not own:
            own.extend(_half_of_most(self._items))
        if op or own:
            return (op or own).popleft()
        item = self._due() if self._is_free(node) else None
        if item is None:
            return None
        self._explained[_op(item)] += 1
        self._began[node] = time.monotonic()
        return self._causes.pop(item)

    def _looked(self, node: WorkerController) -> float:
        """Seconds for which a worker has looked for the causes that it is at; 0 if it is at none."""
        return time.monotonic() - self._began[node] if node in self._began else 0.0

    def _due(self) -> str | None:
        """The next item whose findings are to be explained, if there is time for it: of the op of which least is known."""
        if self._spent[True] + sum(map(self._looked, self._began)) >= max(self._least, self._spent[False]):
            return None
        due = [i for i in self._explaining.found if i in self._causes]
        return min(due, key=lambda i: self._explained[_op(i)], default=None)


def _half_of_most(left: Mapping[Any, deque[int]]) -> list[int]:
    """Take half of what the worker with most has left, from its end; nothing where nobody has any."""
    most = max(left.values(), key=len)
    return [most.pop() for _ in range((len(most) + 1) // 2)][::-1]


def _op(item: str) -> str:
    """The op of an item's id."""
    return item.rpartition("-")[0]
