"""What must hold where several answers are right: ties, signs, phases, pivots, ill-conditioned systems.

A relation looks at the inputs and the device's results only, and says what is wrong with them. The results that it names in
`covers` are not compared by value; all others still are.
"""

from __future__ import annotations

from parity.judging import laws
from parity.judging.relations import decomposition, selection, solver
from parity.judging.relations.bound import Bound, Problem, Problems, Relation, Results, Unjudged, everything

__all__ = ["GAUGE_DEPENDENT", "RELATIONS", "Bound", "Problem", "Problems", "Relation", "Results", "Unjudged"]


def _nothing(call: Bound, r: Results) -> Problems:
    return []


def _outside(call: Bound, r: Results) -> Problems:
    """What no chance explains."""
    return [Problem(name, what) for name, what in laws.outside(call, r)]


RELATIONS: dict[str, Relation] = {
    **selection.RELATIONS,
    **decomposition.RELATIONS,
    **solver.RELATIONS,
    "random": Relation(everything, _outside),
    "uninitialised": Relation(everything, _nothing),
}
# Relations whose gradients depend on the arbitrary choice (signs, phases, pivots), so that backward says nothing.
GAUGE_DEPENDENT = frozenset({"svd", "eigh", "eig", "qr", "lu", "lowrank", "lstsq", "pinv_any_rank", "random", "uninitialised"})
