"""Examines one item inside of pytest and sends its rows to the controller."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.core import machine, notation, processes
from parity.core.errors import OutputError
from parity.core.results import SILENT, Json, Record
from parity.engine import known_cases
from parity.engine.alone import IsolatedRunner
from parity.engine.cases import Held
from parity.engine.examine import Examined, examine, explain
from parity.engine.findings import Finding
from parity.engine.journal import LOCATING, REPLAYING, SHRINKING, CaseJournal, Journal, NoJournal, deaths
from parity.engine.planning import RunPlan
from parity.engine.rounds import CAUSES, CUT, Part
from parity.engine.suite import Item
from parity.faces.survival import ALONE_AFTER
from parity.findings.known import Entry
from parity.findings.verdict import compared
from parity.report import known
from parity.report.finding import statuses_text, text, write_script
from parity.store.features import pack
from parity.store.rows import CPU, GROWN, OUTSIDE, SEEN, Row
from parity.store.run_file import encode

SENT = pytest.StashKey[bool]()  # whether this worker has sent a finding before its item ended


class Checker:
    """What the suite's test calls: examine an item, add the result to the report, and fail or skip the test."""

    def __init__(self, request: pytest.FixtureRequest, plan: RunPlan, journal: CaseJournal, deaths: list[Json]) -> None:
        """deaths: of the item before, as the controller reported them."""
        self._request, self._plan, self._journal, self._deaths = request, plan, journal, deaths
        self.is_full = False  # whether this worker has passed its share of the memory, so that another one is to take its place

    def _hung(self) -> dict[int, str]:
        """The cases of the item that hung on the device, by their ordinals."""
        hung = [row for row in self._deaths if row["how"] == "hang" and row["stage"] == "device"]
        return {row["ordinal"]: row["case"] for row in hung if 0 <= row["ordinal"] < REPLAYING}

    def _dead(self) -> tuple[frozenset[int], list[Json]]:
        """(ordinals of cases that are left out, because they ended a worker, deaths of the item that nobody outside caused)."""
        dead = frozenset(row["ordinal"] for row in self._deaths)
        own = [row for row in self._deaths if row["blame"] != OUTSIDE]
        if len(own) >= ALONE_AFTER:
            dead = frozenset(k for k in dead if k >= REPLAYING) | self._hung().keys()
        if len(own) > ALONE_AFTER:  # it has died here again: nothing that can be left out runs in this process
            dead |= {SHRINKING, LOCATING}
        return dead, own

    def _examined(self, item: Item, part: Part | None) -> Examined:
        """Examine the item: without the cases that ended a worker, or with all cases in other processes if there were
        several."""
        dead, own = self._dead()
        plan = self._plan if self._has_sent() else replace(self._plan, first=self._send_first)
        hung = [notation.parse(text) for text in self._hung().values()]
        if len(own) < ALONE_AFTER:
            return examine(item, plan, self._journal, dead, part, hung=hung)
        alone = IsolatedRunner(item, part, self._plan.options, self._plan.power, self._request.node.nodeid, own)
        try:
            return examine(item, plan, self._journal, dead, part, alone, hung)
        finally:
            alone.close()

    def _has_sent(self) -> bool:
        """Whether no finding is to be sent before its item ends: this worker has sent one, or some are known."""
        return not self._plan.later or self._plan.known is not None or self._request.config.stash.get(SENT, False)

    def _send_first(self, found: Record) -> None:
        """Send the first finding of this worker at once, in a report of its own: the item may take long to end."""
        node, config = self._request.node, self._request.config
        config.stash[SENT] = True
        said = [("parity", json.dumps({"first": encode(found)}))]
        report = pytest.TestReport(node.nodeid, node.location, {}, "passed", None, "setup", user_properties=said)
        config.hook.pytest_runtest_logreport(report=report)

    def examine(self, what: Item | Part) -> None:
        """Check all cases of an item, or of a part of it. Fails the test on findings that are not known, marks it as an
        expected failure if all of them are, and skips it if nothing was compared, or if the time is over."""
        options = self._plan.options
        item, part = (what.item, what) if isinstance(what, Part) else (what, None)
        if part is not None and self._plan.later:
            self._explain(item)
            return
        if self._plan.left <= 0:
            self._request.node.user_properties.append(("parity", json.dumps({"cut": CUT})))
            pytest.skip(CUT)
        before = machine.resident_memory()
        try:
            done = self._examined(item, part)
        except KeyboardInterrupt as e:
            if processes.asked_to_stop(e):
                raise
            raise RuntimeError(f"an operator of {item.id} raised KeyboardInterrupt outside of its cases") from None
        self._plan.device.release()
        first = len(done.records) - len(done.findings)  # the records of the findings come last, in their order
        failed, texts, scripts = self._written(done.findings, done.records[first:])
        records = [*done.records[:first], *failed]
        later = done.held is not None and self._keeps(item, done.held)
        texts += [known.failure(s, self._entry(s.id)) for s in done.known if s.fails]
        rest: list[Row] = [*done.power, *done.figures, *done.known, done.summary]
        features = pack(done.features)
        if part is not None and part.round == CAUSES:  # round 0 has reported the cases
            records, rest, features = records[first:], [*done.known], pack(())
        answer: dict[str, Any] = {"rows": [encode(row) for row in (*records, *rest)], "findings": texts, "features": features}
        deaths = [row | known_cases.of_death(row, options) for row in done.deaths]
        answer |= {"scripts": scripts, "explained": done.explained, "deaths": deaths}
        answer["before"] = {notation.case_text(f.first): f.before for f in done.findings if f.before and f.known is None}
        self._send(answer | {"later": later}, before)
        texts += [
            f"{row['how']} ({row['signal']}) at stage {row['stage']}: {row['case']}"
            for row in deaths
            if row["blame"] not in (CPU, OUTSIDE) and (row["fails"] or not row["known"])
        ]
        self._conclude(done, texts)

    def _conclude(self, done: Examined, texts: Sequence[str]) -> None:
        """Fail the test, skip it, mark it as an expected failure, or let it pass. texts: of what fails it."""
        options = self._plan.options
        if texts:
            pytest.fail("\n\n".join(texts), pytrace=False)
        unwanted = statuses_text(done.unknown or done.summary, options.fail_on_statuses)
        if unwanted:
            pytest.fail(unwanted, pytrace=False)
        judged = done.summary.judged_share
        if judged < options.min_judged:
            item = f"{done.summary.op}-{done.summary.dtype}"
            pytest.fail(f"{item}: {judged:.1%} of the elements judged, less than --min-judged", pytrace=False)
        there = [self._entry(id) for id in dict.fromkeys(s.id for s in done.known if s.state in (SEEN, GROWN))]
        if not compared(done.summary):
            why = known.accepted(there) if there else ""
            pytest.skip(statuses_text(done.summary, SILENT) or why or "nothing was compared")
        if there:
            pytest.xfail(known.accepted(there))

    def _entry(self, id: str) -> Entry:
        assert self._plan.known is not None
        return self._plan.known.entry(id)

    def _send(self, answer: dict[str, Any], before: int) -> None:
        """Add what came of the item to the report of its test. before: bytes that this worker occupied."""
        worker: dict[str, Any] = getattr(self._request.config, "workerinput", {})
        device = self._plan.device
        self.is_full = "parity_share" in worker and machine.has_passed(device, worker["parity_share"], worker["workercount"])
        answer["memory"] = {"before": before, "after": machine.occupied(device), "full": self.is_full}
        self._request.node.user_properties.append(("parity", json.dumps(answer)))

    def _written(self, findings: Sequence[Finding], stored: Sequence[Record]) -> tuple[list[Record], list[str], dict[str, str]]:
        """Write the scripts of findings: (their records, the texts of those that fail, what the controller is to write on its
        own disk)."""
        options, device = self._plan.options, self._plan.device
        remote = getattr(self._request.config, "workerinput", {}).get("parity_remote")
        folder = Path(self._request.config.option.parity_rundir if remote else options.findings)
        records, texts, scripts = list(stored), list[str](), dict[str, str]()
        for k, f in enumerate(findings):
            script: Path | OutputError | None
            try:
                script = write_script(f, device, folder)
            except OutputError as e:  # a full disk must not cost the finding
                script = e
            if remote and isinstance(script, Path):
                scripts[script.name] = script.read_text(encoding="utf-8")
                script = Path(options.findings) / script.name
            if isinstance(script, Path):
                records[k] = replace(records[k], script=f"{script.parent.name}/{script.name}")
            if f.known is None or f.known.fails:
                texts.append(text(f, device.name, script, options.faults or "", options.setup or "", options.for_header()))
        return records, texts, scripts

    def _path_of_held(self, item: Item) -> Path:
        """Where a worker keeps what an item found, for the one that explains it."""
        name = hashlib.blake2b(item.id.encode(), digest_size=8).hexdigest()
        return Path(self._request.config.option.parity_rundir) / f"held-{name}"

    def _keeps(self, item: Item, held: Held) -> bool:
        """Whether what an item found is kept for the part that explains it. A full disk costs the causes, not the findings."""
        path = self._path_of_held(item)
        part = path.with_suffix(".part")
        try:
            part.write_bytes(held.packed())
            part.replace(path)
        except OSError:
            return False
        return True

    def _explain(self, item: Item) -> None:
        """Shrink what an item found before, and look for its causes. Fails the test on findings that are not known."""
        before = machine.resident_memory()
        held = Held.unpacked(self._path_of_held(item).read_bytes())
        findings, found, sightings = explain(item, self._plan, self._journal, held, self._dead()[0])
        self._plan.device.release()
        records, texts, scripts = self._written(findings, found)
        rows: list[Row] = [*records, *sightings]
        answer: dict[str, Any] = {"rows": [encode(row) for row in rows], "findings": texts, "scripts": scripts}
        self._send(answer | {"causes": item.id, "features": {}}, before)
        if texts:
            pytest.fail("\n\n".join(texts), pytrace=False)


