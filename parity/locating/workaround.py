"""Tries ways around the first operator that diverges, with the very calls that diverged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from parity.checks.deciding import HALVES, strides_word
from parity.checks.operators import OperatorCall, run_on
from parity.core.errors import ParityError
from parity.core.results import CPU_OPERAND, HALF_TYPES, LAZY_OPERAND, NARROW_INTEGERS, STRIDED_DESTINATION, Aspect
from parity.devices import Device
from parity.execution.detour import AROUND, NARROW, Form
from parity.findings.workaround import NAMED, Way, avoiding, best, tried
from parity.locating.calls import Search
from parity.locating.located import Divergence

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
