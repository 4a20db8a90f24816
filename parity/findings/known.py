"""The file of known findings: what a person has accepted of a device that computes wrong things, with a reason for each, so
that a run fails only on what is new.

The file is TOML and lies in the user's repository. A head, `[environment]`, says for which device, torch and OS it was written.
Each `[[known]]` is an entry: one cause (subject, symptom and properties, as `parity.core.results.Cause`), or, written by hand,
just a status of some ops. `KEYS` lists what an entry may hold. The file is data: it is read and checked, and nothing in it is
executed. `parity.findings.recognition` says which findings an entry stands for, `parity.findings.known_file` writes the file.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from parity.core import notation, untrusted
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError, KnownError, near
from parity.core.layout import base_shape
from parity.core.results import SYMPTOMS, UNSEARCHED, Aspect, Cause, Fingerprint, Json, Status
from parity.findings.extent import NAMES, Extent, exceeds, joined
from parity.store.code import Code

NAME = "parity-known.toml"  # where no other is named
FORMAT = 1
LARGEST = 16 << 20  # bytes of a file
LARGEST_OPERANDS = 16 << 30  # bytes of the operands of a case that is run again
WORST = tuple(str(s) for s in Status if s.is_finding or s.is_absence)  # what an entry can stand for
DIES = "dies"  # the symptom of findings that end or hang the process


def step(status: str) -> tuple[str, int]:
    """(kind, step) of a status: an entry stands for its own status and for those of its kind that are no worse. The kind is ""
    where values differ."""
    s = Status(status)
    if s.differs or s is Status.UNSTABLE:
        return "", int(s is not Status.DRIFT)
    return ("death" if s.is_death else s), 0


def covers(known: str, status: str) -> bool:
    """Whether a status is the known one, or of its kind and not worse by a class."""
    (kind, most), (other, k) = step(known), step(status)
    return kind == other and k <= most


def worst(statuses: Collection[str]) -> str:
    """The worst of some statuses of one kind."""
    return max(statuses, key=lambda s: (step(s)[1], s))


@dataclass(frozen=True, slots=True)
class Environment:
    """Where findings were seen. device: its family ("mps", "cuda", "sim:mps"); torch: the public version; os: name and version
    without the build."""

    device: str = ""
    torch: str = ""
    os: str = ""

    @classmethod
    def of(cls, f: Fingerprint) -> Environment:
        """The environment of a run."""
        kind, _, rest = f.device.partition(":")
        family = kind if rest.isdigit() or not rest else f.device
        version = re.match(r"[A-Za-z]+ \d+(\.\d+)?", f.os)
        return cls(family, f.torch.partition("+")[0], version[0] if version else f.os)

    def differences(self, other: Environment) -> tuple[str, ...]:
        """What differs in another environment, in words; nothing is said of what is not known here."""
        pairs = (("device", self.device, other.device), ("torch", self.torch, other.torch), ("OS", self.os, other.os))
        return tuple(f"{word} {a}, and this is {b}" for word, a, b in pairs if a and b and a != b)

    def __str__(self) -> str:
        return ", ".join(x for x in (self.device, f"torch {self.torch}" if self.torch else "", self.os) if x)


@dataclass(frozen=True, slots=True)
class Entry:
    """A known finding. id: that of the cause, or another name.

    cause: None for an entry of ops, dtypes, aspects and status alone; members: the single causes that were joined.
    ops, dtypes, aspects: where it was seen (an empty tuple of the last two stands for all); status: the worst that was seen;
    shows: how it shows, as `recognition.shown` says it; empty for any way.
    cases: the least cases, which every run replays first, each as "aspect: case"; also: further drawn cases that showed it.
    by_chance: whether it comes and goes in equal calls, so that it may show in any case of its ops and dtypes.
    extent: by dtype, at which values it shows, and how large the error is there; None where nobody measured it.
    until: the last day on which it is accepted; since: where it was first seen; line: of its head in the file.
    """

    id: str
    reason: str
    ops: tuple[str, ...]
    status: str
    cause: Cause | None = None
    members: tuple[Cause, ...] = ()
    dtypes: tuple[str, ...] = ()
    aspects: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    link: str = ""
    until: date | None = None
    since: Environment = Environment()
    line: int = 0
    by_chance: bool = False
    extent: tuple[tuple[str, Extent], ...] | None = None

    @property
    def older(self) -> bool:
        """Whether an older parity made it, which did not say at which values it shows: it matches its own cases only."""
        return self.extent is None and self.cause is not None and not self.dies

    @property
    def dies(self) -> bool:
        """Whether it ends or hangs the process, so that its cases must not be run in it."""
        return Status(self.status).is_death

    @property
    def why(self) -> str:
        """The reason, the link and the last day, for a report."""
        until = f"until {self.until}" if self.until else ""
        return "; ".join(x for x in (self.reason, self.link, until) if x)

    def expired(self, today: date) -> bool:
        """Whether its last day has passed."""
        return self.until is not None and today > self.until

    def holds(self, op: str, dtype: str, aspect: str, status: str) -> bool:
        """Whether a finding is one of those in its lists."""
        return (
            op in self.ops and self._in(dtype, self.dtypes) and self._in(aspect, self.aspects) and covers(self.status, status)
        )

    def beyond(self, op: str, dtype: str, status: str) -> str:
        """How a finding of the same cause goes beyond the entry, in words: another op or dtype, or worse by a class. Empty if
        it does not."""
        parts = [f"now in {op}"] if op not in self.ops else []
        parts += [f"now in {dtype}"] if not self._in(dtype, self.dtypes) else []
        parts += [f"now {status}, was {self.status}"] if not covers(self.status, status) else []
        return ", ".join(parts)

    def exceeded(self, dtype: str, found: Extent) -> str:
        """In which way an error is larger than the known one, or shows at other values, in words; empty if it does not. Of a
        dtype that is not known, it is compared with all."""
        if self.extent is None:
            return ""
        known = [e for d, e in self.extent if d == dtype] or [e for _, e in self.extent]
        return exceeds(found, joined(known), dtype)

    def same_cause(self, c: Cause) -> bool:
        """Whether a cause that was looked for is this one. A cause that needs more than this one does is this one, too: where
        every call is wrong, one of strided operands is. Of joined causes, one whose subject alone differs is another member."""
        if self.cause is None or UNSEARCHED in c.properties:
            return False
        for m in (self.cause, *self.members):
            like = (_bare(m.subject), m.symptom) == (_bare(c.subject), c.symptom)
            if like and set(m.properties) <= set(c.properties):
                return True
        joined = bool(self.members) and self.cause.subject not in {m.subject for m in self.members}
        says = bool(self.cause.properties) or self.cause.symptom.startswith("raises")
        return joined and says and (self.cause.symptom, self.cause.properties) == (c.symptom, c.properties)

    def shows_as(self, shows: str) -> bool:
        """Whether it may show so."""
        return self._in(shows, self.shows)

    @staticmethod
    def _in(word: str, words: tuple[str, ...]) -> bool:
        return not words or word in words


@dataclass(frozen=True, slots=True)
class Known:
    """A file of known findings. code: its path and the digest of its contents."""

    code: Code
    environment: Environment = Environment()
    entries: tuple[Entry, ...] = ()

    def entry(self, id: str) -> Entry:
        """The entry with this id. Raises KnownError with similar ids."""
        for e in self.entries:
            if e.id == id:
                return e
        ids = [e.id for e in self.entries]
        hint = near(id, ids) or (f"it has {', '.join(ids[:8])} ..." if ids else "it has no entry")
        raise KnownError(f"{self.code.name} has no entry '{untrusted.printable(id)[:80]}'; {hint}")

    def warnings(self, f: Fingerprint) -> tuple[str, ...]:
        """What a person should know before it is used on this machine."""
        name, differ = Path(self.code.name).name, "; ".join(self.environment.differences(Environment.of(f)))
        said = [f"{name} was written for {differ}: its entries are used all the same"] if differ else []
        if older := [e.id for e in self.entries if e.older]:
            said.append(
                f"{len(older)} of the entries of {name} do not say at which values they show, and match only their own cases: "
                f"make them anew with parity known add RUN ({', '.join(older[:3])}{' ...' if len(older) > 3 else ''})"
            )
        return tuple(said)


def _bare(subject: str) -> str:
    """The name of an operator or function without what stands around it: which of the two is named is chance where a finding
    comes and goes."""
    return subject.rpartition("::")[2].rpartition(".")[2].strip("_")


def aspect_and_case(text: str) -> tuple[str, str]:
    """The two parts of "forward: exp(float32[3])". The aspect is empty where a person left it out."""
    aspect, colon, case = text.partition(": ")
    return (aspect, case) if colon and Aspect.holds(aspect) else ("", text)


def parsed_case(text: str) -> Case:
    """The case of a text, with or without its aspect, small enough to be run. Raises CaseError."""
    case = notation.parse(aspect_and_case(text)[1])
    needed = sum(math.prod(base_shape(x.shape, x.layout)) * FACTS[x.dtype].bits // 8 for x in case.operands())
    if needed > LARGEST_OPERANDS:
        raise CaseError(f"its operands take {needed >> 30:,} GiB; at most {LARGEST_OPERANDS >> 30} GiB are run again")
    return case


# --------------------------------------------------------------------------------------------------------------- reading

TOP = ("format", "environment", "known")
ENVIRONMENT = ("device", "torch", "os")
CAUSE = ("subject", "symptom", "properties")
# The keys of an entry in the order of the file: what it is, why it is accepted, where it was seen, and what shows it. `what` is
# for readers.
KEYS = (
    *("id", "what", "reason", "link", "until", "since", *CAUSE, "members"),
    *("ops", "dtypes", "aspects", "status", "shows", "by-chance", "extent", "cases", "also"),
)
NEEDED = ("id", "reason", "ops", "status")
WORDS: Mapping[str, tuple[str, ...]] = {"dtypes": tuple(FACTS), "aspects": tuple(map(str, Aspect))}
LISTS = ("properties", "ops", "dtypes", "aspects", "shows", "cases", "also")


def read(path: Path) -> Known:
    """The known findings of a file. Raises KnownError that names the file, the line, the entry, the value, what is allowed and
    the next step."""
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
    environment = file.data.get("environment", {})
    if not isinstance(environment, dict):
        raise file.error(1, f"environment is {environment!r}", "write a section [environment]")
    file.only(environment, ENVIRONMENT, "key of [environment]", file.line("environment"), "")
    if bad := [k for k, v in environment.items() if not isinstance(v, str)]:
        raise file.error(file.line(bad[0]), f"{bad[0]} is {environment[bad[0]]!r}", f'write a text, like {bad[0]} = "..."')
    rows = file.data.get("known", [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise file.error(file.line("known"), "'known' is not a list of entries", "head each entry with [[known]]")
    entries: dict[str, Entry] = {}
    for row, line in zip(rows, file.heads(len(rows))):
        e = _entry(file, row, line)
        if e.id in entries:
            raise file.error(line, f"'{e.id}' stands twice, first in line {entries[e.id].line}", "drop one of the two")
        entries[e.id] = e
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    held = {k: untrusted.printable(v) for k, v in environment.items()}
    return Known(Code(str(path.absolute()), digest), Environment(**held), tuple(entries.values()))


class _File:
    """A file being read. The TOML parser keeps no line numbers, so they are found by scanning the text."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines = path, text.splitlines()
        try:
            self.data: Json = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            line = re.search(r"line (\d+)", str(e))
            raise self.error(int(line[1]) if line else len(self.lines), f"this is no TOML: {e}", "mend the line") from None
        except (RecursionError, ValueError) as e:
            why = "its brackets are too deep" if isinstance(e, RecursionError) else str(e)
            raise self.error(1, why, "restore the file from your repository") from None
        self.only(self.data, TOP, "key or section", 0, "")
        if self.data.get("format") != FORMAT or type(self.data["format"]) is not int:
            fault = f"format is {str(self.data.get('format'))[:40]!r}, this parity reads {FORMAT}"
            raise self.error(self.line("format"), fault, f"write 'format = {FORMAT}' on top, or upgrade parity")

    def line(self, key: str, start: int = 0) -> int:
        """Number of the first line after line `start` that sets `key` or is its section head; else `start`, or 1."""
        wanted = re.compile(rf"\s*(\[+\s*)?\"?{re.escape(key)}\"?\s*[=\]]")
        return next((i for i, text in enumerate(self.lines[start:], start + 1) if wanted.match(text)), start or 1)

    def heads(self, count: int) -> list[int]:
        """The lines of the heads of the entries."""
        lines = [i for i, text in enumerate(self.lines, 1) if re.match(r"\s*\[\[\s*\"?known\"?\s*\]\]", text)]
        return [*lines, *[1] * (count - len(lines))][:count]

    def only(self, keys: Collection[str], allowed: Collection[str], what: str, start: int, entry: str) -> None:
        """Raises KnownError for the first key that is not allowed."""
        for key in keys:
            if key not in allowed:
                close = near(key, allowed)
                hint = f"{close if close.startswith('did you') else ''} allowed: {', '.join(allowed)}".strip()
                raise self.error(self.line(key, start), f"unknown {what} '{key[:80]}'", hint, entry)

    def error(self, line: int, fault: str, remedy: str, entry: str = "") -> KnownError:
        """The KnownError, with file, line and entry."""
        of = f"known '{untrusted.printable(entry)[:80]}': " if entry else ""
        return KnownError(f"{self.path}:{line}: {of}{untrusted.printable(fault)[:400]}; {untrusted.printable(remedy)[:600]}")


