"""The progress of a run on the screen: what its parts bring is handed to `RunState`, and put into words."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import pytest

from parity.core import machine, processes
from parity.core.errors import CaseError, OutputError, RunFileError
from parity.core.results import Cause, Record
from parity.engine import again
from parity.engine.inquest import How
from parity.engine.merging import Kept, as_part
from parity.engine.rounds import LEAST_SECONDS, part_of
from parity.engine.run_state import INTERRUPTED, SCRIPTS, RunState, is_accepted
from parity.faces.interruption import Interruptions, stop_soon
from parity.findings import causes, weights
from parity.findings.wording import death_words
from parity.report import causes as causes_text
from parity.report import gaps, summary
from parity.report.output import Screen
from parity.report.script_text import excused
from parity.report.words import clock, code_options, plural, reproduced
from parity.store import run_file
from parity.store.rows import OUTSIDE, Death, ItemRow, Row, Shrunk

NOTABLE = 100 << 20  # bytes by which an item must grow its worker to be named
FIRST = 5  # causes that are shown as they are found
# Writes the script of a death for a device into a folder; None if it cannot be written in torch alone.
WriteScript: TypeAlias = Callable[[Death, str, Path], Path | None]


class Growth:
    """Collects what the workers occupy after each item. Mutable."""

    def __init__(self) -> None:
        self.most = self.replaced = 0
        self.grown: dict[str, int] = {}  # item -> bytes by which it grew its worker

    def add(self, figures: Mapping[str, Any], rows: Iterable[object]) -> None:
        """Take in what a worker said with an item. figures: bytes before and after, and whether it is full; {} for nothing."""
        if not figures:
            return
        self.most = max(self.most, int(figures["after"]))
        self.replaced += bool(figures["full"])
        name = next((f"{r.op} {r.dtype}" for r in rows if isinstance(r, ItemRow)), "")
        self.grown[name] = max(self.grown.get(name, 0), int(figures["after"]) - int(figures["before"]))

    def in_words(self) -> str:
        """The most that a worker occupied, the item that grew one most, and how many were replaced; empty if nobody said."""
        if not self.most:
            return ""
        name = max(self.grown, key=self.grown.__getitem__)
        parts = [f"a worker occupied {machine.size(self.most)} at most"]
        if name and self.grown[name] >= NOTABLE:
            parts.append(f"{name} added {machine.size(self.grown[name])}")
        if self.replaced:
            parts.append(f"{plural(self.replaced, 'worker')} passed the share and gave way to another")
        return ", ".join(parts)


class Reporter:
    """A plugin of the controller that collects what the workers report, and prints it."""

    def __init__(self, run: RunState, stream: TextIO | None = None, verbose: bool = False) -> None:
        """run: where it is collected."""
        self.run, self.verbose = run, verbose
        self._screen = Screen(stream)
        self.memory = Growth()
        self._causes: set[Cause] = set()
        self._said_found, self._first_in = False, ""  # the test in which it was found, if that went on then
        self._dead: set[str] = set()  # how processes died
        self.unexplained = ""
        self._session: pytest.Session | None = None

    def resume(self, kept: Kept) -> None:
        """Take what is whole in the file of an interrupted run, and go on in that file. Until it is replaced, it stays as it
        is."""
        self._screen.muted = True
        for rows in kept.parts.values():
            for d in (r for r in rows if isinstance(r, Death)):
                self._dead.add(death_words(d))
                self.run.kept_death(d)
            self._examined(as_part(rows))
        self._screen.muted = False
        self.run.resume(kept)

    # ------------------------------------------------------------------------------------------------ parity's own hooks

    def pytest_parity_yields(self) -> Mapping[str, float] | None:
        """What items bring, as this run counts it."""
        return None if self.run.timed is None else self.run.timed.yields

    def pytest_parity_explains_later(self) -> bool:
        """As the run says."""
        return self.run.explains_later

    def pytest_parity_idle(self, workers: int, idle: int) -> None:
        """The bar shows what is left."""
        self.run.idle(workers, idle)

    def pytest_parity_say(self, text: str) -> None:
        """Print it."""
        self.say(text)

    # ------------------------------------------------------------------------------------------------ pytest's hooks

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, which can be asked to stop."""
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """The number of items is known once the first worker has collected."""
        self.run.collected(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record that the suite could not be collected."""
        if report.failed:
            self.run.broken.append(str(report.longrepr))

    @Interruptions.later()  # what is counted must be stored, too: a file with other sums cannot be read
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in one phase of one item."""
        parts = [json.loads(str(value)) for key, value in report.user_properties if key == "parity"]
        if any("cut" in part for part in parts):  # the time was over
            for case in (part["case"] for part in parts if "case" in part):
                command = reproduced(case, self.run.header)
                self.say(f"ended when the time was over, and not judged: a case that was still running\n  {command}")
            return
        if first := [run_file.decode(part["first"]) for part in parts if "first" in part]:
            self._first_in = self._first_in or report.nodeid
            self._first_found(r for r in first if isinstance(r, Record) and not self.verbose)
            return
        comes_again = any("death" in part and not part["death"].get("last") for part in parts)
        if not comes_again and (report.when == "call" or report.failed):
            self.run.end_of(report.nodeid)
        if report.when != "call" and not parts:
            if report.failed:
                self.run.broken.append(f"{_item(report)}: {_why(report)}")
            return
        if report.when == "teardown":
            return
        # Findings fail the run only if they are reproduced; the end of the run decides.
        found = any("death" in p or p["findings"] or p.get("deaths") for p in parts)
        self.run.failures += report.failed and not found
        try:
            for part in parts:
                if "death" in part:
                    self._death(part["death"])
                else:
                    self._examined(part)
        except RunFileError as e:  # one item's rows must not take those of all others with them
            self.run.broken.append(f"{_item(report)}: {e}")
        except OutputError as e:  # a full disk must not cause a traceback or lose what is on the screen
            self.run.failed = self.run.failed or e
            self.run.stopped = "stopped: the run file cannot be written"
            if self._session is not None:
                stop_soon(self._session.config, str(e))
        if not parts and report.failed:
            self.run.broken.append(f"{_item(report)}: {_why(report)}")
        self._progress()

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: keep what is done."""
        if not self.run.stopped:
            self.run.stopped = INTERRUPTED
            verb = "is" if self.run.done == 1 else "are"
            lost = self._said_found and self._first_in and self._first_in not in self.run.ended
            more = "; the first finding is of one that is not" if lost else ""
            self.say(f"interrupted: keeping the {plural(self.run.done, 'item')} that {verb} done in {self.run.output}{more}")

    # ------------------------------------------------------------------------------------------------ what they mean

    def _examined(self, part: dict[str, Any]) -> None:
        taken = self.run.take(part)
        if taken is None:
            return
        for row, death in zip(part.get("deaths", ()), taken.deaths):
            self._say_death(row, death)
        for text in part["findings"] if self.verbose and not taken.held else ():
            self.say(text + "\n")
        if not self.verbose:
            self._first_found(r for r in taken.rows.values() if taken.held and isinstance(r, Record) and r.unexplained)
            self._new_causes(taken.found)
        self.memory.add(part.get("memory", {}), taken.rows.values())
        self._write_scripts(part.get("scripts", {}))
        self.run.store(taken)  # last, so that a full disk loses neither counts nor output
        if self.run.only_causes_left:
            self._progress()
            self.run.begin_to_look()
            all_found = self.run.explained + len(self.run.held)
            self._screen.begin_anew(self.run.explained / max(1, all_found))
            found = plural(all_found, "item")
            how_long = "at most" if self.run.known is None else "once one is new"
            self.say(f"looking for the causes of what {found} found, for about {clock(self.run.share)} {how_long}")

    @Interruptions.later()
    def own(self, row: Row | str) -> None:
        """Take in a row of a user's own function; the records of an item come before it. A text: why a function says
        nothing."""
        if isinstance(row, Record):
            self.run.own_records.append(row)
        elif isinstance(row, ItemRow):
            rows = self.run.own_item(row)
            self._new_causes(r for r in rows if isinstance(r, Record) and not r.known)
            for r in rows:
                self.run.writer.write(r)
        elif isinstance(row, Death):
            self.say(f"{row.op} on {self.run.header.fingerprint.device}: {row.how} ({row.signal})")
            self.run.own_death(row)
        elif isinstance(row, str):
            self.run.expect_own(row)
            self.run.broken.append(row)
            self.say(row)

    def _write_scripts(self, scripts: dict[str, str]) -> None:
        """The scripts of findings of another machine."""
        for name, text in scripts.items():
            path = self.run.scripts / Path(name).name
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as e:  # a full disk must not cost the finding
                self.say(f"cannot write {path}: {e.strerror or e}")

    def _new_causes(self, records: Iterable[Record]) -> None:
        """One line for each of the first causes of this run; the end has all."""
        for c in causes.gather(records):
            if c.cause not in self._causes:
                self._causes.add(c.cause)
                if len(self._causes) <= FIRST:
                    self.say(causes_text.line(c))
                elif len(self._causes) == FIRST + 1:
                    self.say("... and more causes: the end of the run and parity report list them")

    def _first_found(self, records: Iterable[Record]) -> None:
        """One line of the first finding of a run, as it was drawn: looking for its cause takes a while."""
        worst = min(records, key=lambda r: weights.promise([r]).order, default=None)
        if worst is not None and not self._causes and not self._said_found:
            self._said_found = True
            self.say(causes_text.as_drawn(worst))

    def _death(self, row: dict[str, Any]) -> None:
        self._say_death(row, self.run.death(row))

    def _say_death(self, row: dict[str, Any], death: Death) -> None:
        where = "the CPU" if death.acquitted else self.run.header.fingerprint.device
        how = death.signal if row["how"] == "hang" else f"the process died ({death.signal})"
        command = reproduced(row["case"], self.run.header)
        goes = "again" if death.blame == OUTSIDE else "without it"
        goes = f"the item is examined {goes}" if not row["last"] else f"the run goes on without what is left of {row['item']}"
        words = death_words(death)
        if self.verbose or (words not in self._dead and not is_accepted(row)):  # the summary counts the others
            self.say(
                f"{death.op} {death.dtype} on {where}: {row['how']}, {how} at stage {row['stage']}\n"
                + (f"  case: {row['case']}\n" if row["case"] else "")
                + (f"  {death.why}\n" if death.why else "")
                + (f"  {command}\n" if row["case"] else "")
                + f"  {goes}\n"
            )
        self._dead.add(words)
        self.run.writer.write(death)

    def _progress(self) -> None:
        run, spent = self.run, time.monotonic() - self.run.started
        fraction, began = run.done / max(1, run.expected), run.started
        if run.timed is not None:
            fraction = min(1.0, spent / run.timed.seconds)
        figures = f"{plural(run.checks, 'check')}  {plural(run.findings, 'finding')}  {clock(spent)}"
        text = f"{run.done}/{run.expected} items  {figures}"
        if run.timed is not None and len(run.timed.rounds) > 1:
            text = f"round {len(run.timed.rounds) - 1}  {figures}"
        if run.looking:
            found = run.explained + len(run.held)
            fraction, began = run.explained / max(1, found), run.looking
            text = f"causes of {run.explained}/{found} items  {figures}"
        self._screen.show(fraction, text, time.monotonic() - began, run.share)

    def say(self, text: str) -> None:
        """Print a text above the bar."""
        self._screen.say(text)

    def wait(self, text: str, seconds: float) -> None:
        """Say on a terminal what takes up to so many seconds."""
        self._screen.wait(text, seconds)

    # ------------------------------------------------------------------------------------------------ the end

    def take_shrunk(self, done: Sequence[Shrunk], device: str, seconds: float, write: WriteScript) -> None:
        """Print and store the least case of each kind of death. seconds: that it took; write: writes the script of one."""
        shrunk = [s for s in done if s.death.shrunk]
        took = f"{clock(seconds)} ({plural(sum(s.died for s in done), 'process')})"
        text = f"{len(shrunk)} of {plural(len(done), 'kind')} of deaths shrunk in {took}"
        why = dict.fromkeys(f"{s.death.op}: {s.why}" for s in done if s.why)
        self.say("; ".join([text, *why]))
        try:
            for s in shrunk:
                self.run.take_shrunk(s, self._with_script(s.death, device, write))
        except OutputError as e:
            self.run.failed = self.run.failed or e

    def _with_script(self, d: Death, device: str, write: WriteScript) -> Death:
        try:
            path = write(d, device, self.run.scripts)
        except (OutputError, CaseError) as e:  # a full disk must not cost the least case
            self.say(f"no script of {d.shrunk}: {e}")
            return d
        return d if path is None else replace(d, script=f"{path.parent.name}/{path.name}")

    def try_again(self, how: How, workers: int, seconds: float) -> None:
        """Try the findings that are not known once more in fresh processes. seconds: the time for it."""
        found = len(self.run.to_try)
        if not found or self.run.is_cut:
            return
        started = time.monotonic()
        self.wait(f"trying {plural(found, 'finding')} again in fresh processes", min(seconds, again.LIMIT))
        done = self.run.try_again(how, workers, seconds)
        self._excuse_scripts()
        came, left = sum(a.came for a in done), found - len(done)
        later = sum(bool(a.history) for a in done)
        text = f"{came} of {plural(found, 'finding')} reproduced in fresh processes"
        text += f", {later} of them only after other calls" if later else ""
        text += f" ({clock(time.monotonic() - started)})"
        self.say(text + (f"; {left} could not be tried, and count" if left else ""))

    def _excuse_scripts(self) -> None:
        """Say in the scripts of findings that do not come by themselves what is needed."""
        for r in (r for r in self.run.records if r.script and not r.shows_alone):
            path = self.run.scripts / Path(r.script).name
            if path.is_file():
                command = reproduced(r.shrunk, self.run.header)
                self._write_scripts({r.script: excused(path.read_text(encoding="utf-8"), r, command)})

    def print_unexplained(self) -> None:
        """Print the findings for whose causes no time was left, as they were drawn."""
        n, held = self.run.explained + len(self.run.held), self.run.without_causes()
        for h in held:
            for text in h.texts if self.verbose else ():
                self.say(text + "\n")
            if not self.verbose:
                self._new_causes(h.records)
        if held:
            text = f"of the findings of {len(held)} of {plural(n, 'item')} no cause was looked for, and no smaller case"
            share = f": that had its share of the time, as long as the rest or {LEAST_SECONDS:.0f} s of each worker"
            known = ", so they count as new" if self.run.header.known.name else ""
            self.unexplained = f"{text}{known}{'' if self.run.stopped else share}; to go on: {self._go_on()}"

    def _go_on(self) -> str:
        """The command that goes on with this run."""
        where = "" if self.run.scripts == SCRIPTS else f" --findings {shlex.quote(str(self.run.scripts))}"
        options = code_options(self.run.header, "known")
        return f"{processes.called()} run --resume {shlex.quote(str(self.run.output))}{options}{where}"

    def finish(self, exit_code: int) -> None:
        """Write the end of the run file, and print the summary. Raises OutputError if the run file could not be written."""
        run, seconds = self.run, time.monotonic() - self.run.started
        if run.early is not None:
            run.early.stop()
        self.print_unexplained()
        coverage = run.close(seconds)
        stopped, go_on = self._cut()
        data = summary.SummaryData(
            run.header, run.result(stopped), run.power, coverage, seconds, str(run.output), run.lost, self.verbose,
            "" if run.timed is None else gaps.reached(run.timed, sum(i.cases for i in run.items)),
            self.memory.in_words(), self.unexplained, go_on,
        )  # fmt: skip
        self._screen.write(f"{summary.render(data, self._screen.columns)}\n{summary.verdict(data, exit_code)}\n", wiped=True)
        if run.failed is not None:
            raise run.failed

    def _cut(self) -> tuple[str, str]:
        """(how the run was cut, the command that goes on with it)."""
        run = self.run
        if not run.stopped:
            return "", ""
        how, _, why = run.stopped.partition(": ")
        said = f"{how} after {run.done} of {plural(run.expected, 'item')}{f': {why}' if why else ''}"
        said += ", and not all findings were tried again" if run.is_whole and run.untried else ""
        return said, self._go_on() if how == INTERRUPTED and run.timed is None else ""


def _item(report: pytest.TestReport) -> str:
    """The item that a test of the suite is, or its id where it is none."""
    return part_of(report.nodeid)[0] or report.nodeid


def _why(report: pytest.TestReport) -> str:
    """Why a test failed, in one line: the error if pytest keeps one, else the end of its text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip().splitlines()[-1]
    return f"{str(crash.message).strip().splitlines()[0]} ({crash.path}:{crash.lineno})"
