"""Drift that is marginal: one element just outside an estimated budget, in few cases of an op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cases import verdict_on
from torch import Tensor

from parity import tolerance
from parity.core.results import Measure, Record, Status
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.engine.examine import Examined, examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.timed import Timed
from parity.store import marginal
from parity.store.reproduced import marked
from parity.store.rows import ItemRow

NEAR, FAR = 3.8e-6, 9e-6  # relative errors of 1.3 and 3.1 budgets of silu in float32
LARGE = 50  # elements of the results that are touched: one of them in one thousand of the item's


def examined(op: str, error: float, calls: int, elements: int = 1) -> Examined:
    """An item whose first calls with results of some size are off by this relative error in so many elements."""
    struck = Counter[str]()

    def off(call: Call) -> Tensor:
        out: Tensor = call.run()
        if out.numel() > LARGE and out.is_contiguous() and struck["calls"] < calls:
            struck["calls"] += 1
            out.view(-1)[:elements] *= 1.0 + error
        return out

    sim = resolve("sim", (Fault("off", (op,), off),))
    options = RunOptions(examples=40, skip=("shrink",))
    plan = RunPlan(sim, resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), options)
    return examine(suite.Item(suite.row(op), "float32"), plan, NoJournal())


def count(done: Examined) -> Counter[str]:
    return sum((Counter(c) for c in done.summary.counts.values()), Counter[str]())


def test_one_element_just_outside_is_marginal_and_no_finding() -> None:
    """It is counted and stored as that, with its case and reason."""
    done = examined("silu", NEAR, 1)
    assert (done.findings, done.held) == ((), None)
    assert count(done)[Status.MARGINAL] == 1
    assert count(done)[Status.DRIFT] == 0
    (stored,) = [r for r in done.records if r.status != Status.AGREE]
    assert (stored.status, stored.measures[0].mismatched) == (Status.MARGINAL, 1)
    assert 1.2 < (stored.measures[0].share or 0) < 1.4


def test_a_healthy_device_has_nothing_marginal() -> None:
    done = examined("silu", NEAR, 0)
    assert {*count(done)} == {Status.AGREE}


@pytest.mark.parametrize(
    "error, calls, elements",
    [
        pytest.param(4.5e-6, 9, 1, id="in three cases"),
        pytest.param(FAR, 1, 1, id="more than twice the budget"),
        pytest.param(NEAR, 1, LARGE, id="in more than one of a thousand elements"),
    ],
)
def test_what_says_more_drifts(error: float, calls: int, elements: int) -> None:
    done = examined("silu", error, calls, elements)
    assert {f.result.verdict.status for f in done.findings} == {Status.DRIFT}
    assert count(done)[Status.DRIFT]
    assert not count(done)[Status.MARGINAL]
    assert not [r for r in done.records if r.status == Status.MARGINAL]


MISH = "mish(bfloat16[2048].between(-3, 3))"


def one_element(factor: float, index: int = 0) -> Callable[[Tensor], Tensor]:
    def changed(x: Tensor) -> Tensor:
        x.view(-1)[index] *= factor
        return x

    return changed


@pytest.mark.parametrize(
    "text, factor", [("exp(float32[2048].between(-3, 3))", 1 + 1e-6), ("sum(float32[64, 2048].between(0, 1), -1)", 1 + 6e-6)]
)
def test_published_bounds_and_sums_of_terms_are_never_marginal(text: str, factor: float) -> None:
    """Nothing is estimated there: another element of an estimate, as far outside, is near."""
    v = verdict_on(text, one_element(factor))
    assert (v.status, v.is_near) == (Status.DRIFT, False)
    assert 1.0 < ((v.measure and v.measure.share) or 0.0) < 2.0
    healthy = verdict_on(text, one_element(1.0))
    assert (healthy.status, healthy.near) == (Status.AGREE, False)


def test_an_exact_result_is_never_marginal() -> None:
    assert not verdict_on("neg(float32[2048].between(-3, 3))", one_element(1 + 3e-7)).near


def test_what_all_elements_share_is_never_marginal() -> None:
    """Though only one of 2048 is outside; that one alone is near."""
    shared = verdict_on(MISH, lambda x: x * 1.005)
    assert shared.measure is not None
    assert (shared.status, shared.measure.mismatched, shared.is_near) == (Status.DRIFT, 1, False)
    alone = verdict_on(MISH, one_element(1.005, shared.measure.index[0]))
    assert (alone.status, alone.is_near) == (Status.DRIFT, True)


# ------------------------------------------------------------------------------------------------------- the items of an op


def stored(case: str, dtype: str = "float32", op: str = "silu") -> Record:
    measure = Measure("out", 1.3, mismatched=1, total=100, problem="value")
    return Record(case, op, dtype, "forward", Status.MARGINAL, reason="1.3 times the budget", measures=(measure,))


def rows(*dtypes: str) -> tuple[ItemRow, ...]:
    return tuple(ItemRow("silu", d, 9, {"forward": {"agree": 8, "marginal": 1}}, judged=9000) for d in dtypes)


def test_an_op_that_is_marginal_in_two_cases_stays_so() -> None:
    """The same case in another pass is the same case."""
    two = stored("a"), replace(stored("a"), aspect="backward"), stored("b", "float16")
    items = rows("float32", "float16")
    assert marginal.settled(two, items) == two
    assert marked(two, (), items) == two
    assert marginal.recounted(items, two) == items


def test_an_op_that_is_marginal_in_three_cases_of_any_items_drifts() -> None:
    """Each kind is a finding then, whose cause nobody has looked for."""
    three = stored("a"), stored("b"), stored("c", "float16"), stored("d", op="gelu")
    items = (*rows("float32", "float16"), replace(rows("float32")[0], op="gelu"))
    settled = marginal.settled(three, items)
    assert [r.status for r in settled] == [*3 * [Status.DRIFT], Status.MARGINAL]
    assert [r.shrunk for r in settled] == ["a", "", "c", ""]
    assert [r.counts for r in settled] == [True, True, True, False]
    assert all(r.unexplained for r in settled if r.shrunk)
    again = marginal.recounted(items, settled)
    assert [i.counts for i in again] == [*2 * [{"forward": {"agree": 8, "drift": 1}}], items[2].counts]
    assert marginal.settled(settled, items) == settled


def test_parts_of_an_item_count_their_elements_together() -> None:
    """One of 400 is too many for a part, and for a run that has no other."""
    part = replace(rows("float32")[0], judged=400)
    assert marginal.settled((stored("a"),), (part,))[0].status == Status.DRIFT
    assert marginal.settled((stored("a"),), (part, replace(part, round=1), replace(part, round=2)))[0].status == Status.MARGINAL


def test_a_run_with_a_limit_of_time_keeps_each_case() -> None:
    """Though their reasons are equal: they are counted."""
    timed, other = Timed(60.0), replace(stored("e"), status="void")
    assert timed.new([stored("a")]) == [stored("a")]
    assert timed.new([stored("a"), stored("b"), other]) == [stored("b"), other]
    assert timed.new([replace(other, case="f")]) == []


def test_one_of_a_thousand_elements_is_rare() -> None:
    few: dict[tuple[int, int], Any] = {(1, 1000): True, (1, 999): False, (12, 12_000): True, (0, 0): True}
    assert {k: marginal.is_rare(*k) for k in few} == few
