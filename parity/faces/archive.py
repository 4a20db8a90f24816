"""`parity doctor --archive`: the most revealing checks on a device that nobody has tried yet, within minutes, in one archive.

Each step (the examination, what graphs and calls take, the reported cases, a run, its reach) is a process of its own;
whatever becomes of one, the next begins, and the archive is written in the end, after Ctrl-C too.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from parity.core.child import BEGIN, Event
from parity.devices.base import environment
from parity.engine import suite
from parity.engine.child import Child, Watch, surroundings
from parity.engine.doctor import PROBE_SECONDS
from parity.faces.guarded import COMMAND
from parity.faces.interruption import Interruptions
from parity.report import archive
from parity.report.archive import DIED, DIFFERS, Step

MINUTES = 10.0
PER_FAMILY = 3  # ops of each family that the run takes
COSTS_SHARE, REPORTED_SHARE, RUN_SHARE = 0.2, 0.3, 0.9  # of what is left of the time when the step begins
AUDIT_SECONDS = 60.0  # at least: it needs few, and is worth them after a run that took all the time
COSTS_SECONDS = 30.0  # at least, of which a process takes some until it measures
GRACE = 30.0  # seconds in which a step that was asked to stop stores what it has
HUNG = 60.0  # seconds after which a reported case is ended
INTERRUPTED, ABSENT = 130, 4
REPORTED, COSTS = "parity.zoo.reported.job", "parity.engine.examining.costs"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asked for. patterns: ops instead of the spread. output: the archive."""

    device: str
    output: Path
    minutes: float = MINUTES
    faults: str = ""
    setup: str = ""
    patterns: tuple[str, ...] = ()
    workers: int = 1


