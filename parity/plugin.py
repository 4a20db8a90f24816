"""The pytest plugin: options, the items of the suite, and survival of workers. `parity.fixture` is for people's own tests.

It is loaded into every pytest run on a machine that has parity, so it imports neither torch nor hypothesis, nor any module of
parity that does, until a test asks for it.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity.fixture import Verbose
from parity.fixture import parity as parity
from parity.fixture import pytest_runtest_call as pytest_runtest_call

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]  # xdist ships no types

OPTIONS: dict[str, dict[str, Any]] = {
    "device": {"default": "auto", "help": "mps, cuda, xpu, sim, sim:mps, cpu, or auto: the first accelerator"},
    "op": {"action": "append", "default": [], "help": "only ops whose name matches this pattern (repeatable)"},
    "family": {"action": "append", "default": [], "help": "only this family (repeatable)"},
    "dtype": {"action": "append", "default": [], "help": "only this dtype (repeatable)"},
    "profile": {"default": "quick", "help": "quick, full or deep"},
    "source": {"default": None, "help": "native, opinfo or all; the profile's own by default"},
    "examples": {"type": int, "default": None, "help": "cases per op and dtype instead of the profile's"},
    "seed": {"default": "0", "help": "seed of the explored cases; the pinned ones are always the same"},
    "faults": {"default": None, "help": "faults for a simulated device: a Python file, or an installed module by its name"},
    "no-screens": {"action": "store_true", "default": False, "help": "send every pair to the float64 oracle"},
    "no-shrink": {"action": "store_true", "default": False, "help": "tell findings as they were drawn"},
    "setup": {"default": None, "help": "a Python file that every worker runs before it touches the device"},
    "hang-after": {"type": float, "default": None, "help": "seconds after which a case counts as hung"},
    "findings": {"default": "findings", "help": "folder for the scripts that reproduce findings"},
    "power": {"type": int, "default": None, "help": "comparisons that are judged once more with errors put in"},
    "min-judged": {"type": float, "default": 0.0, "help": "share of an op's elements that must have been judged"},
    "count": {"action": "store_true", "default": False, "help": "draw only until every aspect of an op holds a comparison"},
    "reach": {"action": "store_true", "default": False, "help": "note which operators are dispatched on the device"},
    "fail-on": {"action": "append", "default": [], "help": "status that fails a test beside the findings: unsupported, ..."},
}
DEATHS_PER_ITEM = 3
INQUESTS = 24  # of a run: each takes as long as six processes need to start
POWER = 400  # comparisons that are judged once more with errors put in
POWER_SHARE = 0.003  # and at most this share of a run's: each costs as much as some ten others
COMPARED_PER_CASE = 2.2  # comparisons of a case, in the middle
WATCH_SECONDS = 0.2
UNABLE = "unable-"  # names the file in which a worker says why it cannot begin; its exit code follows


def pytest_addoption(parser: pytest.Parser) -> None:
    """--parity-device and its kin."""
    group = parser.getgroup("parity", "numerical parity between devices")
    for name, how in OPTIONS.items():
        group.addoption(f"--parity-{name}", dest=f"parity_{name.replace('-', '_')}", **how)
    group.addoption("--parity-rundir", dest="parity_rundir", default=None, help="folder for journals (made by the controller)")


def pytest_configure(config: pytest.Config) -> None:
    """Options that can be checked before torch is there. Under xdist: journals in the workers, a watch in the controller."""
    config.addinivalue_line("markers", "parity: compares a device with the CPU")
    _check_fail_on(config)
    if hasattr(config, "workerinput"):
        if "parity_rundir" in config.workerinput:
            for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole process group; the controller ends us
                signal.signal(number, signal.SIG_IGN)
        return
    if config.get_verbosity() > 0:
        config.pluginmanager.register(Verbose(config), "parity-verbose")
    if not config.option.collectonly and _runs_the_suite(config):
        config.pluginmanager.register(Compared(config), "parity-compared")
    if getattr(config.option, "numprocesses", None) and _runs_the_suite(config):
        if getattr(config.option, "maxworkerrestart", None) is None:
            config.option.maxworkerrestart = "100000"  # xdist's own limit ends the run at the fifth death of a worker
        config.pluginmanager.register(Survival(config), "parity-survival")


def pytest_report_header(config: pytest.Config) -> str | None:
    """The device, where the suite is run without `parity run`, which says it itself."""
    if not _runs_the_suite(config):
        return None
    name = str(config.option.parity_device)
    if name == "auto":
        from parity.devices import resolve

        name = resolve(name).name
    simulated = " (SIMULATED: the results say nothing about any hardware)" if name.partition(":")[0] == "sim" else ""
    return f"parity: device {name}{simulated}, {config.option.parity_profile} profile, seed {config.option.parity_seed}"


def _check_fail_on(config: pytest.Config) -> None:
    """Statuses by their words, several with commas between them; ends the run where one is none."""
    words = [w for value in config.option.parity_fail_on for w in value.split(",")]
    if not words:
        return
    from parity.errors import UsageError
    from parity.vocabulary import statuses

    problem: UsageError | None = None
    try:
        config.option.parity_fail_on = [str(s) for s in statuses(words, "--parity-fail-on")]
    except UsageError as e:
        problem = e
    if problem is not None:  # outside of the handler, or pytest tells both with their tracebacks
        pytest.exit(f"parity: {problem}", returncode=problem.exit_code)


def _runs_the_suite(config: pytest.Config) -> bool:
    """Whether this run is of parity's own suite; other people's runs under xdist are none of our business."""
    from parity import resources

    suite = resources.folder("conformance").resolve()
    return any(suite in (p := Path(arg.partition("::")[0]).resolve(), *p.parents) for arg in config.args)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per op and dtype, for tests that take a `parity_item`."""
    if "parity_item" not in metafunc.fixturenames:
        return
    from parity import suite
    from parity.errors import ParityError

    option = metafunc.config.option
    items: tuple[suite.Item, ...] | ParityError
    try:
        source = option.parity_source or suite.profile(option.parity_profile).source
        items = tuple(suite.select(option.parity_op, option.parity_family, option.parity_dtype, source))
    except ParityError as e:
        items = e
    if isinstance(items, ParityError):  # outside of the handler, or pytest tells both with their tracebacks
        raise pytest.Collector.CollectError(f"parity: {items}")
    metafunc.parametrize("parity_item", items, ids=[i.id for i in items])


