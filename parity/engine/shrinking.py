"""Deaths are shrunk in processes of their own, after the items: to the least case that ends or hangs a process in the same way.

`parity.engine.dying` is the process. It tries one case after another while they live, so that only a case that dies costs
another start. Equal deaths (same words, same op) are shrunk once.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from parity.catalog.draw import Sizes
from parity.core import notation, processes
from parity.core.case import Case
from parity.core.errors import ParityError
from parity.core.results import Aspect
from parity.engine import suite
from parity.engine.again import Limit
from parity.engine.inquest import How, end, word
from parity.engine.planning import patience
from parity.findings.causes import death_words
from parity.generation.generate import Drawn
from parity.generation.plainer import plainest
from parity.generation.shrink import shrink
from parity.store.rows import Death, Shrunk

EACH = 60.0  # seconds for one death
ALL = 240.0  # and for all of a run
STARTING = 120.0  # that a process may take until its first case
HUNG = 5.0  # after which a smaller case of one that hung counts as hung, too
HANGS = 12  # attempts at a hang that hang again: each costs its patience
LINGER = 0.3  # to wait after a case where the death came later than the device's stage
READY, BEGIN, LIVES, UNABLE = "ready", "begin", "lives", "unable"
MARK = "parity dying "  # before each line of the protocol, because a case may print, too
ASPECTS = (Aspect.FORWARD, Aspect.BACKWARD, Aspect.OUT, Aspect.INPLACE, Aspect.DOUBLE, Aspect.TANGENT, Aspect.TRANSFER,
           Aspect.REPEAT)  # fmt: skip


def shrunk(
    deaths: Sequence[Death], how: How, workers: int, seconds: float = ALL, hang_after: float | None = None
) -> tuple[Shrunk, ...]:
    """One of each kind of death, shrunk; in the order in which they came. seconds: for all of them; hang_after: after which a
    case counts as hung, by default what an item's case may take."""
    run = Limit(time.monotonic() + min(ALL, seconds))
    kinds = list(_kinds(deaths))
    if not kinds:
        return ()
    with processes.isolated(), ThreadPoolExecutor(max(1, min(workers, len(kinds)))) as pool:
        try:
            return tuple(pool.map(lambda d: _one(d, how, run, hang_after), kinds))
        except BaseException:  # Ctrl-C: the threads must not go on
            run.until = 0.0
            raise


def _kinds(deaths: Iterable[Death]) -> Iterator[Death]:
    """The shortest case of each kind of death."""
    by: dict[tuple[str, str], Death] = {}
    for d in deaths:
        key = d.op, death_words(d)
        if d.case and (key not in by or len(d.case) < len(by[key].case)):
            by[key] = d
    yield from by.values()


def _one(d: Death, how: How, run: Limit, hang_after: float | None) -> Shrunk:
    if not run.left:
        return Shrunk(d, why=f"the {ALL:.0f} s for shrinking deaths were over")
    try:
        case = notation.parse(d.case)
        row = suite.row(case.op)
    except ParityError as e:
        return Shrunk(d, why=str(e))
    tried = Attempts(d, how, run, hang_after or patience(case))
    try:
        aspect = next((a for a in ASPECTS if tried.dies(case, a)), None)
        if aspect is None and not tried.dies(case, ""):
            return Shrunk(d, tried.tries, tried.died, "it was not reproduced")
        tried.patience = min(tried.patience, HUNG) if d.how == "hang" else tried.patience
        best = [case]

        def fails(one: Case) -> bool:
            if one != case and not tried.dies(one, aspect or ""):
                return False
            best[0] = one
            return True

        shrink(row, case.dtype, Sizes(), Drawn(case, ()), fails)
        least = plainest(best[0], aspect or Aspect.FORWARD, fails)
        return Shrunk(replace(d, shrunk=notation.case_text(least), shrunk_aspect=aspect or ""), tried.tries, tried.died)
    finally:
        tried.close()


class Attempts:
    """Whether cases die as a death did, one after another in as many processes as they end. Nothing dies after the limit."""

    def __init__(self, d: Death, how: How, run: Limit, patience: float) -> None:
        """run: when all deaths of the run must be shrunk; patience: seconds that a case may take."""
        self.tries = self.died = 0
        self.patience = patience
        self._words, self._death, self._how, self._run = death_words(d), d, how, run
        self._own = Limit(time.monotonic() + EACH)
        self._linger = 0.0 if d.stage == "device" else LINGER
        self._process: subprocess.Popen[str] | None = None
        self._said: queue.Queue[str | None] = queue.Queue()

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return min(self._own.left, self._run.left)

    def dies(self, case: Case, aspect: str) -> bool:
        """Whether the case ends or hangs its process in the same words."""
        if not self.left or (self._death.how == "hang" and self.died >= HANGS):
            return False
        if self._process is None and not self._start():
            return False
        assert self._process is not None
        assert self._process.stdin is not None
        self.tries += 1
        try:
            self._process.stdin.write(json.dumps([notation.case_text(case), aspect, self._linger]) + "\n")
            self._process.stdin.flush()
        except OSError:  # it ends just now
            pass
        allowed = min(self.patience + self._linger, max(0.1, self.left))
        heard, began = BEGIN, time.monotonic()
        while heard == BEGIN:
            heard = self._hear(began + allowed) or ""
        if heard in (LIVES, UNABLE):
            return False
        hung = self._process.poll() is None and time.monotonic() - began >= allowed
        code = None if hung else _code(self._process)
        self.close()
        self.died += 1
        how = "hang" if hung else "crash"
        signal = "ended by parity" if hung else word(code)
        if self._death.how == "hang" or hung:
            return hung and self._death.how == "hang" and allowed >= min(self.patience, HUNG)
        known = " computes nothing any more " in self._death.signal  # parity's words, not the system's
        return (code == 0 and known) or death_words(replace(self._death, how=how, signal=signal)) == self._words

    def close(self) -> None:
        """End the process that may still run."""
        if self._process is not None:
            end(self._process)
        self._process = None

    def _start(self) -> bool:
        """Start a process, and wait until it is ready."""
        self._said = queue.Queue()
        process = self._process = subprocess.Popen(
            processes.command("parity.engine.dying"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=_listen, args=(process, self._said), daemon=True).start()
        assert process.stdin is not None
        where = {"device": self._how.device, "faults": self._how.faults, "setup": self._how.setup}
        try:
            process.stdin.write(json.dumps(where) + "\n")
            process.stdin.flush()
        except OSError:
            pass
        if self._hear(time.monotonic() + min(self.left, STARTING)) == READY:
            return True
        self.close()
        return False

    def _hear(self, until: float) -> str | None:
        """What the process says next; None if it ends, or says nothing until then."""
        try:
            return self._said.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None


def _code(process: subprocess.Popen[str]) -> int | None:
    """The exit code of a process that says nothing more; None if it goes on all the same."""
    try:
        return process.wait(HUNG)
    except subprocess.TimeoutExpired:
        return None


def _listen(process: subprocess.Popen[str], said: queue.Queue[str | None]) -> None:
    """Pass on what a process says; None at its end."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith(MARK):
                said.put(line.removeprefix(MARK).strip())
    except (OSError, ValueError):  # it was killed because it hangs
        pass
    said.put(None)
