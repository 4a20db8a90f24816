"""Runs whose items come in parts: those with a limit of time, and those that look for causes when the rest is done.

Without a limit of time, an item is a test, and looking for the causes of what it found is another one (`CAUSES`), most of
which come after all items; some workers begin with those that take long. With a limit, the pinned cases of all items come
first, then rounds of exploration. `parity.faces.scheduling` hands them out.

Every part is a test of its own. Round 0 checks the pinned cases of an item and looks for no causes; `CAUSES` goes through them
again, for the causes of what round 0 found; round 1 and those after it explore, each as many cases of an item as all before it,
until those are as many as a worker should hold at once (`MOST_CASES`). An item's explored cases are those of a run without a
limit, in the same order.

The order in which the causes of what items found are looked for: what promises most comes first.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parity.catalog import ROWS
from parity.core.errors import RunFileError
from parity.core.results import FINDINGS, STRIDED_DESTINATION, UNSEARCHED, Cause, Record
from parity.engine.suite import Item, RunProfile
from parity.findings.causes import OPERATORS
from parity.findings.weights import Promise, promise, weight
from parity.store import run_file
from parity.store.rows import ItemRow

PINNED, CAUSES = 0, -1  # parts of an item that are no rounds of exploration
FIRST_ROUND = 0.25  # of the cases that the profile explores in an item
FASTEST_CASE = 0.0015  # seconds; how many rounds may be reached follows from it
MOST_CASES = 4096  # of a part: a worker keeps 1.5 KB of each until it reports them
MOST_PARTS = 20_000  # where no more cases of a part are needed for that: every worker collects all parts
LAST_ROUNDS = 6  # that are equally large, at least, however many items a run has
CAUSES_SHARE = 0.5  # of a worker's time, at most, goes into the causes of what exploration finds
LEAST_SECONDS = 120.0  # of each worker go into causes after all items if needed, and more if the items took longer
SHRINKS_ONE_IN = 5  # one death is shrunk for so many workers while all of them are busy
END_SECONDS = 2.5  # workers stop so long before the time is over: they end, and the report is written
GRACE_SECONDS = 3.0  # after that a case that still runs is ended
DYING_SHARE = 0.25  # of the time of a run, at most, goes into an item that ends its processes
START_SECONDS = 5.0  # that a worker takes from its start to its first case
CUT = "the time was over before it began"  # why a part was skipped
# Families whose items took longest on an H100 (others 0.3 s each), or hang and end workers, which costs a minute for each item:
# they come first, so that nobody waits for one of them at the end, and before all those with a single item of half a minute or
# more: a hang (linalg), or a kernel that is slow by itself (vision, kernels).
LONG = ("attention", "linalg", "vision", "kernels", "special", "recurrent", "convolutions")
# Ops for whose first call in a process CUDA compiles a kernel, in each dtype: 20 to 60 s each. The very first.
ATEN_COMPILED = ("special.erfcx", "gcd", "lcm", "polygamma", "digamma", "prod_dim")
CLOSELY = 3  # findings of one cause, of all items, that are looked at closely; one if it is plain, or an error in words
PLAIN = "AR"  # the classes of these
ROUND, AGAIN = " round ", " causes"  # in the ids of parts


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an item. round: see above; start, stop: which explored cases it checks."""

    item: Item
    round: int
    start: int = 0
    stop: int = 0

    @property
    def id(self) -> str:
        """Its name in pytest. Round 0 has the item's own."""
        return self.item.id + (AGAIN if self.round == CAUSES else f"{ROUND}{self.round}" if self.round else "")

    @property
    def pinned(self) -> bool:
        """Whether it checks the pinned cases."""
        return self.round <= PINNED


def part_of(node: str) -> tuple[str, int]:
    """(item's id, round) of the test of a part or a whole item."""
    text = node.rpartition("[")[2].removesuffix("]")
    if text.endswith(AGAIN):
        return text.removesuffix(AGAIN), CAUSES
    item, _, number = text.rpartition(ROUND)
    return (item, int(number)) if number.isdecimal() and item else (text, PINNED)


