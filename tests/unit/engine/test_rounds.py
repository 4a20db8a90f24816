"""A run with a limit of time: which parts its items have, and that together they are the items."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.core.results import Cause, Fingerprint, Measure, Record
from parity.devices import resolve
from parity.engine import checking as settings_module
from parity.engine import rounds, run_state, suite
from parity.engine.cases import drawn
from parity.engine.checking import settings
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.rounds import CAUSES, LONG, NEW_KIND, PINNED, Part, Timed, TimeLimit, is_long, part_of, parts
from parity.faces import commandline
from parity.report import power as power_text
from parity.store import run_file
from parity.store.features import pack
from parity.store.rows import Header, ItemRow, Power, Sighting, folded
from parity.tolerance import load

QUICK = suite.profile("quick")
ITEMS = suite.select(["exp", "add"])


def plan(**options: object) -> RunPlan:
    return RunPlan(resolve("sim"), resolve("cpu"), load("sim"), QUICK, RunOptions(**options))  # type: ignore[arg-type]


def test_rounds_follow_one_another_without_a_gap() -> None:
    """Round 0 of every item first; then each round explores as much as all before it."""
    made = parts(ITEMS, QUICK, None, 60.0, 2, causes=True)
    assert [p.item for p in made[: len(ITEMS)]] == list(ITEMS)
    assert all(p.round == PINNED for p in made[: len(ITEMS)])
    explored = [p for p in made if p.round > 0]
    assert [p.round for p in explored] == sorted(p.round for p in explored)
    for item in ITEMS:
        ends = [(p.start, p.stop) for p in explored if p.item == item]
        assert ends[0][0] == 0
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
        n = QUICK.examples(item.row, item.dtype)
        assert n in [stop for _, stop in ends], "some round ends where a run without a limit does"
    assert max(p.stop for p in explored) > 60.0 * 2 / rounds.FASTEST_CASE / len(ITEMS)
    assert not [p for p in parts(ITEMS, QUICK, None, 60.0, 2, causes=False) if p.round == CAUSES]


def test_examples_limit_the_rounds() -> None:
    made = parts(ITEMS, QUICK, 7, 3600.0, 2, causes=False)
    assert max(p.stop for p in made) == 7
    assert all(p.start < p.stop for p in made if p.round)


@pytest.mark.parametrize(("ops", "hours"), [("exp", 0.02), ("exp", 8), ("*", 8)])
def test_a_long_run_has_more_rounds_and_no_larger_ones(ops: str, hours: float) -> None:
    """What a worker keeps of a part does not grow with the time, and what all workers collect hardly does."""
    items = suite.select([ops])
    made = parts(items, QUICK, None, hours * 3600, 1, causes=False)
    assert max(p.stop - p.start for p in made) <= rounds.MOST_CASES * (1 if ops == "exp" else 2)
    assert len(made) < rounds.MOST_PARTS + 20 * len(items)
    assert sum(p.stop - p.start for p in made) > hours * 3600 / rounds.FASTEST_CASE


def test_no_case_adds_settings_for_good() -> None:
    """What later rounds explore is checked in the same ways as what a whole item does."""
    one = plan()
    first = {settings(item, one, k, False) for item in ITEMS for k in range(1000)}
    made = settings_module._at.cache_info().currsize
    assert {settings(item, one, k, False) for item in ITEMS for k in range(5000, 9000)} == first
    assert settings_module._at.cache_info().currsize == made


def test_a_part_is_known_by_its_test() -> None:
    """By the id that pytest gives it, whatever the dtype; the pinned cases have the id of the item."""
    item = ITEMS[0]
    for number in (PINNED, CAUSES, 1, 12):
        assert part_of(f"test_operators.py::test_operator[{Part(item, number).id}]") == (item.id, number)
    assert part_of("[exp-float32]") == ("exp-float32", PINNED)


def test_causes_come_after_all_items() -> None:
    """Each item has its own part for causes."""
    made = [part_of(f"test_operators.py::test_operator[{i.id}]") for i in rounds.whole(ITEMS, causes=True)]
    assert made == [*((i.id, PINNED) for i in ITEMS), *((i.id, CAUSES) for i in ITEMS)]


def test_long_families_come_first() -> None:
    """In the order in which they are listed; the dtypes of an op stay together."""
    items = [suite.Item(suite.row(op), dtype) for op in ("exp", "eig", "attention_turned") for dtype in ("float32", "float16")]
    made = [i.id for i in rounds.whole(items, causes=False)]
    assert made == [*(i.id for i in (*items[4:], *items[2:4], *items[:2]))]
    assert [is_long(i) for i in made] == [True, True, True, True, False, False]
    assert set(LONG) <= {row.family for row in suite.rows("native")}


def test_the_parts_of_an_item_draw_its_cases() -> None:
    """The same ones in the same order, each once."""
    whole = [(k, pinned, one.case) for k, pinned, one in drawn(ITEMS[0], plan(examples=20))]
    made = parts(ITEMS[:1], QUICK, 20, 60.0, 1, causes=False)
    assert len(made) > 3
    assert [(k, pinned, one.case) for p in made for k, pinned, one in drawn(p.item, plan(examples=20), p)] == whole


def test_exploration_ends_with_the_time_and_pinned_cases_do_not() -> None:
    """A part of round 0 that was begun is finished; any other one stops between two cases."""
    over = replace(plan(), limit=TimeLimit(deadline=0.0))
    assert examine(ITEMS[0], over, NoJournal(), part=Part(ITEMS[0], PINNED)).summary.cases == QUICK.pinned
    assert examine(ITEMS[0], over, NoJournal(), part=Part(ITEMS[0], 1, 0, 8)).summary.cases == 0


def test_exploration_looks_for_causes_while_they_took_their_share_of_the_time_at_most() -> None:
    """Pinned cases never do, the last round does as long as there is time."""
    now = time.monotonic()
    spent = {seconds: TimeLimit(now + 600, began=now - 100, causes=seconds) for seconds in (0.0, 49.0, 60.0)}
    assert [t.may_look_for_causes(Part(ITEMS[0], 1)) for t in spent.values()] == [True, True, False]
    for t in spent.values():
        assert [t.may_look_for_causes(Part(ITEMS[0], r)) for r in (PINNED, CAUSES)] == [False, True]
    assert not TimeLimit(now - 1, began=now - 100).may_look_for_causes(Part(ITEMS[0], CAUSES))


def test_rows_of_one_item_add_up() -> None:
    """Counts are sums, the worst is the largest, and a row alone stays as it is."""
    one = ItemRow(
        "exp", "float32", 2, {"forward": {"agree": 2}}, {"forward": 0.5}, {"why": 1}, 1.0, ("exp",), {"sin": "x"}, "a"
    )
    two = ItemRow(
        "exp", "float32", 3, {"forward": {"agree": 1, "wrong": 2}}, {"forward": 0.2}, {"why": 2}, 0.5, ("sin",), round=2
    )
    alone = ItemRow("log", "float32", 1)
    total = folded([two, alone, one])
    assert total[1] == alone
    counts = {"forward": {"agree": 3, "wrong": 2}}
    expected = ItemRow(
        "exp", "float32", 5, counts, {"forward": 0.5}, {"why": 3}, 1.5, ("exp", "sin"), {}, total[0].ids, round=2
    )
    assert total[0] == expected


def checks(path: Path) -> tuple[Counter[str], object, object]:
    """What a run checked and what it drew, without times and without what depends on the order of the parts."""
    run = run_file.read(path)
    items = Counter(json.dumps((i.op, i.dtype, i.cases, i.counts, i.judged), sort_keys=True) for i in run.items)
    return items, Counter(map(str, (r for r in run.records if r.pinned))), sorted(run.coverage, key=lambda c: c.family)


def test_the_controller_of_a_long_run_keeps_no_more_with_each_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says at the end, and what it stores, is the same."""
    fingerprint = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "", simulated=True)
    ended = []
    for kept in (3, 1000):
        monkeypatch.setattr(run_state, "KEPT", kept)
        run = run_state.RunState(Header(fingerprint), tmp_path / f"{kept}.jsonl", seconds=60.0)
        run.collected(["[exp-float32]"])
        for k in range(40):
            item = ItemRow("exp", "float32", 2, {"forward": {"agree": 2}}, {"forward": k / 40}, judged=5, round=k)
            power = Power("exp", "float32", "forward", "half", {"seen": 1}, ("why",))
            given = {
                "rows": [run_file.encode(power), run_file.encode(item)],
                "findings": [],
                "features": pack([{f"{k}"}, {"a"}]),
            }
            part = run.take(given)
            assert part is not None
            run.store(part)
        assert len(run.items) == len(run.power) == 40 or kept == 3
        assert len(run.items) <= 6 or kept == 1000
        run.end_of("[exp-float32]")
        seen = power_text.counts(run.power)
        run.close(1.0)
        ended.append((replace(run.items[0], ids=""), run.checks, seen, run_file.read(run.output)))
        assert len(run.power) <= 8 or kept == 1000
    assert ended[0] == ended[1]
    assert (ended[0][0].cases, ended[0][0].judged, ended[0][2]["float32", "half"]) == (80, 200, {"seen": 40})


