"""The score of planted faults: one run of pytest that records what rows call, and one that scores the faults.

This module is a plugin of both runs, whose tests are one per catalog row, and one per fault, generator and seed. They are
collected from a file in the run's folder, a pickled `Job` that the controller writes.
"""

from __future__ import annotations

import functools
import importlib
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from parity.catalog import opinfo
from parity.core import processes, project
from parity.core.errors import CaseError
from parity.devices.refusals import listening
from parity.devices.sim import SimDevice
from parity.engine import child, journal, suite
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan, run_plan
from parity.faces.interruption import Interruptions
from parity.faces.survival import Survival
from parity.prove.board import Board
from parity.prove.deaths import WorkerDeath, scored
from parity.prove.routes import Route, choose, record
from parity.prove.score import OPINFO, PATIENCE, SUITE, Score, trial
from parity.prove.witness import FIRED, FaultJournals, at_work
from parity.zoo.subjects import FaultSubject, load, select

GENERATORS = {"suite": (SUITE,), "opinfo": (OPINFO,), "both": (SUITE, OPINFO)}
MOST_DEATHS = 8  # most deaths per test; reached only if the workers die between tests
TWICE = 2  # attempts to record a row whose worker dies
JOB, ANSWER = "zoo.job", "zoo-answer"
DEVICE = "sim"
SECONDS = {"mac": 30.0, "quick": 30.0, "full": 240.0, "deep": 1800.0}  # CPU time of the search per fault, generator and seed
BUSY = 10.0  # times as long it may take on a machine that does other work, too
MARGIN = 60.0  # seconds in addition to the search, for shrinking and bystanders
RECORDING = 30.0  # seconds that recording a row may take

Hear = Callable[[Score, int, int], None]


@dataclass(frozen=True, slots=True)
class Task:
    """One fault, searched with one generator and one seed."""

    fault: str
    generator: str
    seed: str
    route: Route

    @property
    def name(self) -> str:
        """The name of its test."""
        return f"{self.generator}-{self.seed}-{self.fault}"


@dataclass(frozen=True, slots=True)
class Job:
    """The tests of one pytest run, and the settings that all of them share. source, beyond: as for `subjects.load`. patience:
    seconds that a case may take, in addition to the time for its elements. rows: names of the rows to record. tasks: what to
    score. path: the controller's `sys.path`, which may be needed to import the source."""

    source: str
    beyond: bool
    profile: str
    patience: float = PATIENCE
    rows: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    path: tuple[str, ...] = ()


