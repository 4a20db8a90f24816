"""What healthy devices may do where arithmetic alone does not say, each next to a fault that is found all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import bench_for, faulty_aspects, oracle_for, prepared, verdict_on
from torch import Tensor

from parity import catalog, tolerance
from parity.catalog.row import Judged
from parity.core.case import OpClass
from parity.core.dtypes import FACTS
from parity.core.notation import parse
from parity.core.results import Status, Verdict
from parity.devices import Fault
from parity.devices.resolve import resolve
from parity.execution import execute
from parity.execution.inputs import build
from parity.judging.judge import judge
from parity.judging.limits import Limits, detectable_error
from parity.judging.promises import one_kernel, one_sided
from parity.judging.relations import RELATIONS, Bound, Problem
from parity.judging.rules import rule_of
from parity.oracle.oracle import CaseOracle

Outs = tuple[Tensor, ...]


def verdict(text: str, change: Callable[[Tensor], Tensor], device: str = "cpu") -> Verdict:
    """The verdict on results that are `change(the CPU's)`, by the truth alone."""
    return verdict_on(text, change, device, reference=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", ["1, 1, 17, 2", "1, 2, 33, 128"])
def test_attention_may_store_its_weights_in_a_half_type(dtype: str, shape: str) -> None:
    """The tensor cores of both sides take both factors of the second product in the dtype."""
    text = f"scaled_dot_product_attention({', '.join(f'{dtype}[{shape}].normal(seed={k})' for k in (1, 2, 3))})"
    bench, results, inputs = prepared(text)
    q, k, v = (o.view.double() for o in inputs.operands)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    stored = weights.to(results["out"].dtype).double()
    lost = stored.clone()
    lost[..., -1] = 0.0

    def said(w: Tensor) -> Status:
        return judge(bench, {"out": (w @ v).to(results["out"].dtype)}, None, "forward")[0].status

    assert said(weights) is said(stored) is Status.AGREE
    assert said(lost) is Status.WRONG
    assert said(weights.to(torch.float8_e4m3fn).double()).is_finding


def test_one_nan_of_a_complex_operand_leaves_the_sensitivity_of_other_elements() -> None:
    """A real inverse transform of the CPU ignores the imaginary part that a product would make NaN as well."""
    bench, _, _ = prepared('fft.irfftn(complex64[2, 2, 3].at(1, "nan"))')
    truth = bench.oracle.truth("out")
    assert truth is not None
    finite = torch.isfinite(truth)
    assert 0 < int(finite.sum()) < truth.numel()
    assert bool((bench.oracle.sensitivity("out", 2.0**-24, 2.0**-24)[finite] > 0).all())


def test_a_complex_function_that_overflows_inside_float64_promises_nothing_there() -> None:
    text = "sigmoid(complex64[4, 7].wide(seed=2027))"
    assert verdict(text, lambda t: torch.where(torch.isnan(t.abs()), torch.zeros_like(t), t)).status is Status.AGREE
    assert verdict(text, lambda t: torch.where(torch.isnan(t.abs()), t, 1.001 * t + 0.001)).status.is_finding
    assert verdict(text, lambda t: torch.full_like(t, float("nan"))).status is Status.WRONG
    held = 'sigmoid(complex64[4].at(0, "nan"))'  # NaN of an operand stays NaN
    assert verdict(held, lambda t: torch.where(torch.isnan(t.abs()), torch.zeros_like(t), t)).status is Status.WRONG


@pytest.mark.parametrize(
    ("name", "limits", "number"),
    [("hardshrink_backward", "-8, 8", 0.5), ("softshrink_backward", "-8, 8", 0.5), ("logit_backward", "0.25, 0.75", 0.125)],
)
def test_a_gradient_at_nan_is_nobodys_promise_and_every_other_is(name: str, limits: str, number: float) -> None:
    text = f'{name}(float32[2, 4, 4], float32[2, 4, 4].between({limits}, seed=3).at(3, "nan"), {number})'

    def at(place: int, value: float) -> Verdict:
        def change(t: Tensor) -> Tensor:
            t.view(-1)[place] = value
            return t

        return verdict(text, change)

    assert at(3, 0.0).status is at(3, 0.7).status is Status.AGREE
    assert at(4, 3.7).status is Status.WRONG
    assert verdict(text.replace("float32[2, 4, 4],", 'float32[2, 4, 4].at(5, "nan"),'), torch.nan_to_num).status is Status.WRONG


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_which_inf_a_gradient_of_logit_is_at_negative_zero_is_nobodys_promise_and_every_other_is(dtype: str) -> None:
    text = f'logit_backward({dtype}[67].constant(seed=1), {dtype}[67].between(0, 1, seed=3).at(3, "-0.0").at(5, "0"), None)'

    def at(place: int, value: float) -> Status:
        return verdict(text, lambda t: t.index_fill(0, torch.tensor(place), value)).status

    assert at(3, math.inf) is at(3, -math.inf) is Status.AGREE
    signs = {at(5, math.inf), at(5, -math.inf)}
    assert signs == {Status.AGREE, Status.WRONG}
    assert at(3, 2.0) is at(4, math.inf) is at(3, math.nan) is Status.WRONG
    one = torch.ops.aten.logit_backward(torch.ones(67), torch.full((67,), -0.0), None)
    assert set(one.tolist()) == {math.inf, -math.inf}  # the CPU itself has two answers


def test_the_cpu_itself_has_two_answers_for_gradients_at_nan() -> None:
    for name, more in (
        ("hardshrink_backward", (0.5,)),
        ("softshrink_backward", (0.5,)),
        ("hardtanh_backward", (-1.0, 1.0)),
        ("hardswish_backward", ()),
        ("logit_backward", (0.125,)),
    ):
        found = getattr(torch.ops.aten, name)(torch.ones(67), torch.full((67,), float("nan")), *more)
        assert len(set(map(str, found.tolist()))) == 2, name


def test_subnormal_parts_of_complex_operands_may_be_flushed_before_a_convolution() -> None:
    """Two parts of 1e-38 under a kernel of 64 ones: each flushed one is missing in the sum."""
    text = "conv1d(complex64[1, 64, 1].inside(9e-39, 1.1e-38, seed=1), complex64[1, 64, 1].inside(1, 1, seed=2))"

    def flush(t: Tensor) -> Tensor:
        return torch.zeros_like(t)

    assert verdict(text, flush, "cuda").status is Status.AGREE
    assert verdict(text, flush, "cpu").status is Status.WRONG
    assert verdict(text.replace("9e-39, 1.1e-38", "9e-37, 1.1e-36"), flush, "cuda").status is Status.WRONG


def test_a_product_that_is_only_added_to_loses_no_digits_below_the_normal_numbers() -> None:
    """A kernel rounds it before the bias, and that is all: a last term dropped among subnormal sums of halves is found, where
    factors that go into a further product may have lost some."""
    text = "conv2d(float16[2, 512, 3, 3].inside(1e-4, 1e-3, seed=1), float16[8, 512, 2, 2].inside(1e-5, 1e-4, seed=2))"
    bench, results, inputs = prepared(text)
    x, w = (o.view.double() for o in inputs.operands)
    without = torch.nn.functional.conv2d(x[:, :-1], w[:, :-1]).to(torch.float16)
    assert judge(bench, results, None, "forward")[0].status is Status.AGREE
    assert judge(bench, {"out": without}, None, "forward")[0].status.is_finding


@pytest.mark.parametrize("name", ["scatter_reduce_mean", "index_reduce_mean"])
def test_means_of_repeated_places_may_add_halves_one_by_one(name: str) -> None:
    text = f"{name}(float16[1].inside(1, 1), 0, int64[204].index(0, 1), float16[204].inside(0.53, 0.53), 'mean')"
    bench, _, inputs = prepared(text)
    parts = [x for o in inputs.operands for x in o.view.tolist() if isinstance(x, float)]
    total = torch.zeros((), dtype=torch.float16)
    for x in parts:
        total = total + torch.tensor(x, dtype=torch.float16)
    one_by_one = (total / len(parts)).view(1)
    without = torch.tensor([sum(parts) / (len(parts) - 30)]).half()
    assert judge(bench, {"out": one_by_one}, None, "forward")[0].status is Status.AGREE
    assert judge(bench, {"out": without}, None, "forward")[0].status.is_finding


def test_gradients_of_gradients_that_a_mode_makes_exact_move_with_what_is_saved() -> None:
    """The gradient of prod divides the saved result by the operand; under a dispatch mode torch takes a formula without it."""
    case = parse("prod(complex64[1].between(-2, 2))")
    inputs = build(case)
    p = replace(
        execute.program(catalog.row("prod")),
        function=lambda x: torch.autograd.grad(torch.prod(x), x, torch.ones((), dtype=x.dtype), create_graph=True)[0],
    )
    oracle = CaseOracle(p, case, inputs, torch.complex64)
    oracle.differentiate([torch.ones(1, dtype=torch.complex64)])
    assert oracle.truth("grad[0]") is not None
    assert 0 < float(oracle.sensitivity("grad[0]", 2.0**-24, 2.0**-24)) < 2.0**-20


def orthogonal(n: int, off: float) -> tuple[Tensor, Outs]:
    """(A, its eigenvalues and eigenvectors), the latter off by so much."""
    g = torch.Generator().manual_seed(n)
    a = torch.randn(n, n, generator=g)
    a = a + a.mT
    w, v = torch.linalg.eigh(a.double())
    noise = torch.randn(n, n, generator=g, dtype=torch.float64)
    return a, (w.float(), (v + off * noise / noise.norm()).float())


@pytest.mark.parametrize(("off", "said"), [(60.0, "agree"), (400.0, "drift"), (2e5, "wrong")])
def test_residuals_that_a_coarser_arithmetic_leaves_are_drift(off: float, said: str) -> None:
    """off: in units of n u."""
    a, (w, v) = orthogonal(33, off * 33 * 2.0**-24)
    call = Bound(catalog.row("eigh"), (a,), {})
    row = replace(catalog.row("eigh"), judged=Judged(relation="eigh"), rule=OpClass.DECOMPOSITION)
    bench = bench_for(row, prepared("eigh(float32[33, 33].symmetric(seed=1))").bench.oracle, bound=call)
    assert str(judge(bench, {"out[0]": w, "out[1]": v}, None, "forward")[0].status) == said


def test_a_coarse_residual_says_by_how_much() -> None:
    a, (w, v) = orthogonal(33, 400.0 * 33 * 2.0**-24)
    found = RELATIONS["eigh"].problems(Bound(catalog.row("eigh"), (a,), {}), {"out[0]": w, "out[1]": v})
    assert found
    assert all(isinstance(p, Problem) and p.ratio is not None and 1 < p.ratio < 100 for p in found)


def test_a_solution_may_overflow_where_its_right_side_is_the_largest_number() -> None:
    largest = torch.finfo(torch.float32).max
    a = torch.eye(3, dtype=torch.complex64).expand(2, 3, 3) * 4
    b = torch.ones(2, 3, 1, dtype=torch.complex64)
    b[1, 2] = largest
    x = b / 4

    def said(x: Tensor) -> bool:
        return bool(RELATIONS["solve"].problems(Bound(catalog.row("solve"), (a, b), {}), {"out": x}))

    lost, other, off = x.clone(), x.clone(), x.clone()
    lost[1, 0], other[0, 0], off[1, 0] = float("inf"), float("inf"), 1.1 * largest / 4
    assert not said(x)
    assert not said(lost)
    assert said(other)
    assert said(off)


def test_kernels_give_what_every_device_writes() -> None:
    """Without a reduction no sum of weights; in evaluation no saved statistics; of unique rows only what was asked for."""
    x, target = torch.randn(3, 4), torch.tensor([0, 1, 2])
    steps = {n: execute.attribute(catalog.row(n).call) for n in ("nll_loss_forward", "native_batch_norm", "unique_rows")}
    plain, (loss, total) = (steps["nll_loss_forward"](x, target, None, r, -100) for r in (0, 1))
    assert plain.shape == (3,)
    assert float(total) == 3.0
    assert torch.allclose(loss, plain.mean())
    into = torch.full((3,), 7.0)
    steps["nll_loss_forward"](x, target, None, 0, -100, out=into)
    assert torch.equal(into, plain)
    statistics = torch.zeros(4), torch.ones(4)
    assert isinstance(steps["native_batch_norm"](x, None, None, *statistics, False, 0.1, 1e-5), Tensor)
    assert len(steps["native_batch_norm"](x, None, None, *statistics, True, 0.1, 1e-5)) == 3
    rows, counts = steps["unique_rows"](torch.ones(3, 2), 0, False, True)
    assert rows.shape == (1, 2)
    assert counts.tolist() == [3]


def turned(t: Tensor, by: float) -> Tensor:
    return torch.complex(t.real, t.imag + by * (torch.arange(t.numel()).view(t.shape) % 3)).to(t.dtype)


def test_a_complex_logarithm_is_known_up_to_a_turn() -> None:
    """CUDA's scan adds in another order, and keeps the imaginary part of another term where one outweighs the others."""
    op = "logcumsumexp(complex64[40].between(-9, 9, seed=4), 0)"
    assert verdict(op, lambda t: turned(t, 2.0 * math.pi)).status is Status.AGREE
    assert verdict(op, lambda t: turned(t, math.pi)).status is Status.WRONG
    assert verdict(op, lambda t: torch.complex(t.real * 1.01, t.imag)).status.is_finding


