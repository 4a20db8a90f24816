"""Findings count only if they come again in a fresh process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.core.results import Cause, Record
from parity.runs import again as module
from parity.runs.again import Early, Limit, again, marked
from parity.runs.causes import gather
from parity.runs.inquest import How
from parity.runs.rows import Again

FAULTS = """
import os
from parity.devices import Fault

def larger(call): return call.run() * 1.01
def die(call): os.abort()
def flagged(call): return call.run() * (1.0 if os.environ.get("EXACT") == "1" else 1.01)

FAULTS = (Fault("larger", ("exp",), larger), Fault("dies", ("cos",), die), Fault("flagged", ("tanh",), flagged))
"""


def finding(op: str, case: str = "") -> Record:
    text = case or f"{op}(float32[3])"
    return Record(text, op, "float32", "forward", "wrong", shrunk=text, cause=Cause(f"aten::{op}", "values"))


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
    assert [r.gone for r in told] == [False, False, True, False]
    assert {op for g in gather(told) for op in g.ops} == {"exp", "cos"}


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
    """Pinned cases are stored as drawn; they fail a run only if a finding of their kind comes again."""
    drawn = Record("exp(float32[9])", "exp", "float32", "forward", "wrong", pinned=True)
    records = (drawn, finding("exp"))
    gone = marked(records, (Again("exp(float32[3])", "forward", "exp", 4, False),))
    assert not any(r.counts for r in gone)
    came = marked(records, (Again("exp(float32[3])", "forward", "exp", 1, True),))
    assert all(r.counts for r in came)


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
    drawn = Record("exp(float32[4])", "exp", "float32", "forward", "wrong")
    known = replace(finding("exp", "exp(float32[2, 2])"), known="exp-1")
    records = (drawn, finding("exp"), known)
    assert [(r.gone, r.counts) for r in marked(records, [Again("exp(float32[3])", "forward", "exp", 4, False)])] == [
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
