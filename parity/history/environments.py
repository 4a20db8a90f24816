"""Python environments with another torch: an interpreter that is there, or what pip takes, which is installed for it. parity
need not be installed there: it gets a copy of this parity, and of what else it needs for that (`parity.history.lending`).

Since when a case gives another result: the same case in environments from the oldest to the newest, by bisection.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from parity.core import processes, project, untrusted
from parity.core.errors import UsageError
from parity.devices.operator_table import LARGEST, TABLE, MacWheel, Table, parsed
from parity.history import lending

DATA: tuple[Literal["tolerances", "conformance"], ...] = ("tolerances", "conformance")
PATIENCE = 300.0  # seconds to answer a question
OF_TORCH = re.compile(r"torch(\[\w+\])?\s*((==|>=|<=|~=|!=|<|>|@).*)?")
OF_WHEEL = re.compile(r"-cp(\d)(\d+)-")
WHAT = "give the path of a Python, the folder of an environment, or what pip takes, such as 'torch==2.14.*' or a wheel of torch"
# The program of the folder that is lent: `python FOLDER replay ...` is `parity replay ...` there.
ENTRY = """import os, shlex, sys

here = os.path.dirname(os.path.abspath(__file__))
os.environ["{path}"] = os.pathsep.join(filter(None, (here, os.environ.get("{path}"))))
os.environ["{called}"] = shlex.join([sys.executable, here])
from parity.__main__ import run

run()
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter that can run parity. name: as the person named it; python: its path; lent: the folder with parity and what
    it needs, empty for this interpreter; torch: its version."""

    name: str
    python: str
    lent: str
    torch: str

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Variables of an environment, and those by which a process there finds what was lent."""
        if not self.lent:
            return dict(variables)
        path = os.pathsep.join(filter(None, (self.lent, variables.get(processes.PATH))))
        return {**variables, processes.PATH: path, processes.CALLED: shlex.join([self.python, self.lent])}


def prepared(place: str, folder: Path, hear: Callable[[str], None]) -> Environment:
    """The environment of a place: the path or name of an interpreter, the folder of an environment, or what pip takes for a
    torch. folder: for what is installed and lent; it stays, for the commands that reports name. hear: gets what takes long.

    Raises UsageError if there is no such interpreter, or if it cannot run parity.
    """
    words = _for_pip(place)
    python = _installed(words, folder, hear) if words else interpreter(place)
    lent = folder.absolute() / "lent"
    hear(f"lending parity to {python}, in {lent}")
    shutil.rmtree(lent, ignore_errors=True)
    _copy_parity(lent)
    has = _asked(place, python, lent)
    shown = ".".join(map(str, has["python"]))
    if "why" in has:
        pip = f"install it there: {shlex.quote(python)} -m pip install {has['missing']}"
        to_do = pip if has["missing"] else "name another environment"
        raise UsageError(f"{place} (Python {shown}) cannot import {has['missing'] or 'parity'}: {has['why']}; {to_do}")
    if "torch" not in has:
        raise UsageError(f"{place} is Python {shown}; parity needs {'.'.join(map(str, lending.LEAST))} or later")
    return Environment(place, python, str(lent), has["torch"])


def this() -> Environment:
    """The environment of this process."""
    return Environment(sys.executable, sys.executable, "", torch.__version__)


def _copy_parity(folder: Path) -> None:
    """This parity with its tables and its suite, and a program to start it."""
    shutil.copytree(project.PACKAGE, folder / "parity", ignore=shutil.ignore_patterns("_data"))
    for data in DATA:
        shutil.copytree(project.resource_folder(data), folder / "parity" / "_data" / data)
    entry = ENTRY.format(path=processes.PATH, called=processes.CALLED)
    (folder / "__main__.py").write_text(entry, encoding="utf-8")


def _asked(place: str, python: str, lent: Path) -> dict[str, Any]:
    """What the interpreter says it has, once it was lent what it is missing."""
    command = [python, str(lent / "parity" / "history" / "lending.py"), str(lent), *filter(None, sys.path)]
    safely = {**os.environ, processes.SAFE: "1"}  # the folder of the file is none for its imports
    try:
        _, said = untrusted.answer(command, PATIENCE, safely)
        answer: dict[str, Any] = untrusted.parsed(said.strip().splitlines()[-1])
        answer["python"]  # or it is no answer
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise UsageError(f"{place} does not answer as a Python does ({type(e).__name__}); name another interpreter") from None
    return answer