def test_only_a_logarithm_may_turn() -> None:
    assert verdict("exp(complex64[40])", lambda t: turned(t, 2.0 * math.pi)).status is Status.WRONG


def last(lost: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.cat((t[:-1], torch.tensor([lost], dtype=t.dtype)))


def test_a_product_of_three_may_leave_the_range_on_the_way() -> None:
    """0.5 * (3e38 / 0.5): the CPU multiplies first, CUDA divides first."""
    text = "addcdiv(float32[2].of(1.0, 1.0), float32[2].of(3e3, 3e38), float32[2].of(0.5, 0.5), value=0.5)"
    assert verdict(text, last(math.inf)).status is Status.AGREE
    assert verdict(text, lambda t: t * torch.tensor([1.5, 1.0])).status is Status.WRONG
    assert verdict(text.replace("3e38", "3e3"), last(math.inf)).status is Status.WRONG


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_a_product_may_fall_below_the_range_on_the_way(device: str) -> None:
    """1e-20 * 1e20 * 1e-30 is 0 in another order."""
    for text, status in (
        ("prod(float32[3].of(1e-20, 1e20, 1e-30))", Status.AGREE),
        ("prod(float32[3].of(1e-10, 1e20, 1e-20))", Status.WRONG),
        ("index_reduce_prod(float32[1].of(1e-20), 0, int64[2].index(0, 1), float32[2].of(1e20, 1e-30), 'prod')", Status.AGREE),
        ("index_reduce_prod(float32[1].of(1e-10), 0, int64[2].index(0, 1), float32[2].of(1e20, 1e-20), 'prod')", Status.WRONG),
    ):
        assert verdict_on(text, torch.zeros_like, device).status is status
        assert verdict_on(text, lambda t: 100.0 * t, device).status.is_finding


@pytest.mark.parametrize(("small", "status"), [("1e-20", Status.AGREE), ("1e-15", Status.WRONG)])
def test_the_gradient_of_a_product_may_divide_a_product_that_fell_below_the_range(small: str, status: Status) -> None:
    text = f"prod(float32[3].of({small}, {small}, 1))"
    made = oracle_for(text, cotangents=[torch.ones(())])
    assert made.truth("grad[0]") is not None
    right = torch.tensor([float(small), float(small), float(small) ** 2])
    found = judge(bench_for("prod", made, "mps"), {"grad[0]": torch.zeros(3)}, {"grad[0]": right}, "backward")[0]
    assert found.status is status


def test_complex_infinity_without_nan_has_several_roots() -> None:
    """C99's annex G gives 0 for 1 / sqrt(inf i), the plain formula NaN."""
    text = 'rsqrt(complex64[2].at(1, "infj"))'
    assert verdict(text, last(0.0)).status is Status.AGREE
    assert verdict(text, lambda t: t * torch.tensor([2.0, 1.0])).status is Status.WRONG
    assert verdict('rsqrt(complex64[2].at(1, "nan"))', last(0.0)).status is Status.WRONG


def test_softmax_may_write_the_product_of_its_gradient_in_the_half_type() -> None:
    """The gradient of equal cotangents is 0 but for what was rounded: y g in memory, as CUDA has it."""
    bench, _, inputs = prepared("softmin(bfloat16[1, 255, 1].cancelling(seed=3746), dim=-2)")
    (x,) = (o.view for o in inputs.operands)
    bench.oracle.differentiate([g := torch.full((1, 255, 1), -0.064453125, dtype=torch.bfloat16)])
    y = torch.softmax(-x, 1).float()

    def said(product: Tensor, u: float = 0.0) -> Status:
        back = -(product - y * product.sum() * (1.0 + u)).to(torch.bfloat16)
        return judge(bench, {"grad[0]": back}, None, "backward")[0].status

    assert said(y * g.float()) is said((y * g.float()).to(torch.bfloat16).float()) is Status.AGREE
    assert said(y * g.float(), 2.0**-5).is_finding


def test_a_convolution_without_a_bias_rounds_once_and_one_with_a_bias_may_not() -> None:
    f = FACTS["float16"]
    for more, once in (("", True), (", float16[4].normal(seed=3)", False)):
        bench, _, _ = prepared(f"conv2d(float16[1, 3, 5, 5].normal(seed=1), float16[4, 3, 2, 2].normal(seed=2){more})")
        truth = bench.oracle.truth("out")
        assert truth is not None
        tol = bench.tables.find("conv2d", bench.row.rule, "float16", "forward")
        b = rule_of(bench.row).budget(bench, truth, "out", f, "forward", tol, False)
        assert one_kernel(bench.row, f, "forward", b) is once
        assert not one_kernel(bench.row, FACTS["float32"], "forward", b)


# --------------------------------------------------------------------------------- what honest devices were once accused of


LOGITS = (
    'binary_cross_entropy_with_logits(float32[1].at(0, "-8.000000953674316"), float32[1].at(0, "0.0007"), '
    "pos_weight=float32[1].inside(1.5, 2))"
)


def test_a_loss_may_be_a_difference_of_numbers_a_thousand_times_its_size() -> None:
    """(1 - y) x and the weight times log(sigmoid(x)), each rounded, on every device; TF32's roundoff in them is found."""
    fed = [o.view.to(torch.float64) for o in prepared(LOGITS)[2].operands]

    def loss(u: float) -> Tensor:
        x, y, p = fed
        weight = (p - 1.0) * y + 1.0
        one, two = (1.0 - y) * x * (1.0 + u), weight * torch.nn.functional.logsigmoid(x) * (1.0 - u)
        return (one - two).mean().to(torch.float32)

    assert verdict(LOGITS, lambda x: loss(2.0**-24)).status is Status.AGREE
    assert verdict(LOGITS, lambda x: loss(2.0**-14)).status is not Status.AGREE


def test_an_operand_is_flushed_by_its_own_dtype_not_the_results() -> None:
    """A subnormal float32 number times a large one is one of float16's, where nothing is flushed."""
    bench, _, inputs = prepared('kron(float32[1].at(0, "max"), float32[1].at(0, "smallest"))')
    small = torch.kron(*(o.view.to(torch.float64) for o in inputs.operands)).to(torch.float16)

    def said(x: Tensor, tables: str) -> Status:
        return judge(replace(bench, tables=tolerance.load(tables)), {"out": x}, None, "forward")[0].status

    assert said(small, "mps") is said(0.0 * small, "mps") is said(small, "cpu") is Status.AGREE
    assert said(0.0 * small, "cpu") is said(4.0 * small, "mps") is Status.WRONG


def test_expanded_indices_have_a_truth_of_their_own() -> None:
    """The CPU adds at the wrong places where the index is smaller than what it adds to (torch 2.13), in float64 too."""
    index = "int64[1, 4, 3, 5].expand(1).expand(2).expand(3).inside(1, 2, seed=2)"
    text = f"scatter_add(float32[3, 5, 3, 5].ties(seed=1), 0, {index}, float32[1, 4, 3, 5].normal(seed=3))"
    bench, results, inputs = prepared(text)
    base, places, source = (o.view for o in inputs.operands)
    right = base.scatter_add(0, places.contiguous(), source)
    assert judge(bench, {"out": right}, results, "forward")[0].status is Status.AGREE
    lost = right.clone()
    lost[places.max(), 3] = base[places.max(), 3]
    assert judge(bench, {"out": lost}, None, "forward")[0].status is not Status.AGREE


def test_of_a_result_that_is_0_everywhere_any_other_number_is_reported() -> None:
    none = np.zeros(2, dtype=bool)

    def words(above: float) -> str:
        return detectable_error(Limits(np.zeros(2), np.full(2, above), none, none, none, 1.0))

    assert [words(0.0), words(np.inf)] == ["any number but 0 would have been reported", "nothing was judged"]


@pytest.mark.parametrize(("size", "status"), [("1e-30", Status.VOID), ("1e-6", Status.WRONG)])
def test_a_norm_may_be_wider_inside_than_what_its_gradient_divides_by(size: str, status: Status) -> None:
    """A norm of 1e-30 may be 0 in float32 or not; the gradient divides by its square, which is 0, and may be NaN."""
    text = f"normalize(float32[1, 2].of({size}, {size}), p=3.0)"
    made = oracle_for(text, cotangents=[torch.tensor([[1.0, 2.0]])])
    truth = made.truth("grad[0]")
    assert truth is not None
    right = truth.to(torch.float32)
    found = judge(bench_for("normalize", made), {"grad[0]": right * math.nan}, {"grad[0]": right}, "backward")[0]
    assert found.status is status


def test_a_sum_of_unequal_terms_leans_only_behind_the_first_that_no_longer_count() -> None:
    """Of 64 and 128 terms in a format of 1 / u = 64: none and three quarters of what equal terms lean by."""
    n, s, u = np.array([64.0, 128.0]), np.ones(2), 1 / 64
    assert one_sided(s, n, u, True).tolist() == [0.5, 1.0]
    assert one_sided(s, n, u, False).tolist() == [0.0, 0.75]


def test_a_nan_that_the_cpu_makes_of_weights_of_both_signs_is_excused_beside_right_elements_and_no_other_is() -> None:
    """In float16 it sums the greatest number times the weights of each row: -Inf, and then Inf - Inf."""
    image = 'float16[1, 2, 2, 1].permute(0, 1, 3, 2).borders(seed=1042).at(5, "min").at(6, "nan")'
    grid = "float16[1, 1, 2, 2].permute(0, 1, 3, 2).inside(-3, 3, seed=2538)"
    text = f'grid_sample_2d({image}, {grid}, mode="bicubic", padding_mode="border")'

    def said(change: Callable[[Tensor], Tensor]) -> Status:
        return verdict_on(text, change, "cpu").status

    lost = torch.tensor([[[[True, True]], [[False, False]]]])
    assert said(lambda t: torch.where(lost, t, 32768.0)) is Status.AGREE
    assert torch.equal(prepared(text)[1]["out"].isnan(), lost)
    assert said(lambda t: torch.where(lost, t, 32000.0)) is Status.WRONG
    assert said(lambda t: torch.full_like(t, math.nan)) is Status.WRONG


def test_a_gradient_of_logit_at_nan_may_be_zero_or_nan() -> None:
    """Of a gradient of zeros, which no NaN certainly reaches."""
    operand = 'float32[3, 2, 3, 3, 2].channels_last().between(0, 1, seed=1707).at(14, "nan")'
    text = f'logit({operand}, eps=0.125).cotangent("zero", "channels_last", 0)'
    assert not faulty_aspects(resolve("sim:honest"), text)
    wrong = Fault("off", ("logit_backward",), lambda call: call.run() + 1.0)
    assert faulty_aspects(resolve("sim", (wrong,)), text) == {"backward"}


def test_a_gradient_at_a_nan_that_it_does_not_read_is_a_promise() -> None:
    """The derivative by the incoming gradient depends on the other operand alone."""
    text = 'hardshrink_backward(float32[2, 4, 4].at(5, "nan"), float32[2, 4, 4].between(1, 8, seed=3), 0.5)'
    at = torch.zeros(2, 4, 4).index_put((torch.tensor(0), torch.tensor(1), torch.tensor(1)), torch.tensor(1.0))
    off = Fault("off", ("hardshrink_backward",), lambda call: call.run() + at.to(call.operands[0].dtype))
    assert faulty_aspects(resolve("sim", (off,)), text) == {"backward"}
    assert not faulty_aspects(resolve("sim:honest"), text)