@functools.lru_cache(maxsize=4)
def _plan(
    device: str,
    profile: str,
    seed: str,
    examples: int | None,
    faults: str | None,
    screens: bool,
    shrinks: bool,
    patience: float | None,
    setup: str | None,
    reach: bool,
    counts: bool,
    power: float,
) -> Any:
    """The plan that all items of this process share."""
    import torch

    from parity import suite, tolerance
    from parity.devices import load_faults, resolve
    from parity.devices.probe import is_fast
    from parity.devices.setup import run_setup
    from parity.dtypes import FACTS
    from parity.examine import Plan

    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)  # backward on the calling thread: simulated devices need it
    if setup:  # before OpInfo is imported, which freezes the backend flags
        run_setup(setup)
    there = resolve(device, load_faults(faults) if faults else ())
    known = {r.name for r in suite.rows("all")}
    tables = tolerance.load(there.name, known_ops=known, fast=is_fast(there))
    cpu, sizes = resolve("cpu"), suite.profile(profile)
    gc.freeze()  # torch and the catalog stay: no need to look through them again and again
    with there.active():
        takes = frozenset(d for d in FACTS if there.takes(getattr(torch, d)))
    return Plan(there, cpu, tables, sizes, seed, examples, screens, shrinks, patience, reach, counts, power, takes)


def _sampled(tests: list[pytest.Item], option: Any) -> float:
    """Which part of the cases is judged once more with errors put in, so that it comes to as many comparisons as asked for."""
    from parity import suite

    profile = suite.profile(option.parity_profile)
    items = [t.callspec.params["parity_item"] for t in tests if hasattr(t, "callspec") and "parity_item" in t.callspec.params]
    cases = sum(option.parity_examples or profile.examples(i.row, i.dtype) for i in items) + profile.pinned * len(items)
    compared = max(1.0, COMPARED_PER_CASE * cases)
    if option.parity_power is None:
        return min(POWER / compared, POWER_SHARE)
    wanted: int = option.parity_power
    return min(1.0, wanted / compared)


