"""The promises about a result where arithmetic alone does not say: at NaN and Inf, at the ends of the range, in half types.

The tables (`[[special]]`) say what a device owes. These functions run only for results that are outside their budget.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from parity.catalog.row import Row
from parity.core.dtypes import HALF, DtypeFacts
from parity.core.results import Measure
from parity.judging.bench import Bench
from parity.judging.budget import Array, Budget
from parity.judging.measures import mismatch, parts
from parity.oracle.protocol import Oracle
from parity.oracle.roundoffs import extremes
from parity.oracle.yardstick import FLUSHED

RESIDUE = 2.0**-48  # of the largest magnitude on the way: float64's rounding error where numbers cancel
PARTIAL = 8.0  # partial sums and parts of complex products may be this much larger than the result


LEAKAGE = "log2(n) u of the largest result, of a transform"


def one_kernel(row: Row, f: DtypeFacts, pass_: str, b: Budget) -> bool:
    """Whether healthy kernels of this half-precision result compute in float32 throughout and round once.

    If so, the results of such kernels show whether the CPU's own error belongs to the op or to its kernels. Sums that pass
    nothing between kernels in this case (a convolution without a bias) do.
    """
    if f.name not in HALF or pass_ in row.judged.accumulates or pass_ in row.judged.stages:
        return False
    return not row.judged.rounds_between or (b.between_kernels is not None and not b.between_kernels.any())


def one_sided(s: Array, n: Array, u: float, equal: bool) -> Array:
    """n u S / 2, the error of a chain of n equal terms if every addition rounds to the same side.

    Partial sums are k S / n, each off by u at most (Higham, Accuracy and Stability, 2002, section 4.2). If the terms differ,
    the same bound holds for those after the first 1 / u: each is below half a unit in the last place of the sum, which then
    stagnates (Connolly, Higham and Mary, SIAM J. Sci. Comput. 43 (2021) A566, section 1).
    """
    nu = n * u
    sided = nu if equal else np.maximum(nu - 1.0 / np.maximum(nu, 1.0), 0.0)
    error: Array = 0.5 * sided * np.nan_to_num(s, nan=0.0, posinf=0.0)
    return error


def leakage(size: Array, u: float) -> Array:
    """log2(n) u times the largest of all n results.

    Fast transforms are stable by norm, not by element (Higham, Accuracy and Stability, 2002, theorem 24.2: log2(n) eta times
    the norm of the result): the errors of the factors of one large result appear in the others.
    """
    finite = np.where(np.isfinite(size), np.abs(size), 0.0)
    return np.full_like(size, np.log2(max(2, size.size)) * u * finite.max(initial=0.0))


def terms_of_gauss(row: Row, f: DtypeFacts) -> float:
    """How much larger the terms of a sum are than the moduli in its bound.

    On every device torch convolves complex numbers by three real convolutions (Gauss's trick), whose bound is three times that
    of four (Higham, SIAM J. Matrix Anal. Appl. 13 (1992) 681).
    """
    return 3.0 if f.kind == "complex" and row.judged.gauss else 1.0


def lost_between(row: Row, f: DtypeFacts, oracle: Oracle, name: str, flushes: bool, like: Array) -> Array:
    """Loss below the normal numbers between kernels: of the sums of parts in Gauss's trick, of a product before the next one.

    A few subnormal numbers (normal ones on a device that flushes) in place of each operand, times the others. 0 where the
    intermediate result is only added to (a product, to a bias).
    """
    lost = np.zeros_like(like)
    factors = [x for x in oracle.operands if x.is_floating_point() or x.is_complex()]
    chained = oracle.bias() is None and (row.judged.rounds_between or len(factors) > 2)
    if not name or (terms_of_gauss(row, f) == 1.0 and not chained):
        return lost
    if math.prod(min(1.0, extremes(x)[0]) for x in factors) >= f.tiny / f.unit_roundoff:
        return lost
    for x in oracle.gain_per_operand(name):
        one = FLUSHED * (f.tiny if flushes else f.smallest) * np.nan_to_num(parts(x), nan=0.0, posinf=0.0)
        both = np.repeat(one[..., None], 2, -1) if f.kind == "complex" else one
        lost += both if both.shape == like.shape else 0.0
    return lost


def modulus(truth: Tensor) -> Array:
    """Magnitudes in the shape of the truth's real parts; both parts of a complex number get its modulus."""
    return paired(truth.resolve_conj().abs(), truth) if truth.is_complex() else parts(truth)


def paired(x: Tensor, truth: Tensor) -> Array:
    """One number per element, repeated for both parts of complex elements: the shape of the truth's real parts."""
    values = parts(x)
    return np.repeat(values[..., None], 2, -1) if truth.is_complex() else values


def residue(oracle: Oracle, b: Budget, truth: Tensor, f: DtypeFacts, u: float, between: float) -> Budget | None:
    """A budget for a gradient whose truth is float64's own rounding error of numbers that cancel in all elements; else None.

    In the dtype, u times the largest of these numbers may remain. Perturbations do not show it: equal numbers move alike in
    them, and two formulas for one number round differently.
    """
    size, high = float(modulus(truth).max(initial=0.0)), oracle.largest(u, between)
    if not 0.0 < size <= RESIDUE * high or float(b.total.max(initial=0.0)) > f.unit_roundoff * RESIDUE**0.5 * high:
        return None
    return b.wider("cancelled to float64's rounding", np.full(b.total.shape, 4.0 * f.unit_roundoff * high))


def on_the_branch_of(truth: Tensor, x: Tensor) -> Tensor:
    """x plus multiples of 2 pi i that bring the imaginary part of each element nearest to the truth's."""
    wide = x.to(torch.complex128)
    turns = torch.round((truth.imag - wide.imag) / (2.0 * math.pi)).nan_to_num(0.0, 0.0, 0.0)
    return torch.complex(wide.real, wide.imag + 2.0 * math.pi * turns).to(x.dtype)


def as_promised(bench: Bench, truth: Tensor, x: Tensor, pass_: str) -> Tensor:
    """x as near to the truth as the tables leave free: on its branch, and with its sign where both are infinite at a negative
    zero of an operand."""
    row, special = bench.row, bench.tables.special
    if x.is_complex() and pass_ == "forward" and special(row.name, row.rule, "branch") == "any":
        return on_the_branch_of(truth, x)
    if special(row.name, row.rule, "at_negative_zero") == "any":
        for own in bench.oracle.operands if pass_ == "backward" else bench.oracle.operands_of_shape(truth):
            if own.shape == truth.shape == x.shape:
                free = (own == 0) & torch.signbit(own) & truth.isinf() & x.isinf()
                x = torch.where(free, truth.to(x.dtype), x) if bool(free.any()) else x
    return x


def odd_zero(name: str, device: Tensor, reference: Tensor, truth: Tensor) -> Measure | None:
    """The first zero, or part of a complex number, whose sign differs from the one that truth and reference agree on; None
    without one."""
    ours, theirs, true = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in (device, reference, truth))
    odd = (ours == 0) & (theirs == 0) & (true == 0)
    odd &= torch.signbit(theirs) == torch.signbit(true)
    odd &= torch.signbit(ours) != torch.signbit(theirs)
    odd = odd.any(-1) if device.is_complex() else odd
    return mismatch(name, "zero", odd, device, reference, truth)
