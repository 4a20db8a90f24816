"""The code that a run was given (faults and a setup file), identified by name and contents. Nothing here executes it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from parity.core import untrusted
from parity.core.errors import UsageError

LARGEST_CODE = 16 << 20  # largest size of a faults or setup file, in bytes


@dataclass(frozen=True, slots=True)
class Code:
    """Code that a run was given. The name in a run file is never used to load anything. name: the full path of a file, or a
    module; digest: 16 hex digits over the contents, empty if unknown."""

    name: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return self.name + (f" ({self.digest})" if self.digest else "") if self.name else "none"

    def same(self, other: Code) -> bool:
        """Whether both have the same contents, whatever their names; compares the names if a digest is unknown."""
        return self.digest == other.digest if self.digest and other.digest else self.name == other.name


def code_of(given: str | None) -> Code:
    """The Code of a file or module that a person named; nothing is executed. Raises OSError if a file cannot be read,
    UsageError if it is not a regular file."""
    if not given:
        return Code()
    path = Path(given)
    if path.is_file() or path.suffix == ".py":
        return Code(str(path.absolute()), _digest([path]))
    folders: Sequence[str] | None = None
    spec = None
    for part in given.split("."):  # importlib's own find_spec would import the packages above the module
        spec = PathFinder.find_spec(part, folders)
        folders = spec.submodule_search_locations if spec else ()
    if spec is None or not spec.origin:  # the error is reported where the module is used
        return Code(given)
    return Code(given, _digest(sorted(Path(spec.origin).parent.rglob("*.py")) if folders else [Path(spec.origin)]))


def _digest(files: Sequence[Path]) -> str:
    try:
        held = b"".join(untrusted.content(f, LARGEST_CODE) for f in files)
    except FileNotFoundError:
        return ""  # the error is reported where the file is used
    except ValueError as e:
        raise UsageError(f"cannot take {files[0]} as code: {e}; name a Python file") from None
    return hashlib.blake2b(held, digest_size=8).hexdigest()
