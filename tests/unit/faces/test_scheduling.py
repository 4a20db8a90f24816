"""The order in which items, their parts and the causes of what they found are handed out, and the worker that runs them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from parity.core import machine
from parity.core.results import Measure, Record
from parity.engine import rounds
from parity.engine.rounds import LEAST_SECONDS
from parity.faces import scheduling
from parity.faces.scheduling import EARLY_SHARE, LITTLE_SHARE, HandsOut, Schedule
from parity.faces.workers import EagerWorker
from parity.findings.weights import Promise
from parity.store import run_file

ITEMS = [f"{op}-{dtype}" for op in "abcd" for dtype in ("f", "i")]
TESTS = [*(f"t[{i}]" for i in ITEMS), *(f"t[{i} causes]" for i in ITEMS)]
PARTS = [
    *("t[a-f]", "t[b-f]", "t[c-f]", "t[a-f causes]", "t[b-f causes]", "t[c-f causes]"),
    *("t[a-f round 1]", "t[b-f round 1]", "t[c-f round 1]", "t[a-f round 2]", "t[b-f round 2]", "t[c-f round 2]"),
]


@pytest.fixture(autouse=True)
def all_items_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """No causes are looked for early, but where a test asks for it."""
    monkeypatch.setattr(scheduling, "EARLY_SHARE", 0.0)
    monkeypatch.setattr(scheduling, "LITTLE_SHARE", 0.0)


class Worker:
    """A worker that runs each test that it is given."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.run: list[str] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw0", spec="popen")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def config(workers: int, hook: Any) -> Any:
    return SimpleNamespace(getvalue=lambda name: ["popen"] * workers, getoption=lambda name: None, hook=hook)


class Session:
    """Workers, the scheduler, and items that find something."""

    def __init__(
        self,
        workers: int,
        finding: Collection[str] = (),
        causes: float = 1.0,
        tests: Sequence[str] = tuple(TESTS),
        new: Collection[str] | None = None,
    ) -> None:
        """finding: items that find something; of a mapping, what each finds; causes: seconds that looking for the causes of an
        item takes; an item takes one; new: items whose causes are new, where others are known."""
        self.workers, self.tests = [Worker() for _ in range(workers)], tests
        self.finding, self.causes = finding, causes
        self.plugin, self.new = HandsOut(True), new or ()
        self.plugin.undecided = new is not None
        self.told: list[tuple[int, int]] = []
        self.controller = Controller()
        hook = SimpleNamespace(pytest_parity_idle=lambda workers, idle: self.told.append((workers, idle)))
        self.schedule = Schedule(config(workers, hook), None, self.plugin)
        for w in self.workers:
            self.add(w)
        self.schedule.schedule()

    def add(self, w: Worker) -> None:
        self.schedule.add_node(w)
        self.schedule.add_node_collection(w, [*self.tests])

    def step(self, w: Worker) -> bool:
        """Let a worker run one test; False if it cannot begin one."""
        if not w.queue:
            return False
        index = w.queue.pop(0)
        item = self.tests[index][2:-1]
        w.run.append(item)
        rows = [run_file.encode(r) for r in self.finding.get(item, ())] if isinstance(self.finding, Mapping) else []
        told = json.dumps({"later": item in self.finding, "rows": rows})
        report: Any = SimpleNamespace(
            nodeid=self.tests[index], when="call", failed=item in (*self.finding, *self.new), user_properties=[("parity", told)]
        )
        self.plugin.pytest_runtest_logreport(report)
        self.schedule.mark_test_complete(w, index, self.causes if "causes" in self.tests[index] else 1.0)
        return True

    def go_on(self) -> list[str]:
        """All tests in the order in which they were run, the workers in turn, until there are none."""
        while [w for w in self.workers if self.step(w)]:
            pass
        assert self.schedule.tests_finished
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


PLAIN, LAID_OUT, RARE = "{0}(float32[3])", "{0}(float32[2, 3].transpose(0, 1))", '{0}(float32[3].at(1, "nan"))'


