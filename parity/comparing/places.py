"""Records where in a user's program an operator was called: the module, the public function, and the line, forward and
backward.

Hooks of torch show which module runs, a function mode which public function is called from which line. Each node that autograd
makes for a call gets the call's place, so that the operators of the backward pass have it, too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from parity.comparing.comparison import PACKAGE
from parity.core.observer import Functions, lies_on, name_of

TORCH = str(Path(torch.__file__).parent) + os.sep
START = str(Path(__file__).parents[1] / "__main__.py")  # of the command
LABEL = "parity place"  # key of a node's metadata


@dataclass(frozen=True, slots=True)
class Place:
    """module: its dotted path in the model, "" for the model itself; kind: its class; function: "torch.nn.functional.gelu";
    line: "model.py:31, in forward"; order: the number of the call. All are empty where nothing is known."""

    module: str = ""
    kind: str = ""
    function: str = ""
    line: str = ""
    order: int = 0

    def __str__(self) -> str:
        return f"{self.module} ({self.kind})" if self.module else self.kind or self.function or "the function"


class Places:
    """Which module and function is being run. called: called with every public function on the device's tensors, with its
    arguments and its result."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pausing = False
        self._names: dict[int, str] = {}
        self._running: list[tuple[str, str]] = []
        self._calls = 0
        self._now = Place()
        self._roots: list[nn.Module] = []  # kept alive, so that no other module gets the id of one of theirs

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Keep track of what runs inside; calls are numbered from 1."""
        self._calls = 0
        hooks = [
            register_module_forward_pre_hook(lambda m, args: self._enter(m)),
            register_module_forward_hook(lambda m, args, out: self._leave(), always_call=True),
        ]
        try:
            with Functions(self._call):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is not the user's program."""
        before, self.pausing = self.pausing, True
        try:
            yield
        finally:
            self.pausing = before

    @property
    def now(self) -> Place:
        """The place of an operator that is dispatched now; in a backward pass, that of the call whose gradient it computes."""
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            place = node.metadata.get(LABEL)
            return place if isinstance(place, Place) else Place()
        if self._now.order == self._calls and self._now.function:
            return self._now
        module, kind = self._running[-1] if self._running else ("", "")
        return Place(module, kind, "", line(), self._calls)

    @property
    def following(self) -> int:
        """The number that the next call gets."""
        return self._calls + 1

    def know(self, m: nn.Module, title: str = "") -> None:
        """Name a model's modules by their paths, also where one of them is called by itself. title: the model's own name."""
        self._roots.append(m)
        self._names |= {id(part): f"{title}.{n}" if title and n else n or title for n, part in m.named_modules()}

    def _enter(self, m: nn.Module) -> None:
        if not self._running and id(m) not in self._names:
            self.know(m)
        self._running.append((self._names.get(id(m), ""), type(m).__name__))

    def _leave(self) -> None:
        self._running.pop()

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        attribute = getattr(func, "__name__", "") == "__get__"  # which computes nothing
        if self.pausing or attribute:
            return func(*args, **kwargs)
        counts = lies_on(self.kind, (args, kwargs))
        self._calls += counts
        module, kind = self._running[-1] if self._running else ("", "")
        before, place = self._now, Place(module, kind, name_of(func) or getattr(func, "__name__", ""), line(), self._calls)
        self._now = place
        result = func(*args, **kwargs)
        if counts:
            _put(place, result)
        else:  # it may make a tensor on the device, which is no doing of the call before
            self._now = before
        return result


def _put(place: Place, result: Any) -> None:
    """Give the nodes of a result the place of its call."""
    left: list[Any] = [t.grad_fn for t in tree_leaves(result) if isinstance(t, Tensor) and t.grad_fn is not None]
    while left:  # a recurrent layer makes some for each step
        node = left.pop()
        if node is None or LABEL in node.metadata:
            continue
        node.metadata[LABEL] = place
        left += [following for following, _ in node.next_functions if following is not None]


def line() -> str:
    """The innermost line outside of torch and of parity that is running; "" if there is none but the command's own."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == START:
            break
        if not name.startswith((PACKAGE, TORCH, "<")) and f"{os.sep}torch{os.sep}" not in name:
            return f"{_shown(name)}:{frame.f_lineno}, in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


@functools.cache
def _shown(file: str) -> str:
    """A path as a person here would type it."""
    near = os.path.relpath(file)
    return file if near.startswith("..") else near
