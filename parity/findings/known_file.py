"""Reading and writing the file of known findings. Its entries are blocks in the order of their ids, and each list has a line
for each of its texts, so that a review shows what was added and what went, and git merges what two branches add. What a person
wrote into a block or on top of it stays: comments, and entries of their own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from parity.core import stored, untrusted
from parity.core.errors import KnownError, near
from parity.core.results import Cause, Json
from parity.findings import known_place
from parity.findings.extents import Measured
from parity.findings.known import DIES, Entry, Environment, Known
from parity.findings.known_place import NAME
from parity.store.code import Code

T = TypeVar("T")
FORMAT = 1
WORDS = ("properties", "dtypes", "aspects")  # short lists, on one line
NEW = f"""\
# What parity found here and a person accepted: parity run --known FILE fails on everything else.
# Each entry has its reason; its cases are run first. parity known add writes entries, parity known drop takes them out.
format = {FORMAT}
"""
# What TOML has of texts, comments, brackets, commas and line ends.
TOKEN = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\'|#[^\n]*|[][{},\n]', re.DOTALL)
DEPTH = {"[": 1, "{": 1, "]": -1, "}": -1}
EMPTY: tuple[object, ...] = ("", None, (), [])
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
    text = known_place.content(path)
    if not text.strip() and path.is_dir():
        raise KnownError(f"{path} holds no known findings; parity known add RUN --reason TEXT --file {path} writes some")
    return parse(path, text)


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
        self.path, self.text, self.lines = path, text, text.split("\n")
        try:
            self.data: Json = untrusted.cleaned(untrusted.toml(text))
        except tomllib.TOMLDecodeError as e:
            line = re.search(r"line (\d+)", str(e))
            raise self.error(int(line[1]) if line else len(self.lines), f"this is no TOML: {e}; mend the line") from None
        except ValueError as e:
            raise self.error(1, f"{e}; restore the file from your repository") from None
        if self.data.get("format") != FORMAT or type(self.data["format"]) is not int:
            fault = f"format is {str(self.data.get('format'))[:40]!r}, this parity reads {FORMAT}"
            raise self.error(self.line("format"), f"{fault}; write 'format = {FORMAT}' on top, or upgrade parity")

    def line(self, key: str, start: int = 0) -> int:
        """Number of the first line after line `start` that sets `key` or is its section head; else `start`, or 1."""
        wanted = re.compile(rf"\s*(\[+\s*)?\"?{re.escape(key)}\"?\s*[=\]]")
        return next((i for i, text in enumerate(self.lines[start:], start + 1) if key and wanted.match(text)), start or 1)

    def heads(self, count: int) -> list[int]:
        """The lines of the heads of the entries."""
        lines, row = [], 1
        for statement in _statements(self.text):
            lines += [row] if _section(statement) == ("known", "") else []
            row += 1 + statement.count("\n")
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
        return KnownError(f"{known_place.place(self.path, line)}: {of}{untrusted.printable(fault)}")


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


def updated(
    text: str,
    entries: Iterable[tuple[Entry, str]],
    environment: Environment | None = None,
    like: Mapping[str, str] = MappingProxyType({}),
    path: Path = Path(NAME),
) -> str:
    """The text of a file with these entries added, or in place of those with their ids. entries: each with a sentence on what
    it is; environment: that of the run that they were made from; like: by id, how new ones stand in another file, for their
    comments; path: for messages. An empty text is a new file. Raises KnownError for a layout that can't be edited."""
    text = text if text.strip() else NEW
    head, section, blocks = _blocks(path, text)
    place, rows = _held(text)
    if environment is not None:
        place |= _filled(environment)
        if "environment" in tomllib.loads(head):  # as one line, or with dots
            head = _with(head, {"environment": place}, keep=True)
        else:
            section = _with(section or "[environment]", place, keep=True)
    for e, what in entries:
        name = untrusted.printable(e.id)
        rows[name] = _values(e, what)
        blocks[name] = _with(blocks.get(name) or like.get(name, "[[known]]"), rows[name])
    return _whole(path, (head, section), blocks, (place, rows))


def dropped(text: str, ids: Collection[str], path: Path = Path(NAME)) -> str:
    """The text of a file without these entries. Raises KnownError for a layout that can't be edited."""
    head, section, blocks = _blocks(path, text)
    place, rows = _held(text)
    kept, left = ({k: v for k, v in held.items() if k not in ids} for held in (blocks, rows))
    return _whole(path, (head, section), kept, (place, left))


