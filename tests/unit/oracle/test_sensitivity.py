"""What rounding on the way does to results, where perturbed operands alone do not show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import bench_for, oracle_for, prepared
from torch import Tensor

from parity import catalog, tolerance
from parity.core.dtypes import FACTS
from parity.core.notation import parse
from parity.core.results import Status
from parity.execution.inputs import build
from parity.judging.budget import Budget
from parity.judging.excuses import excuses
from parity.judging.judge import judge
from parity.judging.measures import measure
from parity.judging.promises import terms_of_gauss
from parity.judging.relations import RELATIONS, Bound, Problem, Unjudged
from parity.judging.relations.bound import unsound
from parity.judging.rules import rule_of
from parity.oracle.decompositions import windows
from parity.oracle.kernels import kernel_of
from parity.oracle.oracle import CaseOracle
from parity.oracle.rounding import Rounding
from parity.oracle.roundoffs import is_whole, keep_whole, perturbed, rounded, rounded_and_largest, rounded_at_least
from parity.oracle.sensitivity import PERTURBATIONS, Sensitivity, among_neighbours

U, HALF = 2.0**-24, 2.0**-11


def test_composed_ops_round_inside_in_inference_mode_too() -> None:
    """ndtr is (1 + erf(x / sqrt 2)) / 2 on every device: far to the left it cancels."""
    for mode in ("", '.under("inference")'):
        made = oracle_for(f"special.ndtr(float32[1].of(-4.0)){mode}")
        assert made.truth("out") is not None
        assert 2.0**-28 < float(made.sensitivity("out", U, U)) < 2.0**-22, mode


def test_a_result_that_is_nan_only_without_rounding_is_nobodys_promise() -> None:
    """The covariance of equal numbers is 0 and their correlation 0 / 0, unless the mean is rounded."""
    made = oracle_for("corrcoef(float32[5].of(0.3, 0.3, 0.3, 0.3, 0.3))")
    truth = made.truth("out")
    assert truth is not None
    assert bool(torch.isnan(truth))
    assert made.unsettled("out", U, U) is not None
    bench = bench_for("corrcoef", made)
    found = excuses(bench, Budget(np.ones(()), ()), truth, "out", FACTS["float32"], "forward")
    assert found.ignore.all()
    assert found.shown.all()
    assert "rounding" in found.why


HINGE = (
    "margin_ranking_loss(float32[2].of(1.5, 3), float32[2].of(1, 1), float32[2].of(1, 1).frozen(), margin=0.5, reduction='sum')"
)


@pytest.mark.parametrize(("cotangent", "doubtful"), [(math.inf, [True, False]), (1.0, None)])
def test_rounding_decides_whether_a_hinge_passes_an_infinite_cotangent(cotangent: float, doubtful: list[bool] | None) -> None:
    """The first element is at its hinge. The second one is not, so that an Inf there is found."""
    made = oracle_for(HINGE, cotangents=[torch.tensor(cotangent)])
    assert made.truth("grad[0]") is not None
    found = made.unsettled("grad[0]", U, U)
    assert (None if found is None else found.tolist()) == doubtful


@pytest.mark.parametrize(
    "text", ["asin(float32[1].of(1.0))", "log(float32[1].of(0.0))", "div(float32[1].of(0.0), float32[1].of(0.0))"]
)
def test_what_the_operands_decide_is_settled(text: str) -> None:
    """At the end of a domain the operands are what they are: a NaN of the device's own is found."""
    made = oracle_for(text)
    assert made.truth("out") is not None
    assert made.unsettled("out", U, U) is None


def test_two_roundings_do_not_undo_each_other() -> None:
    """Signs alone would cancel in a quarter of all pairs, and a budget made of such a pair would be none."""
    x = torch.linspace(0.1, 7.0, 4096, dtype=torch.float64)
    off = torch.stack([(rounded(rounded(x, U, k), U, k + 2) / x - 1).abs() / U for k in range(5)]).max(0).values
    assert float((off < 0.2).double().mean()) < 0.005
    assert float(off.max()) <= 2.0 + 1e-6


