"""Files that parity writes: whole, or not at all. (A run file is the exception: it grows line by line, so that a run that is
killed keeps what it has, and can be read at any moment.)"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from parity.core.errors import OutputError


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
