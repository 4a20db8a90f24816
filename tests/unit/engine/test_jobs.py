"""What a process is asked to do."""

from __future__ import annotations

from typing import Any

import pytest

from parity.engine import jobs
from parity.engine.alone import Asked
from parity.engine.options import RunOptions


@pytest.mark.parametrize(("last", "expected"), [(3, [1, 3]), (None, [1, 3, 4])])
def test_a_process_checks_the_last_case_that_it_is_asked_for(
    last: int | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "drawn", lambda *_: ((k, False, None) for k in range(5)))
    asked = Asked(RunOptions(), 0.0, "exp", "float32", None, 1, last, frozenset({2}), 0.0)
    nothing: Any = None
    assert [k for k, _, _ in jobs._asked_for(asked, nothing, nothing, None)] == expected
