"""What honest devices do where results are chained or stand out: scans, transforms, biases; and faults that must be found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import bench_for, on_the_cpu, oracle_for, prepared, verdict_on
from torch import Tensor

from parity.core.notation import parse
from parity.core.results import Status, Verdict
from parity.execution import execute
from parity.execution.inputs import build
from parity.judging.judge import judge
from parity.oracle.rounding import Rounding


def verdict(text: str, device: Tensor) -> Verdict:
    bench, results, _ = prepared(text)
    return judge(bench, {"out": device}, results, "forward")[0]


CONSTANT = "cumsum(float32[1025, 2].constant(seed=1), 0)"


def test_a_chain_of_equal_terms_is_rounded_to_one_side() -> None:
    terms = prepared(CONSTANT)[2].operands[0].view
    in_turn = torch.from_numpy(np.add.accumulate(terms.numpy(), axis=0))
    assert verdict(CONSTANT, in_turn).status is Status.AGREE


def test_every_addition_of_a_long_chain_may_round_to_one_side() -> None:
    """16,384 times 1.1 in float32, one after the other: each addition errs by the same amount until the sum doubles."""
    text = "cumsum(float32[16384].constant(seed=1), 0)"
    inputs = build(parse(text))
    inputs.operands[0].base.fill_(1.1)
    bench = bench_for("cumsum", oracle_for(text, inputs=inputs))
    in_turn = torch.from_numpy(np.add.accumulate(inputs.operands[0].view.numpy()))
    assert judge(bench, {"out": in_turn}, None, "forward")[0].status is Status.AGREE


def test_a_chain_in_bfloat16_is_found() -> None:
    terms = prepared(CONSTANT)[2].operands[0].view
    coarse = torch.stack([row.clone() for row in torch.cumsum(terms.to(torch.bfloat16), 0).to(torch.float32)])
    assert verdict(CONSTANT, coarse).status.is_finding


RUNS = "mv(float32[1, 12311].expand(-1), float32[12311].constant(seed=2866))"


def test_a_sum_of_long_runs_of_equal_terms_may_round_to_one_side_in_each() -> None:
    """The second operand holds four numbers, each a quarter of it: one chain of additions is off by 1.9e-4."""
    one, other = (o.view.reshape(-1) for o in prepared(RUNS)[2].operands)
    in_turn = torch.from_numpy(np.add.accumulate((one * other).numpy()))[-1:].clone()
    assert verdict_on(RUNS, lambda t: in_turn).status is Status.AGREE
    assert verdict_on(RUNS, lambda t: t * 1.001).status.is_finding
    assert oracle_for("mv(float32[2, 64], float32[64].constant())").runs_of_equals() == 0
    assert oracle_for("mv(float32[2, 64].expand(-1).constant(), float32[64].constant(seed=1))").runs_of_equals() == 1


LOGARITHMS = "logcumsumexp(float32[5656, 2].between(-20, 20), 0)"


def _scan(x: Tensor, dtype: torch.dtype) -> Tensor:
    found, last = [], torch.full_like(x[0], float("-inf")).to(dtype)
    for row in x.to(dtype):
        last = torch.logaddexp(last.to(torch.float32), row.to(torch.float32)).to(dtype)
        found.append(last)
    return torch.stack(found)


def test_a_scan_of_logarithms_is_off_by_its_steps() -> None:
    x = prepared(LOGARITHMS)[2].operands[0].view
    assert verdict(LOGARITHMS, _scan(x, torch.float32)).status is Status.AGREE


def test_a_scan_of_logarithms_in_half_steps_is_found() -> None:
    x = prepared(LOGARITHMS)[2].operands[0].view
    assert verdict(LOGARITHMS, _scan(x, torch.float16).to(torch.float32)).status.is_finding


def test_the_steps_of_a_scan_are_seen_also_where_it_begins_with_nothing() -> None:
    x = torch.tensor([float("-inf"), float("-inf"), 1.0, 2.0, float("inf"), 3.0], dtype=torch.float64)
    with Rounding(2.0**-24, 0):
        steps = torch.logcumsumexp(x, 0)
    torch.testing.assert_close(steps, torch.logcumsumexp(x, 0), rtol=1e-6, atol=0.0)


TRANSFORM = "fft.fft(float32[4096].constant(seed=3))"


def _beside_the_peak(size: float) -> Tensor:
    """The transform of a constant with what its factors' errors leave elsewhere, in units of float32's u times the peak."""
    found = prepared(TRANSFORM)[1]["out"].clone()
    found[1234] += size * 2.0**-24 * float(found[0].abs())
    return found


def test_a_peak_of_a_transform_may_leak() -> None:
    assert verdict(TRANSFORM, _beside_the_peak(1.5)).status is Status.AGREE


def test_a_leak_of_lower_precision_is_found() -> None:
    assert verdict(TRANSFORM, _beside_the_peak(2.0**13)).status.is_finding


BIASED = "linear(bfloat16[61], bfloat16[3, 61].uniform(seed=154), bfloat16[3].cancelling())"


def test_the_bias_of_a_linear_layer_may_be_added_to_a_rounded_product() -> None:
    x, weight, bias = (o.view for o in prepared(BIASED)[2].operands)
    product = torch.mv(weight.to(torch.float32), x.to(torch.float32)).to(torch.bfloat16)
    assert verdict(BIASED, product + bias).status is Status.AGREE


def test_a_linear_layer_without_its_bias_rounded_twice_is_found() -> None:
    bare = "linear(bfloat16[61], bfloat16[3, 61].uniform(seed=154))"
    x, weight = (o.view for o in prepared(bare)[2].operands)
    once = torch.mv(weight.to(torch.float32), x.to(torch.float32)).to(torch.bfloat16)
    off = once.clone()
    off.view(torch.int16)[1] += 2
    assert verdict(bare, once).status is Status.AGREE
    assert verdict(bare, off).status.is_finding


PRODUCT = "index_reduce_prod(float16[2, 1], 1, int64[17].index(0, 1), float16[2, 17].constant(seed=5), 'prod')"


@pytest.mark.parametrize(("values", "status"), [((9.0,) * 16, Status.VOID), ((0.5,) * 16, Status.WRONG)])
def test_a_product_may_leave_the_range_before_its_zero(values: tuple[float, ...], status: Status) -> None:
    """NaN of Inf * 0 where the other factors leave float16's range, and nowhere else."""
    inputs = build(parse(PRODUCT))
    inputs.operands[2].base.copy_(torch.tensor([*values, 0.0], dtype=torch.float16))
    bench = bench_for("index_reduce_prod", oracle_for(PRODUCT, torch.float16, inputs=inputs))
    zeros = torch.zeros(2, 1, dtype=torch.float16)
    assert judge(bench, {"out": torch.full_like(zeros, float("nan"))}, {"out": zeros}, "forward")[0].status is status


