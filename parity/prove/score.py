"""The run of one fault: the suite's ordinary cases on a simulated device that carries it, until one shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from parity.catalog.row import Row
from parity.checks.check import Result, Settings, check, failing
from parity.core import notation
from parity.core.case import Case
from parity.core.dtypes import DEFAULT
from parity.core.errors import CaseError, FaultError
from parity.core.results import Aspect, Status
from parity.devices import Device, resolve
from parity.devices.refusals import listening
from parity.engine import suite
from parity.engine.cases import drawn, is_near
from parity.engine.checking import ItemRun, recheck, settings
from parity.engine.findings import SHRINK_SECONDS
from parity.engine.findings import shrink as shrink_finding
from parity.engine.planning import SECONDS_PER_ELEMENT, RunPlan
from parity.engine.suite import Item
from parity.execution.execute import said
from parity.generation.generate import Drawn
from parity.generation.shrink import shrink
from parity.prove.routes import Route
from parity.prove.witness import FaultJournals, Tap
from parity.store import marginal
from parity.zoo.subjects import FaultSubject

SUITE, OPINFO = "suite", "opinfo"
FOUND = frozenset(s for s in Status if s.is_finding or s.is_absence)
STOPPED = "stopped at its limit of CPU time; "  # how the reason of a search that was not finished begins
MARGINAL = "marginal"  # how the reason of a miss begins that is a finding without that status
CASES_OF_OTHERS = 6  # cases of each composite and bystander row
MOST_KEPT = 3  # texts that a score keeps of each kind
PATIENCE = 10.0  # seconds that a case may take, in addition to those for its elements
Hit = TypeVar("Hit")
Outside = tuple[str, int]  # an item's id and the ordinal of one of its cases


@dataclass(frozen=True, slots=True)
class Score:
    """The result for one fault under one generator and seed.

    status, aspect, op, dtype: of the finding. examples: cases drawn of the ops concerned, up to the finding; fired: in how many
    of them the fault was at work. seconds: until the finding. case, shrunk: the case as drawn, and the least case; elements: of
    all operands of the least case. through: whether the op only uses the faulty one. miss: why the fault was not found. unseen:
    cases in which the fault was at work but nothing was reported. alarms: findings that the fault did not cause, mostly of
    bystanders. composites: other ops that show the fault, too. late: whether the search was stopped before its end, without a
    finding. notes: other remarks for the reader.
    """

    fault: str
    generator: str
    seed: str
    found: bool = False
    status: str = ""
    aspect: str = ""
    op: str = ""
    dtype: str = ""
    reason: str = ""
    examples: int = 0
    fired: int = 0
    seconds: float = 0.0
    shrinking: float = 0.0
    case: str = ""
    shrunk: str = ""
    elements: int | None = None
    through: bool = False
    miss: str = ""
    late: bool = False
    unseen: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    composites: tuple[str, ...] = ()
    bystanders: int = 0
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The fraction of the drawn cases in which the fault was at work."""
        return self.fired / self.examples if self.examples else 0.0


def allowed(plan: RunPlan, case: Case) -> float:
    """Seconds that a case may take before it counts as hung."""
    return (plan.options.hang_after or PATIENCE) + SECONDS_PER_ELEMENT * elements(case)


def elements(case: Case) -> int:
    """The number of elements in all operands together."""
    return case.numel


# ------------------------------------------------------------------------------------------------------------- the run


@dataclass(slots=True)
class FaultTrial:
    """One fault under test. dead: cases that ended a process before and are left out; until: CPU time of this process at which
    the search ends; near: op -> cases in which it is near its budget, so that a run may call it marginal."""

    subject: FaultSubject
    route: Route
    plan: RunPlan
    healthy: Device
    tap: Tap
    journals: FaultJournals
    until: float
    dead: frozenset[Outside] = frozenset()
    notes: list[str] = field(default_factory=list)
    near: dict[str, set[str]] = field(default_factory=dict)
    score: Score = field(default_factory=lambda: Score("", SUITE, ""))


