"""Measures the extent of a finding (`parity.findings.extents`) from its cases and the pictures of its errors."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parity.core import picture
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import Measure
from parity.execution.inputs import build
from parity.findings.extents import CLASS, NEAR_NOT_FINITE, PLAIN, REGIONS, Extent

ORDINARY = REGIONS.index("large")  # and below it
LARGE = 100.0
OF_ALL = ("lean", "shared")  # problems of a Measure that all elements have together
SIZED = ("", "value", "alone", "class", *OF_ALL)  # those that have a size, or none
SURE = 1e-3
Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int8]


def extent(seen: Iterable[tuple[Case | None, Measure | None]], sure: float = SURE) -> Extent:
    """The extent of a finding that these cases showed in these tensors; one that agrees shows that its rare values do. The case
    is None for a user's own function. sure: a region agrees where its elements do so by chance with no larger probability."""
    worst, chance = defaultdict[str, float](float), defaultdict[str, float](lambda: 1.0)
    for case, m in seen:
        if m is None or m.problem not in SIZED:
            continue
        errors, where, near = _elements(case, m)
        for code in np.unique(where):
            there, others, names = errors[where == code], errors[where != code], [REGIONS[code]]
            # What fails for its size alone does so next to NaN and Inf, too, and says nothing of them.
            names += [NEAR_NOT_FINITE] if near and code < ORDINARY else []
            agrees = 1.0 - (np.count_nonzero(others > 1.0) + 0.5) / (others.size + 1.0)
            sized = there[np.isfinite(there)] if m.problem == "class" else there
            for name in names if m.problem or code >= len(PLAIN) else names[1:]:
                worst[name] = max(worst[name], sized.max(initial=0.0))
                chance[name] *= 1.0 if sized.size < there.size else agrees**there.size if m.problem else 0.0
            if sized.size < there.size:
                worst[CLASS + names[-1]] = math.inf
    return tuple((k, float(f"{e:.4g}")) for k, e in sorted(worst.items()) if e > 1.0 or chance[k] <= sure)


def _elements(case: Case | None, m: Measure) -> tuple[Numbers, Codes, bool]:
    """(errors of elements in budgets, their regions, whether operands hold NaN or Inf) of those elements that were judged, or
    of the worst one alone where the picture does not show each of them. Of a tensor that agrees, the regions it may have."""
    g = picture.grid(m.shape)
    codes, near = _regions(case, m.shape if m.errors else None)
    worst = math.inf if m.share is None or m.problem == "class" else m.share
    if not m.problem:
        codes = np.unique(np.concatenate([np.zeros(0, np.int8), *(c.reshape(-1) for c in _operands(case))]))
        return np.zeros(codes.shape), codes, near
    if m.problem in OF_ALL:
        return np.array([worst]), np.zeros(1, np.int8), near
    if not m.errors or (g.tall, g.wide) != (1, 1):
        return np.array([worst]), codes[m.index if codes.ndim else ()].reshape(1), near
    errors = np.array([picture.least(letter) for letter in m.errors]).reshape(m.shape)
    errors[m.index] = worst
    judged = ~np.isnan(errors)
    return errors[judged], np.broadcast_to(codes, errors.shape)[judged], near


def _regions(case: Case | None, shape: tuple[int, ...] | None) -> tuple[Codes, bool]:
    """(the region of each element of a result of this shape, or one for all if its elements are made of several of an
    operand's, whether the operands hold NaN or Inf)."""
    codes = _operands(case)
    near = any(bool((c >= REGIONS.index("Inf")).any()) for c in codes)
    try:
        if shape is not None and codes:
            return np.maximum.reduce([np.broadcast_to(c, shape) for c in codes]), near
    except ValueError:
        pass
    return np.array(max((c.max() for c in codes), default=0), np.int8), near


@functools.lru_cache(maxsize=8)
def _operands(case: Case | None) -> list[Codes]:
    """The regions of the elements of each operand: of the floating ones, if there are any."""
    try:
        operands = [] if case is None else [o.view for o in build(case).operands]
    except CaseError:
        operands = []
    inexact = [x for x in operands if x.is_floating_point() or x.is_complex()]
    return [_codes(x) for x in inexact or operands if x.numel()]


def _codes(x: Tensor) -> Codes:
    """The region of each element, as its place in `REGIONS`."""
    whole = x.resolve_conj().resolve_neg()
    real = (whole.real if x.is_complex() else whole).double().numpy()
    size = (whole.abs() if x.is_complex() else whole.double().abs()).double().numpy()
    codes = np.where(size <= 1.0, REGIONS.index("0 to 1"), REGIONS.index("above 1")) + (real < 0)
    inexact = x.is_floating_point() or x.is_complex()
    info = torch.finfo(x.dtype) if inexact else torch.iinfo(torch.uint8 if x.dtype == torch.bool else x.dtype)
    root = 1.0 if not inexact else 0.5 if x.dtype == torch.float16 else 0.25
    for word, has in (
        ("integers", (size == np.rint(size)) & inexact), ("large", size >= LARGE),
        ("tiny", size < getattr(info, "tiny", 0.0) ** root), ("zero", size == 0), ("huge", size > (info.max / 2) ** root),
        ("Inf", np.isinf(size)), ("NaN", np.isnan(size)),
    ):  # fmt: skip
        codes = np.where(has, REGIONS.index(word), codes)
    return codes.astype(np.int8)
