"""`parity.compare_training` names the first step and layer that rounding does not explain, and blames no healthy device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import parity
from parity.comparing import meter
from parity.core.errors import UsageError
from parity.core.results import Raised
from parity.devices import Call, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST
from parity.faces.commandline import main
from parity.training import train
from parity.training.side import Side, StepResult


class Net(nn.Module):
    """Three linear layers with layer_norm, GELU and dropout."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(8, 12), nn.Linear(12, 16), nn.Linear(16, 4)
        self.norm, self.drop = nn.LayerNorm(16), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 8)."""
        return self.three(self.drop(F.gelu(self.norm(self.two(F.relu(self.one(x)))))))


def recipe(drop: float = 0.0, dtype: torch.dtype | None = None, every: int = 1) -> Callable[[torch.device], Any]:
    """What builds a training. dtype: of autocast; every: how many batches a step of the optimizer has."""

    def make(device: torch.device) -> Any:
        net = Net(drop).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
        number = 0

        def step(batch: Any) -> Tensor:
            nonlocal number
            with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
                loss = F.cross_entropy(net(batch[0]), batch[1])
            torch.autograd.backward(scaler.scale(loss))
            number += 1
            if number % every == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step()
            return loss

        return net, optimizer, scheduler, scaler, step

    return make


def batches() -> list[Any]:
    """Three batches of eight."""
    torch.manual_seed(1)
    return [(torch.randn(8, 8), torch.randint(4, (8,))) for _ in range(3)]


def compared(make: Any, *faults: Fault, steps: int = 4, **how: Any) -> parity.Training:
    """The comparison on a device with these faults."""
    return parity.compare_training(make, batches(), steps=steps, device=resolve("sim", faults), **how)


def off(since: int, factor: float = 1.001) -> Fault:
    """The gradient of `two.weight` times a factor, from one step on."""
    calls: list[None] = []

    def effect(call: Call) -> Any:
        result = call.run()
        if tuple(result[1].shape) != (16, 12):
            return result
        calls.append(None)
        return (result[0], result[1] * factor, result[2]) if len(calls) >= since else result

    return Fault("off", ("linear_backward",), effect, level="kernel")


@pytest.mark.parametrize("how", [{}, {"drop": 0.2}, {"dtype": torch.bfloat16}, {"dtype": torch.float16}, {"every": 2}])
def test_rounding_is_not_blamed(how: Any) -> None:
    """Neither on a healthy device nor on one that rounds as real ones do."""
    for faults in ((), tuple(HONEST)):
        found = compared(recipe(**how), *faults)
        assert found.agrees, found
        assert found
        assert len(found.curve) == 4
        assert "rounding explains every one of 4 steps; " in str(found).splitlines()[0]


@pytest.mark.parametrize(("honest", "runs"), [(False, [4]), (True, [4, 4, 4, 4, 1, 1])])
def test_steps_with_the_bits_of_the_cpu_and_late_ones_take_few_runs(
    monkeypatch: pytest.MonkeyPatch, honest: bool, runs: list[int]
) -> None:
    """The first step is always judged, which shows whether the training runs in float64."""
    taken: list[int] = []
    real = train._Trainings._rounded

    def noted(self: Any, *given: Any) -> Any:
        taken.append(len(given[4]))
        return real(self, *given)

    monkeypatch.setattr(train._Trainings, "_rounded", noted)
    assert compared(recipe(), *(tuple(HONEST) if honest else ()), steps=6).agrees
    assert taken == runs


def test_a_wrong_gradient_is_found_behind_steps_that_took_few_runs() -> None:
    first = compared(recipe(), off(6, 1.01), steps=6, locate=False).first
    assert first is not None
    assert (first.step, first.name) == (6, "two.weight")


@pytest.mark.parametrize("raised", [0, 3, 4])
def test_a_late_step_that_raises_by_chance_is_rounded_otherwise(monkeypatch: pytest.MonkeyPatch, raised: int) -> None:
    """As often as a first step is; one that raises each time is refused."""
    whole, number, last = Side.extra, 0, 6

    def sometimes(self: Side, before: Any, step: int, batch: Any, change: Any, around: Any = None) -> Any:
        nonlocal number
        rounded = step == last - 1 and self.wide and change is not None
        number += rounded
        by_chance = Raised("error", "ValueError", "by chance", "run")
        return by_chance if rounded and number <= raised else whole(self, before, step, batch, change, around)

    monkeypatch.setattr(Side, "extra", sometimes)
    if raised == train.SAMPLES:
        with pytest.raises(UsageError, match=r"step 6, .* ValueError: by chance"):
            compared(recipe(), *HONEST, steps=last)
    else:
        assert compared(recipe(), *HONEST, steps=last).agrees
    assert number == min(raised + 1, train.SAMPLES)


@pytest.mark.parametrize("late", [True, False])
def test_a_long_training_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late: bool
) -> None:
    """From a number of seconds on, and one step that takes long, as a suspicious one does, says nothing of the others; a short
    training says nothing."""
    now, took = 0.0, iter((3.0, 1.0, 1.0, 40.0, 1.0))
    real = train._Trainings._step

    def step(self: Any, *given: Any) -> str:
        nonlocal now
        now += next(took) if late else 0.0
        return real(self, *given)

    monkeypatch.setattr(train._Trainings, "_step", step)
    for module in (meter, train):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now))
    compared(recipe(), steps=5)
    said = "".join(
        f"parity: Net: {spent} s so far, with step {k} of 5; about {more} s more\n"
        for spent, k, more in ((3, 1, 12), (45, 4, 1))
    )
    assert capsys.readouterr().err == (said if late else "")


def test_step_and_layer_of_a_wrong_gradient_are_named() -> None:
    """0.1 % in one layer, although the gradients are clipped all together afterwards."""
    found = compared(recipe(every=2), off(3))
    first = found.first
    assert first is not None
    assert (first.step, first.kind, first.name) == (3, "gradient", "two.weight")
    assert found.located is not None
    assert found.located.first is not None
    assert found.located.first.place.module == "two"
    assert found.located.first.operator == "aten::linear_backward"
    assert "at step 3 of 4, first in the gradient of two.weight" in str(found).splitlines()[0]
    assert not found


def test_nan_is_told_at_its_step() -> None:
    """With the operator that makes it; the steps behind it say nothing, and are left out."""
    calls: list[None] = []

    def nan(call: Call) -> Any:
        calls.append(None)
        return call.run() * (float("nan") if len(calls) >= 3 else 1.0)

    found = compared(recipe(), Fault("nan", ("gelu",), nan, level="kernel"), steps=6)
    assert found.first is not None
    assert (found.first.step, found.first.kind) == (3, "loss")
    assert "NaN or Inf where the CPU" in found.headline
    assert found.located is not None
    assert found.located.first is not None
    assert found.located.first.operator == "aten::gelu"
    assert len(found.curve) == 3


def test_a_wrong_optimizer_is_found() -> None:
    """The gradients are right, and the weights are not; the operators that write lists in place are compared, too."""

    def far(call: Call) -> Any:
        return call.run().mul_(1.0001)

    found = compared(recipe(), Fault("adam", ("addcdiv",), far, level="kernel"))
    assert found.first is not None
    assert (found.first.step, found.first.kind) == (1, "weights")
    assert found.located is not None
    assert found.located.first is not None
    assert "addcdiv" in found.located.first.operator


class Branches(Net):
    """One that takes another way on the device."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return y if y.device.type == "cpu" else y.clamp(-0.1, 0.1)