def trial(
    subject: FaultSubject, route: Route, plan: RunPlan, journals: FaultJournals, seconds: float, generator: str = SUITE
) -> FaultTrial:
    """A FaultTrial with a new device that has this one fault. plan.device is the healthy device of the same kind; seconds: CPU
    time of the search."""
    tap = Tap(subject.fault, journals.fired)
    faulty = replace(plan, device=resolve("sim", (tap.fault,)))
    start = Score(subject.id, generator, plan.options.seed)
    return FaultTrial(subject, route, faulty, plan.device, tap, journals, time.process_time() + seconds, score=start)


def search(t: FaultTrial) -> tuple[Score, tuple[Item, Drawn, Result] | None]:
    """Draw cases until one shows the fault; returns the score so far, and the hit for `least`. Named rows come first, then rows
    that use them. Rows and dtypes take turns, so that an op or dtype that does not show the bug does not delay it."""
    started = time.monotonic()
    hit, stopped = None, False
    with t.plan.device.active(), listening(t.notes):
        for names, through in ((t.route.named, False), (t.route.using, True)):
            for item, ordinal, pinned, one in rounds(_items(names), t.plan):
                if (item.id, ordinal) in t.dead:
                    continue
                if stopped := time.process_time() > t.until:
                    break
                t.journals.about(examples=t.score.examples + 1, fired=t.score.fired, through=through)
                result = _tried(t, item, ordinal, pinned, one)
                if result is not None and not _is_marginal(t, item, one, result):
                    hit = item, one, result
                    break
            if hit or stopped:
                break
    t.score = replace(t.score, seconds=time.monotonic() - started)
    if hit is None:
        return replace(t.score, miss=_miss(t, stopped), late=stopped), None
    item, one, result = hit
    return replace(t.score, found=True, through=through, **_verdict_fields(item, result), **_cased(one.case)), hit


def _is_marginal(t: FaultTrial, item: Item, one: Drawn, result: Result) -> bool:
    """Whether a run would not count it, as far as its op was searched: then the search goes on."""
    if not is_near(result):
        return False
    texts = t.near.setdefault(item.row.name, set())
    texts.add(notation.case_text(one.case))
    return marginal.is_seldom(texts)


def rounds(items: Sequence[Item], plan: RunPlan) -> Iterator[tuple[Item, int, bool, Drawn]]:
    """One case of each item, then a second of each, and so on, up to the number of cases in the profile."""
    streams = {item: drawn(item, plan) for item in items}
    while streams:
        for item in tuple(streams):
            try:
                ordinal, pinned, one = next(streams[item])
            except (StopIteration, CaseError):
                del streams[item]
                continue
            yield item, ordinal, pinned, one


def _items(names: Sequence[str]) -> list[Item]:
    rows = [suite.row(n) for n in names]
    return [Item(r, d) for d in DEFAULT for r in rows if d in r.dtypes]


def _tried(t: FaultTrial, item: Item, ordinal: int, pinned: bool, one: Drawn) -> Result | None:
    """Run one case and count it; the result that shows the fault, or None."""
    text = notation.case_text(one.case)
    before, t.tap.raised = t.tap.count, ""
    t.journals.begin(ordinal, item.id, text, allowed(t.plan, one.case))
    s = t.score
    try:
        results = _checked(t, item.row, one.case, t.plan.device, settings(item, t.plan, ordinal, pinned), t.notes)
    except CaseError:
        return None
    except Exception as e:  # a bug of parity itself, reported as such as in an ordinary run
        t.score = replace(s, notes=kept(s.notes, f"parity itself failed in {text}: {type(e).__name__}: {said(e)}"))
        return None
    finally:
        t.journals.end()
    hits = sorted((r for r in results if r.verdict.status in FOUND), key=is_near)
    return counted(
        t, text, before, hits, lambda r: _agrees(t, item, one.case, r), lambda r: (r.verdict.status, r.verdict.reason)
    )


