"""Sums of products are held to the magnitudes of their terms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benches import bench_of
from cases import prepared, verdict_on
from torch import Tensor

from parity import catalog
from parity.catalog.row import ROUNDED
from parity.core.dtypes import FACTS
from parity.core.results import Measure, Status, Tolerance
from parity.judging import rules
from parity.judging.judge import judge
from parity.judging.rules import Contraction

RULE, F = Contraction(), FACTS["float32"]
TOL = Tolerance("contraction", 4.0, 1.0, None, "a rule")
SUM = "sum(float32[64].normal(seed=1))"


def test_the_budget_follows_from_the_magnitudes_of_the_terms() -> None:
    bench = bench_of(SUM)
    truth = bench.oracle.truth("out")
    assert truth is not None
    found = bench.oracle.magnitudes("out")
    assert found is not None
    b = RULE.budget(bench, truth, "out", F, "forward", TOL, False)
    scaled = 4.0 * 64**0.5 * F.unit_roundoff * found[0].item()
    assert dict(b.at(0))["4 sqrt(n) u S of n = 64 terms"] == scaled
    assert b.certain is not None


def test_a_screen_is_never_looser_than_the_rule() -> None:
    bench = bench_of(SUM)
    truth = bench.oracle.truth("out")
    assert truth is not None
    least, whole = (RULE.budget(bench, truth, name, F, "forward", TOL, False) for name in (None, "out"))
    assert (least.total < whole.total).all()


def test_equal_terms_may_all_be_rounded_to_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(SUM)
    truth, magnitudes = bench.oracle.truth("out"), bench.oracle.magnitudes("out")
    assert truth is not None
    assert magnitudes is not None
    totals = []
    for runs in (0, 1, 4):
        monkeypatch.setattr(bench.oracle, "runs_of_equals", lambda runs=runs: runs)
        totals.append(RULE.budget(bench, truth, "out", F, "forward", TOL, False).total.item())
    sided = 0.5 * 64 * F.unit_roundoff * magnitudes[0].item()
    assert [t - totals[0] for t in totals[1:]] == pytest.approx([sided, sided / 4])


def test_a_second_derivative_may_lean_by_two_roundings_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of two kernels are added."""
    bench = bench_of(SUM)
    truth, magnitudes = bench.oracle.truth("out"), bench.oracle.magnitudes("out")
    assert truth is not None
    assert magnitudes is not None
    scales = []
    for fed in (0, 1):
        monkeypatch.setattr(type(bench.oracle), "fed", fed)
        scale = RULE.budget(bench, truth, "out", F, "forward", TOL, False).scale
        assert scale is not None
        scales.append(scale.item())
    assert scales[1] - scales[0] == pytest.approx(2 * F.unit_roundoff * magnitudes[0].item())


def test_without_magnitudes_the_budget_follows_from_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(SUM)
    truth = bench.oracle.truth("out")
    assert truth is not None
    monkeypatch.setattr(bench.oracle, "magnitudes", lambda name: None)
    b = RULE.budget(bench, truth, "out", F, "forward", TOL, False)
    assert b.certain is None
    assert "4 times the sensitivity to a roundoff" in dict(b.at(0))


def test_beyond_any_order_of_adding_an_error_is_wrong() -> None:
    m = Measure("out", 1e6, measured=True, problem="value")
    drift = RULE.verdict(m, TOL, "float32")
    assert (drift.status, drift.reason) == (Status.DRIFT, "1e+06 times the budget")
    wrong = RULE.verdict(replace(m, share=2.0, certain=True), TOL, "float32")
    assert (wrong.status, wrong.reason) == (Status.WRONG, "2 times the budget: more than any order of adding explains")


def test_rows_that_round_between_still_add_in_float32() -> None:
    row = replace(catalog.row("mm"), judged=ROUNDED)
    assert RULE.roundoff(row, FACTS["float16"], "forward")[0] == F.unit_roundoff


