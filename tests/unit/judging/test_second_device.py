"""What an honest second device does otherwise is no finding, and a fault next to it still is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from cases import bench_for, checked, oracle_for
from torch import Tensor

from parity import catalog, tolerance
from parity.catalog import opinfo
from parity.catalog.samples import torch_version
from parity.checks.check import Settings, check, quiet
from parity.checks.trial import EVERYTHING, Result
from parity.core.notation import parse
from parity.core.results import Aspect, Status, Verdict
from parity.devices import Call, Device, Fault, resolve
from parity.execution import execute
from parity.execution.inputs import Inputs, build
from parity.judging.judge import judge
from parity.oracle import decompositions, float64, kernels, rounding, roundoffs
from parity.oracle.oracle import CaseOracle
from parity.oracle.sensitivity import replaced

CPU = resolve("cpu")
TABLES = tolerance.load("cpu")
U = 2.0**-24


def judged(text: str, device: Callable[[Tensor], Tensor], fed: Tensor | None = None) -> Verdict:
    """What is said of a device that makes `device(the reference's)` of a result or, with a cotangent, of every gradient."""
    case = parse(text)
    row, inputs = catalog.row(case.op), build(case)
    p = execute.program(row)
    live = execute.forward(p, case, inputs, execute.place(inputs, CPU), fed is not None)
    oracle = CaseOracle(p, case, inputs, live.outputs[0][1].dtype)
    results: Mapping[str, Tensor] = dict(live.outputs)
    if fed is not None:
        oracle.differentiate([fed])
        results = dict(execute.backward(live, [fed.to(live.outputs[0][1].dtype)]))
    bench = bench_for(row, oracle)
    given = {n: device(t.detach().clone()) for n, t in results.items()}
    return judge(bench, given, {n: t.detach() for n, t in results.items()}, "forward" if fed is None else "backward")[0]


def results(device: Device, text: str) -> dict[str, Result]:
    return checked(device, text, EVERYTHING)


# ------------------------------------------------------------------------------------------------------- special values


def one_ulp(t: Tensor) -> Tensor:
    real = torch.view_as_real(t) if t.is_complex() else t
    return t.copy_(torch.view_as_complex(torch.nextafter(real, 2 * real)) if t.is_complex() else torch.nextafter(t, 2 * t))


CUMSUM = 'cumsum(complex64[40, 2].normal(seed=1).at(7, "nan"), 0)'


def test_the_finite_part_of_a_complex_nan_has_no_unit_of_error() -> None:
    """Its other part is NaN, so that the magnitudes of its summands are unknown; the elements before it are judged."""
    assert judged(CUMSUM, one_ulp).status is Status.AGREE
    assert judged(CUMSUM, lambda t: torch.complex(t.real, t.imag * (1 + 2.0**-11))).status.is_finding


def test_the_reference_owes_as_little_as_the_device() -> None:
    """Where a result owes nothing the reference's share is no share, and widens nothing."""
    found = judged('cumsum(complex64[40].normal(seed=1).at(7, "nan"), 0)', one_ulp)
    assert found.measure is not None
    assert (found.measure.reference_share or 0.0) < 1.0


SECOND = 'hardswish(float32[8].normal(seed=1).at(1, "nan"))'


def at_nan(value: float, beside: float) -> Fault:
    """A second derivative that is `value` where the operand is NaN and off by a factor of `beside` everywhere."""

    def effect(call: Call) -> Any:
        made = call.run()
        return torch.where(torch.isnan(call.args[1]), value, made * beside)

    return Fault("at-nan", ("hardswish_backward",), effect)


def test_a_gradient_of_a_gradient_at_nan_is_nobodys_promise_either() -> None:
    honest, faulty = (results(resolve("sim", (at_nan(0.5, b),)), SECOND)["double backward"].verdict for b in (1.0, 1.01))
    assert honest.status is Status.AGREE
    assert faulty.status.is_finding