def counted(
    t: FaultTrial,
    text: str,
    before: int,
    hits: Sequence[Hit],
    agrees: Callable[[Hit], bool],
    says: Callable[[Hit], tuple[Status, str]],
) -> Hit | None:
    """Count one case in the score; returns the first difference that shows the fault. before: the fault's count of firings
    before the case. agrees: whether the healthy device does not show this difference. says: its status and reason."""
    fired = t.tap.count > before
    s = t.score = replace(t.score, examples=t.score.examples + 1, fired=t.score.fired + fired)
    if not hits:
        t.score = replace(s, unseen=kept(s.unseen, text)) if fired else s
        return None
    ours = [h for h in hits if agrees(h)]
    if not fired or not ours:
        why = "and the fault was not at work" if ours else "on the healthy device too"
        t.score = replace(s, alarms=kept(s.alarms, f"{says((ours or hits)[0])[0]} in {text}, {why}"))
        return None
    for h in ours:
        if not (note := void(t, *says(h))):
            return h
        t.score = replace(s, notes=kept(s.notes, note))
    return None


def void(t: FaultTrial, status: Status, reason: str) -> str:
    """Why this difference does not count as a finding of the bug although the fault was at work; empty if it counts."""
    if reason.startswith(FaultError.__name__):
        return f"the fault is not well made: {reason}"
    if t.subject.silent and t.tap.raised and status.raised:
        return f"the effect of a silent bug raised, which does not count: {reason}"
    return ""


def _checked(t: FaultTrial, row: Row, case: Case, device: Device, how: Settings, notes: list[str]) -> Sequence[Result]:
    return check(row, case, device, t.plan.cpu, t.plan.tables, how, t.journals.stage, notes)[0]


def _agrees(t: FaultTrial, item: Item, case: Case, result: Result) -> bool:
    """Whether the healthy device agrees in the same aspect of the case."""
    try:
        how = Settings(True, result.aspect is Aspect.REPEAT, None, frozenset({result.aspect}))
        again = _checked(t, item.row, case, t.healthy, how, [])
    except CaseError:
        return False
    said_so = [r.verdict.status for r in again if r.aspect is result.aspect]
    return not any(s in FOUND for s in said_so) and any(r.verdict.status is Status.AGREE for r in again)


def least(t: FaultTrial, score: Score, hit: tuple[Item, Drawn, Result]) -> Score:
    """The score with the least case that shows the same finding on the faulty device and not on the healthy one."""
    item, one, result = hit
    started = time.monotonic()
    t.journals.about(phase="shrink")
    with t.plan.device.active(), listening(t.notes):
        if result.verdict.status.is_finding:
            case, _ = shrink_finding(ItemRun(item, t.plan, t.journals, t.notes), one, result)
        else:
            case = least_case(t, item, one, lambda case: _fires(t, item, case, result))
        if case != one.case and not (_fires(t, item, case, result) and _agrees(t, item, case, result)):
            score = replace(score, notes=kept(score.notes, f"the shrunk case does not stand alone: {notation.case_text(case)}"))
            case = one.case
    return replace(score, **_shrunk(case), shrinking=time.monotonic() - started)


def least_case(t: FaultTrial, item: Item, one: Drawn, shows: Callable[[Case], bool]) -> Case:
    """The least case for which `shows` is true. Each case is tried once, because an answer that changes would confuse the
    shrinker."""
    deadline, asked = time.monotonic() + SHRINK_SECONDS, {one.case: True}

    def ask(case: Case) -> bool:
        if case not in asked:
            if time.monotonic() > deadline:
                return False
            asked[case] = shows(case)
        return asked[case]

    return shrink(item.row, item.dtype, t.plan.profile.sizes, one, ask) or one.case


