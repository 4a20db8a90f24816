"""The findings of an item, by kind: each with its least case and its cause, and whether it comes every time."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from parity.checks import metadata
from parity.checks.check import Result, failing
from parity.core import notation
from parity.core.case import Case
from parity.core.errors import ParityError
from parity.core.results import UNSEARCHED, Aspect, Cause, Measure, Record, Status, Workaround
from parity.engine.cases import ItemTally, is_near, record
from parity.engine.checking import ItemRun, end_unless_alive
from parity.engine.journal import LOCATING, SHRINKING
from parity.engine.options import RunOptions
from parity.engine.rounds import Part, TimeLimit
from parity.engine.suite import Item
from parity.execution import detour
from parity.findings.cause_search import cause_of, unlocated
from parity.findings.extents import Extent
from parity.findings.recognition import Recognition, uncovered
from parity.findings.regions import extent
from parity.findings.weights import promise
from parity.findings.workaround import Way, tried, ways_around
from parity.generation.generate import Drawn
from parity.generation.reductions import ENOUGH
from parity.generation.shrink import UNFIT, plainest, rare
from parity.generation.shrink import shrink as least
from parity.oracle.yardstick import NEAR
from parity.store import marginal
from parity.store.rows import Sighting

KINDS_SHRUNK = 3  # kinds of findings of one item whose sizes are shrunk; the rest only lose what they do not need
SHRINK_SECONDS = 4.0  # per kind
PLAIN_SECONDS = 2.0  # and after that, for what the shrinker leaves
FEW = 256  # elements of a case that costs no more than a smaller one
OTHERS = 4  # further cases of a finding that are kept, for trying it again
CAUSE_SECONDS = 30.0  # of an item, in profiles that draw less than all; its findings after that are reported by op
FINDING_SECONDS = 20.0  # after which no other experiment begins with a finding: one check of a large case may take a minute
WAY_SECONDS = 1.0  # of a finding that is looked at closely, for trying ways around it
AGAIN = 6  # how often a finding must be reproduced, one time after the other, to count as none of chance
AGAIN_SECONDS = 3.0  # after which one that takes long was reproduced often enough


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of difference of one item, with the least case that shows it and the first case that showed it. count: cases of
    the item that showed this kind; others: a few of them, the largest first; cause: where it comes from, None if a later part
    of the item looks for it; also: drawn cases that the least case does not stand for; known: what it is to the known findings,
    None if it is new; by_chance: whether the case agreed when it was run again; extent: of all cases that showed it; before:
    the cases before the first one in its process; ways: what was tried around it; near: as in `Record`."""

    item: Item
    result: Result
    case: Case
    first: Case
    count: int
    others: tuple[Case, ...] = ()
    cause: Cause | None = None
    also: tuple[str, ...] = ()
    known: Sighting | None = None
    by_chance: bool = False
    extent: Extent = ()
    before: tuple[str, ...] = ()
    ways: tuple[Workaround, ...] = ()
    near: tuple[str, ...] = ()


class Looks(NamedTuple):
    """How closely findings are looked at. kinds: of how many the sizes are shrunk; locate: whether experiments look for their
    causes; later: whether another part of the item will report them."""

    kinds: int
    locate: bool
    later: bool = False


def by_kind(run: ItemRun, tally: ItemTally, known: Recognition, looks: Looks) -> Iterator[Finding]:
    """Each kind of finding with its least case and its cause, and what it is to the known ones."""
    kinds, locate, later = looks
    any_seen = run.plan.seen.read()
    # Where others are known, the cause alone says whether this one is; what nobody looked into is known by no other case.
    whole = bool(known.entries) or run.plan.profile.source == "all"
    of_item = time.monotonic() + (math.inf if whole else CAUSE_SECONDS)
    earlier = list[Case]()  # the least cases of the kinds before
    simplest = {key: min(seen, key=lambda s: _plainness(s[0])) for key, seen in tally.failing.items()}
    for k, key in enumerate(sorted(simplest, key=lambda key: locate and _worth(run.item, *simplest[key]))):
        seen, (one, result) = tally.failing[key], simplest[key]
        case, until = one.case, time.monotonic() + min(math.inf if whole else FINDING_SECONDS, run.plan.left)
        look = locate and time.monotonic() < of_item and run.plan.left > 0
        cause = None if later else unlocated(run.item.row, result, (UNSEARCHED,))
        early = _cause(run, case, result, until) if look and any_seen else None
        again, cause = early is not None and run.plan.seen.has(early), early or cause
        if kinds:
            case, result = shrink(run, one, result, k < kinds and not again, earlier)
            earlier.append(case)
        if look and not again and (early is None or case != one.case):  # the same experiments with the same case say no more
            cause = _cause(run, case, result, until)
        shown = [(case, result.verdict.measure), *((s.case, r.verdict.measure) for s, r in seen)]
        shown += _with_rare_values(run, case, result) if look else ()
        drawn_cases = sorted({s[0].case for s in seen} - {one.case}, key=lambda c: (-c.numel, notation.case_text(c)))
        also = tuple(map(notation.case_text, uncovered((case,), (s.case for s, _ in seen))))
        tries = 0 if time.monotonic() > until else 1 if again else AGAIN
        chance = kinds > 0 and run.plan.left > 0 and comes_and_goes(run, case, result, tries, AGAIN_SECONDS)
        found = Finding(
            run.item, result, case, one.case, len(seen), tuple(drawn_cases[:OTHERS]), cause, also, by_chance=chance,
            extent=(where := extent(shown)), before=tally.before.get(one, ()), near=_near(seen, result, where),
        )  # fmt: skip
        if cause is not None and look and not again and not chance:
            run.plan.seen.add(cause, record_of(found))
            cases = (case, *reversed(drawn_cases), one.case) if time.monotonic() < until else ()
            found = replace(found, ways=_ways(run, found, cases))
        if known.entries and not later:
            pinned = any(s in tally.pinned for s, _ in seen)
            found = replace(found, known=known.matching(record_of(found), pinned))
        if found.known is not None:
            tally.mark(key, found.known.id)
        yield found


