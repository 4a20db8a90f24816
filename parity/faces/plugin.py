"""The pytest plugin: options, and the items of the suite. `fixture` is for users' own tests.

It is loaded into every pytest run on a machine with parity, so it imports neither torch nor hypothesis, nor any module of
parity that does, until a test needs it.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity.core import parent, processes
from parity.faces.fixture import Verbose
from parity.faces.fixture import parity as parity
from parity.faces.fixture import pytest_runtest_call as pytest_runtest_call
from parity.faces.recording import Recording
from parity.faces.starting import Starting
from parity.faces.survival import ALONE_AFTER, UNABLE, Survival
from parity.runs.options import OPTIONS, RunOptions
from parity.runs.rounds import IDLE, part_of

if TYPE_CHECKING:
    from parity.runs.journal import Journal

POWER = 400  # default number of comparisons that are judged once more with errors put in
POWER_SHARE = 0.003  # and at most this fraction of a run's comparisons: each costs as much as about ten others
COMPARED_PER_CASE = 2.2  # median number of comparisons per case
DEADLINE = pytest.StashKey[float]()  # when the time of a run is over, on this process's monotonic clock
INI = {"device": "the device to compare with (as --parity-device)", "profile": "quick, full or deep (as --parity-profile)"}
DEFAULT_EFFORT = "default"
# Where pytest looks for its settings -> what the file must hold.
INI_FILES = {
    "pytest.toml": "", "pytest.ini": "", ".pytest.ini": "",
    "pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]",
}  # fmt: skip
FULL = pytest.StashKey[bool]()  # whether this worker has passed its share of the memory


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --parity-device and the other options."""
    group = parser.getgroup("parity", "numerical parity between devices")
    for option in OPTIONS:
        if option.in_pytest:
            name, keywords = option.for_pytest()
            group.addoption(name, **keywords)
    for name, how in INI.items():
        parser.addini(f"parity_{name}", how, default="")
    parser.addini("parity_effort", "effort of the fixture (as --parity-effort)", default="")
    how = "how hard the fixture looks: quick, default or full, as effort= of parity.assert_parity"
    group.addoption("--parity-effort", dest="parity_effort", default="", metavar="EFFORT", help=how)
    parser.addini("parity_known", "a file of known findings, relative to the ini file (as --parity-known)", default="")
    how = "a run file for what the tests compare, for parity diff (relative to the current folder)"
    group.addoption("--parity-output", dest="parity_output", default=None, metavar="FILE", help=how)
    group.addoption("--parity-done", dest="parity_done", default=None, help="file of items to leave out (parity run --resume)")
    group.addoption("--parity-rundir", dest="parity_rundir", default=None, help="folder for journals (made by the controller)")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options that need no torch. Under xdist, workers write journals, and the controller runs `Survival`."""
    config.addinivalue_line("markers", "parity: compares a device with the CPU")
    _check_root(config)
    _take_ini(config)
    _check_fail_on(config)
    _check_known(config)
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if worker.get("parity_far"):  # the controller's folders are on another disk
        worker["parity_rundir"] = config.option.parity_rundir = _own_folder()
        if "parity_known" in worker:
            config.option.parity_known = str(Path(worker["parity_rundir"]) / "known.toml")
            Path(config.option.parity_known).write_text(worker["parity_known"], encoding="utf-8")
    if config.option.parity_time and (_runs_the_suite(config) or "parity_left" in worker):
        left = worker.get("parity_left", config.option.parity_time)
        config.stash[DEADLINE] = time.monotonic() + left
    if hasattr(config, "workerinput"):
        if "parity_rundir" in worker:
            _guard_worker(worker)
        return
    if config.get_verbosity() > 0:
        config.pluginmanager.register(Verbose(config), "parity-verbose")
    if config.option.parity_output and not config.option.collectonly:
        config.pluginmanager.register(Recording(config), "parity-recording")
    if not config.option.collectonly and _runs_the_suite(config):
        config.pluginmanager.register(Compared(config), "parity-compared")
        if config.option.parity_known:
            config.pluginmanager.register(KnownFindings(config), "parity-known")
    several = bool(getattr(config.option, "tx", None)) and config.option.dist != "no"
    if (several or getattr(config.option, "numprocesses", None)) and _runs_the_suite(config):
        if getattr(config.option, "maxworkerrestart", None) is None:
            config.option.maxworkerrestart = "100000"  # xdist's own limit ends the run at the fifth death of a worker
        rounds = None
        if config.option.parity_time:
            from parity.faces.scheduling import Rounds  # it imports xdist

            told: dict[str, float] = next(
                (p.timed.yields for p in config.pluginmanager.get_plugins() if getattr(p, "timed", None)), {}
            )
            rounds = Rounds(config.option.parity_time, told)
            config.pluginmanager.register(rounds, "parity-rounds")
        elif reporter := next((p for p in config.pluginmanager.get_plugins() if hasattr(p, "explains_later")), None):
            from parity.faces.explaining import Explaining  # it imports xdist

            config.pluginmanager.register(Explaining(reporter.explains_later, reporter.idle), "parity-explaining")
        config.pluginmanager.register(Survival(config, rounds), "parity-survival")
        config.pluginmanager.register(Starting(config), "parity-starting")
        if several and not getattr(config.option, "numprocesses", None):
            from parity.faces.far import SeveralMachines

            config.pluginmanager.register(SeveralMachines(), "parity-machines")


def _guard_worker(worker: dict[str, Any]) -> None:
    """In a worker: leave interrupts to the controller, end with it, and let no fork report the items, too."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole process group; the controller ends the workers
        signal.signal(number, signal.SIG_IGN)
    if worker.get("parity_parent") == os.getppid():  # else it runs on another machine
        parent.end_with(os.getppid())
        parent.note(Path(worker["parity_rundir"]), worker["workerid"])
    processes.end_forks()


