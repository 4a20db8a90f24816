"""Errors of the user, not of a device. Each message gives the value, what is allowed and the next step."""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from parity.core.untrusted import shown

LONGEST = 500  # most characters of a message
QUOTED = 60  # characters of a value up to which it is never cut
NEXT_STEP = 240  # most characters of what stands behind the last semicolon of a message that is cut elsewhere
# What packages say of their own that are missing or too old, and modules whose package is called otherwise.
REQUIRED = re.compile(r"(?:.*'(?P<quoted>[^']+)' distribution was not found|(?P<said>[\w.-]+(?:[<>=!~][^ ]+)?) is required )")
PIP_NAMES = {"PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "skimage": "scikit-image", "yaml": "PyYAML"}
NOT_THEIRS = ("<frozen importlib", importlib.__path__[0], str(Path(__file__).parents[1]))  # files of frames
VALUE = re.compile(rf"'[^']{{{QUOTED},}}'|\"[^\"]{{{QUOTED},}}\"|\S{{{QUOTED},}}")


def brief(text: str) -> str:
    """A message of at most `LONGEST` characters. Its longest values are cut in their middle, so that the limit and the next
    step, which stand at its end, stay. Counted as a terminal shows it."""
    text = shown(text)
    while (over := len(text) - LONGEST) > 0 and (values := [*VALUE.finditer(text)]):
        value = max(values, key=lambda m: len(m[0]))
        left = max(QUOTED, len(value[0]) - over) - len(" ... ")
        text = f"{text[: value.start() + left - left // 2]} ... {text[value.end() - left // 2 :]}"
    if len(text) <= LONGEST:
        return text
    last = text[max(text.rfind("; "), len(text) - NEXT_STEP) :]
    return f"{text[: LONGEST - len(last) - len(' ... ')]} ... {last}"


def absent(e: BaseException | None) -> str:
    """What `pip install` takes to end an error of an import: a package that is not there, or in another version, which the
    error or what led to it names; "" if it is neither."""
    if not isinstance(e, ImportError):
        return ""
    if said := REQUIRED.match(str(e)):
        what = said["quoted"] or said["said"]
        return what if re.fullmatch(r"[\w.-]+", what) else f"'{what}'"
    top = e.name.partition(".")[0] if isinstance(e, ModuleNotFoundError) and e.name else ""
    if top.isidentifier() and top not in sys.modules and importlib.util.find_spec(top) is None:  # else a part of one is missing
        return PIP_NAMES.get(top, top)
    return absent(e.__cause__ or e.__context__)


def described(e: BaseException, path: str = "") -> str:
    """An exception of somebody's code, with the last line in their file, or where it does not parse. path: that file; by
    default the first that is neither parity's nor the machinery of imports."""
    if isinstance(e, SyntaxError) and e.filename:
        return f"{type(e).__name__}: {e.msg} ({e.filename}:{e.lineno})"
    frames = traceback.extract_tb(e.__traceback__)
    files = [f.filename for f in frames if f.filename == path or not f.filename.startswith(NOT_THEIRS)]
    theirs = path if path in files else next(iter(files), "")
    line = next((f" ({theirs}:{f.lineno})" for f in reversed(frames) if f.filename == theirs), "")
    return f"{type(e).__name__}: {e}{line}" if str(e) else f"{type(e).__name__}{line}"


def mending(e: BaseException) -> str:
    """The next step after an error of somebody's file or module."""
    package = absent(e)
    return f"pip install {package}, or mend it" if package else "mend it"


class ParityError(Exception):
    """Base of all errors that the user can fix. `exit_code` is the exit status of the command line."""

    exit_code = 2

    def __init__(self, text: str = "") -> None:
        super().__init__(brief(text))


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