def _entry(file: _File, row: Json, head: int) -> Entry:
    name = row.get("id")
    entry = name if isinstance(name, str) else ""
    file.only(row, KEYS, "key of [[known]]", head, entry)
    for key in NEEDED:
        if key not in row:
            raise file.error(head, f"'{key}' is missing", f"write {key} = ..., or drop the entry", entry)

    def fail(key: str, value: object, remedy: str) -> KnownError:
        shown = (
            repr(value) if not isinstance(value, int) or isinstance(value, bool) or abs(value) < 1 << 64 else "a huge number"
        )
        return file.error(file.line(key, head), f"{key} holds {shown[:120]}", remedy, entry)

    for key in KEYS:
        if key in row and (problem := _problem(key, row[key])):
            raise fail(key, *problem)
    cause = None
    if given := [k for k in CAUSE if k in row]:
        if not {"subject", "symptom"} <= set(given):
            raise file.error(head, "a cause needs a subject and a symptom", f"write both, or drop {', '.join(given)}", entry)
        cause = _cause(row)
    if Status(row["status"]).is_death != (cause is not None and cause.symptom == DIES) and cause is not None:
        raise fail("status", row["status"], f"with the symptom '{cause.symptom}' it can't be so; only deaths have '{DIES}'")
    since = row.get("since", {})
    return Entry(
        untrusted.printable(row["id"]),
        untrusted.printable(row["reason"]),
        _texts(row, "ops"),
        row["status"],
        cause,
        tuple(map(_cause, row.get("members", ()))),
        _texts(row, "dtypes"),
        _texts(row, "aspects"),
        _texts(row, "shows"),
        tuple(row.get("cases", ())),
        tuple(row.get("also", ())),
        untrusted.printable(row.get("link", "")),
        _day(row.get("until")),
        Environment(**{k: untrusted.printable(v) for k, v in since.items()}),
        head,
        row.get("by-chance", False),
        tuple(map(_extent, row["extent"])) if "extent" in row else None,
    )


