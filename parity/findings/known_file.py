"""Reading and writing the file of known findings. Its entries are blocks in the order of their ids, and each list has a line
for each of its texts, so that a review shows what was added and what went, and git merges what two branches add. What a person
wrote into a block or on top of it stays: comments, and entries of their own."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from parity.core import stored, untrusted
from parity.core.errors import KnownError, OutputError, near
from parity.core.results import Cause, Json
from parity.findings.known import DIES, Entry, Environment, Known
from parity.store.code import Code

T = TypeVar("T")
FORMAT = 1
LARGEST = 16 << 20  # bytes of a file
WORDS = ("properties", "dtypes", "aspects")  # short lists, on one line
NEW = f"""\
# What parity found here and a person accepted: parity run --known FILE fails on everything else.
# Each entry has its reason; its cases are run first. parity known add writes entries, parity known drop takes them out.
format = {FORMAT}
"""
ENTRY = re.compile(r"\s*\[\[\s*\"?known\"?\s*\]\]")  # the head of one
ID = re.compile(r"\s*\"?id\"?\s*=")
SECTION = re.compile(r"\s*\[\s*\"?environment\"?\s*\]")
CAUSE = tuple(f.name for f in fields(Cause))
# The keys of an entry in the order of the file: what it is, why it is accepted, where it was seen, and what shows it. `what` is
# for readers.
KEYS = (
    *("id", "what", "reason", "link", "until", "since", *CAUSE, "members"),
    *("ops", "dtypes", "aspects", "status", "shows", "by-chance", "extent", "cases", "also"),
)


# --------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file holds."""

    format: int
    environment: Environment = field(default_factory=Environment)
    known: tuple[dict[str, Any], ...] = ()


def read(path: Path) -> Known:
    """The known findings of a file. Raises KnownError that names the file, the line, the entry, the value and what is
    allowed."""
    return parse(path, content(path))


def content(path: Path) -> str:
    """The text of a file. Raises KnownError."""
    try:
        return untrusted.content(path, LARGEST).decode("utf-8")
    except FileNotFoundError:
        add = f"parity known add RUN --reason TEXT --file {path}"
        raise KnownError(f"there is no file of known findings {path}; {add} writes one") from None
    except UnicodeDecodeError:
        raise KnownError(f"{path} is not a file of known findings: it is not text; restore it from your repository") from None
    except OSError as e:
        raise KnownError(f"cannot read {path}: {e.strerror or e}; name another with --known") from None
    except ValueError as e:
        raise KnownError(f"cannot read {path}: {e}; name a file that parity known add wrote") from None


def parse(path: Path, text: str) -> Known:
    """The known findings in a text; path: for messages, and as its name. Raises KnownError."""
    file = _File(path, text)
    held = file.convert(file.data, _Content, 0)
    entries: dict[str, Entry] = {}
    for row, line in zip(held.known, file.heads(len(held.known))):
        e = _entry(file, row, line)
        if e.id in entries:
            raise file.error(line, f"'{e.id}' stands twice, first in line {entries[e.id].line}; drop one of the two")
        entries[e.id] = e
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return Known(Code(str(path.absolute()), digest), held.environment, tuple(entries.values()))


class _File:
    """A file being read. The TOML parser keeps no line numbers, so they are found by scanning the text."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines = path, text.splitlines()
        try:
            self.data: Json = untrusted.cleaned(tomllib.loads(text))
        except tomllib.TOMLDecodeError as e:
            line = re.search(r"line (\d+)", str(e))
            raise self.error(int(line[1]) if line else len(self.lines), f"this is no TOML: {e}; mend the line") from None
        except (RecursionError, ValueError) as e:
            why = "its brackets are too deep" if isinstance(e, RecursionError) else str(e)
            raise self.error(1, f"{why}; restore the file from your repository") from None
        if self.data.get("format") != FORMAT or type(self.data["format"]) is not int:
            fault = f"format is {str(self.data.get('format'))[:40]!r}, this parity reads {FORMAT}"
            raise self.error(self.line("format"), f"{fault}; write 'format = {FORMAT}' on top, or upgrade parity")

    def line(self, key: str, start: int = 0) -> int:
        """Number of the first line after line `start` that sets `key` or is its section head; else `start`, or 1."""
        wanted = re.compile(rf"\s*(\[+\s*)?\"?{re.escape(key)}\"?\s*[=\]]")
        return next((i for i, text in enumerate(self.lines[start:], start + 1) if key and wanted.match(text)), start or 1)

    def heads(self, count: int) -> list[int]:
        """The lines of the heads of the entries."""
        lines = [i for i, text in enumerate(self.lines, 1) if ENTRY.match(text)]
        return [*lines, *[1] * (count - len(lines))][:count]

    def convert(self, tree: Json, kind: type[T], start: int, entry: str = "") -> T:
        """A part of the file by its annotations; start: the line before it. Raises KnownError."""
        try:
            return stored.convert(tree, kind)
        except stored.Misfit as e:
            raise self.error(self.line(e.field.replace("_", "-"), start), str(e), entry) from None

    def error(self, line: int, fault: str, entry: str = "") -> KnownError:
        """The KnownError, with file, line and entry."""
        of = f"known '{untrusted.printable(entry)[:80]}': " if entry else ""
        return KnownError(f"{self.path}:{line}: {of}{untrusted.printable(fault)[:900]}")


def _entry(file: _File, row: Json, head: int) -> Entry:
    name = str(row.get("id", ""))
    if bad := next((k for k in row if k not in KEYS), None):
        raise file.error(file.line(bad, head), f"unknown key '{bad[:80]}'; {near(bad, KEYS)}", name)
    tree = {k.replace("-", "_"): v for k, v in row.items() if k not in (*CAUSE, "what")} | {"line": head}
    given = {k: row[k] for k in CAUSE if k in row}
    cause = file.convert(given, Cause, head, name) if given else None
    e = replace(file.convert(tree, Entry, head, name), cause=cause)
    if e.cause is not None and e.dies != (e.cause.symptom == DIES):
        why = f"with the symptom '{e.cause.symptom}' it can't be so; only deaths have '{DIES}'"
        raise file.error(file.line("status", head), f"status holds '{e.status}'; {why}", name)
    return e


# --------------------------------------------------------------------------------------------------------------- writing


def updated(text: str, entries: Iterable[tuple[Entry, str]], environment: Environment | None = None) -> str:
    """The text of a file with these entries added, or in place of those with their ids. entries: each with a sentence on what
    it is; environment: that of the run that they were made from. An empty text is a new file."""
    head, blocks = _blocks(text if text.strip() else NEW)
    if environment is not None:
        section = "" if any(map(SECTION.match, head.splitlines())) else "\n\n[environment]"
        head = _with(head.rstrip("\n") + section, SECTION, _filled(environment), keep=True)
    for e, what in entries:
        blocks[e.id] = _with(blocks.get(e.id, "[[known]]"), ENTRY, _values(e, what))
    return _whole(head, blocks)


def dropped(text: str, ids: Collection[str]) -> str:
    """The text of a file without these entries."""
    head, blocks = _blocks(text)
    return _whole(head, {k: block for k, block in blocks.items() if k not in ids})


def _blocks(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the entries, and each entry with the comments on top of it, by id."""
    lines = text.splitlines()
    starts = [k for k, line in enumerate(lines) if ENTRY.match(line)]
    for i, k in enumerate(starts):
        while k and (not lines[k - 1].strip() or lines[k - 1].startswith("#")):
            k -= 1
        starts[i] = k
    parts = ["\n".join(lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)])]
    ids = (next(line for line in p.splitlines() if ID.match(line)) for p in parts)
    return "\n".join(lines[: starts[0]] if starts else lines), {tomllib.loads(i)["id"]: p for i, p in zip(ids, parts)}