def test_numbers_below_the_normal_ones_move_by_what_is_lost_there() -> None:
    """A half type's 1e-8 is 0 on a device, 6e-8 is its smallest number, and 1 is far from both."""
    least = FACTS["float16"].smallest / 16
    x = torch.tensor([1e-8, 6e-8, 1.0, 0.0], dtype=torch.float64)
    off = (rounded_at_least(x, HALF / 8, 0, least) - x).abs()
    assert off[:2].tolist() == pytest.approx([least, least])
    assert float(off[2]) == pytest.approx(HALF / 8)
    assert float(off[3]) == 0.0
    assert float(rounded_at_least(torch.tensor([1e-12], dtype=torch.float64), HALF / 8, 0, least)) != 0.0


def test_what_a_half_type_saves_may_be_lost() -> None:
    """The gradient of prod divides the saved product, which a half type rounds to 0."""
    made = oracle_for("prod_dim(float16[3].of(5.9604645e-08, 0.0183, 0.686), 0)", cotangents=[torch.ones(())])
    truth = made.truth("grad[0]")
    assert truth is not None
    assert float(made.sensitivity("grad[0]", U, HALF / 8)[0]) > float(truth[0]) / 16


def test_counts_are_exact() -> None:
    """The second derivative of scatter_reduce's products counts zeros and asks for one."""
    index, source = torch.tensor([0, 1, 1]), torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64)
    with Rounding(U, 0):
        counted = torch.zeros(2, dtype=torch.float64).scatter_add(0, index, (source == 0).double())
        moved = torch.zeros(2, dtype=torch.float64).scatter_add(0, index, source / 3)
    assert counted.tolist() == [1.0, 0.0]
    assert float(moved[1]) != 1.0


def test_a_complex_sum_is_no_count() -> None:
    x = torch.full((4096,), 1 / 3, dtype=torch.complex128)
    twos = torch.full_like(x, 2.0)
    with Rounding(U, 0):
        moved, whole = x.sum(), twos.sum()
    assert complex(moved) != complex(x.sum())
    assert complex(whole) == 8192


@pytest.mark.parametrize(
    "add",
    [
        lambda x, i, s: x.put(i, s, accumulate=True),
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        lambda x, i, s: x.index_add(0, i, s),
        lambda x, i, s: x.scatter_add(0, i, s),
    ],
)
def test_numbers_added_at_one_place_lose_what_a_sum_of_them_loses(add: Callable[..., Tensor]) -> None:
    """Not only one rounding of the result, which may be small."""
    source = torch.tensor([1 / 3, -1 / 3] * 2048, dtype=torch.float64)
    with Rounding(U, 0):
        moved = add(torch.zeros(1, dtype=torch.float64), torch.zeros(4096, dtype=torch.int64), source)
    assert float(moved.abs()) > U


@pytest.mark.parametrize("shape", [(6,), (300, 200)])
@pytest.mark.parametrize("turned", [False, True])
def test_what_a_formula_adds_as_whole_numbers_stays_exact(shape: tuple[int, ...], turned: bool) -> None:
    """Also in a large result, which is walked in blocks, and strided; numbers past those that every dtype holds move."""
    x = torch.arange(math.prod(shape), dtype=torch.float64)
    x[1::2] += 0.3
    x[-2] = 2.0**30
    x = x.view(shape).t() if turned else x.view(shape)
    moved, kept = rounded(x, U, 0), (x == x.trunc()) & (x < 2.0**24)
    keep_whole(x, moved, 2.0**24)
    assert torch.equal(moved == x, kept)
    assert is_whole(x[kept], 2.0**24)
    assert not is_whole(x, 2.0**24)
    assert not is_whole(torch.cat((x[kept], x.max().view(1))), 2.0**24)


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("n", [3, 100_000])
def test_the_largest_and_the_least_number_of_a_result_are_met_wherever_they_lie(n: int, place: int) -> None:
    x = torch.ones(n, dtype=torch.float64)
    x[place], x[1] = -7.0, math.inf
    assert rounded_and_largest(x, U, 0, 1e-9)[1] == 7.0
    x[place] = 1e-8
    moved, largest = rounded_and_largest(x, U, 0, 1e-9)
    assert largest == 1.0
    assert float((moved - x)[place].abs()) == pytest.approx(1e-9)


