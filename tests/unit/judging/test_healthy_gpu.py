"""What a healthy NVIDIA GPU was once accused of, and faults that must be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from cases import bench_for, prepared
from torch import Tensor

from parity import catalog
from parity.core.dtypes import FACTS
from parity.core.notation import parse
from parity.core.results import Status, Verdict
from parity.devices import resolve
from parity.execution import execute
from parity.execution.inputs import build
from parity.judging.budget import Budget
from parity.judging.judge import judge
from parity.judging.promises import one_sided, residue
from parity.oracle.oracle import CaseOracle
from parity.oracle.rounding import Rounding
from parity.oracle.roundoffs import shifted

CPU = resolve("cpu")
U = 2.0**-24


def forward(text: str, device: dict[str, Tensor], tables: str = "cuda") -> Verdict:
    """The verdict on the CPU's results with those of the device in their places."""
    bench, results, _ = prepared(text, tables)
    return judge(bench, {**results, **device}, results, "forward")[0]


def operand(text: str, index: int = 0) -> Tensor:
    return prepared(text).inputs.operands[index].view


# ------------------------------------------------------------------------------------------- long chains in a half type


def _chain(x: Tensor) -> Tensor:
    rows, last = [], torch.zeros(x.shape[1:], dtype=x.dtype)
    for r in x:
        last = (last.float() + r.float()).to(x.dtype)
        rows.append(last)
    return torch.stack(rows)


def test_a_long_chain_in_bfloat16_stays_where_its_terms_are_lost() -> None:
    """CUDA's cumsum along rows keeps the running value in the dtype: 1,052 numbers about 2 come to 1,024."""
    text = "cumsum(bfloat16[1052, 2].positive(), 0)"
    device = _chain(operand(text))
    assert float(device[-1, 0]) == 1024.0 == float(device[-100, 0])
    assert forward(text, {"out": device}).status is Status.AGREE


def test_a_short_chain_is_held_to_chance() -> None:
    text = "cumsum(bfloat16[257, 2].positive(), 0)"
    device = _chain(operand(text))
    assert forward(text, {"out": device}).status is Status.AGREE
    assert forward(text, {"out": torch.cat([device[:-1], 0.5 * device[-1:]])}).status.is_finding


def test_terms_that_differ_are_lost_to_one_side_once_there_are_enough_of_them() -> None:
    n = torch.tensor([1.0, 256.0, 1024.0, 8192.0], dtype=torch.float64).numpy()
    equal, other = (one_sided(torch.ones(4, dtype=torch.float64).numpy(), n, 2.0**-8, e) for e in (True, False))
    assert (other <= equal).all()
    assert other[:2].tolist() == [0.0, 0.0]
    assert other[3] > 0.99 * equal[3]


# ------------------------------------------------------------------------------------------------ what torch rounds itself


RENORM = "renorm(float16[90, 1], 1.0, 1, 1.0)"


def _renormed(more: float = 0.0) -> Tensor:
    x = operand(RENORM).float()
    return (x * ((1.0 + more) / (x.abs().sum() + 1e-7)).half().float()).half()


def test_a_factor_that_torch_rounds_to_the_dtype_makes_results_lean() -> None:
    assert forward(RENORM, {"out": _renormed()}).status is Status.AGREE


def test_results_that_lean_as_the_reference_does_are_the_references() -> None:
    """The CPU's own log_softmax of half types rounds the sum that all elements share."""
    text = "log_softmax(bfloat16[2049].uniform(seed=3737), dim=-1)"
    found = prepared(text).results["out"]
    assert forward(text, {"out": found.clone()}).status is Status.AGREE
    shared = torch.log_softmax(operand(text).double(), -1)
    off = (shared + 0.4 * 2.0**-5).bfloat16()  # the truth beside the shared sum off by a part of an ULP
    assert forward(text, {"out": off}).status.is_finding


def test_a_factor_that_is_off_by_more_is_found() -> None:
    assert forward(RENORM, {"out": _renormed(2.0**-9)}).status.is_finding


IMAGES = (
    "nll_loss2d_forward(float16[3, 6, 2, 5].between(-8, 0, seed=1864), int64[3, 2, 5].index(0, 6, seed=1932), None, 2, -100)"
)


