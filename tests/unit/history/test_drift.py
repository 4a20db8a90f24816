"""Paired statistics: what is reported, what is not, and how often luck reports something."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from parity.core.results import Fingerprint, Measure, Record, Status
from parity.history.drift import ALARM, Drift, drift, holm, sign_test
from parity.store.figures import Collected, Figures
from parity.store.rows import End, Header, Run

HEADER = Header(Fingerprint("0.1", "2.13.0", "abc", "3.11", "macOS 15", "arm64", "mps", "Apple M2"))
EQUAL = Measure("out", screen="bit-equal")


def measured(share: float, own: float = 0.25, screen: str = "") -> Measure:
    return Measure("out", share, own, measured=not screen, screen=screen)


def figures(measures: list[Measure], op: str = "exp", dtype: str = "float32", screens: bool = True) -> Figures:
    made = Collected()
    for k, m in enumerate(measures):
        made.add(f"{op} {k}", "00", [("forward", Status.AGREE, (m,))], {})
    return made.packed(op, dtype, screens)


def run(*rows: Figures) -> Run:
    return Run(HEADER, end=End(), figures=rows)


def of(before: list[Measure], after: list[Measure]) -> Drift:
    return drift(run(figures(before)), run(figures(after)), {})


def test_equal_errors_are_no_drift() -> None:
    same = [measured(0.1 * k) for k in range(1, 30)]
    assert of(same, same) == Drift(pairs=29)


def test_errors_that_doubled_in_every_case_are_told() -> None:
    made = of([measured(0.1)] * 20, [measured(0.2)] * 20)
    (s,) = made.shifts
    assert (s.pairs, s.worse, s.better, s.median, s.high, s.is_worse) == (20, 20, 0, 1.0, 1.0, True)
    assert s.cells == (("exp", "float32", "forward"),)
    assert s.p == pytest.approx(2.0**-19)
    (back,) = of([measured(0.2)] * 20, [measured(0.1)] * 20).shifts
    assert (back.median, back.is_worse) == (-1.0, False)


def test_bits_of_the_reference_count_with_the_reference_s_error() -> None:
    """A device that had the CPU's bits and lost one; and one that is another, but no worse."""
    assert of([EQUAL] * 20, [measured(0.5)] * 20).shifts[0].median == 1.0
    assert of([EQUAL] * 20, [measured(0.25)] * 20) == Drift(pairs=20)
    assert of([measured(0.5)] * 20, [EQUAL] * 20).shifts[0].median == -1.0


def test_beyond_the_least_budget_is_worse_than_inside_it() -> None:
    inside, beyond = measured(0.5, screen="truth"), measured(0.1)  # of another, larger budget
    assert of([inside] * 20, [beyond] * 20).shifts[0].median == 1.0
    assert of([beyond] * 20, [inside] * 20).shifts[0].median == -1.0


def test_ratios_of_other_budgets_are_not_compared() -> None:
    """--skip screens asks for the whole budget of every case."""
    one, other = figures([measured(0.1)] * 20), figures([measured(0.2)] * 20, screens=False)
    assert drift(run(one), run(other), {}) == Drift()


@pytest.mark.parametrize("few", [3, 7])
def test_too_few_cases_tell_nothing(few: int) -> None:
    made = of([measured(0.1)] * few, [measured(0.4)] * few)
    assert (made.shifts, made.series, made.tests) == ((), 1, 0)


def test_what_is_significant_and_small_is_not_told() -> None:
    assert of([measured(0.1)] * 500, [measured(0.109)] * 500).shifts == ()


def test_noise_below_the_floor_is_none() -> None:
    assert of([measured(1e-9)] * 50, [measured(1e-3)] * 50) == Drift(pairs=50)