def _check_root(config: pytest.Config) -> None:
    """End a run whose root folder pytest moved: it looks for its ini file before it knows the options of plugins, and takes
    PATH of `--parity-faults PATH` for a test's."""
    given = [str(a) for a in config.invocation_params.args]
    here = config.invocation_params.dir
    flags = [o.pytest_flag for o in OPTIONS if o.in_pytest and o.metavar == "FILE"] + ["--parity-output"]
    paths = [(flag, path) for flag, path in itertools.pairwise(given) if flag in flags and (here / path).exists()]
    own = next((p for p in (here, *here.parents) if any(_is_ini(p / name, words) for name, words in INI_FILES.items())), None)
    chosen = any(a.startswith(("--rootdir", "--config-file", "-c")) for a in given)
    if paths and own is not None and own != config.rootpath and not chosen and not _runs_the_suite(config):
        flag, path = paths[0]
        moved = f"pytest took {path} for a test, so {config.rootpath} became its root folder and the settings in {own} are lost"
        pytest.exit(f"parity: {moved}; write {flag}={path}", returncode=2)


def _is_ini(path: Path, words: str) -> bool:
    """Whether a file holds settings of pytest."""
    return path.is_file() and words in path.read_text(encoding="utf-8", errors="replace")


def _take_ini(config: pytest.Config) -> None:
    """Take device and profile from the ini file where no option names them."""
    for name in INI:
        given, dest = str(config.getini(f"parity_{name}")), f"parity_{name}"
        default = next(o.default for o in OPTIONS if o.name == name)
        if given and getattr(config.option, dest) == default:
            setattr(config.option, dest, given)
    config.option.parity_effort = config.option.parity_effort or str(config.getini("parity_effort")) or DEFAULT_EFFORT


def _own_folder() -> str:
    """A folder for the journal of a worker on another machine, which ends itself when a case hangs: nobody else can see it."""
    from parity.runs import journal

    folder = tempfile.mkdtemp(prefix="parity-")

    def watch() -> None:
        while True:
            time.sleep(0.5)
            for path in Path(folder).glob("journal-*"):
                entry = journal.read(path)
                if entry is not None and entry.overdue:
                    os._exit(journal.LOST)

    threading.Thread(target=watch, daemon=True).start()
    return folder


