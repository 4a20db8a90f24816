"""Elementwise: one rounded function per element, with a bound in the device's ULP table."""

from __future__ import annotations

from typing import ClassVar

from parity.catalog.row import Row
from parity.core.dtypes import FACTS
from parity.judging.budget import Budget
from parity.judging.rule import BudgetRequest, Rule


class Elementwise(Rule):
    """Elements are computed one by one, at least in float32."""

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
