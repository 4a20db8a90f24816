"""Composite: ops built of several roundings, and every gradient that is not a sum."""

from __future__ import annotations

from typing import ClassVar

from parity.catalog.row import Row
from parity.judging.rule import Rule


class Composite(Rule):
    """The budget is how far the truth moves if operands and numbers passed between kernels move by one roundoff."""

    free_at_infinity: ClassVar[bool] = True

    def bias_test_applies(self, row: Row) -> bool:
        """Not to activations, functions of single elements: a constant that a device keeps in the half type moves them all."""
        return not row.judged.rounds_between and row.family != "activations"