def operator_table(place: str) -> Table:
    """torch's operator table at a place: the torch of an interpreter or a virtual environment, a wheel of torch for any system,
    or a native_functions.yaml. Nothing of it is imported. Raises UsageError or WheelError if there is none."""
    path = Path(place)
    if path.suffix == ".whl":
        return MacWheel(path).table
    if path.suffix == ".yaml":
        return _table_in(path, path.name)
    python = interpreter(place)
    command = [python, "-P", "-c", "import importlib.util; print(importlib.util.find_spec('torch').origin)"]
    try:
        code, said = untrusted.answer(command, PATIENCE)
    except (OSError, ValueError) as e:
        raise UsageError(f"{place} does not answer as a Python does ({e}); name another interpreter") from None
    origin = Path(said.strip())
    if (
        code or not origin.is_absolute() or len(origin.parts) < 4
    ):  # a folder without __init__.py, as a half uninstalled torch leaves it, has none
        raise UsageError(f"{place} has no torch; install it there, or name a wheel of torch")
    site = origin.parents[1]
    try:
        version = re.search(r"__version__ = '([\w.+-]+)'", untrusted.text(site / "torch/version.py", LARGEST))
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot read {site / 'torch/version.py'}: {e}; install torch again there") from None
    return _table_in(site / TABLE, version[1] if version else place)


def _table_in(path: Path, version: str) -> Table:
    try:
        return Table(version, parsed(untrusted.text(path, LARGEST)))
    except OSError as e:
        raise UsageError(f"cannot read the operator table {path}: {e.strerror or e}; name a wheel of torch instead") from None
    except ValueError as e:
        raise UsageError(
            f"cannot read the operator table {path}: {e}; give torch's native_functions.yaml, or a wheel"
        ) from None


def interpreter(place: str) -> str:
    """The path of an interpreter."""
    path = Path(place).expanduser()
    inside = (path / "bin" / "python", path / "Scripts" / "python.exe", path / "python.exe") if path.is_dir() else (path,)
    found = next((str(p.absolute()) for p in inside if p.is_file()), None) or (None if path.is_dir() else shutil.which(place))
    if found is None:
        raise UsageError(f"there is no Python at {place}; {WHAT}")
    return found


# ------------------------------------------------------------------------------------------------------------ installing


def _for_pip(place: str) -> list[str]:
    """The arguments of `pip install` that a place stands for; none if it is an interpreter or the folder of an environment.

    Raises UsageError for a folder that holds several wheels of torch, and for a pipe or a device.
    """
    path = Path(place).expanduser()
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise UsageError(f"{place} is no file and no folder; {WHAT}")
    if path.is_dir():
        wheels = sorted(path.glob("torch-*.whl"))
        if len(wheels) > 1:
            raise UsageError(f"{place} holds {len(wheels)} wheels of torch ({wheels[0].name} ...); name one of them")
        source = any((path / name).is_file() for name in ("pyproject.toml", "setup.py"))
        return [str(wheels[0]), "--find-links", str(path)] if wheels else [str(path)] if source else []
    words = shlex.split(place, posix=os.name != "nt")
    is_word = any(w.startswith("-") or w.endswith(".whl") for w in words) or OF_TORCH.fullmatch(place.strip())
    return words if (is_word and not path.is_file()) or path.suffix == ".whl" else []