def _texts(row: Json, key: str) -> tuple[str, ...]:
    return tuple(map(untrusted.printable, row.get(key, ())))


def _cause(row: Json) -> Cause:
    return Cause(untrusted.printable(row["subject"]), untrusted.printable(row["symptom"]), _texts(row, "properties"))


def _extent(row: Json) -> tuple[str, Extent]:
    return row["dtype"], tuple((k, float(x)) for k, x in row.items() if k != "dtype")


def _day(value: Any) -> date | None:
    return date.fromisoformat(value) if isinstance(value, str) else value


Problem = tuple[object, str]  # the value and the remedy


def _problem(key: str, value: Any) -> Problem | None:
    """What is wrong with the value of a key, if anything."""
    if key in LISTS:
        return _problem_of_list(key, value)
    if key == "by-chance":
        return None if isinstance(value, bool) else (value, "write true, or drop the line")
    if key == "until":
        return _problem_of_day(value)
    if key == "since":
        return _problem_of_table(value, ENVIRONMENT)
    if key == "members":
        return _problem_of_members(value)
    if key == "extent":
        return _problem_of_extent(value)
    if not isinstance(value, str) or (key in (*NEEDED, "subject", "symptom") and not value.strip()):
        return value, f'write a text, like {key} = "..."'
    if key == "status" and value not in WORST:
        return value, f"{near(value, WORST)} allowed: {', '.join(WORST)}"
    if key == "symptom" and value.partition(":")[0] not in SYMPTOMS:
        return value, f"allowed: {', '.join(SYMPTOMS)}"
    return None


