"""The cheap ways to an agreement say what the long ones say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from cases import prepared
from torch import Tensor

from parity.core.results import Measure, Status, Verdict
from parity.judging import excuses as excused
from parity.judging import rounded_result, screens
from parity.judging.bench import Bench
from parity.judging.judge import judge
from parity.judging.measures import facts_of
from parity.judging.rounded_result import RoundedResult, agreed
from parity.judging.screens import plain
from parity.oracle.sensitivity import PERTURBATIONS, Sensitivity

TEXTS = (
    "softmax(float32[4,8].uniform(), -1)", "mm(float32[9,16].normal(), float32[16,20].normal(1))", "exp(float32[32].uniform())",
    "mm(float16[9,16].normal(), float16[16,20].normal(1))", "softmax(float16[4,8].uniform(), -1)", "tanh(float32[0])",
    "exp(float32[3].of(nan, inf, 1.0))", "mul(complex64[8].uniform(), complex64[8].uniform(1))",
    'softmax(float32[4,8].uniform().at(3, "nan"), -1)', 'cumsum(float32[8].uniform().at(3, "inf"), 0)',
    'var(float16[4,8].uniform().at(3, "inf"), 1)', 'mm(float32[9,16].normal().at(3, "nan"), float32[16,20].normal(1))',
    "fft.fft(complex64[4,8].uniform())", "mm(complex64[4,8].uniform(), complex64[8,8].uniform(1))",
)  # fmt: skip


def result_of(text: str, device: Tensor) -> RoundedResult:
    """A result to be judged, by the cheap screens first."""
    bench, results, _ = prepared(text, always_use_oracle=False)
    truth, f = bench.oracle.truth("out"), facts_of(results["out"])
    assert truth is not None
    tol = bench.tables.find(bench.row.name, bench.row.rule, f.name, "forward", bench.row.judged.ulp)
    return RoundedResult(bench, "out", device, results["out"], truth, "out", "forward", f, tol)


@pytest.mark.parametrize("text", TEXTS)
def test_one_difference_says_what_all_questions_say(text: str) -> None:
    """The same verdict with the same measure, whichever element is off and by however much."""
    right, plainly = prepared(text).results["out"], 0
    u = torch.finfo(right.dtype).eps / 2
    for k in range(-1, 12):
        off = right.clone()
        if off.numel() and k >= 0:
            off.view(-1)[7 * k % off.numel()] *= 1 + u * 2.0**k
        t = result_of(text, off)
        p = plain(t)
        plainly += p is not None
        assert screens._inside_the_least(t, p) == screens._inside_the_least(t, None)
        assert p is None or p.at_truth == screens._is_truth(t)
    assert (plainly > 0) == bool(torch.isfinite(right).any())


def test_most_of_a_result_is_more_than_half_of_what_is_not_zero() -> None:
    """Beyond a limit, below another; the sign of a result does not matter."""
    right = prepared(TEXTS[2]).results["out"]
    total = np.full(32, 1e-3)
    for many, is_mostly in ((0, False), (16, False), (17, True)):
        off = torch.where(torch.arange(32) < many, right + 0.005, right)
        t = result_of(TEXTS[2], off)
        assert t.is_mostly(1.0, total) is is_mostly, many
        assert not t.is_mostly(9.0, total)


def test_a_result_of_which_nothing_was_judged_is_no_agreement() -> None:
    """One of which a part was judged is; a finding stays one."""
    few, none = (Measure("out", 0.5, total=4, unjudged=n) for n in (3, 4))
    why = excused.Excuses(np.zeros(4, bool), np.zeros(4, bool), np.zeros(4, bool), None, "overflow")
    for m, status, said in (
        (few, Status.AGREE, Status.AGREE), (none, Status.AGREE, Status.VOID), (none, Status.WRONG, Status.WRONG)
    ):  # fmt: skip
        assert agreed(Verdict(status, "as it was", m, None), why).status == said


CANCELLING = (
    "var(float32[4,6].between(1000, 1001), 1)", 'var(float32[4,6].between(1000, 1001).at(1, "nan"), 1)',
    "fft.fft(complex64[4,32].cancelling())", "softmax(float32[4,8].cancelling(), -1)",
)  # fmt: skip


@pytest.mark.parametrize("always_use_oracle", (False, True))
@pytest.mark.parametrize("text", CANCELLING)
def test_a_result_inside_the_first_samples_costs_few_runs(text: str, always_use_oracle: bool) -> None:
    """Numbers that cancel: far outside the least budget. More samples are asked for only outside that of the first, and these
    let nothing pass that the whole budget does not. A result with NaN and a complex one are no exception."""
    bench, results, _ = prepared(text)
    runs: dict[int, set[Status]] = {}
    for k in range(-22, -3):
        fresh = prepared.__wrapped__(text, always_use_oracle=always_use_oracle).bench
        off = {"out": results["out"] * (1 + 2.0**k)}
        with mock.patch.object(Sensitivity, "_sample", autospec=True, side_effect=Sensitivity._sample) as sample:
            screened = judge(replace(fresh, whole=False), off, results, "forward")
        whole = judge(bench, off, results, "forward")
        assert (screened[0].status is Status.AGREE) == (whole[0].status is Status.AGREE)
        assert (screened[1][0].share or 0.0) >= (whole[1][0].share or 0.0)
        runs.setdefault(sample.call_count, set()).add(screened[0].status)
    assert min(runs) <= 1
    assert all(runs[n] == {Status.AGREE} for n in (0, 1, 2) if n in runs)
    assert max(runs) > 3
    assert Status.AGREE not in runs[max(runs)]


def test_the_largest_number_of_a_dtype_is_in_its_range() -> None:
    t = result_of("neg(float32[2].of(3.4028234663852886e38, 1.0))", torch.tensor([-3.4028234663852886e38, -1.0]))
    assert float(t.truth.abs().max()) == t.f.max
    assert plain(t) is not None


def test_what_is_outside_of_the_reference_is_judged_with_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of it is excused."""
    more, real = [], excused.excuses

    def excuses(bench: Bench, *rest: Any) -> Any:
        more.append(bench.oracle.take_more_samples(PERTURBATIONS))
        return real(bench, *rest)

    monkeypatch.setattr(rounded_result, "excuses", excuses)
    rounded_result.by_reference(result_of("softmax(float32[2].of(1, 2), -1)", torch.tensor([0.4, 0.9])))
    assert more == [False]


