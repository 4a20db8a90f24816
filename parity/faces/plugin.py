"""The pytest plugin: options, and the items of the suite. `fixture` is for users' own tests.

It is loaded into every pytest run on a machine with parity, so it imports neither torch nor hypothesis, nor any module of
parity that does, until a test needs it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity.core import processes, project
from parity.engine.options import RunOptions
from parity.faces.failing import Folded
from parity.faces.failing import pytest_runtest_makereport as pytest_runtest_makereport
from parity.faces.fixture import Verbose, add_models
from parity.faces.fixture import parity as parity
from parity.faces.fixture import pytest_runtest_call as pytest_runtest_call
from parity.faces.fixture import pytest_runtest_setup as pytest_runtest_setup
from parity.faces.fixture import pytest_runtest_teardown as pytest_runtest_teardown
from parity.faces.interruption import SIGNALS
from parity.faces.pytest_options import pytest_addoption as pytest_addoption
from parity.faces.pytest_options import pytest_configure_node as pytest_configure_node
from parity.faces.pytest_options import runs_the_suite, settle
from parity.faces.recording import Recording

if TYPE_CHECKING:
    from parity.faces.checker import Checker

POWER = 400  # default number of comparisons that are judged once more with errors put in
POWER_SHARE = 0.003  # and at most this fraction of a run's comparisons: each costs as much as about ten others
COMPARED_PER_CASE = 2.2  # median number of comparisons per case
DEADLINE = pytest.StashKey[float]()  # when the time of a run is over, on this process's monotonic clock
PLAN = pytest.StashKey[Any]()  # the RunPlan of this process
FULL = pytest.StashKey[bool]()  # whether this worker has passed its share of the memory


class Hooks:
    """What parity's plugins ask of each other in the controller; `parity.faces.progress` answers under `parity run`."""

    @pytest.hookspec(firstresult=True)
    def pytest_parity_yields(self) -> Mapping[str, float] | None:
        """Of a run with a limit of time: item -> what its last part brought for each second (`scheduling.HandsOut`)."""

    @pytest.hookspec(firstresult=True)
    def pytest_parity_explains_later(self) -> bool | None:
        """Whether causes are looked for when all items are done; None where nobody hands out the items."""

    def pytest_parity_idle(self, workers: int, idle: int) -> None:
        """So many of the workers have nothing left to do while others are busy; none where one has died, now and then."""

    def pytest_parity_say(self, text: str) -> None:
        """A text for the person, above the bar."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare them."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options that need no torch. Under xdist, workers write journals, and the controller runs `Survival`."""
    config.addinivalue_line("markers", "parity: compares a device with the CPU")
    settle(config)
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if worker.get("parity_remote"):  # the controller's folders are on another disk
        worker["parity_rundir"] = config.option.parity_rundir = _own_folder()
        os.environ[project.FILE] = worker.get("parity_project", "")
        if "parity_known" in worker:
            config.option.parity_known = str(Path(worker["parity_rundir"]) / "known.toml")
            Path(config.option.parity_known).write_text(worker["parity_known"], encoding="utf-8")
    if config.option.parity_time and (runs_the_suite(config) or "parity_left" in worker):
        left = worker.get("parity_left", config.option.parity_time)
        config.stash[DEADLINE] = time.monotonic() + left
    if hasattr(config, "workerinput"):
        if "parity_rundir" in worker:
            _guard_worker(worker)
            _set_channel_aside(config)
        if "parity_left" in worker or "parity_later" in worker:
            from parity.faces.workers import EagerWorker

            prepare = functools.partial(_plan_here, ahead=True) if worker.get("parity_prepares") else None
            config.pluginmanager.register(EagerWorker(config, prepare), "parity-eager-worker")
        return
    config.pluginmanager.register(Folded(config), "parity-folded")
    if config.getoption("verbose", 0) > 0:  # pytest 8.3 has no get_verbosity without its terminal reporter
        config.pluginmanager.register(Verbose(config), "parity-verbose")
    if config.option.parity_output and not config.option.collectonly:
        config.pluginmanager.register(Recording(config), "parity-recording")
    if config.option.parity_known and not config.option.collectonly:
        from parity.faces.closing import KnownFindings

        config.pluginmanager.register(KnownFindings(config, runs_the_suite(config)), "parity-known")
    if runs_the_suite(config):
        _prepare_controller(config)