def test_the_cells_of_a_cause_are_told_as_one() -> None:
    """Each alone has too few cases."""
    ops = [f"op{k}" for k in range(5)]
    before, after = (run(*(figures([measured(x)] * 4, op) for op in ops)) for x in (0.1, 0.2))
    cells = [(op, "float32", "forward") for op in ops]
    assert drift(before, after, {}).shifts == ()
    (s,) = drift(before, after, {"mul-1234": cells}).shifts
    assert (s.cause, s.cells, s.pairs) == ("mul-1234", tuple(cells), 20)


def test_an_op_is_told_where_no_dtype_alone_has_enough_cases() -> None:
    dtypes = ("float32", "float16", "bfloat16")
    before, after = (run(*(figures([measured(x)] * 5, dtype=d) for d in dtypes)) for x in (0.1, 0.2))
    (s,) = drift(before, after, {}).shifts
    assert len(s.cells) == 3


def test_cells_that_are_told_otherwise_are_left_out() -> None:
    before, after = run(figures([measured(0.1)] * 20)), run(figures([measured(0.2)] * 20))
    assert drift(before, after, {}, [("exp", "float32", "forward")]) == Drift()


def test_files_without_figures_pair_their_records() -> None:
    def old(share: float) -> Run:
        record = Record("", "exp", "float32", "forward", "agree", "1", True, measures=(measured(share),))
        return Run(HEADER, tuple(replace(record, case=str(k)) for k in range(20)), end=End())

    assert drift(old(0.1), old(0.4), {}).shifts[0].median == 2.0
    infinite = drift(old(0.1), old(math.inf), {}).shifts[0]
    assert infinite.median > 11.0
    assert drift(old(0.1), old(math.nan), {}) == Drift()


# ------------------------------------------------------------------------------------------------------------ statistics


@pytest.mark.parametrize(("worse", "better", "p"), [(0, 0, 1), (1, 0, 1), (5, 5, 1), (10, 0, 2**-9), (9, 1, 22 / 1024)])
def test_the_sign_test_is_exact(worse: int, better: int, p: float) -> None:
    assert sign_test(worse, better) == sign_test(better, worse) == pytest.approx(p)


def test_the_sign_test_of_many_cases_is_finite() -> None:
    assert sign_test(50_000, 50_000) == pytest.approx(1.0, abs=0.01)
    assert sign_test(100_000, 0) == 0.0
    assert sign_test(50_500, 49_500) == pytest.approx(math.erfc(1000 / 2 / math.sqrt(100_000 / 4) / math.sqrt(2)), rel=0.02)


def test_holm_corrects_by_the_number_of_tests_that_can_reach_significance() -> None:
    adjusted, able = holm([0.001, 0.002, 1.0], [0.0001] * 3)
    assert (adjusted, able) == ([0.003, 0.004, 1.0], 3)
    # A thousand series of three cases each cannot be significant, and hide nothing.
    adjusted, able = holm([2.0**-19, *[0.25] * 1000], [2.0**-19, *[0.25] * 1000])
    assert (adjusted[0], adjusted[1], able) == (2.0**-19, 1.0, 1)
    assert holm([], []) == ([], 0)


def test_adjusted_p_values_keep_their_order() -> None:
    ps = [0.01, 0.002, 0.004, 0.5, 0.0001]
    adjusted, _ = holm(ps, [1e-6] * 5)
    assert all(a <= b for a, b in pairwise(sorted(adjusted)))
    assert all(a >= p for a, p in zip(adjusted, ps))


def test_luck_tells_a_drift_as_rarely_as_it_is_said() -> None:
    """60 series of 30 cases whose errors come from one distribution in both runs, in 400 pairs of runs."""
    r = random.Random(3)

    def lucky() -> bool:
        counts = [sum(r.random() < 0.5 for _ in range(30)) for _ in range(60)]
        adjusted, _ = holm([sign_test(k, 30 - k) for k in counts], [sign_test(30, 0)] * 60)
        return min(adjusted) <= ALARM

    alarms = sum(lucky() for _ in range(400))
    assert alarms <= 11  # four are expected at most; more than eleven come by luck in one of a thousand
