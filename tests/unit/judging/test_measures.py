"""How far two tensors are apart, in bits and in units of a budget."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.core.dtypes import FACTS
from parity.core.results import Measure, Tolerance
from parity.judging.budget import of_function, of_perturbation, of_sum, ulp_of
from parity.judging.measures import allowed_ratio, error_ratio_of, exact_measure, measure
from parity.judging.sameness import bit_equal, is_truth, same_bytes, same_values

TABLE = Tolerance("elementwise", 0.0, 1.0, 2.0, "a table")
SCALED = Tolerance("composite", 16.0, 1.0, None, "a rule")
NAN, INF = math.nan, math.inf


def measured(
    device: list[float], reference: list[float] | None, truth: list[float], tol: Tolerance = SCALED, dtype: str = "float32"
) -> Measure:
    kind = getattr(torch, dtype)
    t = torch.tensor(truth, dtype=torch.float64)
    u = FACTS[dtype].unit_roundoff
    r = None if reference is None else torch.tensor(reference, dtype=kind)
    f = FACTS[dtype]
    size = np.nan_to_num(np.abs(np.array(truth)), posinf=0.0)
    made = (
        of_function(size, f, tol, f.smallest) if tol.ulp is not None else of_perturbation(size, 0 * size, f, u, tol, f.smallest)
    )
    return measure("out", torch.tensor(device, dtype=kind), r, t, made)


def test_the_largest_number_is_excused_nowhere_where_infinity_is() -> None:
    """It is finite, and wrong."""
    truth, f = torch.tensor([1.0], dtype=torch.float64), FACTS["float32"]
    b = of_function(np.array([1.0]), f, TABLE, f.smallest)
    for device, mismatched in ((INF, 0), (f.max, 1)):
        m = measure("out", torch.tensor([device]), None, truth, b, ignore_nonfinite=np.array([True]))
        assert m.mismatched == mismatched


@pytest.mark.parametrize(("bound", "certain"), [(0.5, False), (0.25, True)])
def test_an_error_of_the_bound_itself_is_no_certain_one(bound: float, certain: bool) -> None:
    f = FACTS["float32"]
    b = replace(of_function(np.array([1.0]), f, TABLE, f.smallest), certain=np.array([bound]))
    m = measure("out", torch.tensor([1.5]), None, torch.tensor([1.0], dtype=torch.float64), b)
    assert (m.certain, m.mismatched) == (certain, 1)


def test_bits_tell_zeros_and_nans_apart_and_values_do_not() -> None:
    a, b = torch.tensor([0.0, NAN, 1.0]), torch.tensor([-0.0, -NAN, 1.0])
    assert not bit_equal(a, b)
    assert same_values(a, b)
    assert not same_values(a, torch.tensor([0.0, 0.0, 1.0]))
    assert not same_values(a, a[:2])
    assert not same_values(a, a.double())


def test_lazy_bits_are_resolved_before_bits_are_compared() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    assert bit_equal(z.conj(), torch.tensor([1 - 2j, 3 + 4j], dtype=torch.complex64))
    assert bit_equal(torch._neg_view(torch.tensor([1.0, -2.0])), torch.tensor([-1.0, 2.0]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_unit_in_the_last_place_is_the_distance_of_representable_numbers(dtype: str) -> None:
    f = FACTS[dtype]
    assert ulp_of(np.array([1.0]), f)[0] == 2 * f.unit_roundoff
    assert ulp_of(np.array([0.0]), f)[0] == f.smallest


def test_a_table_allows_its_ulp_and_half_a_rounding() -> None:
    def off_by(ulps: int) -> float:
        return 1.0 + ulps * 2.0**-23

    assert (measured([off_by(2)], None, [1.0], TABLE).share or 0) <= 1
    assert (measured([off_by(3)], None, [1.0], TABLE).share or 0) > 1


def test_a_lost_nan_is_a_difference_of_class() -> None:
    m = measured([1.0, 0.0], [1.0, NAN], [1.0, NAN])
    assert (m.problem, m.index, m.device, m.truth) == ("class", (1,), "0", "nan")
    assert m.share == INF


def test_a_class_that_the_reference_shares_is_excused() -> None:
    assert measured([NAN], [NAN], [1.0]).share == 0
    assert measured([INF], [INF], [1.0]).share == 0
    assert measured([INF], [-INF], [1.0]).problem == "class"


@pytest.mark.parametrize(("device", "reference"), [(INF, NAN), (NAN, -INF)])
def test_nan_and_inf_are_one_loss_of_a_number_and_none_where_the_reference_has_it(device: float, reference: float) -> None:
    assert measured([device], [reference], [1.0], dtype="float16").share == 0
    assert measured([device], [1.0], [1.0], dtype="float16").problem == "class"
    assert measured([2.0], [reference], [1.0], dtype="float16").share != 0
    assert measured([NAN], [INF], [1e5], dtype="float16").problem == "class", "Inf is right there"


def test_infinity_beside_the_edge_of_the_range_is_a_rounding() -> None:
    edge = FACTS["float16"].max
    assert (measured([INF], [edge], [edge * (1 + 2.0**-12)], dtype="float16").share or 0) <= 1
    assert (measured([edge], None, [edge * 1.001], dtype="float16").share or 0) <= 1
    assert measured([INF], [1.0], [1.0], dtype="float16").problem == "class"
    assert measured([-INF], [edge], [edge], dtype="float16").problem == "class"


def test_an_infinity_of_the_truth_needs_one_of_the_device() -> None:
    assert measured([INF, -INF], None, [INF, -INF]).share == 0
    assert measured([1.0], None, [INF]).problem == "class"


def test_subnormals_may_be_flushed_only_where_the_device_does() -> None:
    t, d, f = torch.tensor([1e-39], dtype=torch.float64), torch.zeros(1), FACTS["float32"]
    kept, flushed = (of_function(np.array([1e-39]), f, TABLE, floor) for floor in (f.smallest, f.tiny))
    assert (measure("out", d, None, t, kept).share or 0) > 1
    assert (measure("out", d, None, t, flushed).share or 0) <= 1


def test_an_element_may_follow_the_truth_of_flushed_operands() -> None:
    """log of a subnormal is -inf on a device that flushes it; both answers are right there, 0 is not."""
    t, flushed = torch.tensor([-92.1], dtype=torch.float64), torch.tensor([-INF], dtype=torch.float64)
    b = of_function(np.array([92.1]), FACTS["float32"], TABLE, 0.0)
    assert measure("out", torch.tensor([-INF]), None, t, b, others=[flushed]).share == 0
    assert (measure("out", torch.tensor([-INF]), None, t, b).share or 0) > 1
    assert (measure("out", torch.tensor([0.0]), None, t, b, others=[flushed]).share or 0) > 1


def test_a_complex_part_is_measured_against_the_modulus() -> None:
    truth = torch.tensor([1e4 + 1e-4j], dtype=torch.complex128)
    near, far = (torch.tensor([1e4 + im], dtype=torch.complex64) for im in (2e-4j, 1j))
    size = np.full((1, 2), 1e4)
    b = of_perturbation(size, 0 * size, FACTS["complex64"], 2.0**-24, SCALED, 0.0)
    assert (measure("out", near, None, truth, b).share or 0) < 1
    assert (measure("out", far, None, truth, b).share or 0) > 1


def test_a_nan_beside_an_inf_of_both_sides_agrees() -> None:
    """An overflow on the way times the other factor's zero: only where the reference has that Inf too."""
    truth = torch.tensor([1e38 + 0j], dtype=torch.complex128)
    size = np.full((1, 2), 1e38)
    b = of_perturbation(size, 0 * size, FACTS["complex64"], 2.0**-24, SCALED, 0.0)
    device, both = (torch.tensor([complex(INF, im)], dtype=torch.complex64) for im in (NAN, 0.0))
    right = torch.tensor([1e38 + 0j], dtype=torch.complex64)
    assert (measure("out", device, both, truth, b).share or 0) <= 1
    assert measure("out", device, right, truth, b).problem == "class"
    assert measure("out", torch.tensor([complex(1e38, NAN)], dtype=torch.complex64), both, truth, b).problem == "class"