def test_without_a_truth_a_function_that_cancels_may_be_off_by_what_its_inputs_move_it() -> None:
    """The variance of numbers near 1000 moves by some 1e-4 with the last bit of these: a thousand of its own roundings."""
    text = "var(float32[4].of(1000.0, 1001.0, 1002.0, 1000.0), 0)"
    exact = result_of(text, torch.tensor(0.0)).truth
    off = [rounded_result.by_reference(result_of(text, (exact * factor).float())).status for factor in (1.0001, 1.1)]
    assert off == [Status.AGREE, Status.DRIFT]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("mm(float32[2, 3], float32[3, 2])", "oracle/yardstick.py: against the reference"),
        ("softmax(float32[2].of(1, 2), -1)", "tolerances/default.toml: composite float32 forward"),
    ],
)
def test_what_is_judged_by_the_reference_names_the_row_that_decides(text: str, row: str) -> None:
    """Both sides have errors, which are more than the table's bound for a sum."""
    t = result_of(text, torch.ones(2, 2) if "mm" in text else torch.tensor([0.4, 0.9]))
    verdict = rounded_result.by_reference(t)
    assert verdict.tolerance is not None
    assert verdict.tolerance.origin == row


# ------------------------------------------------------------------------------------------------------------ shared errors


def test_elements_are_held_to_the_truth_that_they_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two: what is 2 % off the first one is 1 % off the other, and what has the first one's bits is off neither."""
    t = result_of("mm(float32[9,16].normal(), float32[16,20].normal(1))", torch.zeros(9, 20))
    seen: list[Any] = []
    monkeypatch.setattr(rounded_result, "shared_error", lambda actual, truth, *_: seen.append(actual / truth))
    for factor in (1.0, 1.01, 1.02):
        others = (1.01 * t.truth,)
        assert rounded_result.shared_error_of(t, mock.Mock(scale=None), factor * t.truth, None, False, None, others) is None
    for actual, factor in zip(seen, (1.0, 1.0, 1.01), strict=True):
        np.testing.assert_allclose(actual, factor, rtol=1e-12)


def test_what_coarse_roundings_lean_to_is_added_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two units of it where all lean by two, so that an error of six is one and a half times what is allowed."""
    t, shared = mock.MagicMock(), mock.Mock(factor=6.0, factor_limit=2.0, leans=True)
    t.truth, t.bench.oracle.amplified_changes.return_value = torch.zeros(4), mock.Mock(every=1, moved=torch.zeros(3, 4))
    monkeypatch.setattr(rounded_result, "shared_error_of", lambda *_: mock.Mock(factor=2.0))
    assert rounded_result.beyond_numbers(t, mock.Mock(), shared, 3.0) == 1.5
