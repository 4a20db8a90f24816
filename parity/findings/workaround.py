"""Ways around a fault: what a caller can write in place of a call that is wrong on the device. Each is tried first.

A way avoids something that the cause of a finding was shown to need: a layout, a destination, a dtype. The CPU for the one call
avoids everything, and comes last because of the copies that it costs. The cases that failed run once more with the call changed
on the device alone, and the same judge compares them with the same truth: a way that fails in one of them is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

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
from parity.execution.execute import Program

CASES = 40  # of a finding, at most, with which its ways are tried
LAYOUTS = (NON_CONTIGUOUS_OPERAND, OFFSET_OPERAND)
COTANGENT = "cotangent"  # of any layout
DERIVATIVES = (Aspect.BACKWARD, Aspect.DOUBLE)
# Symptoms and aspects that no other way to call helps: what must be refused, what is no matter of one call, and flags, which
# were turned off already. Deaths have no record; the children that look into them try no ways.
HOPELESS = ("accepts", "state", "uncompared", "flag", "not reproduced", "dies", Aspect.REFUSAL, Aspect.TRANSFER)

Call: TypeAlias = Callable[..., Any]
Change: TypeAlias = Callable[[Any], Any]
Tried = TypeVar("Tried")


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a call. plain: the form that returns its results and writes nothing, if there is one; written: the positions
    and the names of the arguments that this one writes into, if they are given."""

    call: Call
    plain: Call | None
    written: frozenset[int | str]

    def targets(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """What it writes into."""
        return [x for k, x in (*enumerate(args), *kwargs.items()) if k in self.written]


@dataclass(frozen=True, slots=True)
class Way:
    """A way around a fault. words: what to write, with {call} for the name of the function; avoids: the needs that it avoids
    (`needs`), everything if there are none; around: makes another call of a form; cost: what else is to be said."""

    name: str
    words: str
    avoids: frozenset[str]
    around: Callable[[Form], Call]
    cost: str = ""

    def there(self, p: Program) -> Program:
        """The program of a device with this way around."""
        function = (
            Form(p.function, None, frozenset({0})) if p.row.forms.mutates else Form(p.function, p.function, frozenset({"out"}))
        )
        inplace = p.inplace and self.around(Form(p.inplace, p.function, frozenset({0})))
        return replace(p, function=self.around(function), inplace=inplace, there=None)

    def text(self, w: Workaround, call: str, cases: str = "case") -> str:
        """The way and what came of it, in one line. call: the name of the function; cases: what it was tried in."""
        many = f"{w.agreed} of {w.cases} {cases}{'' if w.cases == 1 else 's'}"
        return f"{self.words.format(call=call)} agrees ({many}){self.cost}"


# ------------------------------------------------------------------------------------------ other operands, dtypes and places


def _inside(entering: Callable[[Sequence[Tensor]], tuple[Change, Change]]) -> Callable[[Form], Call]:
    """With other operands. entering: gets all tensors of a call, and returns what changes an argument and what brings a result
    back. What the call writes is copied into the operands that it was given."""

    def around(form: Form) -> Call:
        def call(*args: Any, **kwargs: Any) -> Any:
            enter, leave = entering([x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)])
            given, named = tree_map(enter, (args, kwargs))
            result = form.call(*given, **named)
            inner, outer = form.targets(given, named), form.targets(args, kwargs)
            _write(outer, inner)
            own = {id(a): b for a, b in zip(tree_leaves(inner), tree_leaves(outer))}
            return tree_map(lambda x: own[id(x)] if id(x) in own else leave(x), result)

        return call

    return around


def _write(targets: Any, results: Any) -> None:
    for target, result in zip(tree_leaves(targets), tree_leaves(results)):
        if target is not result:
            (target if target.shape == result.shape else target.resize_(result.shape)).copy_(result)


def _with_operands(change: Callable[[Tensor], Tensor]) -> Callable[[Form], Call]:
    def changed(x: Any) -> Any:
        return change(x) if isinstance(x, Tensor) else x

    return _inside(lambda _given: (changed, _same))


