"""Runs drawn cases of a row on the CPU, with contiguous operands, to see whether the row says the truth about its op."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from parity import values
from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.generate import decode
from parity.vocabulary import Arg, Case, Slice, TensorSpec, Word

SMALL = Sizes()


@dataclass
class Tally:
    """Counts per aspect: how many cases ran, how many were refused, and the texts of the refusals."""

    ran: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def note(self, aspect: str, run: Callable[[], Any], what: object) -> Any:
        """Run and count; None where it was refused."""
        try:
            result = run()
        except Exception as e:
            self.refused[aspect] = self.refused.get(aspect, 0) + 1
            self.texts.append(f"{aspect} {what}: {type(e).__name__}: {' '.join(str(e).split())[:200]}")
            return None
        self.ran[aspect] = self.ran.get(aspect, 0) + 1
        return result


def resolve(path: str) -> Any:
    """What a dotted path names: the longest importable module, then attributes."""
    if path.startswith("parity."):
        module, name = path.rsplit(".", 1)
        return getattr(import_module(module), name)
    first, *rest = path.split(".")
    return reduce(getattr, rest, import_module(first))


def realise(arg: Arg, tensors: list[Tensor], leaves: bool = False) -> Any:
    """An argument as torch takes it; every tensor is also appended to `tensors`."""
    if isinstance(arg, TensorSpec):
        made = values.dense(replace(arg, values=replace(arg.values, specials=())), len(tensors))
        if leaves and arg.grad and (made.is_floating_point() or made.is_complex()):
            made.requires_grad_()
        tensors.append(made)
        return made
    if isinstance(arg, tuple):
        return tuple(realise(a, tensors, leaves) for a in arg)
    if isinstance(arg, Word):
        return getattr(torch, arg.name)
    if isinstance(arg, Slice):
        return slice(arg.start, arg.stop, arg.step)
    return arg


def built(case: Case, leaves: bool = False) -> tuple[list[Any], dict[str, Any], list[Tensor]]:
    """Arguments of a case, and its tensors in order."""
    tensors: list[Tensor] = []
    args = [realise(a, tensors, leaves) for a in case.args]
    return args, {k: realise(v, tensors, leaves) for k, v in case.kwargs}, tensors


def flat(result: Any) -> list[Tensor]:
    """All tensors of a result."""
    if isinstance(result, Tensor):
        return [result]
    return [t for r in result for t in flat(r)] if isinstance(result, (tuple, list)) else []


def probe(row: Row, dtype: str, count: int, seed: str, tally: Tally, grad: bool | None = None) -> None:
    """Draw cases and try every aspect that the row declares."""
    rng = random.Random(f"{seed}:{row.name}:{dtype}")
    function = resolve(row.call)
    for ordinal in range(count):
        case = decode(row, dtype, (lambda n: 0) if ordinal == 0 else lambda n: rng.randrange(n), SMALL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _probe_case(row, case, function, tally, dtype in row.grad if grad is None else grad)


def _probe_case(row: Row, case: Case, function: Callable[..., Any], tally: Tally, grad: bool) -> None:
    args, kwargs, tensors = built(case)
    result = tally.note("forward", lambda: function(*args, **kwargs), (case.args, case.kwargs))
    if result is None and tally.refused.get("forward"):
        if not row.mutates:
            return
    outs = flat(result)
    if grad and any(t.is_floating_point() or t.is_complex() for t in outs):
        tally.note("backward", lambda: _backward(row, case, function), (case.args, case.kwargs))
    if row.out and outs:
        empties = [torch.empty_like(t) for t in outs]
        target: Any = empties[0] if isinstance(result, Tensor) else tuple(empties)
        tally.note("out=", lambda: function(*args, **kwargs, out=target), (case.args, case.kwargs))
    if row.inplace and len(outs) == 1 and isinstance(args[0], Tensor):
        first = args[0]
        if outs[0].shape == first.shape and torch.can_cast(outs[0].dtype, first.dtype):
            method = resolve(row.inplace)
            tally.note("in-place", lambda: method(first.clone(), *args[1:], **kwargs), (case.args, case.kwargs))


def _backward(row: Row, case: Case, function: Callable[..., Any]) -> Any:
    args, kwargs, tensors = built(case, leaves=True)
    if row.mutates:
        original = args[0]
        args[0] = original.clone()
        function(*args, **kwargs)
        outs = [args[0]]
    else:
        outs = [t for t in flat(function(*args, **kwargs)) if t.requires_grad]
    leaves = [t for t in tensors if t.requires_grad]
    if not leaves or not any(t.requires_grad for t in outs):
        return ()
    outs = [t for t in outs if t.requires_grad]
    return torch.autograd.grad(outs, leaves, [torch.ones_like(t) for t in outs], allow_unused=True)
