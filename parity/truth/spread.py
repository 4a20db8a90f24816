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
    if not count:
        return {}
    alone = [_reached(replaced, which) for which in range(min(count, APART))]
    found: dict[str, Tensor] = {}
    for name in alone[0]:
        own = [r[name] for r in alone if name in r]
        if count > APART:  # together; how one of them spreads, some of them have shown
            together = _reached(replaced, None)[name]
            found[name] = together if all(int(r.sum()) <= 1 for r in own) else _along(together, _kept(own))
        else:
            found[name] = torch.stack([_along(r, _kept([r])) for r in own]).any(0)
    return found


def _reached(replaced: Replaced, which: int | None) -> dict[str, Tensor]:
    """The elements that change with the number in one place, or in all; every element where it does not run with some."""
    results = [replaced(which, number) for number in STAND_INS]
    found = {}
    for name, first in results[0].items():
        others = [r[name] for r in results[1:] if name in r and r[name].shape == first.shape]
        reached = torch.full(first.shape, len(others) + 1 < len(STAND_INS))
        for other in others:
            reached |= (other != first) & ~(other.isnan() & first.isnan())
        found[name] = reached
    return found


def _kept(alone: list[Tensor]) -> tuple[int, ...]:
    """The dimensions along which a NaN stays where it is: batch and channel, where all that one reaches has one index."""
    dims = range(min(PLANES, alone[0].dim()))
    return tuple(d for d in dims if all(int(_line(r, d).sum()) <= 1 for r in alone))


def _line(reached: Tensor, d: int) -> Tensor:
    others = tuple(k for k in range(reached.dim()) if k != d)
    return reached.any(others) if others else reached


def _along(reached: Tensor, kept: tuple[int, ...]) -> Tensor:
    """Every element that has the index of a reached one in all the dimensions that are kept."""
    if not bool(reached.any()):
        return reached
    others = tuple(k for k in range(reached.dim()) if k not in kept)
    return reached.any(others, keepdim=True).expand_as(reached) if others else reached