def test_nan_for_infinity_without_a_truth_is_a_sum_that_left_the_range() -> None:
    """rms_norm of the test data means something else in float64, so that the reference stands in for the truth."""
    row = next(r for r in opinfo.rows() if r.name == "opinfo:nn.functional.rms_norm")
    kept = opinfo.samples(row.name, "float32")
    index = next(i for i, s in kept.items() if len(s.tensors) == 2 and s.tensors[0].numel() > 3)
    given = ", ".join(f"float32{list(t.shape)}.sample({index}, {k})" for k, t in enumerate(kept[index].tensors))
    text = f'op("{row.name}", "float32")({index}, {given}, torch={torch_version()!r}, digest={kept[index].digest!r})'
    case = parse(text)
    inputs, p = build(case), execute.program(row)
    live = execute.forward(p, case, inputs, execute.place(inputs, CPU), False)
    bench = bench_for(row, CaseOracle(p, case, inputs, torch.float32))
    reference = live.outputs[0][1].detach().clone()
    lost, kept_finite, finite = (reference.clone() for _ in range(3))
    reference.view(-1)[1], lost.view(-1)[1] = math.inf, math.nan
    finite.view(-1)[1] = math.inf
    assert judge(bench, {"out": lost}, {"out": reference}, "forward")[0].status is Status.AGREE
    assert judge(bench, {"out": kept_finite}, {"out": reference}, "forward")[0].status.is_finding
    assert judge(bench, {"out": kept_finite * 1.01}, {"out": kept_finite}, "forward")[0].status.is_finding


# -------------------------------------------------------------------------------------------- where the reference is wrong


def test_exact_results_that_the_reference_gets_wrong_are_held_to_the_truth() -> None:
    """The vectorised fmod of the CPU is NaN for a divisor that is subnormal; a device may know better, not otherwise."""
    text = f"fmod(float32[8].of({', '.join(['5.0'] * 8)}), float32[8].of({', '.join(['3e-39'] * 8)}))"
    x, y = (o.view for o in build(parse(text)).operands)
    right = torch.fmod(x.double(), y.double()).float()
    bench = bench_for("fmod", oracle_for(text, x.dtype))
    nan = {"out": torch.full_like(right, math.nan)}
    found = judge(bench, {"out": right}, nan, "forward")[0]
    assert (found.status, found.reason) == (Status.AGREE, "the CPU is the worse side here: wrong in 8")
    beside = torch.where(torch.arange(8) == 3, 2 * right + 1, right)
    assert judge(bench, {"out": beside}, nan, "forward")[0].status is Status.WRONG
    assert judged("fmod(float32[2].of(5.0, 7.0), float32[2].of(3.0, 2.0))", lambda t: t + 1).status is Status.WRONG


# ----------------------------------------------------------------------------------------------------- sensitivities


def moved(text: str, fed: Tensor) -> Tensor:
    """The sensitivity of the first operand's gradient."""
    case = parse(text)
    made = CaseOracle(execute.program(catalog.row(case.op)), case, build(case), torch.float32)
    made.differentiate([fed])
    assert made.truth("grad[0]") is not None
    return made.sensitivity("grad[0]", U, U)


def test_gradients_of_a_largest_norm_have_a_sensitivity() -> None:
    """They go to the elements that equal the norm: were it rounded, there would be none, and 0 / 0."""
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    (truth,) = torch.autograd.grad(torch.renorm(x, math.inf, 0, 0.5), x, torch.ones(3, 4, dtype=torch.float64))
    with rounding.Rounding(U, 1, U) as mode:
        (found,) = torch.autograd.grad(torch.renorm(x, math.inf, 0, 0.5), x, torch.ones(3, 4, dtype=torch.float64))
    change = (mode.unrounded(found) - truth).abs()
    assert bool(torch.isfinite(change).all())
    assert 0 < float(change.max()) < 100 * U


def test_shapes_computed_without_numbers_are_no_rounding() -> None:
    with rounding.Rounding(U, 1, U):
        assert torch.ones(3, dtype=torch.float64, device="meta").exp().shape == (3,)


