"""Measures -> verdicts: a planted difference is named, an honest one is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from cases import DEFAULT, bench_for, checked, faulty_aspects, prepared, verdict_on
from torch import Tensor

from parity import catalog
from parity.checks.trial import SELDOM
from parity.core.case import OpClass
from parity.core.notation import parse
from parity.core.results import Status, Verdict
from parity.devices import Fault, resolve
from parity.devices.sim.call import Call
from parity.execution import execute
from parity.execution.inputs import Inputs, build
from parity.judging import numeric
from parity.judging.destination import Part
from parity.judging.judge import TOO_LONG, judge
from parity.judging.relations import Bound
from parity.oracle import oracle
from parity.oracle.oracle import CaseOracle
from parity.oracle.protocol import Oracle

CPU = resolve("cpu")
INT = {"float16": torch.int16, "bfloat16": torch.int16, "float32": torch.int32}


def nudged(ulps: int, where: int = 5) -> Callable[[Tensor], Tensor]:
    def nudge(t: Tensor) -> Tensor:
        t.view(-1).view(INT[str(t.dtype).removeprefix("torch.")])[where] += ulps
        return t

    return nudge


EXP = "exp({}[64].uniform(seed=3))"
MATMUL = "matmul({}[8, 256].normal(seed=1), {}[256, 8].normal(seed=2))"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_that_add_up_in_a_half_type_excuse_no_device(dtype: str) -> None:
    """The CPU's gradient of a shift adds 24 rows in the half type and leaves its budget by it; kernels that round once do not,
    so that this is no property of the op, and a device that is off by 8 ULP is off."""
    case = parse(f"layer_norm({dtype}[24, 16].normal(seed=1), (16,), {dtype}[16].normal(seed=2), {dtype}[16].normal(seed=3))")
    row, inputs = catalog.row(case.op), build(case)
    p = execute.program(row)
    live = execute.forward(p, case, inputs, execute.place(inputs, CPU), True)
    (_, out), *_ = live.outputs
    fed = build(parse(f"abs({dtype}[24, 16].normal(seed=4))")).operands[0].view
    oracle = CaseOracle(p, case, inputs, out.dtype)
    oracle.differentiate([fed])
    bench = bench_for(row, oracle)
    right = oracle.rounded_once("grad[2]")
    truth = oracle.truth("grad[2]")
    assert right is not None
    assert truth is not None
    assert torch.equal(right, truth.to(right.dtype))
    step = (truth.abs() * 2.0 ** (-10 if dtype == "float16" else -7)).max()  # two ULP of the largest, of the reference's error
    poor = {"grad[2]": (truth + 3 * step).to(right.dtype)}
    assert judge(bench, {"grad[2]": right}, poor, "backward")[0].status is Status.AGREE
    assert judge(bench, poor, poor, "backward")[0].status is Status.AGREE  # equals the reference
    off = nudged(8)(right.clone())
    assert judge(bench, {"grad[2]": off}, poor, "backward")[0].status.is_finding


def test_kernels_that_round_once_take_the_references_place_beside_unspecified_elements() -> None:
    """The product of the first row leaves the range in some orders, and the CPU's other products are rounded on the way."""
    text = 'prod(bfloat16[8, 16].normal(seed=1).at(3, "max"), 1)'
    truth = prepared(text).bench.oracle.truth("out")
    assert truth is not None
    assert verdict_on(text, lambda t: t).status is Status.AGREE
    assert verdict_on(text, lambda t: truth.to(t.dtype)).status is Status.AGREE
    assert verdict_on(text, lambda t: (truth * 1.02).to(t.dtype)).status.is_finding


@pytest.mark.parametrize("text", [EXP.format("float16"), MATMUL.format("float16", "float16")])
def test_one_element_off_by_40_ulp_in_float16_is_found(text: str) -> None:
    found = verdict_on(text, nudged(40))
    assert found.status in (Status.DRIFT, Status.WRONG)
    assert found.measure is not None
    assert found.measure.mismatched == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_one_ulp_in_an_exponential_is_no_finding(dtype: str) -> None:
    assert verdict_on(EXP.format(dtype), nudged(1)).status is Status.AGREE


