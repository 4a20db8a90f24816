"""Writing the file of known findings. Each entry is a table, and each list has a line for each of its texts, so that a review
shows what was added and what went. What a person wrote into the file stays: comments, the order, and entries of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Array, Table

from parity.core.errors import OutputError
from parity.core.results import Cause
from parity.findings import known
from parity.findings.known import FORMAT, Entry, Environment

WORDS = ("properties", "dtypes", "aspects")  # short lists, on one line
HEAD = (
    "What parity found here and a person accepted: parity run --known FILE fails on everything else.",
    "Each entry has its reason; its cases are run first. parity known add writes entries, parity known drop takes them out.",
)


def updated(text: str, entries: Iterable[tuple[Entry, str]], environment: Environment | None) -> str:
    """The text of a file with these entries added, or in place of those with their ids. entries: each with a sentence on what
    it is; environment: that of the run that they were made from. An empty text is a new file."""
    document = tomlkit.parse(text) if text.strip() else _new()
    if environment is not None:
        head = document.setdefault("environment", tomlkit.table())
        _set(
            head, {k: v for k, v in (("device", environment.device), ("torch", environment.torch), ("os", environment.os)) if v}
        )
    rows = document.get("known")
    if rows is None:
        rows = document["known"] = tomlkit.aot()
    there = {row["id"]: row for row in rows}
    for e, what in entries:
        if e.id in there:
            _set(there[e.id], _values(e, what))
        else:
            row = tomlkit.table()
            _set(row, _values(e, what))
            rows.append(row)
            there[e.id] = row
    return _spaced(tomlkit.dumps(document))


def dropped(text: str, ids: Collection[str]) -> str:
    """The text of a file without these entries."""
    document = tomlkit.parse(text)
    rows = document["known"]
    for k in reversed([k for k, row in enumerate(rows) if row["id"] in ids]):
        del rows[k]
    if not len(rows):
        del document["known"]
    return _spaced(tomlkit.dumps(document))


def _spaced(text: str) -> str:
    """The text with an empty line before each entry, or before the comment on top of it."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip() == "[[known]]":
            k = len(lines)
            while k and lines[k - 1].startswith("#"):
                k -= 1
            if k and lines[k - 1].strip():
                lines.insert(k, "")
        if line.strip() or (lines and lines[-1].strip()):
            lines.append(line)
    return "\n".join(lines).rstrip("\n") + "\n"


def write(path: Path, text: str) -> None:
    """Write the file at once or not at all, after a check that it can be read. Raises KnownError and OutputError."""
    known.parse(path, text)
    draft = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as e:
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another with --file") from None


def _new() -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    for line in HEAD:
        document.add(tomlkit.comment(line))
    document.add("format", tomlkit.item(FORMAT))
    document.add(tomlkit.nl())
    return document


def _values(e: Entry, what: str) -> Mapping[str, Any]:
    """The keys of an entry in the order of the file, without empty ones."""
    cause: Mapping[str, Any] = {}
    if e.cause is not None:
        cause = {"subject": e.cause.subject, "symptom": e.cause.symptom, "properties": e.cause.properties}
    since = {k: v for k, v in (("torch", e.since.torch), ("os", e.since.os), ("device", e.since.device)) if v}
    values = {
        "id": e.id, "what": what, "reason": e.reason, "link": e.link, "until": e.until, "since": since, **cause,
        "members": e.members, "ops": e.ops, "dtypes": e.dtypes, "aspects": e.aspects, "status": e.status, "shows": e.shows,
        "by-chance": e.by_chance, "extent": tuple({"dtype": d, **dict(x)} for d, x in e.extent or ()), "cases": e.cases,
        "also": e.also,
    }  # fmt: skip
    return {k: v for k, v in values.items() if v or (k == "extent" and e.extent is not None)}


def _set(table: Table | Any, values: Mapping[str, Any]) -> None:
    """Set the keys of a table, and leave those alone that hold the same value already."""
    for key, value in values.items():
        made = _array(value, key not in WORDS) if isinstance(value, tuple) else _item(value)
        if key in table and table[key] == made:
            continue
        if key in table and isinstance(value, tuple) and len(table[key]) > 1 and [*made][: len(table[key])] == [*table[key]]:
            for v in made[len(table[key]) :]:  # in place, for the sake of comments
                table[key].append(v)
        elif key in table:
            table[key] = made
        else:
            table.add(key, made)


def _item(value: Any) -> Any:
    if isinstance(value, str):  # cases hold double quotes, which would need backslashes
        return tomlkit.string(value, literal='"' in value and "'" not in value and value.isprintable())
    if isinstance(value, Cause):
        facts = {"subject": value.subject, "symptom": value.symptom, "properties": value.properties}
        return _inline({k: v for k, v in facts.items() if v})
    return _inline(value) if isinstance(value, dict) else tomlkit.item(value)


def _inline(values: Mapping[str, Any]) -> Any:
    table = tomlkit.inline_table()
    for k, v in values.items():
        table.append(k, list(v) if isinstance(v, tuple) else v)
    return table


def _array(values: tuple[Any, ...], lines: bool) -> Array:
    made = tomlkit.array()
    for v in values:
        made.append(_item(v))
    return made.multiline(lines and len(values) > 1)
