"""The progress of a run: what its parts found is counted, told on the screen, and written into the run file."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import pytest

from parity.core import processes, untrusted
from parity.core.errors import CaseError, OutputError, RunFileError
from parity.core.results import FINDINGS, Cause, Json, Record, Status
from parity.engine import again, memory, own, suite
from parity.engine.inquest import How
from parity.engine.options import RunOptions
from parity.engine.resuming import Kept, as_part
from parity.engine.rounds import LEAST_SECONDS, PINNED, part_of
from parity.findings import causes
from parity.findings.known import Known
from parity.findings.standing import FIXED, known_once, standings
from parity.report import causes as causes_text
from parity.report import power, summary
from parity.report.growth import Growth
from parity.report.held import Held
from parity.report.screen import Screen
from parity.report.script_text import excused
from parity.report.timed import Timed
from parity.report.words import clock, code_options, plural, reproduced
from parity.store import run_file
from parity.store.features import DrawnFeatures, Tally, unpack
from parity.store.reproduced import marked, recounted
from parity.store.rows import (
    CPU,
    OUTSIDE,
    Again,
    Death,
    End,
    Header,
    ItemRow,
    Power,
    Row,
    Shrunk,
    Sighting,
    counted,
    folded,
    totals,
)
from parity.store.run_file import Writer

FIRST = 5  # causes that are shown as they are found
SCRIPTS = Path(RunOptions().findings)
# Writes the script of a death for a device into a folder; None if it cannot be written in torch alone.
WriteScript: TypeAlias = Callable[[Death, str, Path], Path | None]


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
        seconds: float | None = None,
    ) -> None:
        """seconds: the limit of time, if the run has one."""
        self.header, self.output, self.fail_on, self.min_judged, self.verbose = header, output, fail_on, min_judged, verbose
        self.timed = None if seconds is None else Timed(seconds)
        self._screen = Screen(stream)
        self.scripts = SCRIPTS
        self.items: list[ItemRow] = []
        self.records: list[Record] = []
        self.power: list[Power] = []
        self.deaths: list[Death] = []
        self.known: Known | None = None  # the file of known findings
        self.strict = False  # whether known findings that are fixed fail the run
        self.sightings: list[Sighting] = []
        self._seen: set[Sighting] = set()
        self.explains_later = False  # whether causes are looked for when all items are done
        self._held: dict[str, Held] = {}  # items whose findings have no cause yet
        self._explained = 0  # items of whose findings the causes were looked for
        self._looking = 0.0  # since when nothing else is done, by `time.monotonic`
        self._share = math.inf  # seconds that this may take
        self._own: list[Record] = []  # of the own function whose item has not come yet
        self._before: dict[str, list[str]] = {}  # failing case -> the cases before it in its worker
        self.early: again.Early | None = None  # where findings are tried once more before the run is over
        self.own_left = False  # whether own functions are still being compared
        self.broken: list[str] = []
        self._tallies: dict[str, Tally] = {}
        self.memory = Growth()
        self._ended: set[str] = set()  # items that will report no more
        self._whole: set[tuple[str, str, int]] = set()  # items, or parts of them, that were examined completely
        self._causes: set[Cause] = set()
        self._dead: set[str] = set()  # how processes died
        self.lost: list[str] = []
        self.expected = self.done = self.checks = self.findings = self.failures = 0
        self.started = time.monotonic()
        self.stopped = self.unexplained = ""
        self._tried = False  # whether findings were tried again
        self.failed: OutputError | None = None
        self._session: pytest.Session | None = None
        self._kept = 0  # items that an interrupted run has examined
        self._writer = Writer(output)
        self._writer.write(header)

    def resume(self, kept: Kept) -> None:
        """Take what is whole in the file of an interrupted run, and go on in that file. Until it is replaced, it stays as it
        is."""
        self._screen.muted = True
        for rows in kept.parts.values():
            for d in (r for r in rows if isinstance(r, Death)):
                self.deaths.append(d)
                self._dead.add(causes.death_words(d))
                self.findings += d.blame not in (CPU, OUTSIDE) and not d.known
                self._writer.write(d)
            self._examined(as_part(rows))
        self._screen.muted = False
        self._kept = self.expected = len(kept.parts)
        self._ended |= {f"kept {item}" for item in kept.ids}
        try:
            os.replace(self.output, kept.path)
        except OSError as e:
            raise OutputError(
                f"cannot write the run file {kept.path}: {e.strerror or e}; free the disk or the folder"
            ) from None
        self.output = self._writer.path = kept.path

    # ------------------------------------------------------------------------------------------------ pytest's hooks

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, which can be asked to stop."""
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """The number of items is known once the first worker has collected."""
        if self.timed is not None:
            self.timed.collected(ids)
        items = [i for i in ids if part_of(i)[1] == PINNED] if self.timed is None else self.timed.items
        self.expected = self._kept + len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record that the suite could not be collected."""
        if report.failed:
            self.broken.append(str(report.longrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in one phase of one item."""
        parts = [json.loads(str(value)) for key, value in report.user_properties if key == "parity"]
        if any("cut" in part for part in parts):  # the time was over
            for case in (part["case"] for part in parts if "case" in part):
                again = reproduced(case, self.header)
                self.say(f"ended when the time was over, and not judged: a case that was still running\n  {again}")
            return
        comes_again = any("death" in part and not part["death"].get("last") for part in parts)
        if not comes_again and (report.when == "call" or report.failed):
            self._end_of(report.nodeid)
        if report.when != "call" and not parts:
            if report.failed:
                self.broken.append(f"{_item(report)}: {_why(report)}")
            return
        if report.when == "teardown":
            return
        # Findings fail the run only if they come again; the end sees to them.
        self.failures += report.failed and not any("death" in p or p["findings"] or p.get("deaths") for p in parts)
        try:
            for part in parts:
                if "death" in part:
                    self._death(part["death"])
                else:
                    self._examined(part)
        except RunFileError as e:  # one item's rows must not take those of all others with them
            self.broken.append(f"{_item(report)}: {e}")
        except OutputError as e:  # a full disk must not cause a traceback or lose what is on the screen
            self.failed = self.failed or e
            self.stopped = "stopped: the run file cannot be written"
            if self._session is not None:
                self._session.shouldstop = str(e)
        if not parts and report.failed:
            self.broken.append(f"{_item(report)}: {_why(report)}")
        self._progress()

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: keep what is done."""
        if not self.stopped:
            self.stopped = "interrupted"
            verb = "is" if self.done == 1 else "are"
            self.say(f"interrupted: keeping the {plural(self.done, 'item')} that {verb} done in {self.output}")

    # ------------------------------------------------------------------------------------------------ what they mean

    def _end_of(self, node: str) -> None:
        """A test is over for good."""
        if self.timed is None:
            self._ended |= {node} if part_of(node)[1] == PINNED else set()
            return
        self.timed.ended(node)
        self._ended = self.timed.done.get(PINNED, set())

    def _examined(self, part: dict[str, Any]) -> None:
        lines = {line: run_file.decode(line) for line in part["rows"]}
        items = {(r.op, r.dtype, r.round) for r in lines.values() if isinstance(r, ItemRow)}
        if items & self._whole:  # its worker died after its last case, so another one examined it again
            return
        self._whole |= items
        if "causes" in part and not self._is_explained(part["causes"]):
            return
        for death in part.get("deaths", ()):
            self._death(death)
        if self.timed is not None:
            kept = set(map(id, self.timed.new((r for r in lines.values() if isinstance(r, Record)), part.get("explained", ()))))
            lines = {line: r for line, r in lines.items() if not isinstance(r, Record) or id(r) in kept}
        # The parts of an item see the same known findings.
        lines = {line: r for line, r in lines.items() if not isinstance(r, Sighting) or r not in self._seen}
        rows, drawn = list(lines.values()), None
        for row in rows:
            if isinstance(row, ItemRow):
                drawn = DrawnFeatures.of(row.op, row.dtype, row.round, part["features"])
                pairs = self._drawn_features(row.op, part["features"])
                self.items.append(row)
                self.done += row.round == PINNED
                self.checks += sum(sum(c.values()) for c in row.counts.values())
                if self.timed is not None:
                    kinds = sum(isinstance(r, Record) and r.status in FINDINGS and not r.known for r in rows)
                    self.timed.brought(row, pairs, kinds, summary.compared(row))
        held = self._hold(rows, part["findings"])
        self._take(row for row in rows if row not in held)
        found = [r for r in rows if isinstance(r, Record) and not r.known and r not in held]
        self.findings += len(part["findings"]) if self.timed is None else len(summary.kinds(found))
        for text in part["findings"] if self.verbose and not held else ():
            self.say(text + "\n")
        if not self.verbose:
            self._new_causes(found)
        self.memory.add(part.get("memory", {}), rows)
        self._write_scripts(part.get("scripts", {}))
        self._before = part.get("before", {}) | self._before
        if drawn is not None:
            self._writer.write(drawn)
        for line in lines:  # last, so that a full disk loses neither counts nor output
            self._writer.write_line(line)
        self._begins_to_look()

    def _take(self, rows: Iterable[Row]) -> None:
        """Keep the rows that the summary is made of."""
        for row in rows:
            if isinstance(row, Record):
                self.records.append(row)
            elif isinstance(row, Power):
                self.power.append(row)
            elif isinstance(row, Sighting):
                self._seen.add(row)
                self.sightings.append(row)

    def _hold(self, rows: Iterable[Row], texts: Sequence[str]) -> list[Row]:
        """The findings whose causes are still to be looked for: held until then."""
        held = [r for r in rows if isinstance(r, Record) and r.unexplained] if self.explains_later else []
        if held:
            self._held[f"{held[0].op}-{held[0].dtype}"] = Held(held, texts)
        return [*held]

    def _is_explained(self, item: str) -> bool:
        """Let go of what an item found: its cause is told now. False if that has been told before."""
        held = self._held.pop(item, None)
        if held is None:
            return False
        self._explained += 1
        self.findings -= len(held.texts)
        return True

    def _begins_to_look(self) -> None:
        """Say that all items are done, and how long the causes may take."""
        if self._looking or not self._held or len(self._ended) < self.expected:
            return
        self._progress()
        self._looking = time.monotonic()
        self._screen.begin_anew()
        self._share = max(LEAST_SECONDS, self._looking - self.started)
        found = plural(self._explained + len(self._held), "item")
        self.say(f"looking for the causes of what {found} found, for about {clock(self._share)} at most")

    def own(self, row: Row | str) -> None:
        """Take in a row of a user's own function; the records of an item come before it. A text: why a function says
        nothing."""
        if isinstance(row, Record):
            self._own.append(row)
        elif isinstance(row, ItemRow):
            self._expect_own(row.op)
            entries = self.known.entries if self.known is not None else ()
            seen = [*own.sightings(entries, row, self._own, date.today())]
            records = own.accepted(self._own, seen)
            self._own = []
            self.items.append(row)
            self.records += records
            self.sightings += seen
            self.done += 1
            self.checks += sum(sum(c.values()) for c in row.counts.values())
            self._new_causes(r for r in records if not r.known)
            rows: list[Row] = [*records, *seen, row]
            for r in rows:
                self._writer.write(r)
        elif isinstance(row, Death):
            self._expect_own(row.op)
            self.deaths.append(row)
            self.lost.append(f"{row.op}-{row.dtype}")
            self.say(f"{row.op} on {self.header.fingerprint.device}: {row.how} ({row.signal})")
            self._writer.write(row)
        elif isinstance(row, str):
            self._expect_own(row)
            self.broken.append(row)
            self.say(row)

    def _expect_own(self, name: str) -> None:
        self.expected += 1
        self._ended.add(name)

    def _write_scripts(self, scripts: dict[str, str]) -> None:
        """The scripts of findings of another machine."""
        for name, text in scripts.items():
            try:
                (self.scripts / Path(name).name).write_text(text, encoding="utf-8")
            except OSError as e:  # a full disk must not cost the finding
                self.say(f"cannot write {self.scripts / Path(name).name}: {e.strerror or e}")

    def _new_causes(self, records: Iterable[Record]) -> None:
        """One line for each of the first causes of this run; the end has all."""
        for c in causes.gather(records):
            if c.cause not in self._causes:
                self._causes.add(c.cause)
                if len(self._causes) <= FIRST:
                    self.say(causes_text.line(c))
                elif len(self._causes) == FIRST + 1:
                    self.say("... and more causes: the end of the run and parity report list them")

    def _drawn_features(self, op: str, packed: Json) -> int:
        row = suite.row(op)
        return self._tallies.setdefault(row.family, Tally(row.family)).add(unpack(packed))

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
        if self.timed is not None and row["last"]:
            self.timed.given_up(row["item"])
        where = "the CPU" if death.acquitted else self.header.fingerprint.device
        how = signal if row["how"] == "hang" else f"the process died ({signal})"
        again = reproduced(row["case"], self.header)
        goes = "again" if death.blame == OUTSIDE else "without it"
        goes = f"the item is examined {goes}" if not row["last"] else f"the run goes on without what is left of {row['item']}"
        words = causes.death_words(death)
        if self.verbose or (words not in self._dead and not accepted):  # the summary counts the others
            self.say(
                f"{op} {dtype} on {where}: {row['how']}, {how} at stage {row['stage']}\n"
                + (f"  case: {row['case']}\n" if row["case"] else "")
                + (f"  {why}\n" if why else "")
                + (f"  {again}\n" if row["case"] else "")
                + f"  {goes}\n"
            )
        self._dead.add(words)
        self._writer.write(death)

    def _progress(self) -> None:
        spent = time.monotonic() - self.started
        fraction, began = self.done / max(1, self.expected), self.started
        if self.timed is not None:
            fraction = min(1.0, spent / self.timed.seconds)
        figures = f"{plural(self.checks, 'check')}  {plural(self.findings, 'finding')}  {clock(spent)}"
        text = f"{self.done}/{self.expected} items  {figures}"
        if self.timed is not None and len(self.timed.rounds) > 1:
            text = f"round {len(self.timed.rounds) - 1}  {figures}"
        if self._looking:
            found = self._explained + len(self._held)
            fraction, began = self._explained / max(1, found), self._looking
            text = f"causes of {self._explained}/{found} items  {figures}"
        self._screen.show(fraction, text, time.monotonic() - began, self._share)

    def say(self, text: str) -> None:
        """Print a text above the bar."""
        self._screen.say(text)

    def wait(self, text: str, seconds: float) -> None:
        """Tell on a terminal what takes up to so many seconds."""
        self._screen.wait(text, seconds)

    # ------------------------------------------------------------------------------------------------ the end

    @property
    def to_shrink(self) -> list[Death]:
        """The deaths whose least case is of interest; none if the run was stopped."""
        if self.stopped or self.failed is not None:
            return []
        return [d for d in counted(self.deaths, self.items) if d.blame != OUTSIDE and not d.known]

    def take_shrunk(self, done: Sequence[Shrunk], device: str, seconds: float, write: WriteScript) -> None:
        """Tell and store the least case of each kind of death. seconds: that it took; write: writes the script of one."""
        told = [s for s in done if s.death.shrunk]
        took = f"{clock(seconds)} ({plural(sum(s.died for s in done), 'process')})"
        text = f"{len(told)} of {plural(len(done), 'kind')} of deaths shrunk in {took}"
        why = dict.fromkeys(f"{s.death.op}: {s.why}" for s in done if s.why)
        self.say("; ".join([text, *why]))
        try:
            for s in told:
                before = replace(s.death, shrunk="", shrunk_aspect="")
                death = self._with_script(s.death, device, write)
                self.deaths = [death if d == before else d for d in self.deaths]
                self._writer.write(death)
        except OutputError as e:
            self.failed = self.failed or e

    def _with_script(self, d: Death, device: str, write: WriteScript) -> Death:
        try:
            path = write(d, device, self.scripts)
        except (OutputError, CaseError) as e:  # a full disk must not cost the least case
            self.say(f"no script of {d.shrunk}: {e}")
            return d
        return d if path is None else replace(d, script=f"{path.parent.name}/{path.name}")

    def _to_try(self) -> list[Record]:
        """The findings that are tried once more: those that are not known."""
        return summary.kinds([r for r in self.records if not r.known])

    def idle(self, workers: int, idle: int) -> None:
        """Some workers have nothing left to do while others are busy: try what was told already."""
        if self.early is not None and not self.stopped and self.failed is None:
            self.early.offer(self._to_try(), min(idle, memory.room(workers)))

    def try_again(self, how: How, workers: int, seconds: float) -> None:
        """Try the findings that are not known once more in fresh processes. seconds: the time for it."""
        found = self._to_try()
        if not found or self.stopped or self.failed is not None:
            return
        started = time.monotonic()
        self.wait(f"trying {plural(len(found), 'finding')} again in fresh processes", min(seconds, again.LIMIT))
        flags = again.set_variables(how.device.partition(":")[0])
        done = again.again(found, how, workers, flags, seconds, self.early, self._before)
        self._tried = True
        seen = self._known_once(done)
        done = tuple(replace(a, known=s.id) if (s := seen.get((a.case, a.aspect, a.op))) else a for a in done)
        self.records = list(marked(self.records, done))
        self._excuse_scripts(how)
        came, left = sum(a.came for a in done), len(found) - len(done)
        later = sum(bool(a.history) for a in done)
        text = f"{came} of {plural(len(found), 'finding')} reproduced in fresh processes"
        text += f", {later} of them only after other calls" if later else ""
        text += f" ({clock(time.monotonic() - started)})"
        self.say(text + (f"; {left} could not be tried, and count" if left else ""))
        rows: list[Row] = [*seen.values(), *done]
        try:
            for row in rows:
                self._writer.write(row)
        except OutputError as e:
            self.failed = self.failed or e

    def _known_once(self, done: Sequence[Again]) -> dict[tuple[str, str, str], Sighting]:
        """The known findings among those that never came again, by case, aspect and op."""
        entries, seen = self.known.entries if self.known is not None else (), dict[tuple[str, str, str], Sighting]()
        for r in marked(self.records, done) if entries else ():
            if r.shrunk and (s := known_once(entries, r, date.today())) is not None:
                seen[r.shrunk, r.aspect, r.op] = s
        self._take(seen.values())
        return seen

    def _excuse_scripts(self, how: How) -> None:
        """Say in the scripts of findings that do not come by themselves what is needed."""
        for r in (r for r in self.records if r.script and not r.shows_alone):
            path = self.scripts / Path(r.script).name
            if path.is_file():
                command = reproduced(r.shrunk, self.header)
                self._write_scripts({r.script: excused(path.read_text(encoding="utf-8"), r, command)})

    def acquitted(self) -> tuple[str, ...]:
        """The ids of the items of whose findings all were dropped."""
        gone = {f"{r.op}-{r.dtype}" for r in self.records if r.gone}
        return tuple(sorted(gone - {f"{r.op}-{r.dtype}" for r in self.records if r.counts}))

    def not_reproduced(self) -> tuple[str, ...]:
        """The ids of the items that fail only for what never came again."""
        once = {f"{r.op}-{r.dtype}" for r in self.records if r.status == Status.NOT_REPRODUCED}
        others = (r for r in self.records if r.counts and r.status != Status.NOT_REPRODUCED)
        return tuple(sorted(once - {f"{r.op}-{r.dtype}" for r in others}))

    @property
    def exit_code(self) -> int:
        """0 for no findings but known ones, 1 for findings, 3 if nothing was compared."""
        has_findings = any(not d.known for d in counted(self.deaths, self.items))
        has_findings |= any(r.counts and not r.known for r in self._found())
        has_findings |= any(s.fails for s in self.sightings) or (self.strict and self._has_fixed())
        items = summary.unaccepted_of(self.items, self.known, self.fail_on)
        asked = summary.unwanted(items, self.records, self.fail_on) or power.left(self.items, self.min_judged)
        if has_findings or self.broken or self.failures or asked:
            return 1
        if self.timed is not None and self.timed.lacking:
            return 1
        return 0 if any(summary.compared(i) for i in self.items) else 3

    def _found(self) -> list[Record]:
        """The records that may fail the run. Of a run in parts, those with a least case: only a later part tells whether what
        round 0 drew is known."""
        if self.timed is not None:
            return [*summary.kinds(self.records), *self.timed.without_cause()]
        held = [r for h in self._held.values() for r in h.records]
        return [*summary.kinds(self.records), *held] if self.explains_later else self.records

    def _has_fixed(self) -> bool:
        entries = self.known.entries if self.known is not None else ()
        return any(s.state == FIXED for s in standings(entries, self.sightings))

    def tell_unexplained(self) -> None:
        """Tell the findings for whose causes no time was left, as they were drawn. They are in the file already."""
        n, held = self._explained + len(self._held), self._held
        self._held = {}
        for h in held.values():
            self.records += h.records
            for text in h.texts if self.verbose else ():
                self.say(text + "\n")
            if not self.verbose:
                self._new_causes(h.records)
        if held:
            text = f"of the findings of {len(held)} of {plural(n, 'item')} no cause was looked for, and no smaller case"
            share = f": that had its share of the time, as long as the rest or {LEAST_SECONDS:.0f} s of each worker"
            known = ", so they count as new" if self.header.known.name else ""
            self.unexplained = f"{text}{known}{'' if self.stopped else share}; to go on: {self._go_on()}"

    def _go_on(self) -> str:
        """The command that goes on with this run."""
        where = "" if self.scripts == SCRIPTS else f" --findings {shlex.quote(str(self.scripts))}"
        again = f"run --resume {shlex.quote(str(self.output))}{code_options(self.header, 'known')}{where}"
        return f"{processes.called()} {again}"

    def _without_causes(self, timed: Timed) -> None:
        """Store the findings for whose causes there was no time."""
        for r in timed.without_cause():
            self.records.append(r)
            try:
                self._writer.write(r)
            except OutputError as e:
                self.failed = self.failed or e

    def finish(self, exit_code: int) -> None:
        """Write the end of the run file, and print the summary. Raises OutputError if the run file could not be written."""
        seconds = time.monotonic() - self.started
        coverage = [t.coverage() for t in self._tallies.values()]
        whole = len(self._ended) >= self.expected and not self.own_left
        if self.early is not None:
            self.early.stop()
        self.tell_unexplained()
        rounds: tuple[int, ...] = ()
        lacking: tuple[str, ...] = ()
        if self.timed is not None:
            self._without_causes(self.timed)
            self.items = list(folded(self.items))
            rounds, lacking = self.timed.rounds, self.timed.lacking
            if lacking and not self.stopped:
                self.stopped = f"cut by --time: the pinned cases of {plural(len(lacking), 'item')} were not checked"
        untried = self.early is not None and not self._tried and bool(self._to_try())
        if whole and self.expected and self.stopped == "interrupted" and not untried:  # while the workers shut down
            self.stopped = ""
        if not self.stopped and not whole:
            self.stopped = "broken off"
        try:
            for family in coverage:
                self._writer.write(family)
            lost, broken = tuple(self.lost), tuple(untrusted.printable(b)[:400] for b in self.broken)
            self._writer.write(
                End(seconds, dict(totals(self.items)), self.stopped, self.expected, lost, broken, rounds, lacking)
            )
            self._writer.close()
        except OutputError as e:
            self.failed = self.failed or e
        items = recounted(self.items, self.records)
        stopped, go_on = self._cut(whole and untried)
        data = summary.SummaryData(
            self.header, items, self.records, self.deaths, self.power, coverage, self.broken, seconds, str(self.output),
            self.fail_on, self.min_judged, self.lost, self.verbose,
            "" if self.timed is None else self.timed.in_words(sum(i.cases for i in self.items)), lacking,
            self.known, self.sightings, self.strict, self.memory.in_words(), self.unexplained, stopped, go_on,
        )  # fmt: skip
        self._screen.write(f"{summary.render(data, self._screen.columns)}\n{summary.verdict(data, exit_code)}\n", wiped=True)
        if self.failed is not None:
            raise self.failed

    def _cut(self, untried: bool) -> tuple[str, str]:
        """(how the run was cut, the command that goes on with it). untried: whether findings were left untried."""
        if not self.stopped:
            return "", ""
        how, _, why = self.stopped.partition(": ")
        said = f"{how} after {self.done} of {plural(self.expected, 'item')}{f': {why}' if why else ''}"
        said += ", and not all findings were tried again" if untried else ""
        return said, self._go_on() if how == "interrupted" and self.timed is None else ""


def _item(report: pytest.TestReport) -> str:
    """The item that a test of the suite is, or its id where it is none."""
    return part_of(report.nodeid)[0] or report.nodeid


def _why(report: pytest.TestReport) -> str:
    """Why a test failed, in one line: the error if pytest keeps one, else the end of its text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip().splitlines()[-1]
    return f"{str(crash.message).strip().splitlines()[0]} ({crash.path}:{crash.lineno})"
