"""Random ops: honest generators pass, and each planted fault of a generator is found and named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import catalog
from parity.catalog.row import Row
from parity.core.notation import parse
from parity.devices import resolve
from parity.engine import suite
from parity.execution import execute as ex
from parity.execution.inputs import build, realise, torch_word
from parity.judging import laws, outliers
from parity.judging.laws import numbers, picks
from parity.judging.randomness import problems
from parity.judging.uniformity import judged

CPU = resolve("cpu")
Function = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    row: Row
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def get(self, position: int, name: str, default: Any = None) -> Any:
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else default


def told(text: str, function: Function | None = None, seed: int = 7) -> str:
    """What parity says of the op where `function` computes it, or of torch's own; "" for nothing."""
    case = parse(text)
    inputs, row = build(case), catalog.row(case.op)
    views = [o.view for o in inputs.operands]
    args = tuple(realise(a, views, torch_word) for a in inputs.args)
    call = Call(row, args, {k: realise(v, views, torch_word) for k, v in inputs.kwargs.items()})
    healthy = ex.program(row)
    program = ex.Program(row, function or healthy.function, None, False)
    return "; ".join(what for _, what in problems(program, case, inputs, call, CPU, seed))


# ------------------------------------------------------------------------------------------------------------- honest

HONEST = (
    "rand(float32[()], (512,))", "rand(float16[()], (65, 7))", "rand(bfloat16[()], (300,))", "rand(complex64[()], (50,))",
    "randn(float32[()], (33, 5))", "randn(float16[()], (500,))", "randn(complex64[()], (64,))",
    "randint(int64[()], -3, 5, (40,))",
    "randint(float16[()], 0, 2000, (300,))", "randint_like(uint8[64], 0, 100)", "randperm(int64[()], 100)",
    "randperm(int32[()], 16)", "normal(float32[64].inside(-3, 3), float32[64].inside(0.25, 4))",
    "normal(2.0, float16[64].inside(0.25, 4))", "uniform_(float32[300], 0.5, 0.75)", "uniform_(bfloat16[300], -1.0, 3.0)",
    "normal_(float16[33, 4], 2.0, 0.5)", "log_normal_(float32[100])", "cauchy_(float16[100])", "exponential_(float32[100])",
    "exponential_(bfloat16[100], 2.0)", "geometric_(int8[100], 0.25)", "geometric_(float16[100], 0.25)",
    "bernoulli_(bool[50], 0.25)", "bernoulli_tensor_(float32[64], float32[64].inside(0, 1))", "random_(int64[64])",
    "random_(float16[64])", "random_(int8[64], 0, 100)", "bernoulli(float16[64].inside(0, 1))",
    "poisson(float32[64].inside(0, 30))", "binomial(float32[64].inside(0, 40), float32[64].inside(0, 1))",
    "standard_gamma(float32[64].inside(0.25, 8))", "multinomial(float32[3, 8].inside(0.25, 1), 5, replacement=True)",
    "multinomial(float32[8].inside(0.25, 1), 5)", "multinomial_zeros(float16[9].inside(-1, 1), 64, replacement=True)",
    "dropout(float32[64], p=0.25)", "dropout(bfloat16[64])", "dropout2d(float32[4, 8, 3, 3])",
    "alpha_dropout(float32[64], training=True)", "feature_alpha_dropout(float16[8, 9, 3], training=True)",
    "rrelu_training(float32[100], 0.125, 0.5, True)", "gumbel_softmax(float32[9, 5].inside(-2, 2), hard=True)",
    "fractional_max_pool2d(float32[1, 2, 7, 7], 2, output_size=(3, 4))",
    "attention_dropout(float32[2, 9, 4].inside(-1, 1), float32[2, 31, 4].inside(-1, 1), None, 0.25, False)",
    "trunc_normal_(float32[64, 65].frozen())", "xavier_uniform_(float32[16, 8, 3, 3].frozen())",
    "dropout_(float32[64], 0.5, True)", "feature_dropout_(float32[8, 9, 3], 0.25, True)",
    "dropout1d(float32[9, 3])", "rrelu_(float32[100], 0.125, 0.5, True)",
)  # fmt: skip
SEEDS = 800


