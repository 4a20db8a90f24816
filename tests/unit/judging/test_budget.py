"""What an element may be off by, term by term."""

from __future__ import annotations

import numpy as np

from parity.core.dtypes import FACTS
from parity.core.results import Tolerance
from parity.judging.budget import of_function, of_perturbation, of_sum, ulp_at, ulp_of

F = FACTS["float32"]
U = F.unit_roundoff
RULE = Tolerance("contraction", 4.0, 1.0, None, "a rule")


def test_the_terms_add_up_to_the_budget() -> None:
    size = np.array([1.0, 3.0])
    table = Tolerance("elementwise", 0.0, 1.0, 2.0, "a table")
    for b in (
        of_function(size, F, table, F.smallest),
        of_sum(size, size * 10, size * 0 + 16, F, U, size * 0, RULE, F.smallest),
        of_perturbation(size, size * 1e-6, F, U, RULE, F.smallest),
    ):
        for k in range(2):
            assert np.isclose(sum(v for _, v in b.at(k)), b.total[k], rtol=1e-12)


def test_a_wider_budget_allows_more_in_every_respect() -> None:
    """By one term, which is 0 where it is not finite; what bounds the rounding and the handing on of sums stays."""
    b = of_sum(np.array([1.0, 3.0]), np.array([100.0, 100.0]), np.array([256.0, 256.0]), F, U, np.zeros(2), RULE, 0.0)
    wider = b.wider("flushed", np.array([0.5, np.nan]))
    for name in ("total", "certain", "scale", "absolute"):
        assert np.array_equal(getattr(wider, name) - getattr(b, name), [0.5, 0.0]), name
    assert wider.at(0)[-1] == ("flushed", 0.5)
    assert (wider.rms, wider.rounding, wider.between_kernels) == (b.rms, b.rounding, b.between_kernels)


def test_a_sum_may_be_off_by_the_probabilistic_bound_and_one_rounding() -> None:
    b = of_sum(np.array([1.0]), np.array([100.0]), np.array([256.0]), F, U, np.zeros(1), RULE, 0.0)
    assert np.isclose(b.total[0], 4 * 16 * U * 100 + ulp_of(np.array([1.0]), F)[0])
    assert b.certain is not None
    assert np.isclose(b.certain[0], 256 * U / (1 - 256 * U) * 100 + 2 * U)


def test_one_chain_of_additions_and_the_rounding_of_the_result_may_be_off_together() -> None:
    b = of_sum(np.array([1000.0]), np.array([1000.0]), np.array([1.0]), F, U, np.zeros(1), RULE, 0.0)
    assert b.scale is not None
    assert np.isclose(b.scale[0], 2 * 1000 * U, rtol=1e-9)


def test_the_spacing_at_one_number_is_that_at_many() -> None:
    sizes = np.array([0.0, 5e-324, 1e-310, F.smallest, F.tiny, 1.0 - U / 4, 1.0, 1.0 + U, 3.0, F.max, 1.5 * F.max])
    for f in (F, FACTS["bfloat16"], FACTS["float16"], FACTS["float64"]):
        assert ulp_of(sizes, f).tolist() == [ulp_at(float(x), f) for x in sizes]


def test_at_a_power_of_two_a_function_may_be_off_by_the_next_numbers_spacing() -> None:
    sizes = np.array([0.0, 5e-324, np.nextafter(2.0, 1.0), 2.0, np.nextafter(4.0, 1.0), 3.0, F.max])
    b = of_function(sizes, F, Tolerance("elementwise", 0.0, 1.0, 2.0, "a table"), 0.0)
    assert b.total.tolist() == [2.5 * x for x in ulp_of(np.nextafter(sizes, np.inf), F)]


def test_magnitudes_are_never_less_than_the_truth() -> None:
    """A row that declares itself a sum by mistake keeps at least the roundoff of its result."""
    b = of_sum(np.array([8.0]), np.array([0.0]), np.array([0.0]), F, U, np.zeros(1), RULE, 0.0)
    assert b.total[0] >= 4 * U * 8


def test_nothing_summed_has_no_spread_to_be_held_to() -> None:
    b = of_sum(np.zeros(0), np.zeros(0), np.zeros(0), F, U, np.zeros(1), RULE, 0.0)
    assert b.rms == 1.0


def test_no_element_borrows_from_its_neighbours() -> None:
    size, moved = np.array([1e-6, 1e3]), np.array([1e-13, 1e-4])
    assert of_perturbation(size, moved, F, U, RULE, 0.0).total[0] < 1e-11
