"""What `assert_parity` and `compare` leave out of an agreement, and what they find in half types and under autocast."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import register_pytree_node

from parity import Call, Fault, ParityFailure, ParityWarning, assert_parity, compare
from parity.comparing import moved_runs, screens, truth
from parity.comparing.truth import FunctionTruth
from parity.core.errors import NothingCompared, UsageError
from parity.core.results import Status
from parity.devices import resolve
from parity.devices.sim import honest
from parity.locating import search
from parity.oracle.limited_range import Limited
from parity.oracle.sensitivity import PERTURBATIONS


def _scenarios() -> Any:
    path = Path(__file__).parents[2] / "bench" / "functions.py"
    spec = importlib.util.spec_from_file_location("bench_functions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCH = _scenarios()
SAMPLE = [s for s in BENCH.SCENARIOS if "BERT" not in s.name and "float16, mask" not in s.name][::2]
SLOW = [k % 4 > 0 or s.name.startswith("ten layers") for k, s in enumerate(SAMPLE)]
SPREAD = [pytest.param(s, marks=[pytest.mark.slow] if slow else []) for s, slow in zip(SAMPLE, SLOW, strict=True)]


@functools.cache
def on_the_honest_device(model: str) -> str:
    """What is said of a model, once for all faults that are planted in it."""
    make = next(s.make for s in SAMPLE if s.name.rpartition(", ")[0] == model)
    said: str = BENCH.said(make, resolve("sim", tuple(honest.FAULTS)))[0]
    return said


@pytest.mark.parametrize("scenario", SPREAD, ids=lambda s: s.name)
def test_one_faulty_kernel_is_found_and_honest_ones_are_not(scenario: Any) -> None:
    assert on_the_honest_device(scenario.name.rpartition(", ")[0]) == "agrees"
    assert BENCH.said(scenario.make, resolve("sim", (BENCH.scaled(scenario.ops, scenario.factor),)))[0] != "agrees"


def test_a_tensor_of_which_nothing_was_judged_is_told_aloud() -> None:
    """1e30 squared leaves float32: what a device makes of it says nothing, here NaN."""
    x = torch.full((4,), 1e30)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * x / x, x + 1.0

    with pytest.warns(ParityWarning, match="no element could be judged: numbers on the way leave the range"):
        found = compare(f, (x * torch.nan, x + 1.0), (x, x + 1.0), x)
    assert [n for n, _ in found.verdicts] == ["out[1]"]
    with pytest.raises(NothingCompared):
        compare(lambda x: x * x / x, x * torch.nan, x, x)


def test_a_row_that_leaves_the_range_is_counted() -> None:
    x = torch.ones(2, 4)
    x[0] = torch.tensor([1e30, -1e30, 2e30, 0.0])
    right = torch.nn.functional.layer_norm(x.double(), (4,)).float()
    off = right.clone()
    off[0] = torch.nan
    found = compare(lambda x: torch.nn.functional.layer_norm(x, (4,)), off, right, x)
    assert "4 of 8 elements judged: numbers on the way leave the range" in str(found)


def test_the_detail_of_an_agreement_says_what_it_excludes(capsys: pytest.CaptureFixture[str]) -> None:
    got = assert_parity(nn.Linear(16, 16), torch.randn(8, 16), device="sim", detail=True)
    assert set(got.limits) == {"out", "grad[weight]", "grad[bias]"}
    line = next(line for line in str(got).splitlines() if line.startswith("  out: "))
    assert line.startswith("  out: an error of 0.000")
    assert line.endswith(" % in all at once would have been reported (tolerances/default.toml: contraction float32 forward)")
    assert capsys.readouterr().out == f"{got}\n"
    x = torch.linspace(-2, 2, 100)
    assert compare(torch.sigmoid, x.sigmoid(), x.sigmoid(), x, detail=True).limits["out"].factor < 1e-4


def test_what_a_detail_says_would_be_told_is_told_and_what_lies_below_is_not() -> None:
    x = torch.linspace(-2, 2, 100)
    y, known = x.exp(), compare(torch.exp, x.exp(), x.exp(), x, detail=True).limits["out"]
    every = min(float(known.relative.min()), known.factor)
    assert compare(torch.exp, y * (1 + 2 * every), y, x).findings
    assert not compare(torch.exp, y * (1 + every / 4), y, x).findings
    at = 50
    for times, found in ((2.0, True), (0.5, False)):
        one = y.clone()
        one[at] += times * float(known.reported_above[at])
        assert bool(compare(torch.exp, one, y, x).findings) is found


def test_complex_results_with_a_difference_are_findings() -> None:
    x = torch.randn(8, dtype=torch.complex64)
    found = compare(torch.exp, torch.exp(x) * 1.01, torch.exp(x), x)
    assert [n for n, _ in found.findings] == ["out"]


# ---------------------------------------------------------------------------------------------------- what people hand in


def test_inputs_that_must_stay_on_the_cpu_do() -> None:
    """`pack_padded_sequence` refuses lengths on a device."""
    rnn = nn.RNN(4, 5, batch_first=True)

    def run(rnn: nn.RNN, x: Tensor, lengths: Tensor) -> Tensor:
        assert lengths.device.type == "cpu"
        packed, _ = rnn(pack_padded_sequence(x, lengths, batch_first=True))
        return pad_packed_sequence(packed, batch_first=True)[0]

    inputs = torch.randn(3, 6, 4), torch.tensor([6, 4, 2])
    got = assert_parity(run, rnn, *inputs, device="sim", keep_on_cpu="lengths")
    assert "grad[rnn.weight_ih_l0]" in dict(got.verdicts)
    with pytest.raises(UsageError, match="keep_on_cpu names 'length', which no input is called; allowed: rnn, x, lengths"):
        assert_parity(run, rnn, *inputs, device="sim", keep_on_cpu=["length"])


class Pair:
    """A container that pytree opens, and has no names for."""

    def __init__(self, one: Any, two: Any) -> None:
        self.one, self.two = one, two


register_pytree_node(Pair, lambda p: ([p.one, p.two], None), lambda xs, _: Pair(*xs))


def test_containers_without_names_are_numbered() -> None:
    x = torch.randn(3)
    got = assert_parity(lambda p: {"a": Pair(p.one.exp(), p.two)}, Pair(x, x * 2), device="sim")
    assert list(dict(got.verdicts))[:2] == ["out['a'][0]", "out['a'][1]"]


def test_mappings_of_ones_own_are_opened() -> None:
    got = assert_parity(lambda x: UserDict(y=x.exp()), torch.randn(3), device="sim")
    assert list(dict(got.verdicts)) == ["out['y']"]


def test_a_model_that_is_captured_and_trained_is_named_and_put_back() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    with pytest.raises(UsageError, match=r"step changes 'model', .*: pass model and optimizer as arguments"):
        assert_parity(step, torch.randn(3, 4), device="sim")
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))
    assert not optimizer.state


def test_a_model_and_its_optimizer_are_copied_together() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
        torch.autograd.backward(model(x).square().mean())
        optimizer.step()

    got = assert_parity(step, model, optimizer, torch.randn(3, 4), device="sim")
    assert {"after[model.weight]", "after[model.bias]"} <= set(dict(got.verdicts))


# ------------------------------------------------------------------------------------------------- autocast and casts


def test_a_step_that_the_function_casts_is_rounded_as_it_is_there() -> None:
    """float16 inside a float32 function: the CPU's half product and the device's may differ by a half's rounding."""

    def f(a: Tensor, b: Tensor) -> Tensor:
        return (a.half() @ b.half()).float() + 1.0

    a, b = torch.randn(8, 16), torch.randn(16, 8)
    right = f(a, b)
    nudged = (torch.nextafter((a.half() @ b.half()), torch.tensor(9.0, dtype=torch.float16))).float() + 1.0
    assert not compare(f, nudged, right, a, b).findings
    assert compare(f, (a.half() @ b.half() * 1.02).float() + 1.0, right, a, b).findings


