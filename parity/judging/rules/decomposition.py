"""Decomposition: svd, eigh, qr. Results are judged by invariants (`parity.judging.relations.decomposition`)."""

from __future__ import annotations

from parity.judging.rules.solver import Solver


class Decomposition(Solver):
    """Factors are right up to signs, phases and pivots; everything else is as for solvers."""