def test_a_branch_of_the_users_own_is_named_where_no_operator_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    """And torch's own ways in an optimizer are none of the user's."""
    monkeypatch.setitem(globals(), "Net", Branches)
    found = compared(recipe(), steps=1)
    way = r"the step takes another way than on the CPU: only sim calls torch\.Tensor\.clamp at \S+\.py:\d+, in forward"
    assert any(re.fullmatch(way, n) for n in found.notes)
    monkeypatch.undo()
    assert not any("another way" in n for n in compared(recipe(), off(1), steps=1).notes)


def test_what_the_device_raises_is_told() -> None:
    """With the step; it is a finding, not an error of usage."""

    def raises(call: Call) -> Any:
        raise RuntimeError("no such kernel")

    found = compared(recipe(), Fault("gone", ("gelu",), raises, level="kernel"))
    assert not found.agrees
    assert "raises at step 1 of 4 (RuntimeError: no such kernel" in found.headline


def test_dropout_is_the_same_on_both_sides() -> None:
    """It is said in a note."""
    found = compared(recipe(0.5), steps=2)
    assert found.curve[-1].distance < 1e-5
    assert any("handed to both sides" in n for n in found.notes)


def test_a_make_without_parameters_and_a_model_that_returns_its_loss() -> None:
    """No step of its own is needed then."""

    class Lossy(nn.Linear):
        def forward(self, x: Tensor, y: Tensor) -> Any:  # type: ignore[override]  # a loss
            return F.cross_entropy(super().forward(x), y)

    def make() -> Any:
        net = Lossy(8, 4)
        return net, torch.optim.SGD(net.parameters(), 0.1)

    assert compared(make).agrees


