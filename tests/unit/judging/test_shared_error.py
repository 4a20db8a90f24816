"""Errors that all elements share, and those that independent roundings make."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import oracle_for, verdict_on

import parity
from parity.core.dtypes import FACTS
from parity.core.results import Status
from parity.judging.budget import Budget
from parity.judging.shared_error import FEWEST, TOGETHER, SharedError, _aligned, shared_error
from parity.oracle.oracle import CaseOracle
from parity.oracle.sensitivity import Changes

F = FACTS["bfloat16"]
U = F.unit_roundoff
RNG = np.random.default_rng(7)
TRUTH = RNG.normal(size=2000)
SAMPLES = Changes(torch.from_numpy(TRUTH * RNG.uniform(-U, U, size=(4, 2000))))


def asked(
    device: np.ndarray,
    truth: np.ndarray = TRUTH,
    changes: Changes | None = SAMPLES,
    halves: bool = True,
    numbers: float = np.inf,
) -> SharedError | None:
    b = Budget(16.0 * U * np.abs(truth) + 1e-9, ())
    every = np.ones(truth.shape, dtype=bool)
    return shared_error(device, truth, b, every, changes, F, U, halves, numbers=numbers)


@pytest.mark.parametrize(("samples", "added"), [(TOGETHER, 0.0), (TOGETHER - 1, 2.0)])
def test_elements_that_move_alike_cancel_from_so_many_samples_on(samples: int, added: float) -> None:
    assert _aligned(np.ones((samples, 2)), np.array([1.0, -1.0])) == added


def test_independent_roundings_share_nothing() -> None:
    found = asked(TRUTH * (1.0 + RNG.uniform(-U, U, size=2000)))
    assert found is not None
    assert found.ratio < 0.7


def test_numbers_whose_squares_are_too_large_are_not_asked() -> None:
    """Where the budget is that small next to the truth, the elements themselves say enough."""
    b, every = Budget(np.full(TRUTH.shape, 1e-78), ()), np.ones(TRUTH.shape, dtype=bool)
    assert shared_error(TRUTH * 1.01, TRUTH, b, every, SAMPLES, F, U, True) is None


@pytest.mark.parametrize("factor", [1.03, 0.97])
def test_a_factor_is_told_though_no_element_is_outside(factor: float) -> None:
    """3 % is a quarter of every element's own budget."""
    found = asked(TRUTH * factor)
    assert found is not None
    assert found.factor == pytest.approx(factor - 1.0, rel=1e-6)
    assert found.ratio > 1.5
    assert found.text(found.ratio).startswith(f"all elements are off by a common factor of {factor:g}")


@pytest.mark.parametrize("samples", [4, 20])
def test_a_rounding_that_elements_share_moves_them_as_it_does(samples: int) -> None:
    """One that is taken from all elements of a row moves large and small ones alike, which is no common factor; a few samples
    do not show which elements move together."""
    rows = TRUTH.reshape(20, 100) - TRUTH.reshape(20, 100).mean(1, keepdims=True)
    shared = np.broadcast_to(0.01 * RNG.choice((-1.0, 1.0), size=(samples, 20, 1)), (samples, 20, 100))
    truth = rows.reshape(-1)
    b, every = Budget(np.full(truth.shape, 0.1), ()), np.ones(truth.shape, dtype=bool)

    def of(device: np.ndarray) -> SharedError:
        changes = Changes(torch.from_numpy(shared.reshape(samples, -1).copy()))
        found = shared_error(device, truth, b, every, changes, F, FACTS["float32"].unit_roundoff, False)
        assert found is not None
        return found

    healthy = of((rows + 8.0 * shared[0]).reshape(-1))
    assert healthy.ratio <= 1.0
    assert (healthy.factor_limit < 0.02) == (samples == 20)
    assert (of(truth * 1.02).ratio > 1.0) == (samples == 20)


def test_roundings_too_large_everywhere_are_told_by_their_spread() -> None:
    found = asked(TRUTH * (1.0 + RNG.choice((-8 * U, 8 * U), size=2000)))
    assert found is not None
    assert found.spread > found.spread_limit
    assert "root mean square" in found.text(2.0)


def test_few_elements_average_nothing_out() -> None:
    few, enough = TRUTH[: FEWEST - 1], TRUTH[:FEWEST]
    assert asked(few * 1.5, few, None, halves=False) is None
    assert asked(enough * 1.5, enough, None, halves=False) is not None
    found = asked(few * 1.5, few, None)
    assert found is not None
    assert not found.leans
    assert found.row(True) == "spread of few in half types"
    assert found.text(found.ratio).endswith("times what rounding explains")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "operands", ["{0}[64].normal(seed=1), {0}[64].normal(seed=2)", "{0}[64].constant(), {0}[()].inside(1, 1)"]
)
def test_one_number_of_a_half_type_is_held_to_the_roundings_of_its_steps(dtype: str, operands: str) -> None:
    """Its own budget is 0.3 of a mean in bfloat16, 0.04 in float16."""
    text = f"soft_margin_loss({operands.format(dtype)})"
    assert verdict_on(text, lambda t: t).status is Status.AGREE
    assert verdict_on(text, lambda t: t * (1.02 if dtype == "float16" else 1.1)).status.is_finding


