"""The progress of a run: a bar and the findings on a terminal, plain lines in a log. It also writes the run file."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from parity.core import untrusted
from parity.core.errors import OutputError
from parity.core.results import FINDINGS, Cause, Json, Record
from parity.coverage.features import Tally, unpack
from parity.report import causes as causes_text
from parity.report import output, summary
from parity.report.words import clock, plural, reproduce
from parity.runs import causes, run_file, suite
from parity.runs.known import Known
from parity.runs.rows import CPU, OUTSIDE, Death, End, Header, ItemRow, Power, Sighting, counted, totals
from parity.runs.run_file import Writer
from parity.runs.standing import FIXED, standings

BAR_SECONDS = 0.2
BAR_LEAST = 5  # least columns of a useful bar
LOG_STEPS = 10  # number of progress lines in a log


class Reporter:
    """A plugin of the controller that collects what the workers report. `exit_code` says how the run ended."""

    def __init__(
        self,
        header: Header,
        output: Path,
        stream: TextIO | None = None,
        fail_on: Sequence[str] = (),
        min_judged: float = 0.0,
        verbose: bool = False,
    ) -> None:
        self.header, self.output, self.fail_on, self.min_judged, self.verbose = header, output, fail_on, min_judged, verbose
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self.items: list[ItemRow] = []
        self.records: list[Record] = []
        self.power: list[Power] = []
        self.deaths: list[Death] = []
        self.known: Known | None = None  # the file of known findings
        self.strict = False  # whether known findings that are fixed fail the run
        self.sightings: list[Sighting] = []
        self.broken: list[str] = []
        self._tallies: dict[str, Tally] = {}
        self._ended: set[str] = set()  # items that will report no more
        self._whole: set[tuple[str, str]] = set()  # items that were examined completely
        self._causes: set[Cause] = set()
        self._dead: set[str] = set()  # how processes died
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
        """Keep the session, which can be asked to stop."""
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """The number of items is known once the first worker has collected."""
        self.expected = len(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record that the suite could not be collected."""
        if report.failed:
            self.broken.append(str(report.longrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in one phase of one item."""
        parts = [json.loads(str(value)) for key, value in report.user_properties if key == "parity"]
        comes_again = any("death" in part and not part["death"].get("last") for part in parts)
        if not comes_again and (report.when == "call" or report.failed):
            self._ended.add(report.nodeid)
        if report.when != "call" and not parts:
            if report.failed:
                self.broken.append(f"{report.nodeid}: {_why(report)}")
            return
        if report.when == "teardown":
            return
        self.failures += report.failed and not any("death" in part for part in parts)
        try:
            for part in parts:
                if "death" in part:
                    self._death(part["death"])
                else:
                    self._examined(part)
        except OutputError as e:  # a full disk must not cause a traceback or lose what is on the screen
            self.failed = self.failed or e
            self.stopped = "stopped: the run file cannot be written"
            if self._session is not None:
                self._session.shouldstop = str(e)
        if not parts and report.failed:
            self.broken.append(f"{report.nodeid}: {_why(report)}")
        self._progress()

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: keep what is done."""
        if not self.stopped:
            self.stopped = "interrupted"
            verb = "is" if self.done == 1 else "are"
            self.say(f"interrupted: keeping the {plural(self.done, 'item')} that {verb} done in {self.output}")

    # ------------------------------------------------------------------------------------------------ what they mean

    def _examined(self, part: dict[str, Any]) -> None:
        rows = [run_file.decode(line) for line in part["rows"]]
        items = {(r.op, r.dtype) for r in rows if isinstance(r, ItemRow)}
        if items & self._whole:  # its worker died after its last case, so another one examined it again
            return
        self._whole |= items
        for row in rows:
            if isinstance(row, ItemRow):
                self._drawn_features(row.op, part["features"])
                self.items.append(row)
                self.done += 1
                self.checks += sum(sum(c.values()) for c in row.counts.values())
            elif isinstance(row, Record):
                self.records.append(row)
            elif isinstance(row, Power):
                self.power.append(row)
            elif isinstance(row, Sighting):
                self.sightings.append(row)
        self.findings += len(part["findings"])
        for text in part["findings"] if self.verbose else ():
            self.say(text + "\n")
        if not self.verbose:
            self._new_causes(r for r in rows if isinstance(r, Record) and not r.known)
        for line in part["rows"]:  # last, so that a full disk loses neither counts nor output
            self._writer.write_line(line)

    def _new_causes(self, records: Iterable[Record]) -> None:
        """One line for each cause that this run has not met before."""
        for c in causes.gather(records):
            if c.cause not in self._causes:
                self._causes.add(c.cause)
                self.say(causes_text.line(c))

    def _drawn_features(self, op: str, packed: Json) -> None:
        row = suite.row(op)
        self._tallies.setdefault(row.family, Tally(row.family)).add(unpack(packed))

    def _death(self, row: dict[str, Any]) -> None:
        op, _, dtype = row["item"].rpartition("-")
        signal, why = untrusted.printable(row["signal"]), untrusted.printable(row["why"])
        how, known = row["how"], row.get("known", "")
        death = Death(op, dtype, row["case"], "", how, signal, row["stage"], blame=row["blame"], why=why, known=known)
        self.deaths.append(death)
        sighting = run_file.decode(row["sighting"]) if row.get("sighting") else None
        if isinstance(sighting, Sighting):
            self.sightings.append(sighting)
            self._writer.write(sighting)
        accepted = known and not row["fails"]
        self.findings += death.blame not in (CPU, OUTSIDE) and not accepted
        self.lost += [row["item"]] if row["last"] else []
        where = "the CPU" if death.acquitted else self.header.fingerprint.device
        how = signal if row["how"] == "hang" else f"the process died ({signal})"
        h = self.header
        again = reproduce(row["case"], h.fingerprint.device, h.faults.name, h.setup.name)
        goes = "again" if death.blame == OUTSIDE else "without it"
        goes = f"the run goes on without what is left of {row['item']}" if row["last"] else f"the item is examined {goes}"
        words = causes.death_words(death)
        if self.verbose or (words not in self._dead and not accepted):  # the summary counts the others
            self.say(
                f"{op} {dtype} on {where}: {row['how']}, {how} at stage {row['stage']}\n"
                f"  case: {row['case']}\n" + (f"  {why}\n" if why else "") + f"  {again}\n  {goes}\n"
            )
        self._dead.add(words)
        self._writer.write(death)

    # ------------------------------------------------------------------------------------------------ the screen

    def say(self, text: str) -> None:
        """Print a text above the bar."""
        self._write(text + "\n", wiped=True)
        self._drawn = 0.0

    def _write(self, text: str, wiped: bool = False) -> None:
        """Write to the stream, and continue without output if its reader is gone: the run file and the exit code are still
        needed. wiped: whether to overwrite the bar."""
        try:
            if wiped and self.live:
                output.control(self.stream, "\r\033[K")
            self.stream.write(text)
            self.stream.flush()
        except OSError as e:
            if not isinstance(e, BrokenPipeError):  # a reader that closed the pipe needs no message
                print(f"parity: cannot write to the standard output ({e.strerror}); the run goes on", file=sys.stderr)
            self.live, self.stream = False, open(os.devnull, "w")  # noqa: SIM115 -- lives as long as the run

    def _progress(self) -> None:
        spent = time.monotonic() - self.started
        fraction = self.done / max(1, self.expected)
        figures = f"{plural(self.checks, 'check')}  {plural(self.findings, 'finding')}  {clock(spent)}"
        text = f"{self.done}/{self.expected} items  {figures}"
        if self.live:
            if time.monotonic() - self._drawn < BAR_SECONDS and self.done < self.expected:
                return
            self._drawn = time.monotonic()
            text += f"  {clock(spent / fraction - spent)} left" if fraction > 0.02 else ""
            columns = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
            width = min(40, columns - len(text) - 10)
            full = int(fraction * width)
            bar = f"[{'#' * full}{'.' * (width - full)}] " if width >= BAR_LEAST else ""
            self._write(f"{bar}{fraction:4.0%}  {text}"[:columns], wiped=True)
        elif int(fraction * LOG_STEPS) > self._step:
            self._step = int(fraction * LOG_STEPS)
            self._write(f"{fraction:4.0%}  {text}\n")

    # ------------------------------------------------------------------------------------------------ the end

    @property
    def exit_code(self) -> int:
        """0 for no findings but known ones, 1 for findings, 3 if nothing was compared."""
        has_findings = any(not d.known for d in counted(self.deaths, self.items))
        has_findings |= any(r.status in FINDINGS and not r.known for r in self.records)
        has_findings |= any(s.fails for s in self.sightings) or (self.strict and self._has_fixed())
        if has_findings or self.broken or self.failures:
            return 1
        return 0 if any(summary.compared(i) for i in self.items) else 3

    def _has_fixed(self) -> bool:
        entries = self.known.entries if self.known is not None else ()
        return any(s.state == FIXED for s in standings(entries, self.sightings))

    def finish(self, exit_code: int) -> None:
        """Write the end of the run file, and print the summary. Raises OutputError if the run file could not be written."""
        seconds = time.monotonic() - self.started
        coverage = [t.coverage() for t in self._tallies.values()]
        whole = len(self._ended) >= self.expected
        if whole and self.expected and self.stopped == "interrupted":  # interrupted only while the workers shut down
            self.stopped = ""
        if not self.stopped and not whole:
            self.stopped = "broken off"
        try:
            for family in coverage:
                self._writer.write(family)
            lost, broken = tuple(self.lost), tuple(untrusted.printable(b)[:400] for b in self.broken)
            self._writer.write(End(seconds, dict(totals(self.items)), self.stopped, self.expected, lost, broken))
            self._writer.close()
        except OutputError as e:
            self.failed = self.failed or e
        width = shutil.get_terminal_size().columns if self.live else None
        data = summary.SummaryData(
            self.header, self.items, self.records, self.deaths, self.power, coverage, self.broken, seconds, str(self.output),
            self.fail_on, self.min_judged, self.lost, self.verbose, self.known, self.sightings, self.strict,
        )  # fmt: skip
        screen = summary.render(data, width) + "\n\n" + summary.last_line(data, exit_code) + "\n"
        if self.stopped:
            how, _, why = self.stopped.partition(": ")
            screen += f"the run was {how} after {self.done} of {self.expected} items{f': {why}' if why else ''}\n"
        self._write(screen, wiped=True)
        if self.failed is not None:
            raise self.failed


def _why(report: pytest.TestReport) -> str:
    """Why a test failed, in one line: the error if pytest keeps one, else the end of its text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip().splitlines()[-1]
    return f"{str(crash.message).strip().splitlines()[0]} ({crash.path}:{crash.lineno})"
