"""Find out who caused a death: the device or the CPU. A process that dies at stage `device` died of the device's work. At any
other stage that is no proof, because heap corruption and asynchronous kernels fail later. So the case is run again in new
processes, several times each with the device and without it.

A death that recurs every time without the device is the CPU's. One that recurs only with the device is the device's. One that
does not recur stays unexplained, and still counts against the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.core import processes
from parity.runs import journal
from parity.runs.rows import CPU, DEVICE, UNKNOWN

TRIES = 3  # of each side
STARTING = 60.0  # seconds that a process may take to start
OUTSIDERS = (signal.SIGKILL, signal.SIGTERM) if hasattr(signal, "SIGKILL") else (signal.SIGTERM,)
KILLS = tuple(s.name for s in OUTSIDERS)


@dataclass(frozen=True, slots=True)
class How:
    """How to run a case again. faults: a file or a module; setup: a file; explain: also print why each result was judged so;
    fail_on_metadata: other strides than the CPU's are a finding also where torch promises none."""

    device: str = ""
    faults: str | None = None
    setup: str | None = None
    explain: bool = False
    fail_on_metadata: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process that ran one case. code: its exit code; died: how it died, empty if it finished; hung: whether it was ended
    at its time limit; stage: the stage it was in, empty if no case had begun."""

    code: int
    died: str = ""
    hung: bool = False
    stage: str = ""

    @property
    def proves(self) -> bool:
        """Whether the case itself ended the process: not a kill from outside, and not an error before the case began."""
        return bool(self.died) and not self.hung and bool(self.stage) and self.died not in KILLS


def attempt(case: str, how: How, seconds: float, quiet: bool = False) -> Attempt:
    """Run a case in a new process. quiet: discard its output."""
    with tempfile.TemporaryDirectory(prefix="parity-replay-") as folder:
        notes, nowhere = Path(folder, "journal"), subprocess.DEVNULL if quiet else None
        with processes.isolated():  # in its own session, so that Ctrl-C reaches only this process, which then ends it
            process = subprocess.Popen(_command(notes, case, how), stdout=nowhere, stderr=nowhere, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Attempt(1, f"no answer within {seconds:.0f} s", True, _stage(notes))
        finally:
            end(process)
        ended = notes.with_suffix(".code")
        if code >= 0 and ended.exists() and ended.read_text() == str(code):
            return Attempt(code)
        why = notes.with_suffix(".lost")
        return Attempt(1, why.read_text() if why.exists() else word(code), False, _stage(notes))


def end(process: subprocess.Popen[Any]) -> None:
    """End the process and all its children."""
    try:
        os.killpg(process.pid, OUTSIDERS[0])
    except (AttributeError, OSError):  # no killpg on this system, or the process has ended
        process.kill()
    process.wait()


def _stage(notes: Path) -> str:
    entry = journal.read(notes)
    return entry.stage if entry is not None and entry.running else ""


def _command(notes: Path, case: str, how: How) -> Sequence[str]:
    options = [*(("--faults", how.faults) if how.faults else ()), *(("--setup", how.setup) if how.setup else ())]
    options += ["--explain"] if how.explain else []
    options += ["--fail-on-metadata"] if how.fail_on_metadata else []
    return processes.command("parity.report.replay", *options, "--", str(notes), how.device or "auto", case)


def word(code: int | None) -> str:
    """How a process ended: the name of the signal, or the exit code."""
    if code is None:
        return "unknown"
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def held(case: str, how: How, seconds: float, hung: bool = False) -> tuple[str, str]:
    """Who caused the death of a case (one of `rows.BLAMES`), and the evidence in words. seconds: what the case may take; hung:
    whether it hung instead of dying."""
    alone = How("cpu", None, how.setup)
    with processes.isolated(), ThreadPoolExecutor(max_workers=TRIES) as pool:
        without, both = ([*pool.map(lambda h: attempt(case, h, STARTING + seconds, True), TRIES * (h,))] for h in (alone, how))
    proofs = {a.died for a in without if a.proves or (a.hung and hung)}
    if len(proofs) == 1 and all(a.proves or (a.hung and hung) for a in without):
        return CPU, f"it comes on the CPU alone, {TRIES} of {TRIES} times ({without[0].died})"
    cpu, device = ([a.died for a in part if a.died] for part in (without, both))
    if device:
        less = f", on the CPU alone {len(cpu)} of {TRIES} times" if cpu else ", and never on the CPU alone"
        return DEVICE, f"it comes with the device {len(device)} of {TRIES} times ({device[0]}){less}"
    return UNKNOWN, f"it did not come again in {TRIES} tries with the device, nor in {TRIES} on the CPU alone"
