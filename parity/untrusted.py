"""Files and texts that somebody else wrote: read only as far as is sound, printed only as plain text.

Nothing here, and nothing that reads through it, imports or runs what it reads.
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

DIGITS = 32  # of a whole number in a file; the largest that parity writes has 20
DEPTH = 40  # of brackets within brackets
_FORM = re.compile(r'\\[^"\\/]|[^ -~]')  # in JSON: an escape that may stand for a control character, or what is no ASCII


def content(path: Path, limit: int) -> bytes:
    """What a file holds. Raises OSError, and ValueError for what is no ordinary file (a pipe, a device, a folder) and for one
    of more than `limit` bytes, which is not read."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no ordinary file")
    with path.open("rb") as f:
        raw = f.read(limit + 1)
    if len(raw) > limit:
        raise ValueError(f"it is larger than {limit >> 20} MiB")
    return raw


def printable(text: str) -> str:
    """A text on one line that a terminal shows as it is: control and formatting characters as escapes (`\\x1b`, `\\n`)."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def shown(text: str) -> str:
    """Lines that a terminal, and the log of a CI, show as they are: as `printable`, but with line ends and tabs kept, and
    without what GitHub's runner takes for a command (`::error::` at the head of a line, `##[error]` anywhere)."""
    if not text.isascii() or _CONTROL.search(text):
        text = "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)
    if "::" in text or "##[" in text:
        text = _COMMAND.sub(r"\1:\\:", text).replace("##[", "#\\#[")
    return text


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_COMMAND = re.compile(r"^(\s*)::", re.MULTILINE)


def _escaped(c: str) -> str:
    return c.encode("unicode_escape", "backslashreplace").decode("ascii")


def parsed(line: str) -> Any:
    """What a line of JSON holds, its texts made `printable`. Raises ValueError for anything else, for whole numbers of more
    than `DIGITS` digits, and for brackets deeper than `DEPTH`."""
    try:
        tree = json.loads(line, parse_int=_whole)
    except RecursionError:
        raise ValueError("its brackets are too deep") from None
    if line.count("[") + line.count("{") > DEPTH and _depth(tree) > DEPTH:
        raise ValueError("its brackets are too deep")
    return _cleaned(tree) if _FORM.search(line) else tree


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _depth(tree: Any) -> int:
    """How deep brackets lie in brackets."""
    depth, level = 0, [tree] if isinstance(tree, (dict, list)) else []
    while level:
        depth += 1
        level = [v for t in level for v in (t.values() if isinstance(t, dict) else t) if isinstance(v, (dict, list))]
    return depth


def _cleaned(tree: Any) -> Any:
    if isinstance(tree, str):
        return printable(tree)
    if isinstance(tree, list):
        return [_cleaned(v) for v in tree]
    return {printable(k): _cleaned(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def depth_of_brackets(text: str) -> int:
    """How deep round, square and curly brackets lie in one another, those within quotes included."""
    depth = most = 0
    for c in text:
        if c in "([{":
            depth += 1
            most = max(most, depth)
        elif c in ")]}":
            depth -= 1
    return most