def pytest_configure(config: pytest.Config) -> None:
    """Turn off core dumps, because a worker may die on purpose."""
    if hasattr(config, "workerinput"):
        with suppress(ImportError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the file of a job."""
    return JobFile.from_parent(parent, path=file_path) if file_path.name == JOB else None


class JobFile(pytest.File):
    """One test per row and per task."""

    def collect(self) -> Iterator[pytest.Item]:
        """The tests in the order of the job."""
        job: Job = pickle.loads(self.path.read_bytes())
        sys.path += [p for p in job.path if p not in sys.path]
        for name in job.rows:
            yield RowItem.from_parent(self, name=name, job=job)
        for task in job.tasks:
            yield FaultItem.from_parent(self, name=task.name, job=job, task=task)


class RowItem(pytest.Item):
    """Records what a row calls. It sends its answer to the controller as a pickled property of the test."""

    def __init__(self, *, job: Job, **others: Any) -> None:
        super().__init__(**others)
        self.job = job
        self.worker = getattr(self.config, "workerinput", {}).get("workerid", "alone")

    def runtest(self) -> None:
        """Compute and send the answer while the journals record what this process does. One-time loading is done before the
        clock starts."""
        plan, tasks = _plan(self.job.profile, self.job.patience), self.job.tasks
        _loaded(plan.profile.source == "all" or any(t.generator == OPINFO for t in tasks))
        with closing(FaultJournals(self.path.parent, self.worker, self.seconds)) as journals:
            journals.about(node=self.nodeid)
            self.user_properties.append((ANSWER, pickle.dumps(self.answer(journals))))

    @property
    def seconds(self) -> float:
        """The time limit of the test."""
        return RECORDING

    def answer(self, journals: FaultJournals) -> Any:
        """The Reach of the row. A broken torch may end the process here."""
        plan = _plan(self.job.profile, self.job.patience)
        assert isinstance(plan.device, SimDevice)
        with plan.device.active(), listening([]):
            return record(suite.row(self.name), plan.device, plan)


class FaultItem(RowItem):
    """Scores a fault."""

    def __init__(self, *, task: Task, **others: Any) -> None:
        super().__init__(**others)
        self.task = task

    @property
    def seconds(self) -> float:
        """The time limit: the search on a busy machine plus a margin for shrinking and bystanders."""
        return BUSY * SECONDS[self.job.profile] + MARGIN

    def answer(self, journals: FaultJournals) -> Any:
        """The Score of the fault. Starts the search, or continues after the deaths of earlier workers."""
        job, task = self.job, self.task
        plan = _plan(job.profile, job.patience)
        plan = replace(plan, options=replace(plan.options, seed=task.seed))
        subject = _subjects(job.source, job.beyond)[task.fault]
        deaths = [
            d for row in journal.deaths(self.path.parent, self.nodeid) if (d := WorkerDeath(**row)).facts.get("node") == d.node
        ]
        return scored(trial(subject, task.route, plan, journals, SECONDS[job.profile], task.generator), deaths)


@functools.cache
def _plan(profile: str, patience: float) -> RunPlan:
    """The RunPlan that all tests of this process share; its device is healthy."""
    return run_plan(RunOptions(device=DEVICE, profile=profile, hang_after=patience), 0.0, None)


@functools.cache
def _loaded(with_opinfo: bool) -> None:
    """Import what torch loads at the first gradient, and OpInfo, so that these seconds do not count as a fault's."""
    for name in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes"):
        with suppress(ImportError):
            importlib.import_module(name)
    if with_opinfo:
        with suppress(CaseError):
            opinfo.callables(opinfo.PREFIX + "add")


@functools.cache
def _subjects(source: str, beyond: bool) -> dict[str, FaultSubject]:
    return {s.id: s for s in load(source, beyond)}


# ------------------------------------------------------------------------------------------------------- the controller


def recorded() -> tuple[str, ...]:
    """The rows whose calls are recorded, so that a fault finds those that reach it: all native ones."""
    return tuple(r.name for r in suite.rows("native"))


def run(patterns: Sequence[str], job: Job, generator: str, seeds: Sequence[str], workers: int, hear: Hear) -> Board:
    """Score the faults that match the patterns. job: the settings alone; hear: called with each score as it comes, the number
    of scores so far, and the total. Ctrl-C ends the run early, with the scores so far.

    Raises KeyboardInterrupt before the first score, UsageError for a pattern that matches nothing and for an unknown profile,
    FaultError as `subjects.load` does.
    """
    started = time.monotonic()
    chosen = select(load(job.source, job.beyond), patterns)
    chart, generators = suite.profile(job.profile), GENERATORS[generator]
    job = replace(job, path=tuple(sys.path))
    workers = max(1, min(workers, len(chosen) * len(generators) * len(seeds)))
    names = recorded()
    scores: dict[str, Score] = {}
    with Interruptions() as asked:
        seen, interrupted = _answers(replace(job, rows=names), workers, TWICE)
        if interrupted:
            raise KeyboardInterrupt
        routes = {s.id: choose(s, seen, chart) for s in chosen}
        tasks = {
            t.name: t
            for k, seed in enumerate(seeds)
            for g in generators
            if g == SUITE or k == 0  # OpInfo samples do not depend on the seed
            for t in (Task(s.id, g, seed, routes[s.id]) for s in chosen)
        }

        def take(name: str, answer: Score | str) -> None:
            t = tasks[name]
            scores[name] = answer if isinstance(answer, Score) else Score(t.fault, t.generator, t.seed, miss=answer)
            hear(scores[name], len(scores), len(tasks))

        _, interrupted = _answers(replace(job, tasks=tuple(tasks.values())), workers, MOST_DEATHS, take)
        if interrupted and not scores:
            raise KeyboardInterrupt
        asked.hold()
    for name, t in tasks.items() if not interrupted else ():
        scores.setdefault(name, Score(t.fault, t.generator, t.seed, miss="its worker was lost"))
    ordered = tuple(scores[name] for name in tasks if name in scores)
    with_score = {s.fault for s in ordered}
    chosen = tuple(s for s in chosen if s.id in with_score)
    unknown, took = tuple(n for n in names if n not in seen), time.monotonic() - started
    left = len(tasks) - len(ordered)
    return Board(job.profile, generators, tuple(seeds), job.source, workers, took, chosen, routes, ordered, unknown, left)


def _answers(
    job: Job, workers: int, deaths: int, take: Callable[[str, Any], None] = lambda name, answer: None
) -> tuple[dict[str, Any], bool]:
    """The answer of each test of a pytest run by its name, and whether the run was interrupted. deaths: a test is given up
    after so many. take: called with each answer as it comes, or with a sentence if there is none."""
    folder = project.resource_folder("conformance")
    with tempfile.TemporaryDirectory(prefix="parity-zoo-", ignore_cleanup_errors=True) as scratch:
        path = Path(scratch).resolve() / JOB
        path.write_bytes(pickle.dumps(job))
        args = [
            str(path), "-c", str(folder / "pytest.ini"), "--rootdir", str(path.parent), *processes.PLUGINS, "-p", "no:terminal",
            "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", __name__,
            "-n", str(workers), "--dist", "worksteal", "--parity-rundir", str(path.parent),
        ]  # fmt: skip
        answers = _Answers(deaths, len(job.rows) + len(job.tasks), take)
        ended: int | pytest.ExitCode = pytest.ExitCode.INTERRUPTED
        with processes.only_our_plugins(), suppress(KeyboardInterrupt):  # before pytest's session, or while it ends
            ended = pytest.main(args, plugins=[answers])
    if ended in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        raise RuntimeError(f"pytest ended with {pytest.ExitCode(ended).name}")
    return answers.by_name, ended == pytest.ExitCode.INTERRUPTED


class _Answers:
    """A plugin of the controller that collects the answers of the tests."""

    def __init__(self, deaths: int, tests: int, take: Callable[[str, Any], None]) -> None:
        self.by_name: dict[str, Any] = {}
        self._deaths, self._tests, self._take = deaths, tests, take

    def pytest_configure(self, config: pytest.Config) -> None:
        """Allow as many worker restarts as tests may cause."""
        config.option.maxworkerrestart = str(self._deaths * self._tests)
        config.pluginmanager.register(_Deaths(config, self._deaths))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the answer of a test that finished, or that died for the last time."""
        properties, name = dict(report.user_properties), report.nodeid.partition("::")[2]
        if ANSWER in properties and report.when == "call":
            self.by_name[name] = pickle.loads(cast(bytes, properties[ANSWER]))
            self._take(name, self.by_name[name])
        elif report.failed and ("parity" not in properties or json.loads(str(properties["parity"]))["death"]["last"]):
            self._take(name, _why(report))


def _why(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr) if crash is None else f"parity itself failed: {str(crash.message).splitlines()[0]}"


class _Deaths(Survival):
    """`Survival` for the scoreboard's tests; the journal of firings shows whether the fault caused a death."""

    again_from_nothing = False  # the journal says what the next worker must know

    def __init__(self, config: pytest.Config, most: int) -> None:
        super().__init__(config)
        self._most = most

    def _row(self, crashitem: str, entry: Any, code: int | None, worker: str) -> dict[str, Any]:
        """What the next worker that gets the test must know."""
        how, case = "hang" if entry.pid in self._killed else "crash", entry.case if entry.running else ""
        acted = at_work(entry, journal.read(self.folder / f"{FIRED}{worker}"))
        last = len([d for d in self.deaths if d["node"] == crashitem]) + 1 >= self._most
        return asdict(WorkerDeath(crashitem, how, child.word(code), entry.stage, case, entry.started, entry.item, acted, last))
