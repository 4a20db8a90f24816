"""The caveats that stand before a run's findings: a report without findings says little if the run was cut, or compared
nothing. Every report of a whole run gives these."""

from __future__ import annotations

from collections.abc import Iterator

from parity.engine.doctor import suspicion
from parity.engine.options import STRICT
from parity.findings.verdict import compared
from parity.report import metadata, power
from parity.report.gaps import dropped, leaks
from parity.report.words import listed, plural
from parity.store.rows import Run, is_own

SIMULATED = "a simulated device"
LOST = 200  # most characters of the names of items


def failures(run: Run) -> Iterator[tuple[str, str]]:
    """(what is missing, more about it) of everything that keeps a run without findings from being a success."""
    end = run.end
    if not any(map(compared, run.items)):
        yield "nothing was compared", "this is no success; widen the selection"
    if end is None:
        yield "the run file is cut", "it has no end row, so findings may be missing"
        return
    if end.stopped:
        yield "the run did not end", f"{end.stopped}: what it did not reach is missing"
    elif (missing := end.expected - len(run.items)) > 0:
        lost = f": {listed(end.lost, LOST)}" if end.lost else ""
        yield "items are missing", f"{missing:,} of {end.expected:,} were not compared{lost}"
    if end.broken:
        own = is_own(end.broken[0].partition(" ")[0])
        yield "an own function compared nothing" if own else "parity itself failed", end.broken[0]


def notes(run: Run) -> Iterator[tuple[str, str]]:
    """(title, text) of what makes an agreement say less than it seems."""
    if weak := power.weak(run.power):
        yield "low power", f"an agreement says less than it seems in {'; '.join(weak)}"
    if near := len(dropped(run.records)):
        yield "dropped", f"{plural(near, 'finding')} near the budget was not reproduced in a fresh process, and does not count"
    if lines := leaks(run.items):
        said = listed([x.strip() for x in lines], LOST)
        yield "memory leaks", f"every repeat of a call leaves memory on the device in {plural(len(lines), 'item')}: {said}"
    if line := metadata.line(run.items, 2 * LOST):
        yield "metadata", f"{line}; torch promises little there, so it is no finding ({STRICT} makes it one)"
    if suspect := suspicion(run.header.fingerprint):
        yield "the device is suspect", f"findings may be this machine's own; the doctor found wrong {suspect}"
    if run.header.fingerprint.simulated:
        yield SIMULATED, "this says nothing about any hardware"


def sentences(run: Run) -> list[str]:
    """All of them, each as one sentence."""
    return [f"{title[:1].upper()}{title[1:]}: {text}." for title, text in (*failures(run), *notes(run))]
