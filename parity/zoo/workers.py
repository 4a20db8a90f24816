"""The processes of a scoreboard. Workers load torch once; every fault runs in a child of a worker, which may die or hang.

A fault from outside may be deadly without saying so, so all are treated alike. On Linux the children are forked from the warm
worker, which never runs a backward pass itself (torch's autograd threads do not survive a fork); elsewhere they are spawned.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from parity import journal, notation, suite, tolerance
from parity.catalog import opinfo
from parity.checking.check import EVERYTHING, check
from parity.devices import resolve
from parity.devices.sim import SimDevice
from parity.errors import CaseError
from parity.examine import Plan, drawn
from parity.execute import said
from parity.generation.generate import Drawn
from parity.generation.shrink import shrink
from parity.journal import Entry
from parity.listening import listening
from parity.suite import Item
from parity.vocabulary import Case, Status
from parity.zoo import field
from parity.zoo.reach import Reach, Route, record
from parity.zoo.score import (
    OPINFO,
    PATIENCE,
    Outside,
    Score,
    Trial,
    allowed,
    beside,
    elements,
    kept,
    least,
    search,
    trial,
)
from parity.zoo.subjects import load
from parity.zoo.witness import at_work, facts

DEVICE = "sim"
SECONDS = {"quick": 30.0, "full": 240.0, "deep": 1800.0}  # of search per fault, generator and seed
MARGIN = 60.0  # seconds that a child has beyond its search, for shrinking and bystanders
RECORDING, EACH_RECORDED = 15.0, 0.5  # seconds that recording may take, and each row more
DEATHS = 3  # of one fault's child that are not the fault's doing, before it is given up
SHRINK_SECONDS = 15.0  # for a case that ends its process
HUNG = 3.0  # seconds after which a smaller case of one that hung counts as hung
POLL = 0.05
LATE = "late"  # how a child ended that outlived its time as a whole, without any one case that did
# What torch loads at the first gradient: a second that every child would pay.
LAZY = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")
FORKS = sys.platform.startswith("linux")


@dataclass(frozen=True, slots=True)
class Setup:
    """What all processes must know. source, beyond: as `subjects.load`. opinfo: whether OpInfo will be needed.
    patience: seconds that a case may take, beside those for its elements.
    """

    source: str = ""
    beyond: bool = False
    profile: str = "quick"
    opinfo: bool = False
    patience: float = PATIENCE


@dataclass(frozen=True, slots=True)
class Task:
    """One fault, one generator, one seed."""

    fault: str
    generator: str
    seed: str
    route: Route


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. answer: the last that it said. entry: the case in which it died, with the firing."""

    answer: Any
    died: bool = False
    how: str = ""
    signal: str = ""
    entry: Entry | None = None
    fired: Entry | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A child in which parity itself failed."""

    why: str


# ------------------------------------------------------------------------------------------------------------- the worker


def work(conn: Connection, setup: Setup) -> None:
    """A worker's life. Ctrl-C is the controller's, which then ends us; our child must not outlive us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    home = Home(setup)
    signal.signal(signal.SIGTERM, home.leave)
    while True:
        try:
            job = conn.recv()
        except (EOFError, OSError):
            return
        conn.send(home.recorded(job) if isinstance(job, tuple) else home.scored(job))