def _whole(head: str, blocks: Mapping[str, str]) -> str:
    return "\n\n".join(part.strip("\n") for part in (head, *(blocks[k] for k in sorted(blocks)))) + "\n"


def _with(text: str, section: re.Pattern[str], values: Json, keep: bool = False) -> str:
    """The text of a section with these values. Lines that hold the same already stay as they are. keep: other keys, too."""
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if section.match(line)) + 1
    made, missing = lines[:start], dict(values)
    while start < len(lines) and not lines[start].startswith("["):
        end = start + 1
        while (held := _loaded(lines[start:end])) is None and end < len(lines):
            end += 1
        key = next(iter(held or {}), None)
        if key is None or (keep and key not in values):
            made += lines[start:end]
        elif key in values:
            made += _changed(lines[start:end], key, missing.pop(key))
        start = end
    below = (_loaded(["[[known]]", *lines[start:]]) or {}).get("known", [{}])[0]  # tables that a person wrote as sections
    made += [x for key, v in missing.items() if key not in below for x in _statement(key, v)]
    return "\n".join([*made, *lines[start:]])


def _changed(old: list[str], key: str, value: Any) -> list[str]:
    """The lines of a key with another value; a list that only grew keeps its lines, for the sake of comments."""
    made, before = _statement(key, value), _loaded(old) or {}
    more = made[1 + len(before[key]) : -1] if isinstance(before[key], list) else []
    for lines in (old, [*old[:-1], *more, old[-1]]):
        if _loaded(lines) == _loaded(made):
            return lines
    return made


def _loaded(lines: Sequence[str]) -> Json | None:
    try:
        return tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return None


def _statement(key: str, value: Any) -> list[str]:
    if isinstance(value, tuple) and key not in WORDS and len(value) > 1:
        return [f"{key} = [", *(f"    {_toml(v)}," for v in value), "]"]
    return [f"{key} = {_toml(value)}"]


def _toml(value: Any) -> str:
    if isinstance(value, str):  # cases hold double quotes, which would need backslashes
        literal = '"' in value and "'" not in value and value.isprintable()
        return f"'{value}'" if literal else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k if k.isalpha() else json.dumps(k)} = {_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, (bool, date)) else repr(value)


def _filled(x: Any) -> Json:
    """The fields of a dataclass, without empty ones, with lists as tuples."""
    tree: Json = msgspec.to_builtins(x, builtin_types=(date,))
    return {k: v for k, v in tree.items() if v not in ("", None, (), [])}


def _values(e: Entry, what: str) -> Json:
    """The keys of an entry in the order of the file, without empty ones."""
    row = _filled(replace(e, cause=None)) | (_filled(e.cause) if e.cause else {})
    row |= {"what": what, "since": _filled(e.since), "by-chance": e.by_chance, "members": tuple(map(_filled, e.members))}
    row["extent"] = None if e.extent is None else tuple({"dtype": d, **dict(x)} for d, x in e.extent)
    return {k: row[k] for k in KEYS if row.get(k) or (k == "extent" and e.extent is not None)}


def write(path: Path, text: str) -> None:
    """Write the file at once or not at all, after a check that it can be read. Raises KnownError and OutputError."""
    parse(path, text)
    draft = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as e:
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another with --file") from None