def test_sums_of_images_are_added_up_in_the_half_type() -> None:
    picked = -operand(IMAGES).double().gather(1, operand(IMAGES, 1)[:, None])[:, 0]
    parts = [p.sum().half() for p in picked]
    device = ((parts[2] + parts[0]) + parts[1]).half()
    assert forward(IMAGES, {"out[0]": device}).status is Status.AGREE
    assert forward(IMAGES, {"out[0]": (parts[2] + parts[0]).half()}).status.is_finding


AREA = 'interpolate_area(bfloat16[1, 1, 1, 1, 1], size=(10, 11, 11), mode="area")'


def test_an_average_over_an_area_is_a_sum_of_as_many_gradients() -> None:
    """Both sides add them up in the dtype, one after the other."""
    case, fed = parse(AREA), torch.randn((1, 1, 10, 11, 11), generator=torch.Generator().manual_seed(5)).bfloat16()
    row, inputs = catalog.row(case.op), build(case)
    oracle = CaseOracle(execute.program(row), case, inputs, torch.bfloat16)
    oracle.expect([fed])
    truth = oracle.truth("out")
    assert truth is not None
    oracle.differentiate([fed])
    bench = bench_for(row, oracle, "cuda")
    chain = _chain(fed.flatten()[:, None])[-1].view(1, 1, 1, 1, 1)
    once = fed.double().sum().bfloat16().view(1, 1, 1, 1, 1)
    for device, right in ((chain, True), (once, True), (once + 0.75 * fed.abs().sum(), False)):
        found = judge(bench, {"grad[0]": device}, {"grad[0]": once}, "backward")[0]
        assert found.status.is_finding is not right


# -------------------------------------------------------------------------------------------- orders that torch leaves open


def test_factors_of_one_place_may_leave_the_range_before_a_zero_comes() -> None:
    text = 'scatter_old(float32[1, 6], 0, int64[11, 6].index(0, 1), float32[11, 8].borders(), reduce="multiply")'
    out = prepared(text).results["out"].clone()
    assert float(out[0, 2]) == 0.0
    out[0, 2] = float("nan")
    assert forward(text, {"out": out}).status is Status.AGREE


def test_factors_that_stay_in_the_range_make_no_nan() -> None:
    text = 'scatter_old(float32[1, 6], 0, int64[2, 6].index(0, 1), float32[2, 8].inside(1, 2), reduce="multiply")'
    out = prepared(text).results["out"].clone()
    out[0, 2] = float("nan")
    assert forward(text, {"out": out}).status is Status.WRONG


def test_atomics_flush_parts_of_a_pooled_gradient() -> None:
    size = "(2, 2, 1), (1, 1, 1), (0, 1, 0), False, True, None"
    text = f"avg_pool3d_backward_written(float32[1, 1, 1, 3, 1].of(4e-38, 4e-38, 4e-38), float32[1, 1, 2, 2, 1], {size})"
    out = prepared(text).results["out"]
    less = {"out": out - 1.1e-38}
    assert forward(text, less).status is Status.AGREE
    assert forward(text, {"out": out - 1.1e-37}).status.is_finding
    assert forward(text, less, "cpu").status.is_finding


# ------------------------------------------------------------------------------------------------ where the CPU is wrong


@pytest.mark.parametrize("row", ["batch_norm_without_statistics", "native_batch_norm_legit"])
def test_the_truth_of_what_is_written_is_that_of_what_is_returned(row: str) -> None:
    """torch 2.13's CPU writes other saved statistics than it returns, if the operand is transposed; CUDA writes these."""
    more = "float32[2].inside(-2, 2), float32[2].inside(0.5, 4), " if row.startswith("native") else ""
    plain, into = (f"{n}(float32[2, 2].transpose(-2, -1), None, None, {more}0.125, 1e-05)" for n in (row, f"{row}_written"))
    right = prepared(plain).results
    assert not torch.allclose(right["out[2]"], prepared(into).results["out[2]"], rtol=0.5)
    found = forward(into, right)
    assert found.status is Status.AGREE
    assert forward(into, {**right, "out[2]": 1.01 * right["out[2]"]}).status.is_finding


def test_saved_statistics_of_an_evaluation_are_nobodys_promise() -> None:
    statistics = "float32[1].inside(-2, 2), float32[1].inside(0.5, 4)"
    text = f"native_batch_norm_written(float32[2, 1], None, None, {statistics}, {{}}, 0.5, 1e-05)"
    assert [len(prepared(text.format(training)).results) for training in ("True", "False")] == [5, 3]


