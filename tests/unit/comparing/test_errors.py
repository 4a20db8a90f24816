"""What is said where something raises or falls back: the line, the cause, the way out and the next command."""

from __future__ import annotations

import random
import re
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parity import locate
from parity.comparing.comparison import ParityFailure, ParityWarning
from parity.comparing.places import other_way
from parity.core.errors import UsageError
from parity.core.results import Status
from parity.devices import Device, Fault, resolve
from parity.devices.sim.faults import fall_back
from parity.locating.asserting import assert_parity

X = torch.linspace(0.5, 2, 3)
Y = X.expand(3, 3).contiguous()


def planted(*ops: str, effect: Any, **more: Any) -> Device:
    return resolve("sim", (Fault("f", ops, effect, **more),))


def failure(fn: Any, *inputs: Any, **options: Any) -> ParityFailure:
    with pytest.raises(ParityFailure) as caught:
        assert_parity(fn, *inputs, **options)
    return caught.value


def line_of(text: str) -> int:
    """Where this file holds it."""
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(text))


def on_device(x: Tensor) -> Tensor:
    if x.device.type != "cpu":
        raise ValueError("there")  # the device's line
    return x.exp()


def everywhere(x: Tensor) -> Tensor:
    raise ValueError("here")  # the CPU's line


def test_an_exception_is_told_with_its_line_and_kept_as_the_cause() -> None:
    bad = failure(on_device, X, device="sim")
    first = str(bad).splitlines()[0]
    assert first.startswith("on_device float32 on sim: error: ValueError in run: there (")
    assert first.endswith(f"test_errors.py:{line_of('# the device' + chr(39) + 's line')}, in on_device)")
    assert isinstance(bad.__cause__, ValueError)
    with pytest.raises(UsageError) as caught:
        assert_parity(everywhere, X, device="sim")
    assert f"test_errors.py:{line_of('# the CPU' + chr(39) + 's line')}, in everywhere); give" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.inner.scale = torch.ones(3)  # the mistake that is tested

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) * self.inner.scale


def test_a_tensor_that_stays_behind_is_named_with_the_way_out() -> None:
    bad = failure(Loose(), X, device="sim")
    assert bad.comparison.notes[-1] == (
        "'inner.scale' of Loose is a tensor that is neither a parameter nor a buffer, so it stays on the CPU: register it "
        "(self.register_buffer) or pass it in"
    )
    model = nn.Linear(3, 3)
    bad = failure(lambda x: model(x), X, device="sim")
    way_out = "so it stays on the CPU: pass model and optimizer as arguments"
    assert bad.comparison.notes[-1] == f"'model' is used by <lambda> without being an input, {way_out}"


def test_what_cannot_be_copied_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].lock = threading.Lock()  # type: ignore[assignment]  # as people keep one
    with pytest.raises(UsageError) as caught:
        assert_parity(model, X, device="sim")
    said = str(caught.value)
    assert said.startswith("Sequential cannot be copied because of its attribute '0.lock', a _thread.lock (TypeError: cannot ")
    assert "raises on the CPU" not in said


@pytest.mark.parametrize("atol", ["x", -1, float("inf"), float("nan"), True, [1]])
def test_a_tolerance_that_is_none_is_refused(atol: Any) -> None:
    with pytest.raises(UsageError, match=r"atol is .*; give a number that is 0 or more"):
        assert_parity(torch.exp, X, device="sim", atol=atol)


# ------------------------------------------------------------------------------------------------------------- fallbacks


def test_a_fallback_warns_and_fails_on_demand() -> None:
    device = planted("sin", effect=fall_back)
    with pytest.warns(ParityWarning, match=r"sin float32 on sim: ran on the CPU: aten::sin"):
        assert_parity(torch.sin, X, device=device)
    for wanted in ("fallback", ("fallback",), ["unsupported", "fallback"], "unsupported,fallback"):
        bad = failure(torch.sin, X, device=device, fail_on=wanted)
        assert bad.verdicts[0][1].status is Status.FALLBACK
        assert str(bad).startswith("sin float32 on sim: fallback: ran on the CPU: aten::sin")
    with pytest.raises(UsageError, match="unknown status 'banana' for fail_on; allowed: drift, marginal, wrong, "):
        assert_parity(torch.sin, X, device=device, fail_on=("banana",))


