"""Which elements of a result an operand's NaN or Inf may reach, found by putting finite numbers in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

# Numbers that stand in for a NaN or Inf: on both sides of 0, and beyond what others come to, so that extrema and masks move.
STAND_INS = (1.0, -3.7, 1e4)
PLANES = 2  # dimensions before those of an image: batches and channels
APART = 4  # as many NaNs and Infs are asked about one by one; more of them all together

Results = Mapping[str, Tensor]
# All results with a number in place of the NaN or Inf of this rank (None: of all), and 1 in place of all others.
Replaced = Callable[[int | None, float], Results]


def spreads(replaced: Replaced, count: int) -> dict[str, Tensor]:
    """By result, which elements `count` NaNs and Infs may reach: those that change with a finite number in the place of one,
    and all others along each dimension in which these are several, or that is one of an image or a volume. Algorithms that
    work in tiles or by transforms multiply what lies beside an element by 0; never what lies in another matrix or image."""
    found: dict[str, Tensor] = {}
    for which in range(count) if count <= APART else (None,):
        results = [replaced(which, number) for number in STAND_INS]
        for name, first in results[0].items():
            others = [r[name] for r in results[1:] if name in r and r[name].shape == first.shape]
            reached = torch.zeros(first.shape, dtype=torch.bool)
            for other in others:
                reached |= (other != first) & ~(other.isnan() & first.isnan())
            if len(others) + 1 < len(STAND_INS):  # it does not run with one of the numbers: nothing is known
                reached |= True
            reached = _along_dimensions(reached)
            found[name] = found[name] | reached if name in found else reached
    return found


def _along_dimensions(reached: Tensor) -> Tensor:
    """The elements that agree with a reached one in batch and channel, where all reached ones have the same one."""
    whole = torch.ones_like(reached)
    if not bool(reached.any()):
        return reached
    for d in range(reached.dim()):
        line = reached.any(tuple(k for k in range(reached.dim()) if k != d)) if reached.dim() > 1 else reached
        if d < PLANES and int(line.sum()) == 1:
            whole &= line.view([-1 if k == d else 1 for k in range(reached.dim())])
    return whole
