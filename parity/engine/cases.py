"""The cases of an item: which are drawn, and which of them are left out because others hung."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.core.case import Case
from parity.core.errors import CaseError
from parity.engine.planning import RunPlan
from parity.engine.rounds import Part
from parity.engine.suite import Item
from parity.engine.tally import ItemTally
from parity.findings.recognition import outline, shared
from parity.generation import generate, sweep
from parity.generation.generate import Drawn

# So many explored cases in a row have the same shapes, scalars and flags on a device that compiles and keeps a graph for each.
# Two cost 3 of 164 bugs of the zoo and save 29 % of the graphs, three cost 6 and save 42 % (tests/bench/graphs.py).
ALIKE = 2
SWEPT = 1 << 28  # the ordinal of the first case of the sweep over border sizes
SWEPT_ROUND = 1  # the part of a run with a limit of time that sweeps
PLAIN_NUMEL = 1000  # a case of more elements may hang for its size


def drawn(item: Item, plan: RunPlan, part: Part | None = None) -> Iterator[tuple[int, bool, Drawn]]:
    """(ordinal, pinned, case) of every case of an item, or of a part of it; depends on item, profile, seed, study, and
    whether the device keeps graphs."""
    p, o = plan.profile, plan.options
    alike = ALIKE if plan.device.keeps_graphs and not item.row.is_sampled else 1  # an entry's samples are its structures
    if (others := plan.study.cases(item, p.sizes, o.seed)) is not None:
        yield from others
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


def alike(item: Item, plan: RunPlan, part: Part | None, hung: Sequence[Case]) -> frozenset[int]:
    """The ordinals of the cases that are like those that hung: each would take as long again. One plain small call that hung
    says nothing about others."""
    if not hung:
        return frozenset()
    common = shared(hung)
    if len(hung) == 1 and not common.words and common.numel <= PLAIN_NUMEL:
        return frozenset()
    return frozenset(k for k, _, one in valid(drawn(item, plan, part), ItemTally(item)) if common.stands_for(outline(one.case)))


def valid(cases: Iterator[tuple[int, bool, Drawn]], tally: ItemTally) -> Iterator[tuple[int, bool, Drawn]]:
    """The cases until one cannot be drawn: an OpInfo entry without samples ends the item with a reason."""
    try:
        yield from cases
    except CaseError as e:
        tally.void[str(e)[:160]] += 1