def pytest_report_header(config: pytest.Config) -> str | None:
    """The device, if the suite is run without `parity run`, which prints it itself."""
    if not _runs_the_suite(config):
        return None
    name = str(config.option.parity_device)
    if name == "auto":
        from parity.devices import resolve

        name = resolve(name).name
    simulated = " (SIMULATED: the results say nothing about any hardware)" if name.partition(":")[0] == "sim" else ""
    return f"parity: device {name}{simulated}, {config.option.parity_profile} profile, seed {config.option.parity_seed}"


def _check_fail_on(config: pytest.Config) -> None:
    """Check the statuses of --parity-fail-on, which may be separated by commas; ends the run if one is unknown."""
    words = [w for value in config.option.parity_fail_on for w in value.split(",")]
    if not words:
        return
    from parity.core.errors import UsageError
    from parity.core.results import statuses

    problem: UsageError | None = None
    try:
        config.option.parity_fail_on = [str(s) for s in statuses(words, "--parity-fail-on")]
    except UsageError as e:
        problem = e
    if problem is not None:  # outside of the handler, or pytest shows both tracebacks
        pytest.exit(f"parity: {problem}", returncode=problem.exit_code)


def _check_known(config: pytest.Config) -> None:
    """Take the file of known findings of the ini file where no option names one, and read it; ends a run of the suite if it
    cannot be used."""
    named = str(config.getini("parity_known"))
    if named and not config.option.parity_known and config.inipath is not None:
        config.option.parity_known = str(config.inipath.parent / named)
    if not config.option.parity_known or hasattr(config, "workerinput") or not _runs_the_suite(config):
        return
    config.option.parity_known = str(Path(config.option.parity_known).absolute())
    from parity.core.errors import KnownError
    from parity.runs import known

    problem: KnownError | None = None
    try:
        known.read(Path(config.option.parity_known))
    except KnownError as e:
        problem = e
    if problem is not None:
        pytest.exit(f"parity: {problem}", returncode=problem.exit_code)