def test_indices_that_are_expanded_reach_the_kernel_side_by_side() -> None:
    """Kernels read the indices from their start, as if they were dense: others than were given."""
    index = "int64[4].expand(-1).index(0, 8)"
    text = f"embedding_bag_dense_backward(float32[1, 1].of(1.0), {index}, float32[8, 1], int64[1].inside(0, 0), 1, None)"
    given = operand(text, 1)
    assert given.stride() == (0,)
    made = prepared(text).results["out"].flatten()
    assert made.nonzero().flatten().tolist() == [int(given[0])]


# ------------------------------------------------------------------------------------------------- gradients of spectra


def spectral(text: str, change: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]) -> Verdict:
    """The verdict over a gradient that `change` makes of the operand and of the function that gives gradients."""
    case = parse(text)
    row, inputs = catalog.row(case.op), build(case)
    p, a = execute.program(row), inputs.operands[0].view
    function = torch.linalg.svdvals if case.op == "svdvals" else torch.linalg.eigvalsh
    fed = torch.randn(a.shape[-1], generator=torch.Generator().manual_seed(1))

    def gradient(x: Tensor) -> Tensor:
        x = x.detach().clone().requires_grad_()
        y = function(x)
        return torch.autograd.grad(y, x, fed.to(y.dtype))[0]

    oracle = CaseOracle(p, case, inputs, torch.float32)
    oracle.expect([fed])
    assert oracle.truth("out") is not None
    oracle.differentiate([fed])
    device = change(a, gradient)
    return judge(bench_for(row, oracle, "cuda"), {"grad[0]": device}, {"grad[0]": gradient(a)}, "backward")[0]


SPECTRA = ("svdvals(float32[36, 36].full_rank())", "eigvalsh(float32[40, 40].symmetric(seed=941))")


