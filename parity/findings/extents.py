"""Compares at which values, and by how much, a finding shows with what is known of it.

An extent is the largest error in budgets for each region of values that failing tensors met (`parity.findings.regions`). A
number up to 1 says that the region was met often enough to see that it agrees; a region that was not met is not in it.
`class REGION` stands where NaN or Inf differs, which has no size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from parity.core import picture
from parity.core.dtypes import FACTS, HALF
from parity.oracle.yardstick import COARSER_HALF, COARSER_SINGLE

Extent: TypeAlias = tuple[tuple[str, float], ...]
# From plain to rare: what lies in two of them, or is made of elements in two of them, lies in the rarer one.
ALL = "anywhere"  # errors that all elements have together, or of operands that nobody knows
PLAIN = (ALL, "0 to 1", "-1 to 0", "above 1", "below -1")
REGIONS = (*PLAIN, "zero", "integers", "large", "tiny", "huge", "Inf", "NaN")
NEAR_NOT_FINITE = "beside NaN or Inf"  # finite elements of operands that hold others
CLASS = "class "
PLACES = frozenset(c + r for c in ("", CLASS) for r in (*REGIONS, NEAR_NOT_FINITE))
EXTREME = frozenset(("large", "tiny", "huge", "Inf", "NaN", NEAR_NOT_FINITE))  # where errors of any size may leave the range
FACTOR = 16.0  # by which an error may exceed the known one
LEAST = 1.001  # of what fails


class Measured(NamedTuple):
    """The extent of findings in one tensor of an op. In a file of an older parity op and tensor are empty: it holds in all."""

    dtype: str
    op: str = ""
    tensor: str = ""
    extent: Extent = ()


def has_size(m: Measured, dtype: str) -> bool:
    """Whether errors have a size in another dtype: those of whole numbers have none in rounded ones."""
    return not (FACTS[dtype].is_inexact and _is_whole(m.extent, m.dtype))


def scaled(some: Sequence[Measured], dtype: str) -> Extent:
    """The extents together in the budgets of another dtype, of errors that are as large relative to their results: budgets are
    some roundoffs. What fails goes on to fail, also what has no size."""
    sizes = ((m.extent, _roundoff(m.dtype) / _roundoff(dtype) if has_size(m, dtype) else 0.0) for m in some)
    fails = ({k: max(x * by if by else by, LEAST) for k, x in e if x > 1.0 and not k.startswith(CLASS)} for e, by in sizes)
    return joined(tuple({**dict(m.extent), **failing}.items()) for m, failing in zip(some, fails))


def _roundoff(dtype: str) -> float:
    """The unit roundoff of the results of operands of a dtype: of whole numbers, if they are rounded at all."""
    return FACTS[dtype].unit_roundoff or FACTS["float32"].unit_roundoff


def _is_whole(e: Extent, dtype: str) -> bool:
    """Whether results are whole numbers, which have no budget."""
    return not FACTS[dtype].is_inexact and any(math.isinf(x) for k, x in e if not k.startswith(CLASS))


def _anything(e: Extent, dtype: str) -> float:
    """From which known error on results have nothing to do with the truth, so that they may be anything."""
    return 1.0 if _is_whole(e, dtype) else 1.0 / _roundoff(dtype)


def joined(extents: Iterable[Extent]) -> Extent:
    """The extent of several findings together."""
    worst: dict[str, float] = {}
    for e in extents:
        worst |= {k: max(x, worst.get(k, 0.0)) for k, x in e}
    return tuple(sorted(worst.items()))


def exceeds(new: Extent, old: Extent, dtype: str) -> str:
    """In which way an extent goes beyond a known one, in words; empty if it does not. A region that was not met is contained
    where plain values fail in both, though NaN at plain values is not in a finite error. Where results were known to have
    nothing to do with the truth, they may be anything."""
    known, plain = dict(old), max((x for k, x in old if k in PLAIN), default=0.0)
    ours = [x for k, x in new if k.removeprefix(CLASS) in PLAIN]
    misses = _misses_plain(old)
    fails = (plain > 1.0 or misses) and max(ours, default=math.inf) > 1.0
    anything = _anything(old, dtype)
    for name, error in new:
        region = name.removeprefix(CLASS)
        most = known.get(region, plain if fails else 0.0)
        most = max(most, known.get(ALL, 0.0) if region in PLAIN else plain) if most > 1.0 else most
        if error <= 1.0 or most >= anything:
            continue
        # The picture of a tensor shows no more than MOST: above it, plain ones can't be distinguished, nor others from any.
        alike = [x for k, x in old if k in PLAIN or not (region in PLAIN or k.startswith(CLASS))]
        most = max(alike) if most >= picture.MOST else most
        if name != region and name not in known and (region in known or not fails or (region in PLAIN and not misses)):
            return f"NaN or Inf differs at values {region}"
        if name == region and (most <= 1.0 or error > FACTOR * most):
            return f"{error:.3g} times the budget at values {region}" + (f", was {most:.3g}" if most > 1.0 else "")
    return ""


def wrong_in(some: Iterable[Measured]) -> set[str]:
    """At which values one of these is wrong by more than coarser arithmetic explains, or, where the picture shows no more, may
    be as wrong as elsewhere in its tensor. Whole numbers have no such errors."""
    limits = ((m.extent, COARSER_HALF if m.dtype in HALF else COARSER_SINGLE) for m in some if not _is_whole(m.extent, m.dtype))
    sized = (({k: x for k, x in e if not k.startswith(CLASS)}, most) for e, most in limits)
    return {k for e, most in sized for k, x in e.items() if (max(e.values()) if x == picture.MOST else x) > most}


def outgrows(
    new: Extent, here: Extent, every: Extent, dtype: str, own: bool = True, wrong: Collection[str] = frozenset()
) -> str:
    """In which way an extent goes beyond all that is known of its tensor, in words; empty if it does not. At which rare values
    a cause was seen, in which dtype and tensor, and how large its error was there, is chance of the seed; whether plain values
    agree, whether it is a loss of precision, and of which size, and whether NaN and Inf are kept, is not. The worst of what no
    rounding explains depends on the values. here, every: what is known in the same tensor, in this dtype if it is in that
    (own), and in all tensors and dtypes; wrong: `wrong_in` of this tensor."""
    known, alike, anywhere = dict(here), here or every, dict(every)
    plain = max([x for k, x in here if k in PLAIN] or [x for k, x in every if k in PLAIN], default=0.0)
    largest = max((x for k, x in alike if not k.startswith(CLASS)), default=0.0)
    largest_extreme = math.inf if any(k.startswith(CLASS) for k, _ in alike) else largest
    fails = any(k.startswith(CLASS) for k, _ in every) or (plain > 1.0 and any(x > 1.0 for k, x in new if k in PLAIN))
    most = plain if own or FACTS[dtype].is_inexact else plain * FACTOR  # whole numbers are off by all or nothing
    anything = (own and _misses_plain(here)) or most >= _anything(alike, dtype)
    for name, error in new:
        region = name.removeprefix(CLASS)
        elsewhere = region in EXTREME and (anywhere.get(region, 0.0) > 1.0 or CLASS + region in anywhere)
        agrees = known.get(region, math.inf) <= 1.0 and CLASS + region not in known and not elsewhere
        if anything and (name == region or not agrees):
            continue
        if name != region:
            is_other = agrees if region in EXTREME else region in known or (region in PLAIN and not _misses_plain(every))
            failed = fails or (plain > 1.0 and region in EXTREME and known.get(region, 0.0) > 1.0)
            if name not in known and (is_other or not failed):
                return f"NaN or Inf differs at values {region}"
            continue
        most = (
            (0.0 if agrees else plain) if region in PLAIN else largest if agrees or region not in EXTREME else largest_extreme
        )
        sizeless = FACTS[dtype].is_inexact and not agrees and bool(wrong if region not in PLAIN else {*wrong} & {*PLAIN})
        if error > 1.0 and (most <= 1.0 or (error > FACTOR * most and not sizeless)):
            return f"{error:.3g} times the budget at values {region}" + (f", was {most:.3g}" if most > 1.0 else "")
    return ""


def _misses_plain(e: Extent) -> bool:
    """Whether NaN or Inf differs at plain values."""
    return any(k.startswith(CLASS) and k.removeprefix(CLASS) in PLAIN for k, _ in e)
