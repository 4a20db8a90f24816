"""Known findings as text: entries for a list, and what a run says of them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from parity.findings.known import Entry, Known
from parity.findings.verdict import FIXED, KNOWN, NOT_SEEN, standings
from parity.report import causes
from parity.report.words import listed, plural
from parity.store.rows import EXPIRED, GROWN, Sighting


def what(e: Entry) -> str:
    """What an entry is, in a sentence without its full stop."""
    if e.cause is not None:
        return causes.sentence(e.cause, e.members)
    return f"{e.status} in {listed(e.ops)}" + (", which comes and goes" if e.by_chance else "")


def line(e: Entry) -> str:
    return f"[{e.id}] {what(e)}"


def render(known: Known, today: date) -> str:
    """All entries, each with its reason."""
    text: list[str] = []
    for e in known.entries:
        ended = " (EXPIRED)" if e.expired(today) else ""
        where = f"{e.status} in {listed(e.ops)} ({listed(e.dtypes, 40) if e.dtypes else 'all dtypes'})"
        text += [line(e), f"  {e.why}{ended}", f"  {where}; {plural(len(e.cases), 'case')}"]
        text += [f"  since {e.since}"] if str(e.since) else []
    written = f", written for {known.environment}" if str(known.environment) else ""
    return "\n".join([*text, f"{plural(len(known.entries), 'entry').replace('entrys', 'entries')}{written}"])


def count_line(known: Known, sightings: Iterable[Sighting], new: int) -> str:
    """The known findings of a run in one line. new: number of causes that are in no entry."""
    n = Counter(s.state for s in standings(known.entries, sightings))
    parts = (f"{n[KNOWN]} known", f"{new} new", f"{n[FIXED]} fixed", f"{n[GROWN]} grown", f"{n[EXPIRED]} expired")
    return f"known findings: {', '.join(parts)}, {n[NOT_SEEN]} not seen ({Path(known.code.name).name})"


def lines(known: Known, sightings: Sequence[Sighting], most: int) -> list[str]:
    """What a run says of the known findings, in so many lines: what fails first, and what can be dropped."""
    some = standings(known.entries, sightings)
    file = shlex.quote(_shown(known.code.name))
    text: list[str] = []
    for s in (s for s in some if s.state == EXPIRED):
        text.append(f"  EXPIRED {line(s.entry)}: {'; '.join(s.why)}")
    for s in sorted((s for s in some if s.state == GROWN), key=lambda s: not s.fails):
        more = f" and {len(s.why) - 3} more" if len(s.why) > 3 else ""
        text.append(f"  {'GROWN' if s.fails else 'grown'} {line(s.entry)}: {'; '.join(s.why[:3])}{more}")
    for s in (s for s in some if s.state == FIXED):
        text.append(f"  fixed {line(s.entry)}: remove it with parity known drop {file} {s.entry.id}")
    text += [f"  {line(s.entry)} ({s.entry.why})" for s in some if s.state == KNOWN]
    text += [f"  not seen {line(s.entry)}{': ' + '; '.join(s.why) if s.why else ''}" for s in some if s.state == NOT_SEEN]
    if len(text) > most:
        text = [*text[: most - 1], f"  ... {plural(len(text) - most + 1, 'more line')}: parity run -v"]
    return text


def _shown(path: str) -> str:
    """A path as a person would type it here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def failure(s: Sighting, e: Entry) -> str:
    """A sighting that fails an item, for its message."""
    how = "expired" if s.state == EXPIRED else "has grown"
    case = f"\n  case: {s.case}" if s.case else ""
    return f"{s.op} {s.dtype}{f' {s.aspect}' if s.aspect else ''}: the known finding {line(e)} {how}: {s.why}{case}"


def accepted(entries: Iterable[Entry]) -> str:
    """Why an item with known findings does not fail."""
    return "known: " + "; ".join(f"{line(e)} ({e.why})" for e in entries)
