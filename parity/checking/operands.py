"""Operands stay as they were: no call writes into what it was given to read, neither into the elements nor beside them.

What was uploaded, the cotangents of a backward too, is compared, bit for bit but for what a NaN is made of, with what lies
there when all calls of the case are done. Only where that differs it is asked which call did it, on fresh copies, and whether
the same call does it on the CPU: then it is what the op is for (a table that is renormalised, statistics that run along).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from parity import execute as ex
from parity.checking.trial import Lent, Result, Sides, Trial, values
from parity.devices.base import Device
from parity.execute import Placed
from parity.inputs import Inputs, apply, build
from parity.judging.destination import EXACT
from parity.judging.measures import at, bit_equal, bits
from parity.vocabulary import Aspect, Measure, Raised, Status, Verdict

PROBLEM = "operand"
Stage = Callable[[Inputs, Placed, Device], Iterable[Lent]]  # what it is given beside the operands


def check(t: Trial, s: Sides) -> None:
    """The bases on the device, behind all calls of a case; a finding takes the place of what agrees in the aspect of the call
    that wrote. Rows whose calls get copies are left out, and what a second run of the call does not show again is not told.
    """
    if t.device.name == "cpu" or t.program.row.updates:
        return
    lent = [*_operands([None if o.spec.on_cpu else o.base for o in t.inputs.operands], s.there), *t.fed]
    t.mark("device")
    if ex.attempt(lambda: _changed(lent, t.device), "download") == []:
        return
    for aspect, stage in _stages(t, s):
        t.mark("device")
        told = [k for k, r in enumerate(t.results) if r.aspect is aspect]
        found = _written(t, stage, t.device)
        if not told or not found:
            continue
        t.mark("reference")
        own = _written(t, stage, t.cpu)
        strange = [m for name, m in found.items() if name not in own]
        if strange and not t.results[told[0]].verdict.status.is_finding:
            _tell(t.results, told[0], strange[0])
        return


def _tell(results: list[Result], k: int, m: Measure) -> None:
    """Result number k wrote; what is found behind it, with other operands than the reference's, says nothing."""
    text = f"{m.tensor.replace('[', ' ').rstrip(']')} was changed by the call"
    results[k] = replace(results[k], verdict=Verdict(Status.WRONG, text, m, EXACT))
    for j, r in enumerate(results[k + 1 :], k + 1):
        if r.verdict.status.is_finding:
            void = Verdict(Status.VOID, f"{text} before it ({r.verdict.reason})", r.verdict.measure)
            results[j] = replace(r, verdict=void)


def _stages(t: Trial, s: Sides) -> Iterator[tuple[Aspect, Stage]]:
    """Each call of the case alone, a backward with its forward."""
    p, case = t.program, t.case

    def forward(inputs: Inputs, placed: Placed, device: Device) -> Iterable[Lent]:
        ex.forward(p, case, inputs, placed, s.grad)
        return ()

    def backward(inputs: Inputs, placed: Placed, device: Device) -> Iterable[Lent]:
        live = ex.forward(p, case, inputs, placed, True)
        fed = [ex.cotangent(case.cotangent, x, i, values) for i, (_, x) in enumerate(ex.differentiable(live))]
        lent = [Lent(f"cotangent[{i}]", c.base.clone(), device.upload(c.base)) for i, c in enumerate(fed)]
        ex.backward(live, [apply(h.base, c.layout, c.shape) for h, c in zip(lent, fed)])
        return lent

    def out(inputs: Inputs, placed: Placed, device: Device) -> Iterable[Lent]:
        targets = [ex.destination(x, case.into) for _, x in s.reference.tensors]
        ex.write_out(p, case, inputs, placed, targets, device)
        return ()

    def inplace(inputs: Inputs, placed: Placed, device: Device) -> Iterable[Lent]:
        ex.write_inplace(p, case, inputs, placed, device)
        return ()

    yield (Aspect.INPLACE if p.row.mutates else Aspect.FORWARD), forward
    if s.grad:
        yield Aspect.BACKWARD, backward
    if p.out:
        yield Aspect.OUT, out
    if p.inplace is not None:
        yield Aspect.INPLACE, inplace


def _written(t: Trial, stage: Stage, device: Device) -> dict[str, Measure]:
    """Which operands a call changes on a device, and where; what it raises is told elsewhere."""

    def run() -> dict[str, Measure]:
        inputs = build(t.case)
        placed = ex.place(inputs, device, t.case.under)
        lent = _operands([None if o.spec.on_cpu else device.download(b) for o, b in zip(inputs.operands, placed.bases)], placed)
        more = ex.attempt(lambda: stage(inputs, placed, device), "run")
        device.synchronize()
        return dict(_changed([*lent, *(() if isinstance(more, Raised) else more)], device))

    found = ex.attempt(run, "run")
    t.notes.clear()
    return {} if isinstance(found, Raised) else found


def _operands(before: Iterable[Tensor | None], placed: Placed) -> list[Lent]:
    """The operands of a call; before: what their bases held, or None for those that are not looked at."""
    return [Lent(f"operand[{k}]", x, b) for k, (x, b) in enumerate(zip(before, placed.bases)) if x is not None]


def _changed(lent: Iterable[Lent], device: Device) -> list[tuple[str, Measure]]:
    """(name, first element of its base that changed) of everything that holds other bits than before."""
    found = []
    for name, x, base in lent:
        if bit_equal(after := device.download(base), x):
            continue
        differs = (bits(after) != bits(x)).view(*x.shape, -1).any(-1)
        if x.is_floating_point() or x.is_complex():  # a NaN that is read and written back may have other bits
            differs &= ~(torch.isnan(after) & torch.isnan(x))
        if not (count := int(differs.sum())):
            continue
        index = tuple(int(i) for i in differs.nonzero()[0])
        told = at(after, index), at(x, index), at(x, index)
        found.append((name, Measure(name, math.inf, None, True, "", None, None, index, *told, count, x.numel(), PROBLEM)))
    return found
