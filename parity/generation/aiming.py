"""Gives a drawn case a feature that random choices hardly ever meet: `AIMS`. Which one, a plan decides.

A feature takes the place of what was drawn; no case is added. Whether a call can have it is read from the row and the operands
alone: nothing is tried. Where it can't, the next feature that it can have is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parity.catalog.draw import Pick
from parity.catalog.row import Row
from parity.core.case import Case, OpClass
from parity.core.dtypes import FACTS

Aim = Callable[[Row, Case, Pick], Case | None]
SEEDS = 1 << 12
# Rules of rows whose gradients come with conditions (factors that exist, a choice among equal answers, a law).
CONDITIONED = (OpClass.DECOMPOSITION, OpClass.SOLVER, OpClass.RANDOM)


def aimed(row: Row, case: Case, aim: Pick, pick: Pick) -> Case:
    """The case with the feature that `aim` picks, or with the next one that it can have; as it is where `aim` picks 0."""
    k = aim(len(AIMS) + 1)
    if not k or case.is_sample or case.refused:
        return case
    for feature in (*AIMS[k - 1 :], *AIMS[: k - 1]):
        met = feature(row, case, pick)
        if met is not None:
            return met
    return case


def _cotangent(values: str) -> Aim:
    """The incoming gradient holds such numbers."""

    def feature(row: Row, case: Case, pick: Pick) -> Case | None:
        if row.family == "recurrent":  # the gradient of a gate is 0 times Inf in one formula of a cell, and not in another
            return None
        able = case.under == "grad" and case.dtype in row.grad and FACTS[case.dtype].kind == "float"
        if not able or row.draws.finite or row.rule in CONDITIONED or any(s.values.specials for s in case.operands()):
            return None
        return replace(case, cotangent=replace(case.cotangent, values=values, seed=pick(SEEDS)))

    return feature


AIMS: tuple[Aim, ...] = (_cotangent("nonfinite"), _cotangent("huge"), _cotangent("tiny"))
