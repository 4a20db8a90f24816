"""The zoo: bugs that were reported in public, each as a fault of the simulated device, with a case that shows it.

BUGS: bugs that a single call shows. BEYOND: bugs past a size limit that the zoo scales down. OUT_OF_REACH: id -> why it cannot
be planted.
"""

from parity.zoo.bug import Bug
from parity.zoo.bugs import (
    attention,
    binary,
    convolution,
    copies,
    creation,
    embedding,
    fourier,
    indexing,
    large,
    linear_algebra,
    losses,
    movement,
    normalization,
    padding,
    products,
    promotion,
    recurrent,
    reductions,
    ternary,
    unary,
)

FAMILIES = (
    *(attention, binary, convolution, copies, creation, embedding, fourier, indexing, linear_algebra, losses, movement),
    *(normalization, padding, products, promotion, recurrent, reductions, ternary, unary),
)
BUGS: tuple[Bug, ...] = tuple(bug for family in FAMILIES for bug in family.BUGS)
BEYOND: tuple[Bug, ...] = large.BEYOND
OUT_OF_REACH: dict[str, str] = {
    id: reason for family in (*FAMILIES, large) for id, reason in getattr(family, "OUT_OF_REACH", {}).items()
}

__all__ = ["BEYOND", "BUGS", "FAMILIES", "OUT_OF_REACH", "Bug"]
