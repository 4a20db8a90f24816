"""The first module and operator of a user's model that diverge from the CPU, here or in a capture, for `parity locate`, which
also makes one; and the first step of a training, for `parity train`."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from parity.comparing import meter
from parity.comparing.comparison import effort_of
from parity.comparing.models import Maker, functions
from parity.core import outputs
from parity.core.errors import ParityError, UsageError
from parity.core.status import Conclusion
from parity.devices import Device, load_faults, resolve
from parity.devices.setup import run_setup
from parity.faces.commands.locate import LIMIT
from parity.locating.asserting import locate
from parity.locating.capturing import capture
from parity.locating.located import plural
from parity.report.answers import Asked, Compared, Located, Recorded
from parity.report.output import last_line
from parity.training.making import standard
from parity.training.train import compare_training

ITSELF = "the device is the CPU itself, which cannot diverge from itself; name another with --device"


def run(o: argparse.Namespace) -> int:
    """Print what was located in each function: 0 if nothing diverges, 1 if something does, 2 if a function cannot be run.
    Raises UsageError for a file without such functions, and for --against with more than one."""
    effort = effort_of(o.effort or "default")
    device = _device(o, o.device or ("cpu" if o.against else "auto"))
    if device.name == "cpu" and not o.against and not o.compile:
        raise UsageError(ITSELF)
    if o.against:
        _one(o)

    def located(fn: Any, *inputs: Any, **kwargs: Any) -> Any:
        modules = o.verbose or bool(o.output)
        how = {"modules": modules, "times": o.verbose, "against": o.against, "compile": o.compile, "effort": effort}
        return locate(fn, *inputs, device=device, backward=not o.no_backward, **how, **kwargs)

    found: dict[str, Any] = {}
    made = functions(o.model, given=o.input)
    code = _each(o, made, located, "located", bool(o.against), found)
    for path in o.output if found else ():
        if path.suffix == ".html":
            from parity.report.located import page

            conclusion = Conclusion.of(code) if all(one.agrees for one in found.values()) else Conclusion.FAIL
            outputs.write(path, page(found, conclusion))
            print(f"written to {path}")
        else:
            _write_script(path, found, device.name)
    return code


def _write_script(path: Path, found: Mapping[str, Any], device: str) -> None:
    """The call of the first operator that diverges as a script, or a line that says why there is none."""
    from parity.report.script import Unwritable, call_script

    first = next((f.first for f in found.values() if f.first is not None), None)
    if first is None:
        print("no script: no operator diverges")
        return
    try:
        outputs.write(path, call_script(first, device))
        print(f"the call of {first.operator}, for a report: python {path}")
    except Unwritable as e:
        print(f"no script: {e}")


def record(o: argparse.Namespace) -> int:
    """Write the capture of a function: 0. Raises UsageError for a file without one, or with more than one."""
    device = _device(o, o.device or "auto")
    name, make = _one(o)
    fn, inputs, kwargs = make()
    made = capture(fn, *inputs, path=o.capture, device=device, backward=not o.no_backward, limit=o.limit or LIMIT, **kwargs)
    o.answer = Recorded(name, str(o.capture), str(made))
    print(f"{name}: {made}")
    given = "".join(f" --input {shlex.quote(i)}" for i in o.input)
    print(f"compare it on another machine: parity locate {shlex.quote(o.model)}{given} --against {o.capture}")
    return 0


def train(o: argparse.Namespace) -> int:
    """Print where each training diverges; the exit codes are those of `run`."""
    device = _device(o, o.device or "auto")
    if device.name == "cpu":
        raise UsageError(ITSELF)

    def trained(make: Any, *rest: Any, **kwargs: Any) -> Any:
        batches: Any = rest[0] if rest else ()
        if isinstance(make, nn.Module):
            found = standard(make, rest, kwargs)
            print(f"{type(make).__name__}: {found.said}", flush=True)
            make, batches = found.make, found.batches
        elif rest and all(isinstance(x, Tensor) for x in rest):
            raise UsageError(
                "it returns a function and its inputs, which parity locate, audit and run take; parity train takes a model, or "
                "make and the batches (parity train --help)"
            )
        elif len(rest) != 1:
            raise UsageError(f"it returns {plural(1 + len(rest), 'thing')}; return two, make and the batches")
        return compare_training(make, batches, steps=o.steps, device=device)

    return _each(o, functions(o.training, "make and the batches", o.input), trained, "compared")


def _each(
    o: argparse.Namespace, made: Mapping[str, Maker], ask: Any, done: str, alone: bool = False,
    answers: dict[str, Any] | None = None,
) -> int:  # fmt: skip
    """Ask for each function of a file, and print the verdict. alone: there is one, whose error is the command's. answers: where
    they are kept."""
    began, code, asked = time.monotonic(), 0, list[Asked]()
    diverging: dict[str, str] = {}  # the next command of each function that diverges
    for name, make in made.items():
        try:
            fn, inputs, kwargs = make()
            print(f"{name}: {make.said}\n" if make.said else "", end="", flush=True)
            with meter.shown():
                found = ask(fn, *inputs, **kwargs)
        except ParityError as e:
            if alone:
                raise
            why = f"not {done}: {str(e).removeprefix(name).lstrip(': ')}"
            print(f"{name}: {why}", flush=True)
            asked.append(Asked(name, False, "", why))
            code = UsageError.exit_code
            continue
        following = getattr(found, "next", "")
        text = [line for line in f"{name}: {found}".splitlines() if not following or line != f"next: {following}"]
        print("\n".join(text), flush=True)
        diverging |= {} if found.agrees else {name: following}
        asked.append(_asked(name, found))
        if answers is not None:
            answers[name] = found
        code = max(code, int(not found.agrees))
    said = f"{', '.join(diverging)} diverges" if len(diverging) == 1 else f"{len(diverging)} of {len(made)} functions diverge"
    if not diverging:
        agree = next(iter(made)) + " agrees" if len(made) == 1 else f"all {len(made)} functions agree"
        said = agree if not code else f"not every function was {done}"
    following = next(iter(diverging.values()), "")
    conclusion = Conclusion.FAIL if diverging else Conclusion.of(code)
    o.answer, o.verdict = Located(tuple(asked)), conclusion
    print(last_line(conclusion, said, time.monotonic() - began, following=following), flush=True)
    return code


def _asked(name: str, found: Any) -> Asked:
    """What was found in a function, for other programs."""
    table = tuple(Compared(x.where, x.status, x.error, x.reason) for x in found.table)
    following, workaround = (getattr(found, field, "") for field in ("next", "workaround"))
    return Asked(
        name, found.agrees, found.headline, "", found.subject, table, (*str(found).splitlines(),), following, workaround
    )


def _one(o: argparse.Namespace) -> tuple[str, Maker]:
    """The name and the function of a file with a single one. Raises UsageError."""
    found = functions(o.model, given=o.input)
    if len(found) > 1:
        first = next(iter(found)).rpartition(":")[2]
        raise UsageError(f"a capture is of one function, and {o.model} has {len(found)}; name one: {o.model}:{first}")
    return next(iter(found.items()))


def _device(o: argparse.Namespace, name: str) -> Device:
    """The device that was asked for, and a line that says so."""
    import torch

    if o.setup:
        run_setup(o.setup)
    device = resolve(name, load_faults(o.faults) if o.faults else ())
    torch.autograd.set_multithreading_enabled(False)  # simulated devices need the backward pass on the calling thread
    recorded = o.command == "locate" and o.capture
    if name == "cpu" and o.command == "locate" and not recorded:
        print("judged on the CPU of this machine", flush=True)
    elif device.name != "cpu" or recorded:
        simulated = " (SIMULATED: this says nothing about any hardware)" if device.simulated else ""
        print(f"device {device.name}{simulated}", flush=True)
    return device
