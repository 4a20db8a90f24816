"""Check one case of an item in this process, which ends if the device computes nothing any more.

Chooses how each case of an item is checked: a fixed choice, by its ordinal, of what is too dear for every case.
"""

from __future__ import annotations

import functools
import gc
import math
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from parity.catalog.row import Quirk
from parity.checks.check import EVERYTHING, Mark, Result, Settings, check, failing
from parity.checks.power import ProbeResults
from parity.checks.trial import HELD, LARGE, NAN, values
from parity.core import notation
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import Aspect, Raised, Status
from parity.devices.base import Device
from parity.devices.refusals import listening
from parity.engine.alone import Checked
from parity.engine.cases import CaseChecked, CaseDrawn
from parity.engine.journal import CaseJournal, NoJournal
from parity.engine.planning import RunPlan
from parity.engine.suite import ORACLE_EVERY, Item
from parity.execution import execute as ex
from parity.execution.execute import Program, There, program
from parity.execution.inputs import apply, build
from parity.execution.modes import MODES
from parity.generation.generate import Drawn
from parity.judging.rules import rule_of

REPEAT_EVERY = 4  # one case in so many runs its forward twice
HELD_EVERY = 8  # the results of one case in so many are held across later calls: 0.6 % of a quick run's CPU time
OPERANDS_EVERY = 4  # one case in so many is checked for changes to its operands
GUARDS_EVERY = 4  # one case in so many of a profile with poison runs its calls once more between guards
LAW_EVERY = 8  # one case in so many of a random op, and every pinned one, is drawn until its law can be judged
# Expensive aspects: (n, k) means the cases whose ordinal is k modulo n.
EVERY = {Aspect.DOUBLE: (8, 3), Aspect.TANGENT: (12, 4), Aspect.TRANSFER: (6, 5)}
TWICE_EVERY = 3  # for OpInfo entries and factorizations, whose derivatives call kernels that the function does not call

# All of them recur after so many cases.
PERIOD = math.lcm(REPEAT_EVERY, HELD_EVERY, OPERANDS_EVERY, LAW_EVERY, TWICE_EVERY, *(every for every, _ in EVERY.values()))


def settings(item: Item, plan: RunPlan, ordinal: int, pinned: bool) -> Settings:
    """How one case of an item is checked."""
    o, row = plan.options, item.row
    twice = row.is_sampled or rule_of(row).differentiated_often
    always_use_oracle = o.no_screens or pinned or (ordinal + _start(item.id)) % ORACLE_EVERY == 0
    more = _more(Quirk.TRANSFERS in row.quirks, row.family == "movement", twice, ordinal % PERIOD)
    return _at(ordinal % PERIOD, always_use_oracle, pinned, more, o.no_screens)


@functools.lru_cache(maxsize=4096)
def _start(item: str) -> int:
    """An offset for the item's ordinals, so that a 1-in-n choice also reaches short items."""
    return zlib.crc32(item.encode()) % ORACLE_EVERY


@functools.lru_cache(maxsize=4096)  # as many as there are, however long a run explores
def _at(ordinal: int, always_use_oracle: bool, pinned: bool, more: frozenset[Aspect], whole: bool) -> Settings:
    """The settings of a case by its ordinal, modulo `PERIOD`."""
    law = pinned or ordinal % LAW_EVERY == 2
    repeat, operands = ordinal % REPEAT_EVERY == 1, ordinal % OPERANDS_EVERY == 3
    held = HELD if ordinal % HELD_EVERY == 1 else 0
    return Settings(always_use_oracle, repeat, None, more, law, operands, whole=whole, held=held)


@functools.lru_cache(maxsize=4096)
def _more(travels: bool, moves: bool, twice: bool, ordinal: int) -> frozenset[Aspect]:
    """The expensive aspects in which a case is checked. ordinal: modulo `PERIOD`."""
    more = {a for a, (every, rest) in EVERY.items() if ordinal % every == rest}
    if twice and ordinal % TWICE_EVERY == 0:
        more.add(Aspect.DOUBLE)
    if travels:
        more |= {Aspect.TRANSFER}
    elif not moves:
        more -= {Aspect.TRANSFER}  # it tests operands: one bug of a copy must not be reported by every op
    return frozenset(more)


def settings_of_run(item: Item, plan: RunPlan, ordinal: int, pinned: bool) -> Settings:
    """`settings` plus what the whole run asks for: errors put in, filled memory, strides that must be the CPU's, its study."""
    how = settings(item, plan, ordinal, pinned)
    how = replace(how, power=True) if _sampled(item, plan, ordinal) else how
    how = _poisoned(how, plan, ordinal)
    how = replace(how, fail_on_metadata=True) if plan.options.fail_on_metadata else how
    return plan.study.settings(how)