class Words(nn.Module):
    """An LSTM behind an embedding whose weight the head shares, and layers that are frozen and unused."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head, self.unused = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False), nn.Linear(2, 2)
        self.head.weight = self.words.weight
        self.frozen, self.net = nn.Linear(6, 6).requires_grad_(False), nn.LSTM(6, 6, batch_first=True)

    def forward(self, ids: Tensor) -> Any:
        """ids: (batch, length)."""
        return self.head(self.frozen(self.net(self.words(ids))[0]))


def test_odd_recipes_are_taken() -> None:
    """Two optimizers, shared, frozen and unused weights, an LSTM, noise that the step draws itself, a loss that is a number."""

    def make(device: torch.device) -> Any:
        net = Words().to(device)
        both = torch.optim.Adam([net.words.weight], 1e-2), torch.optim.SGD(net.net.parameters(), 0.1)

        def step(ids: Tensor) -> float:
            loss = F.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
            loss = loss * (1.0 + 0.01 * torch.randn((), device=ids.device))
            torch.autograd.backward(loss)
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()
            return loss.item()

        return net, *both, step

    assert parity.compare_training(make, [torch.randint(9, (2, 4))], steps=3, device="sim").agrees


def test_what_only_the_device_has_is_located_in_a_step() -> None:
    """An LSTM is one operator on MPS: it is compared as the function that calls it."""

    def make(device: torch.device) -> Any:
        net = Words().to(device)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(ids: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
            torch.autograd.backward(loss)
            optimizer.step()
            return loss

        return net, optimizer, step

    ids = [torch.randint(9, (1, 2), generator=torch.Generator().manual_seed(0))]
    for operator, pass_ in (("_lstm_mps", "forward"), ("lstm_mps_backward", "backward")):

        def off(call: Call) -> Any:
            first, *rest = call.run()
            return (first * 1.01, *rest)

        found = parity.compare_training(make, ids, steps=1, device=resolve("sim", (Fault("lstm", (operator,), off),)))
        assert found.located is not None
        assert [(p.operator, p.pass_, p.place.module) for p in found.located.divergences] == [("torch.lstm", pass_, "net")]


def pair(device: torch.device) -> Any:
    """Two judges of one class, of different sizes, next to what they judge."""
    net = nn.Sequential(nn.Linear(8, 6), nn.Tanh()).to(device)
    one, two = (nn.Sequential(nn.Linear(6, n), nn.SiLU(), nn.Linear(n, 1)).to(device) for n in (5, 7))
    first = torch.optim.SGD(net.parameters(), 0.1)
    second = torch.optim.SGD([*one.parameters(), *two.parameters()], 0.1)

    def step(batch: Any) -> Any:
        for o in (first, second):
            o.zero_grad()
        made = net(batch[0])
        loss = (one(made) - two(made)).square().mean()
        torch.autograd.backward(loss)
        for o in (first, second):
            o.step()
        return loss

    return net, one, two, first, second, step


def test_several_models_are_told_apart() -> None:
    """By the names that the step has for them, in gradients of all and in the place of the operator."""
    for faults in ((), tuple(HONEST)):
        assert compared(pair, *faults).agrees

    def wide(call: Call) -> Any:
        result = call.run()
        return (result[0], result[1] * 1.01, result[2]) if tuple(result[1].shape) == (7, 6) else result

    found = compared(pair, Fault("off", ("linear_backward",), wide, level="kernel"))
    assert found.first is not None
    assert (found.first.kind, found.first.name) == ("gradient", "two.0.weight")
    assert found.located is not None
    assert [p.place.module for p in found.located.divergences] == ["two.0"]


def test_a_tensor_that_make_leaves_on_the_cpu_stays_there() -> None:
    """Where torch refuses it on a device, it must be reported, with its name."""

    def make(device: torch.device) -> Any:
        net, weight = Net().to(device), torch.ones(4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(batch: Any) -> Tensor:
            loss = F.cross_entropy(net(batch[0]), batch[1], weight)
            torch.autograd.backward(loss)
            optimizer.step()
            return loss

        return net, optimizer, step

    found = compared(make)
    assert "raises at step 1 of 4 (RuntimeError" in found.headline
    assert "'weight' of the step lies on the CPU: let make put it on the device that it gets" in found.notes


def _counting(kind: str) -> Callable[[torch.device], Any]:
    """A step of the optimizer at every second batch, and a mean of the losses, kept as people do: in a dictionary, in the
    object whose method the step is, or in attributes of the function; "hidden": where nobody sees it."""

    def make(device: torch.device) -> Any:
        net = Net().to(device)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        counts, mean = {"n": 0}, torch.zeros((), device=device)

        def taken(batch: Any, n: int, mean: Tensor) -> Tensor:
            loss = F.cross_entropy(net(batch[0]), batch[1])
            torch.autograd.backward((loss - mean).square() / 2)
            if n % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        def step(batch: Any) -> Tensor:
            nonlocal mean
            counts["n"] += 1
            loss = taken(batch, counts["n"], mean)
            mean = 0.9 * mean + 0.1 * loss.detach()
            return loss

        class Trainer:
            def __init__(self) -> None:
                self.n, self.mean = 0, torch.zeros((), device=device)

            def step(self, batch: Any) -> Tensor:
                self.n += 1
                loss = taken(batch, self.n, self.mean)
                self.mean = 0.9 * self.mean + 0.1 * loss.detach()
                return loss

        def with_attributes(batch: Any) -> Tensor:
            with_attributes.n += 1  # type: ignore[attr-defined]  # that is the point
            return taken(batch, with_attributes.n, mean)  # type: ignore[attr-defined]

        with_attributes.n = 0  # type: ignore[attr-defined]
        trainer = Trainer()
        steps = {"dictionary": step, "object": trainer.step, "attributes": with_attributes, "hidden": lambda b: trainer.step(b)}
        return net, optimizer, steps[kind]

    return make


@pytest.mark.parametrize("kind", ["dictionary", "object", "attributes"])
def test_what_a_step_keeps_is_its_state(kind: str) -> None:
    """Whatever it keeps it in: so that each side that takes a step again takes the same one."""
    assert compared(_counting(kind), steps=3).agrees
    first = compared(_counting(kind), off(2), steps=3, locate=False).first
    assert first is not None
    assert (first.step, first.name) == (2, "two.weight")


def test_a_count_that_nobody_sees_is_told() -> None:
    """Nothing could be judged where the sides take different steps."""
    with pytest.raises(UsageError, match=r"taken again from the same state (does not step|steps) the optimizer; let step keep"):
        compared(_counting("hidden"))


def test_the_users_own_model_stays_as_it_is() -> None:
    """A make that returns the same one each time is refused before it is trained."""
    net = nn.Linear(8, 4)
    before = net.weight.detach().clone()
    with pytest.raises(UsageError, match="make returns the same model again; let it build another each time"):
        compared(lambda device: (net.to(device), torch.optim.SGD(net.parameters(), 0.1)))
    assert net.weight.dtype == torch.float32
    assert torch.equal(net.weight, before)


def test_nan_on_both_sides_is_said() -> None:
    """What could not be judged is in a note; the device is not blamed."""

    def make(device: torch.device) -> Any:
        net = nn.Linear(8, 4).to(device)
        number = 0

        def step(batch: Any) -> Tensor:
            nonlocal number
            number += 1
            loss: Tensor = net(batch[0]).sum() * (float("nan") if number >= 3 else 1.0)
            torch.autograd.backward(loss)
            return loss

        return net, torch.optim.SGD(net.parameters(), 0.1), step

    found = compared(make)
    assert found.agrees
    assert any(n.startswith("from step 3 on the loss is NaN or Inf on the CPU, too") for n in found.notes)
    assert "no optimizer stepped, so that new weights were not compared" in found.notes


def test_a_limit_of_inf_among_the_buffers_leaves_the_distance_a_number() -> None:
    """As gpytorch's constraints keep theirs."""

    def make(device: torch.device) -> Any:
        net = Net()
        net.register_buffer("upper", torch.tensor(torch.inf))
        net.to(device)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(batch: Any) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(batch[0]).clamp(max=net.upper), batch[1])
            torch.autograd.backward(loss)
            optimizer.step()
            return loss

        return net, optimizer, step

    assert [p.distance for p in compared(make, steps=2).curve] == [0.0, 0.0]
    assert all(p.distance > 0.0 for p in compared(make, *HONEST, steps=2).curve)


