"""`parity locate FILE.py:function`: the first module and operator of a user's model that part from the CPU."""

from __future__ import annotations

import argparse

from parity.assertion import locate
from parity.assertion.models import functions
from parity.core.errors import ParityError, UsageError
from parity.devices import load_faults, resolve
from parity.devices.setup import run_setup


def run(o: argparse.Namespace) -> int:
    """Print what was located in each function: 0 if nothing parts, 1 if something does, 2 if a function cannot be run. Raises
    UsageError for a file without such functions."""
    import torch

    if o.setup:
        run_setup(o.setup)
    device = resolve(o.device, load_faults(o.faults) if o.faults else ())
    if device.name == "cpu":
        raise UsageError("the device is the CPU itself, which cannot part from itself; name another with --device")
    print(f"device {device.name}{' (SIMULATED: this says nothing about any hardware)' if device.simulated else ''}", flush=True)
    torch.autograd.set_multithreading_enabled(False)  # simulated devices need the backward pass on the calling thread
    code = 0
    for name, make in functions(o.model).items():
        try:
            fn, inputs = make()
            found = locate(fn, *inputs, device=device, backward=not o.no_backward)
        except ParityError as e:
            print(f"{name}: not located: {str(e).removeprefix(name).lstrip(': ')}", flush=True)
            code = UsageError.exit_code
            continue
        print(f"{name}: {found}", flush=True)
        code = max(code, int(not found.agrees))
    return code
