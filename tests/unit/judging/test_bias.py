"""Which half-precision results lean to one side: what they share lost precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from cases import prepared
from torch import Tensor

from parity.core.results import Status, Verdict
from parity.judging.bias import FEWEST, bias_ratio, has_enough_steps, in_range, steps, systematic_bias
from parity.judging.judge import judge
from parity.judging.outliers import ALPHA

HALVES = (torch.float16, torch.bfloat16)


def drawn(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def nothing(t: Tensor) -> np.ndarray:
    return np.zeros(tuple(t.shape))


def test_the_least_number_that_float32_computes_without_a_loss_is_in_range() -> None:
    least = torch.tensor([2.0**-126 * 2.0**24, 1.0], dtype=torch.float64)
    assert [in_range(least), in_range(least / 2)] == [True, False]


# ------------------------------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_rounded_once_takes_no_step_whatever_float32_did_before(dtype: torch.dtype) -> None:
    truth = drawn(20000)
    noise = 1 + 2.0**-20 * (2 * torch.rand(20000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1)
    device = (truth * noise).to(dtype)
    assert (device != truth.to(dtype)).any() or dtype is torch.bfloat16
    assert not steps(device, truth, 2.0**-20 * truth.numpy()).any()


def test_a_step_goes_up_or_down_and_needs_a_border_that_is_clear() -> None:
    truth = torch.tensor([1.0, 1.0 + 2.0**-11 - 2.0**-16, 2.0, 3.0], dtype=torch.float64)
    device = torch.tensor([1.0 + 2.0**-10, 1.0 + 2.0**-10, 2.0 - 2.0**-10, 3.0], dtype=torch.float16)
    assert steps(device, truth, nothing(truth)).tolist() == [1.0, 1.0, -1.0, 0.0]
    assert steps(device, truth, nothing(truth) + 2.0**-15).tolist() == [1.0, 0.0, -1.0, 0.0]


def test_steps_are_counted_from_the_fewest_on_that_may_lean() -> None:
    truth = drawn(FEWEST + 1)
    device = (truth * (1 + 2.0**-6)).to(torch.float16)
    assert [has_enough_steps(device[:n], truth[:n]) for n in (FEWEST - 1, FEWEST)] == [False, True]


def test_elements_with_one_truth_take_one_step_and_infinities_none() -> None:
    truth = torch.full((100,), 1.0, dtype=torch.float64)
    device = torch.full((100,), 1.0 + 2.0**-10, dtype=torch.float16)
    assert np.count_nonzero(steps(device, truth, nothing(truth))) == 1
    truth[::2] += 2.0**-51  # what float64 kernels differ by
    assert np.count_nonzero(steps(device, truth, nothing(truth))) == 1
    wild = torch.full((4,), math.inf, dtype=torch.float16)
    assert not steps(wild, torch.tensor([1.0, math.nan, math.inf, 7e4], dtype=torch.float64), np.zeros(4)).any()


# ----------------------------------------------------------------------------------------------------------------- leaning


@pytest.mark.parametrize("shape", [(4096,), (64, 64), (16, 16, 16), (512, 8)])
@pytest.mark.parametrize("seed", range(10))
def test_steps_of_chance_do_not_lean(shape: tuple[int, ...], seed: int) -> None:
    g = np.random.default_rng(seed)
    signs = np.where(g.random(shape) < 0.3, g.choice((-1.0, 1.0), shape), 0.0)
    assert 0 < bias_ratio(signs, g.standard_normal(shape)) < 1.0


def test_the_fewest_steps_that_may_lean_are_as_improbable_as_stated() -> None:
    assert 0.5 ** (FEWEST - 1) <= ALPHA < 0.5 ** (FEWEST - 2)
    few = np.zeros(1000)
    few[: FEWEST - 1] = 1.0
    assert bias_ratio(few, np.ones(1000)) == 0.0
    few[:40] = 1.0
    assert bias_ratio(few, np.ones(1000)) > 1.0


def test_rows_may_each_lean_to_a_side_of_their_own_and_away_from_zero_is_a_side() -> None:
    g = np.random.default_rng(3)
    rows = np.repeat(g.choice((-1.0, 1.0), (24, 1)), 16, 1)
    assert bias_ratio(np.where(g.random((24, 16)) < 0.5, rows, 0.0), np.ones((24, 16))) > 1.0
    truth = g.standard_normal(400)
    away = np.where(g.random(400) < 0.2, np.sign(truth), 0.0)
    assert bias_ratio(away, truth) > 1.0
    assert bias_ratio(away, np.ones(400)) < 1.0


def test_where_kernels_that_round_once_lean_alike_or_are_not_known_nobody_is_accused() -> None:
    truth = drawn(4000)
    device, right = (truth * (1 + 2.0**-12)).to(torch.float16), truth.to(torch.float16)
    inside = 1e-9 * truth.numpy()
    assert has_enough_steps(device, truth)
    assert systematic_bias(device, truth, inside, lambda: right) > 1.0
    assert systematic_bias(device, truth, inside, lambda: device) == 0.0
    assert systematic_bias(device, truth, inside, lambda: None) == 0.0
    assert not has_enough_steps(right, truth)


# --------------------------------------------------------------------------------------------------------------- the judge


def verdict(text: str, device: Callable[..., Tensor], always_use_oracle: bool = False) -> Verdict:
    bench, results, inputs = prepared(text, always_use_oracle=always_use_oracle)
    made = device(*(o.view.to(torch.float32) for o in inputs.operands))
    return judge(bench, {"out": made.to(results["out"].dtype)}, results, "forward")[0]


SOFTMAX = "softmax({}[24, 2048].normal(seed=3), -1)"
MATMUL = "matmul(bfloat16[32, 2048].between(0, 1, seed=1), bfloat16[2048, 32].between(0, 1, seed=2))"


def without_the_last(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e[:, :-1].sum(-1, keepdim=True)


def backwards(x: Tensor) -> Tensor:
    """An honest order of adding."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    total = torch.zeros(x.shape[0])
    for column in e.flip(-1).T:
        total = total + column
    return e / total[:, None]


