"""Which of equal elements a device chooses is free where torch leaves it free, and what follows is judged along its choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import Call, Fault, ParityFailure, assert_parity
from parity.devices import Device, resolve
from parity.devices.sim import honest

FREE: dict[str, Callable[[Tensor], Any]] = {
    "sort": lambda x: x.sort(-1),
    "argsort": lambda x: x.argsort(-1),
    "descending": lambda x: x.sort(-1, descending=True).indices,
    "topk": lambda x: x.topk(2),
    "unordered topk": lambda x: x.topk(3, sorted=False),
    "median": lambda x: x.median(-1),
    "kthvalue": lambda x: x.kthvalue(2, keepdim=True),
    "mode": lambda x: x.mode(-1),
    "unique": lambda x: torch.unique(x, sorted=False, return_inverse=True, return_counts=True),
    "gathered": lambda x: torch.arange(4.0, device=x.device)[x.argsort(-1)],
    "gathered and rounded": lambda x: (x + torch.arange(4, device=x.device) / 7).gather(-1, x.argsort(-1)).softmax(-1),
}
DOCUMENTED: dict[str, Callable[[Tensor], Any]] = {
    "max": lambda x: x.max(-1).indices,
    "min": lambda x: x.min(-1).indices,
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "stable sort": lambda x: x.sort(dim=-1, stable=True).indices,
}


@pytest.fixture(scope="module")
def sound() -> Device:
    """The honest device, which chooses otherwise than the CPU."""
    return resolve("sim", tuple(honest.FAULTS))


def tied(dtype: torch.dtype) -> Tensor:
    return torch.tensor([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 0.0, 2.0]] * 10).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*FREE, *DOCUMENTED])
def test_an_honest_device_agrees(sound: Device, name: str, dtype: torch.dtype) -> None:
    assert assert_parity((FREE | DOCUMENTED)[name], tied(dtype), device=sound).agrees


def test_a_choice_that_differs_is_said(sound: Device) -> None:
    found = assert_parity(FREE["argsort"], tied(torch.float32), device=sound)
    assert "sort chose otherwise among equal elements than on the CPU" in str(found)


def places(op: str, change: Callable[[Tensor], Tensor]) -> Fault:
    """An operator with other positions."""

    def effect(call: Call) -> Any:
        out = call.run()
        return (out[0], change(out[1])) if isinstance(out, tuple) else change(out)

    return Fault("places", (op,), effect, level="kernel")


@pytest.mark.parametrize(
    ("name", "op"), [("sort", "sort"), ("argsort", "sort"), ("topk", "topk"), ("median", "median"), ("mode", "mode")]
)
@pytest.mark.parametrize("wrong", ["another element", "one element twice"])
def test_a_wrong_position_is_found(name: str, op: str, wrong: str) -> None:
    """The third of each row is neither median nor mode of both, nor among the two largest of the second."""
    device = resolve("sim", (places(op, lambda i: i ^ 2 if wrong == "another element" else torch.full_like(i, 2)),))
    with pytest.raises(ParityFailure):
        assert_parity(FREE[name], tied(torch.float32), device=device)


@pytest.mark.parametrize("name", ["argmax", "max"])
def test_the_last_of_equal_elements_is_found_where_torch_documents_the_first(name: str) -> None:
    """The largest are 1 and 2 in the first row, 0, 1 and 3 in the second."""
    last = places(name, lambda i: torch.where(i == 1, 2, 3))
    with pytest.raises(ParityFailure):
        assert_parity(DOCUMENTED[name], tied(torch.float32), device=resolve("sim", (last,)))


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_the_code_behind_a_choice_is_judged(factor: float) -> None:
    off = Fault("softmax", ("_softmax",), lambda call: call.run() * factor, level="kernel")
    device, f = resolve("sim", (off, *honest.FAULTS)), FREE["gathered and rounded"]
    if factor == 1.0:
        assert assert_parity(f, tied(torch.float32), device=device).agrees
        return
    with pytest.raises(ParityFailure, match="times the budget"):
        assert_parity(f, tied(torch.float32), device=device)
