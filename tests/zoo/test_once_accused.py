"""What the judge once took for faults of an honest device, and faults beside it that it must go on finding."""

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


def found(device: str, faults: list[Fault], text: str) -> list[str]:
    """The aspects of a case that are findings."""
    case = notation.parse(text)
    plan = RunPlan(resolve(device, faults), resolve("cpu"), tolerance.load(device), suite.profile("quick"))
    results = replay(suite.Item(suite.row(case.op), case.dtype), plan, case, None)
    assert results
    return [str(r.aspect) for r in results if r.verdict.status in FINDINGS]


@pytest.mark.parametrize(
    "text",
    [CONVOLVED, NARROWED, STRIDED, PUSHED, WIDER, VANISHED, MULTIPLIED, NEGATED, SMALLEST, WELFORD, TIMES_INF, CAST],
    ids=[
        *("second", "flushed", "strided", "tangent", "wider", "vanished", "multiplied", "negated", "smallest", "Welford"),
        *("times Inf", "cast"),
    ],
)
def test_an_honest_device_is_not_accused(text: str) -> None:
    assert not found("sim:mps", honest.FAULTS, text)


@pytest.mark.parametrize(("text", "op", "factor"), [(SHARED, "rsqrt", 1.02), (COARSER, "sum", 1.5)], ids=["shared", "coarser"])
def test_a_device_of_roundings_is_not_accused_and_one_of_a_factor_is(text: str, op: str, factor: float) -> None:
    assert not found("sim", honest.FAULTS, text)
    assert "backward" in found("sim", [Fault("scaled", (op,), lambda call: call.run() * factor)], text)


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
