"""The scoreboard: what counts as found, what a miss says, and what it survives."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import few
import pytest
import torch

from parity import tolerance
from parity.core import notation
from parity.core.errors import FaultError, OutputError, UsageError
from parity.devices import Fault, resolve
from parity.devices.refusals import listening
from parity.devices.sim import simulated
from parity.devices.sim.call import Call
from parity.engine import suite
from parity.engine.cases import SWEPT
from parity.engine.planning import RunPlan
from parity.faces import commandline
from parity.prove import board as report
from parity.prove import routes, score, scoreboard
from parity.prove.board import Board
from parity.prove.deaths import WorkerDeath, scored
from parity.prove.routes import Reach, Route
from parity.prove.score import Score
from parity.prove.scoreboard import Job
from parity.prove.witness import FaultJournals
from parity.zoo import BUGS, subjects
from parity.zoo.subjects import FaultSubject

FILE = Path(__file__).with_name("few.py")
PLANTED = [f for f in few.FAULTS if f not in (few.GRADIENT, few.SHIFTED)]


def quiet(score: Score, done: int, total: int) -> None:
    """Nobody hears of it."""


@pytest.fixture(scope="module")
def both() -> Iterator[Board]:
    """The faults but for two that other tests plant, by both generators, in two workers, with the rows of their ops and some
    others recorded."""
    called = dict.fromkeys(op.removesuffix("_") for f in PLANTED for op in f.ops)
    names = [r.name for r in suite.rows("native") if r.name in called or r.name in routes.SPREAD or r.name == "sigmoid"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scoreboard, "recorded", lambda: tuple(names))
        yield scoreboard.run(tuple(f.id for f in PLANTED), Job(str(FILE), False, "quick", 4.0), "both", ("0",), 2, quiet)


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    """An ordinary quick run on a healthy simulated device."""
    torch.set_num_threads(1)
    device = resolve("sim")
    tables = tolerance.load(device.name, known_ops={r.name for r in suite.rows("all")})
    return RunPlan(device, resolve("cpu"), tables, suite.profile("quick"))


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the rows of the faults and some others, not the whole catalog."""
    ops = ("tanh", "sin", "neg", "mul", "erfinv", "floor")
    names = (*ops, *(r.name for r in suite.rows("native") if r.name not in ops and r.family in ("reduction", "copy")))
    monkeypatch.setattr(scoreboard, "recorded", lambda: names[:40])


_RECORDED: list[tuple[dict[str, Any], bool]] = []  # the answer of the first of the tests that take it


