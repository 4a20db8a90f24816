"""Uploads and downloads of views. No op of the suite makes these copies, because bases always travel dense."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from parity.checks.trial import RAISED, Result, Trial
from parity.core.case import TensorSpec
from parity.core.results import Aspect, Measure, Raised, Status, Verdict
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.execution.execute import Placed
from parity.execution.inputs import Operand, apply
from parity.judging.destination import EXACT
from parity.judging.measures import exact_measure
from parity.judging.sameness import same_values

OPERANDS = 2  # at most so many operands of a case are copied
CAST_EVERY = 3  # one operand in so many, by its seed, changes its dtype in the copy
# dtype -> dtype of the copy: the conversion of every value is defined.
CASTS = {
    "float32": "float16", "float16": "float32", "bfloat16": "float32", "int8": "int32", "int16": "float32", "int32": "int64",
    "int64": "int32", "uint8": "int16", "bool": "float32",
}  # fmt: skip
Way = Callable[[Device, Tensor], Tensor]


def is_due(t: Trial) -> bool:
    """Whether an operand of the case travels."""
    return t.settings.wants_more(Aspect.TRANSFER) and not all(o.spec.on_cpu for o in t.inputs.operands[:OPERANDS])


def check(t: Trial, there: Placed) -> None:
    """Copy the first operands of the case to the device and back; every copy has one right answer."""
    t.mark("device")
    measures: list[Measure] = []
    for i, o in enumerate(t.inputs.operands[:OPERANDS]):
        if o.spec.on_cpu:
            continue
        for name, way in _ways(t.case.into, o):
            expected = ex.precisely(partial(way, t.cpu, o.view), "run")
            if isinstance(expected, Raised):
                continue
            got = ex.attempt(partial(way, t.device, there.views[i]), "download")
            name = f"{name}[{i}]"
            if isinstance(got, Raised):
                text = f"{got.type} in {name}: {got.message}"
                t.results.append(Result(Aspect.TRANSFER, Verdict(RAISED[got.kind], text, Measure(name))))
                return
            # The CPU itself drops lazy bits when it copies float32 to float16 and back (torch 2.13). So a copy of the
            # resolved view is right, too; a device with the same error as the CPU is not detected.
            if not _same(got, expected):
                plain = replace(o, view=o.view.resolve_conj().resolve_neg())
                right = next(copy for word, copy in _ways(t.case.into, plain) if word == name.partition("[")[0])
                expected = right(t.cpu, plain.view)
            m = exact_measure(name, got, expected) if not _same(got, expected) else Measure(name, 0.0, 0.0, True, "exact")
            measures.append(m)
            if m.screen != "exact":
                what = "arrives wrong" if m.mismatched else f"arrives as {got.dtype}{list(got.shape)}"
                t.results.append(Result(Aspect.TRANSFER, Verdict(Status.WRONG, f"{name} {what}", m, EXACT), tuple(measures)))
                return
    t.notes.clear()
    if not measures:
        t.due.discard(Aspect.TRANSFER)
    else:
        t.results.append(Result(Aspect.TRANSFER, Verdict(Status.AGREE, "", measures[-1], EXACT), tuple(measures)))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and same_values(a, b)


def copied_as(spec: TensorSpec) -> str:
    """The dtype of the copies of an operand."""
    return CASTS.get(spec.dtype, spec.dtype) if spec.values.seed % CAST_EVERY == 0 else spec.dtype


def _ways(into: str, o: Operand) -> Iterator[tuple[str, Way]]:
    """(name, copy) of every way; a copy takes the device and the operand's view there, and returns a CPU tensor."""
    dtype: torch.dtype = getattr(torch, copied_as(o.spec))
    target = ex.destination(torch.empty(o.spec.shape, dtype=dtype, device="meta"), into)

    def upload(device: Device, _: Tensor) -> Tensor:
        return device.download(o.view.to(device.torch_device, dtype, copy=True))

    def copy_up(device: Device, _: Tensor) -> Tensor:
        base = device.upload(target.base)
        apply(base, target.layout, target.shape).copy_(o.view)
        return device.download(base)

    def download(_: Device, view: Tensor) -> Tensor:
        return view.detach().to("cpu", dtype, copy=True).resolve_conj().resolve_neg()

    def copy_down(_: Device, view: Tensor) -> Tensor:
        base = target.base.clone()
        apply(base, target.layout, target.shape).copy_(view.detach())
        return base

    yield from (("upload", upload), ("copy to the device", copy_up), ("download", download), ("copy to the CPU", copy_down))
