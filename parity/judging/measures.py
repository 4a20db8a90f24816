"""Outcomes -> measures: how far two tensors are apart, in bits and in units of a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parity.core.dtypes import FACTS, HALF, DtypeFacts
from parity.core.results import Measure
from parity.judging.budget import Array, Budget, is_finite, one_of_each, ulp_of
from parity.judging.drawing import drawn, drawn_exact
from parity.judging.outliers import among_alike, among_error_ratios, among_sums
from parity.judging.sameness import bit_equal
from parity.oracle.yardstick import WIDENED, WIDENING_LIMIT

Mask: TypeAlias = npt.NDArray[np.bool_]
# With fewer errors no spread is computed.
SPREAD_ELEMENTS = 32


def facts_of(t: Tensor) -> DtypeFacts:
    return FACTS[str(t.dtype).removeprefix("torch.")]


def parts(t: Tensor) -> Array:
    """The elements in float64, complex ones as a last dimension of two."""
    t = t.detach().resolve_conj().resolve_neg()
    if t.is_complex():
        t = torch.view_as_real(t.to(torch.complex128).contiguous())
    return np.asarray(t.to(torch.float64).contiguous().numpy())


def classes(x: Array) -> npt.NDArray[np.int8]:
    """0 finite, 1 NaN, 2 +Inf, 3 -Inf."""
    return np.asarray(np.isnan(x) * 1 + (x == np.inf) * 2 + (x == -np.inf) * 3, dtype=np.int8)


def _overflowed(x: Array, f: DtypeFacts) -> Array:
    """x with infinities replaced by the first number past the dtype's largest, so that distances from them are finite."""
    edge = f.max * (1.0 + 2.0 * f.unit_roundoff) if f.max < 1e300 else f.max
    return np.where(np.isinf(x), np.copysign(edge, x), x)


def error_ratio_of(x: Array, truth: Array, b: Array, f: DtypeFacts) -> tuple[Array, Mask]:
    """(error in units of the budget, where the class differs), per element.

    A value at the overflow edge is judged by its distance from the edge: Inf is a rounding of a truth just below the largest
    number, and wrong for 1.0.
    """
    edge = f.max * (1.0 + 2.0 * f.unit_roundoff) if f.max < 1e300 else f.max
    if is_finite(x) and is_finite(truth) and x.size and max(truth.max(), -truth.min()) <= edge:
        with np.errstate(invalid="ignore", over="ignore"):
            plain = np.abs(x - truth) / b
        return plain, np.zeros(plain.shape, dtype=bool)
    with np.errstate(invalid="ignore", over="ignore"):
        clipped = np.clip(truth, -edge, edge)
        err = np.abs(_overflowed(x, f) - clipped)
        ratio = err / b
    nan_x, nan_t = np.isnan(x), np.isnan(truth)
    ratio = np.where(nan_x & nan_t, 0.0, ratio)
    infinite = np.isinf(truth)
    exact = infinite & (x == truth)
    ratio = np.where(exact, 0.0, ratio)
    differs = (nan_x != nan_t) | (infinite & ~exact) | (np.isinf(x) & ~np.isinf(truth) & (ratio > 1.0))
    return np.where(nan_x != nan_t, np.inf, ratio), differs


def _not_finite(x: Array, f: DtypeFacts, is_complex: bool) -> Mask:
    """Elements that are NaN, infinite or past the dtype's range; a complex element counts if either part does."""
    with np.errstate(invalid="ignore"):
        lost = ~(np.abs(x) <= f.max)
    return np.broadcast_to(lost[..., :1] | lost[..., 1:], lost.shape) if is_complex else lost


def show(x: object) -> str:
    """One value in a message."""
    if isinstance(x, (bool, np.bool_, int, np.integer)):
        return str(x)
    if isinstance(x, (complex, np.complexfloating)):
        return f"{x.real:.9g}{x.imag:+.9g}j"
    return f"{float(x):.9g}"  # type: ignore[arg-type]  # everything else is a float of some width


def at(t: Tensor | None, index: tuple[int, ...]) -> str:
    """The value of a tensor at an index, as text."""
    return "" if t is None else show(t.detach()[index].item())


