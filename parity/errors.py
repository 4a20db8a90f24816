"""What parity says when a person, not a device, got something wrong: the value, what is allowed, the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ParityError(Exception):
    """Base of every error that is the user's to mend. `exit_code` is what the command line ends with."""

    exit_code = 2


class UsageError(ParityError):
    """A name, option or value that parity does not know."""


class TableError(ParityError):
    """A tolerance table that cannot be trusted: names the file and the line."""


class CaseError(ParityError):
    """A case id that does not parse, or that means another case on this installation."""


class RunFileError(ParityError):
    """A run file that is missing, truncated, foreign or of another format."""


class OutputError(ParityError):
    """A file or folder that parity was told to write and cannot."""


class FaultError(ParityError):
    """A fault file that cannot be loaded, or a fault whose declaration is incomplete."""


class DeviceError(ParityError):
    """A device that is absent or that failed its probe."""

    exit_code = 4


class NothingCompared(ParityError):
    """A run that compared nothing; never a success."""

    exit_code = 3


def near(name: str, known: Iterable[str], count: int = 3) -> str:
    """A sentence with the nearest known names, or with all of them where they are few; empty if there is none."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.5)
    close += [n for n in names if n not in close and name and name in n][: count - len(close)]
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return "known: " + ", ".join(names) if len(names) <= 24 else ""