@pytest.mark.slow
def test_random_models_on_the_honest_device_raise_no_alarm() -> None:
    sound = resolve("sim", tuple(honest.FAULTS))
    assert [BENCH.said(BENCH.random_model(k), sound)[0] for k in range(6)] == ["agrees"] * 6


@pytest.mark.parametrize("k", [pytest.param(305, marks=pytest.mark.slow), 667])
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_the_variance_that_half_types_leave_of_nearly_equal_numbers_is_no_difference(k: int, factor: float) -> None:
    """Sigmoids of numbers near 0 lie within a unit in the last place, and rounding alone decides which of them are equal: a
    norm divides by what is left of their variance."""
    device = resolve("sim", (BENCH.scaled(("sigmoid",), factor), *honest.FAULTS) if factor > 1.0 else tuple(honest.FAULTS))
    assert (BENCH.said(BENCH.random_model(k), device)[0] == "agrees") is (factor == 1.0)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_what_coarse_roundings_lean_by_to_either_side_excuses_no_percent(factor: float) -> None:
    """They do so by chance: only what all of them lean by to one side is left of a variance."""
    torch.manual_seed(0)
    x, w = (torch.randn(shape).bfloat16().requires_grad_() for shape in ((16, 32), (32, 8)))

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x @ w, (torch.arange(16) % 8).to(x.device))

    device = resolve("sim", (Fault("off", ("mm",), lambda call: call.run() * factor), *honest.FAULTS))
    if factor == 1.0:
        assert assert_parity(loss, x, w, device=device).agrees
        return
    with pytest.raises(ParityFailure, match=r"drift in grad\[x\]"):
        assert_parity(loss, x, w, device=device)


