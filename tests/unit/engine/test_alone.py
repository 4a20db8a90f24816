"""Cases in processes of their own: which one is reported as the death, what the others give, and when no more are started.

The processes are played: `kills` die at their case, `late` ones only when the next case has begun or after some time, `hangs`
never come back.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity.engine import alone, jobs, suite
from parity.engine.alone import DONE, Asked, Checked, Ended, IsolatedRunner
from parity.engine.options import RunOptions
from parity.engine.suite import Item
from parity.store.rows import DEVICE, OUTSIDE, UNKNOWN

CASES = 10
ITEM = Item(suite.row("exp"), "float32")


@dataclass
class Played:
    """A device by the ordinals of its cases."""

    kills: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    hangs: frozenset[int] = frozenset()
    signal: str = "SIGABRT"
    once: bool = False  # only the first process dies
    empty: bool = False  # no process comes to a case
    started: list[Asked] = field(default_factory=list)

    def process(self, asked: Asked) -> Any:
        self.started.append(asked)
        return _Process(self, asked)


class _Process:
    def __init__(self, played: Played, asked: Asked) -> None:
        self._steps: deque[Any] = deque()
        before: list[int] = []
        harmless = played.once and len(played.started) > 1
        if played.empty:
            self._steps.append(Ended(None, "crash", "SIGABRT", "after", 0.0, ()))
            return
        last = CASES - 1 if asked.last is None else asked.last
        for k in (k for k in range(asked.first, last + 1) if k not in asked.skip):
            died = [b for b in before if b in played.late] and not harmless
            if died or (k in played.kills | played.hangs and not harmless):
                how = "hang" if k in played.hangs else "crash"
                self._steps.append(Ended(k, how, played.signal, "device" if not died else "reference", 0.0, tuple(before)))
                return
            self._steps.append((k, Checked(digest=str(k))))
            before.insert(0, k)
            if asked.linger and k in played.late:
                self._steps.append(Ended(k, "crash", played.signal, "compare", 0.0, tuple(before)))
                return
        self._steps.append((DONE, Checked()))

    def step(self) -> Any:
        return self._steps.popleft()

    def close(self) -> None:
        """Nothing to end."""


def checked(
    played: Played,
    monkeypatch: pytest.MonkeyPatch,
    earlier: Iterable[Any] = (),
    skip: Iterable[int] = (),
    time: float | None = None,
) -> tuple[IsolatedRunner, list[int]]:
    """The item's cases, asked for in order but for some, and the ordinals of those that have a result."""
    monkeypatch.setattr(alone, "_Process", played.process)
    monkeypatch.setattr("parity.engine.inquest.held", lambda *_: (DEVICE, "it comes with the device"))
    one = IsolatedRunner(ITEM, None, RunOptions(time=time), 0.0, "test[exp-float32]", list(earlier))
    out, got = frozenset(skip), []
    for k in (k for k in range(CASES) if k not in out):
        result = one.checked(k, f"case {k}", 20.0, out)
        if result is not None:
            assert result.digest == str(k)
            got.append(k)
    return one, got


def told(one: IsolatedRunner) -> list[tuple[int, str, str]]:
    return [(d["ordinal"], d["how"], d["blame"]) for d in one.deaths]


def test_cases_that_die_are_told_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    one, got = checked(Played(kills=frozenset({0, 3, 4})), monkeypatch)
    assert got == [1, 2, 5, 6, 7, 8, 9]
    assert told(one) == [(0, "crash", DEVICE), (3, "crash", DEVICE), (4, "crash", DEVICE)]
    assert not one.left_out
    one, got = checked(Played(), monkeypatch)
    assert (got, told(one)) == (list(range(CASES)), [])


def test_deaths_take_no_more_than_their_share_of_a_run_with_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases after them are left out then. A clock of ten seconds between two looks at it."""
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(alone, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    one, got = checked(Played(kills=frozenset({3, 4})), monkeypatch, time=20.0)
    assert (got, told(one)) == ([0, 1, 2], [(3, "crash", DEVICE)])
    assert one.left_out == "its deaths took more than 5 s"
    one, got = checked(Played(kills=frozenset({3, 4})), monkeypatch, time=600.0)
    assert (got, len(one.deaths), one.left_out) == ([0, 1, 2, 5, 6, 7, 8, 9], 2, "")


def test_what_nobody_asks_for_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process hears of it, because it goes on by itself: cases that hung before would take their time again."""
    one, got = checked(Played(hangs=frozenset({3, 4, 8})), monkeypatch, skip={3, 4})
    assert got == [0, 1, 2, 5, 6, 7, 9]
    assert told(one) == [(8, "hang", DEVICE)]


