"""Findings are tried once more in fresh processes. Those that are known early are tried while some workers of the run have
nothing left to do (`Early`), the others at its end.

What is not reproduced by itself is tried after the cases that came before it in its worker: 1, 2, 4, 8 ... of them, each time
in another process. If it comes then, it is a finding with a history. What never comes is not reproduced, and fails; only drift
near its budget is dropped.

`jobs.confirm` is the job: it checks one finding after another. If its process dies or hangs, the finding that it was at
is reproduced, and another process goes on with the rest.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from parity.core import notation
from parity.core.child import BEGIN
from parity.core.devices import backend_of
from parity.core.results import Record
from parity.engine.child import Child, Limit, Watch, surroundings
from parity.engine.inquest import How
from parity.store.marginal import is_far, key_of
from parity.store.rows import Again, Death

T = TypeVar("T")
NONE: Mapping[str, Sequence[str]] = {}
TRIES = 3  # of the least case; then cases as they were drawn are tried once each
PATIENCE = 60.0  # seconds for each finding
LIMIT = 180.0  # for all findings of a run; those that are left count
AFTER_OTHERS = 90.0  # of these, for those that are tried after the cases before them
PER_PROCESS = 24  # findings for which another process is worth its start
MOST_EARLY = 64  # processes at once before the end of a run
DEATHS = 4  # of processes of one share of the findings, after which the rest is left


class Shrinks(Protocol):
    """What shrinks deaths in processes of its own, as `shrinking.Shrinking` does."""

    def offer(self, deaths: Sequence[Death], free: int) -> int:
        """Begin with some; how many run then."""

    def stop(self) -> None:
        """End what still runs."""


class Early:
    """Tries findings in threads and processes of its own while the run goes on. A process takes some seconds to start, which
    are lost where all findings wait for the end of the run."""

    def __init__(self, how: How, deaths: Shrinks | None = None) -> None:
        """deaths: what shrinks them, if they are."""
        self._how, self._limit, self.deaths = how, Limit(math.inf), deaths
        self._pool: ThreadPoolExecutor | None = None
        self._lanes: list[Future[None]] = []
        self._lock = threading.Lock()
        self._seen: set[tuple[str, str, str]] = set()  # findings that were offered
        self._waiting: list[Record] = []  # those of them that nobody has begun with
        self._done: list[Again] = []

    def offer(self, findings: Iterable[Record], free: int, deaths: Sequence[Death] = ()) -> None:
        """Shrink deaths and try findings that were not offered before. free: how many processes may run now."""
        if self.deaths is not None:
            free -= self.deaths.offer(deaths, free)
        new = [f for f in findings if key_of(f) not in self._seen]
        with self._lock:
            self._waiting += new
            self._seen.update(map(key_of, new))
            lanes = min(free - sum(not lane.done() for lane in self._lanes), -(-len(self._waiting) // PER_PROCESS))
        for _ in range(lanes):
            self._begin()

    def _begin(self) -> None:
        if self._pool is None:
            self._pool, self._limit.until = ThreadPoolExecutor(MOST_EARLY), time.monotonic() + LIMIT
        self._lanes.append(self._pool.submit(self._try, surroundings()))

    def _try(self, environment: Mapping[str, str]) -> None:
        """Try what is waiting, as much in each process as is worth its start."""
        while self._limit.left and (share := self._taken(PER_PROCESS)):
            with suppress(OSError):  # no process can be started: what is not tried counts
                for one in _share(share, self._how, self._limit, environment):
                    self._done.append(one)

    def _taken(self, most: int) -> list[Record]:
        with self._lock:
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
        return taken

    def rest(self, findings: Iterable[Record]) -> list[Record]:
        """Those that nobody has begun with, nor will."""
        waiting = set(map(key_of, self._taken(len(self._waiting))))
        return [f for f in findings if key_of(f) not in self._seen or key_of(f) in waiting]

    def done(self, seconds: float) -> dict[tuple[str, str, str], Again]:
        """What became of the others. seconds: how long to wait for it."""
        self._limit.until = min(self._limit.until, time.monotonic() + seconds)
        try:
            wait(self._lanes)
        finally:
            self.stop()
        return {(a.case, a.aspect, a.op): a for a in self._done}

    def stop(self) -> None:
        """End what still runs."""
        self._limit.until = 0.0
        if self.deaths is not None:
            self.deaths.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def again(
    findings: Sequence[Record],
    how: How,
    workers: int,
    flags: Sequence[tuple[str, str]] = (),
    seconds: float = LIMIT,
    early: Early | None = None,
    before: Mapping[str, Sequence[str]] = NONE,
) -> tuple[Again, ...]:
    """Try each finding once more; those for which the time did not suffice are left out. flags: variables of the environment
    that a process reads at its start, with the value for off: a finding that comes, but not with the flag off, is explained by
    it. early: where some of them are being tried. before: drawn case -> the cases that came before it in its worker."""
    until = time.monotonic() + min(LIMIT, seconds)
    done = _tried(findings if early is None else early.rest(findings), how, workers, until, {})
    if early is not None:
        done |= early.done(until - time.monotonic())
    done |= _after_others(findings, done, before, how, workers, min(until, time.monotonic() + AFTER_OTHERS))
    for name, off in flags:
        came = [f for f in findings if (a := done.get(key_of(f))) is not None and a.came and not a.flag and not a.history]
        without = _tried(
            [f for f in came if f.cause is not None and f.cause.symptom == "values"], how, workers, until, {name: off}
        )
        done |= {key: replace(done[key], flag=name) for key, a in without.items() if not a.came}
    return tuple(done.values())


def set_variables(kind: str) -> tuple[tuple[str, str], ...]:
    """The flags of the environment that are set to another value than off, with that value. kind: the type of the device."""
    return tuple((name, off) for name, off in backend_of(kind).retried if os.environ.get(name, off) != off)


# ------------------------------------------------------------------------------------------------------- the processes


def _tried(
    findings: Sequence[Record], how: How, workers: int, until: float, environment: Mapping[str, str]
) -> dict[tuple[str, str, str], Again]:
    """By case, aspect and op. environment: more variables of the processes."""
    shares = min(workers, -(-len(findings) // PER_PROCESS))
    shared = [findings[k::shares] for k in range(shares)]
    parts = _in_threads(shared, lambda f, limit, whole: [*_share(f, how, limit, whole)], until, environment)
    return {(a.case, a.aspect, a.op): a for part in parts for a in part}


def _in_threads(
    parts: Sequence[Any], work: Callable[[Any, Limit, Mapping[str, str]], T], until: float, environment: Mapping[str, str]
) -> list[T]:
    """Do the work on each part in a thread of its own. environment: as for `_tried`."""
    if not parts:
        return []
    limit = Limit(until)
    with ThreadPoolExecutor(len(parts)) as pool:
        whole = {**surroundings(), **environment}
        try:
            return list(pool.map(lambda part: work(part, limit, whole), parts))
        except BaseException:  # Ctrl-C: the threads must not go on
            limit.until = 0.0
            raise


def _after_others(
    findings: Iterable[Record], done: Mapping[tuple[str, str, str], Again], before: Mapping[str, Sequence[str]],
    how: How, workers: int, until: float,
) -> dict[tuple[str, str, str], Again]:  # fmt: skip
    """Try findings that did not come by themselves after the cases that came before them, those that are far outside first."""
    gone = (f for f in findings if (a := done.get(key_of(f))) is not None and not a.came)
    order = sorted(gone, key=lambda f: not is_far(f))
    lanes = min(workers, len(order))

    def work(some: Sequence[Record], limit: Limit, environment: Mapping[str, str]) -> list[Again]:
        return [_after_its(f, done[key_of(f)], before.get(f.case, ()), how, limit, environment) for f in some]

    tried = _in_threads([order[k::lanes] for k in range(lanes)], work, until, {})
    return {(a.case, a.aspect, a.op): a for lane in tried for a in lane}


def _after_its(f: Record, a: Again, before: Sequence[str], how: How, limit: Limit, environment: Mapping[str, str]) -> Again:
    """Try a finding in all aspects of its case, and after more and more of the cases before it."""
    n = 0
    while limit.left:
        text = notation.with_history(f.case, before[-n:]) if n else f.shrunk
        one = replace(f, shrunk=text, case=text, others=())
        with _process([one], how, limit, environment, whole=True) as process:
            came = [event["came"] for event in process if BEGIN not in event]
        if True in came:
            return replace(a, came=True, history=text)
        if False in came:
            a = replace(a, calls=n)
        if n == len(before):
            break
        n = min(2 * n or 1, len(before))
    return a


def _share(findings: Sequence[Record], how: How, limit: Limit, environment: Mapping[str, str]) -> Iterator[Again]:
    """Try these findings, in as many processes as they end."""
    left = list(findings)
    for _ in range(DEATHS):
        with _process(left, how, limit, environment) as process:
            for event in process:
                if BEGIN not in event:
                    f, *left = left
                    if event["came"] is not None:  # what cannot be built or compared there acquits nobody
                        yield Again(f.shrunk, f.aspect, f.op, event["tries"], event["came"])
        if process.at is None or not limit.left:  # all are done, no process could start, or the time is over
            return
        f, *left = left
        yield Again(f.shrunk, f.aspect, f.op, 1, True)
        if not left:
            return


def _process(findings: Sequence[Record], how: How, limit: Limit, environment: Mapping[str, str], whole: bool = False) -> Child:
    """The process that tries these findings. whole: whether their cases are checked once in all aspects, as `parity replay`
    does."""
    given = {
        "device": how.device,
        "faults": how.faults,
        "setup": how.setup,
        "fail_on_metadata": how.fail_on_metadata,
        "whole": whole,
        "findings": [[[f.shrunk, f.case, *f.others], f.aspect] for f in findings],
    }
    return Child("parity.engine.jobs.confirm", given, Watch(silence=PATIENCE, limit=limit), environment=environment)
