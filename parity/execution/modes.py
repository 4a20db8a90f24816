"""Torch's modes around a call: which gradients it records and which algorithms it may take, and which modes that were entered
before are in force in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from parity.core.compiler import set_deterministic


@contextmanager
def deterministic() -> Iterator[None]:
    """Records gradients, and makes torch use deterministic algorithms only."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    set_deterministic(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        set_deterministic(before, warns)


class _Recording:
    """Like `torch.enable_grad` and `torch.no_grad`, whose construction costs as much as a small op."""

    def __init__(self, recorded: bool) -> None:
        self._recorded = recorded

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self._recorded)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._before)


class Unwatched:
    """No mode of torch that was entered before is in force inside: neither those that a device's calls pass through nor one
    that records operators. What computes on the CPU alone pays for them otherwise, call by call."""

    def __enter__(self) -> None:
        self._functions = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
        self._operators = [torch._C._pop_torch_dispatch_stack(None) for _ in range(torch._C._len_torch_dispatch_stack())]

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._operators):
            torch._C._push_on_torch_dispatch_stack(mode)
        for mode in reversed(self._functions):
            torch._C._push_on_torch_function_stack(mode)


withheld: list[Any] = []  # modes of functions, the outermost first


class Withheld:
    """The modes of public functions that were entered before are in force inside where `attempt` calls a device, and nowhere
    else: half of the functions that a case calls are those of the reference and of comparisons."""

    def __enter__(self) -> None:
        self._outer = [*withheld]
        withheld[:] = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())][::-1]

    def __exit__(self, *_: object) -> None:
        for mode in withheld:
            torch._C._push_on_torch_function_stack(mode)
        withheld[:] = self._outer


@contextmanager
def in_force() -> Iterator[None]:
    """What is withheld is in force inside."""
    modes = [*withheld]
    withheld.clear()  # a call inside of another has them once
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        for _ in modes:
            torch._C._pop_torch_function_stack()
        withheld[:] = modes


# The modes of a case. torch runs other kernels without gradients, and others again for inference tensors.
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": functools.partial(_Recording, True),
    "no_grad": functools.partial(_Recording, False),
    "inference": torch.inference_mode,
    "deterministic": deterministic,
}