@pytest.mark.parametrize("more", ({}, {"is_causal": True}, {"enable_gqa": True}))
def test_attention_is_taken_apart(more: dict[str, bool]) -> None:
    """By formulas that give what the kernel gives, forward and backward."""
    draw = torch.Generator().manual_seed(0)
    heads = 2 if "enable_gqa" in more else 4
    shapes = (2, 4, 5, 8), (2, heads, 6, 8), (2, heads, 6, 8)
    leaves = [torch.randn(s, generator=draw, dtype=torch.float64).requires_grad_() for s in shapes]

    def run() -> tuple[Tensor, ...]:
        attend = F.scaled_dot_product_attention
        y = attend(*leaves, **more)  # type: ignore[arg-type]  # options by name
        return y, *torch.autograd.grad(y.sin().sum(), leaves)

    plain = run()
    with Rounding(2.0**-53, 0):
        apart = run()
    for a, b in zip(plain, apart):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-13)


def test_gradients_of_attention_cancel_where_one_key_takes_all() -> None:
    """P (dP - sum P dP) is 0 there, and the rounding of dP on a device."""
    q, k, v = "1, 1, 1, 2].of(1e4, 1e4)", "1, 1, 2, 2].of(1.0, 1.0, -1.0, -1.0)", "1, 1, 2, 2].of(0.3, 0.7, 0.1, 0.9)"
    text = f"scaled_dot_product_attention(float32[{q}, float32[{k}, float32[{v})"
    made = oracle_for(text, cotangents=[torch.full((1, 1, 1, 2), 3.0)])
    truth = made.truth("grad[0]")
    assert truth is not None
    assert float(truth.abs().max()) < 1e-9
    assert float(made.sensitivity("grad[0]", U, U).max()) > U


def test_complex_convolutions_are_three_real_ones() -> None:
    """Gauss's trick triples the terms; products of matrices do without."""
    complex64, float32 = FACTS["complex64"], FACTS["float32"]
    assert terms_of_gauss(catalog.row("conv2d"), complex64) == terms_of_gauss(catalog.row("conv_transpose1d"), complex64) == 3.0
    assert terms_of_gauss(catalog.row("conv2d"), float32) == terms_of_gauss(catalog.row("mm"), complex64) == 1.0
    bench, _, inputs = prepared("conv1d(complex64[4, 2, 40].normal(seed=1), complex64[3, 2, 3].normal(seed=2))")
    x, w = (o.view for o in inputs.operands)
    a, b, c, d = x.real, x.imag, w.real, w.imag
    one, two, three = F.conv1d(a, c), F.conv1d(b, d), F.conv1d(a + b, c + d)
    gauss = torch.complex(one - two, three - one - two)
    assert judge(bench, {"out": gauss}, {"out": F.conv1d(x, w)}, "forward")[0].status is Status.AGREE
    coarse = F.conv1d(x.to(torch.complex64), w * (1 + 2.0**-12))
    assert judge(bench, {"out": coarse}, {"out": F.conv1d(x, w)}, "forward")[0].status.is_finding


