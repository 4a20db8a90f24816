"""One item, examined: its pinned and explored cases are checked, findings are collected by kind and each kind is shrunk.

A finding never ends the drawing; what is found is known only when all cases have run.
"""

from __future__ import annotations

import functools
import hashlib
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from parity import notation, pairs
from parity.checking.check import EVERYTHING, Result, Settings, check, failing
from parity.checking.power import Asked, Probe
from parity.devices.base import Device
from parity.errors import CaseError, DeviceError
from parity.features import features
from parity.generation import generate
from parity.generation.generate import Drawn
from parity.generation.shrink import shrink as least
from parity.listening import listening
from parity.reached import Reached
from parity.store import Item as Summary
from parity.store import Power
from parity.suite import ORACLE_EVERY, Item, Profile
from parity.tolerance import Tables
from parity.vocabulary import COMPARED, Arg, Aspect, Case, OpClass, Record, Status, TensorSpec

KINDS_SHRUNK = 3  # kinds of findings of one item that are shrunk; the rest are told as drawn
SHRINK_SECONDS = 6.0  # per kind
REPEAT_EVERY = 4  # one case in so many runs its forward twice
OPERANDS_EVERY = 4  # one case in so many is asked whether its calls left their operands as they were
LAW_EVERY = 8  # one case in so many of a random op is drawn until its law can be judged, and every pinned one
# Aspects that cost much: one case in so many, and which of these.
EVERY = {Aspect.DOUBLE: (8, 3), Aspect.TANGENT: (12, 4), Aspect.TRANSFER: (6, 5)}
TWICE_EVERY = 3  # of OpInfo entries and factorizations, whose derivatives call kernels that the function does not
TRAVELS = ("copy_", "to")  # rows that are transfers themselves
NOTHING = (Status.UNSUPPORTED, Status.VOID)
GIVE_UP_AFTER = 12  # cases of an item that are all refused before the rest is left undrawn
SHRINKING = 1 << 30  # the ordinal of all cases that shrinking tries: where one ends the process, the item is not shrunk
BASE_SECONDS = 20.0  # a case may take this long ...
SECONDS_PER_ELEMENT = 2e-5  # ... and this per element of its operands


class Watch(Protocol):
    """Where an item says what it is about to do; the journal, or nothing."""

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """A case begins."""

    def stage(self, name: str) -> None:
        """It comes to a stage."""

    def end(self) -> None:
        """It is done."""

    def lost(self, why: str) -> None:
        """It left the device unable to compute anything: a worker ends here, and another goes on without the case."""