def _poisoned(how: Settings, plan: RunPlan, ordinal: int) -> Settings:
    """The settings of a case of a profile that fills freed memory: with NaN and with large numbers in turn."""
    if not plan.profile.poison or not plan.study.looks_everywhere:
        return how
    return replace(how, poison=LARGE if ordinal % 2 else NAN, guards=ordinal % GUARDS_EVERY == 0)


def _sampled(item: Item, plan: RunPlan, ordinal: int) -> bool:
    """Whether a case is judged once more with errors put in; a fixed choice for each item."""
    return zlib.crc32(f"{item.id} {ordinal}".encode()) < plan.power * 2.0**32


KEPT_NUMEL = 1000  # most elements of the operands of a case that is repeated to look for leaks


@dataclass(frozen=True, slots=True)
class ItemRun:
    """What the jobs of examining an item share. notes: which operators fell back to the CPU in the case at hand."""

    item: Item
    plan: RunPlan
    journal: CaseJournal
    notes: list[str] = field(default_factory=list)

    def begin(self, ordinal: int, case: Case) -> None:
        """Note in the journal that a case begins that nobody drew."""
        self.journal.begin(ordinal, self.item.id, notation.case_text(case), self.plan.patience(case))

    def end(self) -> None:
        """Note that it is done."""
        self.notes.clear()
        self.journal.end()

    def recheck(self, case: Case, only: Aspect, there: There | None = None) -> tuple[Result, ...]:
        """See `recheck`."""
        return recheck(self.item, self.plan, case, self.notes, only, self.journal, there)


def check_case(item: Item, plan: RunPlan, ordinal: int, pinned: bool, one: Drawn, mark: Mark, notes: list[str]) -> Checked:
    """Check one case of an item. What may be none of the device's doing is tried once more: a case without memory, after the
    caches were emptied, and a finding of a device that computes with the CPU's own kernels. Raises CaseError if the case cannot
    be built."""
    how = settings_of_run(item, plan, ordinal, pinned)
    there, watching = (plan.device, plan.cpu, plan.tables), plan.study.watching
    seconds, power = dict[str, float](), list[ProbeResults]()
    results, digest = check(item.row, one.case, *there, how, mark, notes, watching, power, seconds)
    if any(r.verdict.status is Status.OOM for r in results):
        gc.collect()
        plan.device.release()
        results, digest = check(item.row, one.case, *there, how, mark, notes, watching, None, seconds)
    elif failing(results) and _shares_the_kernels(plan.device):
        again, _ = check(item.row, one.case, *there, how, mark, notes, watching)
        results = results if failing(again) else again
    return Checked(results, digest, seconds, tuple(power))


def checked_here(run: ItemRun, case: CaseDrawn) -> Checked:
    """Check one case, which the journal holds, in this process; it ends if the device computes nothing any more afterwards."""
    try:
        checked = check_case(run.item, run.plan, case.ordinal, case.pinned, case.one, run.journal.stage, run.notes)
    except CaseError as e:
        end_unless_alive(run.plan, run.journal, str(e))
        checked = Checked(void=str(e))
    # A call that the CPU refuses as well, or computes against the plan, may still have broken the device for all later calls.
    odd = [r.verdict for r in checked.results if r.verdict.status.is_doubtful]
    refused = case.one.case.refused
    if odd or (refused and not checked.void):
        planned = f"a call that is to be refused ({refused})"
        reasons = [v.reason for v in odd if not (refused and v.status is Status.VOID)]
        end_unless_alive(run.plan, run.journal, reasons[0] if reasons else planned)
    run.journal.end()
    return checked


class Leaks:
    """A listener that keeps a case in which everything agrees: the largest that is not too large, and one with a backward if
    any has. `found` repeats it. Leaks are looked for in one dtype of each op, because it takes as long as some cases."""

    def __init__(self, run: ItemRun) -> None:
        self._run = run
        self._kept: CaseDrawn | None = None
        self._rank = -1, -1  # of the case that is kept: whether it is differentiated, and its size

    def hear(self, event: object) -> None:
        """Keep the case if it is better."""
        if not isinstance(event, CaseChecked) or not event.checked.results:
            return
        case, results = event.drawn.one.case, event.checked.results
        rank = any(r.aspect is Aspect.BACKWARD for r in results), case.numel
        if rank <= self._rank or case.numel > KEPT_NUMEL or case.refused or case.after:
            return
        if all(r.verdict.status is Status.AGREE for r in results):
            self._kept, self._rank = event.drawn, rank

    def found(self) -> dict[str, int]:
        """The case that was kept, if each of its repeats leaves memory on the device, and how many bytes."""
        run, kept = self._run, self._kept
        if kept is None or run.item.dtype != run.item.row.dtypes[0]:
            return {}
        run.begin(kept.ordinal, kept.one.case)
        run.journal.stage("device")
        left = leak_of(program(run.item.row), kept.one.case, run.plan.device, bool(self._rank[0]))
        run.journal.end()
        return {kept.text: left} if left else {}


