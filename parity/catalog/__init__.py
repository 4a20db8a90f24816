"""The catalog: one row per op, one file per family. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from parity.catalog import (
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
    special,
    ternary,
    unary,
    vision,
    writing,
)
from parity.catalog.row import Row
from parity.dtypes import FACTS
from parity.errors import UsageError, near

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
    random,
)
# Their gradients are scattered and added up by atomics, in half types in the half type itself (seen on CUDA).
_SCATTERED = """adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d cummax cummin cumsum_wider embedding embedding_bag gather
    getitem_advanced grid_sample_2d grid_sample_3d index_select interpolate_area interpolate_bicubic interpolate_bilinear
    interpolate_linear interpolate_trilinear logcumsumexp max_pool1d max_pool2d max_pool3d pad_reflect pad_replicate take
    repeat_interleave take_along_dim"""
SCATTERED_GRADIENTS = frozenset(_SCATTERED.split())


def _complete(r: Row) -> Row:
    scattered = r.name in SCATTERED_GRADIENTS and "backward" not in r.accumulates
    return replace(r, accumulates=(*r.accumulates, "backward")) if scattered else r


ROWS: dict[str, Row] = {r.name: _complete(r) for module in MODULES for r in module.ROWS}
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(r.family for r in ROWS.values()))


def row(name: str) -> Row:
    """The row of this name. Raises UsageError where there is none."""
    if name not in ROWS:
        raise UsageError(f"unknown op '{name}'; {near(name, ROWS) or 'list them with: parity run --list'}")
    return ROWS[name]


def find(patterns: Sequence[str] = (), families: Sequence[str] = (), dtypes: Sequence[str] = ()) -> tuple[Row, ...]:
    """Rows whose name matches a pattern (`*`, `?`, `[..]`), of these families, with one of these dtypes, in catalog order.

    An empty sequence does not restrict. Raises UsageError for a pattern that matches no row and for unknown names.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in ROWS):
            raise UsageError(f"no op matches '{pattern}'; {near(pattern, ROWS) or 'list them with: parity run --list'}")
    for family in families:
        if family not in FAMILIES:
            raise UsageError(f"unknown family '{family}'; {near(family, FAMILIES)}")
    for dtype in dtypes:
        if dtype not in FACTS:
            raise UsageError(f"unknown dtype '{dtype}'; {near(dtype, FACTS)}")
    return tuple(
        r
        for r in ROWS.values()
        if (not patterns or any(fnmatchcase(r.name, p) for p in patterns))
        and (not families or r.family in families)
        and (not dtypes or any(d in r.dtypes for d in dtypes))
    )