def exact_measure(name: str, device: Tensor, expected: Tensor) -> Measure:
    """Elementwise equality, NaN equal to NaN; for results without rounding."""
    differs = device != expected
    if device.is_floating_point() or device.is_complex():
        differs &= ~(torch.isnan(device) & torch.isnan(expected))
    m = mismatch(name, "value", differs, device, expected, expected)
    return m if m is not None else Measure(name, 0.0, 0.0, True, max_abs=0.0, total=device.numel())


def mismatch(name: str, problem: str, differs: Tensor, device: Tensor, reference: Tensor, truth: Tensor) -> Measure | None:
    """The first element that differs, and how many do; None if none does."""
    count = int(differs.sum())
    if not count:
        return None
    index = tuple(int(i) for i in differs.nonzero()[0])
    m = Measure(
        name,
        float("inf"),
        None,
        True,
        index=index,
        device=at(device, index),
        reference=at(reference, index),
        truth=at(truth, index),
        mismatched=count,
        total=device.numel(),
        problem=problem,
    )
    return drawn_exact(m, differs)


def measure(
    name: str,
    device: Tensor,
    reference: Tensor | None,
    truth: Tensor,
    b: Budget,
    *,
    others: Sequence[Tensor] = (),
    ignore_nonfinite: Mask | None = None,
    ignore: Mask | None = None,
    sums: bool = False,
    rounds_once: bool = False,
    draws: bool = True,
) -> Measure:
    """The device's and the reference's error against the truth, in units of the budget, with the worst element.

    All tensors have the truth's shape; device and reference have one inexact dtype; b and the masks have the shape of the
    truth's real parts.
    others: further truths that the device may follow element by element (subnormals flushed).
    ignore_nonfinite: where the result may be NaN or Inf; ignore: where its value is unspecified.
    sums: the op adds terms in an order of its own. Which of NaN, Inf and -Inf results where the truth is past the dtype's range
    is then unspecified, and so it is of complex numbers with a NaN or Inf, but the result must be non-finite.
    rounds_once: the result has a half type and is rounded once, at the end, so the errors before that can be compared between
    elements.
    draws: keep the picture of errors that are outside the budget.
    A class that differs from the truth's but equals the reference's agrees, and so do NaN and Inf of the two sides where the
    truth is a number of the dtype, and a NaN in the other part of a complex number of which both sides give Inf. So does a
    number within the budget of the reference's if that one is far from the truth: both sides then share a property of the
    formula (torch's, for gradients).
    """
    f = facts_of(device)
    t, d = parts(truth), parts(device)
    if not d.size:
        return Measure(name, 0.0, 0.0, True, max_abs=0.0, total=0)
    truths = [t, *map(parts, others)]  # any of these truths may be followed
    ratio, differs = _against(d, truths, b, f)
    alike = reference is not None and reference.dtype is device.dtype and bit_equal(device, reference)
    r = d if alike else None if reference is None else parts(reference)
    excused = _excused(d, t, f, truth.is_complex(), sums, ignore_nonfinite, ignore)
    own = None
    if alike:  # shortcut: the reference has the same error
        ratio = np.where(differs, 0.0, ratio)
        own = np.where(excused, 0.0, ratio)
        ratio = np.where((own > WIDENING_LIMIT) & ~differs, 1.0, ratio)
        differs = np.zeros_like(differs)
    elif r is not None:
        own, own_differs = _against(r, truths, b, f)
        if differs.any() and own_differs.any():
            # The formula loses what the reference lost. Whether as NaN (0 times Inf) or as Inf (the smallest number times Inf)
            # is up to a rounding; the sign of Inf is not.
            lost = (np.isnan(d) ^ np.isnan(r)) & (np.isinf(d) ^ np.isinf(r)) & (np.abs(t) <= f.max)
            shared = differs & own_differs & (lost | (classes(d) == classes(r)))
            if truth.is_complex():  # the other part of an Inf that both sides have may be Inf times a zero
                shared |= differs & np.isnan(d) & (shared & np.isinf(d)).any(axis=-1, keepdims=True)
            ratio, differs, own = np.where(shared, 0.0, ratio), differs & ~shared, np.where(shared, 0.0, own)
        far = own > WIDENING_LIMIT
        if far.any():
            near, apart = error_ratio_of(d, r, b.total, f)
            ratio = np.where(far & ~own_differs & ~apart & (near <= 1.0), np.minimum(ratio, 1.0), ratio)
        theirs_excused = _excused(r, t, f, truth.is_complex(), sums, ignore_nonfinite, ignore)
        own = np.where(theirs_excused, 0.0, own) if theirs_excused.any() else own
    if excused.any():
        ratio, differs = np.where(excused, 0.0, ratio), differs & ~excused
    worst = int(np.argmax(np.where(differs, np.inf, ratio) if differs.any() else ratio))
    where = np.unravel_index(worst, ratio.shape)
    index = tuple(int(i) for i in (where[:-1] if truth.is_complex() else where))
    with np.errstate(invalid="ignore"):
        err = np.abs(d - t)
    finite_err = err if is_finite(err) else err[np.isfinite(err)]
    certain = b.certain is not None and bool((err > b.certain)[(ratio > 1.0) & ~differs].any())
    spread = theirs = None
    if b.scale is not None and d.size >= SPREAD_ELEMENTS:
        counted = ~_not_finite(t, f, truth.is_complex())
        counted = counted if ignore is None else counted & ~ignore
        spread = spread_of(d, t, b, counted)
    if spread is not None:
        theirs = spread if alike else None if r is None else spread_of(r, t, b, counted)
        unit = b.rms * allowed_ratio(None if theirs is None else theirs / b.rms)
        spread, theirs = spread / unit, None if theirs is None else theirs / unit
    alone = None if differs.any() else _alone(d, r, t, ratio, own, b, f, excused, rounds_once)
    if alone is not None:
        worst = int(np.argmax(alone))
        where = np.unravel_index(worst, ratio.shape)
        index = tuple(int(i) for i in (where[:-1] if truth.is_complex() else where))
        ratio = np.maximum(ratio, alone)
    top = float(ratio.reshape(-1)[worst])
    unjudged = _unjudged(d, t, f, truth.is_complex(), ignore_nonfinite, ignore)
    m = Measure(
        name, top if differs.reshape(-1)[worst] else max(top, spread or 0.0), None if own is None else _largest(own),
        True, max_abs=float(finite_err.max()) if finite_err.size else None, max_ulp=_in_ulp(err, t, worst, f),
        index=index, device=at(device, index), reference=at(reference, index), truth=at(truth, index),
        mismatched=_elements((ratio > 1.0) | differs, truth.is_complex()), total=device.numel(),
        unjudged=_elements(unjudged, truth.is_complex()),
        problem="class" if bool(differs.reshape(-1)[worst]) else "value" if alone is None else "alone",
        budget=b.at(worst), spread=spread, reference_spread=theirs, certain=certain,
    )  # fmt: skip
    if not draws or not (top > 1.0 or (spread or 0.0) > 1.0 or differs.any()):
        return m
    return drawn(m, ratio, differs, unjudged) if not truth.is_complex() else drawn(m, *_whole(ratio, differs, unjudged))