def test_a_part_that_comes_twice_counts_once_and_its_features_are_stored(tmp_path: Path) -> None:
    """A worker that died after its last case had sent it already."""
    fingerprint = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "", simulated=True)
    run = run_state.RunState(Header(fingerprint), tmp_path / "run.jsonl")
    item = ItemRow("exp", "float32", 2, {"forward": {"agree": 2}}, {"forward": 0.5}, judged=5)
    given = {"rows": [run_file.encode(item)], "findings": [], "features": pack([{"a", "b"}])}
    part = run.take(given)
    assert part is not None
    run.store(part)
    assert '"words"' in run.output.read_text(), "what a run counts from that goes on with this one"
    assert run.take(given) is None
    run.close(1.0)
    assert run.checks == 2
    assert [sorted(c.counts) for c in run_file.read(run.output).coverage] == [["a", "b"]]


def test_what_is_near_a_budget_is_drift_until_the_run_is_whole(tmp_path: Path) -> None:
    fingerprint = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "", simulated=True)
    run = run_state.RunState(Header(fingerprint), tmp_path / "run.jsonl")
    run.collected(["[silu-float32]"])
    one = Measure("out", 1.3, mismatched=1, total=100, problem="value")
    case = "silu(float32[99])"
    near = Record(case, "silu", "float32", "forward", "drift", measures=(one,), shrunk=case, count=1, near=(case,))
    near = replace(near, cause=Cause("aten::silu", "values"))
    item = ItemRow("silu", "float32", 9, {"forward": {"agree": 900, "drift": 1}}, judged=9000)
    part = run.take({"rows": [run_file.encode(row) for row in (near, item)], "findings": [], "features": pack([])})
    assert part is not None
    run.store(part)
    assert [run.result().marginal, run.result().exit_code] == [(), 1]
    run.end_of("[silu-float32]")
    assert [run.result().marginal, run.result().exit_code] == [("silu-float32",), 0]
    assert [run.result("broken off").marginal] == [()]


