"""Chooses what runs on the device right before a case: one of `HISTORIES`, as far as the call has what it changes."""

from __future__ import annotations

from collections.abc import Iterator

from parity.catalog.draw import Arguments, Pick
from parity.catalog.row import RAW, Quirk, Row
from parity.core.case import HISTORIES, Arg, TensorSpec, Word
from parity.core.dtypes import FACTS

# 42 entries, the first seven histories last: a longer table would change every case drawn from the same picks.
AFTER = (*("",) * (42 - len(HISTORIES)), *HISTORIES[7:], *HISTORIES[:7])
FRACTIONS = 3  # of the empty entries, from the second on: another scalar, for a call that has a fraction (caches print them)


def history(row: Row, call: Arguments, specs: list[TensorSpec], pick: Pick) -> str:
    """What runs before the call, or "". A history that would change nothing gives way to the next one that does."""
    drawn = pick(len(AFTER))
    if not specs or not AFTER[drawn]:
        fractional = 0 < drawn <= FRACTIONS and specs and not row.refuses.unchecked and not row.is_sampled
        return "other_scalar" if fractional and _has_fraction(call) else ""
    following = (AFTER[drawn], *AFTER[drawn + 1 :], *HISTORIES)
    return next(word for word in following if changes(word, row, call, specs))


def changes(word: str, row: Row, call: Arguments, specs: list[TensorSpec]) -> bool:
    """Whether the row and the call have what the history changes; `garbage` and `other_values` always do."""
    if word == "other_scalar":
        return not row.refuses.unchecked and any(True for _ in _scalars(call))
    if word == "other_layout":
        return Quirk.MEMORY not in row.quirks
    if word == "other_dtype":
        alike = {d for d in row.dtypes for s in specs[:1] if FACTS[d].kind == FACTS[s.dtype].kind}
        return not row.refuses.unchecked and Quirk.MEMORY not in row.quirks and len(alike) > 1
    if word == "other_presence":
        return not (row.refuses.unchecked or row.is_sampled or row.family in RAW) and len(specs) > 1
    if word == "destination":
        return not (row.refuses.unchecked or row.forms.mutates) and bool(row.forms.inplace or row.forms.out)
    if word == "sibling":
        return not (row.refuses.unchecked or row.is_sampled)
    return True


def _has_fraction(call: Arguments) -> bool:
    return any(isinstance(a, float) for a in _scalars(call))


def _scalars(call: Arguments) -> Iterator[Arg]:
    """The numbers, flags and words of a call."""
    yield from _leaves((call.args, tuple(v for _, v in call.kwargs)))


def _leaves(tree: Arg) -> Iterator[Arg]:
    if isinstance(tree, tuple):
        for a in tree:
            yield from _leaves(a)
    elif isinstance(tree, bool | int | float | complex | str) and not isinstance(tree, Word):
        yield tree