@pytest.mark.slow
def test_running_statistics_of_half_types_are_judged() -> None:
    """Their kernel writes them; what is moved to see what rounding does must not be a copy of theirs."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).bfloat16()
    x = torch.randn(33, 4).bfloat16()
    doubled = Fault("doubled", ("native_batch_norm",), _mean_doubled, level="kernel")
    with pytest.raises(ParityFailure, match="running_mean"):
        assert_parity(model, x, device=resolve("sim", (doubled,)))


def _mean_doubled(call: Call) -> object:
    made = call.run()
    call.args[3].mul_(2.0)
    return made


def test_a_norm_without_an_epsilon_takes_that_of_its_dtype() -> None:
    """A run in float64 would take another one."""
    assert not assert_parity(torch.nn.RMSNorm(8), 1e-3 * torch.randn(3, 8), device="sim", detail=True).findings


def test_a_kink_is_no_difference() -> None:
    """Numbers about 0 in front of a ReLU: which of them are above it is decided by rounding."""
    x = torch.zeros(64)
    actual = torch.where(torch.arange(64) % 2 == 0, 3e-8, 0.0)

    def function(t: torch.Tensor) -> torch.Tensor:
        return ((t + 1.0) * (1.0 / 3.0) - 1.0 / 3.0).relu()

    assert not compare(function, actual, function(x), x).findings
    assert compare(function, actual * 1000.0, function(x), x).findings


def large() -> nn.Module:
    """Of more elements than those functions have whose samples are all taken."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))


