"""Records <-> JSON lines. A run file is a header, rows tagged by their kind, and an end row; without it, it is truncated.

Fields that hold their default are left out, NaN and Inf are written as words, and every line is whole JSON, so that any
tool can read it. `FORMAT` counts changes that an older parity could not read; `UPGRADES` brings older rows up to date.

A run file is data: reading it imports and runs nothing, its texts are printable, its numbers are numbers, and its rows agree
with its end row, or it is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from parity import untrusted
from parity.errors import OutputError, RunFileError, UsageError
from parity.features import Coverage
from parity.vocabulary import Aspect, Fingerprint, Json, Measure, Record, Status

# 2: rows of coverage, operators and case ids of items; 3: the setup of a run; 4: a digest of its faults, and what is lost.
FORMAT = 4
MAGIC = "parity_run"
LARGEST = 256 << 20  # bytes of a run file
LONGEST = 4 << 20  # characters of a row
LARGEST_CODE = 16 << 20  # bytes of a file of faults or of a setup
SHOWN = 400  # characters of what is wrong with a row

Counts: TypeAlias = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Code:
    """Code that a run was given, by name and contents; it is never looked up by what a run file says. name: the full path of a
    file, or a module; digest: 16 hex digits over what it held, empty where that is unknown."""

    name: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return self.name + (f" ({self.digest})" if self.digest else "") if self.name else "none"

    def same(self, other: Code) -> bool:
        """Whether both hold the same, whatever their names; by name where a digest is unknown."""
        return self.digest == other.digest if self.digest and other.digest else self.name == other.name


def code_of(given: str | None) -> Code:
    """A file or a module as a person named it; nothing of it is run. Raises OSError where a file cannot be read, UsageError
    where it is no ordinary one."""
    if not given:
        return Code()
    path = Path(given)
    if path.is_file() or path.suffix == ".py":
        return Code(str(path.absolute()), _digest([path]))
    folders: Sequence[str] | None = None
    spec = None
    for part in given.split("."):  # importlib's own find_spec would import the packages above the module
        spec = PathFinder.find_spec(part, folders)
        folders = spec.submodule_search_locations if spec else ()
    if spec is None or not spec.origin:  # what is wrong with it is said where it is used
        return Code(given)
    return Code(given, _digest(sorted(Path(spec.origin).parent.rglob("*.py")) if folders else [Path(spec.origin)]))


def _digest(files: Sequence[Path]) -> str:
    try:
        held = b"".join(untrusted.content(f, LARGEST_CODE) for f in files)
    except FileNotFoundError:
        return ""  # it is said where the file is used
    except ValueError as e:
        raise UsageError(f"cannot take {files[0]} as code: {e}; name a Python file") from None
    return hashlib.blake2b(held, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Header:
    """What was run, on what. started: ISO 8601 with offset; complete: whether the whole suite was selected; faults, setup: the
    code that --faults and --setup named."""

    fingerprint: Fingerprint
    seed: str = ""
    profile: str = ""
    selection: str = ""
    started: str = ""
    complete: bool = True
    faults: Code = Code()
    setup: Code = Code()


def _as_code(tree: Json) -> Json:
    """Format 4: faults and setup of a header have a name and a digest each."""
    if MAGIC in tree:
        name, _, digest = str(tree.get("setup", "")).rpartition(" ")
        setup = {"name": name or digest, "digest": digest if name else ""}
        codes = {"setup": setup, "faults": {"name": tree.get("faults", "")}}
        tree |= {key: code for key, code in codes.items() if key in tree}
    return tree


# From format n to n + 1, applied to every row (the header too) of an older file.
UPGRADES: dict[int, Callable[[Json], Json]] = {1: lambda tree: tree, 2: lambda tree: tree, 3: _as_code}


@dataclass(frozen=True, slots=True)
class Item:
    """The exploration of one op in one dtype. counts: aspect -> status -> records; worst: aspect -> largest measured share;
    void: reason -> how often a case said nothing. seconds: wall time. operators: with --reach, what compared cases dispatched
    on the device; idle: what only others dispatched, with the reason. ids: digest of the ids of all cases in their order.

    judged: elements of all results that were judged; left: reason -> elements that were not. elements: of the results into
    which errors were put, how many there are (total), are excused by an experiment (shown) or without one (unshown), have an
    honest budget of more than half of what they are (loose), are not 0 (nonzero), and would be told if off by 5 % (sharp)."""

    op: str
    dtype: str
    cases: int = 0
    counts: Counts = field(default_factory=dict)
    worst: Mapping[str, float] = field(default_factory=dict)
    void: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    operators: tuple[str, ...] = ()
    idle: Mapping[str, str] = field(default_factory=dict)
    ids: str = ""
    judged: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    elements: Mapping[str, int] = field(default_factory=dict)

    @property
    def unjudged(self) -> int:
        """Elements of which nothing was judged."""
        return sum(self.left.values())

    @property
    def judged_share(self) -> float:
        """Which part of the elements was judged; 1 where there is none."""
        total = self.judged + self.unjudged
        return self.judged / total if total else 1.0


@dataclass(frozen=True, slots=True)
class Power:
    """What the judge said of errors that were put into results of one op. dtype: of the results; counts: outcome
    (`parity.checking.power`) -> comparisons; why: what it said of those that it did not see."""

    op: str
    dtype: str
    aspect: str
    error: str
    counts: Mapping[str, int] = field(default_factory=dict)
    why: tuple[str, ...] = ()


DEVICE, CPU, OUTSIDE, UNKNOWN = "device", "cpu", "outside", "unknown"  # whose a death is
BLAMES = ("", DEVICE, CPU, OUTSIDE, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Death:
    """A process that died, hung or was killed while it ran a case. how: crash, hang or killed; signal: its name, or what else
    is known; where: the Python stack; blame: whose it is (`parity.inquest`), empty in files of before; why: what showed it."""

    op: str
    dtype: str
    case: str
    aspect: str = ""
    how: str = "crash"
    signal: str = ""
    stage: str = ""
    where: tuple[str, ...] = ()
    blame: str = ""
    why: str = ""

    @property
    def acquitted(self) -> bool:
        """Whether it is proved that the device has no part in it: only the CPU by itself dies of the case, each time."""
        return self.blame == CPU


def counted(deaths: Iterable[Death], items: Iterable[Item]) -> list[Death]:
    """The deaths that a run is answerable for: all but those of the CPU alone, and those from outside of which the item was
    examined whole afterwards."""
    whole = {(i.op, i.dtype) for i in items}
    return [d for d in deaths if not d.acquitted and not (d.blame == OUTSIDE and (d.op, d.dtype) in whole)]


@dataclass(frozen=True, slots=True)
class End:
    """The last row. seconds: wall time of the run; totals: status -> checks of all items; stopped: why it ended early, if it
    did. expected: how many items were asked for (0 in files of before); lost: those that were given up after several deaths;
    broken: what failed in parity itself."""

    seconds: float = 0.0
    totals: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""
    expected: int = 0
    lost: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A run file as it was read. end is None in a truncated one, which only `read(path, partial=True)` returns."""

    header: Header
    records: tuple[Record, ...] = ()
    items: tuple[Item, ...] = ()
    deaths: tuple[Death, ...] = ()
    end: End | None = None
    coverage: tuple[Coverage, ...] = ()
    power: tuple[Power, ...] = ()


