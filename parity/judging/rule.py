"""The base class of the rules in `parity.judging.rules`, one file per class of ops.

A rule gives the budget of a result and the verdict on its measure. Its flags give drawing, derivatives, destinations and
reports what they need to know of the class. The defaults are those of an op composed of several roundings; a class overrides
what differs. No other code asks for the class of an op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from parity.catalog.row import Row
from parity.core.dtypes import FACTS, HALF, DtypeFacts
from parity.core.results import Measure, Status, Tolerance, Verdict, times_the_budget
from parity.judging.bench import Bench
from parity.judging.budget import Array, Budget, of_function, of_perturbation
from parity.judging.measures import allowed_ratio
from parity.judging.promises import LEAKAGE, leakage, modulus, paired
from parity.oracle.yardstick import AGAIN, AGAIN_HALF, BETWEEN_KERNELS, COARSER_HALF, COARSER_SINGLE, FLUSHED
from parity.tolerance import Tables

# Arithmetic in the next coarser format explains an error of up to this many budgets. Beyond it no rounding explains the error.
DRIFT_LIMIT = {"float32": COARSER_SINGLE, "complex64": COARSER_SINGLE, "float16": COARSER_HALF, "bfloat16": COARSER_HALF}


@dataclass(frozen=True, slots=True)
class BudgetRequest:
    """The result for which a budget is requested. Arrays have the shape of the truth's real parts.

    name: of the truth; None requests the smallest possible budget, which needs no further run of the op. tol: with the scale
    for these derivatives. flushes: whether the device may flush subnormal numbers of this dtype. floor: allowed error of any
    element, however small. size: magnitudes of the truth. u, between: `Rule.roundings`.
    """

    bench: Bench
    truth: Tensor
    name: str | None
    f: DtypeFacts
    pass_: str
    tol: Tolerance
    flushes: bool
    floor: float
    size: Array
    u: float
    between: float


class Rule:
    """How results of one class of ops are judged.

    Of results:
    has_values: numbers are promised; if not, only the form of results and destinations is judged, and their law.
    is_random: results are drawn from a distribution given by a law.
    form_only: only the form of results is promised.
    exact: forward results are promised to the bit.
    rounds: results are rounded on the way, so the range of intermediate numbers matters.
    adds_terms: elements are sums, so overflow may give NaN, Inf or -Inf.
    sums_products: the op is one sum of products; its bound follows from the magnitudes of its terms (`Oracle.magnitudes`).
    free_at_infinity: the results of complex arithmetic at Inf are unspecified (C99, annex G, or any other).

    Of cases:
    by_element: an element of the result depends on few elements of the operands, so one special number does not hide others.
    keeps_samples: operands are matrices with a property (definite, triangular, invertible) that one special number destroys.
    has_tangents: reverse mode is a truth for forward-mode derivatives.
    differentiated_often: second derivatives are checked in some cases of every run.
    """

    has_values: ClassVar[bool] = True
    is_random: ClassVar[bool] = False
    form_only: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    rounds: ClassVar[bool] = True
    adds_terms: ClassVar[bool] = True
    sums_products: ClassVar[bool] = False
    free_at_infinity: ClassVar[bool] = False
    by_element: ClassVar[bool] = False
    keeps_samples: ClassVar[bool] = False
    has_tangents: ClassVar[bool] = True
    differentiated_often: ClassVar[bool] = False

    # ------------------------------------------------------------------------------------------------------- the budget

    def roundoff(self, row: Row, f: DtypeFacts, pass_: str) -> tuple[float, float]:
        """(unit roundoff inside a kernel, relative movement of what one kernel passes to the next).

        A half-type kernel computes in float32 and rounds once: its operands are exact up to float32's roundoff, and what passes
        from kernel to kernel carries the half type's. Rows whose kernels also round inside say so (`rounds_between`).
        """
        if f.name not in HALF or pass_ in row.judged.accumulates or self.rounds_inside(row):
            return f.unit_roundoff, f.unit_roundoff
        return FACTS["float32"].unit_roundoff, f.unit_roundoff / BETWEEN_KERNELS

    def rounds_inside(self, row: Row) -> bool:
        """Whether honest half-type kernels of the row round the steps of their arithmetic to the half type."""
        return row.judged.rounds_between

    def roundings(self, bench: Bench, f: DtypeFacts, pass_: str) -> tuple[float, float]:
        """`roundoff` for this case.

        With mixed dtypes the coarser one counts between kernels; formulas of second derivatives call one kernel after another.
        """
        u, between = self.roundoff(bench.row, f, pass_)
        between = max(between, bench.oracle.coarsest() / BETWEEN_KERNELS)
        return u, f.unit_roundoff if bench.oracle.fed and f.name in HALF else between

    def budget(
        self,
        bench: Bench,
        truth: Tensor,
        name: str | None,
        f: DtypeFacts,
        pass_: str,
        tol: Tolerance,
        flushes: bool,
        size: Array | None = None,
    ) -> Budget:
        """Allowed error of every element. The arguments are fields of `BudgetRequest`; tol comes from the tables unchanged, and
        size is computed if it is not at hand."""
        floor = FLUSHED * f.tiny if flushes else f.smallest
        size = modulus(truth) if size is None else size
        if tol.ulp is not None:
            return of_function(size, f, tol, floor)
        u, between = self.roundings(bench, f, pass_)
        if bench.oracle.fed:
            tol = replace(tol, scale=tol.scale * (AGAIN_HALF if f.name in HALF else AGAIN))
        return self.rounded(BudgetRequest(bench, truth, name, f, pass_, tol, flushes, floor, size, u, between))

    def rounded(self, r: BudgetRequest) -> Budget:
        """The budget if no table bounds the function."""
        b = self.by_sensitivity(r)
        return b if r.name is None or not r.bench.row.judged.transform else b.wider(LEAKAGE, leakage(r.size, r.u))

    @staticmethod
    def by_sensitivity(r: BudgetRequest, floor: float = 0.0) -> Budget:
        """The budget by how far the truth moves under roundings. floor: lower bound of the floor."""
        floor = max(r.floor, FLUSHED * r.f.smallest, floor)
        moved = None if r.name is None else paired(r.bench.oracle.sensitivity(r.name, r.u, r.between), r.truth)
        return of_perturbation(r.size, moved, r.f, r.u, r.tol, floor)

    # ------------------------------------------------------------------------------------------------------ the verdict

    def verdict(self, m: Measure, tol: Tolerance, dtype: str) -> Verdict:
        """The verdict on the measure of a rounded result. dtype: of the result."""
        ratio = m.share or 0.0
        allowed = allowed_ratio(m.reference_share) if m.problem != "alone" else 1.0
        if ratio <= allowed:
            words = []
            if ratio > 1.0:
                words.append(f"inside the budget only as widened {allowed:.2g} times by the reference's own error")
            if m.reference_share is not None and m.reference_share > max(1.0, 2.0 * ratio):
                words.append("the CPU is the worse side here")
            return Verdict(Status.AGREE, "; ".join(words), m, tol)
        if m.problem == "alone":
            text = f"{ratio:.3g} times what the errors of all other elements explain: it errs alone"
            return Verdict(Status.WRONG if m.certain else Status.DRIFT, text, m, tol)
        if m.problem == "class":
            return Verdict(Status.WRONG, f"{m.device} where the truth is {m.truth}", m, tol)
        if m.spread is not None and m.spread == ratio and not m.certain:
            return over_budget(Status.DRIFT, m, tol, " of the root mean square error: precision is lost everywhere")
        return self.outside(m, tol, DRIFT_LIMIT.get(dtype, COARSER_SINGLE) * allowed)

    def outside(self, m: Measure, tol: Tolerance, limit: float) -> Verdict:
        """The finding for an element outside its budget. limit: ratio up to which arithmetic in the next coarser format
        explains it."""
        if (m.share or 0.0) <= limit:
            return over_budget(Status.DRIFT, m, tol)
        return over_budget(Status.WRONG, m, tol, ": more than a coarser rounding explains")

    # ----------------------------------------------------------------------------------------------- promises and aspects

    def bias_test_applies(self, row: Row) -> bool:
        """Whether a bias of all elements to one side is meaningful.

        It is if elements share sums and the error allowed before the last rounding is less than that rounding. Elements of
        functions share none.
        """
        return False

    def vanishing(self, row: Row, tables: Tables, operands: Sequence[object]) -> float:
        """Magnitude below which an operand may lose more than roundings because the device flushes; 0 if it does not flush."""
        return 0.0

    def casts_destination(self, row: Row) -> bool:
        """Whether torch computes in the common dtype of the operands, whatever the destination, and casts each element
        afterwards."""
        return False

    def differentiated(self, row: Row) -> Row:
        """The row by which second derivatives are judged."""
        return row


def over_budget(status: Status, m: Measure, tol: Tolerance, more: str = "") -> Verdict:
    """The finding for an error above its budget. more: appended to the reason."""
    return Verdict(status, times_the_budget(m.share or 0.0, more), m, tol, more)