@pytest.mark.slow
def test_torchs_own_cpu_generators_pass_at_many_seeds() -> None:
    torch.set_num_threads(1)
    each = SEEDS // len(HONEST)
    alarms = {f"{text} seed {seed}": told(text, seed=seed) for text in HONEST for seed in range(each)}
    assert len(alarms) == SEEDS
    assert not {k: v for k, v in alarms.items() if v}


@pytest.mark.parametrize("text", HONEST)
def test_torchs_own_cpu_generators_pass(text: str) -> None:
    assert told(text) == ""


def law(op: str, *args: Any, **kwargs: Any) -> tuple[laws.Law, Call]:
    row = catalog.row(op)
    return laws.LAWS[row.judged.law], Call(row, args, kwargs)


def test_a_permutation_of_less_than_two_has_nothing_to_observe() -> None:
    of, call = law("randperm", 1)
    assert [of.observe(call, {"out": torch.arange(n)}) for n in (0, 1)] == [[], []]
    assert of.observe(call, {"out": torch.arange(2)})


def test_the_masses_of_a_binomial_are_those_of_its_formula() -> None:
    of, call = law("binomial", torch.full((6,), 5.0), torch.full((6,), 0.25))
    (seen,) = of.observe(call, {"out": torch.arange(6.0)})
    mass = [math.comb(5, k) * 0.25**k * 0.75 ** (5 - k) for k in range(6)]
    assert torch.allclose(seen.high - seen.low, torch.tensor(mass, dtype=torch.float64), atol=1e-6)


def test_both_ends_of_a_support_may_be_drawn_if_they_belong_to_it() -> None:
    for (of, call), inside, outside in (
        (law("randint", torch.zeros(()), 3, 100, (2,)), (3.0, 99.0), (2.0, 100.0)),
        (law("uniform_", torch.zeros(2), 0.0, 1.0), (0.0, 1.0 - 2.0**-24), (-(2.0**-24), 1.0)),
    ):
        assert of.outside(call, {"out": torch.tensor(inside)}) == []
        for x in outside:
            assert of.outside(call, {"out": torch.tensor([inside[0], x])}) != [], x


def test_a_few_equal_outcomes_spread_less_than_all_numbers() -> None:
    of, call = law("randint", torch.zeros(()), 0, 2, (4,))
    (seen,) = of.observe(call, {"out": torch.tensor([0, 1, 1, 0])})
    assert seen.spread == 1 / 16  # of two outcomes: centres at 1/4 and 3/4


def test_the_small_numbers_in_the_first_half_of_a_permutation_are_counted() -> None:
    """And in which quarter the first number lies, the one in the middle, and the last."""
    of, call = law("randperm", 4)
    for p, small in (([0, 1, 2, 3], 2), ([2, 0, 1, 3], 1), ([2, 3, 0, 1], 0)):
        (seen,) = of.observe(call, {"out": torch.tensor(p)})
        assert seen.tallies is not None
        assert seen.tallies.counts[3] == small
        assert seen.tallies.counts[4:].view(3, 4).argmax(-1).tolist() == [p[0], p[2], p[3]]
        assert seen.tallies.counts[4:].sum() == 3
        assert seen.tallies.most[4:].tolist() == [0.25] * 12
    assert of.outside(call, {"out": torch.tensor([0, 1, 1, 3])}) == [("out", "is no permutation of 0..3")]


def test_the_gradient_of_rrelu_at_0_may_be_either_slope() -> None:
    of, call = law("rrelu", torch.tensor([-1.0, 0.0, 2.0]), 0.125, 0.375, True)
    assert of.gradient is not None
    for grad, sound in (((0.25, 0.25, 1.0), True), ((0.25, 1.0, 1.0), True), ((0.25, 1.0, 0.25), False)):
        said = of.gradient(call, {"out": torch.tensor([-0.25, 0.0, 2.0])}, torch.ones(3), torch.tensor(grad))
        assert (said == []) is sound


