"""A pytest plugin with the scoreboard's tests: one per catalog row, which records what the row calls, and one per fault,
generator and seed.

They are collected from a file in the run's folder, a pickled `Job` that the controller writes.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from parity.catalog import opinfo
from parity.core.errors import CaseError
from parity.devices.fallbacks import listening
from parity.devices.sim import SimDevice
from parity.runs import journal, suite
from parity.runs.options import RunOptions
from parity.runs.planning import RunPlan, run_plan
from parity.zoo.deaths import WorkerDeath, scored
from parity.zoo.reach import Route, record
from parity.zoo.score import OPINFO, trial
from parity.zoo.subjects import FaultSubject, load
from parity.zoo.witness import FaultJournals

JOB, ANSWER = "zoo.job", "zoo-answer"
DEVICE = "sim"
SECONDS = {"quick": 30.0, "full": 240.0, "deep": 1800.0}  # of search per fault, generator and seed
MARGIN = 60.0  # seconds in addition to the search, for shrinking and bystanders
RECORDING = 30.0  # seconds that recording a row may take


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
    patience: float
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
        """The time limit: the search plus a margin for shrinking and bystanders."""
        return SECONDS[self.job.profile] + MARGIN

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
