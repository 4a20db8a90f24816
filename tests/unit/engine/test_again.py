"""Findings are tried in fresh processes, by themselves and after the cases before them; drift near its budget is dropped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.core.notation import parse
from parity.core.results import EARLIER_CALLS, Cause, Measure, Record
from parity.engine import again as module
from parity.engine.again import Early, again
from parity.engine.child import Limit
from parity.engine.inquest import How
from parity.findings.causes import gather
from parity.store.marginal import marked, recounted
from parity.store.rows import Again, ItemRow

FAULTS = """
import os
from parity.devices import Fault

def larger(call): return call.run() * 1.01
def die(call): os.abort()
def flagged(call): return call.run() * (1.0 if os.environ.get("EXACT") == "1" else 1.01)
SEEN = []
def noted(call):
    SEEN.append(1)
    return call.run()
def later(call): return call.run() * (1.01 if SEEN else 1.0)

FAULTS = (
    Fault("larger", ("exp",), larger), Fault("dies", ("cos",), die), Fault("flagged", ("tanh",), flagged),
    Fault("noted", ("acos",), noted), Fault("later", ("asin",), later),
)
"""


def finding(op: str, case: str = "") -> Record:
    text = case or f"{op}(float32[3])"
    return Record(text, op, "float32", "forward", "wrong", shrunk=text, cause=Cause(f"aten::{op}", "values"), count=1)


def drift(share: float, op: str = "exp", case: str = "") -> Record:
    return replace(finding(op, case), status="drift", measures=(Measure("out", share, measured=True),))


GONE = Again("exp(float32[3])", "forward", "exp", 4)


@pytest.fixture(scope="module")
def how(tmp_path_factory: pytest.TempPathFactory) -> How:
    path = tmp_path_factory.mktemp("again") / "faults.py"
    path.write_text(FAULTS)
    return How("sim", str(path))


def test_what_comes_again_counts_and_what_ends_the_process_too(how: How) -> None:
    """One process dies in the midst; the rest is tried all the same."""
    found = [finding("exp"), finding("cos"), finding("sin"), finding("exp", "exp(float32[2, 2])")]
    done = again(found, how, 2)
    assert {(a.case, a.came) for a in done} == {
        ("exp(float32[3])", True), ("cos(float32[3])", True), ("sin(float32[3])", False), ("exp(float32[2, 2])", True),
    }  # fmt: skip
    told = marked(found, done)
    assert [r.status for r in told] == ["wrong", "wrong", "not reproduced", "wrong"]
    assert {(op, g.cause.symptom) for g in gather(told) for op in g.ops} == {
        ("exp", "values"), ("cos", "values"), ("sin", "not reproduced"),
    }  # fmt: skip


def test_what_comes_only_after_other_cases_is_told_with_them(how: How) -> None:
    """The shortest tail that shows it; what they do not show either is not reproduced."""
    before = ("acos(float32[3])", "neg(float32[2])")
    cases = {"asin": before, "sinh": before[:1]}
    found = [finding("asin"), finding("sinh")]
    done = again(found, how, 2, before={f.case: cases[f.op] for f in found})
    later, once = marked(found, done)
    assert later.shrunk == f"asin(float32[3]).history({', '.join(before)})"
    assert parse(later.shrunk).history[0] == parse(before[0])
    assert (later.status, later.cause, later.shows_alone) == ("wrong", Cause("aten::asin", "values", ("earlier calls",)), False)
    assert (once.status, once.cause) == ("not reproduced", Cause("aten::sinh", "not reproduced"))
    assert once.reason == "once wrong, and not again in 3 tries, nor after 1 of the cases before it: "


def test_after_all_cases_that_came_before_nothing_else_is_tried(how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, after 1, 2, 4 and all 5 of them: a process each."""
    tried = list[str]()

    def none(found: Sequence[Record], *_: Any, **whole: bool) -> Any:
        tried.extend(f.case for f in found)
        assert len(tried) < 9, "it goes on until its time is over"
        return contextlib.nullcontext([{"came": False}])

    monkeypatch.setattr(module, "_process", none)
    before = [f"neg(float32[{n}])" for n in range(1, 6)]
    a = module._after_its(finding("asin"), GONE, before, how, Limit(time.monotonic() + 60), {})
    assert [text.count("neg") for text in tried] == [0, 1, 2, 4, 5]
    assert (a.came, a.calls) == (GONE.came, 5)


