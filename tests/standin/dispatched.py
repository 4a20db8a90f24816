"""Which operators torch dispatches for each row on a device: `python dispatched.py DEVICE OUTPUT [SETUP]`.

The first cases of every row run forward and backward below a dispatch mode, which sees what torch's own code makes of the call
on this device, before a kernel. Copies from and to the CPU are left out, because the simulated device has its own way for them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity import catalog
from parity.catalog.row import Row
from parity.core.case import Case
from parity.core.observer import Operators, has_number, in_backward, no_results
from parity.core.results import Raised
from parity.devices import Device, resolve
from parity.devices.setup import run_setup
from parity.engine import suite
from parity.execution import execute as ex
from parity.execution.inputs import build
from parity.generation import generate

CASES = 3


class Recording(Operators):
    """Notes the base names of the operators with a tensor on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        call = func.overloadpacket if has_number(func, args, kwargs) else func
        try:
            result = call(*args, **kwargs)
        except Exception:
            if not in_backward():
                raise
            return no_results(func)
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
        if func.namespace == "aten" and tensors and all(x.device.type not in ("cpu", "meta") for x in tensors):
            name = func.name().partition("::")[2].partition(".")[0]
            self.names.add(name.rstrip("_") if not name.startswith("__") else name)
        return result


def operators(case: Case, row: Row, device: Device) -> set[str]:
    """What one case dispatches."""
    inputs, program = build(case), ex.program(row)
    placed = ex.attempt(lambda: ex.place(inputs, device, case.under), "upload")
    if isinstance(placed, Raised) or case.refused:
        return set()
    grad = case.dtype in row.grad and case.under == "grad"
    with device.active(), Recording() as mode:
        live = ex.attempt(lambda: ex.forward(program, case, inputs, placed, grad), "run")
        if not isinstance(live, Raised) and live.leaves:
            ex.attempt(lambda: ex.backward(live, [torch.ones_like(t) for _, t in ex.differentiable(live)]), "run")
    return set(mode.names)


def dispatched(device_name: str) -> dict[str, list[str]]:
    """Row -> operators of its first cases, in float32 where it has that, else in its first dtype."""
    device, sizes = resolve(device_name), suite.profile("quick").sizes
    torch.autograd.set_multithreading_enabled(False)
    names: dict[str, list[str]] = {}
    for row in catalog.ROWS.values():
        dtype = "float32" if "float32" in row.dtypes else row.dtypes[0]
        cases = [generate.nth(row, dtype, sizes, "dispatched", k).case for k in range(CASES)]
        names[row.name] = sorted(set[str]().union(*(operators(case, row, device) for case in cases)))
    return names


if __name__ == "__main__":
    if len(sys.argv) > 3:
        run_setup(sys.argv[3])
    Path(sys.argv[2]).write_text(json.dumps(dispatched(sys.argv[1])), encoding="utf-8")
