"""What the judge once took for faults of an honest device, and faults like it that it must go on finding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parity import tolerance
from parity.core import notation
from parity.core.results import FINDINGS
from parity.devices import Call, Fault, resolve
from parity.devices.sim import honest
from parity.engine import suite
from parity.engine.checking import replay
from parity.engine.planning import RunPlan

# A second derivative: what two convolutions gave, each rounded toward zero, added up and rounded again.
CONVOLVED = (
    "conv_transpose3d(float32[3, 2, 3, 3].halves(seed=501), float32[3, 3, 3, 3, 3].permute(0, 3, 4, 2, 1).wide(seed=2563), "
    'bias=float32[9].slice(-1, 2, 0).ties(seed=2023), stride=2, groups=3).cotangent("zero", "offset", 0)'
)
# A subnormal factor, flushed, of a product that the half type holds.
NARROWED = 'kron(float32[5].cancelling(seed=3563).at(3, "max"), float32[()].at(0, "smallest").frozen()).into("float16")'

# The CPU's own kernel in float32 reads others than these strided weights, for images of one pixel (torch 2.13).
STRIDED = (
    "batch_norm_train(bfloat16[4, 2, 1].normal(seed=1), None, None, bfloat16[2].step(-1, 3, 0).uniform(seed=2), None)"
    '.cotangent("normal", "contiguous", 917)'
)

# A tangent that is a difference of others: y + (x < y) (x - y).
PUSHED = 'minimum(float32[()].decimals(seed=399), float32[256].constant(seed=3930)).cotangent("normal", "contiguous", 3668)'

# Integers that the half type of the others does not hold, into a destination that would.
WIDER = 'atan2(int32[3].large(seed=1834), float16[3].borders(seed=2148)).as_dtype("float16").into("float32").under("no_grad")'

# The extremum is flushed and the numbers are not, so that none equals it: 0 / 0.
VANISHED = 'norm(float32[5].permute(0).tiny(seed=1213), -inf).cotangent("normal", "expanded", 527).into("offset")'

# Multiplied in another order, products of 257 numbers fall below the range on the way, and their gradients divide them.
MULTIPLIED = "prod_dim(float32[2, 2, 257, 2].between(-2, 2, seed=3487), -2)"

# All elements share the rounding of 1 / sqrt(x), of which the gradient takes the third power.
SHARED = 'rsqrt(bfloat16[4, 4].constant(seed=2149)).cotangent("normal", "contiguous", 0)'

# The same of 1 / sqrt(1 - x^2); and of sinh, where one element is NaN.
OF_ONE_NUMBER = (
    'acos(float16[2, 1, 2, 1, 2, 32, 2].constant(seed=2787)).cotangent("normal", "stepped", 3217).into("channels_last")'
)
BUT_A_NAN = (
    'cosh(float16[5, 4, 1, 5].constant(seed=3158).at(8, "-nan")).cotangent("normal", "expanded_first", 2671)'
    '.into("channels_last")'
)

BUT_ONE = 'cosh(bfloat16[3, 5, 2, 4].step(-3, 3, 0).constant(seed=3663).at(11, "-2.5")).cotangent("normal", "contiguous", 3628)'

# All elements of a column share the rounding of 1 / sqrt(x x - 1), and of 1 / sqrt(1 - x x).
OF_TWO_NUMBERS = (
    'acosh(bfloat16[128, 2].expand(-2).between(1, 9, seed=113)).cotangent("nonfinite", "transposed", 3920).into("stepped")'
)
OF_THREE_NUMBERS = 'acos(bfloat16[128, 3].expand(-2).between(-1, 1, seed=103)).cotangent("normal", "contiguous", 4)'

# All results are 1 in the half type, and so have one error.
NEARLY_ONE = 'sinc(float16[2, 5, 4, 2].tiny(seed=651).at(2, "min").at(0, "max")).into("step_outer")'

# A dividend beyond the half type's range is Inf before it is divided.
DIVIDEND = (
    "div(int32[()].flat(1, 0).borders(seed=3800), float16[()].borders(seed=3816).frozen())"
    '.as_dtype("float16").into("transposed").under("no_grad")'
)

# A device copies where the CPU fills: each cotangent is rounded to the value's dtype before they are added.
COARSER = (
    "setitem(float16[2, 2, 1, 2], (None, slice(None, None, None), 1, 0, None, slice(None, None, None)), bfloat16[()], "
    '(..., 1), False).cotangent("normal", "contiguous", 902)'
)

# The CPU's own copy of a half into a float32 with a lazy minus loses it (torch 2.13), as the simulated device did.
NEGATED = "setitem(float32[1, 1].neg(), (slice(-1, 4, 3), 0), float16[()].of(0))"

# exp(-23) is the smallest of float16 in one kernel, within its bound, and 0 in the next: what cancels elsewhere does not here.
SMALLEST = (
    "gelu_backward(float16[2, 3, 2, 1, 3, 3, 1, 1].permute(2, 6, 3, 5, 1, 4, 0, 7).cancelling(seed=3385), float16[2, 3, 2, 1, "
    '3, 3, 1, 1].between(-8, 8, seed=1239), approximate=\'none\').cotangent("ones", "transposed", 0)'
)

# The mean of a Welford update, which takes Inf from Inf.
WELFORD = 'std_mean(float16[4, 4].at(0, "-inf"))'

# Two factors fall below the range before Inf comes.
TIMES_INF = 'cumprod_into_itself(float32[3].between(-2, 2, seed=1).at(1, "smallest").at(0, "inf"), \'cumprod\', 0)'

# Integers are first cast to the half type of the result.
CAST = "addcmul(int64[()].full(), float16[()].decimals(), int64[()].full())"

# Scale and shift: weight / std leaves the range, which (x - mean) / std times weight does not.
SCALED = (
    'batch_norm(bfloat16[1, 2], bfloat16[2], bfloat16[2].inside(0.5, 4), weight=bfloat16[2].at(0, "max"), '
    "bias=bfloat16[2].step(-1, 2, 0))"
)

# The gradient asks which difference equals the distance, which another rounding of the distance alone would not.
FARTHEST = 'cdist(float32[2, 1], float32[2, 1].at(0, "max"), p=inf)'

# Products of three factors, of which two fall below the range: beside a bias, between factors, in Gauss's three products.
OF_THREE = (
    "bilinear(complex64[1, 1, 2].ties(seed=1585), complex64[1, 1, 1].halves(seed=2690), complex64[1, 2, 1].tiny(seed=1635), "
    'complex64[1].at(0, "subnormal"))'
)
CONTRACTED = (
    "einsum('bi,oij,bj->bo', complex64[1, 1].large(), complex64[2, 4, 1], complex64[2, 1].tiny(seed=3790))"
    '.cotangent("normal", "contiguous", 1132)'
)
GAUSS = (
    "conv_transpose2d_channels_last(complex64[3, 2, 2, 2].tiny(), complex64[2, 1, 1, 2].decimals(), bias=complex64[1].tiny())"
)

# The product of two of three factors is flushed, and the third is Inf.
THREE_WITH_INF = 'bilinear(bfloat16[1, 1, 2].uniform(seed=1294), bfloat16[1, 1, 1].at(0, "inf"), bfloat16[3, 2, 1].tiny())'

# The extremum is flushed and the number that it is compared with is not, by a kernel that calls another one.
EXTREMUM = "norm_dims(bfloat16[1, 2, 1].tiny(), -inf, (1,), False)"

# softmax gives its gradient's kernel a probability that is 0 in the half type, which is multiplied by Inf.
IMPROBABLE = 'softmax_backward(float16[3].at(0, "-inf"), float16[3].between(-30, 8), 0, False).into("step_outer")'

# Beside the largest number no usual number in the place of Inf changes the mean.
BESIDE_MAX = 'var_mean(float32[3, 6].at(0, "max").at(1, "-inf"))'

# Neither of the ranks for which dropout3d has a batch: dimension 0 is the channel, with one coin here.
ONE_COIN = "dropout3d(bfloat16[1, 31, 1, 2, 2, 2, 2, 2].slice(-4, 1, 0).uniform(seed=3253), p=0.1)"

# Beyond eps the gradient is 0; of NaN, one CPU kernel gives NaN and another one 0.
BEYOND_EPS = 'logit(bfloat16[28, 2].between(0, 1).at(0, "nan"), eps=0.125)'


def found(device: str, faults: list[Fault], text: str) -> list[str]:
    """The aspects of a case that are findings."""
    case = notation.parse(text)
    plan = RunPlan(resolve(device, faults), resolve("cpu"), tolerance.load(device), suite.profile("quick"))
    results = replay(suite.Item(suite.row(case.op), case.dtype), plan, case, None)
    assert results
    return [str(r.aspect) for r in results if r.verdict.status in FINDINGS]


@pytest.mark.parametrize(
    "text",
    [
        *(CONVOLVED, NARROWED, STRIDED, PUSHED, WIDER, VANISHED, MULTIPLIED, NEGATED, SMALLEST, WELFORD, TIMES_INF, CAST),
        *(OF_THREE, CONTRACTED, GAUSS, THREE_WITH_INF, EXTREMUM, IMPROBABLE, BESIDE_MAX, ONE_COIN),
    ],
    ids=[
        *("second", "flushed", "strided", "tangent", "wider", "vanished", "multiplied", "negated", "smallest", "Welford"),
        *("times Inf", "cast", "of three", "contracted", "Gauss", "three with Inf", "extremum", "improbable", "beside max"),
        "one coin",
    ],
)
def test_an_honest_device_is_not_accused(text: str) -> None:
    assert not found("sim:mps", honest.FAULTS, text)


@pytest.mark.parametrize("text", [SCALED, FARTHEST, NEARLY_ONE, DIVIDEND], ids=["scaled", "farthest", "nearly 1", "dividend"])
def test_an_honest_device_that_flushes_nothing_is_not_accused(text: str) -> None:
    assert not found("sim", honest.FAULTS, text)


@pytest.mark.parametrize(
    ("text", "op", "factor"),
    [
        (SHARED, "rsqrt", 1.02),
        (OF_ONE_NUMBER, "rsqrt", 1.005),
        (BUT_A_NAN, "sinh", 1.005),
        (BUT_ONE, "sinh", 1.05),
        (OF_TWO_NUMBERS, "rsqrt", 1.05),
        (OF_TWO_NUMBERS, "rsqrt", 0.95),
        (OF_THREE_NUMBERS, "rsqrt", 1.05),
        (OF_TWO_NUMBERS.replace(".expand(-2)", ""), "rsqrt", 1.03),
        (COARSER, "sum", 1.5),
    ],
    ids=[
        *("shared", "of one number", "but a NaN", "but one", "of two numbers", "of two numbers, less", "of three numbers"),
        *("of different numbers", "coarser"),
    ],
)
def test_a_device_of_roundings_is_not_accused_and_one_of_a_factor_is(text: str, op: str, factor: float) -> None:
    assert not found("sim", honest.FAULTS, text)
    assert "backward" in found("sim", [Fault("scaled", (op,), lambda call: call.run() * factor)], text)


def test_a_finite_quotient_of_an_infinite_dividend_is_found() -> None:
    assert "forward" in found("sim", [Fault("finite", ("div",), lambda call: _with(call.run(), -256.0))], DIVIDEND)


def test_a_common_factor_of_results_that_differ_is_found() -> None:
    text = "sinc(float16[2, 5, 4, 2].between(-1, 1, seed=3))"
    assert not found("sim", honest.FAULTS, text)
    assert "forward" in found("sim", [Fault("scaled", ("sinc",), lambda call: call.run() * 0.998)], text)


def test_a_second_derivative_that_is_off_where_no_number_is_small_is_found() -> None:
    def some(call: Call) -> Any:
        result = call.run()
        return torch.where(result.abs() > 1e-4, 1.2 * result, result)

    assert "double backward" in found("sim:mps", [Fault("some", ("exp",), some)], SMALLEST)


def test_a_product_that_loses_what_no_order_loses_is_found() -> None:
    def flushed(call: Call) -> Any:
        result = call.run()
        return torch.where(result.abs() < 1e-30, 0.0 * result, result)

    text = "prod_dim(float32[2, 4].between(1, 2, seed=3), -1)"
    small = "prod_dim(float32[2, 2].inside(1e-17, 2e-17, seed=3), -1)"
    assert not found("sim:mps", [Fault("early", ("prod",), flushed)], text)
    assert "forward" in found("sim:mps", [Fault("early", ("prod",), flushed)], small)


def test_a_second_derivative_in_bfloat16_is_found() -> None:
    """Operands of every convolution cut to 8 bits, which the spread of a second derivative is wider for."""

    def coarse(call: Call) -> Any:
        call.args = [a.to(torch.bfloat16).to(a.dtype) if isinstance(a, torch.Tensor) else a for a in call.args]
        return call.run()

    faults = [Fault("coarse", ("convolution", "convolution_backward"), coarse)]
    assert "double backward" in found("sim:mps", faults, CONVOLVED)


def test_a_half_precision_gelu_is_right_in_a_destination_in_channels_last() -> None:
    """The CPU's own in float32, which the device computes it by, is not (torch 2.13): it goes by the operand's memory."""
    device = resolve("sim", honest.FAULTS)
    x = torch.randn((2, 3, 4, 5), generator=torch.Generator().manual_seed(0)).half()
    out = device.upload(torch.empty(2, 3, 4, 5, dtype=torch.half).to(memory_format=torch.channels_last))
    torch.ops.aten.gelu.out(device.upload(x), out=out)
    assert torch.allclose(device.download(out).float(), torch.nn.functional.gelu(x.float()), atol=2e-3)


def test_sums_in_float32_do_not_overflow_where_the_cpus_own_in_a_half_type_do() -> None:
    """adaptive_avg_pool3d of torch 2.13's CPU adds up in float16; a device that is right there is not taken for wrong."""
    text = "adaptive_avg_pool3d(float16[3, 3, 3, 2, 3].channels_last().slice(1, 0, 1).borders(seed=117), (1, 1, 3))"
    assert not found("sim", honest.FAULTS, text)