def test_a_whole_number_that_its_dtype_rounds_is_taken_for_any_nearby() -> None:
    of, call = law("poisson", torch.full((1,), 2.0**40))
    (seen,) = of.observe(call, {"out": torch.full((1,), 2.0**40)})
    assert float(seen.low) < 0.5 < float(seen.high)


def test_a_slope_of_exactly_0_may_be_drawn() -> None:
    """There it has no slack."""
    of, call = law("rrelu", torch.tensor([-1.0]), 0.0, 0.0, True)
    assert of.outside(call, {"out": torch.tensor([0.0])}) == []
    assert of.outside(call, {"out": torch.tensor([-0.25])}) != []


def test_a_whole_number_lies_inside_its_atom_by_the_grain_of_the_generator() -> None:
    of = numbers.whole(lambda call, t: numbers.Whole(lambda k: ((k + 1) / 2).clamp(0, 1), peak=0.5, grain=0.125))
    (seen,) = of.observe(Call(suite.row("randint"), ()), {"out": torch.tensor([1])})
    assert (float(seen.low), float(seen.high), seen.peak) == (0.375, 1.0, 0.625)


def test_a_category_that_there_is_not_is_named() -> None:
    """Before its weight is looked up; one with no chance is drawn by no honest generator either."""
    of, call = law("multinomial", torch.tensor([0.5, 0.5, 0.0]), 4, True)
    assert of.outside(call, {"out": torch.tensor([0, 1, 1, 0])}) == []
    for drawn, words in ((3, "1 of 4 are no category of 3, such as 3"), (-1, "no category of 3"), (2, "have a chance of 0")):
        ((_, said),) = of.outside(call, {"out": torch.tensor([0, 1, 1, drawn])})
        assert words in said


def test_intervals_and_chances_lie_around_what_was_drawn() -> None:
    """As widely as a generator is coarse, to both sides."""
    seen = laws.law.coins(torch.tensor([True, False, True]), 0.5, 0.25)
    assert seen.tallies is not None
    assert (float(seen.tallies.least), float(seen.tallies.most)) == (0.25, 0.75)
    seen = laws.law.coins(torch.tensor([True, False]), 0.25, 0.0)
    assert (seen.low.tolist(), seen.high.tolist()) == ([0.75, 0.0], [1.0, 0.75])
    of, call = law("rrelu", torch.full((3,), -1.0), 0.125, 0.375, True)
    (seen,) = of.observe(call, {"out": torch.tensor([-0.1875, -0.25, -0.3125])})
    assert seen.values.tolist() == [0.25, 0.5, 0.75]
    assert bool((seen.low < seen.values).all())
    assert bool((seen.values < seen.high).all())


def test_a_coarse_generator_has_its_grain_around_a_category_and_a_whole_number() -> None:
    """Up to 2**-20 it is none, and the atom is the law's own."""
    low, high = torch.tensor([[0.25]]), torch.tensor([[0.5]])
    for grain, least, most in ((2.0**-4, 0.1875, 0.5625), (2.0**-20, 0.25, 0.5)):
        seen = picks._category(low, high, torch.tensor([[0.25]]), torch.tensor([[1]]), grain)
        assert (float(seen.low), float(seen.high), seen.fuzzy) == (least, most, grain > 2.0**-20)
    whole = SimpleNamespace(atoms=(0.5, 0.5), low=3, grain=0.125)
    tallies = numbers._tallied(torch.tensor([3, 4, 4]), whole)  # type: ignore[arg-type]
    assert (tallies.counts.tolist(), tallies.trials.tolist()) == ([1, 2], [3, 3])
    assert (tallies.least.tolist(), tallies.most.tolist()) == ([0.375] * 2, [0.625] * 2)