def test_a_precision_lost_everywhere_shows_in_the_spread() -> None:
    """Every element of a long sum is off by 20 roundings of its terms: no element passes its bound, all together do."""
    n, f = 4096, FACTS["float32"]
    t = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
    size, s = t.numpy(), np.full(64, 100.0)
    b = of_sum(size, s, np.full(64, float(n)), f, f.unit_roundoff, 0 * size, replace(SCALED, scale=4.0), f.smallest)
    off = (t + 90 * f.unit_roundoff * 100.0).to(torch.float32)
    m = measure("out", off, t.to(torch.float32), t, b)
    assert m.spread is not None
    assert m.spread > 1
    assert m.share == m.spread
    one = t.to(torch.float32)
    one[5] += 90 * f.unit_roundoff * 100.0
    assert (measure("out", one, None, t, b).share or 0) < 1
    one[5] += 2 * n * f.unit_roundoff * 100.0
    assert measure("out", one, None, t, b).certain


def test_an_element_of_a_sum_that_errs_alone_is_found_unless_the_reference_errs_there_too() -> None:
    """It is within the bound of its terms, and far outside of what the others are off by."""
    f = FACTS["float32"]
    t = torch.linspace(1.0, 2.0, 256, dtype=torch.float64)
    size, s = t.numpy(), np.full(256, 100.0)
    b = of_sum(size, s, np.full(256, 1024.0), f, f.unit_roundoff, 0 * size, replace(SCALED, scale=4.0), f.smallest)
    honest = t.to(torch.float32)
    off = honest.clone()
    off[77] += 30 * f.unit_roundoff * 100.0
    assert measure("out", off, honest, t, b, sums=True).problem == "alone"
    assert measure("out", off, off, t, b, sums=True).problem != "alone"
    assert measure("out", honest, honest, t, b, sums=True).problem != "alone"


