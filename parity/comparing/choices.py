"""The choices among equal elements that torch leaves to a device: made there, and followed on the CPU and in float64.

Which of equal elements an unstable sort puts first is free, and so are the positions that topk, median, mode and kthvalue
return, and the order of unique without sorting. The code behind such an operator depends on the choice, so that the sides are
compared along the device's own. Where torch documents a choice (max, min, argmax and argmin: the first; a stable sort), nothing
is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity.core.observer import Operators

# Operators that return values and their positions along a dimension.
ATEN_PLACED = ("sort", "topk", "kthvalue", "median", "nanmedian", "mode")
ATEN_WHOLE = ("sort", "topk")  # of these, the results have the dimension too
ATEN_DISTINCT = "_unique2"
ATEN_FREE = frozenset(f"aten::{n}" for n in (*ATEN_PLACED, ATEN_DISTINCT))


@dataclass(frozen=True, slots=True)
class Choice:
    """What one call chose, on the CPU. places: positions, or values of a unique; None for a call whose own choice stands."""

    name: str
    places: Tensor | None


class Choices:
    """Notes the choices of all calls inside in `made`, or follows those that are given. given: what another side chose; sure:
    whether that is known to be right here, so that the values need not be equal any more. differs: whether a call followed
    another choice than its own."""

    def __init__(self, given: Sequence[Choice] | None = None, sure: bool = False) -> None:
        self.made: list[Choice] = []
        self.differs = False
        self._given, self._sure = given, sure

    def __enter__(self) -> Choices:
        self.made, self._mode = [], Operators(self._observe)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # as torch has it
        return self

    def __exit__(self, *raised: Any) -> None:
        self._mode.__exit__(*raised)  # type: ignore[no-untyped-call]  # as torch has it

    def _observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        given = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
        given |= dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
        if not _is_free(name, out, given):
            return out
        at = len(self.made)
        own = out[0] if name == ATEN_DISTINCT else out[1]
        self.made.append(Choice(name, own.detach().cpu()))
        wanted = self._given[at] if self._given is not None and at < len(self._given) else None
        if wanted is None or wanted.name != name or wanted.places is None or wanted.places.shape != own.shape:
            return out
        follow = self._distinct if name == ATEN_DISTINCT else self._placed
        followed = follow(name, given, out, wanted.places)
        now = followed[0] if name == ATEN_DISTINCT else followed[1]
        self.made[at] = Choice(name, now)
        self.differs |= not torch.equal(now, own)
        return followed

    def _placed(self, name: str, given: dict[str, Any], out: Any, places: Tensor) -> Any:
        """The results of a call with these positions, line by line where they are as right as its own."""
        x, dim = given["self"], given["dim"]
        flat = not (name in ATEN_WHOLE or given["keepdim"])
        values, own, wanted = (t.unsqueeze(dim) if flat else t for t in (*out, places))
        inside = (wanted >= 0) & (wanted < x.shape[dim])
        got = x.gather(dim, wanted.clamp(0, max(0, x.shape[dim] - 1)))
        right = inside.all(dim, keepdim=True)
        right &= ~(wanted.sort(dim).values.diff(dim=dim) == 0).any(dim, keepdim=True)
        if not self._sure and name == "mode":
            right &= (x == got).sum(dim, keepdim=True) == (x == values).sum(dim, keepdim=True)
        elif not self._sure:
            a, b = (t.sort(dim).values if given.get("sorted") is False else t for t in (got, values))
            right &= ((a == b) | ((a != a) & (b != b))).all(dim, keepdim=True)
        now = torch.where(right, wanted, own)
        chosen = torch.where(right, got, values), now
        return tuple(t.squeeze(dim) if flat else t for t in chosen)

    def _distinct(self, name: str, given: dict[str, Any], out: Any, wanted: Tensor) -> Any:
        """The distinct values in the order of others, with their inverse and counts."""
        values, inverse, counts = out
        order = values.argsort()[wanted.argsort().argsort()]
        if not self._sure and not torch.equal(values[order], wanted):
            return out
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel())
        return values[order], place[inverse] if inverse.numel() else inverse, counts[order] if counts.numel() else counts


def _is_free(name: str, out: Any, given: dict[str, Any]) -> bool:
    """Whether torch leaves to a device what this call chose."""
    if name == ATEN_DISTINCT:
        return given["sorted"] is False
    return name in ATEN_PLACED and isinstance(out, tuple) and given["self"].dim() > 0 and not given.get("stable")