def _prepare_controller(config: pytest.Config) -> None:
    """Register what a run of the suite needs besides its workers, and at its end."""
    if not config.option.collectonly:
        from parity.faces.closing import Compared

        config.pluginmanager.register(Compared(config), "parity-compared")
    several = bool(getattr(config.option, "tx", None)) and config.option.dist != "no"
    if several or getattr(config.option, "numprocesses", None):
        from parity.faces.survival import Survival
        from parity.faces.workers import Starting

        if getattr(config.option, "maxworkerrestart", None) is None:
            config.option.maxworkerrestart = "100000"  # xdist's own limit ends the run at the fifth death of a worker
        seconds, out = config.option.parity_time, None
        if seconds or (later := config.hook.pytest_parity_explains_later()) is not None:
            from parity.faces.scheduling import HandsOut  # it imports xdist

            yields = config.hook.pytest_parity_yields()
            out = HandsOut(True, seconds, yields) if seconds else HandsOut(later)
            out.undecided = bool(config.option.parity_known)
            config.pluginmanager.register(out, "parity-hands-out")
        config.pluginmanager.register(Survival(config, out if seconds else None), "parity-survival")
        config.pluginmanager.register(Starting(config), "parity-starting")
        if several and not getattr(config.option, "numprocesses", None):
            from parity.faces.workers import SeveralMachines

            config.pluginmanager.register(SeveralMachines(), "parity-machines")


def _guard_worker(worker: dict[str, Any]) -> None:
    """In a worker: leave interrupts to the controller, end with it, and let no fork report the items, too."""
    for number in SIGNALS:  # sent to the whole process group; the controller ends the workers
        signal.signal(number, signal.SIG_IGN)
    if worker.get("parity_parent") == os.getppid():  # else it runs on another machine
        processes.end_with_parent(os.getppid())
        processes.note_folder(Path(worker["parity_rundir"]), worker["workerid"])
    processes.end_forks()


def _set_channel_aside(config: pytest.Config) -> None:
    """In a worker: keep what calls write to whatever descriptors they find off the pipe to the controller, which would wait for
    the rest of a message without end. By private attributes, which may be missing in another version."""
    for plugin in config.pluginmanager.get_plugins():
        io: Any = getattr(getattr(getattr(plugin, "channel", None), "gateway", None), "_io", None)
        if hasattr(io, "outfile") and hasattr(io, "_write"):
            io.outfile.flush()
            io.parity_before = io.outfile  # closing it would free its number
            io.outfile = os.fdopen(processes.set_aside(io.outfile.fileno()), "w", 1, closefd=False)
            io._write = io.outfile.buffer.write


def _own_folder() -> str:
    """A folder for the journal of a worker on another machine, which ends itself when a case hangs: nobody else can see it."""
    from parity.engine import journal

    folder, stops = tempfile.mkdtemp(prefix="parity-"), processes.Stops()

    def watch() -> None:
        while True:
            time.sleep(0.5)
            stopped = stops.last(os.getpid())
            for path in Path(folder).glob("journal-*"):
                entry = journal.read(path)
                if entry is not None and entry.is_overdue(stopped):
                    os._exit(journal.LOST)

    threading.Thread(target=watch, daemon=True).start()
    return folder


def pytest_report_header(config: pytest.Config) -> str | None:
    """The device, if the suite is run without `parity run`, which prints it itself."""
    if not runs_the_suite(config):
        return None
    name = str(config.option.parity_device)
    if name == "auto":
        from parity.devices import resolve

        name = resolve(name).name
    simulated = " (SIMULATED: this says nothing about any hardware)" if name.partition(":")[0] == "sim" else ""
    return f"parity: device {name}{simulated}, {config.option.parity_profile} profile, seed {config.option.parity_seed}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per op and dtype, for tests that take a `parity_item`."""
    if "parity_item" not in metafunc.fixturenames:
        return
    from parity.core.errors import ParityError, UsageError
    from parity.engine import rounds, suite

    options = RunOptions.of_pytest(metafunc.config.option)
    items: tuple[suite.Item | rounds.Part, ...] | ParityError
    try:
        if options.setup:
            from parity.engine.planning import prepare

            prepare(options.setup)
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
        elif "parity_later" in getattr(metafunc.config, "workerinput", {}):
            items = rounds.whole(chosen, _explains_later(metafunc.config))
    except ParityError as e:
        items = e
    if isinstance(items, ParityError):  # outside of the handler, or pytest shows both tracebacks
        raise pytest.Collector.CollectError(f"parity: {items}")
    metafunc.parametrize("parity_item", items, ids=[i.id for i in items])


