"""Where known findings lie: in one file, or in a folder with a file for each entry, which git merges whatever branches add.

The texts of a folder's files, one after the other, are the text of one file: first `parity-known.toml`, which says the format
and for which device, torch and OS they were written, then the entries, each in a file that has its id for a name. A person may
put several into one, and comments; what is no `.toml` is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from parity.core import outputs, untrusted
from parity.core.errors import KnownError

NAME = "parity-known.toml"  # where no other is named, and of the head of a folder
LARGEST = 16 << 20  # bytes of a file


def content(path: Path) -> str:
    """The text of a file, or of all files of a folder; "" of a folder that has none. Raises KnownError."""
    return "\n".join(_ended(_text(file)) for file in _files(path)) if path.is_dir() else _text(path)


def _text(path: Path) -> str:
    add = f"parity known add RUN --reason TEXT --file {path}"
    try:
        return untrusted.text(path, LARGEST)
    except FileNotFoundError:
        raise KnownError(f"there is no file of known findings {path}; {add} writes one") from None
    except UnicodeDecodeError:
        raise KnownError(f"{path} is not a file of known findings: it is not text; restore it from your repository") from None
    except OSError as e:
        raise KnownError(f"cannot read {path}: {e.strerror or e}; name another with --known") from None
    except ValueError as e:
        raise KnownError(f"cannot read {path}: {e}; name a file that parity known add wrote") from None


def place(path: Path, line: int) -> str:
    """The file and the line of a line of such a text."""
    if path.is_dir():
        for file in _files(path):
            count = _ended(_text(file)).count("\n") + 1
            if line <= count:
                return f"{file}:{line}"
            line -= count
    return f"{path}:{line}"


def write(path: Path, text: str, head: str, entries: Mapping[str, str]) -> None:
    """Write a file, or those of a folder that change, and take out those that hold nothing any more. head, entries: the parts
    of the text, for a folder. Raises OutputError."""
    if not path.is_dir():
        outputs.write(path, text, "name another with --file")
        return
    parts = {path / NAME: head}
    for id, block in entries.items():
        file = path / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', id).lstrip('.')[:120]}.toml"
        parts[file] = f"{parts.get(file, '')}\n{block}".lstrip("\n")
    held = {file: _text(file) for file in _files(path)}
    for file, part in parts.items():
        if held.pop(file, None) != part:
            outputs.write(file, part, "name another folder with --file")
    for file in held:
        file.unlink()


def _files(path: Path) -> Iterable[Path]:
    """The files that hold it, in the order of their texts."""
    return sorted(path.glob("*.toml"), key=lambda f: (f.name != NAME, f.name)) if path.is_dir() else [path]


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"