def test_every_fallback_is_heard_though_torch_tells_of_the_first_alone() -> None:
    always: list[bool] = []

    def f(x: Tensor) -> Tensor:
        always.append(torch.is_warn_always_enabled())
        return x.exp()

    before = torch.is_warn_always_enabled()
    assert_parity(f, X, device="sim")
    assert any(always)
    assert torch.is_warn_always_enabled() == before


# ---------------------------------------------------------------------------------------------------------- what is next


def test_a_failure_names_the_command_that_tests_what_was_called() -> None:
    def off(c: Any) -> Any:
        return tuple(None if t is None else t * 1.01 for t in c.run())

    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Tanh())
    bad = failure(model, X, device=planted("linear_backward", effect=off))
    assert bad.comparison.next == "parity run linear --dtype float32 --device sim --setup FILE"
    assert str(bad).splitlines()[-1] == f"next: {bad.comparison.next}"
    assert not assert_parity(model, X, device="sim").next


def test_a_function_of_integers_is_called_by_their_dtype() -> None:
    """float32, which no tensor of it has, would be reported and tested else."""
    bad = failure(lambda a, b: a * b, *2 * [torch.arange(3)], device=planted("mul", effect=lambda c: c.run() + 1))
    assert str(bad).startswith("<lambda> int64 on sim diverges from the CPU first in")
    assert bad.comparison.next == "parity run mul --dtype int64 --device sim --setup FILE"
    found = locate(torch.mul, *2 * [torch.arange(3)], device=planted("mul", effect=lambda c: c.run() + 1))
    assert str(found).splitlines()[-1] == f"next: {bad.comparison.next}"
    assert str(found).startswith("mul int64 on sim diverges from the CPU first in")


def test_the_call_that_raised_is_the_one_to_test() -> None:
    def refuse(c: Any) -> Any:
        raise RuntimeError("kaput")

    bad = failure(lambda x: (1 - x).exp(), X, device=planted("exp", effect=refuse))
    assert bad.comparison.next == "parity run exp --dtype float32 --device sim --setup FILE"


def test_an_error_of_the_user_is_told_without_the_way_through_parity() -> None:
    with pytest.raises(UsageError) as caught:
        assert_parity(lambda x: {x}, X, device="sim")
    assert len(caught.traceback) == 2  # this line, and assert_parity, which pytest hides


# -------------------------------------------------------------------------------------------- memory from call to call


ALL: list[Tensor] = []
LAST: dict[str, Tensor] = {}
ONCE: dict[int, Tensor] = {}


def keeps_all(x: Tensor) -> Tensor:
    ALL.append(x.exp())
    return ALL[-1] + 1


def keeps_the_last(x: Tensor) -> Tensor:
    LAST["x"] = x.exp()
    return LAST["x"] + 1


def fills_a_cache(x: Tensor) -> Tensor:
    for n in range(3):
        ONCE.setdefault(n, torch.full((), float(n)))
    return x + float(ONCE[1])


def test_memory_that_grows_from_call_to_call_is_warned_of() -> None:
    said = "memory grows from call to call: keeps_all keeps more tensors in 'ALL' after each"
    with pytest.warns(ParityWarning, match=said):
        assert said in str(assert_parity(keeps_all, X, device="sim"))


class Keeping(nn.Module):
    """Keeps its results, all of them or those of the last call."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.line, self.kept, self.n = nn.Linear(3, 2), list[Tensor](), n

    def forward(self, x: Tensor) -> Tensor:
        self.kept = [*self.kept, self.line(x)][-self.n :]
        return self.kept[-1]


def test_a_module_that_keeps_each_result_is_warned_of() -> None:
    said = r"memory grows from call to call: (Keeping|Ring)\S* keeps more tensors in '(kept|recent)' after each"
    for given in (Keeping(99), Keeping(99).forward, Ring(None)):
        with pytest.warns(ParityWarning, match=said):
            assert assert_parity(given, torch.randn(4, 3), device="sim").agrees


class Log(nn.Module):
    """Keeps what it was given, and has no tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return x.exp()


def calls(module: nn.Module, x: Tensor) -> Tensor:
    return torch.sin(module(x))