def test_what_reads_memory_keeps_its_memory_in_the_truth() -> None:
    """as_strided reads by strides of its own, so that its gradient depends on how the operand lies."""
    text = "as_strided(float32[8].slice(-1, 2, 1).normal(seed=1), (2, 3), (1, 2), 1)"
    fed = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    case = parse(text)
    inputs = build(case)
    live = execute.forward(execute.program(catalog.row(case.op)), case, inputs, execute.place(inputs, CPU), True)
    made = CaseOracle(execute.program(catalog.row(case.op)), case, inputs, torch.float32)
    made.differentiate([fed])
    truth = made.truth("grad[0]")
    assert truth is not None
    assert torch.allclose(truth.float(), dict(execute.backward(live, [fed]))["grad[0]"])
    assert float(made.sensitivity("grad[0]", U, U).max()) < 10 * U * float(truth.abs().max())


@pytest.mark.parametrize("name", ["linear1d", "bilinear2d", "bicubic2d", "trilinear3d", "_bilinear2d_aa", "_bicubic2d_aa"])
def test_formulas_of_resampling_are_those_of_the_kernels(name: str) -> None:
    mode = {"linear1d": "linear", "trilinear3d": "trilinear"}.get(name, "bicubic" if "bicubic" in name else "bilinear")
    sides = (6, 5, 7)[: 1 if mode == "linear" else 3 if mode == "trilinear" else 2]
    x = torch.randn(2, 3, *sides, dtype=torch.float64, requires_grad=True)

    def gradient() -> tuple[Tensor, Tensor]:
        size = [s + 4 for s in sides] if "aa" not in name else [3, 9]
        y = torch.nn.functional.interpolate(x, size=size, mode=mode, antialias="aa" in name)
        (g,) = torch.autograd.grad(y, x, torch.cos(torch.arange(y.numel(), dtype=torch.float64)).view(y.shape))
        return y.detach(), g

    truth = gradient()
    with rounding.Rounding(1e-30, 1, 1e-30):
        found = gradient()
    for a, b in zip(truth, found):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)
    kernel = getattr(torch.ops.aten, f"_upsample{name}_backward" if "aa" in name else f"upsample_{name}_backward").default
    assert kernel in kernels._decompositions()


@pytest.mark.parametrize("mode, padding", [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)])
def test_formulas_of_sampling_at_places_are_those_of_the_kernels(mode: int, padding: int) -> None:
    x = torch.randn(1, 2, 4, 5, dtype=torch.float64)
    places = torch.rand(1, 3, 3, 2, dtype=torch.float64) * 3 - 1.5
    grad = torch.randn(1, 2, 3, 3, dtype=torch.float64)
    kernel = torch.ops.aten.grid_sampler_2d_backward.default
    truth = kernel(grad, x, places, mode, padding, True, [True, True])
    assert kernel in kernels._decompositions()
    with rounding.Rounding(1e-30, 1, 1e-30):
        found = kernel(grad, x, places, mode, padding, True, [True, True])
    for a, b in zip(truth, found):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-11)


def test_gradients_of_weights_that_cancel_get_the_scale_of_the_weights() -> None:
    """Beyond the border all taps are one element, and the gradient of the place is a difference of weights that is 0."""
    x = torch.full((1, 1, 4, 4), 3.0, dtype=torch.float64)
    places = torch.full((1, 1, 1, 2), 0.3, dtype=torch.float64, requires_grad=True)

    def gradient() -> Tensor:
        y = torch.nn.functional.grid_sample(x, places, mode="bicubic", padding_mode="border", align_corners=True)
        found: Tensor = torch.autograd.grad(y.sum(), places)[0]
        return found

    assert float(gradient().abs().max()) < 1e-12
    with rounding.Rounding(U, 1, U):
        assert 0.1 * U < float(gradient().abs().max()) < 1000 * U