def test_complex_arithmetic_at_inf_is_nobodys_promise() -> None:
    """C99's annex G makes an Inf of what comes as NaN otherwise; a composite goes on with either."""
    facts = FACTS["complex64"]
    for values, freed in (("1.0, 2.0", False), ("inf, 2.0", True)):
        made = oracle_for(f"logsumexp(complex64[2].of({values}), (0,))", cotangents=[torch.ones((), dtype=torch.complex64)])
        truth = made.truth("grad[0]")
        assert truth is not None
        bench = bench_for("logsumexp", made)
        found = excuses(bench, Budget(np.ones((2, 2)), ()), truth, "grad[0]", facts, "backward")
        assert bool(found.ignore_nonfinite.all()) is freed


def test_solvers_owe_nothing_where_flushing_is_more_than_rounding() -> None:
    """A right-hand side of 1e-37 leaves a residual of its own size on a device that flushes what is smaller; 1e-20 does not."""
    row, a = catalog.row("solve"), torch.eye(3)
    for size, tables, told in ((1e-37, "mps", True), (1e-37, "cpu", False), (1e-20, "mps", False), (0.0, "mps", False)):
        b = torch.full((3, 1), size)
        call = Bound(row, (a, b), {}, rule_of(row).vanishing(row, tolerance.load(tables), (a, b)))
        assert bool(unsound(call, a, b).all()) is told, (size, tables)
    mm = catalog.row("mm")
    assert not rule_of(mm).vanishing(mm, tolerance.load("mps"), (a, a))


def test_one_unsound_matrix_says_nothing_of_the_others_in_its_batch() -> None:
    a, x = torch.eye(3).repeat(2, 1, 1) * 2, torch.ones(2, 3, 1)
    b = a @ x
    b[0, 0, 0] = torch.nan
    off = x.clone()
    off[1, 0, 0] = 1.5
    for result, wrong in ((x, 0), (off, 1)):
        said = RELATIONS["solve"].problems(Bound(catalog.row("solve"), (a, b), {}), {"out": result})
        assert [p.where.tolist() for p in said if isinstance(p, Unjudged)] == [[True, False]]
        assert sum(isinstance(p, Problem) for p in said) == wrong


def test_half_second_derivatives_may_leave_the_range_on_the_way() -> None:
    """asinh's gradient squares its operand: beyond 256 that is Inf in float16, and float32 holds it."""
    for name, freed in (("float16", True), ("float32", False)):
        text = f"asinh({name}[1].of(3000.0))"
        oracle = oracle_for(text, cotangents=[torch.ones(1)])
        truth = oracle.truth("grad[0]")
        assert truth is not None
        with mock.patch.object(CaseOracle, "fed", 1):
            bench = bench_for("asinh", oracle)
            found = excuses(bench, Budget(np.full(1, 1e-6), ()), truth, "grad[0]", FACTS[name], "backward")
        assert bool(found.ignore.all() or (found.moved is not None and found.moved.all())) is freed


def test_integers_in_a_floating_destination_are_held_to_the_reference() -> None:
    """A sum converts them first, and does not wrap as the sum in integers does."""
    text = 'sum_dim(int64[2].of(9223372036854775807, 9223372036854775807), (0,)).into("float32")'
    case = parse(text)
    inputs = build(case)
    bench = bench_for("sum_dim", oracle_for(text))
    x = inputs.operands[0].view
    here = torch.sum(x, (0,), out=torch.empty(()))
    assert float(here) > 1e19
    assert judge(bench, {"out": here.clone()}, {"out": here}, "forward")[0].status is Status.AGREE
    assert judge(bench, {"out": here * 1.01}, {"out": here}, "forward")[0].status.is_finding


def test_a_sensitivity_that_decides_has_more_samples() -> None:
    """Two numbers that move against each other in every one of a few samples move together in one of many."""
    made = oracle_for("softmax(float32[2].of(0.3, 0.1), dim=0)", cotangents=[torch.ones(2)])
    assert made.truth("grad[0]") is not None
    few = made.sensitivity("grad[0]", U, U).clone()
    assert made.take_more_samples(PERTURBATIONS)
    assert not made.take_more_samples(PERTURBATIONS)
    some = made.sensitivity("grad[0]", U, U).clone()
    while made.take_more_samples():
        pass
    many = made.sensitivity("grad[0]", U, U)
    assert bool((some >= 0.9 * few).all())
    assert bool((many >= 0.9 * some).all())
    assert float(many.max()) > 0.4 * U * 0.55