class Single(torch.autograd.Function):
    """A square that does not run in float64."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        """x * x."""
        if torch.get_default_dtype() == torch.float64:
            raise RuntimeError("only float32")
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """2 * x."""
        return 2 * grads[0] * ctx.saved_tensors[0]


class Squares(Net):
    """With a function that has no float64."""

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 8)."""
        return self.three(self.two(Single.apply(self.one(x))))  # type: ignore[no-untyped-call]  # as torch has it


class Waves(nn.Module):
    """Complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.two = nn.Linear(8, 4, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 8)."""
        return self.two(x + 0j).abs()


@pytest.mark.parametrize("net", [Squares, Waves])
def test_without_float64_and_with_complex_weights(net: Callable[[], nn.Module]) -> None:
    """Healthy and honest devices are not blamed, and a wrong one is found."""

    def make(device: torch.device) -> Any:
        made = net().to(device)
        optimizer = torch.optim.SGD(made.parameters(), 0.1)

        def step(batch: Any) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(made(batch[0]), batch[1])
            torch.autograd.backward(loss)
            optimizer.step()
            return loss

        return made, optimizer, step

    def larger(call: Call) -> Any:
        result = call.run()
        if tuple(result[1].shape) not in ((16, 12), (4, 8)):
            return result
        turned = 1 + 0.01j if result[1].is_complex() else 1.01  # by an angle: the real part of a complex number hides it
        return (result[0], result[1] * turned, result[2])

    assert compared(make).agrees
    assert compared(make, *HONEST).agrees
    first = compared(make, Fault("large", ("linear_backward",), larger, level="kernel"), locate=False).first
    assert first is not None
    assert (first.step, first.kind, first.name) == (1, "gradient", "two.weight")