def test_places_that_are_whole_numbers_do_not_become_the_place_before() -> None:
    x = torch.arange(25, dtype=torch.float64).view(1, 1, 5, 5) ** 2
    places = torch.rand(1, 4, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 4 - 2
    truth = torch.nn.functional.grid_sample(x, places, mode="bicubic", padding_mode="border", align_corners=True)
    for key in range(4):
        with rounding.Rounding(U, key, U):
            found = torch.nn.functional.grid_sample(x, places, mode="bicubic", padding_mode="border", align_corners=True)
        assert float((found - truth).abs().max()) < 0.1  # one place is 10 and more


def infinite(call: Call) -> Any:
    return call.run() + math.inf


def test_a_rounding_that_a_small_square_takes_past_the_range_may_be_infinite() -> None:
    """sinc's second derivative divides by x squared twice what is 0 but for rounding; elsewhere Inf is wrong."""
    small = 'sinc(float16[4].of(0.0014877, 0.0012, 0.001, 0.0008)).cotangent("normal", "contiguous", 1361)'
    usual = small.replace("0.0014877, 0.0012, 0.001, 0.0008", "0.5, 1.5, -2.5, 0.25")
    device, faulty = resolve("sim:honest"), resolve("sim", (Fault("inf", ops=("cos",), effect=infinite, level="kernel"),))
    assert results(device, small)["double backward"].verdict.status is Status.AGREE
    assert results(faulty, usual)["double backward"].verdict.status.is_finding


WHOLE = "interpolate_bilinear(float32[1, 1, 3621, 1].uniform(seed=766), scale_factor=3.0, mode='bilinear', align_corners=True)"


@pytest.mark.parametrize("under", ["", '.under("deterministic")'])
def test_a_place_that_is_whole_only_in_double_moves(under: str) -> None:
    """10862 times the quotient 3620 / 10862 is 3620 in double, and 3619.9995 in float32 where the quotient is cut."""
    x = build(parse(WHOLE)).operands[0].view.reshape(-1)
    place = torch.arange(10863) * torch.nextafter(torch.tensor(3620 / 10862), torch.tensor(0.0))
    low = place.floor().to(torch.int64)
    part = place - low

    def resampled(right: Tensor) -> Tensor:
        return (x[low] * (1 - part) + right * part).view(1, 1, -1, 1).expand(1, 1, -1, 3).contiguous()

    assert judged(WHOLE + under, lambda t: resampled(x[low + 1])).status is Status.AGREE
    assert judged(WHOLE + under, lambda t: resampled(x[low])).status.is_finding
    assert judged(WHOLE + under, lambda t: 1.02 * t).status.is_finding


BICUBIC = "interpolate_bicubic(float32[2, 3, 4, 4].normal(seed=1), (7, 9))"


def test_a_resampling_gradient_by_coarser_weights_is_found() -> None:
    fed = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(1))
    assert float(moved(BICUBIC, fed).max()) > U
    assert judged(BICUBIC, lambda t: t * (1 + 4 * U), fed).status is Status.AGREE
    assert judged(BICUBIC, lambda t: t * (1 + 2.0**-11), fed).status.is_finding


def test_what_has_moved_takes_the_kernels_of_what_it_was() -> None:
    """The fused attention of the CPU has no second derivative; an expanded key is given to the one that has."""
    text = "scaled_dot_product_attention(float32[1, 2, 3, 8].normal(seed=1), float32[1, 2, 6, 8].expand(-1).normal(seed=2), "
    text += "float32[1, 2, 6, 8].step(-1, 3, 1).normal(seed=3))"
    case = parse(text)
    inputs, p = build(case), execute.program(catalog.row(case.op))
    placed = float64.widened(p, case, inputs, None)
    shaken = replaced(p, inputs, placed, lambda t, i: roundoffs.perturbed(t, 0.5, i), keep_layout=True)
    assert [v.stride() for v in shaken.views] == [v.stride() for v in placed.views]
    assert not any(torch.equal(a, b) for a, b in zip(shaken.views, placed.views))
    worst = results(resolve("sim"), text)["double backward"].verdict.measure
    assert worst is not None
    assert 0.0 < (worst.reference_share or 0.0) < 1.0


# ------------------------------------------------------------------------------------------------------ partial sums

TRANSPOSED = "conv_transpose3d(float16[4, 1, 4, 4, 4].normal(seed=1), float16[1, 2, 3, 3, 3].normal(seed=2))"


