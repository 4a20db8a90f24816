"""What a function captures, of which no side gets a copy, and advice in one sentence about an exception that the caller's
own code causes."""

from __future__ import annotations

import copy
import difflib
import inspect
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from parity.comparing.leaves import OWN, held, kind, loose
from parity.comparing.subject import Subject, copied
from parity.core.devices import all_backends
from parity.core.results import Raised
from parity.execution import execute as ex


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


# torch's words for a tensor that numpy is to read on a device, for tensors on two devices, and for a device that is not there.
NUMPY = re.compile(r"can't convert \S+ device type tensor to numpy", re.IGNORECASE)
SIDES = re.compile(r"same device|two devices|Placeholder storage|is on cpu\b|on cpu,? but|device type", re.IGNORECASE)
LENGTHS = re.compile(r"should be a 1D CPU int64 tensor")  # of packed sequences
CASTS = {"float64": "float32", "complex128": "complex64"}
ABSENT = re.compile(r"(?i)not compiled with \w+ enabled|no \w+ driver|not linked with support|not a .*supported device")
MISSING = re.compile(r"missing \d+ required (positional|keyword-only) argument")  # Python's words
UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")  # Python's words
KEYWORDS = ("device", "backward", "atol", "fail_on", "keep_on_cpu", "detail", "effort", "compile")  # of `assert_parity`
SPENT = "backward through the graph a second time"


def advice(s: Subject, message: str, made: str, where: str) -> str:
    """What to do about the device's exception; empty if nothing is known. made: the last call that made a tensor on the CPU,
    with its line; where: the line that raised."""
    if LENGTHS.search(message):
        names = [f"'{n}'" for n, t in s.given if t.dim() == 1 and t.dtype is torch.int64]
        return (
            "pack_padded_sequence takes lengths on the CPU alone, whatever the device: pass lengths.cpu() to it; or let what "
            f"calls the model keep them there (keep_on_cpu={names[0] if names else '...'} in assert_parity and parity.locate)"
        )
    for backend in all_backends():
        if backend.no_float64 and (refused := backend.no_float64.search(message)):
            return cast(refused[1] if refused.re.groups else "float64")
    if NUMPY.search(message):
        return "numpy reads the memory of the CPU alone: call .cpu() before .numpy(), or compute with torch instead"
    if SIDES.search(message) and made and made.partition(" at ")[2] in where:
        return _made_there(made)
    return _left_behind(s, made) if SIDES.search(message) else ""


def _left_behind(s: Subject, made: str) -> str:
    """Which tensors stayed on the CPU, and what to do about it."""
    if s.module is not None and (names := _unmoved(s.module)):
        return _unregistered(type(s.module).__name__, s.module, names[0])
    for name, value in captured(s.function):
        what = "pass model and optimizer as arguments" if isinstance(value, (nn.Module, Optimizer)) else "pass it in"
        return f"'{name}' is used by {s.name} without being an input, so it stays on the CPU: {what}"
    if s.kept:
        return f"keep_on_cpu keeps '{min(s.kept)}' on the CPU: leave it out where the function computes with it"
    if made:
        return _made_there(made)
    return "a tensor stayed on the CPU: pass it in, or make it on the device of the inputs"


def _unmoved(module: nn.Module) -> list[str]:
    """The names of a module's tensors that are no parameters and no buffers, and that no `_apply` of its own moves."""
    moved = set[int]()

    def seen(t: Tensor) -> Tensor:
        moved.add(id(t))
        return t

    def unmoved() -> list[str]:
        twin = copied(module, {}, type(module).__name__)
        twin._apply(seen)
        return [n for n, t in loose(twin) if id(t) not in moved]

    names = ex.attempt(unmoved, "run")
    return [n for n, _ in loose(module)] if isinstance(names, Raised) else names


def _made_there(made: str) -> str:
    return f"{made}, makes a tensor on the CPU: give it the device of an input, like device=x.device"


def _unregistered(kind: str, module: nn.Module, name: str) -> str:
    """What to do about a tensor of a module that `.to` does not move. name: its path, like "blocks.0.scale"."""
    owner, rest = module, name
    while (head := rest.partition(".")[0]) in owner._modules:
        inner = owner._modules[head]
        assert inner is not None
        owner, rest = inner, rest.partition(".")[2]
    attribute = re.split(r"[.\[]", rest)[0]
    value = getattr(owner, attribute, None)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    first = next(iter(parts), None)
    if isinstance(first, (nn.Module, nn.Parameter)):
        sort = "Module" if isinstance(first, nn.Module) else "Parameter"
        box = f"nn.{sort}{'Dict' if isinstance(value, dict) else 'List'}"
        plain = type(value).__name__
        return (
            f"'{name}' of {kind} is in a plain {plain}, which torch does not look into, so it stays on the CPU and is not "
            f"trained: make '{attribute}' an {box}"
        )
    return (
        f"'{name}' of {kind} is a tensor that is neither a parameter nor a buffer, so it stays on the CPU: register it "
        "(self.register_buffer) or pass it in"
    )


def on_the_cpu(message: str) -> str:
    """What lets an operator that is not there run on the CPU, if the message names it."""
    variables = (b.fallback_variable for b in all_backends() if b.fallback_variable)
    found = next((v for v in variables if v in message), "")
    return f"{found}=1 in the environment runs it on the CPU (slower)" if found else ""


def cast(dtype: str) -> str:
    """What to do about a dtype that the device does not have."""
    to = CASTS.get(dtype)
    return f"use {to}: .to(torch.{to}), or dtype=torch.{to} where it is made" if to else "use a dtype that the device has"


def raised_on_the_cpu(message: str) -> str:
    """What to do about an exception on the CPU."""
    if MISSING.search(message):
        return "give the missing inputs as well"
    if (other := UNEXPECTED.search(message)) and (close := difflib.get_close_matches(other[1], KEYWORDS, 1, 0.75)):
        return f"parity's own argument is called '{close[0]}'"
    if SIDES.search(message) or ABSENT.search(message):
        return "let it compute where its inputs lie (x.device) instead of naming a device"
    return "give inputs that it takes there"


def no_gradients(message: str) -> str:
    """Why the CPU has no gradients, and what to do."""
    if SPENT in message:
        return "it has run its own backward pass; let it return the loss without .backward() to have the gradients compared"
    first = message.partition(". ")[0].rstrip(".")
    return f"the CPU has none ({first}); give backward=False if none are wanted"
