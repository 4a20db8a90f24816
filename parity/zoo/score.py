"""The run of one fault: the suite's ordinary cases on a simulated device that carries it, until one shows it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parity import notation, suite
from parity.catalog.row import Row
from parity.checking.check import Result, Settings, check, failing
from parity.devices import Device, resolve
from parity.dtypes import DEFAULT
from parity.errors import CaseError, FaultError
from parity.examine import SECONDS_PER_ELEMENT, SHRINK_SECONDS, Plan, drawn, operands, recheck, settings
from parity.examine import shrink as shrink_finding
from parity.execute import said
from parity.generation.generate import Drawn
from parity.generation.shrink import shrink
from parity.listening import listening
from parity.suite import Item
from parity.vocabulary import FINDINGS, Aspect, Case, Status
from parity.zoo.reach import Route
from parity.zoo.subjects import Subject
from parity.zoo.witness import Tap, Watch

SUITE, OPINFO = "suite", "opinfo"
FOUND = FINDINGS | {Status.UNSUPPORTED, Status.FALLBACK}
SAYS = (Status.ERROR, Status.UNSUPPORTED, Status.OOM)  # the device raised, which a silent bug does not
BESIDE = 6  # cases of each bystander and each composite
TOLD = 3  # cases and alarms that are kept of each sort
PATIENCE = 10.0  # seconds that a case may take, beside those for its elements; the device is the host's own memory
Outside = tuple[str, int]  # an item and the ordinal of a case of it


@dataclass(frozen=True, slots=True)
class Score:
    """What came of one fault under one generator and seed.

    status, aspect, op, dtype: of the finding. examples: cases drawn of the ops concerned, up to the finding; fired: in how
    many of them the fault was at work. seconds: until the finding. case, shrunk: as drawn, and the least; elements: of all
    operands of the least one. through: whether the op only uses the faulty one. miss: why it was not found. unseen: cases
    where it was at work and nothing was said. alarms: findings that are not the fault's, bystanders' above all. composites:
    ops beyond those concerned that show it too. notes: whatever else a reader must know.
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
    unseen: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    composites: tuple[str, ...] = ()
    bystanders: int = 0
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """In what share of the cases drawn the fault was at work."""
        return self.fired / self.examples if self.examples else 0.0


def allowed(plan: Plan, case: Case) -> float:
    """Seconds that a case may take before it counts as hung."""
    return (plan.patience or PATIENCE) + SECONDS_PER_ELEMENT * elements(case)


def elements(case: Case) -> int:
    """Elements in all operands together."""
    return sum(s.numel for s in operands(case))


# ------------------------------------------------------------------------------------------------------------- the run


@dataclass(slots=True)
class Trial:
    """One fault under way. dead: cases that ended a process before and are left out; until: monotonic end of the search."""

    subject: Subject
    route: Route
    plan: Plan
    healthy: Device
    tap: Tap
    watch: Watch
    until: float
    dead: frozenset[Outside] = frozenset()
    notes: list[str] = field(default_factory=list)
    score: Score = field(default_factory=lambda: Score("", SUITE, ""))


def trial(
    subject: Subject,
    route: Route,
    plan: Plan,
    folder: Path,
    seconds: float,
    dead: frozenset[Outside] = frozenset(),
    device: str = "sim",
) -> Trial:
    """A device with this one fault, and all that its run needs. plan.device is the healthy device of the same sort."""
    watch = Watch(folder)
    tap = Tap(subject.fault, watch.fired)
    faulty = replace(plan, device=resolve(device, (tap.fault,)))
    start = Score(subject.id, SUITE, plan.seed)
    return Trial(subject, route, faulty, plan.device, tap, watch, time.monotonic() + seconds, dead, score=start)


def search(t: Trial) -> tuple[Score, tuple[Item, Drawn, Result] | None]:
    """Draw until a case shows the fault: the score so far, and the hit for `least`. Named rows first, then those that use
    them; rows and dtypes in turn, so that a bug is not kept waiting by an op or a dtype that does not show it."""
    started = time.monotonic()
    hit, stopped = None, False
    with t.plan.device.active(), listening(t.notes):
        for names, through in ((t.route.named, False), (t.route.using, True)):
            for item, ordinal, pinned, one in rounds(_items(names), t.plan):
                if (item.id, ordinal) in t.dead:
                    continue
                if stopped := time.monotonic() > t.until:
                    break
                t.watch.about(examples=t.score.examples + 1, fired=t.score.fired, through=through)
                result = _tried(t, item, ordinal, pinned, one)
                if result is not None:
                    hit = item, one, result
                    break
            if hit or stopped:
                break
    t.score = replace(t.score, seconds=time.monotonic() - started)
    if hit is None:
        return replace(t.score, miss=_miss(t, stopped)), None
    item, one, result = hit
    return replace(t.score, found=True, through=through, **_told(item, result), **_cased(one.case)), hit


