"""What the device's run leaves in torch's state fails a comparison; what the function itself leaves is said."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import parity
from parity.devices import Call, Device, Fault, resolve

X = torch.linspace(-1.0, 1.0, 5).requires_grad_()
held: list[Any] = []


def device(leave: Any, level: str = "kernel", op: str = "sinh") -> Device:
    def effect(call: Call) -> Any:
        leave()
        return call.run()

    return resolve("sim", (Fault("leaves", (op,), effect, level=level),))


def inference() -> None:
    held.append(torch.inference_mode())
    held[-1].__enter__()


@pytest.mark.parametrize(
    ("leave", "what"),
    [
        (inference, "inference mode"),
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "the number of threads"),
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype"),
    ],
)
def test_what_the_device_leaves_fails_and_is_put_back(leave: Any, what: str) -> None:
    before = torch.get_num_threads()
    with pytest.raises(parity.ParityFailure, match=f"left behind in its process.*{what}"):
        parity.assert_parity(torch.sinh, X, device=device(leave))
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (before, torch.float32)
    assert (X * 1).requires_grad
    assert parity.assert_parity(torch.sinh, X, device="sim")


def test_what_the_function_leaves_on_the_cpu_too_is_said() -> None:
    def careless(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return torch.sinh(x)

    with pytest.warns(parity.ParityWarning, match=r"careless leaves behind in its process: the default dtype \(torch.float32"):
        parity.assert_parity(careless, X, device="sim")
    assert torch.get_default_dtype() == torch.float32


def in_turn(*threads: int) -> Callable[[Tensor], Tensor]:
    """A sum that sets the next number of threads at each call."""
    turns = itertools.cycle(threads)

    def total(x: Tensor) -> Tensor:
        torch.set_num_threads(next(turns))
        return torch.sinh(x).sum()

    return total


@pytest.mark.parametrize("threads", [(1, 2), (2, 1), (1, 2, 3)])
@pytest.mark.filterwarnings("ignore::parity.ParityWarning")
def test_a_function_that_sets_threads_in_turn_accuses_no_healthy_device(threads: tuple[int, ...]) -> None:
    """Whatever the CPU's runs leave together; what the device leaves besides is still its own, and so is what it returns."""
    x = torch.linspace(0.5, 1.0, 5).requires_grad_()
    assert parity.assert_parity(in_turn(*threads), x, device="sim")
    with pytest.raises(parity.ParityFailure, match=r"left behind in its process.*the default dtype"):
        parity.assert_parity(in_turn(*threads), x, device=device(lambda: torch.set_default_dtype(torch.float64)))
    larger = resolve("sim", (Fault("larger", ("sinh",), lambda call: call.run() + 0.001),))
    with pytest.raises(parity.ParityFailure, match="in out"):
        parity.assert_parity(in_turn(*threads), x, device=larger)


def test_comparisons_of_several_threads_do_not_meet() -> None:
    """Each sets the default dtype and torch's flags, which all threads share."""
    with ThreadPoolExecutor(4) as pool:
        both = [*pool.map(lambda k: parity.assert_parity(torch.sinh, X * k, device="sim", effort="full"), range(1, 9))]
    assert all(both)
    assert threading.active_count() >= 1
