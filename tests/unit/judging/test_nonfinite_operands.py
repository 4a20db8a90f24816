"""NaN and Inf of operands and cotangents: what they reach is NaN or Inf by every algorithm, and no overflow on the way."""

from __future__ import annotations

import math

import pytest
import torch
from cases import bench_for, checked, oracle_for, verdict_on
from torch import Tensor

from parity import catalog
from parity.core.dtypes import FACTS
from parity.core.notation import parse
from parity.core.results import Status, Verdict
from parity.devices import Call, Device, Fault, resolve
from parity.execution import execute
from parity.execution.inputs import build, torch_word
from parity.judging.excuses import _moved
from parity.judging.judge import judge
from parity.oracle.float64 import run
from parity.oracle.limited_range import range_of


def finite(t: object) -> object:
    return t.nan_to_num(0.0, 1e4, -1e4) if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()) else t


def lossy(call: Call) -> object:
    call.args = [finite(a) for a in call.args]
    return call.run()


@pytest.mark.parametrize(("text", "status"), [("0.5", Status.WRONG), ("2.0, 0.25", Status.AGREE)])
def test_a_partial_result_of_the_largest_number_itself_overflows_in_no_order(text: str, status: Status) -> None:
    n = 1 + len(text.split(","))
    product = f"prod(float32[{n}].of(3.4028234663852886e38, {text}))"
    assert verdict_on(product, lambda t: torch.full_like(t, math.inf)).status is status


KERNELS = (
    "sum mean cumsum prod cumprod mm addmm linear convolution linalg_vector_norm _softmax native_layer_norm _logcumsumexp var "
    "nansum addcmul upsample_bilinear2d"
)


@pytest.fixture(scope="module")
def device() -> Device:
    """A device whose kernels take NaN for 0 and Inf for 10,000."""
    return resolve("sim", [Fault("lossy", tuple(KERNELS.split()), lossy)])


@pytest.mark.parametrize("x", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "text",
    [
        "sum(float32[3].of({x}, 1, 2))",
        "sum(float16[3].of(1, {x}, 2))",
        "mean(float32[2, 2].of(1, 2, {x}, 4))",
        "cumsum(float32[4].of(1, {x}, 2, 3), 0)",
        "cumprod(float32[4].of(1, {x}, 2, 3), 0)",
        "prod(float32[3].of({x}, 1, 2))",
        "nansum(float32[3].of(inf, 1, {x}))",
        "mm(float32[1, 2].of({x}, 1), float32[2, 1].of(1, 1))",
        "mm(complex64[1, 2].of({x}, 1), complex64[2, 1].of(1, 1))",
        "addmm(float32[1, 1].of({x}), float32[1, 2].of(1, 1), float32[2, 1].of(1, 1))",
        "addmm(float32[1, 1].of(1), float32[1, 2].of({x}, 1), float32[2, 1].of(1, 1), alpha=0.5)",
        "linear(float32[1, 2].of(1, {x}), float32[2, 2].of(1, 1, 1, 1))",
        "conv2d(float32[1, 1, 3, 3].of(1, 1, 1, 1, {x}, 1, 1, 1, 1), float32[1, 1, 2, 2].of(1, 1, 1, 1))",
        "norm(float32[3].of({x}, 1, 2))",
        "norm(float32[3].of({x}, 1, 2), 1)",
        "softmax(float32[3].of(inf, 1, {x}), -1)",
        "layer_norm(float32[1, 3].of({x}, 1, 2), (3,))",
        "logcumsumexp(float32[3].of({x}, inf, 2), 0)",
        "var(float32[3].of({x}, 1, 2))",
        "addcmul(float32[1].of(1), float32[1].of({x}), float32[1].of(1))",
        "interpolate_bilinear(float32[1, 1, 2, 1].of({x}, 1), scale_factor=2, mode='bilinear')",
    ],
)
def test_an_infinity_taken_for_a_number_is_wrong(device: Device, text: str, x: str) -> None:
    text = text.format(x=x)
    assert checked(device, text)["forward"].verdict.status is Status.WRONG
    assert checked(resolve("sim"), text)["forward"].verdict.status is Status.AGREE


@pytest.mark.parametrize("other", [math.nan, -math.inf])
def test_only_numbers_that_leave_the_range_make_another_infinity(other: float) -> None:
    """Inf, 1 and 2 add up to Inf in any order; Inf and -4e38 in parts may be Inf - Inf."""

    def turned(t: Tensor) -> Tensor:
        return torch.full_like(t, other)

    assert verdict_on("sum(float32[3].of(inf, 1, 2))", turned).status is Status.WRONG
    assert verdict_on("sum(float32[3].of(inf, -2e38, -2e38))", turned).status is Status.AGREE