def test_partial_sums_of_each_batch_element_may_be_kept_in_the_half_type() -> None:
    """The gradient of the weight, added up over the batch in float16; a batch element left out is found."""
    inputs: Inputs = build(parse(TRANSPOSED))
    x, w = (o.view for o in inputs.operands)
    fed = torch.randn(4, 2, 6, 6, 6, generator=torch.Generator().manual_seed(3)).half()
    fed[0] += 8.0 * x[0].mean().sign()  # a large partial sum, and the next as large the other way
    fed[1] -= 8.0 * x[1].mean().sign() * x[0].mean().abs() / x[1].mean().abs()

    def summed(elements: range) -> Tensor:
        total = torch.zeros(w.shape, dtype=torch.float16)
        for b in elements:
            weight = w.float().requires_grad_()
            y = torch.nn.functional.conv_transpose3d(x[b : b + 1].float(), weight)
            total += torch.autograd.grad(y, weight, fed[b : b + 1].float())[0].half()
        return total

    for elements, agrees in ((range(4), True), (range(3), False)):
        made = summed(elements)
        found = judged(TRANSPOSED, lambda t, made=made: made if t.shape == made.shape else t, fed)  # type: ignore[misc]  # made is bound early
        assert (found.status is Status.AGREE) is agrees
        assert found.measure is not None


# -------------------------------------------------------------------------------------------------------- aspects


def test_unpooling_to_a_place_twice_is_no_finding_whichever_came_last() -> None:
    """Copies along a dimension make the values that overlapping windows write to one place differ."""
    row = next(r for r in opinfo.rows() if r.name == "opinfo:nn.functional.max_unpool2d")
    kept = opinfo.samples(row.name, "float32")
    drawn = [i for i, s in kept.items() if len(set(s.tensors[1][0, 0].flatten().tolist())) < s.tensors[1][0, 0].numel()]
    calls: list[bool] = []

    def effect(call: Call) -> Any:
        made = call.run()
        other = _unpooled(call.args[0], call.args[1], made)
        calls.append(not torch.equal(made, other))
        return other

    device = resolve("sim", (Fault("last", ("max_unpool2d",), effect),))
    wrong = resolve("sim", (Fault("wrong", ("max_unpool2d",), lambda c: c.run() * 1.5),))
    for index in drawn[:6]:
        x, places = kept[index].tensors
        given = f"float32{list(x.shape)}.expand(-2).sample({index}, 0), int64{list(places.shape)}.sample({index}, 1)"
        text = f'op("{row.name}", "float32")({index}, {given}, torch={torch_version()!r}, digest={kept[index].digest!r})'
        for made, statuses in ((device, {"agree"}), (wrong, {"wrong"})):
            with made.active():
                found, _ = check(row, parse(text), made, CPU, TABLES, Settings(only=Aspect.FORWARD), quiet, [])
            assert {str(r.verdict.status) for r in found} == statuses
    assert any(calls)


def _unpooled(x: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Unpooling in which the first value written to a place stays."""
    made = torch.zeros_like(like)
    for plane, values, index in zip(made.flatten(0, 1), x.flatten(0, 1), places.flatten(0, 1)):
        plane.view(-1)[index.reshape(-1).flip(0)] = values.reshape(-1).flip(0)
    return made


def test_every_formula_stands_for_a_kernel_of_this_torch() -> None:
    assert len(decompositions.antialiased()) == 2
    assert len(decompositions.adjoints(kernels._decompositions())) >= 7


def test_which_inf_the_gradient_of_logit_is_at_negative_zero_is_nobodys_promise() -> None:
    def inf_at(number: float) -> Fault:
        def effect(call: Call) -> Any:
            made, x = call.run(), call.args[1]
            return torch.where((x == 0) & (torch.signbit(x) == (math.copysign(1.0, number) < 0)), -made, made)

        return Fault("inf", ("logit_backward",), effect)

    text = 'logit(float32[67].between(0, 1, seed=3).at(3, "-0.0").at(5, "0")).cotangent("ones", "contiguous", 0)'
    free, kept = (results(resolve("sim", (inf_at(n),)), text)["backward"].verdict for n in (-0.0, 0.0))
    assert free.status is Status.AGREE
    assert kept.status.is_finding
