"""Which cases are tried in processes to shrink a death."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from parity.core.notation import parse
from parity.engine import shrinking
from parity.engine.child import Limit
from parity.engine.inquest import How
from parity.store.rows import Death, Shrunk


@pytest.mark.parametrize(("how", "died", "starts"), [("hang", 0, 1), ("hang", shrinking.HANGS, 0), ("crash", 99, 1)])
def test_a_hang_is_tried_until_as_many_processes_hung_and_a_crash_until_the_limit(
    how: str, died: int, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[shrinking.Attempts] = []
    monkeypatch.setattr(shrinking.Attempts, "_started", lambda self: started.append(self))
    death = Death("exp", "float32", "exp(float32[2])", "", how, "SIGSEGV", "device")
    tried = shrinking.Attempts(death, How("sim"), Limit(), 1.0, {})
    tried.died = died
    assert not tried.dies(parse("exp(float32[2])"), "forward")
    assert len(started) == starts
    over = shrinking.Attempts(death, How("sim"), Limit(0.0), 1.0, {})
    assert not over.dies(parse("exp(float32[2])"), "forward")
    assert len(started) == starts


def test_what_strikes_late_has_the_seconds_of_a_case_and_those_that_it_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[float]()

    def hear(seconds: float) -> dict[str, int]:
        given.append(seconds)
        return {"code": 0}

    process = SimpleNamespace(send=lambda _: None, hear=hear)
    monkeypatch.setattr(shrinking.Attempts, "_started", lambda self: process)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    for stage, more in (("device", 0.0), ("compare", shrinking.LINGER)):
        death = Death("exp", "float32", "exp(float32[2])", "", "crash", "SIGSEGV", stage)
        assert not shrinking.Attempts(death, How("sim"), Limit(), 20.0, {}).dies(parse("exp(float32[2])"), "forward")
        assert given.pop() == pytest.approx(20.0 + more)


def test_the_next_process_starts_while_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none is left at the end."""
    started, closed = list[object](), list[object]()

    def child(*_: object, **__: object) -> object:
        heard = iter([{"ready": True}, SimpleNamespace(died="SIGSEGV", code=-11, whole=False, lost=False)])
        one = SimpleNamespace(send=lambda _: None, hear=lambda _: next(heard))
        one.close = functools.partial(closed.append, one)
        started.append(one)
        return one

    monkeypatch.setattr(shrinking, "Child", child)
    death = Death("exp", "float32", "exp(float32[2])", "", "crash", "SIGSEGV", "device")
    tried = shrinking.Attempts(death, How("sim"), Limit(), 1.0, {})
    for n in (1, 2):
        assert tried.dies(parse("exp(float32[2])"), "forward")
        assert (len(started), closed) == (n + 1, started[:n])
    tried.end()
    assert closed == started


@pytest.mark.parametrize(("how", "patience", "dies"), [("hang", 20.0, True), ("hang", 0.1, True), ("crash", 20.0, False)])
def test_a_case_without_an_answer_hangs_and_has_not_crashed(
    how: str, patience: float, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = SimpleNamespace(send=lambda _: None, hear=lambda _: None)
    monkeypatch.setattr(shrinking.Attempts, "_started", lambda self: process)
    monkeypatch.setattr(shrinking.Attempts, "close", lambda self: None)
    tried = shrinking.Attempts(
        Death("exp", "float32", "exp(float32[2])", "", how, "SIGSEGV", "device"), How("sim"), Limit(), patience, {}
    )
    assert tried.dies(parse("exp(float32[2])"), "forward") is dies
    assert tried.died == 1


def test_the_shortest_case_of_each_kind_of_death_is_shrunk() -> None:
    """Whatever order they came in; one without a case cannot be."""

    def died(op: str, case: str, signal: str = "SIGSEGV") -> Death:
        return Death(op, "float32", case, "", "crash", signal, "device")

    long, short, other = died("exp", "exp(float32[3, 4])"), died("exp", "exp(float32[3])"), died("cos", "cos(float32[3, 4])")
    for deaths in ([long, short, other], [short, long, other], [died("exp", ""), long, short, other]):
        assert [*shrinking._kinds(deaths).values()] == [short, other]
    aborted = died("exp", "exp(float32[5, 6])", "SIGABRT")
    assert [*shrinking._kinds([short, aborted]).values()] == [short, aborted]


def test_a_death_that_is_known_early_is_shrunk_while_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at once as processes are free; each kind once, also where a shorter case of it comes later."""
    begun, go_on = list[str](), threading.Event()

    def one(_: object, d: Death, environment: object) -> Shrunk:
        begun.append(d.case)
        go_on.wait(60)
        return Shrunk(d, died=1)

    monkeypatch.setattr(shrinking.Shrinking, "_one", one)
    deaths = [Death(op, "float32", f"{op}(float32[3])", "", "crash", "SIGSEGV", "device") for op in ("exp", "cos", "sin")]
    shorter = replace(deaths[0], case="exp(float32[])")
    early = shrinking.Shrinking(How("sim"), 3)
    assert early.offer(deaths[:1], 0) == 0
    assert early.offer(deaths, 1) == 1
    assert early.offer([shorter, *deaths], 1) == 1
    assert early.offer([shorter, *deaths], 2) == 2
    go_on.set()
    assert [s.death.case for s in early.done([shorter, *deaths])] == [d.case for d in deaths]
    assert sorted(begun) == sorted(d.case for d in deaths)


def test_what_is_being_shrunk_ends_with_the_run() -> None:
    early = shrinking.Shrinking(How("sim"), 1)
    early.offer([Death("exp", "float32", "exp(float32[3])", "", "hang", "ended by parity", "device")], 1)
    early.stop()
    assert early.offer([]) == 0
