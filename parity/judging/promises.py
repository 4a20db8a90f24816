"""What is promised of a result where arithmetic alone does not say: at NaN and Inf, at the ends of the range, in half types.

The tables (`[[special]]`) say what a device owes; what is asked here is asked only of results that are outside their budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from parity.catalog.row import Row
from parity.dtypes import FACTS, HALF, DtypeFacts
from parity.judging.budget import HANDED, Array, Budget
from parity.judging.measures import at, parts
from parity.tolerance import Tables
from parity.truth.protocol import Oracle
from parity.truth.rounding import extremes
from parity.vocabulary import Measure, OpClass

# Rules multiply sensitivities by 16, which is for roundings that add up inside a kernel; a number that is handed on is rounded
# once, so four roundings are plenty.
HANDED_ON = 8.0
RESIDUE = 2.0**-48  # of the largest magnitude on the way: what float64 leaves of numbers that cancel
PARTIAL = 8.0  # partial sums and parts of complex products may be this much larger than what remains of them


LEAKAGE = "log2(n) u of the largest result, of a transform"


def roundoff(row: Row, f: DtypeFacts, pass_: str) -> tuple[float, float]:
    """(unit roundoff of the arithmetic inside a kernel, how far to move what one kernel hands to the next).

    A half-type kernel computes in float32 and rounds once: so its operands count as exact but for float32's roundoff, and
    what passes from kernel to kernel carries the half type's. Rows that round inside, too, say so (`rounds_between`).
    """
    sums = row.rule is OpClass.CONTRACTION
    if f.name not in HALF or pass_ in row.accumulates or (row.rounds_between and not sums):
        return f.unit_roundoff, f.unit_roundoff
    return FACTS["float32"].unit_roundoff, f.unit_roundoff / HANDED_ON


def one_kernel(row: Row, f: DtypeFacts, pass_: str, b: Budget) -> bool:
    """Whether healthy kernels of this half-precision result compute in float32 throughout and round once: then what such
    kernels give tells whether the error of the CPU's own belongs to the op or to them. Sums that hand nothing on in this case
    (a convolution without a bias) do."""
    if f.name not in HALF or pass_ in row.accumulates or pass_ in row.stages:
        return False
    handed = next((t for name, t in b.terms if name == HANDED), None)
    return not row.rounds_between or (handed is not None and not handed.any())


def scans(row: Row) -> bool:
    """Whether results are partial sums of one another: they share errors, and no root mean square averages these."""
    return row.name.removeprefix("opinfo:").startswith(("cumsum", "cumulative_trapezoid"))


def one_sided(s: Array, n: Array, u: float, equal: bool) -> Array:
    """n u S / 2, what a chain of n equal terms is off by where every addition rounds to the same side: partial sums k S / n,
    each off by u at most (Higham, Accuracy and Stability, 2002, section 4.2). Of terms that differ, the same of those behind
    the first 1 / u: each is below half a unit in the last place of the sum, which then stays what it is (Connolly, Higham and
    Mary, SIAM J. Sci. Comput. 43 (2021) A566, section 1: stagnation)."""
    nu = n * u
    sided = nu if equal else np.maximum(nu - 1.0 / np.maximum(nu, 1.0), 0.0)
    found: Array = 0.5 * sided * np.nan_to_num(s, nan=0.0, posinf=0.0)
    return found


def transforms(row: Row) -> bool:
    """Whether this is a discrete Fourier transform."""
    name = row.name.removeprefix("opinfo:").partition(".")[0]
    return name in ("fft", "stft", "istft")


def leakage(size: Array, u: float) -> Array:
    """log2(n) u times the largest result, n results in all: fast transforms are stable by their norm, not by their elements
    (Higham, Accuracy and Stability, 2002, theorem 24.2: log2(n) eta times the norm of the result), and where one result
    stands out, the errors of the factors that it is made with stand in the others."""
    finite = np.where(np.isfinite(size), np.abs(size), 0.0)
    return np.full_like(size, np.log2(max(2, size.size)) * u * finite.max(initial=0.0))


def terms_of_gauss(row: Row, f: DtypeFacts) -> float:
    """How much larger the terms of a sum are than the moduli that its bound knows: torch convolves complex numbers, on every
    device, by three real convolutions (Gauss's trick), whose bound is three times that of four (Higham, SIAM J. Matrix Anal.
    Appl. 13 (1992) 681)."""
    name = row.name.removeprefix("opinfo:").rpartition(".")[2]
    return 3.0 if f.kind == "complex" and name.startswith("conv") else 1.0


def lost_between(row: Row, f: DtypeFacts, oracle: Oracle, name: str, flushes: bool, like: Array) -> Array:
    """What is lost below the normal numbers between kernels (of the sums of parts in Gauss's trick, of a product before the
    next): a few subnormal numbers in place of each operand, times the others; a few normal ones on a device that flushes.
    Nothing where what is handed on is only added to (a product, to a bias)."""
    lost = np.zeros_like(like)
    chained = row.rounds_between and oracle.bias() is None
    if not name or (terms_of_gauss(row, f) == 1.0 and not chained):
        return lost
    if not any(extremes(x)[0] < f.tiny / f.unit_roundoff for x in oracle.operands if x.is_floating_point() or x.is_complex()):
        return lost
    for x in oracle.with_each_as(name, 4.0 * (f.tiny if flushes else f.smallest)):
        both = np.repeat(parts(x)[..., None], 2, -1) if f.kind == "complex" else parts(x)
        lost += np.nan_to_num(both, nan=0.0, posinf=0.0) if both.shape == like.shape else 0.0
    return lost


def vanishing(row: Row, tables: Tables, operands: Sequence[object]) -> float:
    """Below which largest number a solver's matrix may lose more than roundings, because the device flushes on the way: the
    smallest normal number over the roundoff; 0 where it does not flush."""
    floats = [x for x in operands if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]
    if row.rule not in (OpClass.SOLVER, OpClass.DECOMPOSITION) or not floats:
        return 0.0
    f = FACTS[str(floats[0].dtype).removeprefix("torch.")]
    return f.tiny / f.unit_roundoff if tables.flushes(f.name, row.name, row.rule) else 0.0


def modulus(truth: Tensor) -> Array:
    """Magnitudes in the shape of the truth's real parts; both parts of a complex number have its modulus."""
    return paired(truth.resolve_conj().abs(), truth) if truth.is_complex() else parts(truth)


