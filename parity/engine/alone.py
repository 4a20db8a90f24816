"""The cases of an item in processes of their own, after the item has ended several workers.

A job (`jobs.isolated`) checks one case after another and hands each result back. When its process ends or
hangs, the case that it was at runs once more in a process of its own. If that one lives, its result counts, and the cases
before it are tried alone, because some deaths come later than the call. Another process goes on with the cases after it, and
starts meanwhile: most of what a death costs is the start of two processes. Where some cases ended a process alone, further
equal deaths need no second one; and after many, the rest of the item is left out: they have one cause.
"""

from __future__ import annotations

import base64
import math
import pickle
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from parity.checks.check import Result
from parity.checks.power import ProbeResults
from parity.core.results import Json
from parity.engine import inquest, journal
from parity.engine.child import KILLS, Child, End, Watch
from parity.engine.inquest import How
from parity.engine.options import RunOptions
from parity.engine.rounds import DYING_SHARE, Part
from parity.engine.suite import Item
from parity.store.rows import DEVICE, OUTSIDE, UNKNOWN

NONE_LIVES = 12  # deaths without a case that lived, after which the rest of the item is left out
EQUAL = 24  # deaths in equal words after which the rest is left out
SURE = 2  # equal deaths of cases that ran alone, after which the next ones are those of the case at hand
HANGS = 3  # hung cases after which the rest is left out; each costs its whole patience
STARTS = 2  # processes without a case after which no other one is started
SECONDS = 240.0  # for one item, or its share of a run with a limit of time
LOOKED_BACK = 3  # cases before a death that are tried alone where the one at hand lives
IN_VAIN = 2  # looks back that found nothing, after which no other one is taken: the cases die together, not one of them
INQUESTS = 3  # of one item
LINGER = 0.3  # seconds that a process lives on after a case that it runs alone
DONE = -1  # instead of an ordinal: the process has come to its end


