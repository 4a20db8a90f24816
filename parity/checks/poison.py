"""Detects unwritten outputs and out-of-bounds writes.

Before a call, freed memory of the device is filled with NaN or with large numbers: a kernel that leaves an element of its
result unwritten hands that on, and not by chance the right number of an earlier call. And the case's calls run once more on
tensors that lie in larger buffers, whose ends hold a pattern that must still be there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from parity.checks.inputs_unchanged import Stage, stages
from parity.checks.trial import Result, Sides, Trial
from parity.core.results import Computed, Measure, Outcome, Raised, Status, Verdict
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.execution.inputs import build
from parity.judging.destination import EXACT

COPIES = 4  # blocks of each size, because a call may allocate several of it
MOST_BYTES = 1 << 26  # no larger block is filled
EDGE = 64  # elements of each guard, so that what lies between them is aligned as an allocation is
GUARD = 0xA5
PROBLEM = "beside"


def fill_freed_memory(t: Trial, reference: Outcome, byte: int) -> None:
    """Leave blocks of the sizes of the operands and the results on the device, filled and freed. A device that cannot make them
    is left as it is: the call itself shows what it cannot do."""
    made = [x for _, x in reference.tensors] if isinstance(reference, Computed) else []
    sizes = {x.numel() * x.element_size() for x in (*made, *(o.base for o in t.inputs.operands))}
    with contextlib.suppress(Exception):
        held = [
            torch.full((n,), byte, dtype=torch.uint8, device=t.device.torch_device)
            for n in sorted(sizes)
            if 0 < n <= MOST_BYTES
            for _ in range(COPIES)
        ]
        del held
        t.device.synchronize()
    t.notes.clear()


class Guarded(Device):
    """A device on which every uploaded tensor lies between two guards."""

    def __init__(self, device: Device) -> None:
        self.name, self.torch_device, self.simulated = device.name, device.torch_device, device.simulated
        self._device = device
        self._lent: list[tuple[Tensor, Tensor]] = []  # (what was uploaded, where it is)

    def upload(self, t: Tensor) -> Tensor:
        """A copy on the device, which is a part of a larger buffer."""
        if not t.numel():
            return self._device.upload(t)
        edge = _pattern(t.dtype)
        whole = torch.cat((edge, t.detach().reshape(-1), edge))
        there = self._device.upload(whole)
        self._lent.append((whole, there))
        return there[EDGE : EDGE + t.numel()].view(t.shape)

    def download(self, t: Tensor) -> Tensor:
        """As the device does."""
        return self._device.download(t)

    def synchronize(self) -> None:
        """As the device does."""
        self._device.synchronize()

    def seed(self, n: int) -> None:
        """As the device does."""
        self._device.seed(n)

    def touched(self) -> Iterator[str]:
        """Where a guard was changed, for every one that was."""
        for whole, there in self._lent:
            back = self._device.download(there)
            for ends, where in ((slice(None, EDGE), "before"), (slice(-EDGE, None), "behind")):
                if not torch.equal(_bytes(back[ends]), _bytes(whole[ends])):
                    yield f"{where} a tensor of {whole.numel() - 2 * EDGE} elements"


def _pattern(dtype: torch.dtype) -> Tensor:
    if dtype is torch.bool:
        return torch.arange(EDGE) % 2 == 0
    return torch.full((EDGE * dtype.itemsize,), GUARD, dtype=torch.uint8).view(dtype)


def _bytes(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.uint8)


def check_guards(t: Trial, s: Sides) -> None:
    """Run every call of the case once more between guards; the one that writes into a guard is WRONG. A call that raises, or
    that is a finding already, is left out, and so is a row whose calls get copies."""
    if t.device.name == "cpu" or t.program.row.forms.updates:
        return
    for aspect, stage in stages(t, s):
        places = [k for k, r in enumerate(t.results) if r.aspect is aspect]
        if not places or t.results[places[0]].verdict.status.is_finding or not t.settings.wants(aspect):
            continue
        t.mark("device")
        found = ex.attempt(functools.partial(_touched, t, stage), "run")
        t.notes.clear()
        if isinstance(found, Raised) or not found:
            continue
        k = places[0]
        text = f"the call wrote outside of what it was given: {found[0]}"
        t.results[k] = Result(aspect, Verdict(Status.WRONG, text, Measure(_name(t.results[k]), problem=PROBLEM), EXACT))


def _name(r: Result) -> str:
    return r.measures[0].tensor if r.measures else "out"


def _touched(t: Trial, stage: Stage) -> list[str]:
    """The guards that one call changes."""
    device, inputs = Guarded(t.device), build(t.case)
    placed = ex.place(inputs, device, t.case.under)
    _all(stage(inputs, placed, device))
    device.synchronize()
    return list(device.touched())


def _all(lent: Iterable[object]) -> None:
    for _ in lent:
        pass
