"""The door through which everything comes that others made: files, archives, texts, and the answers of programs. Reading is
limited in size, depth, number and time, and printing is escaped.

Nothing here imports or runs what it reads; the programs that `answer` asks are those that a person named.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import re
import signal
import stat
import struct
import subprocess
import threading
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DIGITS = 32  # limit for an integer in a file; the largest that parity writes has 20
DEPTH = 40  # of brackets within brackets
PACKED = 1 << 30  # bytes of a zip archive
MEMBERS = 100_000  # files in it; a wheel of torch has some 15,000
SIZE = 5  # where the record at the end of a zip archive has the bytes of its directory
ENTRY = 200  # bytes that a file takes in its directory, in the mean
TOO_DEEP = f"its brackets are too deep, and at most {DEPTH} are read"
ANSWER = 1 << 20  # bytes that a program may answer
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_FORM = re.compile(r'\\[^"\\/]|[^ -~]')  # in JSON: an escape that may stand for a control character, or what is no ASCII


def refuse_odd(status: os.stat_result, limit: int) -> None:
    """Raise ValueError for what is no ordinary file (a pipe, a device, a folder), or has more than `limit` bytes."""
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"it is not an ordinary file but {KINDS.get(stat.S_IFMT(status.st_mode), 'a device')}")
    if status.st_size > limit:
        raise ValueError(f"it is larger than {limit >> 20} MiB")


def content(path: Path, limit: int) -> bytes:
    """The bytes of a file. Raises OSError; ValueError if it is not an ordinary file or has more than `limit` bytes, whatever
    the system says of its size."""
    refuse_odd(path.stat(), limit)  # before it is opened, which some devices notice
    with open(path, "rb", opener=_opened) as f:
        refuse_odd(os.fstat(f.fileno()), limit)  # it may be another one by now
        raw = f.read(limit + 1)
    if len(raw or b"") > limit:
        raise ValueError(f"it is larger than {limit >> 20} MiB")
    return raw or b""


def _opened(path: str, flags: int) -> int:
    """Opened without waiting for anybody who would write to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def text(path: Path, limit: int) -> str:
    """The text of a file; `UnicodeDecodeError`, a ValueError, for what is not UTF-8. Raises as `content` does."""
    return content(path, limit).decode("utf-8")


def answer(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit code of a program, and what it printed on standard output. Raises OSError; ValueError for a program that takes
    longer, that prints more than `ANSWER` bytes, or no text."""
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    late = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, **quiet) as process:  # type: ignore[call-overload]

        def end() -> None:
            late.set()
            _end(process)

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            raw = process.stdout.read(ANSWER + 1)
            if len(raw) <= ANSWER:
                process.wait()
        finally:
            timer.cancel()
            if process.returncode is None:  # its number is nobody else's yet
                _end(process)
    if late.is_set():
        raise ValueError(f"it gives no answer within {seconds:.0f} s")
    if len(raw) > ANSWER:
        raise ValueError(f"it answers with more than {ANSWER >> 20} MiB")
    try:
        return process.returncode, raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("its answer is not text") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it has started in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, OSError):  # no killpg on this system, or all have ended
        process.kill()


class Archive:
    """A zip archive that somebody else made. Sizes are counted while it is unpacked, whatever its own directory says."""

    def __init__(self, path: Path, limit: int = PACKED, members: int = 0) -> None:
        """Reads the archive's directory. members: the most files that it may hold, `MEMBERS` by default. Raises OSError, and
        ValueError for what is not a sound zip archive, for more than `limit` bytes, and for more files."""
        members = members or MEMBERS
        self._path = path
        refuse_odd(path.stat(), limit)
        with self._sound(), path.open("rb") as f:
            end = zipfile._EndRecData(f)  # type: ignore[attr-defined]  # what ZipFile itself asks before it reads the directory
        if end is not None and end[SIZE] > members * ENTRY:
            raise ValueError(f"it holds more than {members:,} files, or names that are too long")
        with self._sound(), zipfile.ZipFile(path) as archive:
            self.names = tuple(archive.namelist())
        if len(self.names) > members:
            raise ValueError(f"it holds more than {members:,} files")

    def content(self, name: str, limit: int) -> bytes:
        """One of its files. Raises OSError, and ValueError for one that is not there, that is damaged, or that holds more than
        `limit` bytes, of which no more are unpacked."""
        if name not in self.names:
            raise ValueError(f"it holds no {name}")
        with self._sound(), zipfile.ZipFile(self._path) as archive, archive.open(name) as f:
            raw = f.read(limit + 1)
        if len(raw) > limit:
            raise ValueError(f"its {name} is larger than {limit >> 20} MiB")
        return raw

    @contextlib.contextmanager
    def _sound(self) -> Iterator[None]:
        """Whatever zipfile raises for a damaged archive, as ValueError."""
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, KeyError, RuntimeError, struct.error) as e:
            raise ValueError(f"it is not a sound zip archive ({type(e).__name__}: {printable(str(e))[:100]})") from None


def named(path: Path | str) -> str:
    """The name of a file that is no UTF-8, with its odd bytes escaped (`\\xff`)."""
    try:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no file has such a name
        return ascii(str(path))[1:-1]


def printable(text: str) -> str:
    """A text on one line with control and formatting characters escaped (`\\x1b`, `\\n`), safe for a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def shown(text: str) -> str:
    """Lines that are safe for a terminal and for the log of a CI: like `printable`, but line ends and tabs are kept, and the
    commands of GitHub's runner are escaped (`::error::` at the start of a line, `##[error]` anywhere)."""
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
    """The value of a line of JSON, with all strings made `printable`. Raises ValueError if it is no JSON, has an integer of
    more than `DIGITS` digits, or brackets nested deeper than `DEPTH`."""
    try:
        tree = json.loads(line, parse_int=_whole)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if line.count("[") + line.count("{") > DEPTH and _depth(tree) > DEPTH:
        raise ValueError(TOO_DEEP)
    return cleaned(tree) if _FORM.search(line) else tree


def toml(text: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The content of a text in TOML, as it stands there. Raises ValueError (TOMLDecodeError where it is no TOML) for brackets
    or dotted keys nested deeper than `DEPTH`."""
    try:
        tree = tomllib.loads(text, parse_float=parse_float)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if _depth(tree) > DEPTH:
        raise ValueError(TOO_DEEP)
    return tree


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _depth(tree: Any) -> int:
    """Levels of nested lists and dicts."""
    depth, level = 0, [tree] if isinstance(tree, (dict, list)) else []
    while level:
        depth += 1
        level = [v for t in level for v in (t.values() if isinstance(t, dict) else t) if isinstance(v, (dict, list))]
    return depth


def cleaned(tree: Any) -> Any:
    """A tree of JSON or TOML with all strings made `printable`."""
    if isinstance(tree, str):
        return printable(tree)
    if isinstance(tree, list):
        return [cleaned(v) for v in tree]
    return {printable(k): cleaned(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def depth_of_brackets(text: str) -> int:
    """Levels of nested round, square and curly brackets in a text, including those in quotes."""
    depth = most = 0
    for c in text:
        if c in "([{":
            depth += 1
            most = max(most, depth)
        elif c in ")]}":
            depth -= 1
    return most