def _runs_the_suite(config: pytest.Config) -> bool:
    """Whether this run is of parity's own suite; other runs under xdist are left alone."""
    from parity.core import resources

    suite = resources.folder("conformance").resolve()
    return any(suite in (p := Path(arg.partition("::")[0]).resolve(), *p.parents) for arg in config.args)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per op and dtype, for tests that take a `parity_item`."""
    if "parity_item" not in metafunc.fixturenames:
        return
    from parity.core.errors import ParityError, UsageError
    from parity.runs import rounds, suite

    options = RunOptions.of_pytest(metafunc.config.option)
    items: tuple[suite.Item | rounds.Part, ...] | ParityError
    try:
        source = options.source or suite.profile(options.profile).source
        chosen = suite.shard(suite.select(options.op, options.family, options.dtype, source), options.shard)
        done = _done(metafunc.config)
        items = chosen = tuple(i for i in chosen if i.id not in done)
        if not chosen:
            raise UsageError(f"shard {options.shard} holds none of the selected items; use fewer shards")
        if options.time:
            worker = getattr(metafunc.config, "workerinput", {})
            about = suite.profile(options.profile), options.examples, options.time, int(worker.get("workercount", 1))
            items = rounds.parts(chosen, *about, causes="parity_left" in worker and not options.no_shrink)
        elif _is_scheduled(metafunc.config):
            items = rounds.whole(chosen, _explains_later(metafunc.config))
    except ParityError as e:
        items = e
    if isinstance(items, ParityError):  # outside of the handler, or pytest shows both tracebacks
        raise pytest.Collector.CollectError(f"parity: {items}")
    metafunc.parametrize("parity_item", items, ids=[i.id for i in items])


def _is_scheduled(config: pytest.Config) -> bool:
    """Whether this is a worker to which parity hands out the items (`parity.faces.explaining`)."""
    return "parity_later" in getattr(config, "workerinput", {})


def _explains_later(config: pytest.Config) -> bool:
    """Whether this is a worker of a run that looks for causes when all items are done."""
    return bool(getattr(config, "workerinput", {}).get("parity_later", False))


def _done(config: pytest.Config) -> frozenset[str]:
    """The ids of the items that an interrupted run has examined."""
    path = config.option.parity_done
    return frozenset(Path(path).read_text(encoding="utf-8").splitlines()) if path else frozenset()


@functools.lru_cache(maxsize=4)
def _plan(options: RunOptions, power: float, left: float | None, later: bool) -> Any:
    """The RunPlan that all items of this process share; see `run_plan`."""
    gc.disable()  # what importing torch makes is no garbage: to look through it takes a tenth of a worker's start
    try:
        from parity.runs.planning import run_plan

        return run_plan(options, power, left, later)
    finally:
        gc.enable()


def _sampled(tests: list[pytest.Item], options: RunOptions, whole: bool) -> float:
    """The fraction of the cases to judge once more with errors put in, so that the number of comparisons is as asked for.
    whole: whether these are all tests of the run."""
    from parity.runs import suite
    from parity.runs.rounds import PINNED, Part

    if options.count:
        return 0.0
    profile = suite.profile(options.profile)
    given = [t.callspec.params["parity_item"] for t in tests if hasattr(t, "callspec") and "parity_item" in t.callspec.params]
    items = [i.item if isinstance(i, Part) else i for i in given if not isinstance(i, Part) or i.round == PINNED]
    if options.shard or not whole:  # so that the shards together judge the cases that the whole run does
        items = list(suite.select(options.op, options.family, options.dtype, options.source or profile.source))
    cases = sum(options.examples or profile.examples(i.row, i.dtype) for i in items) + profile.pinned * len(items)
    compared = max(1.0, COMPARED_PER_CASE * cases)
    return min(POWER / compared, POWER_SHARE) if options.power is None else min(1.0, options.power / compared)


@pytest.fixture(scope="session")
def parity_plan(request: pytest.FixtureRequest) -> Any:
    """Device, tables and profile of this run."""
    from parity.core.errors import ParityError

    options = RunOptions.of_pytest(request.config.option)
    try:
        deadline = request.config.stash.get(DEADLINE, None)
        left = None if deadline is None else deadline - time.monotonic()
        power = _sampled(request.session.items, options, not _done(request.config))
        return _plan(options, power, left, _explains_later(request.config))
    except ParityError as e:
        folder = getattr(request.config, "workerinput", {}).get("parity_rundir")
        if folder:  # a worker's own output is lost
            (Path(folder) / f"{UNABLE}{e.exit_code}").write_text(str(e), encoding="utf-8")
        pytest.exit(str(e), returncode=e.exit_code)


class Checker:
    """What the suite's test calls: examine an item, add the result to the report, and fail or skip the test."""

    def __init__(self, request: pytest.FixtureRequest, plan: Any, journal: Any, deaths: list[dict[str, Any]]) -> None:
        """deaths: of the item before, as the controller told them."""
        self._request, self._plan, self._journal, self._deaths = request, plan, journal, deaths

    def _hung(self) -> dict[int, str]:
        """The cases of the item that hung on the device, by their ordinals."""
        from parity.runs.journal import REPLAYING

        hung = [row for row in self._deaths if row["how"] == "hang" and row["stage"] == "device"]
        return {row["ordinal"]: row["case"] for row in hung if 0 <= row["ordinal"] < REPLAYING}

    def _dead(self) -> tuple[frozenset[int], list[dict[str, Any]]]:
        """(ordinals of cases that are left out, because they ended a worker, deaths of the item that nobody outside caused)."""
        from parity.runs.journal import LOCATING, REPLAYING, SHRINKING
        from parity.runs.rows import OUTSIDE

        dead = frozenset(row["ordinal"] for row in self._deaths)
        own = [row for row in self._deaths if row["blame"] != OUTSIDE]
        if len(own) >= ALONE_AFTER:
            dead = frozenset(k for k in dead if k >= REPLAYING) | self._hung().keys()
        if len(own) > ALONE_AFTER:  # it has died here again: nothing that can be left out runs in this process
            dead |= {SHRINKING, LOCATING}
        return dead, own

    def _examined(self, item: Any, part: Any) -> Any:
        """Examine the item: without the cases that ended a worker, or with all cases in other processes if there were
        several."""
        from parity.core import notation
        from parity.runs.alone import Alone
        from parity.runs.examine import examine

        dead, own = self._dead()
        hung = [notation.parse(text) for text in self._hung().values()]
        if len(own) < ALONE_AFTER:
            return examine(item, self._plan, self._journal, dead, part, hung=hung)
        alone = Alone(item, part, self._plan.options, self._plan.power, self._request.node.nodeid, own)
        try:
            return examine(item, self._plan, self._journal, dead, part, alone, hung)
        finally:
            alone.close()

    def examine(self, what: Any) -> None:
        """Check all cases of an item, or of a part of it. Fails the test on findings that are not known, marks it as an
        expected failure if all of them are, and skips it if nothing was compared, or if the time is over."""
        from parity.core import machine
        from parity.coverage.features import pack
        from parity.report import known
        from parity.report.outcome import statuses_text
        from parity.report.summary import compared
        from parity.runs import known_deaths, memory
        from parity.runs.rounds import CAUSES, CUT, Part
        from parity.runs.rows import CPU, GROWN, OUTSIDE, SEEN, Row
        from parity.runs.run_file import encode

        options = self._plan.options
        item, part = (what.item, what) if isinstance(what, Part) else (what, None)
        if part is not None and self._plan.later:
            self._explain(item)
            return
        if self._plan.left <= 0:
            self._request.node.user_properties.append(("parity", json.dumps({"cut": CUT})))
            pytest.skip(CUT)
        config, before = self._request.config, machine.resident_memory()
        try:
            done = self._examined(item, part)
        except KeyboardInterrupt as e:
            if processes.asked_to_stop(e):
                raise
            raise RuntimeError(f"an operator of {item.id} raised KeyboardInterrupt outside of its cases") from None
        self._plan.device.release()
        full = _is_full(config, self._plan.device)
        first = len(done.records) - len(done.findings)  # the records of the findings come last, in their order
        told_records, texts, scripts = self._told(done.findings, done.records[first:])
        records = [*done.records[:first], *told_records]
        later = done.held is not None and self._keeps(item, done.held)
        held = self._plan.known
        texts += [known.failure(s, held.entry(s.id)) for s in done.known if s.fails]
        rest: list[Row] = [*done.power, *done.figures, *done.known, done.summary]
        features = pack(done.features)
        if part is not None and part.round == CAUSES:  # round 0 has reported the cases
            records, rest, features = records[first:], [*done.known], pack(())
        told: dict[str, Any] = {"rows": [encode(row) for row in (*records, *rest)], "findings": texts, "features": features}
        deaths = [row | known_deaths.about(row, options) for row in done.deaths]
        told |= {"scripts": scripts, "explained": done.explained, "deaths": deaths}
        told["later"] = later
        told["memory"] = {"before": before, "after": memory.occupied(self._plan.device), "full": full}
        self._request.node.user_properties.append(("parity", json.dumps(told)))
        texts += [
            f"{row['how']} ({row['signal']}) at stage {row['stage']}: {row['case']}"
            for row in deaths
            if row["blame"] not in (CPU, OUTSIDE) and (row["fails"] or not row["known"])
        ]
        if texts:
            pytest.fail("\n\n".join(texts), pytrace=False)
        unwanted = statuses_text(done.unknown or done.summary, options.fail_on)
        if unwanted:
            pytest.fail(unwanted, pytrace=False)
        judged = done.summary.judged_share
        if judged < options.min_judged:
            pytest.fail(f"{item.id}: {judged:.1%} of the elements judged, less than --min-judged", pytrace=False)
        there = [held.entry(id) for id in dict.fromkeys(s.id for s in done.known if s.state in (SEEN, GROWN))]
        if not compared(done.summary):
            why = known.accepted(there) if there else ""
            pytest.skip(statuses_text(done.summary, ("unsupported", "fallback", "void")) or why or "nothing was compared")
        if there:
            pytest.xfail(known.accepted(there))

    def _told(self, findings: Any, records: Any) -> tuple[list[Any], list[str], dict[str, str]]:
        """Write the scripts of findings: (their records, the texts of those that fail, what the controller is to write on its
        own disk)."""
        from parity.core.errors import OutputError
        from parity.report.finding import text
        from parity.report.outcome import write_script

        options, device = self._plan.options, self._plan.device
        far = getattr(self._request.config, "workerinput", {}).get("parity_far")
        folder = Path(self._request.config.option.parity_rundir if far else options.findings)
        records, texts, scripts = list(records), list[str](), dict[str, str]()
        for k, f in enumerate(findings):
            script: Path | OutputError | None
            try:
                script = write_script(f, device, folder)
            except OutputError as e:  # a full disk must not cost the finding
                script = e
            if far and isinstance(script, Path):
                scripts[script.name] = script.read_text(encoding="utf-8")
                script = Path(options.findings) / script.name
            if isinstance(script, Path):
                records[k] = replace(records[k], script=f"{script.parent.name}/{script.name}")
            if f.known is None or f.known.fails:
                texts.append(text(f, device.name, script, options.faults or "", options.setup or "", options.for_header()))
        return records, texts, scripts

    def _path_of_held(self, item: Any) -> Path:
        """Where a worker keeps what an item found, for the one that explains it."""
        name = hashlib.blake2b(item.id.encode(), digest_size=8).hexdigest()
        return Path(self._request.config.option.parity_rundir) / f"held-{name}"

    def _keeps(self, item: Any, held: Any) -> bool:
        """Whether what an item found is kept for the part that explains it. A full disk costs the causes, not the findings."""
        path = self._path_of_held(item)
        part = path.with_suffix(".part")
        try:
            part.write_bytes(held.packed())
            part.replace(path)
        except OSError:
            return False
        return True

    def _explain(self, item: Any) -> None:
        """Shrink what an item found before, and look for its causes. Fails the test on findings that are not known."""
        from parity.core import machine
        from parity.runs import memory
        from parity.runs.examine import explain
        from parity.runs.run_file import encode
        from parity.runs.tally import Held

        before = machine.resident_memory()
        held = Held.unpacked(self._path_of_held(item).read_bytes())
        findings, found, sightings = explain(item, self._plan, self._journal, held, self._dead()[0])
        self._plan.device.release()
        records, texts, scripts = self._told(findings, found)
        told: dict[str, Any] = {"rows": [encode(row) for row in (*records, *sightings)], "findings": texts, "scripts": scripts}
        told |= {"causes": item.id, "features": {}}
        full = _is_full(self._request.config, self._plan.device)
        told["memory"] = {"before": before, "after": memory.occupied(self._plan.device), "full": full}
        self._request.node.user_properties.append(("parity", json.dumps(told)))
        if texts:
            pytest.fail("\n\n".join(texts), pytrace=False)


