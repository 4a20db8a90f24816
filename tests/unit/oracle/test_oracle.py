"""The truth in float64, and how far it moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import oracle_for

from parity import catalog
from parity.core.notation import parse
from parity.execution import execute
from parity.execution.inputs import build
from parity.oracle import rounding, roundoffs, summation
from parity.oracle.oracle import CaseOracle

U = 2.0**-24


def test_the_truth_is_the_call_in_float64_from_the_rounded_operands() -> None:
    text = "exp(float16[5].uniform(seed=3))"
    truth = oracle_for(text).truth("out")
    assert truth is not None
    assert torch.equal(truth, build(parse(text)).operands[0].view.double().exp())


def test_integer_operands_are_rounded_as_torch_promotes_them() -> None:
    truth = oracle_for("add(float32[1].of(1), int64[1].of(16777217))").truth("out")
    assert truth is not None
    assert truth.tolist() == [16777217.0]  # 16777216 as a float32, plus 1


def test_an_integer_operand_of_a_function_is_computed_in_float64_too() -> None:
    truth = oracle_for("logsumexp(int64[2].of(1, 2), (0,))").truth("out")
    assert truth is not None
    assert truth.dtype is torch.float64
    assert truth.item() == pytest.approx(math.log(math.e + math.e**2), rel=1e-15)


@pytest.mark.parametrize("op", ["cumulative_trapezoid", "trapezoid"])
def test_integers_that_become_fractions_inside_a_call_do_so_in_float64(op: str) -> None:
    """torch turns them into its default dtype, whose 24 bits cannot hold half of 2**40 + 1 and more."""
    truth = oracle_for(f"{op}(int64[3].of(1099511627777, 3, 5))", None).truth("out")
    assert truth is not None
    assert truth.dtype is torch.float64
    assert truth.view(-1)[-1].item() == 549755813890.0 + 4.0
    assert torch.get_default_dtype() is torch.float32


def test_indices_stay_integers() -> None:
    truth = oracle_for("index_select(float32[3], 0, int64[2].index(0, 3))").truth("out")
    assert truth is not None
    assert truth.dtype is torch.float64


def test_what_cannot_run_in_float64_has_no_truth() -> None:
    assert oracle_for("view(float32[3], (2,))").truth("out") is None


def test_a_sum_moves_with_its_summands_and_not_with_itself() -> None:
    made = oracle_for("sum(float32[3].of(1.0, 1.0, -2.0), (0,))")
    assert made.truth("out") is not None
    assert 1 * U < float(made.sensitivity("out", U, U)) <= 4 * U


def test_an_exact_function_of_one_operand_moves_by_its_derivative() -> None:
    made = oracle_for("exp(float32[1].of(8.0))")
    truth = made.truth("out")
    assert truth is not None
    assert float(made.sensitivity("out", U, U) / truth) == pytest.approx(8 * U, rel=1e-6)  # its own rounding is no part of it


def test_gradients_that_cancel_get_the_scale_of_what_was_saved() -> None:
    """tanh saves its result, which a device rounds: near 1 the gradient 1 - y * y is nothing but that rounding."""
    made = oracle_for("tanh(float32[1].of(7.0))", cotangents=[torch.ones(1)])
    truth = made.truth("grad[0]")
    assert truth is not None
    assert float(truth) < 4e-6
    assert U < float(made.sensitivity("grad[0]", U, U)) < 4 * U


def test_what_was_saved_equal_stays_equal() -> None:
    """amax looks for the elements that equal the saved maximum; the perturbation must not hide them."""
    made = oracle_for("amax(float32[3].of(1.0, 4.0, 2.0), (0,))", cotangents=[torch.ones(())])
    truth = made.truth("grad[0]")
    assert truth is not None
    assert truth.tolist() == [0, 1, 0]
    assert float(made.sensitivity("grad[0]", U, U).max()) <= 3 * U


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_rounding_is_a_function_of_the_value(dtype: torch.dtype) -> None:
    x = torch.arange(1, 200, dtype=torch.float64).sqrt().to(dtype)
    x = x * (1 + 1j) if dtype.is_complex else x
    one, again = roundoffs.rounded(x, U, 2), roundoffs.rounded(x.flip(0), U, 2).flip(0)
    assert torch.equal(one, again)
    one, again = roundoffs.rounded(x, U, 1), roundoffs.rounded(x.flip(0), U, 1).flip(0)
    assert not torch.equal(one, again)
    change = (one - x).abs() / x.abs()
    assert 0.45 * U < float(change.min()) < 0.7 * U
    assert float(change.max()) < 1.1 * U
    up = (one.real > x.real).sum().item()
    assert 60 < up < 140
    assert not torch.equal(one, roundoffs.rounded(x, U, 2))


def test_integers_are_never_perturbed() -> None:
    i = torch.arange(4)
    assert roundoffs.perturbed(i, U, 3) is i
    assert roundoffs.rounded(i, U, 3) is i


@pytest.mark.parametrize(
    "op",
    [
        lambda x: torch.nn.functional.layer_norm(x, (1024,)),
        lambda x: torch.var(x, 1),
        lambda x: torch.std_mean(x, 1)[0],
        lambda x: torch.nn.functional.group_norm(x[:, :, None], 1),
        lambda x: torch.nn.functional.batch_norm(x.T, None, None, training=True),
        lambda x: torch.linalg.vector_norm(x, dim=1),
        lambda x: torch.cdist(x, x + 1),
        lambda x: x @ x.T,
        lambda x: torch.nn.functional.conv1d(x[:, None], x[:2, None]),
        lambda x: torch.nn.functional.conv2d(x.view(1, 4, 32, 32), x.view(1, 4, 32, 32)),
    ],
)
def test_sums_inside_a_kernel_lose_what_a_chain_of_additions_loses(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """About sqrt(n) / 4 roundings, 8 of 1024 terms, however the kernel is called that holds the sum."""
    x = torch.arange(4096, dtype=torch.float64).view(4, 1024).sin() + 2
    with rounding.Rounding(U, 0) as mode:
        moved = op(x)
    change = (mode.unrounded(moved) - op(x)).abs().max() / op(x).abs().max()
    assert 2.5 * U < float(change) < 40 * U


@pytest.mark.parametrize("way", [lambda v, x: (v.conj() * x).real, lambda v, x: (x / v).real, lambda v, x: x.sgn().abs()])
def test_parts_of_complex_products_are_off_by_the_modulus(way: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """What cancels in one part of a product is as large as the product; a sign of a complex number is a quotient."""
    v = torch.tensor([0.9604 + 0.9508j, 1.0 + 1.0j], dtype=torch.complex128)
    x = torch.tensor([-0.2953 + 0.2978j, -0.5 + 0.5005j], dtype=torch.complex128)
    found = torch.zeros(2, dtype=torch.float64)
    for key in range(6):
        with rounding.Rounding(U, key) as mode:
            moved = way(v, x)
        found = torch.maximum(found, (mode.unrounded(moved) - way(v, x)).abs())
    assert bool((found > 0.1 * U).all())
    assert bool((found < 4 * U).all())
    with rounding.Rounding(U, 0):
        real = (torch.full((3,), 2.0, dtype=torch.complex128) * 3.0).imag
    assert not real.any()  # what is 0 on every device


def test_a_part_of_a_complex_product_that_cancels_is_off_by_the_modulus() -> None:
    """A device rounds one of its two products, and not the other."""
    v = torch.tensor([0.9604 + 0.9508j, 1.0 + 0.5j], dtype=torch.complex128)
    found = torch.zeros(2, dtype=torch.float64)
    for key in range(6):
        with rounding.Rounding(U, key) as mode:
            found = torch.maximum(found, (v.conj() * v).imag.abs())
    assert mode.largest > 1.0
    assert bool((found > 0.1 * U).all())
    assert bool((found < 4 * U).all())


def test_equal_sums_move_otherwise_where_their_terms_come_in_another_order() -> None:
    """Whole halves add up to the same number in any order in float64; in float32 they need not."""
    x = (torch.arange(12, dtype=torch.float64).view(2, 6) * 7 % 5) / 2 + 0.5
    apart = 0
    for key in range(6):
        with rounding.Rounding(U, key):
            apart += int((x.sum(-1) != x.flip(-1).sum(-1)).sum())
            assert torch.equal(x.sum(-1), x.clone().sum(-1))
    assert apart >= 8


@pytest.mark.parametrize("op", [lambda x: x.cumsum(0)[-1], lambda x: x.sum(0), lambda x: 3 * x.mean(0)])
def test_a_small_sum_has_lost_what_its_partial_sums_lost(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """1000.3 - 1000 + 0.01 is off by a rounding of 1000."""
    x = torch.tensor([1000.3, -1000.0, 0.01], dtype=torch.float64)
    with rounding.Rounding(U, 0):
        moved = op(x)
    assert 300 * U < float((moved - op(x)).abs()) < 1300 * U


def test_many_terms_of_one_size_are_rounded_to_one_side() -> None:
    """A chain of float32 additions of 0.1 is off by more than a random walk of roundings."""
    terms = torch.full((4096, 1), 0.1, dtype=torch.float32).double()
    lost = float(summation.chain_loss(terms, [0])) / float(terms.sum())
    total = torch.zeros(1)
    for t in terms.float():
        total = total + t
    assert lost == pytest.approx(abs(float(total) / float(terms.sum()) - 1), rel=1e-6)
    assert lost > U * 4096**0.5 / 4


def test_small_terms_may_vanish_beside_the_largest_of_a_sum_wherever_it_stands() -> None:
    """Added last, it takes their sum; added first, half an ULP of it swallows each of them."""
    small = 2.0**-26
    for place in (0, 700, 2047):
        terms = torch.full((2048, 1), small, dtype=torch.float64)
        terms[place] = 1.0
        assert float(summation.chain_loss(terms, [0])) == pytest.approx(2047 * small, rel=1e-6)


@pytest.mark.parametrize("kwargs", [{}, {"dim": 1}, {"dim": (0, 1), "keepdim": True}, {"dim": 1, "correction": 0}])
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_variances_are_taken_apart_into_what_torch_computes(name: str, kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    x = torch.arange(24, dtype=torch.float64).view(4, 6).cos()
    x = torch.complex(x, x.sin()) if dtype.is_complex else x
    meant = getattr(torch, name)(x, **kwargs)
    with rounding.Rounding(1e-15, 0):
        made = getattr(torch, name)(x, **kwargs)
    torch.testing.assert_close(made, meant, rtol=1e-12, atol=1e-12)


def test_what_runs_in_float64_with_dense_operands_only_has_a_truth() -> None:
    """The CPU's gradient of a transposed convolution's weight "needs to be contiguous" in float64."""
    layout = ".channels_last().slice(1, 0, 1).permute(0, 3, 2, 1).positive(seed=1305)"
    more = "stride=3, padding=(1, 1), groups=8, dilation=(2, 2)"
    text = f"conv_transpose2d(float32[1, 8, 4, 5], float32[8, 2, 9, 1]{layout}, {more})"
    dense = text.replace(".channels_last().slice(1, 0, 1).permute(0, 3, 2, 1)", "")
    found = [oracle_for(t, cotangents=[torch.ones(1, 16, 24, 11)]).truth("grad[1]") for t in (text, dense)]
    assert found[0] is not None
    assert found[1] is not None
    assert torch.equal(found[0], found[1])


def test_what_runs_in_no_layout_has_no_truth() -> None:
    assert oracle_for("embedding(int64[2].index(0, 2), float32[2, 2].transpose(0, 1), padding_idx=7)").truth("out") is None


def test_a_backward_that_is_expected_changes_nothing_that_is_said_of_the_forward() -> None:
    """The runs are shared, what they say is not: the cotangent's 1e30 is no magnitude on the way to the forward."""
    text, u = "logsumexp(float32[3, 4].normal(seed=1), 1)", (U, U)
    fed = [torch.full((3,), 1e30)]
    alone, both = oracle_for(text), oracle_for(text)
    both.expect(fed)
    for one in (alone, both):
        assert one.truth("out") is not None
    assert torch.equal(alone.sensitivity("out", *u), both.sensitivity("out", *u))
    assert alone.largest(*u) == both.largest(*u)
    assert both.truth("grad[0]") is not None
    late = oracle_for(text, cotangents=fed)
    both.differentiate(fed)
    assert late.truth("out") is not None
    assert both.largest(*u) == late.largest(*u) != alone.largest(*u)
    shared, own = both.truth("grad[0]"), late.truth("grad[0]")
    assert shared is not None
    assert own is not None
    assert torch.equal(shared, own)
    assert torch.equal(both.sensitivity("grad[0]", *u), late.sensitivity("grad[0]", *u))


def test_a_backward_that_has_no_truth_leaves_the_forward_its_own() -> None:
    text = "exp(float32[3].normal(seed=1))"
    made = oracle_for(text)
    made.expect([torch.ones(7)])  # of another shape: the backward raises
    truth = made.truth("out")
    plain = oracle_for(text).truth("out")
    assert truth is not None
    assert plain is not None
    assert torch.equal(truth, plain)
    assert bool((made.sensitivity("out", U, U) > 0).all())
    made.differentiate([torch.ones(7)])
    assert made.truth("grad[0]") is None


def test_the_truth_of_attention_keeps_a_nan_among_its_queries() -> None:
    """The CPU's fused kernel drops it where it has few keys (torch 2.13)."""
    case = parse('scaled_dot_product_attention(float32[1, 1, 2, 4].at(0, "nan"), float32[1, 1, 3, 4], float32[1, 1, 3, 4])')
    found = CaseOracle(execute.program(catalog.row(case.op)), case, build(case), torch.float32).truth("out")
    assert found is not None
    assert bool(found[0, 0, 0].isnan().all())
    assert not bool(found[0, 0, 1].isnan().any())
