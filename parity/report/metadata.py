"""Fresh results that lie otherwise in memory than the CPU's, in words."""

from __future__ import annotations

from collections.abc import Sequence

from parity.core.results import MetadataNote
from parity.engine.options import STRICT
from parity.report.words import listed, plural
from parity.store.rows import ItemRow

NAMES = 200  # most characters of the names of ops, with how their results lie


def line(items: Sequence[ItemRow], room: int = NAMES) -> str:
    """How many ops give other strides than the CPU, and which, with the most frequent way; "" if none does. room: most
    characters of the names."""
    by: dict[str, list[MetadataNote]] = {}
    for i in items:
        by.setdefault(i.op, []).extend(i.metadata)
    said = [f"{op} ({max(notes, key=lambda n: n.count).words})" for op, notes in by.items() if notes]
    verb = "gives" if len(said) == 1 else "give"
    return f"{plural(len(said), 'op')} {verb} other strides than the CPU: {listed(said, room)}" if said else ""


def title(items: Sequence[ItemRow]) -> str:
    """The title of this part of a summary."""
    return f"metadata: {line(items)} (no failure; {STRICT} makes findings of them)"


def lines(items: Sequence[ItemRow]) -> list[str]:
    """Every note of the items, with the first case that showed it."""
    return [f"  {i.op} {i.dtype}: {sentence(n)}" for i in items for n in i.metadata]


def sentence(n: MetadataNote) -> str:
    """One note."""
    often = f", in {plural(n.count, 'check')}" if n.case else ""
    case = f": {n.case}" if n.case else ""
    return f"{n.tensor} {n.words}{often}: strides {n.device}, the CPU's {n.reference}{case}"
