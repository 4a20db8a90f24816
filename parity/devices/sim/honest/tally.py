"""Counts how often each kind of honest difference occurred in this process: calls answered, and results whose bits differed
from the CPU's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.devices.sim.honest.rounding import bits

# kind -> calls. A result counts as changed if any bit differs from that of the CPU's own kernel on the same operands.
ANSWERED: Counter[str] = Counter()
CHANGED: Counter[str] = Counter()
# function and dtype -> the largest error so far, as a fraction of the bound in the device's table.
REACHED: dict[str, float] = {}


def reset() -> None:
    """Forget all counts."""
    ANSWERED.clear()
    CHANGED.clear()
    REACHED.clear()


def reach(function: str, fraction: float) -> None:
    """Record the fraction of a function's bound that was used."""
    REACHED[function] = max(fraction, REACHED.get(function, 0.0))


def note(kind: str, answer: Any, plain: Any) -> None:
    """Count a result of this kind, given the CPU's."""
    ANSWERED[kind] += 1
    if differs(answer, plain):
        CHANGED[kind] += 1


def differs(a: Any, b: Any) -> bool:
    """Whether any bit differs between two results of the same structure."""
    one = isinstance(a, Tensor) and isinstance(b, Tensor)
    pairs = ((a, b),) if one else zip(tree_leaves(a), tree_leaves(b), strict=True)
    return any(
        x.shape != y.shape or x.dtype != y.dtype or not torch.equal(bits(x), bits(y))
        for x, y in pairs
        if isinstance(x, Tensor) and isinstance(y, Tensor)
    )
