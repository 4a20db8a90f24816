"""One rule per class of ops: the differences from `parity.judging.rule.Rule`.

A new class is a member of `OpClass`, a rule here, a section of `tolerances/default.toml` if it has its own numbers, and a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from parity.catalog.row import Quirk, Row
from parity.core import extensions
from parity.core.case import OpClass
from parity.core.dtypes import FACTS, HALF
from parity.core.errors import UsageError
from parity.core.results import Measure, Status, Tolerance, Verdict
from parity.judging.budget import Array, Budget, of_sum
from parity.judging.promises import lost_between, one_sided, paired, terms_of_gauss
from parity.judging.rule import BudgetRequest, Rule, over_budget
from parity.oracle.yardstick import FLUSHED
from parity.tolerance import Tables

__all__ = ["RULES", "Rule", "add", "rule_of", "rule_of_pass"]


class Exact(Rule):
    """Data movement, comparisons, integers. Results are promised to the bit.

    No rounding and no addition.
    """

    exact: ClassVar[bool] = True
    rounds: ClassVar[bool] = False
    adds_terms: ClassVar[bool] = False
    by_element: ClassVar[bool] = True


class Elementwise(Rule):
    """One rounded function per element, with a bound in the device's ULP table.

    Elements are computed one by one, at least in float32.
    """

    adds_terms: ClassVar[bool] = False
    by_element: ClassVar[bool] = True

    def rounded(self, r: BudgetRequest) -> Budget:
        """By sensitivity. With one operand, what float32 cannot invert (1 / exp(100)) may vanish below its normal numbers."""
        if not r.bench.oracle.has_one_operand():
            return super().rounded(r)
        return self.by_sensitivity(r, FACTS["float32"].tiny)

    def casts_destination(self, row: Row) -> bool:
        """As in TensorIterator, by torch's type promotion. Ops that create from numbers alone compute in the destination's
        dtype."""
        return row.family != "creation"


class Contraction(Rule):
    """Sums of products (matmul, conv, sum, cumsum, norm), and their gradients.

    The budget follows from the magnitudes of the terms of each sum, plus a term for what kernels pass to each other.
    """

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
            between_kernels = between_kernels + one_sided(s, n, u, bench.oracle.different_numbers() == 1.0)
        elif r.name is not None and (runs := bench.oracle.runs_of_equals()):
            between_kernels = between_kernels + one_sided(s, n / runs, u, True)
        floor = r.floor * np.maximum(1.0, n / FLUSHED) if r.flushes else r.floor
        stored = r.name is not None and f.name in HALF and r.pass_ in bench.row.judged.accumulates
        wander = bench.oracle.wander(r.name) if stored and r.name is not None else None
        stray = None if wander is None else paired(wander, r.truth)
        sum_ = of_sum(size, s, n, f, u, between_kernels, r.tol, floor, stray)
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


class Composite(Rule):
    """Ops built of several roundings, and every gradient that is not a sum.

    The budget is how far the truth moves if operands and numbers passed between kernels move by one roundoff.
    """

    free_at_infinity: ClassVar[bool] = True

    def bias_test_applies(self, row: Row) -> bool:
        """Not to activations, functions of single elements: a constant that a device keeps in the half type moves them all."""
        return not row.judged.rounds_between and row.family != "activations"


class Selection(Rule):
    """Sort, topk, argmax: several answers can be right (`parity.judging.relations.selection`).

    Elements are taken from the operands unchanged: nothing is rounded or added.
    """

    rounds: ClassVar[bool] = False
    adds_terms: ClassVar[bool] = False


class Solver(Rule):
    """Solve, inv, lstsq: results are judged by their residuals (`parity.judging.relations.solver`).

    The condition of the matrix decides how well results are known.

    Gradients of factorizations are symmetrised, so reverse mode is no truth for tangents that are not symmetric.
    """

    keeps_samples: ClassVar[bool] = True
    has_tangents: ClassVar[bool] = False
    differentiated_often: ClassVar[bool] = True

    def vanishing(self, row: Row, tables: Tables, operands: Sequence[object]) -> float:
        """Largest element below which a matrix may lose more than roundings, because the device flushes; 0 if it does not.

        It is the smallest normal number over the unit roundoff.
        """
        floats = [x for x in operands if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]
        if not floats:
            return 0.0
        f = FACTS[str(floats[0].dtype).removeprefix("torch.")]
        return f.tiny / f.unit_roundoff if tables.flushes(f.name, row.name, row.rule) else 0.0


class Decomposition(Solver):
    """Svd, eigh, qr: results are judged by invariants (`parity.judging.relations.decomposition`).

    Factors are right up to signs, phases and pivots; everything else is as for solvers.
    """


class Random(Rule):
    """Dropout, rand_like: a law says what may be drawn (`parity.judging.laws`).

    No value is promised; only a distribution, one stream per seed, and the form of results.
    """

    has_values: ClassVar[bool] = False
    is_random: ClassVar[bool] = True


class Metadata(Rule):
    """Empty_like: only shape, dtype and layout are promised.

    The values of results are unspecified.
    """

    has_values: ClassVar[bool] = False
    form_only: ClassVar[bool] = True


RULES: dict[OpClass, Rule] = {
    OpClass.EXACT: Exact(),
    OpClass.ELEMENTWISE: Elementwise(),
    OpClass.CONTRACTION: Contraction(),
    OpClass.COMPOSITE: Composite(),
    OpClass.SELECTION: Selection(),
    OpClass.DECOMPOSITION: Decomposition(),
    OpClass.SOLVER: Solver(),
    OpClass.RANDOM: Random(),
    OpClass.METADATA: Metadata(),
}


def add(op_class: OpClass, rule: Rule) -> None:
    """Add a class of ops of a file outside of the package: `OpClass("own-...")`. Raises UsageError for one that is there."""
    if op_class in RULES:
        raise UsageError(f"there is a class '{op_class}' already; name yours otherwise: OpClass('own-...')")
    RULES[op_class] = rule
    extensions.note("class", op_class)


def has_rule(row: Row) -> bool:
    """Whether the class of a row has a rule, which a row of another package may name wrongly."""
    return row.rule in RULES


def rule_of(row: Row) -> Rule:
    """The rule of the op's class."""
    return RULES[row.rule]


def rule_of_pass(row: Row, pass_: str) -> Rule:
    """The rule that judges results of this pass: the op's own "forward", that of its gradients "backward"."""
    return RULES[row.rule if pass_ == "forward" else row.rule.of_gradients]
