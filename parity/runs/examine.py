"""Examine one item: check its pinned and explored cases, collect findings by kind, and shrink each kind.

A finding never stops the drawing; the findings are complete only when all cases have run.
"""

from __future__ import annotations

import functools
import gc
import math
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Protocol

import torch

from parity.checks.check import EVERYTHING, Mark, Result, Settings, check, failing
from parity.checks.dispatched import Dispatched
from parity.checks.leaks import leak_of
from parity.checks.power import ProbeResults
from parity.checks.trial import LARGE, NAN
from parity.core import notation
from parity.core.case import Case
from parity.core.errors import CaseError, DeviceError, ParityError
from parity.core.results import Aspect, Cause, Json, Record, Status
from parity.coverage import op_dtype
from parity.devices.base import Device
from parity.devices.fallbacks import listening
from parity.execution.execute import program
from parity.generation import generate, sweep
from parity.generation.generate import Drawn
from parity.generation.plainer import plainest
from parity.generation.shrink import shrink as least
from parity.judging.rules import rule_of
from parity.runs import inquest
from parity.runs.alone import Alone, Checked
from parity.runs.figures import Figures
from parity.runs.known import Entry, Known, aspect_and_case, cases_of
from parity.runs.locating import cause_of, unlocated
from parity.runs.options import RunOptions
from parity.runs.recognition import Recognition, outline, shared, uncovered
from parity.runs.rounds import PINNED, Part, TimeLimit
from parity.runs.rows import ItemRow, Power, Sighting
from parity.runs.suite import ORACLE_EVERY, Item, RunProfile
from parity.runs.tally import Held, ItemTally, record
from parity.tolerance import Tables

KINDS_SHRUNK = 3  # kinds of findings of one item whose sizes are shrunk; the rest only lose what they do not need
SHRINK_SECONDS = 6.0  # per kind
OTHERS = 4  # further cases of a finding that are kept, for trying it again
PLAIN_SECONDS = 2.0  # and after that, for what the shrinker leaves
CAUSE_SECONDS = 20.0  # of an item; its findings after that are told by op
REPEAT_EVERY = 4  # one case in so many runs its forward twice
OPERANDS_EVERY = 4  # one case in so many is checked for changes to its operands
GUARDS_EVERY = 4  # one case in so many of a profile with poison runs its calls once more between guards
LAW_EVERY = 8  # one case in so many of a random op, and every pinned one, is drawn until its law can be judged
# Expensive aspects: (n, k) means the cases whose ordinal is k modulo n.
EVERY = {Aspect.DOUBLE: (8, 3), Aspect.TANGENT: (12, 4), Aspect.TRANSFER: (6, 5)}
TWICE_EVERY = 3  # for OpInfo entries and factorizations, whose derivatives call kernels that the function does not call
# So many explored cases in a row have the same shapes, scalars and flags on a device that compiles and keeps a graph for each.
# Two cost 3 of 164 bugs of the zoo and save 29 % of the graphs, three cost 6 and save 42 % (tests/bench/graphs.py).
ALIKE = 2
GIVE_UP_AFTER = 12  # after so many cases, all of them refused, the rest of an item is not drawn
SHRINKING = 1 << 30  # the ordinal of all cases tried in shrinking: if one ends the process, the item is not shrunk
LOCATING = SHRINKING + 1  # and of those tried for causes: if one ends the process, causes are told without experiments
SWEPT = 1 << 28  # the ordinal of the first case of the sweep over border sizes
SWEPT_ROUND = 1  # the part of a run with a limit of time that sweeps
REPLAYING = 1 << 29  # the ordinal of the first known case that is replayed
AGAIN = 6  # how often a finding must come again, one time after the other, to count as none of chance
REPLAYS = 3  # how often a known case must agree, one time after the other, to count as fixed
USUAL = [Aspect.FORWARD, Aspect.BACKWARD, Aspect.OUT, Aspect.INPLACE]  # aspects of a known case that names none
# Each call of a case may take this long: of 200,000 on an H100 that 27 processes shared, one that compiles its kernel took
# 14.6 s, and ten others more than 5 s ...
BASE_SECONDS = 20.0
SECONDS_PER_ELEMENT = 2e-5  # ... and this per element of its operands
SECONDS_PER_TENSOR = 0.1  # ... and this per operand: optimizers of many parameters call a kernel for each, several times
PLAIN_NUMEL = 1000  # a case of more elements may hang for its size
PATIENCE_ALONE, PROCESSES_ALONE = 900.0, 6  # seconds for starting processes, and how many of them one case may need


