"""`--setup FILE`: Python that runs before a device is touched. It sets a backend's flags, or imports a backend."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

from parity.errors import UsageError


def run_setup(path: str) -> None:
    """Run the file, once per process; what lies beside it can be imported. Raises UsageError, with the place, for whatever it
    raises, an exit included."""
    if not Path(path).is_file():
        raise UsageError(f"--setup {path}: no such file; give a Python file that sets what the device is to run with")
    beside(Path(path))
    try:
        runpy.run_path(path)
    except (Exception, SystemExit) as e:  # anything may be in it
        raise UsageError(f"--setup {path} raises {_said(e)} ({_place(e, path)}); mend it, or leave it away") from None


def beside(file: Path) -> None:
    """Make what lies beside a file that a person named importable, last of all: it must not stand before Python's own."""
    folder = str(file.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)


def _said(e: BaseException) -> str:
    text = e.msg if isinstance(e, SyntaxError) else str(e)
    return f"{type(e).__name__}: {text}" if text else type(e).__name__


def _place(e: BaseException, path: str) -> str:
    """File and line: the last one in the file itself, or where it does not parse."""
    if isinstance(e, SyntaxError) and e.filename:
        return f"{e.filename}:{e.lineno}"
    frames = traceback.extract_tb(e.__traceback__)
    frame = next((f for f in reversed(frames) if f.filename == path), frames[-1])
    return f"{frame.filename}:{frame.lineno}"
