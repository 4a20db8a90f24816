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
