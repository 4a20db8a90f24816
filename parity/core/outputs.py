"""The door through which files go that parity writes: what cannot be written is refused before anything is run, and a file is
written whole or not at all. (A run file is the exception: it grows line by line, so that a run that is killed keeps what it
has, and can be read at any moment.)"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from parity.core import untrusted
from parity.core.errors import OutputError


def refuse(path: Path, option: str) -> None:
    """Raise OutputError for a name under which no file can be written: it is not UTF-8, it is a folder, a pipe or a device
    already, or it is read-only."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = untrusted.named(path)
        raise OutputError(f"cannot write '{shown}': its name is not UTF-8; name another file with {option}") from None
    writable(path.absolute().parent, option)
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a folder; name a file with {option}")
        if not path.exists() or str(path) == os.devnull:
            return
        untrusted.refuse_odd(path.stat(), sys.maxsize)
    except OSError as e:  # a name that is too long
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another file with {option}") from None
    except ValueError as e:
        raise OutputError(f"cannot write {path}: {e}; name a file with {option}") from None
    if not os.access(path, os.W_OK):
        raise OutputError(f"cannot write {path}: it is read-only; name another file with {option}")


def writable(folder: Path, option: str) -> None:
    """Raise OutputError for a folder that cannot be made or written, before the run, not at its first finding."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise OutputError(f"cannot write to the folder {folder}: {e.strerror or e}; name another with {option}") from None


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "name another file, or free the disk") -> Iterator[Path]:
    """A file next to `path` to write to, which takes its place at the end of the context; nothing is left of it where the
    context raises. What a link points to is replaced, not the link, and `os.devnull` takes everything as it is. Raises
    OutputError, with the path and the remedy, for an OSError inside, too."""
    there = Path(os.path.realpath(path))
    draft = there if str(path) == os.devnull else there.with_name(f".{there.name[:200]}.part{os.getpid()}")
    try:
        try:
            there.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            if draft != there and draft.exists():
                if there.exists():
                    draft.chmod(there.stat().st_mode & 0o777)
                draft.replace(there)
        finally:
            if draft != there:
                draft.unlink(missing_ok=True)
    except OSError as e:
        raise OutputError(f"cannot write {path}: {e.strerror or e}; {remedy}") from None


def write(path: Path, text: str | bytes, remedy: str = "name another file, or free the disk") -> None:
    """Write a file as `replacing` does. Raises OutputError."""
    with replacing(path, remedy) as draft:
        draft.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
