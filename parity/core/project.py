"""The settings of a project, `[tool.parity]` in its pyproject.toml, and where parity's own tables and suite lie.

The nearest pyproject.toml upward from a folder counts that has this section: for a command the current folder, for pytest its
root folder. Its paths are relative to it. Commands and pytest fill in what no option gives; rows and tables are loaded by every
process that asks what there is (`parity.core.extensions`, `parity.tolerance`), which finds the file by the variable `FILE`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parity.core import untrusted
from parity.core.errors import ParityError, UsageError, near

FILE = "PARITY_PROJECT"  # in the environment of every process of a command: the file that counts; empty where there is none
NAME, SECTION = "pyproject.toml", "[tool.parity]"
LARGEST = 4 << 20  # bytes of a pyproject.toml, or of what it names
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
SCRIPT = re.compile(r"(?P<file>.+\.py)(?P<rest>:.*)?")


@dataclass(frozen=True, slots=True)
class Key:
    """A setting. example: a value, as TOML; words: those allowed, if they are few; path: whether it is always the path of a
    file, and not only where it ends in .py; made: whether parity writes that file, so that it need not be there."""

    example: str
    words: tuple[str, ...] = ()
    path: bool = False
    made: bool = False

    @property
    def many(self) -> bool:
        """Whether it takes a list of texts."""
        return self.example.startswith("[")


KEYS = {
    "device": Key('"mps"'),
    "profile": Key('"full"', ("mac", "quick", "full", "deep")),
    "effort": Key('"full"', ("default", "full")),
    "known": Key('"parity-known.toml"', path=True, made=True),
    "setup": Key('"flags.py"', path=True),
    "faults": Key('"faults.py"'),
    "fail-on": Key('["unsupported"]'),
    "models": Key('["models.py"]'),
    "rows": Key('["rows.py", "mine.rows"]'),
    "tolerances": Key('["mine.toml"]', path=True),
}


@dataclass(frozen=True, slots=True)
class Project:
    """Settings, empty where nothing is set. path: the pyproject.toml, None where there is none. Paths of files are absolute."""

    path: Path | None = None
    device: str = ""
    profile: str = ""
    effort: str = ""
    known: str = ""
    setup: str = ""
    faults: str = ""
    fail_on: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    tolerances: tuple[str, ...] = ()

    def where(self, key: str) -> str:
        """A key with the file in which it is set, for messages."""
        return f"{key} of {SECTION} in {self.path}"

    def checked_known(self) -> str:
        """The file of known findings. Raises UsageError where it is not there, which would make a gate of less."""
        if self.known and not Path(self.known).exists():
            made = f"parity known add RUN --reason TEXT --file {self.known} writes it"
            raise UsageError(f"{self.where('known')}: there is no file {self.known}; {made}, or take the line out")
        return self.known

    def facts(self) -> Iterator[tuple[str, str]]:
        """The rows and tables with digests of what they hold: two runs with others do not answer one question."""
        for name, values in (("rows", self.rows), ("tolerances", self.tolerances)):
            if values:
                yield f"{SECTION} {name}", ", ".join(map(_digested, values))


def found() -> Project:
    """The settings that count in this process. Raises UsageError for what cannot be meant so: file, key, value and what is
    allowed."""
    named = os.environ.get(FILE)
    path = search() if named is None else named
    return _read(Path(path)) if path else Project()


def search(start: Path | None = None) -> str:
    """The path of the file that counts in a folder, by default the current one; "" where there is none."""
    try:
        here = Path.cwd() if start is None else start.absolute()
    except FileNotFoundError:  # it is gone
        return ""
    return next((str(p / NAME) for p in (here, *here.parents) if _section(p / NAME) is not None), "")


def origin(key: str, value: str) -> str:
    """Where a value comes from, for the end of a message about it; "" if the settings do not have it."""
    project = found()
    held = getattr(project, key.replace("-", "_"))
    mine = (str(Path(value).absolute()), value)  # a path in the current folder was made short
    return f" ({project.where(key)})" if value and set(mine) & {*(held if isinstance(held, tuple) else (held,))} else ""


@contextmanager
def naming(key: str, value: str) -> Iterator[None]:
    """Let an error of parity's about a value say where it comes from, if the settings have it."""
    try:
        yield
    except ParityError as e:
        raise type(e)(f"{e}{origin(key, value)}") from e.__cause__