def checking(what: str, net: Callable[[], nn.Module]) -> Callable[[torch.device], Any]:
    """A step that refuses, behind optimizer.step(), a batch that it does not know, or weights that it did not begin with."""

    def make(device: torch.device) -> Any:
        made: Any = net().to(device)
        optimizer, known, first = torch.optim.SGD(made.parameters(), 0.1), batches(), made.two.weight.detach().clone()

        def step(batch: Any) -> Tensor:
            began = torch.equal(made.two.weight, first)
            optimizer.zero_grad()
            loss = F.cross_entropy(made(batch[0]), batch[1])
            torch.autograd.backward(loss)
            optimizer.step()
            if not (began if what == "weights" else any(torch.equal(batch[0].cpu().float(), x) for x, _ in known)):
                raise ValueError(f"other {what}")
            return loss

        return made, optimizer, step

    return make


@pytest.mark.parametrize("net", [Net, Squares])
def test_a_step_that_cannot_be_taken_from_moved_weights_is_refused(net: Callable[[], nn.Module]) -> None:
    """One that checks its batch can."""
    assert compared(checking("batch", net), *HONEST, steps=1)
    with pytest.raises(UsageError, match="moved by a rounding, raises on the CPU: ValueError: other weights"):
        compared(checking("weights", net), steps=1)


