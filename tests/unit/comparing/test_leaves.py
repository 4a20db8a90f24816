"""What a function may give and take: opened, refused by name or noted; and where its work ran."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parity.comparing.comparison import ParityFailure, ParityWarning
from parity.core.errors import NothingCompared, UsageError
from parity.devices import Call, Device, Fault, resolve
from parity.locating.asserting import assert_parity


@dataclasses.dataclass
class Out:
    y: Any
    kind: str = "kind"


class Plain:
    def __init__(self, y: Any) -> None:
        self.y, self.me, self.calls = y, self, 3


class Slotted:
    __slots__ = ("never_set", "y")

    def __init__(self, y: Any) -> None:
        self.y = y


class Fields(collections.OrderedDict[str, Any]):
    """As transformers' ModelOutput: a mapping that pytree does not know."""


class Items(list[Any]):
    pass


class Registered:
    def __init__(self, y: Any) -> None:
        self.hidden = (y,)


torch.utils._pytree.register_pytree_node(
    Registered,
    lambda r: (list(r.hidden), None),
    lambda children, _: Registered(*children),
    flatten_with_keys_fn=lambda r: ([(torch.utils._pytree.SequenceKey(0), r.hidden[0])], None),
)
Pair = collections.namedtuple("Pair", "y n")


class Colour(enum.Enum):
    RED = 1


@pytest.fixture
def bad() -> Device:
    """Its exp is off by half."""
    return resolve("sim", (Fault("f", ("exp",), lambda c: c.run() * 1.5),))


X = torch.linspace(0.5, 2, 4)
WRAPS: list[tuple[Callable[[Any], Any], str]] = [
    (Out, "out[1].y"),
    (Plain, "out[1].y"),
    (Slotted, "out[1].y"),
    (lambda y: Fields(y=y), "out[1]['y']"),
    (lambda y: Items([y]), "out[1][0]"),
    (lambda y: collections.deque([y]), "out[1][0]"),
    (lambda y: {"a": y}.values(), "out[1][0]"),
    (lambda y: Pair(y, 1), "out[1].y"),
    (Registered, "out[1][0]"),
    (lambda y: {"k": Out(Plain((y,)))}, "out[1]['k'].y.y[0]"),
    (lambda y: y.detach().cpu().numpy(), "out[1]"),
    (lambda y: torch.distributions.Normal(y, torch.ones(4, device=y.device)), "out[1].loc"),
]


@pytest.mark.parametrize(("wrap", "path"), WRAPS)
def test_whatever_holds_a_tensor_is_opened(wrap: Callable[[Any], Any], path: str, bad: Device) -> None:
    with pytest.raises(ParityFailure) as caught:
        assert_parity(lambda x: (x + 1, wrap(x.exp())), X, device=bad)
    assert [n for n, _ in caught.value.comparison.findings] == [path]
    assert path in [n for n, _ in assert_parity(lambda x: (x + 1, wrap(x.exp())), X, device="sim").verdicts]