def _fires(t: FaultTrial, item: Item, case: Case, like: Result) -> bool:
    """Whether the case shows the same result while the fault is at work in it."""
    before = t.tap.count
    t.journals.begin(0, item.id, notation.case_text(case), allowed(t.plan, case))
    again = recheck(item, t.plan, case, t.notes, like.aspect, t.journals)
    t.journals.end()
    shown = failing(again) if like.verdict.status.is_finding else [r for r in again if r.verdict.status in FOUND]
    return t.tap.count > before and any(r.about(like.key) is not None for r in shown)


def with_others(t: FaultTrial, score: Score) -> Score:
    """The score with the results of the bystanders (nothing, hopefully) and of the other ops that show the fault."""
    alarms, composites, seen = score.alarms, score.composites, 0
    t.journals.about(phase="others")
    with t.plan.device.active(), listening(t.notes):
        for name in (*t.route.composites, *t.route.bystanders):
            row = suite.row(name)
            for text, result, fired in _few(t, row):
                seen += name in t.route.bystanders
                if result is None:
                    continue
                if fired:
                    composites = kept(composites, f"{name} ({result.verdict.status})")
                    break
                if result.verdict.status.is_finding:  # refusals do not count: the healthy device refuses the same
                    alarms = kept(alarms, f"bystander {name}: {result.verdict.status} in {text}")
    return replace(score, alarms=alarms, composites=tuple(dict.fromkeys(composites)), bystanders=seen)


def _few(t: FaultTrial, row: Row) -> Iterator[tuple[str, Result | None, bool]]:
    """(case, finding or None, whether the fault was at work) for a few cases of a row in its first dtype."""
    item = Item(row, "float32" if "float32" in row.dtypes else row.dtypes[0])
    examples = CASES_OF_OTHERS - t.plan.profile.pinned if t.plan.profile.pinned < CASES_OF_OTHERS else 0
    few = replace(t.plan, options=replace(t.plan.options, examples=examples))
    for _, ordinal, pinned, one in rounds((item,), few):
        if (item.id, ordinal) in t.dead or ordinal >= CASES_OF_OTHERS:
            continue
        text, before = notation.case_text(one.case), t.tap.count
        t.journals.begin(ordinal, item.id, text, allowed(t.plan, one.case))
        try:
            results = _checked(t, row, one.case, t.plan.device, settings(item, few, ordinal, pinned), t.notes)
        except CaseError:
            continue
        finally:
            t.journals.end()
        yield text, next((r for r in results if r.verdict.status in FOUND), None), t.tap.count > before


# ---------------------------------------------------------------------------------------------------------------- words


def kept(texts: tuple[str, ...], more: str) -> tuple[str, ...]:
    """The texts with one more, at most MOST_KEPT and each only once."""
    return texts if len(texts) >= MOST_KEPT or more in texts else (*texts, more)


def _verdict_fields(item: Item, r: Result) -> dict[str, Any]:
    words = {"status": str(r.verdict.status), "aspect": str(r.aspect), "reason": r.verdict.reason}
    return {**words, "op": item.row.name, "dtype": item.dtype}


def _cased(case: Case) -> dict[str, Any]:
    return {"case": notation.case_text(case), **_shrunk(case)}


def _shrunk(case: Case) -> dict[str, Any]:
    return {"shrunk": notation.case_text(case), "elements": elements(case)}


def _miss(t: FaultTrial, stopped: bool) -> str:
    names = (*t.route.named, *t.route.using)
    if not names:
        absent = f" ({', '.join(t.route.absent)})" if t.route.absent else ""
        return f"no row of the {t.plan.profile.name} profile runs its ops{absent}"
    s = t.score
    if not s.examples:
        return f"no case of {_listed(names)} could be drawn"
    late = STOPPED if stopped else ""
    if t.near:
        return f"{late}{MARGINAL} in {_listed([*t.near])}, and no more of it in {s.examples} cases"
    if not s.fired:
        return f"{late}never fired in {s.examples} cases of {_listed(names)} (generator)"
    return f"{late}fired unseen in {s.fired} of {s.examples} cases of {_listed(names)} (judge)"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