@pytest.mark.parametrize("net", [Net, Squares])
def test_no_extra_run_counts_as_one(net: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would be judged without any."""
    whole = Side.extra

    def once(self: Side, before: Any, *rest: Any) -> Any:
        return whole(self, before, *rest) if before is None else Raised("error", "ValueError", "never again", "run")

    monkeypatch.setattr(Side, "extra", once)
    with pytest.raises(UsageError, match="raises on the CPU: ValueError: never again"):
        compared(checking("batch", net), steps=1)


@pytest.mark.parametrize("far", [0.0, 1.0])
def test_a_side_that_raised_behind_its_optimizer_steps_once(far: float) -> None:
    side, plain = Side(checking("batch", Net)), Side(checking("batch", Net))
    batch = batches()[0]
    want = plain.take(plain.batch(batch), 0).tensors
    got = side.extra(None, 0, batch, lambda x: x + far)
    assert isinstance(got, StepResult)
    assert all(torch.equal(t, want[n]) for n, t in got.tensors.items())


def test_data_starts_over() -> None:
    """A function is called again where its batches end."""
    found = parity.compare_training(recipe(), lambda: iter(batches()), steps=4, device="sim")
    assert len(found.curve) == 4


def _without_optimizer(device: torch.device) -> Any:
    return nn.Linear(8, 4).to(device)


def _elsewhere(device: torch.device) -> Any:
    net = nn.Linear(8, 4)
    return net, torch.optim.SGD(net.parameters(), 0.1), lambda batch: 0.0


def _no_loss(device: torch.device) -> Any:
    net = nn.Linear(8, 4).to(device)
    return net, torch.optim.SGD(net.parameters(), 0.1), lambda batch: None


def _raises(device: torch.device) -> Any:
    net = nn.Linear(8, 4).to(device)

    def step(batch: Any) -> Tensor:
        raise ValueError("no data")

    return net, torch.optim.SGD(net.parameters(), 0.1), step


def _no_training(device: torch.device) -> Any:
    net = nn.Linear(8, 4).to(device)
    return net, torch.optim.SGD(net.parameters(), 0.1), lambda batch: net(torch.ones(8, device=device)).sum()


def _no_step(device: torch.device) -> Any:
    net = nn.Linear(8, 4).to(device)
    return net, torch.optim.SGD(net.parameters(), 0.1)


def _lazy(device: torch.device) -> Any:
    net = nn.LazyLinear(4).to(device)
    return net, torch.optim.SGD(net.parameters(), 0.1), lambda batch: 0.0


def _own_generator(device: torch.device) -> Any:
    net, own = nn.Linear(8, 4).to(device), torch.Generator(device).manual_seed(0)
    return net, torch.optim.SGD(net.parameters(), 0.1), lambda batch: torch.randn(1, generator=own, device=device)


def _broken() -> Iterator[int]:
    raise OSError("file gone")


def _once() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "make, data, how, why",
    [
        (3, [1], {}, "make is int; give the function"),
        (_without_optimizer, [1], {}, "make returns Linear; let make return the model, its optimizer"),
        (_elsewhere, [1], {}, "make left 'weight' on another device than sim"),
        (_no_loss, [1], {}, "step returns NoneType; let it return the loss"),
        (_raises, [1], {}, r"step 1 raises on the CPU: ValueError: no data (.*test_compare_training.py:\d+, in "),
        (_no_training, [1], {}, "step trains nothing"),
        (_no_step, [(torch.ones(8), 1)], {}, "make returns no step, and model"),
        (_lazy, [1], {}, "make left 'weight' without a shape"),
        (_own_generator, [1], {}, "step 1 draws random numbers in randn with a generator of its own"),
        (recipe(), _broken, {}, "data raises OSError: file gone"),
        (recipe(), [], {}, "data gives no batch"),
        (recipe(), _once(), {}, "data gives one batch and cannot start over; 20 steps"),
        (recipe(), torch.ones(3), {}, "data is Tensor; give the batches as a list"),
        (recipe(), [1], {"steps": 0}, "steps is 0; give a whole number from 1 on"),
        (recipe(), [1], {"samples": 1}, "samples is 1"),
        (recipe(), [1], {"device": "cpu"}, "the device is the CPU itself"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence(make: Any, data: Any, how: Any, why: str) -> None:
    """What is wrong, and what to give."""
    with pytest.raises(UsageError, match=why.replace("(", r"\(")):
        parity.compare_training(make, data, **{"device": "sim", **how})


@pytest.mark.slow
def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """0 where rounding explains all, 1 where it does not, 2 for wrong usage."""
    file, faults = tmp_path / "own_training.py", tmp_path / "own_faults.py"
    file.write_text(
        """
import torch


def make(device):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(batch):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return net, optimizer, step


def small():
    return make, [torch.randn(3, 4)]


def odd():
    return make, 1, 2

def function():
    return torch.sin, torch.rand(3, 2)


def model():
    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.GELU(), torch.nn.Linear(4, 3))
