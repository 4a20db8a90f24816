"""The content of a run file: a header, rows of several kinds, and an end row."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, TypeAlias

from parity.core.case import TORCH_DATA
from parity.core.extensions import NAME
from parity.core.results import DEATHS, Aspect, AspectWord, Fingerprint, MetadataNote, Record, StatusWord
from parity.core.stored import Count, Number, named, words
from parity.store.code import Code
from parity.store.features import Coverage, DrawnFeatures
from parity.store.figures import Figures

DEVICE, CPU, OUTSIDE, UNKNOWN = "device", "cpu", "outside", "unknown"  # who caused a death
BLAMES = ("", DEVICE, CPU, OUTSIDE, UNKNOWN)
# What a run saw of a known finding.
SEEN, GROWN, EXPIRED, AGREES, NOTHING = "seen", "grown", "expired", "agrees", "nothing"
SIGHTED = (SEEN, GROWN, EXPIRED, AGREES, NOTHING)
LIBRARIES = ("timm", "torchvision", "hf", "hf-small")  # before the names of models that they make
if TYPE_CHECKING:
    AnyAspect: TypeAlias = str
    Ending: TypeAlias = str
    Blame: TypeAlias = str
    State: TypeAlias = str
else:  # what a field may hold
    AnyAspect = words("unknown aspect '{}'", ("", *Aspect), NAME)
    Ending = words("no process ends by '{}'", DEATHS)
    Blame = words("unknown blame '{}'", BLAMES)
    State = words("unknown state '{}' of a known finding", SIGHTED)
Statuses: TypeAlias = Annotated[Mapping[str, Count], named(StatusWord)]
Counts: TypeAlias = Annotated[Mapping[str, Statuses], named(AspectWord)]


def is_own(op: str) -> bool:
    """Whether an item is a user's own function or test ("models.py:bert", "test_net.py::test_bert"), or a model by its name,
    and no op."""
    return ".py:" in op or is_named(op.rstrip(":"))


def is_named(place: str) -> bool:
    """Whether it names a model of a library or package ("timm:resnet18", "package.module:factory") and not an op, of which
    those of torch's own data are named alike ("opinfo:add")."""
    source, _, name = place.partition(":")
    if source in LIBRARIES:
        return bool(name)
    return (
        source not in TORCH_DATA
        and not source.endswith(".py")
        and all(part.isidentifier() for part in (*source.split("."), name))
    )


@dataclass(frozen=True, slots=True)
class Header:
    """What was run, and on what. started: ISO 8601 with offset; complete: whether the whole suite was selected; faults, setup:
    the code that --setup named. options: those that decide what is compared or how the run ends and that have no
    field here ("--examples=20 --fail-on=void"); shard: "3/7" if only that part of the selection was run; machines: how other
    machines of the same run differ from the fingerprint, one text for each; known: the file of known findings. command: how
    parity is called in the run's environment, a Python and a folder; nothing where it is installed."""

    fingerprint: Fingerprint
    seed: str = ""
    profile: str = ""
    selection: str = ""
    started: str = ""
    complete: bool = True
    faults: Code = field(default_factory=Code)
    setup: Code = field(default_factory=Code)
    options: str = ""
    shard: str = ""
    machines: tuple[str, ...] = ()
    known: Code = field(default_factory=Code)
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ItemRow:
    """The exploration of one op in one dtype. counts: aspect -> status -> number of checks; worst: aspect -> largest measured
    error ratio; void: reason -> number of cases that compared nothing for it. seconds: wall time. operators: in the study
    "reach", those that compared cases dispatched on the device; idle: those that only other cases dispatched, with the reason.
    ids: digest of the ids of all cases in order.

    judged: number of elements of all results that were judged; left: reason -> number of elements that were not. elements: of
    the results into which errors were put, how many elements there are (total), are excused by an experiment (shown) or without
    one (unshown), have an honest budget of more than half their magnitude (loose), are not 0 (nonzero), and would be reported
    if off by 5 % (sharp).

    leaks: case -> bytes that every repeat of its call left on the device.

    device_seconds, device_spread: aspect -> median of the device's time per case, from the call until everything is computed,
    and the median distance from it.
    round: of a run with a limit of time, which part of the item this row counts (`parity.engine.rounds`); of a row that sums up
    several (`folded`), the last one.
    not_run: cases that were left out: each ended or hung a process, or so many others did that no more were started.
    alike: those of them that were not even tried, because cases that hung have all that they have, and are no larger.
    metadata: fresh results whose strides differ from the CPU's, one note for each pair of words for them.

    Of a user's own function: ids: digest of its inputs and weights; device_seconds: the least of some calls; errors: "aspect
    tensor" -> root mean square of the device's errors, in roundoffs of that of the truth; memory: bytes that the device holds
    after the forward pass.
    """

    op: str
    dtype: str
    cases: Count = 0
    counts: Counts = field(default_factory=dict)
    worst: Mapping[str, Number] = field(default_factory=dict)
    void: Mapping[str, Count] = field(default_factory=dict)
    seconds: Number = 0.0
    operators: tuple[str, ...] = ()
    idle: Mapping[str, str] = field(default_factory=dict)
    ids: str = ""
    judged: Count = 0
    left: Mapping[str, Count] = field(default_factory=dict)
    elements: Mapping[str, Count] = field(default_factory=dict)
    device_seconds: Mapping[str, Number] = field(default_factory=dict)
    device_spread: Mapping[str, Number] = field(default_factory=dict)
    round: Count = 0
    leaks: Mapping[str, Count] = field(default_factory=dict)
    not_run: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    metadata: tuple[MetadataNote, ...] = ()
    errors: Mapping[str, Number] = field(default_factory=dict)
    memory: Count = 0

    @property
    def unjudged(self) -> int:
        """The number of elements that were not judged."""
        return sum(self.left.values())

    @property
    def judged_share(self) -> float:
        """The fraction of the elements that was judged; 1 if there are none."""
        total = self.judged + self.unjudged
        return self.judged / total if total else 1.0


