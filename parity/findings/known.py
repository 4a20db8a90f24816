"""The file of known findings: what a person has accepted of a device that computes wrong things, with a reason for each, so
that a run fails only on what is new.

The file is TOML and lies in the user's repository. A head, `[environment]`, says for which device, torch and OS it was written.
Each `[[known]]` is an `Entry`: one cause (subject, symptom and properties, as `parity.core.results.Cause`), or, written by
hand, just a status of some ops. The file is data: it is read by the annotations of `Entry`, and nothing in it is executed.

`Entry.excess` says whether a finding is contained in an entry, and if not, why; `Entry.same_cause` whether it is of the same
cause; `accepting` which entries hold a finding as it is. `parity.findings.recognition` compares their cases,
`parity.findings.known_file` writes the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

from parity.core import notation, stored, untrusted
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError, KnownError, near
from parity.core.layout import base_shape
from parity.core.results import EXTREME_VALUES, NON_FINITE, UNSEARCHED, Aspect, AspectWord, Cause, Fingerprint, Record, Status
from parity.findings.extents import PLACES, Extent, Measured, exceeds, has_size, joined, outgrows, scaled, wrong_in
from parity.store.code import Code
from parity.store.rows import EXPIRED, GROWN, SEEN, ItemRow, Sighting, is_own

LARGEST_OPERANDS = 16 << 30  # bytes of the operands of a case that is run again
WORST = tuple(str(s) for s in Status if s.is_finding or s.is_absence)  # what an entry can stand for
RARE = {EXTREME_VALUES, NON_FINITE}  # properties of values
DIES = "dies"  # the symptom of findings that end or hang the process


def step(status: str) -> tuple[str, int]:
    """(kind, step) of a status: an entry stands for its own status and for those of its kind that are no worse. The kind is ""
    where values differ."""
    s = Status(status)
    if s.differs or s is Status.UNSTABLE:
        return "", int(s.is_finding and s is not Status.DRIFT)
    return ("death" if s.is_death else s), 0


def covers(known: str, status: str) -> bool:
    """Whether a status is the known one, or of its kind and not worse by a class."""
    (kind, most), (other, k) = step(known), step(status)
    return kind == other and k <= most


def worst(statuses: Collection[str]) -> str:
    """The worst of some statuses of one kind."""
    return max(statuses, key=lambda s: (step(s)[1], s))


# ------------------------------------------------------------------------------------------------- what an entry may hold


class _Text(stored.Special):
    @classmethod
    def read(cls, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise TypeError('expected a text, like "..."')
        return value


class _CaseText(stored.Special):
    @classmethod
    def read(cls, value: object) -> str:
        try:
            parsed_case(text := _Text.read(value))
        except CaseError as e:
            raise ValueError(f"'{text}' cannot be run: {e}; or drop the line") from None
        return text


class _Day(stored.Special):
    @classmethod
    def read(cls, value: object) -> date:
        try:
            day = date.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            day = None
        if not isinstance(day, date) or isinstance(day, datetime):
            raise TypeError("expected a day, like 2027-01-31")
        return day


class _Extents(stored.Special):
    @classmethod
    def read(cls, value: object) -> Measured:
        errors = dict(value) if isinstance(value, dict) else {}
        dtype, op, tensor = (errors.pop(key, "") for key in ("dtype", "op", "in"))
        good = dtype in FACTS and isinstance(op, str) and isinstance(tensor, str) and errors.keys() <= PLACES
        if not good or not all(type(x) in (int, float) for x in errors.values()):
            raise ValueError(f"extent holds {str(value)[:120]}; nobody writes this by hand: parity known add makes it")
        return Measured(dtype, op, tensor, tuple((k, float(x)) for k, x in errors.items()))


_Text.register(str)
_CaseText.register(str)
_Day.register(date)
_Extents.register(Measured)
if TYPE_CHECKING:
    Text: TypeAlias = str
    CaseText: TypeAlias = str
    Day: TypeAlias = date
    Extents: TypeAlias = Measured
    Dtype: TypeAlias = str
    Worst: TypeAlias = str
else:
    Text, CaseText, Day, Extents = _Text, _CaseText, _Day, _Extents
    Dtype, Worst = stored.words("unknown dtype '{}'", FACTS), stored.words("an entry stands for no status '{}'", WORST)


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
class Found:
    """A finding, as an entry is compared with it. aspect, shows, tensor: empty where any will do; case: for what is said of it;
    pinned: whether a pinned case showed it, None if nobody asks."""

    op: str
    dtype: str
    status: str
    aspect: str = ""
    shows: str = ""
    tensor: str = ""
    extent: Extent = ()
    case: str = ""
    pinned: bool | None = None

    @classmethod
    def of(cls, r: Record) -> Found:
        """A stored one."""
        return cls(r.op, r.dtype, r.status, r.aspect, "", tensor_of(r), r.extent, r.shrunk or r.case)


def tensor_of(r: Record) -> str:
    """The tensor that a finding was measured in; that of a function of a user's holds for all of its tensors."""
    return r.measures[0].tensor if r.measures and not is_own(r.op) else ""


