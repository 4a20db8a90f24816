"""`parity prove trace`: every call that a case makes on a simulated device, as a fault would see it."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from parity.core import notation
from parity.core.errors import CaseError
from parity.core.results import Raised
from parity.devices import Call, Fault, resolve
from parity.devices.sim.faults import ANY, LEVELS
from parity.engine import suite
from parity.execution import execute as ex
from parity.execution.inputs import build, torch_word

ATEN_INSIDE = "aten."  # how functions of torch's own Python code are called
# Functions that parity and torch call around the case, and that compute nothing.
ATEN_QUIET = frozenset(
    ("detach", "requires_grad_", "is_floating_point", "is_complex", "stride", "is_neg", "is_conj", "get_device", "ones_like")
    + ("data_ptr", "storage_offset", "untyped_storage", "_is_zerotensor", "to")
)


def trace(o: argparse.Namespace) -> int:
    """Print the calls of a case, forward and backward, in their order. Raises CaseError, and what
    `resolve` raises."""
    if "(" not in o.case:
        raise CaseError(f"'{o.case}' is not a case; one looks like max_pool2d(float32[1, 3, 8, 8], 3)")
    case = notation.parse(o.case)
    program = ex.program(suite.row(case.op))
    said: list[str] = []

    def show(call: Call) -> Any:
        inner = call.op.startswith(ATEN_INSIDE) or call.op.rpartition(".")[2] in ATEN_QUIET
        if call.level != "function" or not inner:
            said.append(_line(call))
        return call.run()

    faults = [Fault(f"trace-{level}", (ANY,), show, level=level) for level in LEVELS if level != "allocation"]
    device = resolve(o.device or "sim", tuple(faults))
    inputs = build(case)
    placed: list[ex.Placed] = []
    live: list[ex.Live] = []

    def upload() -> None:
        placed.append(ex.place(inputs, device, case.under))

    def forward() -> None:
        live.append(ex.forward(program, case, inputs, placed[0], True, torch_word))

    def backward() -> None:
        outs = ex.differentiable(live[0])
        if outs and live[0].leaves:
            fed = [torch.ones_like(t) for _, t in outs]
            said.clear()
            ex.backward(live[0], fed)

    code = 0
    with device.active():
        for name, step in (("operands", upload), ("forward", forward), ("backward", backward)):
            said.clear()
            got = ex.attempt(step, "run")
            if said or isinstance(got, Raised):
                print(name)
                print("\n".join(f"  {line}" for line in said))
            if isinstance(got, Raised):
                print(f"  raised {got.type}: {got.message}")
                code = 1
                break
    return code


def _line(call: Call) -> str:
    """One call: level, op, its arguments by name, and its destinations."""

    def said(value: Any) -> str:
        if isinstance(value, Tensor):
            where = f" strides {list(value.stride())}" if not value.is_contiguous() else ""
            where += f" offset {value.storage_offset()}" if value.storage_offset() else ""
            base = call.base_shape(value) if call.level in ("kernel", "function") else tuple(value.shape)
            where += f" of {list(base)}" if base != tuple(value.shape) else ""
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{where}"
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return f"[{', '.join(map(said, value))}]"
        return str(value)

    names = call.names
    parts = [f"{names[k]}={said(a)}" if k < len(names) else said(a) for k, a in enumerate(call.args)]
    parts += [f"{k}={said(v)}" for k, v in call.kwargs.items()]
    word = "" if call.level == "transfer" else f"{call.destination} "
    into = " -> in place" if call.is_in_place else f" -> {word}{', '.join(map(said, call.outs))}" if call.outs else ""
    return f"{call.level:<9} {call.op}({', '.join(parts)}){into}"
