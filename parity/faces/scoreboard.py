"""The controller of a scoreboard: one run of pytest that records what rows call, and one that scores the faults."""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from parity.core import processes, resources
from parity.faces.interruption import Interruptions
from parity.faces.survival import Survival
from parity.report.zoo import Board
from parity.runs import inquest, journal, suite
from parity.zoo import items
from parity.zoo.deaths import WorkerDeath
from parity.zoo.items import Job, Task
from parity.zoo.reach import choose
from parity.zoo.score import OPINFO, PATIENCE, SUITE, Score
from parity.zoo.subjects import load, select
from parity.zoo.witness import FIRED, at_work

GENERATORS = {"suite": (SUITE,), "opinfo": (OPINFO,), "both": (SUITE, OPINFO)}
MOST_DEATHS = 8  # most deaths per test; reached only if the workers die between tests
TWICE = 2  # attempts to record a row whose worker dies

Hear = Callable[[Score, int, int], None]


def seeds(first: str, count: int) -> tuple[str, ...]:
    """`count` seeds, beginning with `first`: the following numbers, or words derived from it."""
    if first.lstrip("-").isdigit():
        return tuple(str(int(first) + k) for k in range(count))
    return (first, *(f"{first}.{k}" for k in range(1, count)))


def recorded() -> tuple[str, ...]:
    """The rows whose calls are recorded, so that a fault finds those that reach it: all native ones."""
    return tuple(r.name for r in suite.rows("native"))


def run(
    patterns: Sequence[str],
    source: str,
    beyond: bool,
    generator: str,
    profile: str,
    first_seed: str,
    repeat: int,
    workers: int,
    hear: Hear,
    patience: float = PATIENCE,
) -> Board:
    """Score the faults that match the patterns. hear: called with each score as it comes, the number of scores so far, and the
    total. patience: seconds that a case may take before it counts as hung, in addition to the time for its elements. Ctrl-C
    ends the run early, with the scores so far.

    Raises KeyboardInterrupt before the first score, UsageError for a pattern that matches nothing and for an unknown profile,
    FaultError as `subjects.load` does.
    """
    started = time.monotonic()
    chosen = select(load(source, beyond), patterns)
    chart, generators, spoken = suite.profile(profile), GENERATORS[generator], seeds(first_seed, repeat)
    job = Job(source, beyond, profile, patience, path=tuple(sys.path))
    workers = max(1, min(workers, len(chosen) * len(generators) * repeat))
    names = recorded()
    scores: dict[str, Score] = {}
    with Interruptions() as asked:
        seen, interrupted = _answers(replace(job, rows=names), workers, TWICE)
        if interrupted:
            raise KeyboardInterrupt
        routes = {s.id: choose(s, seen, chart) for s in chosen}
        tasks = {
            t.name: t
            for k, seed in enumerate(spoken)
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
    return Board(profile, generators, spoken, source, workers, took, chosen, routes, ordered, unknown, left)


def _answers(
    job: Job, workers: int, deaths: int, take: Callable[[str, Any], None] = lambda name, answer: None
) -> tuple[dict[str, Any], bool]:
    """The answer of each test of a pytest run by its name, and whether the run was interrupted. deaths: a test is given up
    after so many. take: called with each answer as it comes, or with a sentence if there is none."""
    folder = resources.folder("conformance")
    with tempfile.TemporaryDirectory(prefix="parity-zoo-", ignore_cleanup_errors=True) as scratch:
        path = Path(scratch).resolve() / items.JOB
        path.write_bytes(pickle.dumps(job))
        args = [
            str(path), "-c", str(folder / "pytest.ini"), "--rootdir", str(path.parent), *processes.PLUGINS, "-p", "no:terminal",
            "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", items.__name__,
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
        if items.ANSWER in properties and report.when == "call":
            self.by_name[name] = pickle.loads(cast(bytes, properties[items.ANSWER]))
            self._take(name, self.by_name[name])
        elif report.failed and ("parity" not in properties or json.loads(str(properties["parity"]))["death"]["last"]):
            self._take(name, _why(report))


def _why(report: pytest.TestReport) -> str:
    """Why a test has no answer."""
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
        return asdict(
            WorkerDeath(crashitem, how, inquest.word(code), entry.stage, case, entry.started, entry.item, acted, last)
        )
