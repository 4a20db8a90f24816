"""Processes that parity starts. None of them has a folder on `sys.path` that the person did not name: Python would put the
current one there, and a `random.py` in it before its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SAFE, PATH = "PYTHONSAFEPATH", "PYTHONPATH"
_OURS: list[str] = []  # the folder that Python put on the path of this process alone


def command(module: str, *args: str) -> list[str]:
    """The command that runs a module of parity in a process of its own, to be started inside `isolated`."""
    return [sys.executable, "-P", "-m", module, *args]


@contextmanager
def isolated() -> Iterator[None]:
    """Every process that is started meanwhile, by whatever library, leaves its current folder off `sys.path`. It finds this
    very parity also where only this process's own path leads to it."""
    before = {name: os.environ.get(name) for name in (SAFE, PATH)}
    os.environ[SAFE] = "1"
    if not _is_found():
        os.environ[PATH] = os.pathsep.join([p for p in (str(_root()), before[PATH]) if p])
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _root() -> Path:
    return Path(__file__).resolve().parents[1]


def _is_found() -> bool:
    """Whether parity lies in a folder of `sys.path` other than the one that Python put first for this process alone."""
    others = sys.path if sys.flags.safe_path or _OURS else sys.path[1:]
    return any(p and p not in _OURS and Path(p).resolve() == _root() for p in others)


def leave_the_current_folder() -> None:
    """Take the folder that `python -m` puts first off this process's path; last, where parity itself lies in it."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        here = sys.path.pop(0)
        _OURS.append(here or os.getcwd())
        if Path(here or ".").resolve() == _root():
            sys.path.append(_OURS[0])
