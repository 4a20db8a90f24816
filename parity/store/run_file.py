"""Reading and writing of run files: lines of JSON, with a header, rows tagged by their kind, and an end row. A file without its
end row is truncated.

Fields at their default are left out, NaN and Inf are written as strings, and every line is valid JSON, so that any tool can
read it.

A run file is data: reading it imports and runs nothing. A file is refused unless its texts are printable, its fields have the
right types, and its rows agree with its end row.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from parity.core import untrusted
from parity.core.case import source_of
from parity.core.errors import OutputError, RunFileError
from parity.core.results import Json, Record
from parity.core.stored import convert
from parity.store import marginal
from parity.store.features import Coverage, DrawnFeatures
from parity.store.figures import Figures, size
from parity.store.marginal import marked, recounted
from parity.store.rows import (
    KINDS,
    Again,
    Death,
    End,
    Header,
    ItemRow,
    Power,
    Row,
    Run,
    Sighting,
    explained,
    folded,
    totals,
    with_least,
)
from parity.store.upgrades import FORMAT, MAGIC, upgraded

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LARGEST = 256 << 20  # largest size of a run file, in bytes
LONGEST = 4 << 20  # most characters of a row
SHOWN = 400  # most characters of an error message about a row
NAMES = {kind: name for name, kind in KINDS.items()}


# --------------------------------------------------------------------------------------------------------------- writing


def encode(row: Row | Header) -> str:
    """One line, without the newline."""
    if isinstance(row, Header):
        tree = {MAGIC: 1, "format": FORMAT, **_plain(row), "complete": row.complete}
    else:
        tree = {"kind": NAMES[type(row)], **_plain(row)}
    return json.dumps(tree, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {f.name: _plain(v) for f, v in pairs if v != _default(f)}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    # A subclass of str (Status, Aspect) is written as the plain word.
    return str(value) if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)) else value


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()


class Writer:
    """Writes a new run file line by line, so that a killed run keeps all but its last row.

    Write the Header first and the End last. Raises OutputError with the path, the reason and the remedy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1, newline="\n")
            if path.is_file():
                _lock(self._file.fileno())
                self._file.truncate(0)
        except BlockingIOError:
            self._file.close()
            raise OutputError(f"another run is writing {path} now; wait for its end, or name another with --output") from None
        except OSError as e:
            raise self._failed(e) from None

    def write(self, row: Row | Header) -> None:
        """Append one row."""
        self.write_line(encode(row))

    def write_line(self, line: str) -> None:
        """Append a row that is already encoded (by a worker)."""
        try:
            self._file.write(line + "\n")
        except OSError as e:
            raise self._failed(e) from None

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as e:
            raise self._failed(e) from None

    def _failed(self, e: OSError) -> OutputError:
        return OutputError(
            f"cannot write the run file {self.path}: {e.strerror or e}; name another with --output, or free the disk"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _lock(file: int) -> None:
    """Keep other runs from this file until it is closed. Raises BlockingIOError where another one has it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return


def write(path: Path, run: Run) -> None:
    """Write a whole run, its records and items before what sums them up. Raises OutputError, and RunFileError if its rows
    contradict one another."""
    rows: list[Row] = [
        *run.records,
        *run.power,
        *run.figures,
        *run.known,
        *run.features,
        *run.items,
        *run.deaths,
        *run.coverage,
        *run.again,
    ]
    rows += [run.end] if run.end is not None else []
    if why := _contradiction(run, rows):
        raise RunFileError(f"the runs contradict one another: {why}; run the shards again")
    with Writer(path) as writer:
        writer.write(run.header)
        for row in rows:
            writer.write(row)


# --------------------------------------------------------------------------------------------------------------- reading


def read(path: Path, partial: bool = False) -> Run:
    """The content of a run file. partial: accept a truncated file. Raises RunFileError with a one-sentence reason."""
    header, rows, rest = _parsed(path)
    end = next((r for r in rows if isinstance(r, End)), None)
    run = Run(
        header,
        explained(r for r in rows if isinstance(r, Record)),
        folded(r for r in rows if isinstance(r, ItemRow)),
        with_least(r for r in rows if isinstance(r, Death)),
        end,
        tuple(r for r in rows if isinstance(r, Coverage)),
        tuple(r for r in rows if isinstance(r, Power)),
        tuple(r for r in rows if isinstance(r, Again)),
        tuple(r for r in rows if isinstance(r, Figures)),
        tuple(r for r in rows if isinstance(r, Sighting)),
        tuple(r for r in rows if isinstance(r, DrawnFeatures)),
    )
    why = _contradiction(run, rows)
    records = marked(run.records, run.again)
    run = marginal.of_run(replace(run, records=records, items=recounted(run.items, records)))
    if (end is None or rest) and not partial:
        how = "its last line is cut" if rest else "it has no end row"
        raise RunFileError(
            f"the run file {path} is truncated: {how}, {len(run.records)} records and {len(run.items)} items could be "
            "read; run it again, or read what is there with --accept partial"
        )
    if why:
        raise RunFileError(f"the run file {path} contradicts itself: {why}; the file was damaged or edited, run it again")
    return run


def rows_of(path: Path) -> Sequence[Row]:
    """The rows of a run file as they stand there, without a last one that is cut. Raises RunFileError."""
    return _parsed(path)[1]


def _parsed(path: Path) -> tuple[Header, Sequence[Row], str]:
    """Header and rows of a run file, and what is there of a last line that is cut."""
    try:
        text = untrusted.text(path, LARGEST)
    except FileNotFoundError:
        raise RunFileError(f"there is no run file {path}; parity run --output {path} would write one") from None
    except UnicodeDecodeError:
        raise RunFileError(f"{path} is no run file of parity: it is not text") from None
    except OSError as e:
        raise RunFileError(f"cannot read the run file {path}: {e.strerror or e}") from None
    except ValueError as e:
        raise RunFileError(f"cannot read the run file {path}: {e}; name a file that parity run wrote") from None
    if not text.strip():
        raise RunFileError(f"the run file {path} is empty: the run ended before it began; run it again")
    lines = text.split("\n")
    whole, rest = lines[:-1], lines[-1]
    if not whole or _json(rest) is not None:  # the last line is complete and only its newline is missing
        whole, rest = [*whole, rest], ""
    form, header = _header(path, whole[0])
    rows = [_row(path, number, line, form) for number, line in enumerate(whole[1:], 2) if line.strip()]
    return header, rows, rest


def _header(path: Path, line: str) -> tuple[int, Header]:
    """The format number of the file, and its header."""
    tree = _json(line)
    if tree is None or MAGIC not in tree or type(tree.get("format")) is not int:
        raise RunFileError(f"{path} is no run file of parity: its first line is no header; name a file that parity run wrote")
    form: int = tree["format"]
    if form > FORMAT:
        raise RunFileError(
            f"the run file {path} has format {form}, this parity reads up to {FORMAT}; upgrade parity to read it"
        )
    try:
        tree = upgraded(path, tree, form)
        header = convert({k: v for k, v in tree.items() if k not in (MAGIC, "format")}, Header)
        if not re.fullmatch(r"(\w[\w-]*(:\w+)?)?", header.fingerprint.device):
            raise ValueError(f"no device is called '{header.fingerprint.device}'")
    except UNREADABLE as e:
        why = f"the header cannot be read ({_short(e)})"
        raise RunFileError(f"{path}:1: {why}; the file was damaged or edited, run it again") from None
    return form, header


def _short(e: Exception) -> str:
    text = untrusted.printable(str(e))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


UNREADABLE = (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError)


def _row(path: Path, number: int, line: str, form: int) -> Row:
    try:
        tree = upgraded(path, _tree(line), form)
        kind = str(tree.pop("kind", ""))
        if kind not in KINDS:
            raise ValueError(f"unknown kind '{kind[:60]}'; allowed: {', '.join(KINDS)}")
        return convert(tree, KINDS[kind])
    except UNREADABLE as e:
        raise RunFileError(
            f"{path}:{number}: the row cannot be read ({_short(e)}); the file was damaged or edited, run it again"
        ) from None


def decode(line: str) -> Row:
    """A row from one line of this format. Raises RunFileError."""
    return _row(Path("a worker's report"), 1, line, FORMAT)


def _tree(line: str) -> Json:
    """One row as JSON. Raises ValueError."""
    if len(line) > LONGEST:
        raise ValueError(f"it has {len(line):,} characters")
    try:
        tree = untrusted.parsed(line)
    except json.JSONDecodeError:
        raise ValueError("no JSON") from None
    if not isinstance(tree, dict):
        raise ValueError("no JSON object")
    return tree


def _json(line: str) -> Json | None:
    try:
        return _tree(line)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------- rows that go together


def _contradiction(run: Run, rows: Sequence[Row]) -> str:
    """What in a run is impossible, such as duplicate rows, rows after the end row, or counts that differ from the end row;
    empty if nothing."""
    if what := _twice(run, rows):
        return f"the {what[:100]} stands in it twice"
    counts = {(i.op, i.dtype): i.counts for i in run.items}
    kinds = Counter((r.op, r.dtype, r.aspect, r.status) for r in run.records if not r.shrunk)
    for (op, dtype, aspect, status), n in kinds.items():
        if (op, dtype) in counts and n > counts[op, dtype].get(aspect, {}).get(status, 0):
            return f"{n} records of {op} {dtype} {aspect} are {status}, its item counts fewer"
    return _other_end(run, run.end, rows) if run.end is not None else ""


def _twice(run: Run, rows: Sequence[Row]) -> str:
    """The first row that stands in a run twice; empty if none does."""
    twice = Counter(f"item {i.op} {i.dtype}" + (f" round {i.round}" if i.round else "") for i in rows if isinstance(i, ItemRow))
    twice.update(f"coverage of {c.family}" for c in run.coverage)
    twice.update(f"row of figures of {f.op} {f.dtype} with keys {f.keys}" for f in run.figures)
    # Pinned cases of an OpInfo entry with one sample are equal, and older versions stored each of them.
    records = [r for r in run.records if not (r.pinned and source_of(r.op) != "native")]
    keys = Counter((r.key, r.kind) for r in records)
    twice.update(f"record {r}" for r in records if keys[r.key, r.kind] > 1)
    twice.update(f"finding tried again {a.op} {a.aspect} {a.case}" for a in run.again)
    twice.update(f"row of features of {f.op} {f.dtype} round {f.round}" for f in run.features)
    twice.update("end row" for r in rows if isinstance(r, End))
    return next((k for k, n in twice.items() if n > 1), "")


def _other_end(run: Run, end: End, rows: Sequence[Row]) -> str:
    """What contradicts the end row, or cannot be in a run that has one."""
    if not isinstance(rows[-1], End):
        return "rows stand behind its end row"
    stated, counted = end.totals, totals(run.items)
    for status in sorted(stated.keys() | counted.keys()):
        if stated.get(status, 0) != counted[status]:
            return f"its items hold {counted[status]} checks {status}, its end row says {stated.get(status, 0)}"
    missing = end.expected - len(run.items) if end.expected else 0
    if missing < 0:
        return f"it holds {len(run.items)} items, its end row says {end.expected}"
    if missing > len({*end.lost, *end.lacking}) and not (end.stopped or end.broken):
        named = f"names {len(set(end.lost))} as lost" if end.lost else "names none as lost"
        return f"it holds {len(run.items)} items, its end row says {end.expected} and {named}"
    cases = Counter[tuple[str, str]]()
    for f in run.figures:
        cases[f.op, f.dtype] += size(f)
    of_items = Counter[tuple[str, str]]()
    for i in run.items:
        of_items[i.op, i.dtype] += i.cases
    for (op, dtype), n in cases.items():
        if n != of_items[op, dtype]:
            return f"it holds figures of {n} cases of {op} {dtype}, its item says {of_items[op, dtype]}"
    return ""
