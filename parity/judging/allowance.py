"""How far each element of a result may be from its truth: which budget the op's class has, and what its row, its operands and
their dtypes add to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from parity.dtypes import FACTS, HALF, DtypeFacts
from parity.judging.bench import Bench
from parity.judging.budget import Array, Budget, of_function, of_perturbation, of_sum
from parity.judging.promises import (
    HANDED_ON,
    LEAKAGE,
    leakage,
    lost_between,
    modulus,
    one_sided,
    paired,
    roundoff,
    scans,
    terms_of_gauss,
    transforms,
)
from parity.vocabulary import OpClass, Tolerance

AGAIN, AGAIN_HALF = 2.0, 4.0  # scales of second derivatives: devices differ in their formulas, not in rounding alone
FLUSHED = 4.0  # a few partial results may be flushed on the way, or off by a few of the smallest numbers


def allowance(
    bench: Bench, truth: Tensor, name: str | None, f: DtypeFacts, pass_: str, tol: Tolerance, flushes: bool
) -> Budget:
    """The budget of every element. name: of the truth; None asks for the least that the full one can be, which needs no
    further run of the op: a screen that it passes is never looser than the rule."""
    floor = FLUSHED * f.tiny if flushes else f.smallest
    size = modulus(truth)
    if tol.ulp is not None:
        return of_function(size, f, tol, floor)
    u, between = roundings(bench, f, pass_)
    if bench.oracle.fed:
        tol = replace(tol, scale=tol.scale * (AGAIN_HALF if f.name in HALF else AGAIN))
    if tol.rule == OpClass.CONTRACTION:
        found = None if name is None else bench.oracle.magnitudes(name)
        if name is None or (found is not None and found[0].shape == truth.shape):
            s, n = (size, np.ones_like(size)) if found is None else (paired(t, truth) for t in found)
            s = s * terms_of_gauss(bench.row, f)
            handed = _handed_on(bench, name, f, pass_, u, size, s) + lost_between(
                bench.row, f, bench.oracle, name or "", flushes, size
            )
            if scans(bench.row):
                handed = handed + one_sided(s, n, u, bench.oracle.repeats())
            elif name is not None and bench.oracle.alike():
                handed = handed + one_sided(s, n, u, True)
            sum_ = of_sum(size, s, n, f, u, handed, tol, floor * np.maximum(1.0, n / FLUSHED) if flushes else floor)
            if bench.oracle.fed and sum_.scale is not None:
                # A second derivative is what two kernels gave, added up: three roundings in turn, which a device that rounds
                # toward zero makes to one side.
                sum_ = replace(sum_, scale=sum_.scale + 2.0 * u * np.nan_to_num(s, nan=0.0, posinf=0.0))
            return replace(sum_, rms=np.inf) if scans(bench.row) else sum_
    floor = max(floor, FLUSHED * f.smallest)
    moved = np.zeros_like(size) if name is None else paired(bench.oracle.sensitivity(name, u, between), truth)
    if bench.row.rule is not OpClass.ELEMENTWISE or pass_ == "backward" or not bench.oracle.of_one():
        b = of_perturbation(size, moved, f, u, tol, floor)
        return b if name is None or not transforms(bench.row) else b.wider(LEAKAGE, leakage(size, u))
    # What float32 cannot invert (1 / exp(100)) may vanish, below its normal numbers.
    return of_perturbation(size, moved, f, u, tol, max(floor, FACTS["float32"].tiny))


def roundings(bench: Bench, f: DtypeFacts, pass_: str) -> tuple[float, float]:
    """`roundoff` for this very case: of mixed dtypes, what one kernel hands to the next may be the coarser; formulas of second
    derivatives call one kernel after another."""
    u, between = roundoff(bench.row, f, pass_)
    between = max(between, bench.oracle.coarsest() / HANDED_ON)
    return u, f.unit_roundoff if bench.oracle.fed and f.name in HALF else between


def _handed_on(bench: Bench, name: str | None, f: DtypeFacts, pass_: str, u: float, size: Array, s: Array) -> Array:
    """What the roundings of results that are handed on between the kernels of a sum allow. size: of the results; s: sums of the
    moduli of their terms."""
    handed = np.zeros_like(size)
    terms = np.nan_to_num(s, nan=0.0, posinf=0.0)
    if u != f.unit_roundoff and bench.row.rounds_between and name is not None and pass_ != "backward":
        bias = bench.oracle.bias()
        if bias is None:
            handed = f.unit_roundoff * 2.0 * s
        elif bias:
            handed = f.unit_roundoff * (np.nan_to_num(np.abs(size), nan=0.0, posinf=0.0) + 2.0 * bias)
    kept = (1.0 if pass_ in bench.row.stages else 0.0) + (2.0 if bench.oracle.fed else 0.0)  # gradients are added up
    if u != f.unit_roundoff and kept:
        handed = handed + kept * f.unit_roundoff * terms
    coarse = bench.oracle.coarsest()
    if coarse > f.unit_roundoff and (pass_ == "backward" or bench.oracle.fed):  # through a coarser operand's gradient
        handed = handed + 2.0 * coarse * terms
    return handed