@pytest.mark.parametrize("name", ["erfinv", "logit", "special.ndtri"])
@pytest.mark.parametrize("other", [math.nan, -math.inf])
def test_a_pole_at_the_end_of_a_domain_is_kept_beside_an_inf(name: str, other: float) -> None:
    """Numbers next to 1 give NaN on one side, and 1 itself Inf."""
    text = f"{name}(float32[3].of(0.25, 1, inf))"
    assert verdict_on(text, lambda t: t).status is Status.AGREE
    assert verdict_on(text, lambda t: torch.where(t.isinf(), other, t)).status is Status.WRONG


def test_finite_terms_that_leave_the_range_excuse_their_own_element_alone() -> None:
    text = "sum_dim(float32[2, 3].of(3e38, 3e38, -3e38, inf, 1, 2), 1)"
    lost = verdict_on(text, lambda t: torch.tensor([math.inf, math.inf]))
    wrong = verdict_on(text, lambda t: torch.tensor([math.inf, 1e4]))
    assert (lost.status, wrong.status) == (Status.AGREE, Status.WRONG)


PADDED = "conv2d(float32[1, 1, 4, 4].at(0, '{x}'), float32[1, 1, 2, 2].of(1, 1, 1, 1), padding=1)"


@pytest.mark.parametrize("x", ["inf", "nan"])
def test_transforms_spread_nan_and_lose_none(x: str) -> None:
    text = PADDED.format(x=x)
    assert verdict_on(text, lambda t: torch.full_like(t, math.nan)).status is Status.AGREE
    assert verdict_on(text, lambda t: t.nan_to_num(0.0, 1e4, -1e4)).status is Status.WRONG


def test_a_product_of_inf_and_zero_may_be_skipped_where_the_tables_say_so() -> None:
    weighted = "interpolate_bilinear(float32[1, 1, 1, 2].of(1, inf), (1, 3), mode='bilinear', align_corners=True)"
    first = torch.tensor([True, False, False])
    assert verdict_on(weighted, lambda t: torch.where(first, 1.0, t)).status is Status.AGREE
    assert verdict_on(weighted, lambda t: torch.where(first, t, 1.0)).status is Status.WRONG
    assert verdict_on("mm(float32[1, 2].of(inf, 1), float32[2, 1].of(0, 1))", torch.ones_like).status is Status.WRONG


MASKED = "scaled_dot_product_attention(float32[1, 1, 1, 2].of(1, {q}), float32[1, 1, 2, 2].of(1, 1, 1, 1), "
MASKED += "float32[1, 1, 2, 2].of(1, 1, {v}, 1), attn_mask=float32[1, 1, 1, 2].of(0, {mask}))"


def test_attention_may_skip_what_is_masked_and_loses_no_other_nan() -> None:
    masked = MASKED.format(q=1, v="nan", mask="-inf")
    assert verdict_on(masked, torch.ones_like).status is Status.AGREE
    for text in (MASKED.format(q="nan", v=1, mask=0), MASKED.format(q=1, v="nan", mask=0)):
        assert verdict_on(text, torch.ones_like).status is Status.WRONG


# ------------------------------------------------------------------------------------------------------------- gradients


def gradients(text: str, cotangents: list[Tensor]) -> dict[str, Tensor]:
    """The CPU's gradients of a case, in its own dtypes."""
    case = parse(text)
    inputs = build(case)
    results = run(
        execute.program(catalog.row(case.op)), case, inputs, execute.place(inputs, resolve("cpu")), cotangents, torch_word
    )
    return {n: t for n, t in results if n.startswith("grad[")}


def on_gradients(text: str, cotangents: list[Tensor], device: dict[str, Tensor], reference: dict[str, Tensor]) -> Verdict:
    bench = bench_for(parse(text).op, oracle_for(text, cotangents=cotangents))
    return judge(bench, device, reference, "backward")[0]


