"""Errors put into results that agree: which of them the judge sees, and when it is said that it does not."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest
import torch

from parity import catalog, tolerance
from parity.checks import power
from parity.checks.check import Settings, check, quiet
from parity.checks.power import ProbeResults
from parity.core.notation import parse
from parity.core.results import Fingerprint, Status
from parity.core.status import BLIND, ERRORS, PROVED, SEEN
from parity.devices import resolve
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.findings.verdict import RunResult
from parity.judging.bench import Bench
from parity.judging.judge import judge
from parity.report import power as told
from parity.report.summary import SummaryData, render
from parity.store.rows import Header, ItemRow, Power

CPU, SIM = resolve("cpu"), resolve("sim")
TABLES = tolerance.load("sim")


def asked(text: str, tables: tolerance.Tables = TABLES) -> list[ProbeResults]:
    case, found = parse(text), list[ProbeResults]()
    how = Settings(power=True)
    with SIM.active():
        check(catalog.row(case.op), case, SIM, CPU, tables, how, quiet, [], probes=found)
    return found


def outcomes(text: str) -> Counter[tuple[str, str]]:
    return Counter((p.error, p.outcome) for a in asked(text) for p in a.probes)


def test_every_error_is_seen_in_a_well_conditioned_result() -> None:
    """Forward, backward, out= and in-place; no element is loose or excused."""
    found = asked("exp(float32[3, 4].normal(seed=1))")
    assert [a.probes[0].aspect for a in found] == ["forward", "backward", "out=", "in-place"]
    assert all([p.error for p in a.probes] == list(ERRORS) for a in found)
    assert {p.outcome for a in found for p in a.probes} == {SEEN}
    assert {(e.total, e.shown, e.unshown, e.loose) for a in found for e in a.elements} == {(12, 0, 0, 0)}
    assert {a.sharp for a in found} == {(12, 12)}


def test_whole_numbers_are_halved_toward_zero_and_zero_becomes_one() -> None:
    """None leaves the range of its dtype."""
    for dtype, given, halved in (("int8", [-128, -8, 0, 4, 127], [-64, -4, 1, 2, 64]), ("uint8", [0, 255], [1, 128])):
        change = power._changed_whole(ERRORS[0], torch.tensor(given, dtype=getattr(torch, dtype)), random.Random(1))
        assert change is not None
        assert change[0].tolist() == halved


def test_no_error_is_put_into_large_results() -> None:
    assert asked(f"exp(float32[{power.LARGEST}].normal(seed=1))")
    assert not asked(f"exp(float32[{power.LARGEST + 1}].normal(seed=1))")


@pytest.mark.parametrize("text", ["add(int32[6].uniform(seed=1), int32[6].uniform(seed=2))", "logical_not(bool[5])"])
def test_whole_numbers_are_changed_by_one_at_least(text: str) -> None:
    assert {o for _, o in outcomes(text)} == {SEEN}


def test_what_leaves_the_range_is_proved_not_blind() -> None:
    """The squares of the first row are Inf in float32: nothing is promised of its similarity."""
    found = asked("cosine_similarity(float32[2, 2].of(1e30, 2e30, 1, 2), float32[2, 2].of(1e30, 2e30, 1, 2))")
    assert [(e.total, e.shown) for a in found[:1] for e in a.elements] == [(2, 1)]
    errors = Counter((p.error, p.outcome) for a in found for p in a.probes)
    assert errors[ERRORS[3], PROVED] == 1
    assert not any(o == BLIND for _, o in errors)


def test_another_index_of_an_equal_element_is_no_error() -> None:
    found = asked("argmax(float32[4].of(1.0, 1.0, 1.0, 1.0))")
    assert not [p for a in found for p in a.probes if p.outcome != SEEN]


def test_a_judge_that_allows_all_is_told_blind() -> None:
    """The detector's own fault: with budgets of 1e9 nothing is seen, and the result is well-conditioned all the same."""
    plain = judge

    def lenient(bench: Bench, *args: object, **named: object) -> object:
        verdict, measures = plain(bench, *args, **named)  # type: ignore[arg-type]  # handed on as it came
        return (verdict, measures) if bench.limits is not None else (replace(verdict, status=Status.AGREE), measures)

    with mock.patch.object(power, "judge", lenient):
        assert {o for _, o in outcomes("exp(float32[3, 4].normal(seed=1))")} == {BLIND}


def test_the_same_cases_are_asked_in_every_run() -> None:
    item = suite.Item(catalog.row("exp"), "float32")
    plan = RunPlan(SIM, CPU, TABLES, suite.profile("quick"), RunOptions(examples=12), power=0.4)
    one, two = (examine(item, plan, NoJournal()).power for _ in range(2))
    assert one == two
    assert sum(p.counts.get(SEEN, 0) for p in one) > 4
    assert not examine(item, replace(plan, power=0.0), NoJournal()).power


# ---------------------------------------------------------------------------------------------------------- in the report


def row(dtype: str, seen: int, blind: int) -> Power:
    return Power("exp", dtype, "forward", ERRORS[0], {SEEN: seen, BLIND: blind})


def test_the_upper_limit_is_one_that_the_counts_leave_likely() -> None:
    """Wilson's interval, one-sided, 95 %: 48 of 57 leave 90.5 %."""
    assert told.upper_limit(0, 0) == told.upper_limit(57, 57) == 1.0
    assert told.upper_limit(48, 57) == pytest.approx(0.905, abs=0.005)
    assert told.upper_limit(0, 1000) < 0.01


def test_low_power_stands_in_the_first_line() -> None:
    header = Header(Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "simulated", simulated=True))
    items = (
        ItemRow("exp", "float16", 3, {"forward": {"agree": 3}}, judged=90, left={"numbers on the way leave the range": 30}),
    )
    rows = (row("float16", 48, 9), row("float32", 200, 0))
    text = render(SummaryData(header, RunResult(items), power=rows))
    assert text.splitlines()[0] == (
        "LOW POWER  an agreement says less than it seems in float16: 48 of 57 errors of one half were seen (at most 91 %)"
    )
    assert "75.00% of 120 elements judged" in text
    text = render(SummaryData(header, RunResult(items), power=rows, verbose=True))
    assert "  exp float16: 90 of 120 elements judged (numbers on the way leave the range)" in text
    assert "LOW POWER" not in render(SummaryData(header, RunResult(items), power=rows[1:]))
    line = next(line for line in text.splitlines() if line.split()[:1] == ["all"] and " of " in line)
    assert line.split()[1:4] == ["248", "of", "257"]
