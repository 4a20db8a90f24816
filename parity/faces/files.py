"""Files that a command is to read or write: refusals in one sentence, before anything is run."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

from parity.core.errors import OutputError


def writable(folder: Path, option: str) -> None:
    """Refuse a folder that cannot be written before the run, not at its first finding."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise OutputError(f"cannot write to the folder {folder}: {e.strerror or e}; name another with {option}") from None


def located(faults: str) -> str:
    """Faults by a name that holds in another directory too: a file's full path, a module's name as it is."""
    path = Path(faults)
    return str(path.absolute()) if path.is_file() or path.suffix == ".py" else faults


def in_words(e: OSError, remedy: str = "free the disk or name another place", verb: str = "read or write") -> str:
    """What the system refused, and what to do."""
    if e.errno in (errno.EMFILE, errno.ENFILE):
        return f"the system lets this process open no more files ({e.strerror}); raise the limit: ulimit -n 1024"
    if e.errno in (errno.ENOMEM, errno.EAGAIN):
        return f"the system has no room for another process ({e.strerror}); take fewer workers: -n 1"
    return f"cannot {verb} {e.filename or 'the standard output'}: {e.strerror or e}; {remedy}"
