"""The catalog: one row per op, one file per family. Nothing here imports torch."""

from __future__ import annotations

from parity.catalog.row import Row
from parity.catalog.rows import (
    activations,
    attention,
    binary,
    contractions,
    convolutions,
    creation,
    fft,
    followed,
    forms,
    gradients,
    histograms,
    indexing,
    kernels,
    linalg,
    losses,
    matrices,
    movement,
    normalization,
    optimizers,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    scans,
    selection,
    shapes,
    sharing,
    sparse,
    special,
    ternary,
    unary,
    vision,
    writing,
)
from parity.core.errors import UsageError, near

MODULES = (
    unary,
    activations,
    special,
    binary,
    ternary,
    reductions,
    histograms,
    scans,
    selection,
    contractions,
    products,
    linalg,
    matrices,
    convolutions,
    followed,
    pooling,
    normalization,
    attention,
    recurrent,
    losses,
    optimizers,
    gradients,
    kernels,
    forms,
    vision,
    fft,
    movement,
    indexing,
    writing,
    sharing,
    shapes,
    creation,
    sparse,
    random,
)
ROWS: dict[str, Row] = {r.name: r for module in MODULES for r in module.ROWS}
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(r.family for r in ROWS.values()))


def row(name: str) -> Row:
    """The row of this name. Raises UsageError where there is none."""
    if name not in ROWS:
        raise UsageError(f"unknown op '{name}'; {near(name, ROWS) or 'list them with: parity run --list'}")
    return ROWS[name]