@pytest.mark.parametrize(("wrap", "said"), [
    (lambda y: {y}, "out[1] is a set, which has no order"),
    (lambda y: frozenset([1.0]), "out[1] is a frozenset, which has no order"),
    (lambda y: (t for t in [y]), "out[1] is a generator, which can be read only once"),
    (lambda y: map(abs, [y]), "out[1] is a map, which can be read only once"),
])  # fmt: skip
def test_what_has_no_order_is_refused_by_its_type(wrap: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        assert_parity(lambda x: (x + 1, wrap(x.exp())), X, device="sim")
    assert str(caught.value) == f"{said}; return a list of what it holds"


def test_what_holds_no_tensor_is_noted() -> None:
    with pytest.warns(ParityWarning, match="not compared, because it holds no tensor: out"):
        got = assert_parity(lambda x: (x, "s", Colour.RED, print, object(), 2**80, {"s"}, None), X, device="sim")
    assert got.notes[0] == (
        "not compared, because it holds no tensor: out[1] (str), out[2] (test_leaves.Colour), "
        "out[3] (builtin_function_or_method), out[4] (object), out[5] (int), out[6] (set) and 1 more"
    )
    with warnings.catch_warnings():  # None says that there is nothing
        warnings.simplefilter("error")
        assert "out[1] (NoneType)" in assert_parity(lambda x: (x, None), X, device="sim").notes[0]


def test_a_tensor_that_parity_does_not_compare_is_noted_and_fails_on_demand() -> None:
    def f(x: Tensor) -> Any:
        return x.exp(), torch.ones(2).to(torch.float8_e4m3fn)

    with pytest.warns(ParityWarning, match=r"out\[1\] is a tensor of float8_e4m3fn \(strided\), which parity does not compare"):
        assert_parity(f, X, device="sim")
    with pytest.raises(ParityFailure, match="void in out"):
        assert_parity(f, X, device="sim", fail_on=("void",))
    with pytest.raises(NothingCompared, match=r"no tensor .* \(out is a tensor of float8_e4m3fn \(strided\)\); return what is"):
        assert_parity(lambda x: f(x)[1], X, device="cpu")


def test_results_of_nothing_but_nan_are_told(bad: Device) -> None:
    with pytest.warns(ParityWarning, match="every element of out is NaN on both sides: this compares"):
        assert_parity(lambda x: x.exp() * math.nan, X, device=bad)


# ---------------------------------------------------------------------------------------------------------------- inputs


def test_an_object_that_goes_in_goes_to_the_device_with_its_tensors(bad: Device) -> None:
    given = Out(Plain(X.clone().requires_grad_()))
    with pytest.raises(ParityFailure) as caught:
        assert_parity(lambda b: b.y.y.exp(), given, device=bad)
    assert [n for n, _ in caught.value.comparison.findings] == ["out", "grad[b.y.y]"]
    assert given.y.y.device.type == "cpu"
    got = assert_parity(lambda b: b.y.mul_(2), Out(X.clone()), device="sim")
    assert [n for n, _ in got.verdicts] == ["out", "after[b.y]"]


def test_a_module_that_goes_in_is_differentiated_by_name() -> None:
    model = nn.Linear(4, 2)
    got = assert_parity(lambda m, x: m(x), model, X, device="sim")
    assert [n for n, _ in got.verdicts] == ["out", "grad[m.weight]", "grad[m.bias]"]
    assert model.weight.device.type == "cpu"


# ----------------------------------------------------------------------------------------------------- where the work ran


@pytest.mark.parametrize("f", [lambda x: x.cpu().exp(), lambda x: x.cpu().exp().to(x.device), lambda x: x.t().cpu().exp()])
def test_work_that_never_ran_on_the_device_is_no_agreement(f: Callable[..., Any], bad: Device) -> None:
    with pytest.raises(NothingCompared, match="no operator ran on sim; on the CPU ran aten::exp; let the function compute"):
        assert_parity(f, torch.ones(2, 2), device=bad)
    with pytest.raises(NothingCompared, match="no operator ran on sim; let the function compute where its inputs lie"):
        assert_parity(lambda x: x.cpu(), X, device=bad)


def test_a_function_that_ends_on_the_cpu_is_compared_with_a_warning(bad: Device) -> None:
    with pytest.warns(ParityWarning, match="no output lies on sim: make sure .*; what ran there: aten::sqrt$") as heard:
        assert_parity(lambda x: x.sqrt().cpu(), X, device=bad)
    assert heard[0].filename == __file__
    with pytest.raises(ParityFailure, match="wrong in out"):
        assert_parity(lambda x: x.exp().cpu(), X, device=bad)
    with pytest.warns(ParityWarning, match=r"out\['b'\] does not lie on sim: "):
        assert_parity(lambda x: {"a": x.sqrt(), "b": x.sqrt().cpu()}, X, device=bad)
    with pytest.warns(ParityWarning, match="ran on the CPU, after a copy from sim: aten::exp$"):
        assert_parity(lambda x: x.sqrt().cpu().exp().to(x.device) + 1, X, device=bad)


@pytest.mark.parametrize("f", [
    lambda x: x, lambda x: x[None].t(), lambda x: float(x.sum()), lambda x: (x.mul_(2), 1)[1],
    lambda x: x.double().sum().item(), lambda x: x[torch.arange(2)], lambda x: x * torch.tensor(2.0).exp(),
])  # fmt: skip
def test_views_numbers_and_helpers_on_the_cpu_raise_no_alarm(f: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_parity(f, X, device="sim")


def test_the_run_that_is_judged_is_not_watched() -> None:
    """Modes change what torch does (compiled code is left): they lie over a run of their own."""
    modes: list[bool] = []

    def f(x: Tensor) -> Tensor:
        modes.append(torch._C._len_torch_dispatch_stack() > 0)
        return x.exp()

    assert_parity(f, X, device="sim")
    on_device = [m for m in modes if m]
    assert len(on_device) == 1
    assert len(modes) > 3


def test_an_operator_that_raises_in_a_backward_inside_of_the_function_ends_nothing() -> None:
    def refuse(c: Call) -> Any:
        raise RuntimeError("kaput")

    def step(x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(x.tanh().sum(), x)
        return g

    device = resolve("sim", (Fault("f", ("tanh_backward",), refuse),))
    with pytest.raises(ParityFailure, match="error: RuntimeError in run: kaput"):
        assert_parity(step, X.clone().requires_grad_(), device=device)
