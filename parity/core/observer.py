"""What sees torch's calls: every operator that is dispatched, or every public function that is called.

An observer is a function `(func, args, kwargs) -> result` that makes the call itself, `func(*args, **kwargs)`: it may look
before and after it, change its arguments, or answer something else. It is not in force meanwhile, so that what the call calls
in turn is seen only by the observers around it; `Operators.opened` lets it see that as well. A backward pass calls operators
and no public functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parity.core import compiler

Observer = Callable[[Any, Any, Any], Any]
TRACED = "torch._subclasses"  # where torch keeps the tensors of its compiler, which compute nothing
NO_BACKWARD = -1  # torch's number of the current graph task outside of a backward pass
_disable: Callable[..., Any] = getattr(torch, "_disable_dynamo")  # noqa: B009 -- torch does not export it


class Functions(TorchFunctionMode):
    """Hands every public function to an observer; those that it calls itself are not seen."""

    def __init__(self, observe: Observer) -> None:
        super().__init__()
        self._observe = observe

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._observe(func, args, kwargs or {})


class TooLongError(Exception):
    """More operators were called than may be. No RuntimeError: those are what an operator refuses."""


@dataclass(slots=True)
class Work:
    """How many more operators may be called under the modes that share it."""

    left: int

    def done(self) -> None:
        """Count one."""
        self.left -= 1
        if self.left < 0:
            raise TooLongError


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Hands every operator to an observer, or to the method of a subclass, and is never compiled.

    torch guards each mode against that by a call into its compiler, which it imports at the first operator for it (0.8 s). Here
    the guard waits until the program has imported the compiler itself; before that nothing can be compiled.
    """

    observe: Observer
    work: Work | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]  # as torch has it

    def __init__(self, observe: Observer | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        if observe is not None:
            self.observe = observe
        self.open: list[Any] = []  # the operators that run as others now

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch adds its own guard."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(map(_answers, types)):
            return NotImplemented  # the subclass answers, and its own operators are seen
        if self.work is not None:
            self.work.done()
        if compiler.is_imported():
            return _never_compiled(self.observe, func, args, kwargs or {})
        return self.observe(func, args, kwargs or {})

    def opened(self, func: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of an operator by what makes it of other operators, which are seen as well; it is in `open` meanwhile."""
        self.open.append(func)
        try:
            with self:
                return run(*args, **kwargs)
        finally:
            self.open.pop()


@functools.cache
def _answers(kind: type[Tensor]) -> bool:
    """Whether a subclass computes the operators of its tensors by others."""
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ and not kind.__module__.startswith(TRACED)


def _observed(observe: Observer, func: Any, args: Any, kwargs: Any) -> Any:
    return observe(func, args, kwargs)


_never_compiled: Callable[..., Any] = _disable(_observed, recursive=True)


def name_of(func: Any) -> str:
    """The name of a public function, like "torch.nn.functional.gelu"; "" where torch knows none."""
    return str(resolve_name(func) or "")


def lies_on(kind: str, tree: Any) -> bool:
    """Whether a tensor in it lies on a device of this type."""
    return any(isinstance(x, Tensor) and x.device.type == kind for x in tree_leaves(tree))


def in_backward() -> bool:
    """Whether a backward pass calls what runs now."""
    return bool(torch._C._current_graph_task_id() != NO_BACKWARD)


def no_results(func: Any) -> Any:
    """What an operator of a backward pass answers in place of an exception. One that leaves an observer there ends the process
    if the device is in Python as well: torch 2.13 rethrows it with Python's error still set."""
    returns = func._schema.returns
    return None if len(returns) == 1 else tuple(None for _ in returns)


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