@pytest.mark.parametrize("samples", [1, 2, 4])
def test_neighbours_show_a_variance_in_few_samples_and_few_large_ones_do_not_count(samples: int) -> None:
    """Of rows of their own: 3 and 5 standard deviations, and in each a third a thousand times as large."""
    torch.manual_seed(0)
    moved = torch.randn(samples, 2, 30_000, dtype=torch.float64) * torch.tensor([[3.0], [5.0]], dtype=torch.float64)
    usual = among_neighbours(moved.square().mean(0), samples)
    assert torch.allclose(usual.sqrt(), torch.tensor([[3.0], [5.0]], dtype=torch.float64), rtol=0.03)
    moved[..., ::3] *= 1e3
    assert float(among_neighbours(moved.square().mean(0), samples).max()) < 25.0 * 10.0


def test_what_agrees_with_a_reference_far_from_the_truth_shares_its_formula() -> None:
    """Gradients are torch's formulas on every device: both sides far off alike is no bug of the device; apart, it is."""
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    b = Budget(np.full(2, 1e-6), ())
    theirs = torch.tensor([1.0, 3.0])
    alike, own = torch.tensor([1.0, 3.0000002]), torch.tensor([1.0, 2.0000002])
    assert (measure("grad[0]", alike, theirs, truth, b).share or 0.0) <= 1.0
    assert (measure("grad[0]", own, theirs, truth, b).share or 0.0) <= 1.0
    assert (measure("grad[0]", torch.tensor([1.0, 3.1]), theirs, truth, b).share or 0.0) > 8.0
    near = torch.tensor([1.0, 2.000002])  # a reference that is a little off excuses nobody
    assert (measure("grad[0]", torch.tensor([1.0, 2.0000025]), near, truth, b).share or 0.0) > 1.0


def test_factors_first_asked_for_under_a_mode_that_rounds_are_not_rounded() -> None:
    u = 2.0**-20 * 1.25  # nobody else asks for it
    ones = torch.ones(4, dtype=torch.float64)
    with Rounding(0.25, 0):
        perturbed(ones, u, 0)
    assert torch.equal((perturbed(ones, u, 0) - 1.0).abs(), u * ones)


def test_more_samples_continue_those_already_taken() -> None:
    """What 2 samples and then 4 give is what 4 give at once, for 3 + 3 runs instead of 3 + 5."""
    text = "softmax(float32[8,8].uniform(), -1)"
    one, other = oracle_for(text), oracle_for(text)
    assert one.truth("out") is not None
    assert other.truth("out") is not None
    with mock.patch.object(Sensitivity, "_sample", autospec=True, side_effect=Sensitivity._sample) as runs:
        one.sensitivity("out", U, U)
        assert runs.call_count == 3
        one.take_more_samples(PERTURBATIONS)
        at_last = one.sensitivity("out", U, U)
        assert runs.call_count == 3 + 3
    other.take_more_samples(PERTURBATIONS)
    assert torch.equal(at_last, other.sensitivity("out", U, U))