def test_a_process_is_started_for_what_is_left_and_none_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding that ends its process is reproduced."""
    asked = list[int]()

    class Ends(list[Any]):
        at = "device"

    def ends(found: Sequence[Record], *_: Any) -> Any:
        asked.append(len(found))
        return contextlib.nullcontext(Ends())

    monkeypatch.setattr(module, "_process", ends)
    done = list(module._share([finding("exp"), finding("sin")], How("sim"), Limit(time.monotonic() + 60), {}))
    assert [(a.op, a.came) for a in done] == [("exp", True), ("sin", True)]
    assert asked == [2, 1]


def test_what_needs_other_aspects_of_its_case_comes_as_a_replay_does(tmp_path: Path) -> None:
    """By itself the aspect agrees: the call that it needs is the backward's."""
    (tmp_path / "faults.py").write_text(FAULTS.replace('"acos"', '"cosh"').replace('"asin"', '"sinh"'))
    found = [replace(finding("sinh"), aspect="out=")]
    (one,) = again(found, How("sim", str(tmp_path / "faults.py")), 1)
    assert (one.came, one.history) == (True, "sinh(float32[3])")


@pytest.mark.slow
def test_a_flag_of_the_environment_that_explains_is_the_cause(how: How) -> None:
    """The variable is read when a process starts; nothing else changes."""
    found = [finding("exp"), finding("tanh")]
    told = marked(found, again(found, how, 1, (("EXACT", "1"),)))
    assert [r.cause for r in told] == [Cause("aten::exp", "values"), Cause("EXACT", "flag")]


def test_a_process_that_cannot_start_leaves_the_findings_as_they_are() -> None:
    """Nothing was tried, so nothing is excused."""
    found = [finding("exp")]
    done = again(found, How("no_such_device"), 1)
    assert not done
    assert marked(found, done) == tuple(found)


def test_drawn_cases_go_with_their_finding() -> None:
    """Pinned cases are stored as drawn; they count only if a finding of their kind does."""
    records = (replace(drift(1.9, case="exp(float32[9])"), shrunk="", pinned=True), drift(1.2))
    gone = marked(records, (GONE,))
    assert not any(r.counts for r in gone)
    came = marked(records, (replace(GONE, came=True),))
    assert all(r.counts for r in came)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (drift(1.9), "drift"),
        (drift(2.1), "not reproduced"),
        (replace(drift(0.5), status="wrong"), "not reproduced"),
        (replace(finding("exp"), status="error"), "not reproduced"),
    ],
)
def test_only_drift_near_its_budget_is_dropped(found: Record, status: str) -> None:
    (one,) = marked([found], [GONE])
    assert (one.status, one.counts) == (status, status != "drift")
    assert marked([one], [GONE]) == (one,)  # as a merged file holds it


def test_a_drawn_case_that_was_far_outside_speaks_against_its_least_case() -> None:
    drawn = replace(drift(30.0, case="exp(float32[9])"), shrunk="")
    assert [r.status for r in marked([drawn, drift(1.2)], [GONE])] == ["not reproduced"] * 2


def test_checks_are_counted_as_not_reproduced_where_nothing_of_their_kind_came_again() -> None:
    item = ItemRow("exp", "float32", 3, {"forward": {"agree": 1, "wrong": 1, "drift": 1}, "backward": {"wrong": 1}})
    records = marked([finding("exp"), replace(finding("exp"), aspect="backward")], [GONE])
    (counted,) = recounted([item], records)
    assert counted.counts == {"forward": {"agree": 1, "not reproduced": 2}, "backward": {"wrong": 1}}
    other = finding("exp", "exp(float32[2, 2])")
    assert recounted([item], marked([finding("exp"), other], [GONE])) == (item,)


