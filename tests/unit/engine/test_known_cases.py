"""The cases of known findings, run again before an item."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parity.core.results import Status
from parity.engine import known_cases
from parity.findings.known import Entry


@pytest.mark.parametrize("dead", [frozenset({5}), frozenset[int]()])
def test_a_known_death_is_tried_again_only_in_an_item_without_another(
    dead: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a process and its patience."""
    entry = Entry("a", "dies", ("exp",), Status.CRASH, cases=("forward: exp(float32[2])",))
    done = list[str]()
    monkeypatch.setattr(known_cases, "_replay_deadly", lambda *_: done.append("replayed"))
    plan = SimpleNamespace(left=1e9, patience=lambda case: 1.0)
    run: Any = SimpleNamespace(item=SimpleNamespace(row=SimpleNamespace(name="exp"), dtype="float32"), plan=plan)
    known: Any = SimpleNamespace(entries=(entry,), skipped=lambda e, text, why: done.append(why))
    known_cases.replay_known(run, known, dead)
    assert done == (["not run again after another death"] if dead else ["replayed"])
