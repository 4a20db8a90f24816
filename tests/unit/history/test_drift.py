"""Paired statistics: what is reported, what is not, and how often luck reports something."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from parity.core.results import Fingerprint, Measure, Record, Status
from parity.history.drift import ALARM, Drift, Paces, drift, holm, paces, sign_test
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


PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "macOS 15", "arm64", "mps", "Apple M2")


def figures_of_pace(op: str, seconds: list[float]) -> Figures:
    made = Collected()
    for k, s in enumerate(seconds):
        made.add(f"{op} {k}", "00", [("forward", Status.AGREE, ())], {"forward": s})
    return made.packed(op, "float32", True)


def run_of_pace(*rows: Figures, machine: Fingerprint = PRINT) -> Run:
    return Run(Header(machine), end=End(), figures=rows)


def noisy(seed: int, typical: float = 1e-4, n: int = 30) -> list[float]:
    """Times with the noise of a busy machine: a fifth, and now and then ten times as much."""
    r = random.Random(seed)
    return [typical * 2 ** (k % 5) * r.lognormvariate(0, 0.2) * (10 if r.random() < 0.1 else 1) for k in range(n)]


def test_a_constant_delay_is_told_with_its_factor() -> None:
    before = run_of_pace(*(figures_of_pace(f"op{k}", noisy(k)) for k in range(12)))
    slow = [figures_of_pace(f"op{k}", noisy(100 + k)) for k in range(11)]
    made = paces(before, run_of_pace(*slow, figures_of_pace("op11", [t + 0.02 for t in noisy(111)])))
    (p,) = made.slower
    assert (p.cell, p.pairs, made.faster) == (("op11", "float32", "forward"), 30, ())
    assert p.factor > 20
    assert p.after == pytest.approx(0.02, rel=0.2)
    back = paces(run_of_pace(*slow, figures_of_pace("op11", [t + 0.02 for t in noisy(111)])), before)
    assert [p.cell[0] for p in back.faster] == ["op11"]
    assert back.slower == ()


def test_noise_is_not_told() -> None:
    for seed in range(20):
        before, after = (
            run_of_pace(*(figures_of_pace(f"op{k}", noisy(s + k)) for k in range(20))) for s in (1000 * seed, 1000 * seed + 500)
        )
        made = paces(before, after)
        assert (made.slower, made.faster) == ((), ())


def test_a_machine_that_is_busy_slows_everything_and_is_told_once() -> None:
    before = run_of_pace(*(figures_of_pace(f"op{k}", noisy(k)) for k in range(12)))
    made = paces(before, run_of_pace(*(figures_of_pace(f"op{k}", [2.5 * t for t in noisy(k)]) for k in range(12))))
    assert (made.slower, round(made.general, 1)) == ((), 2.5)


def test_of_few_series_each_is_told() -> None:
    made = paces(run_of_pace(figures_of_pace("mm", noisy(1))), run_of_pace(figures_of_pace("mm", [2.5 * t for t in noisy(1)])))
    assert len(made.slower) == 1


def test_what_three_quarters_of_the_cases_do_not_show_is_not_told() -> None:
    one = noisy(1)
    some = [3 * t if k % 3 == 0 else t for k, t in enumerate(one)]
    assert paces(run_of_pace(figures_of_pace("mm", one)), run_of_pace(figures_of_pace("mm", some))).slower == ()


@pytest.mark.parametrize("what", [{"device_name": "Apple M3"}, {"machine": "x86_64"}, {"device": "cuda:0"}])
def test_other_machines_are_not_compared(what: dict[str, str]) -> None:
    other = replace(PRINT, **what)  # type: ignore[arg-type]
    assert paces(
        run_of_pace(figures_of_pace("mm", noisy(1))), run_of_pace(figures_of_pace("mm", noisy(1)), machine=other)
    ) == Paces(why="the machines differ")


def test_another_torch_is_compared() -> None:
    """That is what an upgrade is about."""
    other = replace(PRINT, torch="2.14.0", os="macOS 26")
    assert (
        paces(run_of_pace(figures_of_pace("mm", noisy(1))), run_of_pace(figures_of_pace("mm", noisy(1)), machine=other)).series
        == 1
    )


def test_runs_without_common_cases_say_so() -> None:
    assert (
        paces(run_of_pace(figures_of_pace("mm", noisy(1))), run_of_pace(figures_of_pace("bmm", noisy(1)))).why
        == "no case with a time is in both runs"
    )


def test_a_simulated_device_is_told_by_the_millisecond_only() -> None:
    simulated = replace(PRINT, simulated=True)
    before = run_of_pace(figures_of_pace("mm", noisy(1)), machine=simulated)
    for more, told in ((4e-4, 0), (5e-3, 1)):
        assert (
            len(paces(before, run_of_pace(figures_of_pace("mm", [t + more for t in noisy(1)]), machine=simulated)).slower)
            == told
        )
