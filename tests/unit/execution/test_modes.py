"""Torch's modes around a call: those that are withheld, and those that see nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from parity.core.results import Raised
from parity.execution import execute
from parity.execution.modes import Unwatched, Withheld


class _Functions(TorchFunctionMode):
    """Counts the functions of torch that it sees."""

    seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **kwargs or {})


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Counts the operators that it sees."""

    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **kwargs or {})


def test_modes_of_functions_that_are_withheld_see_what_a_device_is_called_for_once() -> None:
    """And not the reference, nor anything else; they are back after errors, too."""

    def call() -> torch.Tensor:
        return torch.ones(2).exp()

    with _Functions() as functions, _Functions() as inner:
        with Withheld():
            call()
            execute.precisely(call, "run")
            assert functions.seen == 0
            execute.attempt(lambda: execute.attempt(call, "run"), "run")
            assert functions.seen == inner.seen == 2
            assert isinstance(execute.attempt(lambda: 1 // 0, "run"), Raised)
            call()
            assert functions.seen == inner.seen == 2
        with pytest.raises(ZeroDivisionError), Withheld():
            torch.ones(2 // 0)
        call()
        assert functions.seen == inner.seen == 4


def test_no_mode_sees_what_is_unwatched_and_all_are_back_after_it() -> None:
    """After an error, too."""
    with _Functions() as functions, _Operators() as operators:  # type: ignore[no-untyped-call]  # torch's own
        with Unwatched():
            torch.ones(2).exp()
        with pytest.raises(ZeroDivisionError), Unwatched():
            torch.ones(2 // 0)
        assert (functions.seen, operators.seen) == (0, 0)
        torch.ones(2).exp()
    assert functions.seen >= 2
    assert operators.seen >= 2