def _is_derivative(tensor: str) -> bool:
    """Whether a tensor is computed from results, so that an error of these shows in it, and not the other way round."""
    return tensor.startswith(("grad", "tangent"))


@dataclass(frozen=True, slots=True)
class Excess:
    """How a finding goes beyond an entry, in words. wider: another op, dtype, pass or tensor, worse by a class, other values, a
    larger error there, or a plainer call; plainer: larger or plainer than all that is known. Both are empty for what is
    contained in the entry."""

    wider: str = ""
    plainer: str = ""

    def __bool__(self) -> bool:
        return bool(self.wider or self.plainer)

    def __str__(self) -> str:
        return self.plainer or self.wider


@dataclass(frozen=True, slots=True)
class Entry:
    """A known finding. id: that of the cause, or another name.

    cause: None for an entry of ops, dtypes, aspects and status alone; members: the single causes that were joined.
    ops, dtypes, aspects: where it was seen (an empty tuple of the last two stands for all); status: the worst that was seen;
    shows: how it shows, as `recognition.shown` says it; empty for any way.
    cases: the least cases, which every run replays first, each as "aspect: case"; also: further drawn cases that showed it.
    by_chance: whether it comes and goes in equal calls, so that it may show in any case of its ops and dtypes.
    extent: by op, tensor and dtype, at which values it shows, and how large the error is there; None where nobody measured it.
    until: the last day on which it is accepted; since: where it was first seen; line: of its head in the file.
    """

    id: Text
    reason: Text
    ops: Annotated[tuple[Text, ...], Meta(min_length=1)]
    status: Worst
    cause: Cause | None = None
    members: tuple[Cause, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    aspects: tuple[AspectWord, ...] = ()
    shows: tuple[Text, ...] = ()
    cases: tuple[CaseText, ...] = ()
    also: tuple[CaseText, ...] = ()
    link: str = ""
    until: Day | None = None
    since: Environment = Environment()
    line: int = 0
    by_chance: bool = False
    extent: tuple[Extents, ...] | None = None

    @property
    def older(self) -> bool:
        """Whether an older parity made it, which did not say at which values it shows: it matches its own cases only."""
        return self.extent is None and self.cause is not None and not self.dies

    @property
    def dies(self) -> bool:
        """Whether it ends or hangs the process, so that its cases must not be run in it."""
        return Status(self.status).is_death

    @property
    def texts(self) -> list[str]:
        """All of its cases, without their aspects."""
        return [aspect_and_case(text)[1] for text in (*self.cases, *self.also)]

    @property
    def why(self) -> str:
        """The reason, the link and the last day, for a report."""
        until = f"until {self.until}" if self.until else ""
        return "; ".join(x for x in (self.reason, self.link, until) if x)

    def expired(self, today: date) -> bool:
        """Whether its last day has passed."""
        return self.until is not None and today > self.until

    def excess(self, f: Found) -> Excess:
        """How a finding goes beyond this entry, if it does. An error is compared with those of its op and tensor, and with all
        where none of these is known; one of a dtype that is not known with those of all dtypes, relative to the results."""
        parts = [f"now in {f.op}"] if f.op not in self.ops else []
        parts += [f"now in {f.dtype}"] if self.dtypes and f.dtype not in self.dtypes else []
        parts += [f"now in the {f.aspect} pass"] if f.aspect and self.aspects and f.aspect not in self.aspects else []
        parts += [f"now {f.status}, was {self.status}"] if not covers(self.status, f.status) else []
        parts += [f"now {f.shows}"] if f.shows and self.shows and f.shows not in self.shows else []
        if self.extent is None or not f.extent:
            return Excess(", ".join(parts))
        alike = [m for m in self.extent if has_size(m, f.dtype) and (not f.tensor or m.tensor in ("", f.tensor))]
        there = [m for m in alike if m.op in ("", f.op)]
        parts += [f"now in {f.tensor} of {f.op}"] if not there and self.extent and f.op in self.ops else []
        if not _is_derivative(f.tensor) and self.extent and all(_is_derivative(m.tensor) for m in self.extent):
            return Excess(plainer=", ".join([*parts, f"now in {f.tensor or f.op}, was in derivatives alone"]))

        def of(some: Sequence[Measured]) -> Extent:
            return joined([m.extent for m in some if m.dtype == f.dtype] or [scaled(some, f.dtype)])

        larger = exceeds(f.extent, of(there), f.dtype)
        # How large one op's error was is chance of few cases where another op shows the same kernel. Joined causes are several.
        here = there if there and len({m.kernel for m in self.members}) > 1 else alike
        every, own = scaled(self.extent, f.dtype), any(m.dtype == f.dtype for m in here)
        beyond = larger and outgrows(f.extent, of(here), every, f.dtype, own, wrong_in(here or self.extent))
        return Excess(", ".join(parts) or larger, beyond)

    def sighting(self, f: Found, today: date, excess: Excess = Excess(), strict: bool = False, fails: bool = True) -> Sighting:
        """What a run says of a finding of this entry. excess: how it goes beyond it; strict: whether that fails where
        exploration alone showed it, too; fails: whether the finding fails a run unless it is accepted."""
        if self.expired(today):
            state, why = EXPIRED, f"accepted until {self.until}: {self.reason}"
        elif excess:
            state, fails = GROWN, f.pinned is not False or bool(excess.plainer) or strict
            why = f"{excess}{'' if f.pinned is None else ' (in a pinned case)' if f.pinned else ' (by exploration)'}"
        else:
            state, why, fails = SEEN, self.why, False
        return Sighting(self.id, f.op, f.dtype, state, f.aspect, f.case, why, fails)

    def same_cause(self, c: Cause, whatever_values: bool = True) -> bool:
        """Whether a cause that was looked for is this one, or needs more; of joined causes, one of them. whatever_values: which
        rare values are needed is chance; the extent says at which it was seen."""
        if self.cause is None or UNSEARCHED in c.properties:
            return False
        # Several messages, or wrong values that need several things: of none of its findings.
        joined = bool(self.members) and not self.cause.properties and self.cause not in self.members
        for m in self.members if joined else (self.cause, *self.members):
            if m.says_all and m.symptom == c.symptom:  # of whatever function
                return True
            like = m.kernel == c.kernel and m.symptom in (c.symptom, c.symptom.partition(": ")[0])
            chance = RARE if whatever_values and self.extent and not RARE.isdisjoint(c.properties) else set()
            if like and set(m.properties) - chance <= set(c.properties):
                return True
        return False

    def needs_less(self, c: Cause) -> bool:
        """Whether a cause needs properties of its call that no known one needs, if its words do not say all."""
        known = [{*m.kinds} for m in (self.cause, *self.members) if m is not None and UNSEARCHED not in m.properties]
        return bool(c.kinds) and not c.says_all and not any({*c.kinds} <= some for some in known)

    def needs_more(self, c: Cause) -> bool:
        """Whether an error has the words of known ones, each of which needs more of its call."""
        alike = [m for m in (self.cause, *self.members) if m is not None and m.says_all and m.symptom == c.symptom]
        return bool(alike) and not any({*m.kinds} <= {*c.kinds} for m in alike)


@dataclass(frozen=True, slots=True)
class Known:
    """A file of known findings. code: its path and the digest of its contents."""

    code: Code
    environment: Environment = Environment()
    entries: tuple[Entry, ...] = ()

    @property
    def by_id(self) -> dict[str, Entry]:
        """The entries by their ids."""
        return {e.id: e for e in self.entries}

    def entry(self, id: str) -> Entry:
        """The entry with this id. Raises KnownError with similar ids."""
        if id in (ids := self.by_id):
            return ids[id]
        hint = near(id, ids) or (f"it has {', '.join([*ids][:8])} ..." if ids else "it has no entry")
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


# ------------------------------------------------------------------------------------------- which entry accepts a finding


def accepting(entries: Iterable[Entry], f: Found) -> Iterator[Entry]:
    """The entries that hold a finding as it is."""
    return (e for e in entries if not e.excess(f))


def known_once(entries: Iterable[Entry], r: Record, today: date) -> Sighting | None:
    """What a finding that was never reproduced is to the known ones; None if it is none of them."""
    found = Found.of(r)
    return next((e.sighting(found, today) for e in accepting(entries, found) if e.status == r.status), None)


def unaccepted(row: ItemRow, entries: Collection[Entry], statuses: Collection[str], today: date) -> ItemRow:
    """The row of an item without those refusals and fallbacks (of `statuses`) that an entry stands for."""
    asked = {s for s in statuses if not Status(s).is_finding}
    living = [e for e in entries if not e.expired(today)] if asked else []
    if not living:
        return row

    def accepts(aspect: str, status: str) -> bool:
        return status in asked and any(accepting(living, Found(row.op, row.dtype, status, aspect)))

    left = {aspect: {s: n for s, n in some.items() if not accepts(aspect, s)} for aspect, some in row.counts.items()}
    return replace(row, counts=left)
