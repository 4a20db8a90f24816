"""Tracks how the memory of the workers grew over a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parity.core import machine
from parity.report.words import plural
from parity.store.rows import ItemRow

NOTABLE = 100 << 20  # bytes by which an item must grow its worker to be named


class Growth:
    """Collects what the workers occupy after each item. Mutable."""

    def __init__(self) -> None:
        self.most = self.replaced = 0
        self.grown: dict[str, int] = {}  # item -> bytes by which it grew its worker

    def add(self, figures: Mapping[str, Any], rows: Iterable[object]) -> None:
        """Take in what a worker said with an item. figures: bytes before and after, and whether it is full; {} for nothing."""
        if not figures:
            return
        self.most = max(self.most, int(figures["after"]))
        self.replaced += bool(figures["full"])
        name = next((f"{r.op} {r.dtype}" for r in rows if isinstance(r, ItemRow)), "")
        self.grown[name] = max(self.grown.get(name, 0), int(figures["after"]) - int(figures["before"]))

    def in_words(self) -> str:
        """The most that a worker occupied, the item that grew one most, and how many were replaced; empty if nobody said."""
        if not self.most:
            return ""
        name = max(self.grown, key=self.grown.__getitem__)
        parts = [f"a worker occupied {machine.size(self.most)} at most"]
        if name and self.grown[name] >= NOTABLE:
            parts.append(f"{name} added {machine.size(self.grown[name])}")
        if self.replaced:
            parts.append(f"{plural(self.replaced, 'worker')} passed the share and gave way to another")
        return ", ".join(parts)