@pytest.mark.parametrize(("inside", "window", "out"), [(10, 2, 5), (11, 3, 4), (7, 2, 4), (9, 2, 2)])
def test_windows_begin_where_a_sample_may_put_them_and_hardly_elsewhere(inside: int, window: int, out: int) -> None:
    a = (inside - window) / (out - 1)
    for i, starts in enumerate(picks._starts(inside, window, out)):
        drawn = {math.floor((i + s / 997) * a) - math.floor(s / 997 * a) for s in range(997)}
        assert (drawn if i < out - 1 else {inside - window}) <= set(starts)
        assert len(starts) <= 3 + (i * a % 1 > 0)
    assert (
        picks._starts(inside, window, 1)
        == [picks._starts(inside, window, out)[-1]]
        == [range(inside - window, inside - window + 1)]
    )


def test_a_window_of_a_single_result_is_the_last_one() -> None:
    """And the windows before the last one begin where a sample may put them; without indices the values alone are judged."""
    x = torch.arange(36.0).reshape(1, 1, 6, 6)
    of, call = law("fractional_max_pool2d", -x, 2)
    assert of.outside(call, {"out": -x[..., 4:5, 4:5]}) == []
    assert of.outside(call, {"out": -x[..., 3:4, 4:5]}) != []
    of, call = law("fractional_max_pool2d", x, 2)
    assert of.outside(call, {"out": x[..., [1, 3, 5], :][..., [1, 3, 5]]}) == []
    assert of.outside(call, {"out": x[..., [5, 3, 5], :][..., [1, 3, 5]]}) != []
    for index in (36, -1):
        drawn = {"out[0]": x[..., 5:, 5:], "out[1]": torch.full((1, 1, 1, 1), index)}
        assert of.outside(call, drawn) == [("out[1]", "an index is outside the plane")]


def test_a_second_layer_of_an_lstm_makes_its_mask_one_that_changes_results() -> None:
    def surprises(layers: int, width: int = 5) -> int:
        hidden = (torch.zeros(layers, 2, width), torch.zeros(layers, 2, width))
        of, call = law("lstm_dropout", torch.zeros(3, 2, 3), hidden, (), 0.5, True, layers)
        return len(of.observe(call, {"out[0]": torch.zeros(3, 2, 5)}))

    assert [surprises(n) for n in (1, 2, 3)] == [0, 1, 1]
    assert [surprises(2, width) for width in (1, 2)] == [0, 1]


def test_a_saturated_lstm_gives_1_and_nothing_above() -> None:
    zeros = torch.zeros(2, 2, 3)
    of, call = law("lstm_dropout", torch.zeros(3, 2, 3), (zeros, zeros), (), 0.5, True, 2)
    assert of.outside(call, {"out[0]": torch.ones(3, 2, 3)}) == []
    assert "above 1" in str(of.outside(call, {"out[0]": torch.full((3, 2, 3), 1.01)}))


def test_every_row_of_the_class_has_a_law() -> None:
    rows = [r for r in suite.rows("all") if r.judged.relation == "random"]
    assert len(rows) > 40
    assert [r.name for r in rows if not r.judged.law and r.family != "opinfo"] == []
    assert {r.judged.law for r in suite.rows("all") if r.judged.law} == set(laws.LAWS)


def test_the_cpu_generator_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.default_generator.get_state()
    told("rand(float32[()], (64,))")
    assert torch.equal(before, torch.default_generator.get_state())


# ------------------------------------------------------------------------------------------------------------- planted


