"""Which cases are tried in processes to shrink a death."""

from __future__ import annotations

import pytest

from parity.core.notation import parse
from parity.engine import shrinking
from parity.engine.child import Limit
from parity.engine.inquest import How
from parity.store.rows import Death


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


def test_the_shortest_case_of_each_kind_of_death_is_shrunk() -> None:
    """Whatever order they came in; one without a case cannot be."""

    def died(op: str, case: str, signal: str = "SIGSEGV") -> Death:
        return Death(op, "float32", case, "", "crash", signal, "device")

    long, short, other = died("exp", "exp(float32[3, 4])"), died("exp", "exp(float32[3])"), died("cos", "cos(float32[3, 4])")
    for deaths in ([long, short, other], [short, long, other], [died("exp", ""), long, short, other]):
        assert [*shrinking._kinds(deaths)] == [short, other]
    aborted = died("exp", "exp(float32[5, 6])", "SIGABRT")
    assert [*shrinking._kinds([short, aborted])] == [short, aborted]