def test_a_death_that_comes_late_is_told_as_the_case_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case at hand lives alone, so that its result counts; the one that kills has one, too."""
    one, got = checked(Played(late=frozenset({2})), monkeypatch)
    assert got == list(range(CASES))
    assert told(one) == [(2, "crash", DEVICE)]


def test_equal_deaths_need_no_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two that came alone, too. Where one came late, or somebody ends the processes, each is looked at."""
    played = Played(kills=frozenset({1, 3, 5, 7}))
    one, got = checked(played, monkeypatch)
    assert (got, [d[0] for d in told(one)]) == ([0, 2, 4, 6, 8, 9], [1, 3, 5, 7])
    assert [a.first for a in played.started if a.last is not None] == [1, 3]
    late = Played(kills=frozenset({1, 3, 7, 9}), late=frozenset({5}))
    assert [d[0] for d in told(checked(late, monkeypatch)[0])] == [1, 3, 5, 7, 9]
    assert [a.first for a in late.started if a.last is not None] == [1, 3, 6, 5, 9]  # 7 was the first of its process
    outside = Played(kills=frozenset({1, 3, 5, 7}), signal="SIGKILL")
    checked(outside, monkeypatch)
    assert [a.first for a in outside.started if a.last is not None] == [1, 3, 5, 7]


def test_many_equal_deaths_leave_out_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have one cause. Others count by themselves."""
    monkeypatch.setattr(alone, "EQUAL", 3)
    one, got = checked(Played(kills=frozenset({1, 3, 5, 7})), monkeypatch)
    assert (got, len(one.deaths)) == ([0, 2, 4], 3)
    assert one.left_out == "3 of its cases ended the process in equal words"
    one, got = checked(Played(kills=frozenset({1, 3}), hangs=frozenset({5, 7})), monkeypatch)
    assert (got, len(one.deaths), one.left_out) == ([0, 2, 4, 6, 8, 9], 4, "")


def test_what_comes_with_other_cases_only_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    one, got = checked(Played(kills=frozenset({4}), once=True), monkeypatch)
    assert got == list(range(CASES))
    assert told(one) == [(4, "crash", UNKNOWN)]
    assert one.deaths[0]["why"] == "it came after 4 other cases, and not alone"
    one, got = checked(Played(kills=frozenset({4}), once=True, signal="SIGKILL"), monkeypatch)
    assert (got, told(one)) == (list(range(CASES)), [(4, "killed", OUTSIDE)])


def test_a_death_that_the_controller_knows_is_not_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = {"case": "case 3", "how": "crash", "blame": DEVICE, "signal": "SIGABRT", "stage": "device", "why": ""}
    one, got = checked(Played(kills=frozenset({3, 5})), monkeypatch, [earlier])
    assert 3 not in got
    assert told(one) == [(5, "crash", DEVICE)]


def test_nothing_goes_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item of which no case lives, one whose cases hang, and processes that never come to a case."""
    monkeypatch.setattr(alone, "NONE_LIVES", 4)
    played = Played(kills=frozenset(range(CASES)))
    one, got = checked(played, monkeypatch)
    assert (got, len(one.deaths), one.left_out) == ([], 4, "each of its first 4 cases ended the process")
    assert len(played.started) == 4
    one, got = checked(Played(hangs=frozenset({1, 3, 5, 7})), monkeypatch)
    assert (got, len(one.deaths), one.left_out) == ([0, 2, 4], 3, "3 of its cases hung")
    one, got = checked(played := Played(empty=True), monkeypatch)
    assert (got, one.left_out) == ([], "a process ended (SIGABRT) before it came to a case")
    assert len(played.started) == alone.STARTS
    assert [d["why"] for d in one.deaths] == [f"{one.left_out}, so the rest of the item is not run"]


def test_a_process_checks_the_cases_from_the_first_to_the_last_that_it_is_asked_for(tmp_path: Path) -> None:
    asked = Asked(RunOptions(device="sim", examples=CASES), 0.0, "exp", "float32", None, 1, 4, frozenset({2}), 0.0)
    given: Any = SimpleNamespace(asked=asdict(asked), journal=tmp_path / "journal")
    assert [row["ordinal"] for row in jobs.isolated(given)] == [1, 3, 4]
