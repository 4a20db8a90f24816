"""The names of the arguments of a call, from torch's own declarations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

SAME = {"input": "self", "self": "input"}  # torch's documentation and its schemas differ


@functools.lru_cache(maxsize=4096)
def names_of(op: str, level: str, given: int, keywords: frozenset[str]) -> tuple[tuple[str, Any], ...]:
    """(name, default) of the arguments of a call in their order; empty if torch declares none. given: how many were passed by
    position; keywords: names of the others. The default is `inspect.Parameter.empty` where there is none."""
    if level == "function":
        signature = _of_python(op)
        if signature is not None:
            return signature
    exact, _, overload = op.rpartition("::")[2].rpartition(".") if level == "kernel" and "." in op else ("", "", "")
    space, _, bare = op.rpartition("::")
    packets, last = getattr(torch.ops, space or "aten"), bare.rpartition(".")[2]
    fits = []
    for base in dict.fromkeys(n for n in (exact, last.strip("_"), last) if n):
        packet = getattr(packets, base, None)
        for one in () if packet is None else (overload,) if base == exact else packet.overloads():
            declared = getattr(packet, one)._schema.arguments
            held = {a.name for a in declared}
            if len(declared) >= given:  # a public function may have keywords that its operator does not have
                strange = sum(k not in held and SAME.get(k) not in held for k in keywords)
                fits.append((strange, declared))
    best = min(fits, key=lambda f: f[0])[1] if fits else ()
    return tuple((a.name, a.default_value if a.has_default_value() else inspect.Parameter.empty) for a in best)


def _of_python(op: str) -> tuple[tuple[str, Any], ...] | None:
    """The parameters of a function that is written in Python; None for others."""
    function: Any = torch
    for part in op.removeprefix("torch.").split("."):
        function = getattr(function, part, None)
    try:
        parameters = inspect.signature(function).parameters.values() if isinstance(function, Callable) else ()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a builtin
        return None
    if not parameters or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return tuple((p.name, p.default) for p in parameters)


def position(names: Sequence[tuple[str, Any]], wanted: str) -> int | None:
    """Where an argument stands; None if there is none of that name."""
    return next((k for k, (n, _) in enumerate(names) if wanted in (n, SAME.get(n))), None)