"""
    )
    faults.write_text(
        "from parity.devices import Fault\n"
        "FAULTS = [Fault('g', ('gelu_backward',), lambda call: call.run() * 1.01, level='kernel')]\n"
    )
    asked = ["train", f"{file}:small", "--device", "sim", "--steps", "2"]
    assert main(asked) == 0
    assert "own_training.py:small: Sequential float32 on sim: rounding explains" in capfd.readouterr().out
    assert main([*asked, "--setup", str(faults)]) == 1
    assert "1 (GELU), backward: aten::gelu_backward" in capfd.readouterr().out
    assert main(["train", f"{file}:odd", "--device", "sim"]) == 2
    assert "odd: not compared: it returns 3 things; return two, make and the batches" in capfd.readouterr().out
    assert main(["train", f"{file}:function", "--device", "sim"]) == 2
    assert "it returns a function and its inputs, which parity locate, audit and run take" in capfd.readouterr().out
    asked = ["train", f"{file}:model", "--device", "sim", "--steps", "1", "--input", "float32[5, 2]"]
    assert main(asked) == 0
    said = "Sequential: trained by cross entropy of its logits with drawn labels, AdamW(lr=0.001), the same batch in each step"
    assert said in capfd.readouterr().out
    assert main(["train", f"{file}:make", "--device", "sim"]) == 2


def test_the_table_of_modules() -> None:
    """The module whose weight has the wrong gradient is the worst; a healthy device is within what rounding explains."""
    torch.manual_seed(0)
    net, x = Net(), torch.randn(8, 8, requires_grad=True)
    for faults in ((), tuple(HONEST)):
        healthy = parity.locate(net, x, device=resolve("sim", faults), modules=True)
        assert [m.module for m in healthy.modules] == ["", "one", "two", "norm", "drop", "three"]
        assert max(m.worst for m in healthy.modules) < 8
    found = parity.locate(net, x, device=resolve("sim", (off(1),)), modules=True)
    worst = max(found.modules, key=lambda m: m.worst)
    assert (worst.module, worst.kind) == ("two", "Linear")
    assert worst.parameters["weight"] > 100 > max(m.outputs or 0.0 for m in found.modules)
    table = str(found).partition("what rounding explains there:\n")[2].splitlines()
    assert table[1].lstrip().startswith("two (Linear)")


def test_errors_add_up_in_the_table() -> None:
    """Every module behind a wrong one is off, too, and those before it are not; nothing is shown that was not asked for."""

    def larger(call: Call) -> Any:
        result = call.run()
        return (result[0] * 1.01, *result[1:])

    device = resolve("sim", (Fault("norm", ("native_layer_norm",), larger, level="kernel"),))
    found = parity.locate(Net(), torch.randn(8, 8), device=device, modules=True)
    off_ = {m.module: m.outputs or 0.0 for m in found.modules}
    assert max(off_["one"], off_["two"]) < 8 < 100 < min(off_["norm"], off_["three"], off_[""])
    assert not parity.locate(Net(), torch.randn(8, 8), device="sim").modules