def test_one_sum_made_many_times_over_is_no_precision_lost_everywhere() -> None:
    """Sixty-four equal truths are one error, whatever it is; and one of eight truths is one of eight."""
    f = FACTS["float32"]
    for distinct, seen in ((1, False), (8, False), (32, True), (64, True)):
        t = torch.linspace(1.0, 2.0, distinct, dtype=torch.float64).repeat(64 // distinct)
        size, s = t.numpy(), np.full(64, 100.0)
        b = of_sum(size, s, np.full(64, 14.0), f, f.unit_roundoff, 0 * size, replace(SCALED, scale=4.0), f.smallest)
        off = (t + 4 * f.unit_roundoff * 100.0).to(torch.float32)
        assert ((measure("out", off, None, t, b).share or 0) > 1) is seen, distinct


def test_the_worst_element_is_named_with_its_three_values() -> None:
    m = measured([1.0, 2.5, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (m.index, m.device, m.reference, m.truth, m.mismatched, m.total) == ((1,), "2.5", "2", "2", 1, 3)
    assert m.max_abs == 0.5


def test_exact_results_are_equal_or_not() -> None:
    m = exact_measure("out", torch.tensor([2**53 + 1, 5]), torch.tensor([2**53, 5]))
    assert (m.mismatched, m.index, m.device, m.truth) == (1, (0,), str(2**53 + 1), str(2**53))
    assert exact_measure("out", torch.tensor([NAN]), torch.tensor([NAN])).mismatched == 0


def test_nothing_at_all_is_no_difference() -> None:
    assert measured([], [], []).share == 0


def test_the_reference_widens_the_budget_at_most_eight_times() -> None:
    assert [allowed_ratio(s) for s in (None, 0.0, 0.25, 1.0, 1.5, 50.0, INF)] == [1, 1, 1, 1, 6, 8, 8]


@pytest.mark.parametrize("where", [0, 255, 256, 999])
def test_equal_values_are_equal_to_the_last_element(where: int) -> None:
    x = torch.full((1000,), float("nan"))
    x[::2] = 0.0
    alike = torch.where(torch.isnan(x), -x, -0.0)
    assert not bit_equal(x, alike)
    assert same_values(x, alike)
    odd = alike.clone()
    odd[where] = 1.0
    assert not same_values(x, odd)


def test_memory_is_compared_where_it_lies_plainly_and_nowhere_else() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert same_bytes(x, x.clone())
    assert not same_bytes(x, x + 1)
    for dtype in (torch.int64, torch.uint8, torch.bool):
        assert same_bytes(x.to(dtype), x.to(dtype).clone())
        assert not same_bytes(x.to(dtype), (x == 0).to(dtype))
    assert same_bytes(x.t(), x.t().clone())  # the copy lies as the original does
    assert not same_bytes(x.t(), x.t() + torch.tensor([0.0, 1.0]))
    assert same_bytes(x, x + 1) is False
    assert same_bytes(x.t(), x.t().contiguous()) is None  # says nothing of what lies otherwise
    apart, other = torch.zeros(2, 6)[:, ::2], torch.ones(2, 6)[:, ::2] * 0
    assert bit_equal(apart, other)
    gaps = torch.zeros(2, 6)
    gaps[:, 1::2] = 1.0
    assert same_bytes(apart, gaps[:, ::2]) is None  # nor of numbers with others between them
    assert bit_equal(apart, gaps[:, ::2])
    assert bit_equal(x.t(), x.t().contiguous())
    zeros = torch._efficientzerotensor((3,))  # has no memory
    assert bit_equal(zeros, torch.zeros(3))
    assert bit_equal(torch.empty(0), torch.empty(0))
    z = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    assert same_bytes(z.conj(), z) is None
    assert not bit_equal(z.conj(), z)


def test_what_holds_its_truth_does_so_number_by_number() -> None:
    truth = torch.tensor([1.0, NAN, INF, -0.0], dtype=torch.float64)
    assert is_truth(truth.to(torch.float32), truth)
    assert is_truth(torch.tensor([1.0, NAN, INF, 0.0]), truth)
    for k, x in ((0, 1.0000001), (1, 0.0), (2, -INF), (2, NAN), (3, 1e-45)):
        off = truth.to(torch.float32)
        off[k] = x
        assert not is_truth(off, truth)
    assert not is_truth(torch.tensor([1.0]), torch.tensor([1.0 + 2.0**-30], dtype=torch.float64))
    z = torch.tensor([complex(NAN, 1.0)], dtype=torch.complex128)
    assert not is_truth(torch.tensor([complex(NAN, 2.0)], dtype=torch.complex64), z)


def test_an_element_of_a_half_type_that_errs_alone_is_told_where_results_are_rounded_at_the_end() -> None:
    """All may be off by 20 ULP before they are rounded, and none is; one is off by 8."""
    truth = torch.linspace(1.0, 1.9, 600, dtype=torch.float64)
    honest = truth.to(torch.float16)
    off = honest.clone()
    off[77] += 8 * 2.0**-10
    f = FACTS["float16"]
    tol = Tolerance("composite", 16.0, 1.5, None, "test")
    budget = of_perturbation(truth.numpy(), np.full(600, 20 * 2.0**-10 / 16), f, 2.0**-24, tol, f.smallest)
    found = measure("out", off, honest, truth, budget, sums=True, rounds_once=True)
    assert (found.problem, found.index, found.mismatched) == ("alone", (77,), 1)
    assert found.share is not None
    assert found.share > 1.0
    for device, single in ((honest, True), (off, False)):
        share = measure("out", device, honest, truth, budget, sums=True, rounds_once=single).share
        assert share is not None
        assert share < 1.0


def test_what_is_just_within_its_budget_has_no_picture() -> None:
    u = 2.0**-23
    within, outside = (measured([1.5 + 3 * u, 1.0], None, [1.5 + k * u, 1.0], TABLE) for k in (0.5, 0.25))
    assert (within.share, (outside.share or 0.0) > 1.0) == (1.0, True)
    assert (within.shape, outside.shape) == ((), (2,))


def test_the_largest_number_is_no_error_of_itself() -> None:
    x = np.array([FACTS["float32"].max])
    assert error_ratio_of(x, x, np.ones(1), FACTS["float32"])[0].tolist() == [0.0]
