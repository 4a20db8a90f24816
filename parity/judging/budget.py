"""Truth and conditioning -> the allowed error of each element, term by term.

Three rules. *Function*: an elementwise function with a row in the device's ULP table. *Sum*: contractions, by the magnitudes of
the terms. *Perturbation*: everything else, by how far the truth moves when its inputs do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.core.dtypes import DtypeFacts
from parity.core.results import Tolerance
from parity.oracle.yardstick import OWN_ROUNDING, SUM_LOSS

Array = npt.NDArray[np.float64]


EXPONENT = np.int64(0x7FF << 52)  # the bits of a float64 that hold its exponent: alone, a power of two


@dataclass(frozen=True, slots=True)
class Budget:
    """Allowed errors of all elements; arrays have the shape of the truth's real parts. terms: named summands of `total`, a
    number where it is the same for all elements.

    certain: errors above this are wrong in every order of addition; None if no such bound is known.
    scale: one rounding of every element; the root mean square of the errors in this unit must not exceed `rms`.
    absolute: the part of `total` that does not shrink with the element (subnormal numbers, loss at the ends of the range).
    rounding: the term for rounding the result; None in the rule for functions, whose bound includes it.
    between_kernels: the term for partial sums that one kernel passes to the next; None where the rule has no such term.
    """

    total: Array
    terms: tuple[tuple[str, Array | float], ...]
    certain: Array | None = None
    scale: Array | None = None
    rms: float = np.inf
    absolute: Array | float = 0.0
    rounding: Array | None = None
    between_kernels: Array | None = None

    def wider(self, name: str, more: Array) -> Budget:
        """The budget with one more term; non-finite values of `more` count as 0."""
        term = np.nan_to_num(more, nan=0.0, posinf=0.0, neginf=0.0)
        return Budget(
            self.total + term,
            (*self.terms, (name, term)),
            None if self.certain is None else self.certain + term,
            None if self.scale is None else self.scale + term,
            self.rms,
            self.absolute + term,
            self.rounding,
            self.between_kernels,
        )

    @property
    def inside(self) -> Array:
        """The allowed error before the result is rounded; the whole budget in the rule for functions."""
        return self.total if self.rounding is None else self.total - self.rounding

    def at(self, index: int) -> tuple[tuple[str, float], ...]:
        """The terms of one element, by its flat index."""
        return tuple([(name, float(x if isinstance(x, float) else x.reshape(-1)[index])) for name, x in self.terms])


def ulp_of(magnitude: Array, f: DtypeFacts, finite: bool = False) -> Array:
    """The spacing of the dtype's numbers at these magnitudes: 2u * 2**exponent, at least the smallest subnormal. finite: all
    are."""
    size = magnitude if finite or is_finite(magnitude) else np.where(np.isfinite(magnitude), magnitude, f.max)
    power = (np.ascontiguousarray(size, dtype=np.float64).view(np.int64) & EXPONENT).view(np.float64)
    power *= 2.0 * f.unit_roundoff
    return np.maximum(power, f.smallest, out=power).reshape(np.shape(size))


def ulp_at(magnitude: float, f: DtypeFacts) -> float:
    """`ulp_of` of one finite number."""
    return max(math.ldexp(2.0 * f.unit_roundoff, math.frexp(magnitude)[1] - 1), f.smallest) if magnitude else f.smallest


def is_finite(x: Array) -> bool:
    """Whether all elements are known to be finite. A sum shows it in one pass; one that overflows says no."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(np.add.reduce(x, None)))