@contextlib.contextmanager
def checking(request: pytest.FixtureRequest, plan: RunPlan) -> Iterator[Checker]:
    """A Checker, with a journal if the worker may die."""
    worker = getattr(request.config, "workerinput", None)
    folder = Path(worker["parity_rundir"]) if worker is not None and "parity_rundir" in worker else None
    journal = _journal(folder / f"journal-{worker['workerid']}") if folder and worker else None
    earlier = deaths(folder, request.node.nodeid) if folder else []
    try:
        yield Checker(request, plan, journal or NoJournal(), earlier)
    finally:
        if journal:
            journal.end()
        # The report of the call has taken the rows. The one of the teardown, which JUnit's file is made of, needs two numbers.
        _keep_numbers(request.node.user_properties)


@functools.cache
def _journal(path: Path) -> Journal:
    """The journal of this process: made once, because its file costs as much as a case."""
    return Journal(path)


def _keep_numbers(properties: list[tuple[str, object]]) -> None:
    """Replace the rows of an item among the properties of its test by the number of its cases and findings."""
    parts = [json.loads(str(value)) for name, value in properties if name == "parity"]
    items = [row for part in parts for row in map(json.loads, part.get("rows", ())) if row["kind"] == "item"]
    short = [(name, sum(row.get("cases", 0) for row in items)) for name in ("cases",) if items]
    short += [("findings", sum(len(part["findings"]) for part in parts if "findings" in part))] if items else []
    properties[:] = [*((name, value) for name, value in properties if name != "parity"), *short]
