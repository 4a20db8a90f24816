"""Advice in one sentence about an exception that the caller's own code causes."""

from __future__ import annotations

import difflib
import re

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from parity.comparing.captured import captured
from parity.comparing.leaves import loose
from parity.comparing.subject import Subject, copied
from parity.core.devices import all_backends
from parity.core.results import Raised
from parity.execution import execute as ex

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
