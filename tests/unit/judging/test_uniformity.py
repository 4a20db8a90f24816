"""The tests over probability integrals: counted as their definition says, and alike for stacked draws and for one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity import catalog
from parity.catalog.draw import Sizes
from parity.checks.trial import EVERYTHING
from parity.core.notation import parse
from parity.devices import resolve
from parity.engine.checking import LAW_EVERY, settings
from parity.engine.planning import RunPlan
from parity.engine.suite import Item, RunProfile
from parity.execution import execute as ex
from parity.execution.inputs import build
from parity.judging import laws
from parity.judging.laws.law import Observations, Results, coins
from parity.judging.outliers import entropy, improbable
from parity.judging.relations import Bound
from parity.judging.uniformity import POINTS, _below, _lags, _pairs, judged
from parity.tolerance import load

CPU = resolve("cpu")
STACKED = (
    "randn(float32[()], (3, 5))", "rand(float16[()], (7,))", "rand(complex64[()], (4,))", "randint(int64[()], -3, 5, (6,))",
    "normal(float32[4].inside(-3, 3), float32[4].inside(0.25, 4))", "poisson(float32[6].inside(0, 6))",
    "binomial(float32[5].inside(1, 9), float32[5].inside(0.1, 0.9))", "bernoulli(float32[2, 3].inside(0, 1))",
    "dropout(float32[3, 4].normal(seed=1), 0.4, training=True)",
    "dropout2d(float32[2, 3, 2, 2].normal(seed=2), 0.4, training=True)",
    "alpha_dropout(float32[9].normal(seed=3), 0.3, training=True)", "geometric_(float32[5], 0.25)", "exponential_(float32[()])",
)  # fmt: skip


@pytest.mark.parametrize("text", STACKED)
def test_a_stack_of_draws_is_observed_as_the_draws_are(text: str) -> None:
    case = parse(text)
    inputs, program = build(case), ex.program(catalog.row(case.op))
    views = [o.view for o in inputs.operands]
    args, kwargs = ex.arguments(case, inputs, views, lambda name: getattr(torch, name))
    law = laws.find(catalog.row(case.op))
    assert law is not None
    assert law.stacks

    call = Bound(catalog.row(case.op), tuple(args), kwargs)
    torch.manual_seed(3)
    placed = ex.place(inputs, CPU)
    draws: list[Results] = [
        {n: t for n, t in ex.forward(program, case, inputs, placed, False).outputs if not n.startswith("base[")}
        for _ in range(5)
    ]
    stack = {n: torch.stack([d[n] for d in draws]) for n in draws[0]}
    assert law.outside(call, stack) == []
    (whole,) = law.observe(call, stack)
    parts = [law.observe(call, d)[0] for d in draws]
    for name in ("low", "high", "values"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(p, name) for p in parts])), name
    assert whole.peak == max(p.peak for p in parts)
    assert whole.fuzzy == any(p.fuzzy for p in parts)
    if whole.tallies is not None:
        counts = torch.stack([p.tallies.counts for p in parts if p.tallies is not None])
        assert torch.equal(whole.tallies.counts, counts.sum(0))


def test_how_many_lie_below_each_point_is_counted_exactly() -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.rand(999, dtype=torch.float64), POINTS, POINTS - 2.0**-40, 1e-3 * torch.rand(200).double()])
    x = torch.cat([x, 1 - x, torch.tensor([0.0, 1.0, -1e-9, 1 + 1e-9, float("nan")], dtype=torch.float64)])
    assert torch.equal(_below(x), torch.stack([(x <= p).sum() for p in POINTS]).to(torch.float64))


def test_pairs_at_every_distance_are_looked_at() -> None:
    x = torch.rand(4096, dtype=torch.float64)
    fine = Observations(x, x, x, fuzzy=True, peak=1e-6, row=64)
    assert _lags(fine, x, 512) == ""
    x = x.clone()
    x[96:192] = x[0:96]  # 96 is half of the period that is asked about
    assert "96 places on" in _lags(Observations(x, x, x, fuzzy=True, peak=1e-6), x, 192)
    assert [(a.tolist(), b.tolist()) for a, b in _pairs(np.arange(7.0)[None], 2)] == [
        ([[[0.0, 1.0]]], [[[2.0, 3.0]]]),
        ([[[4.0]]], [[[6.0]]]),  # of the block that is not whole
    ]


def test_what_follows_closely_is_correlated_though_nothing_is_equal() -> None:
    """The width of the intervals alone is allowed, wherever they lie."""
    x = torch.rand(2048, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = torch.cat([x, 0.999 * x])
    for width, words in ((1e-6, "2048 places apart are correlated"), (0.5, "")):
        assert words in (said := _lags(Observations(x - width / 2, x + width / 2, x, fuzzy=True, peak=1e-6), x, 512))
        assert bool(words) is bool(said)


def test_one_case_in_so_many_is_drawn_for_its_law_and_every_pinned_one() -> None:
    plan = RunPlan(CPU, CPU, load("cpu"), RunProfile("p", "native", {"": 9}, {"": 0}, 2, Sizes()))
    item = Item(catalog.row("rand"), "float32")
    asked = [settings(item, plan, k, k < 2).law for k in range(3 * LAW_EVERY)]
    assert asked[:2] == [True, True]
    assert sum(asked[LAW_EVERY:]) == 2
    assert EVERYTHING.law


def coin_tosses(calls: int, n: int, ahead: int) -> torch.Tensor:
    """What threads that take 8 coins each give in several calls, every call `ahead` coins behind the last in their streams."""
    streams = torch.rand(n // 8, 8 + ahead * calls, generator=torch.Generator().manual_seed(n)) < 0.5
    return torch.stack([streams[:, ahead * c : ahead * c + 8].reshape(-1) for c in range(calls)])


@pytest.mark.parametrize("n", [8, 40, 4096, 1 << 16])
def test_a_call_that_begins_where_the_last_one_still_was_is_found(n: int) -> None:
    for ahead, found in ((4, True), (8, False)):
        tosses = coin_tosses(max(2, 1024 // n), n, ahead)
        assert bool(judged([coins(t, 0.5, 2.0**-24) for t in tosses], len(tosses))) is found, ahead


def test_a_count_at_its_bound_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    count, trials, chance = torch.tensor([[60.0], [100.0], [0.5]], dtype=torch.float64)
    bound = float(100 * entropy(count / 100, chance))
    for level, alarm in ((bound, False), (bound - 1e-9, True)):
        monkeypatch.setattr("parity.judging.outliers.weight", lambda *_, level=level: level)
        assert improbable(count, trials, chance, chance, 1).tolist() == [alarm]


def test_rates_that_differ_from_element_to_element_are_observed_with_the_draws() -> None:
    law, row = laws.find(catalog.row("poisson")), catalog.row("poisson")
    assert law is not None
    draws = {"out": torch.tensor([1.0, 0.0, 4.0])}
    several, one = (law.observe(Bound(row, (torch.tensor(r),), {}), draws)[0] for r in ([1.0, 1.0, 5.0], [2.0, 2.0, 2.0]))
    assert several.covariate is not None
    assert several.covariate.tolist() == [1.0, 1.0, 5.0]
    assert one.covariate is None


def test_rows_of_a_gumbel_softmax_sum_to_1_but_for_roundings() -> None:
    row = catalog.row("gumbel_softmax")
    law = laws.find(row)
    assert law is not None
    call = Bound(row, (torch.zeros(1, 2),), {})
    for more, sound in ((0.0, True), (2.0**-23, True), (-(2.0**-23), True), (1e-3, False)):
        assert (law.outside(call, {"out": torch.tensor([[0.25, 0.75 + more]])}) == []) is sound
    edge = torch.tensor([[-(2.0**-23), 1.0 + 2.0**-23]])  # two units on either side
    assert law.outside(call, {"out": edge}) == []
    assert law.outside(call, {"out": 4 * edge - torch.tensor([[0.0, 3.0]])}) != []


def test_atoms_of_the_wrong_chances_are_spread_too_widely() -> None:
    """Of four equal ones, of which the outer come 30 times in 100; an allowance as wide as an atom would explain it."""
    k = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64).repeat_interleave(torch.tensor([1200, 800, 800, 1200]))
    k = k[torch.randperm(len(k), generator=torch.Generator().manual_seed(0))]
    atoms = Observations(k / 4, (k + 1) / 4, k, peak=0.25, spread=5 / 64)
    assert judged([atoms]) == "the draws are spread too widely, over 4000"
