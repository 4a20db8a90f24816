"""How often each kind of honesty occurred in this process: calls answered, and answers whose bits were not the CPU's."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.judging.measures import bit_equal

# kind -> calls. An answer counts as changed where any bit differs from what the CPU's own kernel gives on the same operands.
ANSWERED: Counter[str] = Counter()
CHANGED: Counter[str] = Counter()
# function and dtype -> the largest error so far, as a share of the bound in the device's table.
REACHED: dict[str, float] = {}


def reset() -> None:
    """Forget all counts."""
    ANSWERED.clear()
    CHANGED.clear()
    REACHED.clear()


def reach(function: str, share: float) -> None:
    """Remember how much of a function's bound was used."""
    REACHED[function] = max(share, REACHED.get(function, 0.0))


def note(kind: str, answer: Any, plain: Any) -> None:
    """Count an answer of this kind beside the CPU's own."""
    ANSWERED[kind] += 1
    if differs(answer, plain):
        CHANGED[kind] += 1


def differs(a: Any, b: Any) -> bool:
    """Whether any bit differs between two results of one form."""
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return any(
        x.shape != y.shape or x.dtype != y.dtype or not bit_equal(x, y)
        for x, y in pairs
        if isinstance(x, Tensor) and isinstance(y, Tensor)
    )
