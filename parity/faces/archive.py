"""`parity doctor --archive`: the most revealing checks on a device that nobody has tried yet, within minutes, in one archive.

Each step (the examination, the reported cases, a run, its reach) is a process of its own; whatever becomes of one, the next
begins, and the archive is written in the end, after Ctrl-C too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from parity.core import processes
from parity.devices.fingerprint import environment
from parity.engine import suite
from parity.engine.doctor import PROBE_SECONDS
from parity.faces.interruption import Interruptions
from parity.report import archive
from parity.report.archive import DIED, DIFFERS, Step

MINUTES = 10.0
PER_FAMILY = 3  # ops of each family that the run takes
REPORTED_SHARE, RUN_SHARE = 0.3, 0.9  # of what is left of the time when the step begins
AUDIT_SECONDS = 60.0  # at least: it needs few, and is worth them after a run that took all the time
GRACE = 30.0  # seconds in which a step that was asked to stop stores what it has
INTERRUPTED, ABSENT = 130, 4


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
    """The examination, the reported cases, the run and its reach, each as soon as the one before is through."""
    setup = str(Path(asked.setup).absolute()) if asked.setup else ""
    files = [*(("--faults", asked.faults) if asked.faults else ()), *(("--setup", setup) if setup else ())]
    code = [word for given in (asked.faults, setup) if given for word in ("--setup", given)]  # as a person names both

    def left(share: float) -> float:
        return max(1.0, share * (until - time.monotonic()))

    probe = processes.command("parity.devices.preflight", *files, "--", asked.device)
    step = _ran("doctor", probe, folder / "doctor.txt", max(PROBE_SECONDS, left(1.0)))
    answer = _answer(folder / "doctor.txt")
    (folder / "doctor.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    if "device" not in answer:
        yield replace(step, code=int(answer.get("exit_code", 1)), said=str(answer.get("error", step.said)))
        return
    device = str(answer["device"])
    yield replace(step, code={"healthy": 0, "suspect": 1}.get(answer["verdict"], ABSENT), said=f"{device}: {answer['verdict']}")
    yield _reported(device, files, folder, left(REPORTED_SHARE))
    run, ops = folder / "run.jsonl", asked.patterns or spread()
    options = ["--device", device, "--study", "reach", "-n", str(asked.workers), "--output", str(run)]
    command = processes.command("parity", "run", *ops, *options, "--findings", str(folder / "findings"), *code)
    step = _ran("run", command, folder / "run.txt", left(RUN_SHARE))
    yield replace(step, said=_here(step.said, folder))
    if run.exists():
        command = processes.command("parity", "prove", "reach", str(run), "--output", str(folder / "audit.json"))
        yield _ran("audit", command, folder / "audit.txt", max(AUDIT_SECONDS, left(1.0)))


def _here(said: str, folder: Path) -> str:
    """What a run said last, without what to do with files of a folder that is gone afterwards."""
    before, named, _ = said.partition(str(folder))
    return before.rpartition("; ")[0] if named else said


def _answer(path: Path) -> dict[str, Any]:
    """The probe's line of JSON; nothing where it died."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for line in reversed(lines):
        try:
            tree = json.loads(line)
        except ValueError:
            continue
        if isinstance(tree, dict):
            return tree
    return {}


def _reported(device: str, files: Sequence[str], folder: Path, seconds: float) -> Step:
    """The zoo's cases, in as many processes as it takes: one that a case ended is followed by one that starts behind it."""
    out, until, start, deaths = folder / "reported.jsonl", time.monotonic() + seconds, 0, 0
    started = time.monotonic()
    while (allowed := until - time.monotonic()) > 0:
        options = [device, str(out), "--start", str(start), *files]
        step = _ran("reported", processes.command("parity.zoo.reported", *options), folder / "reported.txt", allowed)
        last = _last(out)
        if step.code == 0 or step.late or "begins" not in last:
            break
        with out.open("a", encoding="utf-8") as f:
            f.write(json.dumps({"id": last["begins"], "ordinal": last["ordinal"], "state": DIED, "how": str(step.code)}) + "\n")
        start, deaths = int(last["ordinal"]) + 1, deaths + 1
    counts: dict[str, int] = {}
    for record in _records(out):
        if "state" in record:
            counts[record["state"]] = counts.get(record["state"], 0) + 1
    said = ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "none came to its end"
    bad = deaths or DIFFERS in counts
    return Step("reported", 1 if bad else step.code, time.monotonic() - started, said, step.late and not bad)


def _records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that a process may have left in the middle of one."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def _last(path: Path) -> dict[str, Any]:
    return (_records(path) or [{}])[-1]


def _ran(name: str, command: Sequence[str], log: Path, seconds: float) -> Step:
    """One process, which is asked to stop when its time is over, or when the person wants to stop."""
    kept = {k for k, v in environment(os.environ) if not k.startswith(archive.KEPT)}
    variables = {k: v for k, v in os.environ.items() if k not in kept}  # what a run file would say of them
    started = time.monotonic()
    with log.open("a", encoding="utf-8") as out, processes.isolated():
        variables |= {k: os.environ[k] for k in (processes.SAFE, processes.PATH) if k in os.environ}
        process = _start(command, out, variables)
        late = False
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
            _stop(process)
        except KeyboardInterrupt:
            _stop(process)
            raise
    lines = [x for x in log.read_text(encoding="utf-8", errors="replace").splitlines() if x.strip()]
    return Step(name, process.returncode, time.monotonic() - started, lines[-1].strip()[:200] if lines else "", late)


def _start(command: Sequence[str], out: IO[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    """In a session of its own: Ctrl-C is heard here, and handed on once."""
    return subprocess.Popen(
        command,
        stdout=out,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=variables,
        start_new_session=True,
    )


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask it to store what it has; end it, with all that it has started, where it does not."""
    for number, seconds in ((signal.SIGINT, GRACE), (signal.SIGKILL, GRACE)):
        try:
            os.killpg(process.pid, number) if number == signal.SIGKILL else process.send_signal(number)
            process.wait(timeout=seconds)
            return
        except ProcessLookupError:
            process.wait(timeout=seconds)
            return
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            continue