@pytest.mark.parametrize("always_use_oracle", [False, True])
def test_a_normaliser_that_lacks_a_term_is_seen_though_no_element_is_outside(always_use_oracle: bool) -> None:
    text = SOFTMAX.format("bfloat16")
    found = verdict(text, without_the_last, always_use_oracle)
    assert (found.status, found.measure and found.measure.problem) == (Status.DRIFT, "lean")
    assert "lean to one side" in found.reason
    assert verdict(text, backwards, always_use_oracle).status is Status.AGREE
    assert verdict(SOFTMAX.format("float16"), backwards, always_use_oracle).status is Status.AGREE


@pytest.mark.parametrize("always_use_oracle", [False, True])
def test_a_sum_that_lacks_its_last_product_is_seen_though_no_element_is_outside(always_use_oracle: bool) -> None:
    found = verdict(MATMUL, lambda a, b: a[:, :-1] @ b[:-1], always_use_oracle)
    assert (found.status, found.measure and found.measure.problem) == (Status.DRIFT, "lean")
    assert (
        verdict(MATMUL, lambda a, b: (a[:, 1024:] @ b[1024:]) + (a[:, :1024] @ b[:1024]), always_use_oracle).status
        is Status.AGREE
    )


def test_rounding_once_more_is_no_leaning() -> None:
    """A device that rounds the exponentials to the half type takes steps to both sides."""

    def twice(x: Tensor) -> Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e.to(torch.float16).to(torch.float32) / e.sum(-1, keepdim=True)

    found = verdict(SOFTMAX.format("float16"), twice, True)
    assert found.status is Status.AGREE
    bench, _, inputs = prepared(SOFTMAX.format("float16"))
    truth = bench.oracle.truth("out")
    assert truth is not None
    assert np.count_nonzero(steps(twice(inputs.operands[0].view.float()).half(), truth, 1e-6 * truth.numpy())) > 1000