@pytest.mark.parametrize(
    ("op", "text"),
    [
        ("bmm", THREE_WITH_INF.replace(".tiny()", ".between(1, 2, seed=1)")),
        ("bmm", THREE_WITH_INF.replace("[1, 1, 2].uniform(seed=1294)", '[1, 1, 2].at(0, "inf").at(1, "inf")')),
        ("_softmax_backward_data", IMPROBABLE.replace("float16", "float32")),
        ("_softmax_backward_data", IMPROBABLE.replace("(-30, 8)", "(-3, 3)")),
    ],
    ids=["usual factors", "two of Inf", "float32", "probable"],
)
def test_nan_for_inf_is_found_where_nothing_falls_below_the_range(op: str, text: str) -> None:
    assert not found("sim:mps", honest.FAULTS, text)
    assert found("sim:mps", [Fault("nan", (op,), lambda call: _with(call.run(), torch.nan))], text)


def _with(result: torch.Tensor, number: float) -> torch.Tensor:
    """The result with another number in place of its infinities."""
    return torch.where(result.isinf(), number, result)


@pytest.mark.parametrize(
    ("op", "text"), [("bmm", THREE_WITH_INF), ("_softmax_backward_data", IMPROBABLE)], ids=["of three", "improbable"]
)
def test_a_finite_number_for_inf_is_found(op: str, text: str) -> None:
    assert found("sim:mps", [Fault("finite", (op,), lambda call: _with(call.run(), 7.0))], text)