def rounds(items: Sequence[Item], plan: Plan) -> Iterator[tuple[Item, int, bool, Drawn]]:
    """One case of each item, then another of each, as many of each as the profile says."""
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


def _tried(t: Trial, item: Item, ordinal: int, pinned: bool, one: Drawn) -> Result | None:
    """One case, counted; the result that shows the fault, if one does."""
    text = notation.case_text(one.case)
    before, t.tap.raised = t.tap.count, ""
    t.watch.begin(ordinal, item.id, text, allowed(t.plan, one.case))
    s = t.score
    try:
        results = _checked(t, item.row, one.case, t.plan.device, settings(item, t.plan, ordinal, pinned), t.notes)
    except CaseError:
        return None
    except Exception as e:  # parity's own mistake: an ordinary run would tell it as such, and so do we
        t.score = replace(s, notes=kept(s.notes, f"parity itself failed in {text}: {type(e).__name__}: {said(e)}"))
        return None
    finally:
        t.watch.end()
    fired = t.tap.count > before
    hits = [r for r in results if r.verdict.status in FOUND]
    s = t.score = replace(s, examples=s.examples + 1, fired=s.fired + fired)
    if not hits:
        if fired:
            t.score = replace(s, unseen=kept(s.unseen, text))
        return None
    ours = [r for r in hits if _agrees(t, item, one.case, r)]
    if not fired or not ours:
        why = "on the healthy device too" if not ours else "and the fault was not at work"
        r = (ours or hits)[0]
        t.score = replace(s, alarms=kept(s.alarms, f"{r.verdict.status} in {text}, {why}"))
        return None
    for r in ours:
        if not (note := void(t, r.verdict.status, r.verdict.reason)):
            return r
        t.score = replace(s, notes=kept(s.notes, note))
    return None


def void(t: Trial, status: Status, reason: str) -> str:
    """Why this difference is no finding of the bug although the fault was at work; empty where it is one."""
    if reason.startswith(FaultError.__name__):
        return f"the fault is not well made: {reason}"
    if t.subject.silent and t.tap.raised and status in SAYS:
        return f"the effect of a silent bug raised, which does not count: {reason}"
    return ""


def _checked(t: Trial, row: Row, case: Case, device: Device, how: Settings, notes: list[str]) -> Sequence[Result]:
    return check(row, case, device, t.plan.cpu, t.plan.tables, how, t.watch.stage, notes)[0]


def _agrees(t: Trial, item: Item, case: Case, result: Result) -> bool:
    """Whether the same device without the fault agrees in that aspect of the case."""
    try:
        how = Settings(True, result.aspect is Aspect.REPEAT, None, frozenset({result.aspect}))
        again = _checked(t, item.row, case, t.healthy, how, [])
    except CaseError:
        return False
    said_so = [r.verdict.status for r in again if r.aspect is result.aspect]
    return not any(s in FOUND for s in said_so) and any(r.verdict.status is Status.AGREE for r in again)


def least(t: Trial, score: Score, hit: tuple[Item, Drawn, Result]) -> Score:
    """The score with the least case that shows the same finding, on the faulty device and not on the healthy one."""
    item, one, result = hit
    started = time.monotonic()
    t.watch.about(phase="shrink")
    with t.plan.device.active(), listening(t.notes):
        if result.verdict.status.is_finding:
            case, _ = shrink_finding(item, t.plan, one, result, result.key, t.notes, t.watch)
        else:
            case = _least_refused(t, item, one, result)
        if case != one.case and not (_fires(t, item, case, result) and _agrees(t, item, case, result)):
            score = replace(score, notes=kept(score.notes, f"the shrunk case does not stand alone: {notation.case_text(case)}"))
            case = one.case
    return replace(score, **_shrunk(case), shrinking=time.monotonic() - started)


