"""`--setup FILE`: Python that runs before a device is touched. It sets a backend's flags, or imports a backend."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parity.core import state
from parity.core.errors import UsageError, described, mending

ran: list[str] = []  # the files that ran in this process
_kept: list[Any] = []  # what they define: a torch.library.Library takes its operators away when nobody holds it


def run_setup(path: str, option: str = "--setup") -> None:
    """Run the file, once per process, so that it adds once what it adds; it can import modules from its own folder. option: by
    which it was named. Raises UsageError, with the line, for any exception in it, including SystemExit."""
    if path in ran:
        return
    if not os.path.isfile(path):
        what = "sets what the device is to run with" if option == "--setup" else "adds what is asked for"
        raise UsageError(f"{option} {path}: no such file; give a Python file that {what}")
    add_folder_to_path(Path(path))
    with leaving_no_mode(f"{option} {path}"):
        try:
            _kept.append(runpy.run_path(path))
        except (Exception, SystemExit) as e:  # the file may do anything
            raise UsageError(f"{option} {path} raises {described(e, path)}; {mending(e)}, or leave it away") from None
    ran.append(path)


@contextlib.contextmanager
def leaving_no_mode(who: str) -> Iterator[None]:
    """Raise UsageError if what runs inside leaves a mode of torch in force, in which parity would compare less, or something
    else. Flags may be set for good. who: runs inside, in messages."""
    before = [p.read() for p in state.TAKING]
    yield
    _refuse(who, state.put_back(before, state.TAKING))


def refuse_modes() -> None:
    """Raise UsageError if such a mode is in force in a process of parity's own that has just imported torch."""
    _refuse("importing torch, with the backends that it loads by itself,", state.unusual(state.TAKING))


def _refuse(who: str, left: Sequence[str]) -> None:
    """Raise UsageError where something is left in force."""
    if left:
        raise UsageError(f"{who} leaves {'; '.join(left)} in force, so that not all would be compared; end that mode there")


def add_folder_to_path(file: Path) -> None:
    """Append the folder of a user's file to `sys.path`: at the end, so that it cannot hide Python's own modules."""
    folder = str(file.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
