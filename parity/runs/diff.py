"""What changed between two runs. Records are paired by case, aspect and inputs; explored cases are compared by op, dtype and
aspect.

A *cell* is one op in one dtype and one aspect. A finding of the later run is a regression unless the earlier run had a finding
of the same kind (status) in the same check or, if the check has no partner, in the same cell: exploration draws other cases in
each run unless seed and profile are equal. It does not matter what the earlier run had instead: agreement, a refusal, a
fallback, nothing, or a finding of another kind (a crash that became `wrong` is new to users who worked around the crash). The
exception is a change from `wrong` to `drift`, which is an improvement.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from parity.core.errors import NothingCompared
from parity.core.results import Fingerprint, Record, Status
from parity.runs.rows import Header, Run, counted

Cell: TypeAlias = tuple[str, str, str]

FLOOR = 2.0**-7  # error ratios below this are noise: a ratio must reach twice as much, 2**-6, to count as grown
ABSENT = frozenset({Status.UNSUPPORTED, Status.FALLBACK})
DEATHS = frozenset({Status.CRASH, Status.HANG, Status.KILLED})
SHOWN = 12  # lines per list of the summary


@dataclass(frozen=True, slots=True)
class Change:
    """A check whose status changed. paired: whether both runs have the very same case; otherwise only op, dtype and aspect are
    the same."""

    op: str
    dtype: str
    aspect: str
    case: str
    before: str
    after: str
    reason: str = ""
    paired: bool = True


@dataclass(frozen=True, slots=True)
class Shift:
    """How the error ratios of one cell moved: log2(after / before) over its pairs. moved: pairs that moved by a factor of 2 or
    more in this direction; case: the one that moved most."""

    op: str
    dtype: str
    aspect: str
    pairs: int
    moved: int
    median: float
    worst: float
    case: str


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed. only_before, only_after: number of records without a partner; changed: (field, before, after) of the
    fingerprints."""

    paired: int
    cells: int
    checks: tuple[int, int] = (0, 0)  # in the common cells: before, after
    regressed: tuple[Change, ...] = ()
    eased: tuple[Change, ...] = ()  # still no agreement, but less severe: wrong -> drift, crash -> unsupported
    fixed: tuple[Change, ...] = ()
    lost: tuple[Change, ...] = ()
    gained: tuple[Change, ...] = ()
    grown: tuple[Shift, ...] = ()
    shrunk: tuple[Shift, ...] = ()
    only_before: int = 0
    only_after: int = 0
    changed: tuple[tuple[str, str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    options: str = ""  # how to replay a case of the later run: its device, its faults and its setup
    incomplete: tuple[str, ...] = ()  # what a run lacks of what it was asked for

    @property
    def exit_code(self) -> int:
        """1 if anything regressed or was lost, or if a run is incomplete, else 0."""
        return 1 if self.regressed or self.lost or self.incomplete else 0


# ------------------------------------------------------------------------------------------------------------- comparing


def compare(before: Run, after: Run, partial: bool = False) -> Diff:
    """What changed from one run to another. partial: accept incomplete runs.

    Raises NothingCompared if the runs have no comparison in common and nothing changed.
    """
    before, after = with_deaths(before), with_deaths(after)
    old, new = {r.key: r for r in before.records}, {r.key: r for r in after.records}
    pairs = [(r, new[key]) for key, r in old.items() if key in new]
    cells_before, cells_after = _cells(before), _cells(after)
    shared = cells_before.keys() & cells_after.keys()
    lacking = tuple(_lacking(before, after))
    warnings = (*_warnings(before, after, len(pairs)), *lacking)
    changes = [(a, b, _change(a, b)) for a, b in pairs if a.status != b.status]
    regressed = [c for a, b, c in changes if _new(b.status, (a.status,))]
    fixed = [c for a, b, c in changes if Status(a.status).is_finding and _agreed(b)]
    lost = [c for a, b, c in changes if Status(a.status).is_comparison and b.status in ABSENT]
    gained = [c for a, b, c in changes if a.status in ABSENT and _agreed(b)]
    listed = {*regressed, *fixed, *lost}
    eased = [c for a, _, c in changes if Status(a.status).is_finding and c not in listed]
    alone_before = [r for key, r in old.items() if key not in new]
    alone_after = [r for key, r in new.items() if key not in old]
    regressed += _appeared(cells_before, cells_after, after, {(_cell(c), c.after) for c in regressed})
    regressed += _multiplied(cells_before, cells_after, {_cell(c) for c in regressed})
    fixed += _cleared(alone_before, cells_after, {_cell(c) for c in fixed})
    lost += _vanished(cells_before, cells_after, after, {_cell(c) for c in lost}, forward=True)
    gained += _vanished(cells_after, cells_before, after, {_cell(c) for c in (*gained, *regressed)}, forward=False)
    both = any(Status(a.status).is_comparison and Status(b.status).is_comparison for a, b in pairs)
    both = both or any(_compares(cells_before[c]) and _compares(cells_after[c]) for c in shared)
    if not (both or regressed or lost or gained or fixed or eased):
        raise NothingCompared(
            "the two runs have no comparison in common, so nothing was compared"
            + "".join(f"; {w}" for w in warnings)
            + "; run both with the same selection, profile and seed, on a device that runs them"
        )
    # An error ratio that changed the status is already in the changes above.
    grown, shrunk = _shifts((a, b) for a, b in pairs if a.status == b.status)
    return Diff(
        paired=len(pairs),
        cells=len(shared),
        checks=(_checks(cells_before, shared), _checks(cells_after, shared)),
        regressed=tuple(regressed),
        eased=tuple(eased),
        fixed=tuple(fixed),
        lost=tuple(lost),
        gained=tuple(gained),
        grown=grown,
        shrunk=shrunk,
        only_before=len(alone_before),
        only_after=len(alone_after),
        changed=tuple(_changed(before.header.fingerprint, after.header.fingerprint)),
        warnings=warnings,
        options=_options(after.header),
        incomplete=() if partial else lacking,
    )


def _options(h: Header) -> str:
    files = ("--faults", h.faults.name), ("--setup", h.setup.name)
    given = "".join(f" {option} {shlex.quote(name)}" for option, name in files if name)
    return f" --device {shlex.quote(h.fingerprint.device)}{given}" if h.fingerprint.device else ""


def with_deaths(run: Run) -> Run:
    """The run with a record for every death that counts."""
    dead = (
        Record(d.case, d.op, d.dtype, d.aspect or "forward", d.how, reason=f"{d.signal} at stage {d.stage}")
        for d in counted(run.deaths, run.items)
    )
    return replace(run, records=(*run.records, *dead))


def _multiplied(before: Mapping[Cell, Counter[str]], after: Mapping[Cell, Counter[str]], listed: set[Cell]) -> list[Change]:
    """Cells that had findings before and now have at least twice the fraction of them, and at least five more."""
    worse = []
    for cell in before.keys() & after.keys() - listed:
        (few, of), (many, now) = ((_findings(c), sum(c.values())) for c in (before[cell], after[cell]))
        if few and many >= few + 5 and many * of >= 2 * few * now:
            worse.append(Change(*cell, "", f"{few} findings of {of}", f"{many} findings of {now}", paired=False))
    return worse


def _new(status: str, before: Collection[str]) -> bool:
    """Whether a status is a finding that `before` does not contain, as itself or as something worse."""
    worse = status == Status.DRIFT and Status.WRONG in before
    return Status(status).is_finding and status not in before and not worse


def _findings(counts: Mapping[str, int]) -> int:
    return sum(n for s, n in counts.items() if Status(s).is_finding)


def _agreed(r: Record) -> bool:
    return r.status == Status.AGREE


def _change(before: Record, after: Record) -> Change:
    return Change(after.op, after.dtype, after.aspect, after.case, before.status, after.status, after.reason)


def _cell(x: Record | Change) -> Cell:
    return x.op, x.dtype, x.aspect


def _cells(run: Run) -> dict[Cell, Counter[str]]:
    """Statuses per cell: of finished items, which count all their checks, and of deaths. An item that never finished has only
    its records."""
    cells: dict[Cell, Counter[str]] = {}
    for item in run.items:
        for aspect, counts in item.counts.items():
            cells.setdefault((item.op, item.dtype, aspect), Counter()).update({s: n for s, n in counts.items() if n})
    ended = {(item.op, item.dtype) for item in run.items}
    for cell, status, _ in dict.fromkeys((_cell(r), r.status, r.key) for r in run.records):
        if cell[:2] not in ended or status in DEATHS:
            cells.setdefault(cell, Counter())[status] += 1
    return cells


def _checks(cells: Mapping[Cell, Counter[str]], which: Iterable[Cell]) -> int:
    return sum(sum(cells[c].values()) for c in which)


def _clean(counts: Mapping[str, int] | None) -> bool:
    """Whether a cell compared something without a finding."""
    if counts is None or not counts.get(Status.AGREE):
        return False
    return not any(n and Status(s).is_finding for s, n in counts.items())


def _appeared(
    before: Mapping[Cell, Counter[str]], after: Mapping[Cell, Counter[str]], run: Run, listed: set[tuple[Cell, str]]
) -> list[Change]:
    """One change per cell and kind of finding that is new in the cell. run: the later one, which provides a case if it has
    one."""
    cases: dict[tuple[Cell, str], Record] = {}
    for r in run.records:
        known = cases.setdefault((_cell(r), r.status), r)
        if r.shrunk and not known.shrunk:
            cases[_cell(r), r.status] = r
    tried = {cell[:2] for cell in before}
    changes = []
    for cell, counts in after.items():
        had = before.get(cell, Counter[str]())
        for status in counts:
            if not _new(status, had) or (cell, status) in listed:
                continue
            hit = cases.get((cell, status))
            case, reason = (hit.shrunk or hit.case, hit.reason) if hit else ("", "")
            changes.append(Change(*cell, case, _state(had, cell[:2] in tried), status, reason, paired=False))
    return changes


def _state(counts: Mapping[str, int], tried: bool) -> str:
    """The worst status of a cell, in words. tried: whether its op was run in its dtype."""
    order = sorted(counts, key=lambda s: (not Status(s).is_finding, s != Status.AGREE, -counts[s]))
    return order[0] if order else "not compared" if tried else "not run"


def _cleared(alone: Iterable[Record], after: Mapping[Cell, Mapping[str, int]], listed: set[Cell]) -> list[Change]:
    """One change per cell with unpaired findings of the earlier run, if the cell fully agrees in the later one."""
    changes: dict[Cell, Change] = {}
    for r in alone:
        cell = _cell(r)
        if Status(r.status).is_finding and cell not in listed and _clean(after.get(cell)):
            changes.setdefault(cell, Change(*cell, r.shrunk or r.case, r.status, "agree", r.reason, paired=False))
    return list(changes.values())


def _compares(counts: Mapping[str, int]) -> bool:
    return any(n and Status(s).is_comparison for s, n in counts.items())


def _vanished(
    had: Mapping[Cell, Mapping[str, int]], has: Mapping[Cell, Mapping[str, int]], run: Run, listed: set[Cell], forward: bool
) -> list[Change]:
    """Cells that compare in `had` and are only refused, or moved to the CPU, in `has`.

    run: the later one; forward: whether `had` is the earlier one.
    """
    cases = {_cell(r): r for r in reversed(run.records)}
    changes = []
    for cell, counts in has.items():
        absent = next((s for s in sorted(counts) if counts[s] and s in ABSENT), "")
        if cell in listed or not absent or _compares(counts) or not _compares(had.get(cell, {})):
            continue
        r = cases.get(cell)
        words = ("compared", absent) if forward else (absent, "compared")
        changes.append(Change(*cell, r.case if r else "", *words, r.reason if r else "", paired=False))
    return changes


def _error_ratio(r: Record) -> float | None:
    """The largest measured error ratio of a record; None if screens decided or it is NaN."""
    shares = [m.share for m in r.measures if m.measured and m.share is not None and not math.isnan(m.share)]
    return max(shares, default=None)


def _shifts(pairs: Iterable[tuple[Record, Record]]) -> tuple[tuple[Shift, ...], tuple[Shift, ...]]:
    """Cells whose error ratios grew, and cells whose error ratios shrank, by a factor of 2 or more in some pair; the largest
    shift first."""
    moves: dict[Cell, list[tuple[float, str]]] = {}
    for a, b in pairs:
        old, new = _error_ratio(a), _error_ratio(b)
        if old is not None and new is not None:
            # Infinity has no ratio, so it counts as 2**64 budgets.
            low, high = (min(max(s, FLOOR), 2.0**64) for s in (old, new))
            moves.setdefault(_cell(b), []).append((math.log2(high / low), b.case))
    grown: list[Shift] = []
    shrunk: list[Shift] = []
    for cell, ratios in moves.items():
        median = statistics.median(x for x, _ in ratios)
        for sign, into in ((1, grown), (-1, shrunk)):
            worst, case = max(ratios, key=lambda pair: sign * pair[0])
            if sign * worst >= 1:
                moved = sum(sign * x >= 1 for x, _ in ratios)
                into.append(Shift(*cell, len(ratios), moved, median, worst, case))
    return tuple(sorted(grown, key=lambda s: -s.worst)), tuple(sorted(shrunk, key=lambda s: s.worst))


def _warnings(before: Run, after: Run, paired: int) -> Iterator[str]:
    a, b = before.header, after.header
    if a.fingerprint.device != b.fingerprint.device or a.fingerprint.device_name != b.fingerprint.device_name:
        yield f"the devices differ: {_device(a)} and {_device(b)}"
    for what in ("seed", "profile", "selection"):
        x, y = getattr(a, what), getattr(b, what)
        if x != y:
            yield f"the {what}s differ: '{x}' and '{y}'"
    for what, one, other in (("setups", a.setup, b.setup), ("faults", a.faults, b.faults)):
        if not one.same(other):
            yield f"the {what} differ: {one} and {other}"
    if not paired:
        yield "no case is in both runs"


def _lacking(before: Run, after: Run) -> Iterator[str]:
    """What the runs lack of what they were asked for."""
    for word, run in (("first", before), ("second", after)):
        if run.end is None:
            yield f"the {word} run is truncated"
            continue
        if run.end.stopped:
            yield f"the {word} run did not end ({run.end.stopped}): what it did not reach is missing here"
        elif (missing := run.end.expected - len(run.items)) > 0:
            named = f" ({', '.join(run.end.lost[:3])})" if run.end.lost else ""
            yield f"the {word} run lacks {missing} of its {run.end.expected:,} items{named}"
        if run.end.broken:
            yield f"parity itself failed in the {word} run: {run.end.broken[0]}"


def _device(h: Header) -> str:
    return f"{h.fingerprint.device} ({h.fingerprint.device_name})"


def _changed(a: Fingerprint, b: Fingerprint) -> Iterator[tuple[str, str, str]]:
    """Fields of the fingerprint that differ; environment variables and facts one by one."""
    for f in fields(Fingerprint):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if not isinstance(x, tuple):
            if x != y:
                yield f.name, str(x), str(y)
            continue
        old, new = dict(x), dict(y)
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                yield key, old.get(key, "unset"), new.get(key, "unset")


# ------------------------------------------------------------------------------------------------------------- rendering


def render(diff: Diff) -> str:
    """A short summary in plain text; its last line is the next command."""
    before, after = diff.checks
    lines = [
        f"compared: {diff.paired:,} {'record' if diff.paired == 1 else 'records'} of the same case in both runs, and by count "
        f"{diff.cells:,} op x dtype x aspect cells ({before:,} checks before, {after:,} after)"
    ]
    lines += [f"warning: {w}" for w in diff.warnings]
    lines += [f"changed: {name} {a} -> {b}" for name, a, b in diff.changed]
    if diff.only_before or diff.only_after:
        lines.append(f"records without a partner: {diff.only_before:,} before, {diff.only_after:,} after")
    for word in ("regressed", "lost", "eased", "gained", "fixed"):
        lines += _listed(word, [_change_line(c) for c in getattr(diff, word)])
    for word in ("grown", "shrunk"):
        lines += _listed(word, [_shift_line(s) for s in getattr(diff, word)])
    partly = bool(diff.warnings) and bool(diff.only_before or diff.only_after)
    worth: tuple[Change | Shift, ...] = (*diff.regressed, *diff.lost, *diff.grown)
    case = next((c.case for c in worth if c.case), "")
    if diff.incomplete:
        lines.append("incomplete: what a run lacks cannot be compared; run it again, or take what is there with --partial")
    if not any((*worth, *diff.eased, *diff.gained, *diff.fixed, *diff.shrunk)):
        lines.append("nothing changed in what is in both runs" if partly else "nothing changed")
    idle = "run both whole, with the same selection, profile and seed" if partly else "nothing to do"
    lines.append(f"next: parity replay {shlex.quote(case)}{diff.options}" if case else f"next: {idle}")
    return "\n".join(lines)


def _listed(word: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    rest = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [f"{word}: {len(lines)}", *(f"  {line}" for line in lines[:SHOWN]), *rest]


def _change_line(c: Change) -> str:
    where = f": {c.case}" if c.case else ""
    return f"{c.op} {c.dtype} {c.aspect} {c.before} -> {c.after}{'' if c.paired else ' (another case)'}{where}"


def _shift_line(s: Shift) -> str:
    return (
        f"{s.op} {s.dtype} {s.aspect} {s.moved} of {s.pairs} pairs by a bit or more: "
        f"median {s.median:+.1f} bits, worst {s.worst:+.1f}: {s.case}"
    )
