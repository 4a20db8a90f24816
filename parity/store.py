"""Records <-> JSON lines. A run file is a header, rows tagged by their kind, and an end row; without it, it is truncated.

Fields that hold their default are left out, NaN and Inf are written as words, and every line is whole JSON, so that any
tool can read it. `FORMAT` counts changes that an older parity could not read; `UPGRADES` brings older rows up to date.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from parity.errors import OutputError, RunFileError
from parity.features import Coverage
from parity.vocabulary import Aspect, Fingerprint, Json, Measure, Record, Status

FORMAT = 3  # 2: rows of coverage, operators and case ids of items; 3: the setup of a run
MAGIC = "parity_run"
# From format n to n + 1, applied to every row (the header too) of an older file.
UPGRADES: dict[int, Callable[[Json], Json]] = {1: lambda tree: tree, 2: lambda tree: tree}

Counts: TypeAlias = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Header:
    """What was run, on what. started: ISO 8601 with offset; complete: whether the whole suite was selected; faults: the module
    that --faults named, or the full path of the file; setup: path and digest of the file that --setup named (`setup_of`)."""

    fingerprint: Fingerprint
    seed: str = ""
    profile: str = ""
    selection: str = ""
    started: str = ""
    complete: bool = True
    faults: str = ""
    setup: str = ""


def setup_of(path: Path) -> str:
    """A setup file in a header: its full path, and 8 hex digits over what it holds. Raises OSError where it cannot be read."""
    return f"{path.absolute()} {hashlib.blake2b(path.read_bytes(), digest_size=4).hexdigest()}"


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


@dataclass(frozen=True, slots=True)
class Death:
    """A process that died or hung while it ran a case. how: crash or hang; signal: its name; where: the Python stack."""

    op: str
    dtype: str
    case: str
    aspect: str = ""
    how: str = "crash"
    signal: str = ""
    stage: str = ""
    where: tuple[str, ...] = ()

    @property
    def by_device(self) -> bool:
        """Whether the device's side was at work. Where the reference dies, or the oracle, which runs while both are compared,
        that is torch's own trouble on the CPU."""
        return self.stage == "device"


@dataclass(frozen=True, slots=True)
class End:
    """The last row. seconds: wall time of the run; totals: status -> records; stopped: why it ended early, if it did."""

    seconds: float = 0.0
    totals: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""


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
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunFileError(f"there is no run file {path}; parity run --output {path} would write one") from None
    except UnicodeDecodeError:
        raise RunFileError(f"{path} is no run file of parity: it is not text") from None
    except OSError as e:
        raise RunFileError(f"cannot read the run file {path}: {e.strerror or e}") from None
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
    return run


def _header(path: Path, line: str) -> tuple[int, Header]:
    """The format number of the file, and its header."""
    tree = _json(line)
    if tree is None or MAGIC not in tree or not isinstance(tree.get("format"), int):
        raise RunFileError(f"{path} is no run file of parity: its first line is no header; name a file that parity run wrote")
    form: int = tree["format"]
    if form > FORMAT:
        raise RunFileError(
            f"the run file {path} has format {form}, this parity reads up to {FORMAT}; upgrade parity to read it"
        )
    tree = _upgraded(path, tree, form)
    body = {k: v for k, v in tree.items() if k not in (MAGIC, "format")}
    try:
        shown = body["fingerprint"]
        pairs = {k: tuple((str(a), str(b)) for a, b in shown.get(k, ())) for k in ("environment", "facts")}
        return form, Header(**{**body, "fingerprint": Fingerprint(**{**shown, **pairs})})
    except (TypeError, KeyError, ValueError, AttributeError) as e:
        raise RunFileError(f"{path}:1: the header cannot be read ({e}); the file was damaged or edited, run it again") from None


def _row(path: Path, number: int, line: str, form: int) -> Row:
    tree = _json(line)
    try:
        if tree is None:
            raise ValueError("no JSON object")
        tree = _upgraded(path, tree, form)
        made = KINDS[tree.pop("kind")]
        if made is Record:
            tree["measures"] = tuple(_measure(m) for m in tree.get("measures", ()))
        if made is Item:
            tree["worst"] = {k: float(v) for k, v in tree.get("worst", {}).items()}
            tree["operators"] = tuple(tree.get("operators", ()))
        if made is Power:
            tree["why"] = tuple(tree.get("why", ()))
        if made is Death:
            tree["where"] = tuple(tree.get("where", ()))
        row = made(**tree)
        _known(row)
        return row
    except (TypeError, KeyError, ValueError, AttributeError) as e:
        raise RunFileError(
            f"{path}:{number}: the row cannot be read ({e}); the file was damaged or edited, run it again"
        ) from None


def _known(row: Row) -> None:
    """Raise ValueError where a row holds a status or an aspect that there is not, or no text or number where one belongs."""
    for f in dataclasses.fields(row):
        kind = {"str": str, "int": int}.get(str(f.type))
        if kind is not None and not isinstance(getattr(row, f.name), kind):
            raise ValueError(f"'{f.name}' holds {getattr(row, f.name)!r}")
    statuses: Iterable[str] = ()
    aspects: Iterable[str] = ()
    if isinstance(row, Record):
        statuses, aspects = (row.status,), (row.aspect,)
    elif isinstance(row, Item):
        statuses, aspects = (s for counts in row.counts.values() for s in counts), row.counts
        numbers: Iterable[object] = (n for counts in row.counts.values() for n in counts.values())
        if not all(isinstance(n, int) for n in numbers):
            raise ValueError("a count is no number")
    elif isinstance(row, Death):
        statuses = (row.how,)
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
    return Measure(**{**tree, **floats, "index": tuple(tree.get("index", ())), "budget": terms})


def _json(line: str) -> Json | None:
    try:
        tree = json.loads(line)
    except ValueError:
        return None
    return tree if isinstance(tree, dict) else None


def _upgraded(path: Path, tree: Json, form: int) -> Json:
    """A row of an older format as this one's."""
    for step in range(form, FORMAT):
        if step not in UPGRADES:
            raise RunFileError(
                f"the run file {path} has format {form}, too old for this parity (it reads {FORMAT}); run it again"
            )
        tree = UPGRADES[step](tree)
    return tree
