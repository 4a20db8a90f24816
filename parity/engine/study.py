"""Studies: runs that do something else than look for findings, or record more. `parity prove` names a study; every other run
has the plain one, and loads none."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from parity.catalog.draw import Sizes
from parity.checks.check import Result, Settings, unwatched
from parity.core.case import Case
from parity.core.errors import UsageError, near
from parity.devices.base import Device
from parity.engine.reading import STUDIES
from parity.engine.suite import Item
from parity.generation.generate import Drawn
from parity.store.rows import ItemRow


class Study:
    """The plain study: every method leaves the run as it is. looks_everywhere: whether the run also looks where only findings
    count: in memory filled with NaN, for leaks, and for the causes of what it found when all items are done."""

    looks_everywhere = True

    def begin(self) -> None:
        """An item begins."""

    def cases(self, item: Item, sizes: Sizes, seed: str) -> Iterator[tuple[int, bool, Drawn]] | None:
        """(ordinal, pinned, case) of other cases than those of the profile; None for the profile's."""
        return None

    def settings(self, how: Settings) -> Settings:
        """How a case is checked. how: as an ordinary run checks it."""
        return how

    def watching(self, case: Case, device: Device, results: list[Result]) -> AbstractContextManager[None]:
        """Entered around each case, whose results grow inside."""
        return unwatched(case, device, results)

    def is_over(self, item: Item, counts: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether the item needs no further case. counts: aspect -> status -> records so far."""
        return False

    def noted(self, row: ItemRow) -> ItemRow:
        """The row of an item that is through, with what was noted of it."""
        return row


def study_of(name: str | None) -> Study:
    """The study of this name, which is loaded now; the plain one for none. Raises UsageError for an unknown name."""
    if not name:
        return Study()
    if name not in STUDIES:  # a run file may name anything
        raise UsageError(f"no study '{name[:40]}'; {near(name, STUDIES)}")
    study: Study = importlib.import_module(STUDIES[name]).STUDY()
    return study
