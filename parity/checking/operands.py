"""Operands stay as they were: no call writes into what it was given to read, neither into the elements nor beside them.

What was uploaded is compared, bit for bit but for what a NaN is made of, with what lies there when all calls of the case are
done. Only where that differs it is asked which call did it, on fresh copies, and whether the same call does it on the CPU: then
it is what the op is for (a table that is renormalised, statistics that run along).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from parity import execute as ex
from parity.checking.trial import Result, Sides, Trial, values
from parity.devices.base import Device
from parity.execute import Placed
from parity.inputs import Inputs, apply, build
from parity.judging.destination import EXACT
from parity.judging.measures import at, bit_equal, bits
from parity.vocabulary import Aspect, Measure, Raised, Status, Verdict

PROBLEM = "operand"
Stage = Callable[[Inputs, Placed, Device], object]


def check(t: Trial, s: Sides) -> None:
    """The bases on the device, behind all calls of a case; a finding takes the place of what agrees in the aspect of the call
    that wrote. Rows whose calls get copies are left out, and what a second run of the call does not show again is not told.
    """
    if t.device.name == "cpu" or t.program.row.updates:
        return
    bases = [None if o.spec.on_cpu else o.base for o in t.inputs.operands]
    t.mark("device")
    if ex.attempt(lambda: _changed(bases, s.there, t.device), "download") == []:
        return
    for aspect, stage in _stages(t, s):
        t.mark("device")
        told = [k for k, r in enumerate(t.results) if r.aspect is aspect]
        found = _written(t, stage, t.device)
        if not told or not found:
            continue
        t.mark("reference")
        own = _written(t, stage, t.cpu)
        strange = [m for k, m in found.items() if k not in own]
        if strange and not t.results[told[0]].verdict.status.is_finding:
            _tell(t.results, told[0], strange[0])
        return


def _tell(results: list[Result], k: int, m: Measure) -> None:
    """Result number k wrote; what is found behind it, with other operands than the reference's, says nothing."""
    text = f"operand {m.tensor.strip('operand[]')} was changed by the call"
    results[k] = replace(results[k], verdict=Verdict(Status.WRONG, text, m, EXACT))
    for j, r in enumerate(results[k + 1 :], k + 1):
        if r.verdict.status.is_finding:
            void = Verdict(Status.VOID, f"{text} before it ({r.verdict.reason})", r.verdict.measure)
            results[j] = replace(r, verdict=void)


def _stages(t: Trial, s: Sides) -> Iterator[tuple[Aspect, Stage]]:
    """Each call of the case alone, a backward with its forward."""
    p, case = t.program, t.case

    def forward(inputs: Inputs, placed: Placed, device: Device) -> object:
        return ex.forward(p, case, inputs, placed, s.grad)

    def backward(inputs: Inputs, placed: Placed, device: Device) -> object:
        live = ex.forward(p, case, inputs, placed, True)
        fed = [ex.cotangent(case.cotangent, x, i, values) for i, (_, x) in enumerate(ex.differentiable(live))]
        return ex.backward(live, [apply(device.upload(c.base), c.layout, c.shape) for c in fed])

    def out(inputs: Inputs, placed: Placed, device: Device) -> object:
        targets = [ex.destination(x, case.into) for _, x in s.reference.tensors]
        return ex.write_out(p, case, inputs, placed, targets, device)

    def inplace(inputs: Inputs, placed: Placed, device: Device) -> object:
        return ex.write_inplace(p, case, inputs, placed, device)

    yield (Aspect.INPLACE if p.row.mutates else Aspect.FORWARD), forward
    if s.grad:
        yield Aspect.BACKWARD, backward
    if p.out:
        yield Aspect.OUT, out
    if p.inplace is not None:
        yield Aspect.INPLACE, inplace


def _written(t: Trial, stage: Stage, device: Device) -> dict[int, Measure]:
    """Which operands a call changes on a device, and where; what it raises is told elsewhere."""

    def run() -> dict[int, Measure]:
        inputs = build(t.case)
        placed = ex.place(inputs, device, t.case.under)
        before = [None if o.spec.on_cpu else device.download(b) for o, b in zip(inputs.operands, placed.bases)]
        ex.attempt(lambda: stage(inputs, placed, device), "run")
        device.synchronize()
        return dict(_changed(before, placed, device))

    found = ex.attempt(run, "run")
    t.notes.clear()
    return {} if isinstance(found, Raised) else found


def _changed(before: list[Tensor | None], placed: Placed, device: Device) -> list[tuple[int, Measure]]:
    """(operand, first element of its base that changed) of every operand that holds other bits than before."""
    found = []
    for k, (x, base) in enumerate(zip(before, placed.bases)):
        if x is None or bit_equal(after := device.download(base), x):
            continue
        differs = (bits(after) != bits(x)).view(*x.shape, -1).any(-1)
        if x.is_floating_point() or x.is_complex():  # a NaN that is read and written back may have other bits
            differs &= ~(torch.isnan(after) & torch.isnan(x))
        if not (count := int(differs.sum())):
            continue
        index = tuple(int(i) for i in differs.nonzero()[0])
        told = at(after, index), at(x, index), at(x, index)
        m = Measure(f"operand[{k}]", math.inf, None, True, "", None, None, index, *told, count, x.numel(), PROBLEM)
        found.append((k, m))
    return found
