"""The cases of an item: which are drawn, which of them are left out because others hung, and the events that happen to them.

The results of the cases of one item: counted while they run, and summed up at the end.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from parity.checks.check import Result
from parity.checks.power import Probe, ProbeResults
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import COMPARED, SILENT, MetadataNote, Record, Status
from parity.engine.alone import Checked
from parity.engine.planning import RunPlan
from parity.engine.rounds import Part
from parity.engine.suite import Item
from parity.findings.recognition import outline, shared
from parity.generation import generate, sweep
from parity.generation.generate import Drawn
from parity.store import marginal
from parity.store.features import features
from parity.store.figures import Collected, Figures
from parity.store.rows import ItemRow, Power, gathered

# So many explored cases in a row have the same shapes, scalars and flags on a device that compiles and keeps a graph for each.
# Two cost 3 of 164 bugs of the zoo and save 29 % of the graphs, three cost 6 and save 42 % (parity prove cost counts them).
ALIKE = 2
TRIED = 12  # structures of which one is taken, where all explored cases share it
SWEPT = 1 << 28  # the ordinal of the first case of the sweep over border sizes
SWEPT_ROUND = 1  # the part of a run with a limit of time that sweeps
PLAIN_NUMEL = 1000  # a case of more elements may hang for its size


@dataclass(frozen=True, slots=True)
class CaseDrawn:
    """A case that is about to be checked. text: its id."""

    ordinal: int
    pinned: bool
    one: Drawn
    text: str


@dataclass(frozen=True, slots=True)
class CaseLeftOut:
    """A case that is not run. tried: whether it was, and ended a process."""

    text: str
    tried: bool


@dataclass(frozen=True, slots=True)
class CaseDied:
    """A case that ended its process, or came after too many that did."""

    drawn: CaseDrawn


@dataclass(frozen=True, slots=True)
class CaseChecked:
    """A case that was checked. before: those before it in its process, the last one last, if it shows a finding."""

    drawn: CaseDrawn
    checked: Checked
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoMoreCases:
    """The item ends because no further case can be drawn."""

    why: str


def drawn(item: Item, plan: RunPlan, part: Part | None = None, first: int = 0) -> Iterator[tuple[int, bool, Drawn]]:
    """(ordinal, pinned, case) of every case of an item, or of a part of it; depends on item, profile, seed, study, and
    whether the device keeps graphs. first: the least ordinal that is asked for; a study may give others before it."""
    p, o = plan.profile, plan.options
    alike = max(p.alike, ALIKE if plan.device.keeps_graphs else 1)
    alike = 1 if item.row.is_sampled else alike  # an entry's samples are its structures
    if (others := plan.study.cases(item, p.sizes, o.seed)) is not None:
        yield from others
        return
    for k in range(first, p.pinned if part is None or part.pinned else 0):
        yield k, True, generate.nth(item.row, item.dtype, p.sizes, "pinned", k, mixes=False)
    n = p.examples(item.row, item.dtype) if o.examples is None else o.examples
    ample = 1 + (_ample(item, plan, alike) * alike if p.alike > 1 and alike > 1 else 0)
    for k in range(max(first - p.pinned, 0 if part is None else part.start), n if part is None else part.stop):
        yield p.pinned + k, False, generate.nth(item.row, item.dtype, p.sizes, o.seed, ample + k, alike)
    sweeps = o.examples is None and (part is None or part.round == SWEPT_ROUND)
    for k in range(max(0, first - SWEPT), p.sweeps(item.row, item.dtype) if sweeps else 0):
        one = sweep.swept(item.row, item.dtype, p.sweep, o.seed, k)
        if one is not None:
            yield SWEPT + k, False, one


def _ample(item: Item, plan: RunPlan, alike: int) -> int:
    """Which of the first structures of an item all its explored cases are to share: the first one with elements in every
    operand, and two dimensions of more than one element in one of them, or what comes nearest to that."""

    def room(k: int) -> tuple[bool, int]:
        case = generate.nth(item.row, item.dtype, plan.profile.sizes, plan.options.seed, 1 + k * alike, alike).case
        shapes = [s.shape for s in case.operands()]
        return all(0 not in s for s in shapes), min(2, max((sum(n > 1 for n in s) for s in shapes), default=0))

    best, most = 0, (False, -1)
    for k in range(TRIED):
        if (found := room(k)) > most:
            best, most = k, found
        if most == (True, 2):
            break
    return best


def alike(item: Item, plan: RunPlan, part: Part | None, hung: Sequence[Case]) -> frozenset[int]:
    """The ordinals of the cases that are like those that hung: each would take as long again. One plain small call that hung
    says nothing about others."""
    if not hung:
        return frozenset()
    common = shared(hung)
    if len(hung) == 1 and not common.words and common.numel <= PLAIN_NUMEL:
        return frozenset()
    found = set[int]()
    with suppress(CaseError):  # no further case can be drawn
        found.update(k for k, _, one in drawn(item, plan, part) if common.stands_for(outline(one.case)))
    return frozenset(found)


NOTHING = SILENT - {Status.FALLBACK}  # which computes


@dataclass(frozen=True, slots=True)
class Held:
    """What an item found and another part of it explains: fields as in `ItemTally`."""

    failing: Mapping[tuple[str, ...], list[tuple[Drawn, Result]]]
    pinned: frozenset[Drawn]

    def packed(self) -> bytes:
        """For `unpacked`, in another worker of the same run."""
        return pickle.dumps(self)

    @staticmethod
    def unpacked(packed: bytes) -> Held:
        """What `packed` gave."""
        held: Held = pickle.loads(packed)
        return held


@dataclass(slots=True)
class ItemTally:
    """A listener that counts what happens in one item.

    counts, worst, void, judged, left: as in ItemRow. failing: kind of finding -> the cases that showed it. recorded: what was
    stored of explored cases, to store each kind once. texts: the ids of all cases. figures: of each case. not_run: the cases
    that were left out, because they or others ended processes; alike, metadata: as in ItemRow. before: failing case -> those
    before it in its process, the last one last.
    """

    item: Item
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    worst: dict[str, float] = field(default_factory=dict)
    void: Counter[str] = field(default_factory=Counter)
    records: list[Record] = field(default_factory=list)
    failing: dict[tuple[str, ...], list[tuple[Drawn, Result]]] = field(default_factory=lambda: defaultdict(list))
    recorded: set[tuple[str, str, str]] = field(default_factory=set)
    keys: list[tuple[str, ...]] = field(default_factory=list)  # the kind of each of `records`
    pinned: set[Drawn] = field(default_factory=set)  # those of the failing cases that are pinned
    cases: int = 0
    compared: bool = False
    features: list[frozenset[str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    asked: list[ProbeResults] = field(default_factory=list)
    judged: int = 0
    left: Counter[str] = field(default_factory=Counter)
    figures: Collected = field(default_factory=Collected)
    not_run: list[str] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    metadata: tuple[MetadataNote, ...] = ()
    before: dict[Drawn, tuple[str, ...]] = field(default_factory=dict)

    @property
    def all_refused(self) -> bool:
        """Whether no case was compared, and every one ended in a refusal or compared nothing."""
        return not self.compared and all(status in NOTHING for c in self.counts.values() for status in c)

    def hear(self, event: object) -> None:
        """Count what an event is about."""
        match event:
            case CaseDrawn():
                self.texts.append(event.text)
            case CaseChecked() if event.checked.void:
                self.void[event.checked.void[:120]] += 1
            case CaseChecked():
                self._add(event)
            case CaseLeftOut():
                self.not_run.append(event.text)
                self.alike.extend([] if event.tried else [event.text])
            case CaseDied():
                self.not_run.append(event.drawn.text)
            case NoMoreCases():
                self.void[event.why[:160]] += 1

    def _add(self, event: CaseChecked) -> None:
        """Count a case that was checked."""
        one, text, pinned = event.drawn.one, event.drawn.text, event.drawn.pinned
        results, digest = event.checked.results, event.checked.digest
        self.cases += 1
        self.asked += event.checked.power
        if event.before:
            self.before.setdefault(one, event.before)
        self.figures.add(text, digest, ((r.aspect, r.verdict.status, r.measures) for r in results), event.checked.seconds)
        compared = [r.aspect for r in results if r.verdict.status in COMPARED]
        self.features.append(features(one.case, compared))
        for r in results:
            status = r.verdict.status
            self.counts[r.aspect][status] += 1
            self.compared |= status not in NOTHING
            if status is Status.VOID:
                self.void[r.verdict.reason[:120]] += 1
            self._add_measures(r)
            if r.notes:
                self.metadata = gathered((*self.metadata, *(replace(n, case=text) for n in r.notes)))
            if status.is_finding:
                self.failing[r.key].append((one, r))
                if pinned:
                    self.pinned.add(one)
            what = r.aspect, status, r.verdict.reason[:60]
            if pinned and self.texts.count(text) < 2:  # some OpInfo entries have fewer samples than there are pinned cases
                self.records.append(record(self.item, r, text, digest, True))
                self.keys.append(r.key)
            elif status is not Status.AGREE and what not in self.recorded:
                self.recorded.add(what)
                self.records.append(record(self.item, r, text, digest, False))
                self.keys.append(r.key)

    def mark(self, key: tuple[str, ...], known: str) -> None:
        """Write into the records of a kind of finding that it is known. known: the id of its entry."""
        self.records = [replace(r, known=known) if k == key else r for k, r in zip(self.keys, self.records)]

    def _add_measures(self, r: Result) -> None:
        for m in r.measures if r.verdict.status in COMPARED or r.verdict.status is Status.VOID else ():
            self.judged += m.total - m.unjudged
            if m.unjudged:
                self.left[m.why] += m.unjudged
        for m in r.measures:
            if m.measured and m.share is not None:
                self.worst[r.aspect] = max(self.worst.get(r.aspect, 0.0), m.share)

    def summary(self, seconds: float) -> ItemRow:
        """The row to store for the item. seconds: wall time."""
        return ItemRow(
            self.item.row.name,
            self.item.dtype,
            self.cases,
            {a: dict(c) for a, c in self.counts.items()},
            dict(self.worst),
            dict(self.void),
            seconds,
            (),
            {},
            hashlib.blake2b("".join(self.texts).encode(), digest_size=8).hexdigest(),
            self.judged,
            dict(self.left),
            self._elements(),
            *self.figures.medians(),
            not_run=tuple(self.not_run),
            alike=tuple(self.alike),
            metadata=self.metadata,
        )

    def packed(self, screens: bool) -> Figures:
        """The figures of all cases. screens: whether cheap tests decide some comparisons."""
        return self.figures.packed(self.item.row.name, self.item.dtype, screens)

    def power(self) -> Iterator[Power]:
        """What became of all errors that were put in, by dtype, aspect and error."""
        groups: dict[tuple[str, str, str], list[Probe]] = defaultdict(list)
        for p in (p for a in self.asked for p in a.probes):
            groups[p.dtype, p.aspect, p.error].append(p)
        for (dtype, aspect, error), probes in groups.items():
            why = tuple(p.why for p in probes if p.why)
            yield Power(self.item.row.name, dtype, aspect, error, Counter(p.outcome for p in probes), why)

    def _elements(self) -> dict[str, int]:
        """The counts of elements of all results into which errors were put."""
        total: Counter[str] = Counter()
        for a in self.asked:
            total.update(sharp=a.sharp[0], nonzero=a.sharp[1])
            for e in a.elements:
                total.update(total=e.total, shown=e.shown, unshown=e.unshown, loose=e.loose)
        return {k: n for k, n in total.items() if n}


def record(item: Item, r: Result, text: str, digest: str, pinned: bool, shrunk: str = "") -> Record:
    """The record to store for a result. text: the id of its case; shrunk: the id of the least case that shows the same."""
    origin = r.verdict.tolerance.origin if r.verdict.tolerance is not None else ""
    return Record(
        text,
        item.row.name,
        item.dtype,
        r.aspect,
        r.verdict.status,
        digest,
        pinned,
        r.verdict.reason,
        origin,
        r.measures if r.verdict.status is Status.AGREE else tuple(m for m in (r.verdict.measure,) if m is not None),
        shrunk,
        near=(text,) if is_near(r) else (),
    )


def is_near(r: Result) -> bool:
    """Whether a drawn case's drift may be marginal: near its budget, in a tensor of which enough other elements were judged."""
    v = r.verdict
    judged = 0 if v.measure is None else v.measure.total - v.measure.unjudged
    return v.near and v.status is Status.DRIFT and judged >= marginal.WITNESSES
