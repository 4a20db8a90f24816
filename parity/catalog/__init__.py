"""The catalog: one row per op, one file per family. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import re
import sys

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
    indexing,
    kernels,
    linalg,
    losses,
    masked,
    matrices,
    movement,
    normalization,
    optimizers,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    selection,
    shapes,
    sharing,
    sparse,
    ternary,
    unary,
    vision,
    writing,
)
from parity.core import extensions
from parity.core.case import source_of
from parity.core.errors import UsageError, near

MODULES = (
    unary, activations, binary, ternary, reductions, masked, selection, contractions, products,
    linalg, matrices, convolutions, followed, pooling, normalization, attention, recurrent, losses, optimizers, gradients,
    kernels, forms, vision, fft, movement, indexing, writing, sharing, shapes, creation, sparse, random,
)  # fmt: skip
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")  # of a row: of an op in a case
ROWS: dict[str, Row] = {r.name: r for module in MODULES for r in module.ROWS}
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(r.family for r in ROWS.values()))
ADDED: dict[str, tuple[str, str, int]] = {}  # names of rows that others added -> the module, file and line that did


def add(*rows: Row) -> None:
    """Add rows of a file outside of the package. Raises UsageError for a name that is taken, or that no case could hold."""
    for r in rows:
        if r.name in ROWS or not NAME.fullmatch(r.name) or source_of(r.name) != "native":
            why = "is taken" if r.name in ROWS else "is not a valid op name"
            raise UsageError(f"a row cannot be called '{r.name}': it {why}; call it like 'mine.{r.name.strip() or 'op'}'")
        ROWS[r.name] = r
        frame = sys._getframe(1)
        caller = frame.f_globals
        ADDED[r.name] = str(caller.get("__name__", "")), str(caller.get("__file__", "")), frame.f_lineno
        extensions.note("row", r.name)


def place(name: str) -> str:
    """A row of others with the file and line that added it, for messages."""
    _, file, line = ADDED[name]
    return f"the row '{name}' ({file}:{line})"


def registers(op: str) -> tuple[str, str]:
    """(module, file) of what registers an operator that torch does not have, by its row; ("", "") for all others. The module is
    "" where it is a single file, which no import finds from another folder."""
    if op not in ROWS and source_of(op) == "native":
        with contextlib.suppress(UsageError):  # a report goes on without them
            extensions.load()
    call = ROWS[op].call if op in ADDED else ""
    if not call.startswith("torch.ops.") or call.startswith("torch.ops.aten."):
        return "", ""
    module, file, _ = ADDED[op]
    return (module if "." in module else ""), file


def row(name: str) -> Row:
    """The row of this name. Raises UsageError where there is none."""
    if name not in ROWS:
        extensions.load()
    if name not in ROWS:
        raise UsageError(f"unknown op '{name}'; {near(name, ROWS) or 'list them with: parity run --list'}")
    return ROWS[name]
