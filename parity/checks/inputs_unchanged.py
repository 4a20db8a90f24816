"""Operands stay unchanged: no call writes into tensors that it was given to read, neither into elements nor outside the view.

After all calls of a case, the uploaded operands and the cotangents of its backward are compared with what was uploaded, bit for
bit except for the payload of NaN. Only if they differ, each call is repeated on fresh copies to find the one that wrote, and on
the CPU: a call that writes there too does so by design (a renormalised table, running statistics).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from parity.checks.trial import Lent, Result, Sides, Trial, values
from parity.core.results import Aspect, Measure, Raised, Status, Verdict
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.execution.execute import Placed
from parity.execution.inputs import Inputs, apply, build
from parity.judging.destination import EXACT
from parity.judging.drawing import drawn_exact
from parity.judging.measures import at
from parity.judging.sameness import bit_equal, bits

PROBLEM = "operand"
Stage = Callable[[Inputs, Placed, Device], Iterable[Lent]]  # returns the tensors it read besides the operands


def check(t: Trial, s: Sides) -> None:
    """Compare the bases on the device after all calls of a case; a finding replaces the agreement of the call that wrote.

    Rows whose calls get copies are skipped. A change that a second run of the call does not repeat is not reported.
    """
    if t.device.name == "cpu" or t.program.row.forms.updates:
        return
    lent = [*_operands([None if o.spec.on_cpu else o.base for o in t.inputs.operands], s.there), *t.fed]
    t.mark("device")
    if ex.attempt(lambda: changed(lent, t.device), "download") == []:
        return
    for aspect, stage in stages(t, s):
        t.mark("device")
        places = [k for k, r in enumerate(t.results) if r.aspect is aspect]
        written = _written(t, stage, t.device)
        if not places or not written:
            continue
        t.mark("reference")
        own = _written(t, stage, t.cpu)
        strange = [m for name, m in written.items() if name not in own]
        if strange and not t.results[places[0]].verdict.status.is_finding:
            _blame(t.results, places[0], strange[0])
        return


def _blame(results: list[Result], k: int, m: Measure) -> None:
    """Mark result k WRONG (it changed an operand) and void later findings, whose operands then differed from those of the
    reference."""
    text = f"{m.tensor.replace('[', ' ').rstrip(']')} was changed by the call"
    results[k] = replace(results[k], verdict=Verdict(Status.WRONG, text, m, EXACT))
    for j, r in enumerate(results[k + 1 :], k + 1):
        if r.verdict.status.is_finding:
            void = Verdict(Status.VOID, f"{text} before it ({r.verdict.reason})", r.verdict.measure)
            results[j] = replace(r, verdict=void)


def stages(t: Trial, s: Sides) -> Iterator[tuple[Aspect, Stage]]:
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

    yield (Aspect.INPLACE if p.row.forms.mutates else Aspect.FORWARD), forward
    if s.grad:
        yield Aspect.BACKWARD, backward
    if p.out:
        yield Aspect.OUT, out
    if p.inplace is not None:
        yield Aspect.INPLACE, inplace


def _written(t: Trial, stage: Stage, device: Device) -> dict[str, Measure]:
    """Which operands a call changes on a device, and where; {} if it raises, which is reported elsewhere."""

    def run() -> dict[str, Measure]:
        inputs = build(t.case)
        placed = ex.place(inputs, device, t.case.under)
        lent = _operands([None if o.spec.on_cpu else device.download(b) for o, b in zip(inputs.operands, placed.bases)], placed)
        more = ex.attempt(lambda: stage(inputs, placed, device), "run")
        device.synchronize()
        return dict(changed([*lent, *(() if isinstance(more, Raised) else more)], device))

    written = ex.attempt(run, "run")
    t.notes.clear()
    return {} if isinstance(written, Raised) else written


def _operands(before: Iterable[Tensor | None], placed: Placed) -> list[Lent]:
    """The operands of a call. before: the contents of their bases, or None for those to ignore."""
    return [Lent(f"operand[{k}]", x, b) for k, (x, b) in enumerate(zip(before, placed.bases)) if x is not None]


def changed(lent: Iterable[Lent], device: Device) -> list[tuple[str, Measure]]:
    """(name, first changed element of its base) of everything whose bits changed."""
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
        values_at = at(after, index), at(x, index), at(x, index)
        m = Measure(name, math.inf, None, True, "", None, None, index, *values_at, count, x.numel(), PROBLEM)
        found.append((name, drawn_exact(m, differs)))
    return found
