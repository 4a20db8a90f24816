"""Registers what files outside of the package add: rows, tables of tolerances, classes of ops, checks, formats, commands.

They add it where they run: a file of `--setup` in every process of a run, a module that an installed package names as an entry
point of the group `parity` when the first list of what there is gets asked for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from enum import StrEnum
from typing import Any, TypeVar

from parity.core.errors import UsageError

GROUP = "parity"
OWN = "own-"  # begins each word that is not parity's, so that a reader of a run file knows it without the file that added it
NAME = re.compile(rf"{OWN}[a-z0-9]+(?:-[a-z0-9]+)*")
W = TypeVar("W", bound="Words")

added: list[str] = []  # what was added in this process, in words


def note(kind: str, name: str) -> None:
    """Note what was added."""
    added.append(f"{kind} {name}")


@functools.cache
def load() -> None:
    """Import the modules that installed packages name as entry points, once per process. Raises UsageError."""
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        try:
            point.load()
        except Exception as e:  # it may do anything
            whose = point.dist.name if point.dist is not None else "an installed package"
            where = f"entry point '{point.name}' of {whose} ({point.value})"
            raise UsageError(f"{where} raises {type(e).__name__}: {e}; mend it, or remove the package") from None


class Words(StrEnum):
    """Words to which files outside of the package may add some that begin with `own-`. Those are members by their value alone:
    iterating the class gives parity's own."""

    @classmethod
    def _missing_(cls: type[W], value: object) -> W | None:
        return _made(cls, value) if isinstance(value, str) and NAME.fullmatch(value) else None

    @classmethod
    def holds(cls, word: str) -> bool:
        """Whether this is one of the words."""
        return word in cls._value2member_map_ or NAME.fullmatch(word) is not None


@functools.cache
def _made(cls: type[W], word: str) -> W:
    member: Any = str.__new__(cls, word)
    member._name_ = member._value_ = word
    made: W = member
    return made
