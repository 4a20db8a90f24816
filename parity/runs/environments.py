"""Python environments with another torch: an interpreter that is there, or a requirement like torch==2.14.* that is installed
into a temporary one. parity itself need not be installed there: it gets a copy of this parity, and of the libraries that it
lacks."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parity.core import processes, resources
from parity.core.errors import UsageError
from parity.devices.mac_wheel import TABLE, MacWheel
from parity.devices.operator_table import Table, parsed

LEAST_PYTHON = (3, 11)
# Modules that parity imports -> the least version of those with one. All are pure Python, or work as such.
NEEDED = {
    "hypothesis": (6, 130), "pytest": (8, 3), "_pytest": (), "xdist": (3, 6), "execnet": (2, 1), "expecttest": (),
    "yaml": (6, 0), "jinja2": (3, 1), "markupsafe": (), "tomlkit": (0, 13), "pluggy": (), "iniconfig": (),
    "packaging": (), "pygments": (), "sortedcontainers": (),
}  # fmt: skip
REQUIREMENT = re.compile(r"torch(\[\w+\])?\s*(==|>=|<=|~=|!=|<|>|@)\s*\S+")
DATA: tuple[Literal["tolerances", "conformance"], ...] = ("tolerances", "conformance")
PATIENCE = 120.0  # seconds to answer a question
# Prints what the interpreter has: its version, torch's and numpy's, and the version of each needed module (null where there is
# none).
QUESTION = """
import importlib, json, sys
def version(name):
    try:
        return str(getattr(importlib.import_module(name), "__version__", ""))
    except Exception as e:
        return None if isinstance(e, ModuleNotFoundError) else "raises " + type(e).__name__ + ": " + str(e)[:200]
print(json.dumps({"python": sys.version_info[:3], "modules": {n: version(n) for n in sys.argv[1:]}}))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter that can run parity. name: as the person named it; python: its path; lent: the folder with parity and the
    libraries that it lacks; torch: its version."""

    name: str
    python: str
    lent: str
    torch: str

    def command(self, *args: str) -> list[str]:
        """The command line of `parity` with these arguments there."""
        return [self.python, "-P", "-m", "parity", *args]

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a process there."""
        return {**os.environ, processes.PATH: self.lent, processes.SAFE: "1"}


def prepared(place: str, folder: Path, hear: Callable[[str], None]) -> Environment:
    """The environment of a place: the path or name of an interpreter, the folder of a virtual environment, or a requirement of
    torch. folder: an empty one, for what is made or lent; hear: is told what takes long.

    Raises UsageError if there is no such interpreter, or if it cannot run parity.
    """
    folder.mkdir(parents=True, exist_ok=True)
    python = _installed(place, folder, hear) if REQUIREMENT.fullmatch(place.strip()) else interpreter(place)
    has = _asked(place, python)
    if tuple(has["python"]) < LEAST_PYTHON:
        shown = ".".join(map(str, has["python"]))
        raise UsageError(f"{place} is Python {shown}; parity needs {'.'.join(map(str, LEAST_PYTHON))} or later")
    for name in ("torch", "numpy"):
        version = has["modules"][name]
        if version is None or version.startswith("raises"):
            why = "has none" if version is None else version
            raise UsageError(f"{place} cannot import {name} ({why}); install it there: {python} -m pip install {name}")
    lent = folder / "lent"
    _lend(lent, [n for n, least in NEEDED.items() if _lacks(has["modules"][n], least)])
    return Environment(place, python, str(lent), has["modules"]["torch"])


def _lacks(version: str | None, least: Sequence[int]) -> bool:
    if version is None or version.startswith("raises"):
        return True
    return tuple(int(n) for n in re.findall(r"\d+", version)[: len(least)]) < tuple(least)


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise UsageError(f"{place} has no torch; install it there, or name a wheel of torch")
    site = Path(done.stdout.strip()).parents[1]
    version = re.search(r"__version__ = '([^']+)'", (site / "torch/version.py").read_text(encoding="utf-8"))
    return _table_in(site / TABLE, version[1] if version else place)


def _table_in(path: Path, version: str) -> Table:
    try:
        keys = parsed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the operator table {path}: {e}; name a wheel of torch instead") from None
    if not keys:
        raise UsageError(f"{path} holds no operator; give torch's native_functions.yaml, or name a wheel of torch")
    return Table(version, keys)


def interpreter(place: str) -> str:
    """The path of an interpreter."""
    path = Path(place).expanduser()
    inside = [path / "bin" / "python", path / "Scripts" / "python.exe"] if path.is_dir() else [path]
    found = next((str(p.absolute()) for p in inside if p.is_file()), None) or shutil.which(place)
    if found is None or (path.is_dir() and not any(p.is_file() for p in inside)):
        what = "give the path of a Python, the folder of a virtual environment, or a requirement such as 'torch==2.14.*'"
        raise UsageError(f"there is no Python at {place}; {what}")
    return found


def _installed(requirement: str, folder: Path, hear: Callable[[str], None]) -> str:
    """A new virtual environment with this torch, by uv if it is there, else by pip."""
    here, uv = folder / "environment", shutil.which("uv")
    python = str(here / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    hear(f"installing {requirement} in a temporary environment ({'uv' if uv else 'pip'}; this may load gigabytes)")
    steps = [
        [uv, "venv", "-q", "--python", sys.executable, str(here)] if uv else [sys.executable, "-m", "venv", str(here)],
        [uv, "pip", "install", "-q", "--python", python, requirement, "numpy"]
        if uv
        else [python, "-m", "pip", "install", "-q", requirement, "numpy"],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            last = next((line for line in reversed((done.stderr or done.stdout).splitlines()) if line.strip()), "")
            raise UsageError(
                f"cannot install {requirement}: {last.strip()[:300]}; make an environment with it, and name its Python"
            )
    return python


def _asked(place: str, python: str) -> dict[str, Any]:
    """What the interpreter says it has."""
    command = [python, "-P", "-c", QUESTION, "torch", "numpy", *NEEDED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as e:
        raise UsageError(f"{place} does not answer as a Python does ({type(e).__name__}); name another interpreter") from None
    return answer


def _lend(folder: Path, names: Sequence[str]) -> None:
    """Copy this parity, with its tables and its suite, and these modules into a folder."""
    if folder.exists():
        return
    skip = shutil.ignore_patterns("__pycache__", "_data")
    shutil.copytree(resources.PACKAGE, folder / "parity", ignore=skip)
    for data in DATA:
        shutil.copytree(resources.folder(data), folder / "parity" / "_data" / data, ignore=skip)
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        if spec.submodule_search_locations:
            shutil.copytree(Path(spec.origin).parent, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(spec.origin, folder / Path(spec.origin).name)
