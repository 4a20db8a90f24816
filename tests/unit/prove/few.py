"""A few faults for the scoreboard's own tests: as FAULTS without a class, as BUGS with one."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from parity.devices import Call, Fault
from parity.zoo.bug import Bug


def larger(call: Call) -> Any:
    """A wrong value everywhere."""
    return call.run() * 1.05


def same(call: Call) -> Any:
    """At work, and without effect."""
    return call.run()


def refused(call: Call) -> Any:
    """The op is not there."""
    raise NotImplementedError("The operator 'aten::erfinv' is not currently implemented for the MPS device.")


def broken(call: Call) -> Any:
    """An effect that was written wrongly."""
    raise IndexError("index 7 is out of range")


def abort(call: Call) -> Any:
    """The process ends."""
    os.abort()


def hang(call: Call) -> Any:
    """Nothing comes back."""
    while True:
        time.sleep(1)


def nothing(call: Call) -> Any:
    """No write."""
    return None


def plane(call: Call) -> bool:
    """Two dimensions."""
    return call.operands[0].dim() == 2


def eleven(call: Call) -> bool:
    """A rank that no case has."""
    return call.operands[0].dim() == 11


def offset(call: Call) -> bool:
    """A view of three dimensions that begins inside its memory."""
    return call.operands[0].storage_offset() > 0 and call.operands[0].dim() == 3


def strided(call: Call) -> bool:
    """In place, on a view with gaps or another order."""
    return bool(call.outs) and call.outs[0] is call.args[0] and not call.outs[0].is_contiguous()


WRONG = Fault("wrong", ("tanh",), larger)
GRADIENT = Fault("gradient", ("sigmoid_backward",), larger, plane)
NO_WRITE = Fault("no-write", ("mul_",), nothing, strided, level="function")
REFUSED = Fault("refused", ("erfinv",), refused)
ABORT = Fault("abort", ("cosh",), abort, plane)
HANG = Fault("hang", ("sinh",), hang, plane)
SHIFTED = Fault("shifted", ("neg",), larger, offset)
NEVER = Fault("never", ("sin",), larger, eleven)
UNSEEN = Fault("unseen", ("ceil",), same, plane)
BROKEN = Fault("broken", ("floor",), broken, plane)
DOUBLED = Fault("doubled", ("upload",), lambda call: call.run() * 2, plane, level="transfer")
FAULTS = [WRONG, GRADIENT, NO_WRITE, REFUSED, ABORT, HANG, SHIFTED, NEVER, UNSEEN, DOUBLED]


def trigger(device: str) -> torch.Tensor:
    """The case that shows it."""
    return torch.ones(2, 2, device=device)


def bug(fault: Fault, kind: str, *triggers: str, rows: tuple[str, ...] = ()) -> Bug:
    """A bug around a fault."""
    return Bug(fault=fault, kind=kind, triggers=triggers, trigger=trigger, neighbour=trigger, rows=rows)


BUGS = (
    bug(WRONG, "silent_wrong_forward", "none", rows=("tanh",)),
    bug(NO_WRITE, "silent_noop", "layout", "inplace"),
    bug(REFUSED, "unsupported_op", "none"),
    bug(BROKEN, "silent_wrong_forward", "rank"),
    bug(NEVER, "silent_wrong_forward", "rank", rows=("sin", "opinfo:sin")),
)