def _is_full(config: pytest.Config, device: Any) -> bool:
    """Whether this worker has passed its share of the memory, so that another one is to take its place."""
    from parity.runs import memory

    worker: dict[str, Any] = getattr(config, "workerinput", {})
    full = "parity_share" in worker and memory.has_passed(device, worker["parity_share"], worker["workercount"])
    config.stash[FULL] = full
    return full


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """End a worker that has passed its share of the memory, before it begins another item: what it has reported is sent. Of the
    test that does nothing, report nothing."""
    if _is_scheduled(item.config) and part_of(item.nodeid)[1] == IDLE:
        return True
    if item.config.stash.get(FULL, False):
        from parity.runs import journal

        worker: dict[str, Any] = item.config.workerinput  # type: ignore[attr-defined]  # xdist's
        (Path(worker["parity_rundir"]) / f"journal-{worker['workerid']}{journal.FULL}").touch()
        os._exit(journal.LOST)
    return None


@pytest.fixture
def parity_checker(request: pytest.FixtureRequest, parity_plan: Any) -> Iterator[Checker]:
    """A Checker, with a journal if the worker may die."""
    from parity.runs.journal import NoJournal, deaths

    worker = getattr(request.config, "workerinput", None)
    folder = Path(worker["parity_rundir"]) if worker is not None and "parity_rundir" in worker else None
    journal = _journal(folder / f"journal-{worker['workerid']}") if folder and worker else None
    earlier = deaths(folder, request.node.nodeid) if folder else []
    try:
        yield Checker(request, parity_plan, journal or NoJournal(), earlier)
    finally:
        if journal:
            journal.end()
        # The report of the call has taken the rows. The one of the teardown, which JUnit's file is made of, needs two numbers.
        _keep_numbers(request.node.user_properties)