def texts(path: Path) -> dict[str, str]:
    """The text of each entry of a file, with the comments on top of it, by id. Raises KnownError."""
    return _blocks(path, known_place.content(path))[2]


def _held(text: str) -> tuple[Json, Json]:
    """The environment and the entries by id, as a text holds them."""
    data = tomllib.loads(text)
    return data.get("environment", {}), {untrusted.printable(row["id"]): row for row in data.get("known", ())}


def _blocks(path: Path, text: str) -> tuple[str, str, dict[str, str]]:
    """What stands before all sections, the section of the environment wherever it stands, and each entry by id. A section has
    the comments directly on top of it."""
    head: list[str] = []
    section: list[str] = []
    entries: list[list[str]] = []
    part = head
    for statement in _statements(text):
        if (name := _section(statement)) is not None:
            k = len(part)
            while k and part[k - 1].lstrip().startswith("#"):
                k -= 1
            above, part[k:] = part[k:], []
            if name == ("known", ""):
                entries.append([])
            part = entries[-1] if name[0] == "known" else section
            part += above
        part.append(statement)
    _, rows = _held(text)
    if len(rows) != len(entries):
        raise _uneditable(path)
    return "\n".join(head), "\n".join(section), dict(zip(rows, map("\n".join, entries)))


def _uneditable(path: Path) -> KnownError:
    how = "write each entry as a section [[known]] and the rest on top of them, and try again, or edit it by hand"
    return KnownError(f"{path} has a layout that parity can't edit, and is left as it was; {how}")


def _whole(path: Path, head: tuple[str, str], blocks: Mapping[str, str], held: tuple[Json, Json]) -> str:
    """The parts of a file together, after a check that they hold what they should. Raises KnownError."""
    parts = (part.strip("\n") for part in (*head, *(blocks[k] for k in sorted(blocks))))
    made = "\n\n".join(part for part in parts if part) + "\n"
    with contextlib.suppress(tomllib.TOMLDecodeError):
        if _plain(_held(made)) == _plain(held):
            return made
    raise _uneditable(path)


def _statements(text: str) -> Iterator[str]:
    """Each key with its value, head of a section, comment and blank line; joined by line ends they are the text."""
    text = text.replace("\r\n", "\n")
    start = depth = 0
    for t in TOKEN.finditer(text):
        depth += DEPTH.get(t[0], 0)
        if t[0] == "\n" and not depth:
            yield text[start : t.start()]
            start = t.end()
    yield text[start:]


def _section(statement: str) -> tuple[str, str] | None:
    """The first two names of a section's head, as ("known", "since"); ("known", "") of an entry's; None for others."""
    if not statement.lstrip().startswith("["):
        return None
    ((name, below),) = tomllib.loads(statement).items()
    return name, next(iter(below[0] if isinstance(below, list) else below), "")


def _with(text: str, values: Json, keep: bool = False) -> str:
    """A part of a file with these values. Statements that hold the same already stay as they are, and so do comments. keep:
    other keys, too."""
    row: Json = tomllib.loads(text)
    statements = [*_statements(text)]
    if any(map(_section, statements)):
        (held,) = row.values()
        row = held[0] if isinstance(held, list) else held
    same = {k for k, v in values.items() if k in row and _plain(row[k]) == _plain(v)}
    made: list[str] = []
    missing, table, end = dict(values), "", 0
    for s in statements:
        if not s.strip() or s.lstrip().startswith("#"):
            made.append(s)
            continue
        if (name := _section(s)) is not None:
            table = name[1]
        key = table or (next(iter(tomllib.loads(s))) if name is None else "")
        if not key or key in same or (keep and key not in values):
            made.append(s)
            missing.pop(key, None)
        elif key in missing and not table:
            made.append(_changed(s, key, missing.pop(key)))
        end = end if table else len(made)
    made[end:end] = [_statement(k, v) for k, v in missing.items()]
    return "\n".join(made)