Row: TypeAlias = Record | Item | Death | Coverage | Power | End
KINDS: dict[str, type[Row]] = {"record": Record, "item": Item, "death": Death, "coverage": Coverage, "power": Power, "end": End}
DEADLY = ("crash", "hang", "killed")
STATUSES, ASPECTS = tuple(map(str, Status)), tuple(map(str, Aspect))
NAMES = {made: kind for kind, made in KINDS.items()}


# --------------------------------------------------------------------------------------------------------------- writing


def encode(row: Row | Header) -> str:
    """One line, without its end."""
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
    """Writes a new run file, a whole line at a time, so that a killed run keeps all but its last row.

    Write the Header first and the End last. Raises OutputError with the path, the reason and the remedy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", buffering=1, newline="\n")
        except OSError as e:
            raise self._failed(e) from None

    def write(self, row: Row | Header) -> None:
        """Append one row."""
        self.write_line(encode(row))

    def write_line(self, line: str) -> None:
        """Append a row that is encoded already (a worker's)."""
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


# --------------------------------------------------------------------------------------------------------------- reading


def read(path: Path, partial: bool = False) -> Run:
    """A run file. partial: take what a truncated one holds. Raises RunFileError: what is wrong, in one sentence."""
    try:
        text = untrusted.content(path, LARGEST).decode("utf-8")
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
    if not whole or _json(rest) is not None:  # a last line that only lacks its line end is whole
        whole, rest = [*whole, rest], ""
    form, header = _header(path, whole[0])
    rows = [_row(path, number, line, form) for number, line in enumerate(whole[1:], 2) if line.strip()]
    end = next((r for r in rows if isinstance(r, End)), None)
    run = Run(
        header,
        tuple(r for r in rows if isinstance(r, Record)),
        tuple(r for r in rows if isinstance(r, Item)),
        tuple(r for r in rows if isinstance(r, Death)),
        end,
        tuple(r for r in rows if isinstance(r, Coverage)),
        tuple(r for r in rows if isinstance(r, Power)),
    )
    if (end is None or rest) and not partial:
        how = "its last line is cut" if rest else "it has no end row"
        raise RunFileError(
            f"the run file {path} is truncated: {how}, {len(run.records)} records and {len(run.items)} items could be "
            "read; run it again, or read what is there with --partial"
        )
    if why := _contradiction(run, rows):
        raise RunFileError(f"the run file {path} contradicts itself: {why}; the file was damaged or edited, run it again")
    return run


def totals(items: Iterable[Item]) -> Counter[str]:
    """Checks per status."""
    count: Counter[str] = Counter()
    for item in items:
        for by_status in item.counts.values():
            count.update(by_status)
    return count


def _contradiction(run: Run, rows: Sequence[Row]) -> str:
    """What of a run cannot be: rows that stand twice or behind the end, and counts that the end row denies."""
    twice = Counter(f"item {i.op} {i.dtype}" for i in run.items)
    twice.update(f"coverage of {c.family}" for c in run.coverage)
    twice.update(f"record {r}" for r in run.records)
    twice.update("end row" for r in rows if isinstance(r, End))
    if what := next((k for k, n in twice.items() if n > 1), ""):
        return f"the {what[:100]} stands in it twice"
    counts = {(i.op, i.dtype): i.counts for i in run.items}
    kinds = Counter((r.op, r.dtype, r.aspect, r.status) for r in run.records if not r.shrunk)
    for (op, dtype, aspect, status), n in kinds.items():
        if (op, dtype) in counts and n > counts[op, dtype].get(aspect, {}).get(status, 0):
            return f"{n} records of {op} {dtype} {aspect} are {status}, its item counts fewer"
    if run.end is None:
        return ""
    if not isinstance(rows[-1], End):
        return "rows stand behind its end row"
    told, found = run.end.totals, totals(run.items)
    for status in sorted(told.keys() | found.keys()):
        if told.get(status, 0) != found[status]:
            return f"its items hold {found[status]} checks {status}, its end row says {told.get(status, 0)}"
    if run.end.expected and len(run.items) > run.end.expected:
        return f"it holds {len(run.items)} items, its end row says {run.end.expected}"
    return ""


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
        tree = _upgraded(path, tree, form)
        body = {k: v for k, v in tree.items() if k not in (MAGIC, "format")}
        shown = body["fingerprint"]
        pairs = {k: tuple((str(a), str(b)) for a, b in shown.get(k, ())) for k in ("environment", "facts")}
        body |= {k: Code(**body[k]) for k in ("faults", "setup") if k in body}
        header = Header(**{**body, "fingerprint": Fingerprint(**{**shown, **pairs})})
        for part in (header, header.fingerprint, header.faults, header.setup):
            _typed(part)
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
        tree = _tree(line)
        tree = _upgraded(path, tree, form)
        made = KINDS[tree.pop("kind")]
        if made is Record:
            tree["measures"] = tuple(_measure(m) for m in tree.get("measures", ()))
        if made is Item:
            tree["worst"] = {k: float(v) for k, v in tree.get("worst", {}).items()}
        for name in TUPLES.get(made, ()):
            tree[name] = tuple(tree.get(name, ()))
        row = made(**tree)
        _typed(row)
        _known(row)
        return row
    except UNREADABLE as e:
        raise RunFileError(
            f"{path}:{number}: the row cannot be read ({_short(e)}); the file was damaged or edited, run it again"
        ) from None


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _all(values: object, of: Callable[[Any], bool]) -> bool:
    return isinstance(values, Mapping) and all(isinstance(k, str) and of(v) for k, v in values.items())


def _is_count(x: object) -> bool:
    return type(x) is int and x >= 0


# What a field of a row may hold, by its annotation.
HOLDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda x: isinstance(x, str),
    "bool": lambda x: isinstance(x, bool),
    "int": _is_count,
    "float": _is_number,
    "float | None": lambda x: x is None or _is_number(x),
    "Counts": lambda x: _all(x, lambda inner: _all(inner, _is_count)),
    "Mapping[str, int]": lambda x: _all(x, _is_count),
    "Mapping[str, float]": lambda x: _all(x, _is_number),
    "Mapping[str, str]": lambda x: _all(x, lambda v: isinstance(v, str)),
    "Mapping[str, Mapping[str, int]]": lambda x: _all(x, lambda inner: _all(inner, _is_count)),
    "Mapping[str, Mapping[str, float]]": lambda x: _all(x, lambda inner: _all(inner, _is_number)),
    "tuple[str, ...]": lambda x: isinstance(x, tuple) and all(isinstance(v, str) for v in x),
    "tuple[int, ...]": lambda x: isinstance(x, tuple) and all(type(v) is int for v in x),
    "tuple[Measure, ...]": lambda x: True,  # each was looked at by itself
    "tuple[tuple[str, float], ...]": lambda x: True,  # likewise
    "tuple[tuple[str, str], ...]": lambda x: True,  # likewise
    "Fingerprint": lambda x: True,  # likewise
    "Code": lambda x: True,  # likewise
}
TUPLES: Mapping[type[object], Sequence[str]] = {
    Item: ("operators",), Power: ("why",), Death: ("where",), End: ("lost", "broken"),
}  # fmt: skip