def test_what_a_death_says_of_a_known_finding_is_stored(tmp_path: Path) -> None:
    fingerprint = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "", simulated=True)
    run = run_state.RunState(Header(fingerprint), tmp_path / "run.jsonl")
    seen = Sighting("sin-1", "sin", "int8", "seen", "forward", "sin(int8[2])", "accepted")
    row: dict[str, Any] = {"item": "sin-int8", "case": "sin(int8[2])", "how": "crash", "signal": "SIGABRT", "stage": "device"}
    row |= {"last": False, "blame": "device", "why": "", "known": "sin-1", "fails": False, "sighting": run_file.encode(seen)}
    assert run.death(row).known == "sin-1"
    run.close(1.0)
    assert run_file.read(run.output).known == (seen,)


def test_a_finding_is_stored_once_for_each_cause_and_held_back_without_one() -> None:
    bare = Record("exp(float32[2])", "exp", "float32", "forward", "wrong", shrunk="exp(float32[1])")
    first, second = (replace(bare, cause=Cause(f"aten::{name}", "values")) for name in ("exp", "mul"))
    timed = Timed(60.0)
    assert timed.new([bare]) == []
    assert timed.without_cause() == [bare]
    assert timed.new([first, first, second]) == [first, second]
    assert timed.new([first]) == []
    assert timed.without_cause() == []


