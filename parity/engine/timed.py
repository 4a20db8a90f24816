"""The progress of a run with a limit of time, counted while its parts come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parity.core.results import FINDINGS, Record
from parity.engine.rounds import CAUSES, PINNED, part_of
from parity.store.rows import ItemRow

HOPELESS = 12  # cases of an item after which it is left alone if none of them was compared
NEW_KIND = 10  # a new kind of finding weighs as much as so many new pairs of features


@dataclass(slots=True)
class Timed:
    """The parts of the run so far. seconds: the limit; items: all that are to be checked; done: round -> items that came to its
    end; yields: see `Rounds`; held: findings without a cause, which a later part may find."""

    seconds: float
    items: dict[str, None] = field(default_factory=dict)
    done: dict[int, set[str]] = field(default_factory=dict)
    yields: dict[str, float] = field(default_factory=dict)
    held: list[Record] = field(default_factory=list)
    _kinds: set[tuple[str, ...]] = field(default_factory=set)
    _recorded: set[tuple[str, ...]] = field(default_factory=set)
    _cases: Counter[str] = field(default_factory=Counter)
    _compared: set[str] = field(default_factory=set)

    def collected(self, nodes: Iterable[str]) -> None:
        """The tests of the run are known."""
        self.items |= dict.fromkeys(item for item, number in map(part_of, nodes) if number == PINNED)

    def ended(self, node: str) -> None:
        """A part came to its end, or was given up."""
        item, number = part_of(node)
        if number != CAUSES:
            self.done.setdefault(number, set()).add(item)

    def new(self, records: Iterable[Record], explained: Sequence[str] = ()) -> list[Record]:
        """The records to store: each kind of finding once, and other records once for each of their kinds as in a whole item.
        Findings without a cause are held back until the end. explained: least cases of known findings; what they do not stand
        for may be of the same kind, and is not known."""
        out = []
        for r in records:
            if r.shrunk and r.status in FINDINGS:
                kind = r.kind
                if r.known and r.shrunk in explained:
                    out += [] if (*kind, r.known) in self._recorded else [r]
                    self._recorded.add((*kind, r.known))
                elif r.cause is None:
                    self.held += [] if kind in self._kinds else [r]
                elif (*kind, r.cause.id) not in self._kinds:
                    self._kinds |= {kind, (*kind, r.cause.id)}
                    out.append(r)
            elif r.pinned or (what := (r.op, r.dtype, r.aspect, r.status, r.reason[:60])) not in self._recorded:
                self._recorded |= set() if r.pinned else {what}
                out.append(r)
        return out

    def without_cause(self) -> list[Record]:
        """The findings that no later part has reported with a cause."""
        out = {kind: r for r in reversed(self.held) if (kind := r.kind) not in self._kinds}
        return list(reversed(out.values()))

    def brought(self, row: ItemRow, pairs: int, kinds: int, compared: bool) -> None:
        """What a part brought: new pairs of features, and new kinds of findings."""
        item = f"{row.op}-{row.dtype}"
        self._cases[item] += row.cases
        self._compared |= {item} if compared else set()
        worth = (pairs + NEW_KIND * kinds) / max(row.seconds, 1e-3)
        hopeless = item not in self._compared and self._cases[item] >= HOPELESS
        self.yields[item] = -1.0 if hopeless else worth

    def given_up(self, item: str) -> None:
        """An item that ended too many processes."""
        self.yields[item] = -1.0

    @property
    def rounds(self) -> tuple[int, ...]:
        """How many items came to the end of round 0, 1 ..."""
        return tuple(len(self.done.get(k, ())) for k in range(max(self.done, default=-1) + 1))

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The items whose pinned cases were not checked."""
        done = self.done.get(PINNED, set())
        return tuple(i for i in self.items if i not in done)