@pytest.hookimpl(tryfirst=True)  # -k and -m choose among them, too
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the models of --parity-model; those of `parity run` are compared by themselves."""
    if not runs_the_suite(session.config):
        add_models(session, items)


def _explains_later(config: pytest.Config) -> bool:
    """Whether this is a worker of a run that looks for causes when all items are done."""
    return bool(getattr(config, "workerinput", {}).get("parity_later", False))


def _done(config: pytest.Config) -> frozenset[str]:
    """The ids of the items that an interrupted run has examined."""
    path = config.option.parity_done
    return frozenset(Path(path).read_text(encoding="utf-8").splitlines()) if path else frozenset()


@functools.lru_cache(maxsize=4)
def _plan(options: RunOptions, power: float, left: float | None, later: bool, folder: Path | None) -> Any:
    """The RunPlan that all items of this process share; see `run_plan`."""
    gc.disable()  # what importing torch makes is no garbage: to look through it takes a tenth of a worker's start
    try:
        from parity.engine.planning import run_plan
        from parity.engine.rounds import Seen

        importlib.import_module("parity.faces.checker")  # before the plan makes the collector leave alone what is loaded
        return run_plan(options, power, left, later, Seen(folder))
    finally:
        gc.enable()


def _items(tests: Iterable[pytest.Item]) -> Iterator[tuple[Any, Any]]:
    """What these tests examine, with the round of a part of it, None for the whole."""
    for params in (t.callspec.params for t in tests if hasattr(t, "callspec")):
        if (i := params.get("parity_item")) is not None:
            yield getattr(i, "item", i), getattr(i, "round", None)


def _sampled(tests: list[pytest.Item], options: RunOptions, whole: bool) -> float:
    """The fraction of the cases to judge once more with errors put in, so that the number of comparisons is as asked for.
    whole: whether these are all tests of the run."""
    from parity.engine import suite
    from parity.engine.rounds import PINNED

    profile = suite.profile(options.profile)
    items = [i for i, in_round in _items(tests) if in_round in (None, PINNED)]
    if options.shard or not whole:  # so that the shards together judge the cases that the whole run does
        items = list(suite.select(options.op, options.family, options.dtype, options.source or profile.source))
    cases = sum(options.examples or profile.examples(i.row, i.dtype) for i in items) + profile.pinned * len(items)
    compared = max(1.0, COMPARED_PER_CASE * cases)
    return min(POWER / compared, POWER_SHARE) if options.power is None else min(1.0, options.power / compared)


def _plan_here(session: pytest.Session, ahead: bool = False) -> Any:
    """Device, tables and profile of this run; made once. No fixture: one of the session would keep a finalizer, and with it
    the request, of each test that uses it. ahead: for no item yet, so that what prevents it is said at the first one."""
    stash = session.config.stash
    if stash.get(PLAN, None) is None:
        stash[PLAN] = _made_plan(session, ahead)
    return stash[PLAN]


def _made_plan(session: pytest.Session, ahead: bool) -> Any:
    from parity.core.errors import ParityError
    from parity.engine import planning

    options = RunOptions.of_pytest(session.config.option)
    folder = Path(d) if (d := getattr(session.config, "workerinput", {}).get("parity_rundir")) else None
    try:
        planning.check(i for i, _ in _items(session.items))
        deadline = session.config.stash.get(DEADLINE, None)
        left = None if deadline is None else deadline - time.monotonic()
        power = _sampled(session.items, options, not _done(session.config))
        return _plan(options, power, left, _explains_later(session.config), folder)
    except ParityError as e:
        if ahead:
            return None
        if folder is not None:  # a worker's own output is lost
            from parity.faces.survival import UNABLE

            (folder / f"{UNABLE}{e.exit_code}").write_text(str(e), encoding="utf-8")
        pytest.exit(str(e), returncode=e.exit_code)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """End a worker that has passed its share of the memory, before it begins another item: what it has reported is sent."""
    if item.config.stash.get(FULL, False):
        from parity.engine import journal

        worker: dict[str, Any] = item.config.workerinput  # type: ignore[attr-defined]  # xdist's
        processes.keep_folder(Path(worker["parity_rundir"]))
        (Path(worker["parity_rundir"]) / f"journal-{worker['workerid']}{journal.FULL}").touch()
        os._exit(journal.LOST)


@pytest.fixture
def parity_checker(request: pytest.FixtureRequest) -> Iterator[Checker]:
    """What the suite's test calls."""
    plan = _plan_here(request.session)  # before what loads torch with the collector at work
    from parity.faces.checker import checking

    with checking(request, plan) as checker:
        yield checker
    request.config.stash[FULL] = checker.is_full
