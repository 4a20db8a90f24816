"""Deaths are shrunk in processes of their own: to the least case that ends or hangs a process in the same way. Those that are
known early are shrunk while some workers of the run have nothing left to do, the others after the items.

`jobs.survive` is the job. It tries one case after another while they live, so that only a case that dies costs another
start. Equal deaths (same words, same op) are shrunk once.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from parity.catalog.draw import Sizes
from parity.core import notation
from parity.core.case import Case
from parity.core.child import BEGIN
from parity.core.errors import ParityError
from parity.core.results import Aspect
from parity.engine import suite
from parity.engine.child import STARTING, Child, Limit, surroundings, word
from parity.engine.inquest import How
from parity.engine.planning import patience
from parity.findings.wording import death_words
from parity.generation.generate import Drawn
from parity.generation.shrink import plainest, shrink
from parity.store.rows import Death, Shrunk

Kind = tuple[str, str]  # of deaths: the op, and how they are named in words
EACH = 60.0  # seconds for one death
ALL = 120.0  # and for all of a run
HUNG = 5.0  # after which a smaller case of one that hung counts as hung, too
HANGS = 12  # attempts at a hang that hang again: each costs its patience
LINGER = 0.3  # to wait after a case where the death came later than the device's stage
AHEAD = 2  # processes of one death that are there or start: most cases that are tried end one, and a start takes seconds
ASPECTS = (Aspect.FORWARD, Aspect.BACKWARD, Aspect.OUT, Aspect.INPLACE, Aspect.DOUBLE, Aspect.TANGENT, Aspect.TRANSFER,
           Aspect.REPEAT)  # fmt: skip


class Shrinking:
    """Shrinks one death of each kind in threads and processes of their own: those that are offered while the run goes on, the
    others at its end."""

    def __init__(self, how: How, workers: int, hang_after: float | None = None) -> None:
        """hang_after: seconds after which a case counts as hung, by default what an item's case may take."""
        self._how, self._workers, self._hang_after = how, max(1, workers), hang_after
        self._run, self._over = Limit(), ""
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[Kind, Future[Shrunk]] = {}

    def offer(self, deaths: Iterable[Death], free: float = math.inf) -> int:
        """Begin with kinds that nobody has begun with; how many run then. free: how many may run."""
        running = sum(not f.done() for f in self._begun.values())
        for kind, d in _kinds(deaths).items():
            if kind in self._begun or running >= free:
                continue
            self._pool = self._pool or ThreadPoolExecutor(self._workers)
            self._begun[kind] = self._pool.submit(self._one, d, surroundings())
            running += 1
        return running

    def done(self, deaths: Sequence[Death], seconds: float = ALL) -> tuple[Shrunk, ...]:
        """One of each kind, shrunk; in the order in which they came. seconds: for those that are left."""
        self._over = f"the {ALL:.0f} s for shrinking deaths were over" if seconds >= ALL else "the time of the run was over"
        self._run.until = time.monotonic() + min(ALL, seconds)
        try:
            self.offer(deaths)
            return tuple(self._begun[kind].result() for kind in _kinds(deaths))
        finally:
            self.stop()

    def stop(self) -> None:
        """End what still runs."""
        self._run.over.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _one(self, d: Death, environment: Mapping[str, str]) -> Shrunk:
        if not self._run.left:
            return Shrunk(d, why=self._over)
        try:
            case = notation.parse(d.case)
            row = suite.row(case.op)
        except ParityError as e:
            return Shrunk(d, why=str(e))
        tried = Attempts(d, self._how, self._run, self._hang_after or patience(case), environment)
        try:
            aspect = next((a for a in ASPECTS if tried.dies(case, a)), None)
            if aspect is None and not tried.dies(case, ""):
                return Shrunk(d, tried.tries, tried.died, "it was not reproduced" if self._run.left else self._over)
            tried.patience = min(tried.patience, HUNG) if d.how == "hang" else tried.patience
            best = [case]

            def fails(one: Case) -> bool:
                if one != case and not tried.dies(one, aspect or ""):
                    return False
                best[0] = one
                return True

            shrink(row, case.dtype, Sizes(), Drawn(case, ()), fails)
            least = plainest(best[0], aspect or Aspect.FORWARD, fails)
            tried.close()  # memory that an earlier case has spoilt may end the process at a case that does nothing
            least = least if least == case or not tried.left or tried.dies(least, aspect or "") else case
            return Shrunk(replace(d, shrunk=notation.case_text(least), shrunk_aspect=aspect or ""), tried.tries, tried.died)
        finally:
            tried.end()


def _kinds(deaths: Iterable[Death]) -> dict[Kind, Death]:
    """The shortest case of each kind of death."""
    by: dict[Kind, Death] = {}
    for d in deaths:
        key = d.op, death_words(d)
        if d.case and (key not in by or len(d.case) < len(by[key].case)):
            by[key] = d
    return by


class Attempts:
    """Whether cases die as a death did, one after another in as many processes as they end. Nothing dies after the limit."""

    def __init__(self, d: Death, how: How, run: Limit, patience: float, environment: Mapping[str, str]) -> None:
        """run: when all deaths of the run must be shrunk; patience: seconds that a case may take; environment: of the
        processes."""
        self.tries = self.died = 0
        self.patience = patience
        self._words, self._death, self._how, self._run = death_words(d), d, how, run
        self._own = Limit(time.monotonic() + EACH)
        self._linger = 0.0 if d.stage == "device" else LINGER
        self._environment = environment
        self._process: Child | None = None
        self._coming = deque[Child]()  # those after it

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return min(self._own.left, self._run.left)

    def dies(self, case: Case, aspect: str) -> bool:
        """Whether the case ends or hangs its process in the same words."""
        if not self.left or (self._death.how == "hang" and self.died >= HANGS):
            return False
        process = self._process = self._process or self._started()
        if process is None:
            return False
        self.tries += 1
        process.send([notation.case_text(case), aspect, self._linger])
        allowed = min(self.patience + self._linger, max(0.1, self.left))
        until = time.monotonic() + allowed
        while isinstance(event := process.hear(until - time.monotonic()), dict) and BEGIN in event:
            pass
        if isinstance(event, dict):  # it lives, or cannot be built
            return False
        self.close()
        self.died += 1
        if self._death.how == "hang" or event is None:
            return event is None and self._death.how == "hang" and allowed >= min(self.patience, HUNG)
        if " computes nothing any more " in self._death.signal and (event.whole or event.lost):  # parity's words
            return True
        return death_words(replace(self._death, how="crash", signal=event.died or word(event.code))) == self._words

    def close(self) -> None:
        """End the process that may still run."""
        if self._process is not None:
            self._process.close()
        self._process = None

    def end(self) -> None:
        """End all processes."""
        self.close()
        while self._coming:
            self._coming.popleft().close()

    def _started(self) -> Child | None:
        """A process that is ready for cases, while the next one starts; None if none is."""
        given = {"device": self._how.device, "faults": self._how.faults, "setup": self._how.setup}
        while len(self._coming) < AHEAD:
            self._coming.append(Child("parity.engine.jobs.survive", given, environment=self._environment, fed=True))
        process = self._coming.popleft()
        if isinstance(process.hear(min(self.left, STARTING)), dict):
            return process
        process.close()
        return None
