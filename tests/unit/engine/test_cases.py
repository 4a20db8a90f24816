"""Which cases of an item are drawn."""

from __future__ import annotations

from typing import Any

import pytest

from parity import tolerance
from parity.checks.trial import Result
from parity.core import notation
from parity.core.results import Aspect, Measure, Status, Verdict
from parity.devices import resolve
from parity.engine import cases, suite
from parity.engine.alone import Checked
from parity.engine.cases import CaseChecked, CaseDrawn, ItemTally
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.generation import generate
from parity.generation.generate import Drawn


def drawn(op: str, device: str = "sim", first: int = 0, **options: Any) -> list[tuple[int, bool, Drawn]]:
    """The cases of an op in float32 on a healthy device."""
    profile = suite.profile(options.get("profile", "quick"))
    shared = resolve("cpu"), tolerance.load(device), profile, RunOptions(**{"examples": 12, **options})
    return list(cases.drawn(suite.Item(suite.row(op), "float32"), RunPlan(resolve(device), *shared), first=first))


def test_a_process_that_goes_on_behind_a_death_draws_no_case_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then the same cases, those of the sweep among them."""
    made, nth = list[int](), generate.nth

    def noted(*given: Any, **more: Any) -> Drawn:
        made.append(given[4])
        return nth(*given, **more)

    monkeypatch.setattr(generate, "nth", noted)
    whole = drawn("add", examples=None)
    ordinals = [k for k, _, _ in whole]
    assert ordinals[-1] > cases.SWEPT
    for first in (0, 1, 5, ordinals[-1]):
        made.clear()
        assert drawn("add", first=first, examples=None) == [x for x in whole if x[0] >= first]
        assert len(made) == sum(first <= k < cases.SWEPT for k in ordinals)


def test_the_same_seed_gives_the_same_cases_and_another_others() -> None:
    """Pinned cases do not depend on the seed."""
    one, same, other = ([d.case for _, _, d in drawn("add", seed=s)] for s in ("1", "1", "2"))
    assert one == same
    assert one[:2] == other[:2]
    assert one[2:] != other[2:]


def test_two_explored_cases_share_their_structure_where_the_device_keeps_a_graph_for_each() -> None:
    """So that half as many graphs are compiled. Elsewhere each case draws its own; pinned cases are the same on all devices."""

    def shapes(device: str) -> tuple[list[str], list[tuple[tuple[int, ...], ...]]]:
        found = [(p, d.case) for _, p, d in drawn("addmm", device, examples=60)]
        explored = [tuple(x.shape for x in c.operands()) for p, c in found if not p and not c.refused]
        return [notation.case_text(c) for p, c in found if p], explored

    (pinned, alike), (same, apart) = shapes("sim:mps"), shapes("sim")
    assert pinned == same
    assert len(set(alike)) < 0.65 * len(set(apart))
    texts = [notation.case_text(d.case) for _, _, d in drawn("addmm", "sim:mps", examples=60)]
    assert len(set(texts)) == len(texts)  # layouts and values differ


def test_all_explored_cases_of_the_profile_mac_share_their_structure_on_every_device() -> None:
    """They differ in all else, and another seed has another structure. Quick's differ where no graph is kept."""

    def shapes(seed: str, profile: str = "mac") -> set[tuple[tuple[int, ...], ...]]:
        found = drawn("addmm", "sim", seed=seed, profile=profile)
        return {tuple(x.shape for x in d.case.operands()) for _, p, d in found if not p and not d.case.refused}

    assert len(shapes("0")) == 1
    assert len(shapes("0", "quick")) > 5
    assert len({*shapes("0"), *shapes("1"), *shapes("2"), *shapes("3")}) > 1
    cases = [d.case for _, p, d in drawn("addmm", "sim", profile="mac") if not p]
    assert len({notation.case_text(c) for c in cases}) == len(cases)
    assert len({tuple(x.layout for x in c.operands()) for c in cases}) > 5


def test_the_structure_that_all_share_has_room_for_a_mistake() -> None:
    """No empty operand, and two dimensions or more where the op has cases with them, whatever the seed."""
    for seed in map(str, range(12)):
        found = [d.case for _, p, d in drawn("exp", seed=seed, profile="mac", examples=3) if not p and not d.case.refused]
        assert all(sum(n > 1 for n in x.shape) >= 2 and 0 not in x.shape for c in found for x in c.operands())


def test_elements_that_may_hold_anything_are_counted_by_the_reason() -> None:
    """And not among the judged."""
    tally, case = ItemTally(suite.Item(suite.row("exp"), "float32")), notation.parse("exp(float32[8])")
    measures = Measure("out", total=8, unjudged=3, why="unspecified"), Measure("out", total=8)
    result = Result(Aspect.FORWARD, Verdict(Status.AGREE), measures)
    tally.hear(CaseChecked(CaseDrawn(0, False, Drawn(case, ()), "exp(float32[8])"), Checked((result,))))
    assert (tally.judged, dict(tally.left)) == (13, {"unspecified": 3})