def spread() -> tuple[str, ...]:
    """Some ops of every family, far apart in its list."""
    families: dict[str, dict[str, None]] = {}
    for item in suite.select():
        families.setdefault(item.row.family, {})[item.row.name] = None
    ops: list[str] = []
    for names in map(list, families.values()):
        ops += names[:: max(1, -(-len(names) // PER_FAMILY))]
    return tuple(ops)


def written(asked: Asked, hear: Callable[[str], None]) -> int:
    """Take every step that the time allows, and write the archive; the exit code: 0 where all ran, 1 where a step died or the
    device differs, 4 where there is no such device, 130 where it was interrupted.

    hear: called with each step. Raises OutputError where the archive cannot be written.
    """
    steps: list[Step] = []
    stopped = False
    with tempfile.TemporaryDirectory(prefix="parity-archive-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        with Interruptions() as signals:
            try:
                for step in _steps(asked, folder, time.monotonic() + 60 * asked.minutes):
                    steps.append(step)
                    ended = "its time was over" if step.late else f"exit code {step.code}"
                    hear(f"{step.name}: {step.seconds:.0f} s, {ended}; {step.said}")
            except KeyboardInterrupt:
                stopped = True
            signals.hold()
            about = {"device": asked.device, "minutes": asked.minutes, "patterns": asked.patterns, "interrupted": stopped}
            archive.write(asked.output, folder, about, steps)
    hear(f"wrote {asked.output}; look into it, it is plain text, and send it back")
    if stopped:
        return INTERRUPTED
    return ABSENT if steps[0].code == ABSENT else int(any(s.code and not s.late for s in steps))


# ------------------------------------------------------------------------------------------------------------- the steps


def _steps(asked: Asked, folder: Path, until: float) -> Iterator[Step]:
    """The examination, the costs, the reported cases, the run and its reach, each as soon as the one before is through."""
    setup = str(Path(asked.setup).absolute()) if asked.setup else ""
    code = [word for given in (asked.faults, setup) if given for word in ("--setup", given)]  # as a person names both

    def left(share: float) -> float:
        return max(1.0, share * (until - time.monotonic()))

    heard: list[Event] = []
    given = (asked.device, asked.faults, setup)
    step = _ran("doctor", ("parity.engine.examining.job", given), folder / "doctor.txt", max(PROBE_SECONDS, left(1.0)), heard)
    answer: Event = heard[0]["answer"] if heard else {"error": step.said, "exit_code": step.code}
    (folder / "doctor.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    if not heard:
        yield replace(step, code=step.code or 1)
        return
    device, verdict = answer["device"], answer["verdict"]
    yield replace(step, code={"healthy": 0, "suspect": 1}.get(verdict, ABSENT), said=f"{device}: {verdict}")
    yield _costs((device, asked.faults, setup), folder, max(COSTS_SECONDS, left(COSTS_SHARE)))
    yield _reported((device, asked.faults, setup), folder, left(REPORTED_SHARE))
    run, ops = folder / "run.jsonl", asked.patterns or spread()
    options = ["--device", device, "--study", "reach", "-n", str(asked.workers), "--output", str(run)]
    argv = ["run", *ops, *options, "--findings", str(folder / "findings"), *code]
    step = _ran("run", (COMMAND, (argv, None)), folder / "run.txt", left(RUN_SHARE), [])
    yield replace(step, said=_here(step.said, folder))
    if run.exists():
        argv = ["prove", "reach", str(run), "--output", str(folder / "audit.json")]
        yield _ran("audit", (COMMAND, (argv, None)), folder / "audit.txt", max(AUDIT_SECONDS, left(1.0)), [])


def _here(said: str, folder: Path) -> str:
    """What a run said last, without what to do with files of a folder that is gone afterwards."""
    before, named, _ = said.partition(str(folder))
    return before.rpartition("; ")[0] if named else said


def _costs(given: tuple[str, str, str], folder: Path, seconds: float) -> Step:
    """What the device takes for the pieces of a run."""
    heard: list[Event] = []
    step = _ran("costs", (COSTS, (*given, seconds)), folder / "costs.txt", seconds, heard)
    if not heard:
        return replace(step, said="the time was too short for it") if step.late else step
    tree = heard[0]["costs"]
    if tree is None:
        return replace(step, said="it compiles no graphs, so none were timed")
    (folder / archive.COSTS).write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    return replace(step, said=f"a graph takes {1000 * tree['graph']['middle']:.1f} ms")


def _reported(given: tuple[str, str, str], folder: Path, seconds: float) -> Step:
    """The zoo's cases, in as many processes as it takes: one that a case ended is followed by one that starts behind it."""
    until, started, start = time.monotonic() + seconds, time.monotonic(), 0
    heard: list[Event] = []
    step = Step("reported", 0, 0.0, "", True)
    try:
        while (allowed := until - time.monotonic()) > 0:
            step = _ran("reported", (REPORTED, (*given, start)), folder / "reported.txt", allowed, heard, HUNG)
            begun = heard[-1].get(BEGIN) if heard else None
            if step.code == 0 or step.late or begun is None:
                break
            heard.append({**begun, "state": DIED, "how": str(step.code)})
            start = begun["ordinal"] + 1
    finally:
        records = [x for x in heard if BEGIN not in x]
        (folder / "reported.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in records), encoding="utf-8")
    counts = Counter(x["state"] for x in records)
    said = ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "none came to its end"
    bad = DIED in counts or DIFFERS in counts
    return Step("reported", 1 if bad else step.code, time.monotonic() - started, said, step.late and not bad)


def _ran(name: str, job: tuple[str, object], log: Path, seconds: float, heard: list[Event], silence: float = math.inf) -> Step:
    """One job, which is asked to stop when its time is over, or when the person wants to stop. heard: gets its events."""
    kept = {k for k, v in environment(os.environ) if not k.startswith(archive.KEPT)}
    variables = {k: v for k, v in surroundings().items() if k not in kept}  # what a run file would say of them
    started = time.monotonic()
    with log.open("a", encoding="utf-8") as out, Child(*job, Watch(math.inf, silence), environment=variables, out=out) as one:
        try:
            while isinstance(event := one.hear(started + seconds - time.monotonic()), dict):
                heard.append(event)
        except KeyboardInterrupt:
            one.stop(GRACE)
            raise
        end = one.stop(GRACE) if event is None else event
    lines = [x for x in log.read_text(encoding="utf-8", errors="replace").splitlines() if x.strip()]
    said = str(end.refused or (lines[-1].strip()[:200] if lines else ""))
    code = heard[-1].get("code", 0) if heard and not end.died else end.code
    return Step(name, 1 if code is None else code, time.monotonic() - started, said, event is None)