@pytest.mark.parametrize("text", [BESIDE_MAX, WELFORD, WELFORD.replace("std", "var")], ids=["beside max", "std", "var"])
def test_a_finite_mean_of_numbers_with_inf_is_found(text: str) -> None:
    def finite(call: Call) -> Any:
        spread, mean = call.run()
        return spread, torch.where(mean.isfinite(), mean, 7.0)

    assert "forward" in found("sim:mps", [Fault("finite", ("std_mean", "var_mean"), finite)], text)


@pytest.mark.parametrize("op", ["var_mean", "std_mean"])
def test_a_wrong_mean_of_other_numbers_than_inf_is_found(op: str) -> None:
    def half(call: Call) -> Any:
        spread, mean = call.run()
        return spread, torch.where(mean.isfinite(), mean + 0.5, mean)

    text = f'{op}(float16[4, 4].at(0, "-inf"), dim=1)'
    assert not found("sim:mps", honest.FAULTS, text)
    assert "forward" in found("sim:mps", [Fault("half", (op,), half)], text)


@pytest.mark.parametrize(
    ("op", "text"), [("bmm", OF_THREE), ("mul", CONTRACTED), ("convolution", GAUSS)], ids=["of three", "contracted", "Gauss"]
)
def test_products_of_three_that_are_twice_as_large_are_found(op: str, text: str) -> None:
    assert found("sim:mps", [Fault("twice", (op,), lambda call: 2.0 * call.run())], text)


