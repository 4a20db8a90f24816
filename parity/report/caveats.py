"""The caveats that stand before a run's findings: a report without findings says little if the run was cut, or compared
nothing. Every report of a whole run gives these."""

from __future__ import annotations

from collections.abc import Iterator

from parity.engine.doctor import suspicion
from parity.engine.options import STRICT
from parity.findings.verdict import Shortfall, shortfalls
from parity.report import metadata, power
from parity.report.gaps import dropped, leaks, marginal
from parity.report.words import listed, plural
from parity.store.rows import Run

SIMULATED = "a simulated device"
LOST = 200  # most characters of the names of items


def failures(run: Run) -> Iterator[tuple[str, str]]:
    """(what is missing, more about it) of everything that keeps a run without findings from being a success."""
    return ((str(s), _more(s, run)) for s in shortfalls(run))


def _more(s: Shortfall, run: Run) -> str:
    end = run.end
    if s is Shortfall.NOTHING:
        return "this is no success" + ("; widen the selection" if end is not None and not end.stopped else "")
    if end is None:
        return "it has no end row, so findings may be missing"
    if s is Shortfall.STOPPED:
        return f"{end.stopped}: what it did not reach is missing"
    if s is Shortfall.MISSING:
        lost = f": {listed(end.lost, LOST)}" if end.lost else ""
        return f"{end.expected - len(run.items):,} of {end.expected:,} were not compared{lost}"
    return "; ".join(end.failed) if s is Shortfall.FAILED else end.broken[0]


def notes(run: Run) -> Iterator[tuple[str, str]]:
    """(title, text) of what makes an agreement say less than it seems."""
    if weak := power.weak(run.power):
        yield "low power", f"an agreement says less than it seems in {'; '.join(weak)}"
    if near := len(dropped(run.records)):
        yield "dropped", f"{plural(near, 'finding')} near the budget was not reproduced in a fresh process, and does not count"
    if lines := marginal(run.records):
        said = listed([x.strip().partition(": ")[0] for x in lines], LOST)
        yield "marginal", f"{plural(len(lines), 'finding')} just outside an estimated budget, not counted: {said}"
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