def _installed(words: Sequence[str], folder: Path, hear: Callable[[str], None]) -> str:
    """The interpreter of a virtual environment with this torch. One that is there from an earlier upgrade is used again."""
    tag = next((m for w in words if (m := OF_WHEEL.search(w))), None)
    version = f"{tag[1]}.{tag[2]}" if tag else "{}.{}".format(*sys.version_info)
    base = sys.executable if version == "{}.{}".format(*sys.version_info) else shutil.which(f"python{version}")
    if base is None:
        raise UsageError(f"{shlex.join(words)} is for Python {version}, which is not here; install python{version}")
    here, uv = folder.absolute() / f"python{version}", _uv()
    python = str(here / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    hear(f"installing {shlex.join(words)} in {here} ({'uv' if uv else 'pip'}; this may load gigabytes)")
    made = [uv, "venv", "-q", "--python", base, str(here)] if uv else [base, "-m", "venv", str(here)]
    tool = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    # venv completes what an interrupted one left, which may have no pip; uv refuses a folder that is there.
    for step in ([] if uv and Path(python).exists() else [made]) + [[*tool, "-q", "--upgrade", *words]]:
        done = subprocess.run(step, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            errors = [x for x in lines if x.lower().startswith("error") and "ResolutionImpossible" not in x]  # which says less
            said = (errors or lines or [""])[-1].rstrip(".")
            raise UsageError(
                f"cannot install {shlex.join(words)}: {said[:300]}; make an environment with it, and name its Python"
            )
    return python


def _uv() -> str | None:
    """uv, if it made this environment: such a one has no pip, and uv's settings name the index."""
    made = Path(sys.prefix, "pyvenv.cfg")
    return shutil.which("uv") if made.is_file() and re.search(r"^uv\s*=", made.read_text(encoding="utf-8"), re.M) else None


LISTED = re.compile(r"^Available versions: (.+)$", re.M)


@dataclass(frozen=True, slots=True)
class Bisected:
    """The first place whose answer differs from that of the oldest one, and the last place before it; both are the newest where
    none differs. answers: place -> answer of those that were asked; skipped: place -> why it could not be."""

    last: str
    first: str
    answers: Mapping[str, str]
    skipped: Mapping[str, str]

    @property
    def differs(self) -> bool:
        """Whether any answer does."""
        return self.answers[self.first] != self.answers[self.last]


def bisected(places: Sequence[str], answer: Callable[[str], str]) -> Bisected:
    """Ask as few places as possible. answer: what the case gives at a place; raises UsageError where it cannot be asked.

    Raises UsageError if fewer than two places can be asked.
    """
    left, answers, skipped = list(dict.fromkeys(places)), dict[str, str](), dict[str, str]()

    def asked(place: str) -> bool:
        try:
            answers[place] = answer(place)
        except UsageError as e:
            left.remove(place)
            skipped[place] = str(e)
        return place in answers

    while left and not asked(left[0]):
        pass
    while len(left) > 1 and not asked(left[-1]):
        pass
    if len(left) < 2:
        why = "".join(f"; {place}: {text}" for place, text in skipped.items())
        raise UsageError(f"a bisection needs two environments or more, and only {len(left)} can be asked{why}")
    low, high = left[0], left[-1]
    if answers[low] == answers[high]:
        return Bisected(high, high, answers, skipped)
    while (i := left.index(low)) + 1 < (j := left.index(high)):
        middle = left[(i + j) // 2]
        if asked(middle):
            low, high = (middle, high) if answers[middle] == answers[low] else (low, middle)
    return Bisected(low, high, answers, skipped)


def bisected_versions(requirement: str) -> list[str]:
    """What pip takes for each version of torch that a requirement allows, the oldest first: "torch>=2.10,<=2.15 --pre" and the
    like. Raises UsageError if the index cannot be asked, or has fewer than two."""
    words = shlex.split(requirement)
    name = next((w for w in words if w.startswith("torch")), "torch")
    options = [w for w in words if w != name]
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    here = "name environments that are here instead: --bisect OLD/bin/python NEW/bin/python"
    listed = LISTED.search(done.stdout)
    if done.returncode or listed is None:
        said = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        raise UsageError(f"cannot list the versions of torch ({said}); {here}")
    try:
        allowed = SpecifierSet(name.removeprefix("torch"), prereleases=True if "--pre" in options else None)
    except InvalidSpecifier:
        raise UsageError(f"'{name}' is not a requirement of torch; write it as pip does: 'torch>=2.10,<=2.15'") from None
    found = sorted(map(Version, allowed.filter(v.strip() for v in listed[1].split(","))))
    if len(found) < 2:
        raise UsageError(f"the index has {len(found)} versions of torch for '{name}'; allow more, or {here}")
    return [shlex.join([f"torch=={v}", *options]) for v in found]