def _typed(row: Any) -> None:
    """Raise ValueError where a field holds what its annotation does not say."""
    for f in dataclasses.fields(row):
        value = getattr(row, f.name)
        if not HOLDS[str(f.type)](value):
            raise ValueError(f"'{f.name}' holds {str(value)[:60]!r}")


def _known(row: Row) -> None:
    """Raise ValueError where a row holds a status, an aspect or another word that there is not."""
    statuses: Iterable[str] = ()
    aspects: Iterable[str] = ()
    if isinstance(row, Record):
        statuses, aspects = (row.status,), (row.aspect,)
    elif isinstance(row, Item):
        statuses, aspects = (s for counts in row.counts.values() for s in counts), row.counts
    elif isinstance(row, Coverage):
        if max(row.counts.values(), default=0) > row.cases:
            raise ValueError("a feature counts more cases than there are")
    elif isinstance(row, Death):
        statuses, aspects = (row.how,), (row.aspect,) if row.aspect else ()
        if row.how in STATUSES and row.how not in DEADLY:
            raise ValueError(f"no process ends by '{row.how}'; allowed: {', '.join(DEADLY)}")
        if row.blame not in BLAMES:
            raise ValueError(f"unknown blame '{row.blame}'; allowed: {', '.join(BLAMES[1:])}")
    elif isinstance(row, End):
        statuses = row.totals
    for word in statuses:
        if word not in STATUSES:
            raise ValueError(f"unknown status '{word}'; allowed: {', '.join(STATUSES)}")
    for word in aspects:
        if word not in ASPECTS:
            raise ValueError(f"unknown aspect '{word}'; allowed: {', '.join(ASPECTS)}")


def decode(line: str) -> Row:
    """A row from one line of this format. Raises RunFileError."""
    return _row(Path("a worker's report"), 1, line, FORMAT)


def _measure(tree: Json) -> Measure:
    """A measure; numbers that JSON cannot hold come back from their words."""
    numbers = ("share", "reference_share", "max_abs", "max_ulp", "spread")
    floats = {k: float(tree[k]) for k in numbers if tree.get(k) is not None}
    terms = tuple((str(word), float(value)) for word, value in tree.get("budget", ()))
    made = Measure(**{**tree, **floats, "index": tuple(tree.get("index", ())), "budget": terms})
    _typed(made)
    return made


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


def _upgraded(path: Path, tree: Json, form: int) -> Json:
    """A row of an older format as this one's."""
    for step in range(form, FORMAT):
        if step not in UPGRADES:
            raise RunFileError(
                f"the run file {path} has format {form}, too old for this parity (it reads {FORMAT}); run it again"
            )
        tree = UPGRADES[step](tree)
    return tree
