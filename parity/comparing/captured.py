"""Finds what a function captures: modules, optimizers and tensors of its closure and globals, which no side gets a copy of."""

from __future__ import annotations

import copy
import inspect
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parity.comparing.leaves import OWN, held, kind, loose


def captured(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything in the function's closure and globals that holds a tensor."""
    for name, value in _used(function):
        if isinstance(value, (Tensor, nn.Module, torch.optim.Optimizer)) or held(value, name):
            yield name, value


def _used(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    try:
        used = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):  # torch's builtins, and callables without code of their own
        return
    for name, value in (*used.nonlocals.items(), *used.globals.items()):
        if not (inspect.ismodule(value) or inspect.isclass(value)):
            yield name, value


def drawing(function: Callable[..., Any], module: nn.Module | None) -> list[str]:
    """What the function or a module uses without being given it that draws random numbers and is none of torch's, in words."""
    own = [] if module is None else [p for m in module.modules() for p in _used(m.forward)]
    return [f"'{n}', a {kind(x)}" for n, x in (*_used(function), *own) if _draws(x)]


def _draws(value: Any) -> bool:
    return isinstance(value, random.Random) or type(value).__module__.startswith("numpy.random")


def kept_by(modules: Mapping[str, nn.Module]) -> Counter[str]:
    """How many tensors the lists and dicts of each attribute of some modules hold, by its path."""
    every = ((f"{name}.{n}".strip("."), m) for name, top in modules.items() for n, m in top.named_modules())
    named = ((f"{n}.{k}".lstrip("."), v) for n, m in every for k, v in vars(m).items() if k not in OWN)
    grows = ((name, v) for name, v in named if not (isinstance(v, deque) and v.maxlen))
    return Counter({name: n for name, v in grows if (n := sum(isinstance(x, Tensor) for x in tree_leaves(v)))})


def held_by(function: Callable[..., Any]) -> dict[str, int]:
    """How many tensors each value of the function's closure and globals holds, by name."""
    return {n: len(_tensors(n, v)) for n, v in captured(function) if not (isinstance(v, deque) and v.maxlen)}


def growing(before: Mapping[str, int], first: Mapping[str, int], second: Mapping[str, int]) -> list[str]:
    """The values that hold more tensors after each of two calls; what fills a cache once, or keeps the last result, is none."""
    return [name for name, n in second.items() if n > first.get(name, 0) > before.get(name, 0)]


class Kept:
    """Copies of the tensors that a function captures, to detect and undo a call's changes to them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        used = list(captured(function))
        self._tensors = [(n, t, t.detach().clone()) for n, value in used for t in _tensors(n, value)]
        self._optimizers = [(x, copy.deepcopy(x.state_dict())) for _, x in used if isinstance(x, torch.optim.Optimizer)]

    def changed(self) -> str:
        """Restore everything; returns the name of the first value that had changed, or an empty string."""
        first = ""
        for name, tensor, before in self._tensors:
            if tensor.shape != before.shape or not torch.equal(tensor.detach().nan_to_num(), before.nan_to_num()):
                first = first or name
                if tensor.shape == before.shape:
                    with torch.no_grad():
                        tensor.copy_(before)
        if first:
            for optimizer, state in self._optimizers:
                optimizer.load_state_dict(state)
        return first


def _tensors(name: str, value: Any) -> list[Tensor]:
    if isinstance(value, nn.Module):
        return [t for _, t in (*value.named_parameters(), *value.named_buffers(), *loose(value))]
    if isinstance(value, torch.optim.Optimizer):
        return [p for group in value.param_groups for p in group["params"]]
    return [value] if isinstance(value, Tensor) else [t for _, t in held(value, name)]
