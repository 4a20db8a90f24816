"""Errors of the user, not of a device. Each message gives the value, what is allowed and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ParityError(Exception):
    """Base of all errors that the user can fix. `exit_code` is the exit status of the command line."""

    exit_code = 2


class UsageError(ParityError):
    """A name, option or value that parity does not know."""


class TableError(ParityError):
    """A tolerance table that cannot be trusted: names the file and the line."""


class CaseError(ParityError):
    """A case id that does not parse, or that describes another case on this installation."""


class RunFileError(ParityError):
    """A run file that is missing, truncated, foreign or of another format."""


class CaptureError(ParityError):
    """A capture that is missing, truncated, edited, foreign or of another format."""


class ArchiveError(ParityError):
    """An archive of `parity doctor --archive` that is missing, damaged, too large or foreign."""


class KnownError(ParityError):
    """A file of known findings that cannot be trusted: names the file, the entry and the remedy."""


class WheelError(ParityError):
    """A wheel of torch that is missing, broken, or not torch's."""


class OutputError(ParityError):
    """A file or folder that parity cannot write."""


class FaultError(ParityError):
    """A fault file that cannot be loaded, or a fault whose declaration is incomplete."""


class DeviceError(ParityError):
    """A device that is absent or that failed its probe."""

    exit_code = 4


class NothingCompared(ParityError):
    """A run that compared nothing; never a success."""

    exit_code = 3


def near(name: str, known: Iterable[str], count: int = 3) -> str:
    """A hint: "did you mean ...?" with the most similar names, else all known names if there are at most 24, else ""."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.5)
    close += [n for n in names if n not in close and name and name in n][: count - len(close)]
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return "known: " + ", ".join(names) if len(names) <= 24 else ""