@pytest.fixture
def recorded_once(few_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the few rows once for all tests of what is scored afterwards: a process of a worker costs 2 s."""
    real = scoreboard._answers

    def answers(job: Job, *more: Any) -> tuple[dict[str, Any], bool]:
        if not job.rows:
            return real(job, *more)
        if not _RECORDED:
            _RECORDED.append(real(job, *more))
        return _RECORDED[0]

    monkeypatch.setattr(scoreboard, "_answers", answers)


def of(made: Board, fault: str, generator: str = score.SUITE) -> Score:
    """The score of one fault."""
    return next(s for s in made.scores if (s.fault, s.generator) == (fault, generator))


# ------------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "op", "aspect", "statuses", "most"),
    [
        ("wrong", "tanh", "forward", {"wrong", "drift"}, 1),
        ("no-write", "mul", "in-place", {"wrong"}, 8),
        ("refused", "erfinv", "forward", {"unsupported"}, 1),
        ("abort", "cosh", "", {"crash"}, 1),
        ("hang", "sinh", "", {"hang"}, 8),
    ],
)
def test_found_named_and_shrunk(both: Board, fault: str, op: str, aspect: str, statuses: set[str], most: int) -> None:
    """The op, the aspect and the status are the fault's own, and the case is small; deaths and hangs too."""
    s = of(both, fault)
    assert s.found, s.miss
    assert (s.op, s.aspect) == (op, aspect)
    assert s.status in statuses
    assert s.elements is not None
    assert s.elements <= most
    assert notation.parse(s.shrunk).op == s.op
    assert 0 < s.fired <= s.examples
    assert not s.alarms


@pytest.mark.slow
def test_a_miss_says_whether_the_fault_was_at_work(both: Board) -> None:
    """Never fired is the generator's, fired unseen the judge's, with the first cases."""
    never, unseen = of(both, "never"), of(both, "unseen")
    assert not never.found
    assert never.fired == 0
    assert "never fired in" in never.miss
    assert never.miss.endswith("(generator)")
    assert not unseen.found
    assert f"fired unseen in {unseen.fired} of {unseen.examples} cases of ceil" in unseen.miss
    assert unseen.miss.endswith("(judge)")
    assert 0 < unseen.share < 1
    assert len(unseen.unseen) == score.MOST_KEPT
    assert all(notation.parse(c).args for c in unseen.unseen)


@pytest.mark.slow
def test_a_transfer_is_looked_for_in_rows_of_every_layout(both: Board) -> None:
    """Uploads belong to every op; there are no bystanders then."""
    s = of(both, "doubled")
    assert s.found
    assert s.op in routes.SPREAD
    assert both.routes["doubled"].bystanders == ()


@pytest.mark.slow
def test_bystanders_are_silent(both: Board) -> None:
    """They were run under every fault that does not touch everything, after its death too."""
    for s in both.of(score.SUITE):
        assert s.bystanders == (0 if s.fault == "doubled" else routes.BYSTANDERS * score.CASES_OF_OTHERS)
        assert not s.alarms


@pytest.mark.slow
def test_the_plain_rule_beside_it(both: Board) -> None:
    """OpInfo's samples show plain faults and deaths, not a write that misses a strided view."""
    rule = {s.fault: s for s in both.of(score.OPINFO)}
    assert rule["wrong"].found
    assert rule["wrong"].op == "opinfo:tanh"
    assert rule["refused"].status == "unsupported"
    assert rule["abort"].status == "crash"
    assert rule["hang"].status == "hang"
    assert not rule["no-write"].found
    assert "never fired in any of" in rule["no-write"].miss


@pytest.mark.slow
def test_rows_that_could_not_be_recorded_are_told(both: Board) -> None:
    made = replace(both, unknown=("softmax",))
    assert both.unknown == ()
    assert "  softmax" in report.render(made).partition("because recording it ended the process")[2].splitlines()
    assert report.tree(made)["unknown"] == ["softmax"]


@pytest.mark.slow
def test_the_table_says_what_it_is_and_the_json_says_everything(both: Board, tmp_path: Path) -> None:
    """Simulated, found of total side by side, misses with their reasons; every run in the JSON."""
    text = report.render(both)
    assert "SIMULATED" in text
    assert "parity's suite" in text
    assert "OpInfo + assert_close" in text
    assert "misses of parity's suite\n  never " in text
    assert f"{sum(s.found for s in both.of(score.SUITE)):3} of   8" in text
    path = tmp_path / "deep" / "zoo.json"
    report.write(both, path)
    tree = json.loads(path.read_text())
    assert tree["simulated"] is True
    assert [f["id"] for f in tree["faults"]] == [f.id for f in PLANTED]
    assert all({r["generator"] for r in f["runs"]} == {"suite", "opinfo"} for f in tree["faults"])
    assert tree["recall"]["suite"]["of"] == 8
    with pytest.raises(OutputError, match="name another file with --output"):
        report.write(both, Path("/proc/none/zoo.json"))


@pytest.mark.usefixtures("recorded_once")
@pytest.mark.slow
def test_workers_do_not_change_the_score() -> None:
    """One worker or two, the same cases."""

    def told(workers: int) -> list[Score]:
        made = scoreboard.run(("wrong", "shifted"), Job(str(FILE), False, "quick"), "suite", ("3",), workers, quiet)
        return [replace(s, seconds=0.0, shrinking=0.0) for s in made.scores]

    assert told(1) == told(2)


@pytest.mark.usefixtures("recorded_once")
def test_an_interrupted_board_keeps_what_it_has(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def first(score: Score, done: int, total: int) -> None:
        raise KeyboardInterrupt

    made = scoreboard.run(("wrong", "never", "shifted"), Job(str(FILE), False, "quick"), "suite", ("3",), 1, first)
    assert (len(made.scores), len(made.subjects), made.left) == (1, 1, 2)
    assert "INTERRUPTED: 2 of 3 were not scored." in report.render(made)
    assert report.tree(made)["left"] == 2
    monkeypatch.setattr(scoreboard, "run", lambda *_: made)
    assert commandline.main(["prove", "zoo"]) == commandline.INTERRUPTED
    assert "INTERRUPTED" in capsys.readouterr().out


@pytest.mark.usefixtures("recorded_once")
def test_each_seed_is_run() -> None:
    """Each is a score of its own; OpInfo, which has no seed, is run once."""
    made = scoreboard.run(("shifted",), Job(str(FILE), False, "quick"), "both", ("7", "8", "9"), 1, quiet)
    assert [s.seed for s in made.of(score.SUITE)] == ["7", "8", "9"]
    assert len(made.of(score.OPINFO)) == 1
    assert len({s.case for s in made.of(score.SUITE)}) > 1
    assert "3 seeds" in report.render(made)


# ------------------------------------------------------------------------------------------------------------- one fault


def searched(subject: FaultSubject, route: Route, plan: RunPlan, folder: Path) -> tuple[Score, score.FaultTrial]:
    """A search in this process."""
    t = score.trial(subject, route, plan, FaultJournals(folder), 30.0)
    return score.search(t)[0], t


def test_a_silent_bug_whose_effect_raises_is_not_found(plan: RunPlan, tmp_path: Path) -> None:
    """It is noted: a mistake in the planting must not look like recall."""
    s, _ = searched(subjects.subject(few.BUGS[3]), Route(("floor",)), plan, tmp_path)
    assert not s.found
    assert any("IndexError" in n for n in s.notes)
    s, _ = searched(subjects.subject(few.BROKEN), Route(("floor",)), plan, tmp_path)
    assert s.found
    assert s.status == "error"
    s, _ = searched(subjects.subject(replace(few.BROKEN, silent=True)), Route(("floor",)), plan, tmp_path)
    assert not s.found


def test_a_bug_and_its_fault_agree_whether_it_is_silent() -> None:
    """What the fault says counts where nobody gave it a kind."""
    assert [subjects.subject(few.bug(few.WRONG, kind)).silent for kind in ("drift", "crash")] == [True, False]
    with pytest.raises(FaultError, match="bug 'wrong': its fault says silent=True, and its kind is 'crash'"):
        few.bug(replace(few.WRONG, silent=True), "crash")


@pytest.mark.slow
def test_the_shrunk_case_agrees_without_the_fault(plan: RunPlan, tmp_path: Path) -> None:
    """A finding that the healthy device shows as well is an alarm and no finding."""
    short = replace(plan, options=replace(plan.options, examples=2))
    t = score.trial(subjects.subject(few.WRONG), Route(("tanh",)), short, FaultJournals(tmp_path), 30.0)
    t.healthy = resolve("sim", (few.WRONG,))
    with t.healthy.active(), listening([]):
        s, _ = score.search(t)
    assert not s.found
    assert all("on the healthy device too" in a for a in s.alarms)
    assert len(s.alarms) == score.MOST_KEPT


def test_a_fault_without_rows_says_so(plan: RunPlan, tmp_path: Path) -> None:
    """And names what the profile leaves out."""
    s, _ = searched(subjects.subject(few.WRONG), Route(absent=("opinfo:tanh",)), plan, tmp_path)
    assert s.miss == "no row of the quick profile runs its ops (opinfo:tanh)"


def test_the_search_stops_at_its_limit(plan: RunPlan, tmp_path: Path) -> None:
    """Before the next case, and says so."""
    t = score.trial(subjects.subject(few.NEVER), Route(("sin",)), plan, FaultJournals(tmp_path), -1.0)
    stopped, _ = score.search(t)
    assert (stopped.miss, stopped.late) == ("no case of sin could be drawn", True)


def test_a_limit_is_one_of_work_and_a_busy_machine_changes_nothing(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    few_cases = replace(plan, options=replace(plan.options, examples=2))
    s, _ = searched(subjects.subject(few.NEVER), Route(("sin",)), few_cases, tmp_path)
    assert s.examples > 4
    assert "never fired" in s.miss
    assert not s.late


def test_what_is_not_finished_is_no_miss_in_any_percentage() -> None:
    """It has a column, where there is one."""
    subject = subjects.subject(few.NEVER)
    seeds = tuple("123")
    scores = tuple(Score("never", score.SUITE, seed, found=seed == "1", late=seed == "3", miss="no") for seed in seeds)
    board = Board("quick", (score.SUITE,), seeds, "", 1, 0.0, (subject,), {"never": Route(("sin",))}, scores)
    whole = next(line for line in report.render(board).splitlines() if line.startswith("all "))
    assert whole.split()[1:6] == ["1", "of", "2", "50", "%"]
    assert whole.split()[-1] == "1"
    assert "not finished" in report.render(board)
    assert report.tree(board)["recall"][score.SUITE] | {"interval": 0} == {
        "found": 1,
        "of": 2,
        "not finished": 1,
        "interval": 0,
    }
    assert "not finished" not in report.render(replace(board, scores=scores[:2]))


@pytest.mark.parametrize("results", [1, 9])
def test_what_a_run_would_call_marginal_is_not_found(results: int, plan: RunPlan, tmp_path: Path) -> None:
    """The search goes on: more of it is a finding."""
    struck = set[float]()

    def off(call: Call) -> torch.Tensor:
        out: torch.Tensor = call.run()
        key = float(out.sum())
        if out.numel() >= 100 and out.dtype is torch.float32 and (key in struck or len(struck) < results):
            struck.add(key)
            out.view(-1)[out.view(-1).abs().argmax()] *= 1.0 + 4.5e-6
        return out

    subject = subjects.subject(Fault("off", ("silu",), off))
    short = replace(plan, options=replace(plan.options, examples=40))
    s, t = searched(subject, Route(("silu",)), short, tmp_path)
    assert (s.found, s.miss.partition(" in ")[0]) == ((False, "marginal") if results == 1 else (True, ""))
    assert t.near
    board = Board("quick", (score.SUITE,), ("0",), "", 1, 1.0, (subject,), {subject.id: Route(("silu",))}, (s,))
    assert ("1 score missed for it" in report.render(board)) is (results == 1)


def test_rows_and_dtypes_take_turns(plan: RunPlan) -> None:
    """Nobody waits for another to be exhausted; each gives as many cases as its profile says."""
    items = [suite.Item(suite.row(n), d) for d in ("float32", "int64") for n in ("add", "mul")]
    drawn = list(score.rounds(items, plan))
    assert [i.id for i, *_ in drawn[:5]] == ["add-float32", "mul-float32", "add-int64", "mul-int64", "add-float32"]
    for item in items:
        count = plan.profile.pinned + plan.profile.examples(item.row, item.dtype)
        assert [k for i, k, *_ in drawn if i == item and k < SWEPT] == list(range(count))
        assert len([k for i, k, *_ in drawn if i == item and k >= SWEPT]) == plan.profile.sweeps(item.row, item.dtype)


def died(how: str = "crash", case: str = "", acted: bool = False, **facts: object) -> WorkerDeath:
    """A death of a fault's test."""
    return WorkerDeath("", how, "SIGSEGV", "device", case, 7.0, json.dumps(facts), acted, False)


@pytest.fixture
def unseen(plan: RunPlan, tmp_path: Path) -> score.FaultTrial:
    """A trial of a fault that is at work without effect, in rows that show it."""
    return score.trial(subjects.subject(few.UNSEEN), Route(("ceil",)), plan, FaultJournals(tmp_path), 30.0)


def test_deaths_that_are_not_the_faults_are_alarms_and_too_many_end_it(unseen: score.FaultTrial) -> None:
    """The cases are left out; the third one ends the search."""
    strays = [died(case=f"ceil(float32[{k}])", phase="search", item="ceil-float32", ordinal=k) for k in range(3)]
    s = scored(unseen, strays[:2])
    assert unseen.dead == {("ceil-float32", 0), ("ceil-float32", 1)}
    assert "fired unseen" in s.miss
    assert s.alarms == tuple(f"crash (SIGSEGV) in ceil(float32[{k}]), and the fault was not at work" for k in range(2))
    assert scored(unseen, strays).miss == "given up after 3 deaths that were not the fault's"


@pytest.mark.parametrize(
    ("how", "miss"), [("hang", "was stopped by its time limit"), ("crash", "ended outside a case (SIGSEGV)")]
)
def test_a_death_outside_of_every_case_is_a_miss(unseen: score.FaultTrial, how: str, miss: str) -> None:
    s = scored(unseen, [died(how, phase="search")])
    assert (s.miss, s.late) == (f"the process of this fault {miss}", how == "hang")


def test_a_hang_that_does_not_come_again_is_no_finding(unseen: score.FaultTrial) -> None:
    """It is an alarm, and the case that was shrunk with the harmless fault is a note."""
    item = suite.Item(suite.row("ceil"), "float32")
    ordinal, case = next((k, c) for _, k, _, c in score.rounds((item,), unseen.plan) if len(c.case.operands()[0].shape) == 2)
    text = notation.case_text(case.case)
    facts = {"item": item.id, "ordinal": ordinal, "examples": 4, "fired": 1, "through": False, "began": 5.0}
    s = scored(unseen, [died("hang", text, True, phase="search", **facts)])
    assert (s.found, s.miss) == (False, "a hang that was not reproduced")
    assert (s.examples, s.fired, s.seconds, s.reason) == (4, 2, 2.0, "SIGSEGV")
    assert s.alarms == (f"hang in {text}, and not when it was run again",)
    assert all(n.startswith("the shrunk case does not end the process: ceil(") for n in s.notes)


@pytest.mark.parametrize(
    ("phase", "acted", "field", "value"),
    [
        ("shrink", True, "notes", ("crash (SIGSEGV) in ceil(float32[2, 2]), after the finding",)),
        ("healthy", False, "miss", "the case ends the process on the healthy device too"),
        ("least", True, "shrunk", "ceil(float32[1, 1])"),
        ("least", False, "shrunk", "ceil(float32[3, 3])"),
        ("others", True, "composites", ("ceil (crash)",)),
        ("beside", False, "alarms", ("ceil (crash)",)),
    ],
)
def test_what_a_death_after_the_search_means(
    unseen: score.FaultTrial, phase: str, acted: bool, field: str, value: object
) -> None:
    """The score so far stands in the journal."""
    known = asdict(
        Score(
            "unseen",
            found=True,
            generator="suite",
            seed="0",
            op="ceil",
            dtype="float32",
            case="ceil(float32[3, 3])",
            shrunk="ceil(float32[1, 1])",
        )
    )
    facts = {"phase": phase, "item": "ceil-float32", "score": known}
    s = scored(unseen, [died("crash", "ceil(float32[2, 2])", acted, **facts)])
    assert getattr(s, field) == value
    assert s.found == (phase != "healthy")


# ------------------------------------------------------------------------------------------------------------- which rows


@pytest.fixture(scope="module")
def seen(plan: RunPlan) -> dict[str, Reach]:
    """What a few rows call."""
    device = simulated("sim")
    with listening([]):
        names = ("softmax", "softmin", "sum_dim", "setitem", "abs", "relu")
        return {n: routes.record(suite.row(n), device, plan) for n in names}


@pytest.mark.parametrize(
    ("fault", "named", "using"),
    [
        (Fault("a", ("_softmax",), few.larger), "softmax", "softmin"),
        (Fault("b", ("softmax",), few.larger, level="function"), "softmax", ""),
        (Fault("c", ("sum",), few.larger), "sum_dim", "setitem"),
        (Fault("d", ("__setitem__",), few.larger, level="function"), "setitem", ""),
        (Fault("e", ("sgn",), few.larger), "sgn", "abs"),
        (Fault("f", ("threshold_backward",), few.larger), "threshold", "relu"),
        (Fault("g", ("convolution",), few.larger), "conv_transpose2d", ""),
    ],
)
def test_rows_by_name_and_by_what_they_call(seen: dict[str, Reach], fault: Fault, named: str, using: str) -> None:
    """A backward kernel concerns the rows whose gradient calls it; private and dunder names find their rows."""
    route = routes.choose(subjects.subject(fault), seen, suite.profile("quick"))
    assert named in route.named
    assert not using or using in route.using
    assert not {*route.named, *route.using} & {*route.bystanders, *route.composites}
    assert len(route.bystanders) == routes.BYSTANDERS


def test_a_bug_names_its_rows(seen: dict[str, Reach]) -> None:
    """Then these alone are searched; what the profile does not run is reported; at full the OpInfo rows join."""
    subject = subjects.subject(few.BUGS[4])
    route = routes.choose(subject, seen, suite.profile("quick"))
    assert (route.named, route.using, route.absent) == (("sin",), (), ("opinfo:sin",))
    assert routes.choose(subject, seen, suite.profile("full")).named == ("sin", "opinfo:sin")


def test_another_spelling_of_an_op_is_that_op(plan: RunPlan) -> None:
    """Glue that calls the public function of a named row, and hardly more, joins it; a layer that uses it does not."""
    device = simulated("sim")
    with listening([]):
        names = ("lstm", "lstm_dropout", "gru", "transformer_layer")
        told = {n: routes.record(suite.row(n), device, plan) for n in names}
    bug = next(b for b in BUGS if b.rows == ("lstm",))
    route = routes.choose(subjects.subject(bug), told, suite.profile("quick"))
    assert route.named == ("lstm", "lstm_dropout")


@pytest.mark.slow
def test_rows_whose_recording_dies_hangs_or_fails_take_no_other_with_them() -> None:
    """What dies once is recorded once more; what dies twice, hangs or fails is left out."""
    program = FILE.with_name("recording.py")
    path = os.pathsep.join([str(program.parent), str(program.parents[2])])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "add: add", "mul: mul", "neg: neg"]


# ---------------------------------------------------------------------------------------------------- subjects and figures


def test_subjects_from_a_file_a_module_and_the_errors(tmp_path: Path) -> None:
    """BUGS are classified, a file's FAULTS are not."""
    assert {s.kind for s in subjects.load(str(FILE))} == {subjects.UNCLASSIFIED}
    (bugs := tmp_path / "bugs.py").write_text("import few\nBUGS = few.BUGS\n")
    assert subjects.load(str(bugs)) == subjects.load("few")
    assert [s.kind for s in subjects.load("few")][:2] == ["silent_wrong_forward", "silent_noop"]
    with pytest.raises(FaultError, match=r"nowhere\.py: no such file"):
        subjects.load("nowhere.py")
    with pytest.raises(FaultError, match="no such module"):
        subjects.load("no_module_of_that_name")


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("wrong", ["wrong"]),
        ("silent_*", ["wrong", "no-write", "broken", "never"]),
        ("layout", ["no-write"]),
        ("erfinv", ["refused"]),
    ],
)
def test_patterns_name_ids_kinds_classes_and_ops(pattern: str, ids: list[str]) -> None:
    """With * and ?."""
    assert [s.id for s in subjects.select(subjects.load("few"), (pattern,))] == ids


def test_a_pattern_that_names_nothing() -> None:
    """Is named with what is near."""
    with pytest.raises(UsageError, match="no fault matches 'wrnog'; did you mean 'wrong'"):
        subjects.select(subjects.load("few"), ("wrnog",))


def test_wilson() -> None:
    """Published values (Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3)."""
    assert report.wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert report.wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert report.wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert report.wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


# --------------------------------------------------------------------------------------------------------------- the report


@pytest.mark.usefixtures("recorded_once")
def test_kinds_and_silent_ones_stand_apart() -> None:
    """Classified bugs are counted per kind and per trigger class."""
    made = scoreboard.run((), Job("few", False, "quick"), "suite", ("0",), 1, quiet)
    text = report.render(made)
    assert "silent_wrong_forward    1 of   3" in text
    assert "all silent ones         2 of   4" in text
    assert "rows named by a fault that the quick profile does not run\n  never: opinfo:sin" in text
    assert "IndexError" in text