@pytest.fixture(scope="session")
def parity_plan(request: pytest.FixtureRequest) -> Any:
    """Device, tables and profile of this run."""
    from parity.errors import ParityError

    o = request.config.option
    try:
        return _plan(
            o.parity_device, o.parity_profile, o.parity_seed, o.parity_examples, o.parity_faults, not o.parity_no_screens,
            not o.parity_no_shrink, o.parity_hang_after, o.parity_setup, o.parity_reach, o.parity_count,
            0.0 if o.parity_count else _sampled(request.session.items, o),
        )  # fmt: skip
    except ParityError as e:
        folder = getattr(request.config, "workerinput", {}).get("parity_rundir")
        if folder:  # a worker's last words reach nobody
            (Path(folder) / f"{UNABLE}{e.exit_code}").write_text(str(e), encoding="utf-8")
        pytest.exit(str(e), returncode=e.exit_code)


class Checker:
    """What the suite's test gets: examine an item, remember what came of it for the report, and fail or skip the test."""

    def __init__(self, request: pytest.FixtureRequest, plan: Any, watch: Any, dead: frozenset[int]) -> None:
        self._request, self._plan, self._watch, self._dead = request, plan, watch, dead

    def examine(self, item: Any) -> None:
        """Check all cases of an item. Fails the test on findings, skips it where nothing was compared."""
        from parity.errors import OutputError
        from parity.examine import examine
        from parity.features import pack
        from parity.report.finding import text
        from parity.report.outcome import told, write_script
        from parity.report.summary import compared
        from parity.store import encode

        option = self._request.config.option
        done = examine(item, self._plan, self._watch, self._dead)
        texts: list[str] = []
        for f in done.findings:
            script: Path | OutputError | None
            try:
                script = write_script(f, self._plan.device, Path(option.parity_findings))
            except OutputError as e:  # a full disk must not cost the finding
                script = e
            texts.append(text(f, self._plan.device.name, script, option.parity_faults or "", option.parity_setup or ""))
        rows = [*map(encode, done.records), *map(encode, done.power), encode(done.summary)]
        part = {"rows": rows, "findings": texts, "features": pack(done.features)}
        self._request.node.user_properties.append(("parity", json.dumps(part)))
        if texts:
            pytest.fail("\n\n".join(texts), pytrace=False)
        unwanted = told(done.summary, option.parity_fail_on)
        if unwanted:
            pytest.fail(unwanted, pytrace=False)
        share = done.summary.judged_share
        if share < option.parity_min_judged:
            pytest.fail(f"{item.id}: {share:.1%} of the elements judged, less than --min-judged", pytrace=False)
        if not compared(done.summary):
            pytest.skip(told(done.summary, ("unsupported", "fallback", "void")) or "nothing was compared")


@pytest.fixture
def parity_checker(request: pytest.FixtureRequest, parity_plan: Any) -> Iterator[Checker]:
    """Examines items, with a journal where the worker may die."""
    from parity.examine import NoWatch
    from parity.journal import Journal

    worker = getattr(request.config, "workerinput", None)
    if worker is None or "parity_rundir" not in worker:
        yield Checker(request, parity_plan, NoWatch(), frozenset())
        return
    folder = Path(worker["parity_rundir"])
    watch = Journal(folder / f"journal-{worker['workerid']}")
    dead = frozenset(row["ordinal"] for row in _deaths(folder) if row["node"] == request.node.nodeid)
    try:
        yield Checker(request, parity_plan, watch, dead)
    finally:
        watch.close()


