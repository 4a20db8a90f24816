"""Solver: solve, inv, lstsq. Results are judged by their residuals (`parity.judging.relations.solver`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from parity.catalog.row import Row
from parity.core.dtypes import FACTS
from parity.judging.rule import Rule
from parity.tolerance import Tables


class Solver(Rule):
    """The condition of the matrix decides how well results are known.

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
