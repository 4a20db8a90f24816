"""The controller's side: worker processes, each busy with one job at a time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from parity.zoo.reach import Reach
from parity.zoo.workers import Setup, work


class Pool:
    """Worker processes, each busy with one job at a time. A worker that is lost is replaced; its job gives None."""

    def __init__(self, setup: Setup, count: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._setup = setup
        self._workers = [self._hire() for _ in range(count)]

    def _hire(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(theirs, self._setup))
        process.start()
        theirs.close()
        return process, ours

    def map(self, jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """(job, answer) as they come."""
        left, busy = list(jobs)[::-1], dict[Connection, tuple[int, Any]]()
        for k in range(len(self._workers)):
            self._give(k, left, busy)
        while busy:
            for conn in wait(list(busy)):
                assert isinstance(conn, Connection)
                k, job = busy.pop(conn)
                try:
                    answer = conn.recv()
                except (EOFError, OSError):
                    answer = None
                    self._workers[k] = self._hire()
                self._give(k, left, busy)
                yield job, answer

    def _give(self, k: int, left: list[Any], busy: dict[Connection, tuple[int, Any]]) -> None:
        if left:
            job, conn = left.pop(), self._workers[k][1]
            with suppress(OSError):  # a worker that is gone is seen by the reader
                conn.send(job)
            busy[conn] = k, job

    def close(self) -> None:
        """End all workers and what they run."""
        for process, conn in self._workers:
            conn.close()
            process.terminate()
        for process, _ in self._workers:
            process.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reaches(pool: Pool, names: Sequence[str], count: int) -> dict[str, Reach]:
    """What each of these rows calls, recorded in parallel; those that cannot be recorded are left out. What a worker was
    recording when it was lost is recorded once more."""
    step = max(1, -(-len(names) // count))
    left, seen = list(names), dict[str, Reach]()
    for _ in range(2):
        lost: list[str] = []
        for part, answer in pool.map([tuple(left[k : k + step]) for k in range(0, len(left), step)]):
            seen |= answer or {}
            lost += part if answer is None else ()
        left = lost
    return seen