def drawn(case: str, op: str, share: float = 3.0, status: str = "drift", reason: str = "") -> tuple[Record, ...]:
    """What an item found, as it was drawn."""
    text, measured = case.format(op), (Measure("out", share=share),)
    return (Record(text, op, "float32", "forward", status, reason=reason, shrunk=text, measures=measured),)


def test_what_promises_most_is_looked_into_first() -> None:
    """Plain cases before those with a layout, rare ones and errors; and of plain ones those that are far outside."""
    cases = {
        "exp": drawn(PLAIN, "exp", status="error", reason="no such kernel"),
        "sin": drawn(RARE, "sin", 1e6),
        "cos": drawn(LAID_OUT, "cos", 1e6),
        "neg": drawn(PLAIN, "neg", 3.0),
        "abs": drawn(PLAIN, "abs", 4e6),
    }
    finding = {f"{op}-float32": found for op, found in cases.items()}
    tests = [*(f"t[{i}]" for i in finding), *(f"t[{i} causes]" for i in finding)]
    run = Session(1, finding, tests=tests).go_on()[len(finding) :]
    assert run == [f"{op}-float32 causes" for op in ("abs", "neg", "cos", "sin", "exp")]


def test_what_many_ops_show_is_looked_into_once_and_then_what_others_show() -> None:
    """Three ops drift alike, and may have one cause; a wrong one has another."""
    cases = {op: drawn(PLAIN, op) for op in ("exp", "sin", "cos")}
    cases = {"abs": drawn(PLAIN, "abs", status="wrong")} | cases
    finding = {f"{op}-float32": found for op, found in cases.items()}
    tests = [*(f"t[{i}]" for i in finding), *(f"t[{i} causes]" for i in finding)]
    run = Session(1, finding, tests=tests).go_on()[len(finding) :]
    assert [i.partition("-")[0] for i in run] == ["exp", "abs", "sin", "cos"]


def test_rows_that_cannot_be_read_cost_no_cause() -> None:
    session = Session(1, {"a-f": ()})
    told = json.dumps({"later": True, "rows": ["{"]})
    report: Any = SimpleNamespace(nodeid="t[a-f]", when="call", failed=True, user_properties=[("parity", told)])
    session.plugin.pytest_runtest_logreport(report)
    assert session.plugin.found == {"a-f": Promise()}