@dataclass(frozen=True, slots=True)
class Checked:
    """What checking one case gave. void: why it could not be built, empty if it could; seconds: aspect -> the device's time."""

    results: tuple[Result, ...] = ()
    digest: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    power: tuple[ProbeResults, ...] = ()
    void: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a process is to do. power: see `RunPlan`; first, last: ordinals of the first case, and of the last one if there is
    one; skip: ordinals that are left out; linger: seconds to live on after the last case."""

    options: RunOptions
    power: float
    op: str
    dtype: str
    part: tuple[int, int, int] | None
    first: int
    last: int | None
    skip: frozenset[int]
    linger: float


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended. ordinal: of the case that it was at, None if it was at none; how: crash, hang or killed; before: the
    cases that it had done, the last one first."""

    ordinal: int | None
    how: str
    signal: str
    stage: str
    after: float
    before: tuple[int, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """What deaths of one cause have in common."""
        return self.how, self.signal, self.stage


class IsolatedRunner:
    """The results of an item's cases, asked for in their order. deaths: what ended or hung a process, as rows for the
    controller (`Survival`); left_out: why no further case is run, empty if they are."""

    def __init__(
        self, item: Item, part: Part | None, options: RunOptions, power: float, node: str, earlier: Sequence[Json]
    ) -> None:
        """node: the item's test; earlier: the deaths of the item that the controller knows of."""
        self.deaths: list[Json] = []
        self.left_out = ""
        self._item, self._options, self._power, self._node = item, options, power, node
        self._part = None if part is None else (part.round, part.start, part.stop)
        self._earlier = earlier
        self._texts: dict[int, tuple[str, float]] = {}  # ordinal -> case, seconds that it may take
        self._done: dict[int, Checked] = {}
        self._dead: set[int] = set()
        self._equal, self._sure = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()  # words -> deaths, those alone
        self._lived = self._hung = self._inquests = self._idle_starts = self._in_vain = 0
        self._process: _Process | None = None
        self._began = time.monotonic()
        self._seconds = min(SECONDS, DYING_SHARE * (options.time or math.inf))

    def checked(self, ordinal: int, text: str, allowed: float, skip: frozenset[int] = frozenset()) -> Checked | None:
        """The result of a case; None if it ended its process or hung, or is left out. allowed: seconds that it may take; skip:
        ordinals that are not asked for."""
        self._texts[ordinal] = text, allowed
        while ordinal not in self._done and ordinal not in self._dead and not self.left_out:
            if self._process is None:
                self._process = self._start(ordinal, None, 0.0, skip)
            got = self._process.step()
            if isinstance(got, Ended):
                self._process = None
                self._after_death(ordinal, got, skip)
            elif got[0] == DONE:  # it has no such case
                self._process.close()
                self._process = None
                self._leave_out("a process drew other cases than this one")
            else:
                self._done[got[0]] = got[1]
        if ordinal in self._done:
            self._lived += 1
        return self._done.pop(ordinal, None)

    def close(self) -> None:
        """End the process that may still run."""
        if self._process is not None:
            self._process.close()

    def _start(self, first: int, last: int | None, linger: float, skip: frozenset[int] = frozenset()) -> _Process:
        i = self._item
        out = skip | self._dead if last is None else skip
        asked = Asked(self._options, self._power, i.row.name, i.dtype, self._part, first, last, out, linger)
        return _Process(asked)

    def _after_death(self, ordinal: int, ended: Ended, skip: frozenset[int]) -> None:
        """Find the case that ended a process, the one at hand or one before it. Hangs need no second look."""
        if ended.ordinal is None and not ended.before:
            self._idle_starts += 1
            if self._idle_starts >= STARTS:
                self._row(ordinal, ended, UNKNOWN, "")
                self._leave_out(f"a process ended ({ended.signal}) before it came to a case")
            return
        at_hand = ended.ordinal == ordinal
        if at_hand and (ended.how == "hang" or not ended.before or self._sure[ended.words] >= SURE):
            self._died(ordinal, ended)
            return
        if at_hand:
            self._process = self._start(ordinal + 1, None, 0.0, skip)
            alone = self._alone(ordinal)
            if isinstance(alone, Ended):
                self._sure[alone.words] += alone.signal not in KILLS
                self._died(ordinal, alone)
                return
            if alone is not None:
                self._done[ordinal] = alone
        self._sure.clear()
        self._look_back(ordinal, ended)

    def _look_back(self, ordinal: int, ended: Ended) -> None:
        """Find a case that ended its process after the call, while a later one was at work."""
        if ended.signal in KILLS:
            self._row(ordinal, ended, OUTSIDE, "it does not end a process of its own")
            return
        looks = LOOKED_BACK if self._in_vain < IN_VAIN else 0
        for earlier in [k for k in ended.before if k in self._texts][:looks]:
            other = None if earlier in self._dead else self._alone(earlier)
            if isinstance(other, Ended):
                self._died(earlier, other)
                return
        self._in_vain += 1
        self._row(ordinal, ended, UNKNOWN, f"it came after {len(ended.before)} other cases, and not alone")

    def _alone(self, ordinal: int) -> Checked | Ended | None:
        """A case in a process of its own."""
        process, checked = self._start(ordinal, ordinal, LINGER), None
        while True:
            got = process.step()
            if isinstance(got, Ended):
                return got
            if got[0] == DONE:
                return checked
            checked = got[1]

    def _died(self, ordinal: int, ended: Ended) -> None:
        self._dead.add(ordinal)
        self._hung += ended.how == "hang"
        self._equal[ended.words] += 1
        text, allowed = self._texts[ordinal]
        blame, why = DEVICE, ""
        if ended.stage != "device" or ended.signal in KILLS:
            blame, why = self._blame(text, allowed, ended)
        if ended.signal in KILLS and blame == UNKNOWN:
            ended = Ended(ended.ordinal, "killed", ended.signal, ended.stage, ended.after, ended.before)
        if not any(d["case"] == text and d["how"] == ended.how and d["blame"] != OUTSIDE for d in self._earlier):
            self._row(ordinal, ended, blame, why)
        if self._hung >= HANGS:
            self._leave_out(f"{HANGS} of its cases hung")
        elif not self._lived and len(self._dead) >= NONE_LIVES:
            self._leave_out(f"each of its first {len(self._dead)} cases ended the process")
        elif self._equal[ended.words] >= EQUAL:
            self._leave_out(f"{EQUAL} of its cases ended the process in equal words")
        elif time.monotonic() - self._began > self._seconds:
            self._leave_out(f"its deaths took more than {self._seconds:.0f} s")

    def _leave_out(self, why: str) -> None:
        """Run no further case, and say so at the last death."""
        self.left_out = why
        if self.deaths:
            said = f"{why}, so the rest of the item is not run"
            self.deaths[-1]["why"] = "; ".join(filter(None, (self.deaths[-1]["why"], said)))

    def _blame(self, text: str, allowed: float, ended: Ended) -> tuple[str, str]:
        """As for the death before it with the same words, else by an inquest."""
        for d in (*self._earlier, *self.deaths):
            same = (d["signal"], d["stage"], d["how"]) == (ended.signal, ended.stage, ended.how)
            if same and d["blame"] != OUTSIDE and d["why"] != inquest.PENDING:
                return d["blame"], d["why"]
        if self._inquests >= INQUESTS:
            return UNKNOWN, f"not looked into: {INQUESTS} deaths of this item were"
        self._inquests += 1
        o = self._options
        died = inquest.HANG if ended.how == inquest.HANG else ended.signal
        return inquest.held(text, How(o.device, o.faults, o.setup), allowed, died)

    def _row(self, ordinal: int, ended: Ended, blame: str, why: str) -> None:
        self.deaths.append(
            {
                "node": self._node, "item": self._item.id, "ordinal": ordinal, "case": self._texts[ordinal][0],
                "how": "killed" if blame == OUTSIDE else ended.how, "stage": ended.stage, "signal": ended.signal,
                "after": ended.after, "blame": blame, "why": why, "last": False,
            }
        )  # fmt: skip


class _Process:
    """One process that checks cases of the item."""

    def __init__(self, asked: Asked) -> None:
        given = {**asdict(asked), "skip": sorted(asked.skip)}
        self._child = Child("parity.engine.jobs.isolated", given, Watch(stages=journal.STAGES))
        self._before: list[int] = []

    def step(self) -> tuple[int, Checked] | Ended:
        """Wait for the next result, or for how the process ended. A result that is there comes first."""
        got = self._child.hear()
        if isinstance(got, End):
            return (DONE, Checked()) if got.whole else self._ended(got)
        assert got is not None
        self._before.insert(0, got["ordinal"])
        return got["ordinal"], unpacked(got["checked"])

    def close(self) -> None:
        """End it."""
        self._child.close()

    def _ended(self, end: End) -> Ended:
        at, how, signal = end.entry, "crash", end.died
        after = 0.0 if at is None and not end.hung else time.monotonic() - (self._child.began if at is None else at.started)
        if end.hung:
            how, signal = inquest.HANG, f"ended by parity after {after:.1f} s"
        elif end.lost:
            signal = f"the device computes nothing any more after {end.lost[:300]}"
        ordinal, stage = (None, "after") if at is None else (at.ordinal, at.stage)
        return Ended(ordinal, how, signal, stage, round(after, 1), tuple(self._before))


def packed(checked: Checked) -> str:
    """What a process found in a case, as text."""
    return base64.b64encode(pickle.dumps(checked)).decode()


def unpacked(text: str) -> Checked:
    """What a process found in a case."""
    checked: Checked = pickle.loads(base64.b64decode(text))
    return checked
