"""A run as it goes: a bar and the findings as they come, on a terminal; plain lines in a log. Writes the run file."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from parity import output, store, suite, untrusted
from parity.errors import OutputError
from parity.features import Tally, unpack
from parity.report import summary
from parity.report.words import clock, plural, reproduce
from parity.store import Death, End, Header, Item, Power, Writer
from parity.vocabulary import FINDINGS, Json, Record

BAR_SECONDS = 0.2
BAR_LEAST = 5  # columns below which a bar says nothing
LOG_STEPS = 10  # lines of progress in a log


class Reporter:
    """A plugin of the controller: collects what the workers report. `exit_code` says how the run ended."""

    def __init__(
        self,
        header: Header,
        output: Path,
        stream: TextIO | None = None,
        fail_on: Sequence[str] = (),
        min_judged: float = 0.0,
    ) -> None:
        self.header, self.output, self.fail_on, self.min_judged = header, output, fail_on, min_judged
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self.items: list[Item] = []
        self.records: list[Record] = []
        self.power: list[Power] = []
        self.deaths: list[Death] = []
        self.broken: list[str] = []
        self._tallies: dict[str, Tally] = {}
        self._ended: set[str] = set()  # the items of which nothing more will come
        self._whole: set[tuple[str, str]] = set()  # the items that were examined to their end
        self.lost: list[str] = []
        self.expected = self.done = self.checks = self.findings = self.failures = 0
        self.started = time.monotonic()
        self.stopped = ""
        self.failed: OutputError | None = None
        self._session: pytest.Session | None = None
        self._drawn = 0.0
        self._step = 0
        self._writer = Writer(output)
        self._writer.write(header)

    # ------------------------------------------------------------------------------------------------ pytest's hooks

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """The session can be asked to stop."""
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """The number of items is known once the first worker has collected."""
        self.expected = len(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A suite that cannot be collected."""
        if report.failed:
            self.broken.append(str(report.longrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one item."""
        told = [json.loads(str(value)) for key, value in report.user_properties if key == "parity"]
        comes_again = any("death" in part and not part["death"].get("last") for part in told)
        if not comes_again and (report.when == "call" or report.failed):
            self._ended.add(report.nodeid)
        if report.when != "call" and not told:
            if report.failed:
                self.broken.append(f"{report.nodeid}: {_why(report)}")
            return
        if report.when == "teardown":
            return
        self.failures += report.failed and not any("death" in part for part in told)
        try:
            for part in told:
                if "death" in part:
                    self._death(part["death"])
                else:
                    self._examined(part)
        except OutputError as e:  # a full disk must not end in a traceback, nor lose what is on the screen
            self.failed = self.failed or e
            self.stopped = "stopped: the run file cannot be written"
            if self._session is not None:
                self._session.shouldstop = str(e)
        if not told and report.failed:
            self.broken.append(f"{report.nodeid}: {_why(report)}")
        self._progress()

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: what is done is kept."""
        if not self.stopped:
            self.stopped = "interrupted"
            verb = "is" if self.done == 1 else "are"
            self.say(f"interrupted: keeping the {plural(self.done, 'item')} that {verb} done in {self.output}")

    # ------------------------------------------------------------------------------------------------ what they mean

    def _examined(self, part: dict[str, Any]) -> None:
        rows = [store.decode(line) for line in part["rows"]]
        items = {(r.op, r.dtype) for r in rows if isinstance(r, Item)}
        if items & self._whole:  # its worker died behind its last case, and another one examined it once more
            return
        self._whole |= items
        for row in rows:
            if isinstance(row, Item):
                self._drawn_features(row.op, part["features"])
                self.items.append(row)
                self.done += 1
                self.checks += sum(sum(c.values()) for c in row.counts.values())
            elif isinstance(row, Record):
                self.records.append(row)
            elif isinstance(row, Power):
                self.power.append(row)
        for text in part["findings"]:
            self.findings += 1
            self.say(text + "\n")
        for line in part["rows"]:  # last: what a full disk keeps from the file has been counted and told
            self._writer.write_line(line)

    def _drawn_features(self, op: str, packed: Json) -> None:
        row = suite.row(op)
        self._tallies.setdefault(row.family, Tally(row.family)).add(unpack(packed), row.never)

    def _death(self, row: dict[str, Any]) -> None:
        op, _, dtype = row["item"].rpartition("-")
        signal, why = untrusted.printable(row["signal"]), untrusted.printable(row["why"])
        death = Death(op, dtype, row["case"], "", row["how"], signal, row["stage"], blame=row["blame"], why=why)
        self.deaths.append(death)
        self.findings += death.blame not in (store.CPU, store.OUTSIDE)
        self.lost += [row["item"]] if row["last"] else []
        where = "the CPU" if death.acquitted else self.header.fingerprint.device
        how = signal if row["how"] == "hang" else f"the process died ({signal})"
        h = self.header
        again = reproduce(row["case"], h.fingerprint.device, h.faults.name, h.setup.name)
        goes = "again" if death.blame == store.OUTSIDE else "without it"
        goes = f"the run goes on without what is left of {row['item']}" if row["last"] else f"the item is examined {goes}"
        self.say(
            f"{op} {dtype} on {where}: {row['how']}, {how} at stage {row['stage']}\n"
            f"  case: {row['case']}\n" + (f"  {why}\n" if why else "") + f"  {again}\n  {goes}\n"
        )
        self._writer.write(death)

    # ------------------------------------------------------------------------------------------------ the screen

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._write(text + "\n", wiped=True)
        self._drawn = 0.0

    def _write(self, text: str, wiped: bool = False) -> None:
        """Write, and go on in silence where the reader has gone away: the run file and the exit code are still wanted. wiped:
        over the bar, where there is one."""
        try:
            if wiped and self.live:
                output.control(self.stream, "\r\033[K")
            self.stream.write(text)
            self.stream.flush()
        except OSError as e:
            if not isinstance(e, BrokenPipeError):  # a reader that has seen enough wants to hear nothing
                print(f"parity: cannot write to the standard output ({e.strerror}); the run goes on", file=sys.stderr)
            self.live, self.stream = False, open(os.devnull, "w")  # noqa: SIM115 -- lives as long as the run

    def _progress(self) -> None:
        spent = time.monotonic() - self.started
        share = self.done / max(1, self.expected)
        told = f"{plural(self.checks, 'check')}  {plural(self.findings, 'finding')}  {clock(spent)}"
        text = f"{self.done}/{self.expected} items  {told}"
        if self.live:
            if time.monotonic() - self._drawn < BAR_SECONDS and self.done < self.expected:
                return
            self._drawn = time.monotonic()
            text += f"  {clock(spent / share - spent)} left" if share > 0.02 else ""
            columns = shutil.get_terminal_size().columns - 1  # a line that breaks could not be wiped out again
            width = min(40, columns - len(text) - 10)
            full = int(share * width)
            bar = f"[{'#' * full}{'.' * (width - full)}] " if width >= BAR_LEAST else ""
            self._write(f"{bar}{share:4.0%}  {text}"[:columns], wiped=True)
        elif int(share * LOG_STEPS) > self._step:
            self._step = int(share * LOG_STEPS)
            self._write(f"{share:4.0%}  {text}\n")

    # ------------------------------------------------------------------------------------------------ the end

    @property
    def exit_code(self) -> int:
        """0 nothing to report, 1 findings, 3 nothing was compared."""
        found = bool(store.counted(self.deaths, self.items)) or any(r.status in FINDINGS for r in self.records)
        if found or self.broken or self.failures:
            return 1
        return 0 if any(summary.compared(i) for i in self.items) else 3

    def finish(self, exit_code: int) -> None:
        """Write the end of the run file, and print the summary. Raises OutputError where the run file could not be written."""
        seconds = time.monotonic() - self.started
        coverage = [t.coverage() for t in self._tallies.values()]
        whole = len(self._ended) >= self.expected
        if whole and self.expected and self.stopped == "interrupted":  # while the workers were sent home
            self.stopped = ""
        if not self.stopped and not whole:
            self.stopped = "broken off"
        try:
            for family in coverage:
                self._writer.write(family)
            lost, broken = tuple(self.lost), tuple(untrusted.printable(b)[:400] for b in self.broken)
            self._writer.write(End(seconds, dict(store.totals(self.items)), self.stopped, self.expected, lost, broken))
            self._writer.close()
        except OutputError as e:
            self.failed = self.failed or e
        width = shutil.get_terminal_size().columns if self.live else None
        told = summary.Told(
            self.header, self.items, self.records, self.deaths, self.power, coverage, self.broken, seconds, str(self.output),
            self.fail_on, self.min_judged, self.lost,
        )  # fmt: skip
        screen = summary.render(told, width) + "\n\n" + summary.last_line(told, exit_code) + "\n"
        if self.stopped:
            how, _, why = self.stopped.partition(": ")
            screen += f"the run was {how} after {self.done} of {self.expected} items{f': {why}' if why else ''}\n"
        self._write(screen, wiped=True)
        if self.failed is not None:
            raise self.failed


def _why(report: pytest.TestReport) -> str:
    """What a test failed with, in one line: the error where pytest keeps one, else the end of its text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip().splitlines()[-1]
    return f"{str(crash.message).strip().splitlines()[0]} ({crash.path}:{crash.lineno})"