class Home:
    """What a worker keeps between faults: the catalog, the tables, a healthy device."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(1)
        torch.autograd.set_multithreading_enabled(False)
        self.setup = setup
        self.subjects = {s.id: s for s in load(setup.source, setup.beyond)}
        self.healthy = resolve(DEVICE)
        tables = tolerance.load(self.healthy.name, known_ops={r.name for r in suite.rows("all")})
        self.plan = Plan(self.healthy, resolve("cpu"), tables, suite.profile(setup.profile), patience=setup.patience)
        for name in LAZY:
            with suppress(ImportError):
                importlib.import_module(name)
        if setup.opinfo:
            with suppress(CaseError):
                opinfo.callables(opinfo.PREFIX + "add")
        gc.freeze()  # children share its memory as long as nobody touches it
        self._context: Any = multiprocessing.get_context("fork" if FORKS else "spawn")
        self._child: Any = None
        self._scratch = tempfile.TemporaryDirectory(prefix="parity-zoo-")
        self.folder = Path(self._scratch.name)

    def leave(self, *_: object) -> None:
        """End the child and this process."""
        if self._child is not None:
            self._child.kill()
        self._scratch.cleanup()
        os._exit(1)

    def trial(self, task: Task, folder: Path, dead: frozenset[Outside]) -> Trial:
        """The run of a task's fault, ready to begin."""
        plan = replace(self.plan, seed=task.seed)
        return trial(self.subjects[task.fault], task.route, plan, folder, SECONDS[self.setup.profile], dead)

    def recorded(self, names: tuple[str, ...]) -> dict[str, Reach]:
        """What rows call. Where recording ends the process or hangs, each half of them is recorded alone, down to the row that
        does it, which is left out."""
        answer = self._run(_record, names, RECORDING + len(names) * EACH_RECORDED).answer
        if isinstance(answer, dict) or len(names) < 2:
            return answer if isinstance(answer, dict) else {}
        half = len(names) // 2
        return self.recorded(names[:half]) | self.recorded(names[half:])

    def scored(self, task: Task) -> Score:
        """The score of one fault, whatever it does to the processes it runs in."""
        dead: frozenset[Outside] = frozenset()
        alarms: tuple[str, ...] = ()
        start = Score(task.fault, task.generator, task.seed)
        for _ in range(DEATHS):
            started = time.monotonic()
            ended = self._run(_run_fault, (task, dead), SECONDS[self.setup.profile] + MARGIN)
            if isinstance(ended.answer, Broken):
                return replace(start, miss=f"parity itself failed: {ended.answer.why}", alarms=alarms)
            if isinstance(ended.answer, Score):
                return self._after(task, ended, dead, alarms)
            if ended.entry is None:
                why = "was stopped by its time limit" if ended.how == LATE else f"ended outside a case ({ended.signal})"
                return replace(start, miss=f"the process of this fault {why}", alarms=alarms)
            case, head = ended.entry, facts(ended.entry)
            if at_work(case, ended.fired) and head["phase"] == "search":
                return self._after(task, replace(ended, answer=self._death(task, ended, started)), dead, alarms)
            alarms = kept(alarms, f"{ended.how} ({ended.signal}) in {case.case}, and the fault was not at work")
            dead |= {(head["item"], head["ordinal"])}
        return replace(start, miss=f"given up after {DEATHS} deaths that were not the fault's", alarms=alarms)

    def _after(self, task: Task, ended: Ended, dead: frozenset[Outside], alarms: tuple[str, ...]) -> Score:
        """What is left to do for a score whose child died after its search, or in it."""
        score: Score = ended.answer
        score = replace(score, alarms=(*alarms, *score.alarms))
        if not ended.died or task.generator == OPINFO:
            return score
        if ended.entry is not None and facts(ended.entry)["phase"] != "search":
            note = f"{ended.how} ({ended.signal}) in {ended.entry.case}, after the finding"
            score = replace(score, notes=kept(score.notes, note))
            if facts(ended.entry)["phase"] == "beside":
                return score
        again = self._run(_run_beside, (task, dead, score), MARGIN)
        if again.died and again.entry is not None:
            told = f"{facts(again.entry)['item'].rpartition('-')[0]} ({again.how})"
            if at_work(again.entry, again.fired):
                return replace(score, composites=kept(score.composites, told))
            return replace(score, alarms=kept(score.alarms, told))
        return again.answer if isinstance(again.answer, Score) else score

    def _death(self, task: Task, ended: Ended, started: float) -> Score:
        """The score of a fault whose child died in a case in which it was at work."""
        entry = ended.entry
        assert entry is not None
        head = facts(entry)
        score = Score(
            task.fault,
            task.generator,
            task.seed,
            found=True,
            status=str(Status.HANG if ended.how == "hang" else Status.CRASH),
            reason=ended.signal,
            examples=head["examples"],
            fired=head["fired"] + 1,
            seconds=max(0.0, entry.started - started),
            through=head["through"],
            case=entry.case,
            shrunk=entry.case,
        )
        if task.generator == OPINFO:
            entry_name, _, rest = head["item"].partition(" ")
            return replace(score, op=entry_name, dtype=rest.partition(" ")[0])
        op, _, dtype = head["item"].rpartition("-")
        item = Item(suite.row(op), dtype)
        one = next(one for k, _, one in drawn(item, replace(self.plan, seed=task.seed)) if k == head["ordinal"])
        begun = time.monotonic()
        if ended.how == "hang" and not self._ends(task, item, one.case, allowed(self.plan, one.case)):
            told = f"hang in {entry.case}, and not when it was run again"
            return replace(score, found=False, miss="a hang that did not come again", alarms=(told,), op=op, dtype=dtype)
        seconds = HUNG if ended.how == "hang" else allowed(self.plan, one.case)
        case = self._least(task, item, one, seconds) if FORKS else one.case
        if self._ends(task, item, case, allowed(self.plan, case), healthy=True):
            return replace(score, found=False, miss="the case ends the process on the healthy device too", op=op, dtype=dtype)
        took = time.monotonic() - begun
        return replace(score, op=op, dtype=dtype, shrunk=notation.case_text(case), elements=elements(case), shrinking=took)

    def _least(self, task: Task, item: Item, one: Drawn, seconds: float) -> Case:
        """The least case in which a process dies with the fault at work; each try is a child of its own."""
        deadline = time.monotonic() + SHRINK_SECONDS
        asked = {one.case: True}

        def ends(case: Case) -> bool:
            if case not in asked:
                if time.monotonic() > deadline:
                    return False
                asked[case] = self._ends(task, item, case, seconds)
            return asked[case]

        return shrink(item.row, item.dtype, self.plan.profile.sizes, one, ends) or one.case

    def _ends(self, task: Task, item: Item, case: Case, seconds: float, healthy: bool = False) -> bool:
        """Whether a process dies or hangs in this case (with the fault at work, where it is planted)."""
        ended = self._run(_run_case, (task, item.row.name, item.dtype, case, seconds, healthy), seconds + 5.0)
        return ended.died and (healthy or (ended.entry is not None and at_work(ended.entry, ended.fired)))

    def _run(self, what: Callable[..., None], args: tuple[Any, ...], seconds: float) -> Ended:
        """Run `what(home, say, *args)` in a child, and watch over it."""
        for name in ("case", "fired"):
            (self.folder / name).unlink(missing_ok=True)
        ours, theirs = self._context.Pipe(False)
        whole = (self if FORKS else None, self.setup, self.folder, what, args, theirs, seconds)
        process, how = self._context.Process(target=_child, args=whole), "crash"
        process.start()
        self._child = process
        theirs.close()
        answer, done, killed, deadline = None, False, None, time.monotonic() + seconds
        while True:
            if ours.poll(POLL):
                try:
                    done, answer = ours.recv()
                except (EOFError, OSError):
                    break
                continue
            entry = journal.read(self.folder / "case")
            if killed is None and entry is not None and entry.overdue:
                killed = entry
                process.kill()
            elif killed is None and time.monotonic() > deadline:
                how = LATE
                process.kill()
        process.join()
        self._child = None
        ours.close()
        if done:
            return Ended(answer)
        entry = killed or journal.read(self.folder / "case")
        how = "hang" if killed is not None else how
        running = entry if entry is not None and entry.running and how != LATE else None
        return Ended(answer, True, how, _named(process.exitcode), running, journal.read(self.folder / "fired"))