@functools.cache
def _journal(path: Path) -> Journal:
    """The journal of this process: made once, because its file costs as much as a case."""
    from parity.runs.journal import Journal

    return Journal(path)


def _keep_numbers(properties: list[tuple[str, object]]) -> None:
    """Replace the rows of an item among the properties of its test by the number of its cases and findings."""
    parts = [json.loads(str(value)) for name, value in properties if name == "parity"]
    items = [row for part in parts for row in map(json.loads, part.get("rows", ())) if row["kind"] == "item"]
    short = [(name, sum(row.get("cases", 0) for row in items)) for name in ("cases",) if items]
    short += [("findings", sum(len(part["findings"]) for part in parts if "findings" in part))] if items else []
    properties[:] = [*((name, value) for name, value in properties if name != "parity"), *short]


class Compared:
    """Tracks whether any item of the suite compared something. If none did, all tests were skipped, and the run must not
    succeed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._items = self._compared = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in the result of an item."""
        if report.when == "call" and any(name == "parity" and '"cut"' not in str(v)[:8] for name, v in report.user_properties):
            self._items += 1
            self._compared += not report.skipped or hasattr(report, "wasxfail")  # known findings were compared

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Change the exit code if nothing was compared."""
        if self._items and not self._compared and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say that nothing was compared."""
        if self._items and not self._compared:
            terminalreporter.write_line(f"parity: nothing was compared in {self._items} items: this is no success", red=True)


class KnownFindings:
    """In the controller of a run with known findings: says at the end what became of them, and fails a strict run for what is
    fixed."""

    def __init__(self, config: pytest.Config) -> None:
        self._options = RunOptions.of_pytest(config.option)
        self._sightings: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in what an item saw of them."""
        from parity.runs.run_file import decode

        if report.when == "teardown":
            return
        for part in (json.loads(str(value)) for name, value in report.user_properties if name == "parity"):
            lines = [line for line in part.get("rows", ()) if json.loads(line)["kind"] == "known"]
            deaths = [part["death"]] if "death" in part else part.get("deaths", [])
            lines += [death["sighting"] for death in deaths if death.get("sighting")]
            self._sightings += map(decode, lines)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a strict run for what is fixed."""
        from parity.runs import known
        from parity.runs.standing import FIXED, standings

        entries = known.read(Path(str(self._options.known))).entries
        fixed = any(s.state == FIXED for s in standings(entries, self._sightings))
        if self._options.strict_known and fixed and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what became of them."""
        from parity.report.known import lines
        from parity.runs import known

        held = known.read(Path(str(self._options.known)))
        terminalreporter.section("known findings")
        for text in lines(held, self._sightings, 1000):
            terminalreporter.write_line(text)