def test_second_derivatives_add_the_results_of_several_kernels() -> None:
    row = RULE.differentiated(catalog.row("mm"))
    assert (row.judged.rounds_between, row.judged.stages) == (True, ("backward",))
    assert RULE.bias_test_applies(row)


@pytest.mark.parametrize(("stages", "fed", "coarse", "units"), [
    ((), False, 2.0**-11, 0.0), ((), True, 2.0**-11, 2.0), (("backward",), False, 2.0**-11, 1.0),
    (("backward",), True, 2.0**-11, 3.0), (("backward",), True, 2.0**-8, 3.0 + 2.0 * 8),
])  # fmt: skip
def test_a_gradient_is_rounded_between_its_kernels(stages: tuple[str, ...], fed: bool, coarse: float, units: float) -> None:
    """Once where stages of its own add up, twice where one is added to it, and as the operand where that is coarser."""
    oracle = SimpleNamespace(fed=fed, coarsest=lambda: coarse)
    bench = SimpleNamespace(row=SimpleNamespace(judged=SimpleNamespace(stages=stages, rounds_between=False)), oracle=oracle)
    asked = SimpleNamespace(bench=bench, f=FACTS["float16"], pass_="backward", u=2.0**-24, size=np.ones(2), name="out")
    assert rules._rounding_between_kernels(asked, np.ones(2)).tolist() == [units * 2.0**-11] * 2  # type: ignore[arg-type]


@pytest.mark.parametrize(("bias", "units"), [(None, 2.0 * 10), (3.0, 4.0 + 2.0 * 3), (0.0, 0.0)])
def test_a_sum_may_be_rounded_before_its_bias_is_added(bias: float | None, units: float) -> None:
    """By twice its terms where the bias is not known; not at all where there is none."""
    oracle = SimpleNamespace(fed=False, coarsest=lambda: 0.0, bias=lambda: bias)
    bench = SimpleNamespace(row=SimpleNamespace(judged=SimpleNamespace(stages=(), rounds_between=True)), oracle=oracle)
    size = np.array([4.0])
    asked = SimpleNamespace(bench=bench, f=FACTS["float16"], pass_="forward", u=2.0**-24, size=size, name="out")
    found = rules._rounding_between_kernels(asked, np.array([10.0]))  # type: ignore[arg-type]
    assert found.tolist() == [units * 2.0**-11]


def one_by_one(text: str, order: Sequence[int]) -> Tensor:
    """The sums of `index_add`, each term added to the stored sum, in this order."""
    total, places, terms = (o.view.clone() for o in prepared(text).inputs.operands)
    for k in order:
        total[places[k]] = total[places[k]] + terms[k]
    return total


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_partial_sums_stored_in_a_half_type_are_as_large_as_a_random_walk(dtype: str) -> None:
    """Not as large as the sum of all magnitudes, by which a 0 in place of the largest sum was no finding."""
    text = f"index_add({dtype}[4].normal(), 0, int64[600].index(0, 4), {dtype}[600].normal(seed=3))"
    for order in (range(600), random.Random(1).sample(range(600), 600)):
        bench, results, _ = prepared(text)
        told = judge(bench, {"out": one_by_one(text, order)}, results, "forward")[0]
        assert told.status is Status.AGREE
        assert told.measure is not None
        assert (told.measure.share or 0.0) < 0.3
    assert verdict_on(text, lambda t: torch.where(t.abs() == t.abs().max(), 0.0, t)).status.is_finding


def test_partial_sums_of_sorted_terms_are_larger() -> None:
    numbers = [(k - 1500) / 1024 for k in range(3001)]
    terms = f"bfloat16[3001].of({', '.join(map(str, torch.tensor(numbers).bfloat16().tolist()))})"
    text = f"index_add(bfloat16[1].constant(), 0, int64[3001].index(0, 1), {terms})"
    assert verdict_on(text, lambda t: one_by_one(text, range(3001)), reference=False).status is Status.AGREE
