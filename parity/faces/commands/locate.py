"""`parity locate`: the first module and operator of a model that diverge, and the record of a model for another machine."""

from __future__ import annotations

import argparse

from parity.core.errors import UsageError
from parity.engine.reading import read_path, read_size
from parity.faces import guarded
from parity.faces.commands.groups import add_code, add_device, add_model

HELP = "the first module and operator of a model that diverge"
ABOUT = (
    "Run a model on the device, forward and backward, each of its operators compared with the CPU's on the operands that it "
    "really got, and name the first module and operator whose own result is outside, with your line. A wrong layer blames none "
    "behind it. FUNCTION takes no parameters and returns a model or function and then its inputs. With --capture, nothing is "
    "compared: what each operator took and gave is recorded for another machine, which need not have the device. The file "
    "holds numbers and names, and nothing that is run: inputs and results, the weights if they are small, and where in your "
    "code each operator was called. With --against, such a file of another machine is compared with this CPU; --device then "
    "names a device of this machine that is compared as well. With --compile, what torch.compile makes of it is judged too, "
    "against the same truth, which shows whether the device or the compiler is wrong. Ends with 0 where nothing diverges, with "
    "1 where something does."
)
LIMIT = 64 << 20  # bytes of a tensor that a capture holds whole
SETTINGS = ("device", "setup", "faults", "effort")
OF_COMPARISONS = ("against", "compile", "output", "effort")  # what a capture has no use for
WRITTEN = (".html", ".py")  # what -o writes


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model(to, "model", "a model and its inputs")
    add_device(to, by_default="auto by default; cpu with --against, and possible with --compile")
    to.add_argument("--no-backward", action="store_true", help="leave the gradients out")
    how = "default, or full: ask the float64 truth wherever results differ by more than one rounding (slower)"
    to.add_argument("--effort", metavar="EFFORT", help=how)
    add_code(to)
    how = "judge what this file of parity locate --capture recorded on another machine, with its inputs and weights"
    to.add_argument("--against", metavar="CAPTURE", type=read_path, help=how)
    how = "also compile it with this backend of torch.compile (aot_eager, inductor ...), and say which code is wrong"
    to.add_argument("--compile", metavar="BACKEND", help=how)
    how = (
        "write to this file: everything with the tree of all modules (report.html), or the call of the first operator that "
        "diverges as a script that needs torch only, to report it (call.py); repeatable"
    )
    to.add_argument("-o", "--output", action="append", default=[], type=read_path, metavar="FILE", help=how)
    to.add_argument("--capture", metavar="FILE", type=read_path, help="record the model in this file, and compare nothing")
    how = "with --capture: size of the tensors that are kept whole (64M by default), of others sketches are kept"
    to.add_argument("--limit", metavar="SIZE", type=read_size, help=how)


def run(o: argparse.Namespace) -> int:
    """Locate or record, in a process that the device may end; the exit code."""
    if o.capture and (other := next((name for name in OF_COMPARISONS if getattr(o, name)), "")):
        raise UsageError(f"--capture records and compares nothing; leave --{other} out")
    if o.limit and not o.capture:
        raise UsageError("--limit is of a capture: parity locate FILE.py --capture FILE --limit SIZE")
    if odd := next((path for path in o.output if path.suffix not in WRITTEN), None):
        raise UsageError(
            f"-o {odd}: give a page, such as report.html, or a script, such as call.py; --capture writes a capture"
        )
    if not guarded.inside():
        return guarded.run(o)
    from parity.faces import locating  # it loads torch

    return locating.record(o) if o.capture else locating.run(o)