def folded(items: Iterable[ItemRow]) -> tuple[ItemRow, ...]:
    """One row for each op and dtype, in the order of the first ones: the sum of its rows."""
    by: dict[tuple[str, str], list[ItemRow]] = {}
    for i in items:
        by.setdefault((i.op, i.dtype), []).append(i)
    return tuple(rows[0] if len(rows) == 1 else _sum(sorted(rows, key=lambda r: r.round)) for rows in by.values())


def _sum(rows: Sequence[ItemRow]) -> ItemRow:
    counts: dict[str, Counter[str]] = {}
    worst: dict[str, float] = {}
    void, left, elements = Counter[str](), Counter[str](), Counter[str]()
    for r in rows:
        for aspect, n in r.counts.items():
            counts.setdefault(aspect, Counter()).update(n)
        for aspect, share in r.worst.items():
            worst[aspect] = max(share, worst.get(aspect, 0.0))
        void.update(r.void)
        left.update(r.left)
        elements.update(r.elements)
    operators = sorted({o for r in rows for o in r.operators})
    by_cases = sorted(rows, key=lambda r: r.cases)  # a part of more cases says more of the device's times
    return replace(
        rows[-1],
        cases=sum(r.cases for r in rows),
        counts={a: dict(n) for a, n in counts.items()},
        worst=worst,
        void=dict(void),
        seconds=sum(r.seconds for r in rows),
        operators=tuple(operators),
        idle={o: why for r in rows for o, why in r.idle.items() if o not in operators},
        ids=hashlib.blake2b("".join(r.ids for r in rows).encode(), digest_size=8).hexdigest(),
        judged=sum(r.judged for r in rows),
        left=dict(left),
        elements=dict(elements),
        device_seconds={a: t for r in by_cases for a, t in r.device_seconds.items()},
        device_spread={a: t for r in by_cases for a, t in r.device_spread.items()},
        leaks={case: n for r in rows for case, n in r.leaks.items()},
        not_run=tuple(c for r in rows for c in r.not_run),
        alike=tuple(c for r in rows for c in r.alike),
        metadata=gathered(n for r in rows for n in r.metadata),
    )


def gathered(notes: Iterable[MetadataNote]) -> tuple[MetadataNote, ...]:
    """One note for each aspect and pair of words: the first one, with the sum of all counts."""
    by: dict[tuple[str, str], MetadataNote] = {}
    for n in notes:
        key = n.aspect, n.words
        by[key] = replace(by[key], count=by[key].count + n.count) if key in by else n
    return tuple(by.values())


@dataclass(frozen=True, slots=True)
class Power:
    """What the judge said of errors that were put into results of one op. dtype: of the results; counts: outcome
    (`parity.checks.power`) -> number of comparisons; why: its words about the errors that it missed."""

    op: str
    dtype: str
    aspect: str
    error: str
    counts: Mapping[str, Count] = field(default_factory=dict)
    why: tuple[str, ...] = ()


def summed(rows: Iterable[Power]) -> tuple[Power, ...]:
    """One row for each op, dtype, aspect and error, without the judge's words."""
    by: dict[tuple[str, str, str, str], Counter[str]] = {}
    for r in rows:
        by.setdefault((r.op, r.dtype, r.aspect, r.error), Counter()).update(r.counts)
    return tuple(Power(*key, dict(counts)) for key, counts in by.items())


@dataclass(frozen=True, slots=True)
class Again:
    """A finding that was tried once more in a fresh process. case, aspect, op: of the finding's least case; tried: how often,
    with this and other cases that had shown it; came: whether it showed a finding in one of these; flag: the variable of the
    environment without which it does not; history: the case with those before it, if it came only after these; calls: with how
    many cases before it it was tried at most; known: of one that never came, the entry of the file of known findings."""

    case: str
    aspect: str
    op: str
    tried: Count = 0
    came: bool = False
    flag: str = ""
    history: str = ""
    calls: Count = 0
    known: str = ""


