"""`parity doctor`: a device examined, or the most revealing checks of one in an archive."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

from parity.core import machine
from parity.core.devices import conclusion, exit_code
from parity.core.errors import UsageError
from parity.engine.doctor import examined
from parity.engine.options import RunOptions
from parity.faces.commands import prove
from parity.faces.commands.groups import add_code, add_device, add_output, as_run, take_rest
from parity.faces.files import located

HELP = "examine a device"
ABOUT = """\
Examine a device and say whether to trust it: known answers, memory, dtypes, subnormals, precision in effect, virtual or real
machine, driver, variables that change numbers. Ends with 0 where it is healthy, with 1 where it is suspect (a run goes on under
a banner), with 4 where it is unusable or absent. Every run begins with it.

--archive, for a device that nobody has tried: examines it, measures what graphs and calls take, runs the cases of the bugs that
were reported for MPS, compares some ops of every family, and counts the operators that were reached. It takes patterns, --time
(10m by default, for all of it) and -n as parity run does. It goes on after whatever dies, and writes what it has after Ctrl-C,
too. The archive holds plain texts, without your names, folders and variables (but for PYTORCH_...); parity report ARCHIVE
prints what one holds. parity doctor ARCHIVE reads it back: what was measured there takes the place of the table's costs, and a
run on that machine is modelled by it, of the patterns and the profile that are named with it (as parity prove cost does)."""
SETTINGS = ("device", "setup", "faults")
OF_RUNS = ("op", "time", "workers")  # what an archive takes of the options of a run


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_device(to)
    add_code(to)
    to.add_argument("--archive", action="store_true", help="the most revealing checks, in one archive to send to others")
    add_output(to, "with --archive: the file to write (parity-archive-DATE-TIME.zip by default)")
    take_rest(to, "asked", options=True)


def run(o: argparse.Namespace) -> int:
    """Examine the device, or make an archive; the exit code."""
    of_here = {"device": o.device, "setup": o.setup or (o.faults if "faults" not in o.settings else "")}
    o.device = o.device or "auto"
    if o.archive:
        return _archive(o)
    if any(word.endswith(".zip") for word in o.asked) and not (o.json or o.output):
        for key in (key for key, value in of_here.items() if value and key not in o.settings):
            raise UsageError(f"an archive is of its own machine, and nothing of this one is examined; leave --{key} out")
        return prove.run(argparse.Namespace(action="cost", asked=o.asked, verbose=False))
    if given := (*o.asked, *(["--output"] if o.output else [])):
        raise UsageError(f"'{given[0]}' goes with --archive: parity doctor --archive; a device is named by --device")
    from parity.report import archive as doctor_report

    began = time.monotonic()
    found = examined(o.device, o.faults, o.setup)
    o.answer, o.verdict = doctor_report.doctor_answer(found), conclusion(found["verdict"])
    print(doctor_report.doctor_text(found, time.monotonic() - began))
    return exit_code(found["verdict"])


def _archive(o: argparse.Namespace) -> int:
    from parity.faces import archive  # few ever need it

    if o.json:
        raise UsageError("--archive writes an archive; leave --json out")
    asked, plain = as_run(o.asked), RunOptions()
    if other := next((n for n in RunOptions.__slots__ if n not in OF_RUNS and getattr(asked, n) != getattr(plain, n)), ""):
        raise UsageError(f"--archive takes patterns, --time and -n of parity run, and not --{other.replace('_', '-')}")
    path = o.output or Path(f"parity-archive-{datetime.now(UTC):%Y%m%d-%H%M%S}.zip")
    minutes, workers = asked.time / 60 if asked.time else archive.MINUTES, asked.workers or machine.default_workers()
    faults = located(o.faults) if o.faults else ""
    return archive.written(
        archive.Asked(o.device, path, minutes, faults, o.setup or "", asked.op, workers), lambda text: print(text, flush=True)
    )