def _named(code: int | None) -> str:
    """The signal or exit code that ended a process."""
    if code is None or code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


# -------------------------------------------------------------------------------------------------------------- the child

Say = Callable[[Any], None]


def _child(
    home: Home | None, setup: Setup, folder: Path, what: Callable[..., None], args: tuple[Any, ...], conn: Any, seconds: float
) -> None:
    """A child's life: one thing, told as far as it comes. It ends itself where nobody is left to do so, and leaves no core."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "alarm"):
        signal.alarm(int(seconds + MARGIN))
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    last: list[Any] = [None]

    def say(answer: Any) -> None:
        last[0] = answer
        conn.send((False, answer))

    try:
        what(home or Home(setup), folder, say, *args)
    except Exception as e:
        last[0] = Broken(f"{type(e).__name__}: {said(e)}")
    conn.send((True, last[0]))
    conn.close()
    os._exit(0)


def _record(home: Home, folder: Path, say: Say, *names: str) -> None:
    assert isinstance(home.healthy, SimDevice)
    with home.healthy.active(), listening([]):
        say({n: record(suite.row(n), home.healthy, home.plan) for n in names})


def _run_fault(home: Home, folder: Path, say: Say, task: Task, dead: frozenset[Outside]) -> None:
    t = home.trial(task, folder, dead)
    if task.generator == OPINFO:
        say(field.search(t))
        return
    score, hit = search(t)
    say(score)
    if hit is not None:
        score = least(t, score, hit)
        say(score)
    say(beside(t, score))


def _run_beside(home: Home, folder: Path, say: Say, task: Task, dead: frozenset[Outside], score: Score) -> None:
    say(beside(home.trial(task, folder, dead), score))


def _run_case(
    home: Home, folder: Path, say: Say, task: Task, op: str, dtype: str, case: Case, seconds: float, healthy: bool
) -> None:
    t = home.trial(task, folder, frozenset())
    device = home.healthy if healthy else t.plan.device
    t.watch.begin(0, f"{op}-{dtype}", notation.case_text(case), seconds)
    with device.active(), listening([]):
        check(suite.row(op), case, device, t.plan.cpu, t.plan.tables, EVERYTHING, t.watch.stage, [])
    t.watch.end()