def test_a_nan_beside_a_gradient_at_nan_is_found() -> None:
    def alone(call: Call) -> Any:
        gradient, x, eps = call.args[0].double(), call.args[1].double(), call.args[2]
        return torch.where((x < eps) | (x > 1.0 - eps), 0.0, gradient / (x * (1.0 - x))).to(call.args[1].dtype)

    def spread(call: Call) -> Any:
        return torch.where(call.args[1] > 0.5, torch.nan, alone(call))

    assert not found("sim:mps", [Fault("alone", ("logit_backward",), alone)], BEYOND_EPS)
    assert "backward" in found("sim:mps", [Fault("spread", ("logit_backward",), spread)], BEYOND_EPS)


def test_a_gradient_of_nan_is_found_where_no_number_is_small() -> None:
    faults = [Fault("nan", ("sgn",), lambda call: torch.full_like(call.run(), torch.nan))]
    assert "backward" in found("sim:mps", faults, EXTREMUM.replace("tiny", "uniform"))


def test_an_overflow_is_found_where_the_scale_of_a_normalization_holds() -> None:
    def scaled(call: Call) -> Any:
        result, *rest = call.run()
        return torch.where(result.abs() > 1e30, -torch.inf, result), *rest

    text = SCALED.replace("inside(0.5, 4)", "inside(3, 4)")
    assert "forward" in found("sim", [Fault("overflow", ("native_batch_norm",), scaled)], text)
    assert not found("sim", honest.FAULTS, text)


