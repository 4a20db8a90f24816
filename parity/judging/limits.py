"""Measures how large an error of each element an agreement rules out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from parity.judging.budget import Array
from parity.judging.measures import Mask, parts


@dataclass(frozen=True, slots=True)
class Limits:
    """The smallest errors that would be reported in one result that agrees; arrays have the shape of its real parts.

    size: magnitudes of the truth.
    reported_above: a larger absolute error would be reported; Inf where none would be.
    excused: elements of which nothing is promised; shown: those of them for which an experiment shows it.
    loose: elements whose honest budget is more than half of their value, because the op is ill-conditioned there.
    factor: a relative error of all elements together would be reported above this, whatever the budget of a single one.
    """

    size: Array
    reported_above: Array
    excused: Mask
    shown: Mask
    loose: Mask
    factor: float

    @property
    def relative(self) -> Array:
        """`reported_above` relative to each element; Inf at 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.size > 0.0, self.reported_above / self.size, np.inf)

    def sharper(self, other: Limits) -> Limits:
        """The smaller of two limits of one result, which were found in two ways."""
        return Limits(
            self.size,
            np.minimum(self.reported_above, other.reported_above),
            self.excused & other.excused,
            self.shown & other.shown,
            self.loose & other.loose,
            min(self.factor, other.factor),
        )


def detectable_error(known: Limits) -> str:
    """How large an error of a tensor would be reported, in words: of any element (95 % quantile), of the median one, of all
    together."""
    some = known.size > 0.0
    if not some.any():
        return "any number but 0 would have been reported" if np.isfinite(known.reported_above).all() else "nothing was judged"
    above, relative = known.reported_above[some], known.relative[some]
    if not np.isfinite(above).any():
        return "no error would have been reported"
    largest = float(np.quantile(above, 0.95, method="higher")) / float(known.size[np.isfinite(known.size)].max())
    middling, every = float(np.quantile(relative, 0.5, method="higher")), min(float(relative.min()), known.factor)
    words = [f"{part(largest)} of the largest element in any", f"{part(middling)} of a middling one"]
    return f"an error of {', '.join(words)}, or {part(every)} in all at once would have been reported"


def part(x: float) -> str:
    """A fraction as a percentage with two digits."""
    return f"{100.0 * x:.2g} %" if np.isfinite(x) else "no size"


def exact_limits(x: Tensor) -> Limits:
    """Limits of a result that is compared for equality."""
    size = np.abs(parts(x))
    none = np.zeros(size.shape, dtype=bool)
    return Limits(size, np.zeros(size.shape), none, none, none, 0.0)
