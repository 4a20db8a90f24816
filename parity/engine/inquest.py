"""Find out who caused a death: the device or the CPU. A process that dies at stage `device` died of the device's work. At any
other stage that is no proof, because heap corruption and asynchronous kernels fail later. So the case is run again in new
processes, several times each without the device and, unless that settles it, with it.

A death that recurs every time without the device is the CPU's. One that recurs only with the device is the device's. One that
does not recur stays unexplained, and still counts against the run. A kill from outside proves nothing of one process, but where
it comes each time, with the device and without it, the case takes more memory than there is.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace

from parity.core.results import Json, Record
from parity.engine.child import KILLS, QUIET, SHOWN, Child, Limit, Watch, surroundings
from parity.engine.journal import COMPARING, JournalEntry
from parity.store import run_file
from parity.store.rows import CPU, DEVICE, UNKNOWN

TRIES = 3  # of each side
STARTING = 60.0  # seconds that a process may take to start
HUNG_AGAIN = 2  # times as long as one stage of a case may take, a try at one that hung is waited for, but that compares
REPLAY = "parity.faces.replaying.job"
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
    at its time limit; stage: the stage it was in, empty if no case had begun; records: what was measured; early: whether that
    stage had not yet taken what a run lets it take."""

    code: int
    died: str = ""
    hung: bool = False
    stage: str = ""
    records: tuple[Record, ...] = ()
    early: bool = False

    @property
    def proves(self) -> bool:
        """Whether the case itself ended the process: not a kill from outside, and not an error before the case began."""
        return bool(self.died) and not self.hung and bool(self.stage) and self.died not in KILLS


def attempt(
    case: str, how: How, seconds: float, quiet: bool = False,
    environment: Mapping[str, str] | None = None, over: threading.Event | None = None,
    takes: tuple[float, float] = (math.inf, 0.0),
) -> Attempt:  # fmt: skip
    """Run a case in a new process. seconds: what that may take with its start; quiet: discard its output; environment: the
    `surroundings` if this is not the main thread; over: set when the answer is no longer wanted: the process is ended; takes:
    what the case alone may take, and each of its stages."""
    each, allowed = takes
    limit = Limit(time.monotonic() + seconds, threading.Event() if over is None else over)
    if not limit.left:
        return Attempt(1)
    given, watch = {"cases": [case], **asdict(how)}, Watch(math.inf, each, limit=limit)
    with Child(REPLAY, given, watch, environment=environment, out=QUIET if quiet else SHOWN) as process:
        found = [_answered(event) for event in process if "code" in event]
        end = process.ending()
    if not end.died:
        return found[0]
    stage = "" if end.entry is None else end.entry.stage
    hung = end.late or end.hung
    early = hung and not is_hung(end.entry, allowed)
    return Attempt(1, f"no answer within {min(seconds, each):.0f} s" if hung else end.died, hung, stage, early=early)


def is_hung(entry: JournalEntry | None, allowed: float) -> bool:
    """Whether a stage took longer than a run lets it; what came before the first one says nothing of a case."""
    return entry is not None and replace(entry, allowed=allowed).is_overdue()


def _answered(event: Json) -> Attempt:
    """What a process says of a case that it finished."""
    return Attempt(event["code"], records=tuple(r for r in map(run_file.decode, event["records"]) if isinstance(r, Record)))


def several(cases: Sequence[str], how: How, seconds: float) -> tuple[list[Attempt], str]:
    """Run cases in one process, and print what they do: what came of those before one that ends it or hangs, and how it died,
    empty if it did not. What strikes late may be that of the case before it, the last one. seconds: what each may take."""
    watch = Watch(STARTING + seconds, seconds)
    with Child(REPLAY, {"cases": list(cases), **asdict(how)}, watch, out=SHOWN) as process:
        found = [_answered(event) for event in process if "code" in event]
        return found, process.ending().died


def held(
    case: str, how: How, seconds: float, died: str = "",
    environment: Mapping[str, str] | None = None, over: threading.Event | None = None, stage: str = "",
) -> tuple[str, str]:  # fmt: skip
    """Who caused the death of a case (one of `rows.BLAMES`), and the evidence in words. seconds: what a stage of the case may
    take; died: its signal, or `HANG`; environment, over: as for `attempt`; stage: in which it died."""
    alone, over = How("cpu", None, how.setup), threading.Event() if over is None else over
    environment = surroundings() if environment is None else environment
    each = (COMPARING + 1 if stage == "compare" else HUNG_AGAIN) * seconds

    def thrice(how: How) -> list[Attempt]:
        asked = case, how, STARTING + each, True, environment, over, (each, seconds)
        return [*pool.map(lambda _: attempt(*asked), range(TRIES))]

    def ends(a: Attempt) -> bool:
        return a.proves or (a.hung and not a.early and died == HANG) or (bool(a.stage) and a.died in KILLS)

    with ThreadPoolExecutor(max_workers=1 if died in KILLS else TRIES) as pool:  # several at a time would take more memory yet
        try:
            without = thrice(alone)
            settled = len({a.died for a in without}) == 1 and all(map(ends, without))
            both = [] if settled and without[0].died not in KILLS else thrice(how)
        except BaseException:  # Ctrl-C: the threads must not go on
            over.set()
            raise
    if over.is_set():
        return UNKNOWN, NOT_DONE
    if settled:
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
    """Inquests in threads, while the run goes on: each takes as long as starting three or six processes, and that of a hang
    twice what a stage of the case may take besides, or four times."""

    def __init__(self, most: int = 1) -> None:
        """most: how many at a time."""
        self._pool, self._over = ThreadPoolExecutor(most), threading.Event()
        self._begun: list[tuple[Json, Future[tuple[str, str]]]] = []

    def begin(self, row: Json, how: How, allowed: float) -> None:
        """Find out who caused a death. row: as `Survival` has it; allowed: seconds that a stage of its case may take."""
        died = HANG if row["how"] == HANG else row["signal"]
        asked = row["case"], how, allowed, died, surroundings(), self._over, row.get("stage", "")
        self._begun.append((row, self._pool.submit(held, *asked)))

    @property
    def left(self) -> int:
        """How many were not given yet."""
        return len(self._begun)

    def done(self) -> list[tuple[Json, str, str]]:
        """(row, blame, evidence) of those that have ended and were not given before."""
        ended = [(row, answer) for row, answer in self._begun if answer.done()]
        self._begun = [(row, answer) for row, answer in self._begun if (row, answer) not in ended]
        return [(row, *answer.result()) for row, answer in ended]

    def rest(self, seconds: float) -> list[tuple[Json, str, str]]:
        """Wait for all others, for so many seconds at most, and give them as `done`. Those that did not end in that time, or
        before Ctrl-C, blame nobody."""
        try:
            wait([answer for _, answer in self._begun], timeout=seconds)
        finally:
            self._over.set()
            self._pool.shutdown(wait=True)
        return self.done()
