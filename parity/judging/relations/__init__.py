"""The relations that must hold where several answers are right: ties, signs, phases, pivots, ill-conditioned systems.

A relation sees only the inputs and the device's results, and returns their problems. Results named by `covers` are not compared
by value; all others are.
"""

from __future__ import annotations

from parity.judging import laws
from parity.judging.relations import decomposition, selection, solver
from parity.judging.relations.bound import Bound, Problem, Problems, Relation, Results, Unjudged, everything

__all__ = ["GAUGE_DEPENDENT", "RELATIONS", "Bound", "Problem", "Problems", "Relation", "Results", "Unjudged"]


def _nothing(call: Bound, r: Results) -> Problems:
    return []


def _outside(call: Bound, r: Results) -> Problems:
    """Problems of a random result that is impossible whatever the chance."""
    return [Problem(name, what) for name, what in laws.outside(call, r)]


RELATIONS: dict[str, Relation] = {
    **selection.RELATIONS,
    **decomposition.RELATIONS,
    **solver.RELATIONS,
    "random": Relation(everything, _outside),
    "uninitialised": Relation(everything, _nothing),
}
# Relations whose gradients depend on an arbitrary choice (signs, phases, pivots), so they are not compared.
GAUGE_DEPENDENT = frozenset((
    "svd", "eigh", "eig", "qr", "lu", "lowrank", "pca_lowrank", "lstsq", "pinv_any_rank", "pinv_of_product", "random",
    "uninitialised",
))  # fmt: skip