def _same(x: Any) -> Any:
    return x


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _moved(given: Sequence[Tensor]) -> tuple[Change, Change]:
    place = _place(given)
    return lambda x: x.to(place) if isinstance(x, Tensor) and place is not None else x, _same


def _place(given: Sequence[Tensor]) -> torch.device | None:
    """Where the operands lie that are not on the CPU."""
    return next((x.device for x in given if not x.is_cpu), None)


def _in_dtype(wide: torch.dtype, narrow: Sequence[torch.dtype]) -> Callable[[Form], Call]:
    """Destinations get the result in the dtype that the call itself has."""

    def entering(given: Sequence[Tensor]) -> tuple[Change, Change]:
        dtypes = [x.dtype for x in given]
        back = next((d for d in dtypes if d in narrow), wide)
        back = wide if wide in dtypes else back  # what torch promotes to

        def enter(x: Any) -> Any:
            return x.to(wide) if isinstance(x, Tensor) and x.dtype in narrow else x

        def leave(x: Any) -> Any:
            return x.to(back) if isinstance(x, Tensor) and x.dtype == wide else x

        return enter, leave

    def around(form: Form) -> Call:
        if form.plain is None:
            return _inside(entering)(form)
        plain = _inside(entering)(Form(form.plain, None, frozenset()))
        return _out_of_place(Form(plain, plain, form.written))

    return around


def _on_the_cpu(given: Sequence[Tensor]) -> tuple[Change, Change]:
    place = _place(given)

    def enter(x: Any) -> Any:
        if isinstance(x, torch.device) and place is not None and x.type == place.type:
            return torch.device("cpu")
        return x.cpu() if isinstance(x, Tensor) else x

    def leave(x: Any) -> Any:
        return x.to(place) if isinstance(x, Tensor) and place is not None else x

    return enter, leave


# -------------------------------------------------------------------------------------------------------- other forms


def _out_of_place(form: Form) -> Call:
    """Without a destination: the result is copied into it."""
    plain = form.plain

    def call(*args: Any, **kwargs: Any) -> Any:
        targets = form.targets(args, kwargs)
        if not targets or plain is None:
            return form.call(*args, **kwargs)
        result = plain(*args, **{k: a for k, a in kwargs.items() if k not in form.written})
        _write(targets, result)
        return targets[0]

    return call


def _with_dense_gradients(form: Form) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = form.call(*args, **kwargs)
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.requires_grad:
                x.register_hook(lambda g: g.contiguous())  # type: ignore[no-untyped-call]  # as torch has it
        return result

    return call


HALVES = tuple(getattr(torch, name) for name in HALF)
NARROW = (torch.int8, torch.int16, torch.int32, torch.uint8)
# The cheapest first.
WAYS = (
    Way(
        "contiguous",
        "x.contiguous() before {call}",
        frozenset((*LAYOUTS, STRIDED_DESTINATION)),
        _with_operands(Tensor.contiguous),
    ),
    Way(
        "copy",
        "x.clone(memory_format=torch.contiguous_format) before {call}",
        frozenset((*LAYOUTS, LAZY_OPERAND, STRIDED_DESTINATION)),
        _with_operands(_copied),
    ),
    Way("moved", "x.to(device) of operands on the CPU before {call}", frozenset((CPU_OPERAND,)), _inside(_moved)),
    Way(
        "contiguous gradient",
        "y.register_hook(lambda g: g.contiguous()) on the result y of {call}",
        frozenset((COTANGENT,)),
        _with_dense_gradients,
    ),
    Way(
        "out of place",
        "y.copy_({call}(x)) in place of the form that writes into y",
        frozenset((STRIDED_DESTINATION, OTHER_DESTINATION, "empty destination", Aspect.OUT, Aspect.INPLACE)),
        _out_of_place,
    ),
    Way("float32", "float32 around {call}", frozenset((HALF_TYPES,)), _in_dtype(torch.float32, HALVES)),
    Way("int64", "int64 around {call}", frozenset((NARROW_INTEGERS,)), _in_dtype(torch.int64, NARROW)),
    Way("CPU", "{call} on the CPU", frozenset(), _inside(_on_the_cpu), "; it copies operands and results"),
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
