"""Finds the elements of a result that an operand's NaN or Inf reaches, by experiments with finite numbers in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Numbers that replace a NaN or Inf: inside of [0, 1], beyond which some gradients are 0, on the other side of 0, and larger
# than the others, so that extrema and masks change and no sum with one of the others is that other.
STAND_INS = (0.5, -3.7, 1e4)
PLANES = 2  # dimensions before those of an image: batches and channels
APART = 4  # up to so many NaNs and Infs are replaced one by one; more of them all together

Results = Mapping[str, Tensor]
# All results with a number in place of the NaN or Inf of this rank (None: of all), and 1 in place of the others.
Replaced = Callable[[int | None, float], Results]


@dataclass(frozen=True, slots=True)
class Reach:
    """The elements of one result that NaN and Inf of the operands certainly reach, and those that they may reach."""

    certain: Tensor
    possible: Tensor


def spreads(replaced: Replaced, count: int, largest: float) -> dict[str, Reach]:
    """By result, the elements that `count` NaNs and Infs reach. largest: the largest finite magnitude among the operands.

    They reach the elements that change if one of them is replaced by a finite number. They may also reach all others along each
    dimension in which there are several such elements, or which belongs to an image or a volume: algorithms that work in tiles
    or by transforms multiply neighbouring elements by 0, but never those of another matrix or image.
    """
    if not count:
        return {}
    numbers = (*STAND_INS[:-1], max(STAND_INS[-1], largest))
    alone = [_reached(replaced, which, numbers) for which in range(min(count, APART))]
    reach: dict[str, Reach] = {}
    for name in alone[0]:
        own = [r[name] for r in alone if name in r]
        if count > APART:  # all together; the first ones have shown how a single one spreads
            together, own = _reached(replaced, None, numbers)[name], [r for r in own if bool(r.any())]
            by_element = own and all(int(r.sum()) <= 1 for r in own)
            reach[name] = Reach(together, together if by_element else _along(together, _kept(own)))
        else:
            reach[name] = Reach(torch.stack(own).any(0), torch.stack([_along(r, _kept([r])) for r in own]).any(0))
    return reach


def _reached(replaced: Replaced, which: int | None, numbers: tuple[float, ...]) -> dict[str, Tensor]:
    """The elements that change with the number in one place (None: in all); every element if the call fails for some number."""
    results = [replaced(which, number) for number in numbers]
    reach = {}
    for name, first in results[0].items():
        others = [r[name] for r in results[1:] if name in r and r[name].shape == first.shape]
        reached = torch.full(first.shape, len(others) + 1 < len(numbers))
        for other in others:
            reached |= (other != first) & ~(other.isnan() & first.isnan())
        reach[name] = reached
    return reach


def _kept(alone: list[Tensor]) -> tuple[int, ...]:
    """The dimensions that NaN does not cross: batch and channel, if everything that one NaN reaches has one index there."""
    dims = range(min(PLANES, alone[0].dim()) if alone else 0)
    return tuple(d for d in dims if all(int(_line(r, d).sum()) <= 1 for r in alone))


def _line(reached: Tensor, d: int) -> Tensor:
    others = tuple(k for k in range(reached.dim()) if k != d)
    return reached.any(others) if others else reached


def _along(reached: Tensor, kept: tuple[int, ...]) -> Tensor:
    """Every element that shares the index of a reached one in all kept dimensions."""
    if not bool(reached.any()):
        return reached
    others = tuple(k for k in range(reached.dim()) if k not in kept)
    return reached.any(others, keepdim=True).expand_as(reached) if others else reached
