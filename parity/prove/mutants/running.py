"""Scores a sample of mutants in child processes, which a mutant may end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.core.child import BEGIN, Event
from parity.engine import suite
from parity.engine.child import Child, Watch, surroundings
from parity.prove.mutants.recording import sample

PLACE = "parity.prove.mutants.scoring."
SILENCE = 300.0  # seconds that one mutant may take before its process counts as hung
CHUNK = 12  # mutants, or rows, that one process is given
Hear = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Scores:
    """All that was found. mutants: the scores; met: row -> mutant -> cases in which its condition held; unknown: rows
    whose calls could not be recorded, with the reason."""

    profile: str
    seed: str
    mutants: tuple[Event, ...] = ()
    met: dict[str, dict[str, int]] | None = None
    unknown: tuple[str, ...] = ()


def score(patterns: Sequence[str], profile: str, seed: str, limit: int, workers: int, hear: Hear) -> Scores:
    """The scores of `limit` mutants of the rows that match; where that is 0, the map of the conditions that their cases
    meet, without planting. With patterns, other rows of a kernel are looked for among those that match."""
    wanted = tuple(dict.fromkeys(i.row.name for i in suite.select(patterns)))
    names = wanted if patterns else tuple(r.name for r in suite.rows("native"))
    environment = surroundings() | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers))

        def all_of(job: str, things: Sequence[Any], key: str, more: dict[str, Any]) -> Iterator[Event]:
            chunks = [list(things[k : k + CHUNK]) for k in range(0, len(things), CHUNK)]
            for k, events in enumerate(pool.map(lambda c: _done(PLACE + job, c, key, more, environment), chunks)):
                hear(job, min((k + 1) * CHUNK, len(things)), len(things))
                yield from events

        found = {e["name"]: e for e in all_of("recording", names, "names", {})}
        recorded = {n: e["facts"] for n, e in found.items() if "facts" in e}
        unknown = tuple(f"{n}: {found[n].get('why') or found[n].get('died')}" for n in names if n not in recorded)
        path = Path(folder) / "recorded.json"
        path.write_text(json.dumps(recorded), encoding="utf-8")
        recorded = json.loads(path.read_text(encoding="utf-8"))
        more = {"profile": profile, "seed": seed, "recorded": str(path)}
        able = [n for n in wanted if n in recorded]
        if not limit:
            met = {e["name"]: e["held"] for e in all_of("meeting", able, "names", more) if "held" in e}
            return Scores(profile, seed, met=met, unknown=unknown)
        chosen = [(m.row, m.id) for m in sample(recorded, able, limit, seed)]
        return Scores(profile, seed, tuple(all_of("scoring", chosen, "mutants", more)), unknown=unknown)


def _done(job: str, things: list[Any], key: str, more: dict[str, Any], environment: dict[str, str]) -> list[Event]:
    """What came of all of these things; a process that dies is started again for those that are left."""
    events: list[Event] = []
    while len(events) < len(things):
        given = {key: things[len(events) :], **more}
        with Child(job, given, Watch(SILENCE, SILENCE), environment=environment) as process:
            events += [e for e in process if BEGIN not in e]
            end = process.ending()
        if len(events) < len(things):  # of a mutant, what was known before
            at = things[len(events)]
            known = process.at if isinstance(process.at, dict) else {"name": at} if isinstance(at, str) else {"id": at[1]}
            events.append(known | ({"witness": ""} if "cases" in known else {"broken": f"its process ended ({end.died})"}))
            events[-1]["died"] = end.died
    return events