def whole(items: Sequence[Item], causes: bool) -> tuple[Item | Part, ...]:
    """Whole items, those of long families first, then the parts that look for the causes of what they found, if there are
    any."""
    first = sorted(items, key=lambda i: LONG.index(i.row.family) if i.row.family in LONG else len(LONG))
    return (*first, *(Part(i, CAUSES) for i in first if causes))


def is_long(item: str) -> bool:
    """Whether an item, by its id, takes long, or others of its family do."""
    op = item.rpartition("-")[0]
    return op in ATEN_COMPILED or (op in ROWS and ROWS[op].family in LONG)


def parts(
    items: Sequence[Item], profile: RunProfile, examples: int | None, seconds: float, workers: int, causes: bool
) -> tuple[Part, ...]:
    """All parts that a run may come to in so many seconds, in order. examples: cases per item, if they are limited; causes:
    whether to look for causes of what the pinned cases show."""
    made = [Part(i, PINNED) for i in items]
    made += [Part(i, CAUSES) for i in items] if causes else []
    each = [examples or profile.examples(i.row, i.dtype) for i in items]
    total = seconds * max(1, workers) / FASTEST_CASE / max(1, sum(each))
    limit = max(MOST_CASES / max(1, *each), total / max(LAST_ROUNDS, MOST_PARTS // max(1, len(items))))
    for number, (low, high) in enumerate(_bounds(limit), 1):
        for item, n in zip(items, each):
            start, stop = math.ceil(n * low), math.ceil(n * high)
            stop = stop if examples is None else min(stop, examples)
            if start < stop:
                made.append(Part(item, number, start, stop))
        if low > total or (examples is not None and high >= 1.0):
            break
    return tuple(made)


def _bounds(limit: float) -> Iterator[tuple[float, float]]:
    """From where to where a round explores, in units of the profile's number of cases. limit: most of a round."""
    low, high = 0.0, FIRST_ROUND
    while True:
        yield low, high
        low, high = high, high + min(high, limit)


@dataclass(slots=True)
class TimeLimit:
    """What a worker knows of the time that is left. deadline: on its monotonic clock; reported: item -> kinds of findings
    that it has reported already; causes: seconds that went into them."""

    deadline: float
    began: float = field(default_factory=time.monotonic)
    reported: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    causes: float = 0.0

    @property
    def left(self) -> float:
        """Seconds until the deadline; below 0 after it."""
        return self.deadline - time.monotonic()

    def may_look_for_causes(self, part: Part) -> bool:
        """Whether this part may shrink its findings and look for their causes: no round 0, and exploration only while it has
        taken its share of the time."""
        if part.round in (PINNED, CAUSES):
            return part.round == CAUSES and self.left > 0
        return self.left > 0 and self.causes <= CAUSES_SHARE * (time.monotonic() - self.began)


class Seen:
    """The causes of what other items of a run found, in any process that has the same folder; none without one. Most findings
    have the cause of another one (523 on an H100 have some 60), and need no close look: a line of a file for each that had one,
    with the id of its cause and the class of its least case. What an item itself has found counts from the next one on."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = None if folder is None else folder / "causes"
        self._found: dict[str, str] = {}  # id -> the classes of its findings

    def read(self) -> bool:
        """Take note of what all processes have found so far. Returns whether there is anything."""
        self._found.clear()
        with suppress(OSError):
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines() if self._path is not None else ():
                id, _, letter = line.partition(" ")
                self._found[id] = self._found.get(id, "") + letter
        return bool(self._found)

    def has(self, c: Cause) -> bool:
        """Whether another finding of the cause would show nothing new."""
        found = self._found.get(_kept_as(c), "")
        return len(found) >= CLOSELY or not set(PLAIN).isdisjoint(found)

    def add(self, c: Cause, r: Record) -> None:
        """Let all processes know of a finding that was looked into. A full disk costs time, not the finding."""
        if self._path is not None and UNSEARCHED not in c.properties:
            with suppress(OSError), self._path.open("a", encoding="utf-8") as f:
                f.write(f"{_kept_as(c)} {weight(r)}\n")


def _kept_as(c: Cause) -> str:
    """The id of a cause; those that write outside of strided destinations share it, because there is nothing else to find."""
    return (replace(c, subject=OPERATORS) if c.properties == (STRIDED_DESTINATION,) else c).id


HOPELESS = 12  # cases of an item after which it is left alone if none of them was compared
NEW_KIND = 10  # a new kind of finding weighs as much as so many new pairs of features


@dataclass(slots=True)
class Timed:
    """The parts of the run so far. seconds: the limit; items: all that are to be checked; done: round -> items that came to its
    end; yields: see `Rounds`; held: findings without a cause, which a later part may find."""

    seconds: float
    items: dict[str, None] = field(default_factory=dict)
    done: dict[int, set[str]] = field(default_factory=dict)
    yields: dict[str, float] = field(default_factory=dict)
    held: list[Record] = field(default_factory=list)
    _kinds: set[tuple[str, ...]] = field(default_factory=set)
    _recorded: set[tuple[str, ...]] = field(default_factory=set)
    _cases: Counter[str] = field(default_factory=Counter)
    _compared: set[str] = field(default_factory=set)

    def collected(self, nodes: Iterable[str]) -> None:
        """The tests of the run are known."""
        self.items |= dict.fromkeys(item for item, number in map(part_of, nodes) if number == PINNED)

    def ended(self, node: str) -> None:
        """A part came to its end, or was given up."""
        item, number = part_of(node)
        if number != CAUSES:
            self.done.setdefault(number, set()).add(item)

    def new(self, records: Iterable[Record], explained: Sequence[str] = ()) -> list[Record]:
        """The records to store: each kind of finding once, and other records once for each of their kinds as in a whole item.
        Findings without a cause are held back until the end. explained: least cases of known findings; what they do not stand
        for may be of the same kind, and is not known."""
        out = []
        for r in records:
            if r.shrunk and r.status in FINDINGS:
                kind = r.kind
                if r.known and r.shrunk in explained:
                    out += [] if (*kind, r.known) in self._recorded else [r]
                    self._recorded.add((*kind, r.known))
                elif r.cause is None:
                    self.held += [] if kind in self._kinds else [r]
                elif (*kind, r.cause.id) not in self._kinds:
                    self._kinds |= {kind, (*kind, r.cause.id)}
                    out.append(r)
            elif r.pinned or (what := (r.op, r.dtype, r.aspect, r.status, r.reason[:60])) not in self._recorded:
                self._recorded |= set() if r.pinned else {what}
                out.append(r)
        return out

    def without_cause(self) -> list[Record]:
        """The findings that no later part has reported with a cause."""
        out = {kind: r for r in reversed(self.held) if (kind := r.kind) not in self._kinds}
        return list(reversed(out.values()))

    def brought(self, row: ItemRow, pairs: int, kinds: int, compared: bool) -> None:
        """What a part brought: new pairs of features, and new kinds of findings."""
        item = f"{row.op}-{row.dtype}"
        self._cases[item] += row.cases
        self._compared |= {item} if compared else set()
        worth = (pairs + NEW_KIND * kinds) / max(row.seconds, 1e-3)
        hopeless = item not in self._compared and self._cases[item] >= HOPELESS
        self.yields[item] = -1.0 if hopeless else worth

    def given_up(self, item: str) -> None:
        """An item that ended too many processes."""
        self.yields[item] = -1.0

    @property
    def rounds(self) -> tuple[int, ...]:
        """How many items came to the end of round 0, 1 ..."""
        return tuple(len(self.done.get(k, ())) for k in range(max(self.done, default=-1) + 1))

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The items whose pinned cases were not checked."""
        done = self.done.get(PINNED, set())
        return tuple(i for i in self.items if i not in done)


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