def test_a_coin_for_each_of_dimension_1_is_found_where_dimension_0_is_the_channel() -> None:
    def other(call: Call) -> Any:
        x = call.args[0]
        return call.run() * (torch.arange(x.shape[2]) % 2).to(x.dtype).view(-1, *(1 for _ in x.shape[3:]))

    assert "forward" in found("sim", [Fault("other", ("mul",), other)], ONE_COIN)


# Of 24 elements one is a difference of equal numbers, whose movements undo each other in the first samples.
UNDONE = (
    'batch_norm(bfloat16[3, 8].ties(seed=664), bfloat16[8].expand(0).at(0, "-1"), bfloat16[8].inside(0.5, 4), '
    "bias=bfloat16[8].tiny())"
)

# (1 / x) ** 2 is 0 or the smallest of float16, and times x ** 2, which is Inf, NaN or Inf.
POWERS = 'norm(float16[()].at(0, "max"), -1)'

# The quotient of -53.99 is rounded before it is truncated, as on the CPU; the first element's are flushed to 0 / 0.
TRUNCATED = (
    'div_trunc(bfloat16[5].large(seed=2728).at(0, "smallest"), bfloat16[5].positive(seed=3753).at(0, "smallest"), '
    "rounding_mode='trunc')"
)

# Inf times 1 + tanh(-11.9), of which roundings leave a number of either sign, or 0.
EITHER_SIGN = "gelu_backward(bfloat16[5].at(7, \"inf\"), bfloat16[5].between(-8, 8, seed=1), approximate='tanh')"

