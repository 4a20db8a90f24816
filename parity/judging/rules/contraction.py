"""Contraction: sums of products (matmul, conv, sum, cumsum, norm), and their gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from parity.catalog.row import Quirk, Row
from parity.core.results import Measure, Status, Tolerance, Verdict
from parity.judging.budget import Array, Budget, of_sum
from parity.judging.promises import lost_between, one_sided, paired, terms_of_gauss
from parity.judging.rule import FLUSHED, BudgetRequest, Rule, over_budget


class Contraction(Rule):
    """The budget follows from the magnitudes of the terms of each sum, plus a term for what kernels pass to each other."""

    sums_products: ClassVar[bool] = True

    def rounds_inside(self, row: Row) -> bool:
        """Kernels of sums add up in float32; rounding between their stages is in `_rounding_between_kernels`."""
        return False

    def rounded(self, r: BudgetRequest) -> Budget:
        """The bound on sums, if the oracle knows the magnitudes of the terms."""
        bench, f, size, u = r.bench, r.f, r.size, r.u
        sums = None if r.name is None else bench.oracle.magnitudes(r.name)
        if r.name is not None and (sums is None or sums[0].shape != r.truth.shape):
            return super().rounded(r)
        s, n = (size, np.ones_like(size)) if sums is None else (paired(t, r.truth) for t in sums)
        s = s * terms_of_gauss(bench.row, f)
        between_kernels = _rounding_between_kernels(r, s) + lost_between(
            bench.row, f, bench.oracle, r.name or "", r.flushes, size
        )
        if Quirk.RUNNING in bench.row.quirks:
            between_kernels = between_kernels + one_sided(s, n, u, bench.oracle.any_constant())
        elif r.name is not None and bench.oracle.all_constant():
            between_kernels = between_kernels + one_sided(s, n, u, True)
        floor = r.floor * np.maximum(1.0, n / FLUSHED) if r.flushes else r.floor
        sum_ = of_sum(size, s, n, f, u, between_kernels, r.tol, floor)
        if bench.oracle.fed and sum_.scale is not None:
            # A second derivative adds the results of two kernels: three roundings in turn, all to one side on a device that
            # rounds toward zero.
            sum_ = replace(sum_, scale=sum_.scale + 2.0 * u * np.nan_to_num(s, nan=0.0, posinf=0.0))
        return replace(sum_, rms=np.inf) if Quirk.RUNNING in bench.row.quirks else sum_

    def outside(self, m: Measure, tol: Tolerance, limit: float) -> Verdict:
        """WRONG above what any order of addition explains, whatever the format of the arithmetic; else DRIFT."""
        if not m.certain:
            return over_budget(Status.DRIFT, m, tol)
        return over_budget(Status.WRONG, m, tol, ": more than any order of adding explains")

    def bias_test_applies(self, row: Row) -> bool:
        """Sums of one tensor share terms."""
        return True

    def differentiated(self, row: Row) -> Row:
        """A second derivative is a sum of the results of several kernels, each rounded to the dtype."""
        return replace(row, judged=replace(row.judged, rounds_between=True, stages=("backward",)))


def _rounding_between_kernels(r: BudgetRequest, s: Array) -> Array:
    """The allowed error of rounding the results that the kernels of a sum pass to each other. s: sums of the moduli of the
    terms."""
    bench, f, pass_, u, size = r.bench, r.f, r.pass_, r.u, r.size
    between_kernels = np.zeros_like(size)
    if u != f.unit_roundoff and bench.row.judged.rounds_between and r.name is not None and pass_ != "backward":
        bias = bench.oracle.bias()
        if bias is None:
            between_kernels = f.unit_roundoff * 2.0 * s
        elif bias:
            between_kernels = f.unit_roundoff * (np.nan_to_num(np.abs(size), nan=0.0, posinf=0.0) + 2.0 * bias)
    kept = (1.0 if pass_ in bench.row.judged.stages else 0.0) + (2.0 if bench.oracle.fed else 0.0)  # gradients are added up
    if u != f.unit_roundoff and kept:
        between_kernels = between_kernels + kept * f.unit_roundoff * np.nan_to_num(s, nan=0.0, posinf=0.0)
    coarse = bench.oracle.coarsest()
    if coarse > f.unit_roundoff and (pass_ == "backward" or bench.oracle.fed):  # the gradient of a coarser operand
        between_kernels = between_kernels + 2.0 * coarse * np.nan_to_num(s, nan=0.0, posinf=0.0)
    return between_kernels