def _in_ulp(err: Array, truth: Array, element: int, f: DtypeFacts) -> float | None:
    """The error of an element in ULP of its truth; None if it is not finite."""
    one = err.reshape(-1)[element : element + 1]
    return float((one / ulp_of(np.abs(truth.reshape(-1)[element : element + 1]), f))[0]) if np.isfinite(one[0]) else None


def _alone(
    d: Array,
    r: Array | None,
    t: Array,
    ratio: Array,
    own: Array | None,
    b: Budget,
    f: DtypeFacts,
    excused: Mask,
    rounds_once: bool,
) -> Array | None:
    """Error ratios of elements whose errors are unlike all others', 0 for the others; None if there is none."""
    if b.scale is not None:
        with np.errstate(invalid="ignore"):
            theirs = None if r is None else np.abs(r - t)
            alone = among_sums(np.where(excused, 0.0, np.abs(d - t)), theirs, b.scale, t)
        if (alone > 1.0).any():
            return np.where(alone > 1.0, np.maximum(alone, ratio), 0.0)
    if rounds_once:
        ulp = ulp_of(np.abs(t), f)
        with np.errstate(invalid="ignore"):
            theirs = None if r is None else np.abs(r - t) / ulp
            alone = among_alike(np.where(excused, 0.0, np.abs(d - t) / ulp), theirs, b.inside / ulp, t)
        if (alone > 1.0).any():
            return np.where(alone > 1.0, np.maximum(alone, ratio), 0.0)
    if f.name in HALF and own is not None and _largest(own) > 1.0 and (ratio > 1.0).any():
        alone = among_error_ratios(ratio, own, t)
        if (alone > 1.0).any():
            return np.where(alone > 1.0, ratio, 0.0)
    return None


