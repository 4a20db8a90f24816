"""`parity locate FILE.py:function`: the first module and operator of a user's model that part from the CPU. `parity train`: the
first step of a training, too."""

from __future__ import annotations

import argparse
from typing import Any

from parity.assertion import compare_training, locate
from parity.assertion.models import functions
from parity.assertion.parting import plural
from parity.core.errors import ParityError, UsageError
from parity.devices import Device, load_faults, resolve
from parity.devices.setup import run_setup


def _device(o: argparse.Namespace) -> Device:
    """The device that the options name; it is told. Raises UsageError if that is the CPU."""
    import torch

    if o.setup:
        run_setup(o.setup)
    device = resolve(o.device, load_faults(o.faults) if o.faults else ())
    if device.name == "cpu":
        raise UsageError("the device is the CPU itself, which cannot part from itself; name another with --device")
    print(f"device {device.name}{' (SIMULATED: this says nothing about any hardware)' if device.simulated else ''}", flush=True)
    torch.autograd.set_multithreading_enabled(False)  # simulated devices need the backward pass on the calling thread
    return device


def run(o: argparse.Namespace) -> int:
    """Print what was located in each function: 0 if nothing parts, 1 if something does, 2 if a function cannot be run. Raises
    UsageError for a file without such functions."""
    device = _device(o)

    def located(fn: Any, *inputs: Any) -> Any:
        return locate(fn, *inputs, device=device, backward=not o.no_backward, modules=o.verbose)

    return _each(o.model, located, "located", "a model and its inputs")


def train(o: argparse.Namespace) -> int:
    """Print where each training parts; the exit codes are those of `run`."""
    device = _device(o)

    def trained(make: Any, *rest: Any) -> Any:
        if len(rest) != 1:
            raise UsageError(f"it returns {plural(1 + len(rest), 'thing')}; return two, make and the batches")
        return compare_training(make, rest[0], steps=o.steps, device=device)

    return _each(o.training, trained, "compared", "make and the batches")


def _each(place: str, ask: Any, done: str, returns: str) -> int:
    code = 0
    for name, make in functions(place, returns).items():
        try:
            fn, inputs = make()
            found = ask(fn, *inputs)
        except ParityError as e:
            print(f"{name}: not {done}: {str(e).removeprefix(name).lstrip(': ')}", flush=True)
            code = UsageError.exit_code
            continue
        print(f"{name}: {found}", flush=True)
        code = max(code, int(not found.agrees))
    return code
