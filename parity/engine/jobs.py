"""Jobs of a run that check cases in processes of their own: findings once more, cases of an item that has ended workers, and
smaller cases of a death."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from parity.checks.check import EVERYTHING, Result, Settings, check, failing, quiet
from parity.core import notation
from parity.core.child import BEGIN, Given, Job
from parity.core.errors import CaseError, ParityError
from parity.core.results import Aspect
from parity.devices.refusals import listening
from parity.engine import suite
from parity.engine.again import TRIES
from parity.engine.alone import Asked, Checked, packed
from parity.engine.cases import drawn
from parity.engine.checking import check_case, recheck, replay
from parity.engine.journal import Journal, NoJournal
from parity.engine.options import METADATA, RunOptions
from parity.engine.planning import RunPlan, run_plan
from parity.engine.rounds import Part
from parity.engine.suite import Item
from parity.generation.generate import Drawn

# -------------------------------------------------------------------------------------------------------------------- findings


def confirm(given: Given) -> Job:
    """Try the findings in their order: whether each came, None for what cannot be compared, and in how many tries. Only a
    comparison that agrees acquits. given: device, faults, setup, fail_on_metadata, findings, and whole: as for `_shows`."""
    asked = given.asked
    where = {name: asked[name] for name in ("device", "faults", "setup")}
    plan = run_plan(RunOptions(**where, fail_on=(METADATA,) if asked["fail_on_metadata"] else ()), 0.0, None)
    plan = replace(plan, profile=replace(plan.profile, poison=True))
    given.of = len(asked["findings"])
    for (least, *others), aspect in asked["findings"]:
        yield {BEGIN: least}
        tried, able, came = 0, False, False
        for text in dict.fromkeys((least, *others)):
            for _ in range(TRIES if text == least and not asked["whole"] else 1):
                shown = None if came else _shows(text, Aspect(aspect), plan, asked["whole"])
                tried, able, came = tried + (not came), able or shown is not None, came or bool(shown)
        yield {"came": came if able else None, "tries": tried}


def _shows(text: str, aspect: Aspect, plan: RunPlan, whole: bool) -> bool | None:
    """Whether a case shows a finding in this aspect; None if it compares nothing here, or cannot be built. whole: whether to
    check it in all aspects."""
    try:
        case = notation.parse(text)
        item, notes = Item(suite.row(case.op), case.dtype), list[str]()
        if whole:
            return _differs([r for r in replay(item, plan, case) if r.aspect is aspect])
        with plan.device.active(), listening(notes):
            results = recheck(item, plan, case, notes, aspect, NoJournal())
            return True if failing(results) or not plan.device.answers() else _differs(results)
    except ParityError:
        return None


def _differs(results: Sequence[Result]) -> bool | None:
    """Whether one is a finding; None if they compare nothing."""
    if failing(results):
        return True
    return False if any(r.verdict.status.is_comparison for r in results) else None


# -------------------------------------------------------------------------------------------------------------- isolated cases


def isolated(given: Given) -> Job:
    """Check the cases in their order. given: the fields of an `Asked`. The journal holds what is about to be done."""
    asked, notes = _asked(given.asked), list[str]()
    plan = run_plan(asked.options, asked.power, None)
    item = Item(suite.row(asked.op), asked.dtype)
    part = None if asked.part is None else Part(item, *asked.part)
    journal = Journal(given.journal)
    with plan.device.active(), listening(notes):
        for ordinal, pinned, one in _asked_for(asked, item, plan, part):
            text = notation.case_text(one.case)
            journal.begin(ordinal, item.id, text, plan.patience(one.case))
            try:
                checked = check_case(item, plan, ordinal, pinned, one, journal.stage, notes)
            except CaseError as e:
                checked = Checked(void=str(e))
            odd = [r.verdict.reason for r in checked.results if r.verdict.status.is_doubtful]
            if (odd or checked.void or one.case.refused) and not plan.device.answers():
                journal.lost((odd or [checked.void or "a call that is to be refused"])[0])
            yield {"ordinal": ordinal, "checked": packed(checked)}
            if asked.last is not None:
                time.sleep(asked.linger)  # while the journal still names the case
            journal.end()


def _asked(tree: dict[str, Any]) -> Asked:
    """JSON has lists in place of tuples and sets."""
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in tree["options"].items()}
    part = None if tree["part"] is None else tuple(tree["part"])
    return Asked(**tree | {"options": RunOptions(**options), "part": part, "skip": frozenset(tree["skip"])})


def _asked_for(asked: Asked, item: Item, plan: RunPlan, part: Part | None) -> Iterator[tuple[int, bool, Drawn]]:
    for ordinal, pinned, one in drawn(item, plan, part, asked.first):
        if asked.last is not None and ordinal > asked.last:
            return
        if ordinal >= asked.first and ordinal not in asked.skip:
            yield ordinal, pinned, one


# ---------------------------------------------------------------------------------------------------------------------- deaths


def survive(given: Given) -> Job:
    """Check the cases that come one after another, and say of each that it lives or cannot be built. given: device, faults,
    setup; more: cases with the aspect to check, "" for all, and the seconds to live on after it."""
    plan, notes = run_plan(RunOptions(**given.asked), 0.0, None), list[str]()
    device = plan.device
    yield {"ready": True}
    for text, aspect, linger in given.more():
        how = Settings(True, aspect == Aspect.REPEAT, aspect) if aspect else EVERYTHING
        lives = True
        try:
            case = notation.parse(text)
            yield {BEGIN: text}
            with device.active(), listening(notes):
                check(suite.row(case.op), case, device, plan.cpu, plan.tables, how, quiet, notes)
                if not device.answers():
                    return
        except Exception:  # a reduced case may fit no call
            lives = False
        notes.clear()
        time.sleep(linger)
        yield {"lives": lives}
