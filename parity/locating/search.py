"""The search of `parity.locate`: which module and operator of a model first compute something else on the device than the CPU.

The model runs once on the device, forward and backward. Each operator of aten that it dispatches there runs once more on the
CPU with the very operands that it got, and is judged by itself: a wrong layer does not blame those behind it. Results that are
equal or differ by roundings alone are settled at once; the others are judged as by `parity.compare`, against a float64 truth.
Nothing is kept of an operator that agrees, so memory is bounded by the largest call.

Where no operator diverges, the public functions of the forward pass are compared in the same way, and those that the device
computes by operators that the CPU does not have (`_lstm_mps`) with their gradients, as by `assert_parity`.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity.checks.deciding import HALVES, strides_word
from parity.checks.operators import OperatorCall, run_on
from parity.comparing import meter
from parity.comparing.advice import on_the_cpu, raised_on_the_cpu
from parity.comparing.comparison import DEFAULT, Comparison, ParityWarning, Request, effort_of, nearest
from parity.comparing.function import attempted, compared, gives_numbers, raised_at, target
from parity.comparing.kinks import JUMPS
from parity.comparing.places import Places, command, row_of
from parity.comparing.subject import SEED, SHAPED, ForwardRun, Subject, fixed_cotangents, forward, is_compiled, word
from parity.comparing.truth import seeded
from parity.core import state
from parity.core.errors import NothingCompared, ParityError, UsageError
from parity.core.results import (
    CPU_OPERAND,
    HALF_TYPES,
    LAZY_OPERAND,
    NARROW_INTEGERS,
    STRIDED_DESTINATION,
    Aspect,
    Raised,
    Status,
    Verdict,
)
from parity.devices import Device
from parity.devices.refusals import listening
from parity.execution import execute as ex
from parity.execution.detour import AROUND, NARROW, Form
from parity.findings.workaround import NAMED, Way, avoiding, best, tried
from parity.locating.calls import Search, SearchMode
from parity.locating.located import SHOWN, Divergence, Located, called
from parity.locating.modules import module_errors
from parity.locating.timing import times
from parity.oracle.step_dtypes import Recorded

BACKWARD = 2.0  # operators of a backward pass for each of its forward pass, about
PATIENCE = 60.0  # seconds for looking where a comparison that failed diverges


def located(q: Request, seconds: float = math.inf, whole: bool = True, modules: bool = False, timed: bool = False) -> Located:
    """What diverges on a device of this machine; raises as `locate` does. seconds: the time after which no more operators are
    compared; whole: compare the results as well where no operator diverges; modules: say how far each module is off, too;
    timed: also how long it takes."""
    s, place = q.subject(), target(q.device)
    if not s.moves:
        raise NothingCompared(f"{s.name}: no input is a tensor, so nothing would reach {place.name}; give it tensors")
    if place.name == "cpu":
        raise UsageError("the device is the CPU itself, which cannot diverge from itself; name another with device=")
    s, cotangents = _ran_on_the_cpu(s, q.backward)
    why = "no backward pass: no output depends on an input or parameter that requires a gradient"
    notes: tuple[str, ...] = (why,) if q.backward and not cotangents else ()
    notes += (SHAPED,) if s.shaped else ()
    eager = s  # what the modes of the search can see
    if is_compiled(q.fn):
        eager, _ = _ran_on_the_cpu(q.eager(), q.backward)
        notes += ("it is compiled, and what was compared here is its eager code",)
    if s.draws:
        notes += ("random numbers (dropout) were drawn on the CPU and handed to the device",)
    search = Search(place, time.monotonic() + seconds, effort_of(q.effort))
    search.judged = SHOWN if whole else 1
    fell = _searched(search, eager, cotangents)
    notes += (f"ran on the CPU unasked: {', '.join(dict.fromkeys(fell))}",) if fell else ()
    notes += (search.nonfinite,) if search.nonfinite else ()
    differs, agreement = "", tuple[str, ...]()
    if whole and search.broken:
        notes += _advice(q)
        notes += (there,) if (there := on_the_cpu(search.broken)) else ()
    elif whole and not search.divergences:
        agrees = Verdict(Status.AGREE) if search.compared and not search.left else None
        differs, agreement, way = _whole(replace(q, proof=lambda: agrees))
        notes = (*((f"it {way}",) if way else ()), *notes)
    if not (search.compared or search.divergences or search.broken):
        raise NothingCompared(f"{s.name}: no operator that can be compared ran on {place.name}")
    if names := [n for some in search.foreign.values() for n in some]:
        search.left[f"the CPU does not run them ({', '.join(sorted(set(names)))[:80]})"] += len(names)
    title = f"{s.name} {s.dtype} on {place.name}"
    table, more = module_errors(eager, cotangents, place) if modules else ((), "")
    notes += (more,) if more else ()
    left, broken, order, dtype = dict(search.left), "" if search.divergences else search.broken, search.order, s.dtype
    next_ = _next(order[0] if order else None, dtype, place)
    around = workaround(order, place)
    return Located(
        title, dtype, place.name, order, search.compared, left, broken, differs, notes, table, next=next_, workaround=around,
        agreement=agreement, times=times(eager, cotangents, place) if timed else (),
    )  # fmt: skip


def _searched(search: Search, s: Subject, cotangents: Sequence[Tensor]) -> list[str]:
    """Run the search: operators, and functions where they say more. The operators that ran on the CPU, once for each call."""
    search.expected = _calls(s, bool(cotangents)) if meter.watched() else 0
    fell: list[str] = []
    with warnings.catch_warnings(), listening(fell), torch.random.fork_rng(devices=[]), search.device.active():
        warnings.simplefilter("ignore", ParityWarning)
        search.device.seed(SEED)
        search.operators(s, cotangents)
        # Behind a part that was found, functions that the CPU has no operator for may diverge before it.
        if (search.foreign or not search.divergences) and time.monotonic() < search.until:
            search.device.seed(SEED)
            search.functions(s, only_foreign=bool(search.divergences))
    return fell


def _calls(s: Subject, backward: bool) -> int:
    """About how many operators a run calls."""
    ran = Recorded()
    ex.attempt(lambda: forward(s, torch.clone, backward, ran), "run")
    return int(sum(map(len, ran.dtypes.values())) * (1.0 + BACKWARD * backward))


def _whole(q: Request) -> tuple[str, tuple[str, ...], str]:
    """(what differs in the results as a whole, how far they are from the CPU's if nothing does, where the device takes another
    way if something does); all empty if they cannot be compared (random numbers)."""
    try:
        comparison = compared(replace(q, effort=DEFAULT)).comparison
    except ParityError:
        return "", (), ""
    if comparison.agrees:
        judged, shares = dict(comparison.verdicts), {line.where: line.error or 0.0 for line in comparison.table}
        apart = {n: (d, shares[n], d.allowed(judged[n])) for n, d in comparison.differences.items()}
        jumps = (n for n in comparison.notes if n.startswith(JUMPS))
        return "", (*nearest(apart), *jumps) if apart else (), ""
    found = [f"{n or 'the call'} ({v.status}: {v.reason})" for n, v in comparison.findings]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more, (), comparison.where


def _advice(q: Request) -> tuple[str, ...]:
    """What `assert_parity` notes where the device raises: what to change in the function, if the fault is its own. Raises
    UsageError if the function moves itself away from the device."""
    try:
        notes = compared(replace(q, effort=DEFAULT)).comparison.notes
        return tuple(n for n in notes if not n.startswith(("no gradients: ", "not compared, ")))  # which is said, or no matter
    except UsageError:
        raise
    except ParityError:
        return ()


def locate_run(
    name: str, prepared: Callable[[Places], Callable[[], Any]], device: Device, seconds: float = math.inf
) -> Located:
    """`locate` for a program that has its tensors on the device already, and runs its own backward pass (a training step).
    name: how it is called; prepared: makes all that it needs anew, and returns it. Operators that write in place and return
    nothing are compared by what they leave in memory."""
    search = Search(device, time.monotonic() + seconds)
    search.in_place = True
    run, mode = prepared(search.places), SearchMode(search)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ParityWarning)
        with search.places.watching(), mode:
            got = ex.attempt(run, "run")
        if isinstance(got, Raised):
            search.broken = f"{got.type}: {got.message}"
        if search.foreign or not search.divergences:  # as in `located`
            search.functions_of(prepared(search.places), only_foreign=bool(search.divergences))
    order, left = search.order, dict(search.left)
    next_, broken, around = _next(order[0] if order else None, "float32", device), search.broken, workaround(order, device)
    return Located(name, "", device.name, order, search.compared, left, "" if order else broken, next=next_, workaround=around)


class Sought:
    """Where the device diverges in the function of a request, looked for once, when it is asked first."""

    def __init__(self, q: Request) -> None:
        self._q, self._asked = replace(q, effort=DEFAULT), False
        self._found: Located | None = None

    @property
    def found(self) -> Located | None:
        """What `located` says; None where it raises. (A cache of functools would add a frame, taken for the caller's line.)"""
        if not self._asked:
            self._asked = True
            with contextlib.suppress(Exception), state.Kept():
                self._found = located(self._q, PATIENCE, whole=False)
        return self._found

    def proves(self) -> Verdict | None:
        """The verdict of the first operator that is wrong by itself, on the very operands that it got; AGREE where every one
        of them agrees, and None where that is not known."""
        if self.found is None:
            return None
        wrong = next((d.verdict for d in self.found.divergences if d.is_wrong), None)
        whole = self.found.agrees and self.found.compared > 0 and not self.found.left
        return wrong or (Verdict(Status.AGREE) if whole else None)


def with_divergence(comparison: Comparison, search: Sought) -> Comparison:
    """The comparison with where the device diverges, and with the results of that module first. As it is if nothing can be
    located: the device refuses the function, or differs by what its operators add up to."""
    if not any(v.status.differs for _, v in comparison.verdicts) or search.found is None:
        return comparison
    return with_place(comparison, search.found)


def with_place(comparison: Comparison, found: Located) -> Comparison:
    """A comparison with what `located` found of it: where the device diverges, and the command that tests that operator."""
    if (one := found.first) is None:
        return comparison
    own = f"[{one.place.module}."
    order = sorted(comparison.verdicts, key=lambda nv: bool(one.place.module) and own not in nv[0])
    next_ = found.next or ("" if _of_a_package(one.operator) else comparison.next)
    where = "; ".join((f"{found.headline.removeprefix(found.subject).strip()}", *called(one)))
    where += f"\n  workaround: {found.workaround}" if found.workaround else ""
    where += f"\n  {comparison.where}" if comparison.where else ""  # of compiled code
    line = one.place.line.partition(", in ")[0]
    brief = f"{one.operator.removeprefix('aten::')} {one.how or one.verdict.status}" + (f", {line}" if line else "")
    return replace(comparison, verdicts=tuple(order), where=where, next=next_, brief=f"{comparison.subject}: {brief}")


def _next(one: Divergence | None, dtype: str, device: Device) -> str:
    """The command that tests an operator by itself; empty if no row of the catalog does, or if the device refuses it."""
    if one is None or not one.verdict.status.differs:
        return ""
    names = one.operator.rpartition("::")[2].removesuffix("_backward"), one.place.function
    row = next(filter(None, (row_of(n.rpartition(".")[2]) for n in names)), "")
    floats = [x.base.dtype for x in (one.call.operands if one.call is not None else ()) if x.base.is_floating_point()]
    return command([row] if row else [], word(floats[0]) if floats else dtype, device)


def _of_a_package(operator: str) -> bool:
    """Whether it is no operator of torch's own, so that no row tests it."""
    return "::" in operator and not operator.startswith("aten::")


def cotangents_of(s: Subject) -> list[Tensor]:
    """Those of the outputs that require a gradient. Raises UsageError if the subject does not run on the CPU."""
    return _ran_on_the_cpu(s, True)[1]


def _ran_on_the_cpu(s: Subject, backward: bool) -> tuple[Subject, list[Tensor]]:
    """The subject, which draws its random numbers on the CPU from here on if it draws any, and the cotangents of its outputs.
    Raises UsageError if it does not run on the CPU, and NothingCompared if nothing comes of it."""
    handing = replace(s, draws=True)

    def run() -> ForwardRun:
        with seeded():
            return forward(handing, torch.clone, backward)

    got, cause = attempted(run, "run")
    if isinstance(got, Raised):
        what = f"{got.type}: {got.message}{raised_at(cause)}"
        raise UsageError(f"{s.name} raises on the CPU: {what}; {raised_on_the_cpu(got.message)}") from cause
    if not gives_numbers(s, got):
        raise NothingCompared(f"{s.name} gives no tensor with elements and writes none; return what is to be compared")
    draws = got.handed is not None and got.handed.draws > 0 and not got.handed.left
    return handing if draws else s, fixed_cotangents(got) if backward and got.leaves else []


SECONDS = 5.0  # in which a way is tried with the calls of one operator


def workaround(order: Sequence[Divergence], device: Device) -> str:
    """The cheapest way around the first of these operators that agrees with the CPU in all calls of it that diverged, in one
    line; "" if there is none, or if what diverged is no single operator."""
    if not order or order[0].call is None or order[0].of:
        return ""
    first = order[0]
    alike = [p for p in order if p.call is not None and (p.operator, p.pass_, p.of) == (first.operator, first.pass_, "")]
    ways = avoiding(word for p in alike if p.call is not None for word in _features(p.call))
    with device.active():
        found = best([tried(ways, alike, lambda p, way: _differs(p, way, device), SECONDS)])
    return NAMED[found.way].text(found, _name(first), "call") if found is not None else ""


def _name(p: Divergence) -> str:
    """The operator that was called, and the public function that it belongs to."""
    operator, function = p.operator.removeprefix("aten::"), p.place.function.removesuffix(".default")
    function = function.rpartition(".")[2].rstrip("_")
    return operator if function in ("", operator.rpartition("::")[2]) else f"{operator} in {function}"


def _features(call: OperatorCall) -> Iterator[str]:
    """What a way around this call may avoid: everything unusual about it, because no experiments say what it needs."""
    for k, x in enumerate(call.operands):
        if word := strides_word(x):
            yield STRIDED_DESTINATION if k in call.written else f"{word} operand"
        if x.conj or x.neg:
            yield LAZY_OPERAND
        if x.on_cpu:
            yield CPU_OPERAND
        if x.base.dtype in HALVES:
            yield HALF_TYPES
        if x.base.dtype in NARROW:
            yield NARROW_INTEGERS
    if call.written:
        yield Aspect.INPLACE


def _differs(p: Divergence, way: Way | None, device: Device) -> bool | None:
    """Whether a call that diverged differs on the device, by the judge of the search, which asks no truth of one that is as far
    off as `STRUCK` says; None if that cannot be said."""
    call, judge = p.call, Search(device)
    assert call is not None
    judge.divergences, judge.judged = [p], 1
    try:
        ran = run_on(call, device, there=None if way is None else AROUND[way.name](_form(call)))
        judge.operator(call, ran.results) if ran.results else judge.written(call, ran.bases)
    except ParityError:
        return None
    except Exception:  # whatever the device raises: it is no agreement
        return True
    return True if len(judge.divergences) > 1 else None if judge.left or not judge.compared else False


def _form(call: OperatorCall) -> Form:
    arguments = call.operator._schema.arguments
    written = [(k, a.name) for k, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    plain = getattr(torch.ops.aten, call.base_name, None) if written else call.operator
    return Form(call.operator, plain, frozenset(key for pair in written for key in pair))