def test_fused_adam_has_a_truth_with_a_scale() -> None:
    """Its kernel takes the scale in float32 alone, also next to float64."""
    one = "(float32[2].inside(0.5, 2),)"
    bench = prepared(f"fused_adam({one}, {one}, {one}, {one}, (), float32[()].inside(2, 8), float32[()].inside(0.0, 0.0))")[0]
    assert bench.oracle.truth("out[0]") is not None


BATCHES = "addbmm(bfloat16[()], bfloat16[4, 8, 16].normal(seed=1), bfloat16[4, 16, 16].normal(seed=2))"


def test_batches_may_be_added_up_one_after_the_other() -> None:
    """Each sum of two batches is rounded to the dtype; where the whole cancels, the result is off by that."""
    first, left, right = (o.view for o in prepared(BATCHES)[2].operands)
    total = first.expand(8, 16)
    for a, b in zip(left, right):
        total = (total.to(torch.float32) + a.to(torch.float32) @ b.to(torch.float32)).to(torch.bfloat16)
    assert verdict(BATCHES, total).status is Status.AGREE
    off = total.clone()
    off[3, 4] += 40.0 * torch.finfo(torch.bfloat16).eps * total.abs().max()
    assert verdict(BATCHES, off).status.is_finding


def test_numbers_that_mask_others_are_no_steps_of_a_scan() -> None:
    """The gradient of logcumsumexp masks cotangents of one sign by the lowest number of the dtype."""
    oracle = oracle_for(
        "logcumsumexp(float32[40].between(-20, 20), 0)", cotangents=[torch.where(torch.arange(40) % 3 == 0, -1.0, 1.0)]
    )
    assert oracle.truth("grad[0]") is not None
    assert 0.0 < float(oracle.sensitivity("grad[0]", 2.0**-24, 2.0**-24).max()) < 1e-3


@pytest.mark.parametrize("special", ["inf", "-inf"])
def test_infinity_in_a_scan_of_logarithms_frees_no_other_element(special: str) -> None:
    """-Inf adds nothing, and Inf reaches what comes after it alone."""
    text = f'logcumsumexp(float32[64].normal(seed=1).at(40, "{special}"), 0)'
    assert verdict_on(text, lambda t: t).status is Status.AGREE
    for wrong in (float("nan"), float("inf")):
        lost = torch.tensor([wrong, *[0.0] * 63])
        assert verdict_on(text, lost.add).status.is_finding


MARGIN = "soft_margin_loss(float32[14767].constant(), float32[()].inside(1, 1))"


def test_the_mean_inside_a_loss_may_lose_what_a_mean_does() -> None:
    assert verdict_on(MARGIN, lambda t: t * (1.0 - 3.1e-6)).status is Status.AGREE
    assert verdict_on(MARGIN, lambda t: t * (1.0 - 1e-3)).status.is_finding


def test_a_large_term_lost_of_many_that_are_added_in_a_half_type_is_found() -> None:
    """In the gradient of `take`, which adds 5,000 numbers at 64 places, one by one."""
    text = "take(bfloat16[64].normal(seed=1), int64[5000].index(0, 64))"
    live, inputs = on_the_cpu(text, True)
    fed = torch.randn(5000, generator=torch.Generator().manual_seed(1)).bfloat16()
    places = inputs.operands[1].view
    bench = bench_for("take", oracle_for(text, torch.bfloat16, [fed], inputs))
    name, right = next(iter(execute.backward(live, [fed])))
    one_by_one = torch.zeros(64, dtype=torch.bfloat16)
    for k in range(5000):
        one_by_one[places[k]] = one_by_one[places[k]] + fed[k]
    lost = right.clone()
    largest = int(fed.abs().argmax())
    lost[places[largest]] -= fed[largest]
    assert judge(bench, {name: one_by_one}, {name: right}, "backward")[0].status is Status.AGREE
    assert judge(bench, {name: lost}, {name: right}, "backward")[0].status.is_finding
