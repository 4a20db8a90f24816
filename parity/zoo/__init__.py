"""The zoo: bugs that were reported in public, planted one by one in the simulated device, and the score of who finds them.

BUGS: those that one call shows. BEYOND: those past a border of size that stands scaled down. OUT_OF_REACH: id -> why not.
"""

from parity.zoo import (
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
    selection,
    ternary,
    unary,
)
from parity.zoo.bug import Bug

FAMILIES = (
    *(attention, binary, convolution, copies, creation, embedding, fourier, indexing, linear_algebra, losses, movement),
    *(normalization, padding, products, promotion, recurrent, reductions, selection, ternary, unary),
)
BUGS: tuple[Bug, ...] = tuple(bug for family in FAMILIES for bug in family.BUGS)
BEYOND: tuple[Bug, ...] = large.BEYOND
OUT_OF_REACH: dict[str, str] = {
    id: reason for family in (*FAMILIES, large) for id, reason in getattr(family, "OUT_OF_REACH", {}).items()
}

__all__ = ["BEYOND", "BUGS", "FAMILIES", "OUT_OF_REACH", "Bug"]
