"""What `parity run --model` keeps of a function so that two runs can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from parity.comparing.comparison import Request
from parity.comparing.function import Sides, compared
from parity.comparing.own_figures import with_figures
from parity.devices import Call, Fault, resolve
from parity.store.rows import ItemRow


def figures(fn: Callable[..., Any], *inputs: Tensor, faults: tuple[Fault, ...] = ()) -> ItemRow:
    seen: list[Sides] = []
    compared(Request(fn, inputs, device=resolve("sim", faults)), seen.append)
    return with_figures(ItemRow("models.py:f", "float32"), seen[0])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


def rougher(call: Call) -> Tensor:
    out: Tensor = call.run()
    return out * (1 + 2e-6 * torch.randn(out.shape, generator=torch.Generator().manual_seed(1)))


def test_errors_are_those_of_the_device_against_the_truth() -> None:
    """In roundoffs, of all results that are large enough; equal for equal calls, and larger on a rougher device."""
    x = torch.randn(8, 16)
    one, two = figures(net(), x), figures(net(), x)
    rough = figures(net(), x, faults=(Fault("rougher", ("linear",), rougher),))
    assert set(one.errors) == {"forward out", *(f"backward grad[{n}]" for n in ("0.weight", "0.bias", "2.weight"))}
    assert (one.errors, one.ids) == (two.errors, two.ids)
    assert all(0.1 < e < 10 for e in one.errors.values())
    assert rough.errors["forward out"] > 5 * one.errors["forward out"]
    assert figures(net(), x + 1).ids != one.ids


def test_few_elements_count_where_a_pass_has_no_others() -> None:
    assert set(figures(torch.exp, torch.tensor([0.3, 0.7])).errors) == {"forward out"}
    assert figures(torch.exp, torch.zeros(3)).errors == {"forward out": 0.0}


def test_times_and_memory_are_those_of_a_call() -> None:
    """Of the forward and of the backward; a function that keeps more for its backward holds more."""

    def kept(times: int) -> Callable[[Tensor], Tensor]:
        return lambda x: sum((x * k).exp().sum() for k in range(times))  # type: ignore[return-value]

    x = torch.randn(512, 512, requires_grad=True)
    few, many = (figures(kept(n), x) for n in (1, 5))
    assert set(few.device_seconds) == set(few.device_spread) == {"forward", "backward"}
    assert 0 < few.device_seconds["forward"] < 60
    assert many.memory - few.memory > 3 * (1 << 20)
