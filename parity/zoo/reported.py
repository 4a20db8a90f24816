"""The cases that were reported in public, run as they are on a device: which of the zoo's bugs does this one have?

`python -m parity.zoo.reported DEVICE FILE [--faults FILE] [--setup FILE] [--start N]` appends two JSON lines for each bug from
the N-th on: that it begins, and what came of it. A case may end the process: then the first line stands alone, and the next
process starts after that case.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.core.errors import ParityError
from parity.devices import Device, load_faults, resolve
from parity.devices.fallbacks import listening
from parity.devices.setup import run_setup
from parity.zoo import BUGS
from parity.zoo.bug import Bug

HUNG = 60  # seconds after which a case ends its process
SAME, DIFFERS, RAISED, FELL_BACK, RANDOM, VOID = "same", "differs", "raised", "fell back", "random", "void"
DIED = "died"  # of a case that ended its process, or was ended for not coming back


def outcome(bug: Bug, device: Device) -> tuple[str, str]:
    """What the bug's case does on a device, and how: one of the words above. Results are compared with the CPU's by
    `torch.testing.assert_close`; those of random numbers are not."""
    if bug.kind == "rng":
        return _without_numbers(bug.trigger, device)
    try:
        right = _values(bug.trigger, "cpu")
    except Exception as e:  # another version of torch may refuse what was reported with this one
        return VOID, f"the CPU raises {_said(e)}"
    notes: list[str] = []
    try:
        with device.active(), listening(notes):
            there = _values(bug.trigger, str(device.torch_device))
            device.synchronize()
    except Exception as e:  # whatever a backend raises is the outcome
        return RAISED, _said(e)
    if difference := _difference(there, right):
        return DIFFERS, difference
    return (FELL_BACK, ", ".join(notes)) if notes else (SAME, "")


def _without_numbers(case: Callable[[str], object], device: Device) -> tuple[str, str]:
    try:
        with device.active(), listening([]):
            _values(case, str(device.torch_device))
    except Exception as e:  # whatever a backend raises is the outcome
        return RAISED, _said(e)
    return RANDOM, ""


def _values(case: Callable[[str], object], device: str) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return tuple(v.detach().cpu().clone() if isinstance(v, Tensor) else v for v in tree_leaves(case(device)))


def _difference(there: Sequence[Any], right: Sequence[Any]) -> str:
    """In one line; empty where there is none. A NaN equals a NaN."""
    if len(there) != len(right):
        return f"{len(there)} results instead of {len(right)}"
    for k, (a, b) in enumerate(zip(there, right)):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            try:
                torch.testing.assert_close(a, b, equal_nan=True)
            except AssertionError as e:
                return f"result {k}: {' '.join(str(e).split())[:300]}"
        elif type(a) is not type(b) or (a != b and a == a):
            return f"result {k}: {a!r} instead of {b!r}"[:300]
    return ""


def _said(e: BaseException) -> str:
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"


def _write(out: IO[str], **record: object) -> None:
    out.write(json.dumps(record) + "\n")
    out.flush()


def _leave(number: int, frame: FrameType | None) -> None:
    """At once: an exception would be lost in a kernel that is written in Python. What was written is on the disk."""
    os._exit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; 0 when all are through, 2 or 4 for what a person has to mend."""
    parser = argparse.ArgumentParser(prog="python -m parity.zoo.reported")
    parser.add_argument("device")
    parser.add_argument("file", type=Path)
    parser.add_argument("--faults", default=None)
    parser.add_argument("--setup", default=None)
    parser.add_argument("--start", type=int, default=0)
    o = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, _leave)
    try:
        if o.setup:
            run_setup(o.setup)
        device = resolve(o.device, load_faults(o.faults) if o.faults else ())
    except ParityError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    with o.file.open("a", encoding="utf-8") as out:
        for k, bug in enumerate(BUGS[o.start :], o.start):
            _write(out, begins=bug.fault.id, ordinal=k)
            faulthandler.dump_traceback_later(HUNG, exit=True)
            state, how = outcome(bug, device)
            faulthandler.cancel_dump_traceback_later()
            _write(out, id=bug.fault.id, ordinal=k, state=state, how=how, kind=bug.kind, source=bug.fault.source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