@functools.cache
def _read(path: Path) -> Project:
    section = _section(path)
    if section is None:
        remedy = "name them by an installed package: entry points of the group parity"
        raise UsageError(f"{path}, which names rows or tables of this run, is not on this machine; {remedy}")
    if unknown := next((k for k in section if k not in KEYS), None):
        raise UsageError(f"{path}: {SECTION} has no key '{unknown}'; {near(unknown, KEYS)}")
    return Project(path, **{key.replace("-", "_"): _value(path, key, value) for key, value in section.items()})


def _section(path: Path) -> dict[str, Any] | None:
    """The section of a file; None without it. A file that does not speak of parity may be broken."""
    if not path.is_file():
        return None
    try:
        text = untrusted.content(path, LARGEST).decode("utf-8")
        if "parity" not in text:
            return None
        section = tomllib.loads(text).get("tool", {}).get("parity")
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path} is no TOML: {e}; mend the line") from None
    except (OSError, ValueError, RecursionError, AttributeError) as e:
        raise UsageError(f"{path} cannot be read: {e}; it must be a UTF-8 text file in TOML") from None
    if section is not None and not isinstance(section, dict):
        raise UsageError(f"{path}: {_shown('tool.parity', section)}: write a section {SECTION}")
    return section


def _value(path: Path, key: str, value: Any) -> Any:
    """A value with its paths made absolute. Raises UsageError for one that the key does not take."""
    how, given = KEYS[key], value if isinstance(value, list) else [value]
    where = f"{path}: {SECTION} {_shown(key, value)}"
    if isinstance(value, list) is not how.many or not all(isinstance(x, str) and x.strip() for x in given):
        raise UsageError(f"{where}: it takes {'a list of texts' if how.many else 'a text'}, such as {key} = {how.example}")
    if how.words and value not in how.words:
        raise UsageError(f"{where}: allowed are {', '.join(how.words)}")
    texts = tuple(_placed(where, path.parent, how, text) for text in given)
    if key == "rows" and (odd := next((x for x in texts if not x.endswith(".py") and not MODULE.fullmatch(x)), None)):
        raise UsageError(f"{where}: '{odd}' is neither a Python file nor a module, such as {key} = {how.example}")
    if key == "models" and (odd := next((x for x in texts if ":" not in x and not x.endswith(".py")), None)):
        raise UsageError(f"{where}: '{odd}' names no model; FILE.py, FILE.py:FUNCTION, timm:NAME or package.module:NAME do")
    return texts if how.many else texts[0]


def _placed(where: str, folder: Path, how: Key, text: str) -> str:
    script = SCRIPT.fullmatch(text) if not how.path else None
    if script is None and not how.path:
        return text
    file, rest = (script["file"], script["rest"] or "") if script is not None else (text, "")
    there = folder / Path(file).expanduser()
    if not how.made and not there.is_file():
        raise UsageError(f"{where}: there is no file {there}; paths are relative to {folder}")
    return f"{there}{rest}"


def _shown(key: str, value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return f"{key} = {untrusted.printable(text if len(text) <= 80 else text[:80] + '...')}"


def _digested(place: str) -> str:
    """The name of a file and a digest of what it holds, or the name of a module."""
    path = Path(place)
    if not path.is_absolute():
        return place
    try:
        return f"{path.name} {hashlib.blake2b(untrusted.content(path, LARGEST), digest_size=4).hexdigest()}"
    except (OSError, ValueError):  # whoever loads it says so
        return path.name


PACKAGE = Path(__file__).resolve().parents[1]
# Relative to the repository in a checkout or an editable install; a wheel carries both as parity/_data/<name>.
IN_CHECKOUT = {"tolerances": "tolerances", "conformance": "tests/conformance"}


def resource_folder(name: Literal["tolerances", "conformance"], package: Path = PACKAGE) -> Path:
    """The folder of that name. Raises ParityError where the installation has none."""
    packed = package / "_data" / name
    in_checkout = package.parent / IN_CHECKOUT[name]
    # A folder of that name next to an installed package belongs to someone else, so the packed one comes first.
    for candidate in (packed, in_checkout):
        if candidate.is_dir():
            return candidate
    raise ParityError(
        f"this installation of parity has no folder '{name}' (looked for parity/_data/{name} and "
        f"{IN_CHECKOUT[name]} next to the package); reinstall it: pip install --force-reinstall torch-parity"
    )