def test_a_new_kind_of_finding_is_worth_more_rounds() -> None:
    item = ItemRow("exp", "float32", 2, {}, {}, seconds=2.0)
    timed = Timed(60.0)
    timed.brought(item, 4, 0, True)
    timed.brought(replace(item, op="cos"), 4, 1, True)
    assert timed.yields == {"exp-float32": 2.0, "cos-float32": 2.0 + NEW_KIND / 2}


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once")
def test_a_run_with_enough_time_is_the_run_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its checks, whatever workers took the parts; and it says how far it came."""
    monkeypatch.chdir(tmp_path)
    asked = ("run", "exp", "log", "--dtype", "float32,int8", "--device", "sim", "--examples", "9", "-n", "2")
    assert commandline.main([*asked, "--output", "whole.jsonl"]) == 0
    assert commandline.main([*asked, "--output", "timed.jsonl", "--time", "5m"]) == 0
    assert checks(Path("timed.jsonl")) == checks(Path("whole.jsonl"))
    end = run_file.read(Path("timed.jsonl")).end
    assert end is not None
    assert (end.rounds[0], end.lacking, end.expected, end.stopped) == (4, (), 4, "")
    assert set(end.rounds) == {4}
    assert end.seconds < 240


FAULTS = """
from parity.devices import Fault

FAULTS = [
    Fault("halved", ops=("exp", "sin"), effect=lambda call: call.run() * 0.5, level="kernel"),
    Fault("abort", ("log",), lambda c: __import__("os").abort(), lambda c: c.operands[0].dim() == 2),
]
"""


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once")
def test_findings_of_a_run_with_a_limit_have_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found in the pinned cases, explained afterwards, reported once; deaths are found as ever."""
    monkeypatch.chdir(tmp_path)
    Path("faults.py").write_text(FAULTS)
    asked = ("run", "exp", "sin", "log", "--dtype", "float32", "--device", "sim", "--setup", "faults.py", "-n", "2")
    assert commandline.main([*asked, "--output", "run.jsonl", "--time", "5m", "--examples", "8", "--power", "0"]) == 1
    out = capsys.readouterr().out
    run = run_file.read(Path("run.jsonl"))
    kinds = [r for r in run.records if r.shrunk]
    assert {r.cause.subject for r in kinds if r.cause} >= {"aten::exp"}
    assert not [r for r in kinds if r.cause is None and r.op == "exp" and r.aspect == "forward"]
    told = Counter((r.op, r.dtype, r.aspect, r.status, r.measures[0].tensor, str(r.cause)) for r in kinds)
    assert max(told.values()) == 1
    assert any(d.op == "log" and d.how == "crash" for d in run.deaths)
    assert "reached    the pinned cases of 3 of 3 items" in out


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once")
def test_a_run_that_was_cut_before_its_pinned_cases_is_not_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with 1 and names the items."""
    monkeypatch.chdir(tmp_path)
    assert commandline.main(["run", "--device", "sim", "-n", "1", "--time", "5s", "--output", "run.jsonl"]) == 1
    out = capsys.readouterr().out
    run = run_file.read(Path("run.jsonl"))
    assert run.end is not None
    assert run.end.lacking
    assert len(run.items) + len(run.end.lacking) == run.end.expected == len(suite.select(source="native"))
    assert f"NOT WHOLE  the pinned cases of {len(run.end.lacking):,} items were not checked: " in out
    assert run.end.lacking[0] in out
    assert "agrees, but the pinned cases of" in out or "nothing was compared" in out
    assert run.end.stopped == f"cut by --time: the pinned cases of {len(run.end.lacking):,} items were not checked"
    assert run.end.seconds < 5 + 60  # a slow machine takes long to start its workers