class NoWatch:
    """Nobody watches."""

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """Nothing."""

    def stage(self, name: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def lost(self, why: str) -> None:
        """Nobody can go on after this. Raises DeviceError."""
        raise DeviceError(f"the device computes nothing any more after: {why}; run with -n 1 to go on without the case")


@dataclass(frozen=True, slots=True)
class Plan:
    """What all items of a run share. patience: seconds a case may take, or None for the default by size. reach: whether to note
    which operators are dispatched on the device. counts: draw only until every aspect of an item holds a comparison. power:
    which part of the cases is judged once more with errors put in. takes: the dtypes of which the device took tensors at the
    start."""

    device: Device
    cpu: Device
    tables: Tables
    profile: Profile
    seed: str = "0"
    examples: int | None = None
    screens: bool = True
    shrinks: bool = True
    patience: float | None = None
    reach: bool = False
    counts: bool = False
    power: float = 0.0
    takes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of difference of one item, with the least case that shows it and the case that showed it first."""

    item: Item
    result: Result
    case: Case
    first: Case
    count: int  # cases of the item that showed this kind
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """All that came of an item. features: of every case, with the aspects in which it was compared."""

    summary: Summary
    records: tuple[Record, ...]
    findings: tuple[Finding, ...]
    features: tuple[frozenset[str], ...] = ()
    power: tuple[Power, ...] = ()


@dataclass(slots=True)
class _Tally:
    """Counts under way; lives inside `examine`."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    worst: dict[str, float] = field(default_factory=dict)
    void: Counter[str] = field(default_factory=Counter)
    records: list[Record] = field(default_factory=list)
    found: dict[tuple[str, ...], list[tuple[Drawn, Result]]] = field(default_factory=lambda: defaultdict(list))
    told: set[tuple[str, str, str]] = field(default_factory=set)
    cases: int = 0
    compared: bool = False
    features: list[frozenset[str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    judged: int = 0
    left: Counter[str] = field(default_factory=Counter)


def patience(case: Case) -> float:
    """Seconds that a case may take before it counts as hung."""
    return BASE_SECONDS + SECONDS_PER_ELEMENT * (elements(case.args) + sum([elements(v) for _, v in case.kwargs]))


def elements(tree: Arg) -> int:
    """Elements of all tensors in an argument."""
    if isinstance(tree, TensorSpec):
        return tree.numel
    return sum([elements(a) for a in tree]) if isinstance(tree, tuple) else 0


def operands(case: Case) -> Iterator[TensorSpec]:
    """All tensors of a case."""

    def walk(tree: object) -> Iterator[TensorSpec]:
        if isinstance(tree, TensorSpec):
            yield tree
        elif isinstance(tree, tuple):
            for t in tree:
                yield from walk(t)

    yield from walk(case.args)
    yield from walk(tuple(v for _, v in case.kwargs))


def drawn(item: Item, plan: Plan) -> Iterator[tuple[int, bool, Drawn]]:
    """(ordinal, pinned, case) of every case of an item, a function of item, profile and seed alone."""
    p = plan.profile
    if plan.counts:
        yield from ((k, False, generate.nth(item.row, item.dtype, p.sizes, plan.seed, k)) for k in range(1, pairs.TRIES + 1))
        return
    for k in range(p.pinned):
        yield k, True, generate.nth(item.row, item.dtype, p.sizes, "pinned", k)
    count = p.examples(item.row, item.dtype) if plan.examples is None else plan.examples
    for k in range(count):
        yield p.pinned + k, False, generate.nth(item.row, item.dtype, p.sizes, plan.seed, k + 1)


def settings(item: Item, plan: Plan, ordinal: int, pinned: bool) -> Settings:
    """How one case of an item is checked."""
    if plan.counts:
        return Settings(more=frozenset({Aspect.DOUBLE}))
    family, rule = item.row.family, item.row.rule
    twice = family == "opinfo" or rule is OpClass.SOLVER or rule is OpClass.DECOMPOSITION
    kind = item.row.name in TRAVELS, family == "movement", twice
    if plan.screens and not pinned:
        return _screened(_start(item.id), *kind, plan.reach, ordinal)
    insist = pinned or not plan.screens or (ordinal + _start(item.id)) % ORACLE_EVERY == 0
    more = _more(*kind, plan.reach, ordinal)
    law, kept = pinned or ordinal % LAW_EVERY == 2, ordinal % OPERANDS_EVERY == 3
    return _settings(insist, ordinal % REPEAT_EVERY == 1, None, more, law, kept)


@functools.lru_cache(maxsize=1 << 16)
def _screened(start: int, travels: bool, moves: bool, twice: bool, reach: bool, ordinal: int) -> Settings:
    """`settings` of an explored case, most of which come again in every item."""
    insist, law, kept = (ordinal + start) % ORACLE_EVERY == 0, ordinal % LAW_EVERY == 2, ordinal % OPERANDS_EVERY == 3
    return _settings(insist, ordinal % REPEAT_EVERY == 1, None, _more(travels, moves, twice, reach, ordinal), law, kept)


@functools.lru_cache(maxsize=4096)
def _start(item: str) -> int:
    """Where an item starts to count, so that one case in so many is met by short items, too."""
    return zlib.crc32(item.encode()) % ORACLE_EVERY


_settings = functools.lru_cache(maxsize=1024)(Settings)


@functools.lru_cache(maxsize=4096)
def _more(travels: bool, moves: bool, twice: bool, reach: bool, ordinal: int) -> frozenset[Aspect]:
    """Which of the aspects that cost much a case is checked in."""
    more = {a for a, (every, rest) in EVERY.items() if ordinal % every == rest}
    if twice and ordinal % TWICE_EVERY == 0:
        more.add(Aspect.DOUBLE)
    if travels:
        more |= {Aspect.TRANSFER}
    elif not moves:
        more -= {Aspect.TRANSFER}  # it is about operands: one bug of a copy must not be told by every op
    if reach:  # what torch 2.13 does otherwise under a dispatch mode: tensors of zeros end the process, neg bits get lost
        more -= {Aspect.TANGENT, Aspect.TRANSFER}
    return frozenset(more)


def examine(item: Item, plan: Plan, watch: Watch, dead: frozenset[int] = frozenset()) -> Examined:
    """Check every case of an item. dead: ordinals that ended a process before and are left out."""
    tally, started, notes = _Tally(), time.monotonic(), list[str]()
    reached = Reached() if plan.reach else None
    with plan.device.active(), listening(notes):
        ordinal, text = 0, ""
        for ordinal, pinned, one in _valid(drawn(item, plan), tally):
            if ordinal in dead:
                continue
            text = notation.case_text(one.case)
            tally.texts.append(text)
            watch.begin(ordinal, item.id, text, plan.patience or patience(one.case))
            try:
                how = settings(item, plan, ordinal, pinned)
                how = replace(how, power=True) if _sampled(item, plan, ordinal) else how
                there = plan.device, plan.cpu, plan.tables
                results, digest = check(item.row, one.case, *there, how, watch.stage, notes, reached, tally.asked)
                if failing(results) and _shares_the_kernels(plan.device):
                    again, _ = check(item.row, one.case, *there, how, watch.stage, notes, reached)
                    results = results if failing(again) else again
            except CaseError as e:
                _alive(plan, watch, str(e))
                tally.void[str(e)[:120]] += 1
                watch.end()
                continue
            # What the CPU refuses as well may still have stopped a kernel, and all further calls with it.
            odd = [r.verdict.reason for r in results if r.verdict.status in (Status.ERROR, Status.VOID)]
            if odd or one.case.refused:
                _alive(plan, watch, odd[0] if odd else f"a call that is to be refused ({one.case.refused})")
            watch.end()
            _count(tally, item, one, results, text, digest, pinned)
            if tally.cases >= GIVE_UP_AFTER and _all_refused(tally):
                break
            if plan.counts and pairs.reached(item.row, item.dtype, tally.counts):
                break
        # Some kernels fail behind the program's back: the next item would find nothing that computes, and say nothing.
        watch.begin(ordinal, item.id, text, plan.patience or BASE_SECONDS)
        _alive(plan, watch, next(iter(tally.void), "the last case, or one before it that said nothing"))
        if item.dtype in plan.takes and not plan.device.takes(getattr(torch, item.dtype)):
            watch.lost(f"this item: it refuses tensors of {item.dtype}, which it took at the start")
        watch.end()
        shrinks = plan.shrinks and SHRINKING not in dead
        findings = tuple(_findings(item, replace(plan, shrinks=shrinks), tally, notes, watch))
    for f in findings:
        tally.records.append(record(item, f.result, notation.case_text(f.first), f.digest, False, notation.case_text(f.case)))
    summary = Summary(
        item.row.name,
        item.dtype,
        tally.cases,
        {a: dict(c) for a, c in tally.counts.items()},
        dict(tally.worst),
        dict(tally.void),
        time.monotonic() - started,
        tuple(sorted(reached.operators)) if reached else (),
        reached.idle if reached else {},
        hashlib.blake2b("".join(tally.texts).encode(), digest_size=8).hexdigest(),
        tally.judged,
        dict(tally.left),
        _elements(tally.asked),
    )
    return Examined(summary, tuple(tally.records), findings, tuple(tally.features), tuple(_power(item, tally.asked)))


def _sampled(item: Item, plan: Plan, ordinal: int) -> bool:
    """Whether a case is judged once more with errors put in: always the same ones of an item."""
    return zlib.crc32(f"{item.id} {ordinal}".encode()) < plan.power * 2.0**32


def _power(item: Item, asked: Sequence[Asked]) -> Iterator[Power]:
    """What became of all errors, by dtype, aspect and error."""
    groups: dict[tuple[str, str, str], list[Probe]] = defaultdict(list)
    for p in (p for a in asked for p in a.probes):
        groups[p.dtype, p.aspect, p.error].append(p)
    for (dtype, aspect, error), probes in groups.items():
        why = tuple(p.why for p in probes if p.why)
        yield Power(item.row.name, dtype, aspect, error, Counter(p.outcome for p in probes), why)


def _elements(asked: Sequence[Asked]) -> dict[str, int]:
    """The elements of all results into which errors were put."""
    total: Counter[str] = Counter()
    for a in asked:
        total.update(sharp=a.sharp[0], nonzero=a.sharp[1])
        for e in a.elements:
            total.update(total=e.total, shown=e.shown, unshown=e.unshown, loose=e.loose)
    return {k: n for k, n in total.items() if n}


def _valid(cases: Iterator[tuple[int, bool, Drawn]], tally: _Tally) -> Iterator[tuple[int, bool, Drawn]]:
    """Cases as long as they can be drawn: an OpInfo entry without samples here ends the item with a reason."""
    try:
        yield from cases
    except CaseError as e:
        tally.void[str(e)[:160]] += 1


def _shares_the_kernels(device: Device) -> bool:
    """Whether all that this device computes comes of the CPU's own kernels, unspoiled. Some of those read memory that nobody
    wrote (bfloat16 convolutions with 65,536 channels, torch 2.13): what does not come again says nothing about the device."""
    return (device.simulated or device.torch_device.type == "cpu") and not getattr(device, "faults", ())


def _alive(plan: Plan, watch: Watch, why: str) -> None:
    """End this process where the device computes nothing any more. why: what was said last."""
    if not plan.device.answers():
        watch.lost(why)


def _all_refused(tally: _Tally) -> bool:
    if tally.compared:  # and so not all, nor will they be
        return False
    return all(status in NOTHING for c in tally.counts.values() for status in c)


def _count(tally: _Tally, item: Item, one: Drawn, results: Sequence[Result], text: str, digest: str, pinned: bool) -> None:
    tally.cases += 1
    tally.features.append(features(one.case, [r.aspect for r in results if r.verdict.status in COMPARED], item.row.tames))
    for r in results:
        status = r.verdict.status
        tally.counts[r.aspect][status] += 1
        tally.compared |= status not in NOTHING
        if status is Status.VOID:
            tally.void[r.verdict.reason[:120]] += 1
        for m in r.measures if status in COMPARED or status is Status.VOID else ():
            tally.judged += m.total - m.unjudged
            if m.unjudged:
                tally.left[m.why] += m.unjudged
        for m in r.measures:
            if m.measured and m.share is not None:
                tally.worst[r.aspect] = max(tally.worst.get(r.aspect, 0.0), m.share)
        if status.is_finding:
            tally.found[r.key].append((one, r))
        if pinned:
            tally.records.append(record(item, r, text, digest, True))
        elif status is not Status.AGREE and (what := (r.aspect, status, r.verdict.reason[:60])) not in tally.told:
            tally.told.add(what)
            tally.records.append(record(item, r, text, digest, False))


def record(item: Item, r: Result, text: str, digest: str, pinned: bool, shrunk: str = "") -> Record:
    """What is stored of a result."""
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
    )


def _findings(item: Item, plan: Plan, tally: _Tally, notes: list[str], watch: Watch) -> Iterator[Finding]:
    """Each kind of finding with its least case."""
    for k, (key, seen) in enumerate(tally.found.items()):
        one, result = min(seen, key=lambda s: (len(s[0].picks), s[0].picks))
        case = one.case
        if plan.shrinks and k < KINDS_SHRUNK:
            case, result = shrink(item, plan, one, result, key, notes, watch)
        yield Finding(item, result, case, one.case, len(seen))


def shrink(
    item: Item, plan: Plan, one: Drawn, result: Result, key: tuple[str, ...], notes: list[str], watch: Watch
) -> tuple[Case, Result]:
    """The least case that shows this kind of finding, and its result; the case itself where it does not show it again."""
    deadline = time.monotonic() + SHRINK_SECONDS
    hits: dict[Case, Result | None] = {}  # each case is asked once, so that an unstable device cannot confuse the shrinker

    def fails(case: Case) -> bool:
        if case not in hits:
            if time.monotonic() > deadline:
                return False
            watch.begin(SHRINKING, item.id, notation.case_text(case), plan.patience or patience(case))
            again = recheck(item, plan, case, notes, result, watch)
            if not again or any(r.verdict.status in (Status.ERROR, Status.VOID) for r in again):
                _alive(plan, watch, again[0].verdict.reason if again else "a case that could not be built")
            watch.end()
            hits[case] = next((told for r in failing(again) if (told := r.about(key)) is not None), None)
        return hits[case] is not None

    found = least(item.row, item.dtype, plan.profile.sizes, one, fails)
    hit = None if found is None else hits.get(found)
    if found is None or hit is None:
        return one.case, result
    return found, hit


def recheck(item: Item, plan: Plan, case: Case, notes: list[str], like: Result, watch: Watch) -> tuple[Result, ...]:
    """What one aspect of a case says, every tensor judged by the oracle; nothing where the case cannot be built."""
    how = Settings(True, like.aspect is Aspect.REPEAT, like.aspect)
    try:
        results, _ = check(item.row, case, plan.device, plan.cpu, plan.tables, how, watch.stage, notes)
    except CaseError:
        return ()
    return results


def replay(item: Item, plan: Plan, case: Case, watch: Watch | None = None) -> tuple[Result, ...]:
    """A case from its text, checked with nothing left out. Raises CaseError where it cannot be built here."""
    notes: list[str] = []
    seen = watch or NoWatch()
    seen.begin(0, item.id, notation.case_text(case), plan.patience or patience(case))
    with plan.device.active(), listening(notes):
        results, _ = check(item.row, case, plan.device, plan.cpu, plan.tables, EVERYTHING, seen.stage, notes)
    seen.end()
    return results
