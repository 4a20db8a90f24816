"""Modes that see every operator, without the price of torch's compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parity.core import compiler

DISPATCH = "__torch_dispatch__"
_disable: Callable[..., Any] = getattr(torch, "_disable_dynamo")  # noqa: B009 -- torch does not export it


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """A dispatch mode that is never compiled.

    torch guards each mode against that by a call into its compiler, which it imports at the first operator for it (0.8 s). Here
    the guard waits until the program has imported the compiler itself; before that nothing can be compiled.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch adds its own guard."""
        return False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)  # type: ignore[no-untyped-call]  # as torch has it
        if DISPATCH in cls.__dict__:
            setattr(cls, DISPATCH, _guarded(cls.__dict__[DISPATCH]))


def _guarded(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    never_compiled: Callable[..., Any] = _disable(dispatch, recursive=True)

    @functools.wraps(dispatch)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return (never_compiled if compiler.is_imported() else dispatch)(*args, **kwargs)

    return guarded


def has_number(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a plain number stands for a tensor, as in `x + 1`, or where a kernel for a number calls that for a tensor. An
    overload takes it for some operators only; its packet finds the overload for numbers."""
    names = _tensors_of(func)
    given = (*zip((a.name for a in func._schema.arguments), args), *kwargs.items())
    return any(name in names and isinstance(value, (bool, int, float, complex)) for name, value in given)


@functools.cache
def _tensors_of(func: Any) -> frozenset[str]:
    """The arguments of an operator that are tensors."""
    return frozenset(a.name for a in func._schema.arguments if str(a.type) in ("Tensor", "Optional[Tensor]"))