def recheck(
    item: Item, plan: RunPlan, case: Case, notes: list[str], only: Aspect, journal: CaseJournal, there: There | None = None
) -> tuple[Result, ...]:
    """The results of one aspect of a case, with every tensor judged by the oracle; empty if the case cannot be built. there: as
    `Program.there`."""
    hard, twice = plan.profile.poison, only is Aspect.REPEAT
    strict = plan.options.fail_on_metadata
    how = Settings(
        True,
        twice,
        only,
        poison=NAN if hard else 0,
        guards=hard,
        fail_on_metadata=strict,
        held=HELD if twice else 0,
        there=there,
    )
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
    seen.begin(0, item.id, notation.case_text(case), plan.patience(case))
    with plan.device.active(), listening(notes):
        results, _ = check(item.row, case, plan.device, plan.cpu, plan.tables, how, seen.stage, notes)
    seen.end()
    return results


def end_unless_alive(plan: RunPlan, journal: CaseJournal, why: str) -> None:
    """End this process if the device no longer computes. why: the last reason that is known."""
    if not plan.device.answers():
        journal.lost(why)


def end_unless_able(item: Item, plan: RunPlan, journal: CaseJournal, why: str) -> None:
    """The same after an item, and also if the device refuses its dtype by now. Some kernels fail asynchronously: without this
    the next item would find a dead device and compare nothing."""
    end_unless_alive(plan, journal, why)
    if item.dtype in plan.takes and not plan.device.takes(getattr(torch, item.dtype)):
        journal.lost(f"this item: it refuses tensors of {item.dtype}, which it took at the start")


def _shares_the_kernels(device: Device) -> bool:
    """Whether the device computes everything with the CPU's own kernels and has no faults. Some of these kernels read
    uninitialized memory (bfloat16 convolutions with 65,536 channels, torch 2.13), so a difference that does not recur says
    nothing about the device."""
    return (device.simulated or device.torch_device.type == "cpu") and not getattr(device, "faults", ())


SCREENED = 2  # calls after one that fills caches: where the memory in use is no more than before, none of them leaks
# Calls that must all leave memory behind to count as a leak. The C library keeps seven freed pieces of each size for each
# thread and counts them as in use, so calls of a young process may leave some for a dozen times.
REPEATS = 30


def leaked(device: Device, call: Callable[[], object]) -> int:
    """Bytes that every repeat of a call leaves on the device; 0 where one of them leaves none, where the call raises, and where
    the device does not say."""
    with suppress(Exception):  # another check reports a call that raises
        call()
        device.synchronize()
        before = device.used()  # a figure may cost as much as many calls
        if before is None:
            return 0
        for _ in range(SCREENED):
            call()
        device.synchronize()
        if (device.used() or 0) - before >= SCREENED:
            return _least_growth(device, call)
    return 0


def _least_growth(device: Device, call: Callable[[], object]) -> int:
    """The least growth of any of some repeats. Cycles of Python objects, which may hold tensors for a while, are collected."""
    least, before = sys.maxsize, 0
    for k in range(REPEATS + 1):
        call()
        device.synchronize()
        gc.collect(1)  # what a call made is young; to look at all objects takes half a second
        now = device.used() or 0
        if k and (least := min(least, now - before)) <= 0:
            return 0  # whatever the repeats after it leave
        before = now
    return least


def leak_of(program: Program, case: Case, device: Device, differentiated: bool) -> int:
    """Bytes that a case's forward, and its backward if it is differentiated, leave on the device each time."""
    try:
        inputs = build(case)
    except CaseError:
        return 0
    placed = ex.attempt(lambda: ex.place(inputs, device, case.under), "upload")
    if isinstance(placed, Raised):
        return 0

    def call() -> None:
        with MODES["grad"]():
            live = ex.forward(program, case, inputs, placed, differentiated)
            if differentiated and live.leaves and ex.differentiable(live):
                fed = [ex.cotangent(case.cotangent, x, i, values) for i, (_, x) in enumerate(ex.differentiable(live))]
                ex.backward(live, [apply(device.upload(c.base), c.layout, c.shape) for c in fed])

    return leaked(device, call)