def test_equal_elements_are_one_sample() -> None:
    """Two thousand elements of three values, each off by a rounding of its own."""
    values = np.array([1.0, 1.3, 1.7])
    truth = np.repeat(values, 700)
    device = np.repeat(values * (1.0 + 4 * U), 700)
    assert asked(device, truth, None, halves=False) is None
    rounded = truth + np.arange(2100.0) * 2.0**-30  # three numbers of bfloat16 still
    assert asked(rounded * (1.0 + 4 * U), rounded, None, halves=False) is None
    different = truth * np.exp2(np.linspace(-3.0, 3.0, 2100))
    assert asked(different, different, None) is not None


def test_all_elements_share_the_roundings_of_a_constant_operand() -> None:
    """Of rsqrt's gradient, -g y y y / 2: three times the rounding of y."""
    for factor, told in ((1.0 + 3 * U, False), (1.1, True)):
        b = Budget(16.0 * U * np.abs(TRUTH) + 1e-9, ())
        every = np.ones(TRUTH.shape, dtype=bool)
        one, other = (shared_error(TRUTH * factor, TRUTH, b, every, SAMPLES, F, U, True, numbers=n) for n in (1.0, np.inf))
        assert one is not None
        assert other is not None
        assert one.ratio < other.ratio
        assert (one.ratio > 1.0) is told


@pytest.mark.parametrize(("numbers", "seen"), [(2.0, False), (16.0, True), (np.inf, True)])
def test_elements_of_two_numbers_share_two_roundings(numbers: float, seen: bool) -> None:
    """Of acosh's gradient, g / sqrt(x x - 1), all that differs in a column is g."""
    shared = np.where(np.arange(2000) % 2, U, 1.5 * U)
    b, every = Budget(4.0 * U * np.abs(TRUTH) + 1e-9, ()), np.ones(TRUTH.shape, dtype=bool)
    u, changes = FACTS["float32"].unit_roundoff, Changes(SAMPLES.moved / 8)
    found = shared_error(TRUTH * (1.0 + shared), TRUTH, b, every, changes, F, u, False, numbers=numbers)
    assert found is not None
    assert (found.ratio > 1.0) is seen


@pytest.mark.parametrize(("numbers", "factor"), [(2.0, 1.05), (2.0, 0.95), (16.0, 1.03), (400.0, 0.97)])
def test_a_factor_is_found_of_few_numbers_and_of_many(numbers: float, factor: float) -> None:
    found = asked(TRUTH * factor, numbers=numbers)
    assert found is not None
    assert found.leans
    assert found.ratio > 1.5


def test_the_operand_with_the_fewest_numbers_is_counted() -> None:
    def of(text: str) -> float:
        return oracle_for(text).different_numbers()

    assert of("acosh(bfloat16[128, 2].expand(-2).between(1, 9, seed=113))") == pytest.approx(2.0)
    assert of("mul(float32[8, 4].normal(seed=1), float32[4].normal(seed=2))") == pytest.approx(4.0)
    assert of("acosh(float32[64, 2].constant())") == 1.0
    assert of('cosh(float32[9].constant(seed=1).at(3, "-2.5"))') == 1.0
    assert of("acosh(float32[64].between(1, 9, seed=1))") > 32.0
    assert of("acosh(float32[()])") == np.inf


@pytest.mark.parametrize(("factor", "asked"), [(1.0, False), (1.0 + 2e-6, True)])
def test_numbers_are_counted_only_where_they_could_widen_a_limit_that_matters(
    factor: float, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sorted for it, which takes longer than all else. Two rows of equal numbers, of which each is rounded."""
    counted: list[float] = []
    count = CaseOracle.different_numbers

    def heard(self: CaseOracle) -> float:
        counted.append(count(self))
        return counted[-1]

    monkeypatch.setattr(CaseOracle, "different_numbers", heard)
    noise = 1.0 + (torch.rand(512, 2, generator=torch.Generator().manual_seed(0)) - 0.5) * 2.0**-21
    verdict = verdict_on("logit(float32[512, 2].between(0.25, 0.75, seed=113))", lambda t: t * noise * factor)
    assert verdict.status is Status.AGREE, verdict
    assert bool(counted) is asked


def test_what_all_samples_move_alike_may_move_so() -> None:
    """A mean that every element is divided by is rounded once: 3 % of it are then no error of scale."""
    signs = np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    shared = Changes(torch.from_numpy(TRUTH * 0.01 * signs))
    found = asked(TRUTH * 1.03, changes=shared)
    assert found is not None
    assert found.ratio < 1.0


def test_large_results_are_sampled() -> None:
    truth = np.repeat(TRUTH, 4)  # every fourth of which is TRUTH again
    found = asked(truth * 1.03, truth, Changes(SAMPLES.moved, 4))
    assert found == asked(TRUTH * 1.03)


def test_elements_that_the_reference_misses_too_are_held_to_it_alone() -> None:
    """sigmoid(-98) is 0 on the CPU; a device that does the same, and rounds one element otherwise, loses no precision."""
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(0)).exp()
    x[:, 24:] = -98.0
    expected = torch.nn.functional.glu(x)
    actual = expected.clone()
    actual[0, 0] = torch.nextafter(actual[0, 0], torch.tensor(9.0))
    assert not parity.compare(torch.nn.functional.glu, actual, expected, x).findings
    x[:, 24:] = -1.0
    expected = torch.nn.functional.glu(x)
    assert parity.compare(torch.nn.functional.glu, expected * (1 + 2e-5), expected, x).findings
