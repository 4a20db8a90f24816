"""Survival of workers that die or hang, in the controller of an xdist run."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity.core import machine, processes
from parity.core.results import Json
from parity.engine import child, inquest
from parity.engine.journal import FULL
from parity.engine.options import RunOptions
from parity.engine.rounds import CUT, DYING_SHARE, GRACE_SECONDS, START_SECONDS, part_of
from parity.faces.interruption import stop_soon
from parity.faces.workers import is_remote, not_needed
from parity.report.words import plural

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]  # xdist ships no types

    from parity.faces.scheduling import HandsOut

ALONE_AFTER = 3  # deaths of an item, after which its cases run in processes of their own
DEATHS_PER_ITEM = 6  # after which it is given up
LEAST_DEATHS = 2  # the same where the run has little time
KILLS_PER_ITEM = 20  # from outside: by a person, or for the machine's memory
STILLBORN = 10  # workers that end one after another before any case, after which the run ends
BY_ITSELF = 3  # the same in the place of one worker, where nothing outside ends them: each start takes seconds
INQUESTS = 24  # most inquests of a run; each takes as long as starting six processes
INQUEST_SECONDS = 90.0  # for those that are left when all else is done: two sides of a hang
WATCH_SECONDS = 0.2
UNABLE = "unable-"  # prefix of the file with a reason why a run cannot begin; the exit code follows


class Survival:
    """In the controller: reads the journals, kills a worker whose case is overdue, and gives the item of a dead worker to
    another one, without the case that killed it. After several deaths the item's cases run in processes of their own. A death
    that needs an inquest is reported when that has ended; the item does not wait for it."""

    again_from_nothing = True  # whether an item is run again whose worker died before its first case

    def __init__(self, config: pytest.Config, timed: HandsOut | None = None) -> None:
        """timed: of a run with a limit of time, after which no worker may hold it up."""
        self.config, self._timed = config, timed
        self._cut: set[int] = set()  # workers that were ended because the time was over
        self._sent_home: set[str] = set()  # workers that were ended because nothing was left for them
        self._open = contextlib.ExitStack()
        folder = config.option.parity_rundir or self._open.enter_context(processes.guarded_folder())
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.deaths: list[dict[str, Any]] = []
        self._nodes: dict[str, Any] = {}
        self._killed: dict[int, Any] = {}
        self._workers = int(getattr(config.option, "numprocesses", None) or 1)
        self._inquests = inquest.Inquests(max(1, self._workers // inquest.TRIES))
        self._pending: dict[int, Any] = {}  # id of a row that is looked into -> its report
        self._asked = self._stillborn = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Start the watching thread."""
        self._thread.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Report the deaths whose inquests are left when all tests are done: they count for the exit code."""
        done = yield
        self._report(self._inquests.done())
        seconds = INQUEST_SECONDS if self._timed is None else max(0.0, self._timed.left)
        if left := self._inquests.left:
            text = f"finding out whether the device or the CPU ended {plural(left, 'case')}, for {seconds:.0f} s at most"
            self.config.hook.pytest_parity_say(text=text)
            self.config.hook.pytest_parity_idle(workers=self._workers, idle=max(1, self._workers - inquest.TRIES * left))
        self._report(self._inquests.rest(seconds))
        return done

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        """Stop the watching thread."""
        self._report(self._inquests.rest(0.0))
        self._over.set()
        self._open.close()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Give a new worker the path of its journal. What is sent to one that has ended is lost without an error, which would
        end the run where two end at the same time: the controller hears of its end next, and gives its tests to others."""
        node.sendcommand = _without_the_ended(node.sendcommand)
        node.workerinput["parity_rundir"] = str(self.folder)
        if not is_remote(node):
            node.workerinput["parity_share"] = machine.share(int(self.config.option.numprocesses or 1))
        node.workerinput["parity_parent"] = getattr(_process(node), "parent", os.getpid())
        self._nodes[node.gateway.id] = node

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        """End the workers at once: they ignore Ctrl-C, and xdist would wait ten seconds for them. From here on, another Ctrl-C
        must not interrupt the report and the run file."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._kill(self._nodes.values())
        self._report(self._inquests.rest(0.0))

    def _kill(self, nodes: Iterable[WorkerController]) -> None:
        for process in filter(None, map(_process, nodes)):
            _kill(process.pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object) -> None:
        """A worker is gone. What one that ended for its memory had left to do is put back, before xdist takes its first item
        for a death. A run whose workers end one after another before they come to a case would never end."""
        from parity.core.errors import DeviceError
        from parity.engine import journal

        self._nodes.pop(node.gateway.id, None)
        self._kill(others := [] if error else not_needed(self.config, self._nodes.values()))
        self._sent_home.update(other.gateway.id for other in others)
        if (self.folder / f"journal-{node.gateway.id}{FULL}").exists():
            sched = self.config.pluginmanager.getplugin("dsession").sched
            if (item := sched.remove_node(node)) is not None:
                with suppress(NotImplementedError):  # loadscope and similar schedulers put it back themselves
                    sched.mark_test_pending(item)
            return
        if not error or node.gateway.id in self._sent_home or is_remote(node):
            return
        if journal.read(self.folder / f"journal-{node.gateway.id}") is not None:
            return
        self._stillborn += 1
        code, workers = _exit_code(node), int(getattr(self.config.option, "numprocesses", None) or 1)
        outside = code is None or -code in child.OUTSIDERS
        most = STILLBORN if outside else min(STILLBORN, BY_ITSELF * workers)
        if self._stillborn >= most:
            setup = getattr(self.config.option, "parity_setup", None)
            why = f"{self._stillborn} workers ended one after another ({child.word(code)}) before their first case"
            steps = [f"look at {setup}, which each runs first (--setup)"] if setup else []
            steps += ["try the device with parity doctor"]
            steps += ["the run with fewer workers (-n 1)"] if workers > 1 else []
            (self.folder / f"{UNABLE}{DeviceError.exit_code}").write_text(f"{why}; {', or '.join(steps)}", encoding="utf-8")
            stop_soon(self.config, why)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: WorkerController) -> None:
        """Make a worker known to the scheduler that xdist sent home as it came: near the end of a run. If another one dies
        before the newcomer has collected, xdist reopens the run and trips over a worker that it does not know."""
        sched = self.config.pluginmanager.getplugin("dsession").sched
        if node not in sched.nodes:
            sched.add_node(node)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A worker has done something."""
        if report.when == "call":
            self._stillborn = 0
        self._report(self._inquests.done())

    def _watch(self) -> None:
        from parity.engine import journal

        stops = processes.Stops()
        while not self._over.wait(WATCH_SECONDS):
            processes.keep_folder(self.folder)  # for the journals of workers that start now
            late = self._timed is not None and self._timed.left < -GRACE_SECONDS
            for worker in list(self._nodes):
                entry = journal.read(self.folder / f"journal-{worker}")
                if entry is not None and late and entry.running and entry.pid not in self._killed:
                    self._cut.add(entry.pid)
                    _kill(entry.pid)
                if entry is not None and entry.pid not in self._killed and entry.is_overdue(stops.last(entry.pid)):
                    self._killed[entry.pid] = entry  # its state before the kill
                    _kill(entry.pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """A worker died in this item."""
        from parity.engine import journal

        worker = report.node.gateway.id
        self._nodes.pop(worker, None)
        entry = journal.read(self.folder / f"journal-{worker}")
        code = _exit_code(report.node)
        if entry is None and is_remote(report.node):
            self._remote_death(crashitem, report, sched)
            return
        if entry is not None and entry.pid in self._cut:
            report.user_properties = [("parity", json.dumps({"cut": CUT, "case": entry.case}))]
            report.outcome, report.longrepr = "skipped", (crashitem, 0, f"the time was over during {entry.case}")
            return
        if entry is None and not self.again_from_nothing:
            report.longrepr = f"worker {worker} died ({child.word(code)}) before its first case while it ran {crashitem}"
            return
        entry = entry and self._killed.get(entry.pid, entry)  # its state before the kill
        row = self._row(crashitem, entry, code, worker)
        self.deaths.append(row)
        processes.keep_folder(self.folder)
        with (self.folder / journal.DEATHS).open("a") as f:  # before another worker gets the item
            f.write(json.dumps(row) + "\n")
        if entry is not None and row.get("why") == inquest.PENDING:  # `_report` reports it
            report.outcome, report.when, report.longrepr = "passed", "setup", None
            self._pending[id(row)] = report
            o = RunOptions.of_pytest(self.config.option)
            self._inquests.begin(row, inquest.How(o.device, o.faults, o.setup), entry.allowed)
        else:
            _fill(report, row)
        if not row["last"]:
            try:
                sched.mark_test_pending(crashitem)
            except NotImplementedError:
                pass  # loadscope and similar schedulers put the whole unit back themselves

    def _report(self, answers: Iterable[tuple[Json, str, str]]) -> None:
        """Report deaths that were looked into: (row, blame, evidence) of each."""
        for row, blame, why in answers:
            from parity.engine import known_cases
            from parity.store.rows import UNKNOWN

            row |= {"blame": blame, "why": why}
            if blame == UNKNOWN and row["how"] == "crash" and row["signal"] in child.KILLS:
                row["how"] = "killed"
            row |= known_cases.of_death(row, RunOptions.of_pytest(self.config.option))
            report = self._pending.pop(id(row))
            report.outcome, report.when = "failed", "???"  # as xdist has it
            _fill(report, row)
            self.config.hook.pytest_runtest_logreport(report=report)

    def _remote_death(self, crashitem: str, report: Any, sched: Any) -> None:
        """A worker on another machine died: its journal is there, so nobody knows the case. The item is examined again, and
        given up after several deaths; only the first one may have been the machine's."""
        from parity.store.rows import OUTSIDE, UNKNOWN

        item = part_of(crashitem)[0]
        before = [d for d in self.deaths if part_of(d["node"])[0] == item]
        row = {
            "node": crashitem, "item": item, "ordinal": -1, "case": "", "how": "killed", "stage": "unknown",
            "signal": f"a worker on {report.node.gateway.spec.ssh or 'another machine'} ended", "after": 0.0,
            "blame": UNKNOWN if before else OUTSIDE, "why": "its journal is on that machine",
            "last": len(before) + 1 >= ALONE_AFTER,
        }  # fmt: skip
        self.deaths.append(row)
        report.user_properties = [("parity", json.dumps({"death": row}))]
        if not row["last"]:
            sched.mark_test_pending(crashitem)

    def _row(self, crashitem: str, entry: Any, code: int | None, worker: str) -> dict[str, Any]:
        """The row to report for a death. entry: of the worker's journal, None if no case began."""
        from parity.engine import known_cases

        between = entry is None or (entry.item != part_of(crashitem)[0] and entry.pid not in self._killed)
        row = (self._between if between else self._within)(crashitem, entry, code, worker)
        return row | known_cases.of_death(row, RunOptions.of_pytest(self.config.option))

    def _between(self, crashitem: str, entry: Any, code: int | None, worker: str) -> dict[str, Any]:
        """The row to report for a worker that died before the first case of this item. Damage shows late: a death after the
        last case of the item before it is reported as that case's. Nothing of this item is left out."""
        from parity.store.rows import OUTSIDE, UNKNOWN

        how, blame, why = "crash", UNKNOWN, "it ended before its first case"
        if outside := code is not None and -code in child.OUTSIDERS:
            how, blame, why = "killed", OUTSIDE, "between two items; the second is run"
        row = {
            "node": crashitem, "item": part_of(crashitem)[0], "ordinal": -1, "case": "", "how": how, "stage": "before",
            "signal": child.word(code), "after": 0.0, "blame": blame, "why": why, "last": self._is_last(crashitem, outside),
        }  # fmt: skip
        if entry is None or outside:
            return row
        return {**self._within(crashitem, entry, code, worker), "ordinal": -1, "last": row["last"]}

    def _before(self, crashitem: str) -> list[dict[str, Any]]:
        return [d for d in self.deaths if part_of(d["node"])[0] == part_of(crashitem)[0]]

    def _is_last(self, crashitem: str, outside: bool) -> bool:
        """Whether the item is given up after one more death."""
        from parity.store.rows import OUTSIDE

        before = self._before(crashitem)
        own = sum(d["blame"] != OUTSIDE for d in before) + (not outside)
        return own >= self._most_deaths() or len(before) + 1 >= KILLS_PER_ITEM

    def _most_deaths(self) -> int:
        """After how many an item is given up. With a limit of time, what the starts of so many workers take is its share."""
        if self._timed is None:
            return DEATHS_PER_ITEM
        return min(DEATHS_PER_ITEM, max(LEAST_DEATHS, int(DYING_SHARE * self._timed.seconds / START_SECONDS)))

    def _within(self, crashitem: str, entry: Any, code: int | None, worker: str) -> dict[str, Any]:
        """The row to report for a death in a case, or after it. The first kill from outside is nobody's fault, and the item is
        examined again including its case."""
        from parity.store.rows import DEVICE, OUTSIDE, UNKNOWN

        how = "hang" if entry.pid in self._killed else "crash"
        stage = entry.stage if entry.running else "after"
        ordinal = entry.ordinal
        lost = self.folder / f"journal-{worker}.lost"
        after = round(time.monotonic() - entry.started, 1)
        words = f"the device computes nothing any more after {lost.read_text()[:300]}" if lost.exists() else child.word(code)
        words = f"ended by parity after {after} s" if how == "hang" else words
        before = self._before(crashitem)
        outside = how == "crash" and code is not None and -code in child.OUTSIDERS
        if outside and not any(d["case"] == entry.case for d in before):
            how, blame, why, ordinal = "killed", OUTSIDE, "the first time; it is run again", -1
        elif (stage == "device" and not outside) or lost.exists():
            blame, why = DEVICE, ""
        elif self._asked >= INQUESTS:
            blame, why = UNKNOWN, f"not looked into: {INQUESTS} deaths of this run were"
            how = "killed" if outside else how
        else:
            self._asked += 1
            blame, why = UNKNOWN, inquest.PENDING
        return {
            "node": crashitem, "item": entry.item, "ordinal": ordinal, "case": entry.case, "how": how, "stage": stage,
            "signal": words, "after": after, "blame": blame, "why": why,
            "last": self._is_last(crashitem, blame == OUTSIDE),
        }  # fmt: skip


def _fill(report: Any, row: Json) -> None:
    """Report a death as the failure of its test, or as expected if it is known."""
    report.user_properties = [("parity", json.dumps({"death": row}))]
    report.longrepr = f"{row['how']} ({row['signal']}) at stage {row['stage']}: {row['case']}"
    if row.get("known") and not row["fails"]:  # the scoreboard knows of no known findings
        report.outcome, report.wasxfail = "skipped", f"known: [{row['known']}] {report.longrepr}"


def _without_the_ended(send: Callable[..., None]) -> Callable[..., None]:
    """A function that sends to a worker, and leaves that where the worker has ended."""

    @functools.wraps(send)
    def to_the_living(name: str, **more: Any) -> None:
        with suppress(OSError):
            send(name, **more)

    return to_the_living


def _kill(pid: int) -> None:
    try:
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    except OSError:  # it has already ended
        pass


def _exit_code(node: Any) -> int | None:
    """The exit code of a worker's process. A remote worker has none."""
    process = _process(node)
    try:
        return None if process is None else process.wait(timeout=5)
    except Exception:  # it has not ended; the code is only reported
        return None


def _process(node: Any) -> Any:
    """The process of a worker, by private attributes, which may be missing in another version."""
    return getattr(getattr(getattr(node, "gateway", None), "_io", None), "popen", None)