def _plainness(one: Drawn) -> tuple[bool, int, int, tuple[int, ...]]:
    """The least is looked into: one that shows it with elements in each operand, as ordinary calls have, of few choices, and of
    few elements, since all that follows runs such cases hundreds of times."""
    empty = not all(s.numel for s in one.case.operands())
    return empty, max(0, (one.case.numel // FEW).bit_length()), len(one.picks), one.picks


def _worth(item: Item, one: Drawn, result: Result) -> tuple[bool, str, int]:
    """The least is looked into first, for the time may not suffice for all."""
    return promise([record(item, result, notation.case_text(one.case), "", False)]).order


def _near(seen: Sequence[tuple[Drawn, Result]], least: Result, shows: Extent) -> tuple[str, ...]:
    """The drawn cases of a kind of finding that may be marginal; none if one of them, the least case or another place where it
    shows says more, or if they are too many for any run. least: result of the least case."""
    texts = {notation.case_text(s.case): None for s, _ in seen}
    little = least.verdict.near and all(is_near(r) for _, r in seen) and all(error <= NEAR for _, error in shows)
    return tuple(texts) if little and marginal.is_seldom(texts) else ()


def comes_and_goes(run: ItemRun, case: Case, result: Result, tries: int, seconds: float = math.inf) -> bool:
    """Whether a finding comes and goes: it is unstable, or its case does not show it every time. seconds: after which one that
    takes long was tried often enough."""
    if result.verdict.status is Status.UNSTABLE or (result.aspect is Aspect.REPEAT and result.verdict.status is Status.ERROR):
        return True
    deadline = time.monotonic() + seconds
    for k in range(tries):
        if k and time.monotonic() > deadline:
            return False
        again = _again(run, case, result)
        if not again:  # it cannot be built by itself
            return False
        if not any(r.about(result.key) is not None for r in failing(again)):
            return True
    return False


def _again(run: ItemRun, case: Case, result: Result) -> tuple[Result, ...]:
    """The results of a case in the aspect of a finding."""
    run.begin(SHRINKING, case)
    try:
        return run.recheck(case, result.aspect)
    finally:
        run.end()


def _with_rare_values(run: ItemRun, case: Case, result: Result) -> Iterator[tuple[Case, Measure]]:
    """What the tensor of a finding shows where the least case holds one rare value instead, in each operand in turn."""
    deadline = time.monotonic() + min(PLAIN_SECONDS, run.plan.left)
    for changed in rare(case) if result.verdict.measure is not None else ():
        if time.monotonic() > deadline:
            return
        with suppress(*UNFIT):
            for r in _again(run, changed, result):
                compared = r.measures if r.verdict.status.is_comparison else ()
                yield from ((changed, m) for m in compared if m.tensor == result.verdict.tensor and not m.unjudged)


def _cause(run: ItemRun, case: Case, result: Result, until: float) -> Cause:
    """The cause of a finding; if the experiments end the process, the item is examined again without them. until: after which
    none begins: what is not over then was not looked into."""

    def found(case: Case, only: Aspect) -> tuple[Result, ...]:
        if time.monotonic() > until:
            raise TimeoutError
        return tuple(failing(run.recheck(case, only)))

    run.begin(LOCATING, case)
    try:
        cause = cause_of(run.item.row, case, result, run.plan.device, found)
    except TimeoutError:
        cause = unlocated(run.item.row, result, (UNSEARCHED,))
    end_unless_alive(run.plan, run.journal, f"looking for the cause of {result.verdict.reason[:80]}")
    run.end()
    return cause


def _ways(run: ItemRun, f: Finding, cases: Sequence[Case]) -> tuple[Workaround, ...]:
    """What came of the ways around a finding; as `_cause` if they end the process."""
    aspect, of_strides = f.result.aspect, _problem(f.result) == metadata.PROBLEM

    def differs(case: Case, way: Way | None) -> bool | None:
        run.begin(LOCATING, case)
        results = run.recheck(case, aspect, None if way is None else functools.partial(detour.there, way.name))
        if any(r.verdict.status.is_doubtful for r in results):
            end_unless_alive(run.plan, run.journal, f"looking for a way around {f.result.verdict.reason[:80]}")
        run.end()
        # A way may well give fresh results other strides, which alone are no fault if they were none before.
        bad = [r for r in failing(results) if of_strides or _problem(r) != metadata.PROBLEM]
        compared = any(r.aspect is aspect and r.verdict.status.is_comparison for r in results)
        return True if bad else False if compared else None

    assert f.cause is not None
    return tried(ways_around(f.cause, aspect, run.item.dtype), dict.fromkeys(cases), differs, min(WAY_SECONDS, run.plan.left))


def _problem(r: Result) -> str:
    return r.verdict.measure.problem if r.verdict.measure is not None else ""


def shrink(
    run: ItemRun, one: Drawn, result: Result, sizes: bool = True, others: Sequence[Case] = ()
) -> tuple[Case, Result]:  # fmt: skip
    """The least case that shows this kind of finding, and its result; the original case if it does not show the finding
    again. sizes: whether to look for smaller sizes, too, which takes longest; others: least cases of other kinds of the item:
    most kinds are one fault in several passes or tensors, and show in the same one."""
    deadline, key = time.monotonic() + min(SHRINK_SECONDS, run.plan.left), result.key
    hits: dict[Case, Result | None] = {}  # each case is tried once, so that an unstable device cannot confuse the shrinker

    def fails(case: Case) -> bool:
        if case not in hits:
            if time.monotonic() > deadline:
                return False
            run.begin(SHRINKING, case)
            again = run.recheck(case, result.aspect)
            if not again or any(r.verdict.status.is_doubtful for r in again):
                end_unless_alive(run.plan, run.journal, again[0].verdict.reason if again else "a case that could not be built")
            run.journal.end()
            hits[case] = next((shown for r in failing(again) if (shown := r.about(key)) is not None), None)
        return hits[case] is not None

    def buildable(case: Case) -> bool:
        """`fails` of a case that nobody drew, so that it may not be possible to build it."""
        try:
            return fails(case)
        except ParityError:
            raise
        except Exception:
            run.journal.end()
            return False

    smallest = next((c for c in others if c.numel <= ENOUGH and all(s.numel for s in c.operands()) and buildable(c)), None)
    if smallest is None:
        smallest = least(run.item.row, run.item.dtype, run.plan.profile.sizes, one, fails) if sizes else one.case
    if smallest is None or not (smallest in hits or fails(smallest)) or hits[smallest] is None:
        return one.case, result
    deadline += PLAIN_SECONDS  # which is over if a single check took long
    smallest = plainest(smallest, result.aspect, buildable)
    return smallest, hits[smallest] or result


def record_of(f: Finding) -> Record:
    made = record(f.item, f.result, notation.case_text(f.first), "", False, notation.case_text(f.case))
    known, others = f.known.id if f.known is not None else "", tuple(map(notation.case_text, f.others))
    return replace(
        made, cause=f.cause, count=f.count, others=others, also=f.also, known=known, by_chance=f.by_chance, extent=f.extent,
        ways=f.ways, near=f.near,
    )  # fmt: skip


def may_report_now(part: Part, limit: TimeLimit, tally: ItemTally) -> bool:
    """Whether findings may be shrunk now, and their causes looked for; else a later part reports them. What this process
    has reported of the item before is not reported again."""
    reported = limit.reported.setdefault(part.item.id, set())
    for key in reported & tally.failing.keys():
        del tally.failing[key]
    now = limit.may_look_for_causes(part)
    reported.update(tally.failing if now else ())
    return now


def how_far(o: RunOptions, dead: frozenset[int]) -> Looks:
    """How closely findings are looked at, after what ended processes before."""
    kinds = 0 if o.no_shrink or SHRINKING in dead else KINDS_SHRUNK
    # Each death costs a process: one more may happen here only if none but shrinking's came before.
    return Looks(kinds, not o.no_shrink and LOCATING not in dead and (SHRINKING not in dead or len(dead) == 1))