class Compared:
    """Whether any item of the suite compared something. Where none did, the run is no success: its tests were all skipped."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._items = self._compared = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """An item has come to its end."""
        if report.when == "call" and any(name == "parity" for name, _ in report.user_properties):
            self._items += 1
            self._compared += not report.skipped

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Change the exit code, before it is told."""
        if self._items and not self._compared and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say so."""
        if self._items and not self._compared:
            terminalreporter.write_line(f"parity: nothing was compared in {self._items} items: this is no success", red=True)


# ---------------------------------------------------------------------------------------------------------- survival


def _deaths(folder: Path) -> list[dict[str, Any]]:
    path = folder / "deaths.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Survival:
    """In the controller: reads the journals, kills a worker whose case is overdue, and sends the item of a dead worker to
    another one, without the case that killed it. At most three deaths per item; what is not run then is said."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._scratch = None if config.option.parity_rundir else tempfile.TemporaryDirectory(prefix="parity-")
        self.folder = Path(config.option.parity_rundir or (self._scratch.name if self._scratch else "."))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.deaths: list[dict[str, Any]] = []
        self._nodes: dict[str, Any] = {}
        self._killed: dict[int, Any] = {}
        self._inquests = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @pytest.hookimpl
    def pytest_sessionstart(self) -> None:
        """Begin to watch."""
        self._thread.start()

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        """Stop watching."""
        self._over.set()
        if self._scratch is not None:
            self._scratch.cleanup()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Tell a new worker where its journal lies."""
        node.workerinput["parity_rundir"] = str(self.folder)
        self._nodes[node.gateway.id] = node

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        """End the workers at once: they do not hear Ctrl-C, and xdist would wait ten seconds for them. What is done is told and
        stored now; another Ctrl-C must not cut that off."""
        from parity import journal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for worker in list(self._nodes):
            entry = journal.read(self.folder / f"journal-{worker}")
            if entry is not None:
                _kill(entry.pid)

    def _watch(self) -> None:
        from parity import journal

        while not self._over.wait(WATCH_SECONDS):
            for worker in list(self._nodes):
                entry = journal.read(self.folder / f"journal-{worker}")
                if entry is not None and entry.overdue and entry.pid not in self._killed:
                    self._killed[entry.pid] = entry  # what it was doing before the kill
                    _kill(entry.pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """A worker died in this item."""
        from parity import inquest, journal

        worker = report.node.gateway.id
        self._nodes.pop(worker, None)
        entry = journal.read(self.folder / f"journal-{worker}")
        code = _exit_code(report.node)
        if entry is None:
            report.longrepr = f"worker {worker} died ({inquest.word(code)}) before its first case while it ran {crashitem}"
            return
        entry = self._killed.get(entry.pid, entry)  # what it was doing before the kill
        row = self._row(crashitem, entry, code, worker)
        self.deaths.append(row)
        with (self.folder / "deaths.jsonl").open("a") as f:  # before the item is handed to anybody
            f.write(json.dumps(row) + "\n")
        report.user_properties = [("parity", json.dumps({"death": row}))]
        report.longrepr = f"{row['how']} ({row['signal']}) at stage {row['stage']}: {row['case']}"
        if not row["last"]:
            try:
                sched.mark_test_pending(crashitem)
            except NotImplementedError:
                pass  # loadscope and its kin put the whole unit back themselves

    def _row(self, crashitem: str, entry: Any, code: int | None, worker: str) -> dict[str, Any]:
        """What is told of a death. A death between two cases belongs to the one before: what a call breaks shows later. The
        first kill from outside is nobody's, and the item is examined again with its case."""
        from parity import inquest, store

        how = "hang" if entry.pid in self._killed else "crash"
        stage = entry.stage if entry.running else "after"
        own = crashitem.endswith(f"[{entry.item}]")
        ordinal = entry.ordinal if own else -1
        lost = self.folder / f"journal-{worker}.lost"
        after = round(time.monotonic() - entry.started, 1)
        told = f"the device computes nothing any more after {lost.read_text()[:300]}" if lost.exists() else inquest.word(code)
        told = f"ended by parity after {after} s" if how == "hang" else told
        before = [d for d in self.deaths if d["node"] == crashitem]
        outside = how == "crash" and code is not None and -code in inquest.OUTSIDERS
        if outside and not any(d["case"] == entry.case for d in before):
            how, blame, why, ordinal = "killed", store.OUTSIDE, "the first time; it is run again", -1
        elif (stage == "device" and not outside) or lost.exists():
            blame, why = store.DEVICE, ""
        elif self._inquests >= INQUESTS:
            blame, why = store.UNKNOWN, f"not looked into: {INQUESTS} deaths of this run were"
        else:
            self._inquests += 1
            o = self.config.option
            again = inquest.How(o.parity_device, o.parity_faults, o.parity_setup)
            blame, why = inquest.held(entry.case, again, entry.allowed, how == "hang")
            how = "killed" if outside and blame == store.UNKNOWN else how
        return {
            "node": crashitem, "item": entry.item, "ordinal": ordinal, "case": entry.case, "how": how, "stage": stage,
            "signal": told, "after": after, "blame": blame, "why": why, "last": len(before) + 1 >= DEATHS_PER_ITEM,
        }  # fmt: skip


def _kill(pid: int) -> None:
    try:
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    except OSError:  # it has ended by itself
        pass


def _exit_code(node: Any) -> int | None:
    """The exit code of a worker's process; execnet offers no public way to it, and a remote worker has none."""
    try:
        code: int = node.gateway._io.popen.wait(timeout=5)
    except Exception:  # private: anything may be missing in another version, and the code is only told, never used
        return None
    return code
