"""What an agreement excludes: how large an error of each element would have been told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from parity.judging.budget import Array
from parity.judging.measures import Mask, parts
from parity.vocabulary import Measure


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one result that agrees; arrays of the shape of its real parts.

    size: magnitudes of the truth. told_above: an absolute error above this would have been told; Inf where none would. excused:
    elements of which nothing is promised; shown: those of them that an experiment shows. loose: elements whose honest budget is
    more than half of what they are, because the op is ill-conditioned there. factor: all elements off by more than this part of
    themselves would have been told, whatever one alone may be off by.
    """

    size: Array
    told_above: Array
    excused: Mask
    shown: Mask
    loose: Mask
    factor: float

    @property
    def relative(self) -> Array:
        """`told_above` as a part of each element; Inf at 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.size > 0.0, self.told_above / self.size, np.inf)


def told(known: Limits) -> str:
    """How large an error of a tensor would have been told, in words. One of 95 % of its elements counts as any; a middling one
    is the median."""
    some = known.size > 0.0
    if not some.any():
        return "any number but 0 would have been told" if np.isfinite(known.told_above).all() else "nothing was judged"
    above, relative = known.told_above[some], known.relative[some]
    if not np.isfinite(above).any():
        return "no error would have been told"
    largest = float(np.quantile(above, 0.95, method="higher")) / float(known.size[np.isfinite(known.size)].max())
    middling, every = float(np.quantile(relative, 0.5, method="higher")), min(float(relative.min()), known.factor)
    words = [f"{part(largest)} of the largest element in any", f"{part(middling)} of a middling one"]
    return f"an error of {', '.join(words)}, or {part(every)} in all at once would have been told"


def part(x: float) -> str:
    """A part of something, as a percentage with two digits."""
    return f"{100.0 * x:.2g} %" if np.isfinite(x) else "no size"


def left_unjudged(m: Measure) -> str:
    """How many elements of a tensor were judged, and why not the others."""
    if m.unjudged == m.total:
        return f"no element could be judged: {m.why}"
    return f"{m.total - m.unjudged:,} of {m.total:,} elements judged: {m.why}"


def exact_limits(x: Tensor) -> Limits:
    """Of a result that is compared for equality."""
    size = np.abs(parts(x))
    none = np.zeros(size.shape, dtype=bool)
    return Limits(size, np.zeros(size.shape), none, none, none, 0.0)