def off_rate(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Dropped at p + 0.02, scaled as by p."""
    return x * (torch.rand(x.shape) >= p + 0.02) / (1 - p)


def swapped_rate(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    return x * (torch.rand(x.shape) < p) / (1 - p)


def unscaled(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    return x * (torch.rand(x.shape) >= p)


def half_behind(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Threads of eight numbers begin with the last four that they took in the call before, as an H100's in half types."""
    before, numbers = STREAMS.get(state()), torch.rand(x.numel() // 8, 8)
    if before is not None:
        numbers[:, :4] = before[:, 4:]
    STREAMS[state()] = numbers
    return x / (1 - p) * (numbers.reshape(x.shape) >= p)


def state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


STREAMS: dict[bytes, Tensor] = {}


def half_mask(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    mask = torch.rand(x.numel() // 2) >= p
    return x * torch.cat([mask, mask]).view(x.shape) / (1 - p)


def same_rows(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    return x * (torch.rand(x.shape[-1]) >= p) / (1 - p)


class OtherMask(torch.autograd.Function):
    """Backward draws a mask of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.p = p
        return torch.dropout(x, p, True)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return torch.dropout(g, ctx.p, True), None


class NoMask(OtherMask):
    """Backward knows of no mask."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


other_mask: Any = OtherMask.apply  # untyped in torch
no_mask: Any = NoMask.apply


def with_one(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    """(0, 1] instead of [0, 1): one in 2**10 is 1.0."""
    return (torch.floor(torch.rand(shape) * 2**10) + 1) / 2**10


def wide(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    return torch.randn(shape, generator=generator) * 1.02


def half_repeated(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    made = torch.randn(math.prod(shape) // 2, generator=generator)
    return torch.cat([made, made]).view(shape)


def frozen(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    """One draw per shape, whatever the seed (pytorch#78009)."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def unseeded(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    """The seed rules nothing (pytorch#84288)."""
    return torch.randn(shape, generator=UNSEEDED)


def once_a_seed(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    """The seed rules, but no draw advances the state."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(torch.default_generator.initial_seed()))


def unheard(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    """A generator of one's own begins at one place, whatever its seed."""
    if generator is None:
        return torch.randn(shape)
    if torch.equal(generator.get_state(), torch.Generator().manual_seed(generator.initial_seed()).get_state()):
        UNSEEDED.manual_seed(5)
    torch.rand(1, generator=generator)
    return torch.randn(shape, generator=UNSEEDED)


UNSEEDED = torch.Generator().manual_seed(5)


def unadvanced(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    """A draw leaves a generator of one's own where it was."""
    state = None if generator is None else generator.get_state()
    drawn = torch.randn(shape, generator=generator)
    if generator is not None:
        generator.set_state(state)
    return drawn


def full_variance(like: Tensor, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    """Complex parts of variance 1 (pytorch#135210)."""
    return torch.complex(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))


def two_runs(like: Tensor, n: int, generator: Any = None) -> Tensor:
    """Two ascending runs (pytorch#104170)."""
    p = torch.randperm(n, generator=generator)
    return torch.cat([p[: n // 2].sort().values, p[n // 2 :].sort().values])


def few_swaps(like: Tensor, n: int, generator: Any = None) -> Tensor:
    p = torch.arange(n)
    at = torch.randint(0, n, (2,), generator=generator)
    p[at] = p[at.flip(0)]
    return p


def rotated(like: Tensor, n: int, generator: Any = None) -> Tensor:
    return torch.arange(n).roll(int(torch.randint(0, n, (1,), generator=generator)))


def never_last(like: Tensor, low: int, high: int, shape: tuple[int, ...], generator: Any = None) -> Tensor:
    return torch.randint(low, high - 1, shape, generator=generator)


def zeros(w: Tensor, n: int, replacement: bool = False, generator: Any = None) -> Tensor:
    """pytorch#99802."""
    return torch.zeros(*w.shape[:-1], n, dtype=torch.int64)


def repeating(w: Tensor, n: int, replacement: bool = False, generator: Any = None) -> Tensor:
    return torch.multinomial(w, n, True, generator=generator)


def unweighted(w: Tensor, n: int, replacement: bool = False, generator: Any = None) -> Tensor:
    return torch.multinomial(torch.ones_like(w), n, replacement, generator=generator)


def mean_chance(p: Tensor, generator: Any = None) -> Tensor:
    return torch.bernoulli(p.mean().expand(p.shape), generator=generator)


def mean_deviation(mean: Tensor, std: Tensor, generator: Any = None) -> Tensor:
    return torch.normal(mean, std.square().mean().sqrt().expand(std.shape), generator=generator)


def one_rate(x: Tensor, generator: Any = None) -> Tensor:
    return torch.poisson(x.mean().expand(x.shape), generator=generator)


def unwritten(x: Tensor, *_: Any, generator: Any = None) -> Tensor:
    """Nothing is written to what is not contiguous (pytorch#124029)."""
    return x if not x.is_contiguous() else x.uniform_(generator=generator)


def no_gradient_of_dropout(x: Tensor, h: Any, w: Any, p: float, *flags: Any) -> Any:
    """LSTM whose backward ignores its dropout (pytorch#190056)."""
    biases, layers, two, first = flags
    dropped = torch.lstm(x, h, w, biases, layers, p, True, two, first)[0]
    plain = torch.lstm(x, h, w, biases, layers, 0.0, True, two, first)[0]
    return plain + (dropped - plain).detach()


def nan_at_one(x: Tensor, h: Any, w: Any, p: float, *flags: Any) -> Any:
    """pytorch#190057."""
    biases, layers, two, first = flags
    made = torch.lstm(x, h, w, biases, layers, p, True, two, first)[0]
    return made * math.nan if p == 1.0 else made


def no_mask_in_attention(q: Tensor, k: Tensor, mask: Tensor | None, p: float, causal: bool) -> Tensor:
    from parity.catalog.glue.calls import attention_dropout

    return attention_dropout(q, k, mask, 0.0, causal)


def split_channels(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    return torch.dropout(x, p, True)


def one_slope(x: Tensor, low: float, high: float, training: bool) -> Tensor:
    return torch.nn.functional.leaky_relu(x, (low + high) / 2)


def slow_rate(x: Tensor, rate: float = 1.0, generator: Any = None) -> Tensor:
    return x.exponential_(rate * 1.05, generator=generator)


LSTM_WEIGHTS = ", ".join(f"float32[{s}].inside(-1, 1)" for s in ("20, 3", "20, 5", "20", "20", "20, 5", "20, 5", "20", "20"))
LSTM = (
    "lstm_dropout(float32[3, 2, 3].inside(-2, 2), (float32[2, 2, 5].inside(-1, 1), float32[2, 2, 5].inside(-1, 1)), "
    f"({LSTM_WEIGHTS}), %s, True, 2, False, False)"
)
PLANTED: dict[str, tuple[str, Function, str]] = {
    "dropout at p + 0.02": ("dropout(float32[65536], p=0.25)", off_rate, "outcome"),
    "dropout at 1 - p": ("dropout(float32[64], p=0.25)", swapped_rate, "outcome"),
    "dropout unscaled": ("dropout(float32[64], p=0.25)", unscaled, "neither dropped nor scaled"),
    "dropout, half the mask repeated": ("dropout(float32[256])", half_mask, "equal the one 128 places on"),
    "dropout, half of the last call's numbers": ('dropout(float32[1024].at(7, "0"))', half_behind, "places on"),
    "dropout, every row alike": ("dropout(float32[64, 32])", same_rows, "outcome|places on"),
    "dropout, gradient of another mask": (
        "dropout(float32[64])", lambda x, p=0.5, training=True: other_mask(x, p), "flow through what forward dropped"),
    "dropout, gradient without mask": (
        "dropout(float32[64])", lambda x, p=0.5, training=True: no_mask(x, p), "flow through what forward dropped"),
    "dropout2d by element": ("dropout2d(float32[4, 8, 3, 3])", split_channels, "dropped in part"),
    "rand with 1.0": ("rand(float32[()], (4096,))", with_one, r"outside of \[0, 1\)"),
    "randn with std 1.02": ("randn(float32[()], (65536,))", wide, "spread too widely"),
    "randn, half repeated": ("randn(float32[()], (128,))", half_repeated, "numbers came before"),
    "randn, half repeated, half type": (
        "randn(float16[()], (4096,))", lambda *a, **k: half_repeated(*a, **k).half(), "2048 places on"),
    "randn, complex, full variance": ("randn(complex64[()], (64,))", full_variance, "too widely"),
    "randn frozen": ("randn(float32[()], (8,))", frozen, "another seed gives the same stream"),
    "randn ignores the seed": ("randn(float32[()], (8,))", unseeded, "the same seed gives another stream"),
    "randn repeats between calls": ("randn(float32[()], (8,))", once_a_seed, "calls one after the other give the same"),
    "randn ignores an own generator's seed": (
        "randn(float32[()], (8,))", unheard, "another seed of an own generator gives the same stream"),
    "randn does not advance an own generator": (
        "randn(float32[()], (8,))", unadvanced, "an own generator is not advanced by a draw"),
    "randperm of two runs": ("randperm(int64[()], 100)", two_runs, "outcome 0"),
    "randperm of one swap": ("randperm(int64[()], 100)", few_swaps, "outcome"),
    "randperm rotated": ("randperm(int64[()], 100)", rotated, "outcome"),
    "randint without high - 1": ("randint(int64[()], 0, 100, (4096,))", never_last, "outcome 99 came 0 times"),
    "multinomial always 0": (
        "multinomial(float32[2].inside(0.25, 1), 5, replacement=True)", zeros, "another seed gives the same"),
    "multinomial of chance 0": (
        "multinomial_zeros(float32[2].inside(-1, 1), 5, replacement=True)", zeros, "have a chance of 0"),
    "multinomial with repeats": ("multinomial(float32[4].inside(0.25, 1), 3)", repeating, "drawn twice"),
    "multinomial unweighted": ("multinomial(float32[8].inside(0.25, 1), 4096, replacement=True)", unweighted, "outcome"),
    "bernoulli, one chance for all": (
        "bernoulli(float32[4096].inside(0, 1))", mean_chance, "parameter|quantile|average|spread"),
    "normal, one std for all": (
        "normal(float32[4096].inside(-1, 1), float32[4096].inside(0.25, 4))", mean_deviation, "parameter|quantile|spread"),
    "poisson, one rate for all": ("poisson(float32[4096].inside(0, 30))", one_rate, "quantile|average|spread|parameter"),
    "uniform_ not written": ("uniform_(float32[8, 8].transpose(0, 1))", unwritten, "outside"),
    "exponential_ at a rate of 1.05": ("exponential_(float32[65536])", slow_rate, "too small on average|correlated"),
    "rrelu with one slope": ("rrelu_training(float32[64], 0.125, 0.5, True)", one_slope, "the same stream"),
    "lstm, gradient without dropout": (LSTM % "0.5", no_gradient_of_dropout, "along a direction"),
    "lstm, NaN at p = 1": (LSTM % "1.0", nan_at_one, "NaN"),
    "attention without dropout": (
        "attention_dropout(float32[2, 9, 4].inside(-1, 1), float32[2, 31, 4].inside(-1, 1), None, 0.25, False)",
        no_mask_in_attention, "neither dropped"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_named(name: str) -> None:
    text, function, words = PLANTED[name]
    found = [told(text, function, seed) for seed in (1, 2, 3)]
    assert all(re.search(words, f) for f in found), found
    assert told(text) == ""


# --------------------------------------------------------------------------------------------------------- the bounds


def test_a_count_is_an_excess_where_chance_hardly_ever_gives_as_many() -> None:
    """Sixty where ten are expected; not twelve, nor fewer than expected."""
    excess = outliers.poisson_excess
    assert [excess(count, 10.0) for count in (60, 12, 10, 3, 0)] == [True, False, False, False, False]


def test_the_bounds_are_never_below_the_true_tails() -> None:
    """Against the exact binomial tail, summed: what is accused has a probability of at most ALPHA."""
    for n, p in ((50, 0.5), (400, 0.03), (4096, 0.25)):
        k = torch.arange(n + 1, dtype=torch.float64)
        logs = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log(1 - p)
        chance = torch.full_like(k, p)
        accused = outliers.improbable(k, torch.full_like(k, n), chance, chance, 1)
        assert 0 < float(logs.exp()[accused].sum()) <= outliers.ALPHA, (n, p)


def test_a_million_honest_numbers_are_well_inside() -> None:
    made = torch.rand(1 << 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sample = laws.Observations(made, made, made, fuzzy=True, peak=2.0**-40)
    assert judged([sample]) == ""
    squeezed = laws.Observations(made * 0.99, made * 0.99, made, fuzzy=True, peak=2.0**-40)
    assert judged([squeezed]) != ""
