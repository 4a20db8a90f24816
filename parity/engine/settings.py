"""Chooses how each case of an item is checked: a fixed choice, by its ordinal, of what is too dear for every case."""

from __future__ import annotations

import functools
import math
import zlib
from dataclasses import replace

from parity.catalog.row import Quirk
from parity.checks.check import Settings
from parity.checks.trial import HELD, LARGE, NAN
from parity.core.results import Aspect
from parity.engine.planning import RunPlan
from parity.engine.suite import ORACLE_EVERY, Item
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
