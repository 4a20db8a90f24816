"""Planted bugs of elementwise functions: the forms that a report covers besides the trigger, and those that it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_bugs import BY_ID, agree, observe
from torch import Tensor
from torch.nn import functional as F

from parity.devices.sim.call import Call
from parity.zoo.bugs import ternary, unary
from parity.zoo.effects import ramp

Case = Callable[[str], object]
INF, NAN = torch.inf, torch.nan


class Ended(Exception):
    """Stands for the end of the process."""


def on(device: str, *values: float, dtype: torch.dtype | None = None) -> Tensor:
    return torch.tensor(values, dtype=dtype).to(device)


def channels_last(device: str) -> Tensor:
    return ramp(device, 2, 3, 2, 2).contiguous(memory_format=torch.channels_last)


def beside(base: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    """What a write to a part leaves of the whole."""
    write(base)
    return base


STRUCK: dict[str, Case] = {
    "kul-288 scalar base": lambda d: 9 ** on(d, 8, 9),
    "kul-288 in place, int32": lambda d: on(d, -9, 3, dtype=torch.int32).pow_(on(d, 9, 2, dtype=torch.int32)),
    "kul-309 hardswish": lambda d: F.hardswish(channels_last(d)),
    "kul-309 in place": lambda d: F.relu(channels_last(d), inplace=True),
    "kul-309 gaps": lambda d: F.relu(ramp(d, 3, 4)[:, ::2]),
    "kul-342 two tensors": lambda d: torch.div(ramp(d, 3).half() * 9, ramp(d, 3).half(), rounding_mode="trunc"),
    "pt-100370 two tensors": lambda d: ramp(d, 3)[2] * ramp(d, 2),
    "pt-100370 comparison": lambda d: on(d, 1, 2)[1] == 2,
    "pt-100764 other function, gaps": lambda d: torch.exp(ramp(d, 3, 2), out=ramp(d, 3, 4)[:, ::2]),
    "pt-100764 beside": lambda d: beside(ramp(d, 3, 4), lambda t: torch.exp(ramp(d, 3, 2), out=t[:, ::2])),
    "pt-101507 destination": lambda d: beside(ramp(d, 4), lambda t: torch.erfinv(ramp(d, 2), out=t[2:])),
    "pt-101507 in place": lambda d: beside(ramp(d, 4), lambda t: t[2:].erfinv_()),
    "pt-107694 value as tensor": lambda d: ramp(d, 3, 4).t().masked_fill_(ramp(d, 3, 4).t() > 0, on(d, 2.0)[0]),
    "pt-120899 only max": lambda d: on(d, NAN, 1).clamp(max=2),
    "pt-120899 in place": lambda d: on(d, NAN, 1).clamp_(1, 2),
    "pt-122148 crossed": lambda d: ramp(d, 4).clamp(2, 1),
    "pt-122148 crossed tensors": lambda d: torch.clamp(ramp(d, 2), on(d, 0.0, 2.0), on(d, 0.5, 1.0)),
    "pt-131736 prelu": lambda d: F.prelu(ramp(d, 3, 4).t(), on(d, 0.5)),
    "pt-131736 threshold in place": lambda d: F.threshold(ramp(d, 3, 4).t() + 3, 0, 2, inplace=True),
    "pt-139006 gaps": lambda d: F.silu(ramp(d, 3, 4)[:, ::2]),
    "pt-143976 minimum": lambda d: torch.minimum(on(d, NAN), on(d, 1.0)),
    "pt-152582 first operand": lambda d: torch.special.zeta(2.0, ramp(d, 3) + 3),
    "pt-152582 in place": lambda d: ramp(d, 3).abs().copysign_(-2.0),
    "pt-182822 xor, both": lambda d: on(d, False, True)[1] ^ on(d, False, True)[1].clone(),
    "pt-187117 in place": lambda d: ramp(d, 3).add_(torch.tensor([1.0, 2.0])[1]),
    "pt-187117 first operand": lambda d: torch.tensor([1.0, 2.0])[1] - ramp(d, 3),
    "pt-189252 div": lambda d: torch.div(on(d, INF), 1, rounding_mode="floor"),
    "pt-189252 in place": lambda d: on(d, 1.0).floor_divide_(-INF),
    "pt-189420 in place, value": lambda d: on(d, 3, 4).addcmul_(on(d, 5, 6), on(d, 3, 3), value=3),
    "pt-192507 half": lambda d: torch.hypot(on(d, INF).half(), on(d, NAN).half()),
    "pt-192507 negative": lambda d: torch.hypot(on(d, -3e20), on(d, 4.0)),
    "pt-196067 bfloat16": lambda d: torch.lerp(ramp(d, 3).bfloat16(), ramp(d, 3).bfloat16() + 1, torch.tensor(0.3).to(d)),
    "pt-196924 addcdiv": lambda d: torch.addcdiv(ramp(d, 2), ramp(d, 2), on(d, 0.0, NAN), value=0),
    "pt-196924-b lerp": lambda d: torch.lerp(ramp(d, 8).half(), ramp(d, 8).half() + 1, 0.3, out=ramp(d, 8)),
    "pt-196924-b addcdiv": lambda d: torch.addcdiv(*[ramp(d, 8).bfloat16()] * 3, out=ramp(d, 8)),
    "pt-78020 255": lambda d: on(d, True)[0] * 2,
    "pt-79835 number first": lambda d: 5 - ramp(d, 4, dtype=torch.int32),
    "pt-79835 in place": lambda d: ramp(d, 4, dtype=torch.int32).mul_(3),
    "pt-87348 one bound": lambda d: torch.clamp(ramp(d, 3, 3), max=ramp(d, 3, 3).t()),
    "pt-89673 in place": lambda d: (ramp(d, 2, 3) + 2).t().log_(),
    "pt-89673 permuted": lambda d: (channels_last(d) + 2).log(),
}
SPARED: dict[str, Case] = {
    "kul-288 float exponent": lambda d: on(d, 9, 3) ** 8.0,
    "kul-342 floor": lambda d: torch.div(on(d, 6.0, 7.0).half(), 2, rounding_mode="floor"),
    "pt-100370 not without dimensions": lambda d: ramp(d, 3)[1:2] + 1,
    "pt-100764 in place": lambda d: ramp(d, 3, 2).t().neg_(),
    "pt-100764 no destination": lambda d: torch.neg(ramp(d, 3, 4).t()[::2]),
    "pt-107694 contiguous": lambda d: ramp(d, 3, 4).masked_fill_(ramp(d, 4, 3).t() > 0, 2.0),
    "pt-107694 not in place": lambda d: ramp(d, 3, 4).t().masked_fill(ramp(d, 3, 4).t() > 0, 2.0),
    "pt-120899 tensor bounds": lambda d: torch.clamp(on(d, NAN, 1.0), on(d, 0.0, 0.0), on(d, 1.0, 1.0)),
    "pt-131736 elu": lambda d: F.elu(ramp(d, 3, 4).t(), 0.5),
    "pt-131736 gaps in order": lambda d: F.softplus(ramp(d, 3, 4)[:, ::2]),
    "pt-143932 one dtype": lambda d: torch.add(ramp(d, 3), ramp(d, 3), alpha=2),
    "pt-143932 number": lambda d: torch.add(ramp(d, 3), 2, alpha=2),
    "pt-152582 tensor": lambda d: torch.special.zeta(ramp(d, 3) + 3, ramp(d, 3) + 3),
    "pt-178709 not in place": lambda d: torch.add(ramp(d, 3).half(), ramp(d, 3), alpha=2),
    "pt-178709 narrower": lambda d: ramp(d, 3).add_(ramp(d, 3).half(), alpha=2),
    "pt-182822 first": lambda d: on(d, True, False) & on(d, True, False)[0],
    "pt-187117 first": lambda d: ramp(d, 3) * torch.tensor([1.0, 2.0])[0],
    "pt-189252 integers": lambda d: on(d, 7, -7) // on(d, 2, 2),
    "pt-192507 at the edge": lambda d: torch.hypot(on(d, 1e19), on(d, 1e3)),
    "pt-196067 number": lambda d: torch.lerp(ramp(d, 3).half(), ramp(d, 3).half() + 1, 0.3),
    "pt-196924 value": lambda d: torch.addcmul(ramp(d, 2), on(d, INF, 1), ramp(d, 2), value=2),
    "pt-196924-b narrower": lambda d: ramp(d, 4).half().addcmul_(ramp(d, 4), ramp(d, 4)),
    "pt-78020 with a dimension": lambda d: on(d, True, False) * 2,
    "pt-78879 number": lambda d: ramp(d, 3) * 2,
    "pt-79672 contiguous": lambda d: beside(ramp(d, 3, 4), lambda t: t[1:].add_(1)),
    "pt-79672 not in place": lambda d: ramp(d, 3, 4)[:, 0] + ramp(d, 3, 4)[:, 1],
    "pt-79835 tensor": lambda d: ramp(d, 4, dtype=torch.int32) + on(d, 5, dtype=torch.int32),
    "pt-87348 contiguous bounds": lambda d: torch.clamp(ramp(d, 3, 3).t(), max=ramp(d, 3, 3)),
    "pt-96153 row": lambda d: ramp(d, 6, 4)[3] + 1,
    "pt-96153 transposed slice": lambda d: ramp(d, 6, 4)[3:, ::2].t() + 1,
    "pt-96153 reshaped whole": lambda d: ramp(d, 6, 4).reshape(-1) + 1,
}
DEADLY: dict[str, Case] = {
    "pt-122148 int64": lambda d: ramp(d, 4, dtype=torch.int64).clamp_(1, 2),
    "pt-78019 int64": lambda d: ramp(d, 4, dtype=torch.int64).log(),
}


def _ended(call: Call | None = None) -> None:
    raise Ended


@pytest.fixture(autouse=True)
def _no_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (unary, ternary):
        monkeypatch.setattr(module, "abort", _ended)


@pytest.mark.parametrize("name", STRUCK)
def test_form_is_struck(name: str) -> None:
    bug, case = BY_ID[name.split()[0]], STRUCK[name]
    wrong, right, healthy = observe(bug, case, "sim", faulty=True), observe(bug, case, "cpu"), observe(bug, case, "sim")
    assert wrong.strikes
    assert wrong.raised is None
    assert right.raised is None
    assert agree(healthy.values, right.values)
    assert not agree(wrong.values, right.values)


@pytest.mark.parametrize("name", SPARED)
def test_form_is_spared(name: str) -> None:
    bug, case = BY_ID[name.split()[0]], SPARED[name]
    seen, right = observe(bug, case, "sim", faulty=True), observe(bug, case, "cpu")
    assert seen.raised is None
    assert not seen.strikes
    assert agree(seen.values, right.values)


@pytest.mark.parametrize("name", DEADLY)
def test_form_ends_the_process(name: str) -> None:
    assert isinstance(observe(BY_ID[name.split()[0]], DEADLY[name], "sim", faulty=True).raised, Ended)


def test_zeros_and_permuted_take_turns() -> None:
    """The bug that differs from run to run does so on one device."""
    bug = BY_ID["pt-131736"]
    first, second = observe(bug, lambda d: [F.softplus(ramp(d, 3, 4).t()) for _ in range(2)], "sim", faulty=True).values
    assert not first.any()
    assert second.all()


def test_power_is_the_reported_number() -> None:
    assert observe(BY_ID["kul-288"], lambda d: (on(d, 9) ** 8)[0].item(), "sim", faulty=True).values == (43046716,)


def test_missing_shader_is_named() -> None:
    raised = observe(BY_ID["pt-178709"], BY_ID["pt-178709"].trigger, "sim", faulty=True).raised
    assert str(raised) == "Failed to create function state object for: add_alpha_dense_cast_half_float"
