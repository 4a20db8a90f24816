"""What a scoreboard scores: the zoo's own bugs, or faults from a file or a module that nobody has classified."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from parity.devices import Fault, load_faults
from parity.errors import FaultError, UsageError, near
from parity.zoo.bug import Bug

ZOO = "parity.zoo"
UNCLASSIFIED = "unclassified"


@dataclass(frozen=True, slots=True)
class Subject:
    """A fault and what is known of it. kind, triggers: a Bug's, or "unclassified". rows: catalog rows that it concerns, or
    () where they follow from its ops. silent: whether the device says nothing; None where nobody has said so.
    """

    fault: Fault
    kind: str = UNCLASSIFIED
    triggers: tuple[str, ...] = (UNCLASSIFIED,)
    rows: tuple[str, ...] = ()
    silent: bool | None = None

    @property
    def id(self) -> str:
        """The fault's."""
        return self.fault.id

    @property
    def words(self) -> tuple[str, ...]:
        """By what a pattern may call it: id, kind, trigger classes, ops (whole and by their last word), rows."""
        ops = (w for op in self.fault.ops for w in (op, op.rpartition(".")[2]))
        return (self.id, self.kind, *self.triggers, *ops, *self.rows)


def subject(planted: Bug | Fault) -> Subject:
    """A bug or a bare fault as a subject."""
    if isinstance(planted, Fault):
        return Subject(planted)
    return Subject(planted.fault, planted.kind, planted.triggers or (UNCLASSIFIED,), planted.rows, planted.silent)


def load(source: str = "", beyond: bool = False) -> tuple[Subject, ...]:
    """The subjects of a source: a Python file with FAULTS, a module with BUGS or FAULTS, or "" for the zoo.

    beyond: also the zoo's bugs that take more than one op to see (its `BEYOND`).
    Raises FaultError: nothing there, it does not run, nothing declared, two with one id.
    """
    planted = _bugs(source or ZOO, beyond)
    if not planted:
        return tuple(map(subject, load_faults(source or ZOO)))
    made = tuple(map(subject, planted))
    for a, b in itertools.pairwise(sorted(s.id for s in made)):
        if a == b:
            raise FaultError(f"{source or ZOO}: two bugs are called '{a}'; give each an id of its own")
    return made


def _bugs(name: str, beyond: bool) -> tuple[Bug, ...]:
    """The bugs that a module classifies; none where it is a file, or no module, or has faults alone (`load_faults` says)."""
    if name.endswith(".py") or Path(name).is_file():
        return ()
    with suppress(Exception):
        module = importlib.import_module(name)
        found = (*getattr(module, "BUGS", ()), *(getattr(module, "BEYOND", ()) if beyond else ()))
        return found if all(isinstance(b, Bug) for b in found) else ()
    return ()


def select(subjects: Sequence[Subject], patterns: Sequence[str]) -> tuple[Subject, ...]:
    """Those that a pattern names by id, kind, trigger class, op or row; all where there is no pattern. Raises UsageError."""
    for p in patterns:
        if not any(fnmatchcase(w, p) for s in subjects for w in s.words):
            hint = near(p, (w for s in subjects for w in s.words))
            raise UsageError(f"no fault matches '{p}'; {hint or 'name an id, a kind, a trigger class or an op'}")
    return tuple(s for s in subjects if not patterns or any(fnmatchcase(w, p) for p in patterns for w in s.words))
