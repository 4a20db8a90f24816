"""The subjects of a scoreboard: bugs of the zoo, of a file or of a module, or faults, which have no classification."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from parity.core.errors import FaultError, UsageError, near
from parity.devices import Fault, load_faults
from parity.devices.setup import load_module
from parity.zoo.bug import Bug

ZOO = "parity.zoo"
UNCLASSIFIED = "unclassified"
BEYOND = "beyond"  # the pattern of bugs that one op alone does not show


@dataclass(frozen=True, slots=True)
class FaultSubject:
    """A fault and its classification. kind, triggers: those of its Bug, or "unclassified". rows: catalog rows that it concerns,
    or () to derive them from its ops. silent: whether the device raises no error; None if unknown. beyond: whether one op alone
    does not show it."""

    fault: Fault
    kind: str = UNCLASSIFIED
    triggers: tuple[str, ...] = (UNCLASSIFIED,)
    rows: tuple[str, ...] = ()
    silent: bool | None = None
    beyond: bool = False

    @property
    def id(self) -> str:
        """The id of the fault."""
        return self.fault.id

    @property
    def words(self) -> tuple[str, ...]:
        """The words that a pattern may match: id, kind, trigger classes, ops (whole and their last part), rows, "beyond"."""
        ops = (w for op in self.fault.ops for w in (op, op.rpartition(".")[2]))
        return (self.id, self.kind, *self.triggers, *ops, *self.rows, *((BEYOND,) if self.beyond else ()))


def subject(planted: Bug | Fault) -> FaultSubject:
    """A bug or a bare fault as a subject."""
    if isinstance(planted, Fault):
        return FaultSubject(planted, silent=planted.silent)
    return FaultSubject(planted.fault, planted.kind, planted.triggers or (UNCLASSIFIED,), planted.rows, planted.silent)


def load(source: str = "", beyond: bool = False) -> tuple[FaultSubject, ...]:
    """The subjects of a source: a Python file or a module with BUGS or FAULTS, or "" for the zoo. beyond: include the bugs of
    `BEYOND`, which need more than one op to show.

    Raises FaultError if nothing is there, it does not run, it declares nothing, or two faults have the same id.
    """
    planted = _bugs(source or ZOO, beyond)
    if not planted:
        return tuple(map(subject, load_faults(source or ZOO)))
    single = len(_bugs(source or ZOO, False))
    subjects = tuple(replace(subject(b), beyond=k >= single) for k, b in enumerate(planted))
    for a, b in itertools.pairwise(sorted(s.id for s in subjects)):
        if a == b:
            raise FaultError(f"{source or ZOO}: two bugs are called '{a}'; give each an id of its own")
    return subjects


def _bugs(place: str, beyond: bool) -> tuple[Bug, ...]:
    """The bugs that a file or module classifies; none for one with plain faults, for a file that lists FAULTS as well, and if
    there is an error, which `load_faults` reports."""
    with suppress(FaultError):
        module = load_module(place)
        if hasattr(module, "FAULTS") and Path(place).is_file():
            return ()
        bugs = (*getattr(module, "BUGS", ()), *(getattr(module, "BEYOND", ()) if beyond else ()))
        return bugs if all(isinstance(b, Bug) for b in bugs) else ()
    return ()


def select(subjects: Sequence[FaultSubject], patterns: Sequence[str]) -> tuple[FaultSubject, ...]:
    """The subjects that a pattern matches by id, kind, trigger class, op or row; all if there is no pattern. Raises
    UsageError."""
    for p in patterns:
        if not any(fnmatchcase(w, p) for s in subjects for w in s.words):
            hint = near(p, (w for s in subjects for w in s.words))
            raise UsageError(f"no fault matches '{p}'; {hint or 'name an id, a kind, a trigger class or an op'}")
    return tuple(s for s in subjects if not patterns or any(fnmatchcase(w, p) for p in patterns for w in s.words))