def test_a_module_among_the_arguments_that_keeps_each_result_is_warned_of() -> None:
    for given, where in ((Keeping(99), "kept"), (nn.Sequential(Keeping(99)), "0.kept"), (log := Log(), "seen")):
        with pytest.warns(ParityWarning, match=rf"calls keeps more tensors in 'module\.{where}' after each"):
            assert assert_parity(calls, given, torch.randn(4, 3), device="sim").agrees
    assert not log.seen


class Part(Keeping):
    """Refers to the module that it is a part of, in a list, so that it is none of its own parts."""

    def __init__(self) -> None:
        super().__init__(1)
        self.whole = list[nn.Module]()


traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2)))  # whose nodes refer to one another
traced.again = traced.graph  # type: ignore[assignment]


class Ring(Keeping):
    """Keeps its last results in a deque."""

    def __init__(self, n: int | None) -> None:
        super().__init__(0)
        self.recent = deque[Tensor](maxlen=n)

    def forward(self, x: Tensor) -> Tensor:
        self.recent.append(self.line(x))
        return self.recent[-1]


RECENT = deque[Tensor](maxlen=9)


def keeps_the_last_nine(x: Tensor) -> Tensor:
    RECENT.append(x.exp())
    return RECENT[-1] + 1


@pytest.mark.parametrize("fn", [Keeping(6), Ring(50), keeps_the_last_nine])
def test_a_bounded_cache_does_not_grow(fn: Any) -> None:
    assert "memory grows" not in str(assert_parity(fn, torch.randn(4, 3), device="sim"))


@pytest.mark.parametrize("fn", [keeps_the_last, fills_a_cache, Keeping(1), Keeping(1).forward, traced])
def test_a_cache_and_the_last_result_do_not_grow(fn: Any) -> None:
    x = torch.randn(4, 3) if "Keeping" in repr(fn) or isinstance(fn, torch.fx.GraphModule) else X
    assert "memory grows" not in str(assert_parity(fn, x, device="sim"))
    if isinstance(fn, nn.Module):
        assert "memory grows" not in str(assert_parity(calls, fn, x, device="sim"))


def test_a_module_among_the_arguments_may_have_parts_that_refer_to_the_whole() -> None:
    whole = nn.Sequential(part := Part())
    part.whole.append(whole)
    found = assert_parity(calls, whole, torch.randn(4, 3), device="sim")
    assert "grad[module.0.line.weight]" in dict(found.verdicts)


# ------------------------------------------------------------------------------------------------ generators of others

OWN, ARRAYS = random.Random(1), np.random.default_rng(1)


class Noisy(nn.Module):
    def __init__(self, own: Any = None) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        return x * float((self.own or ARRAYS).random())


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda x: x * OWN.random(), "'OWN', a random.Random"),
        (nn.Sequential(Noisy()), r"'ARRAYS', a numpy\.random\S*\.Generator"),
    ],
)
def test_a_generator_that_is_not_torchs_is_refused_by_its_name(fn: Any, name: str) -> None:
    with pytest.raises(UsageError, match=f"it draws from {name}, which is not torch's: seed it in each call"):
        assert_parity(fn, X, device="sim")


@pytest.mark.parametrize("fn", [lambda x: x * random.Random(3).random(), Noisy(np.random.default_rng(1))])
def test_a_generator_that_each_call_begins_anew_is_right(fn: Any) -> None:
    """Of what a module holds each run gets a copy."""
    assert assert_parity(fn, X, device="sim").agrees


# ------------------------------------------------------------------------------------------- another way on the device


def own_branch(x: Tensor, w: Tensor) -> Tensor:
    """As kornia's warp_perspective: half types are upcast on the CPU alone."""
    if x.device.type == "cpu" and x.dtype is not torch.float32:
        return ((x.float() @ w.float()).sin() * 9).to(x.dtype)
    return (x @ w).sin() * 9


def test_a_branch_of_the_users_own_is_named_in_place_of_advice_to_test_operators() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(8, 64).bfloat16(), torch.randn(64, 8).bfloat16()
    bad = failure(own_branch, x, w, device="sim")
    way = r"takes another way than on the CPU: the CPU calls torch\.Tensor\.float at \S+test_errors\.py:\d+, in own_branch "
    way += r"where sim calls torch\.Tensor\.matmul at \S+test_errors\.py:\d+, in own_branch"
    assert re.match(f"own_branch bfloat16 on sim {way}\n", str(bad))
    assert not bad.comparison.next
    found = locate(own_branch, x, w, device="sim")
    assert found.first is None
    assert re.match(f"it {way}$", found.notes[0])
    assert assert_parity(own_branch, x.float(), w.float(), device="sim").agrees


