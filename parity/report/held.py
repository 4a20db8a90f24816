"""Findings of an item whose cause is not reported yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parity.core.results import Record


@dataclass(frozen=True, slots=True)
class Held:
    """records: the findings as they were drawn; texts: the same for a reader."""

    records: Sequence[Record]
    texts: Sequence[str]
