"""Registers what files outside of the package add: rows, tables of tolerances, classes of ops, checks, formats, commands.

They add it where they run: a file of `--setup` in every process of a run; a file or module that `[tool.parity]` names as rows,
or an installed package as an entry point of the group `parity`, when the first list of what there is gets asked for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from parity.core import project
from parity.core.errors import UsageError, described, mending

GROUP = "parity"
OWN = "own-"  # begins each word that is not parity's, so that a reader of a run file knows it without the file that added it
NAME = re.compile(rf"{OWN}[a-z0-9]+(?:-[a-z0-9]+)*")
W = TypeVar("W", bound="Words")

added: list[str] = []  # what was added in this process, in words


def note(kind: str, name: str) -> None:
    """Note what was added."""
    added.append(f"{kind} {name}")


def load() -> None:
    """Import what installed packages name as entry points, and what the project names as rows, once per process. Raises
    UsageError."""
    _load_packages()
    _load_rows(project.found())


def sources() -> tuple[tuple[str, str], ...]:
    """What adds something besides files of `--setup`, as (kind, name and version or digest): it may change results."""
    dists = {f"{p.dist.name} {p.dist.version}" for p in importlib.metadata.entry_points(group=GROUP) if p.dist is not None}
    packages = (("packages that add to parity", ", ".join(sorted(dists))),) if dists else ()
    return (*packages, *project.found().facts())


@functools.cache
def _load_packages() -> None:
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        try:
            point.load()
        except Exception as e:  # it may do anything
            whose = point.dist.name if point.dist is not None else "an installed package"
            where = f"entry point '{point.name}' of {whose} ({point.value})"
            raise UsageError(f"{where} raises {described(e)}; {mending(e)}, or remove the package") from None


@functools.cache
def _load_rows(asked: project.Project) -> None:
    if asked.rows and asked.path is not None and str(asked.path.parent) not in sys.path:
        sys.path.append(str(asked.path.parent))  # at the end, so that it hides none of Python's own modules
    for place in asked.rows:
        try:
            if place.endswith(".py"):
                _import_file(Path(place))
            else:
                importlib.import_module(place)
        except (Exception, SystemExit) as e:
            raise UsageError(f"{asked.where('rows')}: {place} raises {described(e)}; {mending(e)}") from None


def _import_file(path: Path) -> None:
    """Import a file as a module by its name, so that a row can name a function in it: `call="rows.wave"`. Raises ImportError
    for a name that another module has."""
    name, other = path.stem, sys.modules.get(path.stem)
    if not name.isidentifier() or name in sys.stdlib_module_names or other is not None:
        raise ImportError(f"a module is called {name} already, or none can be; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


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