def in_other_order(inputs: Inputs) -> Tensor:
    """The matmul as a GPU sums it: in float32, in sixteen parts, from the end."""
    a, b = (o.view.to(torch.float32) for o in inputs.operands)
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in reversed(range(0, a.shape[1], 16)):
        total = total + (a[:, k : k + 16, None] * b[None, k : k + 16]).flip(1).sum(1)
    return total.to(inputs.operands[0].view.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_another_order_of_summation_is_no_finding(dtype: str) -> None:
    text = MATMUL.format(dtype, dtype)
    other = in_other_order(prepared(text)[2])
    assert verdict_on(text, lambda t: other).status is Status.AGREE


def test_of_equal_largest_numbers_any_may_be_named_and_no_smaller_one() -> None:
    """Results of a relation are judged by it, not by the reference's choice."""
    bench, results, inputs = prepared("argmax(float32[4].of(1.0, 2.0, 2.0, 0.0), 0)")
    bench = replace(bench, bound=Bound(bench.row, (inputs.operands[0].view, 0), {}))
    named = [{n: torch.full_like(t, k) for n, t in results.items()} for k in range(4)]
    statuses = [judge(bench, r, results, "forward")[0].status for r in named]
    assert [s is Status.AGREE for s in statuses] == [False, True, True, False]


def test_operands_cut_to_tf32_are_found() -> None:
    text = MATMUL.format("float32", "float32")
    a, b = ((o.view.view(torch.int32) & ~0x1FFF).view(torch.float32) for o in prepared(text)[2].operands)
    assert verdict_on(text, lambda t: a @ b).status in (Status.DRIFT, Status.WRONG)


def test_half_sums_accumulated_in_half_are_drift() -> None:
    text = "sum(float16[4, 256].positive(seed=3), (1,))"
    x = prepared(text)[2].operands[0].view

    def slowly(_: Tensor) -> Tensor:
        total = torch.zeros(4, dtype=torch.float16)
        for k in range(256):
            total = total + x[:, k]
        return total

    assert verdict_on(text, slowly).status in (Status.DRIFT, Status.WRONG)


def test_a_dropped_nan_is_wrong_and_says_what_stood_there() -> None:
    found = verdict_on('exp(float32[4].at(2, "nan"))', torch.nan_to_num)
    assert (found.status, found.reason) == (Status.WRONG, "0 where the truth is nan")


def test_an_invented_nan_is_wrong() -> None:
    def spoil(t: Tensor) -> Tensor:
        t[1] = math.nan
        return t

    assert verdict_on("exp(float32[4])", spoil).status is Status.WRONG


def test_infinity_at_the_edge_is_a_rounding_and_elsewhere_wrong() -> None:
    edge = "matmul(float16[1, 2].of(256.0, 255.875), float16[2, 1].of(128.0, 128.0))"  # 65520: rounds to Inf or 65504

    def overflown(t: Tensor) -> Tensor:
        return torch.full_like(t, math.inf)

    assert verdict_on(edge, overflown).status is Status.AGREE
    assert verdict_on(edge, lambda t: torch.full_like(t, 65504)).status is Status.AGREE
    assert verdict_on("matmul(float16[1, 2].of(2.0, 3.0), float16[2, 1].of(2.0, 3.0))", overflown).status is Status.WRONG


def test_an_error_that_no_rounding_explains_is_wrong() -> None:
    found = verdict_on("exp(float32[8])", lambda t: t + 1)
    assert found.status is Status.WRONG
    assert "more than a coarser rounding explains" in found.reason


def test_exact_results_must_be_equal() -> None:
    assert verdict_on("neg(int64[4])", lambda t: t).status is Status.AGREE
    found = verdict_on("neg(int64[4])", lambda t: t + 1)
    assert (found.status, found.reason) == (Status.WRONG, "4 of 4 exact results differ")
    assert verdict_on("relu(float32[4].normal())", lambda t: t * (1 + 2**-23)).status is Status.WRONG


def test_shape_and_dtype_are_malformed_before_values_are_looked_at() -> None:
    assert "out.shape=[4, 1], but should be [4]" in verdict_on("exp(float32[4])", lambda t: t[:, None]).reason
    found = verdict_on("exp(float32[4])", Tensor.double)
    assert (found.status, found.reason) == (Status.MALFORMED, "out.dtype=float64, but should be float32")


def test_a_missing_result_is_malformed() -> None:
    bench, results, _ = prepared("exp(float32[4])")
    found, _ = judge(bench, {}, results, "forward")
    assert (found.status, found.reason) == (Status.MALFORMED, "out is missing on the device")


def test_without_a_reference_the_truth_judges() -> None:
    bench, results, _ = prepared("exp(float32[4])")
    assert judge(bench, results, None, "forward")[0].status is Status.AGREE
    assert judge(bench, {"out": results["out"] * 2}, None, "forward")[0].status is Status.WRONG


def test_a_device_that_is_nearer_to_the_truth_than_the_reference_agrees_and_says_so() -> None:
    bench, results, _ = prepared("exp(float32[4])")
    found, _ = judge(bench, results, {"out": results["out"] * 1.001}, "forward")
    assert (found.status, found.reason) == (Status.AGREE, "the CPU is the worse side here")


def written(spoil: Callable[[Tensor], Tensor | None], layout: tuple[tuple[str | int, ...], ...] = (("flat", 1, 2),)) -> Verdict:
    bench, results, _ = prepared("exp(float32[4].uniform(seed=3))")
    before = torch.full((7,), 7.25)
    reference = before.clone()
    reference[1:5] = results["out"]
    device = reference.clone()
    spoil(device)
    part = Part(before, (("flat", 1, 2),), (4,))
    return judge(bench, {"base[out]": device}, {"base[out]": reference}, "forward", {"base[out]": part})[0]


def test_a_right_write_into_a_view_agrees() -> None:
    assert written(lambda base: None).status is Status.AGREE


def test_a_write_beside_its_destination_is_wrong() -> None:
    found = written(lambda base: base[5:6].fill_(0))
    assert (found.status, found.reason) == (Status.WRONG, "written outside its destination")
    assert found.measure is not None
    assert (found.measure.problem, found.measure.index) == ("beside", (5,))


def test_where_the_reference_writes_beside_a_device_may_do_so_too_but_nowhere_else() -> None:
    bench, results, _ = prepared("exp(float32[4].uniform(seed=3))")
    part = Part(torch.full((8,), 7.25), (("step", 0, 2, 0),), (4,))
    dense = part.before.clone()
    dense[:4] = results["out"]
    for other, status in ((dense + 0.0, Status.AGREE), (dense.index_fill(0, torch.tensor([7]), 1.0), Status.WRONG)):
        other[0] += 1e-6
        found = judge(bench, {"base[out]": other}, {"base[out]": dense}, "forward", {"base[out]": part})[0]
        assert found.status is status, found


def test_a_write_that_did_not_happen_is_wrong_and_says_so() -> None:
    found = written(lambda base: base.fill_(7.25))
    assert (found.status, found.reason) == (Status.WRONG, "nothing was written")


def test_dtypes_without_facts_are_compared_exactly() -> None:
    bench, _, _ = prepared("exp(float32[4])")
    for dtype in (torch.float8_e4m3fn, torch.complex32):
        one, two = torch.ones(3).to(dtype), torch.full((3,), 2.0).to(dtype)
        assert judge(bench, {"out": one}, {"out": one.clone()}, "forward")[0].status is Status.AGREE
        assert judge(bench, {"out": two}, {"out": one}, "forward")[0].status is Status.WRONG
        assert judge(bench, {"out": one}, None, "forward")[0].status is Status.VOID
    rounded = torch.full((3,), 1.0 + 2.0**-10).to(torch.complex32)
    assert judge(bench, {"out": rounded}, {"out": torch.ones(3).to(torch.complex32)}, "forward")[0].status is Status.AGREE


def test_sparse_results_say_nothing() -> None:
    bench, _, _ = prepared("exp(float32[4])")
    sparse = torch.eye(3).to_sparse()
    assert judge(bench, {"out": sparse}, {"out": sparse}, "forward")[0].status is Status.VOID


# ---------------------------------------------------------------------------------------------- screens and promises


SCREENED = (
    EXP.format("float32"),
    EXP.format("float16"),
    MATMUL.format("float32", "float32"),
    "softmax(float32[4, 32].uniform(seed=3), -1)",
    "mean(bfloat16[64].normal(seed=2))",
)


@pytest.mark.parametrize("text", SCREENED)
def test_no_screen_is_looser_than_the_full_rule(text: str) -> None:
    """At the border: of 300 results just inside and outside, whatever the screens let pass the full rule lets pass too."""
    bench, results, _ = prepared(text)
    quick = replace(bench, always_use_oracle=False, whole=False)
    name, reference = next(iter(results.items()))
    passed = refused = 0
    for k in range(1, 300):
        device = reference.clone()
        bits = device.view(-1).view(INT[str(device.dtype).removeprefix("torch.")])
        bits[k % device.numel()] += k // 3 * (50 if "matmul" in text else 1) + 1
        screened = judge(quick, {name: device}, results, "forward")
        whole = judge(bench, {name: device}, results, "forward")
        if screened[0].status is Status.AGREE:
            passed += screened[1][0].screen == "truth"
            assert whole[0].status is Status.AGREE
            assert (whole[1][0].share or 0) <= (screened[1][0].share or 0) + 1e-12
            assert screened[1][0].measured == (screened[1][0].screen == "")
        else:
            refused += 1
            assert whole[0].status is screened[0].status
    assert passed or "softmax" not in text
    assert refused


def test_a_zero_of_the_other_sign_is_told_where_it_is_promised() -> None:
    def flip(t: Tensor) -> Tensor:
        return torch.where(t == 0, -t, t)

    found = verdict_on('sin(float32[4].at(1, "0"))', flip)
    assert (found.status, found.reason) == (Status.WRONG, "a zero of the other sign: -0 where the truth is 0")
    assert verdict_on('relu(float32[4].at(1, "-0.0"))', flip).status is Status.AGREE
    assert verdict_on('sum(float32[1].at(0, "0"))', flip).status is Status.AGREE
    assert verdict_on('prod(float32[2].at(0, "0"))', flip).status is Status.WRONG
    assert verdict_on('normalize(float32[1, 4].at(0, "0"))', flip).status is Status.WRONG


def test_a_part_of_a_complex_number_that_is_moved_keeps_its_sign() -> None:
    def plain(t: Tensor) -> Tensor:
        return t + 0  # -0.0 + 0 is 0

    assert verdict_on('roll(complex64[4].at(1, "-0.0j"), 1)', plain).status is Status.WRONG
    assert verdict_on("roll(complex64[4], 1)", plain).status is Status.AGREE
    assert verdict_on('mul(complex64[4].at(1, "-0.0j"), complex64[4])', plain).status is Status.AGREE


@pytest.mark.parametrize("case, kernel, found", [
    ("flip(float32[8], (0,))", "flip", True),
    ("neg(float32[8])", "neg", True),
    ("tril(float32[3, 3])", "tril", True),
    ("expand(float32[8], (2, 8))", "sum", False),  # a sum of zeros may begin with one
])  # fmt: skip
def test_a_gradient_that_is_moved_keeps_the_signs_of_zeros(case: str, kernel: str, found: bool) -> None:
    def plain(call: Call) -> Tensor:
        moved: Tensor = call.run()
        return moved + 0

    lost = Fault("sign of zero lost", (kernel,), plain, lambda call: call.direction == "backward")
    text = f'{case}.cotangent("zero", "contiguous", 0)'
    assert ("backward" in faulty_aspects(resolve("sim", (lost,)), text)) is found
    assert not faulty_aspects(resolve("sim"), text)


def test_nan_may_spread_only_where_the_tables_say_so() -> None:
    def spread(t: Tensor) -> Tensor:
        return torch.full_like(t, math.nan)

    assert verdict_on('conv1d(float32[1, 1, 8], float32[1, 1, 2].at(0, "nan"), padding=1)', spread).status is Status.AGREE
    assert verdict_on("conv1d(float32[1, 1, 8], float32[1, 1, 2], padding=1)", spread).status is Status.WRONG
    assert verdict_on('mul(float32[8].at(0, "nan"), float32[8])', spread).status is Status.WRONG


def test_squares_that_leave_the_range_excuse_what_depends_on_them_alone() -> None:
    """The first row holds the largest number, whose square is Inf; the second one owes all that it ever did."""
    text = 'layer_norm(float32[2, 4].at(0, "max"), (4,))'
    told = verdict_on(text, lambda t: torch.cat((torch.zeros_like(t[:1]), t[1:])))
    assert told.status is Status.AGREE
    assert told.reason == "4 of 8 elements judged: numbers on the way leave the range"
    assert told.measure is not None
    assert told.measure.unjudged == 4
    assert verdict_on(text, torch.zeros_like).status is Status.WRONG
    assert verdict_on('layer_norm(float32[1, 4].at(0, "max"), (4,))', torch.zeros_like).status is Status.VOID


def test_the_border_to_wrong_is_what_no_order_of_adding_explains() -> None:
    text = MATMUL.format("float32", "float32")
    bench, results, _ = prepared(text)
    name = next(iter(results))
    truth = bench.oracle.truth(name)
    found = bench.oracle.magnitudes(name)
    assert truth is not None
    assert found is not None
    u, s = 2.0**-24, found[0]
    between = (truth + 100 * u * s).float()
    beyond = truth.float()
    beyond[0, 0] += float(300 * u * s[0, 0])
    assert verdict_on(text, lambda t: between).status is Status.DRIFT
    assert verdict_on(text, lambda t: beyond).status is Status.WRONG


def test_a_product_that_is_rounded_before_its_bias_may_be_off_by_that_rounding() -> None:
    """Negative results too: what is handed on is a magnitude."""
    text = "addmm(float16[4, 4].normal(seed=1), float16[4, 64].normal(seed=2), float16[64, 4].normal(seed=3))"
    c, a, b = (o.view for o in prepared(text)[2].operands)
    rounded = ((a.float() @ b.float()).half() + c).half()
    assert verdict_on(text, lambda t: rounded).status is Status.AGREE
    assert verdict_on(text, lambda t: ((a.float() @ b.float() * 1.01).half() + c).half()).status is not Status.AGREE


def test_one_element_of_a_product_that_errs_alone_is_found_within_the_bound_of_its_sum() -> None:
    """A dozen roundings of a sum of 16 positive terms are within 4 sqrt(16) of them; no other element errs by a fifth of it."""
    text = "matmul(float32[24, 16].positive(seed=1), float32[16, 20].positive(seed=2))"
    assert verdict_on(text, lambda t: t).status is Status.AGREE
    found = verdict_on(text, nudged(12, 37))
    assert found.status is Status.DRIFT
    assert found.measure is not None
    assert found.measure.problem == "alone"
    assert found.measure.index == (1, 17)


def test_a_result_without_error_needs_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, results, _ = prepared("clamp(float32[8].uniform(seed=1), -0.5, 0.5)")
    bench = replace(bench, row=replace(bench.row, rule=OpClass.COMPOSITE))
    exact = results["out"]

    def never(*_: object) -> Tensor:
        raise AssertionError("the sensitivity is not needed")

    with monkeypatch.context() as m:
        m.setattr(CaseOracle, "sensitivity", never)
        told, measures = judge(bench, {"out": exact.clone()}, results, "forward")
        assert told.status is Status.AGREE
        assert (measures[0].share, measures[0].reference_share, measures[0].measured) == (0.0, 0.0, True)
        with pytest.raises(AssertionError, match="not needed"):
            judge(bench, {"out": exact.clone()}, {"out": exact * 1.0000001}, "forward")  # the reference's share is asked for
        with pytest.raises(AssertionError, match="not needed"):
            judge(bench, {"out": exact * 1.0000001}, results, "forward")


def test_a_destination_with_the_bits_of_the_forward_is_told_what_that_was_under_its_own_name() -> None:
    bench, results, _ = prepared("exp(float32[64].uniform(seed=11))")
    off = {n: nudged(1)(t.clone()) for n, t in results.items()}
    _, (first,) = judge(bench, off, results, "forward")
    part = Part(torch.zeros(64), (), (64,))
    asked: list[str] = []
    counting = replace(bench, oracle=_counting(bench.oracle, asked))
    counting.verdicts.update(bench.verdicts)
    _, (again,) = judge(counting, {"base[out]": off["out"]}, {"base[out]": results["out"]}, "forward", {"base[out]": part})
    assert again == replace(first, tensor="base[out]")
    assert not asked
    other = {"base[out]": nudged(40)(results["out"].clone())}
    said, _ = judge(counting, other, {"base[out]": results["out"]}, "forward", {"base[out]": part})
    assert said.status.is_finding
    assert asked


def _counting(oracle: Oracle, asked: list[str]) -> Oracle:
    """The oracle, noting which truths it is asked for."""
    plain = oracle.truth

    def truth(name: str) -> Tensor | None:
        asked.append(name)
        return plain(name)

    oracle.truth = truth  # type: ignore[method-assign]
    return oracle


def test_a_reference_that_is_just_within_its_budget_stays_the_baseline() -> None:
    """No kernel is asked for that rounds once."""
    t = SimpleNamespace(device=torch.ones(1), reference=torch.zeros(1))
    assessed = SimpleNamespace(t=t, scale=SimpleNamespace(one_kernel=True), measure=SimpleNamespace(reference_share=1.0))
    assert numeric._by_better_baseline(assessed) is assessed  # type: ignore[arg-type, comparison-overlap]


def test_a_reference_that_its_own_relation_contradicts_accuses_nobody() -> None:
    """Equal to it the device agrees, else nothing is known; a right reference accuses a device that does as it did."""
    bench, results, inputs = prepared("argmax(float32[4].of(1.0, 2.0, 2.0, 0.0), 0)")
    bench = replace(bench, bound=Bound(bench.row, (inputs.operands[0].view, 0), {}))
    wrong, wrong_too, right = ({n: torch.full_like(t, k) for n, t in results.items()} for k in (3, 3, 2))
    same, _ = judge(bench, wrong_too, wrong, "forward")
    assert (same.status, same.reason) == (Status.AGREE, "equals the reference, which is wrong itself")
    void, _ = judge(bench, right, wrong, "forward")
    assert (void.status, "the reference is wrong itself" in void.reason) == (Status.VOID, True)
    assert judge(bench, wrong, right, "forward")[0].status is Status.WRONG


def test_what_takes_too_many_operators_to_judge_is_said_not_to_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a mode torch differentiates running products by a loop over their factors, as its formula for prod did before 2.13
    where it was differentiated again: for 4,100 factors a comparison took minutes."""
    case = 'cumprod(float32[2, 7].between(-2, 2, seed=132), 1).cotangent("ones", "contiguous", 0)'
    device = resolve("sim", (Fault("off", ("cumsum",), lambda call: 1.5 * call.run(), level="kernel"),))
    settings = replace(DEFAULT, more=SELDOM)
    monkeypatch.setattr(oracle, "OPERATORS", 100)
    verdict = checked(device, case, settings)["double backward"].verdict
    assert (verdict.status, verdict.reason) == (Status.VOID, TOO_LONG)
    monkeypatch.undo()
    assert checked(device, case, settings)["double backward"].verdict.status.is_finding