def samples(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list that gets the size of the roundings of each run in float64 of a function with its gradients: those of an operator
    by itself are not in it."""
    taken: list[float] = []
    take = FunctionTruth._take_one

    def counted(self: FunctionTruth, some: Any, k: int, times: float) -> bool:
        taken.extend([times] * self._backward)
        return take(self, some, k, times)

    monkeypatch.setattr(FunctionTruth, "_take_one", counted)
    return taken


def unlocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody finds where the device diverges."""
    monkeypatch.setattr(search.Sought, "found", None)


def test_an_operator_that_is_wrong_by_itself_spares_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is known to be wrong, so that only the size of the errors is asked, and drift stays drift."""
    taken = samples(monkeypatch)
    device = resolve("sim", (BENCH.scaled(("addmm", "linear"), 1.001),))
    with pytest.raises(ParityFailure) as failed:
        assert_parity(large(), torch.randn(16, 512), device=device)
    found = failed.value.comparison
    assert "diverges from the CPU first in 0 (Linear), forward: aten::linear drift" in found.where
    assert {v.status for _, v in found.findings} == {Status.DRIFT}
    assert "test_verdicts.py:" in found.where
    assert "out" in dict(found.findings)
    assert not taken


@pytest.mark.parametrize("factor", [1.0, 1.0001])
def test_large_numbers_of_a_row_do_not_stand_for_the_small_ones_next_to_a_wrong_one(factor: float) -> None:
    """Another error, of small elements, is found as well, and not said to lie within what rounding allows."""
    torch.manual_seed(0)
    x, z = torch.randn(512, 600), torch.randn(64, 14)
    device = resolve("sim", (BENCH.scaled(("exp",), 2.0), BENCH.scaled(("sin",), factor), *honest.FAULTS))
    with pytest.raises(ParityFailure, match=r"first in torch\.Tensor\.exp") as failed:
        assert_parity(lambda x, z: (x.exp(), torch.cat((z.sin(), z[:, :2] * 1e4), -1)), x, z, device=device)
    assert ("out[1]" in dict(failed.value.comparison.findings)) is (factor > 1.0)


def test_few_samples_make_the_budget_of_a_large_function_whatever_the_device_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same next to a result that is far outside, and where all are honest."""
    taken, asked, budgets = samples(monkeypatch), list[FunctionTruth](), list[Tensor]()
    unlocated(monkeypatch)
    real = FunctionTruth.__init__

    def noted(self: FunctionTruth, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        asked.extend([self] * self._backward)

    monkeypatch.setattr(FunctionTruth, "__init__", noted)
    for factor in (1.0, 1.01, 2.0):
        device = resolve("sim", (BENCH.scaled(("addmm", "linear"), factor), *honest.FAULTS))
        with pytest.raises(ParityFailure) if factor > 1.0 else contextlib.nullcontext():
            assert_parity(large().bfloat16(), torch.ones(16, 512).bfloat16(), device=device)
        assert asked[-1].truth("out") is not None
        while asked[-1].take_more_samples():
            pass
        budgets.append(asked[-1].sensitivity("out", 0.0, 0.0))
    assert all(torch.equal(budgets[0], other) for other in budgets)
    assert taken.count(1.0) == 3 * PERTURBATIONS
    assert taken.count(16.0) <= 3 * PERTURBATIONS


@pytest.mark.parametrize("off", [1.0, 1.01])
def test_the_words_that_nobody_said_ask_for_no_more_samples(off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedding's gradient is 0 but for a few rows: where these are far outside, no more samples explain it."""
    taken = samples(monkeypatch)
    unlocated(monkeypatch)

    def scaled(call: Call) -> Any:
        first, *others = call.run()
        return (first * off, *others)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(8192, 64), nn.LayerNorm(64), nn.Linear(64, 8))
    device = resolve("sim", (Fault("scaled", ops=("native_layer_norm_backward",), effect=scaled, level="kernel"),))
    with contextlib.suppress(ParityFailure) if off != 1.0 else contextlib.nullcontext():
        found = assert_parity(net, torch.randint(8192, (32,)), device=device)
        assert off == 1.0
        assert found.agrees
    assert (0 < taken.count(1.0) <= PERTURBATIONS) is (off != 1.0)
    assert taken.count(16.0) <= 1


def test_one_moved_run_and_one_for_the_range_are_enough_far_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def counted(name: str, call: Any) -> Any:
        def counting(*args: Any, **kwargs: Any) -> Any:
            runs.append(name)
            return call(*args, **kwargs)

        return counting

    monkeypatch.setattr(screens, "moved_results", counted("moved", moved_runs.moved_results))
    monkeypatch.setattr(truth, "Limited", counted("limited", Limited))
    unlocated(monkeypatch)
    with pytest.raises(ParityFailure):
        assert_parity(large(), torch.randn(16, 512), device=resolve("sim", (BENCH.scaled(("addmm", "linear"), 1.01),)))
    assert runs == ["moved", "limited"]


def test_nothing_is_left_out_on_an_honest_device() -> None:
    found = assert_parity(large(), torch.randn(16, 512), device=resolve("sim", tuple(honest.FAULTS)))
    assert len(found.verdicts) == 7


def test_a_nan_is_found_next_to_a_result_far_outside() -> None:
    """Whatever else is wrong excuses no class of numbers."""

    def lost(call: Call) -> Any:
        made = call.run()
        made[..., 3] = torch.nan
        return made

    one = large()
    device = resolve(
        "sim",
        (BENCH.scaled(("addmm", "linear"), 1.01), Fault("lost", ops=("threshold_backward",), effect=lost, level="kernel")),
    )
    with pytest.raises(ParityFailure) as failed:
        assert_parity(one, torch.randn(16, 512), device=device)
    assert {"out", "grad[2.bias]", "grad[0.weight]"} <= {n for n, _ in failed.value.comparison.findings}


@pytest.mark.parametrize("name", ["var_mean", "std_mean"])
@pytest.mark.parametrize("given", [-torch.inf, torch.nan, 0.0])
def test_a_mean_of_inf_may_be_nan_and_no_number(name: str, given: float) -> None:
    """The CPU itself gives -Inf or NaN for a mean of -Inf, by the layout."""

    def effect(call: Call) -> Any:
        spread, mean = call.run()
        return spread, torch.where(mean.isfinite(), mean, given)

    x = torch.arange(12.0).view(3, 4)
    x[2, 1] = -torch.inf
    device = resolve("sim", (Fault("mean", (name,), effect, level="kernel"),))
    if given != 0.0:
        assert assert_parity(lambda t: getattr(torch, name)(t, 0), x, device=device).agrees
        return
    with pytest.raises(ParityFailure, match=r"wrong in out\[1\]"):
        assert_parity(lambda t: getattr(torch, name)(t, 0), x, device=device)


@pytest.mark.parametrize(("given", "at_nan"), [(-torch.inf, True), (0.0, True), (torch.nan, False)])
def test_a_weight_next_to_0_makes_nan_of_inf_or_leaves_it(given: float, at_nan: bool) -> None:
    """The middle of three elements lies at a whole number, or next to one: 0 times Inf, or Inf. A number there is wrong, and
    so is NaN in place of a number."""

    def effect(call: Call) -> Any:
        made = call.run()
        return torch.where(made.isnan() if at_nan else made.isfinite(), given, made)

    x = torch.tensor([-torch.inf, -47.5, 49.5, 22.5]).view(1, 1, 4, 1)
    device = resolve("sim", (Fault("weights", ("upsample_bilinear2d",), effect, level="kernel"),))
    with contextlib.nullcontext() if given == -torch.inf else pytest.raises(ParityFailure, match="wrong in out"):
        assert_parity(bilinear, x, device=device)


def bilinear(x: Tensor) -> Tensor:
    """Resampled to other sizes in both dimensions."""
    return nn.functional.interpolate(x, size=(11, 3), mode="bilinear")


@pytest.mark.parametrize("name", ["erfinv", "log", "atanh"])
def test_nan_at_a_pole_is_told_though_an_operand_next_to_it_gives_nan(name: str) -> None:
    """Both sides are given the end of the domain itself, where the result is Inf."""

    def effect(call: Call) -> Any:
        made = call.run()
        return torch.where(made.isinf(), torch.nan, made)

    def function(x: Tensor) -> Tensor:
        return torch.log(1.0 - x) if name == "log" else getattr(torch, name)(x)

    device = resolve("sim", (Fault("poles", (name,), effect, level="kernel"),))
    with pytest.raises(ParityFailure, match="wrong in out"):
        assert_parity(function, torch.tensor([0.5, 1.0, 0.25]), device=device)


@pytest.mark.parametrize("way", [bilinear, lambda x: torch.var_mean(x, 2)[1]])
def test_nan_for_the_log_of_0_is_told_behind_an_average_of_numbers(way: Callable[[Tensor], Tensor]) -> None:
    """No weight of a resampling and no update of a mean makes NaN of numbers."""

    def effect(call: Call) -> Any:
        made = call.run()
        return torch.where(made.isinf(), torch.nan, made)

    device = resolve("sim", (Fault("poles", ("log",), effect, level="kernel"),))
    with pytest.raises(ParityFailure, match="wrong in out"):
        assert_parity(lambda x: torch.log(way(x) * 0.0), torch.ones(1, 1, 4, 1), device=device)


@pytest.mark.parametrize("cancels", [True, False])
def test_the_sign_of_inf_is_free_where_a_rounding_decides_it(cancels: bool) -> None:
    """Inf times a sum of differences from the mean, of which nothing but roundings remain."""

    def infinite(x: Tensor) -> Tensor:
        return (x - x.mean() if cancels else x).sum() * torch.inf

    def effect(call: Call) -> Any:
        made = call.run()
        return torch.where(made.isinf(), -made, made)

    device = resolve("sim", (Fault("turned", ("mul",), effect, level="kernel"),))
    with contextlib.nullcontext() if cancels else pytest.raises(ParityFailure, match="wrong in out"):
        assert_parity(infinite, torch.linspace(0.1, 0.7, 7), device=device)


def margin(x: Tensor) -> Tensor:
    """The loss of each number next to the sign of another."""
    return nn.functional.soft_margin_loss(x, x.detach().flip(0).sign(), reduction="none")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("f", "last"), [(margin, "log1p"), (functools.partial(torch.logsumexp, dim=1), "log")])
def test_an_operator_of_several_kernels_hands_on_half_types(f: Any, last: str, dtype: torch.dtype) -> None:
    """On every device its roundings come one after the other, as on the honest one; 5 % is found in spite of them."""
    torch.manual_seed(0)
    x = torch.randn(400, 2).to(dtype).requires_grad_()
    assert_parity(f, x, device=resolve("sim", tuple(honest.FAULTS)))
    with pytest.raises(ParityFailure, match="in out"):
        assert_parity(f, x, device=resolve("sim", (BENCH.scaled((last,), 1.05), *honest.FAULTS)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_to_a_half_type_rounds_what_was_computed(dtype: torch.dtype) -> None:
    """A result that is cast afterwards lies on either side of a number's middle; what is off by more than that is found."""

    def cast(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).to(dtype).float() * 2.0

    torch.manual_seed(0)
    x, w = torch.randn(300, 30), torch.randn(30, 300)
    assert_parity(cast, x, w, device=resolve("sim", tuple(honest.FAULTS)))
    with pytest.raises(ParityFailure, match="in out"):
        assert_parity(cast, x, w, device=resolve("sim", (BENCH.scaled(("mm",), 1.01), *honest.FAULTS)))


class Branches(nn.Module):
    """A large function of two results."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.a(x)), nn.functional.gelu(self.b(x))


@pytest.mark.parametrize("columns", [200, 20])
def test_a_result_of_which_some_elements_are_far_outside_is_found_next_to_another(columns: int) -> None:
    """Of 512 columns: whatever else is wrong, a result is judged as by itself."""

    def off(call: Call) -> Any:
        made = call.run()
        made[..., :columns] += 1.0
        return made

    faults = Fault("tanh", ("tanh",), lambda c: c.run() * 50, level="kernel"), Fault("gelu", ("gelu",), off, level="kernel")
    with pytest.raises(ParityFailure) as failed:
        assert_parity(Branches(), torch.randn(16, 512), device=resolve("sim", faults), backward=False)
    found = failed.value.comparison
    assert {n for n, _ in found.findings} == {"out[0]", "out[1]"}


class AtAKink(nn.Module):
    """A large function of two branches, one with a ReLU whose first argument is so many roundoffs above 0."""

    def __init__(self, x: Tensor, gap: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(512, 512), nn.Linear(512, 4), nn.Linear(4, 64)
        self.d, self.e = nn.Linear(512, 512), nn.Linear(512, 64)
        with torch.no_grad():
            inside = torch.tanh(self.a(x)).double() @ self.b.weight.double().T
            self.b.bias.copy_(torch.tensor([gap * 2.0**-24, 0.3, 0.3, 0.3]).double() - inside[0])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        turned = torch.relu(self.b(torch.tanh(self.a(x))))
        return self.c(turned), self.e(nn.functional.gelu(self.d(x)))


def test_a_kink_hides_no_fault_of_other_gradients() -> None:
    """The gradient that a kink moved is far outside at first, and agrees once the kink is known."""

    def turned(call: Call) -> Any:
        made = call.run()
        if made.shape == (1, 4):
            made[0, made[0].abs().argmin()] = -1e-8
        return made

    def doubled(call: Call) -> Any:
        made = call.run()
        made[..., 3] *= 2
        return made

    torch.manual_seed(1)
    x, gap = torch.randn(1, 512), 10.0
    kink = Fault("turned", ops=("addmm", "linear"), effect=turned, level="kernel")
    assert any("jumps at 0" in n for n in assert_parity(AtAKink(x, gap), x, device=resolve("sim", (kink,))).notes)
    for fault in (BENCH.scaled(("gelu_backward",), 1.0001), Fault("doubled", ("gelu_backward",), doubled, level="kernel")):
        with pytest.raises(ParityFailure) as failed:
            assert_parity(AtAKink(x, gap), x, device=resolve("sim", (kink, fault)))
        findings = {n for n, _ in failed.value.comparison.findings}
        assert "grad[d.weight]" in findings
        assert not findings & {"grad[a.weight]", "grad[b.weight]"}


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_a_dtype_that_cannot_be_cast_is_left_out() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, torch.zeros(4, dtype=torch.uint8, device=x.device).view(torch.float4_e2m1fn_x2)

    with pytest.warns(ParityWarning, match="float4"):
        assert assert_parity(f, torch.randn(64), device="sim", backward=False).agrees


def of_another_dtype(out: Any) -> Any:
    """The same numbers in float64, and whole ones in int32."""
    if isinstance(out, tuple):
        return tuple(map(of_another_dtype, out))
    return out.double() if out.is_floating_point() else out.int()


DTYPES: dict[str, tuple[str, str, Any]] = {
    "sort": ("sort", "function", lambda x: tuple(x.sort(-1))),
    "max": ("max", "function", lambda x: x.max(-1)[1]),
    "argmax": ("argmax", "function", lambda x: x.argmax(-1)),
    "svd": ("linalg.svd", "function", lambda x: tuple(torch.linalg.svd(x))),
    "behind": ("exp", "function", lambda x: x.exp() + 1),
    "a kernel's own": ("native_layer_norm", "kernel", lambda x: nn.functional.layer_norm(x, (6,))),
    "a kernel's own positions": ("nonzero", "kernel", lambda x: (x > 0).nonzero()),
}


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.parametrize("name", DTYPES)
def test_a_result_of_another_dtype_is_malformed(name: str, healthy: bool) -> None:
    op, level, function = DTYPES[name]
    effect = (lambda call: call.run()) if healthy else (lambda call: of_another_dtype(call.run()))
    device, x = resolve("sim", (Fault("dtype", (op,), effect, level=level),)), torch.randn(6, 6)
    if healthy:
        assert assert_parity(function, x, device=device).agrees
        return
    with pytest.raises(ParityFailure, match=r"malformed.*dtype=(float64|int32), but should be (float32|int64)"):
        assert_parity(function, x, device=device)


def test_a_destination_of_torch_keeps_its_dtype() -> None:
    """As on a real device: the kernel of sort writes into what torch made."""
    device = resolve("sim", (Fault("dtype", ("sort",), lambda call: of_another_dtype(call.run())),))
    assert assert_parity(lambda x: tuple(x.sort(-1)), torch.randn(6, 6), device=device).agrees
