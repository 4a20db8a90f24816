"""Which errors are unlike all others of one result."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.judging.outliers import ALPHA, ELEMENTS, LEAST, SLACK, among_alike, among_error_ratios, among_sums, beyond, tail


def normal(n: int, seed: int = 0) -> np.ndarray:
    return np.abs(np.random.default_rng(seed).standard_normal(n))


def test_the_tail_is_what_a_normal_draw_exceeds_with_the_stated_probability() -> None:
    assert math.erfc(tail(480) / math.sqrt(2)) * 480 <= ALPHA
    assert tail(480) < 8


@pytest.mark.parametrize("seed", range(20))
def test_normal_errors_hold_no_outlier(seed: int) -> None:
    z = normal(4096, seed)
    assert beyond(z, None, np.ones(4096, dtype=bool), LEAST).max() < 0.7


def test_one_error_of_ten_spreads_stands_out_and_is_told_by_its_place() -> None:
    z = normal(480)
    z[17] = 12.0
    found = beyond(z, None, np.ones(480, dtype=bool), LEAST)
    assert found.argmax() == 17
    assert found[17] == pytest.approx(12.0 / (SLACK * tail(480)), rel=0.1)


def test_where_the_reference_errs_too_or_few_can_be_asked_nothing_stands_out() -> None:
    z = normal(480)
    z[17] = 12.0
    theirs = np.zeros(480)
    theirs[17] = 3.0
    assert beyond(z, theirs, np.ones(480, dtype=bool), LEAST)[17] == 0
    assert not beyond(z[: ELEMENTS - 1], None, np.ones(ELEMENTS - 1, dtype=bool), LEAST).any()


def test_a_screen_lets_nothing_pass_that_stands_out() -> None:
    """Three units are what a cheap screen lets pass at most; even where all else is exact they are no outlier."""
    z = np.zeros(ELEMENTS)
    z[5] = 3.0
    assert beyond(z, None, np.ones(ELEMENTS, dtype=bool), LEAST).max() < 1.0


def test_equal_elements_are_one_sample_of_the_others() -> None:
    """Equal elements without an error show nothing of the errors of the others; one of them may err alone."""
    truth = np.concatenate((np.ones(2000), np.arange(2.0, 202.0)))
    errors = np.concatenate((np.zeros(2000), 3.0 * normal(200)))
    every = np.ones(2200, dtype=bool)
    assert beyond(errors, None, every, LEAST).max() > 1.0
    assert beyond(errors, None, every, LEAST, truth).max() < 1.0
    errors[17] = 36.0
    assert (beyond(errors, None, every, LEAST, truth) > 1.0).nonzero()[0].tolist() == [17]


def test_a_row_of_large_terms_is_not_measured_by_its_small_neighbours() -> None:
    unit = np.ones((24, 20))
    unit[3] = 1e6
    errors = normal(480).reshape(24, 20) * 0.01
    errors[3] *= 1e9
    assert not among_sums(errors, None, unit).any()


def test_what_is_not_finite_neither_stands_out_nor_hides_what_does() -> None:
    errors = normal(480)
    errors[0], errors[1], errors[2] = np.nan, np.inf, 20.0
    found = among_sums(errors, None, np.ones(480))
    assert found.argmax() == 2
    assert found[2] > 1
    assert found[:2].tolist() == [0, 0]


def test_a_budget_that_is_too_small_for_all_is_excused_and_a_lone_error_is_not() -> None:
    own = np.full(480, 3.0)
    tight = normal(480) * 1.5
    assert among_error_ratios(tight, 0 * own).max() < 1
    lone = normal(480) * 0.1
    lone[9] = 5.0
    assert (among_error_ratios(lone, 0 * own) > 1).nonzero()[0].tolist() == [9]
    assert not among_error_ratios(lone, own).any()


# ---------------------------------------------------------------------------------------------- half types, rounded at the end


def rounded(n: int, seed: int = 0) -> np.ndarray:
    """Errors of one rounding, in ULP."""
    return np.abs(np.random.default_rng(seed).uniform(-0.5, 0.5, n))


@pytest.mark.parametrize("handed", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_no_honest_device_holds_an_outlier_whatever_it_hands_on(handed: float, seed: int) -> None:
    """Allowances lie a thousand apart, and are the largest of five samples each; the device goes as far as `handed` of them."""
    g = np.random.default_rng(seed)
    moved = np.exp(g.uniform(-4, 3, 20000))
    inside = 16 * moved * np.abs(g.standard_normal((5, 20000))).max(0)
    errors = rounded(20000, seed) + handed * moved * np.abs(g.standard_normal(20000))
    assert among_alike(errors, None, inside).max() < 1.0


def test_an_element_that_errs_more_than_all_that_may_err_as_much_stands_out() -> None:
    errors, inside = rounded(2000), np.linspace(0.1, 100.0, 2000)
    errors[700] = 8.0
    found = among_alike(errors, None, inside)
    assert found.argmax() == 700
    assert found[700] > 1.0
    assert np.count_nonzero(found) == 1
    theirs = np.zeros(2000)
    theirs[700] = 2.0
    assert not among_alike(errors, theirs, inside).any()


def test_where_few_may_err_as_much_nothing_is_said() -> None:
    errors, inside = rounded(2000), np.linspace(0.1, 100.0, 2000)
    errors[1990] = 8.0
    assert not among_alike(errors, None, inside).any()
    errors = rounded(2000)
    errors[5] = 3.0  # what a cheap screen lets pass at most, and more than one rounding and another
    assert not among_alike(errors, None, inside).any()


def test_what_cancels_is_no_outlier_in_units_of_its_last_place() -> None:
    """Of padding, a convolution by way of a transform leaves a remainder of its largest terms where the truth is 0."""
    errors, inside = np.zeros(4096), np.full(4096, 2.0**100)
    errors[7] = 2.0**90
    assert not among_alike(errors, None, inside).any()
    near = np.full(4096, 0.1)
    errors[7] = 8.0
    assert float(among_alike(errors, None, near)[7]) > 1.0
