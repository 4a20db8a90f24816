"""Find out who caused a death: the device or the CPU. A process that dies at stage `device` died of the device's work. At any
other stage that is no proof, because heap corruption and asynchronous kernels fail later. So the case is run again in new
processes, several times each with the device and without it.

A death that recurs every time without the device is the CPU's. One that recurs only with the device is the device's. One that
does not recur stays unexplained, and still counts against the run. A kill from outside proves nothing of one process, but where
it comes each time, with the device and without it, the case takes more memory than there is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.core import processes
from parity.core.results import Json
from parity.engine import journal
from parity.store.rows import CPU, DEVICE, UNKNOWN

TRIES = 3  # of each side
STARTING = 60.0  # seconds that a process may take to start
TICK = 0.2  # seconds between two looks at whether the inquest is to end
OUTSIDERS = (signal.SIGKILL, signal.SIGTERM) if hasattr(signal, "SIGKILL") else (signal.SIGTERM,)
KILLS = tuple(s.name for s in OUTSIDERS)
HANG = "hang"
PENDING, NOT_DONE = "being looked into", "not looked into: the run ended before"


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


def surroundings() -> dict[str, str]:
    """The environment of a process that runs a case again. Taken in the main thread, because it changes the environment."""
    with processes.isolated():
        return dict(os.environ)


def attempt(
    case: str, how: How, seconds: float, quiet: bool = False,
    environment: Mapping[str, str] | None = None, over: threading.Event | None = None,
) -> Attempt:  # fmt: skip
    """Run a case in a new process. quiet: discard its output; environment: the `surroundings` if this is not the main thread;
    over: set when the answer is no longer wanted: the process is ended."""
    environment = surroundings() if environment is None else environment
    if over is not None and over.is_set():
        return Attempt(1)
    with tempfile.TemporaryDirectory(prefix="parity-replay-") as folder:
        notes, nowhere = Path(folder, "journal"), subprocess.DEVNULL if quiet else None
        process = subprocess.Popen(  # in its own session, so that Ctrl-C reaches only this process, which then ends it
            _command(notes, case, how), stdout=nowhere, stderr=nowhere, start_new_session=True, env=environment
        )
        try:
            code = _exit_code(process, seconds, over)
        finally:
            end(process)
        if code is None:
            return Attempt(1, f"no answer within {seconds:.0f} s", True, _stage(notes))
        ended = notes.with_suffix(".code")
        if code >= 0 and ended.exists() and ended.read_text() == str(code):
            return Attempt(code)
        why = notes.with_suffix(".lost")
        return Attempt(1, why.read_text() if why.exists() else word(code), False, _stage(notes))


def _exit_code(process: subprocess.Popen[Any], seconds: float, over: threading.Event | None) -> int | None:
    """The exit code of a process; None if it has none after so many seconds, or when `over` is set."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not (over is not None and over.is_set()):
        try:
            return process.wait(left if over is None else min(TICK, left))
        except subprocess.TimeoutExpired:
            continue
    return None


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
    return processes.command("parity.faces.replaying", *options, "--", str(notes), how.device or "auto", case)


def word(code: int | None) -> str:
    """How a process ended: the name of the signal, or the exit code."""
    if code is None:
        return "unknown"
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def held(
    case: str, how: How, seconds: float, died: str = "",
    environment: Mapping[str, str] | None = None, over: threading.Event | None = None,
) -> tuple[str, str]:  # fmt: skip
    """Who caused the death of a case (one of `rows.BLAMES`), and the evidence in words. seconds: what the case may take; died:
    its signal, or `HANG`; environment, over: as for `attempt`."""
    alone, over = How("cpu", None, how.setup), threading.Event() if over is None else over
    environment = surroundings() if environment is None else environment

    def thrice(how: How) -> list[Attempt]:
        return [*pool.map(lambda _: attempt(case, how, STARTING + seconds, True, environment, over), range(TRIES))]

    def ends(a: Attempt) -> bool:
        return a.proves or (a.hung and died == HANG) or (bool(a.stage) and a.died in KILLS)

    with ThreadPoolExecutor(max_workers=1 if died in KILLS else TRIES) as pool:  # several at a time would take more memory yet
        try:
            without, both = thrice(alone), thrice(how)
        except BaseException:  # Ctrl-C: the threads must not go on
            over.set()
            raise
    if over.is_set():
        return UNKNOWN, NOT_DONE
    if len({a.died for a in without}) == 1 and all(map(ends, without)):
        said = f"it comes on the CPU alone, {TRIES} of {TRIES} times ({without[0].died})"
        if without[0].died not in KILLS:
            return CPU, said
        if all(map(ends, both)):
            return CPU, f"{said}, and with the device as often: it takes more memory than this machine has"
    cpu, device = ([a.died for a in part if a.died] for part in (without, both))
    if device:
        less = f", on the CPU alone {len(cpu)} of {TRIES} times" if cpu else ", and never on the CPU alone"
        return DEVICE, f"it comes with the device {len(device)} of {TRIES} times ({device[0]}){less}"
    return UNKNOWN, f"it was not reproduced in {TRIES} tries with the device, nor in {TRIES} on the CPU alone"


class Inquests:
    """Inquests one after another in a thread, while the run goes on: each takes as long as starting six processes, and that of
    a hang twice what the case may take besides."""

    def __init__(self) -> None:
        self._pool, self._over = ThreadPoolExecutor(1), threading.Event()
        self._begun: deque[tuple[Json, Future[tuple[str, str]]]] = deque()

    def begin(self, row: Json, how: How, allowed: float) -> None:
        """Find out who caused a death. row: as `Survival` has it; allowed: seconds that its case may take."""
        asked = row["case"], how, allowed, HANG if row["how"] == HANG else row["signal"], surroundings(), self._over
        self._begun.append((row, self._pool.submit(held, *asked)))

    @property
    def left(self) -> int:
        """How many were not given yet."""
        return len(self._begun)

    def done(self) -> Iterator[tuple[Json, str, str]]:
        """(row, blame, evidence) of those that have ended and were not given before."""
        while self._begun and self._begun[0][1].done():
            row, answer = self._begun.popleft()
            yield row, *answer.result()

    def rest(self, seconds: float) -> Iterator[tuple[Json, str, str]]:
        """Wait for all others, for so many seconds at most, and give them as `done`. Those that did not end in that time, or
        before Ctrl-C, blame nobody."""
        try:
            wait([answer for _, answer in self._begun], timeout=seconds)
        finally:
            self._over.set()
            self._pool.shutdown(wait=True)
        yield from self.done()
