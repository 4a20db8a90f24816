"""The order of a run, in the controller of an xdist run: `HandsOut` is the plugin, `Schedule` xdist's scheduler, and a phase an
ordered part of the tests.

Without a limit of time there are two phases: all items, of which some workers begin with those that take long, and then the
causes of what they found. An item with findings takes as long as a hundred others while its cases are shrunk and its causes
looked for. So that is a part of its own (`parity.engine.rounds.CAUSES`). While items are left, these parts take a small share
of the time (`EARLY_SHARE`), so that a run that is cut has looked into the worst of what it found; a worker for which no item is
left takes what remains of them. Together they take as long as the items did, or `LEAST_SECONDS` of each worker if that is more;
what is left then keeps its findings as they were drawn. The first ones are those that promise most (`Causes`). Where findings
are known, only their causes say whether what was drawn is, so that the share holds from the first one on that is new.

With a limit of time there are three: the pinned cases of every item, then causes and rounds of exploration, which share the
time; each round is in the order of what the round before it brought.

After the first death of a run one worker more than it has places is started, or a few, and waits with torch loaded and the
device open. It takes the place of the next one that dies, whose replacement waits in turn.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from xdist.scheduler.load import LoadScheduling  # type: ignore[import-untyped]  # xdist ships no types

from parity.engine.rounds import (
    ATEN_COMPILED,
    CAUSES,
    END_SECONDS,
    LEAST_SECONDS,
    PINNED,
    Causes,
    is_long,
    op_of,
    part_of,
    promise_of,
)
from parity.faces.workers import spares, start_spares
from parity.findings.weights import Promise

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

LONG_SHARE = 2  # one in so many workers begins with what takes long, half of the work there: a run may be ended early
MOST_AHEAD = 8  # tests that a worker is given while many are left, so that it need not wait for a controller that is busy ...
AHEAD_OF = 16  # ... one of so many that each has left: the first may take 20 s, and nobody else can take those behind it
EARLY_SHARE = 0.3  # of the time that items took so far goes into causes while items are left, if they promise something ...
LITTLE_SHARE = 0.15  # ... and into all if they promise little ...
EARLY_ITEMS = 30  # ... and so many are done: a run of few items is soon over
TIMED_AHEAD = 2  # the same with a limit of time: what a round brought decides on the next one
SPARE_SECONDS = 30.0  # of a run that are left at least where a spare is started: it takes up to 20 s and pays at another death
ASKS_EVERY = 1.0  # seconds after which deaths are shrunk, if some can be, while no worker is idle
FIRST_CAUSES = 0.001  # seconds: with a limit of time, causes come before exploration has taken any


class HandsOut:
    """A plugin of the controller that hands out the tests. yields: of a run with a limit of time, item -> what its last part
    brought for each second (new kinds of findings, new pairs of features); below 0 if the item is not worth another part.
    `parity run` fills it. undecided: whether findings are known, and no cause was new so far."""

    def __init__(self, causes: bool, seconds: float | None = None, yields: Mapping[str, float] | None = None) -> None:
        """causes: whether there are parts that look for causes when all items are done; seconds: the limit of time."""
        self.causes, self.yields, self.undecided = causes, yields or {}, False
        self.prepares = True  # whether workers that come now load what their first test needs while they wait for it
        self.timed, self.seconds = seconds is not None, seconds or math.inf
        self.deadline = math.inf if seconds is None else time.monotonic() + seconds - END_SECONDS
        self.found: dict[str, Promise] = {}  # items whose findings are to be explained, in order

    @property
    def left(self) -> float:
        """Seconds until no test begins any more."""
        return self.deadline - time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Let a new worker know how much time is left, or whether the causes come later."""
        node.workerinput |= {"parity_left": self.left} if self.timed else {"parity_later": self.causes}
        node.workerinput["parity_prepares"] = self.prepares

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Schedule:
        """Take the place of xdist's own scheduler."""
        return Schedule(config, log, self)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which items found something that another part explains."""
        item, number = part_of(report.nodeid)
        self.undecided &= not (number == CAUSES and report.failed)
        if number == PINNED and report.when == "call" and report.failed:
            parts = [json.loads(str(value)) for name, value in report.user_properties if name == "parity"]
            if self.timed or any(part.get("later") for part in parts):
                self.found[item] = promise_of(line for part in parts for line in part.get("rows", ()))


class Phase(Protocol):
    """Some of the tests, in an order that may depend on what became of others."""

    def has_more(self) -> bool:
        """Whether `take` gives a test now."""

    def take(self, worker: Any) -> int | None:
        """The test that a worker is to run next; None if there is none for it now."""


class Schedule(LoadScheduling):  # type: ignore[misc]  # an untyped base
    """Gives each worker the next test of the first phase that has one for it. A worker begins a test when it has it
    (`parity.faces.workers.EagerWorker`)."""

    def __init__(self, config: pytest.Config, log: Any, out: HandsOut) -> None:
        super().__init__(config, log)
        self.collection: list[str] | None = None
        self._out = out
        self._first: Items | Queue = Queue(())
        self.causes = Causes({}, out.found, lambda little: 0.0)
        self._phases: tuple[Phase, ...] = ()
        self._early: Items | None = None  # those in whose time some workers look for causes
        self._timed: tuple[Queue, Rounds] | None = None  # the pinned cases and exploration, with a limit of time
        self._spent = 0.0  # seconds of workers for what causes share the time with: items, or exploration ...
        self._done = 0  # ... and how many of these there were
        self._newcomers = set[Any]()  # workers that have taken the place of one that died, until spares are started
        self._lost = self._spared = False  # whether one has died, and whether spares were started
        self._asked = -math.inf  # when the number of idle workers was given last

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is left but to send the workers home."""
        return self.collection is not None and not self.has_pending

    @property
    def has_pending(self) -> bool:
        """Whether anything is left to do."""
        return self._has_more() or any(self.node2pending.values())

    @property
    def working(self) -> list[Any]:
        """The workers that are given tests: those that came first. The others wait."""
        return [*islice(self.node2pending, self.numnodes)]

    def add_node(self, node: WorkerController) -> None:
        """A worker has started."""
        super().add_node(node)
        if self._lost:
            self._newcomers.add(node)

    def _start_spares(self, like: WorkerController) -> None:
        """Start workers that wait, once, if they do not come too late. Not before a replacement works, which they would slow
        down. like: the replacement."""
        self._newcomers.clear()
        left = self._out.left
        if self._early is not None:  # no limit of time
            left = self._early.left * self._spent / max(1, self._done) / self.numnodes
        if not self._spared and left >= SPARE_SECONDS and (number := spares(self.config, self.numnodes)):
            self._out.prepares = self._spared = True
            start_spares(self.config, like, number)

    def schedule(self) -> None:
        """Sort the collected tests into phases, and begin."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = next(iter(self.node2collection.values()))
            self._make_phases(list(enumerate(map(part_of, self.collection))))
        self._check_all()

    def _make_phases(self, tests: list[tuple[int, tuple[str, int]]]) -> None:
        """Declare the phases of a run. tests: (number, (item, round)) of each."""
        pinned = {index: item for index, (item, number) in tests if number == PINNED}
        causes = {item: index for index, (item, number) in tests if number == CAUSES}
        if self._out.timed:
            rounds = Rounds(((k, item, number) for k, (item, number) in tests if number > PINNED), self._out.yields)
            self._timed = self._first, _ = Queue(pinned), rounds
            share = functools.partial(self._share_spent_otherwise, rounds)
            self.causes = Causes(causes, self._out.found, share)
            self._phases = self._first, self.causes, rounds
        else:
            self._first = Items(pinned, lambda: self.working)
            self.causes = Causes(causes, self._out.found, functools.partial(self._share_of_items, len(self.nodes)))
            self._phases = self._first, self.causes
            self._early = self._first

    def _share_of_items(self, workers: int, little: bool) -> float:
        """Seconds of workers that may go into causes, without a limit of time. workers: at the start; little: see `Promise`."""
        if self._first.has_more():
            return (LITTLE_SHARE if little else EARLY_SHARE) * self._spent if self._done >= EARLY_ITEMS else 0.0
        return math.inf if self._out.undecided else max(LEAST_SECONDS * workers, self._spent)

    def _share_spent_otherwise(self, rounds: Rounds, little: bool) -> float:
        """Seconds of workers that may go into causes, with a limit of time."""
        return max(FIRST_CAUSES, self._spent) if rounds.has_more() else math.inf

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """A test is done."""
        assert self.collection is not None
        number = part_of(self.collection[item_index])[1]
        if number == CAUSES:
            self.causes.ended(node, duration)
        elif number > PINNED or not self._out.timed:
            self._spent += duration
            self._done += 1
        super().mark_test_complete(node, item_index, duration)
        if node in self._newcomers:
            self._start_spares(node)
        if not self._first.has_more():  # what it found may be explained by any worker
            self._check_all()
        working = self.working
        idle, now = sum(not self.node2pending[w] for w in working), time.monotonic()
        if idle or (self._lost and now - self._asked >= ASKS_EVERY):
            self._asked = now
            self.config.hook.pytest_parity_idle(workers=len(working), idle=idle)

    def mark_test_pending(self, item: str) -> None:
        """A test is to be run again. A part that looks for causes waits for its turn, and for its share of the time; with a
        limit of time, any other one comes after those of all other items."""
        assert self.collection is not None
        name, number = part_of(item)
        index = self.collection.index(item)
        if number == CAUSES:
            self.causes.again(name, index)
        elif self._timed is not None:  # a worker takes seconds to start, and the time is that of all items
            self._timed[number > PINNED].again(name, index)
        else:
            self.pending.insert(0, index)
        self._check_all()

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker is gone; the test at which it was, if it was at one. Its time counts."""
        self.causes.ended(node)
        self._lost = True
        if node not in self.node2collection or node in self.nodes[self.numnodes :]:  # a full worker is removed twice
            self._out.prepares = False  # one that ends while it starts would end so again
        crashed: str | None = super().remove_node(node)
        return crashed

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Give a worker what is due."""
        if node.shutting_down or self.collection is None or node not in self.working:
            return
        pending, before = self.node2pending[node], len(self.node2pending[node])
        if self._looks_early(node):
            if not pending and (index := self.causes.take(node)) is not None:  # it runs what it has, and nothing waits behind
                pending.append(index)
                node.send_runtest_some([index])
            return
        while len(pending) < self._first.ahead(node) and (index := self._next(node)) is not None:
            pending.append(index)
        if pending[before:]:
            node.send_runtest_some(pending[before:])

    def _looks_early(self, node: WorkerController) -> bool:
        """Whether a worker is to look for causes, or does, while items are left."""
        if self._early is None or self._out.left <= 0 or not self._early.may_wait(node):
            return False
        return self.causes.is_at(node) or self.causes.has_more()

    def _check_all(self) -> None:
        for node in self.nodes:
            self.check_schedule(node)

    def _has_more(self) -> bool:
        return self._out.left > 0 and (bool(self.pending) or any(phase.has_more() for phase in self._phases))

    def _next(self, node: WorkerController) -> int | None:
        """The test that a worker is to run next; None if there is none for it now, or no time."""
        if self._out.left <= 0:
            return None
        if self.pending:  # given back: by a worker that died
            return int(self.pending.pop(0))
        return next((index for phase in self._phases if (index := phase.take(node)) is not None), None)


class Queue:
    """Tests in their order, in a run with a limit of time."""

    def __init__(self, tests: Iterable[int]) -> None:
        self._tests = deque(tests)

    def has_more(self) -> bool:
        """See `Phase`."""
        return bool(self._tests)

    def ahead(self, worker: Any) -> int:
        """How many tests a worker is given, those of later phases, too."""
        return TIMED_AHEAD

    def take(self, worker: Any) -> int | None:
        """See `Phase`."""
        return self._tests.popleft() if self._tests else None

    def again(self, item: str, test: int) -> None:
        """A test is to be run once more, after all others."""
        self._tests.append(test)


class Items:
    """Gives some workers ops that take long, one op to each and then dtypes that others have not come to, and all of them
    neighbouring items of their own, then those of others."""

    def __init__(self, tests: Mapping[int, str], workers: Callable[[], Sequence[Any]]) -> None:
        """tests: test -> item; workers: those that work now."""
        long, items, n = dict[str, list[int]](), list[int](), len(workers())
        for index, item in tests.items():
            (long.setdefault(op_of(item), []) if is_long(item) else items).append(index)
        self._workers = workers
        self._long = deque(long[op] for op in sorted(long, key=lambda op: op not in ATEN_COMPILED))  # the items of each op
        self._op: dict[Any, deque[int]] = {}  # worker -> those of the op that it is at; of dead ones, too
        # worker -> the other items that it has not been given yet; of dead ones, too
        self._items = {w: deque(items[k * len(items) // n : (k + 1) * len(items) // n]) for k, w in enumerate(workers())}

    @property
    def left(self) -> int:
        """How many items no worker has been given."""
        return sum(map(len, (*self._long, *self._op.values(), *self._items.values())))

    def has_more(self) -> bool:
        """See `Phase`."""
        return self.left > 0

    def ahead(self, worker: Any) -> int:
        """How many tests a worker is given: one while they are long, or few, so that none waits behind it for nothing."""
        if self._begins_long(worker) and (self._long or any(self._op.values())):
            return 1
        return min(MOST_AHEAD, max(1, self.left // max(1, len(self._workers())) // AHEAD_OF))

    def take(self, worker: Any) -> int | None:
        """See `Phase`."""
        op, own = self._op.setdefault(worker, deque()), self._items.setdefault(worker, deque())
        if not op and self._begins_long(worker):
            op.extend(self._long.popleft() if self._long else _half_of_most(self._op))
        if not op and not own:
            own.extend(_half_of_most(self._items))
        return (op or own).popleft() if op or own else None

    def may_wait(self, worker: Any) -> bool:
        """Whether a worker may do something else while items are left: none that begins with what takes long, if there is
        another."""
        alone = len(self._workers()) == 1
        return self.has_more() and (alone or self._workers().index(worker) % LONG_SHARE != 0)

    def _begins_long(self, worker: Any) -> bool:
        """Whether a worker is to take what takes long: some do at once, and the others when nothing else is left."""
        return self._workers().index(worker) % LONG_SHARE == 0 or not any(self._items.values())


class Rounds:
    """Rounds of exploration, each in the order of what the items brought before it."""

    def __init__(self, tests: Iterable[tuple[int, str, int]], yields: Mapping[str, float]) -> None:
        """tests: (test, item, round) of each; yields: as in `HandsOut`."""
        self._yields = yields
        self._later: dict[int, dict[str, int]] = {}  # round -> item -> test
        self._now: deque[tuple[str, int]] = deque()  # (item, test) of what is left of the current round
        for test, item, number in tests:
            self._later.setdefault(number, {})[item] = test

    def has_more(self) -> bool:
        """See `Phase`."""
        left = (*(item for item, _ in self._now), *(item for tests in self._later.values() for item in tests))
        return any(self._worth(item) >= 0 for item in left)

    def take(self, worker: Any) -> int | None:
        """See `Phase`; begins the next round if one is through."""
        while self._now or self._later:
            if not self._now:
                tests = self._later.pop(min(self._later))
                self._now.extend(sorted(tests.items(), key=lambda pair: -self._worth(pair[0])))
            item, test = self._now.popleft()
            if self._worth(item) >= 0:  # it may have been given up meanwhile
                return test
        return None

    def again(self, item: str, test: int) -> None:
        """A test is to be run once more, at the end of the current round."""
        self._now.append((item, test))

    def _worth(self, item: str) -> float:
        return self._yields.get(item, 0.0)


def _half_of_most(left: Mapping[Any, deque[int]]) -> list[int]:
    """Take half of what the worker with most has left, from its end; nothing where nobody has any."""
    most = max(left.values(), key=len)
    return [most.pop() for _ in range((len(most) + 1) // 2)][::-1]
