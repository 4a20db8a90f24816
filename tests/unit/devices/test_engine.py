"""What a program's hooks raise in a backward pass on a simulated device reaches the program, and does not end the process."""

from __future__ import annotations

import gc
import traceback
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import parity
from parity.core.results import Status
from parity.devices import resolve


class MineError(Exception):
    """Raised by the hooks here."""


def hook(*given: Any) -> None:
    raise MineError("a hook of the program")


class Hooked(nn.Module):
    """Raises in the backward pass on the device alone."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(4, 4), way

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 4)."""
        y = self.layer(x)
        if x.device.type != "sim":
            return y.relu()
        if self.way == "tensor":
            y.register_hook(hook)
        elif self.way == "node":
            y.grad_fn.register_prehook(hook)
        elif self.way == "module":
            self.layer.register_full_backward_hook(hook)
            y = self.layer(x)
        elif self.way == "parameter":
            self.layer.weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        elif self.way == "recomputed":

            def inner(x: Tensor) -> Any:
                if torch._C._current_graph_task_id() != -1:
                    hook()
                return x.relu()

            return checkpoint(inner, y, use_reentrant=False)
        return y.relu()


@pytest.mark.parametrize("way", ["tensor", "node", "module", "parameter", "recomputed"])
def test_an_exception_in_a_backward_pass_is_raised(way: str) -> None:
    """With its own traceback; the next pass is as if nothing had been."""
    device = resolve("sim")
    with device.active():
        x = device.upload(torch.ones(3, 4))
        with pytest.raises(MineError, match="a hook of the program") as caught:
            Hooked(way).to(device.torch_device)(x).sum().backward()
        assert any(f.name == "hook" for f in traceback.extract_tb(caught.value.__traceback__))
        y = x.clone().requires_grad_()
        (y * 2).sum().backward()  # type: ignore[no-untyped-call]
        assert y.grad is not None
        assert y.grad.cpu().tolist() == [[2.0] * 4] * 3


def test_it_is_told_as_an_error_of_the_backward_pass() -> None:
    x = torch.ones(3, 4)
    with pytest.raises(parity.ParityFailure, match="error: MineError in backward: a hook of the program") as caught:
        parity.assert_parity(Hooked("tensor"), x, device="sim")
    assert [v.status for _, v in caught.value.comparison.findings] == [Status.ERROR]
    found = parity.locate(Hooked("tensor"), x, device="sim")
    assert "raises on the device (MineError in backward: a hook of the program)" in found.headline


def test_the_exception_is_not_kept() -> None:
    device = resolve("sim")
    alive: list[weakref.ref[MineError]] = []

    def remembered(g: Tensor) -> None:
        error = MineError()
        alive.append(weakref.ref(error))
        raise error

    x = device.upload(torch.ones(3)).requires_grad_()
    for _ in range(3):
        y = x * 2
        y.register_hook(remembered)  # type: ignore[no-untyped-call]
        with pytest.raises(MineError):
            y.sum().backward()  # type: ignore[no-untyped-call]
    del y
    gc.collect()
    assert [r() for r in alive] == [None] * 3