# The power of a flushed number, in place, is Inf, and the comparison that would leave it out sees the number.
IN_PLACE = 'renorm(float32[1, 2].at(0, "smallest"), 0.5, 0, 0.0)'

# The CPU's own kernel is wrong into this destination (torch 2.13), and so is every element of the simulated device.
WRONG_ON_THE_CPU = (
    "replication_pad3d_backward(float32[1, 2, 5, 6, 4].tiny(), float32[1, 2, 3, 4, 3].channels_last(), (1, 0, 1, 1, 1, 1))"
    '.into("offset")'
)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        *(("sim", UNDONE), ("sim", POWERS), ("sim:mps", TRUNCATED), ("sim", EITHER_SIGN), ("sim:mps", EITHER_SIGN)),
        *(("sim:mps", IN_PLACE), ("sim:mps", WRONG_ON_THE_CPU)),
    ],
    ids=["undone", "powers", "truncated", "either sign", "either sign flushed", "in place", "wrong on the CPU"],
)
def test_an_honest_device_is_not_accused_on_its_edges(device: str, text: str) -> None:
    assert not found(device, honest.FAULTS, text)


def _replaced(number: float, where: Any) -> Any:
    """A kernel with a number in place of some elements of its (first) result."""

    def kernel(call: Call) -> Any:
        result = call.run()
        first, *rest = result if isinstance(result, tuple) else (result,)
        first = torch.where(where(first), number, first)
        return (first, *rest) if rest else first

    return kernel


@pytest.mark.parametrize(
    ("device", "text", "aspect", "op", "kernel"),
    [
        ("sim", UNDONE, "forward", "native_batch_norm", _replaced(3.0, lambda x: x.abs() < 1e-30)),
        ("sim", POWERS.replace('"max"', '"1"'), "backward", "pow", _replaced(torch.inf, lambda x: x == 1)),
        ("sim:mps", TRUNCATED, "forward", "div", _replaced(-52.0, lambda x: x == -54)),
        ("sim:mps", TRUNCATED, "forward", "div", _replaced(450.0, lambda x: x == 442)),
        ("sim", EITHER_SIGN, "backward", "mul", _replaced(7.0, lambda x: ~x.isfinite())),
        ("sim:mps", IN_PLACE.replace("smallest", "1"), "backward", "pow", _replaced(torch.inf, lambda x: x == 1)),
        ("sim:mps", WRONG_ON_THE_CPU, "out=", "replication_pad3d_backward", lambda call: _scaled(call.run())),
    ],
    ids=["undone", "of 1", "truncated", "whole", "Inf", "in place", "wrong on the CPU"],
)
def test_a_fault_in_what_an_honest_device_was_accused_of_is_found(
    device: str, text: str, aspect: str, op: str, kernel: Any
) -> None:
    assert aspect in found(device, [Fault("planted", (op,), kernel)], text)


def _scaled(result: torch.Tensor) -> torch.Tensor:
    """The result, one and a half times as large, where it was written."""
    return result.mul_(1.5)


def test_another_infinity_is_found_where_no_rounding_decides_its_sign() -> None:
    text = EITHER_SIGN.replace("between(-8, 8, seed=1)", "between(0.5, 2, seed=1)")
    turned = Fault("turned", ("gelu_backward",), lambda call: _turned(call.run()))
    assert not found("sim", honest.FAULTS, text)
    assert "forward" in found("sim", [turned], text)


def _turned(result: torch.Tensor) -> torch.Tensor:
    return torch.where(result.isinf(), -result, result)
