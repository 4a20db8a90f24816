"""The operator of a case that first differs, and the properties of its call that decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parity.checks.deciding import SPECIAL, properties
from parity.checks.following import following
from parity.checks.operators import OperatorCall, StridedOperand, _differ, error_ratio
from parity.core.results import EXTREME_VALUES
from parity.devices import Call, Device, Fault, resolve


def blamed(fault: Fault | None, run: Callable[[Device], Any]) -> OperatorCall | None:
    """What is blamed for a run on a device with this fault."""
    device = resolve("sim", () if fault is None else (fault,))
    with device.active(), following(device) as seen:
        run(device)
    return seen.first()


def at(d: Device, x: Tensor) -> Tensor:
    return d.upload(x)


def doubled(call: Call) -> Any:
    return call.run() * 2


def as_if_dense(call: Call) -> Any:
    """The first operand is read as if it were dense."""
    x = call.args[0]
    call.args[0] = x.as_strided(x.shape, torch.empty(x.shape).stride(), 0)
    return call.run()


def seven(call: Call) -> Any:
    """Something else is written."""
    call.outs[0].fill_(7.0)


X = torch.linspace(-2.0, 3.0, 12).reshape(3, 4)


def test_a_healthy_device_is_never_blamed() -> None:
    """Views, copies, writes and a backward pass."""

    def run(d: Device) -> None:
        x = at(d, X).requires_grad_()
        y = torch.softmax(x.t() @ x[:, 1:], -1).exp().sum()
        torch.autograd.grad(y, x)
        out = torch.empty(4, 3, device=d.torch_device).t()
        torch.add(x.detach(), 1, out=out)
        out.copy_(x.detach()).mul_(2)

    assert blamed(None, run) is None


def test_the_operator_inside_a_composite_is_blamed_forward_and_backward() -> None:
    """Not the function that was called, nor the operators that got wrong operands."""
    first = blamed(Fault("f", ("native_layer_norm",), lambda c: (c.run()[0] * 2, *c.run()[1:])), lambda d: (
        torch.nn.functional.layer_norm(at(d, X), (4,)).exp().sum()
    ))  # fmt: skip
    assert first is not None
    assert first.base_name == "native_layer_norm"

    def run(d: Device) -> None:
        x = at(d, X).requires_grad_()
        torch.autograd.grad(torch.sigmoid(x).sum(), x)

    first = blamed(Fault("b", ("sigmoid_backward",), doubled), run)
    assert first is not None
    assert (first.base_name, first.symptom) == ("sigmoid_backward", "values")


def test_a_faint_difference_is_blamed_if_it_is_the_only_one() -> None:
    """One bit of one operator, next to others that are right."""

    def one_bit(call: Call) -> Any:
        result = call.run()
        return torch.nextafter(result, result + 1)

    first = blamed(Fault("bit", ("cos",), one_bit), lambda d: at(d, X).exp().cos().sum())
    assert first is not None
    assert first.base_name == "cos"
    assert not first.differs


@pytest.mark.parametrize(
    ("fault", "run", "expected"),
    [
        (Fault("all", ("exp",), doubled), lambda d: at(d, X).t().exp(), ()),
        (Fault("dense", ("exp",), as_if_dense), lambda d: at(d, X).t().exp(), ("non-contiguous operand",)),
        (Fault("dense", ("exp",), as_if_dense), lambda d: at(d, X)[1:].exp(), ("offset operand",)),
        (
            Fault("nan", ("maximum",), lambda c: torch.fmax(*c.operands[:2])),
            lambda d: torch.maximum(at(d, X), at(d, torch.where(X > 0, math.nan, X))),
            ("NaN or Inf",),
        ),
        (
            Fault("half", ("exp",), doubled, lambda c: c.args[0].dtype is torch.float16),
            lambda d: at(d, X.half()).exp(),
            ("half types",),
        ),
        (
            Fault("written", ("exp",), seven, lambda c: not c.outs[0].is_contiguous()),
            lambda d: torch.exp(at(d, X), out=at(d, X.t().contiguous()).t()),
            ("strided destination",),
        ),
        (
            Fault("flag", ("cumsum",), doubled, lambda c: False),
            lambda d: at(d, X).cumsum(0),
            None,
        ),
    ],
    ids=["always", "strided", "offset", "nan", "half", "destination", "silent"],
)  # fmt: skip
def test_what_decides_is_named(fault: Fault, run: Callable[[Device], Any], expected: tuple[str, ...] | None) -> None:
    """The property without which the call agrees; none if it always differs."""
    device = resolve("sim", (fault,))
    with device.active(), following(device) as seen:
        run(device)
    first = seen.first()
    assert (None if first is None else properties(first, device)) == expected


def test_a_bit_that_a_copy_loses_is_told_from_its_strides() -> None:
    """A conj bit that decides, next to strides that do not; and the other way round."""

    z = torch.complex(X, X.flip(0))
    device = resolve("sim", (Fault("bit", ("mul",), doubled, lambda c: c.args[0].is_contiguous() is False),))
    with device.active(), following(device) as seen:
        at(device, z).t().conj().mul(1)
    first = seen.first()
    assert first is not None
    assert properties(first, device) == ("non-contiguous operand",)


def test_another_right_answer_is_not_blamed_for_a_wrong_operator_behind_it() -> None:
    """Singular vectors with other signs, and then a wrong maximum."""

    def turned(call: Call) -> Any:
        u, s, v = call.run()
        return -u, s, -v

    faults = Fault("signs", ("_linalg_svd",), turned), Fault("max", ("amax",), doubled)
    device = resolve("sim", faults)
    with device.active(), following(device) as seen:
        torch.linalg.svd(at(device, X))[1].amax()
    first = seen.first()
    assert first is not None
    assert first.base_name == "amax"


def test_an_operator_that_raises_is_named() -> None:
    """The one that raised, not those before it."""

    def refuse(call: Call) -> Any:
        raise RuntimeError("no")

    device = resolve("sim", (Fault("raise", ("cos",), refuse),))
    with device.active(), following(device) as seen, pytest.raises(RuntimeError, match="no"):
        at(device, X).exp().cos()
    first = seen.first()
    assert first is not None
    assert (first.base_name, first.symptom) == ("cos", "raises")


@pytest.mark.parametrize(
    ("got", "cpu", "outside"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), False),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 2**-22]), False),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.001]), True),
        (torch.tensor([math.nan]), torch.tensor([math.nan]), False),
        (torch.tensor([math.nan]), torch.tensor([1.0]), True),
        (torch.tensor([1]), torch.tensor([2]), True),
        (torch.tensor([1.0]), torch.tensor([[1.0]]), True),
        (torch.tensor([]), torch.tensor([]), False),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 1.01j]), True),
    ],
)
def test_an_error_ratio_above_one_is_more_than_roundings(got: Tensor, cpu: Tensor, outside: bool) -> None:
    assert (error_ratio(got, cpu) > 1.0) is outside


def test_a_call_in_float32_widens_its_floating_point_operands_alone() -> None:
    half, index = (
        StridedOperand(x, (2,), (1,), 0, False, False, k) for k, x in enumerate((torch.ones(2).half(), torch.arange(2)))
    )
    wide = OperatorCall(torch.ops.aten.index_select.default, (half, 0, index), {}).in_float32()
    assert [x.base.dtype if isinstance(x, StridedOperand) else x for x in wide.args] == [torch.float32, 0, torch.int64]


def test_numbers_are_extreme_beyond_a_root_of_the_range_and_not_at_it() -> None:
    """Of float16, whose smallest normal number has one: 2**-7."""
    x = torch.tensor([2.0**-7, 2.0**-7 * 0.99, 0.0, 255.0, 257.0, float("inf")], dtype=torch.float16)
    assert dict(SPECIAL)[EXTREME_VALUES](x).tolist() == [False, True, False, False, True, False]


def test_equal_nan_of_complex_numbers_are_no_difference() -> None:
    """A copy of them is not to blame; another number is."""
    x = torch.tensor([complex(math.nan, 1.0), 2j])
    assert not _differ(x.clone(), x)
    assert _differ(x + 1, x)
