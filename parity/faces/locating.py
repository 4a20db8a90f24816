"""`parity locate FILE.py:function`: the first module and operator of a user's model that part from the CPU, here or in a
capture, and `parity capture`, which makes one."""

from __future__ import annotations

import argparse

from parity.assertion import capture, locate
from parity.assertion.models import functions
from parity.core.errors import ParityError, UsageError
from parity.devices import Device, load_faults, resolve
from parity.devices.setup import run_setup
from parity.faces.files import writable


def run(o: argparse.Namespace) -> int:
    """Print what was located in each function: 0 if nothing parts, 1 if something does, 2 if a function cannot be run. Raises
    UsageError for a file without such functions, and for --against with more than one."""
    device = _device(o, o.device or ("cpu" if o.against else "auto"))
    if device.name == "cpu" and not o.against:
        raise UsageError("the device is the CPU itself, which cannot part from itself; name another with --device")
    found = functions(o.model)
    if o.against and len(found) > 1:
        raise UsageError(_one(o.model, list(found), "a capture is of one function"))
    code = 0
    for name, make in found.items():
        try:
            fn, inputs = make()
            told = locate(fn, *inputs, device=device, backward=not o.no_backward, against=o.against)
        except ParityError as e:
            if o.against:
                raise
            print(f"{name}: not located: {str(e).removeprefix(name).lstrip(': ')}", flush=True)
            code = UsageError.exit_code
            continue
        print(f"{name}: {told}", flush=True)
        code = max(code, int(not told.agrees))
    return code


def record(o: argparse.Namespace) -> int:
    """Write the capture of a function: 0. Raises UsageError for a file without one, or with more than one."""
    writable(o.output.parent, "-o")
    device = _device(o, o.device)
    found = functions(o.model)
    if len(found) > 1:
        raise UsageError(_one(o.model, list(found), "a capture is of one function"))
    ((name, make),) = found.items()
    fn, inputs = make()
    made = capture(fn, *inputs, path=o.output, device=device, backward=not o.no_backward, limit=o.limit)
    print(f"{name}: {made}")
    print(f"compare it on another machine: parity locate {o.model} --against {o.output}")
    return 0


def _one(model: str, names: list[str], why: str) -> str:
    first = names[0].rpartition(":")[2]
    return f"{why}, and {model} has {len(names)}; name one: {model}:{first}"


def _device(o: argparse.Namespace, name: str) -> Device:
    """The device that was asked for, and a line that says so."""
    import torch

    if o.setup:
        run_setup(o.setup)
    device = resolve(name, load_faults(o.faults) if o.faults else ())
    torch.autograd.set_multithreading_enabled(False)  # simulated devices need the backward pass on the calling thread
    if name == "cpu" and o.command == "locate":
        print("judged on the CPU of this machine", flush=True)
        return device
    print(f"device {device.name}{' (SIMULATED: this says nothing about any hardware)' if device.simulated else ''}", flush=True)
    return device