def _changed(old: str, key: str, value: Any) -> str:
    """The statement of a key with another value, with the comments of the old one; those of texts that left a list go."""
    begin, end, depth, behind = 0, 0, 0, ""
    for t in TOKEN.finditer(old):
        depth += (step := DEPTH.get(t[0], 0))
        if depth == 1 and step == 1:
            begin = t.end()
        elif depth == 0 and step == -1:
            end = t.start()
        elif depth == 0 and t[0].startswith("#"):
            behind = f"  {t[0]}"
    if not isinstance(value, tuple) or "\n" not in old[begin:end]:
        return _statement(key, value) + behind
    items, rest = _items(old[begin:end])
    held = {_plain(tomllib.loads(f"x = {i.text}")["x"]): i for i in items}
    lines = [line for v in value for line in held.get(_plain(v), _Item(_toml(v))).lines()]
    return "\n".join([f"{key} = [", *lines, *(f"    {c}" for c in rest), f"]{behind}"])


@dataclass(slots=True)
class _Item:
    """A value in a list, with the comments above and behind it."""

    text: str
    above: list[str] = field(default_factory=list)
    behind: str = ""

    def lines(self) -> list[str]:
        """Its lines in the file."""
        return [*(f"    {c}" for c in self.above), f"    {self.text},{'  ' * bool(self.behind)}{self.behind}"]


def _items(inner: str) -> tuple[list[_Item], list[str]]:
    """What stands in the brackets of a list, and the comments after the last value."""
    items: list[_Item] = []
    now, start, depth, same_line = _Item(""), 0, 0, False
    for t in TOKEN.finditer(inner + "\n"):
        depth += DEPTH.get(t[0], 0)
        if depth or t[0][0] not in "#,\n":
            continue
        now.text = f"{now.text} {inner[start : t.start()]}".strip()
        start = t.end()
        if t[0][0] != "#":
            same_line = t[0] == ","
            if now.text:
                items.append(now)
                now = _Item("")
        elif now.text or same_line:
            one = now if now.text else items[-1]
            one.behind = f"{one.behind} {t[0]}".strip()
        else:
            now.above.append(t[0])
    return items, now.above


def _plain(x: Any) -> str:
    """A value in a form that can be compared: without empty fields, texts as they are read."""

    def plain(x: Any) -> object:
        if isinstance(x, dict):
            return {untrusted.printable(k): plain(v) for k, v in x.items() if v not in EMPTY}
        if isinstance(x, (tuple, list)):
            return [*map(plain, x)]
        return float(x) if type(x) in (int, float) else untrusted.printable(str(x))

    return json.dumps(plain(x), sort_keys=True)


def _statement(key: str, value: Any) -> str:
    if isinstance(value, tuple) and key not in WORDS and len(value) > 1:
        return "\n".join([f"{key} = [", *(f"    {_toml(v)}," for v in value), "]"])
    return f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, str):  # cases hold double quotes, which would need backslashes
        if '"' in value and "'" not in value and value.isprintable():
            return f"'{value}'"
        whole = value.encode("utf-8", "backslashreplace").decode("utf-8")  # TOML has no half characters
        return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in json.dumps(whole, ensure_ascii=False))
    if isinstance(value, dict):
        keys = {k: k if k.isascii() and k.isalpha() else _toml(k) for k in value}
        return f"{{{', '.join(f'{keys[k]} = {_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, (bool, date)) else repr(value)


def _filled(x: Any) -> Json:
    """The fields of a dataclass, without empty ones, with lists as tuples."""
    tree: Json = msgspec.to_builtins(x, builtin_types=(date,))
    return {k: v for k, v in tree.items() if v not in EMPTY}


def _values(e: Entry, what: str) -> Json:
    """The keys of an entry in the order of the file, without empty ones."""
    row = _filled(replace(e, cause=None)) | (_filled(e.cause) if e.cause else {})
    row |= {"what": what, "since": _filled(e.since), "by-chance": e.by_chance, "members": tuple(map(_filled, e.members))}
    row["extent"] = None if e.extent is None else tuple(map(_measured, e.extent))
    return {k: row[k] for k in KEYS if row.get(k) or (k == "extent" and e.extent is not None)}


def _measured(m: Measured) -> Json:
    return {k: v for k, v in (("op", m.op), ("in", m.tensor), ("dtype", m.dtype)) if v} | dict(m.extent)


def write(path: Path, text: str) -> None:
    """Write the file at once or not at all, after a check that it can be read; of a folder, the files that change. Raises
    KnownError and OutputError."""
    parse(path, text)
    head, section, blocks = _blocks(path, text) if path.is_dir() else ("", "", {})
    head = "\n\n".join(filter(None, (part.strip("\n") for part in (head, section))))
    known_place.write(path, text, f"{head}\n", {id: f"{b.strip()}\n" for id, b in blocks.items()})
