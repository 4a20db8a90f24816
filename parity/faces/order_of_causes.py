"""The order in which the causes of what items found are looked for: what promises most comes first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parity.core.errors import RunFileError
from parity.core.results import Record
from parity.findings.weights import Promise, promise
from parity.store import run_file


class Causes:
    """The parts that look for the causes of what items found, while they have not had their share of the time: of the op first
    of which least is known, and of several by what they promise: plain cases and what may have one, then what was not looked
    into yet in any op, then what many ops show, then what is far outside."""

    def __init__(self, tests: dict[str, int], found: Mapping[str, Promise], share: Callable[[bool], float]) -> None:
        """tests: item -> test; found: the items that found something, which grow; share: seconds of workers that may go into
        causes as the run is, of what promises little, as another dtype of an op does, or of others."""
        self._tests, self._found, self._share = tests, found, share
        self.explained: Counter[str] = Counter()  # op -> items whose causes were looked for
        self._signs: Counter[str] = Counter()  # the same of `Promise.sign`
        self._began: dict[Any, float] = {}  # worker -> when it was given the part that it looks for causes in
        self._spent = 0.0  # seconds of workers

    def has_more(self) -> bool:
        """See `Phase`."""
        return self.due() is not None

    def take(self, worker: Any) -> int | None:
        """See `Phase`."""
        item = self.due()
        if item is None:
            return None
        self.explained[op_of(item)] += 1
        self._signs[self._found[item].sign] += 1
        self._began[worker] = time.monotonic()
        return self._tests.pop(item)

    def due(self) -> str | None:
        """The next item whose findings are to be explained, if there is time for it."""
        due = [i for i in self._found if i in self._tests]
        ops = Counter(sign for _, sign in {(op_of(i), p.sign) for i, p in self._found.items()}) if due else Counter[str]()
        first = min(due, key=lambda i: self._place(i, ops), default=None)
        spent = self._spent + sum(map(self._looked, self._began))
        may = first is not None and spent < self._share(self._found[first].little or self.explained[op_of(first)] > 0)
        return first if may else None

    def _place(self, item: str, ops: Mapping[str, int]) -> tuple[int, bool, str, int, int, int]:
        """The least comes first. ops: `Promise.sign` -> how many ops show it."""
        p = self._found[item]
        return self.explained[op_of(item)], p.little, p.weight, self._signs[p.sign], -ops[p.sign], -p.far

    def is_at(self, worker: Any) -> bool:
        """Whether a worker looks for causes."""
        return worker in self._began

    def ended(self, worker: Any, seconds: float | None = None) -> None:
        """A worker is through with a test. seconds: that it looked for causes in it; None if it died."""
        self._spent += self._looked(worker) if seconds is None else seconds
        self._began.pop(worker, None)

    def again(self, item: str, test: int) -> None:
        """A part is to be run once more."""
        self._tests[item] = test

    def _looked(self, worker: Any) -> float:
        """Seconds for which a worker has looked for the causes that it is at; 0 if it is at none."""
        return time.monotonic() - self._began[worker] if worker in self._began else 0.0


def promise_of(lines: Iterable[str]) -> Promise:
    """Of the findings among the rows of an item."""
    try:
        return promise(r for r in map(run_file.decode, lines) if isinstance(r, Record) and r.unexplained)
    except RunFileError:  # the report of the run says so
        return Promise()


def op_of(item: str) -> str:
    """The op of an item's id."""
    return item.rpartition("-")[0]
