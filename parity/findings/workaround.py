"""Ways around a fault: what a caller can write in place of a call that is wrong on the device. Each is tried first.

A way avoids something that the cause of a finding was shown to need: a layout, a destination, a dtype. The CPU for the one call
avoids everything, and comes last because of the copies that it costs. The cases that failed run once more with the call changed
on the device alone, and the same judge compares them with the same truth: a way that fails in one of them is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from parity.core.dtypes import HALF
from parity.core.results import (
    CPU_OPERAND,
    EXTREME_VALUES,
    HALF_TYPES,
    LAZY_OPERAND,
    NARROW_INTEGERS,
    NON_CONTIGUOUS_OPERAND,
    OFFSET_OPERAND,
    OTHER_DESTINATION,
    STRIDED_DESTINATION,
    UNSEARCHED,
    Aspect,
    Cause,
    Workaround,
)

CASES = 40  # of a finding, at most, with which its ways are tried
LAYOUTS = (NON_CONTIGUOUS_OPERAND, OFFSET_OPERAND)
COTANGENT = "cotangent"  # of any layout
DERIVATIVES = (Aspect.BACKWARD, Aspect.DOUBLE)
# Symptoms and aspects that no other way to call helps: what must be refused, what is no matter of one call, and flags, which
# were turned off already. Deaths have no record; the children that look into them try no ways.
HOPELESS = ("accepts", "state", "uncompared", "flag", "not reproduced", "dies", Aspect.REFUSAL, Aspect.TRANSFER)

Tried = TypeVar("Tried")


@dataclass(frozen=True, slots=True)
class Way:
    """A way around a fault. words: what to write, with {call} for the name of the function; avoids: the needs that it avoids
    (`needs`), everything if there are none; cost: what else is to be said. What runs is in `parity.execution.detour`."""

    name: str
    words: str
    avoids: frozenset[str]
    cost: str = ""

    def text(self, w: Workaround, call: str, cases: str = "case") -> str:
        """The way and what came of it, in one line. call: the name of the function; cases: what it was tried in."""
        many = f"{w.agreed} of {w.cases} {cases}{'' if w.cases == 1 else 's'}"
        return f"{self.words.format(call=call)} agrees ({many}){self.cost}"


# The cheapest first.
WAYS = (
    Way("contiguous", "x.contiguous() before {call}", frozenset((*LAYOUTS, STRIDED_DESTINATION))),
    Way(
        "copy",
        "x.clone(memory_format=torch.contiguous_format) before {call}",
        frozenset((*LAYOUTS, LAZY_OPERAND, STRIDED_DESTINATION)),
    ),
    Way("moved", "x.to(device) of operands on the CPU before {call}", frozenset((CPU_OPERAND,))),
    Way("contiguous gradient", "y.register_hook(lambda g: g.contiguous()) on the result y of {call}", frozenset((COTANGENT,))),
    Way(
        "out of place",
        "y.copy_({call}(x)) in place of the form that writes into y",
        frozenset((STRIDED_DESTINATION, OTHER_DESTINATION, "empty destination", Aspect.OUT, Aspect.INPLACE)),
    ),
    Way("float32", "float32 around {call}", frozenset((HALF_TYPES,))),
    Way("int64", "int64 around {call}", frozenset((NARROW_INTEGERS,))),
    Way("CPU", "{call} on the CPU", frozenset(), "; it copies operands and results"),
)
NAMED = {w.name: w for w in WAYS}


def ways_around(cause: Cause, aspect: str, dtype: str) -> tuple[Way, ...]:
    """The ways that may help with a finding of a cause; none if nothing can, or if nobody looked for its cause."""
    if UNSEARCHED in cause.properties or {aspect, cause.symptom.partition(":")[0]} & set(HOPELESS):
        return ()
    return avoiding(needs(cause.properties, aspect, dtype in HALF))


def avoiding(some: Iterable[str]) -> tuple[Way, ...]:
    """The ways that avoid something of this, and the CPU."""
    needed = frozenset(some)
    return tuple(w for w in WAYS if not w.avoids or w.avoids & needed)


def needs(properties: Sequence[str], aspect: str, half: bool) -> Iterator[str]:
    """What a finding needs. properties: of its cause; half: whether it is one in a half type. Where nothing decides, or only
    numbers near the ends of the range, the half type itself may."""
    yield from properties
    yield aspect
    if half and not set(properties) - {EXTREME_VALUES}:
        yield HALF_TYPES
    of_derivatives = aspect in DERIVATIVES and set(properties) & set(LAYOUTS)  # of the operands, or of the gradient
    if of_derivatives or any(p.endswith(f" {COTANGENT}") for p in properties):
        yield COTANGENT


def tried(
    ways: Sequence[Way], cases: Iterable[Tried], differs: Callable[[Tried, Way | None], bool | None], seconds: float
) -> tuple[Workaround, ...]:
    """What came of some ways. cases: those that failed; differs: whether one does with a way, or as it is for None; None where
    nothing was compared. What does not fail as it is says nothing of a way. After so many seconds no other case is tried."""
    until = time.monotonic() + seconds
    agreed, asked = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
    for case in islice(cases, CASES if ways else 0):
        if time.monotonic() > until:
            break
        if not differs(case, None):
            continue
        for way in ways:
            if agreed[way] == asked[way]:  # one that failed is none
                asked[way] += 1
                agreed[way] += differs(case, way) is False
    return tuple(Workaround(w.name, agreed[w], asked[w]) for w in ways if asked[w])


def best(found: Iterable[Sequence[Workaround]]) -> Workaround | None:
    """The cheapest way that agreed in all cases of all findings for which any was tried, with their number; None if there is
    none."""
    some = [{w.way: w for w in ways} for ways in found if ways]
    for way in NAMED:
        all_of = [ways[way] for ways in some if way in ways and ways[way].agreed == ways[way].cases]
        if all_of and len(all_of) == len(some):
            return Workaround(way, sum(w.agreed for w in all_of), sum(w.cases for w in all_of))
    return None
