"""Two runs side by side: what a page says of a run against an earlier one.

What changed check by check is `parity.history.diff`'s to say. This adds what a person asks first: which causes are new, which
are gone, and how the counts moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from parity.core.results import COMPARED, FINDINGS, Fingerprint, Status
from parity.findings.causes import Gathered, apart
from parity.findings.weights import WEIGHTS
from parity.history.diff import Diff, compare
from parity.report.causes import sentence_of
from parity.report.diff import about
from parity.report.words import clock
from parity.store.rows import Run, counted, totals

LISTED = 300  # changes of one kind that a page lists


@dataclass(frozen=True, slots=True)
class Count:
    """A number in both runs. word: of what; worse: the sign of a change for the worse, 0 where it is neither."""

    word: str
    before: float
    after: float
    worse: int = 0
    text: tuple[str, str] = ("", "")

    @property
    def change(self) -> str:
        """The difference with its sign; empty if there is none."""
        if self.text[0] or self.before == self.after:
            return ""
        return f"{self.after - self.before:+,.0f}"

    @property
    def style(self) -> str:
        """`bad`, `good`, or neither."""
        moved = (self.after - self.before) * self.worse
        return "bad" if moved > 0 else "good" if moved < 0 else ""

    @property
    def shown(self) -> tuple[str, str]:
        """Both numbers as text."""
        return self.text if self.text[0] else (f"{self.before:,.0f}", f"{self.after:,.0f}")


@dataclass(frozen=True, slots=True)
class CauseChange:
    """A cause in both runs, or in one. kinds: of findings or deaths, before and after."""

    id: str
    weight: str
    sentence: str
    case: str
    kinds: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Trends:
    """causes: (title, those causes, whether it matters at first sight); fingerprints: (field, before, after, whether they
    differ); changes: (title, how many, lines, cut at `LISTED`). chance: whether the runs drew different cases, so that a cause
    may be in one of them alone by chance."""

    diff: Diff
    counts: tuple[Count, ...]
    causes: tuple[tuple[str, tuple[CauseChange, ...], bool], ...]
    chance: bool
    fingerprints: tuple[tuple[str, str, str, bool], ...]
    changes: tuple[tuple[str, int, tuple[str, ...]], ...]


def of_runs(before: Run, after: Run) -> Trends:
    """What changed from one run to another; what a truncated run is missing is among the warnings of its diff.

    Raises NothingCompared if the runs have nothing in common.
    """
    made = compare(before, after, partial=True)
    old, new = ({c.cause.id: c for c in _causes(run)} for run in (before, after))
    appeared = [c for i, c in new.items() if i not in old]
    vanished = [c for i, c in old.items() if i not in new]
    causes = (
        ("New causes", tuple(_change(None, c) for c in appeared if _ran(c, before)), True),
        ("Causes of what the earlier run did not run", tuple(_change(None, c) for c in appeared if not _ran(c, before)), True),
        ("Causes that are gone", tuple(_change(c, None) for c in vanished if _ran(c, after)), True),
        ("Causes of what the later run did not run", tuple(_change(c, None) for c in vanished if not _ran(c, after)), False),
        ("Causes in both", tuple(_change(old[i], c) for i, c in new.items() if i in old), False),
    )
    one, two = before.header, after.header
    return Trends(
        made,
        tuple(_counts(before, after, tuple(old.values()), tuple(new.values()))),
        tuple(x for x in causes if x[1]),
        (one.seed, one.profile) != (two.seed, two.profile),
        tuple(_fingerprints(before, after)),
        tuple(_changes(made)),
    )


def _causes(run: Run) -> tuple[Gathered, ...]:
    return apart(run.records, counted(run.deaths, run.items))


def _ran(c: Gathered, run: Run) -> bool:
    """Whether a run tried any op of a cause in a dtype of it, whole or until a process died."""
    shown = {(r.op, r.dtype) for r in c.records} | {(d.op, d.dtype) for d in c.deaths}
    tried = {(i.op, i.dtype) for i in run.items} | {(d.op, d.dtype) for d in run.deaths}
    return bool(shown & tried)


def _change(old: Gathered | None, new: Gathered | None) -> CauseChange:
    c = new or old
    assert c is not None
    kinds = tuple(0 if x is None else len(x.records) or len(x.deaths) for x in (old, new))
    return CauseChange(c.cause.id, c.weight, sentence_of(c), c.case, (kinds[0], kinds[1]))


def _counts(before: Run, after: Run, old: Sequence[Gathered], new: Sequence[Gathered]) -> Iterator[Count]:
    old, new = ([c for c in some if c.searched] for some in (old, new))
    yield Count("causes", len(old), len(new), 1)
    for w in WEIGHTS:
        yield Count(f"causes of weight {w}", sum(c.weight == w for c in old), sum(c.weight == w for c in new), 1)
    one, two = totals(before.items), totals(after.items)
    yield Count("checks that compared", _sum(one), _sum(two), -1)
    for s in Status:
        if one[s] or two[s]:
            yield Count(f"checks: {s}", one[s], two[s], 1 if s in FINDINGS else 0)
    died, dead = (len(counted(r.deaths, r.items)) for r in (before, after))
    yield Count("deaths of the process", died, dead, 1)
    yield Count("ops in a dtype", len(before.items), len(after.items), -1)
    yield Count("elements judged", 0, 0, 0, (_judged(before), _judged(after)))
    yield Count("took", 0, 0, 0, (_took(before), _took(after)))


def _sum(count: Counter[str]) -> int:
    return sum(n for s, n in count.items() if s in COMPARED)


def _judged(run: Run) -> str:
    judged, left = sum(i.judged for i in run.items), sum(i.unjudged for i in run.items)
    return f"{judged / (judged + left):.2%}" if judged + left else "none"


def _took(run: Run) -> str:
    return clock(run.end.seconds) if run.end is not None else "did not end"


def _fingerprints(before: Run, after: Run) -> Iterator[tuple[str, str, str, bool]]:
    """What the runs ran on and with."""
    pairs = [(name, getattr(before.header, name), getattr(after.header, name)) for name in ("seed", "profile", "selection")]
    pairs += [(name, str(getattr(before.header, name)), str(getattr(after.header, name))) for name in ("faults", "setup")]
    a, b = before.header.fingerprint, after.header.fingerprint
    for f in fields(Fingerprint):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if isinstance(x, tuple):
            old, new = dict(x), dict(y)
            pairs += [(k, old.get(k, "unset"), new.get(k, "unset")) for k in dict.fromkeys([*old, *new])]
        else:
            pairs.append((f.name, str(x), str(y)))
    yield from ((name, x, y, x != y) for name, x, y in pairs if x or y)


def _changes(made: Diff) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    for group, entries in made.groups.items():
        lines = tuple(about(t) + (f": {t.case}" if t.case else "") for t in entries[:LISTED])
        yield group.words.capitalize(), len(entries), lines