def _least_refused(t: Trial, item: Item, one: Drawn, result: Result) -> Case:
    """Shrinking for what the suite does not count as a finding, and so does not shrink: refusals and fallbacks."""
    deadline = time.monotonic() + SHRINK_SECONDS
    asked: dict[Case, bool] = {}  # each case once: an answer that changes would end the shrinking

    def fails(case: Case) -> bool:
        if case not in asked:
            if time.monotonic() > deadline:
                return False
            asked[case] = _fires(t, item, case, result)
        return asked[case]

    return shrink(item.row, item.dtype, t.plan.profile.sizes, one, fails) or one.case


def _fires(t: Trial, item: Item, case: Case, like: Result) -> bool:
    """Whether the case shows the same, with the fault at work in it."""
    before = t.tap.count
    t.watch.begin(0, item.id, notation.case_text(case), allowed(t.plan, case))
    again = recheck(item, t.plan, case, t.notes, like, t.watch)
    t.watch.end()
    shown = failing(again) if like.verdict.status.is_finding else [r for r in again if r.verdict.status in FOUND]
    return t.tap.count > before and any(r.about(like.key) is not None for r in shown)


def beside(t: Trial, score: Score) -> Score:
    """The score with what the bystanders say (nothing, it is hoped) and which other ops show the fault."""
    alarms, composites, seen = score.alarms, score.composites, 0
    t.watch.about(phase="beside")
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
                if result.verdict.status.is_finding:  # what the device lacks it lacks without the fault, too
                    alarms = kept(alarms, f"bystander {name}: {result.verdict.status} in {text}")
    return replace(score, alarms=alarms, composites=tuple(dict.fromkeys(composites)), bystanders=seen)


def _few(t: Trial, row: Row) -> Iterator[tuple[str, Result | None, bool]]:
    """(case, finding if any, whether the fault was at work) of a few cases of a row in its first dtype."""
    item = Item(row, "float32" if "float32" in row.dtypes else row.dtypes[0])
    few = replace(t.plan, examples=BESIDE - t.plan.profile.pinned if t.plan.profile.pinned < BESIDE else 0)
    for ordinal, pinned, one in rounds_of(item, few):
        if (item.id, ordinal) in t.dead or ordinal >= BESIDE:
            continue
        text, before = notation.case_text(one.case), t.tap.count
        t.watch.begin(ordinal, item.id, text, allowed(t.plan, one.case))
        try:
            results = _checked(t, row, one.case, t.plan.device, settings(item, few, ordinal, pinned), t.notes)
        except CaseError:
            continue
        finally:
            t.watch.end()
        yield text, next((r for r in results if r.verdict.status in FOUND), None), t.tap.count > before


def rounds_of(item: Item, plan: Plan) -> Iterator[tuple[int, bool, Drawn]]:
    """The cases of one item, as long as they can be drawn."""
    return ((ordinal, pinned, one) for _, ordinal, pinned, one in rounds((item,), plan))


# ---------------------------------------------------------------------------------------------------------------- words


def kept(told: tuple[str, ...], more: str) -> tuple[str, ...]:
    """What is told with one more, up to a few."""
    return told if len(told) >= TOLD or more in told else (*told, more)


def _told(item: Item, r: Result) -> dict[str, Any]:
    words = {"status": str(r.verdict.status), "aspect": str(r.aspect), "reason": r.verdict.reason}
    return {**words, "op": item.row.name, "dtype": item.dtype}


def _cased(case: Case) -> dict[str, Any]:
    return {"case": notation.case_text(case), **_shrunk(case)}


def _shrunk(case: Case) -> dict[str, Any]:
    return {"shrunk": notation.case_text(case), "elements": elements(case)}


def _miss(t: Trial, stopped: bool) -> str:
    names = (*t.route.named, *t.route.using)
    if not names:
        absent = f" ({', '.join(t.route.absent)})" if t.route.absent else ""
        return f"no row of the {t.plan.profile.name} profile runs its ops{absent}"
    s = t.score
    if not s.examples:
        return f"no case of {_listed(names)} could be drawn"
    late = "stopped by its time limit; " if stopped else ""
    if not s.fired:
        return f"{late}never fired in {s.examples} cases of {_listed(names)} (generator)"
    return f"{late}fired unseen in {s.fired} of {s.examples} cases of {_listed(names)} (judge)"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