def one_of_each(truth: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The flat places of elements with different truths. Equal elements are computed from equal numbers and have equal errors,
    so that they are one sample. Without the last 8 bits, in which float64 kernels differ between vectors and their rest."""
    flat = np.ascontiguousarray(truth, dtype=np.float64).reshape(-1).view(np.int64)
    return np.asarray(np.unique((flat + 128) >> 8, return_index=True)[1])


def _finite(truth: Array) -> Array:
    magnitude = np.abs(truth)
    return magnitude if is_finite(magnitude) else np.where(np.isfinite(magnitude), magnitude, 0.0)


def _summed(first: tuple[str, Array], *more: tuple[str, Array | float]) -> tuple[Array, tuple[tuple[str, Array | float], ...]]:
    total = first[1] + more[0][1]
    for _, t in more[1:]:
        total += t
    return total, (first, *more)


def of_function(truth: Array, f: DtypeFacts, tol: Tolerance, floor: float) -> Budget:
    """The table's ULP bound and half a rounding, in ULP of the next larger number (at a power of two, of either side)."""
    assert tol.ulp is not None
    size = _finite(truth)
    above = (np.ascontiguousarray(size).view(np.int64) + 1).view(np.float64).reshape(size.shape)
    rounding = (tol.ulp + 0.5) * ulp_of(above, f)
    bound = (f"{tol.ulp:g} + 0.5 ULP of the function", rounding)
    absolute = (("absolute error of the function", float(tol.absolute)),) if tol.absolute else ()
    return Budget(*_summed(bound, *absolute, ("floor", float(floor))))


def of_sum(
    truth: Array,
    magnitudes: Array,
    count: Array,
    f: DtypeFacts,
    u: float,
    between_kernels: Array,
    tol: Tolerance,
    floor: float | Array,
    stray: Array | None = None,
) -> Budget:
    """scale * sqrt(n) * u * S + between_kernels + output_ulp * ULP + floor, elementwise, and gamma_n S for `certain`.

    S: the same sum over absolute values; n: number of its terms; u: unit roundoff of the accumulation; between_kernels:
    rounding of partial sums that one kernel passes to the next. stray: how far partial sums stray where their order does not
    follow the terms, which with the sum itself bounds them in place of S but for `certain`. The probabilistic bound: Higham and
    Mary, SIAM J. Sci. Comput. 41 (2019) A2815; Ipsen and Zhou, arXiv:1906.10465. Sums in any order obey gamma_n = n u / (1 - n
    u) (Higham, Accuracy and Stability, 2002, section 4.2).
    """
    size = _finite(truth)
    s = np.maximum(np.nan_to_num(magnitudes, nan=0.0), size)
    n = np.maximum(count, 1.0)
    p = s if stray is None else np.minimum(s, size + np.nan_to_num(stray, nan=np.inf))
    rounding = tol.output_ulp * ulp_of(size, f, True)
    total, terms = _summed(
        (f"{tol.scale:g} sqrt(n) u S of n = {n.max() if n.size else 1:.3g} terms", tol.scale * np.sqrt(n) * u * p),
        ("partial sums handed on", between_kernels),
        ("rounding of the result", rounding),
        ("floor", floor if isinstance(floor, np.ndarray) else float(floor)),
    )
    nu = np.minimum(n * u, 0.5)
    # A sum in one long chain is off by about sqrt(n) / 4 roundings of S where all terms have one sign, a blocked one by less.
    one = np.maximum(1.0, SUM_LOSS * np.sqrt(n)) * u * p + between_kernels + f.unit_roundoff * size + floor
    certain = nu / (1.0 - nu) * s + between_kernels + rounding + floor
    return Budget(total, terms, certain, one, 1.0, rounding=rounding, between_kernels=between_kernels)


def of_perturbation(truth: Array, sensitivity: Array | None, f: DtypeFacts, u: float, tol: Tolerance, floor: float) -> Budget:
    """scale * (sensitivity + OWN_ROUNDING u |truth|) + output_ulp * ULP + floor. sensitivity: None for 0 everywhere.

    No element borrows from its neighbours: if a sampled sensitivity is 0 by chance, more samples are taken.
    """
    size = _finite(truth)
    rounding = tol.output_ulp * ulp_of(size, f, True)
    own = f"{tol.scale:g} times {OWN_ROUNDING:g} u |truth|", tol.scale * OWN_ROUNDING * u * size
    rest = ("rounding of the result", rounding), ("floor", float(floor))
    if sensitivity is None:
        return Budget(*_summed(own, *rest), absolute=floor, rounding=rounding)
    moved = f"{tol.scale:g} times the sensitivity to a roundoff", tol.scale * sensitivity
    return Budget(*_summed(moved, own, *rest), absolute=floor, rounding=rounding)
