"""What a worker leaves out of an item that was begun before, and what it says before an item ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from parity import tolerance
from parity.core.results import Record
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.engine.journal import LOCATING, REPLAYING, SHRINKING, NoJournal
from parity.engine.options import SHRINK, RunOptions
from parity.engine.planning import RunPlan
from parity.faces.checker import Checker
from parity.faces.survival import ALONE_AFTER
from parity.findings.known import Known
from parity.store import run_file
from parity.store.code import Code


def left_out(*deaths: tuple[int, str, str]) -> set[int]:
    """deaths: (ordinal, how, stage)."""
    nothing: Any = None
    rows = [{"ordinal": k, "how": how, "stage": stage, "case": "", "blame": "device"} for k, how, stage in deaths]
    return set(Checker(nothing, nothing, nothing, rows)._dead()[0])


def test_a_case_that_hung_is_never_run_again() -> None:
    """After several deaths all cases run in processes of their own, those that ended the worker, too: some deaths are none of
    their case's. A hang on the device is its case's, and would take its time again."""
    hangs = [(3, "hang", "device"), (5, "hang", "device")]
    assert left_out(*hangs) == {3, 5}
    assert left_out(*hangs, (7, "crash", "device")) == {3, 5}
    assert left_out((3, "hang", "compare"), (5, "crash", "device"), (7, "crash", "device")) == set()


def test_what_hung_while_causes_were_looked_for_is_no_case() -> None:
    assert left_out((SHRINKING, "hang", "device"), (LOCATING, "hang", "device")) == {SHRINKING, LOCATING}
    assert ALONE_AFTER == 3
    assert left_out(*[(REPLAYING, "hang", "device")] * 3) == {REPLAYING}


def sent(*faults: Fault, hear: Callable[[pytest.TestReport], None] = lambda report: None, **more: Any) -> int:
    """How many reports a worker sends while it examines two items, before they end. hear: called with each."""
    reports: list[pytest.TestReport] = []

    def logreport(report: pytest.TestReport) -> None:
        reports.append(report)
        hear(report)

    config = SimpleNamespace(stash=pytest.Stash(), hook=SimpleNamespace(pytest_runtest_logreport=logreport))
    request: Any = SimpleNamespace(config=config, node=SimpleNamespace(nodeid="a", location=("", 0, "")))
    options = RunOptions(examples=6, skip=(SHRINK,))
    sim, cpu = resolve("sim", faults), resolve("cpu")
    plan = replace(RunPlan(sim, cpu, tolerance.load("sim"), suite.profile("quick"), options, later=True), **more)
    for name in ("neg", "abs"):
        Checker(request, plan, NoJournal(), [])._examined(suite.Item(suite.row(name), "int32"), None)
    return len(reports)


def test_the_first_finding_of_a_worker_is_sent_before_its_item_ends() -> None:
    """A person waits for it, and an item may take long. The others come with their items."""
    called = heard = 0

    def wrong(call: Call) -> object:
        nonlocal called
        called += 1
        return call.run() + 1

    def hear(report: pytest.TestReport) -> None:
        nonlocal heard
        heard = called
        ((name, value),) = report.user_properties
        first = run_file.decode(json.loads(str(value))["first"])
        assert isinstance(first, Record)
        assert (report.nodeid, report.outcome, report.when) == ("a", "passed", "setup")
        assert (name, first.op, first.status) == ("parity", "neg", "wrong")

    assert sent(Fault("one more", ("neg", "abs"), wrong), hear=hear) == 1
    assert 0 < heard < called / 4


def test_nothing_is_sent_of_a_healthy_device_nor_where_findings_are_known() -> None:
    """Whether one is known comes out when its item has ended."""
    wrong = Fault("one more", ("neg", "abs"), lambda call: call.run() + 1)
    assert not sent()
    assert not sent(wrong, known=Known(Code()))
    assert not sent(wrong, later=False)
