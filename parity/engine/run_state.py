"""Collects the parts of a run: counted, kept for its end, and written into the run file."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from parity.core import machine, untrusted
from parity.core.errors import OutputError
from parity.core.results import FINDINGS, Json, Record, Status
from parity.engine import again, own, suite
from parity.engine.inquest import How
from parity.engine.merging import Kept
from parity.engine.options import RunOptions
from parity.engine.rounds import LEAST_SECONDS, PINNED, SHRINKS_ONE_IN, Timed, part_of
from parity.findings.known import Known, known_once
from parity.findings.verdict import RunResult, compared, kinds
from parity.store import marginal, run_file
from parity.store.features import Coverage, DrawnFeatures, Tally, unpack
from parity.store.marginal import marked, recounted
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
    summed,
    totals,
)
from parity.store.run_file import Writer

SCRIPTS = Path(RunOptions().findings)
KEPT = 1024  # rows of parts, next to two of each item, from which on those of an item are summed up
INTERRUPTED = "interrupted"  # how a run was stopped by Ctrl-C


@dataclass(frozen=True, slots=True)
class Unexplained:
    """What an item found, until its cause is known or the run is over. records: as drawn; texts: the same for a reader."""

    records: Sequence[Record]
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an item that was taken in. found: its records that are not known and not held back for their cause; held:
    whether some are; deaths: on the way to it; rows: what is to be stored, by their lines; drawn: the features that it drew."""

    found: Sequence[Record]
    held: bool
    deaths: Sequence[Death]
    rows: Mapping[str, Row]
    drawn: DrawnFeatures | None