def test_a_fault_in_code_that_is_the_same_on_both_sides_is_no_other_way() -> None:
    bad = failure(own_branch, Y, Y, device=planted("sin", effect=lambda c: c.run() * 1.1))
    assert "another way" not in str(bad)
    assert bad.comparison.next.startswith("parity run sin ")
    assert "another way" not in str(locate(own_branch, Y, Y, device=planted("sin", effect=lambda c: c.run() * 1.1)))


def test_a_branch_on_a_value_keeps_the_advice_to_test_operators() -> None:
    """The value may be wrong because an operator is, and the branch follows from it."""

    def steps(x: Tensor) -> Tensor:
        return x.exp() * 2 if float(x.sin().max()) > 0.9999 else x.cos() * 3

    x = torch.linspace(0.0, torch.pi / 2, 8)
    assert assert_parity(steps, x, device="sim").agrees
    bad = failure(steps, x, device=planted("sin", effect=lambda c: c.run() * 0.9))
    assert "takes another way than on the CPU" in str(bad)
    assert bad.comparison.next.startswith("parity run ")


class OwnBackward(torch.autograd.Function):
    """A function with a derivative of its own, which is another on the device."""

    same = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos() if x.device.type == "cpu" or cls.same else g * (1 - x * x / 2)


def own_sine(x: Tensor) -> Any:
    return OwnBackward.apply(x)  # type: ignore[no-untyped-call]  # as torch has it


def test_a_branch_in_a_backward_pass_of_the_users_own_is_named() -> None:
    x = torch.linspace(0.5, 1.5, 6).requires_grad_()
    bad = failure(own_sine, x, device="sim")
    assert re.search(r"the CPU calls torch\.Tensor\.cos at \S+test_errors\.py:\d+, in backward where sim calls", str(bad))
    assert not bad.comparison.next


@pytest.mark.parametrize(("op", "level"), [("mul", "kernel"), ("cos", "function"), ("tanh_backward", "kernel")])
def test_a_fault_in_a_backward_pass_of_the_users_own_is_no_other_way(
    op: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnBackward, "same", True)
    x, wrong = torch.linspace(0.5, 1.5, 6).requires_grad_(), planted(op, level=level, effect=lambda c: c.run() * 1.1)
    assert "another way" not in str(failure(lambda x: own_sine(x).tanh() * 2, x, device=wrong))


def test_what_parity_calls_to_hand_out_random_numbers_is_no_other_way() -> None:
    """In a backward pass its own mode calls the operators, of which the device may have others (`linear_backward`)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Tanh())
    wrong = planted("tanh_backward", effect=lambda c: c.run() * 1.1)
    assert "another way" not in str(failure(model, torch.randn(3, 4), device=wrong))


class Keeps(nn.Module):
    """A layer that adds what it gave the last time."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.h: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.h = torch.tanh(self.lin(x) + self.h)
        return self.h


def test_an_activation_that_a_module_keeps_is_named() -> None:
    """It has a graph, so that Python cannot copy it."""
    net, x = Keeps(), torch.ones(2, 4)
    net(x)
    assert "'h' of Keeps" in str(failure(net, x, device="sim"))


@pytest.mark.parametrize(
    ("here", "there", "whole", "said"),
    [
        ("abc", "abc", True, ""),
        ("abc", "ab", False, ""),  # it raised there
        ("abc", "ab", True, "only the CPU calls c at line"),
        ("abc", "axbc", True, "only dev calls x at line"),
        ("abc", "axbc", False, "only dev calls x at line"),
        ("axbc", "abc", True, "only the CPU calls x at line"),
        ("axc", "ayc", True, "the CPU calls x at line where dev calls y at line"),
    ],
)
def test_the_first_call_that_one_side_made_alone(here: str, there: str, whole: bool, said: str) -> None:
    ours, theirs = ([(name, "line") for name in side] for side in (here, there))
    assert other_way(ours, theirs, "dev", whole).removeprefix("takes another way than on the CPU: ") == said