@dataclass(frozen=True, slots=True)
class Death:
    """A process that died, hung or was killed while it ran a case. how: crash, hang or killed; signal: its name, or another
    description; where: the Python stack; blame: who caused it (see `inquest`), empty in older files; why: the evidence; known:
    the entry of the file of known findings that it belongs to. shrunk: the least case that dies in the same way, found after
    the items; shrunk_aspect: the one aspect in which it dies, empty if it needs several; script: the file that shows it."""

    op: str
    dtype: str
    case: str
    aspect: AnyAspect = ""
    how: Ending = "crash"
    signal: str = ""
    stage: str = ""
    where: tuple[str, ...] = ()
    blame: Blame = ""
    why: str = ""
    known: str = ""
    shrunk: str = ""
    shrunk_aspect: str = ""
    script: str = ""

    @property
    def least(self) -> str:
        """The least case that is known."""
        return self.shrunk or self.case

    @property
    def acquitted(self) -> bool:
        """Whether the device is proved innocent: the CPU alone dies of the case every time."""
        return self.blame == CPU


def explained(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records of a run file, in which a finding that was explained stands a second time, with its cause; then its status
    is that of the least case, which may drift where the case as it was drawn is wrong."""
    some = tuple(records)
    explained = [r for r in some if r.shrunk and not r.unexplained]
    kinds, drawn = {r.kind for r in explained}, {_as_drawn(r) for r in explained}
    return tuple(r for r in some if not (r.unexplained and (r.kind in kinds or _as_drawn(r) in drawn)))


def _as_drawn(r: Record) -> tuple[str, ...]:
    return r.dtype, r.aspect, r.case, r.measures[0].tensor if r.measures else ""


def with_least(deaths: Iterable[Death]) -> tuple[Death, ...]:
    """The deaths of a run file, in which one that was shrunk stands a second time, with its least case."""
    by: dict[Death, Death] = {}
    others: list[Death] = []
    for d in deaths:
        if d.shrunk:
            by[replace(d, shrunk="", shrunk_aspect="", script="")] = d
        else:
            others.append(d)
    made = []
    for d in others:
        made.append(by.pop(d, d))
    return (*made, *by.values())


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A death with its least case. death: with `shrunk` and `shrunk_aspect`, or as it was if `why` says why it was not shrunk;
    tries: cases that were tried; died: processes that it took."""

    death: Death
    tries: int = 0
    died: int = 0
    why: str = ""


def counted(deaths: Iterable[Death], items: Iterable[ItemRow]) -> list[Death]:
    """The deaths that count against a run: all except those of the CPU alone, and kills from outside if the item was examined
    completely afterwards."""
    whole = {(i.op, i.dtype) for i in items}
    return [d for d in deaths if not d.acquitted and not (d.blame == OUTSIDE and (d.op, d.dtype) in whole)]


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one item of a run saw of an entry of the file of known findings. state: one of `SIGHTED`: it is there, it is there
    and goes beyond what the entry says, it is there after the entry's last day, its case agrees, or its case compared nothing.
    why: in words, or the reason why it is accepted; fails: whether it fails the item."""

    id: str
    op: str
    dtype: str
    state: State
    aspect: AnyAspect = ""
    case: str = ""
    why: str = ""
    fails: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The last row. seconds: wall time of the run; totals: status -> checks of all items; stopped: why it ended early, if it
    did. expected: number of items that were asked for (0 in older files); lost: items given up after several deaths; broken:
    failures of parity itself. With a limit of time: rounds: how many items came to an end in round 0 (the pinned cases), 1, 2
    ...; lacking: the items whose pinned cases were not checked. failed: what it was asked to fail on besides findings, and
    met."""

    seconds: Number = 0.0
    totals: Statuses = field(default_factory=dict)
    stopped: str = ""
    expected: Count = 0
    lost: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()
    lacking: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """The content of a run file. end is None for a truncated file, which only `read(path, partial=True)` returns."""

    header: Header
    records: tuple[Record, ...] = ()
    items: tuple[ItemRow, ...] = ()
    deaths: tuple[Death, ...] = ()
    end: End | None = None
    coverage: tuple[Coverage, ...] = ()
    power: tuple[Power, ...] = ()
    again: tuple[Again, ...] = ()
    figures: tuple[Figures, ...] = ()
    known: tuple[Sighting, ...] = ()
    features: tuple[DrawnFeatures, ...] = ()


Row: TypeAlias = Record | ItemRow | Death | Coverage | Power | Again | Figures | Sighting | DrawnFeatures | End
KINDS: dict[str, type[Row]] = {
    "record": Record, "item": ItemRow, "death": Death, "coverage": Coverage, "power": Power, "again": Again,
    "figures": Figures, "known": Sighting, "features": DrawnFeatures, "end": End,
}  # fmt: skip


def totals(items: Iterable[ItemRow]) -> Counter[str]:
    """Number of checks per status."""
    count: Counter[str] = Counter()
    for item in items:
        for by_status in item.counts.values():
            count.update(by_status)
    return count