def paired(x: Tensor, truth: Tensor) -> Array:
    """A number per element in the shape of the truth's real parts."""
    made = parts(x)
    return np.repeat(made[..., None], 2, -1) if truth.is_complex() else made


def residue(oracle: Oracle, b: Budget, truth: Tensor, f: DtypeFacts, u: float, between: float) -> Budget | None:
    """A budget for a gradient whose truth is what float64's own rounding leaves of numbers that cancel, in all elements: then
    u times the largest of these numbers may be left in the dtype. None where it is not. Perturbations do not see it: equal
    numbers move alike in them, and two formulas for one number round differently."""
    size, high = float(modulus(truth).max(initial=0.0)), oracle.largest(u, between)
    if not 0.0 < size <= RESIDUE * high or float(b.total.max(initial=0.0)) > f.unit_roundoff * RESIDUE**0.5 * high:
        return None
    return b.wider("cancelled to float64's rounding", np.full(b.total.shape, 4.0 * f.unit_roundoff * high))


def on_the_branch_of(truth: Tensor, x: Tensor) -> Tensor:
    """x with multiples of 2 pi i added, so that every element's imaginary part is the nearest to the truth's."""
    wide = x.to(torch.complex128)
    turns = torch.round((truth.imag - wide.imag) / (2.0 * math.pi)).nan_to_num(0.0, 0.0, 0.0)
    return torch.complex(wide.real, wide.imag + 2.0 * math.pi * turns).to(x.dtype)


def odd_zero(name: str, device: Tensor, reference: Tensor, truth: Tensor) -> Measure | None:
    """The first zero of the other sign than truth and reference agree on, if there is one."""
    if device.is_complex():
        return None
    odd = (device == 0) & (reference == 0) & (truth == 0)
    odd &= torch.signbit(reference) == torch.signbit(truth)
    odd &= torch.signbit(device) != torch.signbit(reference)
    count = int(odd.sum())
    if not count:
        return None
    index = tuple(int(i) for i in odd.nonzero()[0])
    return Measure(
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
        problem="zero",
    )