class CaseJournal(Protocol):
    """Receives what an item is about to do: the `Journal`, or nothing."""

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """A case begins."""

    def stage(self, name: str) -> None:
        """The case reaches a stage."""

    def end(self) -> None:
        """The case is done."""

    def lost(self, why: str) -> None:
        """The case left the device unable to compute: a worker ends here, and another one continues without the case."""


class NoJournal:
    """Records nothing."""

    def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
        """Nothing."""

    def stage(self, name: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def lost(self, why: str) -> None:
        """Raises DeviceError, because there is no other process to continue."""
        raise DeviceError(f"the device computes nothing any more after: {why}; run with -n 1 to go on without the case")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What all items of a run share. profile: the sizes and numbers that `options.profile` names; power: the fraction of cases
    that are judged once more with errors put in; takes: the dtypes that the device accepted at the start; limit: of time, if
    the run has one; known: the file of known findings; later: whether a part of its own looks for the causes of what an item
    found."""

    device: Device
    cpu: Device
    tables: Tables
    profile: RunProfile
    options: RunOptions = field(default_factory=RunOptions)
    power: float = 0.0
    takes: frozenset[str] = frozenset()
    limit: TimeLimit | None = None
    known: Known | None = None
    later: bool = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return math.inf if self.limit is None else self.limit.left


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of difference of one item, with the least case that shows it and the first case that showed it. count: cases of
    the item that showed this kind; others: a few of them, the largest first; cause: where it comes from, None if a later part
    of the item looks for it; also: drawn cases that the least case does not stand for; known: what it is to the known findings,
    None if it is new; by_chance: whether the case agreed when it was run again."""

    item: Item
    result: Result
    case: Case
    first: Case
    count: int
    others: tuple[Case, ...] = ()
    digest: str = ""
    cause: Cause | None = None
    also: tuple[str, ...] = ()
    known: Sighting | None = None
    by_chance: bool = False


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that examining an item gave. features: of every case, with the aspects in which it was compared; known: what
    was seen of known findings; unknown: the summary without the refusals and fallbacks that are known; explained: the cases of
    the records that known cases stand for; deaths: of other processes, as rows for the controller; held: what `explain` is to
    explain."""

    summary: ItemRow
    records: tuple[Record, ...]
    findings: tuple[Finding, ...]
    features: tuple[frozenset[str], ...] = ()
    power: tuple[Power, ...] = ()
    figures: tuple[Figures, ...] = ()
    known: tuple[Sighting, ...] = ()
    unknown: ItemRow | None = None
    explained: tuple[str, ...] = ()
    deaths: tuple[Json, ...] = ()
    held: Held | None = None


def patience(case: Case) -> float:
    """Seconds that each call of a case may take before it counts as hung."""
    return BASE_SECONDS + SECONDS_PER_ELEMENT * case.numel + SECONDS_PER_TENSOR * len(case.operands())


def drawn(item: Item, plan: RunPlan, part: Part | None = None) -> Iterator[tuple[int, bool, Drawn]]:
    """(ordinal, pinned, case) of every case of an item, or of a part of it; depends on item, profile, seed, and whether the
    device keeps graphs."""
    p, o = plan.profile, plan.options
    alike = ALIKE if plan.device.keeps_graphs and not item.row.is_sampled else 1  # an entry's samples are its structures
    if o.count:
        yield from ((k, False, generate.nth(item.row, item.dtype, p.sizes, o.seed, k)) for k in range(1, op_dtype.TRIES + 1))
        return
    for k in range(p.pinned if part is None or part.pinned else 0):
        yield k, True, generate.nth(item.row, item.dtype, p.sizes, "pinned", k, mixes=False)
    n = p.examples(item.row, item.dtype) if o.examples is None else o.examples
    for k in range(n) if part is None else range(part.start, part.stop):
        yield p.pinned + k, False, generate.nth(item.row, item.dtype, p.sizes, o.seed, k + 1, alike)
    sweeps = o.examples is None and (part is None or part.round == SWEPT_ROUND)
    for k in range(p.sweeps(item.row, item.dtype) if sweeps else 0):
        one = sweep.swept(item.row, item.dtype, p.sweep, o.seed, k)
        if one is not None:
            yield SWEPT + k, False, one


def _alike(item: Item, plan: RunPlan, part: Part | None, hung: Sequence[Case]) -> frozenset[int]:
    """The ordinals of the cases that are like those that hung: each would take as long again. One plain small call that hung
    says nothing about others."""
    if not hung:
        return frozenset()
    common = shared(hung)
    if len(hung) == 1 and not common.words and common.numel <= PLAIN_NUMEL:
        return frozenset()
    return frozenset(
        k for k, _, one in _valid(drawn(item, plan, part), ItemTally(item)) if common.stands_for(outline(one.case))
    )


def settings(item: Item, plan: RunPlan, ordinal: int, pinned: bool) -> Settings:
    """How one case of an item is checked."""
    o = plan.options
    if o.count:
        return Settings(more=frozenset({Aspect.DOUBLE}))
    family = item.row.family
    twice = item.row.is_sampled or rule_of(item.row).differentiated_often
    kind = item.row.transfers, family == "movement", twice
    if not (o.no_screens or pinned):
        return _screened(_start(item.id), *kind, o.reach, ordinal)
    more = _more(*kind, o.reach, ordinal)
    law, kept = pinned or ordinal % LAW_EVERY == 2, ordinal % OPERANDS_EVERY == 3
    return _settings(True, ordinal % REPEAT_EVERY == 1, None, more, law, kept, whole=o.no_screens)


@functools.lru_cache(maxsize=1 << 16)
def _screened(start: int, travels: bool, moves: bool, twice: bool, reach: bool, ordinal: int) -> Settings:
    """`settings` of an explored case, cached because most of them recur in every item."""
    always_use_oracle, law, kept = (
        (ordinal + start) % ORACLE_EVERY == 0,
        ordinal % LAW_EVERY == 2,
        ordinal % OPERANDS_EVERY == 3,
    )
    return _settings(
        always_use_oracle, ordinal % REPEAT_EVERY == 1, None, _more(travels, moves, twice, reach, ordinal), law, kept
    )


@functools.lru_cache(maxsize=4096)
def _start(item: str) -> int:
    """An offset for the item's ordinals, so that a 1-in-n choice also reaches short items."""
    return zlib.crc32(item.encode()) % ORACLE_EVERY


_settings = functools.lru_cache(maxsize=1024)(Settings)


@functools.lru_cache(maxsize=4096)
def _more(travels: bool, moves: bool, twice: bool, reach: bool, ordinal: int) -> frozenset[Aspect]:
    """The expensive aspects in which a case is checked."""
    more = {a for a, (every, rest) in EVERY.items() if ordinal % every == rest}
    if twice and ordinal % TWICE_EVERY == 0:
        more.add(Aspect.DOUBLE)
    if travels:
        more |= {Aspect.TRANSFER}
    elif not moves:
        more -= {Aspect.TRANSFER}  # it tests operands: one bug of a copy must not be reported by every op
    if reach:  # torch 2.13 breaks these under a dispatch mode: tensors of zeros end the process, neg bits get lost
        more -= {Aspect.TANGENT, Aspect.TRANSFER}
    return frozenset(more)


def examine(
    item: Item,
    plan: RunPlan,
    journal: CaseJournal,
    dead: frozenset[int] = frozenset(),
    part: Part | None = None,
    alone: Alone | None = None,
    hung: Sequence[Case] = (),
) -> Examined:
    """Check every case of an item, or of a part of it; exploration ends when the time is over. dead: ordinals of cases that
    ended a process before and are left out; alone: checks the cases in other processes; hung: cases of the item that hung:
    those that have all that they share, and are not smaller, are left out."""
    o, tally, started, notes = plan.options, ItemTally(item), time.monotonic(), list[str]()
    reached = Dispatched() if o.reach else None
    entries = plan.known.entries if plan.known is not None and not o.count else ()
    known = Recognition(item.row.name, item.dtype, entries, date.today(), o.strict_known)
    left_out = dead | _alike(item, plan, part, hung)
    with plan.device.active(), listening(notes):
        if part is None or part.round == PINNED:  # each known case is run once
            _replay_known(item, plan, known, notes, journal, dead)
        else:
            known.leave_out_deadly()
        ordinal, text = 0, ""
        for ordinal, pinned, one in _valid(drawn(item, plan, part), tally):
            if ordinal in left_out:
                tally.leave_out(notation.case_text(one.case), tried=ordinal in dead)
                continue
            if not pinned and plan.left <= 0:
                break
            text = notation.case_text(one.case)
            tally.texts.append(text)
            if text in known.deadly:
                continue
            allowed = o.hang_after or patience(one.case)
            if alone is not None:
                journal.begin(ordinal, item.id, text, PATIENCE_ALONE + PROCESSES_ALONE * allowed)
                checked = alone.checked(ordinal, text, allowed, left_out)
                journal.end()
            else:
                journal.begin(ordinal, item.id, text, allowed)
                checked = _checked_here(item, plan, ordinal, pinned, one, journal, notes, reached)
            if checked is None:
                tally.not_run.append(text)
                continue
            if checked.void:
                tally.void[checked.void[:120]] += 1
                continue
            tally.asked += checked.power
            tally.add(one, checked.results, text, checked.digest, pinned, checked.seconds)
            tally.keep(ordinal, one.case, checked.results)
            if tally.cases >= GIVE_UP_AFTER and tally.all_refused:
                break
            if o.count and op_dtype.fully_compared(item.row, item.dtype, tally.counts):
                break
        # Some kernels fail asynchronously. Without this check the next item would find a dead device and compare nothing.
        leaks: dict[str, int] = {}
        if alone is None:
            journal.begin(ordinal, item.id, text, o.hang_after or BASE_SECONDS)
            _alive(plan, journal, next(iter(tally.void), "the last case, or one before it that said nothing"))
            if item.dtype in plan.takes and not plan.device.takes(getattr(torch, item.dtype)):
                journal.lost(f"this item: it refuses tensors of {item.dtype}, which it took at the start")
            journal.end()
            if not (o.count or o.reach or (part is not None and part.round != PINNED)):
                leaks = _leaks(item, plan, tally, journal)
            notes.clear()
        else:
            alone.close()
        kinds, locate = _how_far(o, dead)
        accepted = _without_known(item, tally, known)
        now = not plan.later if part is None or plan.limit is None else _told_now(part, plan.limit, tally)
        began = time.monotonic()
        how_far = kinds if now else 0, locate and now, not now and not o.no_shrink
        findings = tuple(_findings(item, plan, tally, known, notes, journal, *how_far))
        if plan.limit is not None:
            plan.limit.causes += time.monotonic() - began
    records = (*tally.records, *accepted, *map(_stored, findings))
    summary = replace(tally.summary(time.monotonic() - started, reached), round=0 if part is None else max(0, part.round))
    summary = replace(summary, leaks=leaks)
    more = tuple(tally.features), tuple(tally.power()), (tally.packed(not o.no_screens),)
    unknown = known.without_known(summary, o.fail_on)
    deaths = () if alone is None else tuple(alone.deaths)
    explained = tuple(r.shrunk for r in accepted)
    held = Held(dict(tally.failing), frozenset(tally.pinned)) if plan.later and tally.failing else None
    return Examined(summary, records, findings, *more, tuple(known.sightings), unknown, explained, deaths, held)


def explain(
    item: Item, plan: RunPlan, journal: CaseJournal, held: Held, dead: frozenset[int] = frozenset()
) -> tuple[tuple[Finding, ...], tuple[Record, ...], tuple[Sighting, ...]]:
    """Shrink what an item found, and look for the causes: the findings, their records, and what was seen of known ones. dead:
    as in `examine`."""
    tally, notes = ItemTally(item, pinned=set(held.pinned)), list[str]()
    tally.failing.update(held.failing)
    entries = plan.known.entries if plan.known is not None else ()
    known = Recognition(item.row.name, item.dtype, entries, date.today(), plan.options.strict_known)
    with plan.device.active(), listening(notes):
        findings = tuple(_findings(item, plan, tally, known, notes, journal, *_how_far(plan.options, dead), later=False))
    return findings, tuple(map(_stored, findings)), tuple(known.sightings)


def _how_far(o: RunOptions, dead: frozenset[int]) -> tuple[int, bool]:
    """(how many kinds of findings are shrunk, whether causes are looked for), after what ended processes before."""
    kinds = 0 if o.no_shrink or SHRINKING in dead else KINDS_SHRUNK
    # Each death costs a process: one more may happen here only if none but shrinking's came before.
    return kinds, not o.no_shrink and LOCATING not in dead and (SHRINKING not in dead or len(dead) == 1)


def check_case(
    item: Item, plan: RunPlan, ordinal: int, pinned: bool, one: Drawn, mark: Mark, notes: list[str], reached: Dispatched | None
) -> Checked:
    """Check one case of an item. What may be none of the device's doing is tried once more: a case without memory, after the
    caches were emptied, and a finding of a device that computes with the CPU's own kernels. Raises CaseError if the case cannot
    be built."""
    how = settings(item, plan, ordinal, pinned)
    how = replace(how, power=True) if _sampled(item, plan, ordinal) else how
    how = _poisoned(how, plan, ordinal)
    how = replace(how, fail_on_metadata=True) if plan.options.fail_on_metadata else how
    there = plan.device, plan.cpu, plan.tables
    seconds, power = dict[str, float](), list[ProbeResults]()
    results, digest = check(item.row, one.case, *there, how, mark, notes, reached, power, seconds)
    if any(r.verdict.status is Status.OOM for r in results):
        gc.collect()
        plan.device.release()
        results, digest = check(item.row, one.case, *there, how, mark, notes, reached, None, seconds)
    elif failing(results) and _shares_the_kernels(plan.device):
        again, _ = check(item.row, one.case, *there, how, mark, notes, reached)
        results = results if failing(again) else again
    return Checked(results, digest, seconds, tuple(power))


def _checked_here(
    item: Item,
    plan: RunPlan,
    ordinal: int,
    pinned: bool,
    one: Drawn,
    journal: CaseJournal,
    notes: list[str],
    reached: Dispatched | None,
) -> Checked:
    """Check one case, which the journal holds, in this process; it ends if the device computes nothing any more afterwards."""
    try:
        checked = check_case(item, plan, ordinal, pinned, one, journal.stage, notes, reached)
    except CaseError as e:
        _alive(plan, journal, str(e))
        checked = Checked(void=str(e))
    # A call that the CPU refuses as well may still have broken the device for all later calls.
    odd = [r.verdict.reason for r in checked.results if r.verdict.status in (Status.ERROR, Status.VOID)]
    if odd or (one.case.refused and not checked.void):
        _alive(plan, journal, odd[0] if odd else f"a call that is to be refused ({one.case.refused})")
    journal.end()
    return checked


def _leaks(item: Item, plan: RunPlan, tally: ItemTally, journal: CaseJournal) -> dict[str, int]:
    """The case of the item that agreed and was kept for this, if each of its repeats leaves memory on the device. Looked for in
    one dtype of each op, because it takes as long as some cases."""
    if tally.agreed is None or item.dtype != item.row.dtypes[0]:
        return {}
    ordinal, case, differentiated = tally.agreed
    text = notation.case_text(case)
    journal.begin(ordinal, item.id, text, plan.options.hang_after or patience(case))
    journal.stage("device")
    left = leak_of(program(item.row), case, plan.device, differentiated)
    journal.end()
    return {text: left} if left else {}


def _stored(f: Finding) -> Record:
    """The record of a finding."""
    made = record(f.item, f.result, notation.case_text(f.first), f.digest, False, notation.case_text(f.case))
    known = f.known.id if f.known is not None else ""
    others = tuple(map(notation.case_text, f.others))
    return replace(made, cause=f.cause, count=f.count, others=others, also=f.also, known=known, by_chance=f.by_chance)


def _told_now(part: Part, limit: TimeLimit, tally: ItemTally) -> bool:
    """Whether findings may be shrunk now, and their causes looked for; else a later part tells them. What this process has
    told of the item before is not told again."""
    told = limit.told.setdefault(part.item.id, set())
    for key in told & tally.failing.keys():
        del tally.failing[key]
    now = limit.may_look_for_causes(part)
    told.update(tally.failing if now else ())
    return now


def _poisoned(how: Settings, plan: RunPlan, ordinal: int) -> Settings:
    """The settings of a case of a profile that fills freed memory: with NaN and with large numbers in turn."""
    if not plan.profile.poison or plan.options.count or plan.options.reach:
        return how
    return replace(how, poison=LARGE if ordinal % 2 else NAN, guards=ordinal % GUARDS_EVERY == 0)


def _sampled(item: Item, plan: RunPlan, ordinal: int) -> bool:
    """Whether a case is judged once more with errors put in; a fixed choice for each item."""
    return zlib.crc32(f"{item.id} {ordinal}".encode()) < plan.power * 2.0**32


def _valid(cases: Iterator[tuple[int, bool, Drawn]], tally: ItemTally) -> Iterator[tuple[int, bool, Drawn]]:
    """The cases until one cannot be drawn: an OpInfo entry without samples ends the item with a reason."""
    try:
        yield from cases
    except CaseError as e:
        tally.void[str(e)[:160]] += 1


def _shares_the_kernels(device: Device) -> bool:
    """Whether the device computes everything with the CPU's own kernels and has no faults. Some of these kernels read
    uninitialized memory (bfloat16 convolutions with 65,536 channels, torch 2.13), so a difference that does not recur says
    nothing about the device."""
    return (device.simulated or device.torch_device.type == "cpu") and not getattr(device, "faults", ())


def _alive(plan: RunPlan, journal: CaseJournal, why: str) -> None:
    """End this process if the device no longer computes. why: the last reason that is known."""
    if not plan.device.answers():
        journal.lost(why)


def _findings(
    item: Item, plan: RunPlan, tally: ItemTally, known: Recognition, notes: list[str], journal: CaseJournal,
    kinds: int, locate: bool, later: bool,
) -> Iterator[Finding]:  # fmt: skip
    """Each kind of finding with its least case and its cause, and what it is to the known ones. kinds: of how many the sizes
    are shrunk; locate: whether experiments look for their causes; later: whether another part of the item will tell them."""
    spent = 0.0
    for k, (key, seen) in enumerate(tally.failing.items()):
        one, result = min(seen, key=lambda s: (len(s[0].picks), s[0].picks))
        case = one.case
        if kinds:
            case, result = shrink(item, plan, one, result, key, notes, journal, k < kinds)
        left = min(CAUSE_SECONDS - spent, plan.left)
        began = time.monotonic()
        look = locate and left > 0
        cause = None if later else unlocated(item.row, result)
        if look:
            cause = _cause(item, plan, case, result, notes, journal)
        spent += time.monotonic() - began
        drawn_cases = sorted({s[0].case for s in seen} - {one.case}, key=lambda c: (-c.numel, notation.case_text(c)))
        also = tuple(map(notation.case_text, uncovered((case,), (s.case for s, _ in seen))))
        chance = kinds > 0 and plan.left > 0 and _by_chance(item, plan, case, result, key, notes, journal)
        others = tuple(drawn_cases[:OTHERS])
        found = Finding(item, result, case, one.case, len(seen), others, cause=cause, also=also, by_chance=chance)
        if known.entries and not later:
            pinned = any(s in tally.pinned for s, _ in seen)
            found = replace(found, known=known.matching(_stored(found), pinned))
        if found.known is not None:
            tally.mark(key, found.known.id)
        yield found


def _by_chance(
    item: Item, plan: RunPlan, case: Case, result: Result, key: tuple[str, ...], notes: list[str], journal: CaseJournal
) -> bool:
    """Whether a finding comes and goes: it is unstable, or its case does not show it every time."""
    if result.verdict.status is Status.UNSTABLE or result.aspect is Aspect.REPEAT:
        return True
    for _ in range(AGAIN):
        journal.begin(SHRINKING, item.id, notation.case_text(case), plan.options.hang_after or patience(case))
        again = recheck(item, plan, case, notes, result.aspect, journal)
        notes.clear()
        journal.end()
        if not again:  # it cannot be built by itself
            return False
        if not any(r.about(key) is not None for r in failing(again)):
            return True
    return False


# ------------------------------------------------------------------------------------------------------ known findings


def _replay_known(
    item: Item, plan: RunPlan, known: Recognition, notes: list[str], journal: CaseJournal, dead: frozenset[int]
) -> None:
    """Run the least cases of the known findings of this item; those that end the process, in one of their own."""
    for k, (entry, text, case) in enumerate(cases_of(known.entries, item.row.name, item.dtype), REPLAYING):
        if entry.dies and dead:  # the item was begun before, and each of these takes a process and its patience
            known.skipped(entry, text, "not run again after another death")
        elif entry.dies and plan.left < (seconds := BASE_SECONDS + (plan.options.hang_after or patience(case))):
            known.skipped(entry, text, f"less than {seconds:.0f} s of the time were left")
        elif plan.left <= 0:
            known.nothing(entry, text, "the time was over")
        elif entry.dies:
            _replay_deadly(plan, known, entry, text, case)
        elif k in dead:  # the controller tells this death
            known.nothing(entry, text, "it ends the process now")
        else:
            journal.begin(k, item.id, notation.case_text(case), plan.options.hang_after or patience(case))
            known.replayed(entry, text, _results_of_known(item, plan, entry, text, case, notes, journal))
            journal.end()


def _results_of_known(
    item: Item, plan: RunPlan, entry: Entry, text: str, case: Case, notes: list[str], journal: CaseJournal
) -> tuple[Result, ...]:
    """The results of a known case in its aspect, or in those of its entry: of the first time that it does not agree, or of the
    last."""
    named = aspect_and_case(text)[0]
    aspects = [Aspect(a) for a in ((named,) if named else entry.aspects)] or USUAL
    results: tuple[Result, ...] = ()
    for _ in range(REPLAYS):
        again = ((a, recheck(item, plan, case, notes, a, journal)) for a in aspects)
        results = tuple(r for a, some in again for r in some if r.aspect is a)
        notes.clear()
        if odd := [r.verdict.reason for r in results if r.verdict.status in (Status.ERROR, Status.VOID)]:
            _alive(plan, journal, odd[0])
        if any(r.verdict.status is not Status.AGREE for r in results):
            break
    return results


def _replay_deadly(plan: RunPlan, known: Recognition, entry: Entry, text: str, case: Case) -> None:
    o = plan.options
    how = inquest.How(plan.device.name, o.faults, o.setup)
    ended = inquest.attempt(notation.case_text(case), how, BASE_SECONDS + (o.hang_after or patience(case)), quiet=True)
    if ended.died:
        known.died(entry, text)
    elif ended.code == 0:
        known.survived(entry, text)
    else:
        known.nothing(entry, text, "it does not end the process any more, and does not agree")


def _without_known(item: Item, tally: ItemTally, known: Recognition) -> list[Record]:
    """Take the cases of known findings out of `tally.failing`, so that they are not shrunk. Their records: one for each kind
    and entry, with the known case that stands for it."""
    made: list[Record] = []
    for key, seen in list(tally.failing.items()):
        hits = [(s, known.explaining(s[1], s[0].case)) for s in seen]
        accepted: dict[str, Entry] = {}
        for (one, result), hit in sorted(hits, key=lambda h: (len(h[0][0].picks), h[0][0].picks)):
            if hit is not None and hit[0].id not in accepted:
                entry, drawn = accepted.setdefault(hit[0].id, hit[0]), notation.case_text(one.case)
                known.saw(entry, result.aspect, hit[1] or drawn)
                finding = record(item, result, drawn, "", False, hit[1] or drawn)
                count = sum(h is not None and h[0].id == entry.id for _, h in hits)
                made.append(replace(finding, cause=entry.cause, known=entry.id, count=count))
        if new := [s for s, hit in hits if hit is None]:
            tally.failing[key] = new
        elif accepted:
            del tally.failing[key]
            tally.mark(key, next(iter(accepted)))
    return made


def _cause(item: Item, plan: RunPlan, case: Case, result: Result, notes: list[str], journal: CaseJournal) -> Cause:
    """The cause of a finding; if the experiments end the process, the item is examined again without them."""

    def found(case: Case, only: Aspect) -> tuple[Result, ...]:
        return tuple(failing(recheck(item, plan, case, notes, only, journal)))

    journal.begin(LOCATING, item.id, notation.case_text(case), plan.options.hang_after or patience(case))
    cause = cause_of(item.row, case, result, plan.device, found)
    _alive(plan, journal, f"looking for the cause of {result.verdict.reason[:80]}")
    notes.clear()
    journal.end()
    return cause


def shrink(
    item: Item,
    plan: RunPlan,
    one: Drawn,
    result: Result,
    key: tuple[str, ...],
    notes: list[str],
    journal: CaseJournal,
    sizes: bool = True,
) -> tuple[Case, Result]:
    """The least case that shows this kind of finding, and its result; the original case if it does not show the finding
    again. sizes: whether to look for smaller sizes, too, which takes longest."""
    deadline = time.monotonic() + min(SHRINK_SECONDS, plan.left)
    hits: dict[Case, Result | None] = {}  # each case is tried once, so that an unstable device cannot confuse the shrinker

    def fails(case: Case) -> bool:
        if case not in hits:
            if time.monotonic() > deadline:
                return False
            journal.begin(SHRINKING, item.id, notation.case_text(case), plan.options.hang_after or patience(case))
            again = recheck(item, plan, case, notes, result.aspect, journal)
            if not again or any(r.verdict.status in (Status.ERROR, Status.VOID) for r in again):
                _alive(plan, journal, again[0].verdict.reason if again else "a case that could not be built")
            journal.end()
            hits[case] = next((shown for r in failing(again) if (shown := r.about(key)) is not None), None)
        return hits[case] is not None

    def buildable(case: Case) -> bool:
        """`fails` of a case that nobody drew, so that it may not be possible to build it."""
        try:
            return fails(case)
        except ParityError:
            raise
        except Exception:
            journal.end()
            return False

    smallest = least(item.row, item.dtype, plan.profile.sizes, one, fails) if sizes else one.case
    if smallest is None or not (smallest in hits or fails(smallest)) or hits[smallest] is None:
        return one.case, result
    deadline = time.monotonic() + min(PLAIN_SECONDS, plan.left)
    smallest = plainest(smallest, result.aspect, buildable)
    return smallest, hits[smallest] or result


def recheck(item: Item, plan: RunPlan, case: Case, notes: list[str], only: Aspect, journal: CaseJournal) -> tuple[Result, ...]:
    """The results of one aspect of a case, with every tensor judged by the oracle; empty if the case cannot be built."""
    hard = plan.profile.poison
    strict = plan.options.fail_on_metadata
    how = Settings(True, only is Aspect.REPEAT, only, poison=NAN if hard else 0, guards=hard, fail_on_metadata=strict)
    try:
        results, _ = check(item.row, case, plan.device, plan.cpu, plan.tables, how, journal.stage, notes)
    except CaseError:
        return ()
    return results


def replay(item: Item, plan: RunPlan, case: Case, journal: CaseJournal | None = None) -> tuple[Result, ...]:
    """Check a case with all aspects and the oracle. Raises CaseError if it cannot be built here."""
    notes: list[str] = []
    seen = journal or NoJournal()
    how = replace(EVERYTHING, fail_on_metadata=plan.options.fail_on_metadata)
    seen.begin(0, item.id, notation.case_text(case), plan.options.hang_after or patience(case))
    with plan.device.active(), listening(notes):
        results, _ = check(item.row, case, plan.device, plan.cpu, plan.tables, how, seen.stage, notes)
    seen.end()
    return results
