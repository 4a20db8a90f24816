"""Survival of workers that die or hang, in the controller of an xdist run."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity.faces.far import is_far
from parity.runs.options import RunOptions
from parity.runs.rounds import CUT, GRACE_SECONDS, part_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]  # xdist ships no types

    from parity.faces.scheduling import Rounds

DEATHS_PER_ITEM = 3
INQUESTS = 24  # most inquests of a run; each takes as long as starting six processes
WATCH_SECONDS = 0.2


class Survival:
    """In the controller: reads the journals, kills a worker whose case is overdue, and gives the item of a dead worker to
    another one, without the case that killed it. At most three deaths per item; cases that are not run afterwards are
    reported."""

    def __init__(self, config: pytest.Config, rounds: Rounds | None = None) -> None:
        """rounds: of a run with a limit of time, after which no worker may hold it up."""
        self.config, self._rounds = config, rounds
        self._cut: set[int] = set()  # workers that were ended because the time was over
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
        """Start the watching thread."""
        self._thread.start()

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        """Stop the watching thread."""
        self._over.set()
        if self._scratch is not None:
            self._scratch.cleanup()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Tell a new worker the path of its journal."""
        node.workerinput["parity_rundir"] = str(self.folder)
        self._nodes[node.gateway.id] = node

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        """End the workers at once: they ignore Ctrl-C, and xdist would wait ten seconds for them. From here on, another Ctrl-C
        must not interrupt the report and the run file."""
        from parity.runs import journal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for worker in list(self._nodes):
            entry = journal.read(self.folder / f"journal-{worker}")
            if entry is not None:
                _kill(entry.pid)

    def _watch(self) -> None:
        from parity.runs import journal

        while not self._over.wait(WATCH_SECONDS):
            late = self._rounds is not None and self._rounds.left < -GRACE_SECONDS
            for worker in list(self._nodes):
                entry = journal.read(self.folder / f"journal-{worker}")
                if entry is not None and late and entry.running and entry.pid not in self._killed:
                    self._cut.add(entry.pid)
                    _kill(entry.pid)
                if entry is not None and entry.overdue and entry.pid not in self._killed:
                    self._killed[entry.pid] = entry  # its state before the kill
                    _kill(entry.pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """A worker died in this item."""
        from parity.runs import inquest, journal

        worker = report.node.gateway.id
        self._nodes.pop(worker, None)
        entry = journal.read(self.folder / f"journal-{worker}")
        code = _exit_code(report.node)
        if entry is None and is_far(report.node):
            self._far_death(crashitem, report, sched)
            return
        if entry is None:
            report.longrepr = f"worker {worker} died ({inquest.word(code)}) before its first case while it ran {crashitem}"
            return
        if entry.pid in self._cut:
            report.user_properties = [("parity", json.dumps({"cut": CUT, "case": entry.case}))]
            report.outcome, report.longrepr = "skipped", (crashitem, 0, f"the time was over during {entry.case}")
            return
        entry = self._killed.get(entry.pid, entry)  # its state before the kill
        row = self._row(crashitem, entry, code, worker)
        self.deaths.append(row)
        with (self.folder / journal.DEATHS).open("a") as f:  # before another worker gets the item
            f.write(json.dumps(row) + "\n")
        report.user_properties = [("parity", json.dumps({"death": row}))]
        report.longrepr = f"{row['how']} ({row['signal']}) at stage {row['stage']}: {row['case']}"
        if row.get("known") and not row["fails"]:  # the scoreboard knows of no known findings
            report.outcome, report.wasxfail = "skipped", f"known: [{row['known']}] {report.longrepr}"
        if not row["last"]:
            try:
                sched.mark_test_pending(crashitem)
            except NotImplementedError:
                pass  # loadscope and similar schedulers put the whole unit back themselves

    def _far_death(self, crashitem: str, report: Any, sched: Any) -> None:
        """A worker on another machine died: its journal is there, so nobody knows the case. The item is examined again, and
        given up after several deaths; only the first one may have been the machine's."""
        from parity.runs.rows import OUTSIDE, UNKNOWN

        item = part_of(crashitem)[0]
        before = [d for d in self.deaths if part_of(d["node"])[0] == item]
        row = {
            "node": crashitem, "item": item, "ordinal": -1, "case": "", "how": "killed", "stage": "unknown",
            "signal": f"a worker on {report.node.gateway.spec.ssh or 'another machine'} ended", "after": 0.0,
            "blame": UNKNOWN if before else OUTSIDE, "why": "its journal is on that machine",
            "last": len(before) + 1 >= DEATHS_PER_ITEM,
        }  # fmt: skip
        self.deaths.append(row)
        report.user_properties = [("parity", json.dumps({"death": row}))]
        if not row["last"]:
            sched.mark_test_pending(crashitem)

    def _row(self, crashitem: str, entry: Any, code: int | None, worker: str) -> dict[str, Any]:
        """The row to report for a death. A death between two cases is assigned to the earlier case, because damage shows late.
        The first kill from outside is nobody's fault, and the item is examined again including its case."""
        from parity.runs import inquest
        from parity.runs.rows import DEVICE, OUTSIDE, UNKNOWN

        how = "hang" if entry.pid in self._killed else "crash"
        stage = entry.stage if entry.running else "after"
        own = part_of(crashitem)[0] == entry.item
        ordinal = entry.ordinal if own else -1
        lost = self.folder / f"journal-{worker}.lost"
        after = round(time.monotonic() - entry.started, 1)
        words = f"the device computes nothing any more after {lost.read_text()[:300]}" if lost.exists() else inquest.word(code)
        words = f"ended by parity after {after} s" if how == "hang" else words
        before = [d for d in self.deaths if part_of(d["node"])[0] == part_of(crashitem)[0]]
        outside = how == "crash" and code is not None and -code in inquest.OUTSIDERS
        if outside and not any(d["case"] == entry.case for d in before):
            how, blame, why, ordinal = "killed", OUTSIDE, "the first time; it is run again", -1
        elif (stage == "device" and not outside) or lost.exists():
            blame, why = DEVICE, ""
        elif self._inquests >= INQUESTS:
            blame, why = UNKNOWN, f"not looked into: {INQUESTS} deaths of this run were"
        else:
            self._inquests += 1
            o = RunOptions.of_pytest(self.config.option)
            again = inquest.How(o.device, o.faults, o.setup)
            blame, why = inquest.held(entry.case, again, entry.allowed, how == "hang")
            how = "killed" if outside and blame == UNKNOWN else how
        return {
            "node": crashitem, "item": entry.item, "ordinal": ordinal, "case": entry.case, "how": how, "stage": stage,
            "signal": words, "after": after, "blame": blame, "why": why, "last": len(before) + 1 >= DEATHS_PER_ITEM,
            **self._known(entry, how, words, stage, blame),
        }  # fmt: skip

    def _known(self, entry: Any, how: str, words: str, stage: str, blame: str) -> dict[str, Any]:
        """Whether a death is known: the entry's id, whether it fails all the same, and the row to store."""
        from datetime import date

        from parity.core import untrusted
        from parity.runs import known, suite
        from parity.runs.examine import REPLAYING, SHRINKING
        from parity.runs.recognition import known_death
        from parity.runs.rows import CPU, OUTSIDE, Death
        from parity.runs.run_file import encode

        o = RunOptions.of_pytest(self.config.option)
        nothing = {"known": "", "fails": False, "sighting": ""}
        if not o.known or blame in (CPU, OUTSIDE):
            return nothing
        op, _, dtype = entry.item.rpartition("-")
        death = Death(op, dtype, entry.case, "", how, untrusted.printable(words), stage)
        pinned = entry.ordinal < suite.profile(o.profile).pinned or REPLAYING <= entry.ordinal < SHRINKING
        entries = known.read(Path(o.known)).entries
        seen = known_death(entries, death, pinned, date.today(), o.strict_known)
        return nothing if seen is None else {"known": seen.id, "fails": seen.fails, "sighting": encode(seen)}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    except OSError:  # it has already ended
        pass


def _exit_code(node: Any) -> int | None:
    """The exit code of a worker's process, by private attributes: execnet has no public access to it. A remote worker has
    none."""
    try:
        code: int = node.gateway._io.popen.wait(timeout=5)
    except Exception:  # private attributes may be missing in another version; the code is only reported
        return None
    return code