LIE = """
import os
from parity.devices import Fault

def grown(call): return call.run() * (1.01 if call.args[0].numel() >= 100 else 1.0)

FAULTS = (Fault("grown", ("exp",), grown),)
"""


def test_a_least_case_that_agrees_does_not_acquit_the_other_cases(tmp_path: Path) -> None:
    """The shrinker may have slipped to a case that failed for another reason."""
    (tmp_path / "lie.py").write_text(LIE)
    found = replace(finding("exp"), others=("exp(float32[200])",), count=9)
    (one,) = again([found], How("sim", str(tmp_path / "lie.py")), 1)
    assert one.came


def test_what_cannot_be_built_or_compared_acquits_nobody(how: How) -> None:
    """Such a finding counts."""
    found = [finding("exp", "exp(float32[3], nonsense=1)"), finding("sin", "sine(float32[3])")]
    assert not again(found, how, 1)
    assert marked(found, ()) == tuple(found)


def test_known_findings_are_not_tried_and_hold_up_nothing() -> None:
    """A new finding that is gone takes its drawn cases with it, though a known one of the same op and pass is there."""
    drawn = replace(drift(1.1, case="exp(float32[4])"), shrunk="")
    known = replace(finding("exp", "exp(float32[2, 2])"), known="exp-1")
    records = (drawn, drift(1.1), known)
    assert [(r.gone, r.counts) for r in marked(records, [GONE])] == [
        (True, False), (True, False), (False, True),
    ]  # fmt: skip


def test_what_is_known_early_is_tried_while_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, in no more processes at a time than are free; the rest at the end, and all of them count."""
    shares: list[list[str]] = []
    free, most, now = threading.Semaphore(0), [0], [0]

    def share(findings: Sequence[Record], how: How, limit: Limit, environment: Any) -> Iterator[Again]:
        shares.append([f.op for f in findings])
        now[0] += 1
        most[0] = max(most[0], now[0])
        free.acquire()
        yield from (Again(f.shrunk, f.aspect, f.op, 1, f.op != "b") for f in findings)
        now[0] -= 1

    monkeypatch.setattr(module, "_share", share)
    monkeypatch.setattr(module, "_after_its", lambda f, a, *more: a)
    monkeypatch.setattr(module, "PER_PROCESS", 2)
    found = [finding(op) for op in "abcdefg"]
    early = Early(How("sim"))
    early.offer(found[:5], 1)
    early.offer(found[:5], 1)
    for n in (1, 2):
        while len(shares) < n:
            time.sleep(0.001)
        assert (shares, most) == ([["a", "b"], ["c", "d"]][:n], [1])
        free.release()
    for _ in range(9):
        free.release()
    done = {a.op: a.came for a in again(found, How("sim"), 1, early=early)}
    assert done == {op: op != "b" for op in "abcdefg"}
    assert sorted(op for s in shares for op in s) == list("abcdefg")


def test_a_run_that_is_stopped_ends_what_it_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    def share(findings: Sequence[Record], how: How, limit: Limit, environment: Any) -> Iterator[Again]:
        while limit.left:
            time.sleep(0.001)
        yield from ()

    monkeypatch.setattr(module, "_share", share)
    early = Early(How("sim"))
    early.offer([finding("a")], 1)
    early.stop()
    assert not early.done(0.0)


def test_what_comes_again_keeps_its_status_and_takes_the_flag_or_the_history() -> None:
    cause = Cause("aten::exp", "values")
    far = finding("exp")
    flag = Again(far.case, "forward", "exp", 4, came=True, flag="F")
    later = replace(flag, flag="", history="exp(x)")
    assert marked((far,), (flag,)) == (replace(far, cause=Cause("F", "flag")),)
    assert marked((far,), (later,)) == (replace(far, cause=replace(cause, properties=(EARLIER_CALLS,)), shrunk="exp(x)"),)
