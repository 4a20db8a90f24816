"""The laws of random ops, by the `law` of their catalog rows."""

from __future__ import annotations

from parity.catalog.row import Row
from parity.judging.laws.law import CallLike, Law, Observations, Problems, Results, Tallies
from parity.judging.laws.masks import MASKS
from parity.judging.laws.numbers import NUMBERS
from parity.judging.laws.picks import PICKS

__all__ = ["LAWS", "CallLike", "Law", "Observations", "Problems", "Results", "Tallies", "find", "outside"]

LAWS: dict[str, Law] = {**NUMBERS, **PICKS, **MASKS}


def find(row: Row) -> Law | None:
    """The law of the op, or None if its row promises only the form."""
    return LAWS[row.judged.law] if row.judged.law else None


def outside(call: CallLike, results: Results) -> Problems:
    """Results that are impossible whatever the chance; [] if the op has no law."""
    law = find(call.row)
    return [] if law is None else law.outside(call, results)