class RunState:
    """The state of a run on its controller."""

    def __init__(
        self,
        header: Header,
        output: Path,
        fail_on: Sequence[Status] = (),
        min_judged: float = 0.0,
        seconds: float | None = None,
    ) -> None:
        """fail_on, min_judged: as in `RunResult`; seconds: the limit of time, if the run has one."""
        self.header, self.output, self.fail_on, self.min_judged = header, output, fail_on, min_judged
        self.timed = None if seconds is None else Timed(seconds)
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
        self.held: dict[str, Unexplained] = {}  # items whose findings have no cause yet
        self.explained = 0  # items of whose findings the causes were looked for
        self.looking = 0.0  # since when nothing else is done, by `time.monotonic`
        self.share = math.inf  # seconds that this may take
        self.own_records: list[Record] = []  # of the own function whose item has not come yet
        self._before: dict[str, list[str]] = {}  # failing case -> the cases before it in its worker
        self.early: again.Early | None = None  # where findings are tried once more before the run is over
        self.own_left = False  # whether own functions are still being compared
        self.broken: list[str] = []
        self._tallies: dict[str, Tally] = {}
        self.ended: set[str] = set()  # items that will report no more
        self._whole: set[tuple[str, str, int]] = set()  # items, or parts of them, that were examined completely
        self.lost: list[str] = []
        self.expected = self.done = self.checks = self.findings = self.failures = 0
        self.started = time.monotonic()
        self.stopped = ""
        self._tried = False  # whether findings were tried again
        self.failed: OutputError | None = None
        self._kept = 0  # items that an interrupted run has examined
        self.writer = Writer(output)
        self.writer.write(header)

    # ------------------------------------------------------------------------------------------------ the verdict

    def result(self, stopped: str = "") -> RunResult:
        """What came of the run so far. stopped: how it was cut, in words."""
        held = [r for h in self.held.values() for r in h.records] if self.timed is None else self.timed.without_cause()
        ours, items = {*map(id, self.records)}, recounted(self.items, self.records)
        records: Sequence[Record] = [*self.records, *(r for r in held if id(r) not in ours)]
        if self.is_whole and not (self.stopped or stopped) and marginal.decides(self.header):
            records, items = marginal.settled(records, folded(items), self.deaths)
        # Of a run in parts, those with a least case may fail it: only a later part shows whether what round 0 drew is known.
        failing = kinds(records) if self.explains_later or self.timed is not None else records
        return RunResult(
            items, records[: len(self.records)], self.deaths, failing, self.fail_on, self.min_judged,
            self.known, self.sightings, self.strict, self.broken, self.failures,
            () if self.timed is None else self.timed.unchecked, stopped,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ what comes in

    def collected(self, ids: Sequence[str]) -> None:
        """The tests of the suite are known."""
        if self.timed is not None:
            self.timed.collected(ids)
        items = [i for i in ids if part_of(i)[1] == PINNED] if self.timed is None else self.timed.items
        self.expected = self._kept + len(items)

    def end_of(self, node: str) -> None:
        """A test is over for good."""
        if self.timed is None:
            self.ended |= {node} if part_of(node)[1] == PINNED else set()
            return
        self.timed.ended(node)
        self.ended = self.timed.done.get(PINNED, set())

    def is_explained(self, item: str) -> bool:
        """Let go of what an item found: its cause is known now. False if that was so before."""
        held = self.held.pop(item, None)
        if held is None:
            return False
        self.explained += 1
        self.findings -= len(held.texts)
        return True

    def take(self, part: Json) -> Part | None:
        """Count a part of an item; `store` writes it without its deaths. None if it brings nothing new."""
        lines = {line: run_file.decode(line) for line in part["rows"]}
        items = {(r.op, r.dtype, r.round) for r in lines.values() if isinstance(r, ItemRow)}
        if items & self._whole:  # its worker died after its last case, so another one examined it again
            return None
        self._whole |= items
        if "causes" in part and not self.is_explained(part["causes"]):
            return None
        deaths = [self.death(row) for row in part.get("deaths", ())]
        if self.timed is not None:
            kept = set(map(id, self.timed.new((r for r in lines.values() if isinstance(r, Record)), part.get("explained", ()))))
            lines = {line: r for line, r in lines.items() if not isinstance(r, Record) or id(r) in kept}
        # The parts of an item see the same known findings.
        lines = {line: r for line, r in lines.items() if not isinstance(r, Sighting) or r not in self._seen}
        rows, drawn = list(lines.values()), None
        for row in rows:
            if isinstance(row, ItemRow):
                drawn = DrawnFeatures.of(row.op, row.dtype, row.round, part["features"])
                family = suite.row(row.op).family
                pairs = self._tallies.setdefault(family, Tally(family)).add(unpack(part["features"]))
                self._count(row, row.round == PINNED)
                if self.timed is not None:
                    new = sum(isinstance(r, Record) and r.status in FINDINGS and not r.known for r in rows)
                    self.timed.brought(row, pairs, new, compared(row))
        held = self._hold(rows, part["findings"])
        self._keep(row for row in rows if row not in held)
        found = [r for r in rows if isinstance(r, Record) and not r.known and r not in held]
        self.findings += len(part["findings"]) if self.timed is None else len(kinds(found))
        self._before = part.get("before", {}) | self._before
        return Part(found, bool(held), deaths, lines, drawn)

    def store(self, part: Part) -> None:
        """Write a part into the run file. Raises OutputError."""
        if part.drawn is not None:
            self.writer.write(part.drawn)
        for line in part.rows:
            self.writer.write_line(line)

    def _count(self, row: ItemRow, whole: bool) -> None:
        self.items.append(row)
        if self.timed is not None and len(self.items) > KEPT + 2 * len(self.timed.items):  # a run of days has many parts
            self.items, self.power = list(folded(self.items)), list(summed(self.power))
        self.done += whole
        self.checks += sum(sum(c.values()) for c in row.counts.values())

    def _keep(self, rows: Iterable[Row]) -> None:
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
            self.held[f"{held[0].op}-{held[0].dtype}"] = Unexplained(held, texts)
        return [*held]

    @property
    def only_causes_left(self) -> bool:
        """Whether all items are done, and nobody has begun to look for the causes of what they found."""
        return not self.looking and bool(self.held) and len(self.ended) >= self.expected

    def begin_to_look(self) -> None:
        """Only causes are looked for from here on."""
        self.looking = time.monotonic()
        self.share = max(LEAST_SECONDS, self.looking - self.started)

    def death(self, row: Json) -> Death:
        """Take in a death of a worker, and write what was seen of known findings."""
        op, _, dtype = row["item"].rpartition("-")
        signal, why = untrusted.printable(row["signal"]), untrusted.printable(row["why"])
        how, known = row["how"], row.get("known", "")
        death = Death(op, dtype, row["case"], "", how, signal, row["stage"], blame=row["blame"], why=why, known=known)
        self.deaths.append(death)
        sighting = run_file.decode(row["sighting"]) if row.get("sighting") else None
        if isinstance(sighting, Sighting):
            self.sightings.append(sighting)
            self.writer.write(sighting)
        self.findings += death.blame not in (CPU, OUTSIDE) and not is_accepted(row)
        self.lost += [row["item"]] if row["last"] and row["item"] not in self.lost else []
        if self.timed is not None and row["last"]:
            self.timed.given_up(row["item"])
        return death

    def own_item(self, row: ItemRow) -> list[Row]:
        """Take in a user's own function, whose records came before it; the rows to write for it."""
        self.expect_own(row.op)
        entries = self.known.entries if self.known is not None else ()
        seen = [*own.sightings(entries, row, self.own_records, date.today())]
        records = own.accepted(self.own_records, seen)
        self.own_records = []
        self._count(row, True)
        self.records += records
        self.sightings += seen
        return [*records, *seen, row]

    def own_death(self, row: Death) -> None:
        """Take in that a user's own function ended or hung its process."""
        self.expect_own(row.op)
        self.deaths.append(row)
        self.lost.append(f"{row.op}-{row.dtype}")
        self.writer.write(row)

    def expect_own(self, name: str) -> None:
        """There is a user's own function, and it is over."""
        self.expected += 1
        self.ended.add(name)

    # ------------------------------------------------------------------------------------------------ an earlier run

    def resume(self, kept: Kept) -> None:
        """Go on in the file of an interrupted run, of which all that is whole was taken in. Raises OutputError."""
        self._kept = self.expected = len(kept.parts)
        self.ended |= {f"kept {item}" for item in kept.ids}
        try:
            os.replace(self.output, kept.path)
        except OSError as e:
            why = f"{e.strerror or e}; free the disk or the folder"
            raise OutputError(f"cannot write the run file {kept.path}: {why}") from None
        self.output = self.writer.path = kept.path

    def kept_death(self, d: Death) -> None:
        """Take in a death of an interrupted run."""
        self.deaths.append(d)
        self.findings += d.blame not in (CPU, OUTSIDE) and not d.known
        self.writer.write(d)

    # ------------------------------------------------------------------------------------------------ after the items

    @property
    def is_cut(self) -> bool:
        """Whether nothing more is to be begun: the run was stopped, or its file cannot be written."""
        return bool(self.stopped) or self.failed is not None

    @property
    def to_shrink(self) -> list[Death]:
        """The deaths whose least case is of interest; none if the run was stopped."""
        if self.is_cut:
            return []
        return [d for d in counted(self.deaths, self.items) if d.blame != OUTSIDE and not d.known]

    def take_shrunk(self, one: Shrunk, death: Death) -> None:
        """Store a death with its least case. death: it, with its script. Raises OutputError."""
        before = replace(one.death, shrunk="", shrunk_aspect="")
        self.deaths = [death if d == before else d for d in self.deaths]
        self.writer.write(death)

    @property
    def to_try(self) -> list[Record]:
        """The findings that are tried once more: those that are not known."""
        return kinds([r for r in self.records if not r.known])

    def idle(self, workers: int, idle: int) -> None:
        """Shrink and try what was found already while some workers have nothing left to do; a few deaths while none has."""
        if self.early is not None and not self.is_cut:
            free = min(max(idle, workers // SHRINKS_ONE_IN), machine.room(workers))
            self.early.offer(self.to_try if idle else (), free, self.to_shrink)

    def try_again(self, how: How, workers: int, seconds: float) -> tuple[Again, ...]:
        """Try the findings that are not known once more in fresh processes, and store what came of it. seconds: for it."""
        found = self.to_try
        flags = again.set_variables(how.device.partition(":")[0])
        done = again.again(found, how, workers, flags, seconds, self.early, self._before)
        self._tried = True
        seen = self._known_once(done)
        done = tuple(replace(a, known=s.id) if (s := seen.get((a.case, a.aspect, a.op))) else a for a in done)
        self.records = list(marked(self.records, done))
        self._write_all([*seen.values(), *done])
        return done

    def _known_once(self, done: Sequence[Again]) -> dict[tuple[str, str, str], Sighting]:
        """The known findings among those that were never reproduced, by case, aspect and op."""
        entries, seen = self.known.entries if self.known is not None else (), dict[tuple[str, str, str], Sighting]()
        for r in marked(self.records, done) if entries else ():
            if r.shrunk and (s := known_once(entries, r, date.today())) is not None:
                seen[r.shrunk, r.aspect, r.op] = s
        self._keep(seen.values())
        return seen

    def _write_all(self, rows: Iterable[Row]) -> None:
        """Write rows; a full disk is remembered for the end of the run."""
        try:
            for row in rows:
                self.writer.write(row)
        except OutputError as e:
            self.failed = self.failed or e

    def without_causes(self) -> list[Unexplained]:
        """The findings for whose causes no time was left, which count as they were drawn from here on; they are in the file
        already."""
        held, self.held = list(self.held.values()), {}
        self.records += [r for h in held for r in h.records]
        return held

    # ------------------------------------------------------------------------------------------------ the end

    @property
    def untried(self) -> bool:
        """Whether findings were left untried that should have been tried again."""
        return self.early is not None and not self._tried and bool(self.to_try)

    @property
    def is_whole(self) -> bool:
        """Whether all items and own functions were heard of."""
        return len(self.ended) >= self.expected and not self.own_left

    def close(self, seconds: float) -> list[Coverage]:
        """Decide how the run was cut, if it was, and write the end of the run file; what the families drew. seconds: that the
        run took."""
        rounds, unchecked = (self.timed.rounds, self.timed.unchecked) if self.timed is not None else ((), ())
        if self.timed is not None:  # join the parts, and store the findings for whose causes there was no time
            self.records += (left := self.timed.without_cause())
            self._write_all(left)
            self.items = list(folded(self.items))
        if unchecked and not self.stopped:
            what = f"{len(unchecked):,} item{'s' * (len(unchecked) > 1)}"
            self.stopped = f"cut by --time: the pinned cases of {what} were not checked"
        if self.is_whole and self.expected and self.stopped == INTERRUPTED and not self.untried:  # as the workers shut down
            self.stopped = ""
        self.stopped = self.stopped or ("" if self.is_whole else "broken off")
        coverage = [t.coverage() for t in self._tallies.values()]
        lost, broken = tuple(self.lost), tuple(untrusted.printable(b)[:400] for b in self.broken)
        failed = self.result(self.stopped).failed
        end = End(seconds, dict(totals(self.items)), self.stopped, self.expected, lost, broken, rounds, unchecked, failed)
        self._write_all([*coverage, end])
        try:
            self.writer.close()
        except OutputError as e:
            self.failed = self.failed or e
        return coverage


def is_accepted(row: Json) -> bool:
    """Whether the death of a worker is known, and does not fail the run."""
    return bool(row.get("known", "")) and not row["fails"]