MANY = [f"{op}-{dtype}" for op in ("abs", "cos", "eig", "exp", "neg", "sin") for dtype in map(str, range(60))]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_some_causes_are_looked_for_while_items_are_left(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a run may be cut: they take their share of the time, nothing waits behind them, and no worker that is to begin with
    what takes long looks for one."""
    monkeypatch.setattr(scheduling, "LITTLE_SHARE", LITTLE_SHARE)
    tests = [*(f"t[{i}]" for i in MANY), *(f"t[{i} causes]" for i in MANY)]
    session = Session(workers, MANY, causes=5.0, tests=tests)
    while sum("causes" not in i for w in session.workers for i in w.run) < 200:
        for w in session.workers:
            session.step(w)
            queued = [tests[k] for k in w.queue]
            assert not any("causes" in i for i in queued[:-1]), "a test waits behind causes"
    looked = [sum("causes" in i for i in w.run) for w in session.workers]
    assert LITTLE_SHARE * 200 - 10 <= 5.0 * sum(looked) <= LITTLE_SHARE * 200 + 5.0 * workers
    assert workers == 1 or not any(looked[::2])
    run = session.go_on()
    assert sorted(i for i in run if "causes" not in i) == sorted(MANY)
    assert len(run) == len({*run})


def test_what_promises_something_gets_a_larger_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While items are left: of each op once, before errors and other dtypes."""
    monkeypatch.setattr(scheduling, "EARLY_SHARE", EARLY_SHARE)
    monkeypatch.setattr(scheduling, "LITTLE_SHARE", LITTLE_SHARE)
    found = {
        f"{op}{k}-float{n}": drawn(PLAIN, op) if op == "sin" else drawn(PLAIN, op, status="error", reason="x")
        for k in range(30) for op in ("exp", "sin") for n in (16, 32)
    }  # fmt: skip
    many = [*found, *(f"neg{k}-float32" for k in range(200))]
    session = Session(2, found, causes=3.0, tests=[*(f"t[{i}]" for i in many), *(f"t[{i} causes]" for i in many)])
    while sum("causes" not in i for w in session.workers for i in w.run) < 200:
        for w in session.workers:
            session.step(w)
    looked = [i for w in session.workers for i in w.run if "causes" in i]
    of_sin = {i.partition("-")[0] for i in looked if "sin" in i}
    assert len(of_sin) >= (EARLY_SHARE - LITTLE_SHARE) / 3.0 * 200
    assert 3.0 * (len(looked) - len(of_sin)) <= LITTLE_SHARE * 200 + 6.0


def test_without_findings_the_order_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [*(f"t[{i}]" for i in MANY), *(f"t[{i} causes]" for i in MANY)]
    before = Session(3, tests=tests).go_on()
    monkeypatch.setattr(scheduling, "EARLY_SHARE", EARLY_SHARE)
    monkeypatch.setattr(scheduling, "LITTLE_SHARE", LITTLE_SHARE)
    assert Session(3, tests=tests).go_on() == before


def test_neighbouring_items_go_to_the_same_worker() -> None:
    """They share kernels, caches and operators."""
    session = Session(2)
    session.go_on()
    assert [w.run for w in session.workers] == [ITEMS[:4], ITEMS[4:]]


LONG = [f"{op}-{dtype}" for op in ("attention_turned", "eig") for dtype in ("f", "i", "b")]


def test_some_workers_begin_with_ops_that_take_long_and_nobody_waits_behind_them() -> None:
    """Each of them has one, and is given one item at a time; without another such op, it takes dtypes of one. The others go
    through the rest meanwhile, so that a run that is ended early has come to most ops."""
    tests = [f"t[{i}]" for i in (*LONG, *ITEMS * 64)]
    session = Session(4, tests=tests)
    queues = [[tests[k][2:-1] for k in w.queue] for w in session.workers]
    assert queues[0] == [LONG[0]]
    assert queues[2] == [LONG[3]]
    assert queues[1][:7] == queues[3][:7] == ITEMS[:7]
    last = session.workers[2]
    assert session.step(last)
    assert [tests[k][2:-1] for k in last.queue] == [LONG[4]]
    while session.step(last):
        pass
    assert last.run[:3] == LONG[3:]
    assert last.run[3:5] == [LONG[2], LONG[1]]
    assert last.run[5] == ITEMS[0]
    assert sorted(session.go_on()) == sorted((*LONG, *ITEMS * 64))


def test_ops_that_compile_for_a_minute_are_the_very_first() -> None:
    """They come last among the tests, and would be what a run waits for at its end."""
    tests = [f"t[{i}]" for i in (*LONG, *ITEMS * 64, "gcd-int8", "gcd-int16", "logical_and-int8")]
    queues = [[tests[k][2:-1] for k in w.queue] for w in Session(4, tests=tests).workers]
    assert (queues[0], queues[2]) == (["gcd-int8"], [LONG[0]])


@pytest.mark.parametrize("each", [16, 24])
def test_what_would_wait_behind_an_item_that_takes_long_goes_to_others(each: int) -> None:
    """Where each worker has few left: its first item compiles for 20 s, as those behind it may."""
    session = Session(4, tests=[f"t[{k}-f]" for k in range(4 * each)])
    others = session.workers[1:]
    while [w for w in others if session.step(w)]:
        pass
    assert sum(len(w.run) for w in others) == 4 * each - 1
    assert len(session.go_on()) == 4 * each


def test_workers_without_anything_else_take_ops_that_take_long() -> None:
    tests = [f"t[{i}]" for i in (*LONG, *ITEMS)]
    session = Session(2, tests=tests)
    two = session.workers[1]
    while session.step(two):
        pass
    assert two.run[:4] == ITEMS[4:]
    assert sorted(two.run[4:8]) == ITEMS[:4]
    assert two.run[8:] == [*LONG[3:], LONG[2], LONG[1]]


def test_it_is_told_when_a_worker_has_nothing_left_to_do() -> None:
    """Not before: its processor is needed."""
    session = Session(2)
    told = session.told
    one, two = session.workers
    while len(two.run) + len(one.queue) < len(ITEMS):
        assert not told
        session.step(two)
    while session.step(two):
        pass
    assert set(told) == {(2, 1)}
    session.go_on()
    assert told[-1] == (2, 2)


def test_after_a_death_it_is_told_each_second_though_nobody_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A death can be shrunk while all work."""
    times = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: times[-1])
    session = dying(monkeypatch, 2)
    one, two = session.workers
    session.step(one)
    assert not session.told, "nobody has died"
    new = replaced(session, one)
    for time, tells in ((101.0, 1), (101.5, 1), (102.0, 2)):
        times.append(time)
        session.step(two)
        assert session.told == [(2, 0)] * tells
    assert new.queue


def test_a_run_without_causes_has_the_same_order() -> None:
    """As with --skip shrink."""
    session = Session(2, tests=[f"t[{i}]" for i in (*LONG, *ITEMS)])
    assert sorted(session.go_on()) == sorted((*LONG, *ITEMS))


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
    monkeypatch.setattr(scheduling, "LEAST_SECONDS", 0.0)
    assert sum("causes" in i for i in Session(1, tuple(ITEMS), causes=3.0).go_on()) == 3


def test_each_worker_has_its_least_share() -> None:
    """However little time the items took."""
    assert sum("causes" in i for i in Session(1, tuple(ITEMS), causes=LEAST_SECONDS / 5).go_on()) == 5
    assert sum("causes" in i for i in Session(2, tuple(ITEMS), causes=LEAST_SECONDS / 5).go_on()) == len(ITEMS)


def test_where_findings_are_known_the_share_holds_from_the_first_new_cause_on() -> None:
    """Until then nobody knows how the run ends."""
    seconds, all_of_them = LEAST_SECONDS / 2, len(ITEMS)
    assert sum("causes" in i for i in Session(1, tuple(ITEMS), causes=seconds, new=()).go_on()) == all_of_them
    assert sum("causes" in i for i in Session(1, tuple(ITEMS), causes=seconds, new=["a-f causes"]).go_on()) == 2
    assert sum("causes" in i for i in Session(1, tuple(ITEMS), causes=seconds, new=["d-f causes"]).go_on()) == 4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test may set."""
    now = [0.0]
    for module in (scheduling, rounds):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_the_time_of_a_worker_that_died_among_the_causes_counts(clock: list[float]) -> None:
    """The part runs again if time is left for it, behind those of other ops."""
    session = Session(1, tuple(ITEMS))
    (one,) = session.workers
    while len(one.run) < len(ITEMS):
        assert session.step(one)
    while session.step(one) and one.run[-1] != "a-f causes":
        pass
    clock[0] += LEAST_SECONDS - 1.5
    crashed = session.schedule.remove_node(one)
    assert crashed == "t[b-f causes]"
    session.schedule.mark_test_pending(crashed)
    new = Worker()
    session.workers = [new]
    session.add(new)
    session.schedule.schedule()
    assert session.go_on() == ["c-f causes"]


def test_parts_that_are_under_way_count(clock: list[float]) -> None:
    """Else each worker would begin one more."""
    session = Session(3, tuple(ITEMS))
    one, two, slow = session.workers
    while len([i for w in session.workers for i in w.run]) < len(ITEMS):
        assert [session.step(w) for w in session.workers]
    while not slow.queue or "causes" not in TESTS[slow.queue[0]]:
        assert session.step(slow)
    clock[0] += 3 * LEAST_SECONDS
    while session.step(one) or session.step(two):
        pass
    assert sum("causes" in i for i in (*one.run, *two.run)) <= 2
    session.go_on()


@pytest.mark.parametrize("part", ["items", "causes"])
def test_what_a_dead_worker_leaves_is_given_to_another(part: str) -> None:
    """What it had queued and what was still to be queued, and its last test, which is to run again."""
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
    assert session.schedule.remove_node(two) is None
    new = Worker()
    session.workers = [one, new]
    session.add(new)
    session.schedule.schedule()
    assert sorted([*two.run, *session.go_on()]) == sorted([*ITEMS, f"{ITEMS[0]} causes"])


class Controller:
    """As much of xdist's as starting one more worker needs."""

    def __init__(self, fails: bool = False) -> None:
        self.started: list[Any] = []
        self.queue, self.fails = SimpleNamespace(put=None), fails
        self.group = self.nodemanager = self
        self._active_nodes: Any = self

    def allocate_id(self, spec: Any) -> None:
        assert spec.id is None

    def setup_node(self, spec: Any, putevent: Any) -> Worker:
        if self.fails:
            raise OSError("no process can be started")
        return Worker()

    def add(self, node: Any) -> None:
        self.started.append(node)


def dying(monkeypatch: pytest.MonkeyPatch, workers: int, room: int = 99, seconds: float = 1.0, n: int | None = 1) -> Session:
    """A session that may start spares. room: processes that there is memory for; seconds: that must be left; n: of -n."""
    monkeypatch.setattr(machine, "room", lambda workers: room)
    monkeypatch.setattr(scheduling, "SPARE_SECONDS", seconds)
    session = Session(workers, (ITEMS[0],))
    session.controller = Controller()
    session.schedule.config.getoption = {"numprocesses": n}.get
    session.schedule.config.pluginmanager = SimpleNamespace(getplugin=lambda name: session.controller)
    return session


def replaced(session: Session, one: Worker) -> Worker:
    """The worker that xdist starts for one that died in its test, which is to run again."""
    crashed = session.schedule.remove_node(one)
    assert crashed is not None
    session.schedule.mark_test_pending(crashed)
    new = Worker()
    session.workers = [*(w for w in session.workers if w is not one), new]
    session.add(new)
    session.schedule.schedule()
    return new


def test_after_a_death_a_spare_waits_and_takes_the_place_of_the_next_one_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started when the replacement has done a test, once; what comes for the next one that dies waits in turn."""
    session = dying(monkeypatch, 1)
    (one,) = session.workers
    session.step(one)
    new = replaced(session, one)
    assert not session.controller.started
    session.step(new)
    (spare,) = session.controller.started
    session.add(spare)
    session.schedule.schedule()
    assert not spare.queue, "there is a place for one"
    session.step(new)
    session.workers = [new, spare]
    next_spare = replaced(session, new)
    assert (bool(spare.queue), next_spare.queue) == (True, [])
    session.step(spare)
    assert len(session.controller.started) == 1
    assert sorted([*one.run, *new.run, *session.go_on()]) == sorted([*ITEMS, f"{ITEMS[0]} causes"])
    assert not next_spare.run
    assert {workers for workers, _ in session.told} <= {1}, "who waits is not idle"


@pytest.mark.parametrize(
    ("workers", "room", "seconds", "n", "spares"),
    [(1, 99, 1.0, 1, 1), (1, 0, 1.0, 1, 0), (1, 99, 30.0, 1, 0), (1, 99, 1.0, None, 0), (3, 99, 0.0, 3, 1), (8, 99, 0.0, 8, 2)],
    ids=["one", "no memory", "the run is soon over", "on other machines", "three", "eight"],
)
def test_how_many_spares(
    workers: int, room: int, seconds: float, n: int | None, spares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = dying(monkeypatch, workers, room, seconds, n)
    for w in session.workers:
        w.queue = w.queue[:2]
    session.plugin.prepares = False
    session.step(replaced(session, session.workers[0]))
    assert len(session.controller.started) == spares
    assert session.plugin.prepares == (spares > 0)


def test_no_spare_where_nobody_died_and_none_where_it_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    session = dying(monkeypatch, 2)
    session.go_on()
    assert not session.controller.started
    session = dying(monkeypatch, 1)
    session.controller = Controller(fails=True)
    session.step(replaced(session, session.workers[0]))
    assert len(session.go_on()) == len(ITEMS) + 1


def test_a_spare_that_ends_while_it_waits_is_not_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that lets in no more processes would end it each time."""
    session = dying(monkeypatch, 1)
    session.step(replaced(session, session.workers[0]))
    (spare,) = session.controller.started
    session.add(spare)
    assert session.schedule.remove_node(spare) is None
    assert not session.plugin.prepares
    assert len(session.go_on()) == len(ITEMS) + 1


def test_workers_that_end_for_their_memory_bring_no_more_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """xdist removes such a one a second time. Else each would bring one worker more where memory is short, and what comes in
    its place would not prepare itself. Nor does a spare that ended while it started."""
    session = dying(monkeypatch, 1)
    (worker,) = session.workers
    for _ in range(3):
        new = replaced(session, worker)
        with pytest.raises(KeyError):
            session.schedule.remove_node(worker)
        if not session.controller.started:
            session.step(new)
            session.add(session.controller.started[0])
        (worker,) = session.schedule.working
        session.step(worker)
        assert session.plugin.prepares
    with pytest.raises(KeyError):
        session.schedule.remove_node(Worker())
    assert not session.plugin.prepares
    session.step(replaced(session, worker))
    (worker,) = session.schedule.working
    session.step(worker)
    assert len(session.controller.started) == 1


def begun(out: HandsOut, *workers: Worker) -> Schedule:
    hook = SimpleNamespace(pytest_parity_idle=lambda workers, idle: None)
    made = Schedule(config(len(workers), hook), None, out)
    for w in workers:
        made.add_node(w)
        made.add_node_collection(w, PARTS)
    made.schedule()
    return made


def order(schedule: Schedule, worker: Worker, seconds: float = 1.0) -> list[str]:
    """All that one worker is given."""
    while worker.queue:
        test = worker.queue.pop(0)
        worker.run.append(PARTS[test].removeprefix("t"))
        schedule.mark_test_complete(worker, test, seconds)
    assert schedule.tests_finished
    return worker.run


def failed(node: str) -> Any:
    return SimpleNamespace(nodeid=node, when="call", failed=True, user_properties=[])


def test_pinned_cases_first_then_the_most_productive() -> None:
    """Round by round; an item that is worth nothing is left alone, and causes are for what was found."""
    worker = Worker()
    out = HandsOut(True, 1000.0, {"a-f": 1.0, "b-f": 5.0, "c-f": -1.0})
    out.pytest_runtest_logreport(failed("t[b-f]"))
    assert order(begun(out, worker), worker) == [
        *("[a-f]", "[b-f]", "[c-f]", "[b-f causes]", "[b-f round 1]", "[a-f round 1]", "[b-f round 2]", "[a-f round 2]")
    ]


def test_causes_take_no_more_time_than_exploration() -> None:
    """Where every item found something."""
    worker, out = Worker(), HandsOut(True, 1000.0)
    for k in "abc":
        out.pytest_runtest_logreport(failed(f"t[{k}-f]"))
    got = order(begun(out, worker), worker)[3:]
    assert sorted(got) == sorted(t.removeprefix("t") for t in PARTS[3:])
    assert 0 < sum("causes" in t for t in got[:5]) < 4


def test_nothing_begins_when_the_time_is_over() -> None:
    """What has been given is run, and the run is finished."""
    worker, out = Worker(), HandsOut(True, 1000.0)
    schedule = begun(out, worker)
    out.deadline = 0.0
    assert order(schedule, worker) == ["[a-f]", "[b-f]"]
    assert schedule.tests_finished
    assert not schedule.has_pending


@pytest.mark.parametrize("again", [True, False])
def test_what_a_dead_worker_leaves_of_a_timed_run_is_given_to_another(again: bool) -> None:
    """What it had queued, and its last test if that is to run again."""
    one, two = Worker(), Worker()
    schedule = begun(HandsOut(True, 1000.0), one, two)
    assert schedule.remove_node(one) == "t[a-f]"
    if again:
        schedule.mark_test_pending("t[a-f]")
    got = order(schedule, two)
    assert ("[a-f]" in got) == again
    assert {"[b-f]", "[c-f]"} <= set(got)


@pytest.mark.parametrize("ended", ["t[a-f]", "t[a-f round 1]"])
def test_an_item_that_ends_its_workers_comes_after_all_others_of_a_timed_run(ended: str) -> None:
    """Each time it costs the start of a worker. What is left of one that is given up is not begun."""
    yields = {"b-f": 1.0, "c-f": 1.0}
    schedule = begun(HandsOut(True, 1000.0, yields), one := Worker())
    run: list[str] = []
    for died in range(1, 4):
        while (test := PARTS[one.queue[0]]) != ended:
            run.append(test)
            schedule.mark_test_complete(one, one.queue.pop(0), 1.0)
        assert {"t[b-f]", "t[c-f]"} <= {*run} or (died == 1 and ended == "t[a-f]")
        assert {"t[b-f round 1]", "t[c-f round 1]"} <= {*run} or ended == "t[a-f]"
        assert schedule.remove_node(one) == ended
        if died < 3:
            schedule.mark_test_pending(ended)
        else:
            yields["a-f"] = -1.0  # as `parity run` says of one that is given up
        one = Worker()
        schedule.add_node(one)
        schedule.add_node_collection(one, PARTS)
        schedule.schedule()
    left = [f"t{test}" for test in order(schedule, one)]
    assert [test for test in left if "a-f" in test and "causes" not in test] == []
    others = [test for test in PARTS if "a-f" not in test and "causes" not in test]
    assert sorted(test for test in (*run, *left) if "a-f" not in test) == sorted(others)


def test_a_worker_begins_a_test_without_the_next_one() -> None:
    """And says that it is done before it waits. What is torn down after a test is that test alone."""
    module = object()
    tests = [SimpleNamespace(name=name, parent=module) for name in "abc"]
    sent: list[tuple[str, int]] = []
    ran: list[tuple[str, str | None]] = []

    class WorkerInteractor:
        """As much of xdist's as is needed."""

        item_index = -1

        def setcallback(self, callback: Any, endmarker: None) -> None:
            callback(("runtests", {"indices": [0, 2]}))
            callback(("runtests", {"indices": [1]}))
            callback(("shutdown", {}))
            callback(("runtests", {"indices": [0]}))

        @property
        def channel(self) -> WorkerInteractor:
            return self

        def sendevent(self, name: str, item_index: int, duration: float) -> None:
            sent.append((name, item_index))

    def protocol(item: Any, nextitem: Any) -> None:
        ran.append((item.name, nextitem and nextitem.name))

    made: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugins=lambda: [object(), WorkerInteractor()]),
        hook=SimpleNamespace(pytest_runtest_protocol=protocol),
    )
    session: Any = SimpleNamespace(items=[*tests], shouldfail=False, shouldstop=False)
    assert EagerWorker(made).pytest_runtestloop(session)
    assert [index for _, index in sent] == [0, 2, 1]
    assert ran == [("a", "c"), ("c", "a"), ("b", "a")]
    assert [t.name for t in session.items] == ["a", "a", "c"], "b is done, and not kept"
    ran.clear()
    tests[1].parent = object()
    session.items = tests
    assert EagerWorker(made, prepare=lambda session: pytest.fail("it has a test")).pytest_runtestloop(session)
    assert ran == [("a", None), ("c", None), ("b", None)]


def test_the_first_workers_prepare_while_they_wait_for_each_other() -> None:
    """All collect before one has a test, and opening a device takes seconds."""
    node: Any = SimpleNamespace(workerinput={})
    HandsOut(True).pytest_configure_node(node)
    assert node.workerinput == {"parity_later": True, "parity_prepares": True}


def test_a_worker_that_waits_prepares_for_its_first_test() -> None:
    """Before it is given one, or sent home; what fails there, the test can report."""
    sends: list[Any] = []

    class WorkerInteractor:
        channel = SimpleNamespace(setcallback=lambda put, endmarker: sends.append(put))

    def prepare(session: Any) -> None:
        prepared.append(session)
        sends[0](("shutdown", {}))
        raise RuntimeError("the device lets in no more processes")

    prepared: list[Any] = []
    made: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugins=lambda: [WorkerInteractor()]))
    session: Any = SimpleNamespace(items=[])
    assert EagerWorker(made, prepare).pytest_runtestloop(session)
    assert prepared == [session]