@pytest.mark.parametrize("x", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("layer_norm(float32[2, 3].normal(seed=1), (3,), float32[3].normal(seed=2))", (2, 3)),
        ("group_norm(float32[1, 4, 2].normal(seed=1), 2, float32[4].normal(seed=2))", (1, 4, 2)),
        ("batch_norm_train(float32[3, 2].normal(seed=1), None, None, float32[2].normal(seed=2), None)", (3, 2)),
        ("conv2d(float32[1, 1, 3, 3].normal(seed=1), float32[1, 1, 2, 2].normal(seed=2))", (1, 1, 2, 2)),
        ("embedding(int64[3].index(0, 4), float32[4, 2].normal(seed=1))", (3, 2)),
        ("adaptive_avg_pool2d(float32[1, 1, 4, 4].normal(seed=1), (2, 2))", (1, 1, 2, 2)),
        ("grid_sample_2d(float32[1, 1, 3, 3].normal(seed=1), float32[1, 2, 2, 2].between(-1, 1, seed=2))", (1, 1, 2, 2)),
        ("mm(float32[2, 3].normal(seed=1), float32[3, 2].normal(seed=2))", (2, 2)),
        ("sum(float32[3].of(inf, 1, 2))", ()),
    ],
)
def test_a_gradient_loses_no_nan_or_inf_that_comes_in(text: str, shape: tuple[int, ...], x: float) -> None:
    fed = torch.ones(shape)
    fed.view(-1)[0] = x
    healthy = gradients(text, [fed])
    lost = gradients(text, [fed.nan_to_num(0.0, 0.0, 0.0)])
    assert not on_gradients(text, [fed], healthy, healthy).status.is_finding
    assert on_gradients(text, [fed], lost, healthy).status is Status.WRONG


def test_a_gradient_at_inf_that_does_not_depend_on_it_is_judged() -> None:
    """That of a sum is 1 there; that of a square is nobody's promise."""
    one = [torch.ones(())]
    x = {"grad[0]": torch.ones(3)}
    assert on_gradients("sum(float32[3].of(inf, 1, 2))", one, x, x).status is Status.AGREE
    assert on_gradients("sum(float32[3].of(inf, 1, 2))", one, {"grad[0]": torch.tensor([5.0, 1, 1])}, x).status is Status.WRONG
    square, fed = "square(float32[3].of(inf, 1, 2))", [torch.ones(3)]
    right = gradients(square, fed)
    other = {"grad[0]": right["grad[0]"].nan_to_num(0.0, 5.0)}
    assert on_gradients(square, fed, other, right).status is Status.AGREE


def test_a_limited_run_that_ends_at_the_largest_number_did_not_move_an_infinity() -> None:
    f = FACTS["float32"]
    truth, limited = (torch.tensor([x, 1.0], dtype=torch.float64) for x in (float("inf"), range_of(f, False).most))
    assert _moved(truth, limited, f).tolist() == [0.0, 0.0]
    assert _moved(truth, limited / 2, f).tolist() == [math.inf, 0.5]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("tanh", "tanh(bfloat16[3].of(3.8, 0.5, -1))"),  # 0.999: one bfloat16 below is 0.996, one above is 1
        ("sigmoid", "sigmoid(bfloat16[3].of(6, 0.5, -1))"),
    ],
)
def test_inf_times_a_derivative_that_rounding_makes_0_is_nan_or_inf(row: str, text: str) -> None:
    """Only where the saved result may have been rounded to the number at which the derivative is 0."""
    cotangents = [torch.full((3,), math.inf)]
    bench = bench_for(row, oracle_for(text, torch.bfloat16, cotangents))
    inf = torch.full((3,), math.inf, dtype=torch.bfloat16)

    def verdict(*lost: int) -> Status:
        given = inf.clone()
        given[list(lost)] = math.nan
        return judge(bench, {"grad[0]": given}, {"grad[0]": inf}, "backward")[0].status

    assert verdict(0) is Status.AGREE
    assert verdict(1) is Status.WRONG
    assert verdict(0, 2) is Status.WRONG


def test_batch_norm_with_an_infinite_weight_may_take_inf_from_inf_in_that_channel_alone() -> None:
    """x (weight / std) + (bias - mean (weight / std)) is NaN where (x - mean) (weight / std) + bias is Inf."""
    text = (
        "batch_norm(float32[1, 2, 2].normal(seed=3), float32[2].of(0.5, 0.5), float32[2].of(1, 1), "
        "weight=float32[2].of(inf, 2), bias=float32[2].expand(0))"
    )

    def spoiled(column: int, x: float) -> Status:
        def change(t: Tensor) -> Tensor:
            t[:, column] = x
            return t

        return verdict_on(text, change).status

    assert spoiled(0, math.nan) is Status.AGREE
    assert spoiled(0, 1.0) is Status.WRONG
    assert spoiled(1, math.nan) is Status.WRONG
