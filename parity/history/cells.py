"""A run by cells: one op in one dtype and one aspect each, with how often each status stands there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from parity.core.errors import UsageError, near
from parity.core.results import DEATHS, Aspect, Record, Status
from parity.findings.standing import new_of
from parity.history.change import Change, Group
from parity.history.drift import Cell
from parity.store.rows import SEEN, Run, counted, is_own

Item: TypeAlias = tuple[str, str]  # op and dtype


def broken_in(run: Run) -> dict[str, str]:
    """What failed in parity itself, by the names of the items."""
    return {b.partition(" ")[0].rstrip(":"): b for b in (run.end.broken if run.end is not None else ())}


def item_name(op: str, dtype: str) -> str:
    """The name of an item, as a run says it."""
    return op if is_own(op) else f"{op}-{dtype}"


def comparing(cells: Mapping[Cell, Mapping[str, int]]) -> set[Item]:
    """The ops and dtypes of which something was compared; what both sides refuse says nothing of the device."""
    return {cell[:2] for cell, counts in cells.items() if cell[2] != Aspect.REFUSAL and compares(counts)}


def items_of(run: Run) -> set[Item]:
    """The ops and dtypes of a run."""
    rows: tuple[Any, ...] = (*run.items, *run.records, *run.deaths)
    return {(r.op, r.dtype) for r in rows}


def only(run: Run, ops: Sequence[str], word: str) -> Run:
    """What a run holds of the ops that match a pattern; all of it without patterns. word: which run it is. Raises UsageError
    for a pattern that matches none."""
    names = {op for op, _ in items_of(run)}
    for pattern in ops:
        if not any(fnmatchcase(op, pattern) for op in names):
            raise UsageError(f"the {word} run has no op '{pattern}'; {near(pattern, names)}".rstrip("; "))
    if not ops:
        return run

    def asked(rows: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(r for r in rows if any(fnmatchcase(r.op, p) for p in ops))

    parts: dict[str, Any] = {
        name: asked(getattr(run, name)) for name in ("records", "items", "deaths", "power", "again", "figures", "known")
    }
    left = len(run.items) - len(parts["items"])
    end = None if run.end is None else replace(run.end, expected=run.end.expected - left)
    return replace(run, **parts, end=end)


def is_whole(run: Run) -> bool:
    """Whether the run has all that it was asked for."""
    return run.end is not None and not run.end.stopped and len(run.items) + len(run.end.broken) >= run.end.expected


def without_gone(run: Run) -> Run:
    """The run without findings that were not reproduced in a fresh process: a difference in what does not count is none."""
    gone = {(r.op, r.dtype, r.aspect) for r in run.records if r.gone}
    gone -= {(r.op, r.dtype, r.aspect) for r in run.records if r.counts}
    if not gone:
        return run
    items = tuple(
        replace(i, counts={a: c if (i.op, i.dtype, a) not in gone else _agreeing(c) for a, c in i.counts.items()})
        for i in run.items
    )
    return replace(run, items=items, records=tuple(r for r in run.records if not r.gone))


def _agreeing(counts: Mapping[str, int]) -> dict[str, int]:
    return {s: n for s, n in counts.items() if not Status(s).is_finding}


def with_deaths(run: Run) -> Run:
    """The run with a record for every death that counts."""
    dead = (
        Record(d.case, d.op, d.dtype, d.aspect or "forward", d.how, reason=f"{d.signal} at stage {d.stage}", known=d.known)
        for d in counted(run.deaths, run.items)
    )
    return replace(run, records=(*run.records, *dead))


def findings_of(counts: Mapping[str, int]) -> int:
    """How many findings a cell has."""
    return sum(n for s, n in counts.items() if Status(s).is_finding)


def agreed(r: Record) -> bool:
    """Whether a check agreed."""
    return r.status == Status.AGREE


def cell_of(r: Record) -> Cell:
    """The cell of a record."""
    return r.op, r.dtype, r.aspect


def cells_of_run(run: Run) -> dict[Cell, Counter[str]]:
    """Statuses per cell: of finished items, which count all their checks, and of deaths. An item that never finished has only
    its records."""
    cells: dict[Cell, Counter[str]] = {}
    for item in run.items:
        for aspect, counts in item.counts.items():
            cells.setdefault((item.op, item.dtype, aspect), Counter()).update({s: n for s, n in counts.items() if n})
    ended = {(item.op, item.dtype) for item in run.items}
    for cell, status, _ in dict.fromkeys((cell_of(r), r.status, r.key) for r in run.records):
        if cell[:2] not in ended or status in DEATHS:
            cells.setdefault(cell, Counter())[status] += 1
    return cells


def checks_of(cells: Mapping[Cell, Counter[str]], which: Iterable[Cell]) -> int:
    """How many checks these cells have."""
    return sum(sum(cells[c].values()) for c in which)


def clean(counts: Mapping[str, int] | None) -> bool:
    """Whether a cell compared something without a finding."""
    if counts is None or not counts.get(Status.AGREE):
        return False
    return not any(n and Status(s).is_finding for s, n in counts.items())


def compares(counts: Mapping[str, int]) -> bool:
    """Whether a cell compared something."""
    return any(n and Status(s).is_comparison for s, n in counts.items())


def accepted_in(run: Run) -> set[Cell]:
    """The cells of whose findings all are known."""
    found, (new, _) = [r for r in run.records if Status(r.status).is_finding], new_of(run)
    return {cell_of(r) for r in found} - {cell_of(r) for r in new if Status(r.status).is_finding}


def refused_in(run: Run, cells: Mapping[Cell, Mapping[str, int]]) -> set[Cell]:
    """The cells of which an entry accepts that the device refuses them, or leaves them to the CPU, if they show but one of
    both. Such an entry is seen without a case."""
    seen = {(s.op, s.dtype, s.aspect) for s in run.known if s.state == SEEN and not s.case}
    return {c for c in seen & cells.keys() if sum(Status(s).is_absence and n > 0 for s, n in cells[c].items()) == 1}


def unmade_in(after: Run, had: Collection[Cell]) -> list[Change]:
    """Ops and own functions that failed in parity itself in the later run. had: the cells that the earlier one compared."""
    broken = broken_in(after)
    return [
        Change(op, dtype, "", "", "compared", "not made", broken[item_name(op, dtype)], group=Group.UNMADE)
        for op, dtype in sorted({c[:2] for c in had})
        if item_name(op, dtype) in broken
    ]


def is_new(status: str, before: Collection[str]) -> bool:
    """Whether a status is a finding that `before` does not contain, as itself or as something worse."""
    worse = status == Status.DRIFT and Status.WRONG in before
    return Status(status).is_finding and status not in before and not worse


def state_of(counts: Mapping[str, int], tried: bool) -> str:
    """The worst status of a cell, in words. tried: whether its op was run in its dtype."""
    order = sorted(counts, key=lambda s: (not Status(s).is_finding, s != Status.MARGINAL, s != Status.AGREE, -counts[s]))
    return order[0] if order else "not compared" if tried else "not run"