def _against(x: Array, truths: Sequence[Array], b: Budget, f: DtypeFacts) -> tuple[Array, Mask]:
    """`error_ratio_of` against the nearest of several truths, element by element."""
    ratio, differs = error_ratio_of(x, truths[0], b.total, f)
    for other in truths[1:]:
        again, also = error_ratio_of(x, other, b.total, f)
        ratio, differs = np.minimum(ratio, again), differs & also
    return ratio, differs


def _whole(ratio: Array, differs: Mask, unjudged: Mask) -> tuple[Array, Mask, Mask]:
    """Arrays of real and imaginary parts as arrays of complex elements: the worse part counts."""
    return np.maximum(ratio[..., 0], ratio[..., 1]), differs[..., 0] | differs[..., 1], unjudged[..., 0] | unjudged[..., 1]


def _elements(where: Mask, is_complex: bool) -> int:
    """Number of elements in a mask of real parts; a complex one counts if either part does."""
    return int(np.count_nonzero(where[..., 0] | where[..., 1] if is_complex else where))


def _unjudged(
    x: Array, truth: Array, f: DtypeFacts, is_complex: bool, ignore_nonfinite: Mask | None, ignore: Mask | None
) -> Mask:
    """Where any result would have been accepted: not where the truth is NaN or Inf and only its kind is unspecified."""
    away = np.zeros(truth.shape, dtype=bool) if ignore is None else ignore
    if ignore_nonfinite is None:
        return away
    return away | (ignore_nonfinite & _not_finite(x, f, is_complex) & ~_not_finite(truth, f, is_complex))


def _excused(
    x: Array, truth: Array, f: DtypeFacts, is_complex: bool, sums: bool, ignore_nonfinite: Mask | None, ignore: Mask | None
) -> Mask:
    """Where errors are not counted, as `measure` says."""
    unjudged, lost = _unjudged(x, truth, f, is_complex, ignore_nonfinite, ignore), _not_finite(truth, f, is_complex)
    if not lost.any():
        return unjudged
    free = (is_complex | np.isfinite(truth)) if sums else np.zeros(truth.shape, dtype=bool)
    free = free if ignore_nonfinite is None else free | ignore_nonfinite
    return unjudged | (lost & free & _not_finite(x, f, is_complex))


def _largest(ratio: Array) -> float:
    finite = ratio if is_finite(ratio) else ratio[np.isfinite(ratio)]
    return float(finite.max()) if finite.size else 0.0


def spread_of(x: Array, truth: Array, b: Budget, counted: Mask) -> float | None:
    """Root mean square of the errors in units of one rounding; None without a unit or with too few elements.

    Only `counted` elements enter (not the finite part of a complex number whose other part is NaN: its unit is unknown).
    Elements with one truth are one sum computed repeatedly (from a constant operand); their errors are equal, so they count
    once.
    """
    if b.scale is None or x.size < SPREAD_ELEMENTS:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        some = np.isfinite(x) & np.isfinite(truth) & counted
        z = np.minimum((np.abs(x - truth) / b.scale)[some], 1e150)
        if z.size < SPREAD_ELEMENTS:
            return None
        spread = float(np.sqrt(np.mean(z**2)))
        if spread > b.rms:
            own = one_of_each(truth[some])
            spread = float(np.sqrt(np.mean(z[own] ** 2))) if own.size >= SPREAD_ELEMENTS else min(spread, b.rms)
        return spread


def allowed_ratio(reference_share: float | None) -> float:
    """The allowed error ratio if the reference is outside its budget itself: four times the reference's ratio, at most 8."""
    return 1.0 if reference_share is None or reference_share <= 1.0 else min(WIDENING_LIMIT, WIDENED * reference_share)