@pytest.mark.parametrize("text", SPECTRA)
def test_gradients_of_a_matrix_beside_the_given_one_are_honest(text: str) -> None:
    """Backward stability: off by n u of the norm in every element (what Jacobi's method on a GPU comes to)."""

    def beside(a: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
        a, r = a.double(), torch.randn(a.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        r = (r + r.mT) / 2
        size = a.shape[-1] * U * torch.linalg.matrix_norm(a, 2)
        return gradient(a + size * r / torch.linalg.matrix_norm(r, 2)).float()

    assert spectral(text, beside).status is Status.AGREE


@pytest.mark.parametrize("text", SPECTRA)
def test_gradients_of_lower_precision_are_found(text: str) -> None:
    assert spectral(text, lambda a, gradient: gradient(a) * (1.0 + 2.0**-7)).status.is_finding


def test_small_elements_of_a_matrix_move_by_its_norm() -> None:
    a = torch.tensor([[64.0, 2.0**-10], [0.0, 64.0]], dtype=torch.float64)
    off = shifted(a, U, 3) - a
    assert (off.abs() > 0.25 * 64.0 * U).all()
    assert (off.abs() <= 64.0 * U).all()
    z = shifted(torch.complex(a, a), U, 3) - torch.complex(a, a)
    assert bool((z.real.abs() > 0).all() and (z.imag.abs() > 0).all())
    vector = torch.tensor([1.0, 2.0**-10], dtype=torch.float64)
    assert (shifted(vector, U, 3) - vector).abs()[1] <= 2.0**-10 * U


def test_a_spectrum_is_conditioned_by_the_norm_of_its_matrix() -> None:
    """Elements next to a large diagonal are small, and what an algorithm does to them is not."""
    case = parse(SPECTRA[0])
    oracle = CaseOracle(execute.program(catalog.row(case.op)), case, build(case), torch.float32)
    fed = torch.randn(36, generator=torch.Generator().manual_seed(1))
    oracle.expect([fed])
    truth = oracle.truth("out")
    assert truth is not None
    oracle.differentiate([fed])
    found = oracle.sensitivity("grad[0]", U, U)
    a = build(case).operands[0].view.double()
    r = torch.randn(a.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).sign() * U * a.abs().max()
    moved = []
    for x in (a, a + r):
        x.requires_grad_()
        moved.append(torch.autograd.grad(torch.linalg.svdvals(x), x, fed.double())[0])
    assert float(found.median()) > 0.5 * float((moved[1] - moved[0]).abs().median())


# ------------------------------------------------------------------------------------------------------ running products


@pytest.mark.parametrize("shape, dim", [((129,), 0), ((3, 5, 2), 1), ((), 0), ((0, 3), 0), ((1, 4), 0), ((7,), -1)])
def test_running_products_are_those_of_torch_with_every_product_rounded(shape: tuple[int, ...], dim: int) -> None:
    x = 1.0 + 0.1 * torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with Rounding(2.0**-40, 0):
        found = torch.cumprod(x, dim)
    torch.testing.assert_close(found, torch.cumprod(x, dim), rtol=200 * 2.0**-40, atol=0.0)


def test_running_products_of_a_long_row_need_no_table_of_all_pairs() -> None:
    """2^20 numbers: a table of n^2 factors would be 8 TiB."""
    x = torch.ones(1 << 20, dtype=torch.float64)
    with Rounding(U, 0):
        assert float((torch.cumprod(x, 0) - 1.0).abs().max()) < 1e-3


# --------------------------------------------------------------------------------------------------- numbers that cancel


class Numbers:
    """In place of an oracle: no number on the way is larger than 2."""

    def largest(self, u: float, between: float) -> float:
        return 2.0


def _left(*truth: float, budget: float = 1e-16) -> Budget | None:
    numbers = torch.tensor(truth, dtype=torch.float64)
    b = Budget(np.full(len(truth), budget), (("x", np.full(len(truth), budget)),))
    return residue(cast(CaseOracle, Numbers()), b, numbers, FACTS["float32"], U, U)


def test_gradients_that_cancel_altogether_are_as_good_as_the_dtype() -> None:
    """The second derivative of a masked product by its one factor: the truth is 1e-17, float32 leaves 1e-8."""
    found = _left(3e-17, 0.0)
    assert found is not None
    assert np.allclose(found.total, 8.0 * U, rtol=1e-6)


def test_a_gradient_that_is_zero_or_a_number_or_has_a_budget_is_held_to_it() -> None:
    assert _left(0.0, 0.0) is None  # nothing cancelled: it is 0
    assert _left(3e-17, 1e-9) is None
    assert _left(3e-17, 0.0, budget=1e-6) is None


# ---------------------------------------------------------------------------------------- long chains of one number


ALIKE = "dot(float32[65536].expand(0).inside(0.3, 0.3), float32[65536].expand(0).inside(0.9, 0.9))"


def test_a_chain_of_equal_products_is_rounded_to_one_side() -> None:
    """Whatever adds them one after the other is off by thousands of roundoffs; a hundredth of the terms lost is found."""
    x, y = (operand(ALIKE, k) for k in (0, 1))
    chain = torch.from_numpy(np.add.accumulate((x * y).numpy()))[-1]
    truth = (x.double() * y.double()).sum()
    assert abs(float(chain) / float(truth) - 1.0) > 10000 * U

    def said(out: Tensor) -> Status:
        """Without the CPU, whose own chain would excuse the device."""
        return judge(prepared(ALIKE, "cuda").bench, {"out": out.float()}, None, "forward")[0].status

    assert said(chain) is Status.AGREE
    assert said(0.99 * truth) is Status.WRONG


def test_a_norm_over_one_element_multiplies_noise_by_the_largest_scale() -> None:
    """Its mean is the element itself, exactly; the gradient of a weight is a difference of products that a device may fuse."""
    x = torch.tensor([7.4718e7, 3.0, 2.0, 1.0], dtype=torch.float64).reshape(2, 2, 1)
    weight, moved = torch.ones(2, dtype=torch.float64, requires_grad=True), 0.0
    for key in range(4):
        with Rounding(U, key):
            y = torch.nn.functional.group_norm(x.clone().requires_grad_(), 2, weight)
            moved = max(moved, float(torch.autograd.grad(y.sum(), weight)[0][0].abs()))
    assert 0.1 < moved / (7.4718e7 * 1e-5**-0.5 * U) < 10.0


def test_a_running_sum_of_one_number_goes_astray_in_a_chain() -> None:
    """As it does on a device that adds along a strided dimension one by one; CPUs add such sums in double."""
    terms = torch.full((65536,), 0.7, dtype=torch.float64)
    with Rounding(U, 0) as mode:
        made = mode.unrounded(terms.cumsum(0))
    chain = torch.from_numpy(np.add.accumulate(terms.float().numpy())).double()
    off, lost = (made - terms.cumsum(0)).abs(), (chain - terms.cumsum(0)).abs()
    assert float(off[-1]) > float(lost[-1]) / 8.0 > 100 * U
