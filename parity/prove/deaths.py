"""Score a fault that may end the process it runs in. The next process that gets the same pytest item does what is left; it
reads the earlier deaths of the item from the run's folder.

A death during the search is a finding if the fault was at work in that case. The case is then shrunk with the fault made
harmless, because the process would die wherever the fault acts. Finally the least case runs with the real fault, on the faulty
device and on the healthy one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from parity.checks.check import EVERYTHING, check
from parity.core import notation
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import Status
from parity.devices import Device
from parity.devices.refusals import listening
from parity.engine import suite
from parity.engine.cases import drawn
from parity.engine.suite import Item
from parity.generation.generate import Drawn
from parity.prove import field
from parity.prove.score import OPINFO, FaultTrial, Score, allowed, elements, kept, least, least_case, search, with_others

MOST = 3  # the fault is given up after this many deaths that it did not cause
HUNG = 3.0  # seconds after which a smaller case of a case that hung counts as hung, too
HANG = "hang"


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """How a process ended in the test `node`. signal: its name, or the exit code. case: "" outside of every case. started: when
    the case began, on the monotonic clock. item: the JSON that the journal held for the case. at_work: whether the fault was at
    work in that case. last: whether the test is given up."""

    node: str
    how: str
    signal: str
    stage: str
    case: str
    started: float
    item: str
    at_work: bool
    last: bool

    @property
    def facts(self) -> dict[str, Any]:
        """What `FaultJournals.about` recorded, with the item and the ordinal of the case."""
        return dict(json.loads(self.item))

    @property
    def phase(self) -> str:
        """What the process was doing: search, shrink, least, again, healthy or others."""
        return str(self.facts["phase"])

    @property
    def stray(self) -> bool:
        """Whether the process died in a case of the search in which the fault was not at work."""
        return self.phase == "search" and bool(self.case) and not self.at_work


def scored(t: FaultTrial, deaths: Sequence[WorkerDeath]) -> Score:
    """The score of a fault, given the deaths of its item so far. Ends this process if the fault does."""
    strays = [d for d in deaths if d.stray]
    alarms: tuple[str, ...] = ()
    for d in strays:
        alarms = kept(alarms, f"{d.how} ({d.signal}) in {d.case}, and the fault was not at work")
    t.dead = frozenset((d.facts["item"], d.facts["ordinal"]) for d in strays)
    if len(strays) >= MOST:
        score = replace(t.score, miss=f"given up after {MOST} deaths that were not the fault's")
    elif len(strays) == len(deaths):
        score = _searched(t)
    else:
        score = _resumed(t, next(d for d in reversed(deaths) if not d.stray))
    return replace(score, alarms=(*alarms, *score.alarms))


def _searched(t: FaultTrial) -> Score:
    t.journals.about(began=time.monotonic())
    if t.score.generator == OPINFO:
        return field.search(t)
    score, hit = search(t)
    if hit is not None:
        t.journals.about(phase="shrink", score=asdict(score))
        score = least(t, score, hit)
    return _others_added(t, score)


def _others_added(t: FaultTrial, score: Score) -> Score:
    t.journals.about(score=asdict(score))
    return with_others(t, score)


def _resumed(t: FaultTrial, death: WorkerDeath) -> Score:
    """The score, continued after a death that the fault may have caused."""
    if death.phase == "search":
        if death.case:
            return _found_by_death(t, death)
        why = "was stopped by its time limit" if death.how == HANG else f"ended outside a case ({death.signal})"
        return replace(t.score, miss=f"the process of this fault {why}", late=death.how == HANG)
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in death.facts["score"].items()}
    score = Score(**fields)
    if death.phase == "shrink":
        note = f"{death.how} ({death.signal}) in {death.case}, after the finding"
        return _others_added(t, replace(score, notes=kept(score.notes, note)))
    if death.phase in ("least", "again"):
        return _checked_on_healthy(t, score if death.at_work else _as_drawn(score))
    if death.phase == "healthy":
        return _others_added(t, replace(score, found=False, miss="the case ends the process on the healthy device too"))
    if not death.case:
        return score
    text = f"{death.facts['item'].rpartition('-')[0]} ({death.how})"
    if death.at_work:
        return replace(score, composites=kept(score.composites, text))
    return replace(score, alarms=kept(score.alarms, text))


def _found_by_death(t: FaultTrial, death: WorkerDeath) -> Score:
    """The score after a death in a search case in which the fault was at work: a finding, with its case shrunk."""
    facts = death.facts
    score = replace(
        t.score,
        found=True,
        status=str(Status.HANG if death.how == HANG else Status.CRASH),
        reason=death.signal,
        examples=facts["examples"],
        fired=facts["fired"] + 1,
        seconds=max(0.0, death.started - facts["began"]),
        through=facts["through"],
        case=death.case,
        shrunk=death.case,
    )
    if score.generator == OPINFO:
        entry, _, rest = facts["item"].partition(" ")
        return replace(score, op=entry, dtype=rest.partition(" ")[0])
    op, _, dtype = facts["item"].rpartition("-")
    item = Item(suite.row(op), dtype)
    one = next(one for k, _, one in drawn(item, t.plan) if k == facts["ordinal"])
    score = replace(score, op=op, dtype=dtype, elements=elements(one.case))
    began = time.monotonic()
    t.journals.about(phase="shrink", score=asdict(score))
    case = _least(t, item, one)
    score = replace(score, shrinking=time.monotonic() - began)
    if case != one.case:
        text = notation.case_text(case)
        t.journals.about(phase="least", score=asdict(replace(score, shrunk=text, elements=elements(case))))
        _run(t, t.plan.device, item, case, HUNG if death.how == HANG else allowed(t.plan, case))
        score = replace(score, notes=kept(score.notes, f"the shrunk case does not end the process: {text}"))
    if death.how == HANG:
        t.journals.about(phase="again", score=asdict(score))
        _run(t, t.plan.device, item, one.case, allowed(t.plan, one.case))
        alarm = f"hang in {death.case}, and not when it was run again"
        return _others_added(t, replace(score, found=False, miss="a hang that was not reproduced", alarms=(alarm,)))
    return _checked_on_healthy(t, score)


def _as_drawn(score: Score) -> Score:
    return replace(score, shrunk=score.case, elements=elements(notation.parse(score.case)))


def _checked_on_healthy(t: FaultTrial, score: Score) -> Score:
    """The score, once the least case has run to its end on the healthy device."""
    case = notation.parse(score.shrunk)
    t.journals.about(phase="healthy", score=asdict(score))
    _run(t, t.healthy, Item(suite.row(score.op), score.dtype), case, allowed(t.plan, case))
    return _others_added(t, score)


def _least(t: FaultTrial, item: Item, one: Drawn) -> Case:
    """The least case in which the fault would act."""

    def acts(case: Case) -> bool:
        before = t.tap.count
        _run(t, t.plan.device, item, case, allowed(t.plan, case))
        return t.tap.count > before

    t.tap.harmless = True
    case = least_case(t, item, one, acts)
    t.tap.harmless = False
    return case


def _run(t: FaultTrial, device: Device, item: Item, case: Case, seconds: float) -> None:
    """Run a case in all its aspects and ignore the results; only deaths and firings of the fault matter."""
    t.journals.begin(0, item.id, notation.case_text(case), seconds)
    with device.active(), listening([]), suppress(CaseError):
        check(item.row, case, device, t.plan.cpu, t.plan.tables, EVERYTHING, t.journals.stage, [])
    t.journals.end()