def _problem_of_list(key: str, value: Any) -> Problem | None:
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        return value, f'write a list of texts, like {key} = ["..."]'
    if key == "ops" and not value:
        return value, "name at least one op"
    allowed = WORDS.get(key)
    for v in value if allowed else ():
        if allowed and v not in allowed and not (key == "aspects" and Aspect.holds(v)):
            return v, f"{near(v, allowed)} allowed: {', '.join(allowed)}"
    for v in value if key in ("cases", "also") else ():
        try:
            parsed_case(v)
        except CaseError as e:
            return v, f"{e}; or drop the line"
    return None


def _problem_of_day(value: Any) -> Problem | None:
    remedy = "write a day, like until = 2027-01-31"
    if isinstance(value, str):
        try:
            date.fromisoformat(value)
        except ValueError:
            return value, remedy
        return None
    return None if isinstance(value, date) and not isinstance(value, datetime) else (str(value), remedy)


def _problem_of_table(value: Any, keys: Collection[str]) -> Problem | None:
    if not isinstance(value, dict) or any(k not in keys or not isinstance(v, str) for k, v in value.items()):
        return value, f"write a table of texts with the keys {', '.join(keys)}"
    return None


def _problem_of_members(value: Any) -> Problem | None:
    remedy = f'write a list of tables with the keys {", ".join(CAUSE)}, like {{ subject = "aten::exp", symptom = "values" }}'
    for m in value if isinstance(value, list) else [None]:
        if not isinstance(m, dict) or not {"subject", "symptom"} <= m.keys() <= set(CAUSE):
            return m if m is not None else value, remedy
        for key in m:
            if problem := _problem(key, m[key]):
                return problem
    return None


def _problem_of_extent(value: Any) -> Problem | None:
    for e in value if isinstance(value, list) else [value]:
        errors = dict(e) if isinstance(e, dict) else {"": e}
        dtype = errors.pop("dtype", "")
        if dtype not in FACTS or not errors.keys() <= NAMES or not all(type(x) in (int, float) for x in errors.values()):
            return e, "nobody writes this by hand: parity known add makes it"
    return None


def cases_of(entries: Collection[Entry], op: str, dtype: str) -> Iterator[tuple[Entry, str, Case]]:
    """(entry, its text, case) of every least case of an op in a dtype."""
    for e in entries:
        for text in e.cases if op in e.ops else ():
            case = parsed_case(text)
            if (case.op, case.dtype) == (op, dtype):
                yield e, text, case