@pytest.mark.parametrize("key", range(5))
@pytest.mark.parametrize("numbers", ("integers", "powers", "normal", "float32"))
def test_directions_of_roundings_are_independent_of_the_numbers(key: int, numbers: str) -> None:
    """The sum of the directions of 4,096 different numbers, and of neighbours' products, is that of as many coins."""
    made = torch.arange(1.0, 4097.0, dtype=torch.float64)
    t = {
        "integers": made,
        "powers": 2.0 ** (made[:4096] / 4.0 - 512.0),
        "normal": torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
        "float32": torch.rand(4096, generator=torch.Generator().manual_seed(2)).to(torch.float64),
    }[numbers]
    off = (rounded(t, U, key) - t) / (U * t)
    assert bool(((off.abs() > 0.49) & (off.abs() < 1.01)).all())
    signs = off.sign()
    for lag in (1, 2, 3, 16, 64):
        assert abs(float((signs[lag:] * signs[:-lag]).sum())) < 4.5 * 64
    assert abs(float(signs.sum())) < 4.5 * 64
    twice = rounded(torch.cat((t, t)), U, key)
    alike = int((twice[:4096] == twice[4096:]).sum())
    assert alike == 4096 if key % 2 == 0 else alike < 600  # as place counts, one in eight is alike in size, half in direction


@pytest.mark.parametrize("key", [0, 1])
def test_only_in_odd_samples_a_step_inside_a_fused_kernel_moves_otherwise_than_the_kernel_outside(key: int) -> None:
    """If the tanh inside gelu's gradient always moved like the tanh of the second derivative, the two would cancel for some
    elements, and a device with a tanh of its own inside the kernel would look wrong there."""
    inside: list[Tensor] = []

    def formula(x: Tensor) -> Tensor:
        inside.append(torch.tanh(x))
        return x

    x = torch.linspace(-3.0, 3.0, 4000, dtype=torch.float64)
    kernel = kernel_of(torch.ops.aten.sinh.default)._replace(formula=formula)
    fused = {torch.ops.aten.sinh.default: kernel}
    with mock.patch("parity.oracle.rounding.kernel_of", lambda f: fused.get(f) or kernel_of(f)), Rounding(2.0**-24, key):
        outside = torch.tanh(x)
        torch.sinh(x)
    assert not torch.equal(outside, torch.tanh(x))
    assert torch.equal(inside[0], outside) == (key == 0)


@pytest.mark.parametrize("name", ["hann", "hamming", "bartlett"])
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 64, 65])
def test_windows_are_taken_apart_because_they_cancel_near_their_ends(name: str, periodic: bool, n: int) -> None:
    function = getattr(torch, f"{name}_window")
    plain = function(n, periodic, dtype=torch.float64)
    formula = windows()[getattr(torch.ops.aten, f"{name}_window").periodic]
    torch.testing.assert_close(formula(n, periodic, dtype=torch.float64), plain, rtol=1e-14, atol=1e-15)
    made = [rounded_window(function, n, periodic, key) for key in range(4)]
    if n > 3:  # the cosine next to the end is near 1, and so is the triangle's slope from the other one
        moved = torch.stack([(t - plain).abs() for t in made]).amax(0)
        assert float(moved[-1 if periodic else -2]) > 2.0**-27


def rounded_window(function: Callable[..., Tensor], n: int, periodic: bool, key: int) -> Tensor:
    with Rounding(U, key) as mode:
        window: Tensor = function(n, periodic, dtype=torch.float64)
    unrounded: Tensor = mode.unrounded(window)
    return unrounded


def test_results_of_half_types_are_their_numbers_and_near_ones_become_equal() -> None:
    facts = FACTS["bfloat16"]
    x = (torch.linspace(0.0, 1e-4, 8) + 0.1).to(torch.float64)

    def sigmoids(to_numbers: bool) -> Tensor:
        with Rounding(U, 2, U, steps=lambda name: (2.0 * facts.unit_roundoff, 0.0, facts, True), to_numbers=to_numbers):
            return torch.sigmoid(x)

    moved = sigmoids(True)
    assert torch.equal(moved, moved.bfloat16().double())
    assert len({*moved.tolist()}) == 1
    assert 0.0 < float((moved - torch.sigmoid(x)).abs().max()) <= 3.0 * 2.0**-8  # three units in the last place
    assert len({*sigmoids(False).tolist()}) == 8
